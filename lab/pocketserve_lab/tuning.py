"""``pocketserve bench MODEL --tune``: finds the fastest threads and batches."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from pocketserve.config import Config
from pocketserve.engine.device.cores import available_memory, count_fast, usable_cores
from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.engine.scheduling.batching import agrees, free_rows
from pocketserve.messages import plural
from pocketserve.runtimes.base import Session
from pocketserve.tensors import Array
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.local import open_local
from pocketserve.terminal.output import print_json, print_table
from pocketserve.terminal.progress import Progress
from pocketserve_lab.measurement import (
    Calls,
    Choice,
    choose,
    interleave,
    load_now,
    load_warning,
)
from pocketserve_lab.random_inputs import random_inputs

MIN_SAMPLE_S = 0.002
ROWS = (1, 2, 4, 8, 16, 32)
MAX_ROUNDS = 200
HEADERS = {
    "threads": ("THREADS", "ms a run"),
    "max_batch": ("ROWS OF A BATCH", "ms a row"),
}

Measurement = Callable[[str, Calls[int]], dict[int, list[float]]]


def tune(options: argparse.Namespace) -> int:
    """Measure, and print improvements beyond the noise as lines of ``model.toml``."""
    if options.threads:
        raise CommandError(
            "--tune looks for the number of threads; leave --threads out"
        )
    load = load_now()  # before our own work is part of it
    result = _measure(options)
    if load_warning(load):
        # Other work may explain every difference.
        result = result.with_full_noise()
    if options.json:
        print_json({**result.document(), "load": load})
        return 0
    print(f"{result.model}, version {result.version}, {result.runtime}, random input\n")
    print(load_warning(load), end="")
    for key, choice in result.choices.items():
        _print_choice(key, choice)
    manifest = result.manifest()
    if manifest:
        print("At the top of this model's model.toml, for this device:\n")
        print(manifest, end="")
    else:
        print("No line for model.toml: the current settings stay.")
    return 0


@dataclass(frozen=True)
class TuningResult:
    """Each setting's choice, or why it was not tried."""

    model: str
    version: str
    runtime: str
    choices: Mapping[str, Choice | str]

    def with_full_noise(self) -> TuningResult:
        """Return the same result, with noise that explains every gain."""
        choices: dict[str, Choice | str] = {}
        for key, choice in self.choices.items():
            if isinstance(choice, Choice):
                choice = choice._replace(noise=1.0)
            choices[key] = choice
        return replace(self, choices=choices)

    def manifest(self) -> str:
        """Return the lines for ``model.toml``."""
        lines = []
        for key, choice in self.choices.items():
            if isinstance(choice, Choice) and choice.changed:
                lines.append(f"{key} = {choice.best}\n")
        return "".join(lines)

    def document(self) -> dict[str, Any]:
        """Return the result for JSON."""
        choices = {key: _document(choice) for key, choice in self.choices.items()}
        return {
            "model": self.model,
            "version": self.version,
            "runtime": self.runtime,
            **choices,
            "manifest": self.manifest(),
        }


def _measure(options: argparse.Namespace) -> TuningResult:
    service, name, version = open_local(options.model, options.models_dir)
    progress = Progress(lines=True)
    try:
        with service.running(name, options.model_version or version) as (entry, handle):
            model = handle.model
            reasons = {}
            for key in HEADERS:
                reasons[key] = _reason_not_to_try(
                    service.config, model, key, options.force
                )
            count = sum(not reason for reason in reasons.values())
            measure = partial(
                _interleave,
                progress,
                seconds=options.seconds / max(1, count),
                rounds=min(options.rounds, MAX_ROUNDS),
            )
            threads = reasons["threads"] or _tune_threads(model, measure)
            rows = reasons["max_batch"] or _tune_rows(
                model, _best_threads(threads, model), service.config.max_batch, measure
            )
            return TuningResult(
                entry.name,
                model.version.name,
                model.runtime,
                {"threads": threads, "max_batch": rows},
            )
    finally:
        progress.end()
        service.close()


def _best_threads(choice: Choice | str, model: LoadedModel) -> int:
    if isinstance(choice, Choice):
        return choice.recommended
    return model.threads


def _interleave(
    progress: Progress, title: str, calls: Calls[int], *, seconds: float, rounds: int
) -> dict[int, list[float]]:
    show = partial(progress.show, title)
    return interleave(calls, seconds, rounds, show, min_sample_s=MIN_SAMPLE_S)


def _reason_not_to_try(
    config: Config, model: LoadedModel, key: str, force: bool
) -> str:
    """Return why a setting can't be tuned; empty if it can."""
    manifest = model.entry.manifest
    if key == "threads" and not model.version.format.own_threads:
        return (
            "this framework has one number for the whole process; "
            "`serve --threads` sets it"
        )
    if key == "max_batch":
        reason = _reason_not_to_batch(config, model)
        if reason:
            return reason
    value: int | None = getattr(manifest, key)
    if value is not None and not force:
        return f"model.toml says {key} = {value}; --force tries others anyway"
    if key == "threads" and len(usable_cores()) < 2:
        return "this process may use only one core"
    return ""


