"""Answers of a fleet: tables for people and plain data for programs, by profile and by phone."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any, Final

from pocketserve_simulate.fleet.asking import SLOW_SHARE, Answer, Failure, PhoneAnswers, percentile

Table = tuple[list[str], list[list[str]]]
MAX_EXAMPLES: Final = 3


def reference_of(results: Sequence[PhoneAnswers]) -> list[Answer | Failure]:
    """Return the answers that others are compared with: those of the first phone that answered most."""
    return max(results, key=lambda result: len(result.answers) - len(result.failures)).answers


def profiles_json(
    results: Sequence[PhoneAnswers], reference: Sequence[Answer | Failure], rate: float | None
) -> dict[str, Any]:
    """Return by profile: phones, failures, agreement, times in ms, bytes of memory, and whether it holds the rate."""
    profiles: dict[str, list[PhoneAnswers]] = {}
    for result in results:
        profiles.setdefault(result.phone.profile, []).append(result)
    return {name: _profile(group, reference, rate) for name, group in profiles.items()}


def _profile(
    group: Sequence[PhoneAnswers], reference: Sequence[Answer | Failure], rate: float | None
) -> dict[str, Any]:
    times = [ms for result in group for ms in result.times_ms]
    agreements = [share for result in group if (share := result.agreement(reference)) is not None]
    memory = [result.memory for result in group if result.memory is not None]
    holds = {} if rate is None else {"rate": rate, "holds_rate": all(result.holds(rate) for result in group)}
    return {
        "phones": len(group),
        "failures": sum(len(result.failures) for result in group),
        "agreement": statistics.fmean(agreements) if agreements else None,
        "p50_ms": percentile(times, 0.5),
        "p95_ms": percentile(times, SLOW_SHARE),
        "memory_bytes": max(memory, default=None),
        **holds,
    }


def phones_json(results: Sequence[PhoneAnswers], reference: Sequence[Answer | Failure]) -> list[dict[str, Any]]:
    """Return what each phone answered, with its address and every answer or error."""
    return [
        {
            "phone": result.phone.number,
            "host": result.phone.host,
            "profile": result.phone.profile,
            "versions": result.versions,
            "agreement": result.agreement(reference),
            "p50_ms": result.percentile(0.5),
            "p95_ms": result.percentile(SLOW_SHARE),
            "memory_bytes": result.memory,
            "answers": [
                {"code": answer.code, "error": answer.text} if isinstance(answer, Failure) else answer
                for answer in result.answers
            ],
        }
        for result in results
    ]


def profile_table(profiles: dict[str, Any], rate: float | None) -> Table:
    """Return header and rows of the table by profile; at most 45 columns wide."""
    header = ["PROFILE", "N", "SAME", "p50 ms", "p95 ms", "MB"]
    rows = [
        [
            name[:8],
            str(facts["phones"]),
            share_text(facts["agreement"]),
            _number(facts["p50_ms"]),
            _number(facts["p95_ms"]),
            "-" if facts["memory_bytes"] is None else f"{facts['memory_bytes'] / 1e6:.0f}",
        ]
        for name, facts in profiles.items()
    ]
    if rate is not None:
        header.append(f"{rate:g}/s")
        for row, facts in zip(rows, profiles.values(), strict=True):
            row.append("yes" if facts["holds_rate"] else "no")
    return header, rows


def failure_lines(results: Sequence[PhoneAnswers]) -> list[str]:
    """Return a line for each of the first phones that did not answer everything, and one for the rest."""
    failing = [result for result in results if result.failures]
    lines = [
        f"phone {result.phone.number}: {len(result.failures)} of {len(result.answers)} failed: "
        f"{result.failures[0].code} {result.failures[0].text}"
        for result in failing[:MAX_EXAMPLES]
    ]
    return lines + ([f"and {len(failing) - MAX_EXAMPLES} more phones"] if len(failing) > MAX_EXAMPLES else [])


def share_text(share: float | None) -> str:
    """Return a share in whole percent, rounded down: 100 % is all."""
    return "-" if share is None else f"{int(100 * share + 1e-9)}%"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"
