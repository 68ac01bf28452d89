"""The Python client against live servers and other programs."""

from __future__ import annotations

import copy
import http.server
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from conftest import MODELS
from pocketserve_client import (
    Client,
    NotOurServerError,
    ServerError,
    ServerUnreachableError,
)
from pocketserve_client.arrays import as_array, as_tensor
from pocketserve_client.client import _tensors
from pocketserve_client.credentials import find_credentials
from pocketserve_client.transport import Answer
from pocketserve_wire import DATATYPES, ErrorCode, Tensor
from pocketserve_wire.limits import MAX_TENSORS

TIMEOUT_S = 120.0
FLOWERS = np.array([[5.1, 3.5, 1.4], [6.2, 2.9, 4.3]], np.float32)


@pytest.fixture(autouse=True)
def _own_home(monkeypatch, tmp_path):
    """Hide the user's token and settings."""
    for name in [name for name in os.environ if name.startswith("POCKETSERVE_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "home"))


@pytest.fixture(params=["http", "socket"])
def client(server, request) -> Iterator[Client]:
    """Create a client of each transport, since both must behave alike."""
    url = f"{request.param}://127.0.0.1:{server.ready[request.param]['port']}"
    with Client(url, server.token) as one:
        yield one


# --- Requests and answers


@pytest.mark.conformance
def test_pandas_tables_are_rows_of_features(client):
    import pandas

    expected = client.predict("petals", FLOWERS.tolist())["predictions"]
    names = ["sepal_length", "sepal_width", "petal_length"]
    # The order of named columns doesn't matter.
    named = pandas.DataFrame(FLOWERS, columns=names)[names[::-1]]
    for table in (
        named,
        named.astype(object),
        pandas.DataFrame(FLOWERS),
    ):
        assert client.predict("petals", table)["predictions"] == expected
    for row in (named.iloc[0], pandas.Series(FLOWERS[0])):
        [answer] = client.predict("petals", row)["predictions"]
        assert {"row": 0, **answer} == expected[0]  # one row alone has no number
    with pytest.raises(ServerError, match="petal_length"):
        client.predict("petals", named[names[:2]])


def test_infer_accepts_and_returns_arrays(client):
    outputs = client.infer("petals", {"features": FLOWERS})
    assert list(outputs) == ["petal_width"]
    widths = outputs["petal_width"]
    assert widths.shape == (2, 1)
    assert widths.dtype == np.float32
    assert not widths.flags.writeable
    values = [
        row["value"]
        for row in client.predict("petals", FLOWERS.tolist())["predictions"]
    ]
    np.testing.assert_allclose(widths[:, 0], values, rtol=1e-6)


def test_infer_accepts_versions_outputs_and_parameters(client):
    image = np.zeros((1, 8, 8, 1), np.float32)
    plain = client.infer("digits", {"image": image}, outputs=["scores"])["scores"]
    small = client.infer("digits", {"image": image}, version="tflite-int8")["scores"]
    assert plain.shape == small.shape == (1, 10)
    assert plain.tolist() != small.tolist()
    client.infer("digits", {"image": image}, parameters={"timeout": 10_000_000})


@pytest.mark.parametrize(
    "array",
    [
        FLOWERS.astype(">f4"),
        np.asfortranarray(FLOWERS),
        np.repeat(FLOWERS, 2, axis=0)[::2],
        np.concatenate([FLOWERS, FLOWERS], axis=1)[:, :3],
    ],
)
def test_arrays_of_any_layout_are_sent_correctly(client, array):
    expected = client.infer("petals", {"features": FLOWERS})["petal_width"]
    np.testing.assert_array_equal(
        client.infer("petals", {"features": array})["petal_width"], expected
    )


GRAY = {
    "format": "gray",
    "width": 8,
    "height": 8,
}


SEVEN = MODELS / "digits" / "samples" / "7.png"


def test_predict_accepts_bytes_and_files(client):
    sample = SEVEN.read_bytes()
    for data in (
        sample,
        bytearray(sample),
        memoryview(sample),
    ):
        predictions = client.predict("digits", data, top_k=2)["predictions"]
        assert predictions[0]["label"] == "7"
        assert len(predictions) == 2
    assert client.predict("digits", SEVEN)["predictions"][0]["label"] == "7"
    with SEVEN.open("rb") as file:
        assert client.predict("digits", file)["predictions"][0]["label"] == "7"
    with (
        (MODELS / "digits" / "model.toml").open() as text,
        pytest.raises(TypeError, match="open it with 'rb'"),
    ):
        client.predict("digits", text)


def test_predict_accepts_options(client):
    sample = SEVEN.read_bytes()
    assert client.predict("digits", sample, threshold=2.0)["predictions"] == []
    answer = client.predict("digits", sample, version="tflite-int8")
    assert answer["version"] == "tflite-int8"
    frame = bytes(64)
    answer = client.predict("digits", frame, parameters=GRAY)
    assert answer["task"] == "image-classification"
    png = client.predict("digits", sample, annotate="png")
    assert png.startswith(b"\x89PNG")
    jpeg = client.predict("digits", sample, annotate="jpeg")
    assert jpeg.startswith(b"\xff\xd8\xff")
    with pytest.raises(ServerError, match="parameter rotation must be one of"):
        client.predict("digits", frame, parameters=GRAY | {"rotation": 45})


def test_predict_accepts_texts_and_values(client):
    named = {
        "sepal_length": 5.1,
        "sepal_width": 3.5,
        "petal_length": 1.4,
    }
    width = pytest.approx(0.22656)
    for data in ([5.1, 3.5, 1.4], named, [named], "[5.1, 3.5, 1.4]"):
        (row,) = client.predict("petals", data)["predictions"]
        assert row == {
            "name": "petal_width",
            "value": width,
            "unit": "cm",
        }


def test_descriptions(client):
    assert client.is_ready()
    assert client.server_metadata()["name"] == "pocketserve"
    assert client.model_metadata("digits")["inputs"][0]["name"] == "image"
    assert (
        client.model_metadata("digits", "tflite-int8")["parameters"]["version"]
        == "tflite-int8"
    )
    assert client.is_model_ready("digits")
    assert client.is_model_ready("digits", "tflite")
    assert not client.is_model_ready("nothing")
    assert not client.is_model_ready("petals", "9")
    assert {one["name"] for one in client.index()} == {
        "diabetes",
        "digits",
        "numbers",
        "petals",
    }
    assert all(one["state"] == "READY" for one in client.index(ready_only=True))


def test_statistics(client):
    client.predict("petals", [1, 2, 3])
    before = client.statistics("petals")[0]["inference_count"]
    client.predict("petals", [[1, 2, 3]] * 3)
    (one,) = client.statistics("petals", "tflite")
    assert one["inference_count"] == before + 3
    assert one in client.statistics()


def test_load_and_unload(new_server, models_copy):
    server = new_server(models_copy)
    with Client(server.url, server.token) as client:
        client.load("petals")
        client.unload("petals")
        assert not client.is_model_ready("petals")
        with pytest.raises(ServerError) as caught:
            client.infer("petals", {"features": FLOWERS})
        assert caught.value.code == "MODEL_NOT_FOUND"
        client.load("petals")
        assert client.infer("petals", {"features": FLOWERS})["petal_width"].shape == (
            2,
            1,
        )
        assert server.stop() == 0
        with pytest.raises(ServerUnreachableError):
            client.is_ready()


def test_eight_threads_share_a_client_and_each_gets_its_own_answer(client):
    start = threading.Barrier(8)

    def ask(number: int) -> list[float]:
        start.wait(TIMEOUT_S)
        answers = []
        for turn in range(25):
            row = np.array([[number, turn, number * turn]], np.float32)
            answers.append(
                float(client.infer("petals", {"features": row})["petal_width"][0, 0])
            )
        return answers

    with ThreadPoolExecutor(8) as pool:
        found = [
            future.result(TIMEOUT_S)
            for future in [pool.submit(ask, number) for number in range(8)]
        ]
    rows = np.array(
        [[number, turn, number * turn] for number in range(8) for turn in range(25)],
        np.float32,
    )
    expected = client.infer("petals", {"features": rows})["petal_width"][:, 0]
    np.testing.assert_allclose(
        [value for values in found for value in values], expected, rtol=1e-5, atol=1e-6
    )


# --- Errors


def test_errors_carry_status_code_and_text(client):
    with pytest.raises(
        ServerError, match="Request for unknown model: 'nothing' is not found"
    ) as caught:
        client.model_metadata("nothing")
    assert caught.value.status == 404
    assert caught.value.code == "MODEL_NOT_FOUND"
    assert caught.value.is_retryable is False
    with pytest.raises(ServerError, match="expected datatype FP32, got FP64") as caught:
        client.infer("petals", {"features": [[5.1, 3.5, 1.4]]})
    assert (caught.value.status, caught.value.code) == (400, "INVALID_TENSOR")
    with pytest.raises(ServerError) as caught:
        client.load("nothing")
    assert caught.value.status == 404


@pytest.mark.parametrize(
    "model", ["", ".", "..", "a/b", "a?b", "a#b", "%2e", "a b", "größe", "a:b"]
)
def test_names_are_percent_encoded(client, model):
    for call in (
        client.model_metadata,
        client.load,
        lambda name: client.predict(name, [1]),
    ):
        with pytest.raises(ServerError) as caught:
            call(model)
        assert caught.value.status == 404


def test_elements_without_a_datatype_are_rejected_before_sending(client):
    for array in (
        np.zeros(1, np.complex64),
        np.zeros(1, "datetime64[s]"),
        np.zeros(1, np.longdouble),
    ):
        with pytest.raises(TypeError, match="input 'x': the protocol has no datatype"):
            client.infer("petals", {"x": array})


@pytest.mark.parametrize("code", ErrorCode, ids=lambda code: code.name)
def test_the_code_decides_whether_to_retry(code):
    assert ServerError(code.status, code.name, "").is_retryable == code.retryable


@pytest.mark.parametrize(
    ("status", "retryable"),
    [
        (429, True),
        (503, True),
        (500, False),
        (404, False),
        (504, False),
    ],
)
def test_an_unknown_code_is_classified_by_its_status(status, retryable):
    assert ServerError(status, "OF_THE_FUTURE", "").is_retryable == retryable


@pytest.mark.parametrize(
    "token",
    [
        None,
        "wrong",
        "x" * 43,
    ],
)
def test_a_wrong_token_is_reported(server, token):
    with Client(server.url, token) as client:
        assert client.is_ready()  # needs none
        with pytest.raises(ServerError, match="pocketserve token") as caught:
            client.index()
        assert (caught.value.status, caught.value.code) == (401, "UNAUTHORIZED")


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_a_rejected_token_is_reported_with_its_origin(
    server, tmp_path, monkeypatch, transport
):
    """Every call names the ways to the right token.

    This works even after the error was pickled.
    """
    url = (
        server.url
        if transport == "http"
        else f"socket://127.0.0.1:{server.ready['socket']['port']}"
    )
    missing = tmp_path / "none"
    monkeypatch.setenv("POCKETSERVE_TOKEN", "x" * 43)
    for options, source in [
        ({"token": "y" * 43}, "the token is the one that was passed to this client"),
        ({}, "the token comes from the variable POCKETSERVE_TOKEN"),
        (
            {"token_file": missing},
            f"there is no token: {missing} (token_file) cannot be read (No such file or directory)",
        ),
    ]:
        with Client(url, **options) as client:
            calls = (
                client.index,
                lambda c=client: c.async_infer("digits", {}).result(),
            )
            for call in calls:
                with pytest.raises(ServerError) as caught:
                    call()
                assert source in str(caught.value)
                assert "pocketserve_client.pair()" in caught.value.advice
                again = pickle.loads(pickle.dumps(caught.value))
                assert again.status == 401
                assert again.code == "UNAUTHORIZED"
                assert str(again) == str(caught.value)


PETALS = [5.1, 3.5, 1.4]


@pytest.mark.parametrize(
    "data",
    [
        np.array(PETALS),
        np.array(PETALS, np.float32),
        np.array([PETALS], ">f4"),
        np.array([PETALS] * 2, np.float32)[::2],
        [np.float32(value) for value in PETALS],
        tuple(PETALS),
        dict(
            zip(
                ("sepal_length", "sepal_width", "petal_length"),
                np.array(PETALS),
                strict=True,
            )
        ),
        [np.array(PETALS)],
    ],
)
def test_numbers_can_be_numpy_scalars(client, data):
    (answer,) = client.predict("petals", data)["predictions"]
    assert answer["value"] == pytest.approx(0.2266, abs=1e-3)
    assert client.async_predict("petals", data).result()["predictions"] == [answer]


def test_predict_an_array(client):
    """Works for any task that accepts ``.npy`` files."""
    (spec,) = client.model_metadata("digits")["inputs"]
    answer = client.predict(
        "digits",
        np.zeros([max(1, size) for size in spec["shape"]], np.float32),
        top_k=1,
    )
    assert answer["task"] == "image-classification"
    assert len(answer["predictions"]) == 1


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            np.array(["a"]),
            "arrays of numbers, not of <U1: give a list, or send tensors with infer()",
        ),
        (np.array([object()]), "not of object"),
        (object(), "not a object; tensors by name go to infer()"),
        ([{1, 2}], "not a set"),
        ({"a": b"x"}, "not a bytes"),
    ],
)
def test_invalid_inputs_are_rejected_before_sending(data, said):
    with (
        Client("http://127.0.0.1:1", "x") as client,
        pytest.raises(TypeError) as caught,
    ):
        client.predict("petals", data)
    assert said in str(caught.value)


