"""Manifests: every key, every wrong type, and errors with file, key and fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.repository.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    StateOptions,
    VersionOptions,
    is_valid_name,
    parse_manifest,
    read_manifest,
)
from pocketserve.repository.toml_table import ManifestError, is_contained_name
from pocketserve.tasks.vision.detection_options import AnchorOptions, DetectionOptions
from pocketserve.tasks.vision.pose_estimation import PoseOptions
from pocketserve.tasks.vision.preprocessing import ImageOptions
from pocketserve.tensors import TensorSpec

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=150,
)
SHA256 = "0123456789abcdefABCDEF" + "0" * 42
SPEC = {
    "name": "x",
    "datatype": "FP32",
    "shape": [-1, 4],
}


def test_an_empty_manifest_is_valid() -> None:
    """Every key is optional."""
    assert parse_manifest({}) == Manifest()


def test_a_manifest_with_every_key(tmp_path: Path) -> None:
    path = tmp_path / "model.toml"
    path.write_text(
        """
description = "Digits"
license = "CC0-1.0"
task = "image-classification"
default_version = "small"
labels = "data/labels.txt"
translations = { de = "data/labels.de.txt" }
threads = 2
instances = 3
queue_limit = 8
batching = false
max_batch = 16
keep_alive = 0.5
image = { color = "rgb", resize = "letterbox", mean = [1, 2.5, 3], std = 127.5, invert = "auto" }
features = { names = ["a", "b"], units = ["m", "s"] }
target = { name = "t", unit = "kg" }
state = { feedback = { h_in = "h_out" }, start = { h_in = [1, 0, 4] }, max_sequences = 3, max_idle = 5 }
[[inputs]]
name = "x"
datatype = "FP32"
shape = [-1, 4]
[[outputs]]
name = "y"
datatype = "BYTES"
shape = []
[versions.small]
file = "small.tflite"
xnnpack = false
sha256 = "{SHA256}"
evaluation = { metric = "accuracy", value = 0.9 }
""".replace("{SHA256}", SHA256),
        encoding="utf-8",
    )
    assert read_manifest(path) == Manifest(
        description="Digits",
        license="CC0-1.0",
        task="image-classification",
        default_version="small",
        labels="data/labels.txt",
        translations={"de": "data/labels.de.txt"},
        threads=2,
        instances=3,
        queue_limit=8,
        batching=False,
        max_batch=16,
        keep_alive=0.5,
        state=StateOptions({"h_in": "h_out"}, {"h_in": (1, 0, 4)}, 3, 5),
        sections={
            ImageOptions: ImageOptions(
                "rgb", "letterbox", (1.0, 2.5, 3.0), (127.5,), "auto"
            )
        },
        feature_names=("a", "b"),
        feature_units=("m", "s"),
        target_name="t",
        target_unit="kg",
        inputs=(TensorSpec("x", "FP32", (-1, 4)),),
        outputs=(TensorSpec("y", "BYTES", ()),),
        versions={
            "small": VersionOptions(
                "small.tflite",
                {"xnnpack": False},
                {"metric": "accuracy", "value": 0.9},
                SHA256,
            ),
        },
    )


NOT_TEXT: list[Any] = [1, 1.5, True, [], {}]
NOT_TEXTS: list[Any] = [
    "a",
    1,
    {},
    [1],
    ["a", None],
    [["a"]],
]
NOT_TABLE: list[Any] = ["a", 1, True, []]
NOT_TABLES: list[Any] = [
    "a",
    1,
    {},
    [1],
    [[]],
    [SPEC, "a"],
]
NOT_PATH: list[Any] = [
    1,
    "",
    "../up",
    "a/../../b",
    "..",
    "/etc/passwd",
    "a\0b",
    "a\\b",
    ["a"],
]
NOT_LABELS: list[Any] = [
    *NOT_PATH[:-1],
    ["a", 1],
    [["a"]],
]
NOT_NUMBERS: list[Any] = [
    "1",
    True,
    [],
    ["1"],
    [True],
    [1, float("nan")],
    float("inf"),
    10**400,
    [[1]],
    {},
]
WRONG: dict[str, list[Any]] = {
    "description": NOT_TEXT,
    "license": NOT_TEXT,
    "task": [1, "vision", "Tensors", "", ["tensors"], {}],
    "default_version": NOT_TEXT,
    "labels": NOT_LABELS,
    "ignored_keys": ["do_crop_margin", [1], 1, {}],
    "fixed_inputs": ["mask", 1, []],
    "fixed_inputs.mask": ["1", ["a"], [[1], ["b"]], {"a": 1}],
    "threads": [0, -1, 257, 1.0, True, "2", [1], 10**30],
    "instances": [0, 65, 1.0, False, "1"],
    "queue_limit": [0, 1025, 1.5, True, "64"],
    "batching": [1, "yes", []],
    "max_batch": [0, 1025, 1.5, True],
    "keep_alive": [-1, -0.5, "60", True, float("nan"), float("inf"), 10**400],
    "image": NOT_TABLE,
    "image.color": ["RGB", "hsv", 3, ["rgb"]],
    "image.resize": ["fill", "", 1, ["crop"]],
    "image.mean": NOT_NUMBERS,
    "image.std": [*NOT_NUMBERS, 0, [1, 0], -0.0],
    "image.invert": [True, "no", 1],
    "image.resample": ["BILINEAR", 2],
    "image.crop_fraction": [0, 1.5, "1"],
    "image.fill": NOT_NUMBERS,
    "image.width": [0, 1.5, "8"],
    "classification": NOT_TABLE,
    "classification.activation": ["relu", 1],
    "classification.label_offset": [1.5, "1", 5000],
    "classification.threshold": ["1", True, float("nan")],
    "detection": NOT_TABLE,
    "detection.format": ["yolo", 5],
    "detection.boxes": NOT_TEXT,
    "detection.box_type": ["corners", 1],
    "detection.box_order": [
        "0123",
        [0, 1, 2],
        [0, 1, 2, 2],
        [1, 2, 3, 4],
        [0, 1, 2, "3"],
    ],
    "detection.coordinates": ["ratios", 1],
    "detection.background": ["yes", 1],
    "detection.iou": [-0.1, 1.1, "0.5"],
    "detection.max": [0, 1.5, 10_001],
    "detection.anchors_file": NOT_PATH,
    "detection.anchors": NOT_TABLE,
    "detection.box_scale": [*NOT_NUMBERS, [1, 2, 3, 0]],
    "detection.exponential": ["no", 0],
    "segmentation": NOT_TABLE,
    "segmentation.output": NOT_TEXT,
    "segmentation.threshold": ["1", True],
    "segmentation.activation": ["softmax", 1],
    "pose": NOT_TABLE,
    "pose.format": ["blazepose", 1],
    "pose.keypoints": NOT_TEXTS,
    "pose.skeleton": ["a", [1], [[1]], [[1, 2, 3]], [[1, -2]], [[1, "2"]]],
    "pose.threshold": ["1", True],
    "spectrogram": NOT_TABLE,
    "spectrogram.kind": ["log-mel", 1],
    "spectrogram.n_fft": [7, 65_537, 512.0],
    "spectrogram.win_length": [1, "400"],
    "spectrogram.hop_length": [0, True],
    "spectrogram.window": ["blackman", 1],
    "spectrogram.frame_length": [400, "window"],
    "spectrogram.center": [1, "yes"],
    "spectrogram.pad_mode": ["edge"],
    "spectrogram.preemphasis": [-0.1, 1.1, "0.97"],
    "spectrogram.power": [0, 9, True],
    "spectrogram.n_mels": [0, 1025],
    "spectrogram.f_min": [-1, "60"],
    "spectrogram.f_max": [0, [8000]],
    "spectrogram.mel_scale": ["HTK", "mel"],
    "spectrogram.norm": [1, "htk"],
    "spectrogram.triangles": ["Hz"],
    "spectrogram.log": ["ln", True],
    "spectrogram.log_offset": [-1],
    "spectrogram.top_db": [-1, "80"],
    "spectrogram.n_mfcc": [0, 13.0],
    "spectrogram.normalize": ["bin", True],
    "spectrogram.mean": ["0", []],
    "spectrogram.std": [0, [1, 0]],
    "spectrogram.layout": ["bins", 1],
    "spectrogram.frames": [0, 1.5],
    "audio": NOT_TABLE,
    "audio.sample_rate": [999, 768_001, 16_000.0, "16000"],
    "audio.channels": [0, 65, "mono"],
    "audio.window": [0, 1.5, "512"],
    "audio.hop": [0, 1.5],
    "audio.context": [-1, "64"],
    "audio.pad": ["reflect", 0],
    "audio.scale": ["int8", 1],
    "audio.normalize": [True, "unit"],
    "audio.pool": ["none", "median"],
    "audio.input": NOT_TEXT,
    "audio.rate_input": NOT_TEXT,
    "audio.output": NOT_TEXT,
    "audio.max_seconds": [0, "60", float("nan")],
    "audio.threshold": [-0.1, 1.1, "0.5"],
    "audio.min_speech": [-1, "0.1"],
    "audio.min_silence": [-1, 61],
    "audio.speech_pad": [-1, True],
    "audio.versions": NOT_TABLE,
    "text": NOT_TABLE,
    "speech": NOT_TABLE,
    "speech.language": NOT_TEXT,
    "speech.task": ["translation", 1],
    "speech.prompt": NOT_TEXT,
    "speech.temperature": [-0.1, 1.1, "0.5"],
    "speech.retries": [-1, 6, 1.5],
    "speech.timeout": [0, "long", 86_401],
    "generation": [1, "long"],
    "generation.context": [63, 1.5, "4096", 2**24 + 1],
    "generation.cache": ["f32", 8],
    "generation.max_tokens": [0, 1.5, "512"],
    "generation.timeout": [0, "long", 86_401],
    "text.tokenizer": ["bert", 1],
    "text.vocabulary": NOT_PATH,
    "text.delimiter": NOT_TEXT,
    "text.lower_case": ["yes", 1],
    "text.add_bos": ["yes", 1],
    "text.add_eos": ["yes", 1],
    "text.max_length": [1, 1.5, "128"],
    "text.ids": NOT_TEXT,
    "text.mask": NOT_TEXT,
    "text.types": NOT_TEXT,
    "text.output": NOT_TEXT,
    "text.start_output": NOT_TEXT,
    "text.end_output": NOT_TEXT,
    "text.pooling": ["sum", 1],
    "text.normalize": ["yes", 1],
    "text.stride": [-1, 1.5],
    "text.max_answer": [0, "30"],
    "text.max_chars": [0, 1e5],
    "items": NOT_TABLE,
    "items.input": NOT_TEXT,
    "items.user_input": NOT_TEXT,
    "items.output": NOT_TEXT,
    "items.ids_output": NOT_TEXT,
    "items.padding": [1.5, "0", 2**31],
    "items.pad": ["both", 1],
    "items.exclude_seen": ["yes", 0],
    "translations": NOT_TABLE,
    "translations.de": NOT_LABELS,
    "features": NOT_TABLE,
    "features.names": NOT_TEXTS,
    "features.units": NOT_TEXTS,
    "target": NOT_TABLE,
    "target.name": NOT_TEXT,
    "target.unit": NOT_TEXT,
    "inputs": NOT_TABLES,
    "inputs[0].name": [1, "", None, []],
    "inputs[0].datatype": ["fp32", "STRING", 1, None, ["FP32"]],
    "inputs[0].shape": ["4", 4, [1.0], [-2], [True], ["1"], None, [[1]]],
    "outputs": NOT_TABLES,
    "outputs[0].name": [1, "", None],
    "outputs[0].datatype": ["float32", None],
    "outputs[0].shape": [{}, [-2], None],
    "state": NOT_TABLE,
    "state.feedback": NOT_TABLE,
    "state.start": NOT_TABLE,
    "state.max_sequences": [0, 1025, 1.0, True, "4"],
    "state.max_idle": [-1, "60", True, float("nan"), float("inf")],
    "versions": NOT_TABLE,
    "versions.a": NOT_TABLE,
    "versions.a.file": [*NOT_PATH, None],
    "versions.a.evaluation": NOT_TABLE,
    "versions.a.sha256": [1, "", "abc", "g" * 64, "a" * 63, "a" * 65, "٣" * 64],
}


def with_value(key: str, value: Any) -> dict[str, Any]:
    """Return a document in which only that key may be invalid."""
    table, _, last = key.partition(".")
    if not last:
        return {key: value}
    if table.endswith("[0]"):
        return {table[:-3]: [SPEC | {last: value}]}
    if last.startswith("a."):
        return {table: {"a": {"file": "a.tflite"} | {last[2:]: value}}}
    return {table: {last: value}}


WRONG_PAIRS = [(key, value) for key, values in WRONG.items() for value in values]


@pytest.mark.parametrize(
    ("key", "value"), WRONG_PAIRS, ids=lambda part: ascii(part)[:24]
)
def test_wrong_values_are_rejected(key: str, value: Any) -> None:
    """The message starts with the file and the key."""
    with pytest.raises(ManifestError) as caught:
        parse_manifest(with_value(key, value))
    assert str(caught.value).startswith(f"model.toml: {key} ")
    assert "must be" in str(caught.value) or "is missing" in str(caught.value)


def test_every_key_is_in_the_table_of_wrong_values() -> None:
    """A new key of the format must be added to the table above."""
    with pytest.raises(ManifestError, match="known keys are") as caught:
        parse_manifest({"$": 1})
    known = str(caught.value).partition("known keys are ")[2].split(", ")
    assert sorted(known) == sorted(key for key in WRONG if "." not in key)


@pytest.mark.parametrize(
    ("document", "part"),
    [
        ({"image": {"width": 8}}, "image.height is missing"),
        ({"image": {"height": 8}}, "image.width is missing"),
        (
            {"audio": {"versions": {"onnx": {"contxt": 1}}}},
            "unknown key audio.versions.onnx.contxt",
        ),
        (
            {"audio": {"versions": {"onnx": {"context": -1}}}},
            "audio.versions.onnx.context must be",
        ),
        (
            {"detection": {"box_scale": [1, 2, 3]}},
            "detection.box_scale must have four numbers",
        ),
        ({"detection": {"anchors": {}}}, "detection.anchors.strides is missing"),
        (
            {"detection": {"anchors": {"strides": []}}},
            "detection.anchors.strides must be",
        ),
        (
            {"detection": {"anchors": {"strides": [0]}}},
            "detection.anchors.strides must be",
        ),
        (
            {"detection": {"anchors": {"strides": [8], "stride": 8}}},
            "unknown key detection.anchors.stride",
        ),
    ],
)
def test_keys_that_belong_together(document: dict[str, Any], part: str) -> None:
    """Missing and superfluous keys inside a task's table are named too."""
    with pytest.raises(ManifestError) as caught:
        parse_manifest(document)
    assert part in str(caught.value)


