"""What ``bench --tune`` wrote: when it counts, what it replaces, and that a damaged file harms nothing."""

from __future__ import annotations

import dataclasses
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import MODELS
from pocketserve.engine.lane import Scheduler
from pocketserve.engine.loading import LoadedModel, load_model
from pocketserve.engine.running import EngineOptions, start_running
from pocketserve.engine.tuned import NOT_TUNED, Threads, Tuned, rows_for, threads_for
from pocketserve.engine.tuning_store import MAX_ENTRIES, MAX_STORE_BYTES, TuningStore, _parse, device_look
from pocketserve.repository.files import content_digest
from pocketserve.repository.manifest import Manifest
from pocketserve.repository.scan import VersionEntry, scan

TIMEOUT_S = 20.0
TUNED = Tuned(threads=3, max_batch=16, runtime="made-up 1", said="threads 3 instead of 1: 50% less time")
PLAIN = Manifest()
TWO = Threads(2, 4)


@pytest.fixture
def version() -> VersionEntry:
    return scan(MODELS)["digits"].versions["tflite"]


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "state" / "tuned.json"


@pytest.fixture
def kept(path, version) -> TuningStore:
    """A store that holds :data:`TUNED` for the digits."""
    store = TuningStore(path)
    store.put(version, "abc", TUNED)
    return store


# --- What it replaces


@pytest.mark.parametrize(
    ("threads", "manifest", "tuned", "expected"),
    [
        (Threads(4, 8), PLAIN, NOT_TUNED, 4),
        (Threads(4, 8), PLAIN, Tuned(threads=2), 2),
        (Threads(4, 8), Manifest(threads=1), Tuned(threads=2), 1),
        (Threads(4, 8), Manifest(threads=1), Tuned(threads=2, forced=True), 2),
        (Threads(4, 8, fixed=True), PLAIN, Tuned(threads=2), 4),
        (Threads(4, 8, fixed=True), PLAIN, Tuned(threads=2, forced=True), 2),
        (Threads(1, 2), PLAIN, Tuned(threads=8), 2),
        (Threads(1, 2), Manifest(threads=8), NOT_TUNED, 8),
        (Threads(4, 8, low_power=True), PLAIN, NOT_TUNED, 2),
        (Threads(4, 8, low_power=True), PLAIN, Tuned(threads=6), 3),
        (Threads(1, 2, low_power=True), PLAIN, NOT_TUNED, 1),
    ],
)
def test_threads(threads: Threads, manifest: Manifest, tuned: Tuned, expected: int) -> None:
    assert threads_for(threads, manifest, tuned) == expected


@pytest.mark.parametrize(
    ("fixed", "manifest", "tuned", "expected"),
    [
        (False, PLAIN, NOT_TUNED, 8),
        (False, PLAIN, Tuned(max_batch=1), 1),
        (True, PLAIN, Tuned(max_batch=1), 8),
        (False, Manifest(max_batch=4), Tuned(max_batch=1), 4),
        (True, Manifest(max_batch=4), Tuned(max_batch=16, forced=True), 16),
    ],
)
def test_rows(fixed: bool, manifest: Manifest, tuned: Tuned, expected: int) -> None:
    assert rows_for(8, fixed, manifest, tuned) == expected


# --- The file


def test_what_is_kept_is_found_by_another_process(kept, path, version) -> None:
    assert TuningStore(path).find(version, lambda: "abc") == TUNED


def test_nothing_is_hashed_where_nothing_is_kept(path, version) -> None:
    assert TuningStore(path).find(version, lambda: pytest.fail("hashed")) == NOT_TUNED


def test_it_is_forgotten(kept, path, version) -> None:
    assert kept.remove(version) is True
    assert kept.remove(version) is False
    assert TuningStore(path).find(version, lambda: "abc") == NOT_TUNED


