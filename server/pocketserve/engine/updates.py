"""Choice of the default version.

New and changed versions are loaded in the background first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from pocketserve.engine.engine import Engine
from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.repository.quiet import unrest
from pocketserve.repository.repository import Repository
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve_wire import ApiError, ErrorCode

MAX_REST_S = 5.0
"""Seconds that a request waits for unfinished files, if no older version can answer."""

MAX_CANDIDATES = 8  # versions that one request tries, the best first
# Between failed loads whose cause may pass.
FIRST_RETRY_S, LAST_RETRY_S = (
    1.0,
    60.0,
)
SEQUENCE_LOOK_S = 0.5  # how often a change that waits for open sequences is checked
MIN_PAUSE_S = 0.02  # between two steps, so that no fault makes the thread spin

_FALL_BACK = frozenset(
    {
        ErrorCode.MODEL_FAILED,
        ErrorCode.RUNTIME_MISSING,
        ErrorCode.MODEL_NOT_READY,
        ErrorCode.MEMORY_BUDGET,
    }
)
"""Errors of one version that another version of the model may not have."""

Resolve = Callable[[str, str | None], tuple[ModelEntry, VersionEntry]]

log = logging.getLogger(__name__)


class _Pending(NamedTuple):
    """The next version of a model to load, or to make the default one."""

    entry: ModelEntry
    version: VersionEntry
    is_reload: bool  # it is loaded, and its files have changed


class Updates:
    """Loads new and changed versions while the former ones serve.

    Each model with a change has a thread.

    Args:
        resolve: returns a model and version of the current folder, or raises ApiError.
        longest_wait: seconds that a load in the background may wait for memory and for
            trials of other files.
    """

    def __init__(
        self,
        repository: Repository,
        engine: Engine,
        resolve: Resolve,
        longest_wait: float,
    ) -> None:
        self._repository, self._engine, self._resolve = repository, engine, resolve
        self._longest_wait = longest_wait
        self._changed = threading.Condition()  # guards all below
        self._is_closed = False
        self._active: set[str] = set()  # models with a thread
        # Those that may have changed since their thread's last check.
        self._signalled: set[str] = set()
        self._paused: Counter[str] = Counter()  # by model, the open `paused` blocks
        # By model and version: the reason for postponing its load.
        self._delays: dict[tuple[str, str], str] = {}

    def acquire(
        self,
        name: str,
        version: str | None,
        deadline: float,
        cancellation: Cancellation | None = None,
    ) -> tuple[ModelEntry, ModelHandle]:
        """Acquire a version, loading it if necessary.

        Without a version, the best one that can be loaded is acquired.

        Raises:
            ApiError: the version cannot be used; of several, the best one.
        """
        entry, selected = self._resolve(name, version)
        if not is_default(entry, version):
            handle = self._acquire(name, selected.name, deadline, cancellation)
            self.start(name)
            return entry, handle
        fault: ApiError | None = None
        is_running = self._engine.running(name, entry.default_version) is not None
        for candidate in _in_order(entry, is_running)[:MAX_CANDIDATES]:
            try:
                handle = self._acquire(name, candidate, deadline, cancellation)
            except ApiError as error:
                if error.code not in _FALL_BACK:
                    raise
                is_default_version = candidate == entry.default_version
                has_answered = is_default_version and self._repository.has_default(name)
                if has_answered and error.code.retryable:
                    raise  # an older version must not replace it for a temporary fault
                fault = fault or error
                continue
            self._repository.set_default(name, candidate)
            self.start(name)
            return self._repository.models().get(name) or entry, handle
        assert fault is not None
        raise fault

    def _acquire(
        self,
        name: str,
        version: str,
        deadline: float,
        cancellation: Cancellation | None,
    ) -> ModelHandle:
        """Acquire a version, loaded from files that are completely written."""
        latest = min(deadline, time.monotonic() + MAX_REST_S)
        while True:
            entry, selected = self._resolve_exactly(name, version)
            if self._engine.running(name, version) is not None:
                return self._engine.acquire(entry, selected, deadline, cancellation)
            left = unrest(entry, selected, is_urgent=True)
            if not left:
                try:
                    return self._engine.acquire(entry, selected, deadline, cancellation)
                except ApiError as error:
                    left = unrest(entry, selected, is_urgent=True)
                    if error.code is not ErrorCode.MODEL_NOT_READY or not left:
                        raise
            if time.monotonic() + left > latest:
                text = (
                    f"the files of {name!r} version {version!r} are being written; "
                    "try again when they are complete"
                )
                raise ApiError(ErrorCode.MODEL_NOT_READY, text, retry_after_s=1.0)
            if cancellation is not None:
                cancellation.check()
            self._pause(left + MIN_PAUSE_S)

    def _resolve_exactly(
        self, name: str, version: str
    ) -> tuple[ModelEntry, VersionEntry]:
        """Return a version by its own name, even if its number is no longer offered."""
        entry, _ = self._resolve(name, None)
        exact = entry.versions.get(version)
        return (entry, exact) if exact is not None else self._resolve(name, version)

    def _pause(self, seconds: float, name: str = "") -> None:
        """Wait until the server ends or a model may have changed."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or name in self._signalled, seconds
            )

    # In the background

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Load nothing of a model in the background during this block."""
        with self._changed:
            self._paused[name] += 1
        try:
            yield
        finally:
            with self._changed:
                self._paused[name] -= 1
                if not self._paused[name]:
                    del self._paused[name]
            self.start(name)

    def start_all(self) -> None:
        """Start loading the changes of all loaded models."""
        for name in sorted(self._engine.loaded_models()):
            self.start(name)

    def start(self, name: str) -> None:
        """Start loading the changes of a model, if any."""
        with self._changed:
            if name in self._active:
                self._signalled.add(name)
                self._changed.notify_all()
                return
            if self._is_closed or name in self._paused:
                return
            self._active.add(name)
        pending = self._find_step(name)
        if pending is None:
            return
        thread = threading.Thread(
            target=self._run,
            args=(name, pending),
            name="pocketserve-update",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError as error:  # the system has no threads left
            log.warning("the change of %s is ignored for now: %s", name, error)
            self._end(name)

    def close(self) -> None:
        """Start no more loads; those in progress go on."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def wait(self, seconds: float) -> bool:
        """Wait for loads in progress; return whether all have ended."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._active, seconds)

    def _run(self, name: str, first: _Pending) -> None:
        retry_s = FIRST_RETRY_S
        pending: _Pending | None = first
        while pending is not None:
            delay = self._try_to_take(pending)
            if delay is None:
                delay, retry_s = retry_s, min(2 * retry_s, LAST_RETRY_S)
            self._pause(max(delay, MIN_PAUSE_S), name if delay else "")
            try:
                self._resolve(name, None)  # reads the folder if it has changed
            except ApiError:
                with self._changed:
                    # A signal that came meanwhile may be its repair.
                    if name not in self._signalled:
                        self._end(name)
                        return
            pending = self._find_step(name)

    def _find_step(self, name: str) -> _Pending | None:
        """Return the next step of an active model. If there is none, end its activity.

        Compares files, so it must not hold the lock: it delays requests.
        """
        while True:
            with self._changed:
                self._signalled.discard(name)
            try:
                pending = self._next_step(name)
            except BaseException:
                self._end(name)
                raise
            with self._changed:
                is_over = self._is_closed or name in self._paused
                is_done = pending is None and name not in self._signalled
                if is_over or is_done:
                    self._end(name)
                    return None
            if pending is not None:
                return pending

    def _end(self, name: str) -> None:
        with self._changed:
            self._active.discard(name)
            self._changed.notify_all()

    def _try_to_take(self, pending: _Pending) -> float | None:
        """Take a step; return the seconds until the next, None after a temporary failure."""
        key = (pending.entry.name, pending.version.name)
        try:
            return self._take(pending)
        except ApiError as error:
            self._delays[key] = error.message
            return None if error.code.retryable else 0.0
        except Exception:  # no runtime foresaw it; the engine has it on record
            log.exception("%s/%s could not be loaded in the background", *key)
            return None

    def _next_step(self, name: str) -> _Pending | None:
        entry = self._repository.models().get(name)
        if entry is None or not entry.versions:
            return None
        for outdated in self._engine.outdated_versions(entry):
            return _Pending(entry, outdated, True)
        if not self._repository.has_default(name):
            return None
        is_in_use = self._engine.running(name, entry.default_version) is not None
        for candidate in better_than_default(entry):
            version = entry.versions[candidate]
            is_loaded = self._engine.running(name, candidate) is not None
            if is_loaded or (is_in_use and self._engine.can_be_tried(entry, version)):
                return _Pending(entry, version, False)
        return None

    def _take(self, pending: _Pending) -> float:
        """Load a version, or make a loaded one the default.

        Return the seconds to wait before a retry, 0 if it is done.

        Raises:
            ApiError: the version cannot be loaded.
        """
        entry, version, is_reload = pending
        key = (entry.name, version.name)
        left = unrest(entry, version)
        if left:
            self._delays[key] = "its files are being written"
            return left + MIN_PAUSE_S
        former = version.name if is_reload else entry.default_version
        if self._engine.open_sequences(entry.name, former):
            self._delays[key] = "sequences are open"
            return SEQUENCE_LOOK_S
        self._delays.pop(key, None)
        if is_reload or self._engine.running(*key) is None:
            deadline = time.monotonic() + self._longest_wait
            replaces = None if is_reload else former
            self._engine.load(
                entry, version, deadline, replaces=replaces, in_background=True
            )
            # The next step compares the files once more before requests get it.
            return 0.0
        self._repository.set_default(*key)
        if self._engine.open_sequences(entry.name, former):
            # One began since the check above. Its steps need the former version.
            self._repository.set_default(entry.name, former)
            return SEQUENCE_LOOK_S
        self._engine.trim(*key)
        log.info("%s: version %s answers by default now, after %s", *key, former)
        return 0.0

    # For listings

    def delay_of(self, name: str, version: str) -> str:
        """Return why a load in the background is delayed; empty if it is not."""
        return self._delays.get((name, version), "")


def is_default(entry: ModelEntry, version: str | None) -> bool:
    """Return whether a request names no version."""
    return not version or (version == "0" and version not in entry.versions)


def better_than_default(entry: ModelEntry) -> tuple[str, ...]:
    """Return the versions to replace the default one, best first."""
    if entry.default_version not in entry.candidates:
        return entry.candidates
    return entry.candidates[: entry.candidates.index(entry.default_version)]


def _in_order(entry: ModelEntry, is_running: bool) -> list[str]:
    """Return all possible default versions, the current one first.

    One that its owner has withdrawn comes last, unless it is loaded.
    """
    if not is_running and entry.default_version not in entry.candidates:
        return [*entry.candidates, entry.default_version]
    return list(dict.fromkeys((entry.default_version, *entry.candidates)))
