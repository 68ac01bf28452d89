"""Install each of the three distributions alone from its wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import venv
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest

from conftest import MODELS, ROOT, Server, start_server
from pocketserve import __version__
from pocketserve.cli.installed import GROUP, LAB_COMMANDS

pytestmark = [pytest.mark.thorough, pytest.mark.live]

TIMEOUT_S = 240
FOLDERS = {
    "pocketserve-client": ROOT / "client",
    "pocketserve": ROOT,
    "pocketserve-lab": ROOT / "lab",
}
PACKAGES = {
    "pocketserve-client": {"pocketserve_client", "pocketserve_wire"},
    "pocketserve": {"pocketserve"},
    "pocketserve-lab": {"pocketserve_lab", "pocketserve_scale", "pocketserve_simulate"},
}
ASK = """
import sys
from pathlib import Path
from pocketserve_client import Client
with Client(sys.argv[1], token=sys.argv[2]) as client:
    answer = client.predict("digits", Path(sys.argv[3]).read_bytes())
    print(answer["predictions"][0]["label"])
"""


@dataclass(frozen=True)
class Installed:
    """An environment with some of the wheels, and a home folder of its own."""

    python: Path
    home: Path

    def run(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        hidden = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONHOME")
        variables = {}
        for name, value in os.environ.items():
            if name not in hidden and not name.startswith(("POCKETSERVE_", "XDG_")):
                variables[name] = value
        return subprocess.run(
            [str(self.python), *map(str, arguments)],
            cwd=self.home,
            env={**variables, "HOME": str(self.home)},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "pocketserve", *words)


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the wheel of each distribution."""
    paths = {}
    for name, folder in FOLDERS.items():
        target = tmp_path_factory.mktemp(name)
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
        command += ["--directory", str(target)]
        subprocess.run(
            command, cwd=folder, check=True, capture_output=True, timeout=TIMEOUT_S
        )
        (paths[name],) = target.iterdir()
    return paths


@pytest.fixture(scope="module")
def third_party(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with this environment's packages, without ours."""
    folder = tmp_path_factory.mktemp("third-party")
    installed = Path(str(metadata.distribution("numpy").locate_file("")))
    for path in installed.iterdir():
        is_ours = path.name.startswith(("pocketserve", "_pocketserve"))
        if not is_ours and path.suffix != ".pth":
            (folder / path.name).symlink_to(path)
    return folder


@pytest.fixture
def install(wheels: dict[str, Path], third_party: Path, tmp_path: Path):
    """Return a function that makes an environment: ``install(*names)``."""

    def make(*names: str) -> Installed:
        folder = tmp_path / "environment"
        home = tmp_path / "home"
        venv.create(folder, with_pip=False, symlinks=True)
        home.mkdir()
        (site,) = folder.glob("lib/python3*/site-packages")
        for name in names:
            with zipfile.ZipFile(wheels[name]) as wheel:
                wheel.extractall(site)
        (site / "third-party.pth").write_text(f"{third_party}\n")
        return Installed(folder / "bin" / "python", home)

    return make


def test_each_wheel_has_its_packages(wheels: dict[str, Path]) -> None:
    """Each has a licence, a version and the mark of typed packages.

    No file is in two.
    """
    seen: set[str] = set()
    for name, path in wheels.items():
        folder = f"{name.replace('-', '_')}-{__version__}"
        assert path.name == f"{folder}-py3-none-any.whl"
        with zipfile.ZipFile(path) as wheel:
            names = set(wheel.namelist())
        tops = {file.partition("/")[0] for file in names}
        assert tops == {*PACKAGES[name], f"{folder}.dist-info"}
        assert {f"{package}/py.typed" for package in PACKAGES[name]} <= names
        assert f"{folder}.dist-info/licenses/LICENSE" in names
        assert not names & seen
        seen |= names
    assert "pocketserve_simulate/scenarios/commute.toml" in seen
    templates = (ROOT / "lab/pocketserve_lab/codegen/templates").glob("*.j2")
    assert {
        f"pocketserve_lab/codegen/templates/{file.name}" for file in templates
    } <= seen
    licence = (ROOT / "LICENSE").read_bytes()
    assert all((path / "LICENSE").read_bytes() == licence for path in FOLDERS.values())


def test_the_lab_brings_its_commands() -> None:
    """The command line knows their names without it, to explain the installation."""
    project = tomllib.loads((ROOT / "lab/pyproject.toml").read_text("utf-8"))["project"]
    assert set(project["entry-points"][GROUP]) == set(LAB_COMMANDS)


def test_the_client_alone_can_query_a_server(install, server: Server) -> None:
    environment = install("pocketserve-client")
    picture = MODELS / "digits" / "samples" / "7.png"
    answers = []
    for scheme, port in (("http", server.port), ("socket", server.socket_port)):
        address = f"{scheme}://127.0.0.1:{port}"
        done = environment.run(
            "-W",
            "error",
            "-c",
            ASK,
            address,
            server.token,
            picture,
        )
        answers.append((done.stdout, done.stderr))
    assert answers == [("7\n", "")] * 2
    done = environment.run("-c", "import pocketserve")
    assert "ModuleNotFoundError" in done.stderr


def test_the_server_alone_serves(install, tmp_path: Path) -> None:
    environment = install("pocketserve-client", "pocketserve")
    folder = tmp_path / "run"
    folder.mkdir()
    server = start_server(folder, MODELS, python=environment.python)
    try:
        picture = (MODELS / "digits" / "samples" / "7.png").read_bytes()
        answer = server.call("POST", "/predictions/digits", data=picture)
        assert answer.json()["predictions"][0]["label"] == "7"
    finally:
        assert server.stop() == 0


def test_the_server_alone_explains_how_to_install_the_lab(install) -> None:
    """It does so for each lab command with any options, and help lists none of them."""
    environment = install("pocketserve-client", "pocketserve")
    for words in (
        ("convert", "digits"),
        ("--json", "compare", "x"),
        ("help", "scale"),
    ):
        done = environment.command(*words)
        assert (done.returncode, done.stdout) == (2, ""), words
        assert "pip install pocketserve-lab" in done.stderr
        assert "pip install ./lab" in done.stderr
    text = environment.command("--help").stdout
    assert "serve" in text
    assert "convert" not in text
    completed = environment.command("completion", "bash", "pocketserve", "co")
    assert completed.stdout == "completion\n"
    assert (
        environment.command("completion", "bash", "pocketserve", "convert", "-").stdout
        == ""
    )


def test_the_lab_adds_its_commands(install) -> None:
    environment = install(*FOLDERS)
    text = environment.command("--help").stdout
    assert all(f"    {name}" in text for name in LAB_COMMANDS)
    for name in LAB_COMMANDS:
        done = environment.command(name, "--help")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"usage: pocketserve {name}")
    completed = environment.command("completion", "bash", "pocketserve", "con")
    assert completed.stdout == "convert\n"
