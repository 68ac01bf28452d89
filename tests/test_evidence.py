"""Recompute the page of evidence from its results."""

from __future__ import annotations

import copy
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from conftest import ROOT

sys.path.append(str(ROOT))

from benchmarks.evidence.__main__ import main
from benchmarks.evidence.claims import (
    ANSWERS_OTHERWISE,
    FURTHER_CLAIMS,
    SEED_CLAIMS,
    Evidence,
    Finding,
    verdict,
)
from benchmarks.evidence.machines import MACHINES
from benchmarks.evidence.page import page
from benchmarks.evidence.results import CONVERSIONS, condense, read_results, write_json
from benchmarks.evidence.subjects import SUBJECTS, Route

from pocketserve_lab.compare.statistics import LEAST_FOR_INTERVAL

CLAIMS = (*SEED_CLAIMS, *FURTHER_CLAIMS)


def version(file_bytes: int, run_ms: float, **changes: Any) -> dict[str, Any]:
    """Return a version's results with equal turns."""
    interval = {
        "value": run_ms,
        "low": run_ms,
        "high": run_ms,
    }
    accuracy = {
        "metric": "top-1",
        "more_is_better": True,
        "samples": 10,
        "value": 0.9,
        "low": 0.8,
        "high": 1.0,
    }
    return {
        "format": "tflite",
        "runtime": "one",
        "threads": 1,
        "file_bytes": file_bytes,
        "load_ms": 5.0,
        "first_answer_ms": 1.0,
        "run_ms": {"p50": interval, "p90": interval, "p99": interval},
        "answer_ms": run_ms,
        "answers_per_s": 1.0,
        "cpu_s": run_ms / 1e3,
        "memory_bytes": {"private": file_bytes, "peak": file_bytes},
        "turn_medians_ms": [run_ms] * LEAST_FOR_INTERVAL,
        "agreement": {
            "samples": 10,
            "share": {"value": 1.0, "low": 0.7, "high": 1.0},
            "largest_difference": 0.0,
        },
        "accuracy": accuracy,
        "test": {"worse": False, "p": 1.0, "text": ""},
        **changes,
    }


def comparison(machine: str, model: str, versions: dict[str, Any]) -> dict[str, Any]:
    """Return the results of a comparison."""
    kind = MACHINES[machine]
    facts = {
        "name": machine,
        "title": kind.title,
        "emulated": kind.emulated,
        "command": "compare",
    }
    return {
        "machine": {**facts, "processor": "a processor", "desktop_cores": 2},
        "pocketserve": "0.1.0",
        "created": "2026-11-22T19:00:00+00:00",
        "device": {
            "machine": "x86_64",
            "system": "Linux",
            "python": "3.11.7",
            "cores": 2,
            "load": 0.1,
        },
        "model": model,
        "task": "image-classification",
        "reference": next(iter(versions)),
        "samples": 10,
        "labelled": 10,
        "versions": versions,
        "skipped": {},
        "recommendation": "tflite",
    }


DIGITS = {
    "torch": version(1000, 8.0),
    "ptl": version(900, 4.0),
    "tflite": version(1000, 2.0),
    "tflite-fp16": version(500, 2.0),
    "tflite-int8": version(250, 1.0),
    "tflite-dynamic": version(310, 1.25),
}


def findings_of(name: str, evidence: Evidence) -> list[Finding]:
    """Return the findings that judge a claim."""
    claim = next(claim for claim in CLAIMS if claim.name == name)
    return list(claim.findings(evidence))


def test_the_page_is_up_to_date() -> None:
    """``make evidence`` writes it."""
    assert (ROOT / "docs" / "generated" / "evidence.md").read_text(
        encoding="utf-8"
    ) == page(Evidence(*read_results()))


def test_every_claim_has_one_row_with_its_verdict() -> None:
    """The numbers determine the verdict."""
    evidence = Evidence(*read_results())
    text = (ROOT / "docs" / "generated" / "evidence.md").read_text(encoding="utf-8")
    for claim in CLAIMS:
        rows = re.findall(
            rf"^\| {re.escape(claim.text)} \|.*\| \*\*(.*)\*\* \|$", text, re.MULTILINE
        )
        assert rows == [verdict(list(claim.findings(evidence)), claim.least)], (
            claim.name
        )


def test_the_results_contain_no_local_paths() -> None:
    """They are public, and small."""
    for path in sorted(
        (ROOT / "benchmarks" / "measurements" / "evidence").glob("*.json")
    ):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/(home|root|tmp|work|usr|Users)/", text), path.name
        assert len(text) < 300_000, path.name


