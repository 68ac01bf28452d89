"""The standard library's ``dataclass``, cheaper to define: for modules that every start of a server waits for.

``dataclasses`` writes and compiles six methods for each frozen class, a third of a millisecond on a desktop, and
bytecode files do not keep them. Here only ``__init__`` is made that way, and only when a class has its third
instance: a start makes few of most. Comparing, hashing and printing are three functions that all classes share.
What they answer is the same. Assigning to a field of a frozen instance is left to the type checker to find, which also
makes an instance in half the time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(*, frozen: bool = False, slots: bool = False):
        """As in :mod:`dataclasses`, with these two options only.

        Raises:
            TypeError: the class has what only the standard library's knows, such as ``__post_init__``.
        """

        def define(cls: type) -> type:
            own = vars(cls)
            if cls.__doc__ is None:
                cls.__doc__ = cls.__name__  # else it would be the signature, which takes a millisecond to work out
            made = dataclasses.dataclass(cls, init=False, eq=False, repr=False, slots=slots)
            _refuse_the_rest(made)
            if "__init__" not in own:
                made.__init__ = _first_init(made)
            if "__eq__" not in own:
                made.__eq__ = _equal
                if "__hash__" not in own:
                    made.__hash__ = _hash if frozen else None
            if "__repr__" not in own:
                made.__repr__ = _text
            return made

        return define


__all__ = ["dataclass"]


def _refuse_the_rest(made: type) -> None:
    """What is not done here must not be left out in silence."""
    if hasattr(made, "__post_init__"):
        raise TypeError(f"{made.__name__}: __post_init__ would not be called; take the standard library's dataclass")
    usual = ""
    for name, found in vars(made)["__dataclass_fields__"].items():
        if found._field_type is dataclasses._FIELD_CLASSVAR:  # type: ignore[attr-defined]
            continue
        plain = found.init and not found.kw_only and found.hash is None
        if not plain or found._field_type is not dataclasses._FIELD:  # type: ignore[attr-defined]
            raise TypeError(f"{made.__name__}.{name}: fields have a default and a factory, compare and repr only here")
        if found.default is not dataclasses.MISSING or found.default_factory is not dataclasses.MISSING:
            usual = name
        elif usual:
            raise TypeError(f"{made.__name__}.{name} has no default and follows {usual}, which has one")


UNCOMPILED = 2
"""Instances of a class that are filled field by field: compiling costs as much as a hundred of them."""


def _first_init(made: type) -> Any:
    """An ``__init__`` that fills the first instances by itself; for more it makes the real one, which replaces it."""
    uncompiled = UNCOMPILED

    def init(self: Any, *given: Any, **named: Any) -> None:
        nonlocal uncompiled
        uncompiled -= 1
        if uncompiled >= 0 and _fill(self, dataclasses.fields(made), given, named):
            return
        real = _compiled_init(made)
        made.__init__ = real  # type: ignore[misc]
        real(self, *given, **named)

    return init


def _fill(record: Any, fields: Sequence[dataclasses.Field[Any]], given: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Give every field its value; False if the values do not fit, which the real ``__init__`` is to say."""
    values = {field.name: value for field, value in zip(fields, given, strict=False)}
    if len(given) > len(fields) or not values.keys().isdisjoint(named):
        return False
    values |= named
    for field in fields:
        if field.name in values:
            value = values.pop(field.name)
        elif field.default_factory is not dataclasses.MISSING:
            value = field.default_factory()
        else:
            value = field.default
        if value is dataclasses.MISSING:
            return False
        setattr(record, field.name, value)
    return not values


def _compiled_init(made: type) -> Any:
    """Return what the standard library compiles; of fields that are not given, one with a factory gets a value of
    its own.
    """
    scope: dict[str, Any] = {"_absent": dataclasses.MISSING, "__name__": made.__module__}
    taken, body = ["self"], []
    for field in dataclasses.fields(made):
        name, value = field.name, field.name
        if field.default_factory is not dataclasses.MISSING:
            scope[f"_new_{name}"] = field.default_factory
            value = f"_new_{name}() if {name} is _absent else {name}"
            name += "=_absent"
        elif field.default is not dataclasses.MISSING:
            scope[f"_usual_{name}"] = field.default
            name += f"=_usual_{name}"
        taken.append(name)
        body.append(f"self.{field.name} = {value}")
    exec(f"def __init__({', '.join(taken)}):\n " + "\n ".join(body or ["pass"]), scope)
    scope["__init__"].__qualname__ = f"{made.__qualname__}.__init__"
    return scope["__init__"]


def _values(record: Any) -> tuple[Any, ...]:
    return tuple(getattr(record, field.name) for field in dataclasses.fields(record) if field.compare)


def _equal(self: Any, other: object) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return _values(self) == _values(other)


def _hash(self: Any) -> int:
    return hash(_values(self))


def _text(self: Any) -> str:
    shown = (f"{field.name}={getattr(self, field.name)!r}" for field in dataclasses.fields(self) if field.repr)
    return f"{type(self).__qualname__}({', '.join(shown)})"
