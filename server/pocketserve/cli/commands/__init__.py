"""Commands, a file each, with ``add_parser`` and ``run``."""
