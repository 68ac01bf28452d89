"""Test the token's file, and the guard against web pages and other apps."""

from __future__ import annotations

import base64
import os
import re
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.auth.guard import Guard, TokenFileError, ensure_token, read_token
from pocketserve.terminal.token_file import token_file_fault
from pocketserve_wire import ApiError, ErrorCode

TOKEN = "abcdefghijklmnopqrstuvwxyz-_0123456789ABCDEF"


def written(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    """Write a token file with that content and mode."""
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    path.chmod(mode)
    return path


def test_a_new_token_is_private(tmp_path: Path) -> None:
    """It is random, and its file and folders belong to its owner only."""
    path = tmp_path / "state" / "pocketserve" / "token"
    token = ensure_token(path)
    assert len(token) == 43
    assert path.read_text() == f"{token}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert ensure_token(tmp_path / "other") != token


def test_a_new_token_ignores_a_careless_umask(tmp_path: Path) -> None:
    """Its folders do, too: a user who can write to one could replace the token."""
    path = tmp_path / ".local" / "state" / "pocketserve" / "token"
    before = os.umask(0)
    try:
        ensure_token(path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {stat.S_IMODE(above.stat().st_mode) for above in list(path.parents)[:3]} == {
        0o700
    }


def test_an_existing_token_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "token"
    assert ensure_token(path) == ensure_token(path) == read_token(path)


@pytest.mark.parametrize("kind", ["pipe", "folder", "link to a pipe"])
def test_a_special_file_is_not_opened(tmp_path: Path, kind: str) -> None:
    """A pipe without a writer would block the start forever."""
    path = tmp_path / "token"
    if kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path if kind == "pipe" else tmp_path / "pipe")
    if kind == "link to a pipe":
        path.symlink_to(tmp_path / "pipe")
    for read in (read_token, ensure_token):
        with pytest.raises(
            TokenFileError, match="cannot be read: it is not a regular file"
        ):
            read(path)
    assert (token_file_fault(path) or "").endswith("it is not a regular file")


@pytest.mark.parametrize(
    "content",
    [
        TOKEN,
        f"{TOKEN}\n",
        f" {TOKEN}\r\n",
        "a" * 32,
        "a" * 256,
    ],
)
def test_blanks_around_a_token_are_ignored(tmp_path: Path, content: str) -> None:
    assert read_token(written(tmp_path / "token", content)) == content.strip()


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n",
        "short",
        "a" * 31,
        "a" * 257,
        f"{TOKEN} {TOKEN}",
        f"{TOKEN}\n{TOKEN}",
        "ä" * 40,
        b"\xff" * 40,
        bytes(64),
    ],
    ids=lambda content: ascii(content)[:16],
)
def test_files_without_a_token_are_refused(
    tmp_path: Path, content: str | bytes
) -> None:
    """The file is unchanged, and the message names the remedy."""
    path = written(tmp_path / "token", content)
    before = path.read_bytes()
    for function in (read_token, ensure_token):
        with pytest.raises(TokenFileError, match="contains no token; delete it"):
            function(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o620, 0o601, 0o660, 0o777])
def test_files_that_others_can_use_are_refused(tmp_path: Path, mode: int) -> None:
    """The message has the command that corrects the mode."""
    path = written(tmp_path / "token", TOKEN, mode)
    for function in (read_token, ensure_token):
        with pytest.raises(TokenFileError, match=f"chmod 600 {path}"):
            function(path)


@pytest.mark.parametrize("mode", [0o600, 0o400, 0o700])
def test_private_modes_are_accepted(tmp_path: Path, mode: int) -> None:
    assert read_token(written(tmp_path / "token", TOKEN, mode)) == TOKEN


def test_unusable_paths_are_refused_in_one_sentence(tmp_path: Path) -> None:
    """They are a missing file, a folder, and a file in place of a folder."""
    with pytest.raises(TokenFileError, match="cannot be read: No such file"):
        read_token(tmp_path / "token")
    (tmp_path / "folder").mkdir()
    with pytest.raises(
        TokenFileError, match="cannot be read: it is not a regular file"
    ):
        ensure_token(tmp_path / "folder")
    written(tmp_path / "file", "")
    with pytest.raises(TokenFileError, match="cannot be read: Not a directory"):
        ensure_token(tmp_path / "file" / "token")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    with pytest.raises(TokenFileError, match="cannot be read: No such file"):
        ensure_token(tmp_path / "gone")


def test_concurrent_starts_create_one_token(tmp_path: Path) -> None:
    for attempt in range(20):
        start = threading.Barrier(4)

        def create(
            path: Path = tmp_path / str(attempt), start: threading.Barrier = start
        ) -> str:
            start.wait(120)
            return ensure_token(path)

        with ThreadPoolExecutor(4) as pool:
            tokens = [
                future.result() for future in [pool.submit(create) for _ in range(4)]
            ]
        assert len(set(tokens)) == 1


def test_an_incomplete_token_file_is_awaited(tmp_path: Path) -> None:
    """Another server may find it empty before it is written."""
    path = written(tmp_path / "token", "")
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(ensure_token, path)
        path.write_text(f"{TOKEN}\n")
        assert reader.result(120) == TOKEN


