"""The process that looks at the models folder: ``python -m pocketserve.doctor.scan_models MODELS STATE``.

It prints what it finds as it goes, so that an end by force loses only the rest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pocketserve.repository.scan import ModelEntry, VersionEntry

MARK = "pocketserve-doctor:"


def main(models_dir: Path, state_dir: Path) -> None:
    """Print one JSON document a line, each after the mark."""
    from pocketserve.repository.scan import scan

    try:
        entries = scan(models_dir)
    except OSError as error:
        _say(folder_error=error.strerror)
        return
    _say(models=[_describe(entry) for entry in entries.values()])
    for document in _quarantined(entries.values(), state_dir):
        _say(**document)


def _say(**document: Any) -> None:
    print(f"\n{MARK}{json.dumps(document)}", flush=True)


def _describe(entry: ModelEntry) -> dict[str, Any]:
    from pocketserve.repository.manifest import FILE_NAME
    from pocketserve.runtimes.registry import missing_framework

    problems = [v.problem for v in entry.versions.values() if v.problem is not None]
    if entry.problem is not None:
        problems.insert(0, entry.problem)
    missing = [missing_framework(v.format) for v in entry.versions.values() if v.problem is None]
    return {
        "name": entry.name,
        "file": str(entry.folder / FILE_NAME),
        "problems": problems,
        "missing": [reason for reason in missing if reason is not None],
        "usable": entry.problem is None and None in missing,
    }


def _quarantined(entries: Any, state_dir: Path) -> Iterator[dict[str, Any]]:
    """The files with a bad verdict. Only files of the kinds that have one are read."""
    from pocketserve.quarantine.quarantine import Quarantine, TrialLimits
    from pocketserve.quarantine.verdicts import VerdictStore
    from pocketserve.runtimes.base import ModelLoadError

    store = VerdictStore(state_dir / "verdicts.json")
    bad = store.rejections()
    if not bad:
        return
    yield {"held": len(bad)}
    kinds = {key.partition(":")[0] for key in bad}
    quarantine = Quarantine(state_dir, TrialLimits())
    versions: list[tuple[ModelEntry, VersionEntry]] = [(e, v) for e in entries for v in e.versions.values()]
    for entry, version in versions:
        if version.format.name in kinds and version.problem is None:
            try:
                key = quarantine.key(entry, version)
            except ModelLoadError:
                continue
            if key in bad:
                yield {"name": entry.name, "version": version.name, "reason": bad[key].reason}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
