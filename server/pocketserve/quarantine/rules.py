"""Lists the files that a trial may use: those of Python, of the system's libraries, and of its model."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.repository.sidecar_files import sidecar_files
from pocketserve.runtimes.base import ModelSource, RuntimeMissingError
from pocketserve.runtimes.devices import is_accelerated
from pocketserve.runtimes.tflite.delegates import find_library

_SYSTEM: Final = (
    *(
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
    ),
    *(
        "/system",
        "/vendor",
        "/apex",
        "/product",
        "/odm",
        "/linkerconfig",
        "/dev/__properties__",
    ),  # Android's
)
_FACTS: Final = (
    *(
        "/etc/ld.so.cache",
        "/etc/ld.so.conf",
        "/etc/ld.so.conf.d",
        "/etc/localtime",
        "/etc/nsswitch.conf",
    ),
    *(
        "/proc/self",
        "/proc/cpuinfo",
        "/proc/meminfo",
        "/proc/stat",
        "/proc/version",
        "/proc/filesystems",
    ),
    *(
        "/proc/sys/vm",
        "/proc/sys/kernel/osrelease",
        "/sys/devices",
        "/sys/fs/cgroup",
        "/sys/kernel/mm",
    ),
    *(
        "/dev/urandom",
        "/dev/random",
        "/etc/ssl/openssl.cnf",
        "/etc/pki/tls/openssl.cnf",
    ),
)
"""Nothing of other processes: their environments may hold tokens."""

_LOADER: Final = re.compile(rb"/[\w./-]*/(?:ld[\w.-]*\.so[\w.]*|linker(?:64)?)")
"""The program that starts another one, as that one's head names it."""


def rules_for(
    entry: ModelEntry, version: VersionEntry, source: ModelSource, folder: str
) -> dict[str, Any]:
    """Return the paths by right that :func:`~pocketserve.quarantine.sandbox.confine_files` allows a trial.

    Under ``processes`` stands whether it may start any: TensorFlow.js runs in Node. It may write to ``folder`` only.
    """
    needs_node = version.format.starts_processes
    model = [
        source.path if source.path.is_dir() else source.path.parent,
        source.original,
        version.path,
    ]
    model += sidecar_files(entry, version)
    if name := source.options.get(
        "delegate"
    ):  # a library, which its owner may have anywhere
        library = (
            find_library(name, source.original.resolve().parent)
            if isinstance(name, str)
            else None
        )
        model += [library] if library is not None else []
    model += (
        [entry.folder] if entry.folder.name == entry.name else []
    )  # for a bare file it holds other models too
    python, listed = _python(folder)
    programs = [*_SYSTEM, *python]
    keras_home = os.environ.get("KERAS_HOME")
    settings = (
        [os.path.join(keras_home, "keras.json")] if keras_home else []
    )  # read by the import of Keras
    readable = [*_FACTS, *settings, *map(str, model)]
    rules = {
        "read": [*readable, *_node_modules(), *programs] if needs_node else readable,
        # Imports look for libraries by the system's programs; later, the filter of system calls starts none.
        "execute": list(_node()) if needs_node else programs,
        "list": listed,
        "write": [folder],
        "device": [
            "/dev/null",
            "/dev/zero",
            *(["/dev"] if is_accelerated(version.options) else []),
        ],
        "processes": needs_node,
    }
    if version.format.confines_itself:
        rules["confines_itself"] = True
    return rules


def rules_of_engine(model: Path, program: str, folder: Path) -> dict[str, list[str]]:
    """Return the paths by right that the process of a language model may use.

    Args:
        program: the engine's own program, or this Python.
        folder: the only one that it may write to.
    """
    python, listed = _python(str(folder))
    programs = [*_SYSTEM, *python, os.path.dirname(os.path.realpath(program))]
    return {
        "read": [*_FACTS, str(model)],
        "execute": programs,
        "list": listed,
        "write": [str(folder)],
        "device": ["/dev/null", "/dev/zero"],
    }


def _python(folder: str) -> tuple[list[str], list[str]]:
    """Return the interpreter, its packages and libraries, and folders whose names alone imports may read.

    Where a whole home is on the path, as by ``python -m`` in it, just the packages that are in use count.
    """
    private = [
        Path(os.path.realpath(path))
        for path in (os.path.expanduser("~"), folder, "/root", "/home")
    ]
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    entries = [*map(os.path.abspath, filter(None, sys.path)), *filter(None, libraries)]
    wide = [
        entry
        for entry in entries
        if any(path.is_relative_to(os.path.realpath(entry)) for path in private)
    ]
    narrow = [entry for entry in entries if entry not in wide]
    whole = [
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        os.path.realpath(sys.executable),
        *narrow,
    ]
    whole += [target for entry in narrow for target in _links_in(entry)]
    below, within = (tuple(f"{entry}/" for entry in paths) for paths in (wide, whole))
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    used = {
        file
        for file in files
        if isinstance(file, str)
        and file.startswith(below)
        and not file.startswith(within)
    }
    packages = {_package(file, below) for file in used}
    return [*whole, *sorted(packages)], [
        entry for entry in wide if any(p.startswith(f"{entry}/") for p in packages)
    ]


def _links_in(folder: str) -> Iterator[str]:
    """Yield where links in a folder lead: some installers link packages instead of copying them."""
    try:
        with os.scandir(folder) as items:
            yield from (
                os.path.realpath(item.path) for item in items if item.is_symlink()
            )
    except OSError:  # a zip on the path, or nothing
        return


def _package(file: str, folders: Sequence[str]) -> str:
    """Return the package, or the module itself, that lies directly in one of the folders and holds a file."""
    folder = max(filter(file.startswith, folders), key=len)
    return folder + file.removeprefix(folder).partition("/")[0]


def _node_modules() -> Sequence[str]:
    from pocketserve.runtimes.tfjs.packages import find_modules

    try:
        return [str(find_modules())]
    except RuntimeMissingError:
        return []


def _node() -> Iterator[str]:
    """Yield Node itself, and the program that starts it."""
    node = shutil.which("node")
    if node is None:
        return
    yield os.path.realpath(node)
    with open(node, "rb") as file:
        loader = _LOADER.search(file.read(4096))
    if loader is not None:
        yield os.path.realpath(os.fsdecode(loader[0]))
