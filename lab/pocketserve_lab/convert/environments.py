"""The converters' environments: pinned packages, each set in a virtual environment of its own, made once and kept.

No two of these tools agree on their versions, and together they take gigabytes: so none is a part of the server.
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
"""Left free beside an environment's own size: pip unpacks each package once more before it installs it."""

NEWEST_PYTHON = (3, 13)
OLDEST_PYTHON = (3, 11)
POLL_S = 0.5
LOCK_WAIT_S = 3600.0
START_TIMEOUT_S = 60.0
_NO_NETWORK = re.compile(
    r"NewConnectionError|Temporary failure in name resolution|Name or service not known|ConnectTimeout|"
    r"Network is unreachable|Connection refused|No route to host|ReadTimeout|ProxyError|Could not fetch URL"
)

Tell = Callable[[str, float], None]
"""Show what goes on: a title, and which share of it is over, 0 to 1."""

Note = Callable[[str], None]
"""Take a sentence that the user should see at once."""


@dataclass(frozen=True)
class Environment:
    """Pinned packages that work together.

    Attributes:
        name: also of its folder.
        purpose: completes "for …".
        packages: requirements with their versions; NumPy and Pillow, which the comparison needs, come on top.
        disk: bytes that it takes.
        minutes: that it took to make, about.
        newest: the newest Python that all its packages have files for.
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
        return tuple(
            re.split(r"[=<>\[]", package)[0].replace("-", "_")
            for package in self.packages
        )

    @property
    def requirements(self) -> tuple[str, ...]:
        """All that pip is asked for."""
        names = {re.split(r"[=<>\[]", package)[0] for package in self.packages}
        common = {"numpy": "numpy==2.4.6", "pillow": "pillow==13.0.0"}
        return (
            *self.packages,
            *(package for name, package in common.items() if name not in names),
        )


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
        # Newer files of ydf, which the tool brings, want a newer protobuf than this TensorFlow has.
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
    Environment("onnx", "smaller ONNX", (*_ONNX, "onnxslim==0.1.98"), 330 * _MB, 2),
    Environment(
        "onnx2tf",
        "ONNX to TFLite",
        # The tool names none of the packages that it imports.
        (
            *(
                *_ONNX,
                *_TENSORFLOW,
                "onnx2tf==1.28.8",
                "tf_keras==2.21.0",
                "onnxsim==0.8.1",
            ),
            *(
                "onnx_graphsurgeon==0.6.1",
                "sng4onnx==2.0.1",
                "ai-edge-litert==2.3.0",
                "psutil==7.2.2",
            ),
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
        ("torch==2.13.0", "coremltools==9.0"),
        1050 * _MB,
        3,
    ),
    Environment("tract", "Tract", ("tract==0.23.9",), 140 * _MB, 1),
)
ENVIRONMENTS = {environment.name: environment for environment in _TABLE}


def environments_folder(state_dir: Path) -> Path:
    """Return where environments are: what ``POCKETSERVE_CONVERTERS`` names, else a folder of the state folder."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return Path(folder).expanduser().absolute() if folder else state_dir / "converters"


