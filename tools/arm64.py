"""Run the server and its tests on emulated 64-bit ARM.

Usage: .venv/bin/python tools/arm64.py [--folder FOLDER] [--mirror URL] [--quick]

A Debian system for arm64 is unpacked into ``.arm64/``, and an emulator (qemu) runs its
Python. It needs no root rights and doesn't change this system. ARM wheels come from the
package index by pip. This shows that the ARM wheels load and compute the same; it says
nothing about Android's C library and speed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from android_toolchain import ToolchainError, private_apt, run, say
from debian_root import (
    CORE_WHEELS,
    LIBRARIES,
    ROOT,
    describe,
    fetch_root,
    fetch_wheels,
    fresh,
    option_parser,
    ready_python,
    run_python,
    sources,
    write_script,
)

FOLDER_VARIABLE = "POCKETSERVE_ARM64"
RELEASE = "trixie"
"""Its qemu (10.0) runs ONNX Runtime; that of bookworm (7.2) crashes when it is imported."""

PYTHON = "3.13"
CPU = "cortex-a76"
"""With the default, ``max``, XNNPACK uses kernels that are seven times slower to emulate."""

TESTS = (
    *(
        "repository",
        "tasks",
        "wire/test_wire_binary.py",
        "wire/test_wire_tensors.py",
        "test_security.py",
    ),
    *(
        "engine/test_cores.py",
        "engine/test_memory_policy.py",
        "engine/test_statistics.py",
    ),
    *(
        "runtimes/test_tflite.py",
        "runtimes/test_tflite_metadata.py",
        "runtimes/test_onnx.py",
    ),
)
TOLERANCE = 1e-4
QUANTISED_TOLERANCE = 2 / 256
"""An 8-bit model may round one step differently, and its output has 256 steps."""

COMPARED = """
import json, sys
from pathlib import Path
import numpy as np
from pocketserve.config import load_config
from pocketserve.service import Service
from pocketserve.api import predictions
from pocketserve.api.messages import ApiRequest
models = Path(sys.argv[1])
service = Service(load_config({"models_dir": models, "quarantine": False, "threads": 1}))
answers = {}
def ask(model, version, what, body):
    request = ApiRequest(path={"model": model}, query={"version": version, "top_k": "10"}, body=memoryview(body))
    rows = predictions.document(predictions.ask(service, request))["predictions"]
    key = f"{model}/{version}/{what}"
    answers[key] = {str(row.get("label", "value")): row.get("score", row.get("value")) for row in rows}
for name, entry in service.repository.models().items():
    for version in entry.versions.values():
        if version.format.name not in ("tflite", "onnx"):
            continue
        if (models / name / "samples").is_dir():
            for sample in sorted((models / name / "samples").iterdir()):
                ask(name, version.name, sample.stem, sample.read_bytes())
        else:
            rng = np.random.default_rng(0)
            for number in range(5):
                width = {"petals": 3, "diabetes": 10}[name]
                low, high = {"petals": (1, 7), "diabetes": (-0.1, 0.1)}[name]
                ask(name, version.name, str(number), json.dumps(rng.uniform(low, high, width).tolist()).encode())
