"""Assign worker numbers, and read bodies from a WSGI server."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from pocketserve.transports.http.parser import MAX_UNAUTHENTICATED_BODY
from pocketserve_scale.request_body import read_body
from pocketserve_scale.worker_slot import NoSlotError, WorkerSlot
from pocketserve_wire import ApiError


def test_a_worker_takes_the_lowest_free_number(tmp_path: Path) -> None:
    """A successor gets the same number and folder.

    Others are noticed at once.
    """
    first = WorkerSlot(tmp_path)
    assert first.is_alone()
    second = WorkerSlot(tmp_path)
    assert first.name == "0"
    assert second.name == "1"
    assert not first.is_alone()
    assert not second.is_alone()
    first.close()
    assert second.is_alone()
    third = WorkerSlot(tmp_path)
    assert third.name == "0"
    assert third.folder == tmp_path / "workers" / "0"
    assert not second.is_alone()
    assert third.folder.stat().st_mode & 0o777 == 0o700
    second.close()
    assert third.is_alone()
    third.folder.rename(tmp_path / "workers" / "elsewhere")
    assert not third.is_alone(), "another worker could have its number now"
    third.close()


def test_a_number_is_released_once(tmp_path: Path) -> None:
    """A second close must not affect a reused descriptor."""
    slot = WorkerSlot(tmp_path)
    slot.close()
    with open(tmp_path / "other", "wb") as other:
        slot.close()
        other.write(b"written")
    assert (tmp_path / "other").read_bytes() == b"written"


def test_an_unusable_folder_is_explained(tmp_path: Path) -> None:
    (tmp_path / "workers").write_text("no folder")
    with pytest.raises(NoSlotError, match=r"cannot be used .* POCKETSERVE_STATE_DIR"):
        WorkerSlot(tmp_path)


def read(data: bytes, *, trusted: bool = True, **headers: str) -> bytes:
    environ: dict[str, Any] = {"wsgi.input": BytesIO(data), **headers}
    return bytes(
        read_body(environ, 100_000 if trusted else MAX_UNAUTHENTICATED_BODY).getbuffer()
    )


def test_valid_bodies_are_read() -> None:
    """They have a length, chunks or nothing.

    Later bytes stay unread.
    """
    data = bytes(range(256)) * 300
    assert read(data + b"more", CONTENT_LENGTH=str(len(data))) == data
    assert (
        read(data, CONTENT_LENGTH="1000", HTTP_INFERENCE_HEADER_CONTENT_LENGTH="13")
        == data[:1000]
    )
    assert (
        read(data, CONTENT_LENGTH="1000", HTTP_INFERENCE_HEADER_CONTENT_LENGTH="x")
        == data[:1000]
    )
    assert read(data, HTTP_TRANSFER_ENCODING="chunked") == data
    assert read(data) == read(data, CONTENT_LENGTH="0") == b""


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"CONTENT_LENGTH": "100001"}, "BODY_TOO_LARGE"),
        ({"CONTENT_LENGTH": "9" * 5000}, "BODY_TOO_LARGE"),
        ({"CONTENT_LENGTH": "-1"}, "BODY_TOO_LARGE"),
        ({"CONTENT_LENGTH": "4097", "trusted": False}, "BODY_TOO_LARGE"),
        ({"HTTP_TRANSFER_ENCODING": "chunked", "trusted": False}, "BODY_TOO_LARGE"),
        ({"CONTENT_LENGTH": "90001"}, "INVALID_REQUEST"),
    ],
)
def test_invalid_bodies_are_refused(headers: dict[str, Any], code: str) -> None:
    """Too long ones aren't read, and truncated ones don't reach a model."""
    with pytest.raises(ApiError) as caught:
        read(bytes(90_000), **headers)
    assert caught.value.code.name == code
