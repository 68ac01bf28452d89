"""Check that a TorchScript program only computes, before running any of it.

1. The sources are read for what runs while they are compiled (:mod:`~pocketserve.runtimes.torch.source`).
2. The pickles are read for what runs while they are loaded: objects of PyTorch's own classes, and ``__setstate__`` of
   the program's (:mod:`~pocketserve.runtimes.torch.archive`). Where there is one, the sources are compiled without
   the objects first.
3. Every operator in every graph that PyTorch made of them has to be in the allow-list: aliases, ``getattr`` and escapes
   end as the same graph.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.torch.archive import Archive
from pocketserve.runtimes.torch.operators import CLASSES, allowed_operators
from pocketserve.runtimes.torch.source import SourceError, check_source

_NATIVE = re.compile(r"__torch__\.torch\.classes[\w.]*")
_ROOT = b"class Root(Module):\n  __parameters__ = []\n  __buffers__ = []\n"


class NotPlainError(ModelLoadError):
    """A program that may do more than compute: it is code."""


def load_checked(torch: Any, path: Path) -> Any:
    """Load a TorchScript archive in evaluation mode.

    Raises:
        NotPlainError: it may do more than compute.
    """
    archive = Archive(torch, path)
    archive.check_debug()
    sources = dict(archive.sources())
    for name, source in sources.items():
        try:
            check_source(source)
        except SourceError as error:
            raise _not_plain(path, f"in {name[:80]}, {error}") from error
    constants = archive.pickled_classes("constants")
    classes = archive.pickled_classes("data")
    # The name can't be written with escapes.
    if any(b"__setstate__" in source for source in sources.values()):
        if constants - CLASSES:
            raise _not_plain(path, "its constants are objects that set themselves up")
        _check_compiled(torch, path, archive, sources, sorted(classes - CLASSES))
    unit = torch._C.CompilationUnit()
    module = torch._C.import_ir_module(unit, str(path), torch.device("cpu"), {}, False)
    _check_graphs(path, unit)
    return wrapped_module(torch, module)


def wrapped_module(torch: Any, module: Any) -> Any:
    """Return PyTorch's Python object for a C++ module, in evaluation mode."""
    return torch.jit._recursive.wrap_cpp_module(module).eval()


def _check_compiled(
    torch: Any,
    path: Path,
    archive: Archive,
    sources: dict[str, bytes],
    classes: Sequence[str],
) -> None:
    """Compile the program without its objects, and check it.

    The objects' ``__setstate__`` would run at once.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name in archive.names:
            plain = name.lower() in (
                "version",
                ".data/version",
                "byteorder",
                "constants.pkl",
            )
            if plain or name.startswith("constants/"):
                file.writestr(f"a/{name}", archive.read(name, 2**40))
        for name, source in sources.items():
            file.writestr(f"a/code/{name}", source)
        file.writestr("a/code/__torch__/pocketserve_check.py", _ROOT)
        file.writestr("a/data.pkl", _pickle_naming(classes))
    unit = torch._C.CompilationUnit()
    torch._C.import_ir_module_from_buffer(
        unit, packed.getvalue(), torch.device("cpu"), {}, False
    )
    _check_graphs(path, unit)


def _pickle_naming(classes: Sequence[str]) -> bytes:
    """Return a pickle that makes PyTorch compile classes.

    It names them, and only creates an object of an empty class.
    """
    names = b"".join(
        b"c%s\n%s\n" % tuple(part.encode() for part in name.rpartition(".")[::2])
        for name in classes
    )
    return (
        b"\x80\x02c__torch__.pocketserve_check\nRoot\n)\x81}(X\x01\x00\x00\x00c("
        + names
        + b"tub."
    )


def _check_graphs(path: Path, unit: Any) -> None:
    allowed = allowed_operators()
    for function in unit.get_functions():
        for node in nodes_of(function.graph):
            kind = node.kind()
            if kind not in allowed:
                raise _not_plain(
                    path,
                    f"it calls {kind[:80]}, which is not among the operators that only compute",
                )
            for value in node.outputs():
                _check_type(path, value)
        for value in function.graph.inputs():
            _check_type(path, value)


def _check_type(path: Path, value: Any) -> None:
    """Reject values of PyTorch's own classes, except those for weights."""
    text = value.type().str()
    if "torch.classes" in text:
        for name in _NATIVE.findall(text):
            if name not in CLASSES:
                raise _not_plain(path, f"it uses the class {name[:100]}")


def _not_plain(path: Path, reason: str) -> NotPlainError:
    return NotPlainError(f"{path.name} is code, which is not run: {reason}")


def nodes_of(block: Any) -> Iterator[Any]:
    """Yield all nodes of a graph or block, including nested ones."""
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from nodes_of(inner)
        for name in node.attributeNames():
            if node.kindOf(name) == "g":
                yield from nodes_of(node.g(name))
            elif node.kindOf(name) == "gs":
                for graph in node.gs(name):
                    yield from nodes_of(graph)
