"""New and changed versions load in the background while requests are answered."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from numbered_models import BODY, BROKEN, await_that, external, put, sum_of_files, times
from pocketserve.api.dispatch import answer_request, match
from pocketserve.api.messages import ApiRequest
from pocketserve.config import Config
from pocketserve.engine.engine import State
from pocketserve.engine.lifecycle.state import close_all
from pocketserve.repository import quiet
from pocketserve.service import Service
from pocketserve_wire import ApiError, ErrorCode
from sequence_models import FEEDBACK, running_sum

pytestmark = pytest.mark.onnx

TIMEOUT_S = 60.0


class Local:
    """A service in this process with its own folder."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.root = folder / "models"
        self.root.mkdir(exist_ok=True)
        config = Config(
            models_dir=self.root,
            state_dir=folder / "state",
            **{"quarantine": False} | settings,
        )
        self.service = Service(config)
        self.service.follow_folder()

    def request(
        self, path: str, body: bytes = BODY, owner: str = "", method: str = "POST"
    ) -> tuple[int, Any]:
        """Return an answer's status and document."""
        target = match(method, path)
        request = ApiRequest(
            path=target.path,
            body=memoryview(body if method == "POST" else b""),
            owner=owner,
        )
        response = answer_request(self.service, target.route, request)
        return response.status, json.loads(b"".join(response.chunks))

    def ask(self) -> tuple[str, float]:
        """Return the version and value of a successful answer."""
        status, answer = self.request("/v2/models/m/infer")
        assert status == 200, answer
        return answer["model_version"], answer["outputs"][0]["data"][0]

    def reason(self, version: str) -> str:
        """Return the reason that listings give for a version."""
        return self.service.status("m", version).reason


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Callable[..., Local]]:
    started: list[Local] = []

    def start(**settings: Any) -> Local:
        started.append(Local(tmp_path, **settings))
        return started[-1]

    yield start
    for each in started:
        each.service.close()


