"""Create, list, revoke and expire tokens of single apps, over both transports."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from conftest import MODELS
from pocketserve.auth import app_tokens
from pocketserve.auth.app_tokens import (
    AppTokenError,
    AppTokens,
    add_token,
    path_of,
    read_tokens,
    revoke_token,
    token_digest,
)
from pocketserve.auth.guard import Guard
from pocketserve.cli import main
from pocketserve_client import Client, ServerError
from pocketserve_wire import ApiError
from pocketserve_wire.handshake import client_proof, server_proof

DAY = 86_400.0
NOW = 1_800_000_000.0
OWN = "o" * 43


class Time:
    """Both clocks, which only move when set."""

    def __init__(self) -> None:
        self.wall = NOW
        self.monotonic = 100.0

    def pass_by(self, seconds: float) -> None:
        self.wall += seconds
        self.monotonic += seconds


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return path_of(tmp_path / "state" / "token")


@pytest.fixture
def tokens(path: Path, time: Time) -> AppTokens:
    return AppTokens(path, lambda: time.wall, lambda: time.monotonic)


def found(tokens: AppTokens, token: str) -> str | None:
    app = tokens.find(token.encode())
    if app is not None:
        return app.name
    return None


def test_a_token_is_stored_as_its_hash(path):
    token = add_token(path, "camera", DAY, NOW)
    (kept,) = read_tokens(path)
    assert (kept.name, kept.sha256, kept.created, kept.expires) == (
        "camera",
        token_digest(token.encode()),
        NOW,
        NOW + DAY,
    )
    assert token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["token.apps.json"]
    revoke_token(path, "camera", NOW)
    assert read_tokens(path) == ()


def test_the_hash_makes_the_same_proofs(path):
    """HMAC hashes keys longer than 64 bytes first (RFC 2104), so the server only needs
    the hash.
    """
    token = add_token(path, "camera", DAY, NOW)
    (kept,) = read_tokens(path)
    assert len(token) > 64
    for proof in (client_proof, server_proof):
        assert proof(kept.key, b"t" * 32) == proof(token.encode(), b"t" * 32)


def test_a_token_is_valid_from_its_creation_until_it_expires(path, tokens, time):
    token = add_token(path, "camera", DAY, NOW)
    assert found(tokens, token) == "camera"
    assert [app.name for app in tokens.all()] == ["camera"]
    assert found(tokens, "x" * 86) is None
    assert found(tokens, "") is None
    time.wall = NOW - 1
    # The clock is behind.
    assert found(AppTokens(path, lambda: time.wall, lambda: 0.0), token) is None
    time.wall = NOW
    time.pass_by(DAY - 1)
    assert found(tokens, token) == "camera"
    time.pass_by(2)
    assert found(tokens, token) is None
    assert tokens.all() == ()


def test_no_clock_change_revives_a_token(path, tokens, time):
    """Time doesn't run backwards in a server, and expired tokens are deleted for good."""
    token = add_token(path, "camera", DAY, NOW)
    app = tokens.find(token.encode())
    assert app is not None
    time.monotonic += DAY / 2  # the wall clock doesn't move
    assert found(tokens, token) == "camera"
    time.wall -= 10 * DAY
    time.monotonic += DAY
    assert found(tokens, token) is None
    assert not tokens.is_good(app)
    time.wall = NOW
    assert found(tokens, token) is None
    assert read_tokens(path) == ()
    assert found(AppTokens(path, lambda: NOW, lambda: 0.0), token) is None


class Counted(type(Path())):  # type: ignore[misc]
    """A path that counts calls of stat."""

    looks = 0

    def stat(self, **options: bool) -> os.stat_result:
        type(self).looks += 1
        return super().stat(**options)


def test_the_file_is_checked_once_a_second(path, time):
    token = add_token(path, "camera", DAY, NOW)
    tokens = AppTokens(Counted(path), lambda: time.wall, lambda: time.monotonic)
    for _ in range(100):
        assert found(tokens, token) == "camera"
    app = tokens.find(token.encode())
    assert app is not None
    assert tokens.is_good(app)
    assert Counted.looks == 1
    revoke_token(path, "camera", NOW)
    again = add_token(path, "camera", DAY, NOW)  # another one of that name
    assert tokens.is_good(app)
    time.pass_by(app_tokens.CHECK_INTERVAL_S)
    assert not tokens.is_good(app)
    assert found(tokens, token) is None
    assert found(tokens, again) == "camera"
    assert Counted.looks == 2


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a b",
        "-a",
        "a/b",
        "ä",
        "a" * 65,
        "a\n",
        "\x1b",
    ],
)
def test_invalid_names_are_refused(path, name):
    with pytest.raises(AppTokenError, match="letters, digits"):
        add_token(path, name, DAY)
    assert not path.exists()


def test_impossible_changes_are_refused(path):
    add_token(path, "a", DAY, NOW)
    with pytest.raises(AppTokenError, match="--revoke a"):
        add_token(path, "a", DAY, NOW)
    with pytest.raises(AppTokenError, match="no token called 'b'"):
        revoke_token(path, "b", NOW)
    for number in range(app_tokens.MAX_TOKENS - 1):
        add_token(path, f"n{number}", DAY, NOW)
    with pytest.raises(AppTokenError, match="the limit"):
        add_token(path, "b", DAY, NOW)
    add_token(path, "b", DAY, NOW + DAY)  # the others have expired
    assert [token.name for token in read_tokens(path)] == ["b"]


def test_concurrent_changes_are_all_kept(path):
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(lambda number: add_token(path, f"n{number}", DAY, NOW), range(24))
        )
    assert len(read_tokens(path)) == 24


