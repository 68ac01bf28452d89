"""Words that commands and errors have in common."""

from __future__ import annotations

from pocketserve.wording import counted, listed


def test_one_is_not_told_as_several() -> None:
    """None, one and thousands."""
    assert [counted(n, "process", "processes") for n in (0, 1, 2)] == ["0 processes", "1 process", "2 processes"]
    assert counted(2000, "request") == "2,000 requests"


def test_names_are_listed_up_to_a_number() -> None:
    """In quotes, long ones cut."""
    assert listed(["a", "b"], 2) == "'a', 'b'"
    assert listed(iter("abc"), 2) == "'a', 'b' and 1 more"
    assert len(listed(["x" * 1000], 2)) == 130
