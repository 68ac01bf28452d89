"""Convert the inputs of ``predict`` to request bodies."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeGuard

import numpy as np

from pocketserve_client.arrays import Array
from pocketserve_client.errors import ServerError
from pocketserve_wire import strict_json

File = bytes | bytearray | memoryview | Path | BinaryIO
Files = list[Path] | list[bytes] | list[BinaryIO] | list[File] | tuple[File, ...]
RawInput = (
    bytes
    | bytearray
    | memoryview
    | str
    | Path
    | BinaryIO
    | Sequence[Any]
    | Mapping[str, Any]
    | Array
)

MAX_FILE_NAME: Final = 4096
# The modes of Pillow images that PNG files support.
PNG_MODES: Final = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def raw_body(data: RawInput) -> bytes | memoryview:
    """Return the request body for raw input; TypeError for unsupported types."""
    if isinstance(data, Path):
        return data.read_bytes()
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, np.ndarray):
        return _npy(data)
    if hasattr(data, "read"):
        data = data.read()
        if not isinstance(data, bytes | bytearray | memoryview):
            raise TypeError(
                "the file is open for text: open it with 'rb', or give its Path"
            )
    if isinstance(data, bytes | bytearray | memoryview):
        return memoryview(data).cast("B")
    if callable(getattr(data, "getexif", None)):
        return _png(data)
    if callable(getattr(data, "to_dict", None)):
        data = _rows(data)
    try:
        return strict_json.dumps(data)
    except TypeError:
        return strict_json.dumps(_plain(data))


def is_list_of_files(data: RawInput | Files) -> TypeGuard[Files]:
    """Return whether data is a list of files or pictures, one request each."""
    return isinstance(data, list | tuple) and len(data) > 0 and all(map(_is_file, data))


def _is_file(item: Any) -> bool:
    is_plain = isinstance(item, Path | bytes | bytearray | memoryview)
    return is_plain or hasattr(item, "read") or callable(getattr(item, "getexif", None))


def with_hint(error: ServerError, data: RawInput) -> ServerError:
    """Add a hint to an error if the text names a file."""
    if error.status != 400 or not isinstance(data, str) or len(data) >= MAX_FILE_NAME:
        return error
    if not os.path.isfile(data):
        return error
    hint = f"a str is a text: give Path({data!r}) to send that file"
    return ServerError(error.status, error.code, error.message, hint)


def _png(image: Any) -> bytes:
    """Encode a Pillow image as PNG, with its EXIF orientation."""
    if image.mode in ("F", "I"):
        raise TypeError(
            f"a Pillow image of mode {image.mode} has no known white: "
            "convert it to L or RGB"
        )
    file = io.BytesIO()
    converted = image if image.mode in PNG_MODES else image.convert("RGB")
    # Fast compression, because the file stays on this device or in its network.
    converted.save(file, "PNG", exif=image.getexif(), compress_level=1)
    return file.getvalue()


def _rows(table: Any) -> Any:
    """Return the rows of a pandas DataFrame, or the one row of a Series.

    Rows are dicts if all columns have names, else lists.
    """
    is_frame = hasattr(table, "columns")
    names = table.columns if is_frame else table.index
    if not all(isinstance(name, str) for name in names):
        return table.to_numpy().tolist()
    if is_frame:
        return table.to_dict(orient="records")
    return table.to_dict()


def _npy(array: Array) -> bytes:
    """Encode an array as a ``.npy`` file in native byte order."""
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"predict() takes arrays of numbers, not of {array.dtype}: "
            "give a list, or send tensors with infer()"
        )
    file = io.BytesIO()
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    np.save(file, native, allow_pickle=False)
    return file.getvalue()


def _plain(value: Any) -> Any:
    """Replace NumPy's numbers and arrays in a JSON-like value by Python's."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(
        "predict() takes bytes, a Path, a file, an array, a Pillow image, a pandas "
        f"table, or JSON-like values, not a {type(value).__name__}; tensors by name go "
        "to infer()"
    )
