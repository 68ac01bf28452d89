"""The parts of a tensor's metadata: files, meaning, preprocessing, tokenizers.

A start imports this only for a model that has such metadata.
"""

from __future__ import annotations

import enum
from typing import NamedTuple


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
