"""A replica of Ray Serve: a serving process that gets its requests from Ray."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterable, Callable, Iterable
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

_EVERYWHERE = "[::]"
"""All addresses, as Ray writes them."""


class RayReplica:
    """Answers requests as a replica of Ray Serve.

    The models of the setting ``load`` are loaded at the start.

    Args:
        slots: for the folders of the replicas on one machine with the same path.

    Raises:
        StartError, NoSlotError, StateFolderError, TokenFileError: it cannot start.
    """

    def __init__(self, config: Config, slots: Path) -> None:
        if is_loopback(util.get_node_ip_address()):
            _keep_to_loopback()
        if config.auth:
            # It must exist: no machine makes its own.
            read_token(config.token_file)
        self._pool = ThreadPoolExecutor(
            config.worker_threads, thread_name_prefix="pocketserve-ray"
        )
        name = serve.get_replica_context().replica_id.unique_id
        self._process = ServingProcess(config, 1, slots, name)

    async def __call__(self, request: Request) -> Response:
        """Answer any request.

        The model runs on a thread of the pool.
        """
        environ = environ_of(request)
        limit = self._process.body_limit(environ)
        body = await read_stream(request.stream(), environ, limit)
        environ["wsgi.input"] = BytesIO(body)
        work = functools.partial(answer, self._process, environ)
        return await self._on_a_thread(work)

    async def stateful_models(self) -> list[str]:
        """Return the loaded models that keep state between requests."""
        names: list[str] = await self._on_a_thread(self._process.stateful_models)
        return names

    async def check_health(self) -> None:
        """Return once a thread of the pool is free.

        Ray replaces a replica whose threads are all stuck.
        """
        await self._on_a_thread(self._process.check)

    async def _on_a_thread(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def __del__(self) -> None:
        """Unload the models.

        Ray calls this after the last request, and Python may call it again.
        """
        # Without a process, the start has failed.
        with contextlib.suppress(KeyError):
            self.__dict__.pop("_process").close()


def environ_of(request: Request) -> Environ:
    """Return a request's head as WSGI's environ.

    Ray's path is complete, with the prefix of an application.
    """
    scope = request.scope
    server = scope.get("server") or ("localhost", 80)
    client = scope.get("client") or ("",)
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
    _add_headers(environ, scope["headers"])
    return environ


def _add_headers(environ: Environ, headers: Iterable[tuple[bytes, bytes]]) -> None:
    """Add headers to WSGI's environ; repeated ones are joined."""
    for name, value in headers:
        key = name.decode("latin-1").upper().replace("-", "_")
        if key not in ("CONTENT_TYPE", "CONTENT_LENGTH"):
            key = f"HTTP_{key}"
        text = value.decode("latin-1")
        if key in environ:
            text = f"{environ[key]},{text}"
        environ[key] = text


async def read_stream(
    stream: AsyncIterable[bytes], environ: Environ, limit: int
) -> bytearray:
    """Return a body, or enough of it to show that it is too large.

    Nothing is read if its length says so.
    """
    body = bytearray()
    length = environ.get("CONTENT_LENGTH", "0")
    if not length.isdecimal() or len(length) > 18 or int(length) > limit:
        return body
    async for part in stream:
        body += part
        if len(body) > limit:
            break
    return body


def answer(process: ServingProcess, environ: Environ) -> Response:
    """Return a serving process's answer as Starlette's."""
    response = Response()
    written: list[bytes] = []

    def start(
        status: str, headers: list[tuple[str, str]], *_error: object
    ) -> Callable[[bytes], None]:
        response.status_code = int(status[:3])
        response.raw_headers = []
        for name, value in headers:
            header = name.lower().encode("latin-1"), value.encode("latin-1")
            response.raw_headers.append(header)
        return written.append

    rest = process.respond(environ, start)
    response.body = b"".join([*written, *rest])
    return response


def _keep_to_loopback() -> None:
    """Patch Ray to bind the port between replicas to loopback.

    It uses all addresses, and there is no setting.
    """
    bind = ray_internals.add_port_to_grpc_server

    def bind_loopback(server: Any, address: str) -> Any:
        return bind(server, address.replace(_EVERYWHERE, "127.0.0.1"))

    ray_internals.add_port_to_grpc_server = bind_loopback
