"""The models folder, looked at in a process of its own: reading manifests takes NumPy, which may be broken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, problem, warning
from pocketserve.doctor.token import is_shared
from pocketserve.messages import plural

if TYPE_CHECKING:
    from pocketserve.config import Config

MAX_LISTED = 20


def check_models(device: Device, config: Config, limit: float) -> Iterator[Finding]:
    """Check the folder, each model's faults, and the files in quarantine."""
    folder = config.models_dir
    command = ["-m", "pocketserve.doctor.scan_models", str(folder), str(config.state_dir)]
    outcome, answers = device.run_reporting(command, limit)
    if answers and "folder_error" in answers[0]:
        fix = f"mkdir -p {folder}" if not folder.exists() else f"chmod u+rx {folder}"
        yield problem("models", f"the models folder {folder} cannot be read: {answers[0]['folder_error']}", fix)
    elif answers:
        yield from _models(device, folder, answers[0]["models"])
        yield from _quarantine(answers[1:], complete=outcome.code == 0)
    else:
        reason = f"did not end within {limit:g} s" if outcome.timed_out else "failed; the packages above may be why"
        yield warning("models", f"looking at the models folder {folder} {reason}", f"ls -l {folder}")


def _models(device: Device, folder: Path, models: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    if not models:
        yield warning("models", f"the models folder {folder} is empty", f"cp MODEL.tflite {folder}/")
        return
    yield from [finding for model in models for finding in _faults(model)][:MAX_LISTED]
    if is_shared(device, folder):
        fix = f"cp -r {folder} ~/models && pocketserve serve ~/models"
        yield warning("models", f"other apps can change the models in {folder}, so model.py files are refused", fix)
    usable = sum(model["usable"] for model in models)
    yield ok("models", f"{usable} of {plural(len(models), 'model')} in {folder} can be served")


def _faults(model: Mapping[str, Any]) -> Iterator[Finding]:
    for text in model["problems"]:
        yield problem("models", f"{model['name']} has a fault: {text}", f"edit {model['file']}")
    if not model["problems"] and not model["usable"] and model["missing"]:
        reason, _, fix = model["missing"][0].partition(": ")
        yield problem("models", f"{model['name']} cannot be served: {reason}", fix)


def _quarantine(answers: Sequence[Mapping[str, Any]], *, complete: bool) -> Iterator[Finding]:
    count = next((answer["quarantined"] for answer in answers if "quarantined" in answer), 0)
    files = [answer for answer in answers if "name" in answer]
    for file in files[:MAX_LISTED]:
        sentence = f"{file['name']} ({file['version']}) is in quarantine: {file['reason']}"
        yield problem("quarantine", sentence, f"pocketserve inspect --release {file['name']}")
    if not files and count and not complete:
        text = f"{plural(count, 'file is', 'files are')} in quarantine; there was no time to find out which"
        yield warning("quarantine", text, "pocketserve models")
    elif not files:
        yield ok("quarantine", "no file of the models folder is in quarantine")
