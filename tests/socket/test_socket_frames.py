"""Raw input of a stream is decoded when its request runs."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import requests

from conftest import MODELS
from framed import TIMEOUT_S
from held_model import HeldModel, Until
from pocketserve.auth.guard import Guard
from pocketserve.transports.http.data_plane import create_server_app
from pocketserve.transports.http.server import HttpServer
from pocketserve_wire.frames import Extension

DIGITS = "/predictions/digits"
STREAM = "/predictions/digits?stream=camera"
ZEROS = f"[{','.join(['0'] * 64)}]".encode()
FIVE, SIX = (
    (MODELS / "digits" / "samples" / f"{digit}.png").read_bytes() for digit in (5, 6)
)
TENSOR = {
    "name": "image",
    "datatype": "FP32",
    "shape": [1, 8, 8, 1],
    "data": [0.0] * 64,
}
NOTE = (MODELS / "numbers" / "samples" / "note.jpg").read_bytes()

Post = Callable[[str, bytes], Future[tuple[int, bytes]]]
"""Send a request; return its status and body."""


class Pictures(HeldModel):
    """A busy model for pictures.

    Attributes:
        decoded: decoded bodies.
        before: called before each decoding.
    """

    def __init__(
        self,
        started: Any,
        pool: ThreadPoolExecutor,
        until: Until,
        patch: pytest.MonkeyPatch,
    ) -> None:
        super().__init__(started, until, "digits")
        assert self.peer.call(f"POST {DIGITS}", ZEROS).status == 200
        self.hold(pool)
        self.decoded: list[bytes] = []
        self.before: Callable[[], object] = lambda: None
        task = type(self.handle.model.task)
        prepare = task.prepare

        def count(own: Any, content: memoryview, hints: Any) -> Any:
            self.before()
            prepared = prepare(own, content, hints)
            self.decoded.append(bytes(content))
            return prepared

        patch.setattr(task, "prepare", count)

    def frame(self, content: bytes, stream: str = "camera") -> int:
        """Send a frame of a stream."""
        return self.peer.ask(f"POST {DIGITS}?stream={stream}", content)


@pytest.fixture
def pictures(
    local: Any, pool: ThreadPoolExecutor, until: Any, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Pictures]:
    """Return a busy model for pictures."""
    one = Pictures(local(http_port=0), pool, until, monkeypatch)
    yield one
    one.go()
    one.peer.close()


@pytest.fixture(params=["socket", "http"])
def post(
    request: pytest.FixtureRequest, pictures: Pictures, pool: ThreadPoolExecutor
) -> Iterator[Post]:
    """Return a function that sends requests over each transport of one service."""
    if request.param == "socket":

        def call(path: str, body: bytes) -> tuple[int, bytes]:
            with pictures.connect() as peer:
                answer = peer.call(f"POST {path}", body)
            assert (Extension.RETRY_AFTER_MS in answer.ext) == (
                answer.code == "QUEUE_FULL"
            )
            return answer.status, answer.body

        yield lambda path, body: pool.submit(call, path, body)
        return
    guard = Guard(None)
    server = HttpServer(
        create_server_app(pictures.service, guard), pictures.service.config, guard
    )
    thread = threading.Thread(target=server.run)
    thread.start()

    def send(path: str, body: bytes) -> tuple[int, bytes]:
        answer = requests.post(
            f"http://127.0.0.1:{server.port}{path}", data=body, timeout=TIMEOUT_S
        )
        assert ("Retry-After" in answer.headers) == (answer.status_code == 429)
        return answer.status_code, answer.content

    try:
        yield lambda path, body: pool.submit(send, path, body)
    finally:
        pictures.go()
        server.stop()
        thread.join(TIMEOUT_S)


def wait_in_queue(
    pictures: Pictures, post: Post, path: str, body: bytes
) -> Future[tuple[int, bytes]]:
    """Send a request and wait until it is queued."""
    before = pictures.queue.waiting
    future = post(path, body)
    pictures.until(lambda: pictures.queue.waiting == before + 1)
    return future


def code(answer: Future[tuple[int, bytes]]) -> tuple[int, str]:
    """Return status and code of an error."""
    status, body = answer.result(TIMEOUT_S)
    return status, json.loads(body)["code"]


def test_a_frame_is_decoded_when_it_runs(pictures):
    """A frame that a newer one replaces is never decoded.

    Decoding counts as input time.
    """
    frames = []
    for number in range(1, 6):
        frames.append(ZEROS.replace(b"0", str(number).encode(), 1))
    ids = [pictures.frame(frame) for frame in frames]
    gone = pictures.peer.answers(4)
    assert sorted(gone) == ids[:-1]
    assert {answer.code for answer in gone.values()} == {"SUPERSEDED"}
    assert pictures.decoded == []
    assert pictures.queue.waiting == 1
    pictures.go()
    answer = pictures.peer.answer()
    assert answer.request_id == ids[-1]
    assert answer.status == 200
    assert pictures.decoded == frames[-1:]
    timing = json.loads(answer.body)["timing_ms"]
    assert timing["pre"] > 0
    assert timing["infer"] > 0


def test_each_transport_replaces_a_frame_before_it_is_decoded(pictures, post):
    older = wait_in_queue(pictures, post, STREAM, SIX)
    newer = post(STREAM, FIVE)
    assert code(older) == (409, "SUPERSEDED")
    assert pictures.decoded == []
    pictures.go()
    status, body = newer.result(TIMEOUT_S)
    assert status == 200
    assert pictures.decoded == [FIVE]
    assert json.loads(body)["predictions"][0]["label"] == "5"


def test_frames_of_two_streams_share_a_session(pictures):
    old = [
        pictures.send(lambda name=name: pictures.frame(ZEROS, name))
        for name in ("left", "right")
    ]
    new = [pictures.frame(FIVE, "left"), pictures.frame(SIX, "right")]
    gone = pictures.peer.answers(2)
    assert sorted(gone) == old
    assert {answer.code for answer in gone.values()} == {"SUPERSEDED"}
    pictures.go()
    answers = pictures.peer.answers(2)
    assert [answers[one].document["predictions"][0]["label"] for one in new] == [
        "5",
        "6",
    ]
    assert pictures.decoded == [FIVE, SIX]


def test_an_invalid_frame_is_rejected_and_the_next_one_runs(pictures):
    bad = pictures.send(lambda: pictures.frame(b"[1, 2]"))
    pictures.go()
    answer = pictures.peer.answer()
    assert answer.request_id == bad
    assert answer.status == 400
    assert answer.code == "INVALID_INPUT"
    assert pictures.peer.call(f"POST {STREAM}", ZEROS).status == 200


def test_a_frame_without_memory_for_decoding_delays_no_other(pictures, post):
    """It is rejected.

    Requests with tensors behind it need no memory and are answered.
    """
    budget = pictures.service.decode_budget
    reservation = budget.acquire(budget.size, pytest.fail)
    try:
        frame = wait_in_queue(pictures, post, STREAM, FIVE)
        tensors = wait_in_queue(
            pictures,
            post,
            "/v2/models/digits/infer",
            json.dumps({"inputs": [TENSOR]}).encode(),
        )
        pictures.go()
        assert code(frame) == (429, "QUEUE_FULL")
        assert tensors.result(TIMEOUT_S)[0] == 200
        assert pictures.decoded == []
        assert pictures.ended("refused") == 1
    finally:
        budget.release(reservation)
    assert post(STREAM, FIVE).result(TIMEOUT_S)[0] == 200
    assert budget.reserved == 0


def test_a_frame_is_cancelled_while_it_is_decoded(pictures):
    begun = threading.Event()
    go_on = threading.Event()

    def wait() -> None:
        begun.set()
        assert go_on.wait(TIMEOUT_S)

    pictures.before = wait
    frame = pictures.send(lambda: pictures.frame(FIVE))
    pictures.go()
    assert begun.wait(TIMEOUT_S)
    pictures.peer.cancel(frame)
    pictures.peer.ping(1)  # so it was read
    go_on.set()
    answer = pictures.peer.answer()
    assert answer.request_id == frame
    assert answer.code == "CANCELLED"
    assert pictures.decoded == []
    assert pictures.ended("cancelled") == 1
    assert pictures.peer.call(f"POST {STREAM}", FIVE).status == 200


def test_a_deadline_passes_while_a_frame_is_decoded(pictures, post, monkeypatch):
    with monkeypatch.context() as clock:
        late = SimpleNamespace(monotonic=lambda: math.inf)
        pictures.before = lambda: clock.setattr(
            "pocketserve.engine.scheduling.options.time", late
        )
        frame = wait_in_queue(pictures, post, STREAM, FIVE)
        pictures.go()
        assert code(frame) == (504, "DEADLINE_EXCEEDED")
        assert pictures.decoded == []
        pictures.before = lambda: None
    assert pictures.ended("expired") == 1
    assert post(STREAM, FIVE).result(TIMEOUT_S)[0] == 200


def test_a_frame_is_returned_with_its_answer_drawn(pictures, post):
    pictures.go()
    target = "/predictions/numbers?annotate=png"
    status, picture = post(f"{target}&stream=camera", NOTE).result(TIMEOUT_S)
    assert (status, picture[:4]) == (200, b"\x89PNG")
    assert (status, picture) == post(target, NOTE).result(TIMEOUT_S)


def test_requests_without_a_stream_are_decoded_before_waiting(pictures):
    """The next input is ready when the model is."""
    pictures.send(lambda: pictures.peer.ask(f"POST {DIGITS}", ZEROS))
    assert pictures.decoded == [ZEROS]
    pictures.go()
    assert pictures.peer.answer().status == 200
