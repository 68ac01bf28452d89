"""Notices changes in the models folder. Nothing runs while nobody asks, and a question is one system call.

Linux queues an event before the call that made the change returns (inotify(7)), so whoever asks after a change hears of
it. A file that is written counts when its writer closes it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import logging
import os
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pocketserve_wire import ApiError

MAX_FOLDERS = 4096
"""Folders that are watched; Android allows a user 8,192."""

POLL_S = 1.0
"""Where the system has no inotify, the folder is read again by a request that comes so long after the last reading."""

WAIT_S = 60.0  # for a reading that another thread has begun; a hundred thousand files take eight seconds

_ATTRIBUTES, _CLOSED, _CREATED, _DELETED = 0x4, 0x8, 0x100, 0x200  # linux/inotify.h
_MOVED_FROM, _MOVED_TO, _SELF_DELETED, _SELF_MOVED = 0x40, 0x80, 0x400, 0x800
_ONLY_FOLDERS = 0x01000000
_EVENTS = _ATTRIBUTES | _CLOSED | _CREATED | _DELETED | _MOVED_FROM | _MOVED_TO | _SELF_DELETED | _SELF_MOVED
_MAX_EVENT_BYTES = 1 << 16

log = logging.getLogger(__name__)


class FolderWatch:
    """Watches a models folder, and has a function read it after a change.

    Args:
        root: the folder.
        only: the one model in it that counts, see :func:`~pocketserve.repository.scan.locate`; None for all.
        read: reads the folder again.
    """

    def __init__(self, root: Path, only: Path | None, read: Callable[[], None]) -> None:
        self._root, self._only, self._read = root, only, read
        self._reading = threading.Lock()
        self._is_behind = False  # while it is read, and after that as long as the root is gone
        self._read_at = time.monotonic()
        self._descriptor = _open_inotify()
        self._add_folders()

    def has_changes(self) -> bool:
        """Return whether something may have changed that was not read yet."""
        if self._descriptor < 0:
            return time.monotonic() - self._read_at >= POLL_S
        length = bytearray(4)  # not bytes, which fcntl tries to write to first, and makes a text of the fault
        fcntl.ioctl(self._descriptor, termios.FIONREAD, length)
        # In this order: an event that is taken off the queue in between was preceded by the mark.
        return any(length) or self._is_behind

    def catch_up(self) -> None:
        """Have the folder read if it has changed; what was changed before the call is read when it returns."""
        if not self.has_changes() or not self._reading.acquire(timeout=WAIT_S):
            return
        try:
            if self.has_changes():
                self._is_behind = True
                self._forget_events()
                self._is_behind = not self._add_folders() or not self._read_safely()
        finally:
            self._reading.release()

    def read_now(self) -> None:
        """Have the folder read, whatever was seen of it; what was seen before the call is no change any more.

        Raises what reading raises.
        """
        if not self._reading.acquire(timeout=WAIT_S):  # what holds it up must not hold up who asks for a reading
            self._read()
            return
        try:
            self._is_behind, self._read_at = True, time.monotonic()
            self._forget_events()
            is_watched = self._add_folders()
            self._read()
            self._is_behind = not is_watched
        finally:
            self._reading.release()

    def close(self) -> None:
        """Give the descriptor back."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def _read_safely(self) -> bool:
        self._read_at = time.monotonic()
        try:
            self._read()
        except OSError as error:
            log.warning("the models folder cannot be read, and is served as it was: %s", error.strerror)
            return False
        except ApiError:
            raise
        except Exception:  # one odd file must not cost the requests to all models
            log.exception("the models folder is served as it was")
        return True

    def _forget_events(self) -> None:
        """Take the events off the queue: what has changed is found by reading."""
        try:
            while self._descriptor >= 0 and os.read(self._descriptor, _MAX_EVENT_BYTES):
                pass
        except BlockingIOError:
            pass

    def _add_folders(self) -> bool:
        """Watch every folder, also those that are watched already; return whether the root could be."""
        if self._descriptor < 0:
            return True
        add = _libc().inotify_add_watch
        for number, folder in enumerate(self._folders()):
            if number == MAX_FOLDERS or (
                add(self._descriptor, os.fsencode(folder), _EVENTS | _ONLY_FOLDERS) < 0
                and ctypes.get_errno() in (errno.ENOSPC, errno.ENOMEM)
            ):
                log.warning("only %d folders of models are watched; `pocketserve reload` reads the others", number)
                break
        return self._root.is_dir()

    def _folders(self) -> Iterator[str]:
        if self._only is not None:
            yield str(self._root)
        for folder, inner, _ in os.walk(self._only or self._root):
            inner[:] = [name for name in inner if not name.startswith(".")]
            yield folder


def _open_inotify() -> int:
    if not sys.platform.startswith(("linux", "android")):
        return -1
    descriptor: int = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        log.warning("the models folder is not watched (%s); it is read once a second", os.strerror(ctypes.get_errno()))
    return descriptor


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
