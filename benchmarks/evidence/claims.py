"""The page's claims, and the numbers that decide them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import geometric_mean
from typing import Any, NamedTuple

from benchmarks.evidence.subjects import SUBJECTS
from pocketserve.terminal.output import human_bytes
from pocketserve_lab.compare.report import number, with_interval
from pocketserve_lab.compare.statistics import Estimate, time_ratio

HALF, QUARTER = (0.4, 0.6), (0.2, 0.3)
"""The accepted deviation from a half or a quarter of the file size, as a share of it."""

TWICE = 2.0
PATHS = {
    "unconverted Python": ("torch", "keras"),
    "PyTorch Mobile": ("ptl",),
    "TensorFlow.js": ("tfjs",),
    "TFLite": ("tflite",),
}
"""The four paths that the seeds name, and the versions that stand for them; of two, the first that there is."""

TFLITE_FROM_PYTORCH, TFLITE_IN_THE_ZOO = "tflite", "pt2>tflite"
MANY_MODELS = 100
"""The number of findings that a claim about all models needs."""

ANSWERS_OTHERWISE = (
    "answers differently from the original",
    # Recorded refusals keep the words of the release that refused.
    "answers otherwise than the original",
)
NOT_SMALLER = ("would not become smaller",)
"""So ``pocketserve convert`` refuses a version; each such refusal is a finding, too."""

BASES = {subject.name: next(iter(subject.bases)) for subject in SUBJECTS}
REGRESSIONS = tuple(subject.name for subject in SUBJECTS if subject.regression)


class Finding(NamedTuple):
    """One number that a claim is held against.

    Attributes:
        machine: where it was measured; empty where it is the same everywhere.
        what: what was compared.
        value: the number that ranges are made of; None where there is none.
        text: what was measured, for people.
        holds: whether the claim does here.
    """

    model: str
    machine: str
    what: str
    value: float | None
    text: str
    holds: bool


class Evidence:
    """All results.

    Args:
        conversions: outcomes by model and version, as :mod:`benchmarks.evidence.conversions` writes them.
        comparisons: as :func:`benchmarks.evidence.results.condense` makes them.
        zoo: conversions of whole libraries of architectures, as ``tools/zoo.py`` writes them.
    """

    def __init__(
        self,
        conversions: Mapping[str, Any],
        comparisons: Sequence[Mapping[str, Any]],
        zoo: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.conversions = conversions
        self.zoo = zoo
        order = [*BASES]
        self.comparisons = sorted(
            comparisons, key=lambda result: order.index(result["model"])
        )

    def on(self, *machines: str) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
        """Yield machine, model and versions of each comparison on these machines."""
        for machine in machines:
            for result in self.comparisons:
                if result["machine"]["name"] == machine:
                    yield machine, result["model"], result["versions"]

    def versions(self, machine: str, model: str) -> Mapping[str, Any]:
        """Return the versions that were compared; none where nothing was."""
        return next(
            (versions for _, name, versions in self.on(machine) if name == model), {}
        )


class Claim(NamedTuple):
    """A claim.

    Attributes:
        text: in our own words.
        rule: when it holds, for one finding.
        findings: returns the findings that decide it.
        least: the number of findings that it needs.
    """

    name: str
    text: str
    rule: str
    findings: Callable[[Evidence], Iterator[Finding]]
    least: int = 1


def verdict(findings: Sequence[Finding], least: int = 1) -> str:
    """Return whether a claim holds in all findings, some or none."""
    holding = sum(finding.holds for finding in findings)
    if not findings:
        return "not measured"
    if len(findings) < least:
        return f"too few to tell: holds in {holding} of {len(findings)}"
    if holding in (0, len(findings)):
        if holding:
            return "confirmed"
        return "refuted"
    return f"depends: holds in {holding} of {len(findings)}"


def speed(versions: Mapping[str, Any], version: str, than: str) -> Estimate:
    """Return a version's speed-up with its 95 % interval."""
    return time_ratio(
        versions[than]["turn_medians_ms"], versions[version]["turn_medians_ms"]
    )


