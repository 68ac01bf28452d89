"""What a version is made from: compared at a rescan, it tells whether what is loaded is still what lies there."""

from __future__ import annotations

import dataclasses

from pocketserve.repository.files import stamp, version_files
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.repository.side_files import side_files
from pocketserve.runtimes.base import ModelLoadError


def made_from(entry: ModelEntry, version: VersionEntry) -> object:
    """Return what changes with a version's files, the files beside it, or what its manifest says of it.

    No content is read, but for what an ONNX file names. Two results are equal as long as nothing has changed. What a
    manifest says of other versions, and to people only, is left out.
    """
    said = dataclasses.replace(entry.manifest, description="", license="", versions={}, default_version=None)
    try:
        return version, said, stamp(version_files(version)), stamp(side_files(entry, version))
    except (ModelLoadError, OSError):
        return version, said
