"""Start, load and end a whole server process.

Where a test needs a running request, the digits model's label file is a named pipe: the
request that loads the model blocks there until the test writes the labels.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import requests

import waiting_labels
from conftest import MODELS
from http_running import is_closed
from pocketserve.config import PREFIX, Config
from pocketserve.server import Endpoints, write_ready_file
from pocketserve_wire.addresses import Address
from ports import free_port

TIMEOUT_S = 120.0
BUSY_S = 240.0
"""Timeout of an answer that takes a hundred thousand runs, on a busy machine."""
ENDS_S = 50.0
"""Time for a server to end on a busy machine; below WAITS, which it must not use up."""

WAITS = ("--drain-timeout", "60")
"""Longer timeouts than the server's, for waiting on it."""
ZEROS = json.dumps([0.0] * 64)
NUMBERS = "[5.1,3.5,1.4]"
LABELS = "".join(f"{digit}\n" for digit in range(10))
FRAMEWORKS = (
    "ai_edge_litert",
    "tflite_runtime",
    "tensorflow",
    "libtorch",
    "PIL/",
    "onnxruntime",
)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def until(condition: Callable[[], bool]) -> None:
    """Poll until something in another process has happened."""
    deadline = monotonic() + TIMEOUT_S
    pause = threading.Event()
    while not condition():
        assert monotonic() < deadline
        pause.wait(0.005)


def post(server, path: str, body: Any) -> requests.Response:
    """Send a request on its own connection, so that any thread may send one."""
    headers = {"Authorization": f"Bearer {server.token}"} if server.token else {}
    return requests.post(server.url + path, data=body, headers=headers, timeout=BUSY_S)


def serve(*options: object) -> subprocess.CompletedProcess[str]:
    """Run a server that is expected not to start."""
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "serve",
        "--socket-port",
        "0",
        *map(str, options),
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)


def sentence(ended: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """Return the one line that a failed start prints."""
    assert (ended.returncode, ended.stdout) == (code, ""), ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("pocketserve: ")
    return line


class SlowRequest:
    """A request that runs from :meth:`begin` to :meth:`finish`."""

    def __init__(
        self, models: Path, pool: ThreadPoolExecutor, model: str = "digits"
    ) -> None:
        self._path = waiting_labels.make_pipe(models / model / "labels.txt")
        self._pool = pool
        self._opening = pool.submit(self._path.open, "w")

    def begin(self, server) -> Future[requests.Response]:
        """Send the request and wait until the server works on it."""
        future = self._pool.submit(post, server, "/predictions/digits", ZEROS)
        self._opening.result(TIMEOUT_S)
        return future

    def wait(self) -> None:
        """Wait until a server loads the model without a request."""
        self._opening.result(TIMEOUT_S)

    def finish(self) -> None:
        """Let the server finish its work."""
        with self._opening.result(TIMEOUT_S) as pipe:
            pipe.write(LABELS)

    def release(self) -> None:
        """Close both ends, so that a failed test blocks no thread."""
        reader = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK)
        self._opening.result(TIMEOUT_S).close()
        os.close(reader)


@pytest.fixture
def slow(
    models_copy: Path, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlowRequest]:
    waiting_labels.install(monkeypatch)
    request = SlowRequest(models_copy, pool)
    yield request
    request.release()


def ready_file(server) -> Path:
    return server.log.with_name("ready.json")


def has_begun_to_drain(server) -> bool:
    return (
        requests.get(f"{server.url}/v2/health/ready", timeout=TIMEOUT_S).status_code
        == 503
    )


# --- The start


def test_the_ready_file_has_the_address_and_is_removed_at_the_end(
    new_server, models_copy
):
    server = new_server(models_copy)
    content = json.loads(ready_file(server).read_text())
    assert content == {
        "pid": server.process.pid,
        "http": {"host": "127.0.0.1", "port": server.port},
        "socket": {"host": "127.0.0.1", "port": server.socket_port},
        "token_file": str(server.log.with_name("token")),
        "models_dir": str(models_copy),
    }
    assert sorted(path.name for path in server.log.parent.iterdir()) == [
        "ready.json",
        "server.log",
        "token",
    ]
    assert server.call("GET", "/v2").status_code == 200
    assert server.stop() == 0
    assert not ready_file(server).exists()


