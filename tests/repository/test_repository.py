"""Look up models and versions, and refresh the index."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pocketserve.repository import scan
from pocketserve.repository.repository import MAX_LISTED, Repository
from pocketserve_wire import ApiError, ErrorCode


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Create a model with the versions 1 and 2, and a bare one."""
    for name in ("m/1/m.tflite", "m/2/m.tflite", "bare.tflite"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    return Repository(tmp_path)


@pytest.mark.parametrize(
    ("version", "found"),
    [
        (None, "2"),
        ("", "2"),
        ("0", "2"),
        ("2", "2"),
        ("1", "1"),
    ],
    ids=lambda value: repr(value),
)
def test_versions(repository: Repository, version: str | None, found: str) -> None:
    """None, an empty text and "0" (OpenVINO clients) mean the default version."""
    assert repository.version(repository.model("m"), version).name == found


@pytest.mark.parametrize(
    "version",
    [
        "3",
        "00",
        "-1",
        "latest",
        "tflite",
        " 1",
        "1" * 5000,
    ],
)
def test_unknown_versions(repository: Repository, version: str) -> None:
    """The error has its own code and lists the versions."""
    with pytest.raises(ApiError, match=r"it has '1', '2'$") as caught:
        repository.version(repository.model("m"), version)
    assert caught.value.code is ErrorCode.VERSION_NOT_FOUND
    assert len(caught.value.message) < 300


def test_an_existing_version_0_is_not_the_default(tmp_path: Path) -> None:
    """Where a version 0 exists, "0" selects it."""
    for name in ("m/0/m.tflite", "m/1/m.tflite"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_bytes(b"")
    repository = Repository(tmp_path)
    entry = repository.model("m")
    assert [repository.version(entry, version).name for version in ("0", None)] == [
        "0",
        "1",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "x",
        "",
        "M",
        "m/1",
        "..",
        "../m",
        "m.tflite",
        "stats",
        "\0",
        "\udc80",
        "m" * 5000,
    ],
)
def test_unknown_models(repository: Repository, name: str) -> None:
    """The error uses Triton's wording and at most 128 characters of the name."""
    with pytest.raises(ApiError, match=r"^Request for unknown model: ") as caught:
        repository.model(name)
    assert caught.value.code is ErrorCode.MODEL_NOT_FOUND
    assert len(caught.value.message) < 300
    assert caught.value.body().isascii()


@pytest.mark.parametrize("version", [None, "", "0", "1"])
def test_a_model_without_versions(tmp_path: Path, version: str | None) -> None:
    """A model with a broken manifest has no version, not even a default."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "model.toml").write_text("broken = ")
    repository = Repository(tmp_path)
    with pytest.raises(ApiError) as caught:
        repository.version(repository.model("m"), version)
    assert caught.value.code is ErrorCode.VERSION_NOT_FOUND


def test_lookups_touch_no_file(repository: Repository, tmp_path: Path) -> None:
    """Lookups use memory until the next refresh, even without the folder."""
    assert sorted(repository.models()) == ["bare", "m"]
    shutil.rmtree(tmp_path / "m")
    assert sorted(repository.models()) == ["bare", "m"]
    assert repository.version(repository.model("m"), None).name == "2"


def test_a_model_is_read_when_first_requested(
    repository: Repository, tmp_path: Path
) -> None:
    """Each model is read from one state of its folder."""
    (tmp_path / "m" / "3").mkdir()
    (tmp_path / "m" / "3" / "m.tflite").write_bytes(b"")
    first = repository.model("m")
    shutil.rmtree(tmp_path / "m" / "3")
    assert repository.version(first, None).name == "3"
    assert repository.model("m") is first


def test_a_folder_removed_before_its_first_read(
    repository: Repository, tmp_path: Path
) -> None:
    """The other models are served, and this one has a reason."""
    shutil.rmtree(tmp_path / "m")
    assert "cannot be read" in str(repository.model("m").problem)
    assert repository.model("bare").versions


def test_a_file_replaced_by_a_folder_before_its_first_read(
    repository: Repository, tmp_path: Path
) -> None:
    """It is not a model any more and hides no other.

    A refresh shows the folder.
    """
    (tmp_path / "bare.tflite").unlink()
    (tmp_path / "bare.tflite").mkdir()
    assert list(repository.models()) == ["m"]
    (tmp_path / "bare.tflite" / "x.tflite").write_bytes(b"")
    repository.refresh()
    assert list(repository.models()) == ["bare.tflite", "m"]


def test_an_unknown_name_reads_few_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cost does not grow with the folder."""
    for number in range(100):
        (tmp_path / f"m{number}").mkdir()
        (tmp_path / f"m{number}" / "m.tflite").write_bytes(b"")
    read: list[Path] = []
    scanned = scan._scan_folder
    monkeypatch.setattr(
        scan,
        "_scan_folder",
        lambda path, root: read.append(path) or scanned(path, root),
    )
    with pytest.raises(ApiError, match=r"'m0', .* and more$"):
        Repository(tmp_path).model("nothing")
    assert len(read) == MAX_LISTED + 1


def test_a_folder_without_a_model_is_not_suggested(
    repository: Repository, tmp_path: Path
) -> None:
    """``bars`` resembles ``barz`` most, but is not a model."""
    (tmp_path / "bars").mkdir()
    repository.refresh()
    with pytest.raises(ApiError, match=r"; did you mean 'bare'\?$"):
        repository.model("barz")


def test_refresh_swaps_the_index(repository: Repository, tmp_path: Path) -> None:
    """A refresh shows the current folder.

    An earlier index stays complete.
    """
    before = repository.models()
    entry = repository.model("m")
    (tmp_path / "bare.tflite").unlink()
    (tmp_path / "new.tflite").write_bytes(b"")
    (tmp_path / "m" / "3").mkdir()
    (tmp_path / "m" / "3" / "m.tflite").write_bytes(b"")
    repository.refresh()
    assert sorted(repository.models()) == ["m", "new"]
    assert repository.version(repository.model("m"), None).name == "3"
    assert sorted(before) == ["bare", "m"]
    assert repository.version(entry, None).name == "2"


def test_a_refresh_that_fails_keeps_the_index(
    repository: Repository, tmp_path: Path
) -> None:
    shutil.rmtree(tmp_path)
    with pytest.raises(FileNotFoundError):
        repository.refresh()
    assert sorted(repository.models()) == ["bare", "m"]
    tmp_path.mkdir()


def test_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Repository(tmp_path / "nowhere")


def test_a_mistyped_name_gets_a_suggestion(tmp_path: Path) -> None:
    """The text starts like Triton's.

    It suggests a similar name, or the first ones.
    """
    for name in ("digits", "petals"):
        (tmp_path / f"{name}.tflite").write_bytes(b"")
    repository = Repository(tmp_path)
    for name, tail in (
        ("digit", " is not found; did you mean 'digits'?"),
        ("nothing", " is not found; there are 'digits', 'petals'"),
    ):
        with pytest.raises(ApiError) as error:
            repository.model(name)
        assert error.value.message == f"Request for unknown model: {name!r}{tail}"


def test_an_error_lists_few_of_many_names(tmp_path: Path) -> None:
    """At most eight models or versions.

    An empty folder is reported as such.
    """
    with pytest.raises(ApiError, match="the models folder is empty"):
        Repository(tmp_path).model("x")
    for number in range(1001):
        (tmp_path / f"m{number:04}.tflite").write_bytes(b"")
    with pytest.raises(
        ApiError, match=r"there are 'm0000', .*'m0007' and more$"
    ) as error:
        Repository(tmp_path).model("x")
    assert len(error.value.message) < 300
    for number in range(20):
        (tmp_path / "m0000" / f"v{number:02}").mkdir(parents=True)
        (tmp_path / "m0000" / f"v{number:02}.tflite").write_bytes(b"")
    (tmp_path / "m0000.tflite").unlink()
    repository = Repository(tmp_path)
    with pytest.raises(ApiError, match=r"it has .* and \d+ more$"):
        repository.version(repository.model("m0000"), "x")
