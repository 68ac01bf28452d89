"""Step 3: docs/generated/evidence.md, from the results alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.evidence.claims import (
    BASES,
    FURTHER_CLAIMS,
    SEED_CLAIMS,
    Claim,
    Evidence,
    Finding,
    score,
    speed,
    times,
    verdict,
)
from benchmarks.evidence.subjects import SUBJECTS
from pocketserve.messages import plural
from pocketserve.terminal.output import human_bytes
from pocketserve_lab.compare.report import number

MACHINES = {"desktop": "desktop", "phone": "simulated phone", "arm64": "emulated arm64"}
HEAD = """# Does converting pay? The evidence

Written by `make evidence` from the results in `benchmarks/measurements/evidence`: every number and every verdict on
this page is computed from them, and a test repeats that. [convert](../convert.md) made the versions, each checked
against its original, and [compare](../compare.md) measured them and explains the columns. Of each turn the median is
kept here, and times are compared by it. On your own device and model the answer may be another one:
`pocketserve compare MODEL` gives it.
"""
LIMITS = """## What this does not show

- No phone was measured. The [simulated phone](../simulate.md) is the desktop's processor for a share of the time: what
  int8 gains on an ARM core, it cannot tell. Its limit on memory holds for the command's own process, not for those of
  the versions that `compare` starts.
- [Emulated](../../tests/arm64.md) times say nothing, and nothing here is derived from them; sizes and answers are
  those of real ARM programs. Of the frameworks, TensorFlow Lite and ONNX Runtime run there.
- On the simulated phone, TorchScript, torch.export, ExecuTorch, the smaller TensorFlow.js versions, int16x8 and the
  second unconverted version were left out: a run has to end within minutes.
- The public models have no labels for the public pictures and sounds, but for the digits: where there is no score,
  answers are held against the reference's.
- `onnx-int8` ran with an option that keeps its sums exact, and costs time on x86 processors with VNNI, where the server
  no longer sets it. Whether this processor has VNNI was not recorded: its times here may be too long.
