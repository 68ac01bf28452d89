"""Options of single calls, lists of files, the log, and static types."""

from __future__ import annotations

import io
import logging
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import pocketserve_client
from conftest import MODELS, ROOT, Server
from held_server import TOKEN, HeldServer
from pocketserve_client import (
    Client,
    PocketserveError,
    ServerError,
    ServerUnreachableError,
)
from pocketserve_client.calls import check_answer
from pocketserve_client.errors import ShuttingDownError
from pocketserve_client.transport import Answer

LIMIT_S = 120.0
FLOWER = [5.1, 3.5, 1.4]
SAMPLES = MODELS / "digits" / "samples"


@pytest.fixture(params=["http", "socket"])
def client(server: Server, request: pytest.FixtureRequest) -> Iterator[Client]:
    url = f"{request.param}://127.0.0.1:{server.ready[request.param]['port']}"
    with Client(url, server.token, timeout=LIMIT_S) as one:
        yield one


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldServer]:
    server = HeldServer(tmp_path)
    yield server
    server.close()


def url_of(held: HeldServer, transport: str) -> str:
    return f"{transport}://127.0.0.1:{held.addresses[transport == 'http']}"


def test_all_errors_have_one_base() -> None:
    for name in pocketserve_client.__all__:
        member = getattr(pocketserve_client, name)
        if isinstance(member, type) and issubclass(member, Exception):
            assert issubclass(member, PocketserveError), name


@pytest.mark.live
def test_names_and_texts(client: Client) -> None:
    assert client.models() == list(
        dict.fromkeys(entry["name"] for entry in client.index())
    )
    assert repr(client) == f"Client({client.url!r})"


def test_the_repr_of_a_client_has_no_password() -> None:
    assert (
        repr(Client("http://me:secret@127.0.0.1:1/x"))
        == "Client('http://127.0.0.1:1/x')"
    )


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_a_timeout_of_one_call(held: HeldServer, transport: str) -> None:
    """It overrides the client's longer timeout."""
    picture = (SAMPLES / "7.png").read_bytes()
    with (
        ThreadPoolExecutor(1) as pool,
        Client(url_of(held, transport), TOKEN, timeout=LIMIT_S) as client,
    ):
        assert client.predict("digits", picture)["predictions"]  # it is connected
        held.model.hold(pool)
        calls = {
            "predict": lambda: client.predict("digits", picture, timeout=0.2),
            "files": lambda: client.predict("digits", [SAMPLES / "7.png"], timeout=0.2),
            "async_predict": lambda: client.async_predict(
                "digits", picture, timeout=0.2
            ).result(),
        }
        try:
            for call in calls.values():
                with pytest.raises(ServerUnreachableError):
                    call()
        finally:
            held.model.go()
        assert client.predict("digits", picture)["predictions"]


@pytest.mark.live
def test_a_timeout_longer_than_the_clients(server: Server) -> None:
    with Client(
        f"http://127.0.0.1:{server.port}", server.token, timeout=0.001, reconnect=0
    ) as client:
        assert client.predict("petals", FLOWER, timeout=LIMIT_S)["predictions"]


@pytest.mark.parametrize(
    "timeout",
    [
        0,
        -1,
        float("inf"),
        float("nan"),
        "5",
    ],
)
def test_an_invalid_timeout_is_rejected(timeout: float) -> None:
    client = Client("http://127.0.0.1:1")
    with pytest.raises(ValueError, match="timeout must be a number of seconds"):
        client.predict("petals", FLOWER, timeout=timeout)
    with pytest.raises(ValueError, match="timeout must be a number of seconds"):
        client.async_infer("petals", {}, timeout=timeout)


@pytest.mark.live
def test_predict_a_list_of_files(client: Client) -> None:
    paths = [SAMPLES / f"{number}.png" for number in (7, 3, 0)] * 4
    expected = [client.predict("digits", path)["predictions"] for path in paths]
    assert [
        answer["predictions"] for answer in client.predict("digits", paths)
    ] == expected
    contents = [path.read_bytes() for path in paths]
    assert [
        answer["predictions"] for answer in client.predict("digits", contents)
    ] == expected
    files = [io.BytesIO(content) for content in contents]
    assert [
        answer["predictions"] for answer in client.predict("digits", files)
    ] == expected
    pictures = client.predict("digits", paths[:2], annotate="png")
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    with pytest.raises(ServerError):
        client.predict(
            "digits",
            [
                paths[0],
                b"no picture",
                paths[1],
            ],
        )
    with pytest.raises(OSError, match="missing"):
        client.predict("digits", [paths[0], Path("missing.png")])
    # Rows are one request, as before.
    assert client.predict("petals", [FLOWER, FLOWER])["predictions"]


