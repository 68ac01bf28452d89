"""Words that commands and errors have in common."""

from __future__ import annotations

from pocketserve.messages import did_you_mean, excerpt, label_list, listed, near, plural


def test_one_is_not_told_as_several() -> None:
    """None, one and thousands."""
    assert [plural(n, "process", "processes") for n in (0, 1, 2)] == [
        "0 processes",
        "1 process",
        "2 processes",
    ]
    assert plural(2000, "request") == "2,000 requests"


def test_names_are_listed_up_to_a_number() -> None:
    """In quotes, long ones cut."""
    assert listed(["a", "b"], 2) == "'a', 'b'"
    assert listed(iter("abc"), 2) == "'a', 'b' and 1 more"
    assert len(listed(["x" * 1000], 2)) == 130


def test_labels_with_commas_stand_in_quotes() -> None:
    """So that none is taken for two."""
    assert (
        label_list(["cat", "tench, Tinca tinca", "dog"])
        == 'cat, "tench, Tinca tinca", dog'
    )


def test_what_others_say_is_cut_between_words() -> None:
    """On one line; only what is whole loses its full stop."""
    assert excerpt("one\n  two three. ") == "one two three"
    assert excerpt("unknown type:") == "unknown type"
    assert excerpt("one two three", 9) == excerpt("one two three", 7) == "one two …"
    assert excerpt("x" * 20, 5) == "xxxxx …"
    assert excerpt("one " + "x" * 99, 50) == "one " + "x" * 46 + " …"
    assert excerpt("") == ""


def test_what_others_say_has_no_addresses() -> None:
    """The same fault is told in the same words each time; other numbers stay."""
    assert (
        excerpt("rewriter <function gemm at 0x7f91e72da2a0>: 0x10 rows")
        == "rewriter <function gemm>: 0x10 rows"
    )


def test_what_a_mistake_may_have_meant() -> None:
    """Parts of names first, since people leave out the rest; nothing where nothing is alike."""
    known = ["http_port", "socket_port", "host"]
    assert near("port", known) == ["http_port", "socket_port"]
    assert near("socket", known) == ["socket_port"]
    assert near("hsot", known) == ["host"]
    assert near("x", known) == near("", known) == near("quake" * 1000, known) == []
    assert did_you_mean("hsot", iter(known)) == "; did you mean 'host'?"
    assert did_you_mean("port", known) == "; did you mean 'http_port' or 'socket_port'?"
    assert did_you_mean("quake", known) == ""
