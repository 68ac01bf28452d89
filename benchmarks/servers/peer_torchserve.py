"""TorchServe with the reference work, in its environment.

One worker, no token, no body limit. This file is also the handler, so it imports nothing
else of ours.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

RAMP = np.linspace(0.0, 1.0, 1001, dtype=np.float32)
START_TIMEOUT_S = 60.0
CONFIGURATION = """inference_address=http://127.0.0.1:{0}
management_address=http://127.0.0.1:{1}
metrics_address=http://127.0.0.1:{2}
default_workers_per_model=1
disable_token_authorization=true
enable_metrics_api=false
max_request_size=100000000
"""


def handle(data: Any, context: Any) -> list[bytes] | None:
    """Handle a batch of one FP32 body."""
    if data is None:
        return None
    values = np.frombuffer(data[0].get("body") or data[0].get("data"), "<f4")
    return [(RAMP * values[0]).tobytes()]


def main() -> None:
    """Serve until ended; print the port once the model answers."""
    if shutil.which("java") is None:
        sys.exit("TorchServe needs a Java runtime, and there is none")
    with tempfile.TemporaryDirectory() as folder:
        ports = _write(Path(folder))
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # its workers are started as `python`
        command = [
            sys.executable,
            "-m",
            "ts.model_server",
            "--start",
            "--foreground",
            "--ncs",
            "--disable-token-auth",
        ]
        command += [
            "--ts-config",
            f"{folder}/config.properties",
            "--model-store",
            f"{folder}/store",
        ]
        command += ["--models", "echo=echo"]
        # TorchServe would log a line for each request to standard output.
        child = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PATH": path, "TMPDIR": folder},
            stdout=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        )
        try:
            _await(ports[0], child)
            print(ports[0], flush=True)
            sys.stdin.read()  # until the parent process has ended
        finally:
            child.terminate()
            child.wait(20)


def _write(folder: Path) -> list[int]:
    archive = folder / "store" / "echo"
    (archive / "MAR-INF").mkdir(parents=True)
    shutil.copyfile(__file__, archive / "handler.py")
    model = {"modelName": "echo", "handler": "handler.py:handle", "modelVersion": "1.0"}
    manifest = {"runtime": "python", "model": model, "archiverVersion": "0.12.0"}
    (archive / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    ports = [_free_port() for _ in range(3)]
    (folder / "config.properties").write_text(CONFIGURATION.format(*ports))
    return ports


def _await(port: int, child: subprocess.Popen[bytes]) -> None:
    body = np.ones(16, np.float32).tobytes()
    headers = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/predictions/echo", body, headers
    )
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline and child.poll() is None:
        try:
            urllib.request.urlopen(request, timeout=10).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    sys.exit("TorchServe did not answer")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


if __name__ == "__main__":
    main()
