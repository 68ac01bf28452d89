"""Measure a language model alone, over the socket and over HTTP, in turns."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pocketserve.child.memory import memory_of
from pocketserve.local.own_server import own_server
from pocketserve.runtimes.llm.session import LlmSession
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.local import open_local
from pocketserve.terminal.output import human_bytes, print_text, print_wide_table
from pocketserve.terminal.progress import Progress
from pocketserve_lab.language.subject import LEAST_ROUNDS, LanguageSubject
from pocketserve_lab.measurement import load_now, load_warning, take_turns

if TYPE_CHECKING:
    from pocketserve.service import Service
    from pocketserve_client import Client

QUESTION: Final = "Tell me a story about a fox."
TOKENS: Final = 64
WAYS: Final = {
    "engine": "the engine alone",
    "socket": "over the socket",
    "http": "over HTTP",
}


@dataclass(frozen=True)
class WayTime:
    """The figures of one answer.

    Attributes:
        first_ms: from the request to the first piece of text.
        rate: tokens per second of the whole answer.
    """

    first_ms: float
    rate: float


@dataclass(frozen=True)
class BenchPlan:
    """The options of the command line.

    Attributes:
        models_dir: the models folder; None for the default one.
        version: None for the default one, which is the only one that is measured.
        rounds: at most, for each way.
        seconds: for all turns together; the first three rounds are always completed.
        threads: of one run; 0 uses the fast cores.
    """

    model: str
    models_dir: str | None
    version: str | None
    rounds: int
    seconds: float
    threads: int


def bench_language_model(plan: BenchPlan) -> dict[str, Any]:
    """Measure a model, and return the result as plain JSON values.

    Raises:
        CommandError: the version generates no text.
    """
    load = load_now()
    service, name, version = open_local(
        plan.model, plan.models_dir, threads=plan.threads
    )
    try:
        _check_version(service, name, plan.version)
        figures = _measure(service, name, version, plan)
    finally:
        service.close()
    return {"model": name, "load": load, **figures}


def _measure(
    service: Service, name: str, version: str | None, plan: BenchPlan
) -> dict[str, Any]:
    """Load the model, and measure it."""
    with service.running(name, version) as (_, handle):
        session = handle.model.sessions[0]
        if not isinstance(session, LlmSession) or session.header.pooling:
            raise CommandError(f"{name!r} generates no text")
        figures = _measure_ways(service, name, session, plan)
        memory = LanguageSubject(session).memory()
        figures["version"] = handle.model.version.name
        figures["runtime"] = session.runtime
        figures["engine_memory_bytes"] = dict(memory)
        return figures


def _check_version(service: Service, name: str, version: str | None) -> None:
    """Raise CommandError for another version than the default one."""
    default = service.entry(name).default_version
    if version not in (None, default):
        raise CommandError(
            "a language model is measured in its default version; pocketserve"
            f" compare {name} measures all"
        )


def _measure_ways(
    service: Service, name: str, session: LlmSession, plan: BenchPlan
) -> dict[str, Any]:
    from pocketserve_client import Client

    ways: dict[str, Callable[[], WayTime]] = {}
    ways["engine"] = partial(_ask_engine, LanguageSubject(session))
    settings = ("--threads", str(plan.threads), "--low-power", "off")
    with (
        own_server(service.config.models_dir, *settings) as server,
        Client(server.socket, token_file=server.token_file) as framed,
        Client(server.http, token_file=server.token_file) as http,
    ):
        ways["socket"] = partial(_ask_server, framed, name)
        ways["http"] = partial(_ask_server, http, name)
        first_answer_ms = _milliseconds_of(ways["socket"])
        summaries = _take_turns(ways, plan)
        memory = memory_of(server.pid)
    return {
        "first_answer_ms": first_answer_ms,
        "ways": summaries,
        "server_memory_bytes": memory,
    }


def _milliseconds_of(ask: Callable[[], WayTime]) -> float:
    """Return the time of a whole answer."""
    began = time.perf_counter()
    ask()
    return (time.perf_counter() - began) * 1e3


def _take_turns(
    ways: Mapping[str, Callable[[], WayTime]], plan: BenchPlan
) -> dict[str, Any]:
    """Return the figures of all ways, which are asked in turns."""
    progress = Progress()
    for ask in ways.values():
        ask()  # warm-up

    def show(share: float) -> None:
        progress.show("measuring", share)

    samples = take_turns(
        ways,
        plan.seconds,
        plan.rounds,
        show,
        least_rounds=LEAST_ROUNDS,
        overtime=math.inf,
    )
    progress.end()
    summaries = {}
    for way, times in samples.items():
        summaries[way] = _summary(times)
    return summaries


def _ask_engine(subject: LanguageSubject) -> WayTime:
    """Time an answer of the engine's process."""
    clock = _AnswerClock()
    for piece in subject.pieces(QUESTION, TOKENS):
        clock.take(piece)
    return clock.stop(clock.pieces)


