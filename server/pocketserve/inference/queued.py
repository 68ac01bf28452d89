"""Inference requests that wait for their model without a thread: what is held for one until it was carried out."""

from __future__ import annotations

import time
from collections.abc import Callable

from pocketserve.engine.engine import Engine
from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.entries import CallbackEntry
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.statistics import Timing, VersionStatistics
from pocketserve.inference.compile import CompiledRequest
from pocketserve.inference.execute import PlainWork
from pocketserve_wire import ApiError
from pocketserve_wire.oip import EncodedBody


class Sender:
    """What a transport does for a queued request.

    Attributes:
        begin: called once it is decided what becomes of it: has some thread call ``answer``, soon. It must neither
            wait nor raise.
        answer: has it :meth:`QueuedRequest.finish`, and sends what that gives. It must not raise.
    """

    __slots__ = ("answer", "begin")

    def __init__(self, begin: Callable[[QueuedRequest], None], answer: Callable[[QueuedRequest], None]) -> None:
        self.begin = begin
        self.answer = answer


class QueuedRequest(CallbackEntry):
    """A request of a known kind, from its place in the line to its answer.

    Args:
        running: held for it from before it waits.
        ends: gives back its place among the requests that are under way.

    Attributes:
        answer: its sender's.
        begun: for whoever begins queued requests.
    """

    __slots__ = ("_ends", "_engine", "_prepared", "_running", "_started", "_statistics", "answer", "begun")

    def __init__(
        self,
        engine: Engine,
        running: ModelHandle,
        statistics: VersionStatistics,
        ends: Callable[[], None],
        prepared: CompiledRequest,
        body: memoryview,
        terms: RequestOptions,
        sender: Sender,
    ) -> None:
        self._started = time.perf_counter_ns()
        work = PlainWork(prepared.arrays(body), prepared.signature)
        super().__init__(work, terms, running.lane.describe(work), sender.begin)
        self.answer = sender.answer
        self.begun = False
        self._engine = engine
        self._running = running
        self._statistics = statistics
        self._ends = ends
        self._prepared = prepared

    def expire(self) -> None:
        """Its deadline has passed."""
        self._running.lane.expire(self)

    def finish(self) -> EncodedBody:
        """Carry it out; called once, after it was begun. It is counted, and nothing is held for it afterwards.

        Raises:
            ApiError: as :meth:`Service.infer_from_template`.
        """
        try:
            turn = self._running.lane.run_entry(self)
            infer_end = time.perf_counter_ns()
            prepared = self._prepared
            encoded = prepared.encode(turn.result)
        except BaseException as error:
            self.fail(error)
            raise
        self._let_go()
        input_ns, output_ns = self.arrived_ns - self._started, time.perf_counter_ns() - infer_end
        timing = Timing(
            turn.queue_ns, input_ns, turn.run_ns, output_ns, prepared.rows, turn.executions, turn.batch_rows
        )
        self._statistics.record_success(timing)
        return encoded

    def fail(self, error: BaseException) -> None:
        """It is not answered with a result: count that, and hold nothing for it any more."""
        self._let_go()
        self.count_failure(error)

    def count_failure(self, error: BaseException) -> None:
        """It ended so."""
        code = error.code if isinstance(error, ApiError) else None
        self._statistics.record_failure(time.perf_counter_ns() - self._started, code)

    def _let_go(self) -> None:
        try:
            self._engine.release(self._running)
        finally:
            self._ends()
