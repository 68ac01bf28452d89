"""The real Triton of the wheel nvidia-pytriton, with models in its Python backend, on a free port."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import requests

from ports import free_port

START_TIMEOUT_S = 120.0


def _installation() -> Path:
    """Where the wheel has put Triton; looked up without importing the package."""
    spec = importlib.util.find_spec("pytriton")
    assert spec is not None and spec.origin is not None, "make test-triton installs it"
    return Path(spec.origin).parent / "tritonserver"


@contextlib.contextmanager
def triton(folder: Path, repository: Path) -> Iterator[str]:
    """Serve a model repository; yields the address. The backend's process is that of this Python's version."""
    installed, backends = _installation(), folder / "backends"
    shutil.copytree(installed / "backends" / "python", backends / "python")
    stub = installed / "python_backend_stubs" / f"{sys.version_info[0]}.{sys.version_info[1]}"
    # Beside its libraries, which it finds by its own path.
    (backends / "python" / "triton_python_backend_stub").symlink_to(stub / "triton_python_backend_stub")
    port = free_port()
    command = [installed / "bin" / "tritonserver", "--model-repository", repository, "--backend-directory", backends]
    command += ["--http-address", "127.0.0.1", "--http-port", port, "--allow-grpc", "0", "--allow-metrics", "0"]
    command += ["--exit-timeout-secs", "10"]
    standard = sysconfig.get_paths()["stdlib"]  # Triton brings its own
    packages = sysconfig.get_paths()["purelib"]
    paths = os.pathsep.join(path for path in sys.path if path == packages or not path.startswith(standard))
    # What its processes take for their interpreter is the first python3: trials of models run in it.
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    surroundings = {**os.environ, "PYTHONPATH": paths, "PATH": programs}
    with (folder / "triton.log").open("wb") as log:
        process = subprocess.Popen([*map(str, command)], env=surroundings, stdout=log, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(process, url, folder / "triton.log")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(requests.ConnectionError):
            if requests.get(f"{url}/v2/health/ready", timeout=10).ok:
                return
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.1)
    raise AssertionError(log.read_text(errors="replace"))
