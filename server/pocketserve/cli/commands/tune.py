"""``pocketserve bench MODEL --tune``: which number of threads and which batches are the fastest on this device."""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from pocketserve.cli import CommandError
from pocketserve.cli.comparison import Choice, choose
from pocketserve.cli.device_load import busy, load_now
from pocketserve.cli.local import open_local
from pocketserve.cli.output import print_json, print_table
from pocketserve.cli.progress import Progress
from pocketserve.cli.random_inputs import random_inputs
from pocketserve.engine.device.cores import available_memory, count_fast, usable_cores
from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.engine.scheduling.batching import agrees, free_rows
from pocketserve.messages import plural
from pocketserve.repository.scan import ModelEntry
from pocketserve.runtimes.base import Session
from pocketserve.service import Service
from pocketserve.tensors import Array

MIN_SAMPLE_S = 0.002
"""A sample is so many calls that it takes this long: the clock and the scheduler blur what is shorter."""

ROWS = (1, 2, 4, 8, 16, 32)
MAX_ROUNDS = 200
WHAT = {"threads": "threads", "max_batch": "rows of a batch"}


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What was found on one setting.

    Attributes:
        why_not: why nothing was tried; then there is no choice.
        times: milliseconds of one call, or of one row of a batch, by candidate and round.
    """

    choice: Choice | None = None
    times: Mapping[int, Sequence[float]] = dataclasses.field(default_factory=dict)
    why_not: str = ""


def tune(options: argparse.Namespace) -> int:
    """Measure, and print what is better beyond the noise as lines of ``model.toml``; return the exit code.

    Raises:
        CommandError: it cannot be measured.
    """
    if options.threads:
        raise CommandError("--tune looks for the number of threads; leave --threads out")
    load = load_now()  # before our own work is part of it
    with (
        _service(options) as (service, name),
        service.running(name, options.model_version) as (entry, running),
    ):
        model, progress = running.model, Progress(lines=True)
        reasons = {key: _fixed(service, entry, model, key, options.force) for key in WHAT}
        share = options.seconds / max(1, sum(not reason for reason in reasons.values()))
        try:
            threads = _tune_threads(model, share, options.rounds, progress, reasons["threads"])
            chosen = threads.choice.chosen if threads.choice is not None else model.threads
            rows = _tune_rows(service, model, chosen, share, options.rounds, progress, reasons["max_batch"])
        finally:
            progress.end()
        outcomes = {"threads": threads, "max_batch": rows}
        result = {**_result(entry, model, outcomes), "load": load}
    if options.json:
        print_json(result)
    else:
        _print(result, outcomes)
    return 0


@contextmanager
def _service(options: argparse.Namespace) -> Iterator[tuple[Service, str]]:
    service, name, version = open_local(options.model, options.models_dir)
    options.model_version = options.model_version or version
    try:
        yield service, name
    finally:
        service.close()


def _fixed(service: Service, entry: ModelEntry, model: LoadedModel, key: str, force: bool) -> str:
    """Return why a setting is not to be tried; empty if it is."""
    if key == "threads" and not model.version.format.own_threads:
        return "this framework has one number for the whole process; `serve --threads` sets it"
    if key == "max_batch":
        reason = _not_batched(service, entry, model)
        if reason:
            return reason
    manifest: int | None = getattr(entry.manifest, key)
    if manifest is not None and not force:
        return f"model.toml says {key} = {manifest}; --force tries others all the same"
    return ""


def _not_batched(service: Service, entry: ModelEntry, model: LoadedModel) -> str:
    if entry.manifest.batching is False or (entry.manifest.batching is None and not service.config.batching):
        return "batching is switched off"
    if model.feedback or model.resettable:
        return "the model keeps state from run to run"
    return "" if None in free_rows(model.entry_points) else "the model takes one row at a time"


def _tune_threads(model: LoadedModel, seconds: float, rounds: int, progress: Progress, why_not: str) -> Outcome:
    cores = usable_cores()
    if not why_not and len(cores) < 2:
        why_not = "this process may use one core only"
    if why_not:
        return Outcome(why_not=why_not)
    candidates = thread_candidates(model.threads, count_fast(cores), len(cores))
    inputs = own_inputs(model)
    with ExitStack() as stack:
        calls = {}
        for threads in _that_fit(candidates, model):
            session = model.open_with(threads)
            stack.callback(session.close)
            calls[threads] = _call(session, inputs)
        times = interleave(calls, seconds, rounds, lambda done: progress.show("trying threads", done))
    return Outcome(choose(times, model.threads), times)


def _tune_rows(
    service: Service,
    model: LoadedModel,
    threads: int,
    seconds: float,
    rounds: int,
    progress: Progress,
    why_not: str,
) -> Outcome:
    if why_not:
        return Outcome(why_not=why_not)
    config = service.config
    current = model.entry.manifest.max_batch or config.max_batch
    least = 2 if model.entry.manifest.batching else 1  # an owner who demands batches is not given none
    candidates = sorted(rows for rows in {*ROWS, current} if rows >= least)
    inputs = own_inputs(model)
    session = model.open_with(threads)
    try:
        calls = {}
        for rows in candidates:
            stacked = {name: np.concatenate([array] * rows) for name, array in inputs.items()}
            reason = _differs(session, inputs, stacked, rows)
            if reason:
                return Outcome(why_not=reason)
            calls[rows] = _call(session, stacked)
        times = interleave(calls, seconds, rounds, lambda done: progress.show("trying batches", done))
    finally:
        session.close()
    by_row = {rows: [time / rows for time in kept] for rows, kept in times.items()}
    return Outcome(choose(by_row, current), by_row)


def _differs(session: Session, inputs: Mapping[str, Array], stacked: Mapping[str, Array], rows: int) -> str:
    """Return why a batch of equal rows does not give what the row gives alone; empty if it does."""
    alone = session.run(inputs)
    try:
        together = session.run(stacked)
    except Exception as error:
        return f"the model fails on {plural(rows, 'row')} at a time ({type(error).__name__})"
    fits = all(array.ndim and array.shape[0] == rows for array in together.values())
    if fits and agrees({name: array[:1] for name, array in together.items()}, alone):
        return ""
    return "the model answers several rows differently from one"


def thread_candidates(current: int, fast: int, usable: int) -> list[int]:
    """Numbers of threads worth trying: the powers of two, the fast cores, all cores, and what is in force.

    The current one comes first: it is tried in any case.
    """
    doubled = {1 << power for power in range(usable.bit_length())}
    others = {number for number in (*doubled, fast, usable) if number <= usable} - {current}
    return [current, *sorted(others)]


def _that_fit(candidates: Sequence[int], model: LoadedModel) -> Sequence[int]:
    """As many as there is memory for, since all of them are open at the same time; two in any case."""
    each = max(1, model.memory_bytes // max(1, len(model.sessions)))
    return candidates[: max(2, available_memory() // 2 // each)]


def own_inputs(model: LoadedModel) -> dict[str, Array]:
    """Random inputs by the session's own names."""
    bindings = model.inputs
    return {bindings.by_name[name][1]: array for name, array in random_inputs(bindings.specs).items()}


