"""Read metadata inside model files, without a TFLite runtime."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import shutil
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flat_buffers import Flat
from pocketserve.formats import DamagedFileError
from pocketserve.formats.zip_archives import MAX_DIRECTORY_BYTES
from pocketserve.runtimes import metadata as md
from pocketserve.runtimes import metadata_parts
from pocketserve.runtimes.tflite import description as tflite_description
from pocketserve.runtimes.tflite.check import (
    TensorFlowOperatorError,
    check_tflite_graphs,
)
from pocketserve.tasks.labels import labels_of_tensor

DATA = Path(__file__).parent / "data"
MODEL = DATA / "metadata.tflite"
WHOLE = MODEL.read_bytes()


def described() -> md.ModelMetadata:
    found = tflite_description.read_metadata(MODEL)
    assert found is not None
    return found


# --- The fixture


def test_the_models_own_texts_are_read():
    found = described()
    assert found.name == "fixture"
    assert found.description == "Größe × 2"
    assert found.version == "v3"
    assert found.author == "someone"
    assert found.license == "Apache-2.0"
    assert found.associated_files == (
        metadata_parts.AssociatedFile(
            "vocab.txt", type=metadata_parts.FileType.VOCABULARY
        ),
    )
    assert found.input_process_units == ()


def test_an_input_with_all_fields_is_read():
    image = described().inputs[0]
    assert image.name == "image"
    assert image.description == "a small picture"
    assert image.content == metadata_parts.Content(
        "image", metadata_parts.ImageProperties((32, 24))
    )
    assert image.normalization == metadata_parts.Normalization((127.5, 127.0), (127.5,))


def test_every_kind_of_process_unit():
    vocabulary = (
        metadata_parts.AssociatedFile(
            "vocab.txt", type=metadata_parts.FileType.VOCABULARY
        ),
    )
    # A type number of a newer schema is not an error.
    future = (
        metadata_parts.AssociatedFile(
            "future.bin", type=metadata_parts.FileType.UNKNOWN
        ),
    )
    assert described().inputs[0].process_units[1:] == (
        metadata_parts.ScoreCalibration("log", 0.25),
        metadata_parts.ScoreThresholding(0.5),
        metadata_parts.BertTokenizer(vocabulary),
        metadata_parts.SentencePieceTokenizer(future, vocabulary),
        metadata_parts.RegexTokenizer(r"\W+", vocabulary),
    )


def test_every_kind_of_content():
    assert [tensor.content for tensor in described().inputs[1:]] == [
        metadata_parts.Content(
            "bounding_box",
            metadata_parts.BoundingBoxProperties((1, 0, 3, 2), "boundaries", "pixel"),
        ),
        metadata_parts.Content("audio", metadata_parts.AudioProperties(16000, 1)),
        metadata_parts.Content("feature", metadata_parts.FeatureProperties()),
        metadata_parts.Content("unknown", None),
    ]


def test_a_tensor_with_little():
    scores = described().outputs[0]
    assert scores.content is None
    assert scores.normalization is None
    assert scores.process_units == ()
    assert scores.description == ""
    assert scores.associated_files[2] == metadata_parts.AssociatedFile(
        "labels.txt", metadata_parts.FileType.TENSOR_AXIS_LABELS
    )


def test_a_model_without_metadata():
    assert tflite_description.read_metadata(DATA / "dynamic_batch.tflite") is None


# --- Associated files


def read_file(path: Path, name: str, limit: int = 8 << 20) -> bytes:
    return tflite_description.read_associated_files(path, [name], limit)[0]


def labels_of(
    path: Path, tensor: md.TensorMetadata, language: str | None = None
) -> Sequence[str]:
    """Return an output's labels as tasks read them."""
    read = functools.partial(tflite_description.read_associated_files, path)
    return labels_of_tensor(tensor, read).in_language(language)


@pytest.mark.parametrize(
    ("language", "labels"),
    [
        (None, ["cat", "", "bird"]),
        ("", ["cat", "", "bird"]),
        ("en", ["the cat", "the dog"]),
        ("EN", ["the cat", "the dog"]),
        ("en_GB", ["the cat", "the dog"]),
        ("de-AT", ["Kätzchen", "Hündchen"]),
        ("fr", ["cat", "", "bird"]),
    ],
)
def test_labels_by_language(language: str | None, labels: list[str]):
    assert labels_of(MODEL, described().outputs[0], language) == labels


