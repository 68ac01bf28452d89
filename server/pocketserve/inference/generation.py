"""Run a language model: its answer comes in parts, and ends with the client's patience."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.cancellation import cancelled
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.statistics import Timing
from pocketserve.formats.gguf import GgufHeader
from pocketserve.inference.embeddings import embed_texts
from pocketserve.inference.operations import answer_end, check_client, wrong_model
from pocketserve.inference.payload import GenerationPayload, Prediction, RawPayload
from pocketserve.messages import excerpt
from pocketserve.runtimes.llm.client import (
    EngineError,
    EngineInterruptedError,
    EngineTimeoutError,
)
from pocketserve.runtimes.llm.process import EngineEndedError, EngineStaysAwayError
from pocketserve.runtimes.llm.session import INPUT, OUTPUT, LlmSession
from pocketserve.runtimes.llm.settings import CHAT, COMPLETIONS, EMBEDDINGS
from pocketserve.tasks.text.text_generation import read_text
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.sequences import Sequence as OpenSequence
    from pocketserve.engine.lifecycle.sequences import SequenceStep
    from pocketserve.tasks.base import Arrays

TOO_LONG: Final = "exceed_context_size_error"


class Generation:
    """The answer of a language model.

    Attributes:
        events: the engine's events; empty where they were handed on one by one.
        context: tokens of the model's context.
    """

    __slots__ = ("context", "events", "model", "timing", "version")

    def __init__(
        self, model: str, version: str, context: int, events: list[Mapping[str, Any]]
    ) -> None:
        self.model = model
        self.version = version
        self.context = context
        self.events = events
        self.timing = Timing(0, 0, 0, 0)

    def text(self) -> str:
        """Return the text of all events."""
        texts: list[str] = []
        for event in self.events:
            texts.extend(texts_of(event))
        return "".join(texts)


class GenerationOperation:
    """A request to a language model.

    Raises:
        ApiError: INVALID_REQUEST where the model does not generate text, or only that.
    """

    signature: str | None = None
    timed = True
    prepare_ns = 0
    sequence: OpenSequence | None = None
    step: SequenceStep | None = None
    arrays: Arrays | None = None
    rows = 1
    executions = 0

    def __init__(
        self,
        handle: ModelHandle,
        payload: GenerationPayload | RawPayload,
        options: RequestOptions,
    ) -> None:
        self._model = handle.model
        self._options = options
        session = handle.model.sessions[0]
        if not isinstance(session, LlmSession):
            raise wrong_model(handle, "language model")
        self._is_raw = isinstance(payload, RawPayload)
        if isinstance(payload, RawPayload):
            payload = _chat_of(payload, session)
        _check_kind(handle, payload, session)
        self._payload = payload

    def run(self, session: Any, arrays: Arrays | None) -> Generation:
        """Generate the answer.

        Raises:
            ApiError: for every fault of the request or of the engine.
        """
        payload = self._payload
        deadline = answer_end(session.options.timeout, payload.deadline)
        self._check()  # the client may have left while the request was in the queue
        try:
            if payload.path == EMBEDDINGS:
                events = [self._embed(session, deadline)]
            else:
                events = self._generate(session, deadline)
        except EngineError as error:
            raise _refusal(error, payload) from error
        except EngineTimeoutError as error:
            raise ApiError(
                ErrorCode.DEADLINE_EXCEEDED,
                "the answer took longer than its time limit; request fewer tokens",
            ) from error
        except EngineInterruptedError:
            raise cancelled() from None
        except EngineStaysAwayError as error:
            raise ApiError(ErrorCode.INFERENCE_FAILED, str(error)) from error
        except EngineEndedError as error:
            text = f"{error}; the next request starts it again"
            raise ApiError(ErrorCode.INFERENCE_FAILED, text) from error
        entry, version = self._model.entry, self._model.version
        return Generation(entry.name, version.name, session.context, events)

    def respond(self, result: Generation) -> Generation | Prediction:
        """Return the answer; to raw input as a prediction."""
        if not self._is_raw:
            return result
        predictions = [{"text": result.text()}]
        return Prediction(
            model=result.model,
            version=result.version,
            task=self._model.task.name,
            predictions=predictions,
            more={},
            picture=None,
            assumed=self._model.assumed,
            per_input=[predictions],
        )

    def _embed(self, session: LlmSession, deadline: float) -> Mapping[str, Any]:
        def ask(text: str) -> Any:
            return session.ask(EMBEDDINGS, {"input": text}, deadline)

        return embed_texts(ask, self._payload.body["input"], self._check)

    def _check(self) -> None:
        check_client(self._options, self._payload.on_wait)

    def _generate(
        self, session: LlmSession, deadline: float
    ) -> list[Mapping[str, Any]]:
        payload, cancellation = self._payload, self._options.cancellation
        body = dict(payload.body)
        default = min(session.options.max_tokens, session.context)
        body["max_tokens"] = min(body.get("max_tokens", default), session.context)
        owner = self._options.owner
        stream = session.stream(payload.path, body, deadline, self._check, owner)
        events = []
        if cancellation is not None:
            cancellation.listen(stream.interrupt)
        try:
            with stream as parts:
                for event in parts:
                    if payload.on_event is not None:
                        payload.on_event(event)
                    if not self._streams:
                        events.append(event)
        finally:
            if cancellation is not None:
                cancellation.listen(None)
        return events

    @property
    def _streams(self) -> bool:
        return bool(self._payload.body.get("stream"))


def complete_tensors(
    handle: ModelHandle, arrays: Mapping[str, Array], options: RequestOptions
) -> dict[str, Array]:
    """Complete the prompt in a tensor, with the checks of other requests.

    Raises:
        ApiError: for every fault of the request or of the engine.
    """
    text = bytes(arrays[INPUT].reshape(-1)[0])
    prompt = read_text(memoryview(text))
    payload = GenerationPayload(COMPLETIONS, {"prompt": prompt})
    operation = GenerationOperation(handle, payload, options)
    generation = operation.run(handle.model.sessions[0], None)
    return {OUTPUT: np.array([generation.text().encode()], dtype=object)}


def texts_of(event: Mapping[str, Any]) -> Iterator[str]:
    """Yield the pieces of text in an event."""
    for choice in event.get("choices", ()):
        yield choice.get("text") or choice.get("delta", {}).get("content") or ""


def _chat_of(payload: RawPayload, session: LlmSession) -> GenerationPayload:
    """Return the chat, or the completion, that a raw text asks for."""
    text = read_text(payload.body)
    if session.header.template:
        messages = [{"role": "user", "content": text}]
        return GenerationPayload(CHAT, {"messages": messages})
    return GenerationPayload(COMPLETIONS, {"prompt": text})


def _check_kind(
    handle: ModelHandle, payload: GenerationPayload, session: LlmSession
) -> None:
    """Refuse chats with an embedding model, and embeddings of another."""
    name = handle.model.entry.name
    embeds = bool(session.header.pooling)
    if embeds and payload.path != EMBEDDINGS:
        raise _other_model(f"{name!r} is an embedding model; use /v1/embeddings")
    if not embeds and payload.path == EMBEDDINGS:
        raise _other_model(f"{name!r} generates text and has no embeddings")
    if payload.path == CHAT and not session.header.template:
        text = (
            f"{name!r} has no chat template, so it can't chat; ask it at"
            " /v1/completions"
        )
        raise _other_model(text)
    _check_effects(name, payload, session.header)


def _check_effects(name: str, payload: GenerationPayload, header: GgufHeader) -> None:
    """Refuse fields that would have no effect on a model."""
    if payload.body.get("tools") and not header.knows_tools:
        text = (
            f"'tools' has no effect on {name!r}: its chat template doesn't mention"
            " them; choose a model made for tools"
        )
        raise ApiError(ErrorCode.INVALID_REQUEST, text, field="tools")
    for token in payload.body.get("logit_bias", {}):
        if int(token) >= header.vocabulary:
            text = (
                f"'logit_bias' has the token {token}, but {name!r} has"
                f" {header.vocabulary} tokens, from 0"
            )
            raise ApiError(ErrorCode.INVALID_REQUEST, text, field="logit_bias")


def _other_model(text: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_REQUEST, text, field="model")


def _refusal(error: EngineError, payload: GenerationPayload) -> ApiError:
    """Return the answer to a request that the engine refused."""
    if error.kind == TOO_LONG:
        text = (
            # Other people's clients look for the words "is longer than …".
            f"the prompt has {error.details.get('n_prompt_tokens')} tokens and is longer"
            f" than the model's context length of {error.details.get('n_ctx')}; send"
            " less, or give the model a larger context in its model.toml"
        )
        return ApiError(ErrorCode.CONTEXT_EXCEEDED, text)
    text = excerpt(error, 300)
    if payload.path == EMBEDDINGS and "too large" in text:
        # It reads a text as one batch, which has the size of the context.
        text = "a text is longer than the model's context length; send shorter ones"
        return ApiError(ErrorCode.CONTEXT_EXCEEDED, text)
    if error.status < 500:
        field = None
        if "JSON schema" in text:
            field = "response_format" if "response_format" in payload.body else "tools"
        return ApiError(
            ErrorCode.INVALID_REQUEST, f"the engine rejected this: {text}", field=field
        )
    return ApiError(ErrorCode.INFERENCE_FAILED, f"the engine failed: {text}")
