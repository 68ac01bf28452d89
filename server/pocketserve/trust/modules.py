"""Imports Python files of a model as modules: from the bytes that are trusted, with the modules beside them.

What lies in the folder of such a file is imported in no other way, even by code that adds the folder to ``sys.path``,
or that imports only when it is called. What Python compiled before is never used.
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
_folders: dict[
    str, Set[str]
] = {}  # folders of models with code, without links; and what of each may run

_MAIN = "pocketserve_code_"


def run_file(path: Path, trusted: Set[str], original: Path | None = None) -> ModuleType:
    """Run a Python file as a module, never from a cache: a changed file counts when the model is loaded again.

    Args:
        original: the owner's file that this one is a copy of, as which it is run.
    """
    original = original or path
    read_code(
        path, trusted, original
    )  # that a file is not trusted is no fault of the file's own
    # A name of its own per file: two models may both have a model.py.
    name = f"{_MAIN}{hashlib.sha256(os.fsencode(original)).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(
        name, original, loader=_TrustedSource(trusted, name, path, original)
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up there
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
    """Allow the code of this thread to import the trusted modules in a file's folder, and nothing else of it.

    What they define stays; their names are free again afterwards, for the next model's.
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
        _free_names()
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            _free_names()


def _finder_in(folder: str) -> machinery.FileFinder:
    """Find modules in a model's folder; see :data:`sys.path_hooks`."""
    # The innermost counts: a models folder may itself be that of a model.
    root = max(
        (root for root in _folders if _lies_in(folder, root)), key=len, default=None
    )
    if root is None:
        raise ImportError("no folder of a model", path=folder)
    loaders = (
        (partial(_TrustedLibrary, _folders[root]), machinery.EXTENSION_SUFFIXES),
        (partial(_TrustedSource, _folders[root]), machinery.SOURCE_SUFFIXES),
    )
    return machinery.FileFinder(folder, *loaders)  # type: ignore[arg-type]  # typeshed wants classes; it calls what it gets


def _lies_in(folder: str, root: str) -> bool:
    real = os.path.realpath(folder)
    return real == root or real.startswith(f"{root}{os.sep}")


def _free_names() -> None:
    """Forget the names of models' modules, so that no model gets those of another."""
    for name, module in list(sys.modules.items()):
        is_model_code = isinstance(
            getattr(module, "__loader__", None), _TrustedSource | _TrustedLibrary
        )
        if is_model_code and not name.startswith(_MAIN):
            sys.modules.pop(name, None)


class _FolderFinder:
    """Finds modules in a folder. It comes first, so that code which adds its folder to ``sys.path`` gets the same."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._thread = threading.get_ident()

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> machinery.ModuleSpec | None:
        """See :class:`importlib.abc.MetaPathFinder`. Modules of a package are found by the package's own path."""
        if threading.get_ident() != self._thread or path is not None:
            return None
        spec = _finder_in(self._folder).find_spec(name)
        return None if spec is None or spec.loader is None else spec


class _TrustedSource(machinery.SourceFileLoader):
    """Runs one trusted file as a module; nothing compiled beside it is used."""

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
        """Compile the bytes that were hashed; raise ImportError if they are not trusted."""
        try:
            return compile(read_code(self._read, self._trusted), self.path, "exec")
        except ModelLoadError as error:
            raise ImportError(str(error)) from None


class _TrustedLibrary(machinery.ExtensionFileLoader):
    """Loads one trusted native module, from a copy of what was hashed; raises ImportError if it is not trusted."""

    def __init__(self, trusted: Set[str], name: str, path: str) -> None:
        try:
            super().__init__(name, str(private_copy(Path(path), trusted)))
        except ModelLoadError as error:
            raise ImportError(str(error)) from None
