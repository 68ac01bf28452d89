"""Metadata of model files: names, labels, normalisation, tokenizers.

:attr:`~pocketserve.runtimes.model_format.ModelFormat.metadata` reads it.
"""

from __future__ import annotations

import ast
import enum
import json
from typing import Any, NamedTuple

MAX_LITERAL_BYTES = 1 << 18
"""Limit of a Python literal; parsing one takes a hundred times its size."""


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
    locale: str = ""  # a language such as ``en`` or ``en-US``; may be empty


class FeatureProperties(NamedTuple):
    """A tensor of plain numbers."""


class ImageProperties(NamedTuple):
    """A tensor that is an image.

    ``default_size`` is width and height if the shape lacks them.
    """

    default_size: tuple[int, int] | None


class BoundingBoxProperties(NamedTuple):
    """A tensor of boxes."""

    # positions of the four numbers in the type's usual order; empty: that order
    order: tuple[int, ...]
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

    # ``feature``, ``image``, ``bounding_box``, ``audio``; ``unknown`` in newer schemas
    kind: str
    properties: Properties | None  # None if the kind is unknown


class Normalization(NamedTuple):
    """(x - mean) / std, finite and per channel or one for all; no std is 0."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class ScoreCalibration(NamedTuple):
    """A mapping of scores with parameters from a file, after ``transformation``."""

    transformation: str
    default_score: float


class ScoreThresholding(NamedTuple):
    """The lowest score worth showing."""

    threshold: float


class BertTokenizer(NamedTuple):
    """A tokenizer that splits text into word pieces."""

    vocab_files: tuple[AssociatedFile, ...]


class SentencePieceTokenizer(NamedTuple):
    """A tokenizer that splits text into sentence pieces."""

    model_files: tuple[AssociatedFile, ...]
    vocab_files: tuple[AssociatedFile, ...]


class RegexTokenizer(NamedTuple):
    """A tokenizer that splits text at ``delimiter``, an untrusted regular expression."""

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
    """The author's description of one input or output."""

    name: str
    description: str = ""
    content: Content | None = None
    process_units: tuple[ProcessUnit, ...] = ()
    associated_files: tuple[AssociatedFile, ...] = ()
    unknown: tuple[str, ...] = ()  # parts of newer schemas: ``process_unit_7``

    @property
    def normalization(self) -> Normalization | None:
        """The first normalisation among the process units."""
        for unit in self.process_units:
            if isinstance(unit, Normalization):
                return unit
        return None

    @property
    def label_files(self) -> list[AssociatedFile]:
        """The label files of the last axis, else those of the values."""
        for kind in (FileType.TENSOR_AXIS_LABELS, FileType.TENSOR_VALUE_LABELS):
            files = [file for file in self.associated_files if file.type is kind]
            if files:
                return files
        return []


class ClassOutput(NamedTuple):
    """An output of a classifier, according to its graph.

    Attributes:
        targets: for each target, the class names in the order of the score columns; if
            empty, the class is the column's number.
        is_label: whether the values are classes; otherwise they are scores.
        lowest_wins: whether the class has the lowest value of its row, such as a distance.
    """

    targets: tuple[tuple[str, ...], ...]
    is_label: bool = True
    lowest_wins: bool = False


class ModelMetadata(NamedTuple):
    """The author's description of a model and its main graph."""

    name: str = ""
    description: str = ""
    version: str = ""
    author: str = ""
    license: str = ""
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    associated_files: tuple[AssociatedFile, ...] = ()
    input_process_units: tuple[ProcessUnit, ...] = ()
    unknown: tuple[str, ...] = ()  # process units of newer schemas for all inputs


def parse_properties(content: bytes) -> dict[str, str]:
    """Parse a JSON object or Python dict into texts in Python's notation.

    Anything else gives an empty dict. Ultralytics writes a JSON object into TFLite and
    TorchScript files, and texts in Python's notation into ONNX files. Older versions
    wrote a Python dict into TFLite files.
    """
    try:
        members = json.loads(content)
    except (ValueError, RecursionError):
        members = _literal(content)
    if not isinstance(members, dict):
        return {}
    return {str(name): str(value) for name, value in members.items()}


def _literal(content: bytes) -> Any:
    """Parse a Python literal; return None for anything else."""
    if len(content) > MAX_LITERAL_BYTES:
        return None
    try:
        return ast.literal_eval(content.decode("utf-8"))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
