"""What transports may call. Nothing here knows of HTTP or sockets.

A request goes straight through: resolve the model, check the tensors, wait for a turn, run, translate back.

One class, since transports are to know one thing: what each part of it does is elsewhere, and what is here says in
which order, and under which count.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

from pocketserve import __version__
from pocketserve.auth.pairing import PairingDesk
from pocketserve.config import Config
from pocketserve.engine.device.power import PowerWatch
from pocketserve.engine.engine import Engine, State
from pocketserve.engine.lifecycle.byte_budget import ByteBudget
from pocketserve.engine.lifecycle.handle import EngineOptions, ModelHandle
from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.engine.scheduling.options import (
    DEFAULT_PRIORITY,
    RequestOptions,
    asks_for_a_place,
    read_options,
    stream_of,
)
from pocketserve.engine.scheduling.queue import ModelQueue
from pocketserve.engine.scheduling.semaphore import Semaphore
from pocketserve.engine.statistics import Timing, Traffic, VersionStatistics
from pocketserve.inference.queued import QueuedRequest, Sender
from pocketserve.inference.run import Prediction, run_compiled, run_raw_input, run_tensors
from pocketserve.messages import plural
from pocketserve.quarantine.quarantine import Quarantine, TrialLimits
from pocketserve.repository.file_faults import file_fault
from pocketserve.repository.repository import READ_AGAIN, Repository
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.repository.snapshots import SnapshotStore
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.registry import look_again, missing_framework
from pocketserve.state.unloaded import UnloadedModels
from pocketserve.tasks.base import NO_HINTS, AnswerOptions, Hints
from pocketserve.trust.store import TrustStore
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.oip import EncodedBody, InferRequest, InferResponse, RequestTemplate

A = TypeVar("A")
T = TypeVar("T")

_Known = tuple[ModelEntry, VersionEntry, VersionStatistics]

log = logging.getLogger(__name__)

EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "statistics",
)
FREE_THREADS = 4
LONG_LINE = 8
"""Requests that wait in one line with a thread each; those behind them wait without, where they can. A few threads cost
little, and a request of theirs less than one that is put down and taken up again."""

EARLY_HEAD_BYTES = 4096


class ModelStatus(NamedTuple):
    """Where a version stands, for listings. ``ready``: a request would be answered (perhaps after loading)."""

    model: str
    version: str
    state: State
    ready: bool
    reason: str


class Service:
    """The server's functions.

    Args:
        config: the settings.
        token: what pairing hands over; None when no token is asked for.
    """

    def __init__(self, config: Config, token: str | None = None) -> None:
        self.config = config
        self.traffic = Traffic()
        self.pairing = PairingDesk(token)
        self.repository = Repository(config.models_dir)
        self.quarantine = _open_quarantine(config)
        self.power = PowerWatch(config.low_power, config.low_battery, config.hot_battery)
        self.decode_budget = ByteBudget(config.decode_budget)
        self.trust = TrustStore(config.state_dir)
        self.engine = Engine(
            EngineOptions(
                memory_budget=config.memory_budget,
                keep_alive=config.keep_alive,
                threads=config.threads,
                queue_limit=config.queue_limit,
                max_image_pixels=config.max_image_pixels,
                batching=config.batching,
                max_batch=config.max_batch,
            ),
            quarantine=self.quarantine,
            power=self.power,
            snapshots=SnapshotStore(config.state_dir),
            trust=self.trust,
        )
        # What the names of requests stand for, as long as the repository has the same models.
        self._known: tuple[object, dict[tuple[str, str | None], _Known]] = (None, {})
        self._unloaded_models: UnloadedModels | None = None
        self._noting = threading.Lock()
        # Some threads stay free to answer health checks and refusals, however many models are busy or loading.
        self._places = Semaphore(max(1, config.worker_threads - FREE_THREADS))
        self.starting = False  # whether the models of --load are still on their way
        self._draining = False
        self._idle = threading.Condition()

    # Health and shutdown

    @property
    def draining(self) -> bool:
        """Return whether the server is shutting down."""
        return self._draining

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Count a request, so that shutting down waits for it.

        Raises:
            ApiError: SHUTTING_DOWN, or QUEUE_FULL when all models together have too many requests under way.
        """
        self._begin()
        try:
            yield
        finally:
            self._end()

    def _begin(self) -> None:
        if not self._places.take():
            raise self._refusal()
        # Looked at with the place taken: whoever drains sees either this place, or none that is taken later.
        if self._draining:
            self._end()
            raise self._refusal()

    def _refusal(self) -> ApiError:
        if self._draining:
            return ApiError(ErrorCode.SHUTTING_DOWN, "the server is shutting down", retry_after_s=1.0)
        return ApiError(
            ErrorCode.QUEUE_FULL,
            f"{plural(self._places.maximum, 'request is', 'requests are')} under way on all models; try again later",
            retry_after_s=0.5,
        )

    def _end(self) -> None:
        self._places.give()
        if self._draining:
            with self._idle:
                self._idle.notify_all()

    def drain(self, timeout: float) -> bool:
        """Refuse new requests and wait for those under way; whether all of them finished in time."""
        self.pairing.close()
        with self._idle:
            self._draining = True
            return self._idle.wait_for(lambda: self._places.unused, timeout)

    def close(self) -> None:
        """End a trial or a question that is under way, and unload every model."""
        if self.quarantine is not None:
            self.quarantine.close()
        self.power.close()
        self.engine.close()

    # Descriptions

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and protocol extensions; and why power is low, as long as it is."""
        known = {"name": self.config.server_name, "version": __version__, "extensions": list(EXTENSIONS)}
        return known | ({"low_power": self.power.describe()} if self.power.low else {})

    def model_names(self) -> list[str]:
        """Every model of the folder."""
        return list(self.repository.models())

    def statuses(self, *, rescan: bool = False) -> list[ModelStatus]:
        """Every version of every model; one nameless version for a model that has none."""
        if rescan:
            self._rescan()
        return [status for entry in self.repository.models().values() for status in self.model_statuses(entry)]

    def model_statuses(self, entry: ModelEntry) -> list[ModelStatus]:
        """The versions of one model."""
        if not entry.versions:
            return [ModelStatus(entry.name, "", State.FAILED, False, entry.problem or "the model has no versions")]
        return [self._status(entry, version) for version in entry.versions.values()]

    def status(self, name: str, version: str | None) -> ModelStatus:
        """Return where one version stands.

        Raises:
            ApiError: MODEL_NOT_FOUND or VERSION_NOT_FOUND.
        """
        entry, found = self._resolve(name, version)
        return self._status(entry, found)

    @contextmanager
    def running(
        self, name: str, version: str | None, terms: RequestOptions | None = None
    ) -> Iterator[tuple[ModelEntry, ModelHandle]]:
        """Hold a version for describing it; loads it where needed.

        Raises:
            ApiError: why it cannot be loaded.
        """
        entry, found = self._resolve(name, version)
        terms = terms or self.terms({})
        with self.in_flight(), self.engine.use(entry, found, terms.deadline, terms.cancellation) as running:
            yield entry, running

    def require(self, name: str, version: str | None) -> None:
        """Refuse a request for an unknown model before its body is looked at.

        Raises:
            ApiError: MODEL_NOT_FOUND, VERSION_NOT_FOUND or MODEL_FAILED.
        """
        self._resolve(name, version)

    def entry(self, name: str) -> ModelEntry:
        """A model of the folder.

        Raises:
            ApiError: MODEL_NOT_FOUND.
        """
        return self.repository.model(name)

    # Repository control

    def release(self, name: str) -> None:
        """Forget what trials said of a model's files, so that they are tried again.

        Raises:
            ApiError: MODEL_NOT_FOUND, or MODEL_FAILED when a file cannot be read.
        """
        if self.quarantine is None:
            return
        try:
            entry = self.entry(name)
            for version in entry.versions.values():
                self.quarantine.release(entry, version)
        except ModelLoadError as error:
            raise ApiError(ErrorCode.MODEL_FAILED, f"failed to load {name!r}: {error}") from None

    def load(self, name: str, *, rescan: bool = True) -> None:
        """Read a model's files anew and load its default version; other loaded versions are loaded anew too.

        Args:
            rescan: look through the folder first; a server that has just started knows it.

        Raises:
            ApiError: MODEL_NOT_FOUND, MODEL_FAILED, RUNTIME_MISSING or MEMORY_BUDGET, with "failed to load".
        """
        if rescan:
            self._rescan()
        try:
            entry, default = self._resolve(name, None)
        except ApiError as error:
            if "failed to load" in error.message:
                raise
            detail = f"failed to load {name!r}: {error.message}"
            raise ApiError(error.code, detail) from None
        with self.in_flight():
            self._load(entry, default)
        self._note(entry)

    def _rescan(self) -> None:
        """Read the models folder again; what is loaded and has changed is loaded anew by its next request."""
        look_again()
        self.repository.refresh(self.engine.loaded_models())
        self.engine.note_changes(self.repository.models())

    def _load(self, entry: ModelEntry, default: VersionEntry) -> None:
        name = entry.name
        others = [version for version in entry.versions.values() if version is not default]
        self.engine.load(entry, default, self._deadline())
        for version in others:
            if self.engine.state(name, version.name) is State.READY:
                self.engine.load(entry, version, self._deadline())
            else:
                self.engine.allow(name, version.name)

    def unload(self, name: str) -> None:
        """Stop serving every version of a model. An unknown name is no fault, as in Triton."""
        entry = self.repository.models().get(name)
        versions = list(entry.versions) if entry is not None else []
        # Also what was loaded from files that are gone by now.
        for version in dict.fromkeys([*versions, *self.engine.versions_of(name)]):
            self.engine.unload(name, version, self._deadline())
        if entry is not None:
            self._note(entry)

    def _note(self, entry: ModelEntry) -> None:
        """Put on file how a model stands now: of a load and an unload at the same time, either may end last."""
        if self._unloaded_models is None:
            return
        with self._noting:
            if all(self.engine.state(entry.name, version) is State.STOPPED for version in entry.versions):
                self._unloaded_models.add(entry.name)
            else:
                self._unloaded_models.discard(entry.name)

    def remember(self, unloaded_models: UnloadedModels) -> None:
        """Do not serve what was unloaded when the last server was killed, and keep note of loads and unloads from now.

        Called before requests are accepted.
        """
        for name in sorted(unloaded_models.names):
            log.warning("%s stays unloaded, as before the last server was killed, until it is loaded again", name)
            self.unload(name)
        self._unloaded_models = unloaded_models

    # Inference

    def infer(
        self,
        name: str,
        version: str | None,
        request: InferRequest,
        terms: RequestOptions | None = None,
        *,
        row_by_row: bool = False,
    ) -> InferResponse:
        """Run a model on tensors.

        Args:
            terms: how long it may wait, and more; None reads them from the request's own parameters.
            row_by_row: let a model that is fixed to one row answer several.

        Raises:
            ApiError: for every fault of the request, the model or the server.
        """
        terms = terms or self.terms(request.parameters)

        def run(running: ModelHandle, asked: InferRequest, terms: RequestOptions) -> tuple[InferResponse, Timing]:
            return run_tensors(running, asked, terms, row_by_row)

        return self._count(name, version, terms, run, request)

    def refusal(
        self, name: str, version: str | None, head: memoryview, follower: memoryview | None = None
    ) -> ApiError | None:
        """Return why a tensor request would not be answered, as far as that shows before it is read; None to go on.

        Under overload nearly all requests end so, and what each of them costs is taken from those that are answered.
        Told are those that find their model's line full, and those of a stream that would be replaced at once.

        Args:
            head: the body's JSON part; nothing is told of a long one, which may hold all of the tensors.
            follower: the JSON part of the request for the same model that came next on the same way, if it is there.

        Returns:
            QUEUE_FULL or SUPERSEDED, counted as if the lane had said it. An unknown model is not told of here.
        """
        if self._draining or not self.engine.crowded or len(head) > EARLY_HEAD_BYTES:
            return None
        try:
            entry, found, statistics = self._find(name, version)
        except ApiError:
            return None
        running = self.engine.running(entry.name, found.name)
        if running is None or not running.lane.may_refuse:
            return None
        text, stream = bytes(head), ""
        if asks_for_a_place(text):
            # One that says anything else may be refused for it, and would take nobody's place.
            if follower is None or follower != text:
                return None
            stream = stream_of(text)
            if not stream:
                return None
        error = running.lane.refusal(stream)
        if error is not None:
            statistics.record_failure(0, error.code)
        return error

    def lane(self, name: str, version: str | None) -> ModelQueue | None:
        """Return where requests for a version wait, if it is loaded."""
        try:
            entry, found, _ = self._find(name, version)
        except ApiError:
            return None
        running = self.engine.running(entry.name, found.name)
        return running.lane if running is not None else None

    def reject(self, name: str, version: str | None, reason: ApiError) -> ApiError:
        """Count a request that is not run and that its model never heard of; returns what it is answered.

        Args:
            reason: such as SUPERSEDED, when a newer one of its stream took its place.
        """
        try:
            entry, found = self._resolve(name, version)
        except ApiError as error:
            return error
        self.engine.statistics(entry.name, found.name).record_failure(0, reason.code)
        return reason

    def infer_from_template(
        self, name: str, version: str | None, plan: RequestTemplate, body: memoryview, terms: RequestOptions
    ) -> EncodedBody:
        """As :meth:`infer`, from body to body, for a request whose JSON part is known: only the tensors are looked at.

        Args:
            plan: of this body; it asks for raw tensors only.

        Raises:
            ApiError: for every fault of the request, the model or the server.
        """
        return self._count(name, version, terms, run_compiled, (plan, body))

    def enqueue_compiled(
        self,
        name: str,
        version: str | None,
        plan: RequestTemplate,
        body: memoryview,
        terms: Callable[[], RequestOptions],
        sender: Sender,
    ) -> QueuedRequest | None:
        """As :meth:`infer_from_template` for a request that has to wait in a long line: it does so without a thread.

        Args:
            terms: makes its terms, once they are needed.

        Returns:
            What waits: its sender may have been told to begin it before this returns. None where nothing was done: the
            line is short, or the request is not of a kind that can wait so. One of a stream is replaced in other ways,
            one in the background may be refused for the battery.

        Raises:
            ApiError: for every fault of the request, the model or the server; it is counted.
        """
        entry, found, statistics = self._find(name, version)
        running = self.engine.running(entry.name, found.name)
        if running is None or running.lane.waiting < LONG_LINE:
            return None
        prepared, its = running.prepared.get(plan), terms()
        if prepared is None or its.stream or its.rank > DEFAULT_PRIORITY:
            return None
        queued = QueuedRequest(self.engine, running, statistics, self._end, prepared, body, its, sender)
        try:
            self._begin()
        except ApiError as error:
            queued.count_failure(error)
            raise
        if not self.engine.hold(running):
            self._end()
            return None
        try:
            running.lane.enter(queued, its)
        except BaseException as error:
            queued.fail(error)
            raise
        return queued

    def predict(
        self,
        name: str,
        version: str | None,
        body: memoryview,
        options: AnswerOptions,
        terms: RequestOptions | None = None,
        hints: Hints = NO_HINTS,
    ) -> Prediction:
        """Run a model on raw input and label its answer.

        Args:
            terms: how long it may wait, and more; None is the longest wait that the settings allow.

        Raises:
            ApiError: for every fault of the request, the model or the server.
        """
        terms = terms or self.terms({})

        def run(running: ModelHandle, asked: memoryview, terms: RequestOptions) -> tuple[Prediction, Timing]:
            prediction = run_raw_input(running, asked, options, terms, hints, self.decode_budget)
            return prediction, prediction.timing

        return self._count(name, version, terms, run, body)

    def terms(
        self,
        parameters: Mapping[str, Any],
        deadline: float | None = None,
        cancellation: Cancellation | None = None,
        received: float | None = None,
    ) -> RequestOptions:
        """A request's terms: the earliest of its own limits and the settings', its priority and stream.

        Args:
            parameters: the protocol's ``timeout`` (microseconds), ``priority`` and ``stream``.
            deadline: monotonic seconds, from the transport.
            received: when it came, in monotonic seconds; None is now.

        Raises:
            ApiError: INVALID_PARAMETER.
        """
        return read_options(parameters, time.monotonic(), self.config.request_timeout, deadline, cancellation, received)

    def _count(
        self,
        name: str,
        version: str | None,
        terms: RequestOptions,
        run: Callable[[ModelHandle, A, RequestOptions], tuple[T, Timing]],
        asked: A,
    ) -> T:
        """Run one request on a version that is held meanwhile, and count how it ended.

        Every request goes through here: nested context managers would cost it more than all that they do, and so
        would a closure, for which ``asked`` is handed through.
        """
        entry, found, statistics = self._find(name, version)
        engine = self.engine
        try:
            if terms.rank > DEFAULT_PRIORITY and self.power.low:
                self.engine.notice()
                self.power.refuse_background()
            self._begin()
            try:
                running = engine.acquire(entry, found, terms.deadline, terms.cancellation)
                try:
                    result, timing = run(running, asked, terms)
                finally:
                    engine.release(running)
            finally:
                self._end()
        except BaseException as error:
            code = error.code if isinstance(error, ApiError) else None
            statistics.record_failure(int(1e9 * (time.monotonic() - terms.arrived)), code)
            raise
        statistics.record_success(timing)
        return result

    def _find(self, name: str, version: str | None) -> _Known:
        """A version with its counters; see :meth:`_resolve`."""
        models, known = self._known
        if models is not self.repository.models():
            models, known = self._known = self.repository.models(), {}
        found = known.get((name, version))
        if found is None:
            entry, of_it = self._resolve(name, version)
            found = entry, of_it, self.engine.statistics(entry.name, of_it.name)
            if version in (None, of_it.name):  # other spellings, such as 0001, are without end
                known[name, version] = found
        return found

    def _resolve(self, name: str, version: str | None) -> tuple[ModelEntry, VersionEntry]:
        entry = self.repository.model(name)
        if not entry.versions:
            raise ApiError(ErrorCode.MODEL_FAILED, f"failed to load {name!r}: {entry.problem}{READ_AGAIN}")
        return entry, self.repository.version(entry, version)

    def _status(self, entry: ModelEntry, version: VersionEntry) -> ModelStatus:
        state = self.engine.state(entry.name, version.name)
        running = self.engine.running(entry.name, version.name)
        reason = self.engine.failure(entry.name, version.name) or version.problem or entry.problem
        if reason is None and state is State.ON_DEMAND:
            reason = missing_framework(version.format) or self._refused(entry, version) or file_fault(version)
            state = State.FAILED if reason else state
        if running is not None and (reason is not None or running.outdated):
            reason = f"serves on as it was loaded: {reason or 'its files changed; its next request loads it anew'}"
        elif version.problem is not None:
            state = State.FAILED
        if reason is None:
            reason = {State.ON_DEMAND: "loads on first use", State.STOPPED: "unloaded"}.get(state, "")
        # One that is being loaded anew serves on.
        ready = state in (State.READY, State.ON_DEMAND) or running is not None
        return ModelStatus(entry.name, version.name, state, ready, reason)

    def _refused(self, entry: ModelEntry, version: VersionEntry) -> str | None:
        quarantined = self.quarantine.known_reason(entry, version) if self.quarantine is not None else None
        return self.trust.known_reason(entry, version) or quarantined

    def _deadline(self) -> float:
        """Return when the longest wait that the settings allow is over."""
        return time.monotonic() + self.config.request_timeout


def _open_quarantine(config: Config) -> Quarantine | None:
    limits = TrialLimits(config.trial_timeout, config.trial_memory)
    return Quarantine(config.state_dir, limits) if config.quarantine else None
