"""What a request is answered before it is read, on the thread that received it, while its model is overloaded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import Any

import pytest

from framed import TIMEOUT_S, Framed
from pocketserve.engine.lane import Lane
from pocketserve.engine.terms import Terms
from pocketserve_wire import ErrorCode
from pocketserve_wire.frames import FrameType

TARGET = "POST /v2/models/petals/infer"
TENSOR = {"name": "features", "datatype": "FP32", "shape": [1, 3], "data": [5.8, 3.0, 4.3]}


def body(**parameters: object) -> bytes:
    """A request's JSON."""
    return json.dumps({"inputs": [TENSOR], "parameters": parameters}).encode()


class Busy:
    """A model whose one session is held until the test lets it go."""

    def __init__(self, started: Any, pool: ThreadPoolExecutor, until: Callable[[Callable[[], bool]], None]) -> None:
        self.service, self.server = started.service, started.server
        self._until, self._go = until, threading.Event()
        self.peer: Framed = started.connect()
        assert self.peer.call(TARGET, body()).status == 200
        self.lane: Lane = self.service.engine.running("petals", "tflite").lane
        held = threading.Event()

        def hold(session: object) -> None:
            held.set()
            assert self._go.wait(TIMEOUT_S)

        self._held = pool.submit(self.lane.run, hold, Terms(monotonic() + TIMEOUT_S))
        assert held.wait(TIMEOUT_S)

    def wait(self, count: int, **parameters: object) -> list[int]:
        """Send requests that have to wait, one after the other; their ids."""
        ids = []
        for _ in range(count):
            before = self.lane.waiting
            ids.append(self.peer.ask(TARGET, body(**parameters)))
            self._until(lambda before=before: self.lane.waiting == before + 1)
        return ids

    def ended(self, how: str) -> int:
        """How many requests ended so, by the statistics."""
        count: int = self.service.engine.statistics("petals", "tflite").unanswered[how].count
        return count

    def go(self) -> None:
        """Let the session go."""
        self._go.set()
        self._held.result(TIMEOUT_S)


@pytest.fixture
def busy(local: Any, pool: ThreadPoolExecutor, until: Any) -> Iterator[Busy]:
    """A busy model where two requests may wait."""
    one = Busy(local(queue_limit=2), pool, until)
    yield one
    one.go()
    one.peer.close()


def test_a_full_line_refuses_without_a_thread(busy):
    waiting = busy.wait(2)
    assert busy.peer.call(TARGET, body()).code == "QUEUE_FULL"  # the thread that reads while the others wait
    threads = threading.active_count()
    for number in range(50):
        refused = busy.peer.call(TARGET, body())
        assert (refused.status, refused.code) == (429, "QUEUE_FULL")
        assert busy.ended("refused") == number + 2
    assert threading.active_count() <= threads
    busy.go()
    answers = busy.peer.answers(2)
    assert sorted(answers) == waiting and {answer.status for answer in answers.values()} == {200}
    assert busy.peer.call(TARGET, body()).status == 200


@pytest.mark.parametrize("spelled", ["priority", "\\u0070riority"])
def test_a_request_that_may_have_a_place_all_the_same_is_read(busy, spelled):
    _, last = busy.wait(2)
    urgent = busy.peer.ask(TARGET, body(priority=1).replace(b"priority", spelled.encode()))
    ousted = busy.peer.answer()
    assert (ousted.request_id, ousted.code) == (last, "QUEUE_FULL")
    busy.go()
    assert urgent in busy.peer.answers(2)


def test_an_unknown_model_is_still_unknown(busy):
    busy.wait(2)
    assert busy.peer.call("POST /v2/models/nobody/infer", body()).code == "MODEL_NOT_FOUND"
    assert busy.peer.call("POST /v2/models/petals/versions/9/infer", body()).code == "VERSION_NOT_FOUND"
    assert busy.peer.call("GET /v2/models/petals").status == 200


@pytest.mark.parametrize("others", [0, 1])
def test_of_a_burst_of_a_stream_only_the_newest_waits(busy, others):
    busy.wait(others)
    [oldest] = busy.wait(1, stream="camera")
    burst = [busy.peer.write(TARGET, body(stream="camera")) for _ in range(8)]
    newest = busy.peer.last_id
    busy.peer.send(b"".join(burst))
    gone = busy.peer.answers(8)
    assert sorted(gone) == list(range(oldest, newest))
    assert {answer.code for answer in gone.values()} == {"SUPERSEDED"}
    assert busy.ended("superseded") == 8
    assert busy.lane.waiting == others + 1
    busy.go()
    assert busy.peer.answers(others + 1)[newest].status == 200


def test_a_burst_of_different_streams_is_kept_apart(busy):
    busy.wait(1, stream="a")
    names = ["a", "b", "a", "b", "b"]
    ids = [busy.peer.last_id + 1 + index for index in range(len(names))]
    busy.peer.send(b"".join(busy.peer.write(TARGET, body(stream=name)) for name in names))
    gone = busy.peer.answers(4)
    assert {answer.code for answer in gone.values()} == {"SUPERSEDED"}
    busy.go()
    left = busy.peer.answers(2)
    assert sorted([*gone, *left]) == [ids[0] - 1, *ids]
    assert set(left) == {ids[2], ids[4]} and {answer.status for answer in left.values()} == {200}


def test_a_step_of_a_sequence_is_not_refused_for_a_line_that_it_may_not_wait_in(busy):
    busy.wait(2, stream="")
    refused = busy.service.refusal("petals", None, memoryview(body()))
    assert refused is not None and refused.code is ErrorCode.QUEUE_FULL
    for parameters in ({"sequence_id": 7}, {"sequence_id": 7, "stream": "camera"}):
        head = memoryview(body(**parameters))
        assert busy.service.refusal("petals", None, head, head) is None


def test_a_newer_request_with_a_fault_takes_nobody_s_place(busy):
    [oldest] = busy.wait(1, stream="camera")
    sound, faulty = body(stream="camera"), body(stream="camera").replace(b"[1, 3]", b"[3, 1]")
    ids = [busy.peer.last_id + 1, busy.peer.last_id + 2]
    busy.peer.send(busy.peer.write(TARGET, sound) + busy.peer.write(TARGET, faulty))
    assert {number: answer.code for number, answer in busy.peer.answers(2).items()} == {
        oldest: "SUPERSEDED",
        ids[1]: "INVALID_TENSOR",
    }
    busy.go()
    assert busy.peer.answers(1)[ids[0]].status == 200


def test_after_goaway_a_full_line_is_no_answer(busy):
    waiting = busy.wait(2)
    busy.server.drain()
    busy.peer.frame(FrameType.GOAWAY)
    late = busy.peer.call(TARGET, body())
    assert (late.status, late.code) == (503, "SHUTTING_DOWN")
    assert busy.ended("refused") == 0
    busy.go()
    assert sorted(busy.peer.answers(2)) == waiting


def test_a_service_that_drains_says_so_whatever_waits(busy):
    busy.wait(2)
    assert not busy.service.drain(0.0)
    assert busy.service.refusal("petals", None, memoryview(body())) is None
