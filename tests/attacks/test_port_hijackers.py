"""Tell nothing to an app that took the port of a dead server.

A client trusts a port only if the user named it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import MODELS
from pocketserve.cli import main
from pocketserve.state.run_lock import RunLock
from pocketserve_client import Client, ServerUnreachableError
from pocketserve_client import client as facade
from pocketserve_client.errors import UnprovenPortError
from pocketserve_simulate.phone.port_hijacker import PortHijacker
from pocketserve_wire.files import run_file
from ports import free_port

TOKEN = "t" * 43
SEVEN = MODELS / "digits" / "samples" / "7.png"
SECRETS = (TOKEN.encode(), b"digits", b"/v2", b"pairing", SEVEN.read_bytes()[:16])
TIMEOUT_S = 120.0

CALLS: dict[str, Callable[[Client], object]] = {
    "is_ready": Client.is_ready,
    "server_metadata": Client.server_metadata,
    "index": Client.index,
    "infer": lambda client: client.infer(
        "digits", {"x": np.zeros((1, 28, 28), np.float32)}
    ),
    "predict": lambda client: client.predict("digits", SEVEN),
    "async_predict": lambda client: client.async_predict("digits", SEVEN).result(),
    "load": lambda client: client.load("digits"),
    "open_pairing": Client.open_pairing,
    "page_ticket": Client.page_ticket,
}
COMMANDS = {
    "models": ["models"],
    "models --check": ["models", "--check"],
    "predict": ["predict", "digits", str(SEVEN)],
    "predict --save": ["predict", "digits", str(SEVEN), "--save", os.devnull],
    "inspect": ["inspect", "digits"],
    "inspect --release": ["inspect", "digits", "--release"],
    "pair": ["pair"],
    "open": ["open", "--print"],
    "open --fresh-origin": ["open", "--print", "--fresh-origin"],
    "pair with a token file": ["pair", "--token-file", "TOKEN_FILE"],
}


class Ports:
    """The state folder and the unused default ports of a test's clients."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.http, self.socket = free_port(), free_port()


@pytest.fixture
def ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ports:
    found = Ports(tmp_path / "state")
    for name in [name for name in os.environ if name.startswith("POCKETSERVE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(found.state))
    monkeypatch.setenv("POCKETSERVE_TOKEN", TOKEN)
    monkeypatch.setattr(facade, "DEFAULT_URL", f"http://127.0.0.1:{found.http}")
    monkeypatch.setattr(facade, "SOCKET_PORT", found.socket)
    return found


class Recorder:
    """Listens on some ports in place of the server."""

    def __init__(self, *ports: int) -> None:
        self._ports = ports
        self._hijacker = PortHijacker(ports)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *error: object) -> None:
        self._hijacker.close()

    def heard(self) -> bytes:
        """Return all bytes that clients sent.

        Connections are accepted in turn, so the last one waits for the others.
        """
        for port in self._ports:
            with socket.create_connection(("127.0.0.1", port), TIMEOUT_S) as last:
                last.sendall(b"GET end")
                assert last.recv(1) == b""
        assert len(self._hijacker.received) > len(self._ports), "nobody else came"
        return b"".join(bytes(said) for said in self._hijacker.received)

    def was_told(self, *secrets: bytes) -> list[bytes]:
        """Return the secrets that it received."""
        heard = self.heard()
        return [secret for secret in (*SECRETS, *secrets) if secret in heard]


def dead_run(state: Path, http: str) -> None:
    """Write the files that a killed server leaves behind."""
    code = "import os, sys; from pathlib import Path; from pocketserve.state.run_lock import RunLock\n"
    code += "RunLock(Path(sys.argv[1]), (), sys.argv[2]); os.kill(os.getpid(), 9)"
    assert (
        subprocess.run(
            [sys.executable, "-c", code, str(state), http], timeout=TIMEOUT_S
        ).returncode
        == -9
    )


def write_run(ports: Ports, *, mode: int = 0o600) -> Path:
    """Write a server's run file without holding its lock."""
    folder = ports.state / run_file.FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "7.json"
    run = {
        "pid": 7,
        "started": 1.0,
        "suspended": None,
        "boot": "",
        "ports": [],
        "http": f"127.0.0.1:{ports.http}",
    }
    path.write_text(json.dumps(run))
    path.chmod(mode)
    return path


@pytest.mark.parametrize("name", CALLS)
def test_a_default_client_sends_a_hijacker_nothing(ports, name):
    dead_run(ports.state, f"127.0.0.1:{ports.http}")
    with Recorder(ports.http) as hijacker, Client(reconnect=0.0) as client:
        with pytest.raises(
            ServerUnreachableError, match=r"nothing proves that .* is your server"
        ):
            CALLS[name](client)
        assert hijacker.was_told() == []


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_sends_a_hijacker_nothing(ports, name, tmp_path, capsys):
    dead_run(ports.state, f"127.0.0.1:{ports.http}")
    (tmp_path / "token").write_text(TOKEN)
    words = []
    for word in COMMANDS[name]:
        if word == "TOKEN_FILE":
            words.append(str(tmp_path / "token"))
        else:
            words.append(word)
    with Recorder(ports.http) as hijacker:
        assert main(words) == 1
        assert hijacker.was_told() == []
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "so nothing was sent to it; start the server with: pocketserve serve" in said


@pytest.mark.parametrize("name", CALLS)
def test_a_client_sends_nothing_if_both_ports_are_hijacked(ports, name):
    with (
        Recorder(ports.http, ports.socket) as hijacker,
        Client(reconnect=0.0) as client,
    ):
        with pytest.raises(ServerUnreachableError):
            CALLS[name](client)
        assert hijacker.was_told() == []


def test_a_client_without_a_token_sends_nothing_either(ports, monkeypatch, tmp_path):
    monkeypatch.setenv("POCKETSERVE_TOKEN", "")
    monkeypatch.setenv("POCKETSERVE_TOKEN_FILE", str(tmp_path / "none"))
    with Recorder(ports.http) as hijacker, Client(reconnect=0.0) as client:
        with pytest.raises(UnprovenPortError):
            client.predict("digits", SEVEN)
        assert hijacker.was_told() == []


def _another_port(ports: Ports) -> Any:
    return RunLock(ports.state, (ports.http,), f"127.0.0.1:{ports.http + 1}")


def _another_address(ports: Ports) -> Any:
    return RunLock(ports.state, (ports.http,), f"192.0.2.1:{ports.http}")


def _not_held(ports: Ports) -> Any:
    return write_run(ports)


def _of_everybody(ports: Ports) -> Any:
    """Write a locked file that any user could have written."""
    import fcntl

    held = write_run(ports, mode=0o666).open()
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return held


def _a_link(ports: Ports) -> Any:
    marker = RunLock(ports.state / "elsewhere", (), f"127.0.0.1:{ports.http}")
    (ports.state / run_file.FOLDER).mkdir(parents=True)
    target = ports.state / "elsewhere" / run_file.FOLDER / f"{os.getpid()}.json"
    (ports.state / run_file.FOLDER / "7.json").symlink_to(target)
    return marker


def _a_fifo(ports: Ports) -> Any:
    (ports.state / run_file.FOLDER).mkdir(parents=True)
    os.mkfifo(ports.state / run_file.FOLDER / "7.json")


@pytest.mark.parametrize(
    "leave",
    [_another_port, _another_address, _not_held, _of_everybody, _a_link, _a_fifo],
    ids=lambda leave: leave.__name__.strip("_"),
)
def test_an_untrustworthy_run_file_proves_nothing(ports, leave):
    kept = leave(ports)
    with Recorder(ports.http) as hijacker, Client(reconnect=0.0) as client:
        with pytest.raises(UnprovenPortError):
            client.index()
        assert hijacker.was_told() == []
    if kept is not None and hasattr(kept, "close"):
        kept.close()


def test_an_unreadable_state_folder_proves_nothing(ports, monkeypatch):
    """The client reports that nobody listens or that the port is unproven, not the
    folder's fault.
    """
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(ports.state.with_name("x" * 300)))
    with Client(reconnect=0.0) as client:
        with pytest.raises(
            ServerUnreachableError, match=r"cannot be reached \(Connection refused\)"
        ):
            client.index()
        with Recorder(ports.http) as hijacker:
            with pytest.raises(UnprovenPortError):
                client.index()
            assert hijacker.was_told() == []


