"""Answers of requests while their model is overloaded."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from framed import TIMEOUT_S
from held_model import HeldModel, Until
from pocketserve.engine.scheduling.queue import ModelQueue
from pocketserve.transports.socket.server import INCOMING
from pocketserve_wire.frames import Frame, FrameType, encode_frame

TARGET = "POST /v2/models/petals/infer"
TENSOR = {
    "name": "features",
    "datatype": "FP32",
    "shape": [1, 3],
    "data": [5.8, 3.0, 4.3],
}


def body(**parameters: object) -> bytes:
    """Return a request's JSON."""
    return json.dumps({"inputs": [TENSOR], "parameters": parameters}).encode()


class Busy(HeldModel):
    """A busy model with requests that must wait for it."""

    def __init__(self, started: Any, pool: ThreadPoolExecutor, until: Until) -> None:
        super().__init__(started, until)
        assert self.peer.call(TARGET, body()).status == 200
        self.hold(pool)

    def wait(self, count: int, **parameters: object) -> list[int]:
        """Send requests that must wait, in order; return their ids."""
        return [
            self.send(lambda: self.peer.ask(TARGET, body(**parameters)))
            for _ in range(count)
        ]


@pytest.fixture
def busy(local: Any, pool: ThreadPoolExecutor, until: Any) -> Iterator[Busy]:
    """Return a busy model whose queue has room for two requests."""
    one = Busy(local(queue_limit=2), pool, until)
    yield one
    one.go()
    one.peer.close()


def test_a_full_queue_rejects_without_a_thread(busy):
    waiting = busy.wait(2)
    # The thread that reads while the others wait.
    assert busy.peer.call(TARGET, body()).code == "QUEUE_FULL"
    threads = threading.active_count()
    for number in range(50):
        refused = busy.peer.call(TARGET, body())
        assert (refused.status, refused.code) == (429, "QUEUE_FULL")
        assert busy.ended("refused") == number + 2
    assert threading.active_count() <= threads
    busy.go()
    answers = busy.peer.answers(2)
    assert sorted(answers) == waiting
    assert {answer.status for answer in answers.values()} == {200}
    assert busy.peer.call(TARGET, body()).status == 200


@pytest.mark.parametrize("spelled", ["priority", "\\u0070riority"])
def test_a_request_that_may_still_fit_is_read(busy, spelled):
    _, last = busy.wait(2)
    urgent = busy.peer.ask(
        TARGET, body(priority=1).replace(b"priority", spelled.encode())
    )
    evicted = busy.peer.answer()
    assert (evicted.request_id, evicted.code) == (last, "QUEUE_FULL")
    busy.go()
    assert urgent in busy.peer.answers(2)


def test_an_unknown_model_is_reported_under_load(busy):
    busy.wait(2)
    assert (
        busy.peer.call("POST /v2/models/nobody/infer", body()).code == "MODEL_NOT_FOUND"
    )
    assert (
        busy.peer.call("POST /v2/models/petals/versions/9/infer", body()).code
        == "VERSION_NOT_FOUND"
    )
    assert busy.peer.call("GET /v2/models/petals").status == 200


@pytest.mark.parametrize("others", [0, 1])
def test_only_the_newest_of_a_streams_burst_waits(busy, others):
    busy.wait(others)
    [oldest] = busy.wait(1, stream="camera")
    burst = [busy.peer.write(TARGET, body(stream="camera")) for _ in range(8)]
    newest = busy.peer.last_id
    busy.peer.send(b"".join(burst))
    gone = busy.peer.answers(8)
    assert sorted(gone) == list(range(oldest, newest))
    assert {answer.code for answer in gone.values()} == {"SUPERSEDED"}
    assert busy.ended("superseded") == 8
    assert busy.queue.waiting == others + 1
    busy.go()
    assert busy.peer.answers(others + 1)[newest].status == 200


