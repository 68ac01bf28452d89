"""``pocketserve convert``: makes a version of another kind, or a smaller one, and checks it against the original."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.terminal.errors import EXIT_DONE, EXIT_FAILED, CommandError
from pocketserve.terminal.local import open_local
from pocketserve.terminal.output import (
    human_bytes,
    print_json,
    print_table,
    print_text,
    printable,
)
from pocketserve.terminal.progress import Progress
from pocketserve_lab.conversion import (
    add_common_options,
    conversion_errors,
    model_of,
    noting,
    process_limits,
    refusal_sentence,
)

if TYPE_CHECKING:
    from pocketserve_lab.convert.converter import ConversionError
    from pocketserve_lab.convert.run import Conversion


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "convert",
        help="make a version of another kind or a smaller one, checked against the original",
        description="Converts a model and puts the result beside it as a new version. The result is run first and must "
        "answer as the original does. Tools that are no part of this installation get an environment of their own, "
        "which is made once.",
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL|FILE", help="a model's name, file or folder"
    )
    parser.add_argument(
        "--to",
        metavar="KIND[,KIND…]",
        help="what to make, such as tflite,onnx; all: whatever can be",
    )
    modes = ("none", "fp16", "dynamic", "int8", "int16x8")
    parser.add_argument(
        "--quantize",
        choices=modes,
        default="none",
        help="how to make it smaller [none]",
    )
    parser.add_argument(
        "--samples",
        type=Path,
        metavar="PATH",
        help="a file or folder of inputs [the model's samples]",
    )
    parser.add_argument(
        "--version", dest="model_version", metavar="NAME", help="the version to convert"
    )
    parser.add_argument(
        "--on-device",
        action="store_true",
        help="list what can be made where the server runs",
    )
    add_common_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Convert and print; or list."""
    with conversion_errors(options):
        if options.on_device:
            return _list_on_device(options)
        if options.model is None or options.to is None:
            raise CommandError(
                "name a model and what to make of it: pocketserve convert MODEL --to tflite"
            )
        return _convert_all(options)


def _convert_all(options: argparse.Namespace) -> int:
    from pocketserve_lab.convert.converter import ConversionError
    from pocketserve_lab.convert.plan import check_kinds, reachable_kinds
    from pocketserve_lab.convert.registry import converters
    from pocketserve_lab.convert.run import ConversionSettings, ModelConverter

    limits, kinds = process_limits(options), check_kinds(options.to)
    entry, version, config = model_of(options)
    formats = (
        [entry.versions[version].format.name]
        if version
        else [v.format.name for v in entry.versions.values()]
    )
    kinds = kinds or reachable_kinds(formats, options.quantize, converters())
    if options.name and len(kinds) > 1:
        raise CommandError("--name names one version; give --to one kind")
    settings = ConversionSettings(
        models_dir=config.models_dir,
        state_dir=config.state_dir,
        quantize=options.quantize,
        version=version,
        samples=options.samples,
        name=options.name,
        limits=limits,
    )
    progress = Progress(lines=True)
    conversions: list[Conversion] = []
    failed: dict[str, ConversionError] = {}
    converter = ModelConverter(entry, settings, progress.show, noting(progress))
    try:
        for kind in kinds:
            try:
                conversions.append(converter.convert(kind))
            except ConversionError as error:
                if len(kinds) == 1:
                    raise
                failed[kind] = error
    finally:
        progress.end()
        converter.close()
    if options.json:
        faults = {kind: refusal_sentence(error) for kind, error in failed.items()}
        print_json(
            {
                "model": entry.name,
                "versions": [_plain(conversion) for conversion in conversions],
                "failed": faults,
            }
        )
    else:
        _print_results(conversions, failed, debug=options.debug)
    return EXIT_FAILED if failed else EXIT_DONE


def _plain(conversion: Conversion) -> dict[str, Any]:
    values = conversion._asdict()
    agreement = conversion.agreement
    return {
        **values,
        "path": str(conversion.path),
        "agreement": None if agreement is None else agreement._asdict(),
    }


def _print_results(
    conversions: list[Conversion], failed: dict[str, ConversionError], *, debug: bool
) -> None:
    rows = [_row(conversion) for conversion in conversions]
    if rows:
        print_table(
            ["NEW VERSION", "FROM", "BYTES", "DIFFERENCE", "SAME CLASS", "MADE BY"],
            rows,
        )
    for conversion in conversions:
        for text in _remarks(conversion):
            print_text(printable(f"{conversion.version or conversion.kind}: {text}"))
    if any(conversion.random for conversion in conversions):
        print_text(
            "They were compared on made-up input, as there are no samples; --samples names some."
        )
    for kind, error in failed.items():
        print(
            printable(f"pocketserve: {kind}: {refusal_sentence(error)}"),
            file=sys.stderr,
        )
        if debug and error.detail:
            print(printable(error.detail), file=sys.stderr)


def _row(conversion: Conversion) -> list[str]:
    agreement = conversion.agreement
    sizes = f"{human_bytes(conversion.source_bytes)} -> {human_bytes(conversion.result_bytes)}"
    difference = "not run" if agreement is None else f"{agreement.error:.1e}"
    class_share = (
        ""
        if agreement is None or agreement.same_class is None
        else f"{agreement.same_class:.0%}"
    )
    name = conversion.version or conversion.path.name
    return [
        name,
        conversion.source,
        sizes,
        difference,
        class_share,
        ", ".join(conversion.tools),
    ]


def _remarks(conversion: Conversion) -> list[str]:
    texts = list(conversion.notes)
    if conversion.kind == "pt2":
        folder = shlex.quote(os.path.relpath(conversion.path.parent))
        texts.append(f"is code, which runs after: pocketserve trust {folder}")
    if not conversion.version:
        was_run = "" if conversion.agreement is not None else ", and was not run"
        texts.append(f"is in {conversion.path}; it is not served here{was_run}")
    return texts


def _list_on_device(options: argparse.Namespace) -> int:
    """Print the converters that need no environment."""
    import importlib.util

    from pocketserve_lab.convert.plan import runs_on_device
    from pocketserve_lab.convert.registry import converters

    formats: set[str] | None = None
    if options.model is not None:
        service, name, version = open_local(options.model, options.models_dir)
        try:
            versions = service.entry(name).versions
            formats = {
                v.format.name for v in versions.values() if version in (None, v.name)
            }
        finally:
            service.close()
    rows = []
    for converter in filter(runs_on_device, converters()):
        sources = [
            source
            for source in converter.sources
            if formats is None or source in formats
        ]
        missing = [
            package
            for package in converter.packages
            if importlib.util.find_spec(package) is None
        ]
        state = f"needs {', '.join(missing)}" if missing else "ready"
        if sources:
            rows.append(
                [
                    ", ".join(sources),
                    converter.kind,
                    ", ".join(converter.quantize),
                    converter.name,
                    state,
                ]
            )
    if options.json:
        keys = ("from", "to", "quantize", "converter", "state")
        print_json({"on_device": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        print_table(
            ["FROM", "TO", "QUANTIZE", "CONVERTER", ""], rows, spare=("CONVERTER",)
        )
    return EXIT_DONE
