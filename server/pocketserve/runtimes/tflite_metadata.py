"""Reads what authors put into ``.tflite`` files for people and programs: names, normalisation, label files.

Two places hold it. A FlatBuffer inside the model's FlatBuffer (entry ``TFLITE_METADATA``) describes the model
and its tensors; the files that it names, such as labels, are members of a zip archive appended to the model.

Both come from strangers; what is read is bounded. Nesting is bounded by this code, which follows the schema and never
recurses.

Field numbers are those of ``metadata_schema.fbs`` 1.5.0 (TensorFlow Lite Support) and ``schema.fbs`` (Model).
This file is longer than most because tables and their field numbers belong together.
"""

from __future__ import annotations

import enum
import io
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from pocketserve.runtimes.flatbuffer import Buffer, DamagedFileError, Table, mapped
from pocketserve_wire.records import dataclass

MAX_METADATA_BYTES = 1 << 20
"""Size of the description without the files. The largest in the wild are some kilobytes."""

MAX_FILE_BYTES = 8 << 20
"""Default limit of an associated file. A vocabulary of 250,000 words is about 3 MB."""

_ARCHIVE_END_BYTES = 22 + 0xFFFF
"""The record at an archive's end, and the longest comment behind it."""

MAX_DIRECTORY_BYTES = 1 << 20
"""Size of the archive's directory: thousands of files."""


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


def read_metadata(path: Path) -> ModelMetadata | None:
    """The description inside a model file, or None where there is none.

    Raises:
        DamagedFileError: the file cannot be read, is no TFLite model, or its description is damaged.
    """
    try:
        with mapped(path) as data:
            found = _find_metadata(Buffer(data, b"TFL3"))
            return None if found is None else _model_metadata(Buffer(found, b"M001").root())
    except OSError as error:
        raise DamagedFileError(f"{path.name} cannot be read: {error.strerror or error}") from error


def read_associated_file(path: Path, name: str, limit: int = MAX_FILE_BYTES) -> bytes:
    """A file out of the archive at the model's end.

    Args:
        limit: most bytes that the file may have once unpacked.

    Raises:
        DamagedFileError: no such file, a damaged archive, or more bytes than the limit.
    """
    try:
        if not _has_archive(path):
            raise DamagedFileError(f"{name!r} cannot be read from {path.name}: the file holds no archive")
        import zipfile  # late: few files carry others

        with path.open("rb") as file, zipfile.ZipFile(_Capped(file)) as archive:
            info = archive.getinfo(name)
            if info.file_size > limit:
                raise DamagedFileError(f"{name} in {path.name} has {info.file_size} bytes, more than {limit}")
            with archive.open(info) as member:
                return member.read(limit)
    except DamagedFileError:
        raise
    except KeyError as error:
        raise DamagedFileError(f"{path.name} has no file {name!r} in it") from error
    except Exception as error:  # zipfile raises a dozen kinds on damaged archives
        raise DamagedFileError(f"{name!r} cannot be read from {path.name}: {error}") from error


def _has_archive(path: Path) -> bool:
    """Whether the mark of an archive's end lies where it can."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, io.SEEK_END) - _ARCHIVE_END_BYTES))
        return b"PK\5\6" in file.read(_ARCHIVE_END_BYTES)


def labels_of(path: Path, tensor: TensorMetadata, language: str | None = None) -> list[str] | None:
    """The labels of a tensor's last axis or of its values, one per index; None where it has no label file.

    Args:
        language: the wanted locale, such as ``de`` or ``en-US``. A file of the same language is second best,
            then one without a locale, then the first.

    Raises:
        DamagedFileError: the label file cannot be read.
    """
    wanted = (FileType.TENSOR_AXIS_LABELS, FileType.TENSOR_VALUE_LABELS)
    by_kind = ([file for file in tensor.associated_files if file.type is kind] for kind in wanted)
    files = next(filter(None, by_kind), None)
    if files is None:
        return None
    best = min(files, key=lambda file: strangeness(file.locale, language))
    text = read_associated_file(path, best.name).decode("utf-8-sig", errors="replace")
    # An empty line is the label of its index; only the end of the last line is not a line more.
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def strangeness(locale: str, language: str | None) -> int:
    """0 for a file in the wanted language, more for worse ones."""
    have, want = (tag.replace("_", "-").casefold() for tag in (locale, language or ""))
    if have == want:
        return 0
    if want and have.split("-")[0] == want.split("-")[0]:
        return 1
    return 3 if have else 2


class _Capped(io.RawIOBase):
    """A file that refuses to give much at once: zipfile reads the directory in one piece, of any size."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int | None = -1) -> bytes:
        wanted = MAX_DIRECTORY_BYTES + 1 if size is None or size < 0 else size
        if wanted > MAX_DIRECTORY_BYTES + 1:
            raise DamagedFileError(f"the archive's directory has more than {MAX_DIRECTORY_BYTES} bytes")
        return self._file.read(wanted)


def _find_metadata(model: Buffer) -> bytes | None:
    """The bytes of the entry TFLITE_METADATA. Model: 4 buffers, 6 metadata; Metadata: 0 name, 1 buffer."""
    root = model.root()
    entries = root.tables(6, lambda entry: (entry.text(0), entry.integer(1, "I")))
    number = next((number for name, number in entries if name == "TFLITE_METADATA"), None)
    if number is None:
        return None
    buffer = root.element(4, number)
    if buffer is None:
        raise DamagedFileError(f"the description is said to be in buffer {number}, which is not there")
    return _contents(model, buffer)


