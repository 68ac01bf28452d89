"""Each row of the table of ``config.pbtxt`` fields has the stated effect."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pocketserve.repository.scan import ModelEntry, scan
from pocketserve.repository.triton_fields import FIELDS, ConfigField, Treatment

VALUES = {
    "name": '"other"',
    "input.name": '"x"',
    "input.data_type": "TYPE_FP32",
    "input.format": "FORMAT_NCHW",
    "input.dims": "[ 3, 4 ]",
    "output.name": '"y"',
    "output.data_type": "TYPE_FP32",
    "output.dims": "[ 10 ]",
}
"""Values of fields that are not simply switched on."""


def entry_of(
    folder: Path, text: str, versions: tuple[int, ...] = (1, 2, 3)
) -> ModelEntry:
    """Return a model with numbered versions and this configuration."""
    for version in versions:
        (folder / "m" / str(version)).mkdir(parents=True)
        for name in ("model.onnx", "other.onnx")[
            : 2 if "default_model_filename" in text else 1
        ]:
            (folder / "m" / str(version) / name).write_bytes(b"\x08\x01")
    (folder / "m" / "labels.txt").write_text("a\nb\n")
    (folder / "m" / "config.pbtxt").write_text(text)
    return scan(folder)["m"]


def text_of(path: str, value: str) -> str:
    """Return a configuration with one field."""
    *outer, name = path.split(".")
    inner = f"{name} {value}" if value.startswith("{") else f"{name}: {value}"
    for message in reversed(outer):
        names = ""
        if message == "state":
            names = 'input_name: "s" output_name: "t" '
        inner = f"{message} {{ {names}{inner} }}"
    return inner


def value_of(row: ConfigField) -> str:
    """Return a value that has an effect."""
    return VALUES.get(
        row.path, "true" if row.treatment is not Treatment.APPLIED else "1"
    )


APPLIED: dict[str, tuple[str, Callable[[ModelEntry], bool]]] = {
    "platform": (
        'platform: "tensorrt_plan"',
        lambda e: "platform 'tensorrt_plan' is not served" in str(e.problem),
    ),
    "backend": (
        'backend: "dali"',
        lambda e: "backend 'dali' is not served" in str(e.problem),
    ),
    "version_policy.latest.num_versions": (
        "version_policy { latest { num_versions: 2 } }",
        lambda e: list(e.withheld) == ["1"] and e.candidates == ("3", "2", "1"),
    ),
    "version_policy.all": (
        "version_policy: { all: { } }",
        lambda e: not e.withheld and e.policy == {"all": {}},
    ),
    "version_policy.specific.versions": (
        "version_policy { specific { versions: [ 1, 2 ] } }",
        lambda e: list(e.withheld) == ["3"] and e.candidates == ("2", "1"),
    ),
    "max_batch_size": ("max_batch_size: 4", lambda e: e.manifest.max_batch == 4),
    "input.reshape": (
        'input { name: "x" dims: [ 4 ] reshape { shape: [ 1, 4 ] } }',
        lambda e: (
            "input.reshape of 'x' is not applied: the shape is [1, 4]" in e.notes[0]
        ),
    ),
    "output.reshape": (
        'output { name: "y" dims: [ 4 ] reshape { shape: [ 4, 1 ] } }',
        lambda e: "output.reshape of 'y' is not applied" in e.notes[0],
    ),
    "output.label_filename": (
        'output { label_filename: "labels.txt" }',
        lambda e: e.manifest.labels == "labels.txt",
    ),
    "dynamic_batching.default_queue_policy.max_queue_size": (
        "dynamic_batching { default_queue_policy { max_queue_size: 7 } }",
        lambda e: e.manifest.queue_limit == 7,
    ),
    "sequence_batching.max_sequence_idle_microseconds": (
        "sequence_batching { max_sequence_idle_microseconds: 5000000 }",
        lambda e: e.manifest.state.max_idle == 5.0,
    ),
    "sequence_batching.state.input_name": (
        'sequence_batching { state { input_name: "s" output_name: "sN" } }',
        lambda e: e.manifest.state.feedback == {"s": "sN"},
    ),
    "sequence_batching.state.output_name": (
        'sequence_batching { state { input_name: "s" } }',
        lambda e: "must name an input and an output" in str(e.problem),
    ),
    "default_model_filename": (
        'default_model_filename: "other.onnx"',
        lambda e: (
            {version.path.name for version in e.versions.values()} == {"other.onnx"}
        ),
    ),
    "parameters": (
        'parameters { key: "x" value { string_value: "1" } }',
        lambda e: e.notes == ("the parameter x is not used",),
    ),
}
"""For each applied field, a configuration and a check of its effect."""


@pytest.mark.parametrize("row", FIELDS, ids=lambda row: row.path)
def test_every_field_has_the_stated_effect(tmp_path: Path, row: ConfigField) -> None:
    if row.treatment is Treatment.APPLIED:
        text, has_effect = APPLIED[row.path]
        assert has_effect(entry_of(tmp_path, text))
        return
    entry = entry_of(tmp_path, text_of(row.path, value_of(row)))
    if row.treatment is Treatment.HARMLESS:
        assert entry.problem is None
        assert entry.notes == ()
        assert entry.default_version == "3"
    elif row.treatment is Treatment.NAMED:
        assert (entry.problem, entry.notes) == (None, (f"{row.path} {row.text}",))
    else:
        assert entry.problem == f"m/config.pbtxt: {row.path} {row.text}"
        assert not entry.versions


@pytest.mark.parametrize(
    "row",
    [row for row in FIELDS if row.treatment in (Treatment.REFUSED, Treatment.NAMED)],
    ids=lambda row: row.path,
)
@pytest.mark.parametrize("value", ["false", "0", '""'])
def test_a_field_with_its_default_value_has_no_effect(
    tmp_path: Path, row: ConfigField, value: str
) -> None:
    entry = entry_of(tmp_path, text_of(row.path, value))
    assert (entry.problem, entry.notes) == (None, ())


def test_the_table_lists_each_field_once() -> None:
    paths = [row.path for row in FIELDS]
    assert len(paths) == len(set(paths))
    assert all(row.text for row in FIELDS)
    assert set(APPLIED) == {
        row.path for row in FIELDS if row.treatment is Treatment.APPLIED
    }


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("brand_new_field: 3", "brand_new_field"),
        ("input { shiny: true }", "input.shiny"),
        (
            "sequence_batching { state { glow { deep: 1 } } }",
            "sequence_batching.state.glow",
        ),
    ],
)
def test_an_unknown_field_is_noted_once(tmp_path: Path, text: str, name: str) -> None:
    entry = entry_of(
        tmp_path,
        f"{text}\n{text}".replace(
            "state {", 'state { input_name: "s" output_name: "t"'
        ),
    )
    assert entry.notes == (
        f"{name} is not a field that this server knows, and is not used",
    )
    assert entry.problem is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "version_policy { specific { versions: [ 9 ] } }",
            "version_policy offers version 9 only",
        ),
        ("version_policy { specific { } }", "version_policy offers no version only"),
        ("version_policy { specific { versions: [ x ] } }", "'x' is not a number"),
        ("version_policy { latest { num_versions: -1 } }", "'-1' is not a number"),
        (
            'default_model_filename: "../m.onnx"',
            "default_model_filename must be a file",
        ),
        (
            'output { } output { label_filename: "labels.txt" }',
            "is used for the first output only",
        ),
        (
            "input { dims: [ 4, 1 ] reshape { shape: [ 1, 4 ] } }",
            "input.reshape to as many dimensions",
        ),
        (
            'parameters { key: "TF_SIGNATURE_DEF" value { string_value: "x" } }',
            "TF_SIGNATURE_DEF is not applied",
        ),
        ("max_batch_size: many", "'many' is not a number"),
    ],
)
def test_unsupported_values_are_named(tmp_path: Path, text: str, reason: str) -> None:
    entry = entry_of(tmp_path, text)
    assert reason in str(entry.problem)
    assert str(entry.problem).startswith("m/config.pbtxt")
    assert not entry.versions


def test_a_missing_model_file_is_named(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, 'default_model_filename: "third.onnx"')
    assert (
        entry.versions["3"].problem
        == "the folder 3 has no third.onnx, which default_model_filename names"
    )


def test_a_batch_size_of_zero_means_no_batching(tmp_path: Path) -> None:
    assert entry_of(tmp_path, "max_batch_size: 0").manifest.batching is False


def test_latest_is_one_version_by_default(tmp_path: Path) -> None:
    entry = entry_of(tmp_path, "version_policy { latest { } }")
    assert sorted(entry.withheld) == ["1", "2"]
    assert entry.default_version == "3"
    assert (
        entry.withheld["1"] == "m/config.pbtxt: version_policy offers the latest 1 only"
    )