- A few models are not all models.
"""


def page(evidence: Evidence) -> str:
    """Return the whole page."""
    sections: list[Iterable[str]] = [
        [HEAD],
        _machines(evidence),
        [
            "## What the seeds claim\n",
            "The earlier public projects from which this one grew, in our own words.\n",
        ],
        _claims(SEED_CLAIMS, evidence),
        ["\n## What else follows from the same results\n"],
        _claims(FURTHER_CLAIMS, evidence),
        ["\n## What converting gained and lost\n"],
        _gains(evidence),
        *(_model(evidence, subject.name, subject.title) for subject in SUBJECTS),
        _refusals(evidence),
        ["\n## The numbers behind each verdict\n"],
        *(_numbers(claim, evidence) for claim in (*SEED_CLAIMS, *FURTHER_CLAIMS)),
        [LIMITS.rstrip()],
    ]
    return "\n".join(line for section in sections for line in section) + "\n"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield a table in Markdown."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'---|' * len(heads)}"
    for row in rows:
        yield f"| {' | '.join(cell.replace('|', '/') for cell in row)} |"


def _machines(evidence: Evidence) -> Iterator[str]:
    """Yield the machines and their load."""
    rows = []
    for name, title in MACHINES.items():
        results = []
        for result in evidence.comparisons:
            if result["machine"]["name"] == name:
                results.append(result)
        if results:
            rows.append(_machine_row(results))
        else:
            rows.append([title, "not measured", "", "", "", ""])
    yield from table(
        ("machine", "what it is", "command", "measured", "load before", "models"), rows
    )
    yield from _load_remark(evidence)
    yield ""


def _machine_row(results: Sequence[Mapping[str, Any]]) -> list[str]:
    machine = results[0]["machine"]
    device = results[0]["device"]
    cores = plural(device["cores"], "core")
    processor = machine["processor"] or "unknown processor"
    system = f"{device['machine']}, {cores}, Python {device['python']}"
    dates = sorted(result["created"][:16].replace("T", " ") for result in results)
    period = dates[0] if dates[0] == dates[-1] else f"{dates[0]} to {dates[-1]}"
    return [
        machine["title"],
        f"{system}; on {processor}",
        f"`{machine['command']}`",
        f"{period} UTC",
        _load(results),
        str(len(results)),
    ]


def _load_remark(evidence: Evidence) -> Iterator[str]:
    """Yield a warning if the desktop was busy before a comparison."""
    highest, cores = 0.0, 1
    for result in evidence.comparisons:
        cores = max(cores, result["machine"]["desktop_cores"])
        if not result["machine"]["emulated"]:
            highest = max(highest, result["device"]["load"] or 0.0)
    if highest >= cores:
        yield (
            f"\n**The load was up to {highest:.1f} on {plural(cores, 'core')} before a "
            "comparison.** That may be the one before it, or other work. Sizes and "
            "answers stand; if other work ran, times hold beside it only."
        )


def _load(results: Sequence[Mapping[str, Any]]) -> str:
    loads = []
    for result in results:
        if result["device"]["load"] is not None:
            loads.append(result["device"]["load"])
    if loads:
        return f"{min(loads):.1f} to {max(loads):.1f}"
    return "unknown"


def _claims(claims: Sequence[Claim], evidence: Evidence) -> Iterator[str]:
    rows = []
    for claim in claims:
        findings = list(claim.findings(evidence))
        rows.append(
            [
                claim.text,
                claim.rule,
                _summary(findings),
                f"**{verdict(findings, claim.least)}**",
            ]
        )
    yield from table(("claim", "it holds where", "measured", "verdict"), rows)


def _summary(findings: Sequence[Finding]) -> str:
    """Return the counts and the range of the numbers, by machine."""
    parts = []
    for machine in ("", *MACHINES):
        here = [finding for finding in findings if finding.machine == machine]
        if not here:
            continue
        values = [finding.value for finding in here if finding.value is not None]
        text = f"{sum(finding.holds for finding in here)} of {len(here)}"
        if values:
            middle = number(statistics.median(values))
            text += (
                f" ({number(min(values))} to {number(max(values))}, median {middle})"
            )
        models = len({finding.model for finding in here})
        parts.append(
            f"{MACHINES.get(machine, '')}{': ' if machine else ''}{text}, {plural(models, 'model')}"
        )
    return "; ".join(parts)


def _gains(evidence: Evidence) -> Iterator[str]:
    """Yield original models with their recommended versions."""
    yield "The model as it came (the reference) against the version that `compare` recommends there.\n"
    rows = []
    for result in evidence.comparisons:
        machine = result["machine"]
        versions = result["versions"]
        base = BASES[result["model"]]
        best = result["recommendation"]
        if machine["emulated"] or base not in versions or best not in versions:
            continue
        before = versions[base]
        after = versions[best]
        cells = [
            result["model"],
            MACHINES[machine["name"]],
            base,
            best if best != base else f"{best}: stay",
        ]
        cells += [
            _change(before["file_bytes"], after["file_bytes"]),
            times(speed(versions, best, base)),
        ]
        cells += [
            _change(*(facts["memory_bytes"]["private"] for facts in (before, after)))
        ]
        cells += [
            f"{number(before['load_ms'])} to {number(after['load_ms'])}",
            _answers(before, after),
        ]
        rows.append(cells)
    heads = (
        "model",
        "machine",
        "as it came",
        "recommended",
        "file",
        "as fast",
        "memory",
        "load, ms",
        "score, or same answers",
    )
    yield from table(heads, rows)


def _change(before: int | None, after: int | None) -> str:
    if before is None or after is None:
        return "?"
    return f"{human_bytes(before)} to {human_bytes(after)}"


def _answers(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    if before["accuracy"] and after["accuracy"]:
        return f"{score(before['accuracy'])} to {score(after['accuracy'])} {after['accuracy']['metric']}"
    if after["agreement"]:
        return f"{after['agreement']['share']['value']:.0%} the same"
    return "?"


def _model(evidence: Evidence, name: str, title: str) -> Iterator[str]:
    places = {machine: evidence.versions(machine, name) for machine in MACHINES}
    if not any(places.values()):
        return
    yield f"\n## {name}\n"
    result = next(result for result in evidence.comparisons if result["model"] == name)
    labels = "none with a label"
    if result["labelled"]:
        labels = f"{result['labelled']} with a label"
    samples = f"{plural(result['samples'], 'sample')}, {labels}"
    yield f"{title[0].upper()}{title[1:]}. {samples}; held against `{BASES[name]}`.\n"
    outcomes = evidence.conversions.get(name, {})
    names: list[str] = []
    for versions in places.values():
        names += [version for version in versions if version not in names]
    yield from table(
        (
            "version",
            "made from",
            "file",
            "of the reference's",
            "same answers",
            "score",
            "measurably worse",
            "score on arm64",
        ),
        [_size_row(version, name, places, outcomes) for version in names],
    )
    yield ""
    yield from table(
        ("version", *map(str, _time_heads(places))),
        [[version, *_time_cells(version, name, places)] for version in names],
    )
    yield from _skipped(evidence, name)


def _skipped(evidence: Evidence, model: str) -> Iterator[str]:
    """Yield the versions that were not compared, with the reasons."""
    reasons = {}
    for result in evidence.comparisons:
        if result["model"] == model:
            machine = MACHINES[result["machine"]["name"]]
            for version, reason in result["skipped"].items():
                reasons[f"{version} ({machine})"] = reason
    if reasons:
        texts = [f"{version}: {reason}" for version, reason in reasons.items()]
        yield f"\nNot compared: {'; '.join(texts)}"


def _size_row(
    version: str, model: str, places: Mapping[str, Any], outcomes: Mapping[str, Any]
) -> list[str]:
    machine = next(place for place in MACHINES if version in places[place])
    facts = places[machine][version]
    base = places[machine].get(BASES[model])
    outcome = outcomes.get(version, {})
    made = "as it came"
    if "tools" in outcome:
        made = f"{outcome['from']}, {outcome['tools']}"
    arm = places["arm64"].get(version)
    is_base = version == BASES[model]
    agreement = facts["agreement"]
    return [
        version,
        made,
        human_bytes(facts["file_bytes"]),
        f"{facts['file_bytes'] / base['file_bytes']:.2f}" if base else "",
        "reference"
        if is_base
        else f"{agreement['share']['value']:.1%}"
        if agreement
        else "",
        _score(facts),
        "" if is_base else "YES" if facts["test"]["worse"] else "no",
        _score(arm) if arm else "",
    ]


def _score(facts: Mapping[str, Any]) -> str:
    if facts["accuracy"]:
        return score(facts["accuracy"])
    return ""


def _time_heads(places: Mapping[str, Any]) -> Iterator[str]:
    for machine in ("desktop", "phone"):
        if places[machine]:
            yield from (
                f"{MACHINES[machine]}: run, ms",
                "times as fast",
                "CPU, ms",
                "memory",
                "load, ms",
            )
    if places["arm64"]:
        yield "run, ms, EMULATED"


def _time_cells(version: str, model: str, places: Mapping[str, Any]) -> Iterator[str]:
    for machine in ("desktop", "phone"):
        versions = places[machine]
        if not versions:
            continue
        if version not in versions:
            yield from [""] * 5
            continue
        facts = versions[version]
        private = versions[version]["memory_bytes"]["private"]
        yield number(facts["run_ms"]["p50"]["value"])
        yield (
            times(speed(versions, version, BASES[model]))
            if BASES[model] in versions
            else ""
        )
        yield number(facts["cpu_s"] * 1e3)
        yield "?" if private is None else human_bytes(private)
        yield number(facts["load_ms"])
    if places["arm64"]:
        facts = places["arm64"].get(version)
        yield number(facts["run_ms"]["p50"]["value"]) if facts else ""


def _refusals(evidence: Evidence) -> Iterator[str]:
    yield "\n## Conversions\n"
    every = [
        outcome
        for outcomes in evidence.conversions.values()
        for outcome in outcomes.values()
    ]
    refused = [outcome for outcome in every if "refusal" in outcome]
    yield f"{len(every)} were asked for, {len(every) - len(refused)} made. By path:\n"
    by_path: dict[tuple[str, ...], list[bool]] = {}
    for outcome in every:
        path = tuple(outcome[key] for key in ("from", "kind", "quantize"))
        by_path.setdefault(path, []).append("refusal" not in outcome)
    rows = [
        [*path, f"{sum(made)} of {len(made)}"] for path, made in sorted(by_path.items())
    ]
    yield from table(("from", "to", "smaller by", "made"), rows)
    yield "\nThose that were refused, each with the sentence of `pocketserve convert`:\n"
    yield from table(
        ("model", "version", "from", "refusal"),
        (
            [model, version, outcome["from"], outcome["refusal"]]
            for model, outcomes in evidence.conversions.items()
            for version, outcome in outcomes.items()
            if "refusal" in outcome
        ),
    )


def _numbers(claim: Claim, evidence: Evidence) -> Iterator[str]:
    findings = list(claim.findings(evidence))
    yield f"### {claim.text.rstrip('.')}\n"
    yield f"It holds where: {claim.rule}. Verdict: **{verdict(findings, claim.least)}**.\n"
    if findings:
        rows = (
            [
                f.model,
                MACHINES.get(f.machine, "any"),
                f.what,
                f.text,
                "yes" if f.holds else "no",
            ]
            for f in findings
        )
        yield from table(("model", "machine", "what", "measured", "holds"), rows)
        yield ""