@pytest.fixture
def stalled_loads(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Block all loads, and requests that wait for them, until the event is set."""
    from pocketserve.engine.lifecycle import loader

    load = loader.ModelLoader._load
    go_on = threading.Event()

    def stalled(self: Any, entry: Any, version: Any, deadline: float) -> Any:
        if version.name != "1" or (version.path.parent / "changed").exists():
            assert go_on.wait(TIMEOUT_S)
        return load(self, entry, version, deadline)

    monkeypatch.setattr(loader.ModelLoader, "_load", stalled)
    yield go_on
    go_on.set()


def test_requests_do_not_wait_for_a_new_version(
    local: Callable[..., Local], stalled_loads: threading.Event
) -> None:
    one = local()
    put(one.root, 1, times(1))
    assert one.ask() == ("1", 1.0)
    put(one.root, 2, times(2))
    await_that(lambda: one.service.engine.state("m", "2") is State.LOADING)
    for _ in range(20):
        assert one.ask() == ("1", 1.0)
    assert one.reason("2") == (
        "pending: it is being loaded; version 1 is the default version until then"
    )
    assert one.service.status("m", None).ready
    assert one.request("/v2/models/m/config", method="GET")[0] == 200
    stalled_loads.set()
    await_that(lambda: one.ask() == ("2", 2.0))


def test_requests_do_not_wait_for_a_changed_file(
    local: Callable[..., Local], stalled_loads: threading.Event
) -> None:
    one = local()
    folder = put(one.root, 1, times(1))
    assert one.ask() == ("1", 1.0)
    (folder / "changed").touch()
    (folder / "fresh").write_bytes(times(3))
    (folder / "fresh").replace(folder / "model.onnx")
    await_that(lambda: one.service.engine.state("m", "1") is State.LOADING)
    for _ in range(20):
        assert one.ask() == ("1", 1.0)
    assert one.reason("1").startswith(
        "is still served as it was loaded: its files changed and are being loaded"
    )
    stalled_loads.set()
    await_that(lambda: one.ask() == ("1", 3.0))


def test_files_that_keep_changing_are_not_loaded(
    local: Callable[..., Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = local()
    names = ("a.bin", "b.bin")
    folder = put(one.root, 1, external(names))
    sum_of_files(folder, dict.fromkeys(names, 1.0))
    assert one.ask() == ("1", 3.0)
    monkeypatch.setattr(quiet, "QUIET_S", 3600.0)
    for name in names:
        sum_of_files(folder, {name: 2.0})
        await_that(lambda: "its files are being written" in one.reason("1"))
        assert one.ask() == ("1", 3.0)
    monkeypatch.setattr(quiet, "QUIET_S", 0.1)
    (folder / "other").touch()  # the next change ends the one-hour wait
    await_that(lambda: one.ask() == ("1", 5.0))


def test_an_unloaded_model_is_rejected_while_its_files_are_written(
    local: Callable[..., Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = local()
    names = ("a.bin", "b.bin")
    monkeypatch.setattr(quiet, "QUIET_S", 3600.0)
    sum_of_files(put(one.root, 1, external(names)), dict.fromkeys(names, 1.0))
    status, answer = one.request("/v2/models/m/infer")
    assert status == 503
    assert answer["code"] == "MODEL_NOT_READY"
    assert "are being written; try again" in answer["error"]
    monkeypatch.setattr(quiet, "QUIET_S", 0.1)
    assert one.ask() == ("1", 3.0)


def test_files_that_change_during_a_load_are_reloaded(
    local: Callable[..., Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model's copy is older than the labels, which are read later."""
    from pocketserve.engine.lifecycle import loader

    one = local()
    names = ("a.bin", "b.bin")
    folder = put(one.root, 1, external(names))
    sum_of_files(folder, dict.fromkeys(names, 1.0))
    load = loader.ModelLoader._load
    answers = list[float]()

    def changed_behind(self: Any, entry: Any, version: Any, deadline: float) -> Any:
        model = load(self, entry, version, deadline)
        if not answers:
            answers.append(0.0)
            sum_of_files(folder, dict.fromkeys(names, 2.0))
        return model

    monkeypatch.setattr(loader.ModelLoader, "_load", changed_behind)
    assert one.ask() == ("1", 5.0)


def test_open_sequences_keep_their_version(local: Callable[..., Local]) -> None:
    one = local()
    folder = one.root / "m"
    for number in (1, 2):
        (folder / str(number)).mkdir(parents=True)
    running_sum(folder / "1" / "model.onnx", 1)
    (folder / "model.toml").write_text(FEEDBACK)
    assert step(one, 1.0, start=True) == ("1", 1.0)
    running_sum(folder / "2" / "model.onnx", 1)
    await_that(lambda: "sequences are open" in one.reason("2"))
    assert step(one, 2.0) == ("1", 3.0)
    assert step(one, 3.0, end=True) == ("1", 6.0)
    await_that(lambda: step(one, 1.0, start=True, end=True)[0] == "2")


def step(
    one: Local, value: float, owner: str = "", number: int = 7, **flags: bool
) -> tuple[str, float]:
    """Send one step of a sequence."""
    parameters = {
        "sequence_id": number,
        **{f"sequence_{name}": flag for name, flag in flags.items()},
    }
    tensor = {
        "name": "x",
        "shape": [1, 1],
        "datatype": "FP32",
        "data": [value],
    }
    body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
    status, answer = one.request("/v2/models/m/infer", body, owner)
    assert status == 200, answer
    outputs = {output["name"]: output["data"][0] for output in answer["outputs"]}
    return answer["model_version"], outputs["y"]


def test_a_version_without_room_is_retried(
    local: Callable[..., Local],
) -> None:
    one = local()
    put(one.root, 1, times(1))
    assert one.ask() == ("1", 1.0)
    budget = one.service.engine._budget
    size = budget.size
    budget.size = 1
    put(one.root, 2, times(2))
    await_that(lambda: "memory budget" in one.reason("2"))
    assert one.ask() == ("1", 1.0)
    budget.size = size
    await_that(lambda: one.ask() == ("2", 2.0))


def test_an_older_version_does_not_answer_while_memory_is_short(
    local: Callable[..., Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory may become available.

    Meanwhile clients must not get another version's answers.
    """
    one = local()
    put(one.root, 1, times(1))
    put(one.root, 2, times(2))
    assert one.ask() == ("2", 2.0)
    table = one.service.engine._table
    with table.lock:
        idle = table.evict(("m", "2"), "it is idle")
    close_all(idle)
    acquire = one.service.engine.acquire

    def short_of_memory(entry: Any, version: Any, *more: Any) -> Any:
        if version.name == "2":
            raise ApiError(ErrorCode.MEMORY_BUDGET, "no room")
        return acquire(entry, version, *more)

    monkeypatch.setattr(one.service.engine, "acquire", short_of_memory)
    assert one.request("/v2/models/m/infer")[0] == 503
    monkeypatch.undo()
    assert one.ask() == ("2", 2.0)


def test_a_failure_is_tried_once_and_logged_once(
    local: Callable[..., Local], caplog: pytest.LogCaptureFixture
) -> None:
    one = local()
    put(one.root, 1, times(1))
    assert one.ask() == ("1", 1.0)
    put(one.root, 2, BROKEN)
    await_that(lambda: "failed to load" in one.reason("2"))
    for number in range(5):
        (one.root / f"note{number}").write_text("")  # the folder is read again
        assert one.ask() == ("1", 1.0)
    assert (
        sum("failed to load" in record.getMessage() for record in caplog.records) == 1
    )


def test_a_moved_folder_is_loaded_at_once(tmp_path: Path) -> None:
    """Its files are older than the move, so it is loaded without a delay."""
    one = Local(tmp_path, quarantine=False)
    try:
        names = ("a.bin", "b.bin")
        folder = put(one.root, 1, external(names))
        sum_of_files(folder, dict.fromkeys(names, 1.0))
        entry = one.service.entry("m")
        assert quiet.unrest(entry, entry.versions["1"]) > 0
        await_that(lambda: quiet.unrest(entry, entry.versions["1"]) == 0)
        os.rename(one.root / "m", one.root / "n")
        moved = one.service.entry("n")
        assert quiet.unrest(moved, moved.versions["1"]) == 0
    finally:
        one.service.close()


def test_a_clock_set_back_delays_nothing(
    local: Callable[..., Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = local()
    names = ("a.bin", "b.bin")
    sum_of_files(put(one.root, 1, external(names)), dict.fromkeys(names, 1.0))
    entry = one.service.entry("m")
    now = time.time()
    monkeypatch.setattr(quiet.time, "time", lambda: now - 86_400)
    assert quiet.unrest(entry, entry.versions["1"]) == 0


def test_files_are_not_read_under_the_lock(
    local: Callable[..., Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pocketserve.engine import engine

    one = local()
    put(one.root, 1, times(1))
    assert one.ask() == ("1", 1.0)
    read = engine.fingerprint
    was_free = list[bool]()

    def use_lock() -> None:
        with one.service.updates.paused("other"):
            pass

    def checked(entry: Any, version: Any) -> object:
        thread = threading.Thread(target=use_lock, daemon=True)
        thread.start()
        thread.join(TIMEOUT_S)
        was_free.append(not thread.is_alive())
        return read(entry, version)

    monkeypatch.setattr(engine, "fingerprint", checked)
    one.service.updates.start("m")
    assert was_free
    assert all(was_free)


def test_two_blocks_may_pause_a_model(local: Callable[..., Local]) -> None:
    one = local()
    put(one.root, 1, times(1))
    assert one.ask() == ("1", 1.0)
    updates = one.service.updates
    with updates.paused("m"):
        with updates.paused("m"):
            put(one.root, 2, times(2))
        assert one.ask() == ("1", 1.0)
        updates.start("m")
        assert updates.wait(0)
    await_that(lambda: one.ask() == ("2", 2.0))


def test_an_unload_cancels_a_load_about_to_start(
    local: Callable[..., Local], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = local()
    put(one.root, 1, times(1))
    assert one.ask() == ("1", 1.0)
    engine = one.service.engine
    is_unloaded = threading.Event()
    load = engine.load

    def load_after_unload(*arguments: Any, **options: Any) -> None:
        if not is_unloaded.is_set():
            one.service.unload("m")
            is_unloaded.set()
        load(*arguments, **options)

    monkeypatch.setattr(engine, "load", load_after_unload)
    put(one.root, 2, times(2))
    one.service.entry("m")
    assert is_unloaded.wait(TIMEOUT_S)
    assert one.service.updates.wait(TIMEOUT_S)
    assert_unloaded(one)


def test_an_unload_waits_for_a_load_in_progress(
    local: Callable[..., Local], stalled_loads: threading.Event
) -> None:
    one = local()
    put(one.root, 1, times(1))
    assert one.ask() == ("1", 1.0)
    put(one.root, 2, times(2))
    await_that(lambda: one.service.engine.state("m", "2") is State.LOADING)
    unload = threading.Thread(target=one.service.unload, args=("m",))
    unload.start()
    await_that(lambda: one.service.engine.state("m", "1") is State.STOPPED)
    stalled_loads.set()
    unload.join(TIMEOUT_S)
    assert one.service.updates.wait(TIMEOUT_S)
    assert_unloaded(one)


def assert_unloaded(one: Local) -> None:
    """Check that both versions are unloaded and no request loads one."""
    for version in ("1", "2"):
        assert one.service.engine.state("m", version) is State.STOPPED
    status, answer = one.request("/v2/models/m/infer")
    assert (status, answer["code"]) == (404, "MODEL_NOT_FOUND")


def test_runs_are_counted_for_the_answering_version(
    local: Callable[..., Local],
) -> None:
    one = local()
    put(one.root, 1, times(1))
    put(one.root, 2, BROKEN)
    assert one.ask() == ("1", 1.0)
    counts = {}
    for version in ("1", "2"):
        path = f"/v2/models/m/versions/{version}/stats"
        (statistics,) = one.request(path, method="GET")[1]["model_stats"]
        counts[version] = statistics["inference_stats"]["success"]["count"]
    assert counts == {"1": 1, "2": 0}


@pytest.fixture
def summing(local: Callable[..., Local]) -> Local:
    """Load a model that sums the steps of a sequence."""
    one = local()
    folder = one.root / "m"
    (folder / "1").mkdir(parents=True)
    running_sum(folder / "1" / "model.onnx", 1)
    (folder / "model.toml").write_text(FEEDBACK)
    assert step(one, 1.0, start=True, end=True) == ("1", 1.0)
    return one


def add_version_2(one: Local) -> None:
    """Load version 2 and keep the default version."""
    with one.service.updates.paused("m"):
        (one.root / "m" / "2").mkdir()
        running_sum(one.root / "m" / "2" / "model.onnx", 1)
        entry = one.service.entry("m")
        version = entry.versions["2"]
        deadline = time.monotonic() + TIMEOUT_S
        one.service.engine.load(entry, version, deadline)


def reload_in_background(one: Local) -> None:
    """Reload version 1, as if its files had changed."""
    entry = one.service.entry("m")
    deadline = time.monotonic() + TIMEOUT_S
    one.service.engine.load(entry, entry.versions["1"], deadline, in_background=True)


def test_a_sequence_that_starts_before_a_swap_continues(
    summing: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = summing.service.engine._loader
    clock = loader.clock
    calls = list[str]()

    def start_sequence() -> float:
        calls.append("clock")
        if len(calls) == 3:  # the load has ended, and isn't published yet
            step(summing, 1.0, start=True)
        return clock()

    monkeypatch.setattr(loader, "clock", start_sequence)
    with pytest.raises(ApiError, match="sequences of 'm' are open"):
        reload_in_background(summing)
    assert step(summing, 2.0, end=True) == ("1", 3.0)


def hook_first_start(monkeypatch: pytest.MonkeyPatch, hook: Callable[[], None]) -> None:
    """Call a function when the next request has its version, before it starts a
    sequence.
    """
    from pocketserve.engine.lifecycle.sequences import SequenceTable

    enter = SequenceTable.enter
    calls = list[str]()

    def hooked(self: Any, step: Any, entry: Any) -> Any:
        calls.append("enter")
        if len(calls) == 1:
            hook()
        return enter(self, step, entry)

    monkeypatch.setattr(SequenceTable, "enter", hooked)


def test_a_sequence_starts_on_the_swapped_in_version(
    summing: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook_first_start(monkeypatch, lambda: reload_in_background(summing))
    assert step(summing, 1.0, start=True) == ("1", 1.0)
    assert step(summing, 2.0, end=True) == ("1", 3.0)


def test_a_sequence_starts_on_the_new_default_version(
    summing: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_version_2(summing)
    repository = summing.service.repository
    with summing.service.updates.paused("m"):
        hook_first_start(monkeypatch, lambda: repository.set_default("m", "2"))
        assert step(summing, 1.0, start=True) == ("2", 1.0)
        assert step(summing, 2.0, end=True) == ("2", 3.0)


def test_a_sequence_that_starts_before_a_new_default_continues(
    summing: Local, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = summing.service.engine
    started = threading.Event()
    count = engine.open_sequences

    def start_after_check(name: str, version: str) -> int:
        number = count(name, version)
        is_loaded = engine.running("m", "2") is not None
        if is_loaded and not started.is_set():
            started.set()
            step(summing, 1.0, start=True)
        return number

    monkeypatch.setattr(engine, "open_sequences", start_after_check)
    (summing.root / "m" / "2").mkdir()
    running_sum(summing.root / "m" / "2" / "model.onnx", 1)
    summing.service.entry("m")
    assert started.wait(TIMEOUT_S)
    await_that(lambda: "sequences are open" in summing.reason("2"))
    assert step(summing, 2.0, end=True) == ("1", 3.0)
    await_that(lambda: step(summing, 1.0, start=True, end=True)[0] == "2")
