"""N1: a language model through our server, and its engine asked directly, in turns.

Both sides ask the same engine: the direct one over the UNIX socket of its process. So
the difference is our server's part.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.language_calls import (
    AnswerTimes,
    EngineHttp,
    OpenStream,
    ServerHttp,
    ask,
    chat_body,
)
from benchmarks.memory import resident_mb
from benchmarks.peers import ensure_environment
from benchmarks.processes import (
    ROOT,
    NotHere,
    Ours,
    StartError,
    cpu_seconds,
    our_server,
)
from benchmarks.samples import Comparison, Missing, Result
from benchmarks.timing import QUICK, Effort, say
from pocketserve.engine.device.processes import descendants_of
from pocketserve.formats.gguf import read_gguf
from pocketserve.runtimes.llm.memory import plan_context
from pocketserve.runtimes.llm.options import GenerationOptions
from pocketserve.runtimes.llm.process import SOCKET_NAME
from pocketserve.runtimes.llm.settings import BATCH
from pocketserve_lab.measurement import take_turns

TOY = ROOT / "tests" / "models" / "chat" / "chat.gguf"
TOY_TITLE = "toy of 0.9 MB"
MODEL = "chat"
TOKENS, FEW_TOKENS = 200, 20
WORDS = "the sky is blue "
REPEATS, FEW_REPEATS = 300, 40
"""Of the words, in a long prompt."""

LIMIT = "limit"
DIRECT = "engine asked directly"

FIRST_TOKEN_MS, RATE_GOAL, TOKEN_US = 3.0, 0.97, 50.0
CANCEL_TOKENS, CANCEL_BATCHES = 2.0, 1.0
STREAM_MIB, SERVER_MIB = 2.0, 5.0
IDLE_MS, CHILD_GOAL = 10.0, 1.1
FIRST_TOKENS, ANSWERS, CANCELS = 200, 30, 20
"""Rounds of each part."""

STREAMS, CONTEXTS = 8, (512, 2048, 8192)
SETTLE_S, MINUTE_S = 3.0, 60.0
CALM_S, MAX_CALM_S = 0.3, 30.0
MB_PER_MIB = 2**20 / 1e6

Ask = Callable[[int], AnswerTimes]


@dataclass(frozen=True)
class Place:
    """A running server and the engine of its only model."""

    server: int
    port: int
    engine: int

    def direct(self) -> EngineHttp:
        """Return a new connection to the engine's own socket."""
        return EngineHttp(f"/proc/{self.engine}/cwd/{SOCKET_NAME}")

    def served(self) -> ServerHttp:
        """Return a new connection to the server."""
        return ServerHttp(self.port)


@dataclass(frozen=True)
class Subject:
    """A model to measure.

    Attributes:
        has_slow_tokens: whether a token takes long enough to count cancelled ones.
    """

    title: str
    file: Path
    has_slow_tokens: bool


def run(effort: Effort) -> list[Result]:
    """Measure the toy, and a larger model if there is one.

    Raises:
        NotHere: the system has no /proc.
    """
    if not Path("/proc/self/task").exists():
        raise NotHere("this system does not tell the memory and CPU time of a process")
    try:
        python = ensure_environment("llm", install=effort is not QUICK)
    except StartError as error:
        return [Missing("N1", "language models", str(error))]
    results: list[Result] = []
    for subject in subjects():
        results += _measure(subject, python, effort)
    if len(subjects()) == 1:
        why = "no .gguf file in models/gguf of the public test models (tests/README.md)"
        results.append(Missing("N1", "a larger model", why))
    return results


def subjects() -> list[Subject]:
    """Return the toy, and the smallest public test model that is larger."""
    found = [Subject(TOY_TITLE, TOY, has_slow_tokens=False)]
    named = os.environ.get("POCKETSERVE_TEST_ASSETS")
    folders = [Path(named)] if named else sorted(ROOT.parent.glob("*/assets"))
    files: list[Path] = []
    for folder in folders:
        files += folder.glob("models/gguf/*.gguf")
    if files:
        file = min(files, key=lambda path: path.stat().st_size)
        found.append(Subject(file.stem, file, has_slow_tokens=True))
    return found


def _measure(subject: Subject, python: str, effort: Effort) -> Iterator[Result]:
    with _server(subject, python) as ours:
        time.sleep(0.2)  # let start-up end: this is a measurement, not a test
        unloaded = resident_mb(ours.pid)
        place = _load(ours.pid, ours.http)
        yield from _speed(subject, place, effort)
        if subject.has_slow_tokens:
            yield from _cancelled(subject, place, effort)
        yield from _memory(subject, place, unloaded)
        yield _idle(subject, place, effort)
    yield from _sizes(subject, python)


