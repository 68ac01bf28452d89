"""Waiting requests use no thread and can still be cancelled, expire and fail."""

from __future__ import annotations

import contextlib
import gc
import socket
import struct
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from framed import TIMEOUT_S, Answer, Framed
from held_model import HeldModel, Until
from pocketserve.engine.scheduling.entries import QueueEntry
from pocketserve.tensors import to_array, to_tensor
from pocketserve.transports.socket.inflight import SMALL_BODY
from pocketserve_wire import oip
from pocketserve_wire.errors import GoAwayReason
from pocketserve_wire.frames import FrameType
from pocketserve_wire.oip import InferRequest

WAITERS = 8
TARGET = "POST /v2/models/petals/infer"
DIABETES = "POST /v2/models/diabetes/infer"


def body(
    number: int = 0,
    *,
    name: str = "features",
    rows: int = 1,
    width: int = 3,
    **parameters: Any,
) -> tuple[bytes, int]:
    """Return a request with unique raw tensors, and the length of its JSON."""
    values = np.full((rows, width), 0.25 * (number % 32), np.float32)
    request = InferRequest(
        inputs=[to_tensor(name, values)], parameters=parameters, binary_output=True
    )
    encoded = oip.encode_infer_request(request)
    assert encoded.json_length is not None
    return b"".join(encoded.chunks), encoded.json_length


def ask(
    peer: Framed, number: int = 0, target: str = TARGET, *, arg: int = 0, **options: Any
) -> int:
    """Send such a request; return its id."""
    content, json_length = body(number, **options)
    return peer.ask(target, content, json_length=json_length, arg=arg)


def tensor(answer: Answer) -> Any:
    """Return the first output."""
    assert answer.status == 200, answer.body
    return to_array(
        oip.decode_infer_response(answer.body, answer.json_length).outputs[0]
    )


