"""The user's wishes on the precision of a quantised model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from pocketserve.messages import did_you_mean, plural
from pocketserve_lab.convert.converter import ConversionError, ConversionRequest
from pocketserve_lab.convert.tools.calibration import sample_inputs
from pocketserve_lab.convert.tools.precision.search import (
    Layers,
    Measured,
    PrecisionSearch,
)
from pocketserve_lab.convert.verify import Agreement, compare_outputs, loss_of

MIN_HALF = 8
"""Samples of each half; fewer samples are used for both purposes."""

MAX_SHOWN_LAYERS = 5
"""Layers that a note names."""

SampleInputs = Mapping[str, Any]
RunSample = Callable[[SampleInputs], Mapping[str, Any]]


class Wishes(NamedTuple):
    """Options of a conversion to int8.

    Attributes:
        calibration: the method that finds the ranges of numbers.
        exclude: the layers that stay in floats.
        max_loss: see ``verify.loss_of``; None for no search.
    """

    calibration: str = "min-max"
    exclude: tuple[str, ...] = ()
    max_loss: float | None = None


def wishes_of(request: ConversionRequest) -> Wishes:
    """Return the wishes in a request."""
    options = request.options
    return Wishes(
        str(options.get("calibration", "min-max")),
        tuple(options.get("exclude", ())),
        options.get("max_loss"),
    )


class SplitSamples(NamedTuple):
    """Samples to calibrate with, and all to measure the loss on.

    Attributes:
        unseen: the numbers of those that are not calibrated with; empty for few samples.
    """

    calibration: list[dict[str, Any]]
    every: list[dict[str, Any]]
    unseen: list[int]


def split_samples(request: ConversionRequest) -> SplitSamples:
    """Split the samples, so that a loss is not only measured where it was tuned."""
    samples = list(sample_inputs(request))
    if wishes_of(request).max_loss is None or len(samples) < 2 * MIN_HALF:
        return SplitSamples(samples, samples, [])
    return SplitSamples(samples[::2], samples, list(range(1, len(samples), 2)))


class LossMeter:
    """Measures the loss of results: on all samples, and on the unseen ones.

    Args:
        task: the model's.
        original: runs the model in floats.
    """

    def __init__(self, task: str, samples: SplitSamples, original: RunSample) -> None:
        self._task = task
        self._samples = samples
        self._expected = self._answers(original)

    def measured(self, size: int, result: RunSample) -> Measured:
        """Return the measurement of a result whose file has this size."""
        answers = self._answers(result)
        whole = self._compared(self._expected, answers)
        unseen = self._samples.unseen
        if not unseen:
            return Measured(size, loss_of(whole), whole.error)
        part = self._compared(
            _at(self._expected, unseen),
            _at(answers, unseen),
        )
        return Measured(size, max(loss_of(whole), loss_of(part)), whole.error)

    def _compared(
        self, expected: Mapping[str, Any], answers: Mapping[str, Any]
    ) -> Agreement:
        count = len(next(iter(expected.values())))
        return compare_outputs(expected, answers, self._task, count, random=False)

    def _answers(self, answer: RunSample) -> dict[str, Any]:
        """Return each output for all samples."""
        runs = [answer(sample) for sample in self._samples.every]
        outputs = {}
        for name in runs[0]:
            outputs[name] = np.stack([run[name] for run in runs])
        return outputs


def _at(outputs: Mapping[str, Any], numbers: Sequence[int]) -> dict[str, Any]:
    """Return the outputs for some samples."""
    return {name: output[numbers] for name, output in outputs.items()}


class Precision(NamedTuple):
    """The layers that stay in floats.

    Attributes:
        options: for the provenance.
        notes: sentences for the user.
    """

    floats: Layers
    options: dict[str, Any]
    notes: tuple[str, ...]


def choose_precision(
    request: ConversionRequest,
    layers: Sequence[str],
    measure: Callable[[Layers], Measured],
) -> Precision:
    """Choose the layers that stay in floats, by the user's wishes.

    Args:
        layers: the names of those that can be quantised.
        measure: as of :class:`PrecisionSearch`.

    Raises:
        ConversionError: a name is unknown, or only floats lose as little as is
            accepted.
    """
    wishes = wishes_of(request)
    excluded = frozenset(wishes.exclude)
    _check_names(request, excluded, layers)
    options: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    floats = excluded
    if wishes.max_loss is not None:
        remaining = [layer for layer in layers if layer not in excluded]
        search = PrecisionSearch(
            remaining, lambda added: measure(excluded | added), wishes.max_loss
        )
        choice = search.best()
        if choice is None:
            raise ConversionError(
                f"{request.title} loses more than {wishes.max_loss:.2%} with any layer in "
                f"{request.quantize}",
                nearest="a larger --max-loss, or --quantize fp16",
            )
        floats = excluded | choice.floats
        options["max_loss"] = wishes.max_loss
        notes = (_note(floats, layers),)
    if floats:
        options["floats"] = sorted(floats)
    return Precision(floats, options, notes)


def _check_names(
    request: ConversionRequest, names: Collection[str], layers: Collection[str]
) -> None:
    """Raise ConversionError for a layer that can't be quantised anyway."""
    for name in sorted(names):
        if name not in layers:
            raise ConversionError(
                f"{request.title} has no layer {name!r} that can be quantised"
                f"{did_you_mean(name, layers)}"
            )


def _note(floats: Layers, layers: Sequence[str]) -> str:
    """Return a sentence on the result of a search."""
    if not floats:
        return "no layer has to stay in floats"
    names = [layer for layer in layers if layer in floats]
    text = ", ".join(names[:MAX_SHOWN_LAYERS])
    if len(names) > MAX_SHOWN_LAYERS:
        text += ", …"
    number = plural(len(layers), "layer")
    return f"{len(names)} of {number} stay in floats: {text}"
