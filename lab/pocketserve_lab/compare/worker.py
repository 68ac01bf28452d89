"""The process that runs and times one version.

Run as ``python -m pocketserve_lab.compare.worker PARENT``; the parent sends requests
over standard input, in frames. The model is called through the service, as by every
transport, so its own task decodes the data. Output of frameworks goes to standard error.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.child.frames import FramePipe
from pocketserve.child.memory import memory_of
from pocketserve.engine.device.processes import bind_to, descendants_of, stat_fields
from pocketserve.inference.blocking import submit_and_wait
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.payload import Payload, Prediction, RawPayload, TensorPayload
from pocketserve.repository.files import file_bytes
from pocketserve.tasks.base import AnswerOptions
from pocketserve.tensors import TensorSpec, to_array, to_tensor
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.local import open_local
from pocketserve_lab.compare.samples import facts_of
from pocketserve_lab.compare.speech import transcripts
from pocketserve_lab.random_inputs import random_inputs
from pocketserve_wire import ApiError
from pocketserve_wire.oip import InferRequest, InferResponse
from pocketserve_wire.tensor import Tensor

MAX_MESSAGE_BYTES = 1 << 30
"""Of a request or an answer, in JSON."""

ALL_ENTRIES = 10_000
RANDOM_SAMPLES = 8
TIMED_SAMPLES = 32
"""Samples used in the timed turns; they are kept in memory."""

WARM_S = 0.002
"""Untimed work at the start of a turn.

Other versions have used the cores and their caches in between."""

LEAST_SCORE = 0.01
"""Least score of detections kept for the average precision.