@contextmanager
def _server(subject: Subject, python: str, settings: str = "") -> Iterator[Ours]:
    """Start a server with one model. Its engine may use the other core."""
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / MODEL
        model.mkdir()
        shutil.copy(subject.file, model / "m.gguf")
        (model / "model.toml").write_text(f"[generation]\n{settings}\n")
        with our_server(Path(folder), core=None, python=python) as ours:
            yield ours


def _load(server: int, port: int) -> Place:
    """Load the model with a first request; return its engine."""
    connection = ServerHttp(port)
    ask(connection, chat_body(MODEL, 1))
    connection.close()
    for pid in descendants_of(server):
        if Path(f"/proc/{pid}/cwd", SOCKET_NAME).exists():
            return Place(server, port, pid)
    raise StartError("the server has no engine")


def _speed(subject: Subject, place: Place, effort: Effort) -> Iterator[Result]:
    """Compare first tokens and whole answers."""
    with _sides(place) as sides:
        yield from _first_tokens(subject, sides, effort)
        yield from _rates(subject, sides, effort)


@contextmanager
def _sides(place: Place) -> Iterator[Mapping[str, Ask]]:
    """Yield the two sides, each with a connection that is kept."""
    with ExitStack() as stack:
        served, direct = place.served(), place.direct()
        stack.callback(served.close)
        stack.callback(direct.close)

        def ask_server(tokens: int) -> AnswerTimes:
            return ask(served, chat_body(MODEL, tokens))

        def ask_engine(tokens: int) -> AnswerTimes:
            answer = ask(direct, chat_body(MODEL, tokens, cache_prompt=True))
            direct.close()  # engines close idle connections themselves, at any time
            return answer

        yield {"ours": ask_server, "direct": ask_engine}


def _turns(
    sides: Mapping[str, Ask], tokens: int, rounds: int, seconds: float
) -> tuple[list[AnswerTimes], list[AnswerTimes]]:
    """Return our answers and the direct ones, in pairs."""
    say(f"{tokens} tokens")
    calls = {name: partial(call, tokens) for name, call in sides.items()}
    for call in calls.values():
        call()
    answers = take_turns(calls, seconds, rounds, lambda share: None, least_rounds=2)
    return answers["ours"], answers["direct"]


def _first_tokens(
    subject: Subject, sides: Mapping[str, Ask], effort: Effort
) -> Iterator[Result]:
    rounds = min(FIRST_TOKENS, effort.rounds)
    ours, direct = _turns(sides, 1, rounds, 3 * effort.seconds)
    our_times = [answer.first_s * 1e3 for answer in ours]
    direct_times = [answer.first_s * 1e3 for answer in direct]
    added = [a - b for a, b in zip(our_times, direct_times, strict=True)]
    yield _against_limit(
        subject, "added time to first token", "ms", added, FIRST_TOKEN_MS
    )
    yield Comparison(
        "N1",
        f"time to first token, {subject.title}",
        "ms",
        our_times,
        direct_times,
        None,
        against=DIRECT,
    )


def _rates(
    subject: Subject, sides: Mapping[str, Ask], effort: Effort
) -> Iterator[Result]:
    rounds = min(ANSWERS, effort.rounds)
    tokens = _tokens(effort)
    ours, direct = _turns(sides, tokens, rounds, 6 * effort.seconds)
    if subject.has_slow_tokens:
        yield Comparison(
            "N1",
            f"{tokens} tokens, {subject.title}",
            "/s",
            [answer.rate for answer in ours],
            [answer.rate for answer in direct],
            RATE_GOAL,
            "least",
            against=DIRECT,
        )
        return
    added = []
    for our_answer, direct_answer in zip(ours, direct, strict=True):
        extra_s = our_answer.token_s - direct_answer.token_s
        added.append(extra_s * 1e6)
    yield _against_limit(subject, "added time of a token", "µs", added, TOKEN_US)


def _cancelled(subject: Subject, place: Place, effort: Effort) -> Iterator[Result]:
    """Measure the engine's work after a client has left, in tokens and in batches.

    The engine's CPU time counts, so that other programs don't matter.
    """
    rounds = min(CANCELS, effort.rounds)
    tokens: list[float] = []
    batches: list[float] = []
    token_s = _cpu_of_token(place, _tokens(effort))
    words = WORDS * (FEW_REPEATS if effort is QUICK else REPEATS)
    batch_s = _cpu_of_batch(place, words)
    for number in range(rounds):
        say(f"cancelling, {number + 1} of {rounds}")
        answer = chat_body(MODEL, TOKENS, text=f"{number} Tell me a story.")
        tokens.append(_cpu_after(place, answer, "text") / token_s)
        prompt = chat_body(MODEL, 1, text=f"{number} " + words)
        batches.append(_cpu_after(place, prompt, "progress") / batch_s)
    yield _against_limit(
        subject, "work after a cancel, tokens", "", tokens, CANCEL_TOKENS, "p99"
    )
    what = f"in the prompt, batches of {BATCH}"
    yield _against_limit(subject, what, "", batches, CANCEL_BATCHES, "p99")


