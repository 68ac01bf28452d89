"""Exit codes of commands, and the error that ends one with a sentence."""

EXIT_DONE, EXIT_FAILED, EXIT_USAGE = 0, 1, 2  # argparse exits with EXIT_USAGE, too


class CommandError(Exception):
    """A command cannot do its work; the text is one sentence with the way out."""
