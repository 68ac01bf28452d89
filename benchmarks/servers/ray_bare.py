"""Floor on Ray: a bare deployment of two replicas at /bare.

Usage: ``ADDRESS WORK``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.servers.bodies import answer, work

LENGTH = "inference-header-content-length"
STATE = Path(os.environ.get("POCKETSERVE_STATE_DIR", ".bench/state"))


class Bare:
    """A handler without a framework, with the model on a thread."""

    def __init__(self, what: str) -> None:
        self._compute = work(what)
        self._one = asyncio.Lock()

    async def __call__(self, request: Any) -> Any:
        """Answer a request, running one at a time."""
        from starlette.responses import Response

        body, length = await request.body(), int(request.headers[LENGTH])
        async with self._one:
            text, scores = await asyncio.to_thread(answer, body, length, self._compute)
        return Response(text + scores.tobytes(), headers={LENGTH: str(len(text))})


def main(address: str, what: str) -> None:
    """Deploy it, and print a line."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"  # as the cluster: on loopback
    os.environ["RAY_AUTH_MODE"], os.environ["RAY_AUTH_TOKEN_PATH"] = (
        "token",
        str(STATE / "ray-token"),
    )
    import ray
    from ray import serve

    ray.init(address=address, configure_logging=False, log_to_driver=False)
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    deployment = serve.deployment(
        Bare, num_replicas=2, max_ongoing_requests=40, ray_actor_options={"num_cpus": 0}
    )
    serve.run(deployment.bind(what), name="bare", route_prefix="/bare")
    print("deployed", flush=True)


if __name__ == "__main__":
    # By name, so that the replicas can import the class.
    from benchmarks.servers import (
        ray_bare,
    )

    ray_bare.main(sys.argv[1], sys.argv[2])
