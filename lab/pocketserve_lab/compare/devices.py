"""The results of two devices side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pocketserve.messages import excerpt, plural
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import human_bytes, print_text, print_wide_table
from pocketserve_lab.compare.report import number, with_interval
from pocketserve_lab.compare.session import SCHEMA

MAX_BYTES = 256 * 2**20
HEADER = (
    *(
        "VERSION",
        "RUN p50 ms, A",
        "B",
        "B / A",
        "ANSWERS/s, A",
        "B",
        "CPU ms, A",
        "B",
        "MEMORY, A",
        "B",
        "SCORE",
    ),
)
LEGEND = (
    "RUN is the model alone, and B / A how many times as long B's median takes; ANSWERS/s is with several callers at a "
    "time; CPU is what an answer costs the battery; MEMORY is private, without what the process held before."
)


def read_result(path: Path) -> dict[str, Any]:
    """Return what ``compare --json`` wrote.

    Raises:
        CommandError: it is something else.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CommandError(
                f"{str(path)!r} is larger than {human_bytes(MAX_BYTES)}, and so no result of compare"
            )
        result = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise CommandError(
            f"{str(path)!r} is no JSON; write it with `pocketserve compare MODEL --json`"
        ) from None
    if not isinstance(result, dict) or "schema" not in result:
        raise CommandError(
            f"{str(path)!r} is no result of `pocketserve compare MODEL --json`"
        )
    if result["schema"] != SCHEMA:
        raise CommandError(
            f"{str(path)!r} was written by another release; compare on that device again"
        )
    try:
        _check(result)
    except (
        LookupError,
        TypeError,
        ValueError,
        AttributeError,
        ArithmeticError,
    ) as error:
        raise CommandError(
            f"{str(path)!r} was changed after `pocketserve compare` wrote it, or is damaged "
            f"({type(error).__name__}: {excerpt(error, 100)}); compare on that device again"
        ) from None
    return result


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def _check(result: Mapping[str, Any]) -> None:
    """Go through all that is shown of a result.

    Raises:
        LookupError, TypeError, ValueError, AttributeError or ArithmeticError: something is missing, or of another kind.
    """
    facts = (
        *(result[key] for key in ("model", "task", "created")),
        result["device"]["machine"],
    )
    texts = (
        *facts,
        result["device"]["system"],
        *result["skipped"].values(),
        *result["data"]["samples"],
    )
    recommended = result["recommendation"]["version"]
    if not all(isinstance(text, str) for text in texts) or not isinstance(
        result["device"]["cores"], int
    ):
        raise TypeError("a text or a number of cores is something else")
    if recommended is not None and recommended not in result["versions"]:
        raise ValueError("the recommended version is not among the versions")
    table = side_by_side(result, result)
    for name in table["versions"]:
        _row(name, result, result, name)
        _remarks(*table["versions"][name])
    _title(table["devices"][0])