service.close()
print("answers:" + json.dumps(answers))
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Create the system, run everything in it, and print a table."""
    description = "Run the server and its tests as an emulated 64-bit ARM program."
    parser = option_parser(description, FOLDER_VARIABLE, ".arm64")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="leave the tests out: only the demo and the comparison",
    )
    options = parser.parse_args(arguments)
    try:
        python = ready_python(
            options, __file__, f"aarch64 Python {PYTHON}", make_system
        )
    except ToolchainError as error:
        print(f"arm64: {error}", file=sys.stderr)
        return 1
    steps = {"demo": demo, "answers": compare} | (
        {} if options.quick else {"tests": tests}
    )
    results = {
        name: _timed(name, lambda step=step: step(python))
        for name, step in steps.items()
    }
    print(f"\nthe same programs on {describe(python)}:")
    for name, (passed, said, seconds) in results.items():
        print(
            f"  {name:8} {'passed' if passed else 'FAILED'}  {said}  ({seconds:.0f} s)"
        )
    if all(passed for passed, _, _ in results.values()):
        return 0
    return 1


def _timed(name: str, step: Any) -> tuple[bool, str, float]:
    say(f"\n--- {name}")
    started = time.monotonic()
    passed, said = step()
    return passed, said, time.monotonic() - started


# The steps


def demo(python: Path) -> tuple[bool, str]:
    """``pocketserve demo``: a real server, asked real digits."""
    done = run_python(python, "-m", "pocketserve", "demo", capture=True)
    print(done.stdout)
    last = (
        "; ".join(
            line for line in done.stdout.splitlines() if "digits read correctly" in line
        )
        or "no answer"
    )
    return done.returncode == 0, last


def compare(python: Path) -> tuple[bool, str]:
    """Compare the answers of all embedded versions with this machine's."""
    here = subprocess.run(
        [sys.executable, "-c", COMPARED, str(ROOT / "models")],
        env={**os.environ, "PYTHONPATH": sources()},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    there = run_python(python, "-c", COMPARED, str(ROOT / "models"), capture=True)
    if there.returncode:
        return False, there.stderr.strip().splitlines()[-1]
    return _judge(_answers(here.stdout), _answers(there.stdout))


def _judge(
    expected: dict[str, dict[str, float]], actual: dict[str, dict[str, float]]
) -> tuple[bool, str]:
    """Return whether answers agree, and the largest differences."""
    is_equal = set(expected) == set(actual)
    exact = coarse = 0.0
    for name, answer in expected.items():
        distance = _distance(answer, actual.get(name, {}))
        if "int8" in name:
            coarse = max(coarse, distance)
        else:
            exact = max(exact, distance)
        if distance > _tolerance(name):
            is_equal = False
            print(f"{name}: {answer} here, {actual.get(name)} on ARM")
    return is_equal, (
        f"{len(expected)} answers; "
        f"the largest difference is {exact:.1e} (float), {coarse:.1e} (8-bit)"
    )


def _answers(text: str) -> dict[str, dict[str, float]]:
    line = next(line for line in text.splitlines() if line.startswith("answers:"))
    answers: dict[str, dict[str, float]] = json.loads(line.removeprefix("answers:"))
    return answers


def _distance(expected: dict[str, float], found: dict[str, float]) -> float:
    """Return the largest difference of a score or relative value."""
    if set(expected) != set(found):
        return float("inf")
    return max(
        abs(expected[key] - found[key]) / max(1.0, abs(expected[key]))
        for key in expected
    )


def _tolerance(name: str) -> float:
    if "int8" in name:
        return QUANTISED_TOLERANCE
    return TOLERANCE


def tests(python: Path) -> tuple[bool, str]:
    """Run tests without a server that need core, TFLite and ONNX."""
    files = [str(ROOT / "tests" / name) for name in TESTS]
    done = run_python(
        python, str(ROOT / "tools/run_tests.py"), "arm64", "-q", *files, capture=True
    )
    print(done.stdout)
    last = next(
        (
            line
            for line in reversed(done.stdout.splitlines())
            if " passed" in line or " failed" in line
        ),
        "",
    )
    return done.returncode == 0, last or done.stderr.strip()[-200:]


# Making the system


def make_system(folder: Path, mirror: str) -> Path:
    """Create the emulated system; return its Python.

    Raises:
        ToolchainError: it is not available on this machine.
    """
    python = folder / "bin/python3"
    say(f"putting a Debian {RELEASE} for arm64 together in {folder} …")
    _fetch_emulator(folder, mirror)
    fetch_root(
        folder / "root", mirror, RELEASE, "arm64", (f"python{PYTHON}", *LIBRARIES)
    )
    fetch_wheels(
        folder / "root/usr/lib/python3/dist-packages", PYTHON, "aarch64", CORE_WHEELS
    )
    _write_python(folder, python)
    return python


def _fetch_emulator(folder: Path, mirror: str) -> None:
    arriving = fresh(folder / "emulator-debs")
    with private_apt(mirror, (RELEASE,)) as apt:
        run([*apt, "update"], "Debian's package lists cannot be fetched", arriving)
        run([*apt, "download", "qemu-user"], "the emulator cannot be fetched", arriving)
    for file in arriving.glob("*.deb"):
        run(
            ["dpkg-deb", "-x", str(file), str(fresh(folder / "emulator"))],
            f"{file.name} cannot be unpacked",
        )
    shutil.rmtree(arriving)


def _write_python(folder: Path, python: Path) -> None:
    emulator = folder / "emulator/usr/bin/qemu-aarch64"
    root = folder / "root"
    words = [emulator, "-L", root, "-0", python, root / f"usr/bin/python{PYTHON}"]
    write_script(
        python,
        [str(word) for word in words],
        {"QEMU_CPU": CPU, "PYTHONHOME": str(root / "usr")},
    )


if __name__ == "__main__":
    sys.exit(main())
