"""Test a missing, silent or failing Ray with a stand-in for its module."""

from __future__ import annotations

import importlib
import re
import socket
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pocketserve.config import load_config
from pocketserve.terminal.errors import CommandError
from pocketserve_scale import ray_address
from pocketserve_scale.ray_address import find_address, own_file


@pytest.fixture
def listener() -> Iterator[str]:
    """Return the address of a listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def dead() -> Iterator[str]:
    """Return an address where nothing listens, reserved until the end."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "tmp" / "ray").mkdir(parents=True)


def test_auto_finds_the_ray_that_scale_started(tmp_path: Path, listener: str) -> None:
    own_file(tmp_path).write_text(f"{listener}\n")
    assert find_address("auto", tmp_path) == listener


@pytest.mark.parametrize(
    "place", ["variable", "ray/ray_current_cluster", "ray_current_cluster"]
)
def test_auto_finds_the_ray_of_the_machine(
    tmp_path: Path,
    listener: str,
    dead: str,
    place: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own_file(tmp_path).write_text(dead)  # of a command that was killed
    if place == "variable":
        monkeypatch.setenv("RAY_ADDRESS", listener)
    else:
        (tmp_path / "tmp" / place).write_text(listener)
    assert find_address("auto", tmp_path) == listener


@pytest.mark.parametrize(
    "content",
    [
        "",
        "auto",
        "x",
        ":1",
        "host:",
        "127.0.0.1:99999999999",
        "x" * 1000,
        "\xff",
    ],
)
def test_auto_without_a_ray_is_refused(tmp_path: Path, content: str) -> None:
    own_file(tmp_path).write_text(content, encoding="latin-1")
    with pytest.raises(
        CommandError,
        match=r"no Ray runs on this machine.*name one: --address HOST:PORT",
    ):
        find_address("auto", tmp_path)


def test_an_address_without_a_listener_is_refused(
    tmp_path: Path, dead: str, listener: str
) -> None:
    assert find_address(listener, tmp_path) == listener
    with pytest.raises(CommandError, match=f"no Ray answers at {re.escape(dead)}"):
        find_address(dead, tmp_path)


def test_all_addresses_share_one_timeout() -> None:
    from pocketserve_scale.ray_cluster import CONNECT_LIMIT_S

    assert 4 * ray_address.CONNECT_S + CONNECT_LIMIT_S <= 30


def test_a_ray_that_never_accepts_the_command_is_refused(
    tmp_path: Path, listener: str
) -> None:
    (tmp_path / "ray.py").write_text(
        "import threading\ndef init(**options): threading.Event().wait()\ndef shutdown(): pass\n"
    )
    code = (
        "import sys\nfrom pocketserve.config import load_config\nfrom pocketserve_scale import ray_cluster\n"
        "ray_cluster.CONNECT_LIMIT_S = 0.1\n"
        "with ray_cluster.running_cluster(load_config({'state_dir': sys.argv[1]}), sys.argv[2]): pass\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "state"), listener],
        env={
            "PYTHONPATH": ":".join([str(tmp_path), *sys.path]),
            "RAY_AUTH_MODE": "token",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"pocketserve: the Ray at {listener} did not accept this command within 0.1 s"
    )


class StandIn:
    """The part of Ray Serve that the module uses; starts fail with these messages in
    turn, then succeed.
    """

    RunTarget = staticmethod(lambda **options: options)

    def __init__(self, *messages: str) -> None:
        self.messages = list(messages)
        self.starts = 0

    def deployment(self, *_: Any, **__: Any) -> Any:
        return types.SimpleNamespace(bind=lambda *arguments: arguments)

    def run_many(self, targets: list[Any], **_: Any) -> list[Any]:
        self.starts += 1
        return [f"handle {self.starts}"]

    def status(self) -> Any:
        number = self.starts - 1
        if number >= len(self.messages):
            application = types.SimpleNamespace(status="RUNNING")
        else:
            deployments = {
                "replica": types.SimpleNamespace(message=self.messages[number])
            }
            application = types.SimpleNamespace(
                status="DEPLOY_FAILED", message="", deployments=deployments
            )
        return types.SimpleNamespace(applications={"pocketserve": application})


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Start an application on a stand-in."""
    name = "pocketserve_scale.ray_applications"

    def start(serve: StandIn) -> Any:
        monkeypatch.setitem(sys.modules, "ray", types.SimpleNamespace(serve=serve))
        replica = types.SimpleNamespace(RayReplica=object)
        monkeypatch.setitem(sys.modules, "pocketserve_scale.ray_replica", replica)
        module = importlib.import_module(name)
        return module._run("pocketserve", "/", load_config({}), tmp_path, {})

    before = sys.modules.pop(name, None)
    yield start
    sys.modules.pop(name, None)
    if before is not None:
        sys.modules[name] = before


LOST = "Failed to update the deployments ['replica'].\nray.exceptions.ActorDiedError: The actor died unexpectedly"


def test_a_replica_that_is_lost_while_starting_is_restarted(run: Any) -> None:
    serve = StandIn(LOST)
    assert run(serve) == "handle 2"


@pytest.mark.parametrize(
    ("messages", "starts", "sentence"),
    [
        ((LOST, LOST), 2, "Ray says: Failed to update"),
        (
            (f"{LOST}\npocketserve.server.StartError: m cannot be loaded",),
            1,
            "m cannot be loaded",
        ),
        (("no processors",), 1, "Ray says: no processors"),
    ],
    ids=["lost again", "our reason", "another reason"],
)
def test_a_failed_start_is_explained(
    run: Any, messages: tuple[str, ...], starts: int, sentence: str
) -> None:
    from pocketserve.server import StartError

    serve = StandIn(*messages)
    with pytest.raises(StartError, match=sentence):
        run(serve)
    assert serve.starts == starts
