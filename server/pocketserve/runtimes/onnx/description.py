"""Read the metadata of ``.onnx`` files: the texts in ``metadata_props``.

ONNX has no fields for labels and preprocessing. A model converted from TFLite carries
TFLite's metadata among the texts, in base64: the description as ``TFLITE_METADATA``,
and associated files with that prefix, such as ``TFLITE_METADATA/labels.txt``.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from pathlib import Path

from pocketserve.formats import DamagedFileError, mapped
from pocketserve.formats.protobuf import ProtobufReader
from pocketserve.runtimes.metadata import ModelMetadata
from pocketserve.runtimes.tflite.description import MAX_METADATA_BYTES
from pocketserve.runtimes.tflite.metadata_parser import parse_metadata

TFLITE_METADATA = "TFLITE_METADATA"
MAX_TEXT_BYTES = 64 * 2**20
"""Limit of one text."""

_BUDGET = 100_000


_NOTHING = (0, 0)
"""The span of a missing field."""


def read_onnx_texts(path: Path, prefix: str = "") -> dict[str, str]:
    """Return the texts whose names begin with a prefix.

    If a name occurs twice, the last text counts.

    Raises:
        DamagedFileError: the file is not ONNX, or a text is too long.
    """
    texts: dict[str, str] = {}
    start = prefix.encode()
    with mapped(path) as data:
        reader = ProtobufReader(data, _BUDGET)
        # StringStringEntryProto: 1 key, 2 value
        for entry in reader.messages((0, len(data)), 14):
            fields = dict(reader.parts(entry))
            key = fields.get(1, _NOTHING)
            if not data[key[0] : key[1]].startswith(start):
                continue
            longest = max(end - begin for begin, end in fields.values())
            if longest > MAX_TEXT_BYTES:
                raise DamagedFileError(
                    f"{path.name} has a text of more than {MAX_TEXT_BYTES} bytes"
                )
            value = fields.get(2, _NOTHING)
            texts[reader.text(key)] = reader.text(value)
    return texts


def read_onnx_metadata(path: Path) -> ModelMetadata | None:
    """Return TFLite's metadata; without any, how the graph rescales pixels."""
    text = read_onnx_texts(path, TFLITE_METADATA).get(TFLITE_METADATA)
    if text is None:
        return _read_rescaling(path)
    content = _decoded(TFLITE_METADATA, text, MAX_METADATA_BYTES)
    return parse_metadata(content)


def _read_rescaling(path: Path) -> ModelMetadata | None:
    from pocketserve.runtimes.onnx.rescaling import graph_rescales_pixels  # late
    from pocketserve.runtimes.rescaling import pixels_unchanged

    if graph_rescales_pixels(path):
        return pixels_unchanged()
    return None


def read_carried_files(path: Path, names: Sequence[str], limit: int) -> list[bytes]:
    """Return files carried over from TFLite, up to a total size."""
    texts = read_onnx_texts(path, f"{TFLITE_METADATA}/")
    contents = []
    for name in names:
        text = texts.get(f"{TFLITE_METADATA}/{name}")
        if text is None:
            raise DamagedFileError(f"{path.name} has no file {name!r} in it")
        contents.append(_decoded(name, text, limit))
        limit -= len(contents[-1])
    return contents


def _decoded(name: str, text: str, limit: int) -> bytes:
    if len(text) // 4 * 3 > limit + 2:
        raise DamagedFileError(f"{name} has more than {limit} bytes")
    try:
        return binascii.a2b_base64(text.encode(), strict_mode=True)
    except ValueError as error:
        raise DamagedFileError(f"{name} is not base64: {error}") from error
