"""``pocketserve inspect``: inputs and outputs of a model file, or of a model of a running server."""

from __future__ import annotations

import argparse
import shlex
import textwrap
from typing import Any

from pocketserve.cli.connection import add_connection_options, open_client, reading_answers
from pocketserve.cli.local import names_path, open_local
from pocketserve.cli.output import human_bytes, print_facts, print_json, print_table, printable
from pocketserve.cli.progress import Progress

SIZES = {"file_bytes": "file size", "memory_bytes": "memory"}


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "inspect",
        help="show inputs, outputs and metadata of a model",
        description="A path is opened in this process; a name is looked up on the running server, or with --local "
        "in a models folder.",
    )
    parser.add_argument("model", metavar="FILE|MODEL", help="a model file or folder, or a model's name")
    parser.add_argument("--version", dest="model_version", metavar="NAME", help="the version to show")
    parser.add_argument("--local", action="store_true", help="look the name up in a models folder, without a server")
    parser.add_argument("--models-dir", metavar="DIR", help="with --local: the folder that holds MODEL")
    parser.add_argument("--release", action="store_true", help="forget that a model is in quarantine, and try it again")
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
        with service.running(name, options.model_version or version) as (entry, handle):
            return describe_model(entry, handle, local=shlex.join(words))
    finally:
        service.close()


def _print_description(description: dict[str, Any]) -> None:
    facts = dict(description.get("parameters", {}))
    facts = {SIZES.get(key, key): human_bytes(value) if key in SIZES else value for key, value in facts.items()}
    rows = [("name", description["name"]), ("versions", ", ".join(description["versions"]))]
    rows.append(("platform", description["platform"]))
    print_facts(rows + [(key.replace("_", " "), str(value)) for key, value in facts.items()])
    tensors = [(kind, tensor) for kind in ("inputs", "outputs") for tensor in description[kind]]
    print()
    print_table(["", "NAME", "DATATYPE", "SHAPE", "QUANTIZATION"], [_tensor_row(*item) for item in tensors])
    if description.get("card"):
        _print_card(description["card"])
    if description.get("metadata"):
        _print_metadata(description["metadata"])


def _print_card(card: dict[str, Any]) -> None:
    labels = ", ".join(card.get("first_labels", ()))
    more = " …" if card.get("labels", 0) > len(card.get("first_labels", ())) else ""
    print("\nAsked with raw input:")
    names = f"{card['labels']}: {labels}{more}" if labels else ""
    print_facts(
        [*((key, card.get(key, "")) for key in ("input", "advice", "preprocessing", "answer")), ("labels", names)]
    )
    for language, text in card["examples"].items():
        print(f"\n{printable(language)}:\n{textwrap.indent(text, '  ')}")


def _tensor_row(kind: str, tensor: dict[str, Any]) -> list[str]:
    shape = "[" + ", ".join("any" if dim < 0 else str(dim) for dim in tensor["shape"]) + "]"
    parameters = tensor.get("parameters", {})
    quantization = ""
    if "quantization_scale" in parameters:
        quantization = f"{parameters['quantization_scale']:g} * (q - {parameters['quantization_zero_point']})"
    return [kind.removesuffix("s"), tensor["name"], tensor["datatype"], shape, quantization]


def _print_metadata(metadata: dict[str, Any]) -> None:
    print("\nThe file says of itself:")
    texts = ("name", "description", "version", "author", "license", "problem")
    print_facts([(key, " ".join(str(metadata.get(key, "")).split())) for key in texts])
    for kind in ("inputs", "outputs"):
        for tensor in metadata.get(kind, ()):
            details = [tensor.get("content", "")]
            details += [f"mean {tensor['mean']} std {tensor['std']}"] if "mean" in tensor else []
            details += [f"files {', '.join(tensor['files'])}"] if "files" in tensor else []
            described = "; ".join(item for item in (tensor.get("description", ""), *details) if item)
            print_facts([(f"{kind.removesuffix('s')} {tensor.get('name', '')}", " ".join(described.split()))])
