"""Step 1: convert every model, and record refusals."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.evidence.results import write_json
from benchmarks.evidence.subjects import ROOT, Route, Subject

TIMEOUT_S = 3600.0


class Folders:
    """The folders of a run.

    Args:
        folder: of the run.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.models = self.folder / "models"
        self.data = self.folder / "data"
        self.samples = self.folder / "samples"
        self.phone = self.folder / "phone"
        self.raw = self.folder / "raw"

    def environment(self) -> dict[str, str]:
        """Return the environment variables of every command."""
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(
                str(ROOT / name) for name in ("server", "client", "lab")
            ),
            "POCKETSERVE_STATE_DIR": str(self.folder / "state"),
            "POCKETSERVE_CONVERTERS": os.environ.get("POCKETSERVE_CONVERTERS")
            or str(ROOT / ".converters"),
            "POCKETSERVE_TFJS_MODULES": os.environ.get("POCKETSERVE_TFJS_MODULES")
            or str(Path(sys.prefix) / "tfjs"),
        }


def run_command(
    folders: Folders, words: Sequence[str], timeout: float = TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    """Run a ``pocketserve`` command in the environment of this run."""
    command = [sys.executable, "-m", "pocketserve", *words]
    # Not a pipe, which would lose the end of a stopped writer's output.
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        done = subprocess.run(
            command,
            env=folders.environment(),
            cwd=ROOT,
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
            timeout=timeout,
            check=False,
        )
        output.seek(0)
        return subprocess.CompletedProcess(
            command, done.returncode, output.read(), done.stderr
        )


def make_models(
    folders: Folders,
    subjects: Sequence[Subject],
    target: Path,
    say: Callable[[str], None],
) -> None:
    """Make missing versions; ``target`` gets each outcome."""
    outcomes = json.loads(target.read_text("utf-8")) if target.exists() else {}
    for subject in subjects:
        if not (folders.models / subject.name).exists():
            for folder in (folders.samples / subject.name, folders.data / subject.name):
                shutil.rmtree(folder, ignore_errors=True)
            subject.lay_out(
                folders.models / subject.name,
                folders.data,
                folders.samples / subject.name,
            )
            outcomes[subject.name] = {}
        known = outcomes.setdefault(subject.name, {})
        for route in subject.routes():
            if route.version not in known:
                known[route.version] = outcome = convert(folders, subject, route)
                say(
                    f"{subject.name} {route.version}: {outcome.get('refusal') or outcome['tools']}"
                )
                write_json(target, outcomes)
        trust(folders, subject.name)


def convert(folders: Folders, subject: Subject, route: Route) -> dict[str, Any]:
    """Make a version; return its outcome for the page."""
    words = [
        "convert",
        subject.name,
        "--models-dir",
        str(folders.models),
        "--to",
        route.kind,
        "--version",
        route.source,
    ]
    words += ["--quantize", route.quantize, "--name", route.version, "--json"]
    words += ["--samples", str(folders.samples / subject.name)]
    done = run_command(folders, words)
    facts: dict[str, Any] = {
        "from": route.source,
        "kind": route.kind,
        "quantize": route.quantize,
    }
    if done.returncode:
        return {**facts, "refusal": _without_folders(_last_line(done.stderr), folders)}
    version = json.loads(done.stdout)["versions"][0]
    agreement: Mapping[str, Any] = version["agreement"] or {}
    return {
        **facts,
        "tools": ", ".join(version["tools"]),
        "difference": agreement.get("error"),
        "same_class": agreement.get("same_class"),
    }


def trust(folders: Folders, name: str) -> None:
    """Trust the code of a model that was made here."""
    run_command(folders, ["trust", name, "--models-dir", str(folders.models), "--yes"])


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    if lines:
        return lines[-1].removeprefix("pocketserve: ")
    return "it ended without a word"


def _without_folders(text: str, folders: Folders) -> str:
    for folder in (folders.samples, folders.models, folders.folder, ROOT, Path.home()):
        text = text.replace(f"{folder}/", "")
    return text
