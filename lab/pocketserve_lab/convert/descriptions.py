"""Restore metadata, such as labels, that tools drop.

Tools convert graphs; but a task is chosen and set up by the metadata in the same file.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from zipfile import BadZipFile, ZipFile, ZipInfo, is_zipfile

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.onnx import description as onnx_description
from pocketserve.runtimes.tflite import description as tflite_description
from pocketserve_lab.convert.converter import ConversionError

MAX_ATTACHED_BYTES = 64 * 2**20
"""Unpacked size of all files that a model contains; labels need far less."""


def carry_description(source: Path, format: str, output: Path, kind: str) -> None:
    """Copy the source's metadata into a result; existing metadata is kept.

    Args:
        format: of the source; only TFLite and ONNX have metadata.
        kind: of the result, in the same way.

    Raises:
        ConversionError: the metadata of the source is damaged or too large.
    """
    try:
        if format == "tflite":
            _carry_tflite(source, output, kind)
        elif format == "onnx":
            _carry_onnx(source, output, kind)
    except (
        DamagedFileError,
        BadZipFile,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ) as error:
        raise ConversionError(
            f"the metadata of {source.name} cannot be read: {error}"
        ) from error


def _carry_tflite(source: Path, output: Path, kind: str) -> None:
    if kind == "tflite":
        _attach(output, _attached(source))
    elif kind == "onnx":
        properties = tflite_description.read_properties(source)
        _add_properties(output, {**properties, **_in_texts(source)})


def _carry_onnx(source: Path, output: Path, kind: str) -> None:
    if kind not in ("onnx", "tflite"):
        return
    properties = onnx_description.read_onnx_texts(source)
    if kind == "onnx":
        _add_properties(output, properties)
    elif properties:
        content = json.dumps(properties).encode()
        _attach(output, [("metadata.json", content)])


def _attached(source: Path) -> list[tuple[ZipInfo, bytes]]:
    """Return the files in a TFLite model's zip archive."""
    if not is_zipfile(source):
        return []
    with ZipFile(source) as archive:
        if sum(member.file_size for member in archive.infolist()) > MAX_ATTACHED_BYTES:
            raise ValueError(f"its files take more than {MAX_ATTACHED_BYTES} bytes")
        return [(member, archive.read(member)) for member in archive.infolist()]


def _attach(output: Path, files: Sequence[tuple[str | ZipInfo, bytes]]) -> None:
    if not files or is_zipfile(output):
        return
    with ZipFile(output, "a") as archive:
        for member, content in files:
            archive.writestr(member, content)


def _in_texts(source: Path) -> dict[str, str]:
    """Return a TFLite model's metadata and its files, encoded for ONNX."""
    metadata = tflite_description.read_metadata_bytes(source)
    if metadata is None:
        return {}
    key = onnx_description.TFLITE_METADATA
    texts = {key: base64.b64encode(metadata).decode()}
    for member, content in _attached(source):
        texts[f"{key}/{member.filename}"] = base64.b64encode(content).decode()
    return texts


def _add_properties(output: Path, texts: Mapping[str, str]) -> None:
    """Append texts to an ONNX file.

    A field after a message of Protocol Buffers belongs to the message.
    """
    present = onnx_description.read_onnx_texts(output)
    with output.open("ab") as file:
        for name, text in texts.items():
            if name in present:
                continue
            value = text.encode(errors="surrogateescape")
            entry = _field(1, name.encode()) + _field(2, value)
            file.write(_field(14, entry))


def _field(number: int, content: bytes) -> bytes:
    """Return a length-delimited field of Protocol Buffers."""
    length, rest = bytearray(), len(content)
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((number << 3 | 2, *length, rest)) + content
