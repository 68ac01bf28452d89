"""``pocketserve inspect``: describes a model file or served model."""

from __future__ import annotations

import argparse
import json
import shlex
import textwrap
from collections.abc import Sequence
from typing import Any

from pocketserve.messages import label_list
from pocketserve.terminal.connection import (
    add_connection_options,
    open_client,
    reading_answers,
)
from pocketserve.terminal.local import names_path, open_local, quiet_frameworks
from pocketserve.terminal.output import (
    human_bytes,
    print_facts,
    print_json,
    print_table,
    print_text,
    printable,
    terminal_columns,
)
from pocketserve.terminal.progress import Progress

NUMBERS = "input.json"  # the card's name for a file of numbers
VALUES = {
    "BYTES": '"text"',
    "BOOL": "false",
    "FP16": "0.0",
    "BF16": "0.0",
    "FP32": "0.0",
    "FP64": "0.0",
}
WHOLE = 4  # rows with more numbers are shortened
WIDTH = len("output  ")
SIZES = {"file_bytes": "file size", "memory_bytes": "memory"}


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "inspect",
        help="show inputs, outputs and metadata of a model",
        description="A path is opened in this process; a name is looked up on the "
        "running server, or with --local in a models folder.",
    )
    parser.add_argument(
        "model", metavar="FILE|MODEL", help="a model file or folder, or a model's name"
    )
    parser.add_argument(
        "--version", dest="model_version", metavar="NAME", help="the version to show"
    )
    parser.add_argument(
        "--local",
        action="store_true",
        help="look the name up in a models folder, without a server",
    )
    parser.add_argument(
        "--models-dir",
        metavar="DIR",
        help="with --local: the models folder [the one that is served]",
    )
    parser.add_argument(
        "--release",
        action="store_true",
        help="release a model from quarantine, and try it again",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Print a model's description; ``--release`` first lifts its quarantine."""
    local = options.local or options.models_dir or names_path(options.model)
    with Progress().waiting(f"waiting for {options.model}, which may be loading"):
        description = _describe_local(options) if local else _ask_server(options)
    if options.json:
        print_json(description)
    else:
        with reading_answers():
            _print_description(description)
    return 0


def _ask_server(options: argparse.Namespace) -> dict[str, Any]:
    with open_client(options) as client:
        if options.release:
            client.load(options.model, release=True)
        return client.model_metadata(options.model, options.model_version)


def _describe_local(options: argparse.Namespace) -> dict[str, Any]:
    from pocketserve.api.describe import describe_model

    service, name, version = open_local(options.model, options.models_dir)
    words = [options.model]  # the arguments of ``predict --local`` for this model
    if options.models_dir:
        words += ["--models-dir", options.models_dir]
    if options.model_version:
        words += ["--version", options.model_version]
    try:
        if options.release:
            service.release(name)
        with (
            quiet_frameworks(options),
            service.running(name, options.model_version or version) as (entry, handle),
        ):
            return describe_model(entry, handle, local=shlex.join(words))
    finally:
        service.close()


def _print_description(description: dict[str, Any]) -> None:
    _print_facts(description)
    print()
    rows = []
    for kind in ("inputs", "outputs"):
        for tensor in description[kind]:
            rows.append(_tensor_row(kind, tensor))
    _print_tensors(rows)
    card = description.get("card")
    if card:
        _print_card(card)
        if any(NUMBERS in text for text in card["examples"].values()):
            _print_numbers(description["inputs"])
    if description.get("metadata"):
        _print_metadata(description["metadata"])


def _print_facts(description: dict[str, Any]) -> None:
    facts = [
        ("name", description["name"]),
        ("versions", ", ".join(description["versions"])),
        ("platform", description["platform"]),
    ]
    for key, value in description.get("parameters", {}).items():
        if key == "fingerprint":
            continue  # for programs: it is wider than a phone's screen
        if key in SIZES:
            facts.append((SIZES[key], human_bytes(value)))
        else:
            facts.append((key.replace("_", " "), str(value)))
    print_facts(facts)


def _print_tensors(rows: Sequence[Sequence[str]]) -> None:
    """Print a table of tensors, or lines on narrow terminals."""
    header = ["", "NAME", "DATATYPE", "SHAPE"]
    if any(row[-1] for row in rows):
        header.append("QUANTIZATION")
    body = [row[: len(header)] for row in rows]
    if _table_width([header, *body]) <= terminal_columns():
        print_table(header, body)
        return
    for kind, name, datatype, shape, *quantization in body:
        _print_tensor_line(kind, name)
        _print_tensor_line("", f"{datatype}  {shape}")
        for text in quantization:
            if text:
                _print_tensor_line("", text)


def _table_width(table: Sequence[Sequence[str]]) -> int:
    widths = [max(map(len, cells)) for cells in zip(*table, strict=True)]
    return sum(widths) + 2 * (len(widths) - 1)


def _print_tensor_line(title: str, text: str) -> None:
    print_text(f"{title:{WIDTH}}{printable(text)}", indent=" " * WIDTH)


def _print_card(card: dict[str, Any]) -> None:
    print("\nAsked with raw input:")
    facts = []
    for key in ("input", "advice", "preprocessing", "answer"):
        facts.append((key, card.get(key, "")))
    parameters = ", ".join(card.get("parameters", ()))
    facts.append(("parameters", parameters))
    facts.append(("labels", _label_summary(card)))
    print_facts(facts)
    for language, text in card["examples"].items():
        example = textwrap.indent(text, "  ")
        print(f"\n{printable(language)}:\n{example}")


def _label_summary(card: dict[str, Any]) -> str:
    first_labels = card.get("first_labels", ())
    text = label_list(first_labels)
    if not text:
        return ""
    number = card["labels"]
    if number > len(first_labels):
        text += " …"
    return f"{number}: {text}"


def _print_numbers(inputs: Sequence[dict[str, Any]]) -> None:
    """Print an example of a file of numbers."""
    text = _example_numbers(inputs)
    remark = ""
    if "…" in text:
        remark = " (… is more of the same)"
    print_text(f"\n{NUMBERS} holds{remark}:")
    print_text(f"  {printable(text)}", indent="  ")


def _example_numbers(inputs: Sequence[dict[str, Any]]) -> str:
    """Return the first input's numbers, or an object if there are several inputs."""
    if len(inputs) == 1:
        return _numbers_of(inputs[0])
    members = []
    for tensor in inputs:
        name = json.dumps(tensor["name"], ensure_ascii=False)
        members.append(f"{name}: {_numbers_of(tensor)}")
    content = ", ".join(members)
    return f"{{{content}}}"


def _numbers_of(tensor: dict[str, Any]) -> str:
    return _numbers(tensor["datatype"], tensor["shape"])


def _numbers(datatype: str, shape: Sequence[int]) -> str:
    """Return a shortened tensor in JSON; dynamic sizes are 1."""
    if not shape:
        return VALUES.get(datatype, "0")
    inner = _numbers(datatype, shape[1:])
    count = max(1, shape[0])
    is_short_row = len(shape) == 1 and count <= WHOLE
    if count == 1 or is_short_row:
        content = ", ".join([inner] * count)
        return f"[{content}]"
    return f"[{inner}, … {count} in all]"


def _tensor_row(kind: str, tensor: dict[str, Any]) -> list[str]:
    """Return a tensor's cells: kind, name, datatype, shape and quantization."""
    sizes = []
    for size in tensor["shape"]:
        sizes.append("any" if size < 0 else str(size))
    shape = ", ".join(sizes)
    return [
        kind.removesuffix("s"),
        tensor["name"],
        tensor["datatype"],
        f"[{shape}]",
        _quantization(tensor),
    ]


def _quantization(tensor: dict[str, Any]) -> str:
    parameters = tensor.get("parameters", {})
    if "quantization_scale" not in parameters:
        return ""
    scale = parameters["quantization_scale"]
    zero_point = parameters["quantization_zero_point"]
    return f"{scale:g} * (q - {zero_point})"


def _print_metadata(metadata: dict[str, Any]) -> None:
    assumed = metadata.get("assumed", ())
    if assumed:
        print("\nNo file of the model states:")
        _print_fact("assumed", "; ".join(assumed))
    if metadata.keys() - {"assumed"}:
        _print_stated(metadata)


def _print_stated(metadata: dict[str, Any]) -> None:
    print("\nFrom the file's metadata:")
    for key in ("name", "description", "version", "author", "license", "problem"):
        _print_fact(key, str(metadata.get(key, "")))
    for name, keys in metadata.get("unknown_keys", {}).items():
        _print_fact(f"not used of {name}", ", ".join(keys))
    for kind in ("inputs", "outputs"):
        for tensor in metadata.get(kind, ()):
            title = f"{kind.removesuffix('s')} {tensor.get('name', '')}"
            _print_fact(title, _tensor_metadata(tensor))


def _print_fact(title: str, text: str) -> None:
    one_line = " ".join(text.split())
    print_facts([(title, one_line)])


def _tensor_metadata(tensor: dict[str, Any]) -> str:
    details = []
    for key in ("description", "content"):
        text = tensor.get(key, "")
        if text:
            details.append(text)
    if "mean" in tensor:
        details.append(f"mean {tensor['mean']} std {tensor['std']}")
    if "files" in tensor:
        files = ", ".join(tensor["files"])
        details.append(f"files {files}")
    return "; ".join(details)
