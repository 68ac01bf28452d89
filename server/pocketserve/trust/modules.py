"""Python files of a model as modules: from the bytes that are trusted, with the modules beside them."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import threading
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.trust.reading import read_code

_one_at_a_time = threading.RLock()
"""Two models may both have a ``helper.py``."""


def run_file(path: Path, trusted: Set[str], original: Path | None = None) -> ModuleType:
    """Run a Python file as a module.

    It is never taken from a cache, so that a changed file counts when the model is loaded again.

    Args:
        original: the owner's file that this one is a copy of, as which it is run.

    Raises:
        ModelLoadError: it is not trusted, or fails when it is run.
    """
    original = original or path
    read_code(path, trusted, original)  # what it says of a file that is not trusted is no fault of the file's own
    # A name of its own per file: two models may both have a model.py.
    name = f"pocketserve_code_{hashlib.sha256(os.fsencode(original)).hexdigest()[:16]}"
    spec = importlib.util.spec_from_file_location(name, original, loader=_Loader(name, path, trusted, original))
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
        raise ModelLoadError(f"{path.name} failed when it was run: {text[:400]}") from error
    return module


@contextmanager
def modules_beside(path: Path, trusted: Set[str]) -> Iterator[None]:
    """Let the code of this thread import the trusted Python files in a file's folder, and nothing else of it.

    What they define stays; their names are free again afterwards, for the next model's.
    """
    with _one_at_a_time:
        finder = _Finder(path.parent, trusted)
        sys.meta_path.insert(0, finder)
        try:
            yield
        finally:
            sys.meta_path.remove(finder)
            for name in finder.found:
                sys.modules.pop(name, None)


class _Finder:
    """Finds modules in a folder. It comes first, so that code which adds its folder to ``sys.path`` gets the same."""

    def __init__(self, folder: Path, trusted: Set[str]) -> None:
        self._folder = folder
        self._trusted = trusted
        self._thread = threading.get_ident()
        self.found: list[str] = []

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See :class:`importlib.abc.MetaPathFinder`."""
        package = name.rpartition(".")[0]
        if threading.get_ident() != self._thread or (package and package not in self.found):
            return None
        base = self._folder.joinpath(*name.split("."))
        for file, is_package in ((base / "__init__.py", True), (base.with_name(f"{base.name}.py"), False)):
            if file.is_file():
                self.found.append(name)
                loader = _Loader(name, file, self._trusted, file)
                places = [str(base)] if is_package else None
                return importlib.util.spec_from_file_location(
                    name, file, loader=loader, submodule_search_locations=places
                )
        return None


class _Loader(SourceFileLoader):
    """Runs one trusted file as a module; nothing compiled beside it is looked at."""

    def __init__(self, name: str, path: Path, trusted: Set[str], original: Path) -> None:
        super().__init__(name, str(original))
        self._read = path
        self._trusted = trusted

    def get_code(self, fullname: str) -> CodeType:
        """Compile what was hashed.

        Raises:
            ImportError: it is not trusted.
        """
        try:
            return compile(read_code(self._read, self._trusted), self.path, "exec")
        except ModelLoadError as error:
            raise ImportError(str(error)) from None
