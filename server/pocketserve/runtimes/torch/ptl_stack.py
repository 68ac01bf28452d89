"""Follows a function of a ``.ptl`` file as the lite interpreter would run it, which trusts the file on its way.

The interpreter takes operands from the stack and attributes by their slot without looking whether they are there: a
crafted file has it read and write foreign memory. So the depth of the stack and the objects that attributes are taken
from are followed here, over all branches at once, before it runs. What cannot be decided this way is left to the full
interpreter, which compiles the program from its text and checks types. Tags of values need no look: the interpreter
checks these itself.

A value is what the file's pickle has in its place: an object whose slots are known, a tuple, a plain constant; None
stands for anything else. Instructions: ``torch/csrc/jit/runtime/instruction.h`` of PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pocketserve.runtimes.torch.archive import Opaque

MAX_STACK = 10_000
"""Values on the stack; the largest known functions have a few hundred."""

_PLAIN = {
    "DROP": (1, 0), "WARN": (2, 0), "ISINSTANCE": (1, 1), "UN_INITIALIZED": (0, 1), "__IS__": (2, 1),
    "__ISNOT__": (2, 1), "__NOT__": (1, 1), "DEVICE": (1, 1), "DTYPE": (1, 1), "DIM": (1, 1), "IS_CUDA": (1, 1),
    "NUM_TO_TENSOR": (1, 1), "DICT_INDEX": (2, 1), "TO_LIST": (3, 1), "CREATE_OBJECT": (0, 1),
}  # fmt: skip
"""How many values an instruction takes from the stack, and how many of unknown kind it leaves there."""

_BY_COUNT = frozenset(("aten::format", "aten::percentFormat", "prim::Print"))
"""Operators that take as many values as their call says."""

State = tuple[list[Any], dict[int, Any]]
"""The stack and the registers that hold anything."""


class UndecidedError(LookupError):
    """What a function does to its stack or to attributes cannot be told, or is wrong."""


class Follower:
    """Follows the functions of one file.

    Args:
        module: the object that the file's ``data.pkl`` holds.
        version: of the file's operators. The interpreter replaces older ones, which may take other arguments.
    """

    def __init__(self, torch: Any, module: Any, version: int) -> None:
        self._torch = torch
        self._module = module
        self._version = version
        self._written: set[tuple[int, int]] = set()
        self._moved = False

    def follow(self, tables: Mapping[str, Any], arguments: Sequence[Mapping[str, Any]]) -> None:
        """Follow a function that :mod:`~pocketserve.runtimes.torch.ptl_bytecode` has checked.

        Raises:
            UndecidedError: it takes from the stack or an object what is not there, or that cannot be told.
        """
        operators = [self._effect(*operator) for operator in tables["operators"]]
        given = [self._module, *map(_argument, arguments[1:])]
        self._moved = True
        while self._moved:  # what one path writes to an attribute another one may read
            self._moved = False
            _Run(self, tables, operators).all_paths(given)

    def slot(self, owner: Any, at: int) -> Any:
        """Return what an attribute holds."""
        slots = (owner.slots if isinstance(owner, Opaque) else None) or ()
        if not 0 <= at < len(slots):
            raise UndecidedError("it takes an attribute that is not there")
        return None if (id(owner), at) in self._written else slots[at]

    def write(self, owner: Any, at: int) -> None:
        """Note that an attribute may hold anything from now on."""
        self.slot(owner, at)
        self._moved = self._moved or (id(owner), at) not in self._written
        self._written.add((id(owner), at))

    def _effect(self, name: str, overload: str, given: int = -1) -> tuple[str, int, int]:
        """Name, values taken and values left; -1 taken where the call says how many."""
        full = f"{name}.{overload}" if overload else name
        upgraded = self._torch._C._get_operator_version_map().get(full, ())
        if any(entry.bumped_at_version > self._version for entry in upgraded):
            raise UndecidedError(f"{full} has changed since the file was saved")
        schemas = self._torch._C._jit_get_schemas_for_operator(name)
        found = [schema for schema in schemas if schema.overload_name == overload]
        if not found:
            raise UndecidedError(f"ops cannot be found: {full}")
        if name == "prim::TupleUnpack":
            return name, 1, 0
        texts = str(found[0])
        if len(found) > 1 or ("..." in texts and name not in _BY_COUNT):
            raise UndecidedError(f"{full} takes any number of values")
        filled = [argument.has_default_value() for argument in found[0].arguments]
        takes = len(filled)
        if 0 <= given < takes and name != "prim::RaiseException":
            if not all(filled[given:]):
                raise UndecidedError(f"{full} is given too little")
            takes = given  # the interpreter adds the others
        return name, -1 if name in _BY_COUNT else takes, len(found[0].returns)


def _argument(entry: Mapping[str, Any]) -> Any:
    """An argument of a function: the interpreter checks it against its type, but not a default."""
    kind = str(entry["type"])
    if entry["default_value"] is None and kind.startswith("Tuple["):
        return (None,) * _outer_parts(kind[6:-1])
    return None


def _outer_parts(text: str) -> int:
    depth, parts = 0, 1
    for char in text:
        depth += (char == "[") - (char == "]")
        parts += char == "," and depth == 0
    return parts


class _Run:
    """All paths through one function, joined where they meet."""

    def __init__(self, follower: Follower, tables: Mapping[str, Any], operators: Sequence[tuple[str, int, int]]):
        self._follower = follower
        self._steps = tables["instructions"]
        self._constants = tables["constants"]
        self._types = tables["types"]
        self._operators = operators
        self._stack: list[Any] = []
        self._registers: dict[int, Any] = {}
        jumps = (at + x for at, (name, x, _) in enumerate(self._steps) if name in ("JF", "JMP", "LOOP"))
        self._met: dict[int, State | None] = dict.fromkeys(jumps)
        self._waiting: list[tuple[int, State]] = []

    def all_paths(self, given: list[Any]) -> None:
        self._waiting.append((0, (given, {})))
        while self._waiting:
            at, (stack, registers) = self._waiting.pop()
            self._stack, self._registers = list(stack), dict(registers)
            self._path(at)

    def _path(self, at: int) -> None:
        """Follow the steps from one of them until they end, or meet what is known."""
        while True:
            if at in self._met and not self._meet(at):
                return
            name, x, n = self._steps[at]
            if name == "RET":
                if len(self._stack) != 1:
                    raise UndecidedError("it does not return one value")
                return
            if name == "RAISE_EXCEPTION":
                self._take(2)
                return
            at = self._step(at, name, x, n)
            if len(self._stack) > MAX_STACK:
                raise UndecidedError("its stack grows too large")

    def _meet(self, at: int) -> bool:
        """Join with what came here before; False where that is nothing new."""
        before = self._met[at]
        if before is None:
            self._met[at] = (list(self._stack), dict(self._registers))
            return True
        stack, registers = before
        if len(stack) != len(self._stack):
            raise UndecidedError("its paths leave different stacks")
        both = [_join(old, new) for old, new in zip(stack, self._stack, strict=True)]
        # A register that one of the two paths has not set holds None.
        kept = {key: _join(old, self._registers.get(key)) for key, old in registers.items()}
        changed = any(old is not new for old, new in zip(stack, both, strict=True))
        changed = changed or any(kept[key] is not old for key, old in registers.items())
        self._stack, self._registers = both, kept
        self._met[at] = (list(both), dict(kept))
        return changed

    def _step(self, at: int, name: str, x: int, n: int) -> int:
        """Do one step and return the next one's place."""
        if name == "JMP":
            return at + x
        if name == "JF":
            self._take(1)
            self._later(at + x)
        elif name == "LOOP":
            self._loop(at + x, n)
        elif name in ("OP", "OPN"):
            self._operator(*self._operators[x], n if name == "OPN" else -1)
        elif name in _PLAIN:
            takes, leaves = _PLAIN[name]
            self._take(takes)
            self._stack += [None] * leaves
        elif (act := _ACTS.get(name)) is not None:
            act(self, x, n)
        else:
            raise UndecidedError(f"its instruction {name[:40]} is not followed")
        return at + 1

    def _later(self, at: int) -> None:
        self._waiting.append((at, (list(self._stack), dict(self._registers))))

    def _take(self, count: int) -> list[Any]:
        if not 0 <= count <= len(self._stack):
            raise UndecidedError("it takes from an empty stack")
        at = len(self._stack) - count
        values = self._stack[at:]
        del self._stack[at:]
        return values

    def _loop(self, behind: int, n: int) -> None:
        """On the stack: rounds done, most rounds, whether to go on, and what a round hands to the next."""
        if n < 2:
            raise UndecidedError("a loop has no counters")
        frame = self._take(n + 1)
        self._stack += frame[3:]
        self._later(behind)
        del self._stack[len(self._stack) - (n - 2) :]
        self._stack += [None, frame[1], None, *frame[3:]]

    def _operator(self, name: str, takes: int, leaves: int, count: int) -> None:
        if takes < 0 and count < 1:
            raise UndecidedError(f"{name} is given nothing")
        if takes >= 0 and count >= 0:
            self._stack.append(None)  # the interpreter puts the count there for every operator
        values = self._take(count if takes < 0 else takes)
        if name == "prim::TupleUnpack":
            self._stack += _known_tuple(values[0])
        elif name == "prim::unchecked_cast":
            self._stack += values
        elif name == "prim::TupleIndex":
            self._stack.append(_element(*values))
        else:
            self._stack += [None] * leaves

    # --- Instructions that move values about

    def _load(self, x: int, n: int) -> None:
        self._stack.append(self._registers.get(x))

    def _move(self, x: int, n: int) -> None:
        self._stack.append(self._registers.pop(x, None))

    def _store(self, x: int, n: int) -> None:
        self._registers[x] = self._take(1)[0]

    def _store_several(self, x: int, n: int) -> None:
        self._registers.update(zip(range(x, x + n), self._take(n), strict=True))

    def _clear(self, x: int, n: int) -> None:
        self._registers.pop(x, None)

    def _constant(self, x: int, n: int) -> None:
        self._stack.append(self._constants[x])

    def _get(self, x: int, n: int) -> None:
        self._stack.append(self._follower.slot(self._take(1)[0], x))

    def _set(self, x: int, n: int) -> None:
        self._follower.write(self._take(2)[0], x)

    def _cast(self, x: int, n: int) -> None:
        self._stack += self._take(1)

    def _list(self, x: int, n: int) -> None:
        self._take(n)
        self._stack.append(None)

    def _dict(self, x: int, n: int) -> None:
        if n % 2:
            raise UndecidedError("a dictionary has a key without a value")
        self._list(x, n)

    def _list_unpack(self, x: int, n: int) -> None:
        self._take(1)
        self._stack += [None] * min(x, MAX_STACK + 1)  # the interpreter checks the length

    def _tuple(self, x: int, n: int) -> None:
        self._stack.append(tuple(self._take(x)))

    def _named_tuple(self, x: int, n: int) -> None:
        self._stack.append(tuple(self._take(n)))

    def _tuple_slice(self, x: int, n: int) -> None:
        whole = _known_tuple(self._take(1)[0])
        if x + n > len(whole):
            raise UndecidedError("a slice reaches beyond its tuple")
        self._stack.append(whole[x : x + n])

    def _tuple_index(self, x: int, n: int) -> None:
        self._stack.append(_element(*self._take(2)))

    def _format(self, x: int, n: int) -> None:
        if x < 1:
            raise UndecidedError("a text is made of nothing")
        self._take(x)
        self._stack.append(None)


