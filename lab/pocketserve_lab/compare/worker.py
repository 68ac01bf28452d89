"""The process of one version: loads it, answers samples, and is timed in turns, as its parent says over a pipe.

Run as ``python -m pocketserve_lab.compare.worker PARENT DESCRIPTOR``. It asks the model through the service, as every
transport does: its own task decodes the data. Whatever a framework prints goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.engine.device.process_memory import memory_of
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
from pocketserve_lab.random_inputs import random_inputs
from pocketserve_wire import ApiError
from pocketserve_wire.oip import InferRequest, InferResponse

ALL_ENTRIES = 10_000
RANDOM_SAMPLES = 8
TIMED_SAMPLES = 32
"""Samples that the timed turns go through; they are held in memory."""

WARM_S = 0.002
"""A turn begins with so much work that is not counted: the other versions had the cores and their caches meanwhile."""

LEAST_SCORE = 0.01
"""Of detections that are kept for the average precision, which needs more than an answer has."""

MAX_VALUES = 4096
"""Numbers of an answer that are compared; of a larger tensor some at equal distances."""


class Subject:
    """A version under measurement; each method is a request of the parent.

    Args:
        job: ``model``, ``version``, ``models_dir`` and ``threads``; ``options`` for the version's table, where they
            are not the manifest's.
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
        """Have the version loaded as if the manifest had these options; a trial is of them, too."""
        models = self._service.repository.models()
        entry = models[self._name]
        version = entry.versions[self._version]._replace(options=options)
        models.replace(
            entry._replace(versions={**entry.versions, self._version: version})
        )

    def open(self) -> dict[str, Any]:
        """Load the version; return how long that took, what it holds, and what its data must look like."""
        baseline, began = _memory(), time.perf_counter()
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
        """Hold the samples to ask, ``{"path"}`` or ``{"text"}`` each; none stands for random tensors."""
        self._sources = [partial(_read, sample) for sample in samples]
        if not samples:
            with self._service.running(self._name, self._version) as (_, handle):
                specs = handle.model.inputs.specs
            self._sources = [
                partial(_random, specs, seed) for seed in range(RANDOM_SAMPLES)
            ]
        return len(self._sources)

    def answer(self, first: int, count: int) -> dict[str, Any]:
        """Return the answers to some samples with all their entries, in JSON's own types; and the first one's time.

        The first samples that are answered are kept for the timed turns.
        """
        answers: list[dict[str, Any]] = []
        first_ms = 0.0
        for source in self._sources[first : first + count]:
            payload = source()
            whole = (
                payload._replace(options=self._options())
                if isinstance(payload, RawPayload)
                else payload
            )
            began = time.perf_counter()
            try:
                answers.append(_plain(self._ask(whole), self._threshold()))
                if len(self._payloads) < TIMED_SAMPLES:
                    self._payloads.append(payload)
            except ApiError as error:
                answers.append({"error": str(error)})
            first_ms = first_ms or (time.perf_counter() - began) * 1e3
        return {"answers": answers, "first_ms": first_ms}

    def turn(self, seconds: float, maximum: int) -> dict[str, Any]:
        """Ask one sample after the other for a while; return milliseconds of each, and the CPU seconds of all.

        ``run_ms`` is the model alone, ``answer_ms`` the whole answer with its decoding. A turn begins one sample
        further on than the last: all versions are asked the same ones in the same round.
        """
        if not self._payloads:
            raise CommandError("it answers none of the samples")
        first, self._next = self._next, self._next + 1
        statistics = self._service.engine.statistics(self._name, self._version)
        warming = 0
        warm = time.perf_counter() + WARM_S
        while self._slowest_s < 10 * WARM_S and time.perf_counter() < warm:
            self._ask(self._payloads[first % len(self._payloads)])
            warming += 1
        runs: list[float] = []
        answers: list[float] = []
        before, cpu, began = (
            statistics.runs.infer_ns,
            time.process_time(),
            time.perf_counter(),
        )
        now = began
        while now - began < seconds and len(answers) < maximum:
            start = time.perf_counter()
            self._ask(self._payloads[(first + len(answers)) % len(self._payloads)])
            now = time.perf_counter()
            infer_ns = statistics.runs.infer_ns
            answers.append((now - start) * 1e3)
            runs.append((infer_ns - before) / 1e6)
            before = infer_ns
        used = time.process_time() - cpu
        self._slowest_s = max(answers) / 1e3
        return {
            "run_ms": runs,
            "answer_ms": answers,
            "cpu_s": used,
            "asked": warming + len(answers),
        }

    def throughput(self, seconds: float, callers: int) -> dict[str, Any]:
        """Have several callers ask at the same time; return answers and seconds."""
        ends, counts = time.perf_counter() + seconds, [0] * callers

        def ask(caller: int) -> None:
            while time.perf_counter() < ends:
                self._ask(
                    self._payloads[(caller + counts[caller]) % len(self._payloads)]
                )
                counts[caller] += 1

        began = time.perf_counter()
        threads = [
            threading.Thread(target=ask, args=(caller,)) for caller in range(callers)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return {"answers": sum(counts), "seconds": time.perf_counter() - began}

    def memory(self) -> dict[str, Any]:
        """Return the memory that the process and those that it started hold, and the CPU seconds of the latter."""
        return _memory()

    def close(self) -> None:
        """Unload the version."""
        self._service.close()

    def _ask(self, payload: Payload) -> Any:
        options = self._service.request_options({})
        return submit_and_wait(
            self._service.submit,
            InferenceCall(self._name, self._version, payload, options),
        )

    def _options(self) -> AnswerOptions:
        """Return what an answer must hold to be judged: all classes with scores, unsure detections, or the mask."""
        handle = self._service.engine.running(self._name, self._version)
        task = handle.model.task.name if handle is not None else ""
        every = ALL_ENTRIES if task.endswith("-classification") else None
        least = None if self._threshold() is None else LEAST_SCORE
        return AnswerOptions(
            every, least, values={"mask": "png"} if task == "image-segmentation" else {}
        )

    def _threshold(self) -> float | None:
        """Return the least score of a detection that callers get; None where the model detects nothing."""
        handle = self._service.engine.running(self._name, self._version)
        return (
            getattr(handle.model.task, "threshold", None)
            if handle is not None
            else None
        )


def _read(sample: Mapping[str, str]) -> Payload:
    body = (
        Path(sample["path"]).read_bytes()
        if "path" in sample
        else sample["text"].encode()
    )
    return RawPayload(memoryview(body), AnswerOptions())


def _random(specs: Sequence[TensorSpec], seed: int) -> Payload:
    tensors = [
        to_tensor(name, array) for name, array in random_inputs(specs, seed).items()
    ]
    return TensorPayload(InferRequest(inputs=tensors))


def _memory() -> dict[str, Any]:
    """Return bytes by kind, the peak of what was resident, and the CPU seconds of processes that were started."""
    own = os.getpid()
    children = descendants_of(own)
    peak = sum(
        _number_after("VmHWM:", Path(f"/proc/{process}/status"))
        for process in (own, *children)
    )
    # What a child took that has ended meanwhile stands with whoever waited for it: a total that never falls.
    ticks = _ticks(own, slice(13, 15)) + sum(
        _ticks(process, slice(11, 15)) for process in children
    )
    return {
        **(memory_of(own) or {}),
        "peak": 1024 * peak or None,
        "children_cpu_s": ticks / os.sysconf("SC_CLK_TCK"),
    }


def _number_after(key: str, file: Path) -> int:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(key)), 0)