def test_a_server_that_starts_between_two_checks_proves_nothing(ports, monkeypatch):
    """The hijacker accepts the connection and frees the port; the server takes the port
    before the client checks again.
    """
    markers: list[RunLock] = []
    looked = run_file.http_server

    def look(state: Path, port: int) -> run_file.Run | None:
        found = looked(state, port)
        if not markers:  # after the first check
            markers.append(RunLock(ports.state, (), f"127.0.0.1:{ports.http}"))
        return found

    monkeypatch.setattr(run_file, "http_server", look)
    with Recorder(ports.http) as hijacker, Client(reconnect=0.0) as client:
        with pytest.raises(UnprovenPortError):
            client.index()
        assert hijacker.was_told() == []
    assert looked(ports.state, ports.http) is not None
    markers[0].close()


@pytest.mark.live
def test_the_servers_own_run_file_permits_http(ports, new_server, monkeypatch):
    """A server without the socket is used over HTTP; after its death, a hijacker of its
    port gets nothing.
    """
    server = new_server(
        MODELS, "--no-socket", environment={"POCKETSERVE_STATE_DIR": str(ports.state)}
    )
    monkeypatch.setattr(facade, "DEFAULT_URL", server.url)
    monkeypatch.setenv("POCKETSERVE_TOKEN", server.token)
    with Client(reconnect=0.0) as client:
        assert client.predict("petals", [1, 2, 3])["model"] == "petals"
        server.process.kill()
        server.process.wait(TIMEOUT_S)
        with Recorder(server.port) as hijacker:
            for _ in range(2):  # the kept connection, and a new one
                with pytest.raises(ServerUnreachableError):
                    client.predict("petals", [1, 2, 3])
            assert hijacker.was_told(server.token.encode(), b"petals") == []


@pytest.mark.live
def test_a_named_address_is_trusted(ports, new_server, monkeypatch):
    """The environment variable and the option count, even for the default address
    without a run file.
    """
    server = new_server(MODELS, "--no-socket")
    monkeypatch.setenv("POCKETSERVE_TOKEN", server.token)
    monkeypatch.setattr(facade, "DEFAULT_URL", server.url)
    with Client(reconnect=0.0) as client, pytest.raises(UnprovenPortError):
        client.index()
    assert main(["models", "--url", server.url, "--json"]) == 0
    monkeypatch.setenv("POCKETSERVE_URL", server.url)
    with Client() as client:
        assert client.index()


@pytest.mark.live
def test_a_server_that_ends_removes_its_proof(new_server, tmp_path):
    state = tmp_path / "state"
    server = new_server(
        MODELS, "--no-socket", environment={"POCKETSERVE_STATE_DIR": str(state)}
    )
    assert run_file.http_server(state, server.port) is not None
    assert server.stop() == 0
    assert run_file.http_server(state, server.port) is None
    assert not list((state / run_file.FOLDER).iterdir())