def test_another_content_device_or_option_does_not_count(kept, path, version, caplog) -> None:
    assert kept.find(version, lambda: "other") == NOT_TUNED
    assert TuningStore(path, lambda: "another phone").find(version, lambda: "abc") == NOT_TUNED
    assert kept.find(dataclasses.replace(version, options={"xnnpack": False}), lambda: "abc") == NOT_TUNED
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 3 and all("--tune" in message for message in said)
    assert "have changed" in said[0] and "another device" in said[1]


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"[" * 100_000, b" " * (MAX_STORE_BYTES + 1)],
    ids=["empty", "cut", "list", "null", "no text", "deep", "large"],
)
def test_a_damaged_file_is_ignored_with_a_warning(path, version, content, caplog) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    store = TuningStore(path)
    assert store.find(version, lambda: "abc") == NOT_TUNED
    assert store.find(version, lambda: "abc") == NOT_TUNED  # said once
    (record,) = caplog.records
    assert "is ignored" in record.getMessage() and "--tune" in record.getMessage()
    store.put(version, "abc", TUNED)
    assert TuningStore(path).find(version, lambda: "abc") == TUNED


def test_a_damaged_file_can_be_forgotten(path, version, caplog) -> None:
    path.parent.mkdir()
    path.write_bytes(b"{")
    store = TuningStore(path)
    assert store.remove(version) and not store.remove(version)
    caplog.clear()
    assert TuningStore(path).find(version, lambda: "abc") == NOT_TUNED
    assert not caplog.records


@pytest.mark.parametrize(
    "damage",
    [{"threads": 0}, {"threads": 257}, {"threads": True}, {"max_batch": "8"}, {"forced": 1}, {"said": None}],
    ids=str,
)
def test_a_damaged_entry_is_ignored_with_a_warning(kept, path, version, damage, caplog) -> None:
    document = json.loads(path.read_text())
    for entry in document.values():
        entry |= damage
    path.write_text(json.dumps(document))
    assert TuningStore(path).find(version, lambda: "abc") == NOT_TUNED
    assert "the entry is damaged" in caplog.text


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["threads", "max_batch", "said", "x"]), inner),
    max_leaves=8,
)


@given(json_values)
def test_any_entry(entry: Any) -> None:
    found = _parse(entry)
    assert found is None or found.threads is None or 1 <= found.threads <= 256


def test_the_oldest_make_room(kept, path, version) -> None:
    entry = next(iter(json.loads(path.read_text()).values()))
    path.write_text(json.dumps({str(number): entry for number in range(MAX_ENTRIES)}))
    store = TuningStore(path)
    store.put(version, "abc", TUNED)
    assert store.find(version, lambda: "abc") == TUNED
    assert len(json.loads(path.read_text())) == MAX_ENTRIES


def test_a_folder_that_cannot_be_written(tmp_path, version) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        TuningStore(tmp_path / "file" / "tuned.json").put(version, "abc", TUNED)


def test_nothing_is_left_behind(kept, path) -> None:
    assert [file.name for file in path.parent.iterdir()] == ["tuned.json"]


def test_the_look_of_this_device() -> None:
    assert device_look() == device_look() != ""


# --- In a loaded model


@pytest.fixture
def load(path) -> Iterator[Any]:
    opened: list[LoadedModel] = []

    def make(threads: Threads = TWO) -> LoadedModel:
        entry = scan(MODELS)["digits"]
        opened.append(
            load_model(
                entry, entry.versions["tflite"], threads, 10**6, None, monotonic() + TIMEOUT_S, TuningStore(path)
            )
        )
        return opened[-1]

    yield make
    for model in opened:
        model.close()


def test_a_load_takes_what_was_tuned(load, path, version) -> None:
    runtime = load().runtime
    TuningStore(path).put(version, content_digest(version), dataclasses.replace(TUNED, runtime=runtime))
    model = load()
    assert (model.threads, model.source.threads) == (3, 3)
    assert model.threads_for(Threads(2, 1)) == 1  # fewer cores are left to the process
    running = start_running(model, EngineOptions(10**9, 0.0, 0, 4, 10**6), Scheduler(2), monotonic)
    assert running.lane._line.max_rows == 16
    assert load(Threads(1, 4, fixed=True)).threads == 1


def test_another_framework_does_not_count(load, path, version, caplog) -> None:
    TuningStore(path).put(version, content_digest(version), TUNED)
    model = load()
    assert (model.threads, model.tuned) == (2, NOT_TUNED)
    assert "made-up 1" in caplog.text
