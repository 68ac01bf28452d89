"""The asyncio client and awaited calls, over both transports."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from conftest import MODELS, Server
from held_server import TOKEN, HeldServer, until
from pocketserve_client import (
    AsyncClient,
    Client,
    ModelSequence,
    PocketserveError,
    ServerError,
    ServerUnreachableError,
)
from pocketserve_client.aio.async_client import AsyncModelSequence
from pocketserve_client.aio.threads import run_in_thread, run_to_its_end

LIMIT_S = 120.0
SEVEN = MODELS / "digits" / "samples" / "7.png"
FLOWER = [5.1, 3.5, 1.4]
BOTH = pytest.mark.parametrize("transport", ["http", "socket"])


def url_of(server: Server, transport: str) -> str:
    return f"{transport}://127.0.0.1:{server.ready[transport]['port']}"


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldServer]:
    server = HeldServer(tmp_path)
    yield server
    server.close()


@BOTH
@pytest.mark.live
def test_every_call(server: Server, transport: str) -> None:
    url = url_of(server, transport)

    async def ask() -> None:
        async with AsyncClient(url, server.token, timeout=LIMIT_S) as client:
            assert repr(client) == f"AsyncClient({url!r})"
            assert await client.is_ready()
            assert await client.is_model_ready("petals")
            assert (await client.server_metadata())["name"]
            assert "petals" in await client.models()
            assert {entry["name"] for entry in await client.index()} >= {
                "petals",
                "digits",
            }
            await client.load("petals", timeout=LIMIT_S)
            assert (await client.model_metadata("petals"))["name"] == "petals"
            assert (await client.model_interface("petals"))["fingerprint"]
            assert await client.statistics("petals")
            answer = await client.predict("petals", FLOWER)
            assert answer["predictions"]
            outputs = await client.infer(
                "petals", {"features": np.array([FLOWER], np.float32)}
            )
            assert len(outputs) == 1
            picture = await client.predict("digits", SEVEN, annotate="png")
            assert picture.startswith(b"\x89PNG")
            with pytest.raises(ServerError) as refusal:
                await client.predict("no-such", FLOWER)
            assert refusal.value.code == "MODEL_NOT_FOUND"

    asyncio.run(ask())


@BOTH
@pytest.mark.live
def test_many_concurrent_calls(server: Server, transport: str) -> None:
    async def ask() -> None:
        async with AsyncClient(
            url_of(server, transport), server.token, timeout=LIMIT_S
        ) as client:
            flowers = [[5.0 + number / 100, 3.5, 1.4] for number in range(40)]
            answers = await asyncio.gather(
                *(client.predict("petals", flower) for flower in flowers)
            )
            for flower, answer in zip(flowers, answers, strict=True):
                assert (
                    answer["predictions"]
                    == (await client.predict("petals", flower))["predictions"]
                )

    asyncio.run(ask())


@BOTH
@pytest.mark.live
def test_streams_keep_their_order(server: Server, transport: str) -> None:
    async def frames() -> AsyncIterator[bytes]:
        for _ in range(3):
            for number in (7, 3, 0):
                yield (MODELS / "digits" / "samples" / f"{number}.png").read_bytes()

    async def ask() -> None:
        async with AsyncClient(
            url_of(server, transport), server.token, timeout=LIMIT_S
        ) as client:
            expected = [
                (await client.predict("digits", frame))["predictions"]
                async for frame in frames()
            ]
            found = [
                answer["predictions"]
                async for answer in client.stream("digits", frames(), at_once=4)
            ]
            assert found == expected
            files = await client.predict("digits", [SEVEN] * 3, top_k=1)
            assert [len(answer["predictions"]) for answer in files] == [1, 1, 1]
            async for answer in client.stream("digits", [SEVEN, SEVEN]):
                assert answer["predictions"] == expected[0]
                break  # the rest is cancelled

    asyncio.run(ask())


@BOTH
@pytest.mark.live
def test_a_call_of_the_blocking_client_can_be_awaited(
    server: Server, transport: str
) -> None:
    async def ask(client: Client) -> None:
        calls = [client.async_predict("petals", FLOWER) for _ in range(5)]
        answers = [await call for call in calls]
        assert all(
            answer["predictions"] == answers[0]["predictions"] for answer in answers
        )
        assert (await calls[0])["predictions"] == answers[0]["predictions"]  # again
        with pytest.raises(ServerError):
            await client.async_predict("no-such", FLOWER)

    with Client(url_of(server, transport), server.token, timeout=LIMIT_S) as client:
        asyncio.run(ask(client))


@pytest.mark.parametrize("way", ["client", "call", "stream"])
def test_cancelling_a_task_cancels_the_request(held: HeldServer, way: str) -> None:
    """Over the socket the request leaves the queue and never runs."""
    url = f"socket://127.0.0.1:{held.addresses[0]}"
    picture = SEVEN.read_bytes()
    answered = held.answered

    async def consume(client: AsyncClient) -> None:
        async for _ in client.stream("digits", [picture]):
            pass

    async def ask() -> None:
        async with AsyncClient(url, TOKEN, timeout=LIMIT_S) as client:
            with Client(url, TOKEN, timeout=LIMIT_S) as other:
                work: Any
                if way == "client":
                    work = client.predict("digits", picture)
                elif way == "stream":
                    work = consume(client)
                else:
                    call = other.async_predict("digits", picture)

                    async def await_call() -> Any:
                        return await call

                    work = await_call()
                task = asyncio.ensure_future(work)
                await run_in_thread(
                    lambda: until(lambda: held.model.queue.waiting == 1)
                )
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await run_in_thread(
                    lambda: until(lambda: held.model.queue.waiting == 0)
                )

    with ThreadPoolExecutor(1) as pool:
        held.model.hold(pool)
        try:
            asyncio.run(ask())
        finally:
            held.model.go()
    assert held.answered == answered


def test_a_missing_server() -> None:
    async def ask() -> None:
        async with AsyncClient(
            "socket://127.0.0.1:1", "x", timeout=LIMIT_S, reconnect=0
        ) as client:
            with pytest.raises(ServerUnreachableError) as error:
                await client.predict("petals", FLOWER)
            assert isinstance(error.value, PocketserveError)

    asyncio.run(ask())


@pytest.mark.live
def test_the_steps_of_a_sequence(server: Server) -> None:
    """Without state they are ordinary requests.

    Both clients give the same answers.
    """
    inputs = {"features": np.array([FLOWER], np.float32)}

    async def ask() -> list[Any]:
        async with (
            AsyncClient(
                url_of(server, "socket"), server.token, timeout=LIMIT_S
            ) as client,
            client.sequence("petals", sequence_id="one") as sequence,
        ):
            assert sequence.id == "one"
            outputs = await sequence.infer(inputs)
            answer = await sequence.predict(FLOWER)
            return [
                *(array.tolist() for array in outputs.values()),
                answer["predictions"],
            ]

    with Client(url_of(server, "socket"), server.token, timeout=LIMIT_S) as client:
        outputs = client.infer("petals", inputs)
        expected = [
            *(array.tolist() for array in outputs.values()),
            client.predict("petals", FLOWER)["predictions"],
        ]
    assert asyncio.run(ask()) == expected


def test_a_cancelled_step_ends_before_the_next() -> None:
    """Steps of a sequence never overlap, and its end comes last."""
    release = threading.Event()
    order: list[str] = []

    class Steps:
        id = 1

        def infer(self, inputs: Any) -> dict[str, Any]:
            assert release.wait(LIMIT_S)
            order.append("step")
            return {}

        def close(self) -> None:
            order.append("end")

    async def ask() -> None:
        async with AsyncModelSequence(cast(ModelSequence, Steps())) as sequence:
            task = asyncio.ensure_future(sequence.infer({}))
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            release.set()

    asyncio.run(ask())
    assert order == ["step", "end"]


def test_cancelled_calls_keep_their_slots_until_they_end() -> None:
    release = threading.Event()
    held = []

    async def ask() -> None:
        task = asyncio.ensure_future(
            run_to_its_end(
                lambda: release.wait(LIMIT_S), lambda: held.append("released")
            )
        )
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert held == []
        release.set()
        await run_to_its_end(lambda: until(lambda: held == ["released"]), lambda: None)

    asyncio.run(ask())
    assert held == ["released"]


def test_a_stream_needs_one_free_slot() -> None:
    async def ask() -> None:
        async with AsyncClient("socket://127.0.0.1:1", "x", reconnect=0) as client:
            with pytest.raises(ValueError, match="at least 1"):
                await anext(client.stream("m", [b""], at_once=0))

    asyncio.run(ask())


def test_a_loop_that_closes_before_the_thread_ends() -> None:
    """The thread's result is dropped, and nothing is printed."""
    release = threading.Event()
    ended = threading.Event()

    def work() -> None:
        assert release.wait(LIMIT_S)
        ended.set()

    async def start() -> None:
        run_in_thread(work)

    asyncio.run(start())
    release.set()
    assert ended.wait(LIMIT_S)