def test_a_file_name_is_not_a_file(client, monkeypatch):
    monkeypatch.chdir(MODELS / "digits" / "samples")
    with pytest.raises(
        ServerError, match=r"a str is a text: give Path\('7.png'\) to send that file"
    ):
        client.predict("digits", "7.png")
    with pytest.raises(ServerError) as caught:
        client.predict("digits", "no-such.png")
    assert "Path" not in str(caught.value)


FORK = """
import os, sys
from pocketserve_client import Client

def ask(times):
    return [client.predict("petals", [5.1, 3.5, 1.4 + at / 10])["predictions"][0]["value"] for at in range(times)]

url, token = sys.argv[1:]
with Client(url, token) as client:
    expected = ask(20)
    call = client.async_predict("petals", [5.1, 3.5, 1.4])
    child = os.fork()
    right = ask(20) == expected and call.result()["predictions"][0]["value"] == expected[0]
    if not child:
        client.close()
        os._exit(0 if right else 3)
    assert right and os.waitpid(child, 0)[1] == 0
    assert ask(3) == expected[:3]  # the child's end was not the connection's
print("both right")
"""


@pytest.mark.parametrize("transport", ["http", "socket"])
def test_a_forked_process_opens_new_connections(server, transport):
    """Two processes on one connection would get each other's answers."""
    url = f"{transport}://127.0.0.1:{server.ready[transport]['port']}"
    command = [sys.executable, "-c", FORK, url, server.token]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "both right\n", done.stderr


