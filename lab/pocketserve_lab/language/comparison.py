"""Compare the versions of a language model, in turns on this device."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pocketserve.messages import did_you_mean
from pocketserve.repository.files import file_bytes
from pocketserve.runtimes.llm.client import EngineError
from pocketserve.runtimes.llm.session import LlmSession
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.local import open_local
from pocketserve_lab.language.subject import LEAST_ROUNDS, LanguageSubject, TimedAnswer
from pocketserve_lab.language.texts import PROMPTS
from pocketserve_lab.measurement import load_now, shared_start, take_turns
from pocketserve_wire import ApiError

if TYPE_CHECKING:
    from pocketserve.service import Service

FORMATS: Final = ("gguf", "transformers")
TIMED_TOKENS: Final = 64
GREEDY_TOKENS: Final = 32
PERPLEXITY_TOKENS: Final = 256
MAX_ROUNDS: Final = 1000
FAULTS: Final = (EngineError, OSError, RuntimeError)
"""Errors of an engine that refuses, ends or takes too long."""

ShowProgress = Callable[[str, float], None]
Figures = TypeVar("Figures")


@dataclass(frozen=True)
class LanguagePlan:
    """The options of the command line.

    Attributes:
        models_dir: the models folder; None for the default one.
        versions: those to compare; empty for all.
        reference: the version that others are compared with; None for the first.
        text: for the perplexity.
        seconds: for the timed turns of all versions together.
        threads: of one run; 0 uses the fast cores.
    """

    model: str
    models_dir: str | None
    text: str
    versions: Sequence[str] = ()
    reference: str | None = None
    seconds: float = 15.0
    threads: int = 0


def is_for_text(model: str, models_dir: str | None) -> bool:
    """Return whether all versions of a model are language models."""
    service, name, _ = open_local(model, models_dir)
    try:
        formats = set()
        for version in service.entry(name).versions.values():
            formats.add(version.format.name)
        return bool(formats) and formats.issubset(FORMATS)
    except ApiError:
        return False  # the command reports the fault
    finally:
        service.close()


def compare_language_versions(
    plan: LanguagePlan, progress: ShowProgress
) -> dict[str, Any]:
    """Run all versions, and return the result as plain JSON values.

    Raises:
        CommandError: no version can be run.
    """
    load = load_now()
    service, name, _ = open_local(plan.model, plan.models_dir, threads=plan.threads)
    try:
        with ExitStack() as stack:
            session = LanguageSession(service, name, plan, stack, progress)
            result = session.measure()
    finally:
        service.close()
    return {"model": name, "kind": "language", "load": load, **result}


class LanguageSession:
    """All versions, loaded at the same time."""

    def __init__(
        self,
        service: Service,
        name: str,
        plan: LanguagePlan,
        stack: ExitStack,
        progress: ShowProgress,
    ) -> None:
        self._name = name
        self._plan = plan
        self._progress = progress
        self._facts: dict[str, dict[str, Any]] = {}
        self._subjects: dict[str, LanguageSubject] = {}
        self._skipped: dict[str, str] = {}
        for version in self._names(service, name):
            self._try_to_open(service, name, version, stack)
        self._check_subjects()

    def _check_subjects(self) -> None:
        """Raise CommandError if no version is left."""
        if not self._subjects:
            reasons = iter(self._skipped.values())
            reason = next(reasons, "it has none")
            raise CommandError(
                f"no version of {self._name!r} can be run here: {reason}"
            )

    def _names(self, service: Service, name: str) -> list[str]:
        """Return the versions to measure, the reference first.

        Raises:
            CommandError: the model has no such version.
        """
        present = list(service.entry(name).versions)
        names = list(self._plan.versions) or present
        reference = self._plan.reference
        if reference is not None:
            rest = [other for other in names if other != reference]
            names = [reference, *rest]
        for version in names:
            if version not in present:
                listed = ", ".join(present) or "none"
                hint = did_you_mean(version, present)
                raise CommandError(
                    f"{name!r} has no version {version!r}; it has {listed}{hint}"
                )
        return names

    def _try_to_open(
        self, service: Service, name: str, version: str, stack: ExitStack
    ) -> None:
        """Load a version, or note why it is left out."""
        self._progress(f"loading {version}", 0.0)
        try:
            self._open(service, name, version, stack)
        except ApiError as error:
            self._skipped[version] = str(error)

    def _open(
        self, service: Service, name: str, version: str, stack: ExitStack
    ) -> None:
        """Load a version until the stack is closed; note its facts."""
        began = time.perf_counter()
        _, handle = stack.enter_context(service.running(name, version))
        load_ms = (time.perf_counter() - began) * 1e3
        session = handle.model.sessions[0]
        if not isinstance(session, LlmSession) or session.header.pooling:
            self._skipped[version] = "it generates no text"
            return
        self._subjects[version] = LanguageSubject(session)
        header = session.header
        self._facts[version] = {
            "runtime": session.runtime,
            "quantisation": header.quantisation,
            "parameters": header.parameters,
            "context": session.context,
            "threads": handle.model.threads,
            "file_bytes": file_bytes(handle.model.version),
            "load_ms": load_ms,
        }

    def measure(self) -> dict[str, Any]:
        """Measure speed in turns, then texts and perplexity one by one.

        Raises:
            CommandError: every version's engine fails.
        """
        samples = self._time_turns()
        texts = self._of_each("comparing answers of", self._greedy_texts)
        readings = self._of_each("reading the text with", self._read_text)
        reference = next(iter(self._subjects))
        versions = {}
        for version in self._subjects:
            speed = summary_of(samples[version])
            agreement = agreement_of(texts[reference], texts[version])
            versions[version] = {
                **self._facts[version],
                **speed,
                **readings[version],
                "agreement": agreement,
                "texts": texts[version],
            }
        return {
            "reference": reference,
            "prompts": list(PROMPTS),
            "versions": versions,
            "skipped": self._skipped,
        }

    def _of_each(
        self, title: str, call: Callable[[str], Figures]
    ) -> dict[str, Figures]:
        """Return the figures of each version, without those whose engine fails.

        Args:
            title: of the work, before the version's name in the progress.

        Raises:
            CommandError: no version is left.
        """
        results = {}
        names = list(self._subjects)
        for number, version in enumerate(names):
            share = number / len(names)
            self._progress(f"{title} {version}", share)
            figures = self._attempt(version, partial(call, version))
            if figures is not None:
                results[version] = figures
        self._check_subjects()
        return results

    def _attempt(self, version: str, call: Callable[[], Figures]) -> Figures | None:
        """Return the figures of a call; leave the version out if its engine fails."""
        if version not in self._subjects:
            return None
        try:
            return call()
        except FAULTS as error:
            self._skipped[version] = f"its engine failed: {error}"
            del self._subjects[version]
            return None

    def _read_text(self, version: str) -> dict[str, Any]:
        """Return the perplexity, and the memory after it."""
        subject = self._subjects[version]
        perplexity = subject.perplexity(self._plan.text, PERPLEXITY_TOKENS)
        memory = subject.memory()
        return {
            "perplexity": dataclasses.asdict(perplexity),
            "memory_bytes": dict(memory),
        }

    def _time_turns(self) -> dict[str, list[TimedAnswer]]:
        """Return timed answers by version, measured in turns.

        Raises:
            CommandError: no version is left.
        """
        prompts = self._of_each("warming up", self._warm_up)
        calls = {}
        for name, prompt in prompts.items():
            subject = self._subjects[name]
            answer = partial(subject.time_answer, prompt, TIMED_TOKENS)
            calls[name] = partial(self._attempt, name, answer)

        def show(share: float) -> None:
            self._progress("measuring in turns", share)

        turns = take_turns(
            calls,
            self._plan.seconds,
            MAX_ROUNDS,
            show,
            least_rounds=LEAST_ROUNDS,
            overtime=math.inf,
        )
        self._check_subjects()
        samples: dict[str, list[TimedAnswer]] = {}
        for name in self._subjects:
            samples[name] = []
            for turn in turns[name]:
                if turn is not None:
                    samples[name].append(turn)
        return samples

    def _warm_up(self, version: str) -> list[int]:
        """Answer once; return the prompt, cut so that the answer fits the context."""
        subject = self._subjects[version]
        prompt = subject.prompt_tokens(self._plan.text, TIMED_TOKENS)
        subject.time_answer(prompt, 2)
        return prompt

    def _greedy_texts(self, version: str) -> list[str]:
        """Return the answers to all prompts."""
        subject = self._subjects[version]
        texts = []
        for prompt in PROMPTS:
            text = subject.greedy_text(prompt, GREEDY_TOKENS)
            texts.append(text)
        return texts


def summary_of(samples: Sequence[TimedAnswer]) -> dict[str, Any]:
    """Return the medians of all turns, and the samples."""
    listed: list[dict[str, float]] = []
    for sample in samples:
        listed.append(dataclasses.asdict(sample))
    figures: dict[str, Any] = {"samples": listed}
    for field in dataclasses.fields(TimedAnswer):
        values = []
        for entry in listed:
            values.append(entry[field.name])
        figures[field.name] = statistics.median(values)
    return figures


def agreement_of(expected: Sequence[str], texts: Sequence[str]) -> dict[str, float]:
    """Return how far greedy texts agree: whole ones, and the shares of their starts."""
    equal = 0
    shares = []
    for text, second in zip(expected, texts, strict=True):
        if text == second:
            equal += 1
            shares.append(1.0)
        else:
            longest = max(len(text), len(second))
            shared = shared_start(text, second)
            shares.append(shared / longest)
    return {
        "same": equal / len(expected),
        "start": statistics.fmean(shares),
    }
