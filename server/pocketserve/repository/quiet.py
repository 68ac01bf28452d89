"""Check that a version's files are no longer being written."""

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
"""Files that are copied together follow each other faster than this."""


def loading_stamp(entry: ModelEntry, version: VersionEntry) -> Stamp:
    """Return the state of all files of a load."""
    return stamp(_files(entry, version))


def unrest(
    entry: ModelEntry, version: VersionEntry, *, is_urgent: bool = False
) -> float:
    """Return the seconds until a version's files are quiet.

    Args:
        is_urgent: a client waits, so a single file need not be quiet: it is complete
            when its writer closes it.
    """
    files = _files(entry, version)
    if is_urgent and len(files) < 2:
        return 0.0
    times = list(_change_times(files, entry, version))
    # Times in the future are ignored: after the clock was set back they would block.
    now = time.time()
    ages = [now - changed for changed in times if changed <= now]
    return max(0.0, QUIET_S - min(ages, default=QUIET_S))


def _files(entry: ModelEntry, version: VersionEntry) -> list[Path]:
    try:
        files = [*version_files(version), *sidecar_files(entry, version)]
    except (ModelLoadError, OSError):
        files = [version.path]  # loading it will report the error
    if _has_own_folder(entry):
        for path in (entry.folder / FILE_NAME, entry.folder / TRITON_CONFIG):
            if path.is_file():
                files.append(path)
    return list(dict.fromkeys(files))


def _change_times(
    files: list[Path], entry: ModelEntry, version: VersionEntry
) -> Iterator[float]:
    """Yield the change times of files and of their folder."""
    for path in files:
        try:
            yield path.stat().st_ctime
        except OSError:
            continue
    folder = base_of(version)
    # A shared folder also changes with other models.
    if version.path.is_dir() or _has_own_folder(entry):
        try:
            # Not its st_ctime: the folder may have been moved here as a whole.
            yield folder.stat().st_mtime
        except OSError:
            return


def _has_own_folder(entry: ModelEntry) -> bool:
    return entry.folder.name == entry.name