def _reason_not_to_batch(config: Config, model: LoadedModel) -> str:
    is_batching = model.entry.manifest.batching
    if is_batching is None:
        is_batching = config.batching
    if not is_batching:
        return "batching is switched off"
    if model.feedback or model.resettable:
        return "the model keeps state from run to run"
    if None not in free_rows(model.entry_points):
        return "the model takes one row at a time"
    return ""


def _tune_threads(model: LoadedModel, measure: Measurement) -> Choice:
    cores = usable_cores()
    inputs = _session_inputs(model)
    candidates = thread_candidates(model.threads, count_fast(cores), len(cores))
    # All sessions are open at the same time.
    session_bytes = max(1, model.memory_bytes // max(1, len(model.sessions)))
    maximum = max(2, available_memory() // 2 // session_bytes)
    with ExitStack() as stack:
        calls = {}
        for threads in candidates[:maximum]:
            session = model.open_with(threads)
            stack.callback(session.close)
            calls[threads] = partial(session.run, inputs)
        return choose(measure("trying threads", calls), model.threads)


def _tune_rows(
    model: LoadedModel, threads: int, max_batch: int, measure: Measurement
) -> Choice | str:
    """Return the best number of rows, or a reason for none."""
    manifest = model.entry.manifest
    inputs = _session_inputs(model)
    current = manifest.max_batch or max_batch
    least = 2 if manifest.batching else 1  # an owner may demand batches
    session = model.open_with(threads)
    try:
        calls = {}
        for rows in sorted({*ROWS, current}):
            if rows < least:
                continue
            batch = _repeated(inputs, rows)
            reason = _difference(session, inputs, batch, rows)
            if reason:
                return reason
            calls[rows] = partial(session.run, batch)
        times = measure("trying batches", calls)
    finally:
        session.close()
    times_of_row = {}
    for rows, samples in times.items():
        times_of_row[rows] = [time / rows for time in samples]
    return choose(times_of_row, current)


def _repeated(inputs: Mapping[str, Array], rows: int) -> dict[str, Array]:
    batch = {}
    for name, array in inputs.items():
        batch[name] = np.concatenate([array] * rows)
    return batch


def _difference(
    session: Session, inputs: Mapping[str, Array], batch: Mapping[str, Array], rows: int
) -> str:
    """Return why a batch answers differently from its row."""
    alone = session.run(inputs)
    try:
        together = session.run(batch)
    except Exception as error:
        count = plural(rows, "row")
        return f"the model fails on {count} at a time ({type(error).__name__})"
    fits = all(array.ndim and array.shape[0] == rows for array in together.values())
    if fits and agrees({name: array[:1] for name, array in together.items()}, alone):
        return ""
    return "the model answers several rows differently from one"


def thread_candidates(current: int, fast: int, usable: int) -> list[int]:
    """Return numbers of threads to try, the current one first.

    The others are the powers of two, the fast cores and all cores.
    """
    numbers = {fast, usable}
    for power in range(usable.bit_length()):
        numbers.add(1 << power)
    alternatives = [
        number for number in numbers if number <= usable and number != current
    ]
    return [current, *sorted(alternatives)]


def _session_inputs(model: LoadedModel) -> dict[str, Array]:
    """Return random inputs by the session's own names."""
    inputs = {}
    for name, array in random_inputs(model.inputs.specs).items():
        _, own_name = model.inputs.by_name[name]
        inputs[own_name] = array
    return inputs


def _document(choice: Choice | str) -> dict[str, Any]:
    if isinstance(choice, str):
        return {"why_not_tried": choice}
    document = choice._asdict()
    samples = {}
    for candidate, times in document.pop("times").items():
        samples[str(candidate)] = list(times)
    return {
        **document,
        "chosen": choice.recommended,
        "changed": choice.changed,
        "samples_ms": samples,
    }


def _print_choice(key: str, choice: Choice | str) -> None:
    if isinstance(choice, str):
        print(f"{key}: not tried: {choice}.\n")
        return
    _print_medians(key, choice)
    current = choice.current
    best = choice.best
    if choice.changed:
        print(
            f"{key} {best} instead of {current}: {choice.gain:.0%} less time "
            f"(chance explains {choice.noise:.1%}).\n"
        )
    elif best == current:
        print(f"{key} stays {current}: nothing is faster.\n")
    else:
        gain = max(0.0, choice.gain)
        noise = min(1.0, choice.noise)
        print(
            f"{key} stays {current}: {best} was {gain:.1%} faster, which is not "
            f"worth a change or may be chance (up to {noise:.1%}).\n"
        )


def _print_medians(key: str, choice: Choice) -> None:
    base = statistics.median(choice.times[choice.current])
    rows = []
    for candidate, times in sorted(choice.times.items()):
        median = statistics.median(times)
        against = "now"
        if candidate != choice.current:
            against = f"{median / base - 1:+.0%}"
        rows.append([str(candidate), f"{median:.4f}", against])
    print_table([*HEADERS[key], "AGAINST NOW"], rows)