# The guard

HOSTS = {
    "127.0.0.1": True,
    "127.0.0.1:8470": True,
    "127.0.0.1:0": True,
    "127.0.0.1:65535": True,
    "localhost": True,
    "localhost:8470": True,
    "LOCALHOST:80": True,
    "LocalHost": True,
    "[::1]": True,
    "[::1]:8470": True,
    None: False,
    "": False,
    " ": False,
    "evil.com": False,
    "evil.com:8470": False,
    "127.0.0.1.evil.com": False,
    "localhost.evil.com": False,
    "evil.com#127.0.0.1": False,
    "127.0.0.1:99999": False,
    "127.0.0.1:65536": False,
    "127.0.0.1:-1": False,
    "127.0.0.1:": False,
    "127.0.0.1:80:80": False,
    "127.0.0.1:80a": False,
    "127.0.0.1 ": False,
    " 127.0.0.1": False,
    "127.0.0.1\n": False,
    "127.0.0.1, evil.com": False,
    "127.0.0.1/evil.com": False,
    "user@127.0.0.1": False,
    "127.0.0.1@evil.com": False,
    "127.1": False,
    "127.0.0.2": True,
    "127.1.0.20:8470": True,
    "127.255.255.255": True,
    "127.0.0.256": False,
    "127.0.0.01": False,
    "127.0.0.1.": False,
    "127.0.1": False,
    "128.0.0.1": False,
    "127.0.0.2.evil.com": False,
    "2130706433": False,
    "0.0.0.0": False,
    "::1": False,
    "[::]": False,
    "[::1": False,
    "[0:0:0:0:0:0:0:1]": False,
    "localhost.": False,
    "e9afbc3de8ceb22f8ad4ff85f953948f.localhost": True,
    "e9afbc3de8ceb22f8ad4ff85f953948f.localhost:8470": True,
    "A-B.LocalHost": True,
    f"{'a' * 63}.localhost": True,
    f"{'a' * 64}.localhost": False,
    ".localhost": False,
    "a..localhost": False,
    "a.b.localhost": False,
    "-a.localhost": False,
    "a-.localhost": False,
    "a_b.localhost": False,
    "a.localhost.": False,
    "a.localhost.evil.com": False,
    "alocalhost": False,
    "a.localhost\n": False,
    "a.localhost:99999": False,
    "evil.com:80.localhost": False,
    "\u0430.localhost": False,
    "löcalhost": False,
}


@pytest.mark.parametrize("host", HOSTS, ids=repr)
def test_only_hosts_of_this_device_pass(host: str | None) -> None:
    """A page that rebinds its DNS name sends that name."""
    if HOSTS[host]:
        Guard(None).check_source(host, None)
        return
    with pytest.raises(ApiError) as caught:
        Guard(None).check_source(host, None)
    assert caught.value.code is ErrorCode.HOST_REFUSED


def test_allowed_hosts_pass() -> None:
    """They match in any case and with any port, beside the default names."""
    guard = Guard(None, ["Phone.example"])
    for host in ("phone.example", "PHONE.EXAMPLE:443", "127.0.0.1:8470"):
        guard.check_source(host, None)
    with pytest.raises(ApiError):
        guard.check_source("other.example", None)


OWN = "127.0.0.1:8470"
ORIGINS = {
    None: True,
    "http://127.0.0.1:8470": True,
    "https://127.0.0.1:8470": True,
    "HTTP://127.0.0.1:8470": True,
    "null": False,
    "": False,
    "http://127.0.0.1": False,
    "http://127.0.0.1:8471": False,
    "http://localhost:8470": False,
    "http://evil.com": False,
    "http://127.0.0.1:8470.evil.com": False,
    "http://evil.com/http://127.0.0.1:8470": False,
    "http://127.0.0.1:8470/": False,
    "ftp://127.0.0.1:8470": False,
    "127.0.0.1:8470": False,
    "file://": False,
    "chrome-extension://abc": False,
    "http://127.0.0.1:8470 http://evil.com": False,
}


@pytest.mark.parametrize("origin", ORIGINS, ids=repr)
def test_only_the_servers_own_origin_passes(origin: str | None) -> None:
    """Other pages, and pages without an origin, are refused."""
    if ORIGINS[origin]:
        Guard(None).check_source(OWN, origin)
        return
    with pytest.raises(ApiError) as caught:
        Guard(None).check_source(OWN, origin)
    assert caught.value.code is ErrorCode.ORIGIN_REFUSED


FRESH = "e9afbc3de8ceb22f.localhost:8470"


