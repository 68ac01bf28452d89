"""Frameworks send no telemetry and write nothing into the user's home."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import MODELS, StartServer
from connect_watch import SOCKET_VARIABLE, ConnectWatch
from pocketserve.runtimes.framework_import import FRAMEWORK_ENVIRONMENT

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(
        platform.system() != "Linux", reason="the kernel is asked in Linux's way"
    ),
]

VERSIONS = [
    "tflite",
    pytest.param("onnx", marks=pytest.mark.onnx),
    *(
        pytest.param(name, marks=pytest.mark.tensorflow)
        for name in ("keras", "savedmodel")
    ),
    *(
        pytest.param(name, marks=pytest.mark.torch)
        for name in ("torch", "torchscript", "ptl", "executorch")
    ),
    pytest.param("tfjs", marks=pytest.mark.tfjs),
]


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Return a new home, without the variables that silence telemetry in tests."""
    for name in ("CI", "ORT_RUNNING_UNIT_TESTS", *FRAMEWORK_ENVIRONMENT):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    folder.mkdir()
    monkeypatch.setenv("HOME", str(folder))
    for name in ("CACHE", "CONFIG", "DATA", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(folder / name))
    return folder


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ConnectWatch:
    folder = tmp_path / "watch"
    folder.mkdir()
    monkeypatch.setenv(
        "PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    )
    return ConnectWatch(folder)


def test_the_monitor_sees_connections_of_native_code(watch: ConnectWatch) -> None:
    """Otherwise the tests below would prove nothing.

    Connecting a datagram socket sends nothing.
    """
    program = (
        "import ctypes, struct, socket\n"
        "libc = ctypes.CDLL(None)\n"
        "for host, port in ((b'\\xc0\\x00\\x02\\x01', 53), (b'\\x7f\\x00\\x00\\x01', 9)):\n"
        "    to = struct.pack('=H', 2) + struct.pack('>H', port) + host + bytes(8)\n"
        "    libc.connect(libc.socket(2, 2, 0), to, 16)\n"
        "    libc.sendto(libc.socket(2, 2, 0), b'', 0, 0x40, to, 16)\n"
        "print(socket.gethostbyname('127.0.0.1'))\n"
    )
    environment = {**os.environ, **watch.environment}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    watch.join(120)
    assert done.stdout == "127.0.0.1\n", done.stderr
    assert watch.addresses == [
        "192.0.2.1 53",
        "192.0.2.1 53",
        "127.0.0.1 9",
        "127.0.0.1 9",
    ]
    assert watch.strangers() == ["192.0.2.1 53"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_server_opens_no_connection_and_leaves_the_home_unchanged(
    new_server: StartServer,
    watch: ConnectWatch,
    home: Path,
    tmp_path: Path,
    version: str,
) -> None:
    """From the first trial to shutdown, including Node and the trial's process."""
    models = tmp_path / "models"
    shutil.copytree(MODELS / "digits", models / "digits")
    manifest = models / "digits" / "model.toml"
    manifest.write_text(
        re.sub(
            r"(?m)^default_version = .*$",
            f'default_version = "{version}"',
            manifest.read_text(),
        )
    )
    folders = {
        "POCKETSERVE_STATE_DIR": str(tmp_path / "state"),
        "TMPDIR": str(tmp_path),
    }
    server = new_server(models, environment={**folders, **watch.environment})
    picture = next((MODELS / "digits" / "samples").glob("*.png"))
    answer = server.call(
        "POST",
        "/predictions/digits",
        data=picture.read_bytes(),
        headers={"Content-Type": "image/png"},
    )
    assert answer.status_code == 200 and answer.json()["version"] == version, (
        answer.text
    )
    assert server.stop() == 0
    watch.join(120)
    assert watch.strangers() == []
    assert list(home.rglob("*")) == []
    assert SOCKET_VARIABLE not in server.log.read_text(errors="replace")
