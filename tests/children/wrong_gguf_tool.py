"""A converter that writes another model than it was given."""

from __future__ import annotations

import gguf_files
from pocketserve_lab.convert.converter import ConversionOutcome, ConversionRequest


def convert(request: ConversionRequest) -> ConversionOutcome:
    gguf_files.write_tiny(request.output)
    return ConversionOutcome("wrong", "1")
