"""The client for asyncio: the same calls, awaited."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Callable,
    Iterable,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import Any, Literal, TypeVar, overload

import numpy.typing as npt

from pocketserve_client.aio.threads import run_in_thread, run_to_its_end
from pocketserve_client.calls import Call, FallbackServer, ModelSequence
from pocketserve_client.client import FILES_AT_ONCE, Client
from pocketserve_client.http import DEFAULT_MAX_ANSWER_BYTES
from pocketserve_client.inputs import File, Files, RawInput, is_list_of_files
from pocketserve_client.language.chat import Messages
from pocketserve_client.language.transcripts import SpokenSegment
from pocketserve_client.transport import LabelledAnswer, Outputs, Picture

MAX_AT_ONCE = 64
"""Concurrent calls of one client, each with a thread; further ones wait."""

T = TypeVar("T")


class AsyncClient:
    """A client whose calls are awaited, with the interface of :class:`Client`.

    Use it with ``async with``, or await :meth:`close`. Cancelling a task cancels its
    request: the server does not start it, or its answer is dropped. Only one event loop
    at a time may use it.

    Args: see :class:`Client`.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        token_file: Path | None = None,
        timeout: float = 60.0,
        reconnect: float = 5.0,
        max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES,
        fallback: FallbackServer | None = None,
    ) -> None:
        self._client = Client(
            url,
            token,
            token_file=token_file,
            timeout=timeout,
            reconnect=reconnect,
            max_answer_bytes=max_answer_bytes,
            fallback=fallback,
        )
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._client).replace("Client", "AsyncClient", 1)

    async def close(self) -> None:
        """Close the connections; calls in progress fail."""
        await run_in_thread(self._client.close)

    async def is_ready(self) -> bool:
        """Return whether the server accepts requests."""
        return await self._run(self._client.is_ready)

    async def server_metadata(self) -> dict[str, Any]:
        """Return the server's name, version and protocol extensions."""
        return await self._run(self._client.server_metadata)

    async def index(self, *, ready_only: bool = False) -> list[dict[str, Any]]:
        """Return all versions of all models."""
        return await self._run(lambda: self._client.index(ready_only=ready_only))

    async def models(self) -> list[str]:
        """Return the names of all models."""
        return await self._run(self._client.models)

    async def is_model_ready(self, model: str, version: str | None = None) -> bool:
        """Return whether the model accepts requests."""
        return await self._run(lambda: self._client.is_model_ready(model, version))

    async def model_metadata(
        self, model: str, version: str | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Return a model's inputs, outputs and versions."""
        return await self._run(
            lambda: self._client.model_metadata(model, version, timeout=timeout)
        )

    async def model_interface(
        self, model: str, version: str | None = None
    ) -> dict[str, Any]:
        """Return a model's tensors, calls, labels and fingerprint."""
        return await self._run(lambda: self._client.model_interface(model, version))

    async def statistics(
        self, model: str | None = None, version: str | None = None
    ) -> list[dict[str, Any]]:
        """Return statistics of one version, one model or all models."""
        return await self._run(lambda: self._client.statistics(model, version))

    async def chat(
        self,
        model: str,
        messages: Messages,
        *,
        timeout: float | None = None,
        **fields: Any,
    ) -> AsyncIterator[str]:
        """Yield the pieces of a language model's answer, as in :meth:`Client.chat`."""
        stream = self._client.chat(model, messages, timeout=timeout, **fields)
        try:
            while True:
                piece = await self._run(lambda: next(stream, None))
                if piece is None:
                    return
                yield piece
        finally:
            stream.close()

    async def transcribe(
        self, model: str, sound: File, **options: Any
    ) -> AsyncIterator[SpokenSegment]:
        """Yield the segments of a sound's transcript, as in :meth:`Client.transcribe`."""
        # Reading the file may take long.
        stream = await self._run(
            lambda: self._client.transcribe(model, sound, **options)
        )
        try:
            while True:
                segment = await self._run(lambda: next(stream, None))
                if segment is None:
                    return
                yield segment
        finally:
            stream.close()

    async def load(
        self, model: str, *, release: bool = False, timeout: float | None = None
    ) -> None:
        """Load a model, or reload it after its files have changed."""
        await self._run(
            lambda: self._client.load(model, release=release, timeout=timeout)
        )

    async def unload(self, model: str) -> None:
        """Stop serving a model until it is loaded again."""
        await self._run(lambda: self._client.unload(model))

    async def infer(
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        outputs: Sequence[str] = (),
        version: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        wait: float | None = None,
        datatypes: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Outputs:
        """Run a model on tensors."""

        def start() -> Call[Outputs]:
            return self._client.async_infer(
                model,
                inputs,
                outputs=outputs,
                version=version,
                parameters=parameters,
                wait=wait,
                datatypes=datatypes,
                timeout=timeout,
            )

        return await self._call(start)

    @overload
    async def predict(
        self,
        model: str,
        data: Files,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        version: str | None = ...,
        annotate: Literal["both"] | None = ...,
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
        wait: float | None = ...,
        timeout: float | None = ...,
    ) -> list[LabelledAnswer]: ...
    @overload
    async def predict(
        self,
        model: str,
        data: Files,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        version: str | None = ...,
        annotate: Literal["png", "jpeg"],
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
        wait: float | None = ...,
        timeout: float | None = ...,
    ) -> list[Picture]: ...
    @overload
    async def predict(
        self,
        model: str,
        data: RawInput,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        version: str | None = ...,
        annotate: Literal["both"] | None = ...,
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
        wait: float | None = ...,
        timeout: float | None = ...,
    ) -> LabelledAnswer: ...
    @overload
    async def predict(
        self,
        model: str,
        data: RawInput,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        version: str | None = ...,
        annotate: Literal["png", "jpeg"],
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
        wait: float | None = ...,
        timeout: float | None = ...,
    ) -> Picture: ...
    @overload
    async def predict(
        self,
        model: str,
        data: RawInput | Files,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        version: str | None = ...,
        annotate: str | None,
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
        wait: float | None = ...,
        timeout: float | None = ...,
    ) -> Any: ...
    async def predict(self, model: str, data: RawInput | Files, **options: Any) -> Any:
        """Run a model on raw input, or on each of a list of files."""
        if not is_list_of_files(data):
            return await self._predict_one(model, data, options)
        answers = self.stream(model, data, at_once=FILES_AT_ONCE, **options)
        return [answer async for answer in answers]

    async def stream(
        self,
        model: str,
        inputs: Iterable[RawInput] | AsyncIterable[RawInput],
        *,
        at_once: int = 2,
        **options: Any,
    ) -> AsyncIterator[Any]:
        """Yield the answers to raw inputs, such as a camera's frames, in their order.

        Args:
            inputs: consumed as answers arrive: ``at_once`` of them are in progress, or
                one if they are steps of a sequence.
            options: see :meth:`Client.predict`.
        """
        if at_once < 1:
            raise ValueError("at_once must be at least 1")
        parameters = options.get("parameters") or {}
        at_once = 1 if "sequence_id" in parameters else at_once
        tasks: deque[asyncio.Task[Any]] = deque()
        try:
            async for data in _iterate(inputs):
                if len(tasks) >= at_once:
                    yield await tasks.popleft()
                tasks.append(
                    asyncio.create_task(self._predict_one(model, data, options))
                )
            while tasks:
                yield await tasks.popleft()
        finally:
            for task in tasks:
                task.cancel()

    def sequence(
        self,
        model: str,
        *,
        sequence_id: int | str | None = None,
        version: str | None = None,
    ) -> AsyncModelSequence:
        """Return a sequence of requests to a stateful model, for ``async with``."""
        return AsyncModelSequence(
            self._client.sequence(model, sequence_id=sequence_id, version=version)
        )

    async def _predict_one(
        self, model: str, data: RawInput, options: Mapping[str, Any]
    ) -> Any:
        return await self._call(
            lambda: self._client.async_predict(model, data, **options)
        )

    async def _run(self, function: Callable[[], T]) -> T:
        await self._slots.acquire()
        return await run_to_its_end(function, self._slots.release)

    async def _call(self, start: Callable[[], Call[T]]) -> T:
        """Start a call on a thread, as it may connect, and await it."""
        async with self._slots:
            started = run_in_thread(start)
            try:
                call = await asyncio.shield(started)
            except asyncio.CancelledError:
                started.add_done_callback(_cancel_call)
                raise
            return await call


class AsyncModelSequence:
    """The steps of one sequence, made by :meth:`AsyncClient.sequence`; one at a time."""

    def __init__(self, sequence: ModelSequence) -> None:
        self._sequence = sequence
        self._step = asyncio.Lock()
        self.id = sequence.id

    async def __aenter__(self) -> AsyncModelSequence:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    async def infer(
        self, inputs: Mapping[str, npt.ArrayLike], **options: Any
    ) -> Mapping[str, Any]:
        """Send the tensors of the next step."""
        return await self._run(lambda: self._sequence.infer(inputs, **options))

    async def predict(self, data: RawInput, **options: Any) -> Any:
        """Send the raw input of the next step."""
        return await self._run(lambda: self._sequence.predict(data, **options))

    async def close(self) -> None:
        """End the sequence after a step that is in progress."""
        await self._run(self._sequence.close)

    async def _run(self, function: Callable[[], T]) -> T:
        """Run a step; the next one waits, even if it is cancelled."""
        await self._step.acquire()
        return await run_to_its_end(function, self._step.release)


def _cancel_call(started: asyncio.Future[Call[Any]]) -> None:
    """Cancel a call that started after its task was cancelled."""
    if not started.cancelled() and started.exception() is None:
        run_in_thread(started.result().cancel)


async def _iterate(
    inputs: Iterable[RawInput] | AsyncIterable[RawInput],
) -> AsyncIterator[RawInput]:
    if isinstance(inputs, AsyncIterable):
        async for data in inputs:
            yield data
    else:
        for data in inputs:
            yield data