def side_by_side(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of both devices by version, in JSON's own types.

    Raises:
        CommandError: they are results of different models, or versions.
    """
    if (first["model"], first["task"]) != (second["model"], second["task"]):
        raise CommandError(
            f"these are results of different models: {first['model']!r} and {second['model']!r}"
        )
    if not first["versions"].keys() & second["versions"].keys():
        raise CommandError(
            "they have no version in common; compare with the same --versions and --device on both"
        )
    names = [
        *first["versions"],
        *(name for name in second["versions"] if name not in first["versions"]),
    ]
    return {
        "model": first["model"],
        "devices": [
            {**result["device"], "created": result["created"]}
            for result in (first, second)
        ],
        "same_data": first["data"]["samples"] == second["data"]["samples"],
        "recommended": [
            result["recommendation"]["version"] for result in (first, second)
        ],
        "versions": {
            name: [_figures(result, name) for result in (first, second)]
            for name in names
        },
    }


def _figures(result: Mapping[str, Any], version: str) -> dict[str, Any]:
    facts = result["versions"].get(version)
    if facts is None:
        return {
            "skipped": result["skipped"].get(version, "it is not among its versions")
        }
    keys = (
        *(
            "runtime",
            "device",
            "threads",
            "run_ms",
            "answer_ms",
            "throughput",
            "cpu_s",
            "load_ms",
            "file_bytes",
        ),
        *("memory_bytes", "accuracy"),
    )
    return {key: facts[key] for key in keys}


def print_devices(
    first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str]
) -> None:
    """Print both devices, a row for each version, and what each recommends."""
    table = side_by_side(first, second)
    for letter, name, device, recommended in zip(
        "AB", names, table["devices"], table["recommended"], strict=True
    ):
        print_text(
            f"{letter}: {name}: {_title(device)}; recommends {recommended or 'none of them'}"
        )
    print()
    print_wide_table(
        HEADER, [_row(name, first, second, name) for name in table["versions"]]
    )
    print_text(LEGEND)
    for name, sides in table["versions"].items():
        for text in _remarks(*sides):
            print_text(f"{name}: {text}")
    if not table["same_data"]:
        print_text(
            "\nThey were asked different samples, so that only sizes, memory and speed compare."
        )
    print_text(f"\n{_same_choice(*table['recommended'])}")


def _same_choice(first: str | None, second: str | None) -> str:
    """Return whether the devices recommend the same."""
    if first is None or second is None:
        return "Nothing is recommended for " + (
            "either." if first == second else "one of them."
        )
    if first == second:
        return f"Both recommend {first}."
    return "The devices recommend different versions: --apply belongs on each of them."


def _title(device: Mapping[str, Any]) -> str:
    """Return what tells a device from another one, and whether other work wanted its cores."""
    kind = ["simulated phone"] if device.get("simulated") else []
    facts = [
        *kind,
        device["machine"],
        plural(device["cores"], "core"),
        device["system"],
    ]
    if (load := device.get("load")) is not None and load >= device["cores"]:
        facts.append(f"a load of {load:.1f} beside it")
    return ", ".join((*facts, device["created"]))


def _remarks(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return why a version is not on both devices, or what is not the same of it there."""
    sides = {"A": first, "B": second}
    reasons = [
        f"not run on {letter}: {side['skipped']}"
        for letter, side in sides.items()
        if "skipped" in side
    ]
    if reasons:
        return reasons
    texts = (
        []
        if first["file_bytes"] == second["file_bytes"]
        else ["its file has another size on each"]
    )
    ways = [
        f"{side['runtime']} on {side['device']}, {plural(side['threads'], 'thread')}"
        for side in sides.values()
    ]
    return (
        texts if ways[0] == ways[1] else [*texts, f"A has {ways[0]}; B has {ways[1]}"]
    )


def _row(
    title: str, first: Mapping[str, Any], second: Mapping[str, Any], version: str
) -> list[str]:
    sides = [result["versions"].get(version) for result in (first, second)]
    cells = [[*_cells(side)] for side in sides]
    ratio = "-"
    if sides[0] is not None and sides[1] is not None:
        ratio = number(
            sides[1]["run_ms"]["p50"]["value"] / sides[0]["run_ms"]["p50"]["value"]
        )
    run, rate, cpu, memory = zip(*cells, strict=True)
    return [title, *run, ratio, *rate, *cpu, *memory, _scores(*sides)]


def _cells(facts: Mapping[str, Any] | None) -> tuple[str, str, str, str]:
    if facts is None:
        return "not run", "-", "-", "-"
    if facts["run_ms"]["p50"]["value"] <= 0 or facts["cpu_s"] < 0:
        raise ValueError("a time is not above 0")
    private = facts["memory_bytes"]["private"]
    return (
        with_interval(facts["run_ms"]["p50"]),
        number(facts["throughput"]["answers_per_s"]),
        number(facts["cpu_s"] * 1e3),
        "?" if private is None else human_bytes(private),
    )


def _scores(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> str:
    """Return both scores; a version that scores otherwise on another device computes otherwise there."""
    accuracies = [
        side["accuracy"] if side is not None else None for side in (first, second)
    ]
    values = [
        f"{accuracy['value']:.4g}" if accuracy else "-" for accuracy in accuracies
    ]
    return values[0] if values[0] == values[1] else " / ".join(values)
