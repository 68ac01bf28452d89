"""Commands that change the models folder."""
