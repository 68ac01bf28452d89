"""Measure all versions of a model in one session.

Each version runs in its own process; they take turns.
"""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve import __version__, system
from pocketserve.child.frames import FramePipe
from pocketserve.child.log import ChildLog
from pocketserve.child.process import Child, Streams, describe_end
from pocketserve.engine.device.cores import usable_cores
from pocketserve.messages import did_you_mean, excerpt
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes.base import ModelLoadError, RuntimeMissingError
from pocketserve.runtimes.devices import (
    Options,
    device_name,
    devices_of,
    is_accelerated,
)
from pocketserve.runtimes.engines import engine_advice
from pocketserve.service import ModelStatus
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.local import open_local
from pocketserve_lab.compare.judge import judge
from pocketserve_lab.compare.recommend import recommend
from pocketserve_lab.compare.samples import DataSample, Facts, read_samples
from pocketserve_lab.compare.statistics import LEAST_FOR_INTERVAL, percentiles
from pocketserve_lab.compare.worker import MAX_MESSAGE_BYTES
from pocketserve_lab.measurement import interleave, load_now

WORKER = "pocketserve_lab.compare.worker"
OPEN_TIMEOUT_S = 600.0
"""Time to import a framework and try an unseen file, each once, on a slow device."""

ANSWER_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 5.0
TURN_S = 0.02
TURN_SAMPLES = 50
MAX_ROUNDS = 200
THROUGHPUT_S = 0.3
THROUGHPUT_ROUNDS = 3
ANSWERS_AT_A_TIME = 20
SCHEMA = 1

Progress = Callable[[str, float], None]


class VersionFailure(Exception):
    """A version that cannot be measured, or no longer.

    The text says why.
    """


class Plan(NamedTuple):
    """The options of the command line.

    Attributes:
        model: a name or a path, as other commands take it.
        versions: those to compare; empty for all.
        reference: the version that others are compared with; None for the first that
            runs.
        data: a folder or CSV file; None uses the model's own samples, else random
            numbers.
        limit: samples at most.
        seconds: for the timed turns of all versions together.
        threads: of one run; 0 uses the fast cores.
        devices: to run each version on, if it can; empty for the manifest's choice.
        margin: the loss that a recommended version must not exceed.
    """

    model: str
    models_dir: str | None = None
    versions: Sequence[str] = ()
    reference: str | None = None
    data: Path | None = None
    limit: int = 500
    seconds: float = 15.0
    threads: int = 0
    devices: Sequence[str] = ()
    margin: float | None = None


class Candidate(NamedTuple):
    """A version to compare, perhaps on another device.

    Attributes:
        options: replace those of the version's table in the manifest; None keeps them.
    """

    version: str
    options: Options | None = None


class ComparedModel(NamedTuple):
    """The model to compare, as read from its folder."""

    name: str
    folder: Path
    models_dir: str
    default: str
    candidates: Mapping[str, Candidate]
    skipped: dict[str, str]


