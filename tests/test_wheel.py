"""Run the server's wheel in an environment with only its requirements."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from conftest import MODELS, ROOT, START_TIMEOUT_S
from pocketserve import __version__

pytestmark = pytest.mark.wheel

PACKAGES = ("pocketserve", "pocketserve_wire", "pocketserve_client")
WEB = ROOT / "server" / "pocketserve" / "web"
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")
PIP_TIMEOUT_S = 240


@dataclass(frozen=True)
class Installed:
    """An environment with the wheel and its dependencies, and a home folder of its own."""

    bin: Path
    home: Path

    def environment(self) -> dict[str, str]:
        hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
        kept = {}
        for name, value in os.environ.items():
            if name not in hidden and not name.startswith(("POCKETSERVE_", "XDG_")):
                kept[name] = value
        return {**kept, "HOME": str(self.home)}

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.bin / program), *arguments],
            cwd=self.home,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=60,
        )


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel; the build backend is a dev package, so nothing is downloaded."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        *PIP,
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
    ]
    subprocess.run(
        [*command, "--wheel-dir", str(folder), str(ROOT)],
        check=True,
        timeout=PIP_TIMEOUT_S,
    )
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    home = tmp_path_factory.mktemp("home")
    command = [str(folder / "bin" / "python"), *PIP, "install", "--quiet"]
    command += [
        "--constraint",
        str(ROOT / "constraints.txt"),
        str(ROOT / "client"),
        str(wheel),
    ]
    subprocess.run(command, check=True, cwd=home, timeout=PIP_TIMEOUT_S)
    return Installed(folder / "bin", home)


def test_the_wheel_has_its_name_and_contents(wheel: Path) -> None:
    assert wheel.name == f"pocketserve-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = archive.read(
            f"pocketserve-{__version__}.dist-info/METADATA"
        ).decode()
        for name in ("digits", "diabetes", "numbers", "petals"):
            for path in (
                path
                for path in (MODELS / name).rglob("*")
                if path.is_file() and path.suffix != ".pyc"
            ):
                packed = f"pocketserve/embedded_models/{path.relative_to(MODELS)}"
                assert archive.read(packed) == path.read_bytes()
    assert {name.split("/")[0] for name in names} == {
        "pocketserve",
        f"pocketserve-{__version__}.dist-info",
    }
    assert "pocketserve/py.typed" in names
    assert f"pocketserve-{__version__}.dist-info/licenses/LICENSE" in names
    assert (
        f"pocketserve-{__version__}.dist-info/licenses/server/pocketserve/web/vendor/lit-html/LICENSE"
        in names
    )
    assert {
        f"pocketserve/web/{path.relative_to(WEB)}"
        for path in WEB.rglob("*")
        if path.is_file()
    } <= names
    assert not any(
        name.endswith((".pyc", "token"))
        or "/tests/" in name
        or "embedded_models/recipes" in name
        for name in names
    )
    assert "License-Expression: Apache-2.0" in metadata
    assert wheel.stat().st_size < 4_000_000


def test_the_source_distribution_is_complete(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "sdist",
        "--directory",
        str(tmp_path),
    ]
    subprocess.run(
        command,
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=60,
    )
    (found,) = tmp_path.iterdir()
    with tarfile.open(found) as archive:
        files = {}
        for member in archive:
            if member.isfile():
                files[member.name.partition("/")[2]] = member.size
        assert not any(member.issym() or member.islnk() for member in archive)
    assert {
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        "Makefile",
        "constraints.txt",
        "PKG-INFO",
    } <= set(files)
    assert {
        "tests/conftest.py",
        "models/digits/digits.tflite",
        "server/pocketserve/cli/commands/serve.py",
        "client/pyproject.toml",
        "lab/pyproject.toml",
    } <= set(files)
    unwanted = (
        ".venv",
        "__pycache__",
        ".git/",
        ".hypothesis",
        ".pytest_cache",
        ".mypy_cache",
        ".ruff_cache",
        ".ci",
    )
    assert not [
        name
        for name in files
        if any(part in name for part in unwanted) or name.endswith(("token", ".log"))
    ]
    # nothing large has slipped in
    assert sum(files.values()) < 19_500_000
    assert max(files.values()) < 1_000_000


def test_imports_without_a_framework(installed: Installed) -> None:
    code = f"import sys, {', '.join(PACKAGES)}; print(pocketserve.__version__, pocketserve.__file__)"
    done = installed.run("python", "-W", "error", "-c", code)
    assert done.returncode == 0, done.stderr
    version, file = done.stdout.split(maxsplit=1)
    assert version == __version__
    assert Path(file.strip()).is_relative_to(installed.bin.parent)
    done = installed.run("python", *PIP, "check")
    assert done.returncode == 0, done.stdout


def test_the_commands_work(installed: Installed) -> None:
    done = installed.run("pocketserve", "--version")
    assert done.returncode == 0
    assert done.stdout == f"pocketserve {__version__}\n"
    token = installed.run("pocketserve", "token")
    assert token.returncode == 0, token.stderr
    assert len(token.stdout.strip()) >= 43
    assert installed.run("pocketserve", "token").stdout == token.stdout
    path = Path(installed.run("pocketserve", "token", "--path").stdout.strip())
    assert path.is_relative_to(installed.home)
    assert path.stat().st_mode & 0o777 == 0o600
    done = installed.run("pocketserve", "models", "--url", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert done.stderr.startswith("pocketserve: ")
    assert "Traceback" not in done.stderr


@pytest.fixture
def server(installed: Installed, tmp_path: Path) -> Iterator[str]:
    """Return the address of a server on the wheel's own models."""
    ready = tmp_path / "ready.json"
    log = tmp_path / "server.log"
    command = [
        str(installed.bin / "pocketserve"),
        "serve",
        "--http-port",
        "0",
        "--socket-port",
        "0",
        "--ready-file",
        str(ready),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            cwd=installed.home,
            env=installed.environment(),
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready.exists():
            assert process.poll() is None and time.monotonic() < deadline, (
                log.read_text(errors="replace")
            )
            try:
                process.wait(0.02)
            except subprocess.TimeoutExpired:
                continue
        address: dict[str, Any] = json.loads(ready.read_text())["http"]
        yield f"http://{address['host']}:{address['port']}"
        process.terminate()
        assert process.wait(120) == 0, log.read_text(errors="replace")
    finally:
        process.kill()
        process.wait(120)


def check_index(session: requests.Session, server: str) -> None:
    """Check that all models are listed, with the installation of their framework."""
    index = session.post(f"{server}/v2/repository/index", timeout=120).json()
    entries = {(entry["name"], entry["version"]): entry for entry in index}
    names = {name for name, _ in entries}
    assert names == {"digits", "diabetes", "numbers", "petals"}
    for version, extra in (("tflite", "tflite"), ("torch", "torch")):
        entry = entries["digits", version]
        assert entry["state"] == "UNAVAILABLE"
        assert f"pip install 'pocketserve[{extra}]'" in entry["reason"]


def check_runtime_missing(answer: requests.Response) -> None:
    """Check that an answer names the package to install."""
    assert answer.status_code == 503, answer.text
    assert answer.json()["code"] == "RUNTIME_MISSING", answer.text
    assert "pip install 'pocketserve[tflite]'" in answer.json()["error"]


def test_the_core_alone_serves(installed: Installed, server: str) -> None:
    """Requests without their framework are refused with its installation."""
    token = installed.run("pocketserve", "token").stdout.strip()
    with requests.Session() as session:
        session.headers["Authorization"] = f"Bearer {token}"
        health = session.get(f"{server}/v2/health/ready", timeout=120)
        assert health.json()["ready"] is True
        check_index(session, server)

        picture = (MODELS / "digits" / "samples" / "7.png").read_bytes()
        digits = f"{server}/predictions/digits"
        check_runtime_missing(session.post(digits, data=picture, timeout=120))
        metadata = f"{server}/v2/models/digits"
        check_runtime_missing(session.get(metadata, timeout=120))
        petals = f"{server}/v1/models/petals:predict"
        rows = {"instances": [[5.1, 3.5, 1.4]]}
        check_runtime_missing(session.post(petals, json=rows, timeout=120))

        assert session.get(f"{server}/metrics", timeout=120).status_code == 200
        assert session.get(f"{server}/openapi.json", timeout=120).status_code == 200
    command = installed.run("pocketserve", "models", "--url", server)
    assert command.returncode == 0, command.stderr
    assert "digits" in command.stdout
    assert "pocketserve[tflite]" in command.stdout
