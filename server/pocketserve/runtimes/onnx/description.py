"""Reads what an ``.onnx`` file says of itself: its ``metadata_props``, texts by name.

ONNX has no place for labels and preprocessing. Of a model that was converted from TFLite, TFLite's own metadata are
among the texts, in base64: the description as ``TFLITE_METADATA``, and the files that it names behind it, such as
``TFLITE_METADATA/labels.txt``.
"""

from __future__ import annotations

import binascii
from collections.abc import Sequence
from pathlib import Path

from pocketserve.formats import DamagedFileError, mapped
from pocketserve.formats.protobuf import ProtobufReader
from pocketserve.runtimes.metadata import ModelMetadata
from pocketserve.runtimes.tflite.description import MAX_METADATA_BYTES, parse_metadata

TFLITE_METADATA = "TFLITE_METADATA"
MAX_TEXT_BYTES = 64 * 2**20
"""Of one text that is read."""

_BUDGET = 100_000


def read_onnx_texts(path: Path, prefix: str = "") -> dict[str, str]:
    """Return the texts whose names begin with a prefix; of one name that occurs twice, the last.

    Raises:
        DamagedFileError: the file is none of ONNX, or a text is too long.
    """
    texts: dict[str, str] = {}
    with mapped(path) as data:
        reader = ProtobufReader(data, _BUDGET)
        for entry in reader.messages(
            (0, len(data)), 14
        ):  # StringStringEntryProto: 1 key, 2 value
            fields = dict(reader.parts(entry))
            start, end = fields.get(1, (0, 0))
            if not data[start:end].startswith(prefix.encode()):
                continue
            if max(end - start for start, end in fields.values()) > MAX_TEXT_BYTES:
                raise DamagedFileError(
                    f"{path.name} has a text of more than {MAX_TEXT_BYTES} bytes"
                )
            texts[reader.text((start, end))] = reader.text(fields.get(2, (0, 0)))
    return texts


def read_carried_metadata(path: Path) -> ModelMetadata | None:
    """Return the metadata that came from TFLite, or None where there are none."""
    text = read_onnx_texts(path, TFLITE_METADATA).get(TFLITE_METADATA)
    return (
        None
        if text is None
        else parse_metadata(_decoded(TFLITE_METADATA, text, MAX_METADATA_BYTES))
    )


def read_carried_files(path: Path, names: Sequence[str], limit: int) -> list[bytes]:
    """Return files that the metadata names, of not more bytes together than the limit."""
    texts = read_onnx_texts(path, f"{TFLITE_METADATA}/")
    contents = []
    for name in names:
        if (text := texts.get(f"{TFLITE_METADATA}/{name}")) is None:
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
        raise DamagedFileError(f"{name} is no base64: {error}") from error
