"""Which files a trial may use: those of Python, of the system's libraries, and of its model."""

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
from pocketserve.runtimes.tflite.delegates import find_library

_SYSTEM: Final = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/nix/store", "/gnu/store", "/run/opengl-driver"),
    *("/system", "/vendor", "/apex", "/product", "/odm", "/linkerconfig", "/dev/__properties__"),  # Android's
)
_FACTS: Final = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/localtime", "/etc/nsswitch.conf"),
    *("/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/version", "/proc/filesystems"),
    *("/proc/sys/vm", "/proc/sys/kernel/osrelease", "/sys/devices", "/sys/fs/cgroup", "/sys/kernel/mm"),
    *("/dev/urandom", "/dev/random", "/etc/ssl/openssl.cnf", "/etc/pki/tls/openssl.cnf"),
)
"""Nothing of other processes: their environments may hold tokens."""

_LOADER: Final = re.compile(rb"/[\w./-]*/(?:ld[\w.-]*\.so[\w.]*|linker(?:64)?)")
"""The program that starts another one, as the head of that names it."""


def rules_for(entry: ModelEntry, version: VersionEntry, source: ModelSource, folder: str) -> dict[str, Any]:
    """Put together what :func:`~pocketserve.quarantine.sandbox.confine_files` allows a trial.

    Args:
        folder: the trial's own, the only one that it may write to.

    Returns:
        Paths by right, and under ``processes`` whether it may start any: TensorFlow.js runs in Node.
    """
    node = version.format.starts_processes
    model = [source.path if source.path.is_dir() else source.path.parent, source.original, version.path]
    model += [*sidecar_files(entry, version), *_delegate(source)]
    model += [entry.folder] if entry.folder.name == entry.name else []  # for a bare file it holds other models too
    python, listed = _python(folder)
    programs = [*_SYSTEM, *python]
    readable = [*_FACTS, *_keras_settings(), *map(str, model)]
    accelerated = version.options.keys() & {"delegate", "providers"}
    return {
        "read": [*readable, *_modules(), *programs] if node else readable,
        # Imports look for libraries by the system's programs; later, the filter of system calls starts none.
        "execute": list(_node()) if node else programs,
        "list": listed,
        "write": [folder],
        "device": ["/dev/null", "/dev/zero", *(["/dev"] if accelerated else [])],
        "processes": node,
    }


def _delegate(source: ModelSource) -> list[Path]:
    """A delegate's library, which its owner may have anywhere.

    Raises:
        ModelLoadError: its name leads out of the model's folder.
    """
    name = source.options.get("delegate")
    path = find_library(name, source.original.resolve().parent) if isinstance(name, str) and name else None
    return [path] if path is not None else []


def _python(folder: str) -> tuple[list[str], list[str]]:
    """The interpreter with its packages, and the folders of libraries that the environment names.

    Where a whole home is on the path, as by ``python -m`` in it, just the packages that are in use count.

    Returns:
        What may be read, and folders whose names alone may be, for imports to look through.
    """
    kept = [Path(os.path.realpath(path)) for path in (os.path.expanduser("~"), folder, "/root", "/home")]
    entries = [*map(os.path.abspath, filter(None, sys.path)), *_libraries()]
    wide = [entry for entry in entries if any(path.is_relative_to(os.path.realpath(entry)) for path in kept)]
    found = [sys.prefix, sys.base_prefix, sys.exec_prefix, os.path.realpath(sys.executable)]
    found += [entry for entry in entries if entry not in wide]
    found += [target for entry in entries if entry not in wide for target in _links_in(entry)]
    below = tuple(f"{entry}/" for entry in wide)
    narrow = tuple(f"{entry}/" for entry in found)
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    used = {file for file in files if isinstance(file, str) and file.startswith(below) and not file.startswith(narrow)}
    tops = {_top(file, below) for file in used}
    return [*found, *sorted(tops)], [entry for entry in wide if any(top.startswith(f"{entry}/") for top in tops)]


def _links_in(folder: str) -> Iterator[str]:
    """Yield where links in a folder lead: some installers link packages instead of copying them."""
    try:
        with os.scandir(folder) as items:
            yield from (os.path.realpath(item.path) for item in items if item.is_symlink())
    except OSError:  # a zip on the path, or nothing
        return


def _top(file: str, folders: Sequence[str]) -> str:
    """Return what lies directly in a folder and holds a file: a package, or the module itself."""
    folder = max((one for one in folders if file.startswith(one)), key=len)
    return folder + file.removeprefix(folder).partition("/")[0]


def _libraries() -> list[str]:
    return [entry for entry in os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if entry]


def _keras_settings() -> list[str]:
    """Return what Keras reads when it is imported, where somebody named a place for it."""
    home = os.environ.get("KERAS_HOME")
    return [os.path.join(home, "keras.json")] if home else []


def _modules() -> Sequence[str]:
    from pocketserve.runtimes.tfjs.packages import find_modules

    try:
        return [str(find_modules())]
    except RuntimeMissingError:
        return []


def _node() -> Iterator[str]:
    """Node itself, and what starts it."""
    node = shutil.which("node")
    if node is None:
        return
    yield os.path.realpath(node)
    with open(node, "rb") as file:
        found = _LOADER.search(file.read(4096))
    if found is not None:
        yield os.path.realpath(os.fsdecode(found[0]))
