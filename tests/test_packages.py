"""Compare the container file and the Termux recipe with the project."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from conftest import MODELS, ROOT, StartServer
from pocketserve import __version__
from pocketserve.config import SETTINGS

CONTAINER = (ROOT / "Containerfile").read_text(encoding="utf-8")
RECIPE = ROOT / "termux" / "pocketserve" / "build.sh"


def project() -> dict[str, Any]:
    """Return the project's table of pyproject.toml."""
    facts: dict[str, Any] = tomllib.loads(
        (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    )["project"]
    return facts


def container_settings() -> dict[str, str]:
    """Return the variables that the image sets."""
    (words,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", CONTAINER, re.MULTILINE)
    return dict(word.split("=") for word in words.replace("\\", "").split())


def test_the_image_is_complete_and_runs_without_root() -> None:
    """Settings and extras exist, sources are copied, and the user's number is not 0."""
    assert {
        name.removeprefix("POCKETSERVE_").lower() for name in container_settings()
    } <= set(SETTINGS)
    volumes = json.loads(re.findall(r"^VOLUME (.*)$", CONTAINER, re.MULTILINE)[0])
    # Files that must outlive a container are in a volume.
    for name in (
        "MODELS_DIR",
        "STATE_DIR",
        "TOKEN_FILE",
    ):
        assert any(
            Path(container_settings()[f"POCKETSERVE_{name}"]).is_relative_to(volume)
            for volume in volumes
        )
    (extras,) = re.findall(r"\[([a-z,]+)\]\"", CONTAINER)
    assert set(extras.split(",")) <= set(project()["optional-dependencies"])
    (user,) = re.findall(r"^USER (.*)$", CONTAINER, re.MULTILINE)
    assert f"--uid {user} " in CONTAINER
    assert int(user) > 0
    included = set()
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        if line[0] == "!":
            included.add(line[1:])
    assert included == {
        "server",
        "client",
        "lab",
        "models",
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "constraints.txt",
    }
    for port in ("http_port", "socket_port"):
        assert (
            str(SETTINGS[port].default)
            in re.findall(r"^EXPOSE (.*)$", CONTAINER, re.MULTILINE)[0].split()
        )


@pytest.mark.live
def test_the_health_check_needs_a_server(new_server: StartServer) -> None:
    """It succeeds only if a server answers at the image's address."""
    server = new_server(
        MODELS,
        environment={"POCKETSERVE_HOST": container_settings()["POCKETSERVE_HOST"]},
    )
    (words,) = re.findall(r"^    CMD (\[.*\])$", CONTAINER, re.MULTILINE)
    program, option, code = json.loads(words)
    assert (program, option) == ("python", "-c")
    assert "8470" in code
    command = [sys.executable, option, code.replace("8470", str(server.port))]
    assert subprocess.run(command, timeout=120).returncode == 0
    server.stop()
    assert subprocess.run(command, timeout=120, capture_output=True).returncode == 1


def test_the_termux_recipe_agrees_with_the_project() -> None:
    """Version, licence and Termux packages are those of project and installer."""
    script = f'. {RECIPE}; printf \'%s\\n\' "$TERMUX_PKG_VERSION" "$TERMUX_PKG_LICENSE" "$TERMUX_PKG_DEPENDS"'
    environment = {
        "POCKETSERVE_HOMEPAGE": "https://localhost/",
        "PATH": "/usr/bin:/bin",
    }
    told = subprocess.run(
        ["bash", "-euc", script],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    version, licence, depends = told.splitlines()
    assert (version, licence) == (__version__, project()["license"])
    (installed,) = re.findall(
        r'^packages="([a-z\d -]+)"$',
        (ROOT / "install-termux.sh").read_text(),
        re.MULTILINE,
    )
    assert depends.split(", ") == installed.split()
    missing = subprocess.run(
        ["bash", "-euc", f". {RECIPE}"],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
    )
    assert missing.returncode != 0
    assert b"https address" in missing.stderr
