"""Tests of ``pocketserve open`` and ``serve --open``.

A browser gets a ticket, never the token.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests

from conftest import Server, StartServer
from pocketserve.cli import main
from pocketserve.cli.running.browser import DISPLAYS, TERMUX, open_browser
from pocketserve.cli.running.open import page_address
from pocketserve.terminal.errors import CommandError

TICKET = "s_jGnoE90TBArsLqlPqmNAjeRMfBj0pgf96f0dscvxE"
ANSWER = {
    "ticket": TICKET,
    "expires_in": 60,
    "url": "http://127.0.0.1:8470/",
}
DEADLINE_S = 120.0


@pytest.fixture(autouse=True)
def _no_browser(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide the user's browser and servers."""
    for name in (
        *DISPLAYS,
        "POCKETSERVE_URL",
        "POCKETSERVE_TOKEN",
        "POCKETSERVE_TOKEN_FILE",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))


@pytest.fixture
def own(new_server: StartServer, models_copy: Path, tmp_path: Path) -> Server:
    """Start a server that commands of this process find."""
    return new_server(
        models_copy, environment={"POCKETSERVE_STATE_DIR": str(tmp_path / "state")}
    )


def program(folder: Path, name: str, code: int = 0) -> tuple[Path, Path]:
    """Return a program that records its arguments, and the record's file."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    written = folder / f"{name}.arguments"
    path.write_text(
        f"#!{sys.executable}\nimport sys\nopen({str(written)!r}, 'a').write(f'{{sys.argv[1:]}}\\n')\n"
    )
    with path.open("a") as file:
        file.write(f"sys.exit({code})\n")
    path.chmod(stat.S_IRWXU)
    return path, written


def token_file(server: Server) -> Path:
    return server.log.with_name("token")


def session_of_visit(address: str) -> str:
    """Return the session that a first visit to this address creates."""
    parts = urlsplit(address)
    ticket = parts.fragment.removeprefix("ticket=")
    base = f"http://127.0.0.1:{parts.port}"
    headers = {"Host": parts.netloc, "Origin": f"http://{parts.netloc}"}
    answer = requests.post(
        f"{base}/web/session",
        json={"ticket": ticket},
        headers=headers,
        timeout=DEADLINE_S,
    )
    session: str = answer.json()["session"]
    models = requests.get(
        f"{base}/v2/models",
        headers={"Host": parts.netloc, "Authorization": f"Bearer {session}"},
        timeout=DEADLINE_S,
    )
    assert models.status_code == 200
    assert (
        requests.post(
            f"{base}/web/session", json={"ticket": ticket}, timeout=DEADLINE_S
        ).status_code
        == 401
    )
    return session


@pytest.mark.live
@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("transport", ["found", "socket", "http"])
def test_the_printed_address(own, capsys, transport: str, fresh: bool) -> None:
    """It has the server's port and a single-use ticket, but no token."""
    urls = {"socket": f"socket://127.0.0.1:{own.socket_port}", "http": own.url}
    words = ["open", "--print", "--token-file", str(token_file(own))]
    words += ["--url", urls[transport]] if transport in urls else []
    assert main([*words, *(["--fresh-origin"] if fresh else [])]) == 0
    address = capsys.readouterr().out.strip()
    name = r"127\.0\.0\.1"
    if fresh:
        name = r"[0-9a-f]{32}\.localhost"
    assert re.fullmatch(
        rf"http://{name}:{own.port}/#ticket=[A-Za-z0-9_-]{{43}}", address
    )
    assert own.token not in address
    assert session_of_visit(address) != own.token


@pytest.mark.live
def test_open_a_server_that_listens_everywhere(
    new_server, models_copy, capsys, tmp_path: Path
) -> None:
    """The address names loopback, since browsers cannot open 0.0.0.0."""
    environment = {"POCKETSERVE_STATE_DIR": str(tmp_path / "state")}
    server = new_server(
        models_copy, "--no-socket", "--host", "0.0.0.0", environment=environment
    )
    assert main(["open", "--print", "--token-file", str(token_file(server))]) == 0
    address = capsys.readouterr().out.strip()
    assert address.startswith(f"http://127.0.0.1:{server.port}/#ticket=")
    assert session_of_visit(address)


@pytest.mark.live
def test_open_starts_the_desktop_browser(
    own, capsys, monkeypatch, tmp_path: Path
) -> None:
    """The desktop's browser opens instead of printing the address."""
    path, written = program(tmp_path / "bin", "browser")
    monkeypatch.setenv("BROWSER", f"{path} %s")
    monkeypatch.setenv("PATH", "")
    assert main(["open", "--token-file", str(token_file(own))]) == 0
    assert capsys.readouterr().out == "The page is open in your browser.\n"
    (address,) = eval(written.read_text())
    assert session_of_visit(address)


@pytest.mark.live
def test_open_prefers_the_command_of_termux(
    own, capsys, monkeypatch, tmp_path: Path
) -> None:
    path, written = program(tmp_path / "bin", TERMUX)
    monkeypatch.setenv("PATH", str(path.parent))
    monkeypatch.setenv("BROWSER", "/nothing/here %s")
    assert main(["open", "--fresh-origin", "--token-file", str(token_file(own))]) == 0
    assert capsys.readouterr().out == "The page is open in your browser.\n"
    (address,) = eval(written.read_text())
    assert ".localhost:" in address
    assert session_of_visit(address)