def test_a_burst_keeps_streams_separate(busy):
    busy.wait(1, stream="a")
    names = ["a", "b", "a", "b", "b"]
    ids = []
    for index in range(len(names)):
        ids.append(busy.peer.last_id + 1 + index)
    busy.peer.send(
        b"".join(busy.peer.write(TARGET, body(stream=name)) for name in names)
    )
    gone = busy.peer.answers(4)
    assert {answer.code for answer in gone.values()} == {"SUPERSEDED"}
    busy.go()
    left = busy.peer.answers(2)
    assert sorted([*gone, *left]) == [ids[0] - 1, *ids]
    assert set(left) == {ids[2], ids[4]}
    assert {answer.status for answer in left.values()} == {200}


def test_an_invalid_newer_request_replaces_no_other(busy):
    [oldest] = busy.wait(1, stream="camera")
    sound = body(stream="camera")
    faulty = body(stream="camera").replace(b"[1, 3]", b"[3, 1]")
    ids = [busy.peer.last_id + 1, busy.peer.last_id + 2]
    busy.peer.send(busy.peer.write(TARGET, sound) + busy.peer.write(TARGET, faulty))
    assert {number: answer.code for number, answer in busy.peer.answers(2).items()} == {
        oldest: "SUPERSEDED",
        ids[1]: "INVALID_TENSOR",
    }
    busy.go()
    assert busy.peer.answers(1)[ids[0]].status == 200


def test_after_goaway_shutdown_takes_priority_over_a_full_queue(busy):
    waiting = busy.wait(2)
    busy.server.drain()
    busy.peer.frame(FrameType.GOAWAY)
    late = busy.peer.call(TARGET, body())
    assert (late.status, late.code) == (503, "SHUTTING_DOWN")
    assert busy.ended("refused") == 0
    busy.go()
    assert sorted(busy.peer.answers(2)) == waiting


def test_a_draining_service_reports_it_with_a_full_queue(busy):
    busy.wait(2)
    assert not busy.service.drain(0.0)
    assert busy.peer.call(TARGET, body()).code == "SHUTTING_DOWN"


def test_other_frames_among_rejected_requests_are_answered(busy):
    waiting = busy.wait(2)
    assert busy.peer.call(TARGET, body()).code == "QUEUE_FULL"
    # not read in one piece, and too long to be rejected unread
    large = body()[:-1] + b" " * 100_000 + b"}"
    frames = [
        busy.peer.write(TARGET, body()),
        busy.peer.write("GET /v2/models/petals"),
        busy.peer.write(TARGET, large),
        busy.peer.write(TARGET, body()),
        encode_frame(Frame(FrameType.PING, arg=7)),
        busy.peer.write(TARGET, body()),
    ]
    busy.peer.send(b"".join(frames))
    pongs = []
    statuses = {}
    for _ in frames:
        frame = busy.peer.next()
        if frame.type == FrameType.PONG:
            pongs.append(frame.arg)
        elif frame.type == FrameType.RESPONSE:
            statuses[frame.request_id] = frame.arg
    assert pongs == [7]
    first = waiting[-1] + 2
    assert statuses == {
        first: 429,
        first + 1: 200,
        first + 2: 429,
        first + 3: 429,
        first + 4: 429,
    }
    busy.peer.cancel(waiting[1])
    assert busy.peer.answer().code == "CANCELLED"
    assert busy.peer.ask(TARGET, body())  # there is room again
    busy.go()
    assert {answer.status for answer in busy.peer.answers(2).values()} == {200}


