"""Options that commands share."""

from __future__ import annotations

import argparse


def add_folder_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--models-dir``, the folder that a command changes or takes a model from."""
    parser.add_argument(
        "--models-dir", metavar="DIR", help="the models folder [the one that is served]"
    )
