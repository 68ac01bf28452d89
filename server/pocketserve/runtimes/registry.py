"""Which runtime opens which kind of model. Importing this module imports no framework."""

from __future__ import annotations

import functools
import importlib
from pathlib import Path

from pocketserve_wire.records import dataclass

from .base import Runtime


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of model.

    Attributes:
        name: the version's name when a manifest gives none, such as ``tflite``.
        suffixes: file name endings that announce it.
        module: the module with a ``RUNTIME`` object.
        packages: Python packages of which one must be there.
        install: how to get one, on a desktop and in Termux.
        marker: for kinds that are folders, the file that tells them.
        own_threads: whether each session has its number of threads; else the process has one for all of them.
    """

    name: str
    suffixes: tuple[str, ...]
    module: str
    packages: tuple[str, ...] = ()
    install: str = ""
    marker: str | None = None
    own_threads: bool = False


_TFLITE = (
    ("ai_edge_litert", "tflite_runtime", "tensorflow"),
    "pip install 'pocketserve[tflite]'; in Termux: pkg install python-tflite-runtime",
)
_ONNX = ("onnxruntime",), "pip install 'pocketserve[onnx]'; in Termux: pkg install python-onnxruntime"
_TORCH = ("torch",), "pip install 'pocketserve[torch]'; in Termux: pkg install python-torch"
_EXECUTORCH = ("executorch",), "pip install 'pocketserve[executorch]'; not available in Termux, convert the model there"
_TENSORFLOW = ("tensorflow",), "pip install 'pocketserve[tensorflow]'; not available in Termux, convert the model there"


def _kind(name: str, *suffixes: str, needs: tuple[tuple[str, ...], str], module: str, marker: str = "") -> Kind:
    return Kind(
        name,
        suffixes,
        f"pocketserve.runtimes.{module}",
        *needs,
        marker or None,
        own_threads=name in ("tflite", "onnx"),
    )


KINDS: tuple[Kind, ...] = (
    _kind("tflite", ".tflite", needs=_TFLITE, module="tflite.session"),
    _kind("onnx", ".onnx", needs=_ONNX, module="onnx.session"),
    _kind("executorch", ".pte", needs=_EXECUTORCH, module="executorch.session"),
    _kind("torchscript", ".torchscript", ".ts", ".jit", ".pt", ".pth", needs=_TORCH, module="torch.torchscript"),
    _kind("ptl", ".ptl", needs=_TORCH, module="torch.ptl"),
    _kind("torch", ".py", needs=_TORCH, module="torch.eager"),
    _kind("keras", ".keras", ".h5", ".hdf5", needs=_TENSORFLOW, module="tensorflow.keras"),
    _kind("savedmodel", needs=_TENSORFLOW, module="tensorflow.savedmodel", marker="saved_model.pb"),
    _kind("tfjs", needs=((), ""), module="tfjs.session", marker="model.json"),
    _kind("pt2", ".pt2", needs=_TORCH, module="torch.pt2"),
)
"""All kinds, in the order in which a default version is chosen when nothing else decides."""

SUFFIXES = tuple(suffix for kind in KINDS for suffix in kind.suffixes)
MARKERS = {kind.marker: kind for kind in KINDS if kind.marker is not None}

_HEADS = (
    (4, b"TFL3", "tflite"),
    (4, b"ET", "executorch"),
    (0, b"\x89HDF\r\n\x1a\n", "keras"),
    *((0, bytes((0x80, protocol)), "state_dict") for protocol in range(2, 6)),  # a pickle: torch.save before 1.6
)
"""Offset and bytes at the start of a file that tell its kind."""


def kind_named(name: str) -> Kind | None:
    """The kind of that name."""
    return next((kind for kind in KINDS if kind.name == name), None)


def kind_of_name(file_name: str) -> Kind | None:
    """The kind that a file's name announces, or None for a file that is no model."""
    if file_name in MARKERS:
        return MARKERS[file_name]
    return next((kind for kind in KINDS if kind.suffixes and file_name.lower().endswith(kind.suffixes)), None)


def kind_at(path: Path) -> Kind | None:
    """The kind of a file or folder: what its content tells, else what its name announces; None for no model.

    Only a few bytes, or a zip's directory, are read.
    """
    if path.is_dir():
        return next((kind for marker, kind in MARKERS.items() if (path / marker).is_file()), None)
    announced = kind_of_name(path.name)
    if announced is None or announced.name in ("torch", "savedmodel", "tfjs"):
        return announced
    told = kind_named(content_of(path) or "")
    return told or announced


def first_bytes(path: Path, maximum: int) -> bytes | None:
    """Return how a file begins; None for what is no file or cannot be read."""
    try:
        if not path.is_file():  # opening a named pipe would wait for a writer
            return None
        with path.open("rb") as file:
            return file.read(maximum)
    except OSError:
        return None


def content_of(path: Path) -> str | None:
    """Return what a file's first bytes say it is: a kind's name, or a name of :func:`kind_of_zip`; None if they do
    not.
    """
    head = first_bytes(path, 8)
    if head is None:
        return None
    if head.startswith(b"PK\3\4"):
        from pocketserve.formats.zip_archives import kind_of_zip  # late: most models are no archives

        return kind_of_zip(path)
    return next((name for at, mark, name in _HEADS if head[at : at + len(mark)] == mark), None)


@functools.cache
def missing_framework(kind: Kind) -> str | None:
    """Return how to install what a kind needs, if no package for it is there; no framework is imported."""
    if not kind.packages:  # what it needs is not Python's: a module beside the runtime's own knows how to look
        reason: str | None = importlib.import_module(f"{kind.module.rpartition('.')[0]}.packages").missing()
        return reason
    from importlib.util import find_spec  # late: not before the first model

    if any(find_spec(package) is not None for package in kind.packages):
        return None
    return f"no framework for {kind.name} models is installed: {kind.install}"


def look_again() -> None:
    """Forget which frameworks were there: something may have been installed."""
    importlib.invalidate_caches()
    missing_framework.cache_clear()


def runtime_for(kind: Kind) -> Runtime:
    """Import and return a kind's runtime (its framework is imported later, by ``open``)."""
    runtime: Runtime = importlib.import_module(kind.module).RUNTIME
    return runtime
