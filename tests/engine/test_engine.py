"""Load, use and unload real models in the engine, with an injected clock.

Where a test needs a pending load, the model's label file is a named pipe: loading
blocks there until the test writes the labels.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic

import numpy as np
import pytest

import waiting_labels
from conftest import ROOT
from pocketserve.engine.device.cores import count_fast, usable_cores
from pocketserve.engine.engine import Engine, State
from pocketserve.engine.lifecycle.handle import EngineOptions, ModelHandle
from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.engine.lifecycle.sequences import SequenceStep
from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.repository.scan import ModelEntry, VersionEntry, scan
from pocketserve.runtimes.base import ModelSource, RuntimeMissingError
from pocketserve.runtimes.tflite.session import TfliteRuntime
from pocketserve_wire import ApiError, ErrorCode
from queue_entries import FunctionEntry, run

TIMEOUT_S = 120.0
DATA = ROOT / "tests" / "runtimes" / "data"
FOREVER = 1e9
LABELS = "".join(f"{digit}\n" for digit in range(10)).encode()


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.meanwhile: Callable[[], object] | None = (
            None  # called once, when the time is next read
        )

    def __call__(self) -> float:
        meanwhile = self.meanwhile
        self.meanwhile = None
        if meanwhile is not None:
            meanwhile()
        return self.now


class Bench:
    """An engine on a folder of models."""

    def __init__(
        self,
        folder: Path,
        cores: Callable[[], list[int]] = usable_cores,
        **options: float,
    ) -> None:
        self.folder = folder
        self.clock = Clock()
        settings = {
            "memory_budget": 10**9,
            "keep_alive": 0.0,
            "threads": 1,
            "queue_limit": 4,
        }
        self.engine = Engine(
            EngineOptions(**settings | {"max_image_pixels": 10**6} | options),
            self.clock,
            None,
            cores,
        )

    def named(
        self, name: str, version: str = "tflite"
    ) -> tuple[ModelEntry, VersionEntry]:
        entry = scan(self.folder)[name]
        return entry, entry.versions[version]

    def use(self, name: str, deadline: float = FOREVER):
        return self.engine.use(*self.named(name), deadline)

    def ask(self, name: str, deadline: float = FOREVER) -> float:
        """Run a model once on zeros."""
        with self.use(name, deadline) as running:
            return run_on_zeros(running)

    def load(self, name: str) -> None:
        self.engine.load(*self.named(name), FOREVER)

    def unload(self, name: str) -> None:
        self.engine.unload(name, "tflite", FOREVER)

    def state(self, name: str) -> State:
        return self.engine.state(name, "tflite")

    def running(self, name: str) -> ModelHandle | None:
        return self.engine.running(name, "tflite")

    def loaded(self) -> list[str]:
        return [name for name in scan(self.folder) if self.running(name) is not None]


def run_on_zeros(running: ModelHandle) -> float:
    def work(session) -> float:
        (spec,) = session.inputs
        zeros = np.zeros([max(1, dim) for dim in spec.shape], np.float32)
        (output,) = session.run({spec.name: zeros}).values()
        return float(output.reshape(-1)[0])

    return run(running.queue, work, RequestOptions(FOREVER)).result


def is_closed(running: ModelHandle) -> bool:
    return len(running.model.sessions) == 0


def replace(target: Path, content: bytes) -> None:
    """Replace a file atomically."""
    fresh = target.with_name(f".{target.name}.new")
    fresh.write_bytes(content)
    fresh.replace(target)


def refusal(call: Callable[[], object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        call()
    return caught.value


@pytest.fixture
def bench(models_copy: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**options: object) -> Bench:
        made.append(Bench(models_copy, **options))
        return made[-1]

    yield make
    for one in made:
        one.engine.close()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


class SlowLabels:
    """The digits model's labels, read from a named pipe."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._path = waiting_labels.make_pipe(folder / "digits" / "labels.txt")
        self._opening = pool.submit(self._path.open, "wb")

    def await_reader(self) -> None:
        """Wait until a load reads the labels."""
        self._opening.result(TIMEOUT_S)

    def finish(self, content: bytes = LABELS) -> None:
        """Let the load continue with these labels."""
        with self._opening.result(TIMEOUT_S) as pipe:
            pipe.write(content)

    def release(self) -> None:
        """Close both ends, so that a failed test blocks no thread."""
        reader = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        self._opening.result(TIMEOUT_S).close()
        os.close(reader)


