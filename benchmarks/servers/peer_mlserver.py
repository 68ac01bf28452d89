"""MLServer with the reference work, in its environment.

It has its fastest settings: one process (``parallel_workers`` 0), no metrics, no
compression, uvloop and httptools. ``rest`` takes JSON. ``grpc`` takes and returns the
tensor as one BYTES element, its fastest way: it converts all other contents, even raw
ones, to Python numbers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys

import numpy as np
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput
from mlserver.utils import install_uvloop_event_loop

from benchmarks.reference import ramp_times

MAX_BYTES = 100_000_000


class Echo(MLModel):
    """The reference work on the first input."""

    async def load(self) -> bool:
        """Nothing to load."""
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Compute."""
        taken = payload.inputs[0]
        if taken.datatype == "BYTES":
            scores = ramp_times(np.frombuffer(taken.data.root[0], "<f4"))
            output = ResponseOutput(
                name="scores", shape=[1], datatype="BYTES", data=[scores.tobytes()]
            )
        else:
            scores = ramp_times(np.asarray(taken.data.root, np.float32))
            shape = list(scores.shape)
            data = scores.ravel().tolist()
            output = ResponseOutput(
                name="scores", shape=shape, datatype="FP32", data=data
            )
        return InferenceResponse(model_name=self.name, outputs=[output])


async def main(mode: str) -> None:
    """Serve; print the port once the model is loaded."""
    http = _free_port()
    grpc = _free_port()
    settings = Settings(
        host="127.0.0.1",
        http_port=http,
        grpc_port=grpc,
        grpc_max_message_length=MAX_BYTES,
        parallel_workers=0,
        metrics_endpoint=None,
        gzip_enabled=False,
        debug=False,
    )
    server = MLServer(settings)
    running = asyncio.create_task(
        server.start([ModelSettings(name="echo", implementation=Echo)])
    )
    while True:
        try:
            socket.create_connection(("127.0.0.1", http), 1).close()
            break
        except OSError:
            if running.done():
                running.result()
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)  # the model is loaded after the server has begun to listen
    print(grpc if mode == "grpc" else http, flush=True)
    logging.disable()  # otherwise the unread pipe would fill up
    await running


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    install_uvloop_event_loop()
    asyncio.run(main(sys.argv[1]))
