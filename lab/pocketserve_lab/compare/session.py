"""Run all versions of a model on this device at once: each in a process of its own, in turns."""

from __future__ import annotations

import datetime
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve import __version__, system
from pocketserve.engine.device.cores import usable_cores
from pocketserve.messages import did_you_mean, excerpt
from pocketserve.repository.scan import VersionEntry
from pocketserve.runtimes.base import ModelLoadError, RuntimeMissingError
from pocketserve.runtimes.devices import (
    Options,
    device_name,
    devices_of,
    is_accelerated,
)
from pocketserve.runtimes.engines import engine_advice
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.local import open_local
from pocketserve_lab.compare.judge import judge
from pocketserve_lab.compare.recommend import recommend
from pocketserve_lab.compare.samples import DataSample, Facts, read_samples
from pocketserve_lab.compare.statistics import percentiles
from pocketserve_lab.measurement import interleave, load_now

OPEN_TIMEOUT_S = 600.0
"""To import a framework and try an unseen file, each once, on a slow device."""

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
    """A version that cannot be measured (any more); the text says why."""


class Plan(NamedTuple):
    """The wishes of the command line.

    Attributes:
        model: a name or a path, as other commands take it.
        versions: those to compare; empty for all.
        reference: the version that others are held against; None for the first of the list that runs.
        data: a folder or CSV file; None takes the model's own samples, else random numbers.
        limit: samples at most.
        seconds: for the timed turns of all versions together.
        threads: of one run; 0 takes the fast cores.
        devices: to run each version on, as far as it can; empty for what the manifest says.
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


class Candidate(NamedTuple):
    """A version that is compared, as the manifest has it run, or on another device.

    Attributes:
        options: of the version's table, instead of the manifest's; None for those.
    """

    version: str
    options: Options | None = None


class ComparedModel(NamedTuple):
    """The model that is compared, as the folder tells."""

    name: str
    folder: Path
    models_dir: str
    default: str
    candidates: Mapping[str, Candidate]
    skipped: dict[str, str]


class VersionProcess:
    """The process of one version; see :mod:`pocketserve_lab.compare.worker`."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        own_end, child_end = socket.socketpair()
        self._output = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the process
        command = [
            sys.executable,
            "-m",
            "pocketserve_lab.compare.worker",
            str(os.getpid()),
            str(child_end.fileno()),
        ]
        with child_end:
            self._process = subprocess.Popen(
                command,
                pass_fds=[child_end.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
            )
        self._pipe = Connection(own_end.detach())
        self.ask("begin", seconds=OPEN_TIMEOUT_S, job=job)

    def ask(
        self,
        action: str,
        *arguments: Any,
        seconds: float,
        job: Mapping[str, Any] | None = None,
    ) -> Any:
        """Have the process do something and return the result.

        Raises:
            VersionFailure: it says why it cannot, has ended, or takes too long.
        """
        try:
            self._pipe.send_bytes(
                json.dumps({"do": action, "with": arguments, "job": job}).encode()
            )
            if not self._pipe.poll(seconds):
                raise VersionFailure(f"it did not answer within {seconds:g} s")
            reply = json.loads(self._pipe.recv_bytes())
        except (EOFError, OSError):
            raise VersionFailure(self._end()) from None
        if "error" in reply:
            raise VersionFailure(reply["error"])
        return reply["result"]

    def close(self) -> None:
        """End the process."""
        self._pipe.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()

    def _end(self) -> str:
        """Return how the process ended, with its last words."""
        self._process.kill()
        code = self._process.wait()
        self._output.seek(max(0, self._output.seek(0, os.SEEK_END) - 2000))
        words = self._output.read().decode(errors="replace").strip().splitlines()
        ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        return f"its process ended with {ending}" + (
            f": {excerpt(words[-1], 200)}" if words else ""
        )


def compare_versions(plan: Plan, progress: Progress) -> dict[str, Any]:
    """Run, judge and recommend; return the whole result in JSON's own types.

    Raises:
        CommandError: no version can be run, or the data cannot be read.
    """
    load = load_now()  # before our own work is part of it
    target = _find_target(plan)
    facts, runnable = _try_all(plan, target, progress)
    samples, origin = _samples(plan, target, facts)
    reference = _reference(plan, target, runnable)
    with ExitStack() as stack:
        measured, answers = _measure_all(
            plan, target, runnable, samples, stack, progress
        )
    if reference not in answers:
        raise CommandError(
            f"the reference version {reference!r} failed: {target.skipped[reference]}"
        )
    truths = [sample.truth for sample in samples] or [None] * len(answers[reference])
    verdicts = judge(facts.task if samples else "tensors", answers, reference, truths)
    result = {
        "schema": SCHEMA,
        "pocketserve": __version__,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "device": _device(load),
        "model": target.name,
        "folder": str(target.folder),
        "task": facts.task,
        "default": target.default,
        "reference": reference,
        "data": {
            "origin": origin,
            "samples": [sample.name for sample in samples],
            "labelled": sum(truth is not None for truth in truths),
        },
        "versions": {
            name: {
                **target.candidates[name]._asdict(),
                **measured[name],
                **verdicts[name],
            }
            for name in measured
        },
        "skipped": target.skipped,
    }
    return {**result, "recommendation": recommend(result)}


def _find_target(plan: Plan) -> ComparedModel:
    service, name, _ = open_local(plan.model, plan.models_dir)
    try:
        entry = service.entry(name)
        statuses = {status.version: status for status in service.model_statuses(entry)}
        reference = (
            plan.reference.partition("@")[0]
            if plan.reference and plan.devices
            else plan.reference
        )
        for version in (*plan.versions, *([reference] if reference else [])):
            if version not in statuses:
                listed = ", ".join(entry.versions) or "none"
                raise CommandError(
                    f"{name!r} has no version {version!r}; it has {listed}{did_you_mean(version, entry.versions)}"
                )
        selected = [
            version
            for version in entry.versions
            if not plan.versions or version in plan.versions
        ]
        skipped = {
            version: statuses[version].reason
            for version in selected
            if not statuses[version].ready
        }
        ready = [version for version in selected if version not in skipped]
        if not ready:
            raise CommandError(
                f"no version of {name!r} can be run here: {next(iter(skipped.values()), entry.problem)}"
            )
        default, candidates = (
            entry.default_version,
            {version: Candidate(version) for version in ready},
        )
        if plan.devices:
            devices = {
                version: _devices(entry.versions[version], skipped) for version in ready
            }
            candidates = _on_devices(plan.devices, devices, skipped)
            default = "@".join((default, *[*devices.get(default, ())][:1]))
        return ComparedModel(
            name,
            entry.folder,
            str(service.config.models_dir),
            default,
            candidates,
            skipped,
        )
    finally:
        service.close()


def _devices(version: VersionEntry, skipped: dict[str, str]) -> dict[str, Options]:
    """Return what runs a version; nothing where its framework cannot be imported, which is noted."""
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
    """Return each version on each device that it has, as ``tflite@xnnpack``; other pairs are noted.

    Args:
        wishes: names of devices; ``all`` stands for each that there is.
        devices: by version, as :func:`devices_of` returns them.

    Raises:
        CommandError: no version has one of the devices; the sentence names those that there are.
    """
    present = {
        device_name(name): name for tables in devices.values() for name in tables
    }
    names = dict.fromkeys(present if "all" in wishes else map(device_name, wishes))
    for name in names:
        if name not in present:
            advice = engine_advice(name)
            hint = f": {advice}" if advice is not None else did_you_mean(name, present)
            raise CommandError(
                f"no version runs here on {name!r}, only on {' or '.join(present.values())}{hint}"
            )
    candidates = {}
    for version, tables in devices.items():
        for name in map(present.__getitem__, names):
            key = f"{version}@{name}"
            if name in tables:
                candidates[key] = Candidate(version, dict(tables[name]))
            elif tables and "all" not in wishes:
                skipped[key] = f"this version runs here on {' or '.join(tables)}"
    return candidates


def _reference(plan: Plan, target: ComparedModel, runnable: Sequence[str]) -> str:
    """Return what the others are held against: as it was named, with a device or without, else the first that runs."""
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
        options = {
            **options,
            "required": True,
        }  # the CPU would answer in its place, and be measured
    job = {
        "model": target.name,
        "models_dir": target.models_dir,
        "version": version,
        "threads": plan.threads,
    }
    return {**job, "options": options}


def _try_all(
    plan: Plan, target: ComparedModel, progress: Progress
) -> tuple[Facts, list[str]]:
    """Load each version once; return what the data must look like, and the versions that load.

    So the trial of an unseen file, and a cold disk, count for none of the measured loads.
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
        raise CommandError(
            f"no version of {target.name!r} can be loaded: {next(iter(target.skipped.values()))}"
        )
    return facts, runnable


def _open_once(job: Mapping[str, Any]) -> Any:
    process = VersionProcess(job)
    try:
        return process.ask("open", seconds=OPEN_TIMEOUT_S)
    finally:
        process.close()


def _samples(
    plan: Plan, target: ComparedModel, facts: Facts
) -> tuple[list[DataSample], str]:
    """Return the samples, and in words where they are from; none of them stands for random numbers."""
    if plan.data is not None:
        return read_samples(plan.data, facts, plan.limit), str(plan.data)
    own = target.folder / "samples"
    if own.is_dir():
        return read_samples(own, facts, plan.limit), "the model's own samples"
    return [], "random numbers"


def _measure_all(
    plan: Plan,
    target: ComparedModel,
    versions: Sequence[str],
    samples: Sequence[DataSample],
    stack: ExitStack,
    progress: Progress,
) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return what was measured and what was answered, by version; one that fails is among the skipped ones."""
    processes: dict[str, VersionProcess] = {}
    measured: dict[str, Any] = {}
    answers: dict[str, list[Any]] = {}

    def guarded(version: str, work: Callable[[], Any]) -> Any:
        try:
            return work() if version not in target.skipped else None
        except VersionFailure as failure:
            target.skipped[version] = str(failure)
            return None

    def start(version: str) -> None:
        processes[version] = process = VersionProcess(_job(plan, target, version))
        stack.callback(process.close)
        measured[version] = process.ask("open", seconds=OPEN_TIMEOUT_S)
        count = process.ask(
            "take",
            [_plain_sample(sample) for sample in samples],
            seconds=OPEN_TIMEOUT_S,
        )
        answers[version] = []
        while len(answers[version]) < count:
            share = (versions.index(version) + len(answers[version]) / count) / len(
                versions
            )
            progress("asking every sample", share)
            reply = process.ask(
                "answer",
                len(answers[version]),
                ANSWERS_AT_A_TIME,
                seconds=ANSWER_TIMEOUT_S,
            )
            measured[version].setdefault("first_answer_ms", reply["first_ms"])
            answers[version] += reply["answers"]
        if all("error" in answer for answer in answers[version]):
            raise VersionFailure(
                f"it answers none of the samples: {answers[version][0]['error']}"
            )

    for version in versions:
        guarded(version, partial(start, version))
    turns = _take_turns(plan, processes, guarded, progress)
    for version in [version for version in versions if version in target.skipped]:
        measured.pop(version, None)
        answers.pop(version, None)
    return {
        version: _summarize(facts, turns[version])
        for version, facts in measured.items()
    }, answers


def _take_turns(
    plan: Plan,
    processes: Mapping[str, VersionProcess],
    guarded: Callable[[str, Callable[[], Any]], Any],
    progress: Progress,
) -> dict[str, dict[str, Any]]:
    """Time the versions in turns, then with several callers at a time; return the samples of each."""
    turns: dict[str, dict[str, Any]] = {
        name: {"turn": [], "throughput": []} for name in processes
    }
    callers = max(2, len(usable_cores()))

    def ask(version: str, action: str, *arguments: Any) -> Any:
        work = partial(
            processes[version].ask, action, *arguments, seconds=ANSWER_TIMEOUT_S
        )
        return guarded(version, work)

    def timed(version: str, action: str, *arguments: Any) -> None:
        turns[version][action].append(ask(version, action, *arguments))

    before = {version: ask(version, "memory") for version in processes}
    calls = {
        version: partial(timed, version, "turn", TURN_S, TURN_SAMPLES)
        for version in processes
    }
    interleave(calls, plan.seconds, MAX_ROUNDS, partial(progress, "measuring"))
    after = {version: ask(version, "memory") for version in processes}
    calls = {
        version: partial(timed, version, "throughput", THROUGHPUT_S, callers)
        for version in processes
    }
    interleave(
        calls,
        ANSWER_TIMEOUT_S,
        THROUGHPUT_ROUNDS,
        partial(progress, "several callers at a time"),
    )
    for version in processes:
        turns[version] |= {
            "memory_before": before[version],
            "memory": after[version],
            "callers": callers,
        }
    return turns


def _plain_sample(sample: DataSample) -> dict[str, str]:
    if isinstance(sample.body, bytes):
        return {"text": sample.body.decode()}
    return {"path": os.path.abspath(sample.body)}


def _summarize(facts: dict[str, Any], turns: Mapping[str, Any]) -> dict[str, Any]:
    """Return a version's figures with the samples behind them."""
    timed, memory = turns["turn"], turns["memory"]
    summary: dict[str, Any] = {
        key: facts[key]
        for key in ("format", "runtime", "device", "threads", "file_bytes")
    }
    summary |= {
        "load_ms": facts["load_ms"],
        "first_answer_ms": facts["first_answer_ms"],
    }
    samples = {}
    for key in ("run_ms", "answer_ms"):
        samples[key] = [[round(value, 6) for value in turn[key]] for turn in timed]
        estimates = zip(("p50", "p90", "p99"), percentiles(samples[key]), strict=True)
        summary[key] = {name: estimate._asdict() for name, estimate in estimates}
    number = sum(len(turn["answer_ms"]) for turn in timed)
    children = memory["children_cpu_s"] - turns["memory_before"]["children_cpu_s"]
    rates = sorted(turn["answers"] / turn["seconds"] for turn in turns["throughput"])
    before = facts["memory_before"]
    return {
        **summary,
        "cpu_s": sum(turn["cpu_s"] for turn in timed) / number
        + children / sum(turn["asked"] for turn in timed),
        "throughput": {
            "answers_per_s": rates[len(rates) // 2],
            "callers": turns["callers"],
            "rates": rates,
        },
        "memory_bytes": {
            "private": _growth(memory, before, "private"),
            "peak": _growth(memory, {"peak": before.get("resident")}, "peak"),
        },
        "samples": {**samples, "cpu_s": [turn["cpu_s"] for turn in timed]},
    }


def _growth(
    after: Mapping[str, Any], before: Mapping[str, Any], key: str
) -> int | None:
    if after.get(key) is None or before.get(key) is None:
        return None
    return int(after[key] - before[key])


def _device(load: float | None) -> dict[str, Any]:
    return {
        "machine": platform.machine(),
        "system": f"{platform.system()} {platform.release()}",
        "simulated": system.simulation() is not None,
        "python": platform.python_version(),
        "cores": len(usable_cores()),
        "load": load,
    }
