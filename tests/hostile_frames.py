"""Generate seeded frames: valid, damaged and random ones."""

from __future__ import annotations

import json
import random

from pocketserve_wire.frames import HEADER, Frame, FrameType, encode_frame, json_frame
from pocketserve_wire.handshake import AUTH_HMAC

EXTREMES = (
    0,
    1,
    2,
    23,
    24,
    255,
    256,
    1024,
    1025,
    4096,
    4097,
    65_536,
    2**16 - 1,
    2**31 - 1,
    2**31,
    2**32 - 1,
)
TARGETS = (
    b"GET /v2",
    b"GET /v2/health/live",
    b"GET /v2/models/petals",
    b"POST /predictions/petals",
    b"POST /predictions/petals?top_k=2",
    b"POST /v2/models/petals/infer",
    b"GET /nothing",
    b"DELETE /v2",
    b"rubbish",
    b"GET /v2/models/%ff%00",
)
BODIES = (
    b"",
    b"[1,2,3]",
    b"{}",
    b"[" * 300,
    json.dumps(
        {
            "inputs": [
                {
                    "name": "features",
                    "datatype": "FP32",
                    "shape": [1, 3],
                    "data": [1, 2, 3],
                }
            ]
        }
    ).encode(),
    b'{"inputs":[{"name":"features","datatype":"FP32","shape":[1,3],"parameters":{"binary_data_size":12}}]}'
    + bytes(12),
    b"\x89PNG\r\n\x1a\n" + bytes(40),
)


class Hostile:
    """Frames for a series of connections, reproducible by the seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self._last_id = 0

    def connection(self, maximum: int) -> list[bytes]:
        """Return frames to send on a connection after READY."""
        self._last_id = 0
        return [self.frame() for _ in range(self.random.randint(1, maximum))]

    def greeting(self) -> list[bytes]:
        """Return frames of a handshake that usually fails."""
        offer = {
            "v": [1, 1],
            "nonce": "c0" * 16,
            "max_frame": 1 << 20,
        }
        good = [
            json_frame(FrameType.HELLO, json.dumps(offer).encode()),
            json_frame(FrameType.AUTH, b'{"proof":"%s"}' % (b"0" * 64)),
            json_frame(
                FrameType.CHALLENGE, json.dumps({"v": 1, "auth": AUTH_HMAC}).encode()
            ),
            b"GET / HTTP/1.1\r\n\r\n",
        ]
        return [
            self._mutate(self.random.choice(good))
            for _ in range(self.random.randint(1, 3))
        ]

    def frame(self) -> bytes:
        """Return one frame."""
        kind = self.random.random()
        if kind < 0.7:
            return self._good()
        if kind < 0.93:
            return self._mutate(self._good())
        if kind < 0.97:
            return self._any_header() + self.random.randbytes(
                self.random.randint(0, 60)
            )
        return self.random.randbytes(self.random.randint(1, 100))

    def _good(self) -> bytes:
        pick = self.random.random()
        if pick < 0.2:
            return encode_frame(Frame(FrameType.PING, arg=self.random.getrandbits(32)))
        if pick < 0.3:
            return encode_frame(
                Frame(FrameType.CANCEL, self.random.randint(1, self._last_id + 1))
            )
        if pick < 0.35:
            return (
                HEADER.pack(
                    b"OI",
                    0x80,
                    0,
                    0,
                    0,
                    0,
                    0,
                    0,
                    5,
                )
                + b"hello"
            )
        self._last_id += self.random.choice((1, 1, 1, 2, 1000))
        body = self.random.choice(BODIES)
        ext = self.random.choice(
            (
                {},
                {},
                {2: b"image/png"},
                {0x11: b"x"},
                {0x91: b""},
            )
        )
        arg = self.random.choice((0, 0, 1, 1000, 2**32 - 1))
        length = self.random.choice(
            (
                len(body),
                len(body),
                0,
                self.random.randint(0, len(body)),
            )
        )
        return encode_frame(
            Frame(
                FrameType.REQUEST,
                self._last_id,
                arg,
                self.random.choice(TARGETS),
                ext,
                length,
                body,
            )
        )

    def _mutate(self, frame: bytes) -> bytes:
        data = bytearray(frame)
        for _ in range(self.random.choice((1, 1, 2, 5))):
            where = 0
            if data:
                where = self.random.randrange(len(data))
            change = self.random.random()
            if change < 0.6 and data:
                # Most faults are in headers, because the bodies are HTTP's as well.
                if self.random.random() < 0.6:
                    where = self.random.randrange(min(24, len(data)))
                data[where] ^= 1 << self.random.randrange(8)
            elif change < 0.75:
                data[where:where] = self.random.randbytes(self.random.randint(1, 8))
            elif change < 0.9:
                del data[where : where + self.random.randint(1, 8)]
            else:
                del data[where:]
        return bytes(data)

    def _any_header(self) -> bytes:
        short = [value for value in EXTREMES if value < 2**16]
        long = EXTREMES
        pick = self.random.choice
        kind = pick([*FrameType, self.random.randrange(256)])
        return HEADER.pack(
            b"OI",
            kind,
            pick((0, 0, 0, 1, 128)),
            *map(pick, (long, long, short, short, long, long)),
        )
