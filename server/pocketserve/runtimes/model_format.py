"""Describe model formats without importing their frameworks."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pocketserve.runtimes.base import ModelSource
    from pocketserve.runtimes.layer_outputs import RunLayers
    from pocketserve.runtimes.metadata import ClassOutput, ModelMetadata


def late(function: str) -> Callable[..., Any]:
    """Return a function that imports the named function on its first call."""
    return functools.partial(_import_and_call, function)


def _import_and_call(function: str, *args: Any) -> Any:
    module, _, name = function.rpartition(".")
    return getattr(importlib.import_module(module), name)(*args)


class Code(Enum):
    """The part of a model that runs as code and needs the owner's consent."""

    NONE = "nothing"
    MODULES = "a Python file, with the modules beside it"
    FILE = "the file"


class Requirement(NamedTuple):
    """A Python package that something needs."""

    module: str  # a module of the package; an import of it shows whether it works
    use: str  # the feature that needs it
    pip: str  # its name for pip
    # its package in Termux; empty if there is none or pip installs it there, too
    termux: str = ""


class ModelFormat(NamedTuple):
    """A format of model files.

    Each package of :mod:`pocketserve.runtimes` exports its ``FORMATS``.
    """

    name: str  # also the default name of a version of this format
    runtime: str  # the module with a ``RUNTIME`` object
    suffixes: tuple[str, ...] = ()  # file name endings
    marker: str | None = None  # the file that identifies a folder of this format
    # Magic numbers: offset and bytes, within the first eight. Each file has one of
    # them or is zipped.
    magic: tuple[tuple[int, bytes], ...] = ()
    # Beginnings of the names of its main files and of their other parts. For such
    # names ``claims`` decides whether this format has precedence over the suffix's.
    file_starts: tuple[str, ...] = ()
    part_starts: tuple[str, ...] = ()
    claims: Callable[[Path], bool] | None = None
    # returns the name of the main file that a file with this name is a later part of
    main_file: Callable[[str], str | None] | None = None
    # returns whether a file is one of several parts, whose names end in numbers
    is_split: Callable[[Path], bool] | None = None
    zipped: bool = False  # a file may be a zip archive, identified by its members
    by_name: bool = False  # identified by name alone, whatever the content
    # Python packages one of which must be installed, beside the core's own
    packages: tuple[str, ...] = ()
    install: str = ""  # how to install one, on a desktop and in Termux
    # the same packages one by one, without those that another format lists
    frameworks: tuple[Requirement, ...] = ()
    # config.json is its main file, which describes this very model
    has_config: bool = False
    # returns how to install a requirement that is not a Python package; None if it
    # is installed
    missing: Callable[[], str | None] | None = None
    # whether each session has its own thread count; otherwise it is process-wide
    own_threads: bool = False
    last_choice: bool = False  # the default version only if there is no other
    code: Code = Code.NONE
    # keys of a version's table that affect code
    code_options: tuple[str, ...] = ()
    starts_processes: bool = False  # its trial may start child processes
    # opens its files in a child process that stays confined
    confines_itself: bool = False
    # returns folders with programs that this child process may become
    program_folders: Callable[[], Sequence[str]] | None = None
    whole_folder: bool = False  # all files beside it belong to it
    # returns the names of files beside it that it refers to. May raise
    # ``ModelLoadError``.
    other_files: Callable[[Path], Iterable[str]] | None = None
    # reads the author's metadata for tasks, such as labels. May raise
    # ``DamagedFileError``.
    metadata: Callable[[Path], ModelMetadata | None] | None = None
    # reads files that the metadata refers to, up to a total size. Raises like
    # ``metadata``.
    associated_files: Callable[[Path, Sequence[str], int], list[bytes]] | None = None
    # reads a classifier's outputs and class names from its graph. Raises like
    # ``metadata``.
    class_outputs: Callable[[Path], Mapping[str, ClassOutput]] | None = None
    # reads the author's free-form properties; empty if sessions provide them
    properties: Callable[[Path], Mapping[str, str]] | None = None
    # opens a ``ModelSource`` with access to intermediate results; None if the format
    # has no such access
    layers: Callable[[ModelSource], RunLayers] | None = None
    # returns the devices that can run a version here: by name, the options that
    # select it; the device that the given options select comes first. None if only
    # the CPU can.
    devices: Callable[[Mapping[str, Any]], Mapping[str, Mapping[str, Any]]] | None = (
        None
    )
    # returns the task of an unloaded file, as far as its format decides it; else ""
    task: Callable[[Path], str] | None = None
    triton: str = ""  # Triton's names of its backend
    # estimates a file's memory from the manifest's sections and a budget; 0 if only
    # loading tells. None means the file's size. Raises ``ApiError`` if it can't fit.
    memory: Callable[[Path, Mapping[type, Any], int], int] | None = None