@pytest.fixture
def slow_labels(
    models_copy: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], SlowLabels]]:
    waiting_labels.install(monkeypatch)
    made: list[SlowLabels] = []

    def make() -> SlowLabels:
        made.append(SlowLabels(models_copy, pool))
        return made[-1]

    yield make
    for one in made:
        one.release()


def until(condition: Callable[[], bool]) -> None:
    """Poll until another thread has done something."""
    deadline = monotonic() + TIMEOUT_S
    pause = threading.Event()
    while not condition():
        assert monotonic() < deadline
        pause.wait(0.001)


def while_loading(
    one: Bench, name: str, do: Callable[[], object], version: str = "tflite"
) -> None:
    """Call a function during a load, when the loader reads the clock."""

    def look() -> None:
        if one.engine.state(name, version) is State.LOADING:
            do()
        else:
            one.clock.meanwhile = look

    one.clock.meanwhile = look


def counted(caplog: pytest.LogCaptureFixture, text: str) -> int:
    return sum(text in record.getMessage() for record in caplog.records)


# --- Loading


def test_a_model_is_loaded_by_its_first_use(bench, caplog):
    caplog.set_level(logging.INFO)
    one = bench()
    assert one.state("digits") is State.ON_DEMAND
    assert one.running("digits") is None
    assert one.engine.memory_held() == 0
    first = one.ask("digits")
    assert one.state("digits") is State.READY
    assert (
        one.engine.memory_held() == one.running("digits").model.memory_bytes > 100_000
    )
    assert one.ask("digits") == first
    assert counted(caplog, "loaded digits/tflite") == 1


def test_a_load_succeeds_without_a_reaper_thread(bench, monkeypatch):
    one = bench()
    with monkeypatch.context() as patch:
        patch.setattr(
            threading.Thread,
            "start",
            lambda thread: (_ for _ in ()).throw(RuntimeError("no more threads")),
        )
        one.ask("petals")
    assert one.running("petals").users == 0
    one.load("petals")
    assert one.engine._reaper._thread.is_alive()


