"""A replica of Ray Serve: one of our serving processes, asked by Ray instead of by a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterable
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

from ray import serve, util
from ray.serve._private import replica as ray_internals
from starlette.requests import Request
from starlette.responses import Response

from pocketserve.auth.guard import read_token
from pocketserve.config import Config
from pocketserve.system import is_loopback
from pocketserve.transports.http.wsgi import Environ
from pocketserve_scale.wsgi import ServingProcess

_EVERYWHERE = "[::]"  # as Ray writes it


class RayReplica:
    """Answers requests as a replica of Ray Serve; the models of the settings' ``load`` are there once it is made.

    Args:
        slots: where the replicas of one machine that answer at the same path have their folders.

    Raises:
        StartError, NoSlotError, StateFolderError, TokenFileError: it cannot start.
    """

    def __init__(self, config: Config, slots: Path) -> None:
        if is_loopback(util.get_node_ip_address()):
            _keep_to_loopback()
        if config.auth:
            read_token(config.token_file)  # no machine makes one of its own
        self._pool = ThreadPoolExecutor(
            config.worker_threads, thread_name_prefix="pocketserve-ray"
        )
        self._process = ServingProcess(
            config, 1, slots, serve.get_replica_context().replica_id.unique_id
        )

    async def __call__(self, request: Request) -> Response:
        """Answer a request of any kind; the model runs on a thread of the pool."""
        environ = environ_of(request)
        body = await read_stream(
            request.stream(), environ, self._process.body_limit(environ)
        )
        environ["wsgi.input"] = BytesIO(body)
        return await self._on_a_thread(
            functools.partial(answer, self._process, environ)
        )

    async def stateful_models(self) -> list[str]:
        """Return the loaded models that keep state between requests."""
        names: list[str] = await self._on_a_thread(self._process.stateful_models)
        return names

    async def check_health(self) -> None:
        """Return once a thread of the pool is free: Ray replaces a replica whose threads all hang."""
        await self._on_a_thread(self._process.check)

    async def _on_a_thread(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def __del__(self) -> None:
        """Unload the models: Ray calls this when requests under way have ended, and Python perhaps once more."""
        with contextlib.suppress(KeyError):  # it could not start
            self.__dict__.pop("_process").close()


def environ_of(request: Request) -> Environ:
    """Return a request's head as WSGI's environ. Ray's path is the whole one, with an application's own prefix."""
    scope = request.scope
    server, client = (
        scope.get("server") or ("localhost", 80),
        scope.get("client") or ("",),
    )
    environ = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": scope["path"].encode().decode("latin-1"),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_NAME": str(server[0]),
        "SERVER_PORT": str(server[1]),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "REMOTE_ADDR": str(client[0]),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope.get("scheme", "http"),
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    for name, value in scope["headers"]:
        key = name.decode("latin-1").upper().replace("-", "_")
        key = key if key in ("CONTENT_TYPE", "CONTENT_LENGTH") else f"HTTP_{key}"
        text = value.decode("latin-1")
        environ[key] = f"{environ[key]},{text}" if key in environ else text
    return environ


async def read_stream(
    stream: AsyncIterable[bytes], environ: Environ, limit: int
) -> bytearray:
    """Return a body, or as much of it as shows that it is too large: nothing where its length says so."""
    body, length = bytearray(), environ.get("CONTENT_LENGTH", "0")
    if length.isdecimal() and len(length) < 19 and int(length) <= limit:
        async for part in stream:
            body += part
            if len(body) > limit:
                break
    return body


def answer(process: ServingProcess, environ: Environ) -> Response:
    """Return a serving process's answer as Starlette's."""
    response = Response()

    def start(status: str, headers: list[tuple[str, str]], *_error: object) -> None:
        response.status_code = int(status[:3])
        response.raw_headers = [
            (name.lower().encode("latin-1"), value.encode("latin-1"))
            for name, value in headers
        ]

    response.body = b"".join(process.respond(environ, start))
    return response


def _keep_to_loopback() -> None:
    """Have Ray bind the port between replicas where its other ports are; it names all addresses, and no setting."""
    bind = ray_internals.add_port_to_grpc_server
    ray_internals.add_port_to_grpc_server = lambda server, address: bind(
        server, address.replace(_EVERYWHERE, "127.0.0.1")
    )
