"""Private copies of model files are complete, hashed, and removed with the model."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import MODELS
from pocketserve.repository import snapshots
from pocketserve.repository.files import content_digest, version_files
from pocketserve.repository.scan import ModelEntry, VersionEntry, scan
from pocketserve.repository.snapshots import FOLDER, SnapshotStore, with_own_paths
from pocketserve.runtimes.base import ModelLoadError
from pocketserve_wire import ApiError, ErrorCode


@pytest.fixture
def store(tmp_path: Path) -> SnapshotStore:
    """Return a store with its own state folder."""
    return SnapshotStore(tmp_path / "state")


def copies(tmp_path: Path) -> list[Path]:
    """Return the contents of the state folder."""
    folder = tmp_path / "state" / FOLDER
    if folder.exists():
        return sorted(path for path in folder.rglob("*") if path.is_file())
    return []


def one_file(tmp_path: Path, size: int = 1000) -> tuple[ModelEntry, VersionEntry, Path]:
    """Return a model of one file, and that file."""
    path = tmp_path / "models" / "m.tflite"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(os.urandom(size))
    entry = scan(path.parent)["m"]
    return entry, entry.versions["tflite"], path


@pytest.mark.parametrize(
    "name",
    [
        "tflite",
        "tflite-int8",
        "torch",
        "onnx",
        "pt2",
        "savedmodel",
        "tfjs",
        "keras",
        "executorch",
    ],
)
def test_a_copy_is_complete(store: SnapshotStore, tmp_path: Path, name: str) -> None:
    """Each file has its relative name and its digest for manifests and verdicts."""
    entry = scan(MODELS)["digits"]
    version = entry.versions[name]
    taken = store.take(version, entry.folder)
    assert taken.digest == content_digest(version)
    assert taken.path.name == version.path.name
    assert version.path.is_dir() or taken.path.parent.name == version.path.parent.name
    base = version.path if version.path.is_dir() else version.path.parent
    own = taken.path if version.path.is_dir() else taken.path.parent
    originals = {
        path.relative_to(base): path.read_bytes() for path in version_files(version)
    }
    assert {
        path.relative_to(own): path.read_bytes() for path in copies(tmp_path)
    } == originals
    taken.close()
    assert copies(tmp_path) == []
    assert list((tmp_path / "state" / FOLDER).iterdir()) == []


def test_a_copy_is_private_and_immutable(store: SnapshotStore, tmp_path: Path) -> None:
    entry, version, path = one_file(tmp_path)
    content = path.read_bytes()
    taken = store.take(version, entry.folder)
    modes = set()
    for item in (taken.path.parent, taken.path.parent.parent):
        modes.add(oct(item.stat().st_mode & 0o777))
    assert modes == {"0o700"}
    assert taken.path.stat().st_mode & 0o777 == 0o400
    path.write_bytes(b"other")
    taken.check()
    assert taken.path.read_bytes() == content
    taken.path.unlink()
    with pytest.raises(
        ModelLoadError,
        match="private copy in the state folder was changed; load the model again",
    ):
        taken.check()


def test_a_copy_is_removed_with_its_last_reference(
    store: SnapshotStore, tmp_path: Path
) -> None:
    entry, version, _ = one_file(tmp_path)
    taken = store.take(version, entry.folder)
    other = taken
    del taken
    assert len(copies(tmp_path)) == 1
    assert other.path.is_file()
    del other
    assert copies(tmp_path) == []


KILLED = """
import sys, os, signal
from pathlib import Path
from pocketserve.repository.scan import scan
from pocketserve.repository.snapshots import SnapshotStore

entry = scan(Path(sys.argv[1]))["m"]
held = SnapshotStore(Path(sys.argv[2])).take(entry.versions["tflite"], entry.folder)
print("taken", flush=True)
if sys.argv[3] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["killed", "alive", "ended"])
def test_only_copies_of_killed_processes_are_removed(tmp_path: Path, end: str) -> None:
    """A living process keeps its copies, and an ending one removes them."""
    entry, version, _ = one_file(tmp_path)
    command = [
        sys.executable,
        "-c",
        KILLED,
        str(tmp_path / "models"),
        str(tmp_path / "state"),
        end,
    ]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"taken\n"
        if end != "alive":
            process.stdin.close()
            assert process.wait(120) == (-signal.SIGKILL if end == "killed" else 0)
        left = copies(tmp_path)
        assert len(left) == (0 if end == "ended" else 1)
        own = SnapshotStore(tmp_path / "state").take(version, entry.folder)
        assert copies(tmp_path) == sorted([own.path, *(left if end == "alive" else [])])