def test_a_client_cannot_be_pickled(client):
    for use in (pickle.dumps, copy.copy):
        with pytest.raises(TypeError, match="make one in each process"):
            use(client)


@pytest.mark.parametrize(
    "options",
    [
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": None},
        {"timeout": "5"},
        {"reconnect": -1},
        {"timeout": 1e9},
    ],
)
def test_invalid_timeouts_are_rejected(options):
    with pytest.raises(
        ValueError, match=r"must be a number of seconds from .* to 10,000,000, not "
    ):
        Client("http://127.0.0.1:1", "x", **options)


def test_timeouts_can_be_numpy_scalars(server):
    for kind in (np.float32, np.int64):
        for transport in ("http", "socket"):
            url = f"{transport}://127.0.0.1:{server.ready[transport]['port']}"
            with Client(
                url, server.token, timeout=kind(60), reconnect=kind(5)
            ) as client:
                assert client.predict("petals", [5.1, 3.5, 1.4])["model"] == "petals"


def test_invalid_arguments_are_named(client):
    with pytest.raises(TypeError, match="arrays by input name"):
        client.infer("petals", [1, 2, 3])
    with pytest.raises(
        TypeError, match=r"outputs are a list of names, such as \['petal_width'\]"
    ):
        client.infer("petals", {"features": FLOWERS}, outputs="petal_width")
    with pytest.raises(TypeError, match="name is a str, not a NoneType"):
        client.predict(None, [1, 2, 3])


