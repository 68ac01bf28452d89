"""Runs ``.ptl`` files, PyTorch's mobile form, with the lite interpreter, or with the full one where that fails.

What shapes the code below, found by running it:

* The lite interpreter holds the GIL for the whole of a run: nothing else in the process moves meanwhile.
* It believes its caller: an int where a tensor is expected, or one argument too many, ends the process. So the types
  are read from the file, and only values of exactly these types are passed on.
* It has no keyword arguments and tells no names; the file's bytecode does.
* Files made by ``optimize_for_mobile`` need operators (``prepacked::``) that few builds of PyTorch have.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketserve.formats.zip_archives import kind_of_zip
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.torch.archive import Archive
from pocketserve.runtimes.torch.common import file_size, flatten, import_torch, load_error, one_line
from pocketserve.runtimes.torch.graphs import NotPlainError, load_checked
from pocketserve.runtimes.torch.ptl_bytecode import TABLES, check_bytecode
from pocketserve.runtimes.torch.ptl_stack import Follower, UndecidedError
from pocketserve.runtimes.torch.state import may_write, restorer
from pocketserve.runtimes.torch.torchscript import (
    Program,
    ScriptSession,
    chosen_reset,
    load_script,
    load_trusted,
    open_session,
    read_outline,
)
from pocketserve.runtimes.torch.torchscript_values import Argument, Parameters, split_types
from pocketserve.tensors import Array

_MISSING_OPS = re.compile(r"ops cannot be found|Unknown builtin op|Could not find any similar ops|prepacked::")
_OP_NAME = re.compile(r"\b\w+::\w+")
_FLATBUFFER = b"PTMF"


class PtlRuntime:
    """Opens mobile files."""

    platform = "pytorch_mobile"
    option_keys = frozenset({"arguments", "reset", "trust"})

    def open(self, source: ModelSource) -> ScriptSession:
        """See :class:`~pocketserve.runtimes.base.Runtime`."""
        _check_kind(source.path)
        torch = import_torch()
        try:
            methods = read_methods(torch, source.path)
            return open_session(lambda: _load(torch, source, methods), source)
        except NotPlainError as error:  # what its owner trusts is the whole program beside the bytecode
            load_trusted(torch, source, error)
            return _open_full(torch, source, error)
        except ModelLoadError:
            raise
        except Exception as lite:
            return _open_full(torch, source, lite)


RUNTIME = PtlRuntime()
"""The runtime of the kind ``ptl``."""


class Method:
    """One method in the bytecode.

    Attributes:
        arguments: without ``self``; None where the file is too old to tell.
        returns: the types of the results, written as in Python.
        writes: whether it might write to the module itself; :mod:`~pocketserve.runtimes.torch.state` knows better.
        follow: raises :class:`~pocketserve.runtimes.torch.ptl_stack.UndecidedError` where it cannot be told that its
            bytecode takes only what is there.
    """

    def __init__(
        self,
        arguments: Sequence[Argument] | None,
        returns: str,
        writes: bool = False,
        follow: Callable[[], None] = lambda: None,
    ) -> None:
        self.arguments = arguments
        self.returns = returns
        self.writes = writes
        self.follow = follow


def read_methods(torch: Any, path: Path) -> dict[str, Method]:
    """Return the methods of a mobile file, by name without the class.

    Raises:
        NotPlainError: one of them does more than compute.
        ModelLoadError: the bytecode is damaged.
    """
    archive = Archive(torch, path)
    archive.check_debug()
    document, _ = archive.unpickle("bytecode")
    module, _ = archive.unpickle("data")
    if archive.size("metadata.pkl") is not None:
        archive.unpickle("metadata")
    try:
        functions = check_bytecode(torch, path, document)
        follower = Follower(torch, module, _version(archive))
        blind = _unseen(archive, functions)
        entries = [(name, _method(torch, follower, blind, rest)) for name, *rest in functions]
    except ModelLoadError:
        raise
    except Exception as error:  # tables of other kinds than they should have
        raise ModelLoadError(f"{path.name} is damaged ({one_line(error)}); copy it again") from error
    # The module's own methods come first; those of other classes may follow under the same last name.
    return {name.rpartition(".")[2]: method for name, method in reversed(entries)}


def _version(archive: Archive) -> int:
    """The version of the file's operators, which PyTorch reads out of one of two members."""
    names = (name for name in ("version", ".data/version") if archive.size(name) is not None)
    return min((int(archive.read(name)) for name in names), default=0)


def _unseen(archive: Archive, functions: Sequence[tuple[Any, ...]]) -> str:
    """Return what the lite interpreter would read or run beside the functions that are followed; empty where there
    is none.
    """
    if any(name.endswith("__setstate__") for name, *_ in functions):
        return "its objects set themselves up"
    if any(len(function) != 3 or len(function[1]) != len(TABLES) for function in functions):
        return "a function does not tell its arguments"
    members = ("mobile_debug.pkl", "mobile_debug_handles.pkl", "callstack_debug_map.pkl")
    return next((f"it has the debugger's {name}" for name in members if archive.size(name) is not None), "")