def test_value_labels_and_missing_labels():
    found = described()
    assert labels_of(MODEL, found.outputs[1]) == ["zero", "one"]
    assert not labels_of(MODEL, found.inputs[0])


def test_axis_labels_come_before_value_labels():
    both = md.TensorMetadata(
        "t",
        associated_files=(
            metadata_parts.AssociatedFile(
                "values.txt", type=metadata_parts.FileType.TENSOR_VALUE_LABELS
            ),
            metadata_parts.AssociatedFile(
                "labels_de.txt",
                type=metadata_parts.FileType.TENSOR_AXIS_LABELS,
                locale="de",
            ),
        ),
    )
    assert labels_of(MODEL, both) == ["Kätzchen", "Hündchen"]


def test_files_are_limited_by_their_unpacked_size():
    assert read_file(MODEL, "zeros.bin", 100_000) == bytes(100_000)
    with pytest.raises(DamagedFileError, match="has 100000 bytes, more than 99999"):
        read_file(MODEL, "zeros.bin", 99_999)


@pytest.mark.parametrize("name", ["", "none.txt", "../labels.txt"])
def test_missing_files_are_ignored(name: str):
    with pytest.raises(DamagedFileError, match="has no file"):
        read_file(MODEL, name)


def test_a_model_without_an_archive():
    with pytest.raises(DamagedFileError, match="cannot be read"):
        read_file(DATA / "dynamic_batch.tflite", "labels.txt")


def test_a_file_with_a_wrong_size_is_refused(tmp_path: Path):
    """The directory claims 10 bytes; the packed data has 100,000."""
    path = tmp_path / "model.tflite"
    entry = WHOLE.rindex(b"PK\x01\x02", 0, WHOLE.rindex(b"zeros.bin"))
    path.write_bytes(WHOLE[: entry + 24] + struct.pack("<I", 10) + WHOLE[entry + 28 :])
    with pytest.raises(DamagedFileError):
        read_file(path, "zeros.bin", 1000)


def test_a_huge_directory_is_not_read(tmp_path: Path):
    path = tmp_path / "model.tflite"
    size = MAX_DIRECTORY_BYTES + 1
    with path.open("wb") as file:
        file.truncate(size)
        file.seek(size)
        file.write(
            struct.pack(
                "<4s4H2IH",
                b"PK\x05\x06",
                0,
                0,
                9,
                9,
                size,
                0,
                0,
            )
        )
    with pytest.raises(DamagedFileError, match="directory claims"):
        read_file(path, "labels.txt")


def test_an_archive_whose_offsets_begin_after_the_model_is_read(tmp_path: Path):
    target = tmp_path / "labels.zip"
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("labels.txt", "cat")
    path = tmp_path / "model.tflite"
    path.write_bytes(bytes(1000) + target.read_bytes())
    assert read_file(path, "labels.txt") == b"cat"


def test_encrypted_and_unknown_compression(tmp_path: Path):
    for offset, value in ((8, 1), (10, 99)):
        path = tmp_path / f"{offset}.tflite"
        entry = WHOLE.rindex(b"PK\x01\x02", 0, WHOLE.rindex(b"labels.txt"))
        path.write_bytes(
            WHOLE[: entry + offset]
            + struct.pack("<H", value)
            + WHOLE[entry + offset + 2 :]
        )
        with pytest.raises(DamagedFileError, match="cannot be read"):
            read_file(path, "labels.txt")


# --- Damaged descriptions, built by hand


def model_with(description: bytes, number: int = 0) -> bytes:
    """Return a model with only a description, which is said to be in buffer ``number``."""
    flat = Flat(b"TFL3")
    model = flat.table(4, 6)
    flat.point(0, model[-1])
    for field in (6, 4):
        vector = flat.vector(1)
        flat.point(model[field], vector)
        member = flat.table(*((0, 1) if field == 6 else (0,)))
        flat.point(vector + 4, member[-1])
        flat.point(
            member[0], flat.blob(b"TFLITE_METADATA" if field == 6 else description)
        )
        if field == 6:
            flat.set(member[1], number)
    return bytes(flat.data)


