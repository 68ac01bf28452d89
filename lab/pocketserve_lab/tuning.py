"""``pocketserve bench MODEL --tune``: the number of threads and the batches that are the fastest on this device."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Mapping
from contextlib import ExitStack
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
    """Measure, and print what is better beyond the noise as lines of ``model.toml``; return the exit code."""
    if options.threads:
        raise CommandError(
            "--tune looks for the number of threads; leave --threads out"
        )
    load = load_now()  # before our own work is part of it
    service, name, version = open_local(options.model, options.models_dir)
    progress = Progress(lines=True)
    try:
        with service.running(name, options.model_version or version) as (entry, handle):
            model = handle.model
            reasons = {
                key: _reason_not_to_try(service.config, model, key, options.force)
                for key in HEADERS
            }
            seconds = options.seconds / max(
                1, sum(not reason for reason in reasons.values())
            )

            def measure(title: str, calls: Calls[int]) -> dict[int, list[float]]:
                rounds, show = (
                    min(options.rounds, MAX_ROUNDS),
                    partial(progress.show, title),
                )
                return interleave(
                    calls, seconds, rounds, show, min_sample_s=MIN_SAMPLE_S
                )

            threads = reasons["threads"] or _tune_threads(model, measure)
            number = (
                threads.recommended if isinstance(threads, Choice) else model.threads
            )
            rows = reasons["max_batch"] or _tune_rows(
                model, number, service.config.max_batch, measure
            )
            result = {
                "model": entry.name,
                "version": model.version.name,
                "runtime": model.runtime,
            }
    finally:
        progress.end()
        service.close()
    choices = {"threads": threads, "max_batch": rows}
    if load_warning(load):  # beside other work, all of a difference may be chance
        choices = {
            key: c._replace(noise=1.0) if isinstance(c, Choice) else c
            for key, c in choices.items()
        }
    lines = [
        f"{key} = {c.best}\n"
        for key, c in choices.items()
        if isinstance(c, Choice) and c.changed
    ]
    if options.json:
        documents = {key: _document(choice) for key, choice in choices.items()}
        print_json({**result, **documents, "manifest": "".join(lines), "load": load})
        return 0
    print(
        f"{result['model']}, version {result['version']}, {result['runtime']}, random input\n"
    )
    print(load_warning(load), end="")
    for key, choice in choices.items():
        _print_choice(key, choice)
    if lines:
        print(
            f"At the top of this model's model.toml, for this device:\n\n{''.join(lines)}",
            end="",
        )
    else:
        print("No line for model.toml: what is in force stays.")
    return 0


def _reason_not_to_try(
    config: Config, model: LoadedModel, key: str, force: bool
) -> str:
    """Return why a setting is not to be tried; empty if it is."""
    manifest = model.entry.manifest
    value: int | None = getattr(manifest, key)
    if key == "threads" and not model.version.format.own_threads:
        return "this framework has one number for the whole process; `serve --threads` sets it"
    if key == "max_batch":
        if manifest.batching is False or (
            manifest.batching is None and not config.batching
        ):
            return "batching is switched off"
        if model.feedback or model.resettable:
            return "the model keeps state from run to run"
        if None not in free_rows(model.entry_points):
            return "the model takes one row at a time"
    if value is not None and not force:
        return f"model.toml says {key} = {value}; --force tries others all the same"
    return (
        "this process may use one core only"
        if key == "threads" and len(usable_cores()) < 2
        else ""
    )


def _tune_threads(model: LoadedModel, measure: Measurement) -> Choice:
    cores, inputs = usable_cores(), _session_inputs(model)
    candidates = thread_candidates(model.threads, count_fast(cores), len(cores))
    each = max(1, model.memory_bytes // max(1, len(model.sessions)))
    maximum = max(
        2, available_memory() // 2 // each
    )  # all of them are open at the same time
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
    """Return the best number of rows, or why it cannot be tried."""
    manifest, inputs = model.entry.manifest, _session_inputs(model)
    current = manifest.max_batch or max_batch
    least = (
        2 if manifest.batching else 1
    )  # an owner who demands batches is not given none
    session = model.open_with(threads)
    try:
        calls = {}
        for rows in sorted(rows for rows in {*ROWS, current} if rows >= least):
            batch = {
                name: np.concatenate([array] * rows) for name, array in inputs.items()
            }
            reason = _difference(session, inputs, batch, rows)
            if reason:
                return reason
            calls[rows] = partial(session.run, batch)
        times = measure("trying batches", calls)
    finally:
        session.close()
    return choose(
        {rows: [time / rows for time in samples] for rows, samples in times.items()},
        current,
    )


def _difference(
    session: Session, inputs: Mapping[str, Array], batch: Mapping[str, Array], rows: int
) -> str:
    """Return why a batch of equal rows does not give what the row gives alone; empty if it does."""
    alone = session.run(inputs)
    try:
        together = session.run(batch)
    except Exception as error:
        return f"the model fails on {plural(rows, 'row')} at a time ({type(error).__name__})"
    fits = all(array.ndim and array.shape[0] == rows for array in together.values())
    if fits and agrees({name: array[:1] for name, array in together.items()}, alone):
        return ""
    return "the model answers several rows differently from one"


def thread_candidates(current: int, fast: int, usable: int) -> list[int]:
    """Return numbers of threads worth trying: what is in force first, the powers of two, the fast and all cores."""
    powers = {1 << power for power in range(usable.bit_length())}
    return [
        current,
        *sorted(
            {number for number in (*powers, fast, usable) if number <= usable}
            - {current}
        ),
    ]


def _session_inputs(model: LoadedModel) -> dict[str, Array]:
    """Return random inputs by the session's own names."""
    bindings = model.inputs
    return {
        bindings.by_name[name][1]: array
        for name, array in random_inputs(bindings.specs).items()
    }


def _document(choice: Choice | str) -> dict[str, Any]:
    if isinstance(choice, str):
        return {"why_not_tried": choice}
    document = choice._asdict()
    samples = {
        str(candidate): list(times)
        for candidate, times in document.pop("times").items()
    }
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
    medians = {
        candidate: statistics.median(times)
        for candidate, times in sorted(choice.times.items())
    }
    base, rows = medians[choice.current], []
    for candidate, median in medians.items():
        against = "now" if candidate == choice.current else f"{median / base - 1:+.0%}"
        rows.append([str(candidate), f"{median:.4f}", against])
    print_table([*HEADERS[key], "AGAINST NOW"], rows)
    if choice.changed:
        saved = f"{choice.gain:.0%} less time (chance explains {choice.noise:.1%})"
        print(f"{key} {choice.best} instead of {choice.current}: {saved}.\n")
    elif choice.best == choice.current:
        print(f"{key} stays {choice.current}: nothing is faster.\n")
    else:
        print(
            f"{key} stays {choice.current}: {choice.best} was {max(0.0, choice.gain):.1%} faster, which is not "
            f"worth a change or may be chance (up to {min(1.0, choice.noise):.1%}).\n"
        )