def _method(torch: Any, follower: Follower, blind: str, rest: list[Any]) -> Method:
    """Out of ``((("instructions", …), ("operators", …), …), (("arguments", …), ("returns", …)))``."""
    code = dict(rest[0])
    writes = any(step[0] == "SET_ATTR" for step in code["instructions"])
    writes = writes or any(may_write(torch, name) for name in {operator[0] for operator in code["operators"]})
    schema = dict(rest[1]) if len(rest) > 1 and rest[1] else {}
    if "arguments" not in schema:
        return Method(None, "", writes)
    entries = [dict(entry) for entry in schema["arguments"]]
    # Whether None is a default or means that there is none, only the type tells.
    arguments = [
        Argument(
            str(entry["name"]),
            str(entry["type"]),
            entry["default_value"],
            entry["default_value"] is not None or str(entry["type"]).startswith("Optional["),
        )
        for entry in entries[1:]
    ]
    returns = [str(dict(entry)["type"]) for entry in schema.get("returns", ())]

    def follow() -> None:
        if blind:
            raise UndecidedError(blind)
        follower.follow(code, entries)

    return Method(arguments, returns[0] if len(returns) == 1 else "", writes, follow)


def outline_of(text: str) -> Any:
    """A stand-in for a result of the type that is written there, with None for each leaf.

    Raises:
        LookupError: only a run can tell.
    """
    outer, _, inner = text.removesuffix("]").partition("[")
    if text in ("Tensor", "int", "float", "bool", "str", "NoneType"):
        return None
    if text in ("List[int]", "List[float]", "List[bool]", "List[str]"):
        return None
    if outer == "Optional":
        return outline_of(inner)
    if outer == "Tuple":
        return [outline_of(part) for part in split_types(inner)]
    raise LookupError(text)


def _check_kind(path: Path) -> None:
    file_size(path)
    kind = kind_of_zip(path)
    if kind == "ptl":
        return
    if kind == "torchscript":
        raise ModelLoadError(f"{path.name} is a TorchScript file without mobile bytecode; give it the ending .ts")
    with path.open("rb") as file:
        head = file.read(8)
    if head[4:8] == _FLATBUFFER:
        # Its loader checks nothing of it: a damaged file ends the process.
        raise ModelLoadError(
            f"{path.name} is a mobile model in FlatBuffer form; save it with _save_for_lite_interpreter(path)"
        )
    raise ModelLoadError(f"{path.name} is no PyTorch mobile file, or is damaged; copy it again")


def _load(torch: Any, source: ModelSource, methods: Mapping[str, Method]) -> Program:
    """Load a program for the lite interpreter.

    Raises:
        Exception: whatever PyTorch raises.
    """
    from torch.jit.mobile import _load_for_lite_interpreter

    forward = methods.get("forward")
    if forward is None or forward.arguments is None:
        raise LookupError("the bytecode does not tell what forward takes")
    name = chosen_reset(source, lambda name: _is_reset(methods.get(name)))
    for method in (forward, *([methods[name]] if name else [])):
        method.follow()
    held = [_load_for_lite_interpreter(str(source.path), map_location="cpu")]
    parameters = Parameters(torch, forward.arguments, source)

    def run(inputs: Mapping[str, Array]) -> Any:
        values = parameters.positional(inputs)
        with torch.inference_mode():
            return held[0].forward(*values)

    def again() -> None:
        held[0] = _load_for_lite_interpreter(str(source.path), map_location="cpu")

    reset: Callable[[], Any] | None = (lambda: held[0].run_method(name)) if name else None
    writes = any(method.writes for name, method in methods.items() if name not in ("__init__", "__setstate__"))
    if reset is None and writes and _keeps_state(torch, source):
        reset = again
    return Program(
        torch,
        parameters,
        run,
        reset,
        f"torch {torch.__version__} (lite interpreter)",
        file_size(source.path),
        _outlined(forward.returns) or _outlined_by_code(torch, source),
    )


def _keeps_state(torch: Any, source: ModelSource) -> bool:
    """Return whether a run changes the module, as the whole program beside the bytecode tells.

    Raises:
        LookupError: it does, and the full interpreter can put it back without reading the file again.
        NotPlainError: that program does more than compute.
    """
    try:
        writes = restorer(torch, load_checked(torch, source.path)) is not None
    except NotPlainError:
        raise
    except Exception:  # there is no such program, or what it writes to cannot be put back
        return True
    if writes:
        raise LookupError("it changes its own attributes")
    return False


def _is_reset(method: Method | None) -> bool:
    return method is not None and method.arguments is not None and all(a.optional for a in method.arguments)


def _outlined(returns: str) -> list[str] | None:
    try:
        return [name for name, _ in flatten(outline_of(returns))]
    except LookupError:
        return None


def _outlined_by_code(torch: Any, source: ModelSource) -> list[str] | None:
    """The same from the whole program beside the bytecode, which tells the keys of dictionaries."""
    try:
        return read_outline(load_checked(torch, source.path))
    except NotPlainError:
        raise
    except Exception:  # a file may lack it; without it a run or the manifest tells
        return None


def _open_full(torch: Any, source: ModelSource, lite: Exception) -> ScriptSession:
    """The full interpreter's try on a file that the lite one refused; such files usually keep the whole program.

    Raises:
        ModelLoadError: it refuses too.
    """
    name = source.path.name
    if _MISSING_OPS.search(str(lite)):
        missing = ", ".join(sorted({found for found in _OP_NAME.findall(str(lite)) if found != "std::string"})[:5])
        why = "it was made by optimize_for_mobile; " if "prepacked::" in str(lite) else ""
        raise ModelLoadError(
            f"{name} uses operators that torch {torch.__version__} does not have ({missing}); {why}save the model "
            "again without that step"
        ) from lite
    try:
        return open_session(lambda: load_script(torch, source), source)
    except ModelLoadError:
        raise
    except Exception as error:
        raise load_error(name, f"torch {torch.__version__}", lite) from error
