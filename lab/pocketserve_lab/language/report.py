"""Print the comparison of a language model's versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pocketserve.terminal.output import (
    human_bytes,
    print_text,
    print_wide_table,
    printable,
)
from pocketserve_lab.measurement import load_warning

HEADER: Final = (
    "VERSION",
    "FILE",
    "FIRST TOKEN ms",
    "TOKENS/s",
    "PROMPT TOKENS/s",
    "CPU ms/TOKEN",
    "LOAD ms",
    "MEMORY",
    "SAME TEXTS",
    "PERPLEXITY",
    "BITS/BYTE",
)


def print_language_report(result: Mapping[str, Any]) -> None:
    """Print a row for each version, and why others are left out."""
    print_text(load_warning(result["load"]))
    rows = []
    for name, facts in result["versions"].items():
        rows.append([name, *_cells(facts, name == result["reference"])])
    print_wide_table(list(HEADER), rows)
    for name, reason in result["skipped"].items():
        print_text(printable(f"{name} is left out: {reason}"))


def _memory_cell(facts: Mapping[str, Any]) -> str:
    """Return the engine's memory; shared pages count in part."""
    memory = facts["memory_bytes"].get("proportional")
    if memory is None:
        return "-"
    return human_bytes(memory)


def _agreement_cell(facts: Mapping[str, Any], is_reference: bool) -> str:
    """Return how many texts equal the reference's, and how far the others agree."""
    if is_reference:
        return "reference"
    agreement = facts["agreement"]
    whole = agreement["same"]
    start = agreement["start"]
    return f"{whole:.0%} (start {start:.0%})"


def _number_cell(value: float | None, form: str) -> str:
    """Return a number; a dash without one."""
    if value is None:
        return "-"
    return format(value, form)


def _cells(facts: Mapping[str, Any], is_reference: bool) -> list[str]:
    perplexity = facts["perplexity"]
    per_token = _number_cell(perplexity["per_token"], ".2f")
    bits_per_byte = _number_cell(perplexity["bits_per_byte"], ".3f")
    cpu_ms = facts["cpu_s"] * 1e3
    return [
        human_bytes(facts["file_bytes"]),
        f"{facts['first_ms']:.1f}",
        f"{facts['rate']:.1f}",
        f"{facts['prompt_rate']:.1f}",
        f"{cpu_ms:.2f}",
        f"{facts['load_ms']:.0f}",
        _memory_cell(facts),
        _agreement_cell(facts, is_reference),
        per_token,
        bits_per_byte,
    ]
