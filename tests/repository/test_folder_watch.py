"""Tests of the watch on a real models folder."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pocketserve.repository import folder_watch
from pocketserve.repository.folder_watch import FolderWatch


class Reader:
    """Counts scans of the folder.

    The first ones can be made to fail.
    """

    def __init__(self) -> None:
        self.reads = 0
        self.failures = 0

    def __call__(self) -> None:
        self.reads += 1
        if self.reads <= self.failures:
            raise PermissionError(13, "Permission denied")


@pytest.fixture
def reader() -> Reader:
    return Reader()


@pytest.fixture
def watch(tmp_path: Path, reader: Reader) -> Iterator[FolderWatch]:
    (tmp_path / "m" / "variables").mkdir(parents=True)
    (tmp_path / "m" / "model.toml").write_text("")
    (tmp_path / ".hidden").mkdir()
    watch = FolderWatch(tmp_path, None, reader)
    yield watch
    watch.close()


CHANGES: dict[str, Callable[[Path], object]] = {
    "written": lambda root: (root / "m" / "model.toml").write_text("x"),
    "deep": lambda root: (root / "m" / "variables" / "shard").write_bytes(b"x"),
    "removed": lambda root: (root / "m" / "model.toml").unlink(),
    "renamed": lambda root: (root / "m").rename(root / "n"),
    "folder": lambda root: (root / "new").mkdir(),
    "link": lambda root: os.link(root / "m" / "model.toml", root / "m" / "other"),
    "mode": lambda root: (root / "m" / "model.toml").chmod(0o400),
    "root": lambda root: root.rename(root.with_name("away")),
}


def test_a_requested_scan_includes_seen_changes(
    watch: FolderWatch, reader: Reader, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    watch.read_now()
    watch.catch_up()
    assert reader.reads == 1
    # A folder found by the scan is watched.
    (tmp_path / "new" / "model.toml").write_text("")
    reader.failures = 2
    with pytest.raises(PermissionError):
        watch.read_now()
    watch.catch_up()
    assert reader.reads == 3  # a failed scan is repeated


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed_at_once_and_scanned_once(
    watch: FolderWatch, reader: Reader, tmp_path: Path, change: str
) -> None:
    watch.catch_up()
    assert not watch.has_changes()
    assert reader.reads == 0
    CHANGES[change](tmp_path)
    assert watch.has_changes()
    watch.catch_up()
    assert reader.reads == (0 if change == "root" else 1)
    # Nothing can be read while it is gone.
    assert watch.has_changes() == (change == "root")


def test_irrelevant_events_are_ignored(watch: FolderWatch, tmp_path: Path) -> None:
    (tmp_path / "m" / "model.toml").read_text()
    list((tmp_path / "m").iterdir())
    (tmp_path / ".hidden" / "file").write_text("")
    assert not watch.has_changes()


def test_an_open_file_is_no_change(watch: FolderWatch, tmp_path: Path) -> None:
    with (tmp_path / "m" / "model.toml").open("w") as file:
        file.write("half")
        file.flush()
        assert not watch.has_changes()
    assert watch.has_changes()


def test_new_folders_are_watched(
    watch: FolderWatch, reader: Reader, tmp_path: Path
) -> None:
    (tmp_path / "new" / "inner").mkdir(parents=True)
    watch.catch_up()
    assert reader.reads == 1
    (tmp_path / "new" / "inner" / "file").write_text("")
    watch.catch_up()
    assert reader.reads == 2


def test_an_unreadable_folder_is_retried(
    watch: FolderWatch, reader: Reader, tmp_path: Path
) -> None:
    reader.failures = 1
    (tmp_path / "file").write_text("")
    watch.catch_up()
    assert watch.has_changes()
    watch.catch_up()
    assert reader.reads == 2
    assert not watch.has_changes()


def test_a_restored_root_is_scanned(
    watch: FolderWatch, reader: Reader, tmp_path: Path
) -> None:
    away = tmp_path.with_name(f"{tmp_path.name}-away")
    tmp_path.rename(away)
    watch.catch_up()
    away.rename(tmp_path)
    watch.catch_up()
    assert reader.reads == 1
    assert not watch.has_changes()
    (tmp_path / "m" / "model.toml").write_text("again")
    assert watch.has_changes()


def test_a_request_during_a_scan_waits(tmp_path: Path) -> None:
    """Otherwise an answer could be older than one that was given before."""
    begun = threading.Event()
    go_on = threading.Event()

    def read() -> None:
        begun.set()
        assert go_on.wait(120)

    watch = FolderWatch(tmp_path, None, read)
    (tmp_path / "file").write_text("")
    first, second = (threading.Thread(target=watch.catch_up) for _ in range(2))
    first.start()
    assert begun.wait(120)
    assert watch.has_changes()
    second.start()
    assert second.is_alive()
    go_on.set()
    for thread in (first, second):
        thread.join(120)
    assert not first.is_alive()
    assert not second.is_alive()
    assert not watch.has_changes()
    watch.close()


class SlowReader:
    """Blocks its first scan until released."""

    def __init__(self) -> None:
        self.begun, self.release = threading.Event(), threading.Event()
        self.reads = 0

    def __call__(self) -> None:
        self.reads += 1
        self.begun.set()
        assert self.release.wait(60)


def test_a_request_does_not_wait_for_changes_of_other_models(tmp_path: Path) -> None:
    reader = SlowReader()
    for name in ("good", "big"):
        (tmp_path / name).mkdir()
    watch = FolderWatch(tmp_path, None, reader)
    (tmp_path / "big" / "file").write_text("")
    watch.catch_up("good")  # makes another thread scan the folder
    assert reader.begun.wait(60)
    (tmp_path / "big" / "another").write_text("")  # during the scan
    watch.catch_up("good")
    assert reader.reads == 1
    assert watch.has_changes()
    reader.release.set()
    watch.catch_up()
    assert reader.reads == 2
    assert not watch.has_changes()
    watch.close()


@pytest.mark.parametrize("entry", ["good/file", "good.tflite", "good"])
def test_a_request_waits_for_changes_of_its_own_model(
    tmp_path: Path, entry: str
) -> None:
    reader = SlowReader()
    for name in ("good", "big"):
        (tmp_path / name).mkdir()
    watch = FolderWatch(tmp_path, None, reader)
    (tmp_path / "big" / "file").write_text("")
    watch.catch_up("good")
    assert reader.begun.wait(60)
    if entry == "good":
        (tmp_path / "good").rename(tmp_path / "away")
    else:
        (tmp_path / entry).write_text("")
    reader.release.set()
    watch.catch_up("good")
    assert reader.reads == 2
    assert not watch.has_changes()
    watch.close()


def test_changes_during_a_failed_scan_are_scanned_again(
    tmp_path: Path, reader: Reader
) -> None:
    (tmp_path / "m").mkdir()
    watch = FolderWatch(tmp_path, None, reader)
    reader.failures = 1
    (tmp_path / "m" / "file").write_text("")
    watch.catch_up("m")
    watch.catch_up("m")
    assert reader.reads == 2
    assert not watch.has_changes()
    watch.close()


@pytest.mark.parametrize("limit", ["names", "events"])
def test_an_event_overflow_affects_every_model(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    watch = FolderWatch(tmp_path, None, reader)
    if limit == "names":
        monkeypatch.setattr(folder_watch, "MAX_NAMES", 1)
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
    else:
        queued = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        for _ in range(queued // 2):  # equal consecutive events would be merged
            (tmp_path / "a").chmod(0o700)
            (tmp_path / "b").chmod(0o700)
    watch.catch_up("good")
    assert reader.reads == 1 and not watch.has_changes()  # by this thread
    watch.close()


def test_events_read_by_another_thread_are_changes(
    watch: FolderWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread marks the watch before it empties the queue.

    It scans afterwards.
    """

    def emptied(descriptor: int, request: int, nothing: bytes) -> bytes:
        watch._is_behind = True
        return nothing

    monkeypatch.setattr(folder_watch.fcntl, "ioctl", emptied)
    assert watch.has_changes()


