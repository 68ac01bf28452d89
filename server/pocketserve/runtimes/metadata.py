"""Metadata that a model file carries, of whatever format: names, labels, normalisation, tokenizers.

A format's reader of it is :attr:`~pocketserve.runtimes.model_format.ModelFormat.metadata`.
"""

from __future__ import annotations

import enum

from pocketserve_wire.records import dataclass


class FileType(enum.IntEnum):
    """What an associated file is for."""

    UNKNOWN = 0
    DESCRIPTIONS = 1
    TENSOR_AXIS_LABELS = 2
    TENSOR_VALUE_LABELS = 3
    TENSOR_AXIS_SCORE_CALIBRATION = 4
    VOCABULARY = 5
    SCANN_INDEX_FILE = 6


@dataclass(frozen=True, slots=True)
class AssociatedFile:
    """A member of the archive at the model's end.

    Attributes:
        locale: a language such as ``en`` or ``en-US``; empty where the author gave none.
    """

    name: str
    description: str = ""
    type: FileType = FileType.UNKNOWN
    locale: str = ""
    version: str = ""


@dataclass(frozen=True, slots=True)
class FeatureProperties:
    """A tensor of plain numbers."""


@dataclass(frozen=True, slots=True)
class ImageProperties:
    """A tensor that is an image.

    Attributes:
        color_space: ``rgb``, ``grayscale`` or ``unknown``.
        default_size: width and height for tensors whose shape does not tell.
    """

    color_space: str
    default_size: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class BoundingBoxProperties:
    """A tensor of boxes.

    Attributes:
        index: positions of the four numbers in the type's usual order; empty means that order.
        type: ``boundaries``, ``upper_left``, ``center`` or ``unknown``.
        coordinate_type: ``ratio`` (0 to 1) or ``pixel``.
    """

    index: tuple[int, ...]
    type: str
    coordinate_type: str


@dataclass(frozen=True, slots=True)
class AudioProperties:
    """A tensor of samples."""

    sample_rate: int
    channels: int


Properties = FeatureProperties | ImageProperties | BoundingBoxProperties | AudioProperties


@dataclass(frozen=True, slots=True)
class Content:
    """What a tensor's numbers are.

    Attributes:
        kind: ``feature``, ``image``, ``bounding_box``, ``audio``; ``unknown`` for what newer schemas add.
        properties: None where the kind is unknown.
        range: first and last dimension that the content spans; None means all but the batch.
    """

    kind: str
    properties: Properties | None
    range: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Normalization:
    """(x - mean) / std. One number stands for all channels. All are finite and no std is 0."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class ScoreCalibration:
    """Scores are mapped with the parameters of an associated file after ``transformation``."""

    transformation: str
    default_score: float


@dataclass(frozen=True, slots=True)
class ScoreThresholding:
    """Scores below this are not worth showing."""

    threshold: float


@dataclass(frozen=True, slots=True)
class BertTokenizer:
    """Text becomes word pieces."""

    vocab_files: tuple[AssociatedFile, ...]


@dataclass(frozen=True, slots=True)
class SentencePieceTokenizer:
    """Text becomes sentence pieces."""

    model_files: tuple[AssociatedFile, ...]
    vocab_files: tuple[AssociatedFile, ...]


@dataclass(frozen=True, slots=True)
class RegexTokenizer:
    """Text is split where ``delimiter`` (a regular expression, not to be trusted) matches."""

    delimiter: str
    vocab_files: tuple[AssociatedFile, ...]


@dataclass(frozen=True, slots=True)
class UnknownUnit:
    """A processing step of a newer schema."""

    number: int


ProcessUnit = (
    Normalization
    | ScoreCalibration
    | ScoreThresholding
    | BertTokenizer
    | SentencePieceTokenizer
    | RegexTokenizer
    | UnknownUnit
)


@dataclass(frozen=True, slots=True)
class Stats:
    """Range of a tensor's values, by channel or one for all."""

    max: tuple[float, ...]
    min: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TensorGroup:
    """Tensors that belong together, such as the boxes, classes and scores of one list of objects."""

    name: str
    tensor_names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorMetadata:
    """What the author says of one input or output, in the model's order."""

    name: str
    description: str = ""
    dimension_names: tuple[str, ...] = ()
    content: Content | None = None
    process_units: tuple[ProcessUnit, ...] = ()
    stats: Stats | None = None
    associated_files: tuple[AssociatedFile, ...] = ()

    @property
    def normalization(self) -> Normalization | None:
        """The first normalisation among the process units."""
        return next((unit for unit in self.process_units if isinstance(unit, Normalization)), None)

    @property
    def label_files(self) -> list[AssociatedFile]:
        """The label files of the last axis; where there are none, those of the values."""
        kinds = (FileType.TENSOR_AXIS_LABELS, FileType.TENSOR_VALUE_LABELS)
        by_kind = ([file for file in self.associated_files if file.type is kind] for kind in kinds)
        return next(filter(None, by_kind), [])


@dataclass(frozen=True, slots=True)
class ModelMetadata:
    """What the author says of a model and its main graph. Texts are empty where there are none."""

    name: str = ""
    description: str = ""
    version: str = ""
    author: str = ""
    license: str = ""
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    associated_files: tuple[AssociatedFile, ...] = ()
    input_process_units: tuple[ProcessUnit, ...] = ()
    output_process_units: tuple[ProcessUnit, ...] = ()
    input_groups: tuple[TensorGroup, ...] = ()
    output_groups: tuple[TensorGroup, ...] = ()
    min_parser_version: str = ""
