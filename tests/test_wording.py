"""Test phrases that commands and errors share."""

from __future__ import annotations

from pocketserve.messages import did_you_mean, excerpt, label_list, listed, near, plural


def test_singular_and_plural() -> None:
    assert [plural(n, "process", "processes") for n in (0, 1, 2)] == [
        "0 processes",
        "1 process",
        "2 processes",
    ]
    assert plural(2000, "request") == "2,000 requests"


def test_names_are_listed_up_to_a_number() -> None:
    """They are quoted, and long ones are cut."""
    assert listed(["a", "b"], 2) == "'a', 'b'"
    assert listed(iter("abc"), 2) == "'a', 'b' and 1 more"
    assert len(listed(["x" * 1000], 2)) == 130


def test_labels_with_commas_are_quoted() -> None:
    """Otherwise one would look like two."""
    assert (
        label_list(["cat", "tench, Tinca tinca", "dog"])
        == 'cat, "tench, Tinca tinca", dog'
    )


def test_quoted_messages_are_cut_between_words() -> None:
    """They are on one line, and a complete one loses its full stop."""
    assert excerpt("one\n  two three. ") == "one two three"
    assert excerpt("unknown type:") == "unknown type"
    assert excerpt("one two three", 9) == excerpt("one two three", 7) == "one two …"
    assert excerpt("x" * 20, 5) == "xxxxx …"
    assert excerpt("one " + "x" * 99, 50) == "one " + "x" * 46 + " …"
    assert excerpt("") == ""


def test_quoted_messages_contain_no_addresses() -> None:
    """The same fault gives the same text each time.

    Other numbers are kept.
    """
    assert (
        excerpt("rewriter <function gemm at 0x7f91e72da2a0>: 0x10 rows")
        == "rewriter <function gemm>: 0x10 rows"
    )


def test_similar_names_are_suggested() -> None:
    """Parts of names come first, because people omit the rest."""
    known = ["http_port", "socket_port", "host"]
    assert near("port", known) == ["http_port", "socket_port"]
    assert near("socket", known) == ["socket_port"]
    assert near("hsot", known) == ["host"]
    assert near("x", known) == near("", known) == near("quake" * 1000, known) == []
    assert did_you_mean("hsot", iter(known)) == "; did you mean 'host'?"
    assert did_you_mean("port", known) == "; did you mean 'http_port' or 'socket_port'?"
    assert did_you_mean("quake", known) == ""