def read(
    tmp_path: Path, description: bytes, number: int = 0
) -> md.ModelMetadata | None:
    path = tmp_path / "model.tflite"
    path.write_bytes(model_with(description, number))
    return tflite_description.read_metadata(path)


def one_tensor(flat: Flat, *fields: int) -> dict[int, int]:
    """Write a root with one graph and one input.

    Return the input's fields.
    """
    root = flat.table(3)
    flat.point(0, root[-1])
    for number in (3, 2):
        vector = flat.vector(1)
        flat.point(root[number], vector)
        root = flat.table(*((2,) if number == 3 else fields))
        flat.point(vector + 4, root[-1])
    return root


def test_an_empty_description_is_valid(tmp_path: Path):
    flat = Flat(b"M001")
    flat.point(0, flat.table()[-1])
    assert read(tmp_path, bytes(flat.data)) == md.ModelMetadata()


@pytest.mark.parametrize(
    "description",
    [
        b"",
        b"M001",
        bytes(4) + b"M001",
        b"\xff\xff\xff\xffM001" + bytes(20),
    ],
)
def test_a_description_without_a_root_is_refused(tmp_path: Path, description: bytes):
    with pytest.raises(DamagedFileError):
        read(tmp_path, description)


def test_another_schema_is_refused(tmp_path: Path):
    with pytest.raises(DamagedFileError, match="identifier M001"):
        read(tmp_path, bytes(4) + b"M002" + bytes(20))


def test_a_missing_buffer_is_refused(tmp_path: Path):
    with pytest.raises(DamagedFileError, match="buffer 7, which is not there"):
        read(tmp_path, b"", number=7)


def test_a_description_beyond_the_limit_is_refused(tmp_path: Path):
    with pytest.raises(DamagedFileError, match="claims"):
        read(
            tmp_path, bytes(4) + b"M001" + bytes(tflite_description.MAX_METADATA_BYTES)
        )


@pytest.mark.parametrize("count", [2, 1000, 0x7FFFFFFF, 0xFFFFFFFF])
def test_vectors_longer_than_the_file_are_refused(tmp_path: Path, count: int):
    flat = Flat(b"M001")
    tensor = one_tensor(flat, 6)
    vector = flat.vector(1)
    flat.point(tensor[6], vector)
    flat.set(vector, count)
    with pytest.raises(DamagedFileError):
        read(tmp_path, bytes(flat.data))


def test_an_offset_to_itself_is_refused(tmp_path: Path):
    flat = Flat(b"M001")
    one_tensor(flat, 0)
    with pytest.raises(DamagedFileError, match="points to itself"):
        read(tmp_path, bytes(flat.data))


@pytest.mark.parametrize("size", [0, 2, 5, 0xFFFE])
def test_a_field_list_of_an_impossible_size_is_refused(tmp_path: Path, size: int):
    flat = Flat(b"M001")
    flat.point(0, flat.table(0)[-1])
    flat.data[8:10] = struct.pack("<H", size)
    with pytest.raises(DamagedFileError):
        read(tmp_path, bytes(flat.data))


@pytest.mark.parametrize(
    ("mean", "std", "match"),
    [
        ([math.nan], [1.0], "infinite or not a number"),
        ([0.0], [math.inf], "infinite or not a number"),
        ([0.0], [0.0], "standard deviation"),
        ([0.0], [], "lacks"),
        ([], [1.0], "lacks"),
    ],
)
def test_nonsensical_normalisation_is_ignored(
    tmp_path: Path, mean: Any, std: Any, match: str
):
    flat = Flat(b"M001")
    tensor = one_tensor(flat, 4)
    vector = flat.vector(1)
    flat.point(tensor[4], vector)
    unit = flat.table(0, 1)
    flat.point(vector + 4, unit[-1])
    flat.set(unit[0], 1)
    options = flat.table(0, 1)
    flat.point(unit[1], options[-1])
    for number, values in ((0, mean), (1, std)):
        at = flat.vector(len(values))
        flat.point(options[number], at)
        flat.data[at + 4 :] = struct.pack(f"<{len(values)}f", *values)
    with pytest.raises(DamagedFileError, match=match):
        read(tmp_path, bytes(flat.data))