def _tokens(effort: Effort) -> int:
    """Return the length of an answer."""
    return FEW_TOKENS if effort is QUICK else TOKENS


def _cpu_of_token(place: Place, tokens: int) -> float:
    """Return the engine's CPU seconds for a token of an answer."""
    connection = place.served()
    ask(connection, chat_body(MODEL, 1))
    spent = []
    for count in (1, tokens):
        before = cpu_seconds(place.engine)
        ask(connection, chat_body(MODEL, count))
        spent.append(cpu_seconds(place.engine) - before)
    connection.close()
    return (spent[1] - spent[0]) / (tokens - 1)


def _cpu_of_batch(place: Place, words: str) -> float:
    """Return the engine's CPU seconds for a batch of a long prompt."""
    connection = place.served()
    before = cpu_seconds(place.engine)
    answer = ask(connection, chat_body(MODEL, 1, text=words))
    spent = cpu_seconds(place.engine) - before
    connection.close()
    return spent / (answer.prompt_tokens / BATCH)


def _cpu_after(place: Place, body: Mapping[str, Any], event: str) -> float:
    """Leave a stream after its third event; return the engine's CPU time from then."""
    stream = OpenStream(place.served(), body)
    for _ in range(3):
        stream.wait_for(event)
    before = cpu_seconds(place.engine)
    stream.close()
    _wait_until_calm(place.engine)
    return cpu_seconds(place.engine) - before


def _wait_until_calm(pid: int) -> None:
    """Wait until a process has used no CPU time for a while."""
    deadline = time.monotonic() + MAX_CALM_S
    spent = -1.0
    while cpu_seconds(pid) - spent > 1e-3 and time.monotonic() < deadline:
        spent = cpu_seconds(pid)
        time.sleep(CALM_S)


def _memory(subject: Subject, place: Place, unloaded: float) -> Iterator[Result]:
    """Measure the server's memory without the engine, with 0 and with 8 streams."""
    say("memory")
    time.sleep(CALM_S)
    idle = resident_mb(place.server)
    with ExitStack() as stack:
        streams = []
        for _ in range(STREAMS):
            stream = OpenStream(place.served(), chat_body(MODEL, TOKENS))
            stack.callback(stream.close)
            streams.append(stream)
        streams[0].wait_for("text")
        time.sleep(CALM_S)  # the others wait for their turn
        busy = resident_mb(place.server)
    per_stream = (busy - idle) / STREAMS / MB_PER_MIB
    added = (busy - unloaded) / MB_PER_MIB
    yield _against_limit(
        subject, "server's memory for a stream", "MiB", [per_stream], STREAM_MIB
    )
    yield _against_limit(
        subject, f"for the model and {STREAMS} streams", "MiB", [added], SERVER_MIB
    )


def _idle(subject: Subject, place: Place, effort: Effort) -> Result:
    """Measure an idle minute of server and engine."""
    settle, seconds = SETTLE_S, MINUTE_S
    if effort is QUICK:
        settle, seconds = 0.2, 0.5
    pids = (place.server, place.engine)
    for pid in pids:
        _wait_until_calm(pid)
    time.sleep(settle)
    before = sum(map(cpu_seconds, pids))
    time.sleep(seconds)
    spent = sum(map(cpu_seconds, pids)) - before
    in_a_minute = 1e3 * spent * MINUTE_S / seconds
    what = "CPU time in an idle minute, with engine"
    return _against_limit(subject, what, "ms", [in_a_minute], IDLE_MS)


def _sizes(subject: Subject, python: str) -> Iterator[Result]:
    """Compare the engine's memory with the sum that the budget reserves."""
    header = read_gguf(subject.file)
    for context in CONTEXTS:
        if context > header.context:
            continue
        say(f"context of {context} tokens")
        with _server(subject, python, f"context = {context}") as ours:
            place = _load(ours.pid, ours.http)
            measured = resident_mb(place.engine)
        options = GenerationOptions(context=context)
        reserved = plan_context(header, options, 0).memory_bytes / 1e6
        yield Comparison(
            "N1",
            f"engine's memory, {context} tokens, {subject.title}",
            "MB",
            [measured],
            [reserved],
            CHILD_GOAL,
            against="sum that is reserved",
        )


def _against_limit(
    subject: Subject,
    what: str,
    unit: str,
    samples: list[float],
    limit: float,
    statistic: str = "median",
) -> Comparison:
    return Comparison(
        "N1",
        f"{what}, {subject.title}",
        unit,
        samples,
        [limit],
        1.0,
        against=LIMIT,
        statistic=statistic,
    )
