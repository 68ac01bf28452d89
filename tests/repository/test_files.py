"""The hash of a model's files covers contents and names without ambiguity."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserve.repository.files import (
    combine_hashes,
    content_digest,
    describe_hashes,
    files_below,
)
from pocketserve.repository.scan import VersionEntry
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.registry import MARKERS

HASHES = st.sampled_from(["0" * 64, "1" * 64])
NAMES = st.text(st.sampled_from("a \n/01"), min_size=1, max_size=80)
FILES = st.lists(st.tuples(HASHES, NAMES), max_size=3)


def hash_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@given(FILES, FILES)
def test_different_files_have_different_texts(
    one: list[tuple[str, str]], other: list[tuple[str, str]]
) -> None:
    assert (describe_hashes(one) == describe_hashes(other)) == (one == other)


def test_names_with_line_ends_cannot_forge_files() -> None:
    good, evil, other = (hash_of(content) for content in (b"good", b"evil", b"other"))
    forged = f"assets/x\n{evil}  saved_model.pb\n{other}  saved_model.pb!"
    first = [(other, Path(forged)), (good, Path("saved_model.pb"))]
    second = [
        (other, Path("assets/x")),
        (evil, Path("saved_model.pb")),
        (other, Path(f"saved_model.pb!\n{good}  saved_model.pb")),
    ]
    assert combine_hashes(first) != combine_hashes(second)


@pytest.mark.parametrize(
    "name", ["a\nb", "a\x7f", "\x1b[2J", "a\x85b", "assets/in\rside", "folder\n/file"]
)
def test_a_folder_with_control_characters_in_names_is_rejected(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"x")
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"x")
    reason = r"holds the name '.*', which has control characters; rename it"
    with pytest.raises(ModelLoadError, match=reason) as error:
        files_below(tmp_path)
    assert str(error.value).isprintable()
    kind = MARKERS["saved_model.pb"]
    with pytest.raises(ModelLoadError, match=reason):
        content_digest(VersionEntry("v", kind, tmp_path))


def test_all_other_names_are_hashed(tmp_path: Path) -> None:
    for name in ("saved_model.pb", "größe.txt", "with space", "模型"):
        (tmp_path / name).write_bytes(b"x")
    files = files_below(tmp_path)
    assert len(files) == 4
    digest = content_digest(VersionEntry("v", MARKERS["saved_model.pb"], tmp_path))
    (tmp_path / "with space").rename(tmp_path / "with_space")
    assert digest != content_digest(
        VersionEntry("v", MARKERS["saved_model.pb"], tmp_path)
    )
