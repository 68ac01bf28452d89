"""The process that looks at the models folder: ``python -m pocketserve.doctor.scan_models MODELS STATE``.

It reports as it goes, so that an end by force loses only the rest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.doctor.device import MARK

if TYPE_CHECKING:
    from pocketserve.repository.scan import ModelEntry, Models


def main(models_dir: Path, state_dir: Path) -> None:
    """Print one JSON document a line, each after the mark."""
    from pocketserve.repository.scan import scan

    try:
        models = scan(models_dir)
    except OSError as error:
        _report(folder_error=error.strerror)
        return
    _report(models=[_summary(entry) for entry in models.values()])
    for document in _quarantined(models, state_dir):
        _report(**document)


def _report(**document: Any) -> None:
    print(f"\n{MARK}{json.dumps(document)}", flush=True)


def _summary(entry: ModelEntry) -> dict[str, Any]:
    from pocketserve.repository.manifest import FILE_NAME
    from pocketserve.runtimes.registry import missing_framework

    problems = [problem for problem in (entry.problem, *(v.problem for v in entry.versions.values())) if problem]
    missing = [missing_framework(v.format) for v in entry.versions.values() if v.problem is None]
    return {
        "name": entry.name,
        "file": str(entry.folder / FILE_NAME),
        "problems": problems,
        "missing": [reason for reason in missing if reason is not None],
        "usable": entry.problem is None and None in missing,
    }


def _quarantined(models: Models, state_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the files with a bad verdict. Only files of the kinds that have one are read."""
    from pocketserve.quarantine.quarantine import Quarantine, TrialLimits
    from pocketserve.quarantine.verdicts import VerdictStore
    from pocketserve.runtimes.base import ModelLoadError

    bad = VerdictStore(state_dir / "verdicts.json").rejections()
    if not bad:
        return
    yield {"quarantined": len(bad)}
    kinds = {key.partition(":")[0] for key in bad}
    quarantine = Quarantine(state_dir, TrialLimits())
    for entry in models.values():
        for version in entry.versions.values():
            if version.format.name in kinds and version.problem is None:
                try:
                    key = quarantine.key(entry, version)
                except ModelLoadError:
                    continue
                if key in bad:
                    yield {"name": entry.name, "version": version.name, "reason": bad[key].reason}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