def _call(session: Session, inputs: Mapping[str, Array]) -> Callable[[], object]:
    return lambda: session.run(inputs)


def interleave(
    calls: Mapping[int, Callable[[], object]], seconds: float, rounds: int, progress: Callable[[float], None]
) -> dict[int, list[float]]:
    """Milliseconds of one call, by candidate and round. All take turns, and nobody always comes after the same one.

    Args:
        seconds: no round begins after so long; one is made in any case.
    """
    began = time.monotonic()
    progress(0.0)
    repeats = {key: max(1, int(MIN_SAMPLE_S / max(1e-6, _warm(call)))) for key, call in calls.items()}
    times: dict[int, list[float]] = {key: [] for key in calls}
    turns, maximum = list(calls.items()), min(rounds, MAX_ROUNDS)
    for done in range(maximum):
        for key, call in turns:
            times[key].append(_time(call, repeats[key]) * 1e3)
        turns = turns[1:] + turns[:1]
        spent = (time.monotonic() - began) / seconds
        progress(min(1.0, max(spent, (done + 1) / maximum)))
        if spent >= 1:
            break
    return times


def _warm(call: Callable[[], object]) -> float:
    """Seconds of a call that is not the first."""
    call()
    return min(_time(call, 1) for _ in range(3))


def _time(call: Callable[[], object], repeats: int) -> float:
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - began) / repeats


def _changed(outcome: Outcome) -> bool:
    return outcome.choice is not None and outcome.choice.changed


def _said(key: str, choice: Choice | None) -> str:
    assert choice is not None
    saved = f"{choice.gain:.0%} less time (chance explains {choice.noise:.1%})"
    return f"{key} {choice.best} instead of {choice.current}: {saved}"


def _result(entry: ModelEntry, model: LoadedModel, outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    result: dict[str, Any] = {"model": entry.name, "version": model.version.name, "runtime": model.runtime}
    for key, outcome in outcomes.items():
        choice = outcome.choice
        if choice is None:
            result[key] = {"why_not_tried": outcome.why_not}
            continue
        result[key] = {
            **dataclasses.asdict(choice),
            "chosen": choice.chosen,
            "changed": choice.changed,
            "samples_ms": {str(candidate): list(kept) for candidate, kept in outcome.times.items()},
        }
    changed = {key: outcome.choice.chosen for key, outcome in outcomes.items() if outcome.choice and _changed(outcome)}
    return {**result, "manifest": "".join(f"{key} = {value}\n" for key, value in changed.items())}


def _print(result: Mapping[str, Any], outcomes: Mapping[str, Outcome]) -> None:
    print(f"{result['model']}, version {result['version']}, {result['runtime']}, random input\n")
    print(busy(result["load"]), end="")
    for key, outcome in outcomes.items():
        choice = outcome.choice
        if choice is None:
            print(f"{key}: not tried: {outcome.why_not}.\n")
            continue
        base = statistics.median(outcome.times[choice.current])
        print_table(
            [WHAT[key].upper(), "ms a run" if key == "threads" else "ms a row", "AGAINST NOW"],
            [_row(setting, kept, base, choice) for setting, kept in sorted(outcome.times.items())],
        )
        print(f"{_verdict(key, choice)}\n")
    if result["manifest"]:
        print(f"At the top of this model's model.toml, for this device:\n\n{result['manifest']}", end="")
    else:
        print("No line for model.toml: what is in force stays.")


def _row(setting: int, kept: Sequence[float], base: float, choice: Choice) -> list[str]:
    median = statistics.median(kept)
    return [str(setting), f"{median:.4f}", "now" if setting == choice.current else f"{median / base - 1:+.0%}"]


def _verdict(key: str, choice: Choice) -> str:
    if choice.changed:
        return f"{_said(key, choice)}."
    if choice.best == choice.current:
        return f"{key} stays {choice.current}: nothing is faster."
    return (
        f"{key} stays {choice.current}: {choice.best} was {max(0.0, choice.gain):.1%} faster, which is not "
        f"worth a change or may be chance (up to {min(1.0, choice.noise):.1%})."
    )
