"""``pocketserve compare``: compares all versions of a model, and recommends one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.options import add_folder_option
from pocketserve.terminal.output import print_json
from pocketserve.terminal.progress import Progress
from pocketserve_lab.arguments import parse_seconds, parse_share, parse_threads

if TYPE_CHECKING:
    from pocketserve.repository.manifest_edit import Document
    from pocketserve.repository.scan import ModelEntry
    from pocketserve_lab.compare.session import Plan
    from pocketserve_lab.language.comparison import LanguagePlan


MAX_REPEATS = 100
SAMPLES = 500


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "compare",
        help="compare a model's versions on this device: size, memory, speed, answers",
        description="Runs all versions of a model in turns, each in a process of its "
        "own, and recommends one. With two results of --json, it shows those of two "
        "devices side by side.",
    )
    parser.add_argument(
        "model",
        nargs="+",
        metavar="MODEL|JSON",
        help="a model's name, file or folder; or two files with results",
    )
    _add_subject_options(parser)
    _add_measurement_options(parser)
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
        "--report",
        type=Path,
        metavar="FOLDER",
        help="write tables, figures, samples and methods for a paper",
    )
    parser.add_argument(
        "--png", type=Path, metavar="FILE", help="write a picture of the table"
    )
    return parser


def _add_subject_options(parser: argparse.ArgumentParser) -> None:
    """Add the options on versions and samples."""
    parser.add_argument(
        "--versions", metavar="NAME[,NAME…]", help="the versions to compare [all]"
    )
    parser.add_argument(
        "--reference",
        metavar="NAME",
        help="the version to compare the others with [the first]",
    )
    add_folder_option(parser)
    parser.add_argument(
        "--data",
        type=Path,
        metavar="PATH",
        help="a file or folder of inputs, best with labels [the model's samples]; for "
        "language models, a file with a text",
    )
    parser.add_argument(
        "--limit",
        type=_limit,
        metavar="N",
        help=f"samples at most [{SAMPLES}]",
    )


def _add_measurement_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--seconds",
        type=parse_seconds,
        default=15.0,
        metavar="S",
        help="for all timed turns together [15]",
    )
    parser.add_argument(
        "--repeat",
        type=_repeats,
        default=1,
        metavar="N",
        help="run everything N times, and report the spread [1]",
    )
    parser.add_argument(
        "--margin",
        type=parse_share,
        metavar="SHARE",
        help="recommend only versions shown to lose less than this, such as 1%%",
    )
    parser.add_argument(
        "--threads",
        type=parse_threads,
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


def run(options: argparse.Namespace) -> int:
    """Compare versions, layers or two devices' results, and print the result."""
    if _are_results(options.model):
        return _show_devices(options)
    _check_paths(options)
    if _is_language_model(options):
        return _compare_language_model(options)
    plan = _plan(options)
    if options.layers:
        return _show_layers(options, plan)
    from pocketserve_lab.compare.paper.repeats import compare_repeatedly

    progress = Progress(lines=True)
    try:
        result = compare_repeatedly(plan, options.repeat, progress.show)
    finally:
        progress.end()
    _write_files(options, result)
    applied = ""
    if options.apply:
        applied = _apply(result)
    if options.json:
        print_json(result)
    else:
        _print_report(result, applied)
    return 0


def _print_report(result: dict[str, Any], applied: str) -> None:
    from pocketserve_lab.compare.report import print_report

    print_report(result)
    if applied:
        print(applied)


def _are_results(names: list[str]) -> bool:
    """Return whether these are two files with results."""
    return len(names) == 2 and all(name.endswith(".json") for name in names)


def _is_language_model(options: argparse.Namespace) -> bool:
    from pocketserve_lab.language.comparison import is_for_text

    return is_for_text(options.model[0], options.models_dir)


def _compare_language_model(options: argparse.Namespace) -> int:
    from pocketserve_lab.language.comparison import compare_language_versions
    from pocketserve_lab.language.report import print_language_report

    plan = _language_plan(options)
    progress = Progress(lines=True)
    try:
        result = compare_language_versions(plan, progress.show)
    finally:
        progress.end()
    if options.json:
        print_json(result)
    else:
        print_language_report(result)
    return 0


def _language_plan(options: argparse.Namespace) -> LanguagePlan:
    from pocketserve_lab.language.comparison import LanguagePlan
    from pocketserve_lab.language.texts import read_sample_text

    foreign = _foreign_options(options)
    if foreign:
        names = ", ".join(foreign)
        raise CommandError(f"language models take no {names}; compare them without")
    return LanguagePlan(
        options.model[0],
        options.models_dir,
        read_sample_text(options.data),
        _names(options.versions),
        options.reference,
        options.seconds,
        options.threads,
    )


def _foreign_options(options: argparse.Namespace) -> list[str]:
    """Return the given options that language models don't have."""
    names = []
    for name in ("apply", "device", "html", "layers", "limit", "png", "report"):
        if getattr(options, name):
            names.append(f"--{name}")
    if options.margin is not None:
        names.append("--margin")
    if options.repeat > 1:
        names.append("--repeat")
    return names