It needs more detections than clients get."""

MAX_VALUES = 4096
"""Numbers of an answer that are compared; from a larger tensor, evenly spaced ones."""


class Subject:
    """A version under measurement.

    Each method is a request of the parent.

    Args:
        job: ``model``, ``version``, ``models_dir`` and ``threads``; ``options``
            replaces the options of the version's table in the manifest.
    """

    def __init__(self, job: dict[str, Any]) -> None:
        self._service, self._name, _ = open_local(
            job["model"], job["models_dir"], threads=job["threads"]
        )
        self._version = job["version"]
        if job.get("options") is not None:
            self._replace_options(job["options"])
        self._sources: list[Callable[[], Payload]] = []
        self._payloads: list[Payload] = []
        self._next = 0
        self._slowest_s = 0.0

    def _replace_options(self, options: dict[str, Any]) -> None:
        """Replace the version's options of the manifest."""
        models = self._service.repository.models()
        entry = models[self._name]
        version = entry.versions[self._version]._replace(options=options)
        models.replace(
            entry._replace(versions={**entry.versions, self._version: version})
        )

    def open(self) -> dict[str, Any]:
        """Load the version.

        Return its load time, its memory, and facts about it.
        """
        baseline = _memory()
        began = time.perf_counter()
        with self._service.running(self._name, self._version) as (entry, handle):
            seconds = time.perf_counter() - began
            model = handle.model
            return {
                "load_ms": seconds * 1e3,
                "memory_before": baseline,
                "memory_loaded": _memory(),
                "file_bytes": file_bytes(model.version),
                "format": model.version.format.name,
                "runtime": model.runtime,
                "device": model.sessions[0].device,
                "threads": model.threads,
                "facts": facts_of(entry, model),
            }

    def take(self, samples: Sequence[dict[str, str]]) -> int:
        """Set the samples to run, each ``{"path"}`` or ``{"text"}``.

        Return how many. Without samples, random tensors are used.
        """
        self._sources = [partial(_read, sample) for sample in samples]
        if not samples:
            with self._service.running(self._name, self._version) as (_, handle):
                specs = handle.model.inputs.specs
            for seed in range(RANDOM_SAMPLES):
                self._sources.append(partial(_random, specs, seed))
        return len(self._sources)

    def answer(self, first: int, count: int) -> dict[str, Any]:
        """Return full answers to some samples, and the first time.

        The first samples that are answered are kept for the timed turns.
        """
        answers: list[dict[str, Any]] = []
        first_ms = 0.0
        for source in self._sources[first : first + count]:
            payload = source()
            full = self._full(payload)
            began = time.perf_counter()
            answer = self._answer(full)
            first_ms = first_ms or (time.perf_counter() - began) * 1e3
            answers.append(answer)
            if "error" not in answer and len(self._payloads) < TIMED_SAMPLES:
                self._payloads.append(payload)
        return {"answers": answers, "first_ms": first_ms}

    def _answer(self, payload: Payload) -> dict[str, Any]:
        """Return the answer to a request, or ``{"error"}``."""
        began = time.perf_counter()
        try:
            prediction = self._ask(payload)
        except ApiError as error:
            return {"error": str(error)}
        answer = _plain(prediction, self._threshold())
        if getattr(prediction, "task", "") == transcripts.TASK:
            answer[transcripts.RUN_SECONDS] = time.perf_counter() - began
        return answer

    def turn(self, seconds: float, maximum: int) -> dict[str, Any]:
        """Run samples for a while.

        Return the milliseconds of each, and CPU seconds. ``run_ms`` is the model alone,
        ``answer_ms`` the whole answer with decoding. A turn starts one sample after the
        start of the last one, so all versions get the same samples in the same round.
        """
        if not self._payloads:
            raise CommandError("it answers none of the samples")
        first = self._next
        self._next += 1
        warming = self._warm_up(first)
        statistics = self._service.engine.statistics(self._name, self._version)
        runs: list[float] = []
        answers: list[float] = []
        infer_ns = statistics.runs.infer_ns
        cpu = time.process_time()
        began = now = time.perf_counter()
        while now - began < seconds and len(answers) < maximum:
            start = time.perf_counter()
            self._ask_sample(first + len(answers))
            now = time.perf_counter()
            answers.append((now - start) * 1e3)
            runs.append((statistics.runs.infer_ns - infer_ns) / 1e6)
            infer_ns = statistics.runs.infer_ns
        used = time.process_time() - cpu
        self._slowest_s = max(answers) / 1e3
        return {
            "run_ms": runs,
            "answer_ms": answers,
            "cpu_s": used,
            "asked": warming + len(answers),
        }

    def _warm_up(self, sample: int) -> int:
        """Run a sample for a moment, unless runs are long.

        Return how often.
        """
        runs = 0
        end = time.perf_counter() + WARM_S
        while self._slowest_s < 10 * WARM_S and time.perf_counter() < end:
            self._ask_sample(sample)
            runs += 1
        return runs

    def throughput(self, seconds: float, callers: int) -> dict[str, Any]:
        """Run samples in several threads; return answers and seconds."""
        end = time.perf_counter() + seconds
        counts = [0] * callers

        def ask(caller: int) -> None:
            while time.perf_counter() < end:
                self._ask_sample(caller + counts[caller])
                counts[caller] += 1

        began = time.perf_counter()
        _run_threads(ask, callers)
        return {"answers": sum(counts), "seconds": time.perf_counter() - began}

    def memory(self) -> dict[str, Any]:
        """Return the memory of all processes, and the children's CPU time."""
        return _memory()

    def close(self) -> None:
        """Unload the version."""
        self._service.close()

    def _ask_sample(self, number: int) -> None:
        """Run one of the timed samples; numbers wrap around."""
        self._ask(self._payloads[number % len(self._payloads)])

    def _ask(self, payload: Payload) -> Any:
        options = self._service.request_options({})
        call = InferenceCall(self._name, self._version, payload, options)
        return submit_and_wait(self._service.submit, call)

    def _full(self, payload: Payload) -> Payload:
        """Return a request for the full answer."""
        if isinstance(payload, RawPayload):
            return payload._replace(options=self._options())
        return payload

    def _options(self) -> AnswerOptions:
        """Return options for an answer that can be judged.

        It has all classes with scores, unsure detections, or the mask.
        """
        handle = self._service.engine.running(self._name, self._version)
        if handle is None:
            return AnswerOptions()
        task = handle.model.task
        options = AnswerOptions(threshold=self._least_score())
        if task.name == "image-segmentation":
            return options._replace(values={"mask": "png"})
        if task.name.endswith("-classification"):
            return options._replace(top_k=ALL_ENTRIES)
        return options

    def _least_score(self) -> float | None:
        return None if self._threshold() is None else LEAST_SCORE

    def _threshold(self) -> float | None:
        """Return the least score of a detection that clients get.

        None if the model detects nothing.
        """
        handle = self._service.engine.running(self._name, self._version)
        if handle is None:
            return None
        return getattr(handle.model.task, "threshold", None)


