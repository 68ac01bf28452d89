"""The functions that transports call, independent of protocols."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pocketserve import __version__
from pocketserve.auth.pairing import PairingDesk
from pocketserve.auth.web_sessions import WebSessions
from pocketserve.config import Config
from pocketserve.engine.device.power import PowerWatch
from pocketserve.engine.engine import Engine, State
from pocketserve.engine.lifecycle.byte_budget import ByteBudget
from pocketserve.engine.lifecycle.handle import EngineOptions, ModelHandle, always
from pocketserve.engine.lifecycle.state import VersionRecord
from pocketserve.engine.replica import Replica
from pocketserve.engine.scheduling.entries import Job
from pocketserve.engine.scheduling.options import (
    DEFAULT_PRIORITY,
    RequestOptions,
    read_options,
)
from pocketserve.engine.scheduling.semaphore import Semaphore
from pocketserve.engine.statistics import Traffic
from pocketserve.engine.updates import Updates, better_than_default, is_default
from pocketserve.inference.call import Done, InferenceCall
from pocketserve.inference.payload import DECODED
from pocketserve.messages import LOADS_ANEW, PENDING, SERVES_ON, plural
from pocketserve.quarantine.quarantine import Quarantine, TrialLimits
from pocketserve.repository.folder_watch import FolderWatch
from pocketserve.repository.repository import Repository
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.repository.snapshots import SnapshotStore
from pocketserve.repository.unsupported_files import file_fault
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.registry import look_again, missing_framework
from pocketserve.state.unloaded import UnloadedModels
from pocketserve.trust.store import TrustStore
from pocketserve_wire import ApiError, ErrorCode
from pocketserve_wire.addresses import LOOPBACK

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.loaded_model import LoadedModel

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
CLOSE_S = 1.0  # for loads in the background to end
STATE_REASONS = {State.ON_DEMAND: "loads on first use", State.STOPPED: "unloaded"}


_Targets = tuple[object, dict[tuple[str, str | None], VersionRecord]]


class ModelStatus(NamedTuple):
    """A version's status, for listings.

    ``ready``: it would answer a request, perhaps after loading.
    """

    model: str
    version: str
    state: State
    ready: bool
    reason: str


class Service:
    """The server's functions.

    Args:
        config: the settings.
        token: the token that pairing hands over; None if none is required.
        replica: identity of this worker; None for a server of one process.
    """

    def __init__(
        self, config: Config, token: str | None = None, replica: Replica | None = None
    ) -> None:
        self.config = config
        self.replica = replica
        state_dir = config.state_dir if replica is None else replica.state_dir
        self.traffic = Traffic()
        self.pairing = PairingDesk(token)
        self.pages = WebSessions()
        self.request_options = functools.partial(
            read_options, longest_wait=config.request_timeout
        )
        # The server replaces it once its port is known.
        self.page_url = f"http://{LOOPBACK}:{config.http_port}/"
        self.repository = Repository(config.models_dir)
        self._watch: FolderWatch | None = None
        self.quarantine = _open_quarantine(config, state_dir)
        self.power = PowerWatch(
            config.low_power, config.low_battery, config.hot_battery
        )
        self.decode_budget = ByteBudget(config.decode_budget)
        self.trust = TrustStore(config.state_dir)
        self.engine = Engine(
            _engine_options(config, replica),
            quarantine=self.quarantine,
            power=self.power,
            snapshots=SnapshotStore(state_dir),
            trust=self.trust,
        )
        self.updates = Updates(
            self.repository, self.engine, self._resolve, config.request_timeout
        )
        # Records by model and version name, valid for one index of the repository.
        self._targets: _Targets = (None, {})
        self._unloaded_models: UnloadedModels | None = None
        self._noting = threading.Lock()
        # Some threads stay free for health checks and rejections, even if all models
        # are busy or loading.
        self._request_slots = Semaphore(max(1, config.worker_threads - FREE_THREADS))
        self.starting = False  # whether the models of --load are still being loaded
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
            ApiError: SHUTTING_DOWN; QUEUE_FULL if too many requests are in progress.
        """
        self._begin()
        try:
            yield
        finally:
            self._end()

    def _begin(self) -> None:
        try:
            self._request_slots.acquire()
        except IndexError:
            raise self._refusal() from None
        # Check after acquiring: drain() sees this slot, or this request sees drain().
        if self._draining:
            self._end()
            raise self._refusal()

    def _refusal(self) -> ApiError:
        if self._draining:
            return ApiError(
                ErrorCode.SHUTTING_DOWN,
                "the server is shutting down",
                retry_after_s=1.0,
            )
        requests = plural(self._request_slots.maximum, "request is", "requests are")
        text = f"{requests} in progress on all models; try again later"
        return ApiError(ErrorCode.QUEUE_FULL, text, retry_after_s=0.5)

    def _end(self) -> None:
        self._request_slots.release()
        if self._draining:
            with self._idle:
                self._idle.notify_all()

    def drain(self, timeout: float) -> bool:
        """Reject new requests; return whether all others finished in time."""
        self.pairing.close()
        with self._idle:
            self._draining = True
            return self._idle.wait_for(lambda: self._request_slots.unused, timeout)

    def close(self) -> bool:
        """Unload every model; return whether all loads have ended.

        Trials and battery checks in progress end, too.
        """
        self.updates.close()
        if self.quarantine is not None:
            self.quarantine.close()
        self.power.close()
        if self._watch is not None:
            self._watch.close()
        self.engine.close()
        if self.traffic.close_log is not None:
            self.traffic.close_log()
        return self.updates.wait(CLOSE_S)

    # Descriptions

    def server_metadata(self) -> dict[str, Any]:
        """Return name, version, extensions, and why power is low."""
        metadata: dict[str, Any] = {
            "name": self.config.server_name,
            "version": __version__,
            "extensions": list(EXTENSIONS),
        }
        if self.power.low:
            metadata["low_power"] = self.power.describe()
        return metadata

    def model_names(self) -> list[str]:
        """Every model of the folder."""
        self._follow_changes()
        return list(self.repository.models())

    def statuses(self, *, rescan: bool = False) -> list[ModelStatus]:
        """Return all versions; an unnamed one for a model without any."""
        if rescan:
            self._read_folder()
        else:
            self._follow_changes()
        return [
            status
            for entry in self.repository.models().values()
            for status in self.model_statuses(entry)
        ]

    def model_statuses(self, entry: ModelEntry) -> list[ModelStatus]:
        """The versions of one model."""
        if not entry.versions:
            return [
                ModelStatus(
                    entry.name,
                    "",
                    State.FAILED,
                    False,
                    entry.problem or "the model has no versions",
                )
            ]
        return [self._status(entry, version) for version in entry.versions.values()]

    def status(self, name: str, version: str | None) -> ModelStatus:
        """Return the status of one version.

        Raises:
            ApiError: MODEL_NOT_FOUND or VERSION_NOT_FOUND.
        """
        entry, version_entry = self._resolve(name, version)
        if is_default(entry, version):
            version_entry = entry.versions[self.default_of(entry)]
        return self._status(entry, version_entry)

    def default_of(self, entry: ModelEntry) -> str:
        """Return the version for requests that name none.

        No version is loaded for the answer.
        """
        if not self.repository.has_default(entry.name):
            for candidate in entry.candidates:
                if self._status(entry, entry.versions[candidate]).ready:
                    return candidate
        return entry.default_version

    def note(self, entry: ModelEntry, version: str) -> str:
        """Return why newer files or versions are not served yet, if so."""
        if version in entry.versions:
            reason = self._status(entry, entry.versions[version]).reason
            if reason.startswith(SERVES_ON):
                return reason
        if version != entry.default_version:
            return ""
        reasons = []
        for name in better_than_default(entry):
            status = self._status(entry, entry.versions[name])
            reasons.append(f"version {status.version}: {status.reason}")
        return "; ".join(reasons)

    @contextmanager
    def running(
        self, name: str, version: str | None, options: RequestOptions | None = None
    ) -> Iterator[tuple[ModelEntry, ModelHandle]]:
        """Hold a loaded version for a description.

        Raises:
            ApiError: why it cannot be loaded.
        """
        self._resolve(name, version)
        options = options or self.request_options({})
        with self.in_flight():
            entry, handle = self.updates.acquire(
                name, version, options.deadline, options.cancellation
            )
            try:
                yield entry, handle
            finally:
                self.engine.release(handle)

    def entry(self, name: str) -> ModelEntry:
        """A model of the folder.

        Raises:
            ApiError: MODEL_NOT_FOUND.
        """
        self._follow_changes(name)
        return self.repository.model(name)

    # Repository control

    def release(self, name: str) -> None:
        """Forget the trials of a model's files, so that they are retried.

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
            raise ApiError(
                ErrorCode.MODEL_FAILED, f"failed to load {name!r}: {error}"
            ) from None

    def load(self, name: str, *, rescan: bool = True) -> None:
        """Reload a model's files and its preferred version.

        Other loaded versions are reloaded, too.

        Args:
            rescan: look through the folder first; a server that has just started knows it.

        Raises:
            ApiError: MODEL_NOT_FOUND, MODEL_FAILED, RUNTIME_MISSING or MEMORY_BUDGET, with "failed to load".
        """
        with self.updates.paused(name):
            if rescan:
                self._read_folder()
            try:
                entry, _ = self._resolve(name, None)
            except ApiError as error:
                if "failed to load" in error.message:
                    raise
                detail = f"failed to load {name!r}: {error.message}"
                raise ApiError(error.code, detail) from None
            with self.in_flight():
                self._load(entry)
        self._note(entry)

    def _read_folder(self) -> None:
        """Read the models folder now, without a second read for old changes."""
        if self._watch is not None:
            self._watch.read_now()
        else:
            self._rescan()

    def _rescan(self) -> None:
        """Read the models folder; changed models reload on the next request."""
        look_again()
        self.repository.refresh(self.engine.loaded_models())
        self.engine.note_changes(self.repository.models())
        self.engine.stop_new_versions(self.repository.models())
        self.updates.start_all()

    def _load(self, entry: ModelEntry) -> None:
        default = self._load_preferred(entry)
        for version in entry.versions.values():
            if version.name == default:
                continue
            if self.engine.state(entry.name, version.name) is State.READY:
                self.engine.load(entry, version, self._deadline())
            else:
                self.engine.reset(entry.name, version.name)
        for name in self.engine.versions_of(entry.name):
            if name not in entry.versions:  # came meanwhile, or is gone
                self.engine.reset(entry.name, name)

    def _load_preferred(self, entry: ModelEntry) -> str:
        """Load the preferred version and return its name.

        If none has answered by default yet, load the best that works.
        """
        fault: ApiError | None = None
        for candidate in entry.candidates:
            try:
                self.engine.load(entry, entry.versions[candidate], self._deadline())
            except ApiError as error:
                if self.repository.has_default(entry.name):
                    raise
                fault = fault or error
                continue
            self.repository.set_default(entry.name, candidate)
            return candidate
        assert fault is not None
        raise fault

    def unload(self, name: str) -> None:
        """Stop serving a model; ignore unknown names, as Triton does."""
        with self.updates.paused(name):
            entry = self.repository.models().get(name)
            versions = list(entry.versions) if entry is not None else []
            # Include versions whose files are gone.
            for version in dict.fromkeys([*versions, *self.engine.versions_of(name)]):
                self.engine.unload(name, version, self._deadline())
        if entry is not None:
            self._note(entry)

    def _note(self, entry: ModelEntry) -> None:
        """Persist whether the model is unloaded.

        Concurrent load/unload calls may finish in either order.
        """
        if self._unloaded_models is None:
            return
        with self._noting:
            if all(
                self.engine.state(entry.name, version) is State.STOPPED
                for version in entry.versions
            ):
                self._unloaded_models.add(entry.name)
            else:
                self._unloaded_models.discard(entry.name)

    def remember(self, unloaded_models: UnloadedModels) -> None:
        """Restore unloaded models of a killed server, and track further changes.

        Called before requests are accepted.
        """
        for name in sorted(unloaded_models.names):
            log.warning(
                "%s stays unloaded, as before the last server was killed, until it is loaded again",
                name,
            )
            self.unload(name)
        self._unloaded_models = unloaded_models

    def follow_folder(self) -> None:
        """Follow changes of the models folder from now on."""
        self._watch = self.repository.watch(self._rescan)
        self._watch.start()

    def _follow_changes(self, model: str | None = None) -> None:
        if self._watch is not None:
            self._watch.catch_up(model)

    # Inference

    def open_call(self, model: str, version: str | None) -> VersionRecord:
        """Admit a call before its body is decoded, and look up its version.

        Create an :class:`InferenceCall` with the record and submit it, or call
        :meth:`abandon_call`.

        Raises:
            ApiError: MODEL_NOT_FOUND, VERSION_NOT_FOUND or MODEL_FAILED; SHUTTING_DOWN;
                QUEUE_FULL if too many requests are in progress.
        """
        if self._watch is not None and self._watch.has_changes():
            self._watch.catch_up(model)
        record = self._find(model, version)
        try:
            self._begin()
        except ApiError as error:
            record.statistics.record_failure(0, error.code)
            raise
        return record

    def model_of(
        self,
        record: VersionRecord,
        name: str,
        version: str | None,
        options: RequestOptions,
    ) -> LoadedModel:
        """Return the model of an opened call, loading it if necessary.

        Raises:
            ApiError: why it cannot be loaded.
        """
        handle = self.engine.acquire_loaded(record)
        if handle is None:
            _, handle = self.updates.acquire(
                name, version, options.deadline, options.cancellation
            )
        try:
            return handle.model
        finally:
            self.engine.release(handle)

    def abandon_call(self) -> None:
        """Release an opened call whose request turned out to be invalid."""
        self._end()

    def submit(self, call: InferenceCall, done: Done) -> Job | None:
        """Run a call. Every request to a model passes here, and is counted once.

        This does not wait for a busy model: the call is added to the model's queue, and
        a thread of the same transport runs it later, see ``call.execute``.

        Args:
            done: takes the result or an exception, perhaps before this returns.

        Returns:
            A job for the calling thread; None if the call waits or has ended.
        """
        call.done = done
        watch = self._watch
        if call.record is None and watch is not None and watch.has_changes():
            return functools.partial(self._follow_and_start, call)
        return self._start(call)

    def _follow_and_start(self, call: InferenceCall) -> Job | None:
        try:
            self._follow_changes(call.model)
        except ApiError as error:
            call.done(error)
            return None
        return self._start(call)

    def _start(self, call: InferenceCall) -> Job | None:
        record = call.record
        if record is not None:
            call.release = self._release  # open_call() has acquired a slot
        else:
            try:
                record = self._find(call.model, call.version)
            except Exception as error:
                call.done(error)
                return None
        call.statistics = record.statistics
        try:
            if call.options.rank > DEFAULT_PRIORITY and self.power.low:
                self.engine.check_power()
                self.power.refuse_background()
            if call.release is None:
                self._begin()
        except ApiError as error:
            call.end(error)
            return None
        call.release = self._release
        call.renew = self._renew
        handle = self.engine.acquire_loaded(record)
        if handle is None:
            return functools.partial(self._load_and_start, call)
        if isinstance(call.payload, DECODED):
            return functools.partial(call.start, handle, self.decode_budget)
        return call.start(handle, self.decode_budget)

    def _load_and_start(self, call: InferenceCall) -> Job | None:
        try:
            options = call.options
            _, handle = self.updates.acquire(
                call.model, call.version, options.deadline, options.cancellation
            )
        except BaseException as error:
            call.end(error)
            return None
        # Another version may answer in place of one that can't be loaded.
        version = handle.model.version.name
        call.statistics = self.engine.statistics(call.model, version)
        # Loading the model is not part of the request's time.
        call.started_ns = time.perf_counter_ns()
        return call.start(handle, self.decode_budget)

    def _renew(self, call: InferenceCall) -> Job | None:
        """Return a job that starts a call on the version that new sequences use.

        Returns:
            None if the call holds that version already.
        """
        record = self._find(call.model, call.version)
        handle = call.handle
        assert handle is not None
        if record.running is handle and not handle.retired:
            return None
        call.leave_sequence(failed=True)
        call.handle = None
        self.engine.release(handle)
        return functools.partial(self._load_and_start, call)

    def _release(self, call: InferenceCall) -> None:
        try:
            if call.handle is not None:
                self.engine.release(call.handle)
        finally:
            self._end()

    def _find(self, name: str, version: str | None) -> VersionRecord:
        """Return the engine's record of a version; see :meth:`_resolve`."""
        models, targets = self._targets
        if models is not self.repository.index:
            models, targets = self._targets = self.repository.index, {}
        record = targets.get((name, version))
        if record is None:
            entry, version_entry = self._resolve(name, version)
            record = self.engine.record(entry.name, version_entry.name)
            # Cache no other spellings, such as 0001: a client could send endlessly many.
            if version in (
                None,
                version_entry.name,
            ):
                targets[name, version] = record
        return record

    def _resolve(
        self, name: str, version: str | None
    ) -> tuple[ModelEntry, VersionEntry]:
        self._follow_changes(name)
        entry = self.repository.model(name)
        if not entry.versions:
            raise ApiError(
                ErrorCode.MODEL_FAILED, f"failed to load {name!r}: {entry.problem}"
            )
        return entry, self.repository.version(entry, version)

    def _status(self, entry: ModelEntry, version: VersionEntry) -> ModelStatus:
        name = version.name
        state = self.engine.state(entry.name, name)
        is_loaded = self.engine.running(entry.name, name) is not None
        fault = self.engine.failure(entry.name, name) or version.problem
        fault = fault or entry.problem
        is_withheld = name in entry.withheld and name != entry.default_version
        if fault is None and is_withheld:
            reason = entry.withheld[name]
            return ModelStatus(entry.name, name, State.FAILED, False, reason)
        if fault is None and state is State.ON_DEMAND:
            fault = self._known_fault(entry, version)
            if fault:
                state = State.FAILED
        if version.problem is not None and not is_loaded:
            state = State.FAILED
        # A version that is being reloaded serves on.
        ready = is_loaded or state in (State.READY, State.ON_DEMAND)
        reason = self._reason(entry, version, state, fault)
        return ModelStatus(entry.name, name, state, ready, reason)

    def _known_fault(self, entry: ModelEntry, version: VersionEntry) -> str | None:
        """Return why a version that was never loaded cannot be, if known."""
        return (
            missing_framework(version.format)
            or self._refusal_reason(entry, version)
            or file_fault(version)
        )

    def _reason(
        self, entry: ModelEntry, version: VersionEntry, state: State, fault: str | None
    ) -> str:
        """Return a sentence for listings; empty if up to date."""
        running = self.engine.running(entry.name, version.name)
        if running is not None and (fault is not None or running.outdated):
            return f"{SERVES_ON}{fault or self._delayed(version, LOADS_ANEW, entry)}"
        if state is not State.STOPPED and self._is_pending(entry, version):
            return self._pending_reason(entry, version, fault)
        if fault is not None:
            return fault
        return STATE_REASONS.get(state, "")

    def _is_pending(self, entry: ModelEntry, version: VersionEntry) -> bool:
        if not self.repository.has_default(entry.name):
            return False
        return version.name in better_than_default(entry)

    def _pending_reason(
        self, entry: ModelEntry, version: VersionEntry, fault: str | None
    ) -> str:
        former = f"version {entry.default_version} is the default version"
        if fault is not None:
            return f"{fault}; {former}"
        loading = self._delayed(version, "it is being loaded", entry)
        return f"{PENDING}{loading}; {former} until then"

    def _delayed(self, version: VersionEntry, text: str, entry: ModelEntry) -> str:
        delay = self.updates.delay_of(entry.name, version.name)
        return f"{text} ({delay})" if delay else text

    def _refusal_reason(self, entry: ModelEntry, version: VersionEntry) -> str | None:
        quarantined = None
        if self.quarantine is not None:
            quarantined = self.quarantine.known_reason(entry, version)
        return self.trust.known_reason(entry, version) or quarantined

    def _deadline(self) -> float:
        """Return the latest deadline that the settings allow."""
        return time.monotonic() + self.config.request_timeout


def _engine_options(config: Config, replica: Replica | None) -> EngineOptions:
    return EngineOptions(
        memory_budget=config.memory_budget,
        keep_alive=config.keep_alive,
        threads=config.threads,
        queue_limit=config.queue_limit,
        max_image_pixels=config.max_image_pixels,
        batching=config.batching,
        max_batch=config.max_batch,
        is_alone=_is_alone(config, replica),
    )


def _is_alone(config: Config, replica: Replica | None) -> Callable[[], bool]:
    """Return a check for whether sequences reach this process whole."""
    if not config.sequences:
        return lambda: False
    return always if replica is None else replica.is_alone


def _open_quarantine(config: Config, state_dir: Path) -> Quarantine | None:
    limits = TrialLimits(config.trial_timeout, config.trial_memory)
    return Quarantine(state_dir, limits) if config.quarantine else None
