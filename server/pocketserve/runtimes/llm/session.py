"""Sessions of language models: each has an engine's process, which is started again when it dies."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from pocketserve.formats import DamagedFileError
from pocketserve.formats.gguf import GgufHeader, read_gguf
from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.runtimes.llm.client import (
    EngineConnection,
    EngineError,
    EngineInterruptedError,
    EngineLostError,
    EngineTimeoutError,
)
from pocketserve.runtimes.llm.engines import PACKAGE, find_engine
from pocketserve.runtimes.llm.memory import ContextPlan, batch_tokens, plan_context
from pocketserve.runtimes.llm.options import GenerationOptions
from pocketserve.runtimes.llm.process import (
    SOCKET_NAME,
    EngineEndedError,
    EngineProcess,
    EngineStaysAwayError,
)
from pocketserve.runtimes.llm.settings import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    EngineSettings,
)
from pocketserve.tensors import Array, TensorSpec

INPUT, OUTPUT = "text_input", "text_output"
MAX_DEATHS: Final = 3
"""Ends of the engine in a row after which it isn't started again."""

TRIAL_TOKENS: Final = 4
CHAT_TIMEOUT_S: Final = 60.0
ALIAS: Final = "model"


class LlmRuntime:
    """Opens GGUF files."""

    platform = "llama_cpp"
    option_keys: frozenset[str] = frozenset()

    def open(self, source: ModelSource) -> LlmSession:
        try:
            header = read_gguf(source.path)
        except DamagedFileError as error:
            raise ModelLoadError(f"{source.original.name}: {error}") from error
        options = source.sections.get(GenerationOptions) or GenerationOptions()
        if options.cache is not None and not header.can_store(options.cache):
            raise ModelLoadError(
                f"model.toml: generation.cache can't be {options.cache}: the model's"
                " heads have no multiple of 32 values; leave it out"
            )
        plan = plan_context(header, options, source.memory_budget)
        engine = find_engine()
        settings = _settings(source, header, plan, engine)
        return LlmSession(header, options, plan, settings, source.original.name)


class LlmSession:
    """A language model in an engine's process.

    Args:
        title: of the model in errors.

    Attributes:
        header: facts of the file.
        options: the owner's, from the manifest.
        context: tokens of prompt and answer together.
    """

    signatures: Mapping[str, Signature] = {}
    device = "cpu"

    def __init__(
        self,
        header: GgufHeader,
        options: GenerationOptions,
        plan: ContextPlan,
        settings: EngineSettings,
        title: str,
    ) -> None:
        self.header = header
        self.options = options
        self.context = plan.context
        self.memory_bytes = plan.memory_bytes
        self.inputs: Sequence[TensorSpec] = [TensorSpec(INPUT, "BYTES", (1,))]
        self.outputs: Sequence[TensorSpec] = [TensorSpec(OUTPUT, "BYTES", (1,))]
        self.runtime = "transformers" if settings.dtype else "llama.cpp"
        self._settings = settings
        self._deaths = 0
        self._prompt_owner: str | None = None
        self._title = title
        self._process: EngineProcess | None = None
        try:
            self._process = EngineProcess(self._settings, self.memory_bytes)
            self._process.wait_until_loaded()
        except EngineEndedError as error:
            self.close()
            if error.by_system:
                raise
            raise ModelLoadError(f"{self._title} can't be loaded: {error}") from error

    @property
    def pid(self) -> int | None:
        """Return the process's number; None where none runs."""
        process = self._process
        return process.pid if process is not None and process.runs else None

    def stream(
        self,
        path: str,
        body: Mapping[str, Any],
        deadline: float,
        on_wait: Callable[[], None] | None = None,
        owner: str | None = None,
    ) -> EngineStream:
        """Return the events of an answer.

        Args:
            on_wait: called every second without an event, and while the engine starts
                again; may raise to give up.
            owner: identity of the client's token; None shares no prompt's cache.

        Raises:
            EngineEndedError: the engine can't be started.
            EngineTimeoutError: the deadline passed while the engine started.
        """
        process = self._running(deadline, on_wait)
        # Cached tokens would tell a client how another's last prompt began.
        may_reuse = owner is not None and owner == self._prompt_owner
        self._prompt_owner = owner
        body = {**body, "cache_prompt": may_reuse}
        return EngineStream(self, process, path, body, deadline, on_wait)

    def ask(self, path: str, body: Mapping[str, Any], deadline: float) -> Any:
        """Return the engine's answer to a request without a stream.

        Raises:
            EngineError: the engine refused it.
            EngineEndedError: the engine died.
            EngineTimeoutError: the deadline passed.
        """
        process = self._running(deadline)
        with self.watch(process):
            connection = process.connect(deadline)
            try:
                answer = connection.ask(path, body)
            except EngineTimeoutError:
                connection.close()
                process.end_if_stuck()
                raise
            finally:
                connection.close()
        self.note_answer()
        return answer

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Complete a prompt as it is, without the chat template."""
        prompt = bytes(inputs[INPUT].reshape(-1)[0]).decode("utf-8", errors="replace")
        if not prompt:
            raise ValueError("the prompt is empty")
        body = {"prompt": prompt, "max_tokens": self.options.max_tokens}
        deadline = time.monotonic() + self.options.timeout
        texts = []
        try:
            with self.stream(COMPLETIONS, body, deadline) as events:
                for event in events:
                    for choice in event.get("choices", ()):
                        texts.append(choice.get("text") or "")
        except EngineError as error:
            raise ValueError(str(error)) from error
        output = np.array(["".join(texts).encode()], dtype=object)
        return {OUTPUT: output}

    def try_out(self) -> None:
        """Answer one chat: some files end their engine with the first request only.

        Raises:
            EngineEndedError: the engine died or hung.
            ModelLoadError: it refused.
        """
        deadline = time.monotonic() + CHAT_TIMEOUT_S
        try:
            if self.header.pooling:
                self.ask(EMBEDDINGS, {"input": "a good text"}, deadline)
                return
            path, body = _trial_request(self.header)
            with self.stream(path, body, deadline) as events:
                for _ in events:
                    pass
        except EngineTimeoutError as error:
            raise EngineEndedError(f"it did not answer a short chat: {error}") from None
        except EngineError as error:
            raise ModelLoadError(f"{self._title} can't answer: {error}") from error

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _running(
        self, deadline: float, on_wait: Callable[[], None] | None = None
    ) -> EngineProcess:
        """Return the process with its model loaded; start it again if it died."""
        process = self._process
        if process is None or not process.runs:
            process = self._start_again(process)
        process.wait_until_loaded(deadline, on_wait)
        return process

    def _start_again(self, process: EngineProcess | None) -> EngineProcess:
        if process is not None:
            self._process = None
            process.end()
        if self._deaths >= MAX_DEATHS:
            raise EngineStaysAwayError(
                f"the engine died {self._deaths} times in a row; load the model again"
            )
        self._process = EngineProcess(self._settings, self.memory_bytes)
        return self._process

    @contextlib.contextmanager
    def watch(self, process: EngineProcess) -> Iterator[None]:
        """Count deaths of the engine, and tell how it died."""
        try:
            yield
        except (EngineTimeoutError, EngineInterruptedError):
            raise
        except EngineLostError as error:
            death = process.death()
            if not death.by_system:
                self._deaths += 1
            raise death from error

    def note_answer(self) -> None:
        """Note that the engine answered, so that earlier deaths don't count."""
        self._deaths = 0


