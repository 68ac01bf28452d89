"""Load the vectors, and decoders in the right state for them."""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from typing import Any

from conftest import ROOT
from pocketserve_wire.frame_decoder import ALLOWED, FrameDecoder, HandshakeState, Role
from pocketserve_wire.frames import Frame, FrameType

FOLDER = ROOT / "android_bridge" / "vectors"
DRAINED = 1024 * 1024
"""The excess over max_frame that a server still reads and discards."""


@dataclass(frozen=True)
class Vector:
    """A pair of files."""

    name: str
    data: bytes
    facts: dict[str, Any]

    def decoder(self) -> FrameDecoder:
        """Return a decoder for this vector's receiver."""
        awaits = self.facts.get("awaits")
        server = self.facts["receiver"] == "server"
        allowed = (
            ALLOWED[Role.SERVER, HandshakeState.READY]
            if server
            else ALLOWED[Role.CLIENT, HandshakeState.READY]
        )
        if awaits is not None:
            [allowed] = [
                types for types in ALLOWED.values() if FrameType[awaits] in types
            ]
        maximum: int = self.facts["max_body"]
        if not server:
            return FrameDecoder(allowed, maximum)
        return FrameDecoder(
            allowed,
            maximum + DRAINED,
            lambda header: header.body_length <= maximum,
            listens=awaits == "HELLO",
        )

    def __str__(self) -> str:
        return self.name


@functools.cache
def load(folder: str, kind: str) -> list[Vector]:
    """Return all ``valid`` or ``invalid`` vectors of one kind, by name."""
    found = []
    for path in sorted((FOLDER / folder).glob("*.json")):
        facts = json.loads(path.read_text(encoding="ascii"))
        if facts["kind"] == kind:
            found.append(
                Vector(path.stem, path.with_suffix(".bin").read_bytes(), facts)
            )
    return found


def summary(frame: Frame) -> dict[str, Any]:
    """Describe a frame as the vectors do."""
    return {
        "type": int(frame.type),
        "name": FrameType(frame.type).name,
        "request_id": frame.request_id,
        "arg": frame.arg,
        "target": frame.target.decode("ascii"),
        "ext": [{"tag": tag, "value": value.hex()} for tag, value in frame.ext.items()],
        "json_length": frame.json_length,
        "body_length": len(frame.body),
        "body_sha256": hashlib.sha256(frame.body).hexdigest(),
        "discarded": frame.discarded,
    }
