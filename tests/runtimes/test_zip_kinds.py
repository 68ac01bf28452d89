"""Tell PyTorch's zip formats apart."""

from __future__ import annotations

import random
import struct
import warnings
import zipfile
from pathlib import Path

import pytest

from pocketserve.formats.zip_archives import (
    BadZipError,
    Member,
    kind_of_zip,
    members,
    read_member,
)

pytestmark = pytest.mark.torch

SCRIPT = ("data.pkl", "code/__torch__.py", "constants.pkl", "version")


def zipped(path: Path, *names: str, top: str = "archive") -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(f"{top}/{name}", b"")
    return path


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (SCRIPT, "torchscript"),
        ((*SCRIPT, "bytecode.pkl"), "ptl"),
        (("models/model.json", "archive_format", "data/weights/weight_0"), "pt2"),
        (("serialized_exported_program.json", "version"), "pt2"),
        (("data/aotinductor/model/a.so", "archive_format"), "aoti"),
        (
            (
                "data/aotinductor/model/a.so",
                "archive_format",
                "models/model.json",
                *SCRIPT,
            ),
            "aoti",
        ),
        (("data.pkl", "data/0", "version", "byteorder"), "state_dict"),
        (("readme.txt",), None),
        ((), None),
    ],
)
def test_kinds_by_member_names(
    tmp_path: Path, names: tuple[str, ...], kind: str | None
):
    assert kind_of_zip(zipped(tmp_path / "a.zip", *names)) == kind
    assert kind_of_zip(zipped(tmp_path / "b.zip", *names, top="other name")) == kind


def test_files_of_torch_itself(tmp_path: Path):
    torch = pytest.importorskip("torch")
    module = torch.nn.Linear(2, 2)
    torch.save(module.state_dict(), tmp_path / "a.pt")
    torch.export.save(
        torch.export.export(module, (torch.ones(1, 2),)), tmp_path / "a.pt2"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        script = torch.jit.script(module)
        script.save(str(tmp_path / "a.ts"))
        script._save_for_lite_interpreter(str(tmp_path / "a.ptl"))
    kinds = [
        kind_of_zip(tmp_path / f"a.{ending}") for ending in ("pt", "pt2", "ts", "ptl")
    ]
    assert kinds == ["state_dict", "pt2", "torchscript", "ptl"]


@pytest.mark.assets
def test_public_files(assets: Path):
    for folder, kind in (("torchscript", "torchscript"), ("ptl", "ptl")):
        files = sorted((assets / "models" / folder).iterdir())
        assert files
        assert {kind_of_zip(path) for path in files} == {kind}


def test_a_file_that_is_not_a_zip_has_no_kind(tmp_path: Path):
    assert kind_of_zip(tmp_path / "missing") is None
    assert kind_of_zip(tmp_path) is None
    for content in (b"", b"PK\5\6", b"x" * 100_000):
        (tmp_path / "a").write_bytes(content)
        assert kind_of_zip(tmp_path / "a") is None


def test_directories_with_excessive_claims_are_refused(tmp_path: Path):
    path = tmp_path / "a.zip"
    end64 = struct.pack(
        "<4sQHHIIQQQQ", b"PK\6\6", 44, 45, 45, 0, 0, 1 << 60, 1 << 60, 1 << 40, 0
    )
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, 0, 1)
    end = struct.pack(
        "<4sHHHHIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0
    )
    path.write_bytes(end64 + locator + end)
    with pytest.raises(BadZipError, match=r"lies outside|claims"):
        list(members(path))
    entries = struct.pack("<4s42x", b"PK\1\2") * 65_534
    path.write_bytes(
        entries
        + struct.pack(
            "<4sHHHHIIH",
            b"PK\5\6",
            0,
            0,
            65_534,
            65_534,
            len(entries),
            0,
            0,
        )
    )
    assert kind_of_zip(path) is None


def test_members_are_read_within_bounds(tmp_path: Path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("a/stored", b"0123456789")
        archive.writestr("a/packed", b"0" * 100_000, zipfile.ZIP_DEFLATED)
        archive.writestr("a/odd", b"0" * 100, zipfile.ZIP_BZIP2)
    found = {member.name: member for member in members(path)}
    assert read_member(path, found["stored"], 10) == b"0123456789"
    assert read_member(path, found["packed"], 100_000) == b"0" * 100_000
    with pytest.raises(BadZipError, match="larger than 9 bytes"):
        read_member(path, found["stored"], 9)
    with pytest.raises(BadZipError, match="packed by method 12"):
        read_member(path, found["odd"], 100)
    packed = found["packed"]
    lying = Member(packed.name, packed.method, packed.packed, 10, packed.offset)
    with pytest.raises(BadZipError, match="'packed' is damaged"):
        read_member(path, lying, 10)
    with pytest.raises(BadZipError, match="not where"):
        read_member(path, Member("x", 0, 1, 1, 3), 10)


def test_damaged_zips_have_a_kind_or_none(tmp_path: Path):
    path = zipped(tmp_path / "a.zip", *SCRIPT)
    whole = path.read_bytes()
    chance = random.Random(3)
    for number in range(500):
        data = bytearray(
            whole[: chance.randrange(len(whole))] if number % 5 == 0 else whole
        )
        for _ in range(4 if data else 0):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        assert kind_of_zip(path) in (None, "torchscript", "state_dict")
