"""Compare the socket protocol's document with the vectors and the code."""

from __future__ import annotations

import re

import pytest

from conftest import ROOT
from pocketserve_wire import ErrorCode
from pocketserve_wire.errors import ConnectionFault, GoAwayReason
from pocketserve_wire.frames import HEADER_BYTES, Extension, FrameType
from wire.wire_vectors import FOLDER, load

TEXT = (ROOT / "android_bridge" / "PROTOCOL.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```hex (\w+)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
KINDS = [
    (folder, kind)
    for folder in ("valid", "invalid")
    for kind in ("frames", "handshake", "request")
]


@pytest.mark.parametrize(("name", "dump"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_examples_are_vectors(name: str, dump: str) -> None:
    """Readers see the tested bytes."""
    shown = bytes.fromhex("".join(line.partition(";")[0] for line in dump.splitlines()))
    assert shown == (FOLDER / "valid" / f"{name}.bin").read_bytes()


def test_every_type_has_an_example() -> None:
    shown = {
        frame["name"]
        for v in load("valid", "frames")
        if v.name in dict(EXAMPLES)
        for frame in v.facts["frames"]
    }
    assert shown == {kind.name for kind in FrameType}


def test_the_worked_example_is_right() -> None:
    """It has the transcript and proofs of the vector's handshake."""
    (golden,) = [
        vector.facts
        for vector in load("valid", "handshake")
        if vector.name == "handshake_golden"
    ]
    for name in ("transcript", "client_proof", "server_proof"):
        assert re.search(
            rf"^{name.replace('_', ' ')} +{golden[name]}$", TEXT, re.MULTILINE
        ), name
    for name in ("hello", "challenge", "auth", "ready"):
        assert (FOLDER / "valid" / f"{name}.bin").read_bytes().hex() == golden[name]


def test_anchors_exist() -> None:
    """Each vector names the section of its rule, and inner links work."""
    anchors = set(re.findall(r'<a id="([\w-]+)"></a>', TEXT))
    assert {
        vector.facts["rule"] for folder, kind in KINDS for vector in load(folder, kind)
    } - anchors == set()
    assert set(re.findall(r"\]\(#([\w-]+)\)", TEXT)) - anchors == set()


def test_numbers_agree_with_the_code() -> None:
    """They are types, reasons and extension tags."""
    types = re.findall(
        r"^\| \[(\w+)\]\(#\w+\) \| `([0-9a-f]{2})` \|", TEXT, re.MULTILINE
    )
    assert {name: int(number, 16) for name, number in types} == {
        kind.name: int(kind) for kind in FrameType
    }
    faults = re.findall(r"^\| (\d+) \| `([A-Z_]+)` \|", TEXT, re.MULTILINE)
    assert {name: int(number) for number, name in faults} == {
        fault.name: int(fault) for fault in ConnectionFault
    }
    reasons = re.findall(r"^\| (\d) \| ([A-Z_]+) \|", TEXT, re.MULTILINE)
    assert {name: int(number) for number, name in reasons} == {
        reason.name: int(reason) for reason in GoAwayReason
    }
    tags = re.findall(r"^\| (\d) \| ([a-z_]+) \|", TEXT, re.MULTILINE)
    assert {name.upper(): int(number) for number, name in tags} == {
        tag.name: int(tag) for tag in Extension
    }


def test_the_header_has_no_gap() -> None:
    end = 0
    for offset, size in re.findall(
        r"^\| (\d+) \| (\d) \| [a-z_]+ \|", TEXT, re.MULTILINE
    ):
        assert int(offset) == end
        end += int(size)
    assert end == HEADER_BYTES


def test_statuses_agree_with_the_code() -> None:
    named = re.findall(r"\b(\d{3}) `([A-Z_]+)`", TEXT)
    assert len(named) > 10
    for status, code in named:
        assert ErrorCode[code].status == int(status), code
