"""Detect changes in the models folder cheaply.

Linux queues an event before the call that made the change returns (inotify(7)), so a
later request sees it. A written file counts when its writer closes it. A request waits
only for changes of its own model. Without requests, a thread that waits for events
reads the folder.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import select
import struct
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pocketserve_wire import ApiError

MAX_FOLDERS = 4096
"""Limit of watched folders; Android allows a user 8,192."""

POLL_S = 1.0
"""Without inotify, a request reads the folder if the last reading is this old."""

SETTLE_S = 0.2
"""Seconds between an event and reading the folder, because changes come in bursts."""

CLOSE_S = 5.0  # limit of waiting for the thread's end
READING_SHARE = 4  # the thread pauses for this multiple of the last reading's duration

WAIT_S = 60.0
"""Limit of waiting for another reading; a hundred thousand files take 8 s."""

MAX_NAMES = 1 << 16
"""Limit of recorded names; beyond that, any model may have changed."""

_ATTRIBUTES, _CLOSED, _CREATED, _DELETED = 0x4, 0x8, 0x100, 0x200  # linux/inotify.h
_MOVED_FROM, _MOVED_TO, _SELF_DELETED, _SELF_MOVED = 0x40, 0x80, 0x400, 0x800
_ONLY_FOLDERS = 0x01000000
_OVERFLOW = 0x4000
_EVENT_HEAD = struct.Struct("=iIII")
"""Watch descriptor, mask, cookie, and length of the name that follows."""
_EVENTS = (
    _ATTRIBUTES
    | _CLOSED
    | _CREATED
    | _DELETED
    | _MOVED_FROM
    | _MOVED_TO
    | _SELF_DELETED
    | _SELF_MOVED
)
_MAX_EVENT_BYTES = 1 << 16

log = logging.getLogger(__name__)


class FolderWatch:
    """Watches a models folder, and has changes read.

    Args:
        root: the folder.
        only: the only model to watch, see
            :func:`~pocketserve.repository.scan.locate`; None for all.
        read: reads the folder again.
    """

    def __init__(self, root: Path, only: Path | None, read: Callable[[], None]) -> None:
        self._root = root
        self._only = only
        self._read = read
        self._reading = threading.Lock()
        self._reading_s = 0.0  # duration of the last reading
        self._is_behind = False  # during a reading, and while the root is missing
        self._read_at = time.monotonic()
        self._events = threading.Lock()  # guards the following attributes
        self._tops: dict[int, str] = {}
        """The root's entry that contains a watched folder, by watch descriptor."""
        self._unread = _Changes()
        self._has_unread = False
        self._being_read = _Changes()
        self._descriptor = _open_inotify()
        self._add_folders()
        self._closing = threading.Event()
        self._wake: tuple[int, int] | None = None  # a pipe that wakes the thread
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start a thread that reads changes between requests."""
        if self._descriptor < 0 or self._thread is not None:
            return
        self._wake = os.pipe2(os.O_CLOEXEC)
        thread = threading.Thread(
            target=self._follow, name="pocketserve-folder", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:  # no threads left; requests detect changes
            log.warning(
                "changes of the models folder are found by requests only: %s", error
            )
            return
        self._thread = thread

    def has_changes(self) -> bool:
        """Return whether there may be unread changes."""
        descriptor = self._descriptor
        if descriptor < 0:
            return time.monotonic() - self._read_at >= POLL_S
        length = bytearray(4)  # writable, so that ioctl fills it in place
        try:
            fcntl.ioctl(descriptor, termios.FIONREAD, length)
        except OSError:  # closed by another thread, as the server stops
            return False
        # The order matters: events are taken off the queue after the flag is set.
        return any(length) or self._is_behind or self._has_unread

    def catch_up(self, model: str | None = None) -> None:
        """Read the folder if it has changed before this call.

        Args:
            model: the only model that matters to the caller. Changes of other models
                are read by another thread, without waiting.
        """
        if not self.has_changes():
            return
        if model is not None and not self._may_have_changed(model):
            self._read_in_background()
        elif self._reading.acquire(timeout=WAIT_S):
            self._read_changes()

    def _may_have_changed(self, model: str) -> bool:
        if self._descriptor < 0:
            return True
        self._take_events()
        with self._events:
            return self._unread.concern(model) or self._being_read.concern(model)

    def _read_in_background(self) -> None:
        """Start a thread that reads the changes, unless one is reading."""
        if not self._reading.acquire(blocking=False):
            return
        try:
            threading.Thread(
                target=self._run_in_background, name="pocketserve-folder", daemon=True
            ).start()
        except RuntimeError:  # no threads left: the next request tries again
            self._reading.release()

    def _run_in_background(self) -> None:
        with contextlib.suppress(ApiError):  # the next request tries again
            self._read_changes()

    def _read_changes(self) -> None:
        """Read changes, and release the lock, which is held."""
        try:
            if self.has_changes():
                self._begin_reading()
                is_watched = self._add_folders()
                self._is_behind = not (is_watched and self._read_safely())
        finally:
            self._end_reading()

    def read_now(self) -> None:
        """Read the folder now; earlier events are then obsolete.

        Raises the exceptions of the reading function.
        """
        # A hanging reading must not block this one.
        if not self._reading.acquire(timeout=WAIT_S):
            self._read()
            return
        try:
            self._read_at = time.monotonic()
            self._begin_reading()
            is_watched = self._add_folders()
            self._read()
            self._is_behind = not is_watched
        finally:
            self._end_reading()

    def close(self) -> None:
        """Stop the thread, and close the descriptor."""
        self._closing.set()
        if self._wake is not None:
            os.close(self._wake[1])
        if self._thread is not None:
            self._thread.join(CLOSE_S)
            # It reads a large folder; the descriptors end with the process.
            if self._thread.is_alive():
                return
        if self._wake is not None:
            os.close(self._wake[0])
            self._wake = None
        with self._events:  # no other thread reads from the descriptor
            descriptor = self._descriptor
            self._descriptor = -1
        if descriptor >= 0:
            os.close(descriptor)

    def _begin_reading(self) -> None:
        """Empty the event queue, because reading finds all changes."""
        self._is_behind = True
        self._take_events()
        with self._events:
            self._being_read.merge(self._unread)
            self._unread = _Changes()
            self._has_unread = False

    def _end_reading(self) -> None:
        # After a failed reading the changes are still unread.
        if not self._is_behind:
            with self._events:
                self._being_read = _Changes()
        self._reading.release()

    def _follow(self) -> None:
        """Read the folder after each burst of events."""
        assert self._wake is not None
        events = select.poll()
        events.register(self._descriptor, select.POLLIN)
        events.register(self._wake[0], select.POLLIN)
        while not self._closing.is_set():
            events.poll()
            pause = max(SETTLE_S, READING_SHARE * self._reading_s)
            if self._closing.wait(pause):
                return
            try:
                self.catch_up()
            except ApiError as error:
                log.warning("%s", error.message)

    def _read_safely(self) -> bool:
        began = self._read_at = time.monotonic()
        try:
            self._read()
            self._reading_s = time.monotonic() - began
        except OSError as error:
            log.warning(
                "the models folder cannot be read, and is served unchanged: %s",
                error.strerror,
            )
            return False
        except ApiError:
            raise
        except Exception:  # one odd file must not make all models unavailable
            log.exception("the models folder is served unchanged")
        return True

    def _take_events(self) -> None:
        """Empty the event queue, and record the changed entries."""
        with self._events:
            self._has_unread = True  # before the queue is empty, see has_changes
            try:
                while self._descriptor >= 0:
                    events = os.read(self._descriptor, _MAX_EVENT_BYTES)
                    self._note(events)
            except BlockingIOError:
                pass
            self._has_unread = not self._unread.is_empty

    def _note(self, events: bytes) -> None:
        at = 0
        while at < len(events):
            watch, mask, _, length = _EVENT_HEAD.unpack_from(events, at)
            at += _EVENT_HEAD.size
            end = at + length
            name = events[at:end].rstrip(b"\0")
            at = end
            top = self._tops.get(watch)
            if top is None or mask & _OVERFLOW:
                self._unread.is_everything = True
            else:
                self._unread.add(top or os.fsdecode(name))

    def _add_folders(self) -> bool:
        """Watch every folder again; return whether the root exists."""
        if self._descriptor < 0:
            return True
        add = _libc().inotify_add_watch
        root = str(self._root)
        tops: dict[int, str] = {}
        for number, folder in enumerate(self._folders()):
            if number == MAX_FOLDERS:
                _warn_of_unwatched(number)
                break
            watch = add(self._descriptor, os.fsencode(folder), _EVENTS | _ONLY_FOLDERS)
            if watch >= 0:
                below = folder.removeprefix(root).strip("/")
                tops[watch] = below.partition("/")[0]
            elif ctypes.get_errno() in (errno.ENOSPC, errno.ENOMEM):
                _warn_of_unwatched(number)
                break
        with self._events:
            self._tops = tops
        return self._root.is_dir()

    def _folders(self) -> Iterator[str]:
        if self._only is not None:
            yield str(self._root)
        for folder, inner, _ in os.walk(self._only or self._root):
            inner[:] = [name for name in inner if not name.startswith(".")]
            yield folder


class _Changes:
    """Entries of the models folder that have changed."""

    def __init__(self) -> None:
        self.is_everything = False
        self._names: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """Return whether nothing has changed."""
        return not (self.is_everything or self._names)

    def add(self, name: str) -> None:
        """Add an entry; an empty name is the folder itself."""
        if not name or len(self._names) >= MAX_NAMES:
            self.is_everything = True
        else:
            self._names.add(name)

    def merge(self, other: _Changes) -> None:
        """Add the changes of another collection."""
        self.is_everything = self.is_everything or other.is_everything
        self._names |= other._names

    def concern(self, model: str) -> bool:
        """Return whether a model's entry has changed."""
        if self.is_everything:
            return True
        if model in self._names:
            return True
        file_start = f"{model}."
        return any(name.startswith(file_start) for name in self._names)


def _warn_of_unwatched(number: int) -> None:
    log.warning(
        "only %d folders of models are watched; `pocketserve reload` reads the others",
        number,
    )


def _open_inotify() -> int:
    if not sys.platform.startswith(("linux", "android")):
        return -1
    descriptor: int = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        log.warning(
            "the models folder is not watched (%s); it is read once a second",
            os.strerror(ctypes.get_errno()),
        )
    return descriptor


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
