"""Show the results of two devices side by side."""

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
)
LEGEND = (
    "RUN is the model alone, and B / A how many times as long B's median takes; "
    "ANSWERS/s is with several clients at a time; CPU is the processor time of an "
    "answer, which the battery pays; MEMORY is private, without the memory used before "
    "the model was loaded."
)
FIGURES = (
    "runtime",
    "device",
    "threads",
    "run_ms",
    "answer_ms",
    "throughput",
    "cpu_s",
    "load_ms",
    "file_bytes",
    "memory_bytes",
    "accuracy",
)


def read_result(path: Path) -> dict[str, Any]:
    """Read the JSON that ``compare --json`` wrote.

    Raises:
        CommandError: the file is something else.
    """
    result = _read_json(path)
    if not isinstance(result, dict) or "schema" not in result:
        raise CommandError(
            f"{str(path)!r} is not a result of `pocketserve compare MODEL --json`"
        )
    if result["schema"] != SCHEMA:
        raise CommandError(
            f"{str(path)!r} was written by another release; "
            "compare on that device again"
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
        reason = f"{type(error).__name__}: {excerpt(error, 100)}"
        raise CommandError(
            f"{str(path)!r} was changed after `pocketserve compare` wrote it, or is "
            f"damaged ({reason}); compare on that device again"
        ) from None
    return result


def _read_json(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CommandError(
                f"{str(path)!r} is larger than {human_bytes(MAX_BYTES)}, "
                "and so no result of compare"
            )
        text = path.read_text(encoding="utf-8")
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        raise CommandError(
            f"{str(path)!r} is no JSON; "
            "write it with `pocketserve compare MODEL --json`"
        ) from None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number in JSON")


def _check(result: Mapping[str, Any]) -> None:
    """Check everything that is shown of a result.

    Raises:
        LookupError, TypeError, ValueError, AttributeError, ArithmeticError:
            something is missing, or of another type.
    """
    _check_types(result)
    recommended = result["recommendation"]["version"]
    if recommended is not None and recommended not in result["versions"]:
        raise ValueError("the recommended version is not among the versions")
    table = side_by_side(result, result)
    for name in table["versions"]:
        _row(name, result, result, name)
        _remarks(*table["versions"][name])
    _title(table["devices"][0])


def _check_types(result: Mapping[str, Any]) -> None:
    device = result["device"]
    texts = [
        result["model"],
        result["task"],
        result["created"],
        device["machine"],
        device["system"],
        *result["skipped"].values(),
        *result["data"]["samples"],
    ]
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a text is something else")
    if not isinstance(device["cores"], int):
        raise TypeError("the number of cores is something else")


def side_by_side(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of both devices by version.

    Raises:
        CommandError: they are results of different models, or versions.
    """
    _check_comparable(first, second)
    versions = {}
    for name in [*first["versions"], *second["versions"]]:
        versions[name] = [_figures(first, name), _figures(second, name)]
    return {
        "model": first["model"],
        "devices": [_device(first), _device(second)],
        "same_data": first["data"]["samples"] == second["data"]["samples"],
        "recommended": [
            first["recommendation"]["version"],
            second["recommendation"]["version"],
        ],
        "versions": versions,
    }


def _check_comparable(first: Mapping[str, Any], second: Mapping[str, Any]) -> None:
    if (first["model"], first["task"]) != (second["model"], second["task"]):
        models = f"{first['model']!r} and {second['model']!r}"
        raise CommandError(f"these are results of different models: {models}")
    if not first["versions"].keys() & second["versions"].keys():
        raise CommandError(
            "they have no version in common; "
            "compare with the same --versions and --device on both"
        )


def _device(result: Mapping[str, Any]) -> dict[str, Any]:
    return {**result["device"], "created": result["created"]}


def _figures(result: Mapping[str, Any], version: str) -> dict[str, Any]:
    facts = result["versions"].get(version)
    if facts is None:
        reason = result["skipped"].get(version, "it is not among its versions")
        return {"skipped": reason}
    return {key: facts[key] for key in FIGURES}


def print_devices(
    first: Mapping[str, Any], second: Mapping[str, Any], names: tuple[str, str]
) -> None:
    """Print both devices, a row for each version, and the recommendations."""
    table = side_by_side(first, second)
    for place, name in enumerate(names):
        _print_device(table, place, name)
    print()
    rows = [_row(name, first, second, name) for name in table["versions"]]
    print_wide_table(HEADER, rows)
    print_text(LEGEND)
    for name, sides in table["versions"].items():
        for text in _remarks(*sides):
            print_text(f"{name}: {text}")
    if not table["same_data"]:
        print_text(
            "\nThey ran different samples, so only sizes, memory and speed compare."
        )
    print_text(f"\n{_same_choice(*table['recommended'])}")


def _print_device(table: Mapping[str, Any], place: int, name: str) -> None:
    letter = "AB"[place]
    title = _title(table["devices"][place])
    recommended = table["recommended"][place] or "none of them"
    print_text(f"{letter}: {name}: {title}; recommends {recommended}")


def _same_choice(first: str | None, second: str | None) -> str:
    """Return whether the devices recommend the same."""
    if first is None and second is None:
        return "Nothing is recommended for either."
    if first is None or second is None:
        return "Nothing is recommended for one of them."
    if first == second:
        return f"Both recommend {first}."
    return "The devices recommend different versions: --apply belongs on each of them."


def _title(device: Mapping[str, Any]) -> str:
    """Describe a device, and whether other work competed for its cores."""
    facts = [
        device["machine"],
        plural(device["cores"], "core"),
        device["system"],
    ]
    if device.get("simulated"):
        facts.insert(0, "simulated phone")
    load = device.get("load")
    if load is not None and load >= device["cores"]:
        facts.append(f"a load of {load:.1f} from other work")
    return ", ".join((*facts, device["created"]))


def _remarks(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Return why a version is missing, or how both differ."""
    remarks = []
    for letter, side in (("A", first), ("B", second)):
        if "skipped" in side:
            remarks.append(f"not run on {letter}: {side['skipped']}")
    if remarks:
        return remarks
    if first["file_bytes"] != second["file_bytes"]:
        remarks.append("its file has another size on each")
    if _setup(first) != _setup(second):
        remarks.append(f"A has {_setup(first)}; B has {_setup(second)}")
    return remarks


def _setup(side: Mapping[str, Any]) -> str:
    threads = plural(side["threads"], "thread")
    return f"{side['runtime']} on {side['device']}, {threads}"


def _row(
    title: str, first: Mapping[str, Any], second: Mapping[str, Any], version: str
) -> list[str]:
    a = first["versions"].get(version)
    b = second["versions"].get(version)
    run, rate, cpu, memory = zip(_cells(a), _cells(b), strict=True)
    return [title, *run, _ratio(a, b), *rate, *cpu, *memory, _scores(a, b)]


def _ratio(a: Mapping[str, Any] | None, b: Mapping[str, Any] | None) -> str:
    """Return how many times as long a run takes on B."""
    if a is None or b is None:
        return "-"
    return number(b["run_ms"]["p50"]["value"] / a["run_ms"]["p50"]["value"])


def _cells(facts: Mapping[str, Any] | None) -> list[str]:
    """Return run time, answers a second, CPU time and memory."""
    if facts is None:
        return ["not run", "-", "-", "-"]
    if facts["run_ms"]["p50"]["value"] <= 0 or facts["cpu_s"] < 0:
        raise ValueError("a time is not above 0")
    private = facts["memory_bytes"]["private"]
    return [
        with_interval(facts["run_ms"]["p50"]),
        number(facts["throughput"]["answers_per_s"]),
        number(facts["cpu_s"] * 1e3),
        "?" if private is None else human_bytes(private),
    ]


def _scores(first: Mapping[str, Any] | None, second: Mapping[str, Any] | None) -> str:
    """Return the score, or both where the devices compute different answers."""
    a, b = _score(first), _score(second)
    return a if a == b else f"{a} / {b}"


def _score(facts: Mapping[str, Any] | None) -> str:
    if facts is None or not facts["accuracy"]:
        return "-"
    return f"{facts['accuracy']['value']:.4g}"
