"""Decides whether a TorchScript program only computes, before anything of it runs.

1. The sources are read for what runs while they are compiled (:mod:`~pocketserve.runtimes.torch.source`).
2. The pickles are read for what runs while they are loaded: objects of PyTorch's own classes, and ``__setstate__`` of
   the program's (:mod:`~pocketserve.runtimes.torch.archive`). Where there is one, the sources are compiled without
   the objects first.
3. Every operator in every graph that PyTorch made of them has to be in the allow-list.

No text decides about operators: aliases, ``getattr`` and escapes end as the same graph.
"""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.torch.archive import Archive
from pocketserve.runtimes.torch.operators import CLASSES, allowed_operators
from pocketserve.runtimes.torch.source import SourceError, check_source

_NATIVE = re.compile(r"__torch__\.torch\.classes[\w.]*")
_ROOT = b"class Root(Module):\n  __parameters__ = []\n  __buffers__ = []\n"


class NotPlainError(ModelLoadError):
    """A program that does more than compute, or of which that cannot be told: it is code."""


def load_checked(torch: Any, path: Path) -> Any:
    """Load a TorchScript archive that only computes.

    Returns:
        The module, in evaluation mode.

    Raises:
        NotPlainError: it does more, or that cannot be told.
        ModelLoadError: it is damaged.
        Exception: whatever PyTorch raises.
    """
    archive = Archive(torch, path)
    archive.check_debug()
    sources = dict(archive.sources())
    _check_sources(path, sources)
    _, held = archive.unpickle("constants")
    _, named = archive.unpickle("data")
    if any(b"__setstate__" in source for source in sources.values()):  # no escape can write a name in another way
        _check_compiled(torch, path, archive, sources, held, named)
    unit = torch._C.CompilationUnit()
    loaded = torch._C.import_ir_module(unit, str(path), torch.device("cpu"), {}, False)
    _check_graphs(path, unit)
    return torch.jit._recursive.wrap_cpp_module(loaded).eval()


def _check_sources(path: Path, sources: dict[str, bytes]) -> None:
    for name, source in sources.items():
        try:
            check_source(source)
        except SourceError as error:
            raise NotPlainError(f"{path.name} is code, which is not run: in {name[:80]}, {error}") from error


def _check_compiled(
    torch: Any, path: Path, archive: Archive, sources: dict[str, bytes], held: frozenset[str], named: frozenset[str]
) -> None:
    """Compile the program without its objects, whose ``__setstate__`` would run at once, and check that."""
    if held - CLASSES:
        raise NotPlainError(f"{path.name} is code, which is not run: its constants are objects that set themselves up")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name in archive.names:
            if name.lower() in ("version", ".data/version", "byteorder", "constants.pkl") or name.startswith(
                "constants/"
            ):
                file.writestr(f"a/{name}", archive.read(name, 2**40))
        for name, source in sources.items():
            file.writestr(f"a/code/{name}", source)
        file.writestr("a/code/__torch__/pocketserve_check.py", _ROOT)
        file.writestr("a/data.pkl", _naming(sorted(named - CLASSES)))
    unit = torch._C.CompilationUnit()
    torch._C.import_ir_module_from_buffer(unit, packed.getvalue(), torch.device("cpu"), {}, False)
    _check_graphs(path, unit)


def _naming(classes: list[str]) -> bytes:
    """A pickle that names classes, which has PyTorch compile them, and makes an object of an empty one only."""
    names = b"".join(b"c%s\n%s\n" % tuple(part.encode() for part in name.rpartition(".")[::2]) for name in classes)
    return b"\x80\x02c__torch__.pocketserve_check\nRoot\n)\x81}(X\x01\x00\x00\x00c(" + names + b"tub."


def _check_graphs(path: Path, unit: Any) -> None:
    allowed = allowed_operators()
    for function in unit.get_functions():
        for node in nodes_of(function.graph):
            kind = node.kind()
            if kind not in allowed:
                raise _not_among(path, kind)
            for value in node.outputs():
                check_type(path, value.type().str())
        for value in function.graph.inputs():
            check_type(path, value.type().str())


def check_operator(torch: Any, path: Path, name: str) -> None:
    """Check that an operator named in bytecode only computes, or is none of this PyTorch's, which then refuses it.

    Raises:
        NotPlainError: it does more.
    """
    if name not in allowed_operators() and (
        name.partition("::")[0] in ("aten", "prim") or torch._C._jit_get_schemas_for_operator(name)
    ):
        raise _not_among(path, name)


def _not_among(path: Path, name: str) -> NotPlainError:
    return NotPlainError(
        f"{path.name} is code, which is not run: it calls {name[:80]}, which is not among the operators that only "
        "compute"
    )


def check_type(path: Path, text: str) -> None:
    """Check that a type names no class of PyTorch's own that does more than hold weights.

    Raises:
        NotPlainError: it does.
    """
    if "torch.classes" in text:
        for name in _NATIVE.findall(text):
            if name not in CLASSES:
                raise NotPlainError(f"{path.name} is code, which is not run: it uses the class {name[:100]}")


def nodes_of(block: Any) -> Iterator[Any]:
    """Yield every node of a graph or block, with those of inner blocks and graphs."""
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