def test_a_failing_close_does_not_affect_other_models(bench, monkeypatch, caplog):
    one = bench()
    one.ask("petals")
    monkeypatch.setattr(ModelHandle, "close", lambda running: 1 // 0)
    one.unload("petals")
    assert one.state("petals") is State.STOPPED
    assert counted(caplog, "could not be closed") == 1


def test_concurrent_first_uses_load_once(bench, pool, caplog):
    caplog.set_level(logging.INFO)
    one = bench()
    start = threading.Barrier(12)

    def use() -> int:
        start.wait(TIMEOUT_S)
        with one.use("digits") as running:
            return id(running)

    assert (
        len(
            {
                future.result(TIMEOUT_S)
                for future in [pool.submit(use) for _ in range(12)]
            }
        )
        == 1
    )
    assert counted(caplog, "loaded digits/tflite") == 1


def test_a_request_waits_for_the_pending_load(bench, pool, slow_labels):
    one = bench()
    labels = slow_labels()
    first = pool.submit(one.ask, "digits")
    labels.await_reader()
    assert one.state("digits") is State.LOADING
    error = refusal(lambda: one.ask("digits", deadline=one.clock.now + 0.001))
    assert error.code is ErrorCode.DEADLINE_EXCEEDED
    error = refusal(
        lambda: one.engine.unload("digits", "tflite", one.clock.now + 0.001)
    )
    assert error.code is ErrorCode.DEADLINE_EXCEEDED
    second = pool.submit(one.ask, "digits")
    # Other models are not delayed.
    assert one.ask("petals") == pytest.approx(one.ask("petals"))
    labels.finish()
    assert first.result(TIMEOUT_S) == second.result(TIMEOUT_S)


def test_a_failed_load_is_remembered_until_the_file_changes(bench, models_copy, caplog):
    one = bench()
    file = models_copy / "petals" / "petals.tflite"
    good = file.read_bytes()
    replace(file, b"garbage" * 50)
    first = refusal(lambda: one.ask("petals"))
    assert first.code is ErrorCode.MODEL_FAILED
    assert first.message.startswith(
        "failed to load 'petals' version 'tflite': petals.tflite is not a TFLite model"
    )
    assert one.state("petals") is State.FAILED
    assert one.engine.failure("petals", "tflite") == first.message
    assert refusal(lambda: one.ask("petals")).message == first.message
    assert counted(caplog, "failed to load") == 1
    one.ask("diabetes")

    replace(file, good)
    one.ask("petals")
    assert one.state("petals") is State.READY
    assert one.engine.failure("petals", "tflite") is None


def test_requests_are_answered_during_a_reload(bench, models_copy):
    one = bench()
    answer = one.ask("petals")
    before = one.running("petals")
    one.engine.note_changes(scan(models_copy))
    assert one.engine.outdated_versions(scan(models_copy)["petals"]) == []
    replace(
        models_copy / "petals" / "petals.tflite",
        (models_copy / "petals" / "petals.tflite").read_bytes(),
    )
    one.engine.note_changes(scan(models_copy))
    outdated = one.engine.outdated_versions(scan(models_copy)["petals"])
    assert [version.name for version in outdated] == ["tflite"]
    assert one.ask("petals") == answer
    assert one.running("petals") is before
    meanwhile: list[float] = []
    while_loading(one, "petals", lambda: meanwhile.append(one.ask("petals")))
    one.load("petals")
    assert one.ask("petals") == answer
    assert meanwhile == [answer]
    assert one.running("petals") is not before
    assert is_closed(before)


class Body:
    """A request's body."""


def test_a_failed_model_retains_no_request_bodies(bench, models_copy):
    one = bench()
    replace(models_copy / "petals" / "petals.tflite", b"garbage" * 50)

    def ask() -> weakref.ref[Body]:
        body = Body()
        with pytest.raises(ApiError, match="is not a TFLite model"):
            one.ask("petals")
        return weakref.ref(body)

    asked = [
        ask(),
        ask(),
        ask(),
    ]
    gc.collect()
    assert [reference() for reference in asked] == [None] * 3


def test_a_failed_model_can_be_retried(bench, models_copy, caplog):
    one = bench()
    replace(models_copy / "petals" / "petals.tflite", b"garbage")
    refusal(lambda: one.ask("petals"))
    one.engine.reset("petals", "tflite")
    assert one.state("petals") is State.ON_DEMAND
    refusal(lambda: one.ask("petals"))
    assert counted(caplog, "failed to load") == 2


def test_waiting_requests_get_the_reason_of_a_failed_load(bench, pool, slow_labels):
    one = bench()
    labels = slow_labels()
    first = pool.submit(one.ask, "digits")
    second = pool.submit(one.ask, "digits")
    labels.await_reader()
    labels.finish(b"\xff\xfe\xff")
    for future in (first, second):
        error = refusal(lambda future=future: future.result(TIMEOUT_S))
        assert error.code is ErrorCode.MODEL_FAILED
        assert "labels.txt" in error.message


# --- Reloading


def test_a_reload_uses_the_changed_file_and_old_requests_finish(bench, models_copy):
    one = bench()
    with one.use("digits") as old:
        before = run_on_zeros(old)
        replace(
            models_copy / "digits" / "digits.tflite",
            (models_copy / "digits" / "digits.int8.tflite").read_bytes(),
        )
        assert one.running("digits") is old
        one.load("digits")
        new = one.running("digits")
        assert new is not old
        assert new.model.memory_bytes < old.model.memory_bytes
        assert not is_closed(old)
        assert run_on_zeros(old) == before
    assert is_closed(old)
    assert one.ask("digits") != before
    assert one.running("digits") is new


def test_a_reload_closes_an_unused_model_at_once(bench):
    one = bench()
    one.load("petals")
    old = one.running("petals")
    one.load("petals")
    assert is_closed(old)
    assert not is_closed(one.running("petals"))


def test_a_failed_reload_keeps_the_old_model(bench, models_copy):
    one = bench()
    before = one.ask("petals")
    old = one.running("petals")
    replace(models_copy / "petals" / "petals.tflite", b"garbage")
    assert refusal(lambda: one.load("petals")).code is ErrorCode.MODEL_FAILED
    assert one.state("petals") is State.READY
    assert one.running("petals") is old
    assert one.ask("petals") == before


def test_a_model_is_not_evicted_during_its_reload(bench, pool, slow_labels):
    one = bench(keep_alive=60.0)
    one.load("digits")
    old = one.running("digits")
    labels = slow_labels()
    loading = pool.submit(one.load, "digits")
    labels.await_reader()
    one.clock.now += 61
    one.engine.sweep()
    assert one.state("digits") is State.LOADING
    assert one.running("digits") is old
    labels.finish()
    loading.result(TIMEOUT_S)
    assert one.state("digits") is State.READY
    assert is_closed(old)


def test_the_old_model_serves_requests_during_a_reload(bench, pool, slow_labels):
    one = bench()
    one.load("digits")
    old = one.running("digits")
    labels = slow_labels()
    loading = pool.submit(one.load, "digits")
    labels.await_reader()
    with one.use("digits", deadline=one.clock.now + 0.001) as running:
        assert running is old
        run_on_zeros(running)
    labels.finish()
    loading.result(TIMEOUT_S)
    assert is_closed(old)
    assert one.running("digits") is not old


def test_a_request_that_waits_for_a_load_can_be_cancelled(bench, pool, slow_labels):
    one = bench()
    labels = slow_labels()
    switch = Cancellation()
    first = pool.submit(one.ask, "digits")
    labels.await_reader()

    def wait() -> None:
        with one.engine.use(*one.named("digits"), FOREVER, switch):
            raise AssertionError("it was cancelled")

    waiting = pool.submit(wait)
    switch.cancel()
    assert refusal(lambda: waiting.result(TIMEOUT_S)).code is ErrorCode.CANCELLED
    labels.finish()
    first.result(TIMEOUT_S)


# --- Unloading


def test_an_unload_lets_running_requests_finish(bench):
    one = bench()
    with one.use("petals") as first, one.use("petals") as second:
        assert first is second
        one.unload("petals")
        assert one.state("petals") is State.STOPPED
        assert one.running("petals") is None
        run_on_zeros(first)
    assert is_closed(first)


def test_an_unloaded_model_is_unavailable_until_loaded(bench):
    one = bench()
    one.ask("petals")
    held = one.running("petals")
    one.unload("petals")
    assert is_closed(held)
    assert one.engine.memory_held() == 0
    for _ in range(2):
        error = refusal(lambda: one.ask("petals"))
        assert error.code is ErrorCode.MODEL_NOT_FOUND
        assert error.message.startswith(
            "Request for unknown model: 'petals' has no available versions"
        )
    one.load("petals")
    one.ask("petals")
    one.unload("petals")
    one.unload("petals")  # repeating it is allowed
    one.engine.reset("petals", "tflite")
    one.ask("petals")


def test_the_counters_survive_an_unload(bench):
    one = bench()
    one.engine.statistics("petals", "tflite").record_failure(5)
    one.load("petals")
    one.unload("petals")
    assert one.engine.statistics("petals", "tflite").fail.count == 1


# --- Keep-alive


def test_an_idle_model_is_unloaded_after_its_keep_alive(bench, caplog):
    caplog.set_level(logging.INFO)
    one = bench(keep_alive=60.0)
    assert one.engine.sweep() is None
    one.ask("petals")
    one.clock.now += 59
    assert one.engine.sweep() == 1060.0
    one.ask("petals")
    one.clock.now += 59
    assert one.engine.sweep() == 1119.0
    held = one.running("petals")
    one.clock.now += 1
    assert one.engine.sweep() is None
    until(lambda: is_closed(held))  # by the reaper, if it ran first
    assert one.state("petals") is State.ON_DEMAND
    one.ask("petals")
    assert counted(caplog, "loaded petals/tflite") == 2


def test_a_model_in_use_does_not_expire(bench):
    one = bench(keep_alive=60.0)
    with one.use("petals") as running:
        one.clock.now += 1000
        assert one.engine.sweep() == one.clock.now + 60
        assert one.running("petals") is running
    # Idle from the end of the request on.
    assert one.engine.sweep() == one.clock.now + 60


def test_a_keep_alive_of_zero_never_expires(bench):
    one = bench(keep_alive=0.0)
    one.ask("petals")
    one.clock.now += 1e8
    assert one.engine.sweep() is None
    assert one.loaded() == ["petals"]


def test_a_manifest_may_set_its_own_keep_alive(bench, models_copy):
    manifest = models_copy / "petals" / "model.toml"
    manifest.write_text(f"keep_alive = 5\n{manifest.read_text()}")
    one = bench(keep_alive=60.0)
    one.ask("petals")
    one.ask("diabetes")
    one.clock.now += 5
    one.engine.sweep()
    assert one.loaded() == ["diabetes"]


def test_the_reaper_unloads_idle_models(models_copy):
    closed = threading.Event()
    engine = Engine(EngineOptions(10**9, 0.02, 1, 4, 10**6))
    entry = scan(models_copy)["petals"]
    try:
        with engine.use(entry, entry.versions["tflite"], FOREVER) as running:
            end = running.model.sessions[0].close
            running.model.sessions[0].close = lambda: (end(), closed.set())
            assert not closed.is_set()
        assert closed.wait(TIMEOUT_S)
        assert engine.state("petals", "tflite") is State.ON_DEMAND
    finally:
        engine.close()


# --- Memory


@pytest.fixture
def small(bench, models_copy) -> Bench:
    """Create a budget for two of three models of about 1.1 kB.

    Digits exceeds all of it.
    """
    shutil.copytree(models_copy / "petals", models_copy / "petals2")
    return bench(memory_budget=2400)


def test_the_least_recently_used_model_is_evicted(small):
    for name in ("diabetes", "petals", "diabetes"):
        small.ask(name)
        small.clock.now += 1
    held = small.running("petals")
    small.ask("petals2")
    assert small.loaded() == ["diabetes", "petals2"]
    assert is_closed(held)
    assert small.state("petals") is State.ON_DEMAND
    small.clock.now += 1
    small.ask("petals")
    assert small.loaded() == ["petals", "petals2"]
    assert small.engine.memory_held() <= 2400


def test_a_model_in_use_is_never_evicted(small):
    with small.use("diabetes") as oldest:
        small.clock.now += 1
        small.ask("petals")
        small.ask("petals2")
        assert small.loaded() == ["diabetes", "petals2"]
        with small.use("petals2"):
            error = refusal(lambda: small.ask("petals"))
            assert error.code is ErrorCode.MEMORY_BUDGET
            assert error.retry_after_s is not None
            assert error.message.startswith("failed to load 'petals'")
            assert "--memory-budget" in error.message
        assert not is_closed(oldest)
    small.ask("petals")  # the rejection applied to that moment only


def test_the_default_budget_is_half_of_available_memory(models_copy):
    options = {
        "keep_alive": 0.0,
        "threads": 1,
        "queue_limit": 4,
        "max_image_pixels": 10**6,
    }
    derived = Engine(
        EngineOptions(memory_budget=0, **options), available_memory=lambda: 2002
    )
    entry = scan(models_copy)["petals"]
    assert derived.memory_budget == 1001
    refused = refusal(
        lambda: derived.load(entry, entry.versions["tflite"], monotonic() + 0.05)
    )
    assert refused.code is ErrorCode.MEMORY_BUDGET
    assert "the memory budget is 1001" in refused.message
    assert (
        Engine(
            EngineOptions(memory_budget=7, **options), available_memory=lambda: 2002
        ).memory_budget
        == 7
    )


def test_the_budget_shrinks_with_available_memory(models_copy):
    """A load uses the memory available then, not at startup.

    Loaded models count as before.
    """
    left = [10_000]
    options = {
        "memory_budget": 0,
        "keep_alive": 0.0,
        "threads": 1,
        "queue_limit": 4,
        "max_image_pixels": 10**6,
    }
    engine = Engine(EngineOptions(**options), available_memory=lambda: left[0])
    models = scan(models_copy)

    def load(name: str) -> None:
        engine.load(models[name], models[name].versions["tflite"], monotonic() + 0.05)

    load("petals")
    assert 1000 < engine.memory_held() < 1500
    left[0] = 2000
    with engine.use(models["petals"], models["petals"].versions["tflite"], FOREVER):
        refused = refusal(lambda: load("diabetes"))
        assert refused.code is ErrorCode.MEMORY_BUDGET
        assert f"the memory budget is {engine.memory_held() + 1000};" in refused.message
    load("diabetes")
    assert engine.running("petals", "tflite") is None
    left[0] = 10_000
    load("petals")
    assert engine.running("diabetes", "tflite") is not None
    left[0] = 10**9
    assert engine.memory_budget == 5000
    engine.close()


def test_a_model_larger_than_the_budget_is_rejected_and_evicts_nothing(small):
    small.ask("diabetes")
    small.ask("petals")
    assert refusal(lambda: small.ask("digits")).code is ErrorCode.MEMORY_BUDGET
    assert small.loaded() == ["diabetes", "petals"]
    assert small.state("digits") is State.ON_DEMAND


def test_a_model_is_not_evicted_for_its_own_reload(small):
    small.ask("diabetes")
    small.ask("petals")
    small.load("petals")
    assert small.loaded() == ["diabetes", "petals"]


def test_concurrent_loads_stay_within_the_budget(bench, pool, slow_labels, models_copy):
    """Each fits alone. The second waits for the first, which may then be evicted."""
    size = (models_copy / "digits" / "digits.tflite").stat().st_size
    one = bench(memory_budget=size + size // 2)
    (models_copy / "twin").mkdir()
    shutil.copy(
        models_copy / "digits" / "digits.tflite", models_copy / "twin" / "twin.tflite"
    )
    labels = slow_labels()
    first = pool.submit(one.ask, "digits")
    labels.await_reader()
    late = refusal(lambda: one.ask("twin", deadline=one.clock.now + 0.001))
    assert late.code is ErrorCode.MEMORY_BUDGET
    second = pool.submit(one.ask, "twin")
    assert not second.done()
    assert one.running("twin") is None
    one.ask("petals")  # a small model fits beside the reservation
    labels.finish()
    first.result(TIMEOUT_S)  # its reservation covers the loaded model from the start
    # The first may still be in use when the second checks; then the second should
    # retry.
    error = second.exception(TIMEOUT_S)
    assert error is None or error.code is ErrorCode.MEMORY_BUDGET
    one.ask("twin")
    assert "digits" not in one.loaded()
    assert "twin" in one.loaded()


# --- Cores


def test_threads_follow_the_cores(bench):
    cores = [0, 1, 2, 3]
    one = bench(cores=lambda: list(cores), threads=0)
    one.ask("petals")
    before = one.running("petals")
    assert before.model.threads == count_fast(cores)
    with one.use("petals") as held:
        del cores[1:]
        one.engine.sweep()
        # The reaper may already be reopening it; then this sweep skips the model.
        until(lambda: one.running("petals") is not before)
        after = one.running("petals")
        assert after.model.threads == 1
        assert held is before
        assert not is_closed(before)
        run_on_zeros(held)
    assert is_closed(before)
    one.engine.sweep()
    assert one.running("petals") is after


def test_a_model_that_cannot_be_reopened_keeps_serving(bench, monkeypatch, caplog):
    cores = [0, 1, 2, 3]
    one = bench(cores=lambda: list(cores), threads=0)
    one.ask("petals")
    before = one.running("petals")
    monkeypatch.setattr(LoadedModel, "reopen", lambda model, threads: 1 // 0)
    del cores[1:]
    one.engine.sweep()
    until(lambda: one.state("petals") is State.READY)
    assert one.running("petals") is before
    one.ask("petals")
    one.engine.sweep()
    assert counted(caplog, "could not be opened with 1 threads") == 1


def test_a_missing_framework_fails_only_the_additional_session(bench, monkeypatch):
    one = bench()
    before = one.ask("petals")

    def gone(runtime: TfliteRuntime, source: ModelSource) -> None:
        raise RuntimeMissingError("it is gone; run: x")

    monkeypatch.setattr(TfliteRuntime, "open", gone)
    error = refusal(one.running("petals").model.open_session)
    assert error.code is ErrorCode.MODEL_FAILED
    assert (
        error.message == "failed to load 'petals' version 'tflite': it is gone; run: x"
    )
    assert one.ask("petals") == before


def test_threads_of_a_manifest_do_not_follow_the_cores(bench, models_copy):
    manifest = models_copy / "petals" / "model.toml"
    manifest.write_text(f"threads = 2\n{manifest.read_text()}")
    cores = [0, 1, 2, 3]
    one = bench(cores=lambda: list(cores), threads=0)
    one.ask("petals")
    before = one.running("petals")
    del cores[1:]
    one.engine.sweep()
    assert one.running("petals") is before
    assert before.model.threads == 2


def test_a_change_of_cores_reopens_the_loaded_files(bench, models_copy):
    cores = [0, 1]
    one = bench(cores=lambda: list(cores), threads=0)
    answer = one.ask("petals")
    before = one.running("petals")
    (models_copy / "petals" / "petals.tflite").write_bytes(b"garbage")
    del cores[1:]
    one.engine.sweep()
    until(lambda: one.state("petals") is State.READY)
    assert one.running("petals") is not before
    assert one.running("petals").model.threads == 1
    assert one.ask("petals") == answer


def test_a_reopened_model_counts_twice_until_the_old_one_closes(bench):
    cores = [0, 1]
    # Room for two of about 1.1 kB.
    one = bench(cores=lambda: list(cores), threads=0, memory_budget=2400)
    one.ask("petals")
    refused: list[ApiError] = []
    del cores[1:]
    while_loading(
        one,
        "petals",
        lambda: refused.append(refusal(lambda: one.ask("diabetes", deadline=0.0))),
    )
    one.engine.sweep()
    until(lambda: bool(refused) and one.state("petals") is State.READY)
    assert [error.code for error in refused] == [ErrorCode.MEMORY_BUDGET]
    one.ask("diabetes")
    assert one.loaded() == ["diabetes", "petals"]


def test_a_model_is_not_reopened_without_room_for_both(bench):
    """A used model keeps serving unchanged.

    An idle one is unloaded and reopened by the next request.
    """
    cores = [0, 1]
    # Room for one of about 1.1 kB.
    one = bench(cores=lambda: list(cores), threads=0, memory_budget=2000)
    with one.use("petals") as held:
        del cores[1:]
        one.engine.sweep()
        assert one.running("petals") is held
        assert held.model.threads == 2
    one.engine.sweep()
    until(lambda: one.loaded() == [] and is_closed(held))
    assert one.state("petals") is State.ON_DEMAND
    one.ask("petals")
    assert one.running("petals").model.threads == 1


AFFINITY = """
import os, sys, time
from pathlib import Path
from pocketserve.engine.engine import Engine
from pocketserve.engine.lifecycle.handle import EngineOptions
from pocketserve.repository.scan import scan

entry = scan(Path(sys.argv[1]))["petals"]
version = entry.versions["tflite"]
engine = Engine(EngineOptions(10**9, 0.0, 0, 4, 10**6))
usable = sorted(os.sched_getaffinity(0))
with engine.use(entry, version, 1e9) as running:
    print(running.model.threads, len(usable))
os.sched_setaffinity(0, usable[:1])
engine.sweep()
ends = time.monotonic() + 120
while engine.running("petals", "tflite").model.threads != 1 and time.monotonic() < ends:
    pass  # the reaper was quicker and is at it
print(engine.running("petals", "tflite").model.threads)
os.sched_setaffinity(0, usable)
ends = time.monotonic() + 120
while engine.running("petals", "tflite").model.threads == 1 < len(usable) and time.monotonic() < ends:
    with engine.use(entry, version, 1e9):  # a request notices, and the reaper acts
        pass
print(engine.running("petals", "tflite").model.threads)
engine.close()
"""


@pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"),
    reason="the system cannot bind processes to cores",
)
def test_models_follow_a_process_whose_cores_change(models_copy):
    done = subprocess.run(
        [sys.executable, "-c", AFFINITY, str(models_copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    first, few, again = done.stdout.splitlines()
    threads, cores = map(int, first.split())
    assert 1 <= threads <= cores
    assert int(few) == 1
    assert int(again) == threads


# --- Sequences


STATEFUL = """
[state]
max_idle = 60
[state.feedback]
b = "sum"
"""


@pytest.fixture
def adding(models_copy) -> Path:
    """Create a model that adds its input to its state."""
    folder = models_copy / "adding"
    folder.mkdir()
    shutil.copy(DATA / "two_inputs.tflite", folder / "adding.tflite")
    (folder / "model.toml").write_text(STATEFUL)
    return models_copy


def sequence_entry() -> FunctionEntry:
    """Return a request for a sequence."""
    return FunctionEntry(
        lambda session: None, RequestOptions(FOREVER), lambda job: None
    )


def test_idle_sequences_expire(bench, adding):
    one = bench()
    version = next(iter(scan(adding)["adding"].versions))
    with one.engine.use(*one.named("adding", version), FOREVER) as running:
        table = running.sequences
        step = SequenceStep("a", start=True, end=False)
        entry = sequence_entry()
        sequence = table.enter(step, entry)
        assert one.engine.sweep() == one.clock.now + 60
        table.leave(step, sequence, entry, failed=False)
        assert running.open_sequences == 1
        one.clock.now += 60
        one.engine.sweep()
        assert running.open_sequences == 0


def test_a_model_with_open_sequences_is_not_reopened(bench, adding):
    cores = [0, 1]
    one = bench(cores=lambda: list(cores), threads=0)
    version = next(iter(scan(adding)["adding"].versions))
    with one.engine.use(*one.named("adding", version), FOREVER) as running:
        step = SequenceStep("a", start=True, end=False)
        entry = sequence_entry()
        sequence = running.sequences.enter(step, entry)
        del cores[1:]
        one.engine.sweep()
        assert one.engine.running("adding", version) is running
        running.sequences.leave(step, sequence, entry, failed=True)
        one.engine.sweep()
        until(lambda: one.engine.running("adding", version) is not running)


def test_a_changed_model_is_reloaded_after_its_sequences_close(bench, adding):
    one = bench()
    version = next(iter(scan(adding)["adding"].versions))

    def reload() -> None:
        one.engine.load(*one.named("adding", version), FOREVER, in_background=True)

    with one.engine.use(*one.named("adding", version), FOREVER) as running:
        step = SequenceStep("a", start=True, end=False)
        entry = sequence_entry()
        sequence = running.sequences.enter(step, entry)
        (adding / "adding" / "model.toml").write_text(
            STATEFUL.replace("max_idle = 60", "max_idle = 61")
        )
        one.engine.note_changes(scan(adding))
        assert refusal(reload).code is ErrorCode.MODEL_NOT_READY
        with one.engine.use(*one.named("adding", version), FOREVER) as still:
            assert still is running
        assert [
            each.name for each in one.engine.outdated_versions(scan(adding)["adding"])
        ] == [version]
        running.sequences.leave(step, sequence, entry, failed=True)
        reload()
        with one.engine.use(*one.named("adding", version), FOREVER) as fresh:
            assert fresh is not running
            assert fresh.model.entry.manifest.state.max_idle == 61


def test_a_sequence_that_starts_during_a_reopen_continues(bench, adding):
    cores = [0, 1]
    one = bench(cores=lambda: list(cores), threads=0)
    version = next(iter(scan(adding)["adding"].versions))
    with one.engine.use(*one.named("adding", version), FOREVER) as running:
        step = SequenceStep("a", start=True, end=False)
        entry = sequence_entry()
        begun = []
        del cores[1:]
        while_loading(
            one,
            "adding",
            lambda: begun.append(running.sequences.enter(step, entry)),
            version,
        )
        one.engine.sweep()
        until(
            lambda: bool(begun) and one.engine.state("adding", version) is State.READY
        )
        assert one.engine.running("adding", version) is running
        assert not is_closed(running)
        running.sequences.leave(step, begun[0], entry, failed=True)
        one.engine.sweep()
        until(lambda: one.engine.running("adding", version) is not running)


# --- Shutdown


def test_closing_lets_running_requests_finish(bench):
    one = bench()
    one.ask("diabetes")
    idle = one.running("diabetes")
    with one.use("petals") as running:
        one.engine.close()
        assert is_closed(idle)
        assert not is_closed(running)
        run_on_zeros(running)
    assert is_closed(running)


def test_nothing_is_loaded_after_closing(bench):
    one = bench()
    one.engine.close()
    assert refusal(lambda: one.ask("petals")).code is ErrorCode.SHUTTING_DOWN
    assert one.loaded() == []


def test_a_load_that_finishes_after_closing_is_discarded(bench, pool, slow_labels):
    one = bench()
    labels = slow_labels()
    loading = pool.submit(one.ask, "digits")
    labels.await_reader()
    one.engine.close()
    labels.finish()
    assert refusal(lambda: loading.result(TIMEOUT_S)).code is ErrorCode.SHUTTING_DOWN
    assert one.loaded() == []
