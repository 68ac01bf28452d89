"""``pocketserve inspect``: inputs and outputs of a model file, or of a model of a running server."""

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

NUMBERS = "input.json"  # how the card calls a file of numbers
VALUES = {
    "BYTES": '"text"',
    "BOOL": "false",
    "FP16": "0.0",
    "BF16": "0.0",
    "FP32": "0.0",
    "FP64": "0.0",
}
WHOLE = 4  # numbers of a row that are shown one by one
WIDTH = len("output  ")
SIZES = {"file_bytes": "file size", "memory_bytes": "memory"}


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "inspect",
        help="show inputs, outputs and metadata of a model",
        description="A path is opened in this process; a name is looked up on the running server, or with --local "
        "in a models folder.",
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
        help="forget that a model is in quarantine, and try it again",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_connection_options(parser)
    return parser


def run(options: argparse.Namespace) -> int:
    """Describe and print; with ``--release`` forget the verdicts on the model's versions first."""
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
    words = [options.model]  # how ``predict --local`` names the same model
    words += ["--models-dir", options.models_dir] if options.models_dir else []
    words += ["--version", options.model_version] if options.model_version else []
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
    facts = dict(description.get("parameters", {}))
    facts.pop("fingerprint", None)  # for programs: it is wider than a phone
    facts = {
        SIZES.get(key, key): human_bytes(value) if key in SIZES else value
        for key, value in facts.items()
    }
    rows = [
        ("name", description["name"]),
        ("versions", ", ".join(description["versions"])),
    ]
    rows.append(("platform", description["platform"]))
    print_facts(
        rows + [(key.replace("_", " "), str(value)) for key, value in facts.items()]
    )
    print()
    _print_tensors(
        [
            _tensor_row(kind, tensor)
            for kind in ("inputs", "outputs")
            for tensor in description[kind]
        ]
    )
    if description.get("card"):
        _print_card(description["card"])
        if any(NUMBERS in text for text in description["card"]["examples"].values()):
            _print_numbers(description["inputs"])
    if description.get("metadata"):
        _print_metadata(description["metadata"])


def _print_tensors(rows: Sequence[Sequence[str]]) -> None:
    """Print a line for each tensor; where the terminal is too narrow, its name, and the rest below it."""
    header = [
        "",
        "NAME",
        "DATATYPE",
        "SHAPE",
        *(["QUANTIZATION"] if any(row[-1] for row in rows) else []),
    ]
    table = [header, *(row[: len(header)] for row in rows)]
    if (
        sum(max(map(len, cells)) + 2 for cells in zip(*table, strict=True)) - 2
        <= terminal_columns()
    ):
        print_table(header, table[1:])
        return
    for kind, name, datatype, shape, *quantization in table[1:]:
        for begin, text in (
            (kind, name),
            ("", f"{datatype}  {shape}"),
            *(("", text) for text in quantization if text),
        ):
            print_text(f"{begin:{WIDTH}}{printable(text)}", indent=" " * WIDTH)


def _print_card(card: dict[str, Any]) -> None:
    labels = label_list(card.get("first_labels", ()))
    more = " …" if card.get("labels", 0) > len(card.get("first_labels", ())) else ""
    print("\nAsked with raw input:")
    names = f"{card['labels']}: {labels}{more}" if labels else ""
    texts = [
        (key, card.get(key, ""))
        for key in ("input", "advice", "preprocessing", "answer")
    ]
    print_facts(
        [
            *texts,
            ("parameters", ", ".join(card.get("parameters", ()))),
            ("labels", names),
        ]
    )
    for language, text in card["examples"].items():
        print(f"\n{printable(language)}:\n{textwrap.indent(text, '  ')}")


def _print_numbers(inputs: Sequence[dict[str, Any]]) -> None:
    """Print what a file of numbers holds, with a sign for what goes on in the same way."""
    values = [
        (tensor["name"], _numbers(tensor["datatype"], tensor["shape"]))
        for tensor in inputs
    ]
    objects = ", ".join(
        f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in values
    )
    text = values[0][1] if len(values) == 1 else f"{{{objects}}}"
    print_text(f"\n{NUMBERS} holds{' (… is more of the same)' if '…' in text else ''}:")
    print_text(f"  {printable(text)}", indent="  ")


def _numbers(datatype: str, shape: Sequence[int]) -> str:
    """Return a tensor in JSON, shortened; a free size is 1."""
    if not shape:
        return VALUES.get(datatype, "0")
    inner, count = _numbers(datatype, shape[1:]), max(1, shape[0])
    if count == 1 or (len(shape) == 1 and count <= WHOLE):
        return f"[{', '.join([inner] * count)}]"
    return f"[{inner}, … {count} in all]"


def _tensor_row(kind: str, tensor: dict[str, Any]) -> list[str]:
    shape = (
        "[" + ", ".join("any" if dim < 0 else str(dim) for dim in tensor["shape"]) + "]"
    )
    parameters = tensor.get("parameters", {})
    quantization = ""
    if "quantization_scale" in parameters:
        quantization = f"{parameters['quantization_scale']:g} * (q - {parameters['quantization_zero_point']})"
    return [
        kind.removesuffix("s"),
        tensor["name"],
        tensor["datatype"],
        shape,
        quantization,
    ]


def _print_metadata(metadata: dict[str, Any]) -> None:
    print("\nThe file says of itself:")
    texts = ("name", "description", "version", "author", "license", "problem")
    print_facts([(key, " ".join(str(metadata.get(key, "")).split())) for key in texts])
    for name, keys in metadata.get("unknown_keys", {}).items():
        print_facts([(f"not used of {name}", ", ".join(keys))])
    print_facts([("assumed", "; ".join(metadata.get("assumed", ())))])
    for kind in ("inputs", "outputs"):
        for tensor in metadata.get(kind, ()):
            details = [tensor.get("content", "")]
            details += (
                [f"mean {tensor['mean']} std {tensor['std']}"]
                if "mean" in tensor
                else []
            )
            details += (
                [f"files {', '.join(tensor['files'])}"] if "files" in tensor else []
            )
            described = "; ".join(
                item for item in (tensor.get("description", ""), *details) if item
            )
            print_facts(
                [
                    (
                        f"{kind.removesuffix('s')} {tensor.get('name', '')}",
                        " ".join(described.split()),
                    )
                ]
            )
