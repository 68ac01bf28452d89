"""Parse the metadata of ``.tflite`` files, which ONNX files may contain, too.

Field numbers are those of ``metadata_schema.fbs`` 1.5.0 (TensorFlow Lite Support).
Unused fields are not read.
"""

from __future__ import annotations

from collections.abc import Callable

from pocketserve.formats import DamagedFileError
from pocketserve.formats.flatbuffers import FlatBuffer, FlatTable
from pocketserve.runtimes import metadata, metadata_parts


def parse_metadata(content: bytes) -> metadata.ModelMetadata:
    """Parse serialized metadata."""
    return _model_metadata(FlatBuffer(content, b"M001").root())


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


def _file(table: FlatTable) -> metadata_parts.AssociatedFile:
    """Read an AssociatedFile: 0 name, 2 type, 3 locale."""
    try:
        kind = metadata_parts.FileType(table.integer(2, "b"))
    except ValueError:
        kind = metadata_parts.FileType.UNKNOWN
    return metadata_parts.AssociatedFile(table.text(0), kind, table.text(3))


def _content(table: FlatTable) -> metadata_parts.Content:
    """Read a Content: 0 kind and 1 table of the properties."""
    kind, read = _PROPERTIES.get(table.integer(0, "B"), ("unknown", None))
    properties = table.table(1)
    if read is None or properties is None:
        return metadata_parts.Content(kind, None)
    return metadata_parts.Content(kind, read(properties))


def _image(table: FlatTable) -> metadata_parts.ImageProperties:
    size = table.table(1)
    if size is None:
        return metadata_parts.ImageProperties(None)
    return metadata_parts.ImageProperties((size.integer(0, "I"), size.integer(1, "I")))


def _boxes(table: FlatTable) -> metadata_parts.BoundingBoxProperties:
    kind = table.choice(1, ("unknown", "boundaries", "upper_left", "center"))
    return metadata_parts.BoundingBoxProperties(
        table.integers(0), kind, table.choice(2, ("ratio", "pixel"))
    )


_PROPERTIES: dict[int, tuple[str, Callable[[FlatTable], metadata_parts.Properties]]] = {
    1: ("feature", lambda table: metadata_parts.FeatureProperties()),
    2: ("image", _image),
    3: ("bounding_box", _boxes),
    4: (
        "audio",
        lambda table: metadata_parts.AudioProperties(
            table.integer(0, "I"), table.integer(1, "I")
        ),
    ),
}
"""The union ContentProperties."""


def _units(table: FlatTable, number: int) -> tuple[metadata_parts.ProcessUnit, ...]:
    """Return the known process units in a field."""
    return tuple(unit for unit in table.tables(number, _unit) if unit is not None)


def _unknown_units(table: FlatTable, number: int) -> tuple[str, ...]:
    """Return the names of unknown process units, of newer schemas."""
    kinds = table.tables(number, lambda unit: unit.integer(0, "B"))
    return tuple(
        f"process_unit_{kind}" for kind in kinds if kind and kind not in _OPTIONS
    )


def _unit(table: FlatTable) -> metadata_parts.ProcessUnit | None:
    """Read a ProcessUnit: 0 kind and 1 table of the options."""
    read = _OPTIONS.get(table.integer(0, "B"))
    options = table.table(1)
    if read is None or options is None:
        return None
    return read(options)


def _normalization(table: FlatTable) -> metadata_parts.ProcessUnit:
    mean = table.reals(0)
    std = table.reals(1)
    if not mean or not std or 0.0 in std:
        raise DamagedFileError(
            "a normalisation lacks its mean, or its standard deviation is 0"
        )
    return metadata_parts.Normalization(mean, std)


_TRANSFORMATIONS = ("identity", "log", "inverse_logistic")
_OPTIONS: dict[int, Callable[[FlatTable], metadata_parts.ProcessUnit]] = {
    1: _normalization,
    2: lambda table: metadata_parts.ScoreCalibration(
        table.choice(0, _TRANSFORMATIONS), table.real(1)
    ),
    3: lambda table: metadata_parts.ScoreThresholding(table.real(0)),
    4: lambda table: metadata_parts.BertTokenizer(table.tables(0, _file)),
    5: lambda table: metadata_parts.SentencePieceTokenizer(
        table.tables(0, _file), table.tables(1, _file)
    ),
    6: lambda table: metadata_parts.RegexTokenizer(
        table.text(0), table.tables(1, _file)
    ),
}
"""The union ProcessUnitOptions."""
