"""The models of a folder, by name and version."""

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

MAX_COMPARED = 200  # names compared with a mistyped one, so that this stays cheap

MAX_LISTED = 8  # names in one error
SCAN_WAIT_S = 60.0  # a hundred thousand files take 8 s on a desktop's core

log = logging.getLogger(__name__)


class Repository:
    """An index of a models folder, read on demand.

    :meth:`refresh` reads the whole folder again; :meth:`watch` detects when to do so.

    Args:
        root: the folder, or the path of one model, see
            :func:`~pocketserve.repository.scan.locate`.
    """

    def __init__(self, root: Path) -> None:
        # Absolute, because a trial has another working folder.
        self._root, self._only = locate(root.absolute())
        self.index = Models(self._root, self._only)
        self._scanning = threading.Lock()
        self._scans = 0
        self._defaults: dict[str, str] = {}
        """The version that has answered requests without a version, by model."""
        # Guards the defaults, and the replacement of the index.
        self._publishing = threading.Lock()

    def refresh(self, loaded: Collection[str] = ()) -> None:
        """Scan the folder, and replace the index atomically.

        Concurrent calls share the next scan, because a running scan may miss changes.
        A loaded model whose manifest became unreadable stays unchanged, with the
        problem added.

        Raises:
            ApiError: QUEUE_FULL, earlier scans take too long.
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
                self._scan(loaded)
        finally:
            self._scanning.release()

    def _scan(self, loaded: Collection[str]) -> None:
        models = scan(self._root, self._only)
        for name in loaded:
            _keep(models, self.index.get(name))
        with self._publishing:
            for name, version in list(self._defaults.items()):
                if not _set_default(models, name, version):
                    del self._defaults[name]
            self.index = models

    def set_default(self, name: str, version: str) -> None:
        """Make a version a model's default while it exists."""
        with self._publishing:
            if self._defaults.get(name) == version:
                return
            models = self.index.copy()  # a new object, as callers cache by index
            if _set_default(models, name, version):
                self._defaults[name] = version
                self.index = models

    def has_default(self, name: str) -> bool:
        """Return whether an existing version has answered as the default."""
        return name in self._defaults

    def watch(self, read: Callable[[], None]) -> FolderWatch:
        """Watch the folder, and call ``read`` after changes."""
        watch = FolderWatch(self._root, self._only, read)
        # A new index, for changes before the watch.
        self.index = Models(self._root, self._only)
        return watch

    def models(self) -> Models:
        """Return all models by name."""
        return self.index

    def model(self, name: str) -> ModelEntry:
        """Return a model."""
        entry = self.index.get(name)
        if entry is None:
            text = (
                f"Request for unknown model: {name[:128]!r} is not found; "
                f"{self.way_out(name)}"
            )
            raise ApiError(ErrorCode.MODEL_NOT_FOUND, text)
        return entry

    def way_out(self, name: str) -> str:
        """Suggest a similar model, or list some models."""
        from difflib import get_close_matches  # late, because typos are rare

        for close in get_close_matches(name[:64], self.index.names[:MAX_COMPARED]):
            if close in self.index:
                return f"did you mean {close!r}?"
        # Not all models: counting them would read each one.
        first = list(islice(self.index, MAX_LISTED + 1))
        if not first:
            return "the models folder is empty"
        if len(first) == 1:
            return f"there is {listed(first, MAX_LISTED)}"
        names = listed(first[:MAX_LISTED], MAX_LISTED)
        if len(first) > MAX_LISTED:
            names += " and more"
        return f"there are {names}"

    @staticmethod
    def version(entry: ModelEntry, version: str | None) -> VersionEntry:
        """Return a version of a model.

        None, "" and "0" (OpenVINO clients) mean the default version.
        """
        name = version or entry.default_version
        entries = entry.versions
        other = entry.default_version if version == "0" else plain_number(name)
        variant = entries.get(name) or entries.get(other)
        text = f"Request for unknown model: {entry.name!r} version {name[:128]!r}"
        if variant is None:
            available = [each for each in entries if each not in entry.withheld]
            names = listed(available, MAX_LISTED)
            raise ApiError(
                ErrorCode.VERSION_NOT_FOUND,
                f"{text} is not found; it has {names}",
            )
        if variant.name in entry.withheld and variant.name != entry.default_version:
            raise ApiError(
                ErrorCode.VERSION_NOT_FOUND,
                f"{text} is not served: {entry.withheld[variant.name]}",
            )
        return variant


def _keep(models: Models, old: ModelEntry | None) -> None:
    """Keep a loaded model unchanged if it only has a new problem."""
    if old is None or not old.versions:
        return
    fresh = models.get(old.name)
    if fresh is None or fresh.versions:
        return
    if fresh.problem != old.problem:
        log.warning("%s %s%s", old.name, SERVES_ON, fresh.problem)
    models.replace(old._replace(problem=fresh.problem))


def _set_default(models: Models, name: str, version: str) -> bool:
    """Make a version a model's default, unless it is gone."""
    entry = models.get(name)
    if entry is None:
        return False
    if not entry.versions:
        return True  # its manifest is invalid for now
    if version not in entry.versions:
        return False
    if entry.default_version != version:
        models.replace(entry._replace(default_version=version))
    return True