def test_the_tables_of_tasks() -> None:
    """A table becomes its options, and a missing one its defaults."""
    table = {
        "format": "ssd",
        "boxes": "b",
        "box_order": [1, 0, 3, 2],
        "box_scale": [1, 2, 3, 4],
        "exponential": False,
        "anchors": {
            "strides": [8, 16],
            "aspect_ratios": [1],
            "fixed_size": True,
            "interpolated_ratio": 0,
        },
    }
    found = parse_manifest({"detection": table, "pose": {"skeleton": [[0, 1]]}})
    detection = found.section(DetectionOptions)
    assert detection.format == "ssd"
    assert detection.boxes == "b"
    assert detection.box_order == (1, 0, 3, 2)
    assert (detection.box_scale, detection.exponential) == ((1, 2, 3, 4), False)
    assert detection.anchors == AnchorOptions(
        (8, 16), aspect_ratios=(1,), fixed_size=True, interpolated_ratio=0
    )
    assert found.section(PoseOptions).skeleton == ((0, 1),)
    assert found.section(ImageOptions) == ImageOptions()


UNKNOWN = {
    "labls": ({"labls": "a.txt"}, "unknown key labls; did you mean 'labels'?"),
    "lables": ({"lables": "a.txt"}, "unknown key lables; did you mean 'labels'?"),
    "zzz": ({"zzz": 1}, "unknown key zzz; known keys are features, target, "),
    "image.colour": (
        {"image": {"colour": "rgb"}},
        "unknown key image.colour; did you mean 'color'?",
    ),
    "features.name": (
        {"features": {"name": []}},
        "unknown key features.name; did you mean 'names'?",
    ),
    "target.nmae": (
        {"target": {"nmae": ""}},
        "unknown key target.nmae; did you mean 'name'?",
    ),
    "activation": (
        {"activation": 1, "task": "image-classification"},
        "unknown key activation; it belongs in [class",
    ),
    "activation, no task": (
        {"activation": 1},
        "unknown key activation; it belongs in [detection] or [segmentation]",
    ),
    "mean": ({"mean": 1}, "unknown key mean; it belongs in [image]"),
    "names": ({"names": []}, "unknown key names; it belongs in [features]"),
    "pose.mean": (
        {"pose": {"mean": 1}},
        "unknown key pose.mean; it belongs in [image]",
    ),
    "image.task": (
        {"image": {"task": ""}},
        "unknown key image.task; it belongs above the first [table]",
    ),
    "state.labels": (
        {"state": {"labels": ""}},
        "unknown key state.labels; it belongs above the first [table]",
    ),
    "pose.image": (
        {"pose": {"image": {}}},
        "unknown key pose.image; it is a table of its own, [image]",
    ),
    "top_k": (
        {"top_k": 3},
        "unknown key top_k; each request states it, as the parameter top_k: "
        "`pocketserve predict` takes --top-k N",
    ),
    "image.annotate": (
        {"image": {"annotate": "png"}},
        "unknown key image.annotate; each request states it, as the parameter "
        "annotate: `pocketserve predict` takes",
    ),
    "inputs[1].dtype": (
        {"inputs": [SPEC, SPEC | {"dtype": ""}]},
        "unknown key inputs[1].dtype; did you mean",
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_keys_are_rejected(case: str) -> None:
    """The message suggests the likely key."""
    document, text = UNKNOWN[case]
    with pytest.raises(ManifestError) as caught:
        parse_manifest(document, "folder.toml")
    assert str(caught.value).startswith(f"folder.toml: {text}")


def test_a_misspelt_task_gets_a_suggestion() -> None:
    """Every other choice is suggested too.

    Half a name may match several.
    """
    with pytest.raises(
        ManifestError,
        match=r"not 'image-clasification'; did you mean 'image-classification'\?",
    ):
        parse_manifest({"task": "image-clasification"})
    with pytest.raises(
        ManifestError,
        match=r"did you mean 'image-classification' or 'audio-.*' or 'text-.*' or 'tab",
    ):
        parse_manifest({"task": "classification"})


def test_a_manifest_can_list_labels() -> None:
    found = parse_manifest(
        {
            "labels": ["cat", "dog"],
            "translations": {"de": ["Katze", "Hund"], "fr": "fr.txt"},
        }
    )
    assert found.labels == ("cat", "dog")
    assert found.translations == {"de": ("Katze", "Hund"), "fr": "fr.txt"}


def test_feedback_names_outputs() -> None:
    """Each state input names the output that feeds it."""
    with pytest.raises(ManifestError, match=r"state\.feedback\.h must name an output"):
        parse_manifest({"state": {"feedback": {"h": 1}}})


@pytest.mark.parametrize(
    "shape",
    [
        4,
        [-1],
        [1.0],
        ["1"],
        [True],
        None,
    ],
)
def test_a_state_starts_with_a_shape(shape: object) -> None:
    """A start shape belongs to a fed input and has all sizes."""
    with pytest.raises(
        ManifestError,
        match=r"state\.start\.h must be a list of sizes, such as \[1, 2, 0, 64\]",
    ):
        parse_manifest({"state": {"feedback": {"h": "hn"}, "start": {"h": shape}}})
    with pytest.raises(
        ManifestError, match=r"state\.start\.c is not an input of state\.feedback"
    ):
        parse_manifest({"state": {"feedback": {"h": "hn"}, "start": {"c": [1]}}})


@pytest.mark.parametrize(
    "shape",
    [
        [2**26 + 1],
        [2**40, 2**40],
        [0, 2**70],
        [1] * 33,
    ],
)
def test_the_start_shape_of_a_state_is_bounded(shape: list[int]) -> None:
    """Every sequence, and every request without one, allocates the state."""
    with pytest.raises(
        ManifestError,
        match=r"state\.start\.h is larger than 67,108,864 numbers, or has too many",
    ):
        parse_manifest({"state": {"feedback": {"h": "hn"}, "start": {"h": shape}}})
    assert parse_manifest(
        {"state": {"feedback": {"h": "hn"}, "start": {"h": [2**26, 0]}}}
    ).state.start


def test_default_version_must_be_declared() -> None:
    """If versions are declared, they include the default one."""
    versions = {"a": {"file": "a.tflite"}, "b": {"file": "b.tflite"}}
    assert (
        parse_manifest({"versions": versions, "default_version": "b"}).default_version
        == "b"
    )
    with pytest.raises(
        ManifestError, match=r"default_version is 'c', but \[versions\] has a, b"
    ):
        parse_manifest({"versions": versions, "default_version": "c"})


BAD_NAMES = [
    "",
    "stats",
    ".a",
    "..",
    "a b",
    "a/b",
    "a:b",
    "a%2fb",
    "a\\b",
    "a?b",
    "a#b",
    "a\0",
    "a\n",
    "\x7f",
    "\udc80",
]
BAD_NAMES += ["x" * 129]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_invalid_names_are_rejected(name: str) -> None:
    """A name is part of URL paths and metrics.

    Versions have the same rules.
    """
    assert not is_valid_name(name)
    with pytest.raises(ManifestError, match="fits into a URL path"):
        parse_manifest({"versions": {name: {"file": "a.tflite"}}})


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "1",
        "Stats",
        "mobilenet_v2-1.0",
        "größe",
        "x" * 128,
        "a.b",
        "@+,~",
    ],
)
def test_valid_names(name: str) -> None:
    """Names in other scripts and with usual punctuation are valid."""
    assert is_valid_name(name)