MANY = b'{"outputs": [%s]}' % b", ".join(
    [b'{"name": "y", "datatype": "FP32", "shape": [1], "data": [1]}']
    * (MAX_TENSORS + 1)
)


def test_an_answer_over_the_limits_may_be_a_pocketserve_answer():
    with pytest.raises(
        NotOurServerError,
        match=r"is larger than this client reads, or .* \(outputs has 257 entries",
    ):
        _tensors(Answer(200, MANY, None))


@pytest.mark.parametrize("page", [b"<html>hello</html>", b"{not JSON", b"[1, 2"])
def test_a_page_of_another_server_is_an_error(page):
    """In particular, it does not mean a ready server."""

    class Other(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page)

        do_GET = do_POST

        def log_message(self, *_):
            pass

    calls = {
        "index": lambda client: client.index(),
        "predict": lambda client: client.predict("petals", [1, 2, 3]),
        "infer": lambda client: client.infer("petals", {"features": FLOWERS}),
        "open_pairing": lambda client: client.open_pairing(),
        "async": lambda client: client.async_predict("petals", [1, 2, 3]).result(),
    }
    if page[:1] == b"<":  # answers without further content are not parsed
        calls |= {
            "ready": lambda client: client.is_ready(),
            "load": lambda client: client.load("petals"),
        }
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.serve_forever, args=(0.01,))
        thread.start()
        try:
            with Client(
                f"http://127.0.0.1:{other.server_port}", "x", timeout=TIMEOUT_S
            ) as client:
                for name, call in calls.items():
                    with pytest.raises(
                        NotOurServerError, match="is not a pocketserve server"
                    ):
                        pytest.fail(f"{name} gave {call(client)!r}")
        finally:
            other.shutdown()
            thread.join(TIMEOUT_S)


