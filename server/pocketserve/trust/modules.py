"""Import the Python files of a model from trusted bytes.

The files in such a folder cannot be imported in any other way, even by code that adds
the folder to ``sys.path`` or that imports late. Compiled files (``.pyc``) are not used.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from functools import partial
from importlib import machinery
from pathlib import Path
from types import CodeType, ModuleType

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.trust.verified_files import private_copy, read_code

_importing = threading.RLock()  # two models may both have a ``helper.py``
_folders: dict[str, Set[str]] = {}
"""The hashes of trusted code by real path of a model's folder."""

_MAIN = "pocketserve_code_"


def run_file(path: Path, trusted: Set[str], original: Path | None = None) -> ModuleType:
    """Run a Python file as a new module.

    Args:
        original: the owner's file if ``path`` is a copy of it; used as module path.
    """
    original = original or path
    read_code(path, trusted, original)  # raises before the file's own errors are caught
    # A unique name per file, because two models may both have a model.py.
    name = f"{_MAIN}{hashlib.sha256(os.fsencode(original)).hexdigest()[:16]}"
    loader = _TrustedSource(trusted, name, path, original)
    spec = importlib.util.spec_from_file_location(name, original, loader=loader)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look the module up there
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        sys.modules.pop(name, None)
        if isinstance(error, KeyboardInterrupt):
            raise
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ModelLoadError(
            f"{path.name} failed when it was run: {text[:400]}"
        ) from error
    return module


@contextmanager
def modules_beside(path: Path, trusted: Set[str]) -> Iterator[None]:
    """Allow this thread to import trusted modules beside a file.

    Their names are released afterwards for the next model; the modules stay usable.
    """
    with _importing:
        root = os.path.realpath(path.parent)
        _folders[root] = trusted
        if _finder_in not in sys.path_hooks:
            sys.path_hooks.insert(0, _finder_in)
        for folder in list(sys.path_importer_cache):
            if _lies_in(folder, root):
                del sys.path_importer_cache[folder]
        finder = _FolderFinder(path.parent)
        _release_names()
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            _release_names()


def _finder_in(folder: str) -> machinery.FileFinder:
    """Find modules in a model's folder; see :data:`sys.path_hooks`."""
    # The innermost folder, because a models folder may itself contain a model's code.
    roots = [root for root in _folders if _lies_in(folder, root)]
    root = max(roots, key=len, default=None)
    if root is None:
        raise ImportError("not a model's folder", path=folder)
    loaders = (
        (partial(_TrustedLibrary, _folders[root]), machinery.EXTENSION_SUFFIXES),
        (partial(_TrustedSource, _folders[root]), machinery.SOURCE_SUFFIXES),
    )
    return machinery.FileFinder(folder, *loaders)  # type: ignore[arg-type]  # typeshed wants classes


def _lies_in(folder: str, root: str) -> bool:
    real = os.path.realpath(folder)
    return real == root or real.startswith(f"{root}{os.sep}")


def _release_names() -> None:
    """Release the names of models' modules for the next model."""
    for name, module in list(sys.modules.items()):
        is_model_code = isinstance(
            getattr(module, "__loader__", None), _TrustedSource | _TrustedLibrary
        )
        if is_model_code and not name.startswith(_MAIN):
            sys.modules.pop(name, None)


class _FolderFinder:
    """Finds modules in a folder before any other finder does."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._thread = threading.get_ident()

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> machinery.ModuleSpec | None:
        """Implement :class:`importlib.abc.MetaPathFinder` for top-level modules."""
        if threading.get_ident() != self._thread or path is not None:
            return None
        spec = _finder_in(self._folder).find_spec(name)
        return None if spec is None or spec.loader is None else spec


class _TrustedSource(machinery.SourceFileLoader):
    """Runs one trusted file as a module, ignoring compiled files."""

    def __init__(
        self,
        trusted: Set[str],
        name: str,
        path: Path | str,
        original: Path | None = None,
    ) -> None:
        super().__init__(name, str(original or path))
        self._read = Path(path)
        self._trusted = trusted

    def get_code(self, fullname: str) -> CodeType:
        """Compile the hashed bytes; ImportError if not trusted."""
        try:
            return compile(read_code(self._read, self._trusted), self.path, "exec")
        except ModelLoadError as error:
            raise ImportError(str(error)) from None


class _TrustedLibrary(machinery.ExtensionFileLoader):
    """Loads one trusted native module from a private copy."""

    def __init__(self, trusted: Set[str], name: str, path: str) -> None:
        try:
            super().__init__(name, str(private_copy(Path(path), trusted)))
        except ModelLoadError as error:
            raise ImportError(str(error)) from None