def test_shared_tables_do_not_multiply_the_work(tmp_path: Path):
    """5,000 references to one unit with 5,000 files each would be 25 million tables in
    40 kB.
    """
    flat = Flat(b"M001")
    tensor = one_tensor(flat, 4)
    units = flat.vector(5000)
    flat.point(tensor[4], units)
    unit = flat.table(0, 1)
    flat.set(unit[0], 4)
    options = flat.table(0)
    flat.point(unit[1], options[-1])
    files = flat.vector(5000)
    flat.point(options[0], files)
    file = flat.table()
    for number in range(5000):
        flat.point(units + 4 + 4 * number, unit[-1])
        flat.point(files + 4 + 4 * number, file[-1])
    with pytest.raises(DamagedFileError, match="too large"):
        read(tmp_path, bytes(flat.data))


def test_invalid_utf8_is_replaced(tmp_path: Path):
    flat = Flat(b"M001")
    tensor = one_tensor(flat, 0)
    flat.point(tensor[0], flat.blob(b"a\xffb"))
    found = read(tmp_path, bytes(flat.data))
    assert found is not None
    assert found.inputs[0].name == "a�b"


# --- Other files and incomplete models


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"TFL3",
        b"1234TFL2" + bytes(50),
        b"\xff\xff\xff\x7fTFL3" + bytes(50),
    ],
)
@pytest.mark.parametrize(
    "function", [tflite_description.read_metadata, check_tflite_graphs]
)
def test_files_of_other_formats_are_refused(
    tmp_path: Path, content: bytes, function: Any
):
    path = tmp_path / "model.tflite"
    path.write_bytes(content)
    with pytest.raises(DamagedFileError):
        function(path)


@pytest.mark.parametrize(
    "function", [tflite_description.read_metadata, check_tflite_graphs]
)
def test_a_missing_file_is_refused(tmp_path: Path, function: Any):
    with pytest.raises(DamagedFileError, match=r"none\.tflite cannot be read"):
        function(tmp_path / "none.tflite")


@pytest.mark.parametrize(
    "path", sorted(DATA.glob("*.tflite")), ids=lambda path: path.stem
)
def test_complete_models_pass(path: Path):
    if path.stem == "select_tf_op":
        with pytest.raises(TensorFlowOperatorError, match="FlexMatrixDeterminant"):
            check_tflite_graphs(path)
    else:
        check_tflite_graphs(path)


@pytest.mark.parametrize(
    "path", sorted(DATA.glob("*.tflite")), ids=lambda path: path.stem
)
def test_truncated_models_are_refused(path: Path, tmp_path: Path):
    whole = path.read_bytes()
    cut = tmp_path / "cut.tflite"
    model = len(whole) if not zipfile.is_zipfile(path) else whole.index(b"PK\x03\x04")
    for kept in range(0, model - 64, 7):
        cut.write_bytes(whole[:kept])
        with pytest.raises(DamagedFileError):
            check_tflite_graphs(cut)


# --- Damaged files

_places = st.lists(
    st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)),
    min_size=1,
    max_size=6,
)
_fuzz = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    derandomize=True,
)


def _read_everything(path: Path) -> None:
    """Read everything that the module offers.

    Only its own error may be raised.
    """
    with contextlib.suppress(DamagedFileError):
        check_tflite_graphs(path)
    try:
        found = tflite_description.read_metadata(path)
    except DamagedFileError:
        return
    for tensor in (*found.inputs, *found.outputs) if found else ():
        with contextlib.suppress(DamagedFileError):
            labels_of(path, tensor, "en")


@_fuzz
@given(places=_places)
def test_changed_bytes_raise_nothing_else(
    tmp_path: Path, places: list[tuple[int, int]]
):
    changed = bytearray(WHOLE)
    for place, value in places:
        changed[place] = value
    (tmp_path / "model.tflite").write_bytes(changed)
    _read_everything(tmp_path / "model.tflite")


@_fuzz
@given(
    start=st.integers(0, len(WHOLE)),
    end=st.integers(0, len(WHOLE)),
    fill=st.binary(max_size=16),
)
def test_missing_parts_raise_nothing_else(
    tmp_path: Path, start: int, end: int, fill: bytes
):
    (tmp_path / "model.tflite").write_bytes(WHOLE[:start] + fill + WHOLE[end:])
    _read_everything(tmp_path / "model.tflite")