@pytest.mark.parametrize(
    "path", ["a", "a/b.tflite", "./a", "a..b", "...", ".hidden", "a b"]
)
def test_contained_paths(path: str) -> None:
    """Only relative paths inside their folder are valid."""
    assert is_contained_name(path)


@pytest.mark.parametrize(
    "path",
    [
        "n" * 256,
        "ö" * 128,
        "a/" * 600 + "a",
        "n" * 250 + "/../a",
    ],
)
def test_impossible_paths_are_rejected(path: str) -> None:
    """The operating system would raise an error for them."""
    assert not is_contained_name(path)


FILES = {
    "not TOML": (b"task = ", "model.toml: not valid TOML: "),
    "no quotes": (
        b"threads = 1\ntask = image-classification  # of birds\n",
        "model.toml: not valid TOML: Invalid value (at line 2, column 8); put it in quotes: "
        'task = "image-classification"',
    ),
    "Python's truth": (
        b"batching = True",
        "model.toml: not valid TOML: Invalid value (at line 1, column 12); write batching = true",
    ),
    "no quotes, and more": (b"labels = a.txt b.txt\n", "model.toml: not valid TOML: "),
    "duplicate key": (b"threads = 1\nthreads = 2\n", "model.toml: not valid TOML: "),
    "impossible date": (b"threads = 2026-13-45\n", "model.toml: "),
    "not UTF-8": (b'description = "\xff"', "model.toml: cannot be read: "),
    "UTF-16": ("threads = 1".encode("utf-16"), "model.toml: "),
    "too large": (
        b"#" * (MAX_MANIFEST_BYTES + 1),
        f"model.toml: cannot be read: it is larger than {MAX_MANIFEST_BYTES} bytes",
    ),
    "nested too deep": (b"a = " + b"[" * 100_000, "model.toml: "),
    "a number of 5,000 digits": (
        b"threads = " + b"9" * 5000,
        "model.toml: cannot be read: ",
    ),
    "a hexadecimal number of 5,000 digits": (
        b"threads = 0x" + b"f" * 5000,
        "model.toml: threads must be a whole number from 1 to 256, not a number of over 4300 digits",
    ),
    "such a number in a list": (
        b"labels = [0x" + b"f" * 5000 + b"]",
        "model.toml: labels must be a list of texts, or a path",
    ),
}


