"""Pair with a real server: routes, the client's function and the command."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from conftest import MODELS, Server
from pocketserve.api.routes import ROUTES
from pocketserve.auth.guard import Guard
from pocketserve.auth.pairing import PairingDesk, PairingState
from pocketserve.cli import main
from pocketserve.config import Config
from pocketserve.service import Service
from pocketserve.transports.http.app import create_app
from pocketserve.transports.http.server import HttpServer
from pocketserve_client import Client, PairingFailedError, ServerError, pair
from pocketserve_wire import ApiError
from pocketserve_wire.pairing import ClientExchange

TIMEOUT_S = 120.0


@pytest.fixture
def own(new_server) -> Any:
    """Start a separate server, because pairing has one desk."""
    return new_server(MODELS)


def wrong(code: str) -> str:
    return f"{(int(code) + 1) % 10**10:010d}"


def test_the_code_yields_the_token_once(own) -> None:
    with Client(own.url, own.token) as client:
        code = client.open_pairing()["code"]
        assert pair(f"{code[:3]} {code[3:]}", own.url) == own.token
        assert client.pairing_state() == "paired"
    with pytest.raises(ServerError) as caught:
        pair(code, own.url)
    assert caught.value.status == 403
    assert caught.value.code == "PAIRING_CLOSED"


def test_wrong_codes_are_counted(own) -> None:
    with Client(own.url, own.token) as client:
        opened = client.open_pairing()
        for _ in range(3):
            with pytest.raises(ServerError) as caught:
                pair(wrong(opened["code"]), own.url)
            assert caught.value.code == "PAIRING_REFUSED"
        assert own.call("GET", "/pairing").json()["tries"] == opened["tries"] - 3
        assert pair(opened["code"], own.url) == own.token


def test_only_the_owner_opens_pairing(own) -> None:
    for method, path in (
        ("POST", "/pairing/open"),
        ("POST", "/pairing/close"),
        ("GET", "/pairing"),
    ):
        answer = own.call(method, path, headers={"Authorization": "Bearer nobody"})
        assert answer.status_code == 401
        assert answer.json()["code"] == "UNAUTHORIZED"


def test_answers_match_the_openapi_document(own) -> None:
    document = own.call("GET", "/openapi.json").json()

    def checked(method: str, path: str, **body: str) -> dict[str, Any]:
        answer = own.call(
            method, path, data=json.dumps(body) if method == "POST" else None
        )
        assert answer.status_code == 200, answer.text
        response = document["paths"][path][method.lower()]["responses"]["200"]
        jsonschema.validate(
            answer.json(), response["content"]["application/json"]["schema"]
        )
        return answer.json()

    assert checked("GET", "/pairing")["state"] == "closed"
    client = ClientExchange(checked("POST", "/pairing/open")["code"])
    begun = checked("POST", "/pairing/begin", public=client.begin().hex())
    proof = client.prove(bytes.fromhex(begun["salt"]), bytes.fromhex(begun["public"]))
    done = checked(
        "POST", "/pairing/finish", exchange=begun["exchange"], proof=proof.hex()
    )
    assert (
        client.open(bytes.fromhex(done["proof"]), bytes.fromhex(done["token"]))
        == own.token
    )
    assert own.token not in json.dumps(done)
    checked("POST", "/pairing/close")
    assert {route.pattern for route in ROUTES if route.group == "pairing"} == {
        path for path in document["paths"] if path.startswith("/pairing")
    }


MALFORMED_MESSAGES = [
    (b"", "MALFORMED_JSON"),
    (b"[]", "INVALID_REQUEST"),
    (b"{}", "INVALID_REQUEST"),
    (b'{"public": 5}', "INVALID_REQUEST"),
    (b'{"public": "zz"}', "INVALID_REQUEST"),
    (json.dumps({"public": "00" * 255}).encode(), "INVALID_REQUEST"),
    (json.dumps({"public": "00" * 256}).encode(), "INVALID_REQUEST"),
    (json.dumps({"public": "ff" * 256}).encode(), "INVALID_REQUEST"),
    (json.dumps({"public": "01" * 256, "more": 1}).encode(), "INVALID_REQUEST"),
    # Refused by its header: no client without the token may send as much.
    (
        b" " * 5000,
        "UNAUTHORIZED",
    ),
]


@pytest.mark.parametrize(
    ("body", "code"),
    MALFORMED_MESSAGES,
)
def test_malformed_first_messages_are_refused(own, body: bytes, code: str) -> None:
    with Client(own.url, own.token) as client:
        client.open_pairing()
    answer = own.call(
        "POST", "/pairing/begin", data=body, headers={"Authorization": ""}
    )
    assert answer.json()["code"] == code
    assert 400 <= answer.status_code < 500


def test_another_server_is_recognised(own, server) -> None:
    with pytest.raises(PairingFailedError, match="6 digits"):
        pair("12", own.url)


def command(own) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            sys.executable,
            "-m",
            "pocketserve",
            "pair",
            "--url",
            own.url,
            "--token-file",
            own.log.with_name("token"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # `make test &` would ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def shown_code(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    match = re.search(r"(\d{3}) (\d{3}) (\d{4})$", process.stdout.readline().rstrip())
    assert match is not None
    return match[1] + match[2] + match[3]


def test_the_command_shows_a_code_and_waits(own) -> None:
    with command(own) as process:
        assert pair(shown_code(process), own.url) == own.token
        out, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0
    assert "Paired" in out
    assert err == ""
    assert own.token not in out


class GuessedDesk(PairingDesk):
    """Another app guesses while the owner waits."""

    def wait(self, timeout: float) -> PairingState:
        public = ClientExchange("0000000000").begin()
        while self.state().state == "open":
            identifier, _, _ = self.begin(public)
            with pytest.raises(ApiError, match="the code is wrong"):
                self.finish(identifier, bytes(32))
        return super().wait(timeout)


def test_the_command_reports_guesses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = Service(Config(models_dir=MODELS, state_dir=tmp_path))
    service.pairing = GuessedDesk("t" * 43, tries=3)
    guard = Guard(None)
    http = HttpServer(create_app(service, guard), Config(http_port=0), guard)
    serving = threading.Thread(target=http.run)
    serving.start()
    try:
        assert main(["pair", "--url", f"http://127.0.0.1:{http.port}"]) == 1
    finally:
        http.stop()
        serving.join(TIMEOUT_S)
        service.close()
    assert "guessing" in capsys.readouterr().err


def test_interrupting_the_command_closes_pairing(own) -> None:
    with command(own) as process:
        code = shown_code(process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=TIMEOUT_S)
    with pytest.raises(ServerError) as caught:
        pair(code, own.url)
    assert caught.value.code == "PAIRING_CLOSED"


def test_the_command_ends_when_the_server_stops(own) -> None:
    with command(own) as process:
        shown_code(process)
        assert own.stop() == 0
        _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 1
    assert "Traceback" not in err


@pytest.mark.parametrize("path", ["/pairing/open", "/pairing/close"])
def test_opening_and_closing_take_no_body(server: Server, path: str) -> None:
    """Unknown contents are refused, not ignored."""
    for body in (b"false", b'{"minutes": 5}', b"[]", b"x"):
        assert server.call("POST", path, data=body).status_code == 400
    assert server.call("POST", path, data=b"{}").status_code == 200
    assert server.call("POST", "/pairing/close").status_code == 200