def test_an_address_without_a_server(server):
    # bound but not listening, so that no other program gets the port
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with (
            Client(url, "x") as client,
            pytest.raises(ServerUnreachableError) as caught,
        ):
            client.is_ready()
    assert str(caught.value) == (
        f"{url} cannot be reached (Connection refused); is the server running? start it with: pocketserve serve"
    )


class OtherProgram:
    """Another program that reads one request and sends given bytes, or nothing."""

    def __init__(self, answer: bytes | None) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(TIMEOUT_S)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.request = b""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)

    def __enter__(self) -> OtherProgram:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join(TIMEOUT_S)
        self._listener.close()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            connection.settimeout(TIMEOUT_S)
            self.request = connection.recv(65536)
            if self._answer is None:
                self._over.wait(TIMEOUT_S)
            else:
                connection.sendall(self._answer)


def test_a_silent_server_times_out():
    unreachable = pytest.raises(
        ServerUnreachableError, match=r"did not answer within 0\.05 s"
    )
    with (
        OtherProgram(None) as listener,
        Client(listener.url, "x", timeout=0.05) as client,
        unreachable,
    ):
        client.server_metadata()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{",
        b"SSH-2.0-OpenSSH_9.6\r\n",
    ],
)
def test_a_broken_connection_is_unreachable(answer):
    unreachable = pytest.raises(ServerUnreachableError, match="cannot be reached")
    with (
        OtherProgram(answer) as listener,
        Client(listener.url, "x") as client,
        unreachable,
    ):
        client.server_metadata()


