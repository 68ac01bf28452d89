"""Check whether a ``model.py`` defines its builder, without running it."""

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
    """Raise if a ``model.py`` surely defines no builder.

    Nothing in the file runs.

    Raises:
        ModelLoadError: names the function and the fix.
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
        f"{version.path.name} has no function {name!r} that builds the module; write "
        f"one that returns it, such as def {name}(): return MyModule(), or name "
        f"another as function in [versions.{version.name}]"
    )


def _bound_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield a module's top-level names; ``*`` for star imports."""
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