def _pairs(versions: Mapping[str, Any], mode: str) -> Iterator[tuple[str, str]]:
    """Yield float versions with their smaller ones of a mode."""
    for version in versions:
        base, _, suffix = version.partition("-")
        if suffix == mode and base in versions:
            yield base, version


def _sizes(
    mode: str, bounds: tuple[float, float]
) -> Callable[[Evidence], Iterator[Finding]]:
    def findings(evidence: Evidence) -> Iterator[Finding]:
        for _, model, versions in evidence.on("desktop"):
            for base, version in _pairs(versions, mode):
                before = versions[base]["file_bytes"]
                after = versions[version]["file_bytes"]
                share = after / before
                text = f"{human_bytes(before)} to {human_bytes(after)}: {share:.2f}"
                yield Finding(
                    model, "", version, share, text, bounds[0] <= share <= bounds[1]
                )
        yield from _refused(evidence, mode, NOT_SMALLER)

    return findings


def _refused(
    evidence: Evidence, mode: str, reasons: Sequence[str]
) -> Iterator[Finding]:
    """Yield refused versions, which count against a claim."""
    for model, outcomes in evidence.conversions.items():
        for version, outcome in outcomes.items():
            refusal = outcome.get("refusal", "")
            is_reason = any(reason in refusal for reason in reasons)
            if outcome["quantize"] == mode and is_reason:
                yield Finding(
                    model,
                    "",
                    version,
                    None,
                    f"refused: {refusal.partition(';')[0]}",
                    False,
                )


def _speeds(mode: str) -> Callable[[Evidence], Iterator[Finding]]:
    def findings(evidence: Evidence) -> Iterator[Finding]:
        for machine, model, versions in evidence.on("desktop", "phone"):
            for base, version in _pairs(versions, mode):
                ratio = speed(versions, version, base)
                yield Finding(
                    model,
                    machine,
                    version,
                    ratio.value,
                    times(ratio),
                    ratio.value >= TWICE,
                )

    return findings


def times(ratio: Estimate) -> str:
    """Return a ratio with its interval."""
    return f"{with_interval(ratio._asdict())} times"


def path_versions(versions: Mapping[str, Any], model: str) -> dict[str, str]:
    """Return the version for each of the four paths."""
    chosen = {}
    for path, names in PATHS.items():
        names = (BASES[model], *names) if BASES[model] in names else names
        if name := next((name for name in names if name in versions), None):
            chosen[path] = name
    return chosen


def _same_answers(evidence: Evidence) -> Iterator[Finding]:
    for machine, model, versions in evidence.on("desktop", "phone"):
        if model not in REGRESSIONS:
            continue
        for path, version in path_versions(versions, model).items():
            agreement = versions[version]["agreement"]
            if version != BASES[model] and agreement:
                share = agreement["share"]["value"]
                difference = f"largest difference {agreement['largest_difference']:.1g}"
                text = f"{share:.0%} of {agreement['samples']} answers, {difference}"
                yield Finding(model, machine, path, share, text, share == 1.0)


def _order(versions: Mapping[str, Any], paths: Mapping[str, str]) -> list[str]:
    """Return the keys of ``paths``, the fastest first."""
    return sorted(
        paths, key=lambda path: geometric_mean(versions[paths[path]]["turn_medians_ms"])
    )


def _stand_in(evidence: Evidence) -> Iterator[Finding]:
    """Compare the paths' order by a regression and other models."""
    for machine, model, versions in evidence.on("desktop", "phone"):
        if model in REGRESSIONS:
            continue
        for regression in REGRESSIONS:
            simple = evidence.versions(machine, regression)
            both = (
                path_versions(versions, model).keys()
                & path_versions(simple, regression).keys()
            )
            if len(both) < 2 or "unconverted Python" not in both:
                continue
            orders = [
                _order(
                    found,
                    {
                        path: name
                        for path, name in path_versions(found, of).items()
                        if path in both
                    },
                )
                for found, of in ((simple, regression), (versions, model))
            ]
            text = f"{' < '.join(orders[0])} by {regression}; {' < '.join(orders[1])} by {model}"
            yield Finding(
                model,
                machine,
                f"order by {regression}",
                None,
                text,
                orders[0] == orders[1],
            )


