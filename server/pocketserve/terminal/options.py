"""Options shared by commands."""

from __future__ import annotations

import argparse


def add_folder_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--models-dir``, the models folder of a command."""
    parser.add_argument(
        "--models-dir", metavar="DIR", help="the models folder [the one that is served]"
    )