class VersionProcess:
    """The process of one version; see :mod:`pocketserve_lab.compare.worker`."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        self._log = ChildLog()
        command = [sys.executable, "-m", WORKER, str(os.getpid())]
        pipe = subprocess.PIPE
        self._child = Child(command, Streams(pipe, pipe, self._log.file))
        stdin, stdout = self._child.process.stdin, self._child.process.stdout
        assert stdin is not None
        assert stdout is not None
        self._stdin = stdin
        self._pipe = FramePipe(stdout.fileno(), stdin.fileno(), MAX_MESSAGE_BYTES)
        try:
            self.ask("begin", seconds=OPEN_TIMEOUT_S, job=job)
        except BaseException:
            self.close()
            raise

    def ask(
        self,
        action: str,
        *arguments: Any,
        seconds: float,
        job: Mapping[str, Any] | None = None,
    ) -> Any:
        """Send a request to the process and return the result.

        Raises:
            VersionFailure: the process reports an error, has ended, or takes too long.
        """
        request = {"do": action, "with": arguments, "job": job}
        try:
            deadline = time.monotonic() + seconds
            reply = self._pipe.exchange(request, deadline=deadline).header
        except TimeoutError:
            self._child.kill()
            raise VersionFailure(f"it did not answer within {seconds:g} s") from None
        except OSError:
            raise VersionFailure(self._end()) from None
        except BaseException:
            # The next request would receive the pending answer.
            self._child.kill()
            raise
        if "error" in reply:
            raise VersionFailure(reply["error"])
        return reply["result"]

    def close(self) -> None:
        """End the process, which unloads the model before."""
        self._stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self._child.process.wait(STOP_TIMEOUT_S)
        self._child.end()
        self._log.close()

    def _end(self) -> str:
        """Return how the process ended, with the last line of its output."""
        text = f"its process ended with {describe_end(self._child.end())}"
        last_line = self._log.last_line()
        if last_line:
            text += f": {excerpt(last_line, 200)}"
        return text


def compare_versions(plan: Plan, progress: Progress) -> dict[str, Any]:
    """Run, judge and recommend.

    Return the whole result as plain JSON values.

    Raises:
        CommandError: no version can be run, or the data cannot be read.
    """
    # Before our own work is part of it.
    load = load_now()
    target = _find_target(plan)
    facts, runnable = _try_all(plan, target, progress)
    samples, origin = _samples(plan, target, facts)
    reference = _reference(plan, target, runnable)
    with ExitStack() as stack:
        session = _Session(plan, target, stack, progress)
        measured, answers = session.run(runnable, samples)
    if reference not in answers:
        raise CommandError(
            f"the reference version {reference!r} failed: {target.skipped[reference]}"
        )
    truths: list[Any] = [sample.truth for sample in samples]
    if not truths:
        truths = [None] * len(answers[reference])
    task = facts.task if samples else "tensors"
    verdicts = judge(task, answers, reference, truths, plan.margin)
    result = {
        **_head(load),
        "model": target.name,
        "folder": str(target.folder),
        "task": facts.task,
        "default": target.default,
        "reference": reference,
        "margin": plan.margin,
        "data": _data_facts(origin, samples),
        "versions": _merge(target.candidates, measured, verdicts),
        "skipped": target.skipped,
    }
    return {**result, "recommendation": recommend(result)}


def _data_facts(origin: str, samples: Sequence[DataSample]) -> dict[str, Any]:
    return {
        "origin": origin,
        "samples": [sample.name for sample in samples],
        "labelled": sum(sample.truth is not None for sample in samples),
    }


def _head(load: float | None) -> dict[str, Any]:
    """Return the versions of format and program, the time and the device."""
    return {
        "schema": SCHEMA,
        "pocketserve": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": _device(load),
    }


def _merge(
    candidates: Mapping[str, Candidate],
    measured: Mapping[str, Any],
    verdicts: Mapping[str, Any],
) -> dict[str, Any]:
    """Return each measured version with its options, figures and verdict."""
    versions = {}
    for name in measured:
        candidate = candidates[name]._asdict()
        versions[name] = {**candidate, **measured[name], **verdicts[name]}
    return versions


def _find_target(plan: Plan) -> ComparedModel:
    """Read the model's versions, and select those to compare.

    Raises:
        CommandError: a version does not exist, or none can be run.
    """
    service, name, _ = open_local(plan.model, plan.models_dir)
    try:
        entry = service.entry(name)
        _check_versions(plan, entry)
        ready, skipped = _select_versions(plan, service.model_statuses(entry))
        if not ready:
            reason = next(iter(skipped.values()), entry.problem)
            raise CommandError(f"no version of {name!r} can be run here: {reason}")
        default = entry.default_version
        candidates = {version: Candidate(version) for version in ready}
        if plan.devices:
            devices = {}
            for version in ready:
                devices[version] = _devices(entry.versions[version], skipped)
            candidates = _on_devices(plan.devices, devices, skipped)
            first_device = next(iter(devices.get(default, ())), None)
            if first_device is not None:
                default = f"{default}@{first_device}"
        models_dir = str(service.config.models_dir)
        return ComparedModel(
            name, entry.folder, models_dir, default, candidates, skipped
        )
    finally:
        service.close()


def _check_versions(plan: Plan, entry: ModelEntry) -> None:
    """Raise CommandError if the model lacks a requested version."""
    names = list(plan.versions)
    if plan.reference and plan.devices:
        names.append(plan.reference.partition("@")[0])
    elif plan.reference:
        names.append(plan.reference)
    for version in names:
        if version not in entry.versions:
            listed = ", ".join(entry.versions) or "none"
            hint = did_you_mean(version, entry.versions)
            raise CommandError(
                f"{entry.name!r} has no version {version!r}; it has {listed}{hint}"
            )


def _select_versions(
    plan: Plan, statuses: Sequence[ModelStatus]
) -> tuple[list[str], dict[str, str]]:
    """Return the versions to compare, and the reasons why others are skipped."""
    ready = []
    skipped = {}
    for status in statuses:
        if plan.versions and status.version not in plan.versions:
            continue
        if status.ready:
            ready.append(status.version)
        else:
            skipped[status.version] = status.reason
    return ready, skipped


def _devices(version: VersionEntry, skipped: dict[str, str]) -> dict[str, Options]:
    """Return the devices of a version, with the options for each.

    A version whose framework cannot be imported is added to the skipped ones.
    """
    try:
        return devices_of(version.format, version.options)
    except (RuntimeMissingError, ModelLoadError) as error:
        skipped[version.name] = str(error)
        return {}


def _on_devices(
    wishes: Sequence[str],
    devices: Mapping[str, Mapping[str, Options]],
    skipped: dict[str, str],
) -> dict[str, Candidate]:
    """Return each version on each of its devices, as ``tflite@xnnpack``.

    Other pairs are added to the skipped ones.

    Args:
        wishes: names of devices; ``all`` for every device there is.
        devices: by version, as :func:`devices_of` returns them.

    Raises:
        CommandError: no version has one of the devices; the text lists those it has.
    """
    present = _present_devices(devices)
    selected = list(present.values())
    if "all" not in wishes:
        selected = _select_devices(wishes, present)
    candidates = {}
    for version, tables in devices.items():
        for name in selected:
            key = f"{version}@{name}"
            if name in tables:
                candidates[key] = Candidate(version, dict(tables[name]))
            elif tables and "all" not in wishes:
                skipped[key] = f"this version runs here on {' or '.join(tables)}"
    return candidates


def _present_devices(devices: Mapping[str, Mapping[str, Options]]) -> dict[str, str]:
    """Return the names of all versions' devices, by their plain names."""
    present = {}
    for tables in devices.values():
        for name in tables:
            present[device_name(name)] = name
    return present


