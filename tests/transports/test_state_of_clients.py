"""Bind a client's named state to its token: equal ids of two apps never collide."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from conftest import CALL_TIMEOUT_S, Server, StartServer
from framed import Framed
from numbered_models import await_that
from pocketserve.auth.app_tokens import add_token, path_of
from sequence_models import FEEDBACK, running_sum


@pytest.fixture
def stateful(new_server: StartServer, tmp_path: Path) -> Server:
    folder = tmp_path / "models" / "sum"
    folder.mkdir(parents=True)
    running_sum(folder / "sum.onnx", 1)
    (folder / "model.toml").write_text(FEEDBACK)
    return new_server(folder.parent, "--state-dir", str(tmp_path / "state"))


def body(value: float, **parameters: Any) -> bytes:
    """Return a step of sequence 1."""
    tensor = {
        "name": "x",
        "shape": [1, 1],
        "datatype": "FP32",
        "data": [value],
    }
    return json.dumps(
        {"inputs": [tensor], "parameters": {"sequence_id": 1, **parameters}}
    ).encode()


class App:
    """A client of one transport with its own or the installation's token."""

    def __init__(self, server: Server, transport: str, token: str | None) -> None:
        self._server = server
        self._token = token
        self._framed = (
            Framed(server.socket_port, token) if transport == "socket" else None
        )

    def step(self, value: float, **parameters: Any) -> Any:
        """Return the state after one step, or the error code."""
        content = body(value, **parameters)
        if self._framed is not None:
            reply = self._framed.call("POST /v2/models/sum/infer", content)
            answer = json.loads(bytes(reply.body))
        else:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            url = f"{self._server.url}/v2/models/sum/infer"
            answer = requests.post(
                url, content, headers=headers, timeout=CALL_TIMEOUT_S
            ).json()
        if "code" in answer:
            return answer["code"]
        return {output["name"]: output["data"][0] for output in answer["outputs"]}["y"]

    def close(self) -> None:
        """Close the connection."""
        if self._framed is not None:
            self._framed.close()


@pytest.fixture
def apps(stateful: Server, tmp_path: Path) -> Iterator[dict[tuple[str, str], App]]:
    """Return clients by name and transport; ``own`` has the installation's token."""
    tokens = {"own": str(stateful.token)}
    file = path_of(Path(stateful.ready["token_file"]))
    for name in ("a", "b"):
        tokens[name] = add_token(file, name, 3600.0)
    bearer = {"Authorization": f"Bearer {tokens['b']}"}
    # The server checks the file once a second.
    await_that(
        lambda: (
            requests.get(f"{stateful.url}/v2", headers=bearer, timeout=60).status_code
            == 200
        )
    )
    clients = {
        (name, transport): App(stateful, transport, token)
        for name, token in tokens.items()
        for transport in ("http", "socket")
    }
    yield clients
    for client in clients.values():
        client.close()


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_two_apps_with_the_same_id_have_separate_states(
    apps: dict[tuple[str, str], App], transport: str
) -> None:
    names = ("own", "a", "b")
    for factor, name in enumerate(names, 1):
        assert apps[name, transport].step(factor, sequence_start=True) == factor
    for factor, name in enumerate(names, 1):
        assert apps[name, transport].step(10 * factor) == 11 * factor
    assert apps["a", transport].step(0, sequence_end=True) == 22
    assert apps["a", transport].step(1) == "INVALID_REQUEST"
    assert apps["b", transport].step(1) == 34
    assert apps["own", transport].step(1) == 12


def test_one_token_has_one_state_over_both_transports(
    apps: dict[tuple[str, str], App],
) -> None:
    for name in ("own", "a"):
        assert apps[name, "http"].step(1, sequence_start=True) == 1
        assert apps[name, "socket"].step(2) == 3
        assert apps[name, "http"].step(3) == 6


def test_without_tokens_all_clients_have_one_identity(
    new_server: StartServer, tmp_path: Path
) -> None:
    folder = tmp_path / "models" / "sum"
    folder.mkdir(parents=True)
    running_sum(folder / "sum.onnx", 1)
    (folder / "model.toml").write_text(FEEDBACK)
    server = new_server(
        folder.parent, "--no-auth", "--state-dir", str(tmp_path / "state")
    )
    one = App(server, "http", None)
    two = App(server, "socket", None)
    assert one.step(1, sequence_start=True) == 1
    assert two.step(2) == 3
    two.close()