@pytest.mark.live
def test_open_without_a_browser_prints_the_address(own, capsys, monkeypatch) -> None:
    """The address is printed whole on narrow terminals too."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("COLUMNS", "45")
    assert main(["open", "--token-file", str(token_file(own))]) == 0
    *said, address = capsys.readouterr().out.splitlines()
    assert "No browser was found here." in " ".join(said)
    assert all(len(line) <= 45 for line in said)
    assert session_of_visit(address)


@pytest.mark.parametrize("problem", ["fails", "is no program"])
def test_a_browser_that_fails_to_start_counts_as_missing(
    monkeypatch, tmp_path: Path, problem: str
) -> None:
    path, _ = program(tmp_path / "bin", TERMUX, code=1)
    if problem == "is no program":
        path.write_text("\0")
    monkeypatch.setenv("PATH", str(path.parent))
    assert not open_browser("http://127.0.0.1:1/")


def test_a_missing_desktop_browser() -> None:
    """Runs in another process, since the standard library caches the browsers it found."""
    code = "from pocketserve.cli.running.browser import open_browser; print(open_browser('http://127.0.0.1:1/'))"
    environment = {
        **os.environ,
        "BROWSER": "/nothing/here %s",
        "PATH": "",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "False\n", done.stderr


@pytest.mark.live
@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--no-socket",),
        ("--no-auth",),
    ],
    ids=" ".join,
)
def test_serve_opens_its_page_once_ready(
    new_server, models_copy, monkeypatch, tmp_path: Path, options
) -> None:
    """Neither the token nor the ticket appears in the log."""
    path, written = program(tmp_path / "bin", "browser")
    environment = {
        "BROWSER": f"{path} %s",
        "POCKETSERVE_STATE_DIR": str(tmp_path / "state"),
        "PATH": "",
    }
    server = new_server(models_copy, "--open", *options, environment=environment)
    deadline = time.monotonic() + DEADLINE_S
    pause = threading.Event()
    while not (written.exists() and written.read_text().endswith("\n")):
        assert time.monotonic() < deadline, server.log.read_text()
        pause.wait(0.02)
    (address,) = eval(written.read_text())
    assert address.startswith(f"http://127.0.0.1:{server.port}/#ticket=")
    assert session_of_visit(address)
    assert server.stop() == 0
    log = server.log.read_text()
    assert urlsplit(address).fragment not in log
    assert (server.token or "Bearer") not in log


def test_open_without_a_server_is_one_sentence(capsys, tmp_path: Path) -> None:
    assert main(["open", "--url", "socket://127.0.0.1:1"]) == 1
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") <= 2
    assert said.err.startswith("pocketserve: ")


def test_the_address_of_the_page() -> None:
    """The authenticated server names its address.

    Over HTTP the requested one is used, since ports may be forwarded.
    """
    assert page_address(ANSWER, None) == f"http://127.0.0.1:8470/#ticket={TICKET}"
    assert (
        page_address(ANSWER, "socket://127.0.0.1:9")
        == f"http://127.0.0.1:8470/#ticket={TICKET}"
    )
    assert (
        page_address(ANSWER, "http://127.0.0.1:9999")
        == f"http://127.0.0.1:9999/#ticket={TICKET}"
    )
    assert (
        page_address(ANSWER, "https://phone.example/")
        == f"https://phone.example/#ticket={TICKET}"
    )
    assert (
        page_address({**ANSWER, "url": "http://[::1]:8470/"}, None)
        == f"http://[::1]:8470/#ticket={TICKET}"
    )
    page = f"http://192.168.1.7:8470/#ticket={TICKET}"
    # It reports 127.0.0.1 when it listens everywhere.
    assert page_address(ANSWER, "socket://192.168.1.7:8471") == page
    assert (
        page_address(
            {**ANSWER, "url": "http://evil.example:8470/"}, "socket://192.168.1.7:8471"
        )
        == page
    )
    names = {page_address(ANSWER, None, fresh=True) for _ in range(8)}
    assert len(names) == 8
    assert all(
        re.match(r"http://[0-9a-f]{32}\.localhost:8470/#", name) for name in names
    )


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://evil.example/"},
        {"url": "file:///etc/passwd"},
        {"url": "javascript:alert(1)"},
        {"url": "http://127.0.0.1.evil.example/"},
        {"url": "http://127.0.0.1@evil.example/"},
        {"url": "http://127.0.0.1:99999/"},
        {"url": ""},
        {"ticket": ""},
        {"ticket": "x" * 300},
        {"ticket": f"{TICKET}&more"},
        {"ticket": f"{TICKET}\n"},
        {"ticket": None},
    ],
    ids=json.dumps,
)
def test_malicious_answers_do_not_reach_a_browser(change) -> None:
    """The browser only gets a page on this device with a ticket."""
    with pytest.raises(ValueError, match=r"ticket|Port"):
        page_address({**ANSWER, **change}, None)


def test_a_local_host_name_is_for_this_device_only() -> None:
    """Other devices cannot resolve it."""
    with pytest.raises(CommandError, match="on this device"):
        page_address(ANSWER, "http://192.168.1.7:8470", fresh=True)
