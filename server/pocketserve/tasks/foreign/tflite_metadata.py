"""Process units and content types of TFLite metadata.

The reader knows all of schema 1.5.0. Those of newer schemas are refused, since they may change the input or the answer.
"""

from __future__ import annotations

from typing import Any

from pocketserve.runtimes.metadata import ModelMetadata, TensorMetadata
from pocketserve.runtimes.metadata_parts import Normalization
from pocketserve.tasks.foreign.keys import Effect, ForeignFile, Key

_SOURCE = (
    "tensorflow/tflite-support, tensorflow_lite_support/metadata/metadata_schema.fbs"
)

TABLE = ForeignFile(
    "TFLite metadata",
    (
        Key("inputs.*.Normalization", Effect.APPLIED, _SOURCE),
        Key("inputs.*.BertTokenizer", Effect.APPLIED, _SOURCE),
        Key("inputs.*.SentencePieceTokenizer", Effect.APPLIED, _SOURCE),
        Key("inputs.*.RegexTokenizer", Effect.APPLIED, _SOURCE),
        Key(
            "inputs.*.ScoreCalibration",
            Effect.HARMLESS,
            f"{_SOURCE}; it is for outputs",
        ),
        Key(
            "inputs.*.ScoreThresholding",
            Effect.HARMLESS,
            f"{_SOURCE}; it is for outputs",
        ),
        Key("inputs.*.unknown", Effect.UNSUPPORTED, _SOURCE),
        Key("outputs.*.ScoreCalibration", Effect.APPLIED, _SOURCE),
        Key("outputs.*.ScoreThresholding", Effect.APPLIED, _SOURCE),
        Key(
            "outputs.*.Normalization",
            Effect.UNSUPPORTED,
            f"{_SOURCE}; it is for pictures as outputs",
        ),
        Key("outputs.*.BertTokenizer", Effect.HARMLESS, f"{_SOURCE}; it is for inputs"),
        Key(
            "outputs.*.SentencePieceTokenizer",
            Effect.HARMLESS,
            f"{_SOURCE}; it is for inputs",
        ),
        Key(
            "outputs.*.RegexTokenizer", Effect.HARMLESS, f"{_SOURCE}; it is for inputs"
        ),
        Key("outputs.*.unknown", Effect.UNSUPPORTED, _SOURCE),
    ),
    is_inside=True,
)


def process_units_of(metadata: ModelMetadata) -> dict[str, Any]:
    """Return the process units of all inputs and outputs, by their positions."""
    inputs = {
        str(number): _units_of(tensor) for number, tensor in enumerate(metadata.inputs)
    }
    shared = TensorMetadata(
        "", process_units=metadata.input_process_units, unknown=metadata.unknown
    )
    inputs["all"] = _units_of(shared)
    outputs = {
        str(number): _units_of(tensor) for number, tensor in enumerate(metadata.outputs)
    }
    return {"inputs": inputs, "outputs": outputs}


def _units_of(tensor: TensorMetadata) -> dict[str, Any]:
    units: dict[str, Any] = {}
    for unit in tensor.process_units:
        changes_nothing = (
            isinstance(unit, Normalization)
            and set(unit.mean) == {0.0}
            and set(unit.std) == {1.0}
        )
        if not changes_nothing:
            units[type(unit).__name__] = True
    if tensor.unknown:
        units["unknown"] = ", ".join(tensor.unknown)
    return units
