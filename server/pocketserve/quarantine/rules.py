"""List the files that a trial may use."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.repository.sidecar_files import sidecar_files
from pocketserve.runtimes.base import ModelSource, RuntimeMissingError
from pocketserve.runtimes.devices import is_accelerated
from pocketserve.runtimes.tflite.delegates import find_library

_SYSTEM: Final = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/opt",
    "/nix/store",
    "/gnu/store",
    "/run/opengl-driver",
    # Android's:
    "/system",
    "/vendor",
    "/apex",
    "/product",
    "/odm",
    "/linkerconfig",
    "/dev/__properties__",
)
# Nothing of other processes, because their environments may contain tokens.
_FACTS: Final = (
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/version",
    "/proc/filesystems",
    "/proc/sys/vm",
    "/proc/sys/kernel/osrelease",
    "/sys/devices",
    "/sys/fs/cgroup",
    "/sys/kernel/mm",
    "/dev/urandom",
    "/dev/random",
    "/etc/ssl/openssl.cnf",
    "/etc/pki/tls/openssl.cnf",
)

_LOADER: Final = re.compile(rb"/[\w./-]*/(?:ld[\w.-]*\.so[\w.]*|linker(?:64)?)")
"""The dynamic loader that an executable's header names."""


class PythonPaths(NamedTuple):
    """The paths of the interpreter and its packages.

    Attributes:
        readable: files and folders that imports may read and map.
        listed: folders in which imports may only list the names.
    """

    readable: list[str]
    listed: list[str]


def rules_for(
    entry: ModelEntry, version: VersionEntry, source: ModelSource, folder: str
) -> dict[str, Any]:
    """Return the paths that a trial may use, by permission.

    :func:`~pocketserve.quarantine.sandbox.confine_files` applies them. The entry
    ``processes`` tells whether the trial may start processes: TensorFlow.js runs in
    Node. The trial may write to ``folder`` only.
    """
    python = _python(folder)
    programs = [*_SYSTEM, *python.readable]
    readable = [*_FACTS, *_keras_settings()]
    readable += map(str, _model_paths(entry, version, source))
    devices = ["/dev/null", "/dev/zero"]
    if is_accelerated(version.options):
        devices.append("/dev")
    rules: dict[str, Any] = {
        "list": python.listed,
        "write": [folder],
        "device": devices,
        "processes": version.format.starts_processes,
    }
    if version.format.starts_processes:
        rules["read"] = [*readable, *_node_modules(), *programs]
        rules["execute"] = list(_node())
    else:
        rules["read"] = readable
        # Imports run system programs to find libraries. Afterwards the filter of system
        # calls prevents new processes.
        rules["execute"] = programs
    if version.format.confines_itself:
        rules["confines_itself"] = True
    if version.format.program_folders is not None:
        rules["execute"] = [*rules["execute"], *version.format.program_folders()]
    return rules


def rules_of_engine(
    model: Sequence[Path], program: str, folder: Path
) -> dict[str, list[str]]:
    """Return the paths that a model's own process may use, by permission.

    Args:
        model: its files, or its folder.
        program: the engine's own program, or this Python.
        folder: the only folder that it may write to.
    """
    python = _python(str(folder))
    engine = os.path.dirname(os.path.realpath(program))
    return {
        "read": [*_FACTS, *map(str, model)],
        "execute": [*_SYSTEM, *python.readable, engine],
        "list": python.listed,
        "write": [str(folder)],
        "device": ["/dev/null", "/dev/zero"],
    }


def rules_of_program(program: str) -> dict[str, list[str]]:
    """Return the paths that a program and its libraries need, by permission.

    Args:
        program: its path.
    """
    real = os.path.realpath(program)
    # In Termux, programs and libraries are beside each other, outside system folders.
    libraries = os.path.join(os.path.dirname(os.path.dirname(program)), "lib")
    return {
        "read": [*_FACTS, *_SYSTEM, libraries],
        "execute": [real, *_loader(real)],
        "device": ["/dev/null", "/dev/zero"],
    }