DAMAGED = [
    b"", b"[]", b"{}", b'{"tokens": 1}', b'{"tokens": [1]}', b"\xff", b"[" * 5000, b'{"tokens": [{"name": "a"}]}',
    b'{"tokens": [{"name": "a", "sha256": "0", "created": 1, "expires": 2}]}',
    b'{"tokens": [{"name": "a", "sha256": "%b", "created": 1, "expires": 1e300}]}' % (b"0" * 64),
    b'{"tokens": [{"name": "a", "sha256": "%b", "created": NaN, "expires": NaN}]}' % (b"0" * 64),
    b" " * 70_000,
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: ascii(content)[:30])
def test_damaged_files_grant_no_access(path, tokens, content):
    path.parent.mkdir()
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(AppTokenError, match="contains no app tokens"):
        read_tokens(path)
    assert tokens.all() == ()
    assert tokens.find(b"x") is None
    with pytest.raises(AppTokenError):
        add_token(path, "a", DAY)
    assert path.read_bytes() == content


def test_a_readable_file_and_a_pipe_grant_no_access(path, tokens):
    token = add_token(path, "a", DAY, NOW)
    path.chmod(0o640)
    with pytest.raises(AppTokenError, match="chmod 600"):
        read_tokens(path)
    assert found(tokens, token) is None
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(AppTokenError, match="not a regular file"):
        read_tokens(path)


def test_the_guard_names_the_app(path, tokens):
    token = add_token(path, "camera", DAY, NOW)
    guard = Guard(OWN, apps=tokens)
    assert guard.check_token(f"Bearer {OWN}") is None
    assert guard.check_token(f"Bearer {token}") == "camera"
    for wrong in (
        f"Bearer {token[:-1]}",
        f"Bearer {token_digest(token.encode())}",
        "",
        None,
    ):
        with pytest.raises(ApiError, match="a valid token is required"):
            guard.check_token(wrong)


# --- The command


def command(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["token", *words]) == code
    said = capsys.readouterr()
    if code == 0:
        return said.out
    return said.err


def test_the_command_creates_lists_and_revokes(tmp_path, capsys):
    where = ["--token-file", str(tmp_path / "token")]
    assert "There are no tokens" in command(capsys, "--list", *where)
    token = command(
        capsys,
        "--new",
        "camera",
        "--expires",
        "12h",
        *where,
    ).strip()
    (kept,) = read_tokens(path_of(tmp_path / "token"))
    assert kept.sha256 == token_digest(token.encode())
    assert kept.expires - kept.created == pytest.approx(12 * 3600)
    listed = command(capsys, "--list", *where)
    assert "camera" in listed
    assert "good" in listed
    assert token not in listed
    assert kept.sha256 not in listed
    (entry,) = json.loads(command(capsys, "--list", "--json", *where))
    assert set(entry) == {"name", "created", "expires"}
    assert "is revoked" in command(capsys, "--revoke", "camera", *where)
    assert "no token called 'camera'" in command(
        capsys, "--revoke", "camera", *where, code=1
    )
    assert "--expires belongs to --new" in command(
        capsys, "--expires", "1d", *where, code=1
    )
    assert json.loads(command(capsys, "--new", "b", "--json", *where))["name"] == "b"
    for wrong in ("0d", "367d", "1", "d", "-1d", "1w", "1.5h"):
        with pytest.raises(SystemExit):
            main(["token", "--new", "c", f"--expires={wrong}", *where])


# --- A server


def refused(client: Client) -> bool:
    try:
        client.index()
    except ServerError as error:
        return (error.status, error.code) == (401, "UNAUTHORIZED")
    return False


@pytest.mark.live
@pytest.mark.parametrize("transport", ["http", "socket"])
def test_an_apps_token_opens_the_server_until_it_is_revoked(new_server, transport):
    server = new_server(MODELS, "--log-level", "debug")
    where = ["--token-file", str(server.log.with_name("token"))]
    address = f"{transport}://127.0.0.1:{server.ready[transport]['port']}"
    new = subprocess.run(
        [sys.executable, "-m", "pocketserve", "token", "--new", "camera", *where],
        capture_output=True,
        text=True,
    )
    token = new.stdout.strip()
    assert new.returncode == 0
    assert token
    with Client(address, token) as client, Client(address, server.token) as owner:
        # For a second at most, because the file is checked that often.
        while refused(client):
            assert server.process.poll() is None
        assert client.predict("petals", [1, 2, 3])["model"] == "petals"
        # Would give it the other one.
        for call in (
            client.open_pairing,
            client.close_pairing,
            client.pairing_state,
        ):
            with pytest.raises(ServerError, match="requires the installation's token"):
                call()
        assert owner.pairing_state() == "closed"
        assert main(["token", "--revoke", "camera", *where]) == 0
        while not refused(client):
            assert server.process.poll() is None
        with Client(address, token) as another:
            assert refused(another)
        assert owner.predict("petals", [1, 2, 3])["model"] == "petals"
        assert owner.index()
    assert token not in server.log.read_text()


@pytest.mark.live
def test_the_handshake_with_an_apps_token_is_mutual(new_server):
    """The protocol is unchanged: a client with the token proves itself by its hash."""
    server = new_server(MODELS, "--log-level", "debug")
    token = add_token(path_of(server.log.with_name("token")), "camera", DAY)
    with Client(f"socket://127.0.0.1:{server.socket_port}", token) as client:
        while refused(client):
            assert server.process.poll() is None
    assert "the app camera has opened a connection" in server.log.read_text()