def _select_devices(wishes: Sequence[str], present: Mapping[str, str]) -> list[str]:
    """Return the devices that the wishes name, without duplicates.

    Raises:
        CommandError: one of them is not present.
    """
    selected = {}
    for name in map(device_name, wishes):
        if name not in present:
            hint = did_you_mean(name, present)
            advice = engine_advice(name)
            if advice is not None:
                hint = f": {advice}"
            listed = " or ".join(present.values())
            raise CommandError(
                f"no version runs here on {name!r}, only on {listed}{hint}"
            )
        selected[name] = present[name]
    return list(selected.values())


def _reference(plan: Plan, target: ComparedModel, runnable: Sequence[str]) -> str:
    """Return the requested reference, else the first runnable version."""
    for name in runnable:
        if plan.reference in (None, name, target.candidates[name].version):
            return name
    reason = target.skipped.get(str(plan.reference), "add it to --versions")
    raise CommandError(
        f"the reference version {plan.reference!r} is not compared: {reason}"
    )


def _job(plan: Plan, target: ComparedModel, name: str) -> dict[str, Any]:
    version, options = target.candidates[name]
    if options is not None and is_accelerated(options):
        # Otherwise the CPU could take over, and be measured.
        options = {**options, "required": True}
    return {
        "model": target.name,
        "models_dir": target.models_dir,
        "version": version,
        "threads": plan.threads,
        "options": options,
    }


def _try_all(
    plan: Plan, target: ComparedModel, progress: Progress
) -> tuple[Facts, list[str]]:
    """Load each version once.

    Return facts about the data, and the versions that load. So the trial of an unseen
    file, and a cold disk, don't count in a measured load.
    """
    facts, runnable = None, []
    for number, version in enumerate(target.candidates):
        progress("trying each version", number / len(target.candidates))
        try:
            description = _open_once(_job(plan, target, version))
        except VersionFailure as failure:
            target.skipped[version] = str(failure)
            continue
        facts = facts or Facts(*description["facts"])
        runnable.append(version)
    if facts is None:
        raise _nothing_loads(target)
    return facts, runnable