def _contents(model: Buffer, buffer: Table) -> bytes:
    """A model buffer's bytes. Buffer: 0 data; or, in models too large for a FlatBuffer, 1 offset, 2 size."""
    offset, size = buffer.integer(1, "Q"), buffer.integer(2, "Q")
    if offset <= 1:
        return buffer.blob(0, MAX_METADATA_BYTES)
    if size > MAX_METADATA_BYTES:
        raise DamagedFileError(f"the description has {size} bytes")
    return model.slice(offset, size)


def _model_metadata(root: Table) -> ModelMetadata:
    """ModelMetadata: 0 name, 1 description, 2 version, 3 graphs, 4 author, 5 license, 6 files, 7 parser."""
    model = ModelMetadata(
        name=root.text(0),
        description=root.text(1),
        version=root.text(2),
        author=root.text(4),
        license=root.text(5),
        associated_files=root.tables(6, _file),
        min_parser_version=root.text(7),
    )
    graph = root.element(3, 0)
    return model if graph is None else _with_graph(model, graph)


def _with_graph(model: ModelMetadata, graph: Table) -> ModelMetadata:
    """SubGraphMetadata: 2 inputs, 3 outputs, 4 files, 5 and 6 process units, 7 and 8 tensor groups."""
    return replace(
        model,
        inputs=graph.tables(2, _tensor),
        outputs=graph.tables(3, _tensor),
        associated_files=model.associated_files + graph.tables(4, _file),
        input_process_units=graph.tables(5, _unit),
        output_process_units=graph.tables(6, _unit),
        input_groups=graph.tables(7, _group),
        output_groups=graph.tables(8, _group),
    )


def _tensor(table: Table) -> TensorMetadata:
    """TensorMetadata: its fields in this order."""
    content, stats = table.table(3), table.table(5)
    return TensorMetadata(
        name=table.text(0),
        description=table.text(1),
        dimension_names=table.texts(2),
        content=None if content is None else _content(content),
        process_units=table.tables(4, _unit),
        stats=None if stats is None else Stats(max=stats.reals(0), min=stats.reals(1)),
        associated_files=table.tables(6, _file),
    )


def _group(table: Table) -> TensorGroup:
    return TensorGroup(table.text(0), table.texts(1))


def _file(table: Table) -> AssociatedFile:
    """AssociatedFile: 0 name, 1 description, 2 type, 3 locale, 4 version."""
    number = table.integer(2, "b")
    kind = FileType(number) if number in FileType.__members__.values() else FileType.UNKNOWN
    return AssociatedFile(table.text(0), table.text(1), kind, table.text(3), table.text(4))


def _content(table: Table) -> Content:
    """Content: 0 kind and 1 table of the properties, 2 range of dimensions."""
    kind, read = _PROPERTIES.get(table.integer(0, "B"), ("unknown", None))
    properties, span = table.table(1), table.table(2)
    return Content(
        kind=kind,
        properties=None if read is None or properties is None else read(properties),
        range=None if span is None else (span.integer(0, "i"), span.integer(1, "i")),
    )


def _image(table: Table) -> ImageProperties:
    size = table.table(1)
    return ImageProperties(
        color_space=table.choice(0, ("unknown", "rgb", "grayscale")),
        default_size=None if size is None else (size.integer(0, "I"), size.integer(1, "I")),
    )


def _boxes(table: Table) -> BoundingBoxProperties:
    return BoundingBoxProperties(
        index=table.integers(0),
        type=table.choice(1, ("unknown", "boundaries", "upper_left", "center")),
        coordinate_type=table.choice(2, ("ratio", "pixel")),
    )


_PROPERTIES: dict[int, tuple[str, Callable[[Table], Properties]]] = {
    1: ("feature", lambda table: FeatureProperties()),
    2: ("image", _image),
    3: ("bounding_box", _boxes),
    4: ("audio", lambda table: AudioProperties(table.integer(0, "I"), table.integer(1, "I"))),
}
"""The union ContentProperties."""


def _unit(table: Table) -> ProcessUnit:
    """ProcessUnit: 0 kind and 1 table of the options."""
    number, options = table.integer(0, "B"), table.table(1)
    read = _OPTIONS.get(number)
    return UnknownUnit(number) if read is None or options is None else read(options)


def _normalization(table: Table) -> ProcessUnit:
    mean, std = table.reals(0), table.reals(1)
    if not mean or not std or 0.0 in std:
        raise DamagedFileError("a normalisation lacks its mean, or its standard deviation is 0")
    return Normalization(mean, std)


def _calibration(table: Table) -> ProcessUnit:
    return ScoreCalibration(table.choice(0, ("identity", "log", "inverse_logistic")), table.real(1))


_OPTIONS: dict[int, Callable[[Table], ProcessUnit]] = {
    1: _normalization,
    2: _calibration,
    3: lambda table: ScoreThresholding(table.real(0)),
    4: lambda table: BertTokenizer(table.tables(0, _file)),
    5: lambda table: SentencePieceTokenizer(table.tables(0, _file), table.tables(1, _file)),
    6: lambda table: RegexTokenizer(table.text(0), table.tables(1, _file)),
}
"""The union ProcessUnitOptions."""
