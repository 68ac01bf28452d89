"""Results in the repository: comparisons without raw samples."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS, ZOO = (
    ROOT / "benchmarks" / "measurements" / "evidence",
    ROOT / "docs" / "generated" / "zoo.jsonl",
)
CONVERSIONS = "conversions.json"
DIGITS = 5
"""Significant digits of a number that is kept."""

KEPT = (
    "format",
    "runtime",
    "threads",
    "file_bytes",
    "load_ms",
    "first_answer_ms",
    "run_ms",
    "cpu_s",
    "memory_bytes",
)


def condense(result: Mapping[str, Any], machine: Mapping[str, Any]) -> dict[str, Any]:
    """Return a comparison with medians in place of samples.

    Args:
        machine: what ran it: ``name``, ``title``, ``command`` and ``processor``.
    """
    versions = {
        name: _condense_version(facts) for name, facts in result["versions"].items()
    }
    keys = ("pocketserve", "created", "device", "model", "task", "reference")
    content = {
        "machine": dict(machine),
        **{key: result[key] for key in keys},
        "samples": len(result["data"]["samples"]),
        "labelled": result["data"]["labelled"],
        "versions": versions,
        "skipped": result["skipped"],
        "recommendation": result["recommendation"]["version"],
    }
    rounded: dict[str, Any] = _rounded(content)
    return rounded


def _condense_version(facts: Mapping[str, Any]) -> dict[str, Any]:
    accuracy = facts["accuracy"]
    agreement = facts["agreement"]
    turns = []
    for turn in facts["samples"]["run_ms"]:
        turns.append(sorted(turn)[len(turn) // 2])
    return {
        **{key: facts[key] for key in KEPT},
        "answer_ms": facts["answer_ms"]["p50"]["value"],
        "answers_per_s": facts["throughput"]["answers_per_s"],
        "turn_medians_ms": turns,
        "agreement": agreement
        and {key: agreement[key] for key in ("samples", "share", "largest_difference")},
        "accuracy": accuracy
        and {
            key: accuracy[key]
            for key in ("metric", "more_is_better", "samples", "value", "low", "high")
        },
        "test": {
            key: facts["test"][key]
            for key in ("worse", "p", "text")
            if key in facts["test"]
        },
    }


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return value


def write_json(path: Path, content: Any) -> None:
    """Write a file atomically, with short lines for diffs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = []
    for key, value in content.items():
        if isinstance(value, Mapping) and value:
            inner = ",\n".join(
                f"  {json.dumps(name)}: {json.dumps(item)}"
                for name, item in value.items()
            )
            lines.append(f" {json.dumps(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f" {json.dumps(key)}: {json.dumps(value)}")
    arriving = path.with_suffix(".part")
    arriving.write_text("{\n" + ",\n".join(lines) + "\n}\n", "utf-8")
    os.replace(arriving, path)


def read_results(
    folder: Path = RESULTS, zoo: Path = ZOO
) -> tuple[dict[str, Any], list[dict[str, Any]], list[dict[str, Any]]]:
    """Return all conversions, comparisons and the zoo's conversions."""
    conversions = json.loads((folder / CONVERSIONS).read_text("utf-8"))
    files = sorted(path for path in folder.glob("*.json") if path.name != CONVERSIONS)
    lines = [json.loads(line) for line in zoo.read_text("utf-8").splitlines()]
    return (
        conversions,
        [json.loads(path.read_text("utf-8")) for path in files],
        [line for line in lines if "path" in line],
    )