def _nothing_loads(target: ComparedModel) -> CommandError:
    reason = next(iter(target.skipped.values()))
    return CommandError(f"no version of {target.name!r} can be loaded: {reason}")


def _open_once(job: Mapping[str, Any]) -> Any:
    process = VersionProcess(job)
    try:
        return process.ask("open", seconds=OPEN_TIMEOUT_S)
    finally:
        process.close()


def _samples(
    plan: Plan, target: ComparedModel, facts: Facts
) -> tuple[list[DataSample], str]:
    """Return the samples, and their origin in words.

    An empty list stands for random numbers.
    """
    if plan.data is not None:
        return read_samples(plan.data, facts, plan.limit), str(plan.data)
    own = target.folder / "samples"
    if own.is_dir():
        return read_samples(own, facts, plan.limit), "the model's own samples"
    return [], "random numbers"


class _Session:
    """The processes of all versions, and their measurements.

    A version that fails is added to the skipped ones and left out from then on.
    """

    def __init__(
        self, plan: Plan, target: ComparedModel, stack: ExitStack, progress: Progress
    ) -> None:
        self._plan = plan
        self._target = target
        self._stack = stack
        self._progress = progress
        self._processes: dict[str, VersionProcess] = {}
        self._facts: dict[str, dict[str, Any]] = {}
        self._answers: dict[str, list[Any]] = {}

    def run(
        self, versions: Sequence[str], samples: Sequence[DataSample]
    ) -> tuple[dict[str, Any], dict[str, list[Any]]]:
        """Return the measurements and the answers, by version."""
        bodies = list(map(_plain_sample, samples))
        for number, version in enumerate(versions):
            start, end = number / len(versions), (number + 1) / len(versions)
            self._guard(version, partial(self._start, version, bodies, start, end))
        turns = self._take_turns()
        measured = {}
        answers = {}
        for version, facts in self._facts.items():
            if version not in self._target.skipped:
                measured[version] = _summarize(facts, turns[version])
                answers[version] = self._answers[version]
        return measured, answers

    def _guard(self, version: str, work: Callable[[], Any]) -> Any:
        """Do a version's work, unless it has failed before."""
        if version in self._target.skipped:
            return None
        try:
            return work()
        except VersionFailure as failure:
            self._target.skipped[version] = str(failure)
            return None

    def _start(
        self,
        version: str,
        samples: Sequence[Mapping[str, str]],
        start: float,
        end: float,
    ) -> None:
        """Start a version's process and run all samples.

        Args:
            start: share of the progress at the start; ``end`` that at the end.
        """
        process = VersionProcess(_job(self._plan, self._target, version))
        self._processes[version] = process
        self._stack.callback(process.close)
        facts = process.ask("open", seconds=OPEN_TIMEOUT_S)
        self._facts[version] = facts
        count = process.ask("take", samples, seconds=OPEN_TIMEOUT_S)
        answers: list[Any] = []
        self._answers[version] = answers
        while len(answers) < count:
            share = start + (end - start) * len(answers) / count
            self._progress("running every sample", share)
            reply = process.ask(
                "answer", len(answers), ANSWERS_AT_A_TIME, seconds=ANSWER_TIMEOUT_S
            )
            facts.setdefault("first_answer_ms", reply["first_ms"])
            answers += reply["answers"]
        _check_answers(answers)

    def _take_turns(self) -> dict[str, _Turns]:
        """Time the versions in turns, first alone, then with several clients."""
        turns = {version: _Turns() for version in self._processes}
        clients = max(2, len(usable_cores()))
        for version, each in turns.items():
            each.clients = clients
            each.memory_before = self._ask(version, "memory")
        self._interleave(
            lambda version: turns[version].alone.append(
                self._ask(version, "turn", TURN_S, TURN_SAMPLES)
            ),
            self._plan.seconds,
            MAX_ROUNDS,
            "measuring",
            LEAST_FOR_INTERVAL,
        )
        for version, each in turns.items():
            each.memory = self._ask(version, "memory")
        self._interleave(
            lambda version: turns[version].together.append(
                self._ask(version, "throughput", THROUGHPUT_S, clients)
            ),
            ANSWER_TIMEOUT_S,
            THROUGHPUT_ROUNDS,
            "several clients at a time",
        )
        return turns

    def _interleave(
        self,
        work: Callable[[str], None],
        seconds: float,
        rounds: int,
        title: str,
        least: int = 1,
    ) -> None:
        """Do some work of all versions, round by round."""
        calls = {version: partial(work, version) for version in self._processes}
        progress = partial(self._progress, title)
        interleave(calls, seconds, rounds, progress, least_rounds=least)

    def _ask(self, version: str, action: str, *arguments: Any) -> Any:
        ask = self._processes[version].ask
        work = partial(ask, action, *arguments, seconds=ANSWER_TIMEOUT_S)
        return self._guard(version, work)


