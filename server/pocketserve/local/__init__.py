"""Models in this process, or in a private server process."""
