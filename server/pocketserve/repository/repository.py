"""The models of one folder, as last scanned, and how names and versions are looked up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from itertools import islice
from pathlib import Path

from pocketserve.messages import SERVES_ON, listed
from pocketserve.repository.folder_watch import FolderWatch
from pocketserve.repository.scan import (
    ModelEntry,
    Models,
    VersionEntry,
    locate,
    plain_number,
    scan,
)
from pocketserve_wire import ApiError, ErrorCode

MAX_COMPARED = 200  # names that a mistyped one is compared with, so that mistakes stay cheap in a large folder

MAX_LISTED = 8  # names in one error
SCAN_WAIT_S = 60.0  # a hundred thousand files take a desktop's core eight seconds

log = logging.getLogger(__name__)


class Repository:
    """An index of a models folder, in which a model is read on first use and not again. :meth:`refresh` reads the
    whole folder again, :meth:`watch` tells when that is due.

    Args:
        root: the folder, or the path of one model, see :func:`~pocketserve.repository.scan.locate`.
    """

    def __init__(self, root: Path) -> None:
        # A trial works in a folder of its own, where a path from here leads nowhere.
        self._root, self._only = locate(root.absolute())
        self.index = Models(self._root, self._only)
        self._scanning = threading.Lock()
        self._scans = 0
        self._defaults: dict[
            str, str
        ] = {}  # by model, the version that has answered requests that name none
        self._publishing = (
            threading.Lock()
        )  # guards the defaults, and the index that is made with them

    def refresh(self, loaded: Collection[str] = ()) -> None:
        """Scan the folder anew; the new index replaces the old one at once and whole.

        Calls that come while a scan is under way share the next one: a scan that has begun may miss what they know of.

        Loaded models stay as they were, with the problem added, where their manifest cannot be read any more.

        Raises:
            ApiError: QUEUE_FULL, the scans in front of this one take too long.
        """
        scans = self._scans
        if not self._scanning.acquire(timeout=SCAN_WAIT_S):
            raise ApiError(
                ErrorCode.QUEUE_FULL,
                "the models folder is still being read; try again",
                retry_after_s=1,
            )
        try:
            if self._scans == scans:
                self._scans += 1
                models = scan(self._root, self._only)
                for name in loaded:
                    _keep(models, self.index.get(name))
                with self._publishing:
                    for name, version in list(self._defaults.items()):
                        if not _set_default(models, name, version):
                            del self._defaults[name]
                    self.index = models
        finally:
            self._scanning.release()

    def set_default(self, name: str, version: str) -> None:
        """Have a version answer requests that name none until it is gone or another one is set."""
        with self._publishing:
            if self._defaults.get(name) == version:
                return
            models = self.index.copy()  # callers that cache by index notice the change
            if _set_default(models, name, version):
                self._defaults[name] = version
                self.index = models

    def has_default(self, name: str) -> bool:
        """Return whether a version of the model has answered by default, and is still there."""
        return name in self._defaults

    def watch(self, read: Callable[[], None]) -> FolderWatch:
        """Return a watch that has a function read the folder when it has changed since this call."""
        watch = FolderWatch(self._root, self._only, read)
        self.index = Models(
            self._root, self._only
        )  # what changed before it was watched
        return watch

    def models(self) -> Models:
        """Return all models by name."""
        return self.index

    def model(self, name: str) -> ModelEntry:
        """Return a model."""
        entry = self.index.get(name)
        if entry is None:
            text = f"Request for unknown model: {name[:128]!r} is not found; {self.way_out(name)}"
            raise ApiError(ErrorCode.MODEL_NOT_FOUND, text)
        return entry

    def way_out(self, name: str) -> str:
        """Return the model that may be meant, or those that there are; only models with such names are read."""
        from difflib import get_close_matches  # late: only those who mistype need it

        for close in get_close_matches(name[:64], self.index.names[:MAX_COMPARED]):
            if close in self.index:
                return f"did you mean {close!r}?"
        first = list(
            islice(self.index, MAX_LISTED + 1)
        )  # not all: counting them would read every model
        if not first:
            return "the models folder is empty"
        names = listed(first[:MAX_LISTED], MAX_LISTED) + (
            " and more" if len(first) > MAX_LISTED else ""
        )
        return f"there {'is' if len(first) == 1 else 'are'} {names}"

    @staticmethod
    def version(entry: ModelEntry, version: str | None) -> VersionEntry:
        """Return a version of a model; None, empty or "0" (OpenVINO clients) mean the default one."""
        name = version or entry.default_version
        entries, other = (
            entry.versions,
            entry.default_version if version == "0" else None,
        )
        variant = entries.get(name) or entries.get(other or plain_number(name))
        text = f"Request for unknown model: {entry.name!r} version {name[:128]!r}"
        if variant is None:
            available = [each for each in entries if each not in entry.withheld]
            raise ApiError(
                ErrorCode.VERSION_NOT_FOUND,
                f"{text} is not found; it has {listed(available, MAX_LISTED)}",
            )
        if variant.name in entry.withheld and variant.name != entry.default_version:
            raise ApiError(
                ErrorCode.VERSION_NOT_FOUND,
                f"{text} is not offered: {entry.withheld[variant.name]}",
            )
        return variant


def _keep(models: Models, old: ModelEntry | None) -> None:
    """Leave a model that serves in the index as it was, if all that is new of it is a problem."""
    fresh = models.get(old.name) if old is not None else None
    if old is None or fresh is None or fresh.versions or not old.versions:
        return
    if fresh.problem != old.problem:
        log.warning("%s %s%s", old.name, SERVES_ON, fresh.problem)
    models.replace(old._replace(problem=fresh.problem))


def _set_default(models: Models, name: str, version: str) -> bool:
    """Make a version of a model the default one; return False if it is gone."""
    entry = models.get(name)
    if entry is None:
        return False
    if not entry.versions:
        return True  # its manifest is broken for now
    if version not in entry.versions:
        return False
    if entry.default_version != version:
        models.replace(entry._replace(default_version=version))
    return True
