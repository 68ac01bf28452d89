"""P1's peers: their environments and requests."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import calls, grpc_call, protobuf
from benchmarks.processes import BENCH_FOLDER, ROOT, SERVER_CORE, StartError, module

INSTALL_TIMEOUT_S = 1800
RAW = ", raw body"
"""The suffix of peers that take raw bytes, their fastest way."""

JSON = "Content-Type: application/json"
GRPC = "/inference.GRPCInferenceService/ModelInfer"
OCTETS = "Content-Type: application/octet-stream"


@dataclass(frozen=True)
class Peer:
    """Another server.

    Attributes:
        environment: its environment in ``tools/environment.py``; empty means ours.
        module: the file in ``benchmarks/servers``, and its arguments.
        path: of its requests.
        encode: converts an array to a body, as its clients do.
        decode: converts an answer's body to an array.
        header: of the request; empty for gRPC.
        keep_alive: whether it keeps connections open.
    """

    name: str
    environment: str
    module: tuple[str, ...]
    path: str
    encode: Callable[[np.ndarray], bytes]
    decode: Callable[[bytes], object]
    header: str = JSON
    keep_alive: bool = True

    def python(self) -> str:
        """The interpreter of its environment."""
        if self.environment:
            return str(BENCH_FOLDER / self.environment / "bin" / "python")
        return sys.executable

    def call(self, port: int, body: bytes) -> calls.Call:
        """A request to it over a connection of its own."""
        if not self.header:
            return grpc_call.GrpcCall(calls.connect(port), port, self.path, body)
        return calls.http(
            port, self.path, body, self.header, keep_alive=self.keep_alive
        )


def _json(key: str) -> Callable[[np.ndarray], bytes]:
    return lambda values: json.dumps({key: values.ravel().tolist()}).encode()


def _oip(values: np.ndarray) -> bytes:
    datatype = "FP32"
    if values.dtype == np.uint8:
        datatype = "UINT8"
    tensor = {
        "name": "x",
        "shape": list(values.shape),
        "datatype": datatype,
        "data": values.ravel().tolist(),
    }
    return json.dumps({"inputs": [tensor]}).encode()


def _list(key: str) -> Callable[[bytes], object]:
    return lambda body: np.asarray(json.loads(body)[key], np.float32)


def _oip_list(body: bytes) -> object:
    return np.asarray(json.loads(body)["outputs"][0]["data"], np.float32)


def _bytes(values: np.ndarray) -> bytes:
    return values.tobytes()


def _floats(body: bytes) -> object:
    return np.frombuffer(body, "<f4")


def _grpc(values: np.ndarray) -> bytes:
    """Return a gRPC request with one BYTES element."""
    field = protobuf.field
    contents = field(8, values.tobytes())
    tensor = field(1, "x") + field(2, "BYTES") + field(3, b"\1") + field(5, contents)
    return field(1, "echo") + field(5, tensor)


def _grpc_floats(message: bytes) -> object:
    tensor = protobuf.fields(protobuf.fields(message)[5])
    return np.frombuffer(protobuf.fields(tensor[5])[8], "<f4")


PEERS = (
    Peer(
        "MLServer, JSON",
        "mlserver",
        ("peer_mlserver", "rest"),
        "/v2/models/echo/infer",
        _oip,
        _oip_list,
    ),
    Peer(
        f"MLServer, gRPC{RAW}",
        "mlserver",
        ("peer_mlserver", "grpc"),
        GRPC,
        _grpc,
        _grpc_floats,
        "",
    ),
    Peer(
        "LitServe, JSON",
        "litserve",
        ("peer_litserve", "json"),
        "/predict",
        _json("input"),
        _list("output"),
    ),
    Peer(
        f"LitServe{RAW}",
        "litserve",
        ("peer_litserve", "raw"),
        "/predict",
        _bytes,
        _floats,
        OCTETS,
    ),
    Peer(
        f"TorchServe{RAW}",
        "torchserve",
        ("peer_torchserve",),
        "/predictions/echo",
        _bytes,
        _floats,
        OCTETS,
    ),
    Peer(
        "tutorial, JSON lists",
        "",
        ("peer_tutorial",),
        "/predict",
        _json("data"),
        _list("prediction"),
        keep_alive=False,
    ),
)


def ensure(peer: Peer, *, install: bool) -> None:
    """Make the peer's environment, unless it is there.

    Args:
        install: whether packages may be fetched for it.

    Raises:
        StartError: it is missing and can't be created.
    """
    if peer.environment:
        ensure_environment(peer.environment, install=install)


def ensure_environment(name: str, *, install: bool) -> str:
    """Create an environment if missing; return its interpreter.

    Raises:
        StartError: it is missing and can't be created.
    """
    python = ROOT / environments().ENVIRONMENTS[name].folder / "bin" / "python"
    if not install and not python.exists():
        raise StartError(
            f"left out: its environment is not there: python tools/environment.py {name}"
        )
    if install and (reason := _install(name)):
        raise StartError(f"left out: its environment cannot be made: {reason}")
    return str(python)


@functools.cache
def _install(environment: str) -> str:
    """Create an environment once; return the error, if any."""
    if not environments().is_current(environment):
        folder = environments().ENVIRONMENTS[environment].folder
        print(
            f"installing into {folder}, once; this may take minutes …",
            file=sys.stderr,
            flush=True,
        )
    command = [sys.executable, str(ROOT / "tools" / "environment.py"), environment]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        return f"not within {INSTALL_TIMEOUT_S} s"
    if done.returncode:
        return reason_of(done.stdout + done.stderr)
    return ""


SEE_ABOVE = ": see its error above"
"""The end of a message of ``tools/environment.py``."""


def reason_of(errors: str) -> str:
    """Return the most useful line of an error output."""
    reasons = []
    errors_of_pip = []
    for line in errors.strip().splitlines():
        if line.endswith(SEE_ABOVE):
            continue
        reasons.append(line)
        if line.startswith("ERROR:"):
            errors_of_pip.append(line.removeprefix("ERROR:").strip())
    return (errors_of_pip or reasons or ["no reason given"])[-1]


@functools.cache
def environments() -> Any:
    """The module ``tools/environment.py``."""
    path = ROOT / "tools" / "environment.py"
    spec = importlib.util.spec_from_file_location("benchmarks_environment", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@contextmanager
def running(peer: Peer, core: int = SERVER_CORE) -> Iterator[tuple[int, int]]:
    """The peer, started; gives its process id and port.

    Raises:
        StartError: it did not start.
    """
    arguments = peer.module[1:]
    with module(peer.module[0], *arguments, core=core, python=peer.python()) as (
        child,
        port,
    ):
        yield child.pid, port
