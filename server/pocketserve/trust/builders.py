"""A look into a ``model.py`` for the function that builds the module, before its owner is asked for consent."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from pocketserve.repository.scan import VersionEntry
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.model_format import Code
from pocketserve_wire.files.plain_file import read_plain

MAX_SOURCE_BYTES = 16 << 20
FUNCTION = "build"


def check_builder(version: VersionEntry) -> None:
    """Raise if a ``model.py`` surely has no function that builds the module; nothing in it runs.

    Raises:
        ModelLoadError: names the function, and what to write.
    """
    if version.format.code is not Code.MODULES:
        return
    name = version.options.get("function", FUNCTION)
    try:
        tree = ast.parse(read_plain(version.path, MAX_SOURCE_BYTES))
    except OSError as error:
        raise ModelLoadError(
            f"{version.path.name} cannot be read: {error.strerror}"
        ) from None
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ModelLoadError(
            f"{version.path.name} is not Python that this server reads: {error}"
        ) from None
    names = set(_bound_names(tree.body))
    if name in names or "*" in names or "__getattr__" in names:
        return
    raise ModelLoadError(
        f"{version.path.name} has no function {name!r} that builds the module; write one that returns it, such as "
        f"def {name}(): return MyModule(), or name another as function in [versions.{version.name}]"
    )


def _bound_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind at a module's top level, ``*`` for an import of everything."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
            continue
        for node in ast.walk(statement):
            if isinstance(node, ast.alias):
                yield node.asname or node.name.partition(".")[0]
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                yield node.name