_ACTS: Mapping[str, Callable[[_Run, int, int], None]] = {
    "LOAD": _Run._load,
    "MOVE": _Run._move,
    "STORE": _Run._store,
    "STOREN": _Run._store_several,
    "DROPR": _Run._clear,
    "LOADC": _Run._constant,
    "GET_ATTR": _Run._get,
    "SET_ATTR": _Run._set,
    "UNCHECKED_CAST": _Run._cast,
    "LIST_CONSTRUCT": _Run._list,
    "DICT_CONSTRUCT": _Run._dict,
    "LIST_UNPACK": _Run._list_unpack,
    "TUPLE_CONSTRUCT": _Run._tuple,
    "NAMED_TUPLE_CONSTRUCT": _Run._named_tuple,
    "TUPLE_SLICE": _Run._tuple_slice,
    "TUPLE_INDEX": _Run._tuple_index,
    "FORMAT": _Run._format,
}


def _join(old: Any, new: Any, depth: int = 2) -> Any:
    """Return what is known of a value that is one of two; the first itself where nothing is lost."""
    if old is new:
        return old
    if type(old) is tuple and type(new) is tuple and len(old) == len(new) and depth:
        both = tuple(_join(a, b, depth - 1) for a, b in zip(old, new, strict=True))
        return old if all(a is b for a, b in zip(old, both, strict=True)) else both
    return None


def _known_tuple(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise UndecidedError("it takes apart what may be no tuple, or of any length")
    return value


def _element(whole: Any, at: Any) -> Any:
    """An element of a tuple; of one that is not known, the interpreter checks the place itself."""
    if type(whole) is tuple and type(at) is int and -len(whole) <= at < len(whole):
        return whole[at]
    return None
