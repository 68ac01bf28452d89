"""Generate answers with transformers: a loop with a kept cache, and prompts in pieces."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pocketserve.runtimes.hugging_face.fields import (
    TOO_LONG,
    AnswerRequest,
    RefusedError,
    read_answer,
)
from pocketserve.runtimes.hugging_face.library import load_network
from pocketserve.runtimes.hugging_face.pieces import TextPieces, token_bytes
from pocketserve.runtimes.hugging_face.sampling import Sampler
from pocketserve.runtimes.llm.settings import CHAT, EngineSettings

EngineEvent = dict[str, Any]


class FolderModel:
    """A loaded folder, which answers one request at a time.

    Attributes:
        lock: held while it answers.
    """

    def __init__(self, settings: EngineSettings, torch: Any, library: Any) -> None:
        self.lock = threading.Lock()
        self._torch = torch
        self._library = library
        self._context = settings.context
        self._batch = settings.batch
        folder = settings.model
        self.tokenizer = library.AutoTokenizer.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        dtype = getattr(torch, settings.dtype)
        self._model = load_network(library.AutoModelForCausalLM, folder, dtype).model
        self._ends = self._end_tokens()
        parameters = inspect.signature(self._model.forward).parameters
        self._keeps_last = "logits_to_keep" in parameters
        self._cache: Any = None
        self._cached: list[int] = []

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[EngineEvent]:
        """Yield the events of an answer, in the form of llama.cpp's server.

        Raises:
            RefusedError: before the first event only.
        """
        answer = read_answer(body, self._context)
        is_chat = path == CHAT
        prompt = self._read_prompt(body, is_chat)
        if len(prompt) >= self._context:
            raise RefusedError(
                "the request exceeds the available context size",
                TOO_LONG,
                {"n_prompt_tokens": len(prompt), "n_ctx": self._context},
            )
        run = _FolderAnswer(self, prompt, answer, is_chat)
        return run.events()

    def _read_prompt(self, body: Mapping[str, Any], is_chat: bool) -> list[int]:
        if is_chat:
            tokens = self.tokens(self._render(body), add_special=False)
        elif isinstance(body["prompt"], list):
            tokens = [int(token) for token in body["prompt"]]
        else:
            tokens = self.tokens(str(body["prompt"]))
        if not tokens:
            raise RefusedError("the prompt is empty")
        return tokens

    def tokens(self, text: str, *, add_special: bool = True) -> list[int]:
        """Return the tokens of a text."""
        tokens: list[int] = self.tokenizer(
            text, add_special_tokens=add_special
        ).input_ids
        return tokens

    def _render(self, body: Mapping[str, Any]) -> str:
        """Return a chat's text; the library renders templates in a sandbox."""
        from jinja2 import TemplateError

        render = self.tokenizer.apply_chat_template
        variables = body.get("chat_template_kwargs") or {}
        for name in variables:
            if name in inspect.signature(render).parameters:
                raise RefusedError(f"'chat_template_kwargs.{name:.80}' can't be set")
        try:
            text = render(
                body["messages"],
                tokenize=False,
                add_generation_prompt=True,
                **variables,
            )
        except (TemplateError, ValueError, TypeError, KeyError) as error:
            raise RefusedError(f"the chat template fails: {error}") from error
        return str(text)

    def _end_tokens(self) -> frozenset[int]:
        """Return the tokens that end an answer."""
        ends: set[int] = set()
        settings = getattr(self._model, "generation_config", None)
        for holder in (self._model.config, settings, self.tokenizer):
            value = getattr(holder, "eos_token_id", None)
            if isinstance(value, int):
                ends.add(value)
            elif value is not None:
                ends.update(value)
        return frozenset(ends)

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        return str(
            self.tokenizer.decode(
                tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
        )

    def is_end(self, token: int) -> bool:
        """Return whether a token ends an answer."""
        return token in self._ends

    def begin(self, prompt: Sequence[int], reuses: bool) -> int:
        """Keep the tokens that cache and prompt share; return their number."""
        shared = 0
        # The last token is computed anew: its scores are needed.
        limit = min(len(self._cached), len(prompt) - 1) if reuses else 0
        while shared < limit and self._cached[shared] == prompt[shared]:
            shared += 1
        if shared and self._cut(shared):
            del self._cached[shared:]
            return shared
        self._cached = []
        self._cache = self._library.DynamicCache(config=self._model.config)
        return 0

    def _cut(self, length: int) -> bool:
        """Cut the cache; False where it can't be cut, as with sliding windows."""
        if length == len(self._cached):
            return True
        for layer in self._cache.layers:
            if layer.is_sliding or not getattr(layer, "is_croppable", True):
                return False
        try:
            # A negative number is one of tokens to remove.
            self._cache.crop(length - len(self._cached))
        except (AttributeError, ValueError, NotImplementedError, RuntimeError):
            return False
        return True

    def read(self, tokens: Sequence[int]) -> Any:
        """Continue the cache by tokens; return the scores for the next one."""
        options = {"logits_to_keep": 1} if self._keeps_last else {}
        with self._torch.inference_mode():
            result = self._model(
                input_ids=self._torch.tensor([list(tokens)]),
                past_key_values=self._cache,
                use_cache=True,
                **options,
            )
        self._cached += tokens
        return result.logits[0, -1].float()

    def forget(self) -> None:
        """Drop the cache: a run ended within a token."""
        self._cached = []

    def sampler(self, answer: AnswerRequest) -> Sampler:
        """Return the sampler of an answer."""
        return Sampler(self._torch, answer.sampling)

    def barred(self, answer: AnswerRequest) -> list[int]:
        """Return the tokens that must not be chosen."""
        return sorted(self._ends) if answer.ignores_end else []

    def pieces_of(self, tokens: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield tokens in pieces of a batch."""
        for start in range(0, len(tokens), self._batch):
            yield tokens[start : start + self._batch]

    def room(self, prompt: Sequence[int], answer: AnswerRequest) -> int:
        """Return the tokens that an answer may have."""
        return min(answer.max_tokens, self._context - len(prompt))

    def logprobs(self, scores: Any, token: int, count: int) -> EngineEvent:
        """Return the probability of a token, and of the most likely ones."""
        values = self._torch.log_softmax(scores, 0)
        entry = self._probability(token, float(values[token]))
        best, tokens = self._torch.topk(values, min(count, len(values)))
        tops = []
        for value, other in zip(best.tolist(), tokens.tolist(), strict=True):
            tops.append(self._probability(other, value))
        return {**entry, "top_logprobs": tops}

    def _probability(self, token: int, value: float) -> EngineEvent:
        data = token_bytes(self.tokenizer, token)
        text = data.decode("utf-8", "replace")
        return {
            "id": token,
            "token": text,
            "bytes": list(data),
            "logprob": max(value, -1e9),
        }


class _FolderAnswer:
    """An answer of a model."""

    def __init__(
        self,
        model: FolderModel,
        prompt: list[int],
        answer: AnswerRequest,
        is_chat: bool,
    ) -> None:
        self._model = model
        self._prompt = prompt
        self._answer = answer
        self._is_chat = is_chat
        self._reused = 0
        self._generated: list[int] = []
        self._logprobs: list[EngineEvent] = []
        self._finish_reason = "length"

    def events(self) -> Iterator[EngineEvent]:
        """Read the prompt, and generate."""
        self._reused = self._model.begin(self._prompt, self._answer.reuses)
        scores: Any = None
        position = self._reused
        yield self._progress(position)
        for piece in self._model.pieces_of(self._prompt[position:]):
            scores = self._model.read(piece)
            position += len(piece)
            yield self._progress(position)
        yield from self._generate(scores)
        yield self._event("", self._finish_reason)
        yield {"choices": [], "usage": self._usage()}

    def _generate(self, scores: Any) -> Iterator[EngineEvent]:
        model, answer = self._model, self._answer
        sampler = model.sampler(answer)
        barred = model.barred(answer)
        pieces = TextPieces(model.decode, answer.stops)
        previous = list(self._prompt)
        room = model.room(self._prompt, answer)
        while True:
            token = sampler.choose(scores, previous, barred)
            self._generated.append(token)
            previous.append(token)
            if model.is_end(token):
                self._finish_reason = "stop"
                break
            if answer.sampling.logprobs is not None:
                entry = model.logprobs(scores, token, answer.sampling.logprobs)
                self._logprobs.append(entry)
            yield self._event(pieces.add(token))
            if pieces.stopped:
                self._finish_reason = "stop"
                break
            if len(self._generated) >= room:
                break
            scores = model.read([token])
        rest = pieces.finish()
        if rest:
            yield self._event(rest)

    def _event(self, text: str, finish_reason: str | None = None) -> EngineEvent:
        """Return the event of a piece of text; empty ones show that the client is there."""
        choice: EngineEvent = {"index": 0, "finish_reason": finish_reason}
        if self._is_chat:
            choice["delta"] = {} if finish_reason else {"content": text}
        else:
            choice["text"] = text
        if self._logprobs and (text or finish_reason):
            choice["logprobs"] = {"content": self._logprobs}
            self._logprobs = []
        return {"choices": [choice]}

    def _progress(self, processed: int) -> EngineEvent:
        progress = {
            "total": len(self._prompt),
            "cache": self._reused,
            "processed": processed,
        }
        return {"choices": [], "prompt_progress": progress}

    def _usage(self) -> EngineEvent:
        prompt, generated = len(self._prompt), len(self._generated)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": generated,
            "total_tokens": prompt + generated,
            "prompt_tokens_details": {"cached_tokens": self._reused},
        }