class Gated:
    """A session whose runs wait for a signal."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.begun, self.may_end = threading.Semaphore(0), threading.Semaphore(0)

    def run(self, *arguments: Any) -> Any:
        """Run like a session."""
        self.begun.release()
        assert self.may_end.acquire(timeout=TIMEOUT_S)
        return self._session.run(*arguments)


class Camera:
    """A connection whose one request of a stream runs until the test ends it."""

    def __init__(self, started: Any) -> None:
        self.service, self.server, self.peer = (
            started.service,
            started.server,
            started.connect(),
        )
        assert self.peer.call(TARGET, body()).status == 200
        self.queue: ModelQueue = self.service.engine.running("petals", "tflite").queue
        idle = self.queue._entries.idle
        self.session = idle[0] = Gated(idle[0])
        self.running = self.frame()
        assert self.session.begun.acquire(timeout=TIMEOUT_S)

    def frame(self, stream: str = "camera") -> int:
        """Send one more frame."""
        return self.peer.ask(TARGET, body(stream=stream))

    def end(self, count: int = 1) -> None:
        """Let this many runs end."""
        self.session.may_end.release(count)


@pytest.fixture
def camera(local: Any) -> Iterator[Camera]:
    """Return a camera whose first frame is being answered."""
    one = Camera(local(queue_limit=3))
    yield one
    one.end(64)
    one.peer.close()


def test_the_newest_of_a_stream_waits_without_a_thread(camera):
    ids = [camera.frame() for _ in range(9)]
    gone = camera.peer.answers(8)
    assert sorted(gone) == ids[:-1]
    assert {answer.code for answer in gone.values()} == {"SUPERSEDED"}
    assert camera.queue.waiting == 1
    assert (
        camera.service.engine.statistics("petals", "tflite")
        .unanswered["superseded"]
        .count
        == 8
    )
    camera.end(2)
    answers = camera.peer.answers(2)
    assert sorted(answers) == [camera.running, ids[-1]]
    assert {answer.status for answer in answers.values()} == {200}
    camera.end()
    assert camera.peer.call(TARGET, body()).status == 200


def test_large_frames_of_a_stream_are_replaced(camera):
    tensor = {
        "name": "features",
        "datatype": "FP32",
        "shape": [25_000, 3],
        "parameters": {"binary_data_size": 300_000},
    }
    head = json.dumps({"inputs": [tensor], "parameters": {"stream": "camera"}}).encode()
    ids = []
    for _ in range(5):
        ids.append(
            camera.peer.ask(TARGET, head + bytes(300_000), json_length=len(head))
        )
    gone = camera.peer.answers(4)
    assert sorted(gone) == ids[:-1]
    assert {answer.code for answer in gone.values()} == {"SUPERSEDED"}
    newest = camera.frame()
    assert camera.peer.answer().request_id == ids[-1]
    # All bytes were released.
    assert camera.server.incoming.acquire(
        camera.server.limits.max_bytes_inflight * INCOMING
    )
    camera.end(2)
    assert sorted(camera.peer.answers(2)) == [camera.running, newest]


def test_other_streams_and_requests_wait_as_well(camera, until):
    kept = camera.frame()
    meta = camera.peer.call("GET /v2/models/petals")
    assert meta.status == 200
    other = camera.frame("another")
    until(lambda: camera.queue.waiting == 2)
    plain = camera.peer.ask(TARGET, body())
    until(lambda: camera.queue.waiting == 3)
    assert camera.peer.call(TARGET, body()).code == "QUEUE_FULL"
    camera.end(16)  # a waiting request is also tried as a batch
    assert sorted(camera.peer.answers(4)) == [camera.running, kept, other, plain]


def test_a_waiting_request_can_be_cancelled(camera):
    kept = camera.frame()
    camera.peer.cancel(kept)
    cancelled = camera.peer.answer()
    assert (cancelled.request_id, cancelled.code) == (kept, "CANCELLED")
    assert (
        camera.service.engine.statistics("petals", "tflite")
        .unanswered["cancelled"]
        .count
        == 1
    )
    camera.end()
    assert camera.peer.answer().request_id == camera.running


@pytest.mark.parametrize("ending", ["half-close", "goaway"])
def test_a_waiting_request_is_answered_before_the_connection_ends(camera, ending):
    kept = camera.frame()
    assert camera.peer.call("GET /v2/models/petals").status == 200  # so it waits by now
    if ending == "half-close":
        camera.peer.socket.shutdown(socket.SHUT_WR)
    else:
        camera.server.drain()
        camera.peer.frame(FrameType.GOAWAY)
    camera.end(2)
    answers = camera.peer.answers(2)
    assert sorted(answers) == [camera.running, kept]
    assert answers[kept].status == 200
    assert camera.server.wait(TIMEOUT_S)


def test_a_waiting_request_ends_with_its_connection(camera, until):
    camera.frame()
    assert camera.peer.call("GET /v2/models/petals").status == 200
    camera.peer.close()
    camera.end(2)
    until(lambda: not camera.server.connections)
