"""Facts of a GGUF file for models' cards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

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
