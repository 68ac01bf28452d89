"""The models of one folder, as last scanned, and how names and versions are looked up."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Collection
from itertools import islice
from pathlib import Path

from pocketserve.messages import listed
from pocketserve.repository.scan import ModelEntry, Models, VersionEntry, plain_number, scan
from pocketserve_wire import ApiError, ErrorCode

MAX_COMPARED = 200
"""Names that a mistyped one is compared with, so that mistakes stay cheap in a large folder."""

READ_AGAIN = " (POST /v2/repository/index reads the folder again)"
"""The way out for those who have just changed the folder; the command line has it in its own words."""

MAX_LISTED = 8
"""Names in one error."""

SCAN_WAIT_S = 60.0
"""A hundred thousand files take a desktop's core eight seconds."""

log = logging.getLogger(__name__)


class Repository:
    """An index of a models folder. A model is read when it is first asked for, so that a start waits for none but
    those that it needs; looking up touches no file otherwise. :meth:`refresh` reads the whole folder again.

    Args:
        root: the models folder.

    Raises:
        OSError: the folder cannot be read.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()  # a trial works in a folder of its own, where a path from here leads nowhere
        self._models = Models(self._root)
        self._scanning = threading.Lock()
        self._scans_begun = 0

    def refresh(self, loaded: Collection[str] = ()) -> None:
        """Scan the folder anew; the new index replaces the old one at once and whole.

        Calls that come while a scan is under way share the next one: a scan that has begun may miss what they know of.

        Args:
            loaded: models that stay as they were, with the problem added, where their manifest cannot be read any more.

        Raises:
            ApiError: QUEUE_FULL, the scans in front of this one take too long.
        """
        begun = self._scans_begun
        if not self._scanning.acquire(timeout=SCAN_WAIT_S):
            raise ApiError(ErrorCode.QUEUE_FULL, "the models folder is still being read; try again", retry_after_s=1)
        try:
            if self._scans_begun == begun:
                self._scans_begun += 1
                models = scan(self._root)
                for name in loaded:
                    _keep(models, self._models.get(name))
                self._models = models
        finally:
            self._scanning.release()

    def models(self) -> Models:
        """All models by name."""
        return self._models

    def model(self, name: str) -> ModelEntry:
        """One model.

        Raises:
            ApiError: MODEL_NOT_FOUND.
        """
        entry = self._models.get(name)
        if entry is None:
            text = f"Request for unknown model: {name[:128]!r} is not found"
            raise ApiError(ErrorCode.MODEL_NOT_FOUND, f"{text}; {self._way_out(name)}")
        return entry

    def _way_out(self, name: str) -> str:
        """The model that may be meant, or those that there are."""
        near = _near(name, self._models)
        if near is not None:
            return f"did you mean {near!r}?{READ_AGAIN}"
        first = list(islice(self._models, MAX_LISTED + 1))  # not all: counting them would read every model
        if not first:
            return f"the models folder is empty{READ_AGAIN}"
        there = listed(first[:MAX_LISTED], MAX_LISTED) + (" and more" if len(first) > MAX_LISTED else "")
        return f"there {'is' if len(first) == 1 else 'are'} {there}{READ_AGAIN}"

    @staticmethod
    def version(entry: ModelEntry, version: str | None) -> VersionEntry:
        """One version of a model; None, empty or "0" (OpenVINO clients) mean the default one.

        Raises:
            ApiError: VERSION_NOT_FOUND.
        """
        wanted = version or entry.default_version
        found = entry.versions.get(wanted)
        if found is None:
            found = entry.versions.get(plain_number(wanted))
        if found is None and version == "0":
            found = entry.versions.get(entry.default_version)
        if found is None:
            raise ApiError(
                ErrorCode.VERSION_NOT_FOUND,
                f"Request for unknown model: {entry.name!r} version {wanted[:128]!r} is not found; "
                f"it has {listed(entry.versions, MAX_LISTED)}",
            )
        return found


def _near(name: str, models: Models) -> str | None:
    """The model that is called most like it; only those with such names are read."""
    from difflib import get_close_matches  # late: only those who mistype need it

    close = get_close_matches(name[:64], models.names[:MAX_COMPARED])
    return next((other for other in close if other in models), None)


def _keep(models: Models, old: ModelEntry | None) -> None:
    """Have a model that serves stay in the index as it was, if all that is new of it is a problem."""
    fresh = models.get(old.name) if old is not None else None
    if old is None or fresh is None or fresh.versions or not old.versions:
        return
    if fresh.problem != old.problem:
        log.warning("%s serves on as it was loaded: %s", old.name, fresh.problem)
    models.put(dataclasses.replace(old, problem=fresh.problem))
