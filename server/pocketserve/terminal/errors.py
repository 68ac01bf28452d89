"""Exit codes of commands, and their error class."""

EXIT_DONE, EXIT_FAILED, EXIT_USAGE = 0, 1, 2  # argparse exits with EXIT_USAGE, too


class CommandError(Exception):
    """A command failed; the text is one sentence with the remedy."""