def python_of(environment: Environment, folder: Path) -> Path | None:
    """Return the Python of an environment that is there, as it is defined now; else None."""
    home = folder / environment.name
    try:
        marker = json.loads((home / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    python = home / "bin" / "python"
    return (
        python if marker == list(environment.requirements) and python.exists() else None
    )


def describe(environment: Environment) -> str:
    """Return a sentence on what making an environment takes."""
    size, time_taken = (
        f"{environment.disk / 1e9:.1f} GB",
        f"about {environment.minutes} min",
    )
    return f"the environment {environment.name} ({environment.purpose}) takes {size} and {time_taken}"


def ensure(environment: Environment, folder: Path, tell: Tell, note: Note) -> Path:
    """Return an environment's Python; make it where it is not there.

    Args:
        folder: of all environments.
        tell: shows the progress.
        note: takes the sentence on size and time, before anything is fetched.

    Raises:
        ConversionError: it cannot be made; nothing of it is left.
    """
    if (python := python_of(environment, folder)) is not None:
        return python
    interpreter = _interpreter(environment)
    try:
        make_private_folder(folder)
        with _alone(folder / f"{environment.name}.lock", tell):
            if (
                python := python_of(environment, folder)
            ) is not None:  # another command has made it meanwhile
                return python
            _remove_rest(folder / environment.name)
            check_possible([environment], folder)
            note(f"{describe(environment)}; it is made once, in {folder}")
            return _make(environment, folder, interpreter, tell)
    except OSError as error:
        raise ConversionError(
            f"the environment {environment.name} cannot be made in {folder}: {error.strerror}; "
            f"name another folder with {FOLDER_VARIABLE}"
        ) from None


def _interpreter(environment: Environment) -> str:
    """Return the Python that an environment is made with: this one, or an older one that all packages know."""
    if sys.version_info[:2] <= environment.newest:
        return sys.executable
    older = find_python(environment.newest)
    if older is not None:
        return older
    newest = ".".join(map(str, environment.newest))
    raise ConversionError(
        f"the environment {environment.name} needs Python {newest} or older; install python{newest}"
    )


def find_python(newest: tuple[int, int]) -> str | None:
    """Return the newest installed Python up to a version that runs, or None."""
    for minor in range(newest[1], OLDEST_PYTHON[1] - 1, -1):
        path = shutil.which(f"python3.{minor}")
        if path is not None and _starts(path):
            return path
    return None


def _starts(python: str) -> bool:
    """Return whether a program runs code; pyenv's stand-ins for versions that are switched off do not."""
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
    """Hold a lock of the process, so that two commands do not make the same environment."""
    ends = time.monotonic() + LOCK_WAIT_S
    with path.open("w") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends:
                    raise ConversionError(
                        f"another command has been making {path.stem} for an hour; end it"
                    ) from None
                tell(f"waiting for another command, which makes {path.stem}", 0.0)
                time.sleep(POLL_S)
        yield


def _remove_rest(home: Path) -> None:
    """Remove what an interrupted command has left of an environment, and end what still makes it."""
    for _ in range(2):  # the second time, nothing writes there any more
        remove_tree(home)
        end_abandoned(home)


def check_possible(environments: Sequence[Environment], folder: Path) -> None:
    """Refuse environments that cannot be made here, all together, before the first of them is fetched.

    Args:
        folder: of all environments; where it is not there yet, the disk that it will be on counts.

    Raises:
        ConversionError: this is a phone, or the disk is too small; the sentence has what they take, and what is free.
    """
    missing = [
        environment
        for environment in environments
        if python_of(environment, folder) is None
    ]
    if not missing:
        return
    if system.platform() == "android":
        raise ConversionError(
            f"the environment {missing[0].name} cannot be installed on a phone: convert on a desktop and copy the "
            "model's folder; `pocketserve convert --on-device` lists what a phone can do"
        )
    free = shutil.disk_usage(
        next(path for path in (folder, *folder.parents) if os.path.isdir(path))
    ).free
    if free < sum(environment.disk for environment in missing) + SPARE_BYTES:
        raise ConversionError(
            f"{' and '.join(map(describe, missing))}, but {free / 1e9:.1f} GB are free in {folder}; make room, or name "
            f"another folder with {FOLDER_VARIABLE}"
        )


def _make(environment: Environment, folder: Path, interpreter: str, tell: Tell) -> Path:
    home = folder / environment.name
    python = home / "bin" / "python"
    try:
        _run(
            [interpreter, "-m", "venv", "--without-pip", str(home)],
            environment,
            folder,
            tell,
        )
        # Not by venv, which keeps to itself what is wrong.
        _run(
            [str(python), "-Im", "ensurepip", "--default-pip"],
            environment,
            folder,
            tell,
        )
        pip = [
            str(python),
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-input",
            "--disable-pip-version-check",
        ]
        pip += [
            "--retries",
            "2",
            "--progress-bar",
            "off",
            "--cache-dir",
            str(home / "cache"),
        ]
        _run([*pip, *environment.requirements], environment, folder, tell)
        remove_tree(home / "cache")
        (home / MARKER).write_text(
            json.dumps(environment.requirements), encoding="utf-8"
        )
    except BaseException:
        remove_tree(home)
        raise
    return python


def _run(
    command: list[str], environment: Environment, folder: Path, tell: Tell
) -> None:
    """Run one step; show how much of the disk it has taken of what the environment will take."""
    log = folder / f"{environment.name}.log"
    ends = time.monotonic() + 60 * max(30, 10 * environment.minutes)
    before = shutil.disk_usage(folder).free
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTHON", "POCKETSERVE_"))
    }
    work = (
        folder / environment.name / "tmp"
    )  # where pip unpacks: its files go with the environment
    work.mkdir(parents=True, exist_ok=True)
    log.unlink(missing_ok=True)  # of a command that was ended by signal 9

    def show() -> None:
        used = before - shutil.disk_usage(folder).free
        share = min(0.99, max(0.0, used / environment.disk))
        tell(f"making {environment.name}", share)

    limits = Limits(max(0.0, ends - time.monotonic()), poll_s=POLL_S)
    variables = {**inherited, "TMPDIR": str(work)}
    with log.open("ab") as output:
        streams = Streams(stdout=output, stderr=output)
        with running(command, streams, environment=variables) as child:
            limit = child.wait(limits, show)
    remove_tree(work)
    text = log.read_text(encoding="utf-8", errors="replace")
    log.unlink()
    if child.process.returncode != 0:
        raise _failure(environment, text, timed_out=limit is not None)


def _failure(
    environment: Environment, text: str, *, timed_out: bool
) -> ConversionError:
    name = environment.name
    if timed_out:
        sentence = f"the environment {name} was not ready in time; try again on a faster network"
        return ConversionError(sentence, detail=text)
    if any(words in text for words in NO_ROOM):
        sentence = f"{describe(environment)}, and the disk became full; make room and try again"
        return ConversionError(sentence, detail=text)
    if "No module named ensurepip" in text:
        sentence = f"the environment {name} needs Python's ensurepip, which is missing; on Debian, install python3-venv"
        return ConversionError(sentence, detail=text)
    if _NO_NETWORK.search(text):
        return ConversionError(
            f"the packages of the environment {name} cannot be fetched, because no package index can be reached; "
            "connect to a network and try again",
            detail=text,
        )
    errors = (
        [line for line in text.splitlines() if line.startswith("ERROR")]
        or text.splitlines()[-1:]
        or [""]
    )
    return ConversionError(
        f"pip could not install the environment {name}: {excerpt(errors[-1])}",
        detail=text,
    )
