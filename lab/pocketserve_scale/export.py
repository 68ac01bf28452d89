"""``pocketserve export``: writes a models folder in the form that another server takes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from pocketserve.config import load_config
from pocketserve.messages import plural
from pocketserve.terminal.errors import EXIT_DONE, EXIT_FAILED, CommandError
from pocketserve.terminal.local import quiet_frameworks
from pocketserve.terminal.output import print_json, print_table, print_text


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "export",
        help="write a models folder in the form that another server takes",
        description="Writes a model repository for Triton: a model for each version, which Triton's Python backend "
        "runs with this package. Each version is loaded once for its shapes; what is left out is listed with a reason.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the models folder")
    parser.add_argument(
        "target",
        type=Path,
        metavar="OUT",
        help="the folder to write, which must not exist yet",
    )
    parser.add_argument(
        "--to", choices=("triton",), required=True, help="the server that is to take it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(options: argparse.Namespace) -> int:
    """Write the repository and list what became of each version; fail when there is none."""
    from pocketserve.service import Service
    from pocketserve_scale.triton import export_models  # late: --help needs no NumPy

    folder = options.folder.absolute()
    if options.target.exists():
        raise CommandError(f"{str(options.target)!r} exists already; name a new folder")
    config = load_config({"models_dir": folder})
    with quiet_frameworks(options):
        try:
            service = Service(config)
        except OSError as error:
            raise CommandError(
                f"the models folder {folder} cannot be read ({error.strerror})"
            ) from None
        try:
            rows = export_models(service, folder, options.target)
        finally:
            service.close()
    if options.json:
        print_json([row._asdict() for row in rows])
    else:
        print_table(
            ("MODEL", "VERSION", "IN TRITON"),
            [
                (
                    row.model,
                    row.version,
                    ", ".join(row.names) or f"left out: {row.reason}",
                )
                for row in rows
            ],
        )
        count = sum(len(row.names) for row in rows)
        print_text(f"{plural(count, 'model')} in {options.target}")
    return EXIT_DONE if any(row.names for row in rows) else EXIT_FAILED