@pytest.mark.parametrize(
    ("host", "origin", "passes"),
    [
        (FRESH, None, True),
        (FRESH, f"http://{FRESH}", True),
        (FRESH, f"http://{FRESH.upper()}", True),
        (FRESH, "http://127.0.0.1:8470", False),
        (FRESH, "http://localhost:8470", False),
        (FRESH, f"http://a{FRESH}", False),
        (FRESH, "http://e9afbc3de8ceb22f.localhost:8471", False),
        (OWN, f"http://{FRESH}", False),
    ],
)
def test_each_name_is_a_separate_origin(
    host: str, origin: str | None, passes: bool
) -> None:
    """A page reaches the server only by the name under which it was opened."""
    if passes:
        Guard(None).check_source(host, origin)
        return
    with pytest.raises(ApiError) as caught:
        Guard(None).check_source(host, origin)
    assert caught.value.code is ErrorCode.ORIGIN_REFUSED


def refusal_of(host: str) -> ErrorCode | None:
    """Return the code with which a Host header is refused; None if it passes."""
    try:
        Guard(None).check_source(host, None)
    except ApiError as error:
        return error.code
    return None


NAMES_OF_THIS_MACHINE = ("127.0.0.1", "localhost", "[::1]")


@given(
    st.one_of(
        st.text(),
        st.from_regex(
            r"[a-z0-9.:\-\[\]@/_ ]{0,40}(localhost|127\.0\.0\.1)?(:[0-9]{0,6})?"
        ),
    )
)
@settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=1000,
)
def test_any_other_host_is_refused(host: str) -> None:
    """Only loopback names with a port, and labels of .localhost, pass."""
    refusal = refusal_of(host)
    if refusal is not None:
        assert refusal is ErrorCode.HOST_REFUSED
        return
    name, colon, port = (
        host.rpartition(":") if re.search(r":\d+$", host) else (host, "", "")
    )
    assert not colon or int(port) <= 65535
    label, dot, rest = name.lower().partition(".")
    is_fresh = (
        dot
        and rest == "localhost"
        and 0 < len(label) <= 63
        and label.replace("-", "").isalnum()
    )
    is_loopback = re.fullmatch(r"127(\.\d{1,3}){3}", name) is not None
    is_ours = name.lower() in NAMES_OF_THIS_MACHINE or is_loopback or is_fresh
    assert is_ours
    assert host.isascii()


def test_the_host_is_checked_before_the_origin() -> None:
    """A page that has its own name in both headers is refused, though the origin
    matches.
    """
    with pytest.raises(ApiError) as caught:
        Guard(None).check_source("evil.com", "http://evil.com")
    assert caught.value.code is ErrorCode.HOST_REFUSED


def basic(text: str) -> str:
    """Return an Authorization header with a user and a password."""
    return "Basic " + base64.b64encode(text.encode()).decode()


AUTHORIZATIONS = {
    f"Bearer {TOKEN}": True,
    f"bearer {TOKEN}": True,
    f"BEARER   {TOKEN}  ": True,
    basic(f":{TOKEN}"): True,
    basic(f"user:{TOKEN}"): True,
    None: False,
    "": False,
    "Bearer": False,
    "Bearer ": False,
    TOKEN: False,
    f"Token {TOKEN}": False,
    f"Bearer {TOKEN[:-1]}": False,
    f"Bearer {TOKEN}x": False,
    f"Bearer {TOKEN.lower()}": False,
    f"Bearer {TOKEN} {TOKEN}": False,
    f"Bearer {basic(f':{TOKEN}')}": False,
    "Bearer ä\u20ac\U0001f600": False,
    "Bearer \ud800": False,
    "Bearer \0": False,
    "Bearer " + "x" * 100_000: False,
    basic(TOKEN): False,
    basic(f"{TOKEN}:"): False,
    basic(f"user:x:{TOKEN}"): False,
    "Basic": False,
    "Basic ": False,
    "Basic !!!!": False,
    "Basic ä": False,
    "Basic \ud800": False,
    f"Basic {TOKEN}": False,
    "Basic " + base64.b64encode(b"\xff:\xff").decode(): False,
}


@pytest.mark.parametrize(
    "header", AUTHORIZATIONS, ids=lambda header: ascii(header)[:32]
)
def test_only_the_token_passes(header: str | None) -> None:
    """It is a Bearer or Basic's password; all other texts get the same answer."""
    guard = Guard(TOKEN)
    if AUTHORIZATIONS[header]:
        guard.check_token(header)
        return
    with pytest.raises(ApiError) as caught:
        guard.check_token(header)
    assert caught.value.code is ErrorCode.UNAUTHORIZED
    with pytest.raises(ApiError) as without:
        guard.check_token(None)
    assert caught.value.message == without.value.message
    assert TOKEN not in caught.value.message


@pytest.mark.parametrize("header", [None, "", "Bearer wrong", "Basic !!!"])
def test_without_a_token_every_client_passes(header: str | None) -> None:
    """``--no-auth`` disables the check."""
    Guard(None).check_token(header)


FULL = """
import resource, sys
from pathlib import Path
from pocketserve.auth.guard import ensure_token

resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
ensure_token(Path(sys.argv[1]))
"""


def test_a_full_disk_leaves_no_empty_token_file(tmp_path: Path) -> None:
    """Later starts would refuse an empty file forever."""
    path = tmp_path / "token"
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(path)],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "cannot be created: File too large; make room on the device" in done.stderr
    assert not path.exists()
    assert ensure_token(path) == read_token(path)
