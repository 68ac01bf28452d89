"""Carries what a model file says of itself, such as labels and preprocessing, into a result whose tool has dropped it.

Tools convert graphs; but a task is chosen, and set up, by what stands beside the graph in the same file.
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
"""Of all files that a model carries, unpacked: more are no labels."""


def carry_description(source: Path, format: str, output: Path, kind: str) -> None:
    """Give a result what its source says of itself; what it has already stays.

    Args:
        format: of the source; nothing is known of others than TFLite and ONNX.
        kind: of the result, in the same way.

    Raises:
        ConversionError: what the source carries is damaged or too large.
    """
    try:
        if format == kind == "tflite":
            _attach(output, _attached(source))
        elif format == "tflite" and kind == "onnx":
            _add_properties(
                output,
                {**tflite_description.read_properties(source), **_in_texts(source)},
            )
        elif format == "onnx" and kind == "onnx":
            _add_properties(output, onnx_description.read_onnx_texts(source))
        elif format == "onnx" and kind == "tflite":
            properties = onnx_description.read_onnx_texts(source)
            _attach(
                output,
                [("metadata.json", json.dumps(properties).encode())]
                if properties
                else [],
            )
    except (
        DamagedFileError,
        BadZipFile,
        NotImplementedError,
        RuntimeError,
        ValueError,
    ) as error:
        raise ConversionError(
            f"what {source.name} says of itself cannot be read: {error}"
        ) from error


def _attached(source: Path) -> list[tuple[ZipInfo, bytes]]:
    """Return the files that a TFLite model carries, in a zip archive behind it."""
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
    """Return a TFLite model's metadata, and the files that they name, as ONNX carries them."""
    content, key = (
        tflite_description.read_metadata_bytes(source),
        onnx_description.TFLITE_METADATA,
    )
    if content is None:
        return {}
    files = {
        f"{key}/{member.filename}": content for member, content in _attached(source)
    }
    return {
        name: base64.b64encode(content).decode()
        for name, content in {key: content, **files}.items()
    }


def _add_properties(output: Path, texts: Mapping[str, str]) -> None:
    """Append texts to an ONNX file: a field behind a message of Protocol Buffers belongs to it."""
    present = onnx_description.read_onnx_texts(output)
    with output.open("ab") as file:
        for name, text in texts.items():
            if name not in present:
                entry = _field(1, name.encode()) + _field(
                    2, text.encode(errors="surrogateescape")
                )
                file.write(_field(14, entry))


def _field(number: int, content: bytes) -> bytes:
    """Return a field with a length, as Protocol Buffers have it."""
    length, rest = bytearray(), len(content)
    while rest > 0x7F:
        length.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((number << 3 | 2, *length, rest)) + content