def _run_threads(work: Callable[[int], None], number: int) -> None:
    """Do some work in several threads, each with its number."""
    threads = []
    for index in range(number):
        thread = threading.Thread(target=work, args=(index,))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()


def _read(sample: Mapping[str, str]) -> Payload:
    if "text" in sample:
        body = sample["text"].encode()
        return RawPayload(memoryview(body), AnswerOptions())
    body = Path(sample["path"]).read_bytes()
    return RawPayload(memoryview(body), AnswerOptions())


def _random(specs: Sequence[TensorSpec], seed: int) -> Payload:
    arrays = random_inputs(specs, seed)
    tensors = [to_tensor(name, array) for name, array in arrays.items()]
    return TensorPayload(InferRequest(inputs=tensors))


def _memory() -> dict[str, Any]:
    """Return memory by kind, and CPU seconds of children."""
    own = os.getpid()
    # A child that has ended is counted by the process that waited for it, so the total
    # never falls.
    ticks = _ticks(own, slice(13, 15))
    peak = _number_after("VmHWM:", Path(f"/proc/{own}/status"))
    for child in descendants_of(own):
        ticks += _ticks(child, slice(11, 15))
        peak += _number_after("VmHWM:", Path(f"/proc/{child}/status"))
    return {
        **(memory_of(own) or {}),
        "peak": 1024 * peak or None,
        "children_cpu_s": ticks / os.sysconf("SC_CLK_TCK"),
    }


def _number_after(key: str, file: Path) -> int:
    """Return the number after a key in a file.

    0 if there is none.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    for line in text.splitlines():
        if line.startswith(key):
            return int(line.split()[1])
    return 0


def _ticks(process: int, fields: slice) -> int:
    """Return clock ticks of CPU time.

    Fields 11 and 12 are a process's own, 13 and 14 those of its ended children.
    """
    try:
        return sum(map(int, stat_fields(process)[fields]))
    except (OSError, ValueError):
        return 0


def _plain(
    answer: Prediction | InferResponse, threshold: float | None
) -> dict[str, Any]:
    """Return an answer as plain JSON values.

    Detections below the threshold, which clients do not get, are ``further`` ones.
    """
    if isinstance(answer, InferResponse):
        return {"outputs": list(map(_plain_tensor, answer.outputs))}
    if threshold is None:
        return {"predictions": answer.predictions, **answer.more}
    entries: list[Any] = list(answer.predictions)
    # They come best first.
    number = sum(entry["score"] >= threshold for entry in entries)
    return {
        "predictions": entries[:number],
        "further": entries[number:],
        **answer.more,
    }


def _plain_tensor(tensor: Tensor) -> dict[str, Any]:
    array = to_array(tensor)
    step = max(1, -(-array.size // MAX_VALUES))
    values = array.reshape(-1)[::step]
    shape = list(array.shape)
    if array.dtype.kind == "O":
        texts = list(map(str, values))
        return {"name": tensor.name, "shape": shape, "values": texts}
    numbers = np.asarray(values, np.float64).tolist()
    return {"name": tensor.name, "shape": shape, "values": numbers}


def _serve(pipe: FramePipe) -> None:
    """Handle the parent's requests until it closes the pipe."""
    subject: Subject | None = None
    while True:
        try:
            request = pipe.receive().header
        except BrokenPipeError:
            break
        try:
            result = None
            if request["do"] == "begin":
                subject = Subject(request["job"])
            else:
                result = getattr(subject, request["do"])(*request["with"])
            reply = {"result": result}
        # Also those of frameworks: the parent lists the version with the reason.
        except Exception as error:
            reply = {"error": _error_text(error)}
        pipe.send(reply)
    if subject is not None:
        subject.close()


def _error_text(error: Exception) -> str:
    """Return an error's text, with its type unless it is ours."""
    if type(error).__module__.startswith("pocketserve"):
        return str(error)
    return f"{type(error).__name__}: {error}"


def main(parent: int) -> int:
    """Serve the parent over the standard streams, and end with it."""
    pipe = FramePipe(os.dup(0), os.dup(1), MAX_MESSAGE_BYTES)
    # Frameworks print to standard output, and some read standard input.
    os.dup2(2, 1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    if not bind_to(parent):
        return 1
    _serve(pipe)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