@pytest.mark.parametrize(
    "body", [b"<html>no</html>", b"", b"[]", b'{"detail": "no"}', b"\xff"]
)
def test_an_error_of_another_program_is_recognized(body):
    answer = (
        b"HTTP/1.1 500 Oops\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
        % (len(body), body)
    )
    refusal = pytest.raises(ServerError, match="is this a pocketserve server")
    with (
        OtherProgram(answer) as listener,
        Client(listener.url, "x") as client,
        refusal as caught,
    ):
        client.server_metadata()
    assert (caught.value.status, caught.value.code) == (500, "")


def test_redirects_are_not_followed_with_the_token():
    answer = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with (
        OtherProgram(answer) as listener,
        Client(listener.url, "x") as client,
        pytest.raises(ServerError) as caught,
    ):
        client.server_metadata()
    assert caught.value.status == 302
    assert b"Authorization: Bearer x\r\n" in listener.request
    assert b"Accept-Encoding: identity\r\n" in listener.request


# --- Origin of the address and token


def test_the_address_comes_from_the_environment(server, monkeypatch):
    monkeypatch.setenv("POCKETSERVE_URL", f"{server.url}/")
    monkeypatch.setenv("POCKETSERVE_TOKEN", server.token)
    with Client() as client:
        assert client.server_metadata()["name"] == "pocketserve"
    monkeypatch.delenv("POCKETSERVE_URL")
    with Client() as client:
        assert client.url == "http://127.0.0.1:8470"


def test_the_token_sources_have_an_order(tmp_path, monkeypatch):
    for name in ("given", "named", "usual"):
        (tmp_path / name).write_text(f"{name}\n")
    both = {
        "POCKETSERVE_TOKEN": "variable",
        "POCKETSERVE_TOKEN_FILE": str(tmp_path / "named"),
    }
    named = {"POCKETSERVE_TOKEN_FILE": str(tmp_path / "named")}
    assert find_credentials(None, None, both).token == "variable"
    assert find_credentials(None, tmp_path / "given", both).token == "given"
    # Another server's token is not used instead.
    assert find_credentials(None, tmp_path / "missing", both).token is None
    assert find_credentials(None, None, named).token == "named"
    assert find_credentials(None, None, {}).token is None
    monkeypatch.setattr(
        "platformdirs.user_state_path", lambda name: tmp_path / "state" / name
    )
    folder = tmp_path / "state" / "pocketserve"
    folder.mkdir(parents=True)
    (folder / "token").write_text("usual\n")
    assert find_credentials(None, None, {}).token == "usual"
    assert find_credentials(None, None, {"POCKETSERVE_TOKEN": ""}).token == "usual"


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_pipe_as_token_file_does_not_block(tmp_path, kind):
    file = tmp_path / "token"
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    assert find_credentials(None, file, {}).token is None


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff\xfe"])
def test_a_token_file_without_a_token_gives_none(tmp_path, content):
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    assert find_credentials(None, file, {}).token is None


def test_a_given_token_has_priority(server, monkeypatch):
    monkeypatch.setenv("POCKETSERVE_TOKEN", "wrong")
    with Client(server.url, server.token) as client:
        assert client.index()


def test_the_token_file_can_be_named(server):
    with Client(server.url, token_file=server.log.with_name("token")) as client:
        assert client.index()


def test_proxies_and_netrc_are_ignored(server, monkeypatch, tmp_path):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    home = tmp_path / "home"
    home.mkdir()
    netrc = home / ".netrc"
    netrc.write_text("machine 127.0.0.1 login a password b\n")
    netrc.chmod(0o600)
    with Client(server.url, server.token) as client:
        assert client.index()


# --- Arrays


NUMPY_TYPES = [name for name in DATATYPES if name not in ("BF16", "BYTES")]


