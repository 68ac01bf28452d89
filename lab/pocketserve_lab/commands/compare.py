"""``pocketserve compare``: all versions of a model side by side on this device, and which one to serve."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.options import add_folder_option
from pocketserve.terminal.output import print_json
from pocketserve.terminal.progress import Progress
from pocketserve_lab.commands.bench import _seconds, _threads

if TYPE_CHECKING:
    from pocketserve.repository.manifest_edit import Document
    from pocketserve.repository.scan import ModelEntry


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help="compare a model's versions on this device: size, memory, speed, answers",
        description="Runs all versions of a model in turns, each in a process of its own, and recommends one. With two "
        "results of --json, it shows what two devices said side by side.",
    )
    parser.add_argument(
        "model",
        nargs="+",
        metavar="MODEL|JSON",
        help="a model's name, file or folder; or two files with results",
    )
    parser.add_argument(
        "--versions", metavar="NAME[,NAME…]", help="the versions to compare [all]"
    )
    parser.add_argument(
        "--reference",
        metavar="NAME",
        help="the version to hold the others against [the first]",
    )
    add_folder_option(parser)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="a file or folder to ask, best with labels [the model's samples]",
    )
    parser.add_argument(
        "--limit", type=_limit, default=500, metavar="N", help="samples at most [500]"
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=15.0,
        metavar="S",
        help="for all timed turns together [15]",
    )
    parser.add_argument(
        "--threads",
        type=_threads,
        default=0,
        metavar="N",
        help="threads of one run [the fast cores]",
    )
    parser.add_argument(
        "--device",
        metavar="NAME[,NAME…]",
        help="run each version on these, such as cpu,xnnpack [as model.toml says]",
    )
    parser.add_argument(
        "--layers",
        nargs=2,
        metavar=("A", "B"),
        help="find the first layers of two versions that differ, and why",
    )
    parser.add_argument(
        "--apply",
        action="store_true",
        help="make the recommended version the default one",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, with all samples"
    )
    parser.add_argument(
        "--html", type=Path, metavar="FILE", help="write a page with everything in it"
    )
    parser.add_argument(
        "--png", type=Path, metavar="FILE", help="write a picture of the table"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Compare and show."""
    if len(options.model) == 2 and all(
        name.endswith(".json") for name in options.model
    ):
        return _show_devices(options)
    if len(options.model) > 1:
        raise CommandError(
            "name one model, or two JSON files with results of this command"
        )
    for path in (options.html, options.png):
        if path is not None and not path.absolute().parent.is_dir():
            raise CommandError(
                f"{str(path)!r} lies in a folder that does not exist; make it first"
            )
    if options.data is not None and not options.data.exists():
        raise CommandError(
            f"{str(options.data)!r} does not exist; name a file or folder with --data"
        )
    from pocketserve_lab.compare.session import (
        Plan,
        compare_versions,
    )  # late: --help needs no NumPy

    versions, devices = (_names(text) for text in (options.versions, options.device))
    files = (
        options.model[0],
        options.models_dir,
        versions,
        options.reference,
        options.data,
    )
    plan = Plan(*files, options.limit, options.seconds, options.threads, devices)
    if options.layers:
        return _show_layers(options, plan)
    progress = Progress(lines=True)
    try:
        result = compare_versions(plan, progress.show)
    finally:
        progress.end()
    _write_files(options, result)
    applied = _apply(result) if options.apply else ""
    if options.json:
        print_json(result)
    else:
        from pocketserve_lab.compare.report import print_report

        print_report(result)
        print(applied, end="\n" if applied else "")
    return 0


def _names(text: str | None) -> tuple[str, ...]:
    return (
        tuple(name.strip() for name in text.split(",") if name.strip()) if text else ()
    )


def _show_devices(options: argparse.Namespace) -> int:
    from pocketserve_lab.compare.devices import print_devices, read_result, side_by_side

    if options.apply or options.html or options.png or options.device:
        raise CommandError(
            "--apply, --device, --html and --png belong to a comparison on this device"
        )
    first, second = (read_result(Path(name)) for name in options.model)
    if options.json:
        print_json(side_by_side(first, second))
    else:
        print_devices(first, second, (options.model[0], options.model[1]))
    return 0


def _show_layers(options: argparse.Namespace, plan: Any) -> int:
    from pocketserve_lab.compare.layers import compare_layers, print_layers

    if options.apply or options.html or options.png or options.device:
        raise CommandError(
            "--apply, --device, --html and --png belong to a comparison of whole versions"
        )
    result = compare_layers(plan, options.layers)
    if options.json:
        print_json(result)
    else:
        print_layers(result)
    return 0


def _write_files(options: argparse.Namespace, result: dict[str, Any]) -> None:
    if options.html:
        from pocketserve_lab.compare.page import page_of

        options.html.write_text(page_of(result), encoding="utf-8")
    if options.png:
        from pocketserve_lab.compare.figure import write_png

        write_png(result, options.png)


def _apply(result: dict[str, Any]) -> str:
    """Make the recommended version the default one; return what was done."""
    version, folder = result["recommendation"]["version"], Path(result["folder"])
    if version is None:
        raise CommandError("no version is recommended, so that the default one stays")
    if version == result["default"]:
        return f"{version} is the default version already."
    default = result["default"]
    if default not in result["versions"] and default not in result["skipped"]:
        option = "--device" if "@" in default else "--versions"
        raise CommandError(
            f"{version} was not compared with {default}, the default version; add it to {option}"
        )
    from pocketserve.repository.manifest_edit import edit_manifest
    from pocketserve.repository.scan import scan

    if folder.name != result["model"]:
        raise CommandError(
            f"put the files of {result['model']!r} into a folder of that name, then --apply can set it"
        )
    name, options = (result["versions"][version][key] for key in ("version", "options"))
    edit_manifest(
        folder,
        partial(_set_default, scan(folder.parent)[result["model"]], name, options),
    )
    title = f"{name}, as {version}," if version != name else name
    return f"{folder / 'model.toml'}: default_version is {title} now; `pocketserve models` has a server read it."


def _set_default(
    entry: ModelEntry, name: str, options: dict[str, Any] | None, document: Document
) -> None:
    """Make a version the default one, with the options in its table that choose its device; None leaves them."""
    from pocketserve.repository.manifest_edit import declare_versions

    present = entry.versions[name].options
    if options is not None and options != present:
        declare_versions(document, entry)
        table = document["versions"][name]
        for key in present.keys() - options.keys():
            del table[key]
        for key in [key for key, value in options.items() if present.get(key) != value]:
            table[key] = options[key]
    document["default_version"] = name


def _limit(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 1 <= value <= 100_000:
        raise argparse.ArgumentTypeError("must be a whole number from 1 to 100000")
    return value
