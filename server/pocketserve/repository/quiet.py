"""Checks that a version's files are no longer being written, so that the files that are read belong together."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from pocketserve.repository.files import Stamp, base_of, stamp, version_files
from pocketserve.repository.manifest import FILE_NAME
from pocketserve.repository.scan import TRITON_CONFIG, ModelEntry, VersionEntry
from pocketserve.repository.sidecar_files import sidecar_files
from pocketserve.runtimes.base import ModelLoadError

QUIET_S = 0.5
"""Files that are copied one after the other follow each other faster than this."""


def loading_stamp(entry: ModelEntry, version: VersionEntry) -> Stamp:
    """Return the state of all files that a load of the version depends on, its manifest among them."""
    return stamp(_files(entry, version))


def unrest(
    entry: ModelEntry, version: VersionEntry, *, is_urgent: bool = False
) -> float:
    """Return the seconds until the files of a version have been unchanged for QUIET_S; 0 if they have been.

    Args:
        is_urgent: a client waits, so a single file need not rest: it is complete when its writer closes it.
    """
    files = _files(entry, version)
    if is_urgent and len(files) < 2:
        return 0.0
    times = list(_change_times(files, entry, version))
    # Also times in the future: a clock that was set back must not hold a model up.
    ages = [age for age in (time.time() - changed for changed in times) if age >= 0]
    return max(0.0, QUIET_S - min(ages, default=QUIET_S))


def _files(entry: ModelEntry, version: VersionEntry) -> list[Path]:
    try:
        files = [*version_files(version), *sidecar_files(entry, version)]
    except (ModelLoadError, OSError):
        files = [version.path]  # loading it says why
    if _has_own_folder(entry):
        files += [
            path
            for path in (entry.folder / FILE_NAME, entry.folder / TRITON_CONFIG)
            if path.is_file()
        ]
    return list(dict.fromkeys(files))


def _change_times(
    files: list[Path], entry: ModelEntry, version: VersionEntry
) -> Iterator[float]:
    """Yield when each file was last written, moved or linked; and when one was added to or removed from its folder."""
    for path in files:
        try:
            yield path.stat().st_ctime
        except OSError:
            continue
    folder = base_of(version)
    # A folder that holds other models, too, says nothing of this one.
    if version.path.is_dir() or _has_own_folder(entry):
        try:
            yield folder.stat().st_mtime  # not the time of its own change: a folder may be moved here as a whole
        except OSError:
            return


def _has_own_folder(entry: ModelEntry) -> bool:
    return entry.folder.name == entry.name
