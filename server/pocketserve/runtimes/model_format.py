"""Model formats: all about a kind of model file that others need to know before its framework is imported."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pocketserve.runtimes.metadata import ModelMetadata


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
    """A Python package that something needs.

    Attributes:
        module: what an import tries, in the package.
        use: what does not work without it.
        pip: its name for pip.
        termux: its package in Termux; empty if there is none, or pip brings it there, too.
    """

    module: str
    use: str
    pip: str
    termux: str = ""


class ModelFormat(NamedTuple):
    """A format of model files. A package of :mod:`pocketserve.runtimes` exports its ``FORMATS``.

    Attributes:
        name: the version's name when a manifest gives none.
        runtime: the module with a ``RUNTIME`` object.
        suffixes: file name endings that announce it.
        marker: for formats that are folders, the file that tells them.
        magic: offset and bytes, among the first eight, that tell it; all its files have one of them, or are zipped.
        zipped: a file may be a zip archive, whose members tell it.
        by_name: the name alone tells it, whatever the content.
        packages: Python packages of which one must be there.
        install: how to get one, on a desktop and in Termux.
        frameworks: the same packages one by one, but for those that belong to another format.
        missing: tells how to install what is no Python package; None if it is there.
        own_threads: whether each session has its number of threads; else the process has one for all of them.
        last_choice: never the default version where there is another.
        code: what of it runs as code.
        code_options: keys of a version's table that decide what code does.
        starts_processes: its trial may start further processes.
        whole_folder: all files beside it belong to it.
        other_files: names of files beside it that it names. May raise ``ModelLoadError``.
        metadata: reads what its author wrote for tasks, such as labels. May raise ``DamagedFileError``.
        associated_files: reads files that the metadata names, of a limited size together. Raises as ``metadata``.
        properties: reads what its author wrote, as texts by name; empty where sessions tell it.
        triton: Triton's names of its backend.
    """

    name: str
    runtime: str
    suffixes: tuple[str, ...] = ()
    marker: str | None = None
    magic: tuple[tuple[int, bytes], ...] = ()
    zipped: bool = False
    by_name: bool = False
    packages: tuple[str, ...] = ()
    install: str = ""
    frameworks: tuple[Requirement, ...] = ()
    missing: Callable[[], str | None] | None = None
    own_threads: bool = False
    last_choice: bool = False
    code: Code = Code.NONE
    code_options: tuple[str, ...] = ()
    starts_processes: bool = False
    whole_folder: bool = False
    other_files: Callable[[Path], Iterable[str]] | None = None
    metadata: Callable[[Path], ModelMetadata | None] | None = None
    associated_files: Callable[[Path, Sequence[str], int], list[bytes]] | None = None
    properties: Callable[[Path], Mapping[str, str]] | None = None
    triton: str = ""
