"""Let a simulation's apps detect right, wrong and missing answers."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from conftest import MODELS, Server, StartServer
from pocketserve_client import Client
from pocketserve_simulate.scenarios.misbehaving_clients import MisbehavingClient
from pocketserve_simulate.scenarios.questions import Question, prepare_questions
from pocketserve_simulate.scenarios.record import LOST, REFUSED, RIGHT, SILENT, WRONG
from pocketserve_simulate.scenarios.scenario import (
    NEVER_READS,
    VANISHING,
    ScenarioError,
    Stream,
    parse_scenario,
)
from pocketserve_simulate.scenarios.traffic import App, ServerAddresses
from ports import free_port

pytestmark = [pytest.mark.live, pytest.mark.simulated]

LIMIT_S = 120.0


def stream(extra: str = "", model: str = "petals") -> Stream:
    text = (
        f'seconds = 9\n[[streams]]\nname = "a"\nmodel = "{model}"\nrate = 100\n{extra}'
    )
    return parse_scenario(text.encode(), "s.toml").streams[0]


STREAMS = {
    "rows over the socket": stream("rows = 3\n"),
    "rows over HTTP": stream('client = "http"\n', "digits"),
    "pictures": stream('ask = "pictures"\nparallel = 2\n', "digits"),
    "loads": stream('ask = "loads"\nclient = "http"\n', "diabetes"),
}


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Question]]:
    return {
        name: prepare_questions([each], MODELS, tmp_path_factory.mktemp("state"))["a"]
        for name, each in STREAMS.items()
    }


def addresses(server: Server) -> ServerAddresses:
    return ServerAddresses(
        server.url,
        f"socket://127.0.0.1:{server.socket_port}",
        server.log.with_name("token"),
    )


def run(app: App, count: int) -> App:
    """Let it run until this many requests have ended."""
    app.start()
    deadline = time.monotonic() + LIMIT_S
    pace = threading.Event()
    while len(app.samples) < count:
        assert time.monotonic() < deadline, "too few requests ended"
        pace.wait(0.01)
    app.stop()
    return app


@pytest.mark.parametrize("name", STREAMS)
def test_right_answers_are_recognised(
    server: Server, questions: dict[str, list[Question]], name: str
) -> None:
    app = run(
        App(STREAMS[name], addresses(server), questions[name], time.monotonic()), 30
    )
    assert {(s.outcome, s.code, s.detail) for s in app.samples} == {(RIGHT, "", "")}
    with Client(server.url, token_file=server.log.with_name("token")) as client:
        client.load("diabetes")


@pytest.mark.parametrize("name", ["rows over the socket", "rows over HTTP", "pictures"])
def test_an_answer_to_another_request_is_wrong(
    server: Server, questions: dict[str, list[Question]], name: str
) -> None:
    """Each question has a distinct answer."""
    mixed = []
    for one, other in zip(questions[name], questions[name][1:], strict=False):
        mixed.append(Question(one.inputs, one.picture, other.label, other.expected))
    app = run(App(STREAMS[name], addresses(server), mixed, time.monotonic()), 10)
    assert {s.outcome for s in app.samples} == {WRONG}


def test_questions_differ(questions: dict[str, list[Question]]) -> None:
    assert {
        name: len(found) for name, found in questions.items() if len(found) < 10
    } == {}
    assert {question.label for question in questions["pictures"]} == set("0123456789")
    assert questions["rows over the socket"][0].expected["petal_width"].shape == (3, 1)
    shifted = {
        "petal_width": questions["rows over the socket"][0].expected["petal_width"]
        + 0.01
    }
    assert "another request's" in questions["rows over the socket"][0].check(
        ("", shifted)
    )
    assert "shape" in questions["rows over the socket"][0].check(
        ("", {"petal_width": np.zeros(3)})
    )
    assert "outputs" in questions["rows over the socket"][0].check(("", {}))


def test_a_refusal_is_recorded(
    server: Server, questions: dict[str, list[Question]]
) -> None:
    app = run(
        App(
            stream('version = "none"\n'),
            addresses(server),
            questions["rows over the socket"],
            0.0,
        ),
        3,
    )
    assert {(s.outcome, s.code) for s in app.samples} == {
        (REFUSED, "VERSION_NOT_FOUND")
    }


@pytest.mark.parametrize("client", ["socket", "http"])
def test_a_missing_server_is_reported_each_time(
    new_server: StartServer, questions: dict[str, list[Question]], client: str
) -> None:
    server = new_server(MODELS)
    nowhere = addresses(server)
    server.stop()
    app = stream(f'client = "{client}"\nreconnect = 0.1\n')
    found = run(
        App(app, nowhere, questions["rows over the socket"], time.monotonic()), 5
    )
    assert {s.outcome for s in found.samples} == {LOST}
    assert all(
        s.code in ("NobodyListens", "ServerUnreachable") and "start it with" in s.detail
        for s in found.samples
    )


def test_a_call_that_takes_too_long_is_silence(
    server: Server, questions: dict[str, list[Question]]
) -> None:
    class Slow(Question):
        def ask(self, client: Client, stream: Stream) -> str:
            threading.Event().wait(stream.max_call_s + 0.6)
            return ""

    first = questions["rows over the socket"][0]
    slow = Slow(first.inputs, first.picture, first.label, first.expected)
    app = stream("timeout = 0.1\nreconnect = 0\nparallel = 1\n")
    found = run(App(app, addresses(server), [slow], time.monotonic()), 1)
    assert found.samples[0].outcome == SILENT
    assert found.skipped > 0, "what was due meanwhile was not sent"


def test_a_call_that_never_ends_is_silence(
    server: Server, questions: dict[str, list[Question]]
) -> None:
    """The report doesn't wait, and counts it once."""
    called = threading.Event()
    let_go = threading.Event()

    class Endless(Question):
        def ask(self, client: Client, stream: Stream) -> str:
            called.set()
            assert let_go.wait(LIMIT_S)
            return ""

    first = questions["rows over the socket"][0]
    endless = Endless(first.inputs, first.picture, first.label, first.expected)
    asking = stream("timeout = 0.1\nreconnect = 0\nparallel = 1\n")
    app = App(asking, addresses(server), [endless], time.monotonic())
    app.start()
    assert called.wait(LIMIT_S)
    app.stop()
    assert [(s.outcome, s.detail) for s in app.samples] == [(SILENT, "has not ended")]
    let_go.set()
    app.stop()
    assert len(app.samples) == 1


