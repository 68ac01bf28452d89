"""Recommend a version."""

from __future__ import annotations

from typing import Any

import pytest

from pocketserve_lab.compare.recommend import recommend, two_digits

ROUNDS = 20


def version(
    run_ms: float, file_bytes: int, score: float | None = None, *, worse: bool = False
) -> dict[str, Any]:
    """Return a version's figures, with the same time in every round."""
    accuracy = (
        None
        if score is None
        else {
            "value": score,
            "more_is_better": True,
            "samples": 10,
        }
    )
    return {
        "run_ms": {"p50": {"value": run_ms, "low": run_ms, "high": run_ms}},
        "samples": {
            "run_ms": [[run_ms * (1 + number / 100)] for number in range(ROUNDS)]
        },
        "file_bytes": file_bytes,
        "accuracy": accuracy,
        "agreement": {"samples": 10},
        "test": {
            "name": "McNemar, exact",
            "worse": worse,
            "p": 0.5,
            "text": "0 of 10 answers differ",
        },
    }


def recommended(default: str = "a", **versions: dict[str, Any]) -> dict[str, Any]:
    """Return the recommendation; the first version is the reference."""
    data = {"samples": ["0.png"]}
    return recommend(
        {
            "versions": versions,
            "default": default,
            "reference": next(iter(versions)),
            "data": data,
            "device": {"load": None},
        }
    )


@pytest.mark.parametrize(
    ("versions", "expected"),
    [
        ({"a": version(2, 100), "b": version(1, 100)}, "b"),
        ({"a": version(2, 100), "b": version(1, 100, worse=True)}, "a"),
        ({"a": version(1.0, 100), "b": version(1.09, 50)}, "b"),
        ({"a": version(1.0, 100), "b": version(1.2, 50)}, "a"),
        ({"a": version(1.0, 100), "b": version(1.0, 100)}, "a"),
    ],
    ids=[
        "faster",
        "faster but worse",
        "as fast and smaller",
        "smaller but slower",
        "no difference",
    ],
)
def test_speed_size_and_default_decide_in_this_order(
    versions: dict[str, dict[str, Any]], expected: str
) -> None:
    """Only versions that aren't worse count."""
    assert recommended(**versions)["version"] == expected


def in_turns(file_bytes: int, *turns: list[float]) -> dict[str, Any]:
    """Return a version's figures that repeat these turns."""
    facts = version(1.0, file_bytes)
    facts["samples"]["run_ms"] = [
        turns[number % len(turns)] for number in range(ROUNDS)
    ]
    return facts


def test_a_version_that_is_slower_only_by_chance_may_win_by_its_size() -> None:
    """It may be up to a quarter slower if it was faster in some rounds."""
    steady = in_turns(100, [1.0])
    result = recommended(a=steady, b=in_turns(50, [1.9], [0.75]))
    assert result["version"] == "b"
    assert (
        "not measurably different from a (1.2 times as long as it; 0.95 to 1.5)"
        in result["sentences"]
    )
    assert recommended(a=steady, b=in_turns(50, [2.6], [0.75]))["version"] == "a"


@pytest.mark.parametrize("fast_of_10", [4, 6])
def test_an_unsteady_version_counts_by_its_average(
    fast_of_10: int,
) -> None:
    """A tiny lead in most rounds doesn't outweigh waiting threads."""
    fast = [0.02, 0.02, 0.17]
    slow = [0.17, 0.17, 0.02]
    jumpy = in_turns(50, *[fast] * fast_of_10, *[slow] * (10 - fast_of_10))
    result = recommended(a=in_turns(100, [0.05]), b=jumpy)
    assert result["version"] == "a"
    assert result["fastest"] == "a"


def test_the_ranking_uses_one_kind_of_average() -> None:
    """By the arithmetic mean b would be slower than a, and yet be called faster."""
    said = recommended(a=in_turns(100, [1.0]), b=in_turns(100, [0.1], [3.0]))[
        "sentences"
    ]
    assert said.startswith(
        "Serve b: its run takes 0.55 ms on average of 20 turns, not measurably different "
    )