def test_the_ready_file_is_written_under_an_unpredictable_name(tmp_path):
    """It does not follow a planted link, and leaves no other file after a failure."""
    config = Config(ready_file=tmp_path / "ready.json")
    others = tmp_path / "others"
    others.write_text("kept")
    (tmp_path / f".ready.json.{os.getpid()}").symlink_to(others)
    names = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            os, "replace", lambda source, target: names.add(Path(source).name)
        )
        for _ in range(2):
            write_ready_file(
                tmp_path / "ready.json",
                config,
                Endpoints(Address("127.0.0.1", 1), None),
            )
    assert len(names) == 2
    assert others.read_text() == "kept"
    for name in names:
        (tmp_path / name).unlink()
    (tmp_path / "ready.json").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_ready_file(
            tmp_path / "ready.json", config, Endpoints(Address("127.0.0.1", 1), None)
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f".ready.json.{os.getpid()}",
        "others",
        "ready.json",
    ]


def test_a_start_prints_the_served_models(new_server, models_copy, tmp_path):
    shutil.copy(
        models_copy / "petals" / "petals.tflite", models_copy / "my petals.tflite"
    )
    log = new_server(models_copy).log
    names = sorted(path.parent.name for path in models_copy.glob("*/model.toml"))
    assert (
        f"found {len(names)} models: {', '.join(map(repr, names[:8]))}"
        in log.read_text()
    )
    assert (
        "'my petals.tflite' is skipped: a model's name has no spaces" in log.read_text()
    )
    empty = tmp_path / "nothing"
    empty.mkdir()
    assert (
        f"WARNING {empty} holds no model; put a model file into it"
        in new_server(empty).log.read_text()
    )


@pytest.mark.parametrize("path", ["petals", "petals/petals.tflite"])
def test_serve_a_single_model(new_server, models_copy, path):
    server = new_server(models_copy / path)
    assert "found 1 model: 'petals'" in server.log.read_text()
    answer = server.call("POST", "/predictions/petals", data=NUMBERS)
    assert "petal_width" in answer.text, answer.text
    versions = server.call("GET", "/v2/models/petals").json()["versions"]
    assert (versions == ["tflite"]) == path.endswith(".tflite"), versions
    assert server.call("GET", "/v2/models/digits").status_code == 404


def test_serve_a_relative_folder(new_server, tmp_path):
    """For `pocketserve serve models`, the trial too finds files beside a model."""
    fresh = {"POCKETSERVE_STATE_DIR": str(tmp_path / "state")}
    server = new_server(Path(os.path.relpath(MODELS)), environment=fresh)
    answer = server.call("GET", "/v2/models/digits")
    assert (answer.status_code, answer.json().get("parameters", {}).get("labels")) == (
        200,
        10,
    ), answer.text


def test_the_token_file_is_private_and_reused(new_server, models_copy):
    server = new_server(models_copy)
    token_file = server.log.with_name("token")
    assert token_file.stat().st_mode & 0o777 == 0o600
    assert len(server.token) >= 43  # 256 bits in base64
    other = new_server(models_copy, "--token-file", str(token_file))
    again = requests.get(
        f"{other.url}/v2",
        headers={"Authorization": f"Bearer {server.token}"},
        timeout=TIMEOUT_S,
    )
    assert again.status_code == 200


def test_a_taken_port_is_an_error(server, tmp_path):
    ready = tmp_path / "ready.json"
    state = ("--state-dir", tmp_path / "state")
    ended = serve(
        "--http-port",
        server.port,
        "--token-file",
        tmp_path / "token",
        "--ready-file",
        ready,
        *state,
    )
    assert f"cannot listen on 127.0.0.1:{server.port}" in sentence(ended)
    assert "--http-port" in sentence(ended)
    assert not ready.exists()


