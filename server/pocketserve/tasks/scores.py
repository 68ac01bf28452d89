"""Convert stored integers, logits and uncalibrated numbers to scores."""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np

from pocketserve.formats import DamagedFileError
from pocketserve.repository.toml_table import Section, TomlTable
from pocketserve.runtimes.metadata import TensorMetadata
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tensors import Array, TensorSpec, dequantize

ACTIVATIONS = ("none", "sigmoid", "softmax")
MAX_BYTES, MAX_CLASSES = 1 << 22, 1 << 16  # of a calibration file: bytes and lines
_TINY = 1e-16  # keeps logarithms finite


class ClassificationOptions(NamedTuple):
    """The manifest's ``[classification]``; None leaves a key to the files.

    ``label_offset`` is added to a class's number to find its label.
    """

    activation: Annotated[str | None, TomlTable.choice, ACTIVATIONS] = None
    label_offset: Annotated[int, TomlTable.integer, -1000, 1000] = 0
    threshold: Annotated[float | None, TomlTable.number, -1e30, 1e30] = None
    output: Annotated[str, TomlTable.text] = (
        ""  # with the scores; empty if the model's outputs show it
    )


CLASSIFICATION = Section("classification", ClassificationOptions)


class Calibration(NamedTuple):
    """Score calibration of TFLite metadata, per class.

    A score becomes scale / (1 + exp(-(slope * t(score) + offset))).
    """

    parameters: Array  # [classes, (scale, slope, offset, least score)]; NaN rows and lower scores get the default
    transformation: str  # ``identity``, ``log`` or ``inverse_logistic``
    default: float

    def apply(self, scores: Array) -> Array:
        """Return calibrated scores [classes] in double precision."""
        parameters = np.full((len(scores), 4), np.nan)
        parameters[: len(self.parameters)] = self.parameters[: len(scores)]
        scale, slope, offset, least = parameters.T
        moved = scores
        if self.transformation == "log":
            moved = np.log(np.maximum(scores, _TINY))
        elif self.transformation == "inverse_logistic":
            bounded = np.clip(scores, _TINY, 1 - 1e-15)
            moved = np.log(bounded / (1 - bounded))
        usable = ~np.isnan(scale) & ~(scores < least)
        calibrated: Array = np.where(
            usable, scale * sigmoid(slope * moved + offset), self.default
        )
        return np.where(np.isnan(scores), scores, calibrated)


def real_values(array: Array, spec: TensorSpec) -> Array:
    """Convert a quantised output's stored integers to reals.

    Other outputs are returned unchanged.
    """
    if spec.quantization is not None and array.dtype.kind in "iu":
        return dequantize(array, spec)
    return array


def activate(scores: Array, activation: str | None) -> Array:
    """Convert logits to probabilities; ``none`` and None change nothing."""
    if activation == "sigmoid":
        return sigmoid(scores)
    if activation == "softmax":
        return softmax(scores)
    return scores


def sigmoid(values: Array) -> Array:
    """Compute 1 / (1 + exp(-x)) without overflow."""
    with np.errstate(invalid="ignore"):
        half: Array = 0.5 * (1.0 + np.tanh(0.5 * values))
    return half


def softmax(values: Array) -> Array:
    """Compute exp(x) / sum along the last axis, without overflow."""
    with np.errstate(invalid="ignore", over="ignore"):
        powers = np.exp(values - values.max(axis=-1, keepdims=True))
        shares: Array = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def threshold_of(tensor: TensorMetadata) -> float | None:
    """Return the score below which the file's author shows nothing."""
    if not tensor.process_units:
        return None
    from pocketserve.runtimes.metadata_parts import ScoreThresholding  # late, see there

    for unit in tensor.process_units:
        if isinstance(unit, ScoreThresholding):
            return unit.threshold
    return None


def calibration_of(facts: ModelFacts, output: int) -> Calibration | None:
    """Return an output's calibration; None without a readable one."""
    tensor = facts.output_metadata(output)
    if not tensor.process_units:
        return None
    from pocketserve.runtimes.metadata_parts import (  # late, see there
        FileType,
        ScoreCalibration,
    )

    unit = next(
        (unit for unit in tensor.process_units if isinstance(unit, ScoreCalibration)),
        None,
    )
    kind = FileType.TENSOR_AXIS_SCORE_CALIBRATION
    name = next(
        (file.name for file in tensor.associated_files if file.type is kind), None
    )
    if unit is None or name is None:
        return None
    try:
        text = facts.associated_files([name], MAX_BYTES)[0].decode("utf-8")
        if text:
            return Calibration(_parse(text), unit.transformation, unit.default_score)
        return None
    except (DamagedFileError, ValueError):
        return (
            None  # uncalibrated scores are better than none; `inspect` names the files
        )


def _parse(text: str) -> Array:
    """Parse a line per class: ``scale,slope,offset[,least score]``.

    An empty line has no parameters.
    """
    lines = text.splitlines()
    if len(lines) > MAX_CLASSES:
        raise ValueError(f"a calibration of more than {MAX_CLASSES} classes")
    rows = []
    for line in lines:
        row = (
            [float(part) for part in line.split(",")] if line.strip() else [np.nan] * 3
        )
        if len(row) not in (3, 4):
            raise ValueError("a calibration needs three or four numbers")
        rows.append([*row, -np.inf][:4])
    return np.array(rows, dtype=np.float64).reshape(-1, 4)
