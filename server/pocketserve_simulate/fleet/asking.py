"""The same inputs for every phone of a fleet, each asked alone, so that a phone is measured and not the desktop."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pocketserve.cli import CommandError
from pocketserve.cli.raw_inputs import read_inputs
from pocketserve.compare.judge import sameness
from pocketserve.compare.scores import measure_for
from pocketserve_client import Client, ServerError, ServerUnreachableError
from pocketserve_simulate.fleet.fleet import FleetPhone

Answer = Mapping[str, Any]
MAX_INPUTS: Final = 200
MAX_INPUT_BYTES: Final = 64 << 20
LEAST_ANSWERS: Final = 40  # of a measurement; a 95th percentile of fewer says little
MAX_SECONDS: Final = 5.0  # of a measurement, beyond the first answer to each input
FIRST_TIMEOUT_S: Final = 60.0  # the first answer waits for the trial of the model's file, and for its loading
TIMEOUT_S: Final = 20.0
SLOW_SHARE: Final = 0.95  # of the answers must come in time for a rate to hold


@dataclass(frozen=True, slots=True)
class Failure:
    """An input that has no answer: a stable code, or the client's error, and its text."""

    code: str
    text: str


@dataclass
class PhoneAnswers:
    """The answers of one phone.

    Attributes:
        inputs: that were asked.
        answers: to each of them, in their order.
        times_ms: of every answer, also to inputs that were asked again.
        memory: bytes that the server held behind the last answer; None where the system does not tell.
    """

    phone: FleetPhone
    inputs: Sequence[bytes]
    answers: list[Answer | Failure] = field(default_factory=list)
    times_ms: list[float] = field(default_factory=list)
    memory: int | None = None

    @property
    def failures(self) -> list[Failure]:
        """The inputs that have no answer."""
        return [answer for answer in self.answers if isinstance(answer, Failure)]

    @property
    def versions(self) -> list[str]:
        """The versions that answered."""
        return sorted({str(answer.get("version")) for answer in self.answers if not isinstance(answer, Failure)})

    def percentile(self, share: float) -> float | None:
        """Return the time within which this share of the answers came, in ms; None without answers."""
        return percentile(self.times_ms, share)

    def holds(self, rate: float) -> bool:
        """Return whether frames asked one behind the other keep to a rate: 95 % take no more than their share."""
        slow = self.percentile(SLOW_SHARE)
        return not self.failures and slow is not None and slow <= 1000 / rate

    def agreement(self, reference: Sequence[Answer | Failure]) -> float | None:
        """Return the share of the answers that are the same as others, of inputs both answered; None of none."""
        pairs = [
            (answer, other)
            for answer, other in zip(self.answers, reference, strict=True)
            if not isinstance(answer, Failure) and not isinstance(other, Failure)
        ]
        if not pairs:
            return None
        measure = measure_for(str(pairs[0][1].get("task", "")))
        return statistics.fmean(sameness(measure, [answer for answer, _ in pairs], [other for _, other in pairs]))


def percentile(times: Sequence[float], share: float) -> float | None:
    """Return the least time that this share of the times does not exceed; None of none."""
    ordered = sorted(times)
    return ordered[max(0, -int(-share * len(ordered) // 1) - 1)] if ordered else None


def inputs_for(model: str, words: Sequence[str], folder: Path) -> list[bytes]:
    """Return the inputs that are named, as ``pocketserve predict`` reads them; by default the model's own samples.

    Raises:
        CommandError: there are none, or too many, or one is too large.
    """
    samples = folder / "samples"
    if not words and not samples.is_dir():
        raise CommandError(f"the model {model!r} has no folder of samples; name inputs: --inputs FILE, FOLDER or JSON")
    listed = [entry for word in words or [str(samples)] for entry in read_inputs([word])]
    if len(listed) > MAX_INPUTS:
        raise CommandError(f"there are {len(listed)} inputs; {MAX_INPUTS} are possible")
    try:
        inputs = [entry.read() for entry in listed]
    except OSError as error:
        raise CommandError(f"{error.filename} cannot be read: {error.strerror}") from None
    if any(len(data) > MAX_INPUT_BYTES for data in inputs):
        raise CommandError(f"an input has more than {MAX_INPUT_BYTES >> 20} MB")
    return inputs


def ask_phone(phone: FleetPhone, model: str, inputs: Sequence[bytes], version: str = "") -> PhoneAnswers:
    """Ask one phone every input, and again until there are enough answers or the time is over.

    The model is loaded at the desktop's speed; what counts is asked at the phone's own.

    Args:
        version: that has to answer; empty for whichever does. It is not asked for: an app does not, either.
    """
    result = PhoneAnswers(phone, inputs)
    phone.phone.hurry(True)
    with phone.client(FIRST_TIMEOUT_S) as client:
        _ask(client, model, inputs[0], "")
    phone.phone.hurry(False)
    with phone.client(TIMEOUT_S) as client:
        begin = time.monotonic()
        count = 0
        while count < len(inputs) or (count < LEAST_ANSWERS and time.monotonic() - begin < MAX_SECONDS):
            sent = time.perf_counter()
            answer = _ask(client, model, inputs[count % len(inputs)], version)
            if not isinstance(answer, Failure):
                result.times_ms.append(1000 * (time.perf_counter() - sent))
            if count < len(inputs):
                result.answers.append(answer)
            count += 1
    result.memory = phone.phone.memory_bytes()
    phone.phone.hurry(True)  # an idle phone has no pace, and the desktop has others to run
    return result


def _ask(client: Client, model: str, data: bytes, version: str) -> Answer | Failure:
    try:
        answer: Answer = client.predict(model, data)
    except ServerError as error:
        return Failure(error.code, str(error))
    except ServerUnreachableError as error:
        return Failure(type(error).__name__.removesuffix("Error"), str(error))
    if version and answer.get("version") != version:
        return Failure("OTHER_VERSION", f"version {answer.get('version')} answered, not {version}")
    return answer
