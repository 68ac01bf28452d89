"""LitServe with the reference work, in its environment.

One worker on the CPU, and the fast queue between its processes. ``raw`` takes and returns
raw bytes, its fastest way.
"""

from __future__ import annotations

import socket
import sys
import threading
import time
from typing import Annotated, Any

import litserve
import numpy as np
from fastapi import Body, Response

from benchmarks.reference import ramp_times

Bytes = Annotated[bytes, Body(media_type="application/octet-stream")]


class EchoJson(litserve.LitAPI):
    """``{"input": [...]}`` in, ``{"output": [...]}`` out."""

    def setup(self, device: str) -> None:
        """Nothing to load."""

    def decode_request(self, request):
        """JSON to an array."""
        return np.asarray(request["input"], np.float32)

    def predict(self, x):
        """Compute."""
        return ramp_times(x)

    def encode_response(self, output):
        """An array to JSON."""
        return {"output": output.ravel().tolist()}


class EchoRaw(EchoJson):
    """FP32 bytes in and out."""


def _decode_raw(self: EchoRaw, request: Any) -> Any:
    return np.frombuffer(request, "<f4")


def _encode_raw(self: EchoRaw, output: Any) -> Response:
    return Response(output.tobytes(), media_type="application/octet-stream")


# LitServe evaluates annotations, which `from __future__ import annotations` would
# turn into strings.
_decode_raw.__annotations__["request"] = Bytes
EchoRaw.decode_request = _decode_raw
EchoRaw.encode_response = _encode_raw


def main(mode: str) -> None:
    """Serve; print the port once somebody listens on it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    api = EchoJson() if mode == "json" else EchoRaw()
    server = litserve.LitServer(
        api, accelerator="cpu", workers_per_device=1, fast_queue=True
    )
    threading.Thread(target=_announce, args=(port,), daemon=True).start()
    server.run(
        host="127.0.0.1",
        port=port,
        num_api_servers=1,
        log_level="error",
        generate_client_file=False,
    )


def _announce(port: int) -> None:
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            break
        except OSError:
            time.sleep(0.05)
    print(port, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
