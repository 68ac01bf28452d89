"""Clients that end their sending side during a whole answer."""

from __future__ import annotations

from typing import Any

import pytest

from pocketserve.api.messages import ApiRequest
from pocketserve.api.openai import transcriptions
from pocketserve.api.openai.half_closed import GRACE_S, HalfClosedCheck, check_whole
from pocketserve.engine.scheduling.cancellation import cancelled
from pocketserve_wire import ApiError, ErrorCode


class Connection:
    """A connection whose client may have ended its sending side."""

    def __init__(self) -> None:
        self.error: ApiError | None = None
        self.now = 1000.0

    def check(self) -> None:
        if self.error is not None:
            raise self.error

    def clock(self) -> float:
        return self.now


def test_a_client_waits_for_a_while_after_its_end() -> None:
    connection = Connection()
    check = HalfClosedCheck(connection.check, connection.clock)
    check()
    connection.now += 10 * GRACE_S
    connection.error = cancelled()
    check()
    connection.now += GRACE_S - 1
    check()
    connection.now += 1
    with pytest.raises(ApiError, match="cancelled"):
        check()


def test_other_errors_end_the_answer_at_once() -> None:
    connection = Connection()
    connection.error = ApiError(ErrorCode.DEADLINE_EXCEEDED, "too late")
    check = check_whole(connection.check)
    assert check is not None
    with pytest.raises(ApiError, match="too late"):
        check()
    assert check_whole(None) is None


def form(**fields: str) -> bytes:
    parts = []
    for name, value in fields.items():
        parts.append(f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n')
        parts.append(f"{value}\r\n")
    return "".join([*parts, "--b--\r\n"]).encode()


@pytest.mark.parametrize(
    ("stream", "ends"),
    [
        ("true", True),
        ("false", False),
    ],
)
def test_only_a_stream_ends_at_once(
    monkeypatch: pytest.MonkeyPatch, stream: str, ends: bool
) -> None:
    connection: Any = Connection()
    connection.error = cancelled()
    calls: list[Any] = []
    monkeypatch.setattr(
        transcriptions, "inference_call", lambda *words: calls.append(words)
    )
    request = ApiRequest(
        body=memoryview(form(model="tiny", file="sound", stream=stream)),
        content_type="multipart/form-data; boundary=b",
        parts=connection,
    )
    service: Any = None
    transcriptions.transcription(service, request)
    ((_, _, payload, *_),) = calls
    if not ends:
        payload.on_wait()
        return
    with pytest.raises(ApiError, match="cancelled"):
        payload.on_wait()
