"""Read the metadata of ``.tflite`` files.

It is a FlatBuffer inside the model's, in the entry ``TFLITE_METADATA``. Its associated
files, such as labels, are members of a zip archive appended to the model.

Field numbers are those of ``metadata_schema.fbs`` 1.5.0 (TensorFlow Lite Support) and
``schema.fbs`` (Model). Unused fields are not read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from pocketserve.formats import DamagedFileError, mapped
from pocketserve.formats.flatbuffers import FlatBuffer, FlatTable
from pocketserve.runtimes import metadata

MAX_METADATA_BYTES = 1 << 20
"""Limit of the metadata without its files; real ones have some kilobytes."""

MAX_PROPERTIES_BYTES = 4 * 2**20


def read_metadata(path: Path) -> metadata.ModelMetadata | None:
    """Return a model file's metadata, or None."""
    content = read_metadata_bytes(path)
    return None if content is None else parse_metadata(content)


def read_metadata_bytes(path: Path) -> bytes | None:
    """Return a model file's serialized metadata, or None."""
    with mapped(path) as data:
        return _find_metadata(FlatBuffer(data, b"TFL3"))


def parse_metadata(content: bytes) -> metadata.ModelMetadata:
    """Parse serialized metadata."""
    return _model_metadata(FlatBuffer(content, b"M001").root())


def read_associated_files(path: Path, names: Sequence[str], limit: int) -> list[bytes]:
    """Return files of the appended archive, up to a total unpacked size."""
    # late: few models have associated files
    from pocketserve.formats.zip_archives import BadZipError, members, read_member

    contents: list[bytes] = []
    name = names[0]
    try:
        entries = {}
        for member in members(path, appended=True):
            if member.name in names:
                entries[member.name] = member
        for name in names:
            if name not in entries:
                raise DamagedFileError(f"{path.name} has no file {name!r} in it")
            if entries[name].size > limit:
                raise DamagedFileError(
                    f"{name} in {path.name} has {entries[name].size} bytes, "
                    f"more than {limit}"
                )
            contents.append(read_member(path, entries[name], limit))
            limit -= len(contents[-1])
    except (BadZipError, OSError) as error:
        raise DamagedFileError(
            f"{name!r} cannot be read from {path.name}: {error}"
        ) from error
    return contents


PROPERTY_FILES = ("metadata.json", "temp_meta.txt", "meta.txt")
"""Names used by Ultralytics; the last two by older versions and YOLOv5."""


def read_properties(path: Path) -> dict[str, str]:
    """Return the metadata that Ultralytics adds to the archive; may be empty.

    The values are in Python's notation, as in its ONNX files.
    """
    for name in PROPERTY_FILES:
        try:
            (content,) = read_associated_files(path, [name], MAX_PROPERTIES_BYTES)
        except DamagedFileError:
            continue
        return metadata.parse_properties(content)
    return {}


def _find_metadata(model: FlatBuffer) -> bytes | None:
    """Return the content of the entry TFLITE_METADATA, or None.

    Model: 4 buffers, 6 metadata; Metadata: 0 name, 1 buffer. Buffer: 0 data; or, in
    models too large for a FlatBuffer, 1 offset, 2 size.
    """
    root = model.root()
    entries = root.tables(6, lambda entry: (entry.text(0), entry.integer(1, "I")))
    numbers = [number for name, number in entries if name == "TFLITE_METADATA"]
    if not numbers:
        return None
    number = numbers[0]
    buffer = root.element(4, number)
    if buffer is None:
        raise DamagedFileError(
            f"the description is in buffer {number}, which is not there"
        )
    offset, size = buffer.integer(1, "Q"), buffer.integer(2, "Q")
    if offset <= 1:
        return buffer.blob(0, MAX_METADATA_BYTES)
    if size > MAX_METADATA_BYTES:
        raise DamagedFileError(f"the description has {size} bytes")
    return model.slice(offset, size)


def _model_metadata(root: FlatTable) -> metadata.ModelMetadata:
    """Read a ModelMetadata and its first graph.

    ModelMetadata: 0 name, 1 description, 2 version, 3 graphs, 4 author, 5 license, 6
    files. SubGraphMetadata: 2 inputs, 3 outputs, 4 files, 5 process units of inputs.
    """
    name, description, version, author, license = map(root.text, (0, 1, 2, 4, 5))
    files = root.tables(6, _file)
    model = metadata.ModelMetadata(
        name, description, version, author, license, associated_files=files
    )
    graph = root.element(3, 0)
    if graph is None:
        return model
    return model._replace(
        inputs=graph.tables(2, _tensor),
        outputs=graph.tables(3, _tensor),
        associated_files=files + graph.tables(4, _file),
        input_process_units=_units(graph, 5),
        unknown=_unknown_units(graph, 5),
    )