@pytest.mark.parametrize("case", FILES)
def test_broken_manifests(tmp_path: Path, case: str) -> None:
    """Each gives one error of bounded length that names the file."""
    content, text = FILES[case]
    path = tmp_path / "model.toml"
    path.write_bytes(content)
    with pytest.raises(ManifestError) as caught:
        read_manifest(path)
    assert str(caught.value).startswith(text)
    assert len(str(caught.value)) < 400


def test_missing_file(tmp_path: Path) -> None:
    """A missing file is a manifest error too."""
    with pytest.raises(ManifestError, match=r"model\.toml: cannot be read"):
        read_manifest(tmp_path / "model.toml")


def test_the_largest_manifest_is_read(tmp_path: Path) -> None:
    """The limit itself is allowed."""
    path = tmp_path / "model.toml"
    path.write_bytes(b"#" * MAX_MANIFEST_BYTES)
    assert read_manifest(path) == Manifest()


scalars = st.one_of(
    st.text(max_size=6),
    st.integers(-(2**70), 2**1100),
    st.floats(),
    st.booleans(),
    st.dates(),
    st.datetimes(),
    st.times(),
    st.sampled_from(["rgb", "auto", "tensors", "FP32", "a.tflite", "../x"]),
)
KEYS = sorted({part for key in WRONG for part in key.replace("[0]", "").split(".")})
keys = st.one_of(st.sampled_from(KEYS), st.text(max_size=5))
documents = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=5)
    ),
    max_leaves=12,
)


@SETTINGS
@given(document=st.dictionaries(keys, documents, max_size=6))
def test_random_documents(document: dict[str, Any]) -> None:
    """A document of any shape gives a manifest or a ManifestError."""
    try:
        parsed = parse_manifest(document)
    except ManifestError as error:
        parsed = None
        message = str(error)
    assert isinstance(parsed, Manifest) or message.startswith("model.toml: ")


@SETTINGS
@given(key=st.sampled_from(sorted(WRONG)), value=documents)
def test_random_values(key: str, value: Any) -> None:
    """A value is accepted or rejected under its own key."""
    message = "model.toml: "
    try:
        parse_manifest(with_value(key, value))
    except ManifestError as error:
        message = str(error)
    assert message.startswith("model.toml: ")
