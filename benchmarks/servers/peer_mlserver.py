"""MLServer with a runtime of its own that does the reference work: ``peer_mlserver``. Runs in MLServer's environment.

One process (``parallel_workers`` 0), no metrics: its fastest setting. Bodies are JSON, the only kind that it takes.
"""

from __future__ import annotations

import asyncio
import logging
import socket

import numpy as np
from mlserver import MLModel, MLServer, ModelSettings, Settings
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput

from benchmarks.reference import ramp_times


class Echo(MLModel):
    """The reference work on the first input."""

    async def load(self) -> bool:
        """Nothing to load."""
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        """Compute."""
        scores = ramp_times(np.asarray(payload.inputs[0].data.root, np.float32))
        output = ResponseOutput(name="scores", shape=list(scores.shape), datatype="FP32", data=scores.ravel().tolist())
        return InferenceResponse(model_name=self.name, outputs=[output])


async def main() -> None:
    """Serve; print the port once the model is loaded."""
    http, grpc = _free_port(), _free_port()
    settings = Settings(
        host="127.0.0.1", http_port=http, grpc_port=grpc, parallel_workers=0, metrics_endpoint=None, debug=False
    )
    server = MLServer(settings)
    running = asyncio.create_task(server.start([ModelSettings(name="echo", implementation=Echo)]))
    while True:
        try:
            socket.create_connection(("127.0.0.1", http), 1).close()
            break
        except OSError:
            if running.done():
                running.result()
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)  # the model is loaded after the server has begun to listen
    print(http, flush=True)
    logging.disable()  # or the pipe that nobody reads fills up
    await running


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    asyncio.run(main())
