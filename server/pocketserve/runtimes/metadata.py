"""Metadata that a model file carries, of whatever format: names, labels, normalisation, tokenizers.

A format's reader of it is :attr:`~pocketserve.runtimes.model_format.ModelFormat.metadata`.
"""

from __future__ import annotations

import ast
import enum
import json
from typing import Any, NamedTuple

MAX_LITERAL_BYTES = 1 << 18
"""Of a text in Python's notation; reading one takes a hundred times its size."""


class FileType(enum.IntEnum):
    """The use of an associated file."""

    UNKNOWN = 0
    DESCRIPTIONS = 1
    TENSOR_AXIS_LABELS = 2
    TENSOR_VALUE_LABELS = 3
    TENSOR_AXIS_SCORE_CALIBRATION = 4
    VOCABULARY = 5
    SCANN_INDEX_FILE = 6


class AssociatedFile(NamedTuple):
    """A file inside the model file."""

    name: str
    type: FileType = FileType.UNKNOWN
    locale: str = (
        ""  # a language such as ``en`` or ``en-US``; empty where the author gave none
    )


class FeatureProperties(NamedTuple):
    """A tensor of plain numbers."""


class ImageProperties(NamedTuple):
    """A tensor that is an image; ``default_size`` is width and height where the shape does not tell them."""

    default_size: tuple[int, int] | None


class BoundingBoxProperties(NamedTuple):
    """A tensor of boxes."""

    order: tuple[
        int, ...
    ]  # positions of the four numbers in the type's usual order; empty means that order
    type: str  # ``boundaries``, ``upper_left``, ``center`` or ``unknown``
    coordinate_type: str  # ``ratio`` (0 to 1) or ``pixel``


class AudioProperties(NamedTuple):
    """A tensor of samples."""

    sample_rate: int
    channels: int


Properties = (
    FeatureProperties | ImageProperties | BoundingBoxProperties | AudioProperties
)


class Content(NamedTuple):
    """The meaning of a tensor's numbers."""

    kind: str  # ``feature``, ``image``, ``bounding_box``, ``audio``; ``unknown`` for what newer schemas add
    properties: Properties | None  # None where the kind is unknown


class Normalization(NamedTuple):
    """(x - mean) / std. One number stands for all channels. All are finite and no std is 0."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class ScoreCalibration(NamedTuple):
    """Scores are mapped with the parameters of an associated file after ``transformation``."""

    transformation: str
    default_score: float


class ScoreThresholding(NamedTuple):
    """Scores below this are not worth showing."""

    threshold: float


class BertTokenizer(NamedTuple):
    """Text becomes word pieces."""

    vocab_files: tuple[AssociatedFile, ...]


class SentencePieceTokenizer(NamedTuple):
    """Text becomes sentence pieces."""

    model_files: tuple[AssociatedFile, ...]
    vocab_files: tuple[AssociatedFile, ...]


class RegexTokenizer(NamedTuple):
    """Text is split where ``delimiter`` (a regular expression, not to be trusted) matches."""

    delimiter: str
    vocab_files: tuple[AssociatedFile, ...]


ProcessUnit = (
    Normalization
    | ScoreCalibration
    | ScoreThresholding
    | BertTokenizer
    | SentencePieceTokenizer
    | RegexTokenizer
)


class TensorMetadata(NamedTuple):
    """The author's words about one input or output, in the model's order."""

    name: str
    description: str = ""
    content: Content | None = None
    process_units: tuple[ProcessUnit, ...] = ()
    associated_files: tuple[AssociatedFile, ...] = ()
    unknown: tuple[str, ...] = ()  # what newer schemas add, such as ``process_unit_7``

    @property
    def normalization(self) -> Normalization | None:
        """The first normalisation among the process units."""
        return next(
            (unit for unit in self.process_units if isinstance(unit, Normalization)),
            None,
        )

    @property
    def label_files(self) -> list[AssociatedFile]:
        """The label files of the last axis; where there are none, those of the values."""
        kinds = (FileType.TENSOR_AXIS_LABELS, FileType.TENSOR_VALUE_LABELS)
        by_kind = (
            [file for file in self.associated_files if file.type is kind]
            for kind in kinds
        )
        return next(filter(None, by_kind), [])


class ClassOutput(NamedTuple):
    """An output of a classifier, as its graph shows it.

    Attributes:
        targets: names of the classes in the order of the score columns, for each target; empty names mean that the
            class is the column's number.
        is_label: whether the values are classes; otherwise they are scores.
        lowest_wins: whether the class has the lowest value of its row, such as a distance.
    """

    targets: tuple[tuple[str, ...], ...]
    is_label: bool = True
    lowest_wins: bool = False


class ModelMetadata(NamedTuple):
    """The author's words about a model and its main graph. Texts are empty where there are none."""

    name: str = ""
    description: str = ""
    version: str = ""
    author: str = ""
    license: str = ""
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    associated_files: tuple[AssociatedFile, ...] = ()
    input_process_units: tuple[ProcessUnit, ...] = ()
    unknown: tuple[str, ...] = ()  # process units of all inputs that newer schemas add


def parse_properties(content: bytes) -> dict[str, str]:
    """Return the members of a JSON object or a Python dict as texts in Python's notation; empty for anything else.

    Ultralytics writes such an object into TFLite and TorchScript files, and texts like these into ONNX files. Older
    versions wrote a Python dict into TFLite files.
    """
    try:
        members = json.loads(content)
    except (ValueError, RecursionError):
        members = _literal(content)
    if not isinstance(members, dict):
        return {}
    return {str(name): str(value) for name, value in members.items()}


def _literal(content: bytes) -> Any:
    """Parse Python's notation; return None for anything else."""
    if len(content) > MAX_LITERAL_BYTES:
        return None
    try:
        return ast.literal_eval(content.decode("utf-8"))
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