def _model_paths(
    entry: ModelEntry, version: VersionEntry, source: ModelSource
) -> list[Path]:
    folder = source.path if source.path.is_dir() else source.path.parent
    paths = [folder, source.original, version.path]
    paths += sidecar_files(entry, version)
    # The owner may keep a delegate's library anywhere.
    delegate = source.options.get("delegate")
    if delegate and isinstance(delegate, str):
        library = find_library(delegate, source.original.resolve().parent)
        if library is not None:
            paths.append(library)
    # The folder of a bare file contains other models, too.
    if entry.folder.name == entry.name:
        paths.append(entry.folder)
    return paths


def _keras_settings() -> list[str]:
    """Return the settings file that the import of Keras reads."""
    home = os.environ.get("KERAS_HOME")
    return [os.path.join(home, "keras.json")] if home else []


def _python(folder: str) -> PythonPaths:
    """Return the paths of the interpreter, its packages and libraries.

    If a whole home folder is on ``sys.path``, as with ``python -m`` in it, only the
    imported packages in it are readable.
    """
    wide, narrow = _split_entries(_path_entries(), folder)
    whole = [
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        os.path.realpath(sys.executable),
        *narrow,
    ]
    for entry in narrow:
        whole += _links_in(entry)
    packages = _imported_packages(wide, whole)
    listed = []
    for entry in wide:
        if any(package.startswith(f"{entry}/") for package in packages):
            listed.append(entry)
    return PythonPaths([*whole, *sorted(packages)], listed)


def _path_entries() -> list[str]:
    """Return the folders of ``sys.path`` and ``LD_LIBRARY_PATH``."""
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    modules = [os.path.abspath(entry) for entry in sys.path if entry]
    return [*modules, *filter(None, libraries)]


def _split_entries(entries: list[str], folder: str) -> tuple[list[str], list[str]]:
    """Split folders by whether they contain private folders."""
    private = []
    for path in (os.path.expanduser("~"), folder, "/root", "/home"):
        private.append(Path(os.path.realpath(path)))
    wide, narrow = [], []
    for entry in entries:
        real = os.path.realpath(entry)
        if any(path.is_relative_to(real) for path in private):
            wide.append(entry)
        else:
            narrow.append(entry)
    return wide, narrow


def _imported_packages(wide: list[str], whole: list[str]) -> set[str]:
    """Return the imported packages in ``wide`` folders only."""
    below = tuple(f"{entry}/" for entry in wide)
    within = tuple(f"{entry}/" for entry in whole)
    packages = set()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or file.startswith(within):
            continue
        if file.startswith(below):
            packages.add(_package(file, below))
    return packages


def _links_in(folder: str) -> Iterator[str]:
    """Yield the targets of links, as some installers link packages."""
    try:
        with os.scandir(folder) as items:
            for item in items:
                if item.is_symlink():
                    yield os.path.realpath(item.path)
    except OSError:  # a zip archive, or a missing folder
        return


def _package(file: str, folders: Sequence[str]) -> str:
    """Return the file's entry in the innermost folder."""
    folder = max(filter(file.startswith, folders), key=len)
    return folder + file.removeprefix(folder).partition("/")[0]


def _node_modules() -> Sequence[str]:
    from pocketserve.runtimes.tfjs.packages import find_modules

    try:
        return [str(find_modules())]
    except RuntimeMissingError:
        return []


def _node() -> Iterator[str]:
    """Yield Node and its dynamic loader."""
    node = shutil.which("node")
    if node is None:
        return
    yield os.path.realpath(node)
    yield from _loader(node)


def _loader(program: str) -> Iterator[str]:
    """Yield the dynamic loader of a program, if it needs one."""
    with open(program, "rb") as file:
        loader = _LOADER.search(file.read(4096))
    if loader is not None:
        yield os.path.realpath(os.fsdecode(loader[0]))
