"""The part of a connection that reads a stream whose requests come faster than they are answered.

While one request of a stream runs, the newest that came behind it is held here, on nobody's thread: a newer one takes
its place and it is answered SUPERSEDED, with others in one call. The thread that ends the run looks once more for newer
ones and runs the last. So nobody is woken for a frame that is not run, and what is run is as new as can be.
"""

from __future__ import annotations

import threading
from typing import Final

from pocketserve.api.messages import ApiResponse
from pocketserve.engine.scheduling.cancellation import Cancellation, cancelled
from pocketserve.engine.scheduling.queue import superseded
from pocketserve.service import Service
from pocketserve.transports.socket import requests
from pocketserve.transports.socket.event_loop import EventLoop
from pocketserve_wire.frame_decoder import FrameDecoder
from pocketserve_wire.frames import Frame, FrameType

LOOKS: Final = 16
"""Times that the event loop's thread receives from one connection before it looks at others: some megabytes."""

Chunk = bytes | memoryview

_REQUEST = int(FrameType.REQUEST)


class Known:
    """A frame that was read and not handled yet.

    Attributes:
        received: when its header was read; only of one that was held.
        held: it is a request of a stream that waited for the run before it.
    """

    __slots__ = ("frame", "held", "received")

    def __init__(self, frame: Frame, received: float = 0.0, *, held: bool = False) -> None:
        self.frame = frame
        self.received = received
        self.held = held


class StreamReader:
    """What :class:`~pocketserve.transports.socket.connection.Connection` needs for streams.

    All but ``_front`` belongs to whoever holds the right to read.
    """

    _decoder: FrameDecoder
    _admission: requests.Admission
    _service: Service
    _event_loop: EventLoop
    _lock: threading.Lock
    _client_max_frame: int
    _frame_begun: float | None
    _unanswered: dict[int, Cancellation]
    _going_away: bool

    _streams = False  # requests of a stream come faster than they are answered
    _in_hand: Known | None = None  # what came among refused requests and is none
    _held: Known | None = None  # a request of the stream that runs; counted as unanswered
    _behind = 0  # the id of the run that it waits for
    _front: Frame | None = None  # of the requests under way the one that was taken first; under the lock

    def _receive(self, *, waits: bool = True) -> bool | None:
        """Receive once; None when nothing came, False at the end."""
        raise NotImplementedError

    def _take_request(self, frame: Frame, known: Known | None = None) -> bool:
        """Answer a request; whether this thread still holds the right to read."""
        raise NotImplementedError

    def _take_notice(self, frame: Frame) -> bool:
        """Handle what is no request; whether this thread still holds the right to read."""
        raise NotImplementedError

    def _reject_early(self, frame: Frame) -> ApiResponse | None:
        """The answer to a request that is not even read; None to go on."""
        raise NotImplementedError

    def _post(self, chunks: list[Chunk], *, urgent: bool = False) -> None:
        """Send without waiting."""
        raise NotImplementedError

    def _arrived(self) -> None:
        """The body is whole."""
        raise NotImplementedError

    def _leave_under_lock(self) -> None:
        """Let the event loop wait for what comes."""
        raise NotImplementedError

    def _end_if_answered(self) -> None:
        """Close if nothing more is taken and all is answered."""
        raise NotImplementedError

    def _read_stream(self) -> bool:
        """One step of reading while a stream is too fast; whether this thread still holds the right to read."""
        if self._in_hand is None and not self._sift():
            return False
        known, self._in_hand = self._in_hand, None
        if known is None:
            return True
        if known.frame.type != _REQUEST:
            return self._take_notice(known.frame)
        holds = self._take_request(known.frame, known)
        if known.held:
            self._answered(known.frame.request_id)  # if it was refused: a run counts itself
        return holds

    def _sift(self) -> bool:
        """Refuse what came without waiting; whether this thread still holds the right to read, for what is in hand.

        Most frames of a stream that is too fast end here: nobody is woken for them, and one call sends their answers.
        """
        chunks: list[Chunk] = []
        try:
            return self._collect_refusals(chunks)
        finally:
            if chunks:
                self._event_loop.pause()
                self._post(chunks)

    def _collect_refusals(self, chunks: list[Chunk]) -> bool:
        decoder, looks = self._decoder, 0
        while True:
            frame = decoder.next()
            if frame is None:
                # What came after the first look can wait for the next round, unless it is the rest of a frame.
                goes_on = looks < LOOKS and (not looks or decoder.mid_frame)
                got = self._receive(waits=False) if goes_on else None
                if got:
                    looks += 1
                    continue
                if got is not None:
                    return self._take_held()
                if not looks and self._held is None:
                    self._streams = False  # a thread waits for the next request again
                    return True
                return self._leave_what_is_held()
            self._frame_begun = None
            if frame.type != _REQUEST:
                self._in_hand = Known(frame)
                return True
            self._arrived()
            if self._hold_back(frame, chunks):
                continue
            refusal = self._reject_early(frame)
            if refusal is None:
                self._in_hand = Known(frame)
                return True
            chunks += requests.respond(self._service, frame, refusal, self._client_max_frame)[0]

    def _hold_back(self, frame: Frame, chunks: list[Chunk]) -> bool:
        """Keep a request of a stream until the one before has its answer, if that runs; whether it is kept.

        It takes the place of an older one that is kept: under overload nobody is woken for a frame that is not run.
        """
        if self._admission.refusal is not None or self._going_away:
            return False
        stream = requests.stream_of(frame)
        lane = requests.queue_of(self._service, frame) if stream else None
        if lane is None or lane.holds(stream):
            return False  # what waits for its turn is replaced there
        older = self._held
        before = older.frame if older is not None else self._front
        if before is not None and (before.target != frame.target or requests.stream_of(before) != stream):
            return False
        if older is None:
            if before is not None and not lane.runs(stream):
                return False  # it may be about to wait
            self._behind = before.request_id if before is not None else 0
            self._unanswered[frame.request_id] = Cancellation()
        else:
            self._unanswered[frame.request_id] = Cancellation()  # before the other goes: never is nothing unanswered
            del self._unanswered[older.frame.request_id]
            gone = requests.reject(self._service, older.frame, superseded())
            chunks += requests.respond(self._service, older.frame, gone, self._client_max_frame)[0]
        self._streams = True
        self._held = Known(frame, self._admission.received, held=True)
        return True

    def _leave_what_is_held(self) -> bool:
        """Nothing more came: what is held waits for the end of the run before it, or is taken now, as ``_sift``."""
        with self._lock:
            due = self._held_is_due()
            if not due:
                self._leave_under_lock()
        return due and self._take_held()

    def _held_is_due(self) -> bool:
        """Return whether a request is held and the run before it has ended, whatever else runs. Under the lock."""
        return self._held is not None and (self._front is None or self._front.request_id != self._behind)

    def _take_held(self) -> bool:
        self._in_hand, self._held = self._held, None
        return self._in_hand is not None

    def _cancel_held(self, request_id: int) -> bool:
        if self._held is None or self._held.frame.request_id != request_id:
            return False
        frame = self._held.frame
        gone = requests.reject(self._service, frame, cancelled())
        self._held = None
        self._post(requests.respond(self._service, frame, gone, self._client_max_frame)[0])
        self._answered(request_id)
        return True

    def _answered(self, request_id: int) -> None:
        if self._unanswered.pop(request_id, None) is not None:
            self._end_if_answered()
