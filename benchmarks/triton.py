"""The real Triton, with our engine in its Python backend."""

from __future__ import annotations

import http.client
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.processes import ROOT, SERVER_CORE, StartError, free_port, process

PYTHON = ROOT / ".venv-triton" / "bin" / "python"
"""Of the environment ``triton``, which ``peers.ensure_environment("triton", install=…)`` makes."""

START_TIMEOUT_S = 120.0
END_TIMEOUT_S = 30.0


@contextmanager
def triton(models: Path, *, core: int | None = SERVER_CORE) -> Iterator[int]:
    """Export and serve a models folder; yield the HTTP port.

    Args:
        core: None lets it run on every core.

    Raises:
        StartError: the folder could not be exported, or Triton did not start.
    """
    packages = _packages()
    environment = {
        "PYTHONPATH": os.pathsep.join(
            map(str, (ROOT / "server", ROOT / "client", packages))
        ),
        # Triton's processes use the first python3, which also runs trials of models.
        "PATH": os.pathsep.join((str(PYTHON.parent), os.environ["PATH"])),
        "POCKETSERVE_THREADS": "1",
    }
    with tempfile.TemporaryDirectory(prefix="pocketserve-triton-") as name:
        folder = Path(name)
        command = [
            str(PYTHON),
            "-m",
            "pocketserve",
            "export",
            "--to",
            "triton",
            str(models),
            str(folder / "models"),
        ]
        with process(command, core, environment, output=folder / "exported") as child:
            if child.wait(START_TIMEOUT_S):
                raise StartError(
                    f"{models} could not be exported: {(folder / 'exported').read_text()}"
                )
        port = free_port()
        command = _command(packages, folder, port)
        with process(command, core, environment, output=folder / "output") as child:
            _wait_until_ready(child, port)
            try:
                yield port
            finally:
                child.terminate()  # only the main process, which ends its models' processes in order
                with suppress(subprocess.TimeoutExpired):
                    child.wait(END_TIMEOUT_S)


def _packages() -> Path:
    """Return where the environment's packages lie."""
    wheels = [*(PYTHON.parents[1] / "lib").glob("python3.*/site-packages/pytriton")]
    if not wheels:
        raise StartError(
            "its environment is not there: python tools/environment.py triton"
        )
    return wheels[0].parent


def _command(packages: Path, folder: Path, port: int) -> list[str]:
    """Return Triton's command for the models in a folder.

    The wheel has a build of that backend for each version of Python.
    """
    installed = packages / "pytriton" / "tritonserver"
    backend = folder / "backends" / "python"
    shutil.copytree(installed / "backends" / "python", backend)
    version = packages.parent.name.removeprefix("python")
    program = "triton_python_backend_stub"
    # Beside its libraries, which it finds relative to itself.
    (backend / program).symlink_to(
        installed / "python_backend_stubs" / version / program
    )
    options = {
        "model-repository": folder / "models",
        "backend-directory": backend.parent,
        "http-address": "127.0.0.1",
        "http-port": port,
        "allow-grpc": 0,
        "allow-metrics": 0,
        "exit-timeout-secs": 10,
    }
    return [
        str(installed / "bin" / "tritonserver"),
        *(f"--{name}={value}" for name, value in options.items()),
    ]


def _wait_until_ready(child: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not _is_ready(port):
        if child.poll() is not None or time.monotonic() > deadline:
            raise StartError("Triton did not start")
        time.sleep(0.1)


def _is_ready(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()
