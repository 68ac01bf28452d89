"""``pocketserve convert``: converts a model, and checks it against the original."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.terminal.errors import EXIT_DONE, EXIT_FAILED, CommandError
from pocketserve.terminal.local import open_local
from pocketserve.terminal.output import (
    human_bytes,
    print_json,
    print_table,
    print_text,
    print_wide_table,
    printable,
)
from pocketserve.terminal.progress import Progress
from pocketserve_lab.arguments import parse_share
from pocketserve_lab.conversion import (
    add_common_options,
    conversion_errors,
    model_of,
    noting,
    process_limits,
    refusal_sentence,
)

if TYPE_CHECKING:
    from pocketserve_lab.conversion import SelectedModel
    from pocketserve_lab.convert.converter import ConversionError, Converter
    from pocketserve_lab.convert.run import Conversion, ModelConverter


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "convert",
        help="make a version of another kind or a smaller one, "
        "checked against the original",
        description="Converts a model and puts the result beside it as a new version. "
        "The result is run first and must answer like the original. "
        "Tools that are not installed get an environment of their own, once.",
    )
    parser.add_argument(
        "model", nargs="?", metavar="MODEL|FILE", help="a model's name, file or folder"
    )
    parser.add_argument(
        "--to",
        metavar="KIND[,KIND…]",
        help="the kinds to make, such as tflite,onnx; all: every possible one",
    )
    modes = ("none", "fp16", "dynamic", "int8", "int16x8", "q8_0")
    parser.add_argument(
        "--quantize",
        choices=modes,
        default="none",
        help="the kind of quantization [none]",
    )
    parser.add_argument(
        "--max-loss",
        type=parse_share,
        metavar="SHARE",
        help="leave layers in floats until int8 loses at most this, such as 0.5%%",
    )
    parser.add_argument(
        "--exclude",
        metavar="LAYER[,LAYER…]",
        help="layers that int8 leaves in floats",
    )
    parser.add_argument(
        "--calibration",
        choices=("min-max", "percentile", "entropy"),
        help="how int8 finds the ranges of numbers [min-max]",
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
        help="list the conversions that run on this device",
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
                "name a model and its new kind: pocketserve convert MODEL --to tflite"
            )
        return _convert_all(options)


def _convert_all(options: argparse.Namespace) -> int:
    from pocketserve_lab.convert.plan import check_kinds
    from pocketserve_lab.convert.run import ConversionSettings

    limits = process_limits(options)
    kinds = check_kinds(options.to)
    selected = model_of(options)
    kinds = kinds or _reachable_kinds(options, selected)
    converter_class = _converter_class(selected, kinds)
    if options.name and len(kinds) > 1:
        raise CommandError("--name names one version; give --to one kind")
    settings = ConversionSettings(
        models_dir=selected.config.models_dir,
        state_dir=selected.config.state_dir,
        quantize=options.quantize,
        version=selected.version,
        samples=options.samples,
        name=options.name,
        limits=limits,
        options=_int8_options(options),
    )
    progress = Progress(lines=True)
    converter = converter_class(
        selected.entry, settings, progress.show, noting(progress)
    )
    try:
        results = _convert_kinds(converter, kinds)
    finally:
        progress.end()
        converter.close()
    if options.json:
        print_json({"model": selected.entry.name, **results.document()})
    else:
        _print_results(results, debug=options.debug)
    return EXIT_FAILED if results.failed else EXIT_DONE


def _converter_class(
    selected: SelectedModel, kinds: Sequence[str]
) -> type[ModelConverter]:
    """Return the converter of speech models, of language models, or of all others.

    Raises:
        CommandError: the kinds need several.
    """
    from pocketserve_lab.convert.run import ModelConverter
    from pocketserve_lab.convert.speech.run import SpeechConverter, speech_source
    from pocketserve_lab.language.conversion import KIND, LanguageConverter

    if list(kinds) == [KIND]:
        return LanguageConverter
    if KIND in kinds:
        raise CommandError(f"give --to {KIND} alone: it is for language models")
    if speech_source(selected.entry, selected.version) is not None:
        return SpeechConverter
    return ModelConverter


def _int8_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the user's options that only int8 has.

    Raises:
        CommandError: the mode is another one.
    """
    from pocketserve_lab.convert.converter import INT8_MODES, INT8_OPTIONS

    values: dict[str, Any] = {}
    for key, name in INT8_OPTIONS.items():
        value = getattr(options, key)
        if value is None:
            continue
        if options.quantize not in INT8_MODES:
            raise CommandError(f"{name} is an option of --quantize int8; add that")
        values[key] = value
    if "exclude" in values:
        values["exclude"] = [name for name in values["exclude"].split(",") if name]
    return values


def _reachable_kinds(options: argparse.Namespace, selected: SelectedModel) -> list[str]:
    from pocketserve_lab.convert.converter import TENSOR_KINDS
    from pocketserve_lab.convert.plan import reachable_kinds
    from pocketserve_lab.convert.registry import converters
    from pocketserve_lab.convert.speech.run import KIND, speech_source

    if speech_source(selected.entry, selected.version) is not None:
        return [KIND]
    versions = selected.entry.versions
    if selected.version:
        formats = [versions[selected.version].format.name]
    else:
        formats = [version.format.name for version in versions.values()]
    kinds = reachable_kinds(formats, options.quantize, converters())
    # A language model beside a model of tensors needs a command of its own.
    tensor_kinds = [kind for kind in kinds if kind in TENSOR_KINDS]
    return tensor_kinds or kinds