def test_a_port_of_another_pocketserve_server_is_recognized(
    new_server, models_copy, tmp_path
):
    server = new_server(models_copy, "--state-dir", tmp_path / "state")
    for port, other in ((server.port, "0"), (server.socket_port, str(server.port))):
        ports = ["--http-port", port, "--socket-port", other]
        said = sentence(
            serve(
                *ports,
                "--token-file",
                tmp_path / "token",
                "--state-dir",
                tmp_path / "state",
            )
        )
        assert (
            f"cannot listen on port {port}: a running pocketserve (process {server.process.pid}) has it"
            in said
        )
        assert "--http-port" in said
        assert "--socket-port" in said


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604])
def test_a_readable_token_file_is_rejected(tmp_path, mode):
    token = tmp_path / "token"
    token.write_text("a" * 43)
    token.chmod(mode)
    assert f"chmod 600 {token}" in sentence(
        serve(
            "--http-port",
            0,
            "--token-file",
            token,
            "--state-dir",
            tmp_path,
        )
    )


@pytest.mark.parametrize(
    "content",
    [
        "",
        "short",
        "with spaces in it " * 5,
        "a" * 2000,
    ],
)
def test_a_token_file_without_a_token_is_rejected(tmp_path, content):
    token = tmp_path / "token"
    token.write_text(content)
    token.chmod(0o600)
    assert "contains no token" in sentence(
        serve(
            "--http-port",
            0,
            "--token-file",
            token,
            "--state-dir",
            tmp_path,
        )
    )


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (["nowhere"], 1, "nowhere cannot be read"),
        (["--host", "0.0.0.0", "--no-auth"], 2, "--no-auth works on loopback only"),
        (["--host", "192.0.2.1"], 1, "cannot listen on 192.0.2.1"),
        (["--http-port", "70000"], 2, "http_port must be between 0 and 65535"),
        (["--socket-port", "70000"], 2, "socket_port must be between 0 and 65535"),
        (["--http-port", "high"], 2, "--http-port must be a whole number"),
        (["--queue-limit", "0"], 2, "queue_limit must be between 1"),
        (["--memory-budget", "much"], 2, "--memory-budget must be a size such as 512M"),
        (["--log-level", "loud"], 2, "log_level must be"),
        (["--load", "nothing"], 1, "--load nothing: "),
    ],
)
def test_unusable_settings_are_explained(tmp_path, options, code, reason):
    if "--http-port" not in options:
        options = [*options, "--http-port", "0"]
    # The usual state folder may list killed servers of other tests, which would be
    # printed, too.
    folders = ("--token-file", tmp_path / "token", "--state-dir", tmp_path / "state")
    assert reason in sentence(serve(*options, *folders), code)


def test_serving_without_a_token_prints_a_warning(new_server, models_copy, refused):
    server = new_server(models_copy, "--no-auth", environment={PREFIX + "QUEUE": "9"})
    assert server.token is None
    assert server.ready["token_file"] is None
    assert server.call("POST", "/predictions/petals", data=NUMBERS).status_code == 200
    refused(
        server.call("GET", "/v2", headers={"Origin": "http://evil.example"}),
        403,
        "ORIGIN_REFUSED",
    )
    refused(
        server.call("GET", "/v2", headers={"Host": "evil.example"}), 403, "HOST_REFUSED"
    )
    log = server.log.read_text()
    assert "every app on this device can use the server" in log
    assert (
        f"{PREFIX}QUEUE is not a setting and changes nothing; did you mean {PREFIX}QUEUE_LIMIT?"
        in log
    )
    assert log.count("is not a setting") == 1


def test_additional_hosts_can_be_allowed(new_server, models_copy, refused):
    server = new_server(models_copy, "--allowed-hosts", "phone.example,other.example")
    assert (
        server.call("GET", "/v2", headers={"Host": "Phone.example:443"}).status_code
        == 200
    )
    refused(
        server.call("GET", "/v2", headers={"Host": "evil.example"}), 403, "HOST_REFUSED"
    )


def test_models_can_be_loaded_at_the_start(new_server, models_copy):
    server = new_server(models_copy, "--load", "petals", "digits")
    listed = server.call("POST", "/v2/repository/index").json()
    assert {
        one["name"] for one in listed if one["state"] == "READY" and not one["reason"]
    } == {"petals", "digits"}