def _unconverted_runs(evidence: Evidence) -> Iterator[Finding]:
    for result in evidence.comparisons:
        machine = result["machine"]["name"]
        base = BASES[result["model"]]
        if machine == "arm64" or base not in ("torch", "keras"):
            continue
        facts = result["versions"].get(base)
        text = result["skipped"].get(base, "it was not compared")
        if facts:
            text = (
                f"{number(facts['run_ms']['p50']['value'])} ms a run, {number(facts['load_ms'])} ms to load, "
                f"{_memory(facts)} of memory"
            )
        yield Finding(result["model"], machine, base, None, text, facts is not None)


def _memory(facts: Mapping[str, Any]) -> str:
    private = facts["memory_bytes"]["private"]
    if private is None:
        return "?"
    return human_bytes(private)


def _converting_gains(evidence: Evidence) -> Iterator[Finding]:
    """Hold each converted float version against the unconverted one."""
    for machine, model, versions in evidence.on("desktop", "phone"):
        base = BASES[model]
        if base not in ("torch", "keras") or base not in versions:
            continue
        for version in versions:
            if "-" in version or version in ("torch", "keras"):
                continue
            ratio = speed(versions, version, base)
            # Too few turns to tell a gain from chance: evidence for neither side.
            if ratio.low is None:
                continue
            share = versions[version]["file_bytes"] / versions[base]["file_bytes"]
            text = f"{times(ratio)} as fast, {share:.2f} of the file"
            yield Finding(
                model, machine, version, ratio.value, text, ratio.low > 1 and share <= 1
            )


def _one_path(evidence: Evidence) -> Iterator[Finding]:
    for model, outcomes in evidence.conversions.items():
        outcome = outcomes.get(TFLITE_FROM_PYTORCH)
        if outcome and outcome["from"] == "torch":
            text = outcome.get("refusal") or f"made by {outcome['tools']}"
            yield Finding(
                model, "", "PyTorch to TFLite", None, text, "refusal" not in outcome
            )
    for line in evidence.zoo:
        if line["path"] == TFLITE_IN_THE_ZOO:
            text = line.get("reason") or f"made by {line['tools']}"
            yield Finding(
                line["name"], "", "PyTorch to TFLite", None, text, line["state"] == "ok"
            )


def _int8_accuracy(evidence: Evidence) -> Iterator[Finding]:
    for machine, model, versions in evidence.on("desktop"):
        for mode in ("int8", "dynamic"):
            for base, version in _pairs(versions, mode):
                accuracy = versions[version]["accuracy"]
                before = versions[base]["accuracy"]
                if accuracy and before:
                    text = f"{score(before)} to {score(accuracy)} over {accuracy['samples']} samples"
                    yield Finding(
                        model,
                        machine,
                        version,
                        None,
                        text,
                        not versions[version]["test"]["worse"],
                    )
    for mode in ("int8", "dynamic"):
        yield from _refused(evidence, mode, ANSWERS_OTHERWISE)


def score(accuracy: Mapping[str, Any]) -> str:
    """Return an accuracy or an error."""
    if accuracy["more_is_better"]:
        return f"{accuracy['value']:.1%}"
    return f"{accuracy['value']:.4g}"


def _less_memory(evidence: Evidence) -> Iterator[Finding]:
    for machine, model, versions in evidence.on("desktop", "phone"):
        base = BASES[model]
        if base not in ("torch", "keras") or base not in versions:
            continue
        before = versions[base]["memory_bytes"]["private"]
        for version in versions:
            after = versions[version]["memory_bytes"]["private"]
            if (
                "-" in version
                or version in ("torch", "keras")
                or before is None
                or after is None
            ):
                continue
            text = (
                f"{human_bytes(before)} to {human_bytes(after)}: {after / before:.2f}"
            )
            yield Finding(model, machine, version, after / before, text, after < before)


