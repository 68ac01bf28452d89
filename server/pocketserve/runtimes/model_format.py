"""Model formats: all about a kind of model file that others need to know before its framework is imported."""

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
    """Return a function that imports the one of this full name when it is called: not for other formats."""
    return functools.partial(_import_and_call, function)


def _import_and_call(function: str, *args: Any) -> Any:
    module, _, name = function.rpartition(".")
    return getattr(importlib.import_module(module), name)(*args)


class Code(Enum):
    """The part of a model's file that runs as code, so that its owner is asked for consent."""

    NONE = "nothing"
    MODULES = "a Python file, with the modules beside it"
    FILE = "the file"


class Requirement(NamedTuple):
    """A Python package that something needs."""

    module: str  # what an import tries, in the package
    use: str  # what does not work without it
    pip: str  # its name for pip
    termux: str = (
        ""  # its package in Termux; empty if there is none, or pip brings it there, too
    )


class ModelFormat(NamedTuple):
    """A format of model files. A package of :mod:`pocketserve.runtimes` exports its ``FORMATS``."""

    name: str  # the version's name when a manifest gives none
    runtime: str  # the module with a ``RUNTIME`` object
    suffixes: tuple[str, ...] = ()  # file name endings that announce it
    marker: str | None = None  # for formats that are folders, the file that tells them
    # offset and bytes, among the first eight, that tell it; all its files have one of them, or are zipped
    magic: tuple[tuple[int, bytes], ...] = ()
    zipped: bool = False  # a file may be a zip archive, whose members tell it
    by_name: bool = False  # the name alone tells it, whatever the content
    packages: tuple[
        str, ...
    ] = ()  # Python packages of which one must be there, besides those that always are
    install: str = ""  # how to get one, on a desktop and in Termux
    # the same packages one by one, but for those that belong to another format
    frameworks: tuple[Requirement, ...] = ()
    # tells how to install what is no Python package; None if it is there
    missing: Callable[[], str | None] | None = None
    # whether each session has its number of threads; else the process has one for all of them
    own_threads: bool = False
    last_choice: bool = False  # never the default version where there is another
    code: Code = Code.NONE  # what of it runs as code
    code_options: tuple[
        str, ...
    ] = ()  # keys of a version's table that decide what code does
    starts_processes: bool = False  # its trial may start further processes
    # a process of its own opens its files and is confined as long as it lives
    confines_itself: bool = False
    whole_folder: bool = False  # all files beside it belong to it
    # names of files beside it that it names. May raise ``ModelLoadError``.
    other_files: Callable[[Path], Iterable[str]] | None = None
    # reads what its author wrote for tasks, such as labels. May raise ``DamagedFileError``.
    metadata: Callable[[Path], ModelMetadata | None] | None = None
    # reads files that the metadata names, of a limited size together. Raises as ``metadata``.
    associated_files: Callable[[Path, Sequence[str], int], list[bytes]] | None = None
    # reads the outputs of a classifier and the names of its classes from its graph. Raises as ``metadata``.
    class_outputs: Callable[[Path], Mapping[str, ClassOutput]] | None = None
    # reads what its author wrote, as texts by name; empty where sessions tell it
    properties: Callable[[Path], Mapping[str, str]] | None = None
    # opens a ``ModelSource`` so that its intermediate results can be had; None where the format keeps them to itself
    layers: Callable[[ModelSource], RunLayers] | None = None
    # devices that run a version here, by name, each with the options that choose it, the one that the given options
    # choose in front; None for the CPU alone
    devices: Callable[[Mapping[str, Any]], Mapping[str, Mapping[str, Any]]] | None = (
        None
    )
    triton: str = ""  # Triton's names of its backend
    # returns the memory that a file will take, for the manifest's sections and a budget; 0 where only the load tells.
    # None takes the file's size. Raises ``ApiError`` where it can't fit.
    memory: Callable[[Path, Mapping[type, Any], int], int] | None = None