@pytest.mark.parametrize("datatype", NUMPY_TYPES)
@pytest.mark.parametrize(
    "shape",
    [
        (),
        (0,),
        (3,),
        (2, 3),
        (2, 0, 3),
    ],
)
@pytest.mark.parametrize("order", ["<", ">"])
def test_numbers_survive_as_tensors(datatype, shape, order):
    dtype = np.dtype(DATATYPES[datatype].typestr)
    array = (
        np.arange(int(np.prod(shape))).reshape(shape).astype(dtype.newbyteorder(order))
    )
    tensor = as_tensor("x", array)
    assert (tensor.datatype, tensor.shape) == (datatype, shape)
    assert tensor.data.nbytes == array.size * dtype.itemsize
    back = as_array(tensor)
    assert back.dtype == dtype
    assert back.shape == shape
    np.testing.assert_array_equal(back, array)


@pytest.mark.parametrize(
    ("value", "elements"),
    [
        (["a", "größe"], [b"a", "größe".encode()]),
        ([b"\xff", b""], [b"\xff", b""]),
        ([["a"], ["b"]], [b"a", b"b"]),
        ("scalar", [b"scalar"]),
    ],
)
def test_texts_survive_as_tensors(value, elements):
    tensor = as_tensor("x", value)
    assert (tensor.datatype, list(tensor.data)) == ("BYTES", elements)
    assert as_array(tensor).reshape(-1).tolist() == elements
    assert as_array(tensor).shape == np.asarray(value).shape


def test_bf16_is_widened_to_float():
    bits = np.array([0x3F80, 0xC000, 0x7FC0], "<u2")
    tensor = Tensor("x", "BF16", (3,), bits.view(np.uint8).data)
    np.testing.assert_array_equal(
        as_array(tensor), np.array([1.0, -2.0, np.nan], np.float32)
    )


def test_floats_and_bits_are_sent_as_bf16():
    """Floats are rounded to nearest, ties to even; NaN stays NaN."""
    exact = np.array([1.0, -2.0, 0.0, 3.0e38, np.inf, np.nan], np.float32)
    tensor = as_tensor("x", exact, "BF16")
    assert (tensor.datatype, tensor.shape) == ("BF16", (6,))
    np.testing.assert_allclose(as_array(tensor), exact, rtol=2**-8)
    near = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0x7FFFFFFF], "<u4").view("<f4")
    bits = np.frombuffer(as_tensor("x", near, "BF16").data, "<u2")
    assert [hex(value) for value in bits] == ["0x3f80", "0x3f82", "0x3f81", "0x7fff"]
    for dtype in ("<u2", ">u2"):
        tensor = as_tensor("x", np.array([[0x3F80], [0xC000]], dtype), "BF16")
        np.testing.assert_array_equal(as_array(tensor), [[1.0], [-2.0]])
    assert np.isnan(as_array(as_tensor("x", np.float32(np.nan), "BF16")))


@pytest.mark.parametrize(
    ("value", "datatype"),
    [
        ([1, 2], "BF16"),
        (["a"], "BF16"),
        ([1.0], "FP32"),
        ([True], "BF16"),
    ],
)
def test_invalid_bf16_inputs_are_rejected(value, datatype):
    with pytest.raises(TypeError, match="only BF16 can be named"):
        as_tensor("x", value, datatype)


def test_arrays_of_ml_dtypes_are_bf16():
    types = pytest.importorskip("ml_dtypes", reason="the arrays are its")
    values = np.array([1.5, -2.25, 3e38], types.bfloat16)
    for array in (
        values,
        values[::-1][::-1],
        values.reshape(3, 1),
    ):
        tensor = as_tensor("x", array)
        assert tensor.datatype == "BF16"
        np.testing.assert_array_equal(
            as_array(tensor).reshape(-1), values.astype(np.float32)
        )


def test_default_datatypes_of_inputs(client):
    with pytest.raises(TypeError, match="datatypes names unknown inputs: y"):
        client.infer(
            "petals", {"x": np.zeros((1, 3), np.float32)}, datatypes={"y": "BF16"}
        )
    name = client.model_metadata("petals")["inputs"][0]["name"]
    with pytest.raises(ServerError, match="BF16"):
        client.infer(
            "petals", {name: np.zeros((1, 3), np.float32)}, datatypes={name: "BF16"}
        )
