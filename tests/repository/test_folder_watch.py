"""The watch of the models folder, on a real one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pocketserve.repository import folder_watch
from pocketserve.repository.folder_watch import FolderWatch


class Reader:
    """Counts how often the folder is read; the first times it fails, if told so."""

    def __init__(self) -> None:
        self.reads, self.failures = 0, 0

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


def test_a_reading_that_is_asked_for_takes_up_what_was_seen(
    watch: FolderWatch, reader: Reader, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    watch.read_now()
    watch.catch_up()
    assert reader.reads == 1
    (tmp_path / "new" / "model.toml").write_text(
        ""
    )  # a folder that the reading found is watched
    reader.failures = 2
    with pytest.raises(PermissionError):
        watch.read_now()
    watch.catch_up()
    assert reader.reads == 3  # what could not be read is read again


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_noticed_at_once_and_read_once(
    watch: FolderWatch, reader: Reader, tmp_path: Path, change: str
) -> None:
    watch.catch_up()
    assert not watch.has_changes() and reader.reads == 0
    CHANGES[change](tmp_path)
    assert watch.has_changes()
    watch.catch_up()
    assert reader.reads == (0 if change == "root" else 1)
    assert watch.has_changes() == (
        change == "root"
    )  # nothing can be read while it is gone


def test_what_is_no_change(watch: FolderWatch, tmp_path: Path) -> None:
    (tmp_path / "m" / "model.toml").read_text()
    list((tmp_path / "m").iterdir())
    (tmp_path / ".hidden" / "file").write_text("")
    assert not watch.has_changes()


def test_a_file_that_is_being_written_is_no_change(
    watch: FolderWatch, tmp_path: Path
) -> None:
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


def test_a_folder_that_cannot_be_read_is_tried_again(
    watch: FolderWatch, reader: Reader, tmp_path: Path
) -> None:
    reader.failures = 1
    (tmp_path / "file").write_text("")
    watch.catch_up()
    assert watch.has_changes()
    watch.catch_up()
    assert reader.reads == 2 and not watch.has_changes()


def test_the_root_that_comes_back_is_read(
    watch: FolderWatch, reader: Reader, tmp_path: Path
) -> None:
    away = tmp_path.with_name(f"{tmp_path.name}-away")
    tmp_path.rename(away)
    watch.catch_up()
    away.rename(tmp_path)
    watch.catch_up()
    assert reader.reads == 1 and not watch.has_changes()
    (tmp_path / "m" / "model.toml").write_text("again")
    assert watch.has_changes()


def test_who_comes_while_it_is_read_waits(tmp_path: Path) -> None:
    """Or an answer would know less than one that was given before it."""
    begun, go_on = threading.Event(), threading.Event()

    def read() -> None:
        begun.set()
        assert go_on.wait(120)

    watch = FolderWatch(tmp_path, None, read)
    (tmp_path / "file").write_text("")
    first, second = (threading.Thread(target=watch.catch_up) for _ in range(2))
    first.start()
    assert begun.wait(120) and watch.has_changes()
    second.start()
    assert second.is_alive()
    go_on.set()
    for thread in (first, second):
        thread.join(120)
    assert not first.is_alive() and not second.is_alive() and not watch.has_changes()
    watch.close()


class SlowReader:
    """Blocks its first reading until it is released."""

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
    watch.catch_up("good")  # has the folder read by another thread
    assert reader.begun.wait(60)
    (tmp_path / "big" / "another").write_text("")  # while the folder is read
    watch.catch_up("good")
    assert reader.reads == 1 and watch.has_changes()
    reader.release.set()
    watch.catch_up()
    assert reader.reads == 2 and not watch.has_changes()
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
    assert reader.reads == 2 and not watch.has_changes()
    watch.close()


def test_changes_during_a_reading_that_fails_are_read_again(
    tmp_path: Path, reader: Reader
) -> None:
    (tmp_path / "m").mkdir()
    watch = FolderWatch(tmp_path, None, reader)
    reader.failures = 1
    (tmp_path / "m" / "file").write_text("")
    watch.catch_up("m")
    watch.catch_up("m")
    assert reader.reads == 2 and not watch.has_changes()
    watch.close()


@pytest.mark.parametrize("limit", ["names", "events"])
def test_more_changes_than_are_kept_concern_every_model(
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
        for _ in range(queued // 2):  # equal events in a row would be merged
            (tmp_path / "a").chmod(0o700)
            (tmp_path / "b").chmod(0o700)
    watch.catch_up("good")
    assert reader.reads == 1 and not watch.has_changes()  # by this thread
    watch.close()


def test_events_that_another_thread_takes_meanwhile_are_changes(
    watch: FolderWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other thread marks the watch before it empties the queue, and reads the folder after that."""

    def emptied(descriptor: int, request: int, nothing: bytes) -> bytes:
        watch._is_behind = True
        return nothing

    monkeypatch.setattr(folder_watch.fcntl, "ioctl", emptied)
    assert watch.has_changes()


def test_one_model_alone_is_watched_with_the_folder_around_it(
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


def test_more_folders_than_can_be_watched_are_told(
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


def test_without_inotify_the_folder_is_read_once_a_second(
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