def _check_answers(answers: Sequence[Any]) -> None:
    """Raise VersionFailure if none of the samples has an answer."""
    if all("error" in answer for answer in answers):
        reason = answers[0]["error"]
        raise VersionFailure(f"it answers none of the samples: {reason}")


@dataclass
class _Turns:
    """The measurements of one version's turns, as its process returns them.

    Attributes:
        alone: turns in which one sample ran at a time.
        together: turns with several clients at a time.
        clients: number of these.
    """

    alone: list[Any] = field(default_factory=list)
    together: list[Any] = field(default_factory=list)
    clients: int = 0
    memory_before: Any = None
    memory: Any = None


def _plain_sample(sample: DataSample) -> dict[str, str]:
    if isinstance(sample.body, bytes):
        return {"text": sample.body.decode()}
    return {"path": os.path.abspath(sample.body)}


def _summarize(facts: Mapping[str, Any], turns: _Turns) -> dict[str, Any]:
    """Return a version's figures, with the samples behind them."""
    kept_facts = (
        "format",
        "runtime",
        "device",
        "threads",
        "file_bytes",
        "load_ms",
        "first_answer_ms",
    )
    summary: dict[str, Any] = {key: facts[key] for key in kept_facts}
    samples: dict[str, Any] = {}
    for key in ("run_ms", "answer_ms"):
        samples[key] = [_rounded(turn[key]) for turn in turns.alone]
        summary[key] = _percentiles(samples[key])
    samples["cpu_s"] = [turn["cpu_s"] for turn in turns.alone]
    return {
        **summary,
        "cpu_s": _cpu_seconds(turns),
        "throughput": _throughput(turns),
        "memory_bytes": _memory_growth(facts["memory_before"], turns.memory),
        "samples": samples,
    }


def _percentiles(turns: Sequence[Sequence[float]]) -> dict[str, Any]:
    p50, p90, p99 = percentiles(turns)
    return {"p50": p50._asdict(), "p90": p90._asdict(), "p99": p99._asdict()}


def _rounded(times: Sequence[float]) -> list[float]:
    return [round(value, 6) for value in times]


def _cpu_seconds(turns: _Turns) -> float:
    """Return the CPU time of one answer, including child processes."""
    answers = runs = 0
    own = 0.0
    for turn in turns.alone:
        own += turn["cpu_s"]
        answers += len(turn["answer_ms"])
        runs += turn["asked"]
    before = turns.memory_before["children_cpu_s"]
    children = turns.memory["children_cpu_s"] - before
    return float(own / answers + children / runs)


def _throughput(turns: _Turns) -> dict[str, Any]:
    rates = sorted(turn["answers"] / turn["seconds"] for turn in turns.together)
    median = rates[len(rates) // 2]
    return {"answers_per_s": median, "callers": turns.clients, "rates": rates}


def _memory_growth(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> dict[str, int | None]:
    private = _growth(before.get("private"), after.get("private"))
    peak = _growth(before.get("resident"), after.get("peak"))
    return {"private": private, "peak": peak}


def _growth(before: int | None, after: int | None) -> int | None:
    if before is None or after is None:
        return None
    return int(after - before)


def _device(load: float | None) -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "simulated": system.simulation() is not None,
        "python": platform.python_version(),
        "cores": len(usable_cores()),
        "load": load,
    }