def test_verdicts_follow_from_the_counts() -> None:
    """Counts are all, none, some and nothing."""
    yes, no = (
        Finding(
            "m",
            "",
            "w",
            None,
            "t",
            holds,
        )
        for holds in (True, False)
    )
    assert verdict([yes, yes]) == "confirmed"
    assert verdict([no]) == "refuted"
    assert verdict([yes, no, no]) == "depends: holds in 1 of 3"
    assert verdict([]) == "not measured"
    assert verdict([yes, yes], least=3) == "too few to tell: holds in 2 of 2"


def test_file_sizes_are_compared_with_a_half_and_a_quarter() -> None:
    """310 of 1,000 bytes is neither, and neither is a refusal by convert."""
    evidence = Evidence({}, [comparison("desktop", "digits", DIGITS)])
    assert [(f.what, f.value, f.holds) for f in findings_of("fp16-size", evidence)] == [
        ("tflite-fp16", 0.5, True)
    ]
    assert [(f.value, f.holds) for f in findings_of("int8-size", evidence)] == [
        (0.25, True)
    ]
    assert [(f.value, f.holds) for f in findings_of("dynamic-size", evidence)] == [
        (0.31, False)
    ]
    refused = {
        "from": "onnx",
        "kind": "onnx",
        "quantize": "fp16",
        "refusal": "it would not become smaller; use it",
    }
    found = findings_of("fp16-size", Evidence({"digits": {"onnx-fp16": refused}}, []))
    assert [(f.model, f.value, f.holds) for f in found] == [("digits", None, False)]


def test_the_zoo_counts_only_for_its_path_to_tflite() -> None:
    """Each architecture is a model."""
    zoo = [
        {"name": "a", "path": "pt2>tflite", "state": "ok", "tools": "litert-torch"},
        {"name": "b", "path": "pt2>tflite", "state": "refused", "reason": "no"},
        {"name": "a", "path": "torch>onnx", "state": "ok", "tools": "torch"},
    ]
    found = []
    for f in findings_of("one-path", Evidence({}, [], zoo)):
        found.append((f.model, f.text, f.holds))
    assert found == [("a", "made by litert-torch", True), ("b", "no", False)]


@pytest.mark.parametrize("words", ANSWERS_OTHERWISE)
def test_a_refused_version_counts_as_lost_accuracy(words: str) -> None:
    """It is in no comparison, so only good versions would count otherwise."""
    refusal = f"the result {words}: its outputs differ; try fp16"
    outcome = {
        "from": "torch",
        "kind": "tflite",
        "quantize": "int8",
        "refusal": refusal,
    }
    evidence = Evidence(
        {"diabetes": {"tflite-int8": outcome}},
        [comparison("desktop", "digits", DIGITS)],
    )
    found = []
    for f in findings_of("int8-accuracy", evidence):
        found.append((f.model, f.what, f.holds))
    assert found == [
        ("digits", "tflite-int8", True),
        ("digits", "tflite-dynamic", True),
        ("diabetes", "tflite-int8", False),
    ]


def test_speeds_are_ratios_of_the_turns() -> None:
    """2 ms to 1 ms is twice as fast, 2 to 1.25 is not.

    Emulated times never count.
    """
    evidence = Evidence(
        {}, [comparison(machine, "digits", DIGITS) for machine in MACHINES]
    )
    found = findings_of("int8-speed", evidence)
    assert [(f.machine, f.value, f.holds) for f in found] == [
        ("desktop", 2.0, True),
        ("phone", 2.0, True),
    ]
    assert [(f.value, f.holds) for f in findings_of("dynamic-speed", evidence)] == [
        (1.6, False)
    ] * 2


def test_converting_gains_if_it_is_faster_and_not_larger() -> None:
    """The unconverted version is the reference."""
    large = {**DIGITS, "ptl": version(1001, 4.0)}
    found = findings_of("gain", Evidence({}, [comparison("desktop", "digits", large)]))
    assert [(f.what, f.value, f.holds) for f in found] == [
        ("ptl", 2.0, False),
        ("tflite", 4.0, True),
    ]


def test_results_within_chance_are_not_judged() -> None:
    """A few turns have no interval: the claim is not measured, rather than refuted."""
    few = {}
    for name, facts in DIGITS.items():
        few[name] = {**facts, "turn_medians_ms": facts["turn_medians_ms"][:2]}
    assert not findings_of("gain", Evidence({}, [comparison("desktop", "digits", few)]))