def test_a_single_model_is_watched_with_its_parent_folder(
    tmp_path: Path, reader: Reader
) -> None:
    for name in ("m", "other"):
        (tmp_path / name).mkdir()
    watch = FolderWatch(tmp_path, tmp_path / "m", reader)
    (tmp_path / "other" / "file").write_text("")
    assert not watch.has_changes()
    (tmp_path / "m" / "file").write_text("")
    assert watch.has_changes()
    watch.close()


def test_too_many_folders_to_watch_are_reported(
    tmp_path: Path,
    reader: Reader,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(folder_watch, "MAX_FOLDERS", 2)
    for name in "abc":
        (tmp_path / name).mkdir()
    FolderWatch(tmp_path, None, reader).close()
    assert (
        "only 2 folders of models are watched; `pocketserve reload` reads the others"
        in caplog.text
    )


def test_without_inotify_the_folder_is_scanned_once_a_second(
    tmp_path: Path, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr(folder_watch.sys, "platform", "darwin")
    monkeypatch.setattr(folder_watch.time, "monotonic", lambda: now[0])
    watch = FolderWatch(tmp_path, None, reader)
    watch.catch_up()
    assert reader.reads == 0
    now[0] += folder_watch.POLL_S
    watch.catch_up()
    watch.catch_up()
    assert reader.reads == 1
    watch.close()