def _ask_server(client: Client, name: str) -> WayTime:
    """Time an answer of the server."""
    clock = _AnswerClock()
    stream = client.chat(name, QUESTION, temperature=0, max_tokens=TOKENS)
    with stream:
        for piece in stream:
            clock.take(piece)
    # The server merges pieces that wait for a slow reader.
    tokens = stream.usage.get("completion_tokens", clock.pieces)
    return clock.stop(tokens)


class _AnswerClock:
    """Times an answer from now on.

    Attributes:
        pieces: with text, so far.
    """

    def __init__(self) -> None:
        self.pieces = 0
        self._first = 0.0
        self._began = time.perf_counter()

    def take(self, piece: str) -> None:
        """Note a piece of the answer."""
        if piece:
            self.pieces += 1
            self._first = self._first or time.perf_counter()

    def stop(self, tokens: int) -> WayTime:
        """Return the figures of an answer with a number of tokens."""
        end = time.perf_counter()
        first = self._first or end
        first_ms = (first - self._began) * 1e3
        rate = tokens / (end - self._began)
        return WayTime(first_ms, rate)


def _summary(times: list[WayTime]) -> dict[str, Any]:
    first = []
    rates = []
    samples = []
    for item in times:
        first.append(item.first_ms)
        rates.append(item.rate)
        samples.append([item.first_ms, item.rate])
    return {
        "first_ms": statistics.median(first),
        "rate": statistics.median(rates),
        "samples": samples,
    }


def print_language_bench(result: Mapping[str, Any]) -> None:
    """Print a row for each way."""
    print_text(load_warning(result["load"]))
    _print_times(result["ways"])
    memory = result["engine_memory_bytes"]
    engine = memory.get("proportional")
    if engine is not None:
        size = human_bytes(engine)
        print_text(f"The engine's process has {size} of memory.")
    print_text(
        "The server's first answer, which loads the model, took"
        f" {result['first_answer_ms']:.0f} ms."
    )


def _print_times(ways: Mapping[str, Any]) -> None:
    """Print the table of first tokens and rates."""
    alone = ways["engine"]
    rows = []
    for way, title in WAYS.items():
        figures = ways[way]
        compared = alone
        if way == "engine":
            compared = None
        cells = _cells(figures, compared)
        rows.append([title, *cells])
    header = ["WHOLE ANSWER", "FIRST TOKEN ms", "ADDED ms", "TOKENS/s", "SHARE"]
    print_wide_table(header, rows)


def _cells(figures: Mapping[str, Any], alone: Mapping[str, Any] | None) -> list[str]:
    """Return a row's cells.

    Args:
        alone: the engine's own figures; None for their own row.
    """
    first = figures["first_ms"]
    rate = figures["rate"]
    added = ""
    share = ""
    if alone is not None:
        added_ms = first - alone["first_ms"]
        added = f"{added_ms:+.1f}"
        share_of_rate = rate / alone["rate"]
        share = f"{share_of_rate:.2f}"
    return [f"{first:.1f}", added, f"{rate:.1f}", share]
