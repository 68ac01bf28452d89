"""Check models, quarantine, and the confinement of trials.

Another process reads the folder (``python -m pocketserve.doctor.models MODELS STATE``),
because reading manifests needs NumPy, which may be broken. It reports incrementally, so
that a timeout loses only the rest.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.doctor.device import MARK, Device
from pocketserve.doctor.finding import Finding, ok, problem, warning
from pocketserve.doctor.token import is_shared
from pocketserve.messages import plural
from pocketserve.state.run_lock import running_servers

if TYPE_CHECKING:
    from pocketserve.config import Config
    from pocketserve.repository.scan import ModelEntry, Models, VersionEntry

MAX_LISTED = 20
CARE = "only load files of people whom you trust"


def check_models(device: Device, config: Config, limit: float) -> Iterator[Finding]:
    """Check the folder, its models, and the quarantine."""
    folder = config.models_dir
    command = ["-m", "pocketserve.doctor.models", str(folder), str(config.state_dir)]
    outcome, answers = device.run_reporting(command, limit)
    if not answers:
        reason = "failed; the packages above may be why"
        if outcome.timed_out:
            reason = f"did not end within {limit:g} s"
        yield _unknown(folder, reason)
        return
    if "folder_error" in answers[0]:
        yield _unreadable(folder, answers[0]["folder_error"])
        return
    servers = running_servers(config.state_dir)
    is_served = any(run.models_dir == str(folder) for run in servers)
    yield from _models(device, folder, answers[0]["models"], is_served)
    yield from _quarantine(answers[1:], complete=outcome.code == 0)


def _unreadable(folder: Path, error: str) -> Finding:
    fix = f"mkdir -p {folder}" if not folder.exists() else f"chmod u+rx {folder}"
    sentence = f"the models folder {folder} cannot be read: {error}"
    return problem("models", sentence, fix)


def _unknown(folder: Path, reason: str) -> Finding:
    sentence = f"reading the models folder {folder} {reason}"
    return warning("models", sentence, f"ls -l {folder}")


def _models(
    device: Device, folder: Path, models: Sequence[Mapping[str, Any]], is_served: bool
) -> Iterator[Finding]:
    if not models:
        yield warning(
            "models",
            f"the models folder {folder} is empty",
            f"cp MODEL.tflite {folder}/",
        )
        return
    findings: list[Finding] = []
    for model in models:
        findings += _faults(model)
    yield from findings[:MAX_LISTED]
    if is_shared(device, folder):
        yield warning(
            "models",
            f"other apps can change the models in {folder}, "
            "so model.py files are refused",
            f"cp -r {folder} ~/models && pocketserve serve ~/models",
        )
    yield _summarize(folder, models, is_served)


def _summarize(
    folder: Path, models: Sequence[Mapping[str, Any]], is_served: bool
) -> Finding:
    usable = sum(model["usable"] for model in models)
    sentence = f"{usable} of {plural(len(models), 'model')} in {folder} can be served"
    if is_served and usable < len(models):
        text = (
            f"{sentence}; a model that the running server had loaded before its fault "
            "still answers"
        )
        return ok("models", text, "pocketserve models")
    return ok("models", sentence)


def _faults(model: Mapping[str, Any]) -> Iterator[Finding]:
    name = model["name"]
    for text in model["problems"]:
        sentence = f"{name} has a fault: {text}"
        yield problem("models", sentence, f"edit {model['file']}")
    if model["problems"] or model["usable"] or not model["missing"]:
        return
    reason, _, fix = model["missing"][0].partition(": ")
    yield problem("models", f"{name} cannot be served: {reason}", fix)


def _quarantine(
    answers: Sequence[Mapping[str, Any]], *, complete: bool
) -> Iterator[Finding]:
    count = 0
    files = []
    for answer in answers:
        count = answer.get("quarantined", count)
        if "name" in answer:
            files.append(answer)
    yield from map(_quarantined_file, files[:MAX_LISTED])
    if not files and count and not complete:
        noun = plural(count, "file is", "files are")
        text = f"{noun} in quarantine; there was no time to find out which"
        yield warning("quarantine", text, "pocketserve models")
    elif not files:
        yield ok("quarantine", "no file of the models folder is in quarantine")


def _quarantined_file(file: Mapping[str, Any]) -> Finding:
    name = file["name"]
    return problem(
        "quarantine",
        f"{name} ({file['version']}) is in quarantine: {file['reason']}",
        f"pocketserve inspect --release {shlex.quote(name)}",
    )


def check_trials(device: Device, limit: float) -> Iterator[Finding]:
    """Confine a process like a trial, and check it."""
    outcome, _ = device.run_reporting(
        ["-m", "pocketserve.quarantine.sandbox", "--probe"], limit
    )
    try:
        probe = json.loads(outcome.output)
    except ValueError:
        yield warning(
            "trials",
            "whether trials are confined is not known: the checking process failed",
            CARE,
        )
        return
    if probe["confined"]:
        yield ok("trials", f"trials of unseen files are confined: {probe['sentence']}")
    else:
        yield warning(
            "trials",
            f"trials of unseen files are not confined: {probe['sentence']}",
            CARE,
        )


def main(models_dir: Path, state_dir: Path) -> None:
    """Print one JSON document per line, each after the mark."""
    from pocketserve.repository.scan import locate, scan

    try:
        models = scan(*locate(models_dir))
    except OSError as error:
        _report(folder_error=error.strerror)
        return
    _report(models=list(map(_summary, models.values())))
    for document in _quarantined(models, state_dir):
        _report(**document)


def _report(**document: Any) -> None:
    print(f"\n{MARK}{json.dumps(document)}", flush=True)


def _summary(entry: ModelEntry) -> dict[str, Any]:
    from pocketserve.repository.manifest import FILE_NAME
    from pocketserve.runtimes.registry import missing_framework

    problems = [] if entry.problem is None else [entry.problem]
    missing = []
    for version in entry.versions.values():
        if version.problem is None:
            missing.append(missing_framework(version.format))
        else:
            problems.append(version.problem)
    return {
        "name": entry.name,
        "file": str(entry.folder / FILE_NAME),
        "problems": problems,
        "missing": [reason for reason in missing if reason is not None],
        "usable": entry.problem is None and None in missing,
    }


def _quarantined(models: Models, state_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the models' quarantined files."""
    from pocketserve.quarantine.quarantine import Quarantine, TrialLimits
    from pocketserve.quarantine.verdicts import VerdictStore
    from pocketserve.runtimes.base import ModelLoadError

    verdicts = VerdictStore(state_dir / "verdicts.json")
    bad = verdicts.rejections()
    if not bad:
        return
    yield {"quarantined": len(bad)}
    formats = {key.partition(":")[0] for key in bad}
    quarantine = Quarantine(state_dir, TrialLimits())
    for entry, version in _usable_versions(models):
        if version.format.name not in formats:
            continue
        try:
            key = quarantine.key(entry, version)
        except ModelLoadError:
            continue
        if key not in bad:
            continue
        yield {
            "name": entry.name,
            "version": version.name,
            "reason": bad[key].reason,
        }


def _usable_versions(models: Models) -> Iterator[tuple[ModelEntry, VersionEntry]]:
    for entry in models.values():
        for version in entry.versions.values():
            if version.problem is None:
                yield entry, version


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