def _ticks(process: int, fields: slice) -> int:
    """Return clock ticks of processor time: fields 11 and 12 are a process's own, 13 and 14 its ended children's."""
    try:
        return sum(map(int, stat_fields(process)[fields]))
    except (OSError, ValueError):
        return 0


def _plain(
    answer: Prediction | InferResponse, threshold: float | None
) -> dict[str, Any]:
    """Return an answer in JSON's own types; detections that callers do not get are ``further`` ones."""
    if isinstance(answer, Prediction) and threshold is not None:
        entries: list[Any] = list(answer.predictions)
        place = sum(
            entry["score"] >= threshold for entry in entries
        )  # they come best first
        return {
            "predictions": entries[:place],
            "further": entries[place:],
            **answer.more,
        }
    if isinstance(answer, Prediction):
        return {"predictions": answer.predictions, **answer.more}
    outputs = []
    for tensor in answer.outputs:
        array = to_array(tensor)
        values = array.reshape(-1)[:: max(1, -(-array.size // MAX_VALUES))]
        texts = array.dtype.kind == "O"
        plain = (
            [str(value) for value in values]
            if texts
            else np.asarray(values, np.float64).tolist()
        )
        outputs.append(
            {"name": tensor.name, "shape": list(array.shape), "values": plain}
        )
    return {"outputs": outputs}


def _serve(pipe: Connection) -> None:
    """Do what the parent asks, one thing after the other, until it closes the pipe."""
    subject: Subject | None = None
    while True:
        try:
            request = json.loads(pipe.recv_bytes())
        except EOFError:
            break
        try:
            if request["do"] == "begin":
                subject, result = Subject(request["job"]), None
            else:
                result = getattr(subject, request["do"])(*request["with"])
            reply = {"result": result}
        except (
            Exception
        ) as error:  # a framework's too; the parent lists the version with it
            is_ours = type(error).__module__.startswith("pocketserve")
            reply = {
                "error": str(error) if is_ours else f"{type(error).__name__}: {error}"
            }
        pipe.send_bytes(json.dumps(reply).encode())
    if subject is not None:
        subject.close()


def main(parent: int, descriptor: int) -> int:
    """Serve the parent over an inherited socket, and end with it."""
    os.dup2(2, 1)  # frameworks print to standard output
    if not bind_to(parent):
        return 1
    _serve(Connection(descriptor))
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
