"""Checks the bytecode of a ``.ptl`` file exactly as the lite interpreter will read it, before it gets it.

The interpreter takes tables by their place, registers and jumps without looking whether they are there, and any
operator by name. So each table has to be in its place, once; every index has to lie inside, and every operator has to
be one of those that only compute. Layout: what ``torch.jit.ScriptModule._save_for_lite_interpreter`` writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.torch.graphs import check_operator, check_type

TABLES = ("instructions", "operators", "constants", "types", "register_size")
"""The tables of a function, in order."""

MAX_REGISTERS = 1_000_000

_REGISTER = ("LOAD", "MOVE", "STORE", "DROPR")
_JUMP = ("JF", "JMP", "LOOP")
_TABLE = {
    "OP": "operators", "OPN": "operators", "LOADC": "constants", "INTERFACE_CALL": "constants",
    "LIST_CONSTRUCT": "types", "DICT_CONSTRUCT": "types", "NAMED_TUPLE_CONSTRUCT": "types", "CREATE_OBJECT": "types",
    "ISINSTANCE": "types",
}  # fmt: skip


def check_bytecode(torch: Any, path: Path, document: Any) -> list[tuple[Any, ...]]:
    """Return the functions of a bytecode document: name, tables, and schema where there is one.

    Raises:
        NotPlainError: one does more than compute.
        ModelLoadError: it is not as PyTorch writes it.
    """
    entries = list(document) if isinstance(document, tuple) else []
    functions = entries[1:] if entries and type(entries[0]) is int else entries
    for entry in functions:
        whole = isinstance(entry, tuple) and len(entry) in (2, 3) and all(isinstance(part, tuple) for part in entry[1:])
        if not whole or type(entry[0]) is not str:
            raise _fault(path, "a function is not made of name, tables and schema")
        _check_tables(torch, path, _fields(path, entry[1]))
        for rows in _fields(path, entry[2]).values() if len(entry) == 3 else ():
            for row in rows:
                check_type(path, str(_fields(path, row)["type"]))
    if not functions:
        raise _fault(path, "it has no functions")
    return functions


def _fields(path: Path, rows: Any) -> dict[str, Any]:
    """Pairs of name and value, each name once."""
    fields = dict(rows)
    if len(fields) != len(rows) or not all(type(name) is str for name in fields):
        raise _fault(path, "a table has two parts of one name")
    return fields


def _check_tables(torch: Any, path: Path, tables: Mapping[str, Any]) -> None:
    if tuple(tables) != TABLES:
        raise _fault(path, "the tables of a function are not in their places")
    for operator in tables["operators"]:
        if not isinstance(operator, tuple) or not all(type(part) is str for part in operator[:2]):
            raise _fault(path, "an operator is not a name")
        check_operator(torch, path, operator[0])
    for text in tables["types"]:
        check_type(path, str(text))
    registers = tables["register_size"]
    if type(registers) is not int or not 0 <= registers <= MAX_REGISTERS:
        raise _fault(path, "a function has an impossible number of registers")
    steps = tables["instructions"]
    if not steps or steps[-1][0] != "RET":
        raise _fault(path, "a function does not end")
    for at, step in enumerate(steps):
        _check_step(path, tables, at, step)


def _check_step(path: Path, tables: Mapping[str, Any], at: int, step: Sequence[Any]) -> None:
    name, x, n = step
    if type(name) is not str or type(x) is not int or type(n) is not int or not 0 <= n < 2**16 or abs(x) >= 2**31:
        raise _fault(path, "an instruction is not made of name and two numbers")
    inside = True
    if name in _REGISTER:
        inside = 1 <= x <= tables["register_size"]
    elif name == "STOREN":
        inside = x >= 1 and x + n - 1 <= tables["register_size"]
    elif name in _JUMP:
        inside = 0 <= at + x < len(tables["instructions"])
    elif name in _TABLE:
        more = n if name == "ISINSTANCE" else 1
        inside = x >= 0 and x + more <= len(tables[_TABLE[name]])
    if not inside or (x < 0 and name not in _JUMP):
        raise _fault(path, f"an instruction {name[:40]} reaches outside of its table")


def _fault(path: Path, why: str) -> ModelLoadError:
    return ModelLoadError(f"{path.name} is damaged: in its bytecode, {why}; save it again")