@pytest.mark.live
def test_the_log_contains_requests_without_content(
    client: Client, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    client.predict("petals", FLOWER)
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, logger="pocketserve_client"):
        client.predict("petals", [1.2345, 2.3456, 3.4567], parameters={"top_k": 1})
        client.async_predict("petals", FLOWER).result()
        with pytest.raises(ServerError):
            client.infer("no-such", {"x": [1.0]})
    texts = [
        record.getMessage()
        for record in caplog.records
        if record.name == "pocketserve_client"
    ]
    assert [text.partition(",")[0] for text in texts] == [
        *["POST /predictions/petals 200"] * 2,
        "POST /v2/models/no-such/infer 404",
    ]
    for secret in (server.token, "1.2345", "top_k"):
        assert secret not in caplog.text


def test_an_answer_of_a_server_that_shuts_down() -> None:
    body = b'{"error": "the server is shutting down", "code": "SHUTTING_DOWN"}'
    with pytest.raises(ShuttingDownError) as error:
        check_answer(Answer(503, body))
    assert error.value.is_retryable
    assert isinstance(error.value, ServerError)


@pytest.mark.parametrize("transport", ["http", "socket"])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_inference_is_retried_while_a_server_shuts_down(
    held: HeldServer, transport: str, asynchronous: bool
) -> None:
    """After a graceful reload another process answers on the port.

    Here the same one resumes.
    """
    with Client(
        url_of(held, transport), TOKEN, timeout=LIMIT_S, reconnect=LIMIT_S
    ) as client:
        assert client.predict("digits", SAMPLES / "7.png")["predictions"]
        held.service.drain(0)
        refused = held.service._refusal
        seen = []

        def refuse_twice() -> Exception:
            seen.append(1)
            error = refused()
            if len(seen) == 2:
                held.service._draining = False
            return error

        held.service._refusal = refuse_twice  # type: ignore[method-assign, assignment]
        if asynchronous:
            answer = client.async_predict("digits", SAMPLES / "7.png").result()
        else:
            answer = client.predict("digits", SAMPLES / "7.png")
        assert answer["predictions"]
        assert len(seen) == 2


def test_other_calls_are_not_retried_while_a_server_shuts_down(
    held: HeldServer,
) -> None:
    with Client(
        url_of(held, "socket"), TOKEN, timeout=LIMIT_S, reconnect=LIMIT_S
    ) as client:
        client.load("digits")
        held.service.drain(0)
        with pytest.raises(ServerError) as error:
            client.load("digits")
        assert error.value.code == "SHUTTING_DOWN"


SAMPLE = """
from pathlib import Path
from pocketserve_client import AsyncClient, Client

with Client() as client:
    answer = client.predict("digits", Path("7.png"))
    number: int = len(answer["predictions"])
    name: str = answer["model"]
    where: str = answer.server
    picture: bytes = client.predict("digits", Path("7.png"), annotate="png")
    both: str = client.predict("digits", b"x", annotate="both")["picture"]
    first: str = client.predict("digits", [Path("a.png"), Path("b.png")])[0]["model"]
    rows: str = client.predict("petals", [[1.0, 2.0], [3.0, 4.0]])["task"]
    later: str = client.async_predict("digits", "text").result()["task"]

async def ask() -> str:
    async with AsyncClient() as client:
        answer = await client.predict("digits", b"x")
        return answer["version"]
"""
FAULTS = {
    'client.predict("digits", b"x")["predictons"]': "predictons",
    'client.predict("digits", b"x", annotate="png")["model"]': "model",
    'client.predict("digits", b"x", annotate=1)': "annotate",
    'client.async_predict("digits", b"x").result()["modell"]': "modell",
    'client.predict("digits", b"x")["model"] + 1': "+",
    'client.predict("digits", [b"x"])["model"]': "list",
}


def test_type_checkers_find_misspelt_keys(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "good.py").write_text(SAMPLE)
    lines = "\n".join(f"client.infer and {fault}" for fault in FAULTS)
    (tmp_path / "bad.py").write_text(
        f"from pocketserve_client import Client\n\nclient = Client()\n{lines}\n"
    )
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]
    command += [
        "--no-error-summary",
        str(tmp_path / "good.py"),
        str(tmp_path / "bad.py"),
    ]
    path = f"{ROOT / 'client'}:{ROOT / 'server'}"
    done = subprocess.run(
        command,
        env={"MYPYPATH": path, "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=400,
    )
    faults = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert {line.split(":")[0] for line in faults} == {"bad.py"}, done.stdout
    assert {int(line.split(":")[1]) for line in faults} == set(
        range(4, 4 + len(FAULTS))
    ), done.stdout
