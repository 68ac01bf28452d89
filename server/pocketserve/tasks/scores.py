"""Scores: stored integers, logits and uncalibrated numbers become those that are answered."""

from __future__ import annotations

import numpy as np

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.metadata import FileType, ScoreCalibration, ScoreThresholding, TensorMetadata
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tensors import Array, TensorSpec, dequantize
from pocketserve_wire.records import dataclass

MAX_BYTES = 1 << 22
MAX_CLASSES = 1 << 16
"""Of a calibration: what a file may ask for, in bytes and in lines."""

_TINY = 1e-16
"""Keeps logarithms finite."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """Score calibration of TFLite metadata: scale / (1 + exp(-(slope * t(score) + offset))), per class.

    Attributes:
        parameters: [classes, (scale, slope, offset, least score)]; NaN rows have none and get the default.
        transformation: ``identity``, ``log`` or ``inverse_logistic``.
        default: for classes without parameters and scores below their least.
    """

    parameters: Array
    transformation: str
    default: float

    def apply(self, scores: Array) -> Array:
        """Calibrated scores [classes] in double precision."""
        known = np.full((len(scores), 4), np.nan)
        known[: len(self.parameters)] = self.parameters[: len(scores)]
        scale, slope, offset, least = known.T
        moved = scores
        if self.transformation == "log":
            moved = np.log(np.maximum(scores, _TINY))
        elif self.transformation == "inverse_logistic":
            bounded = np.clip(scores, _TINY, 1 - 1e-15)
            moved = np.log(bounded / (1 - bounded))
        calibrated = scale * sigmoid(slope * moved + offset)
        usable = ~np.isnan(scale) & ~(scores < least)
        found: Array = np.where(usable, calibrated, self.default)
        return np.where(np.isnan(scores), scores, found)


def real_values(array: Array, spec: TensorSpec) -> Array:
    """An output as float32 or what it is; stored integers of a quantised one become the real numbers they stand for."""
    if spec.quantization is not None and array.dtype.kind in "iu":
        return dequantize(array, spec)
    return array


def activate(scores: Array, activation: str) -> Array:
    """Logits to probabilities along the last axis; ``none`` leaves them."""
    if activation == "sigmoid":
        return sigmoid(scores)
    if activation == "softmax":
        return softmax(scores)
    return scores


def sigmoid(values: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow."""
    with np.errstate(invalid="ignore"):
        half: Array = 0.5 * (1.0 + np.tanh(0.5 * values))
    return half


def softmax(values: Array) -> Array:
    """exp(x) / sum along the last axis, without overflow."""
    with np.errstate(invalid="ignore", over="ignore"):
        powers = np.exp(values - values.max(axis=-1, keepdims=True))
        shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def threshold_of(tensor: TensorMetadata | None) -> float | None:
    """The score below which the file's author would show nothing."""
    units = tensor.process_units if tensor is not None else ()
    return next((unit.threshold for unit in units if isinstance(unit, ScoreThresholding)), None)


def calibration_of(facts: ModelFacts, output: int) -> Calibration | None:
    """The calibration of an output; None where the file has none that can be read."""
    tensors = facts.metadata.outputs if facts.metadata is not None else ()
    tensor = tensors[output] if output < len(tensors) else None
    unit = next((u for u in tensor.process_units if isinstance(u, ScoreCalibration)), None) if tensor else None
    if tensor is None or unit is None:
        return None
    kind = FileType.TENSOR_AXIS_SCORE_CALIBRATION
    name = next((file.name for file in tensor.associated_files if file.type is kind), None)
    try:
        text = "" if name is None else facts.associated_files([name], MAX_BYTES)[0].decode("utf-8")
        return Calibration(_parse(text), unit.transformation, unit.default_score) if text else None
    except (DamagedFileError, ValueError):
        return None  # uncalibrated scores are better than none; `inspect` names the files


def _parse(text: str) -> Array:
    """A line per class: ``scale,slope,offset[,least score]``; an empty line has no parameters."""
    rows = []
    lines = text.splitlines()
    if len(lines) > MAX_CLASSES:
        raise ValueError(f"a calibration of more than {MAX_CLASSES} classes")
    for line in lines:
        parts = [float(part) for part in line.split(",")] if line.strip() else [np.nan] * 3
        if len(parts) not in (3, 4):
            raise ValueError("a calibration needs three or four numbers")
        rows.append(parts if len(parts) == 4 else [*parts, -np.inf])
    return np.array(rows, dtype=np.float64).reshape(-1, 4)
