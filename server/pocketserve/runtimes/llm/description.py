"""Facts of a GGUF file for models' cards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pocketserve.formats import DamagedFileError
from pocketserve.formats.gguf import read_gguf


def read_header_facts(path: Path) -> Mapping[str, str]:
    """Return the facts that the file's header tells, by name."""
    header = read_gguf(path)
    facts = {
        "name": header.name,
        "license": header.licence,
        "architecture": header.architecture,
        "parameters": str(header.parameters),
        "quantisation": header.quantisation,
        "context": str(header.context),
        "pooling": header.pooling,
    }
    return {name: text for name, text in facts.items() if text}


def gguf_task(path: Path) -> str:
    """Return a file's task; empty if it can't be read."""
    try:
        header = read_gguf(path)
    except DamagedFileError:
        return ""
    return "text-embedding" if header.pooling else "text-generation"