def test_two_sentences_explain_the_recommendation() -> None:
    """They name versions, times, sizes, the test, and its power for few samples."""
    said = recommended(
        a=version(2, 2000, 0.9), b=version(1, 1000, 0.9), c=version(4, 500, 1.0)
    )["sentences"]
    assert said == (
        "Serve b: its run takes 1.1 ms on average of 20 turns, at least 2 times as fast as "
        "a (2; 95% interval 2 to 2); a is the default version, and needs 2.0 kB instead "
        "of 1.0 kB. It is not measurably worse than a (p = 0.5), the smallest is c, the "
        "most accurate is c; 10 labelled samples: 0 of 10 answers differ."
    )
    kept = recommended(a=version(1, 100), b=version(2, 200))["sentences"]
    assert kept.startswith(
        "Keep a, the default version: its run takes 1.1 ms on average"
    )
    assert kept.count(". ") == 1


def test_sentences_do_not_contradict_each_other() -> None:
    """Superlatives are true, gains aren't losses, and random numbers aren't samples."""
    kept = recommended(a=version(1, 100, 0.9), b=version(2, 50, 0.9))["sentences"]
    first = "Keep a, the default version: its run takes 1.1 ms on average of 20 turns, and none "
    first += "that answers as well is faster. "
    assert kept.startswith(first)
    assert "the smallest is b" in kept
    kept = recommended(a=version(1.05, 50), b=version(1, 100))["sentences"]
    assert "times as long as b (1.1; 95% interval 1.1 to 1.1); the file of b" in kept
    better = {
        **version(1, 50, 1.0),
        "test": {
            "name": "McNemar, exact",
            "worse": False,
            "better": True,
            "p": 0.01,
            "text": "8 gained, 0 lost",
        },
    }
    assert (
        "It is measurably better than a (p = 0.01)"
        in recommended(a=version(2, 100, 0.5), b=better)["sentences"]
    )
    lost = recommended("b", a=version(2, 100), b=version(1, 50, worse=True))[
        "sentences"
    ]
    assert lost.startswith(
        "Serve a: its run takes 2.2 ms on average of 20 turns; b, the default version, is measurably worse. "
    )
    gone = recommended("c", a=version(2, 100))["sentences"]
    assert gone.startswith(
        "Serve a: its run takes 2.2 ms on average of 20 turns; c, the default version, was not compared. "
    )
    made_up = recommend(
        {
            "versions": {"a": version(1, 1)},
            "default": "a",
            "reference": "a",
            "data": {"samples": []},
            "device": {"load": None},
        }
    )
    assert "10 random inputs" in made_up["sentences"]


def test_one_turn_has_no_interval() -> None:
    """Then a fifth more time may be chance."""

    def single(run_ms: float, file_bytes: int) -> dict[str, Any]:
        facts = version(run_ms, file_bytes)
        facts["samples"]["run_ms"] = [[run_ms]]
        return facts

    result = recommended(a=single(1, 100), b=single(1.2, 50))
    assert result["version"] == "b"
    assert "slower than a by an unknown factor, as 1 turn of" in result["sentences"]


def test_without_a_good_version_nothing_is_recommended() -> None:
    """If the reference fails, there is nothing to compare with."""
    result = recommended(a=version(1, 100, worse=True))
    assert result["version"] is None
    assert "Nothing is recommended" in result["sentences"]


def test_a_margin_excludes_versions_without_proof() -> None:
    """The reference needs none."""
    slow, fast, proven = version(4, 100), version(1, 100), version(2, 100)
    margin = {
        "margin": 0.01,
        "p": 0.2,
        "adjusted_p": 0.2,
        "is_within": False,
    }
    fast["test"]["margin"] = margin
    proven["test"]["margin"] = {
        **margin,
        "adjusted_p": 0.001,
        "is_within": True,
    }
    result = recommend(
        {
            "versions": {"a": slow, "b": fast, "c": proven},
            "default": "b",
            "reference": "a",
            "margin": 0.01,
            "data": {"samples": ["0.png"]},
            "device": {"load": 1e9},
        }
    )
    assert result["version"] == "c"
    said = result["sentences"]
    assert "b, the default version, may lose more than the margin." in said
    assert "shown to lose less than 1.00% against a (one-sided p = 0.001)" in said
    assert said.endswith("Stop them and measure again.")
    assert "shown to lose less than the margin" in result["rule"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1400.0, "1,400"),
        (1.25, "1.2"),
        (0.0964, "0.096"),
        (99.7, "100"),
        (3.0, "3"),
    ],
)
def test_ratios_have_two_digits(value: float, text: str) -> None:
    """None has an exponent."""
    assert two_digits(value) == text