def _same_winner(evidence: Evidence) -> Iterator[Finding]:
    """Check whether desktop and phone have the same fastest version."""
    for machine, model, versions in evidence.on("phone"):
        desktop = evidence.versions("desktop", model)
        common = [version for version in versions if version in desktop]
        if len(common) < 2:
            continue
        there, here = (
            _order(found, {version: version for version in common})[0]
            for found in (desktop, versions)
        )
        lost = speed(versions, here, there)
        text = f"{there} on the desktop; on the phone {here}, {times(lost)} as fast as that"
        yield Finding(
            model, machine, "fastest version", lost.value, text, lost.value <= 1.1
        )


def _same_on_arm(evidence: Evidence) -> Iterator[Finding]:
    for machine, model, versions in evidence.on("arm64"):
        desktop = evidence.versions("desktop", model)
        for version, facts in versions.items():
            here = desktop.get(version, {}).get("accuracy")
            if here and facts["accuracy"]:
                there = facts["accuracy"]
                text = f"{score(here)} on x86, {score(there)} on arm64"
                close = abs(here["value"] - there["value"]) <= 1e-3 * max(
                    1.0, abs(here["value"])
                )
                yield Finding(model, machine, version, None, text, close)


SEED_CLAIMS = (
    Claim(
        "fp16-size",
        "fp16 halves the file.",
        "0.4 to 0.6 of the float file of its kind",
        _sizes("fp16", HALF),
    ),
    Claim(
        "int8-size",
        "int8 quarters the file (weights and sums in int8).",
        "0.2 to 0.3 of the float file of its kind",
        _sizes("int8", QUARTER),
    ),
    Claim(
        "dynamic-size",
        "int8 quarters the file (weights alone in int8).",
        "0.2 to 0.3 of the float file of its kind",
        _sizes("dynamic", QUARTER),
    ),
    Claim(
        "int8-speed",
        "int8 is two to four times as fast (weights and sums in int8).",
        "twice as fast, or more, as the float version of its kind",
        _speeds("int8"),
    ),
    Claim(
        "dynamic-speed",
        "int8 is two to four times as fast (weights alone in int8).",
        "twice as fast, or more, as the float version of its kind",
        _speeds("dynamic"),
    ),
    Claim(
        "same-answers",
        "The paths answer alike, so that two linear regressions can be compared over them.",
        "every answer within 1 % of the largest one of the unconverted model",
        _same_answers,
    ),
    Claim(
        "stand-in",
        "Two linear regressions show which of the four paths is fast: TFLite, TensorFlow.js, PyTorch Mobile, or "
        "unconverted in Python.",
        "another model puts the paths into the same order of speed, as far as it has them",
        _stand_in,
    ),
    Claim(
        "unconverted",
        "There is a fourth path, the unconverted model in Python; the seeds name it and left it untried.",
        "it runs and answers",
        _unconverted_runs,
    ),
    Claim(
        "gain",
        "A model has to be converted to be small and fast.",
        "the converted float version is faster beyond chance, and its file no larger, than the unconverted one",
        _converting_gains,
    ),
    Claim(
        "one-path",
        "One path, PyTorch to TFLite, takes models as they come (7,500 in a public pipeline).",
        "the conversion succeeds and its result answers as the original does",
        _one_path,
        least=MANY_MODELS,
    ),
)
"""What the earlier public projects, from which this one grew, say or pass on: each has its row."""

FURTHER_CLAIMS = (
    Claim(
        "int8-accuracy",
        "int8 costs no accuracy.",
        "not refused by convert, nor measurably worse on labelled data",
        _int8_accuracy,
    ),
    Claim(
        "memory",
        "A converted model takes less memory.",
        "less private memory, framework included",
        _less_memory,
    ),
    Claim(
        "winner",
        "What is fastest on the desktop is fastest on a phone.",
        "within a tenth",
        _same_winner,
    ),
    Claim(
        "arm64",
        "A version scores on ARM as it does on x86.",
        "the same score within 0.1 %",
        _same_on_arm,
    ),
)
"""What follows from the same results, and nobody claimed in writing."""
