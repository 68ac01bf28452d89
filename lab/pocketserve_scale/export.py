"""``pocketserve export``: write a models folder in the format of another server."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.config import Config, load_config
from pocketserve.messages import plural
from pocketserve.terminal.errors import EXIT_DONE, EXIT_FAILED, CommandError
from pocketserve.terminal.local import quiet_frameworks
from pocketserve.terminal.output import print_json, print_table, print_text

if TYPE_CHECKING:
    from pocketserve_scale.triton import ExportRow


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "export",
        help="write a models folder in the format of another server",
        description="Writes a model repository for Triton: a model for each version, "
        "which Triton's Python backend runs with this package. Each version is loaded "
        "once for its shapes; versions left out are listed with a reason.",
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the models folder")
    parser.add_argument(
        "target",
        type=Path,
        metavar="OUT",
        help="the folder to write, which must not exist yet",
    )
    parser.add_argument(
        "--to", choices=("triton",), required=True, help="the server to write it for"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(options: argparse.Namespace) -> int:
    """Write the repository and list the versions.

    Fail if none was exported.
    """
    folder = options.folder.absolute()
    if options.target.exists():
        raise CommandError(f"{str(options.target)!r} exists already; name a new folder")
    config = load_config({"models_dir": folder})
    with quiet_frameworks(options):
        rows = _export(config, folder, options.target)
    if options.json:
        print_json([row._asdict() for row in rows])
    else:
        _print_rows(rows, options.target)
    return EXIT_DONE if any(row.names for row in rows) else EXIT_FAILED


def _export(config: Config, folder: Path, target: Path) -> list[ExportRow]:
    # Late: --help needs no NumPy.
    from pocketserve.service import Service
    from pocketserve_scale.triton import export_models

    try:
        service = Service(config)
    except OSError as error:
        raise CommandError(
            f"the models folder {folder} cannot be read ({error.strerror})"
        ) from None
    try:
        return export_models(service, folder, target)
    finally:
        service.close()


def _print_rows(rows: Sequence[ExportRow], target: Path) -> None:
    cells = []
    count = 0
    for row in rows:
        names = ", ".join(row.names) or f"left out: {row.reason}"
        cells.append((row.model, row.version, names))
        count += len(row.names)
    print_table(("MODEL", "VERSION", "IN TRITON"), cells)
    print_text(f"{plural(count, 'model')} in {target}")