@dataclass
class _Results:
    """Finished conversions, and the error of each kind that failed."""

    conversions: list[Conversion] = field(default_factory=list)
    failed: dict[str, ConversionError] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return the results for JSON."""
        faults = {}
        for kind, error in self.failed.items():
            faults[kind] = refusal_sentence(error)
        versions = [_plain(conversion) for conversion in self.conversions]
        return {"versions": versions, "failed": faults}


def _convert_kinds(converter: ModelConverter, kinds: Sequence[str]) -> _Results:
    from pocketserve_lab.convert.converter import ConversionError

    results = _Results()
    for kind in kinds:
        try:
            results.conversions.append(converter.convert(kind))
        except ConversionError as error:
            if len(kinds) == 1:
                raise
            results.failed[kind] = error
    return results


def _plain(conversion: Conversion) -> dict[str, Any]:
    document = conversion._asdict()
    document["path"] = str(conversion.path)
    if conversion.agreement is not None:
        document["agreement"] = conversion.agreement._asdict()
    return document


def _print_results(results: _Results, *, debug: bool) -> None:
    rows = [_row(conversion) for conversion in results.conversions]
    if rows:
        print_wide_table(
            [
                "NEW VERSION",
                "FROM",
                "BYTES",
                "DIFFERENCE",
                "SAME CLASS",
                "FIXED",
                "MADE BY",
            ],
            rows,
        )
    for conversion in results.conversions:
        name = conversion.version or conversion.kind
        for text in _remarks(conversion):
            print_text(printable(f"{name}: {text}"))
    _print_notes(results, debug=debug)


def _print_notes(results: _Results, *, debug: bool) -> None:
    """Print that samples were missing, and the errors."""
    if any(conversion.random for conversion in results.conversions):
        print_text(
            "They were compared on random input, because there are no samples; name "
            "some with --samples."
        )
    for kind, error in results.failed.items():
        sentence = printable(f"{kind}: {refusal_sentence(error)}")
        print(f"pocketserve: {sentence}", file=sys.stderr)
        if debug and error.detail:
            print(printable(error.detail), file=sys.stderr)


def _row(conversion: Conversion) -> list[str]:
    before, after = conversion.source_bytes, conversion.result_bytes
    sizes = f"{human_bytes(before)} -> {human_bytes(after)}"
    difference, same_class = "not run", ""
    agreement = conversion.agreement
    if agreement is not None:
        difference = f"{agreement.error:.1e}"
        if agreement.same_class is not None:
            same_class = f"{agreement.same_class:.0%}"
    name = conversion.version or conversion.path.name
    tools = ", ".join(conversion.tools)
    from pocketserve_lab.convert.variants import shapes_text

    fixed = shapes_text(conversion.fixed)
    return [name, conversion.source, sizes, difference, same_class, fixed, tools]


def _remarks(conversion: Conversion) -> list[str]:
    texts = list(conversion.notes)
    if conversion.kind == "pt2":
        folder = shlex.quote(os.path.relpath(conversion.path.parent))
        texts.append(f"is code, which needs your consent: pocketserve trust {folder}")
    if not conversion.version:
        was_run = "" if conversion.agreement is not None else ", and was not run"
        texts.append(f"is in {conversion.path}; it is not served here{was_run}")
    return texts


def _list_on_device(options: argparse.Namespace) -> int:
    """Print the converters that need no environment."""
    from pocketserve_lab.convert.plan import runs_on_device
    from pocketserve_lab.convert.registry import converters

    formats = None if options.model is None else _formats_of(options)
    rows = []
    for converter in filter(runs_on_device, converters()):
        sources = list(converter.sources)
        if formats is not None:
            sources = [source for source in sources if source in formats]
        if sources:
            rows.append(_converter_row(converter, sources))
    if options.json:
        keys = ("from", "to", "quantize", "converter", "state")
        print_json({"on_device": [dict(zip(keys, row, strict=True)) for row in rows]})
    else:
        print_table(
            ["FROM", "TO", "QUANTIZE", "CONVERTER", ""], rows, spare=("CONVERTER",)
        )
    return EXIT_DONE


def _formats_of(options: argparse.Namespace) -> set[str]:
    """Return the formats of the model's versions."""
    service, name, version_name = open_local(options.model, options.models_dir)
    try:
        versions = service.entry(name).versions
    finally:
        service.close()
    formats = set()
    for version in versions.values():
        if version_name in (None, version.name):
            formats.add(version.format.name)
    return formats


def _converter_row(converter: Converter, sources: Sequence[str]) -> list[str]:
    import importlib.util

    missing = []
    for package in converter.packages:
        if importlib.util.find_spec(package) is None:
            missing.append(package)
    return [
        ", ".join(sources),
        converter.kind,
        ", ".join(converter.quantize),
        converter.name,
        f"needs {', '.join(missing)}" if missing else "ready",
    ]
