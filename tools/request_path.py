"""Print the modules and function calls of one request.

The server runs in this process, each of its threads with a profiler; the client runs in another. A request is sent
until all that is made once for its kind is there, then once more.

    .venv/bin/python tools/request_path.py [--names]
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import IO, Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (str(ROOT / "server/pocketserve"), str(ROOT / "client/pocketserve_wire"))
KINDS = ("JSON tensors", "binary tensors", "picture")
WARM_UP = 5


class Profiler:
    """Count the server's function calls by file."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.on = False

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        """Count one call; :func:`threading.setprofile` has each thread call this."""
        if (
            self.on
            and event == "call"
            and frame.f_code.co_filename.startswith(PACKAGES)
        ):
            self.calls[frame.f_code.co_filename] += 1


def ask(urls: list[str], token: str, sent: IO[str], begin: IO[str]) -> None:
    """Send each kind of request, with warm-up, between markers."""
    for url in urls:
        for request in _requests(url, token):
            for _ in range(WARM_UP):
                request()
            for line in ("ready", "done"):
                print(line, file=sent, flush=True)
                begin.readline()
                if line == "ready":
                    request()


def _requests(url: str, token: str) -> list[Callable[[], Any]]:
    """Return one request of each of ``KINDS``, for the embedded digits."""
    import numpy as np
    from PIL import Image

    from pocketserve_client import Client
    from pocketserve_client.transport import Request

    picture = io.BytesIO()
    Image.fromarray(np.full((28, 28), 200, np.uint8)).save(picture, "PNG")
    body, array = picture.getvalue(), np.zeros((1, 8, 8, 1), np.float32)
    tensor = {
        "name": "image",
        "shape": array.shape,
        "datatype": "FP32",
        "data": array.ravel().tolist(),
    }
    document = json.dumps({"inputs": [tensor]}).encode()
    as_json = Request("POST", "/v2/models/digits/infer", [document], len(document))
    client = Client(url, token=token)
    return [
        lambda: client._sender.send(as_json),
        lambda: client.infer("digits", {"image": array}),
        lambda: client.predict("digits", body),
    ]


def measure(
    profiler: Profiler, urls: list[str], token_file: Path
) -> dict[str, Counter[str]]:
    """Return the calls by file for each transport and kind."""
    token = token_file.read_text().strip()
    command = [sys.executable, __file__, "--client", token, *urls]
    tables: dict[str, Counter[str]] = {}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        for url in urls:
            scheme = url.partition(":")[0]
            for kind in KINDS:
                _expect(client.stdout, "ready\n")
                profiler.on = True
                print(file=client.stdin, flush=True)
                _expect(client.stdout, "done\n")
                profiler.on = False
                tables[f"{scheme}, {kind}"] = profiler.calls.copy()
                profiler.calls.clear()
                print(file=client.stdin, flush=True)
    return tables


def _expect(output: IO[str], line: str) -> None:
    if output.readline() != line:
        raise SystemExit("the client failed")


def main(arguments: list[str]) -> int:
    """Serve the embedded models, send requests and print a table."""
    tables = _serve_and_measure()
    for name, calls in tables.items():
        print(f"{name}: {len(calls)} modules, {calls.total()} calls")
        if "--names" in arguments:
            for file, count in sorted(calls.items()):
                print(f"  {count:4} {os.path.relpath(file, ROOT)}")
    return 0


def _serve_and_measure() -> dict[str, Counter[str]]:
    from pocketserve.config import Config
    from pocketserve.server import Endpoints, serve

    profiler = Profiler()
    tables: dict[str, Counter[str]] = {}

    def on_ready(addresses: Endpoints) -> None:
        threading.Thread(target=run, args=(addresses,)).start()

    def run(addresses: Endpoints) -> None:
        sys.setprofile(None)
        try:
            urls = [f"http://{addresses.http}", f"socket://{addresses.socket}"]
            tables.update(measure(profiler, urls, config.token_file))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            state_dir=Path(folder),
            token_file=Path(folder, "token"),
            http_port=0,
            socket_port=0,
            load=("digits",),
        )
        threading.setprofile(profiler)
        sys.setprofile(profiler)
        serve(config, on_ready)
        sys.setprofile(None)
    return tables


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        ask(sys.argv[3:], sys.argv[2], sys.stdout, sys.stdin)
    else:
        sys.exit(main(sys.argv[1:]))