def test_a_forgotten_unload_is_detected(
    server: Server, questions: dict[str, list[Question]]
) -> None:
    """The model is loaded again without the app, like a restart that lost its state."""
    where = addresses(server)
    app = App(STREAMS["loads"], where, questions["loads"], time.monotonic())
    app.start()
    deadline = time.monotonic() + LIMIT_S
    with Client(where.socket, token_file=where.token_file) as client:
        while not any(s.outcome == WRONG for s in list(app.samples)):
            assert time.monotonic() < deadline
            client.load("diabetes")
        app.stop()
        client.load("diabetes")
    assert {s.detail for s in app.samples if s.outcome == WRONG} == {
        "the model was unloaded, and answers again"
    }


@pytest.mark.parametrize("kind", [VANISHING, NEVER_READS])
def test_misbehaving_clients_do_not_affect_others(
    server: Server, questions: dict[str, list[Question]], kind: str
) -> None:
    where = addresses(server)
    misbehaving = MisbehavingClient(
        kind, where, "petals", questions["rows over the socket"][0]
    )
    misbehaving.start()
    name = "rows over the socket"
    app = App(STREAMS[name], where, questions[name], time.monotonic())
    try:
        run(app, 100)
    finally:
        misbehaving.stop()
    assert {(s.outcome, s.code) for s in app.samples} == {(RIGHT, "")}
    assert misbehaving.requests > 3


def test_a_misbehaving_client_keeps_trying(
    tmp_path: Path, questions: dict[str, list[Question]]
) -> None:
    (tmp_path / "token").write_text("a" * 64)
    port = free_port()
    where = ServerAddresses("", f"socket://127.0.0.1:{port}", tmp_path / "token")
    for kind in (VANISHING, NEVER_READS):
        misbehaving = MisbehavingClient(kind, where, "petals", questions["pictures"][0])
        misbehaving.start()
        misbehaving.stop()
        assert misbehaving.requests == 0


def test_a_model_without_questions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="stream 'a' cannot ask 'roses': "):
        prepare_questions([stream(model="roses")], MODELS, tmp_path)
    with pytest.raises(ScenarioError, match="there are no pictures in petals/samples"):
        prepare_questions([stream('ask = "pictures"\n')], MODELS, tmp_path)