def test_the_server_is_not_ready_while_it_loads_models_at_the_start(
    slow, models_copy, tmp_path, pool
):
    """Loaded models answer meanwhile.

    The ready file and the socket report the same.
    """
    ready = tmp_path / "ready.json"
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "serve",
        models_copy,
        "--no-auth",
        "--load",
        "petals",
        "digits",
    ]
    command += ["--http-port", port, "--socket-port", "0", "--ready-file", ready]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen([*map(str, command)], stderr=subprocess.DEVNULL) as process:
        try:
            slow.wait()
            assert (
                requests.get(f"{url}/v2/health/live", timeout=TIMEOUT_S).status_code
                == 200
            )
            answer = requests.get(f"{url}/v2/health/ready", timeout=TIMEOUT_S)
            assert answer.status_code == 503
            assert answer.json()["code"] == "MODEL_NOT_READY"
            assert answer.headers["Retry-After"] == "1"
            assert (
                requests.post(
                    f"{url}/predictions/petals", data=NUMBERS, timeout=TIMEOUT_S
                ).status_code
                == 200
            )
            assert not ready.exists()
            waiting = pool.submit(
                requests.post,
                f"{url}/predictions/digits",
                data=ZEROS,
                timeout=TIMEOUT_S,
            )
            slow.finish()
            assert waiting.result(TIMEOUT_S).status_code == 200
            until(ready.exists)
            assert (
                requests.get(f"{url}/v2/health/ready", timeout=TIMEOUT_S).status_code
                == 200
            )
        finally:
            process.terminate()
        assert process.wait(TIMEOUT_S) == 0
    assert not ready.exists()


def test_a_server_ended_while_loading_was_never_ready(slow, models_copy, tmp_path):
    ready = tmp_path / "ready.json"
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "serve",
        models_copy,
        "--no-auth",
        "--load",
        "digits",
        "petals",
    ]
    command += [
        "--http-port",
        "0",
        "--socket-port",
        "0",
        "--ready-file",
        ready,
        "--drain-timeout",
        "0.6",
    ]
    with subprocess.Popen(
        [*map(str, command)], stderr=subprocess.PIPE, text=True
    ) as process:
        slow.wait()
        process.terminate()
        _, log = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, ready.exists()) == (0, False), log
    assert "--load" not in log
    assert "stopping: pending requests get up to 0.6 s" in log


