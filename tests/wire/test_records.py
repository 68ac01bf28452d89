"""The cheap ``dataclass`` answers what the standard library's answers."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import field
from typing import Any, ClassVar

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


def outcome(made: Any, given: tuple[Any, ...], named: dict[str, Any]) -> object:
    """The values of an instance, or the words that refuse to make it."""
    try:
        return dataclasses.asdict(made(*given, **named))
    except TypeError as error:
        return str(error)


OURS, THEIRS = (made_with(decorator, frozen=True, slots=False) for decorator in (cheap, dataclasses.dataclass))
values = st.builds(
    dict, number=st.integers(0, 3), text=st.sampled_from("xy"), parts=st.just(()) | st.just((1.0,)), note=st.text()
)


@pytest.mark.parametrize("before", range(4))
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ((), {}),
        ((1,), {}),
        ((1, "y", (2.0,), "n"), {}),
        ((1, "y", (2.0,), "n", 5), {}),
        ((1,), {"number": 2}),
        ((1,), {"other": 2}),
        ((), {"text": "y"}),
        ((), {"note": "n", "number": 3}),
    ],
)
def test_every_instance_takes_and_refuses_the_same_values(before: int, given: Any, named: dict[str, Any]) -> None:
    mine, theirs = made_with(cheap), made_with(dataclasses.dataclass)
    for number in range(before):
        mine(number)
    assert outcome(mine, given, named) == outcome(theirs, given, named)


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


def test_the_first_instance_of_a_class_is_like_those_that_follow() -> None:
    made = made_with(cheap, frozen=True, slots=True)
    instances = [made(1) for _ in range(5)]
    assert all(one == instances[0] for one in instances)
    assert dataclasses.replace(instances[0], text="y") == made(1, "y")


def test_a_class_that_had_no_instance_refuses_wrong_values_and_remains_usable() -> None:
    made = made_with(cheap)
    with pytest.raises(TypeError, match="number"):
        made()
    assert made(number=2).number == 2


def test_each_instance_has_values_of_its_own_from_a_factory() -> None:
    made = cheap(slots=True)(
        type("Holder", (), {"__annotations__": {"held": "list[int]"}, "held": field(default_factory=list)})
    )
    one, other = made(), made()
    one.held.append(1)
    assert (one.held, other.held) == ([1], [])


def test_a_class_without_fields() -> None:
    made = cheap(frozen=True, slots=True)(type("Nothing", (), {}))
    assert made() == made()


@cheap(frozen=True, slots=True)
class Longer(Slotted):
    """Fields of its own behind those that it inherits."""

    more: int = 3


def test_inherited_fields() -> None:
    assert Longer(1, "y", 4) != Longer(1, "y")
    assert (Longer(1).text, Longer(1).more) == ("x", 3)
    assert Slotted(1) == Slotted(1, "x")


@dataclasses.dataclass
class Checked:
    """One that looks at its values."""

    number: int = 0

    def __post_init__(self) -> None:
        raise AssertionError


@pytest.mark.parametrize(
    ("base", "members"),
    [
        (Checked, {}),
        (object, {"__post_init__": lambda self: None}),
        (object, {"__annotations__": {"a": "int", "_": dataclasses.KW_ONLY, "b": "int"}}),
        (object, {"__annotations__": {"a": "int"}, "a": field(default=1, init=False)}),
        (object, {"__annotations__": {"a": "int"}, "a": field(default=1, hash=False)}),
        (object, {"__annotations__": {"a": dataclasses.InitVar[int]}}),
        (object, {"__annotations__": {"a": "int", "b": "int"}, "a": 1}),
    ],
)
def test_what_it_does_not_do_is_refused_when_the_class_is_made(base: type, members: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        cheap(frozen=True)(type("Odd", (base,), members))


def test_class_variables_are_no_fields() -> None:
    made = cheap()(type("Shared", (), {"__annotations__": {"a": "int", "b": ClassVar[int]}, "b": 3}))
    assert (made(1).a, made(2).b, [one.name for one in dataclasses.fields(made)]) == (1, 3, ["a"])
