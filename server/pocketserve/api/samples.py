"""Sample inputs of a model: files in the folder ``samples`` beside its manifest."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pocketserve.api.messages import ApiRequest, ApiResponse, refuse_unknown_query
from pocketserve.repository.scan import ModelEntry
from pocketserve.service import Service
from pocketserve_wire import ApiError, ErrorCode

FOLDER: Final = "samples"
MAX_SAMPLES: Final = 12
MAX_BYTES: Final = 4 << 20
CONTENT_TYPES: Final[Mapping[str, str]] = {
    ".png": "image/png",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".webp": "image/webp",
    ".wav": "audio/wav",
    ".txt": "text/plain; charset=utf-8",
    ".csv": "text/csv; charset=utf-8",
    ".json": "application/json",
}
_NAME: Final = re.compile(r"\w[\w .-]{0,99}")


def sample_names(entry: ModelEntry) -> list[str]:
    """Return the names of a model's sample inputs, at most twelve.

    Links, large files and files of other types are left out.
    """
    if entry.folder.name != entry.name:  # a bare file, in the folder of all models
        return []
    try:
        files = list(os.scandir(entry.folder / FOLDER))
    except OSError:
        return []
    names = [file.name for file in files if _is_sample(file)]
    return sorted(names)[:MAX_SAMPLES]


def _is_sample(file: os.DirEntry[str]) -> bool:
    if Path(file.name).suffix not in CONTENT_TYPES or not _NAME.fullmatch(file.name):
        return False
    try:
        is_file = file.is_file(follow_symlinks=False)
        return is_file and file.stat(follow_symlinks=False).st_size <= MAX_BYTES
    except OSError:
        return False


def sample(service: Service, request: ApiRequest) -> ApiResponse:
    """A file of a model's folder ``samples``, which its card lists."""
    refuse_unknown_query(request)
    model, name = request.path["model"], request.path["sample"]
    entry = service.entry(model)
    if name not in sample_names(entry):
        raise _not_found(model, name)
    path = entry.folder / FOLDER / name
    try:
        with open(path, "rb", opener=_open_file) as file:
            content = file.read(MAX_BYTES)
    except OSError:  # it was removed or replaced just now
        raise _not_found(model, name) from None
    return ApiResponse(content_type=CONTENT_TYPES[path.suffix], chunks=[content])


def _open_file(path: str, flags: int) -> int:
    """Open a file, but neither a link nor a pipe that would block."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _not_found(model: str, name: str) -> ApiError:
    text = f"the model {model[:64]!r} has no sample {name[:64]!r}; its card lists them"
    return ApiError(ErrorCode.NOT_FOUND, text)
