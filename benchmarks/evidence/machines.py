"""Step 2: run ``pocketserve compare`` on several machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.evidence.conversions import TIMEOUT_S, Folders, run_command
from benchmarks.evidence.results import condense, write_json
from benchmarks.evidence.subjects import ROOT, Subject
from benchmarks.report import machine as describe_machine
from pocketserve.repository.manifest import FILE_NAME, read_manifest

DEVICE = "budget"
ARM_SECONDS = 2.0
"""Emulated times are not compared, so a few turns are enough."""

NOT_ON_PHONE = (
    "torchscript",
    "pt2",
    "executorch",
    "executorch-int8",
    "tfjs-fp16",
    "tfjs-dynamic",
    "tflite-int16x8",
)
"""Omitted there: each takes seconds to load on a desktop core, and a phone's has a quarter of its speed."""


class NotAvailable(Exception):
    """A machine that cannot be had here; the text says why."""


class Machine(NamedTuple):
    """A machine.

    Attributes:
        title: for people.
        emulated: whether its times are meaningless.
        choose: returns the versions to compare there, the reference first.
        run: runs one of our commands there.
    """

    name: str
    title: str
    emulated: bool
    choose: Callable[[Subject, Sequence[str]], list[str]]
    run: Callable[[Folders, Sequence[str]], subprocess.CompletedProcess[str]]


def _all(subject: Subject, versions: Sequence[str]) -> list[str]:
    return [
        next(iter(subject.bases)),
        *(version for version in versions if version != next(iter(subject.bases))),
    ]


def _for_phone(subject: Subject, versions: Sequence[str]) -> list[str]:
    excluded = {*list(subject.bases)[1:], *NOT_ON_PHONE}
    return [version for version in _all(subject, versions) if version not in excluded]


def _for_arm(subject: Subject, versions: Sequence[str]) -> list[str]:
    """Return the versions that ARM wheels run, TFLite's first."""
    runnable = [
        version
        for version in versions
        if version.partition("-")[0] in ("tflite", "onnx")
    ]
    return sorted(runnable, key=lambda version: (version != "tflite", version))


def _run_on_phone(
    folders: Folders, words: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    phone = ["simulate", "--device", DEVICE, "--folder", str(folders.phone), "--"]
    if words[0] == "compare":  # consent belongs to a device
        run_command(
            folders,
            [*phone, "trust", words[1], "--models-dir", str(folders.models), "--yes"],
        )
    return run_command(folders, [*phone, *words])


def _run_on_arm(
    folders: Folders, words: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    """Run in the Debian for arm64 that ``make test-arm64`` puts together."""
    sys.path.append(str(ROOT / "tools"))
    import arm64
    from android_toolchain import ToolchainError
    from debian_root import option_parser, ready_python

    options = option_parser("", arm64.FOLDER_VARIABLE, ".arm64").parse_args([])
    try:
        python = ready_python(
            options, arm64.__file__, f"aarch64 Python {arm64.PYTHON}", arm64.make_system
        )
    except ToolchainError as error:
        raise NotAvailable(str(error)) from None
    kept = {}
    for name, value in folders.environment().items():
        if not name.startswith("POCKETSERVE_"):
            kept[name] = value
    environment = {
        **kept,
        "POCKETSERVE_STATE_DIR": str(folders.folder / "arm64-state"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    environment["POCKETSERVE_QUARANTINE"] = (
        "false"  # convert has tried every file, and an emulated trial takes a minute
    )
    command = [str(python), "-m", "pocketserve", *words]
    return subprocess.run(
        command,
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


MACHINES = {
    "desktop": Machine("desktop", "desktop", False, _all, run_command),
    "phone": Machine(
        "phone", f"simulated phone ({DEVICE})", False, _for_phone, _run_on_phone
    ),
    "arm64": Machine("arm64", "emulated arm64", True, _for_arm, _run_on_arm),
}


def measure(
    folders: Folders, machine: Machine, subject: Subject, seconds: float, target: Path
) -> dict[str, Any]:
    """Compare a subject's versions, and write the condensed result.

    Raises:
        NotAvailable: the machine is not available, or the comparison failed.
    """
    if not (folders.models / subject.name).is_dir():
        raise NotAvailable(
            f"{subject.name} is not made yet; run the step `models` first"
        )
    if machine.emulated:
        seconds = min(seconds, ARM_SECONDS)
    output = _compare(folders, machine, subject, seconds)
    try:
        result = json.loads(output)
    except json.JSONDecodeError as error:
        raise NotAvailable(
            f"{subject.name} on the {machine.title}: its result breaks off: {error}"
        ) from None
    name = f"{machine.name}-{subject.name}.json"
    folders.raw.mkdir(parents=True, exist_ok=True)
    (folders.raw / name).write_text(output, "utf-8")
    condensed = condense(result, _facts(machine, seconds))
    write_json(target / name, condensed)
    return condensed


def _compare(
    folders: Folders, machine: Machine, subject: Subject, seconds: float
) -> str:
    """Run the command on a machine; return its output."""
    present = list(read_manifest(folders.models / subject.name / FILE_NAME).versions)
    versions = machine.choose(subject, present)
    words = ["compare", subject.name, "--models-dir", str(folders.models)]
    words += ["--data", str(subject.data(folders.data))]
    words += ["--versions", ",".join(versions), "--reference", versions[0]]
    words += ["--seconds", f"{seconds:g}", "--json"]
    try:
        process = machine.run(folders, words)
    except subprocess.TimeoutExpired:
        raise NotAvailable(
            f"{subject.name} on the {machine.title}: no result within {TIMEOUT_S:g} s"
        ) from None
    if process.returncode:
        lines = process.stderr.strip().splitlines() or ["it ended without a word"]
        raise NotAvailable(f"{subject.name} on the {machine.title}: {lines[-1]}")
    return process.stdout


def _facts(machine: Machine, seconds: float) -> Mapping[str, Any]:
    start = {
        "phone": f"pocketserve simulate --device {DEVICE} --",
        "arm64": "qemu-aarch64 python3 -m pocketserve",
    }
    return {
        "name": machine.name,
        "title": machine.title,
        "emulated": machine.emulated,
        "command": f"{start.get(machine.name, 'pocketserve')} compare MODEL --data DATA --seconds {seconds:g}",
        "processor": describe_machine()["processor"],
        "desktop_cores": os.cpu_count(),
    }