def _check_paths(options: argparse.Namespace) -> None:
    if len(options.model) > 1:
        raise CommandError(
            "name one model, or two JSON files with results of this command"
        )
    for path in (options.html, options.png):
        if path is not None and not path.absolute().parent.is_dir():
            raise CommandError(
                f"{str(path)!r} is in a folder that does not exist; create it first"
            )
    if options.report is not None:
        from pocketserve_lab.compare.paper.folder import check_folder

        check_folder(options.report)
    if options.data is not None and not options.data.exists():
        raise CommandError(
            f"{str(options.data)!r} does not exist; name a file or folder with --data"
        )


def _plan(options: argparse.Namespace) -> Plan:
    from pocketserve_lab.compare.session import Plan  # late: --help needs no NumPy

    return Plan(
        options.model[0],
        options.models_dir,
        _names(options.versions),
        options.reference,
        options.data,
        options.limit or SAMPLES,
        options.seconds,
        options.threads,
        _names(options.device),
        options.margin,
    )


def _names(text: str | None) -> tuple[str, ...]:
    names = [name.strip() for name in (text or "").split(",")]
    return tuple(name for name in names if name)


def _has_whole_options(options: argparse.Namespace) -> bool:
    """Return whether options of a whole comparison are present."""
    names = ("apply", "html", "png", "report", "device")
    if any(getattr(options, name) for name in names):
        return True
    return options.margin is not None or options.repeat > 1


def _show_devices(options: argparse.Namespace) -> int:
    from pocketserve_lab.compare.devices import print_devices, read_result, side_by_side

    if _has_whole_options(options):
        raise CommandError(
            "--apply, --device, --html, --png, --report, --margin and --repeat "
            "belong to a comparison on this device"
        )
    first_name, second_name = options.model
    first, second = read_result(Path(first_name)), read_result(Path(second_name))
    if options.json:
        print_json(side_by_side(first, second))
    else:
        print_devices(first, second, (first_name, second_name))
    return 0


def _show_layers(options: argparse.Namespace, plan: Any) -> int:
    from pocketserve_lab.compare.layers import compare_layers, print_layers

    if _has_whole_options(options):
        raise CommandError(
            "--apply, --device, --html, --png, --report, --margin and --repeat "
            "belong to a comparison of whole versions"
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
        from pocketserve_lab.compare.paper.folder import without_paths

        page = page_of(without_paths(result))
        options.html.write_text(page, encoding="utf-8")
    if options.png:
        from pocketserve_lab.compare.figure import write_png

        write_png(result, options.png)
    if options.report:
        from pocketserve_lab.compare.paper.folder import write_paper

        write_paper(result, options.report, options.seconds)


def _apply(result: dict[str, Any]) -> str:
    """Make the recommended version the default one."""
    from pocketserve.repository.manifest_edit import edit_manifest
    from pocketserve.repository.scan import scan

    title = result["recommendation"]["version"]
    if title is None:
        raise CommandError("no version is recommended, so that the default one stays")
    if title == result["default"]:
        return f"{title} is the default version already."
    folder = _folder_to_change(result, title)
    recommended = result["versions"][title]
    version = recommended["version"]
    entry = scan(folder.parent)[result["model"]]

    def change(document: Document) -> None:
        _set_default(entry, version, recommended["options"], document)

    edit_manifest(folder, change)
    return _applied(folder, version, title)


def _applied(folder: Path, version: str, title: str) -> str:
    if title != version:
        version = f"{version}, as {title},"
    return (
        f"{folder / 'model.toml'}: default_version is {version} now; "
        "`pocketserve models` has a server read it."
    )


def _folder_to_change(result: dict[str, Any], title: str) -> Path:
    """Return the model's folder, or refuse the change."""
    default = result["default"]
    if default not in result["versions"] and default not in result["skipped"]:
        option = "--device" if "@" in default else "--versions"
        raise CommandError(
            f"{title} was not compared with {default}, the default version; "
            f"add it to {option}"
        )
    folder = Path(result["folder"])
    if folder.name != result["model"]:
        raise CommandError(
            f"put the files of {result['model']!r} into a folder of that name, "
            "then --apply can set it"
        )
    return folder


def _set_default(
    entry: ModelEntry, name: str, options: dict[str, Any] | None, document: Document
) -> None:
    """Make a version the default one.

    Args:
        options: the device options for its table; None leaves them unchanged.
    """
    from pocketserve.repository.manifest_edit import declare_versions

    present = entry.versions[name].options
    if options is not None and options != present:
        declare_versions(document, entry)
        table = document["versions"][name]
        for key in present.keys() - options.keys():
            del table[key]
        for key, value in options.items():
            if present.get(key) != value:
                table[key] = value
    document["default_version"] = name


def _repeats(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 1 <= value <= MAX_REPEATS:
        raise argparse.ArgumentTypeError(
            f"must be a whole number from 1 to {MAX_REPEATS}"
        )
    return value


def _limit(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if not 1 <= value <= 100_000:
        raise argparse.ArgumentTypeError("must be a whole number from 1 to 100000")
    return value