class EngineStream:
    """The events of one answer; a context, at whose end the engine stops.

    ``interrupt`` may be called by any thread: the one that reads then fails.
    """

    def __init__(
        self,
        session: LlmSession,
        process: EngineProcess,
        path: str,
        body: Mapping[str, Any],
        deadline: float,
        on_wait: Callable[[], None] | None = None,
    ) -> None:
        self._session = session
        self._on_wait = on_wait
        self._process = process
        self._path = path
        # Only a request that streams and tells its progress ends with its connection.
        self._body = {
            **body,
            "stream": True,
            "return_progress": True,
            "stream_options": {"include_usage": True},
        }
        self._has_ended = False
        with session.watch(process):
            self._connection: EngineConnection = process.connect(deadline)

    def interrupt(self) -> None:
        """Give the answer up."""
        self._connection.interrupt()

    def __enter__(self) -> Iterator[Any]:
        return self._events()

    def __exit__(self, *raised: object) -> None:
        self._connection.close()
        if not self._has_ended:
            self._process.end_if_stuck()

    def _events(self) -> Iterator[Any]:
        try:
            with self._session.watch(self._process):
                yield from self._connection.stream(
                    self._path, self._body, self._on_wait
                )
        except (EngineError, EngineEndedError):
            self._has_ended = True
            raise
        self._has_ended = True
        self._session.note_answer()


def _settings(
    source: ModelSource, header: GgufHeader, plan: ContextPlan, engine: str
) -> EngineSettings:
    return EngineSettings(
        program="" if engine == PACKAGE else engine,
        model=str(source.path),
        socket=SOCKET_NAME,
        alias=ALIAS,
        context=plan.context,
        cache=plan.cache,
        threads=source.threads,
        batch=batch_tokens(header, plan.context),
        pooling=header.pooling,
    )


def _trial_request(header: GgufHeader) -> tuple[str, dict[str, Any]]:
    if not header.template:
        return COMPLETIONS, {"prompt": "a good text", "max_tokens": TRIAL_TOKENS}
    messages = [{"role": "user", "content": "Hello"}]
    return CHAT, {"messages": messages, "max_tokens": TRIAL_TOKENS}


RUNTIME = LlmRuntime()