def test_a_link_out_of_the_folder_is_rejected(
    store: SnapshotStore, tmp_path: Path
) -> None:
    entry, version, path = one_file(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        ModelLoadError,
        match=r"m\.tflite is a link that leaves its folder; copy the file into it",
    ):
        store.take(version, entry.folder)


def test_a_changing_link_cannot_escape(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checked file is copied, wherever the link points a moment later."""
    entry, version, path = one_file(tmp_path)
    targets = [path.rename(path.with_name("own")), tmp_path / "secret"]
    resolve = os.path.realpath
    targets[1].write_bytes(bytes(1000))
    path.symlink_to(targets[0])

    def realpath(name: Path | str, *, strict: bool = False) -> str:
        resolved = resolve(name, strict=strict)
        if name == path:
            targets.reverse()
            path.unlink()
            path.symlink_to(targets[0])
        return resolved

    monkeypatch.setattr("os.path.realpath", realpath)
    with pytest.raises(ModelLoadError, match="is a link that leaves its folder"):
        store.take(version, entry.folder)
    assert copies(tmp_path) == []


@pytest.mark.parametrize("room", [True, False])
def test_errors_name_the_owners_file(tmp_path: Path, room: bool) -> None:
    """Frameworks name the copy, which the user doesn't know and which is deleted."""
    entry = scan(MODELS)["digits"]
    for name in ("tflite", "savedmodel"):
        version = entry.versions[name]
        taken = SnapshotStore(tmp_path / "state" if room else None).take(
            version, entry.folder
        )
        assert (
            with_own_paths(f"Cannot open '{taken.path}': no", version)
            == f"Cannot open '{version.path}': no"
        )
        taken.close()


def test_an_unreadable_file_is_named(store: SnapshotStore, tmp_path: Path) -> None:
    entry, version, path = one_file(tmp_path)
    path.unlink()
    with pytest.raises(
        ModelLoadError, match=r"cannot be read: m\.tflite: No such file"
    ):
        store.take(version, entry.folder)
    assert list((tmp_path / "state" / FOLDER).iterdir()) == []


def test_a_file_written_during_the_copy_is_rejected(
    store: SnapshotStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy would mix old and new.

    The caller may retry.
    """
    # So large that the file's time differs after each copy.
    entry, version, path = one_file(tmp_path, 32 << 20)
    copy = snapshots._copy

    def copy_and_write(original: Path, target: Path) -> str:
        digest = copy(original, target)
        with path.open("r+b", buffering=0) as file:
            file.write(b"x")
        return digest

    monkeypatch.setattr(snapshots, "_copy", copy_and_write)
    with pytest.raises(
        ApiError, match=r"m\.tflite are being written; try again when they are complete"
    ) as caught:
        store.take(version, entry.folder)
    assert caught.value.code is ErrorCode.MODEL_NOT_READY
    assert copies(tmp_path) == []


def test_a_missing_state_folder_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy goes to the temporary folder.

    If that fails too, the reason is given.
    """
    entry, version, path = one_file(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    store = SnapshotStore(tmp_path / "file" / "state")
    taken = store.take(version, entry.folder)
    assert taken.path.read_bytes() == path.read_bytes()
    assert taken.path.is_relative_to(tmp_path / "temporary")
    taken.close()
    assert list((tmp_path / "temporary").iterdir()) == []
    shutil.rmtree(tmp_path / "temporary")
    with pytest.raises(
        ApiError,
        match=r"no space for a private copy of m\.tflite \(1000 bytes\): .*make room in",
    ) as no:
        store.take(version, entry.folder)
    assert no.value.code is ErrorCode.MODEL_NOT_READY


FULL = """
import resource, sys
from pathlib import Path
from pocketserve.repository.scan import scan
from pocketserve.repository.snapshots import SnapshotStore

resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
entry = scan(Path(sys.argv[1]))["m"]
SnapshotStore(Path(sys.argv[2])).take(entry.versions["tflite"], entry.folder)
"""


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    one_file(tmp_path)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [
        sys.executable,
        "-c",
        FULL,
        str(tmp_path / "models"),
        str(tmp_path / "state"),
    ]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        command, stderr=subprocess.PIPE, text=True, timeout=60, env=environment
    )
    assert (
        "there is no space for a private copy of m.tflite (1000 bytes): File too "
        "large; make room in" in done.stderr
    )
    assert list((tmp_path / "state" / FOLDER).iterdir()) == []
    assert list(temporary.iterdir()) == []