class Session:
    """A session that fails where a test wants it to.

    Attributes:
        faults: exceptions to raise, by the number of the run.
        threads: threads of the runs.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self.runs = 0
        self.threads: list[int] = []
        self.faults: dict[int, BaseException] = {}

    def run(self, *arguments: Any) -> Any:
        """Run like a session."""
        self.runs += 1
        self.threads.append(threading.get_ident())
        if self.runs in self.faults:
            raise self.faults[self.runs]
        return self._session.run(*arguments)


class Crowd(HeldModel):
    """A model with one busy session and some waiting requests.

    Attributes:
        waiters: ids of the waiting requests.
    """

    def __init__(self, started: Any, pool: ThreadPoolExecutor, until: Until) -> None:
        super().__init__(started, until)
        large = {"rows": SMALL_BODY // 12 + 1}
        for kind in (
            {},
            {"priority": 1},
            large,
        ) * 2:  # compile the kinds of requests beforehand
            ask(self.peer, **kind)
            assert self.peer.answer().status == 200
        idle = self.service.engine.running("petals", "tflite").queue._entries.idle
        self.session = idle[0] = Session(idle[0])
        self.hold(pool)
        self.waiters = [self.join(self.peer) for _ in range(WAITERS)]

    def join(self, peer: Framed, number: int = 0, **options: Any) -> int:
        """Send one request and wait until it is queued."""
        return self.send(lambda: ask(peer, number, **options))


@pytest.fixture
def crowd(local: Any, pool: ThreadPoolExecutor, until: Any) -> Iterator[Crowd]:
    """Return a busy model with waiting requests."""
    one = Crowd(local(queue_limit=24), pool, until)
    yield one
    one.go()
    one.peer.close()


@pytest.fixture
def one_by_one(local: Any, pool: ThreadPoolExecutor, until: Any) -> Iterator[Crowd]:
    """Return the same without batches."""
    one = Crowd(local(queue_limit=24, batching=False), pool, until)
    yield one
    one.go()
    one.peer.close()


def test_requests_in_a_long_queue_use_no_thread_and_get_their_own_answers(crowd):
    mine = {}
    theirs = {}
    with crowd.connect() as other:
        mine[crowd.join(crowd.peer, 1)] = 1
        threads = threading.active_count()
        for number in range(2, 9):
            mine[crowd.join(crowd.peer, number)] = number
        for number in range(9, 17):
            theirs[crowd.join(other, number)] = number
        # the reader of each connection, and the other one's
        assert threading.active_count() <= threads + 2
        crowd.go()
        my_answers = crowd.peer.answers(len(crowd.waiters) + len(mine))
        their_answers = other.answers(len(theirs))
    got = {}
    for sent, number in mine.items():
        got[number] = tensor(my_answers[sent])
    for sent, number in theirs.items():
        got[number] = tensor(their_answers[sent])

    contents = set()
    for number, values in got.items():
        ask(crowd.peer, number)
        expected = tensor(crowd.peer.answer())
        np.testing.assert_allclose(values, expected, rtol=1e-5)
        contents.add(expected.tobytes())
    assert len(contents) == len(got)
    crowd.until(lambda: crowd.handle.users == 0)


def test_a_large_waiting_request_uses_no_thread(crowd):
    crowd.until(lambda: crowd.server.workers.busy == 1)  # which reads
    for _ in range(3):
        sent = crowd.join(crowd.peer, rows=SMALL_BODY // 12 + 1)
        assert crowd.server.workers.busy == 1
        crowd.peer.cancel(sent)
        assert crowd.peer.answer().code == "CANCELLED"


def test_a_waiting_request_can_be_cancelled(crowd):
    sent = crowd.join(crowd.peer)
    crowd.peer.cancel(sent)
    answer = crowd.peer.answer()
    assert (answer.request_id, answer.code) == (sent, "CANCELLED")
    assert crowd.ended("cancelled") == 1
    assert crowd.queue.waiting == WAITERS


def test_a_waiting_request_expires_while_the_model_is_busy(crowd):
    lasting = crowd.join(crowd.peer)
    short = [ask(crowd.peer, arg=arg) for arg in (120, 40, 80)]
    answers = crowd.peer.answers(3)
    assert list(answers) == [
        short[1],
        short[2],
        short[0],
    ]
    assert {answer.code for answer in answers.values()} == {"DEADLINE_EXCEEDED"}
    assert crowd.ended("expired") == 3
    assert crowd.queue.waiting == WAITERS + 1
    crowd.go()
    assert crowd.peer.answers(WAITERS + 1)[lasting].status == 200


def count_entries() -> int:
    """Count existing requests by type, since asking some of PyTorch's objects emits
    warnings.
    """
    return sum(issubclass(type(one), QueueEntry) for one in gc.get_objects())


def test_failed_waiting_requests_are_released(crowd):
    """A reference cycle of request and error would keep the body until a collection."""
    sent = [*crowd.waiters[:2], *(crowd.join(crowd.peer) for _ in range(4))]
    gc.collect()
    gc.disable()
    before = count_entries()
    try:
        for one in sent:
            crowd.peer.cancel(one)
            assert crowd.peer.answer().code == "CANCELLED"
        crowd.until(lambda: crowd.handle.users == WAITERS - 2)
        crowd.until(lambda: count_entries() == before - len(sent))
        before -= len(sent)
        ask(crowd.peer, arg=20)
        assert crowd.peer.answer().code == "DEADLINE_EXCEEDED"
        for number in range(4):
            ask(crowd.peer, number, stream="camera")
        assert {answer.code for answer in crowd.peer.answers(3).values()} == {
            "SUPERSEDED"
        }
        crowd.until(lambda: count_entries() == before + 1)
    finally:
        gc.enable()


def test_an_urgent_request_goes_first_and_evicts_the_last(crowd):
    sent = []
    for _ in range(crowd.queue._entries.limit - WAITERS):
        sent.append(crowd.join(crowd.peer))
    urgent = ask(crowd.peer, priority=1)
    evicted = crowd.peer.answer()
    assert (evicted.request_id, evicted.code) == (sent[-1], "QUEUE_FULL")
    assert crowd.queue._entries.waiting[0].options.rank == 1
    ask(crowd.peer)
    assert crowd.peer.answer().code == "QUEUE_FULL"
    crowd.go()
    answers = crowd.peer.answers(WAITERS + len(sent))
    assert {answer.status for answer in answers.values()} == {200}
    assert urgent in answers


def test_closing_cancels_waiting_requests(crowd):
    with crowd.connect() as other:
        for number in range(4):
            crowd.join(other, number)
        other.socket.setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
    crowd.until(lambda: crowd.queue.waiting == WAITERS)
    crowd.until(lambda: crowd.server.connections == 1)
    crowd.until(lambda: crowd.ended("cancelled") == 4)


def test_a_half_closed_connection_still_gets_its_answers(crowd):
    with crowd.connect() as other:
        sent = [crowd.join(other, number) for number in range(4)]
        other.socket.shutdown(socket.SHUT_WR)
        crowd.go()
        answers = other.answers(4)
        assert sorted(answers) == sent
        assert {answer.status for answer in answers.values()} == {200}
        assert other.ends().frame is None
    crowd.until(lambda: crowd.server.connections == 1)


def test_an_unloaded_model_answers_its_waiting_requests(crowd):
    sent = crowd.join(crowd.peer)
    crowd.service.unload("petals")
    assert crowd.handle.retired
    assert crowd.handle.users == WAITERS + 1
    crowd.go()
    assert crowd.peer.answers(WAITERS + 1)[sent].status == 200
    crowd.until(lambda: crowd.handle.users == 0)
    ask(crowd.peer)
    assert crowd.peer.answer().code == "MODEL_NOT_FOUND"


def test_a_shutdown_answers_waiting_requests(crowd, pool):
    sent = [crowd.join(crowd.peer) for _ in range(3)]
    drained = pool.submit(crowd.service.drain, TIMEOUT_S)
    crowd.server.drain()
    late = ask(crowd.peer)
    crowd.until(lambda: crowd.service.draining)
    crowd.go()
    frames = []
    for _ in range(WAITERS + len(sent) + 2):
        frames.append(crowd.peer.next())
    status = {}
    for frame in frames:
        if frame.type == FrameType.RESPONSE:
            status[frame.request_id] = frame.arg
    assert status.pop(late) == 503
    assert set(status.values()) == {200}
    assert set(sent) <= set(status)
    assert drained.result(TIMEOUT_S)
    assert crowd.server.wait(TIMEOUT_S)


@pytest.mark.parametrize("fault", [RuntimeError, SystemExit])
def test_a_failed_run_affects_no_other_request(one_by_one, fault):
    sent = [one_by_one.join(one_by_one.peer) for _ in range(9)]
    one_by_one.session.faults = {
        WAITERS + 3: fault("no more"),
        WAITERS + 6: fault("again"),
    }
    one_by_one.go()
    one_by_one.until(lambda: one_by_one.handle.users == 0)
    assert one_by_one.session.runs == WAITERS + 9
    answers = one_by_one.peer.answers(WAITERS + 9)
    code = "INTERNAL"
    if fault is RuntimeError:
        code = "INFERENCE_FAILED"
    assert [answers[one].code for one in sent].count(code) == 2
    assert one_by_one.peer.call("GET /v2/health/live").status == 200


def test_one_thread_runs_all_waiting_requests(one_by_one):
    sent = [one_by_one.join(one_by_one.peer) for _ in range(9)]
    one_by_one.go()
    assert set(sent) <= set(one_by_one.peer.answers(WAITERS + 9))
    assert len(set(one_by_one.session.threads[-9:])) == 1


def test_requests_of_two_models_alternate(one_by_one):
    """A thread may continue with another model's request."""
    crowd = one_by_one
    with crowd.connect() as other:
        for parameters in range(2):
            ask(other, parameters, DIABETES, width=10)
            assert other.answer().status == 200
        mine = [crowd.join(crowd.peer, number) for number in range(6)]
        crowd.service.engine._scheduler.resize(1)  # one run at a time over both models
        queue = crowd.service.engine.running("diabetes", "tflite").queue
        theirs = []
        for number in range(WAITERS + 6):
            theirs.append(ask(other, number, DIABETES, width=10))
            crowd.until(lambda number=number: queue.waiting == number + 1)
        crowd.go()
        assert {answer.status for answer in other.answers(len(theirs)).values()} == {
            200
        }
        assert {
            answer.status for answer in crowd.peer.answers(WAITERS + len(mine)).values()
        } == {200}


