"""The models folder, looked at in a process of its own: reading manifests takes NumPy, which may be broken."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, ok, problem, warning
from pocketserve.doctor.scan_models import MARK
from pocketserve.doctor.settings import Settings
from pocketserve.doctor.token import is_shared
from pocketserve.messages import plural

LIMIT_S = 10.0
MAX_LISTED = 20


def check_models(device: Device, settings: Settings, limit: float = LIMIT_S) -> Iterator[Finding]:
    """The folder, each model's faults, and the files in quarantine."""
    config = settings.config
    if config is None:
        return
    folder = config.models_dir
    command = ["-m", "pocketserve.doctor.scan_models", str(folder), str(config.state_dir)]
    outcome = device.run_python(command, limit)
    answers = [json.loads(line.removeprefix(MARK)) for line in outcome.output.splitlines() if line.startswith(MARK)]
    if answers and "folder_error" in answers[0]:
        fix = f"mkdir -p {folder}" if not folder.exists() else f"chmod u+rx {folder}"
        yield problem("models", f"the models folder {folder} cannot be read: {answers[0]['folder_error']}", fix)
        return
    if not answers:
        why = f"did not end within {limit:g} s" if outcome.timed_out else "failed; the packages above may be why"
        yield warning("models", f"looking at the models folder {folder} {why}", f"ls -l {folder}")
        return
    yield from _models(device, settings, answers[0]["models"])
    yield from _quarantine(answers[1:], settings, complete=outcome.code == 0)


def _models(device: Device, settings: Settings, models: list[Mapping[str, Any]]) -> Iterator[Finding]:
    assert settings.config is not None
    folder = settings.config.models_dir
    if not models:
        yield warning("models", f"the models folder {folder} is empty", f"cp MODEL.tflite {folder}/")
        return
    faulty = [finding for model in models for finding in _faults(model)]
    yield from faulty[:MAX_LISTED]
    if is_shared(device, folder):
        fix = f"cp -r {folder} ~/models && pocketserve serve ~/models"
        yield warning("models", f"other apps can change the models in {folder}, so model.py files are refused", fix)
    usable = sum(model["usable"] for model in models)
    yield ok("models", f"{usable} of {plural(len(models), 'model')} in {folder} can be served")


def _faults(model: Mapping[str, Any]) -> Iterator[Finding]:
    if model["problems"]:
        for text in model["problems"]:
            yield problem("models", f"{model['name']} has a fault: {text}", f"edit {model['file']}")
    elif not model["usable"] and model["missing"]:
        what, _, how = model["missing"][0].partition(": ")
        yield problem("models", f"{model['name']} cannot be served: {what}", how)


def _quarantine(answers: list[Mapping[str, Any]], settings: Settings, *, complete: bool) -> Iterator[Finding]:
    assert settings.config is not None
    held = next((answer["held"] for answer in answers if "held" in answer), 0)
    named = [answer for answer in answers if "name" in answer]
    for answer in named[:MAX_LISTED]:
        sentence = f"{answer['name']} ({answer['version']}) is in quarantine: {answer['reason']}"
        yield problem("quarantine", sentence, f"pocketserve inspect --release {answer['name']}")
    if not named and held and not complete:
        fix = "pocketserve models"
        yield warning(
            "quarantine",
            f"{plural(held, 'file is', 'files are')} in quarantine; there was no time to find out which",
            fix,
        )
    elif not named:
        yield ok("quarantine", "no file of the models folder is in quarantine")