@pytest.mark.parametrize(
    ("ptl", "holds"),
    [
        (4.0, True),
        (1.0, False),
    ],
)
def test_a_regression_substitutes_if_its_paths_have_the_same_order(
    ptl: float, holds: bool
) -> None:
    """The order is TFLite, PyTorch Mobile, unconverted."""
    simple = {**DIGITS, "ptl": version(900, ptl)}
    evidence = Evidence(
        {},
        [
            comparison("desktop", "diabetes", simple),
            comparison("desktop", "digits", DIGITS),
        ],
    )
    assert [(f.what, f.holds) for f in findings_of("stand-in", evidence)] == [
        ("order by diabetes", holds)
    ]


def test_the_desktops_winner_is_checked_on_the_phone() -> None:
    """A version that takes twice the phone's best time is not fastest there."""
    phone = {**DIGITS, "tflite": version(1000, 0.5)}
    evidence = Evidence(
        {},
        [comparison("desktop", "digits", DIGITS), comparison("phone", "digits", phone)],
    )
    assert [(f.value, f.holds) for f in findings_of("winner", evidence)] == [
        (2.0, False)
    ]


def test_scores_on_arm_are_compared_with_those_here() -> None:
    """0.9 and 0.8 differ."""
    arm = {
        "tflite": version(1000, 99.0),
        "tflite-int8": copy.deepcopy(DIGITS["tflite-int8"]),
    }
    arm["tflite-int8"]["accuracy"]["value"] = 0.8
    evidence = Evidence(
        {},
        [comparison("desktop", "digits", DIGITS), comparison("arm64", "digits", arm)],
    )
    assert [(f.what, f.holds) for f in findings_of("arm64", evidence)] == [
        ("tflite", True),
        ("tflite-int8", False),
    ]


def test_a_busy_machine_and_emulation_are_marked() -> None:
    """Only the load of machines with measured times counts."""
    quiet = page(
        Evidence({}, [comparison(machine, "digits", DIGITS) for machine in MACHINES])
    )
    assert "run, ms, EMULATED" in quiet
    assert "The load was up to" not in quiet
    busy = comparison("desktop", "digits", DIGITS)
    busy["device"]["load"] = 2.5
    assert "The load was up to 2.5 on 2 cores" in page(Evidence({}, [busy]))


def test_a_stored_comparison_is_compact(tmp_path: Path) -> None:
    """It has medians with five digits and no folder, and can be read again."""
    facts = {**version(1000, 2.0), "samples": {"run_ms": [[3.0, 1.0, 2.0], [5.123456]]}}
    facts |= {
        "answer_ms": {"p50": {"value": 2.5}},
        "throughput": {"answers_per_s": 7.0},
    }
    facts["agreement"]["same"] = [True]
    facts["accuracy"]["scores"] = [1.0]
    full = comparison("desktop", "digits", {"tflite": facts}) | {
        "folder": "/somewhere",
        "schema": 1,
    }
    full |= {
        "data": {"origin": "/somewhere", "samples": ["a", "b"], "labelled": 1},
        "recommendation": {"version": "tflite"},
    }
    content = condense(full, {"name": "desktop"})
    write_json(tmp_path / "desktop-digits.json", content)
    write_json(tmp_path / CONVERSIONS, {"digits": {}})
    zoo = tmp_path / "zoo.jsonl"
    zoo.write_text(
        '{"name":"a","shape":[1]}\n{"name":"a","path":"pt2>tflite"}\n', encoding="utf-8"
    )
    conversions = [{"name": "a", "path": "pt2>tflite"}]
    assert read_results(tmp_path, zoo) == (
        {"digits": {}},
        [json.loads(json.dumps(content))],
        conversions,
    )
    kept = content["versions"]["tflite"]
    assert kept["turn_medians_ms"] == [2.0, 5.1235]
    assert content["samples"] == 2
    assert kept["answer_ms"] == 2.5
    assert kept["answers_per_s"] == 7.0
    assert "same" not in kept["agreement"]
    assert "scores" not in kept["accuracy"]
    assert "somewhere" not in json.dumps(content)


def test_routes_name_each_version_once() -> None:
    """A model's own kind is only made smaller."""
    for subject in SUBJECTS:
        names = [route.version for route in subject.routes()]
        assert len(names) == len(set(names))
        assert not set(names) & set(subject.bases)
    mobilenet = next(subject for subject in SUBJECTS if subject.name == "mobilenet")
    assert next(mobilenet.routes()) == Route("tflite", "tflite", "fp16")


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["page", "--models", "nothing"],
    ],
)
def test_an_unknown_step_or_model_is_refused(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """The message lists the names."""
    assert main(arguments) == 2
    assert "; there are " in capsys.readouterr().err
