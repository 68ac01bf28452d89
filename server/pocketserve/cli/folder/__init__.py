"""Commands that change the models folder: what comes, what goes, and how it is called."""