def test_accepted_requests_finish_after_a_load_fails_at_the_start(
    slow, models_copy, tmp_path, pool
):
    """After accepted requests, the server ends with the reason and the exit code of a
    failed start.
    """
    shutil.copytree(MODELS / "digits", models_copy / "loading")
    loading = SlowRequest(models_copy, pool, "loading")
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "serve",
        models_copy,
        "--no-auth",
        "--load",
        "loading",
        "nothing",
    ]
    command += ["--http-port", port, "--socket-port", "0", "--drain-timeout", "30"]
    url = f"http://127.0.0.1:{port}"
    with subprocess.Popen(
        [*map(str, command)], stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            loading.wait()
            under_way = pool.submit(
                requests.post,
                f"{url}/predictions/digits",
                data=ZEROS,
                timeout=TIMEOUT_S,
            )
            slow.wait()
            loading.finish()
            asked = {"url": f"{url}/v2/health/ready", "timeout": TIMEOUT_S}
            until(lambda: requests.get(**asked).json()["code"] == "SHUTTING_DOWN")
            slow.finish()
            assert under_way.result(TIMEOUT_S).status_code == 200
            _, log = process.communicate(timeout=TIMEOUT_S)
            assert process.returncode == 1
            assert "pocketserve: --load nothing: " in log
        finally:
            loading.release()
            process.kill()


def test_a_server_without_requests_loads_no_framework(new_server, models_copy):
    server = new_server(models_copy)
    maps = Path(f"/proc/{server.process.pid}/maps")
    if not maps.exists():
        pytest.skip("this system does not tell what a process has mapped")
    assert server.call("GET", "/v2/models").status_code == 200
    assert server.call("POST", "/v2/repository/index").status_code == 200
    assert not [name for name in FRAMEWORKS if name in maps.read_text()]
    assert server.call("GET", "/v2/models/petals").status_code == 200
    # Proves that the check can detect one.
    assert [name for name in FRAMEWORKS if name in maps.read_text()]


def test_the_log_contains_neither_tokens_nor_inputs(new_server, models_copy):
    server = new_server(models_copy, "--log-level", "debug")
    secret = "0.123456789"
    assert (
        server.call("POST", "/predictions/petals", data=f"[{secret},1,2]").status_code
        == 200
    )
    assert (
        server.call("POST", "/predictions/petals", data=f"[{secret},1").status_code
        == 400
    )
    wrong = requests.get(
        f"{server.url}/v2",
        headers={"Authorization": "Bearer not-the-token"},
        timeout=TIMEOUT_S,
    )
    assert wrong.status_code == 401
    assert server.stop() == 0
    log = server.log.read_text()
    assert server.token not in log
    assert "not-the-token" not in log
    assert secret not in log
    assert "Traceback" not in log


# --- Shutdown


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_lets_requests_finish_and_rejects_new_ones(
    new_server, models_copy, slow, refused, number
):
    server = new_server(models_copy, *WAITS)
    under_way = slow.begin(server)
    server.process.send_signal(number)
    until(lambda: has_begun_to_drain(server))
    answer = post(server, "/predictions/petals", NUMBERS)
    refused(answer, 503, "SHUTTING_DOWN")
    assert answer.headers["Retry-After"] == "1"
    assert (
        requests.get(f"{server.url}/v2/health/live", timeout=TIMEOUT_S).status_code
        == 200
    )
    assert server.process.poll() is None
    assert not under_way.done()
    slow.finish()
    assert under_way.result(TIMEOUT_S).status_code == 200
    assert server.process.wait(ENDS_S) == 0
    assert not ready_file(server).exists()
    with pytest.raises(requests.ConnectionError):
        has_begun_to_drain(server)
    assert "Traceback" not in server.log.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(new_server, models_copy, slow, number):
    server = new_server(models_copy, *WAITS)
    under_way = slow.begin(server)
    server.process.send_signal(number)
    until(lambda: has_begun_to_drain(server))
    server.process.send_signal(number)
    assert server.process.wait(ENDS_S) == 1
    with pytest.raises(requests.ConnectionError):
        under_way.result(TIMEOUT_S)


def test_the_shutdown_timeout_limits_the_wait_for_requests(
    new_server, models_copy, slow
):
    server = new_server(models_copy, "--drain-timeout", "0.6")
    under_way = slow.begin(server)
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(ENDS_S) == 0
    with pytest.raises(requests.ConnectionError):
        under_way.result(TIMEOUT_S)
    assert "requests were still running" in server.log.read_text()


def test_open_connections_do_not_delay_the_shutdown(new_server, models_copy):
    server = new_server(models_copy, *WAITS)
    assert server.call("GET", "/v2").status_code == 200  # kept alive
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as half:
        half.sendall(
            b"POST /predictions/petals HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Le"
        )
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(ENDS_S) == 0
        assert is_closed(half)  # by a reset, where sent bytes had not been read yet


def test_the_port_is_free_after_the_shutdown(new_server, models_copy):
    first = new_server(models_copy, "--http-port", str(free_port()))
    assert first.call("GET", "/v2").status_code == 200
    assert first.stop() == 0
    second = new_server(models_copy, "--http-port", str(first.port))
    assert second.port == first.port


# --- Under load


LONG_ROWS = 150_000
LONG = f'{{"instances": [{",".join(["[1,2,3]"] * LONG_ROWS)}]}}'
SHORT = json.dumps(
    {
        "inputs": [
            {"name": "features", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
        ]
    }
)
IMPATIENT = SHORT[:-1] + ', "parameters": {"timeout": 1000}}'
PATIENT = SHORT[:-1] + ', "parameters": {"timeout": 60000000}}'


class BusyServer:
    """A server whose petals model is slow: fixed to one row, it answers many rows one
    by one.
    """

    def __init__(
        self, new_server, models: Path, pool: ThreadPoolExecutor, *options: str
    ) -> None:
        manifest = models / "petals" / "model.toml"
        manifest.write_text(
            manifest.read_text().replace("shape = [-1, 3]", "shape = [1, 3]")
        )
        self._pool = pool
        self.server = new_server(models, "--load", "petals", *options)
        # Its first answer is slow, since it imports the library.
        assert self.waiting() == 0

    def waiting(self) -> float:
        """Return the number of requests queued for the model."""
        lines = self.server.call("GET", "/metrics").text.splitlines()
        return float(
            next(
                line for line in lines if line.startswith("pocketserve_queue_length{")
            ).split()[-1]
        )

    def refuse(self, path: str, body: str) -> requests.Response:
        """Send a request while one runs and one waits; repeat if the model was too
        fast.

        The running and waiting requests are still answered.
        """
        for _ in range(10):
            futures = self._occupy()
            answer = post(self.server, path, body)
            assert [future.result(BUSY_S).status_code for future in futures] == [
                200
            ] * len(futures)
            assert len(futures[0].result().json()["predictions"]) == LONG_ROWS
            if answer.status_code != 200:
                return answer
        raise AssertionError("the model was never busy for long enough")

    def _occupy(self) -> list[Future[requests.Response]]:
        futures = [
            self._pool.submit(post, self.server, "/v1/models/petals:predict", LONG)
        ]
        while not futures[0].done():
            waiter = self._pool.submit(
                post, self.server, "/v2/models/petals/infer", PATIENT
            )
            futures.append(waiter)
            until(lambda waiter=waiter: waiter.done() or self.waiting() == 1)
            if not waiter.done():
                break
        return futures


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/petals/infer", SHORT),
        ("/predictions/petals", NUMBERS),
    ],
)
def test_a_full_queue_rejects_at_once(
    new_server, models_copy, pool, refused, path, body
):
    busy = BusyServer(new_server, models_copy, pool, "--queue-limit", "1")
    answer = busy.refuse(path, body)
    refused(answer, 429, "QUEUE_FULL")
    assert int(answer.headers["Retry-After"]) >= 1
    assert post(busy.server, path, body).status_code == 200
    (counted,) = busy.server.call("GET", "/v2/models/petals/stats").json()[
        "model_stats"
    ]
    assert counted["inference_stats"]["fail"]["count"] == 1


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v2/models/petals/infer", IMPATIENT),
        ("/predictions/petals?timeout_ms=1", NUMBERS),
    ],
)
def test_a_request_whose_deadline_passes_gets_504(
    new_server, models_copy, pool, refused, path, body
):
    busy = BusyServer(new_server, models_copy, pool)
    refused(busy.refuse(path, body), 504, "DEADLINE_EXCEEDED")
    assert busy.waiting() == 0
    assert post(busy.server, "/v2/models/petals/infer", PATIENT).status_code == 200


def test_concurrent_requests_get_their_own_answers(server, pool):
    start = threading.Barrier(16)

    def ask(number: int) -> list[float]:
        start.wait(TIMEOUT_S)
        values = []
        for turn in range(10):
            answer = post(
                server,
                "/predictions/petals",
                json.dumps([[float(number), float(turn), 1.0]] * (turn + 1)),
            )
            rows = [row["value"] for row in answer.json()["predictions"]]
            assert len(rows) == turn + 1
            assert len(set(rows)) == 1
            values.append(rows[0])
        return values

    answers = [
        future.result(TIMEOUT_S)
        for future in [pool.submit(ask, number) for number in range(16)]
    ]
    rows = [
        [
            float(number),
            float(turn),
            1.0,
        ]
        for number in range(16)
        for turn in range(10)
    ]
    alone = []
    for row in post(server, "/predictions/petals", json.dumps(rows)).json()[
        "predictions"
    ]:
        alone.append(row["value"])
    assert [value for values in answers for value in values] == pytest.approx(
        alone, rel=1e-5
    )