def _tensor(table: FlatTable) -> metadata.TensorMetadata:
    """Read a TensorMetadata.

    Fields: 0 name, 1 description, 3 content, 4 process units, 6 files.
    """
    content = table.table(3)
    meaning = None
    unknown = _unknown_units(table, 4)
    if content is not None:
        meaning = _content(content)
        number = content.integer(0, "B")
        if number and number not in _PROPERTIES:
            unknown = (f"content_{number}", *unknown)
    units = _units(table, 4)
    files = table.tables(6, _file)
    return metadata.TensorMetadata(
        table.text(0), table.text(1), meaning, units, files, unknown
    )


def _file(table: FlatTable) -> metadata.AssociatedFile:
    """Read an AssociatedFile: 0 name, 2 type, 3 locale."""
    try:
        kind = metadata.FileType(table.integer(2, "b"))
    except ValueError:
        kind = metadata.FileType.UNKNOWN
    return metadata.AssociatedFile(table.text(0), kind, table.text(3))


def _content(table: FlatTable) -> metadata.Content:
    """Read a Content: 0 kind and 1 table of the properties."""
    kind, read = _PROPERTIES.get(table.integer(0, "B"), ("unknown", None))
    properties = table.table(1)
    if read is None or properties is None:
        return metadata.Content(kind, None)
    return metadata.Content(kind, read(properties))


def _image(table: FlatTable) -> metadata.ImageProperties:
    size = table.table(1)
    if size is None:
        return metadata.ImageProperties(None)
    return metadata.ImageProperties((size.integer(0, "I"), size.integer(1, "I")))


def _boxes(table: FlatTable) -> metadata.BoundingBoxProperties:
    kind = table.choice(1, ("unknown", "boundaries", "upper_left", "center"))
    return metadata.BoundingBoxProperties(
        table.integers(0), kind, table.choice(2, ("ratio", "pixel"))
    )


_PROPERTIES: dict[int, tuple[str, Callable[[FlatTable], metadata.Properties]]] = {
    1: ("feature", lambda table: metadata.FeatureProperties()),
    2: ("image", _image),
    3: ("bounding_box", _boxes),
    4: (
        "audio",
        lambda table: metadata.AudioProperties(
            table.integer(0, "I"), table.integer(1, "I")
        ),
    ),
}
"""The union ContentProperties."""


def _units(table: FlatTable, number: int) -> tuple[metadata.ProcessUnit, ...]:
    """Return the known process units in a field."""
    return tuple(unit for unit in table.tables(number, _unit) if unit is not None)


def _unknown_units(table: FlatTable, number: int) -> tuple[str, ...]:
    """Return the names of unknown process units, of newer schemas."""
    kinds = table.tables(number, lambda unit: unit.integer(0, "B"))
    return tuple(
        f"process_unit_{kind}" for kind in kinds if kind and kind not in _OPTIONS
    )


def _unit(table: FlatTable) -> metadata.ProcessUnit | None:
    """Read a ProcessUnit: 0 kind and 1 table of the options."""
    read = _OPTIONS.get(table.integer(0, "B"))
    options = table.table(1)
    if read is None or options is None:
        return None
    return read(options)


def _normalization(table: FlatTable) -> metadata.ProcessUnit:
    mean, std = table.reals(0), table.reals(1)
    if not mean or not std or 0.0 in std:
        raise DamagedFileError(
            "a normalisation lacks its mean, or its standard deviation is 0"
        )
    return metadata.Normalization(mean, std)


_TRANSFORMATIONS = ("identity", "log", "inverse_logistic")
_OPTIONS: dict[int, Callable[[FlatTable], metadata.ProcessUnit]] = {
    1: _normalization,
    2: lambda table: metadata.ScoreCalibration(
        table.choice(0, _TRANSFORMATIONS), table.real(1)
    ),
    3: lambda table: metadata.ScoreThresholding(table.real(0)),
    4: lambda table: metadata.BertTokenizer(table.tables(0, _file)),
    5: lambda table: metadata.SentencePieceTokenizer(
        table.tables(0, _file), table.tables(1, _file)
    ),
    6: lambda table: metadata.RegexTokenizer(table.text(0), table.tables(1, _file)),
}
"""The union ProcessUnitOptions."""
