"""The cheap ``dataclass`` answers what the standard library's answers."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserve_wire.records import dataclass as cheap


class Body:
    """What both sides are made of; the name of the class is part of its text."""

    number: int
    text: str = "x"
    parts: tuple[float, ...] = field(default_factory=tuple)
    note: str = field(default="", compare=False, repr=False)


def made_with(decorator: Any, **options: bool) -> Any:
    """The same class by another decorator."""
    return decorator(**options)(type("Body", (), dict(vars(Body))))


OURS, THEIRS = (made_with(decorator, frozen=True, slots=False) for decorator in (cheap, dataclasses.dataclass))
values = st.builds(
    dict, number=st.integers(0, 3), text=st.sampled_from("xy"), parts=st.just(()) | st.just((1.0,)), note=st.text()
)


@given(values, values)
def test_it_compares_hashes_and_prints_alike(one: dict[str, Any], other: dict[str, Any]) -> None:
    mine, also = OURS(**one), OURS(**other)
    real, too = THEIRS(**one), THEIRS(**other)
    assert (mine == also) is (real == too)
    assert hash(mine) == hash(real)
    assert repr(mine) == repr(real)
    assert dataclasses.asdict(mine) == dataclasses.asdict(real)
    assert dataclasses.replace(mine, **other) == also
    assert mine != real


@cheap(frozen=True, slots=True)
class Slotted:
    """At the module's top, where pickle finds it."""

    number: int
    text: str = "x"


@cheap(slots=True)
class Changing:
    """One that may be assigned to."""

    number: int = 0


@cheap(frozen=True)
class Own:
    """One with methods of its own."""

    number: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "own"


def test_slots() -> None:
    one = Slotted(1)
    assert not hasattr(one, "__dict__")
    assert copy.copy(one) == pickle.loads(pickle.dumps(one)) == one


def test_what_changes_has_no_hash() -> None:
    one = Changing()
    one.number = 3
    assert one == Changing(3)
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_methods_of_its_own_stay() -> None:
    assert (Own(1) == Own(2), hash(Own(1)), repr(Own(1))) == (True, 7, "own")


def test_too_many_or_too_few_values() -> None:
    with pytest.raises(TypeError, match="number"):
        OURS()
    with pytest.raises(TypeError, match="unexpected"):
        OURS(number=1, other=2)