def test_an_idle_connection_is_closed_after_answers_without_a_thread(
    local, pool, until
):
    crowd = Crowd(local({"quiet": 0.1}, queue_limit=24, socket_idle=3), pool, until)
    with contextlib.closing(crowd.peer), crowd.connect() as other:
        sent = crowd.join(other)
        [connection] = [
            one for one in crowd.server._connections if one._inflight.last_id == sent
        ]
        until(lambda: connection._released)
        crowd.go()
        assert other.answer().request_id == sent
        frame = other.next()
        assert (frame.type, frame.arg) == (FrameType.GOAWAY, GoAwayReason.IDLE)
        assert other.ends().frame is None


@pytest.mark.parametrize("why", ["the pool is at its maximum", "the system gives none"])
def test_requests_run_when_no_thread_can_be_started(
    local, pool, until, monkeypatch, why
):
    started = local({"quiet": 0.1}, queue_limit=24, batching=False)
    workers = started.server.workers
    workers._idle_s = 0.01
    crowd = Crowd(started, pool, until)
    sent = []
    for kind in [
        {"priority": 1},
        {},
        {"rows": SMALL_BODY // 12 + 1},
    ] * 3:
        sent.append(crowd.join(crowd.peer, **kind))
    until(lambda: workers.count == 0)

    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    if why == "the system gives none":
        monkeypatch.setattr(threading.Thread, "start", none_left)
    else:
        workers._maximum = 1
    crowd.peer.socket.settimeout(120)
    with contextlib.closing(crowd.peer) as peer:
        crowd.go()
        answers = peer.answers(WAITERS + len(sent))
        assert {answer.status for answer in answers.values()} == {200}
        assert set(sent) < set(answers)
        until(lambda: crowd.handle.users == 0)
        monkeypatch.undo()


def test_many_runs_on_one_thread_do_not_recurse(local, pool, until):
    crowd = Crowd(
        local(queue_limit=400, socket_inflight=420, batching=False), pool, until
    )
    with contextlib.closing(crowd.peer) as peer:
        sent = [crowd.join(peer) for _ in range(300)]
        crowd.server.workers._maximum = 2
        crowd.go()
        answers = peer.answers(WAITERS + len(sent))
        assert {answer.status for answer in answers.values()} == {200}