@_fuzz
@given(content=st.binary(max_size=400))
def test_garbage_raises_nothing_else(tmp_path: Path, content: bytes):
    (tmp_path / "model.tflite").write_bytes(
        model_with(content[:4] + b"M001" + content[4:])
    )
    _read_everything(tmp_path / "model.tflite")
    (tmp_path / "model.tflite").write_bytes(content[:4] + b"TFL3" + content[4:])
    _read_everything(tmp_path / "model.tflite")


# --- Public models

_KINDS = {
    "FeatureProperties": "feature",
    "ImageProperties": "image",
    "BoundingBoxProperties": "bounding_box",
    "AudioProperties": "audio",
}


@pytest.mark.assets
def test_public_models_agree_with_another_reader(assets: Path):
    models = json.loads((assets / "MANIFEST.json").read_text())["models"]
    checked = 0
    for model in models:
        if model["file"].endswith(".tflite"):
            _check_model_against(assets / model["file"], model["spec"])
            checked += 1
    assert checked >= 11


def _check_model_against(path: Path, spec: dict[str, Any]) -> None:
    check_tflite_graphs(path)
    found = tflite_description.read_metadata(path)
    expected = spec["tflite_metadata"]
    if not expected:
        assert found is None
        return
    assert found is not None
    texts = (
        found.name,
        found.description,
        found.version or None,
        found.license or None,
    )
    assert texts == tuple(
        expected[key] for key in ("name", "description", "version", "licence")
    )
    for role, tensors in (("input", found.inputs), ("output", found.outputs)):
        entries = expected[f"{role}TensorMetadata"]
        assert len(tensors) == len(entries)
        for tensor, entry in zip(tensors, entries, strict=True):
            _check_tensor_against(path, tensor, entry)
    for name in spec["embedded_files"]:
        assert read_file(path, name)


def _check_tensor_against(
    path: Path, tensor: md.TensorMetadata, entry: dict[str, Any]
) -> None:
    assert tensor.name == entry["name"]
    # That reader gives no content where its table of properties is missing.
    content = tensor.content
    kind = None
    if content is not None and content.properties is not None:
        kind = content.kind
    assert kind == _KINDS.get(entry["content"])
    assert [file.name for file in tensor.associated_files] == entry["associated_files"]
    for unit, expected in zip(
        tensor.process_units, entry["process_units"], strict=True
    ):
        if isinstance(unit, metadata_parts.Normalization):
            assert list(unit.mean) == expected["mean"]
            assert list(unit.std) == expected["std"]
        else:
            assert isinstance(unit, metadata_parts.RegexTokenizer)
            assert unit.delimiter == expected["delimRegexPattern"]
            assert [file.name for file in unit.vocab_files] == expected["vocabFile"]
    labels = labels_of(path, tensor)
    assert not labels or (len(labels) > 1 and all(labels))


def test_a_model_is_not_changed_by_reading(tmp_path: Path):
    path = tmp_path / "model.tflite"
    shutil.copy(MODEL, path)
    path.chmod(0o400)
    _read_everything(path)
    assert path.read_bytes() == WHOLE


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("metadata.json", '{"names": {"0": "a"}, "stride": 32}'),
        ("temp_meta.txt", "{'names': {'0': 'a'}, 'stride': 32}"),
        ("meta.txt", "{'names': {'0': 'a'}, 'stride': 32}"),
    ],
)
def test_metadata_of_ultralytics_by_each_name_of_its_file(
    tmp_path: Path, name: str, content: str
) -> None:
    path = tmp_path / "m.tflite"
    shutil.copyfile(MODEL, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, content)

    properties = tflite_description.read_properties(path)

    assert properties == {"names": "{'0': 'a'}", "stride": "32"}


@pytest.mark.parametrize(
    "content",
    [
        "__import__('os')",
        "[1]",
        "{" * 5000,
        "é",
    ],
)
def test_other_texts_are_not_metadata(tmp_path: Path, content: str) -> None:
    path = tmp_path / "m.tflite"
    shutil.copyfile(MODEL, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("meta.txt", content.encode("latin-1"))

    assert tflite_description.read_properties(path) == {}
