"""Shrink TFLite weights to half floats and int8 on the device."""

from __future__ import annotations

import dataclasses
import io
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mutation import mutate
from places import MODELS, ROOT, find_assets
from pocketserve.formats import DamagedFileError
from pocketserve.formats.flatbuffer_tree import write_tree
from pocketserve.runtimes.base import ModelSource
from pocketserve.runtimes.tflite.description import read_associated_files, read_metadata
from pocketserve.runtimes.tflite.session import RUNTIME
from pocketserve.tensors import Array
from pocketserve_lab.convert import tflite_model
from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
)
from pocketserve_lab.convert.descriptions import carry_description
from pocketserve_lab.convert.tools.tflite_weights import convert

DIGITS = MODELS / "digits" / "digits.tflite"
DATA = ROOT / "tests" / "runtimes" / "data"


def shrunk(source: Path, folder: Path, quantize: str) -> tuple[Path, ConversionOutcome]:
    """Return the new file, its description and the tool's notes."""
    output = folder / f"{source.stem}.{quantize}.tflite"
    outcome = convert(ConversionRequest(source, "tflite", output, quantize=quantize))
    carry_description(source, "tflite", output, "tflite")
    return output, outcome


def answers(
    path: Path, inputs: Mapping[str, Array], **options: object
) -> dict[str, Array]:
    """Return the model's outputs for these inputs."""
    session = RUNTIME.open(ModelSource(path, options=options))
    return {name: np.asarray(value) for name, value in session.run(inputs).items()}


def pictures() -> tuple[Array, Array]:
    """Return scikit-learn's digits as the model's input, and their labels."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    return (digits.images[..., None] / 16).astype(np.float32), digits.target


@pytest.mark.parametrize("xnnpack", [True, False])
@pytest.mark.parametrize(
    ("quantize", "size", "bound"),
    [
        ("fp16", 57_500, 1e-3),
        ("dynamic", 33_500, 2e-2),
    ],
)
def test_digits_are_smaller_and_keep_their_answers(
    tmp_path: Path, quantize: str, size: int, bound: float, xnnpack: bool
):
    output, outcome = shrunk(DIGITS, tmp_path, quantize)
    assert output.stat().st_size < size
    assert outcome.options == {"weights": 3}
    images, labels = pictures()
    name = RUNTIME.open(ModelSource(DIGITS)).inputs[0].name
    (before,), (after,) = (
        answers(path, {name: images}, xnnpack=xnnpack).values()
        for path in (DIGITS, output)
    )
    assert 0 < np.abs(before - after).max() < bound
    accuracies = [
        float((scores.argmax(1) == labels).mean()) for scores in (before, after)
    ]
    assert accuracies[0] > 0.99
    assert abs(accuracies[1] - accuracies[0]) < 0.005


@pytest.mark.parametrize(
    "path", sorted(DATA.glob("*.tflite")), ids=lambda path: path.stem
)
def test_a_rewritten_model_is_equivalent(tmp_path: Path, path: Path):
    """Variables, signatures, control flow, custom options and ranges are kept."""
    if path.stem == "select_tf_op":
        with pytest.raises(DamagedFileError, match="only TensorFlow runs"):
            tflite_model.read_tflite_model(path)
        return
    anew = tmp_path / path.name
    with anew.open("wb") as file:
        size = write_tree(
            tflite_model.read_tflite_model(path), tflite_model.IDENTIFIER, file
        )
    assert anew.stat().st_size == size
    assert described(tflite_model.read_tflite_model(anew)) == described(
        tflite_model.read_tflite_model(path)
    )


def described(part: object) -> object:
    """Return a tree as plain values that can be compared."""
    if isinstance(part, list):
        return [described(node) for node in part]
    if hasattr(part, "children"):
        ends = {at: index for index, at in enumerate(part.slots) if at}
        numbers = [
            bytes(part.inline[at : at + 1])
            for at, index in ends.items()
            if index not in part.children
        ]
        return numbers, {
            index: described(child) for index, child in part.children.items()
        }
    return bytes(part.data)


def test_graphs_share_a_weight_in_the_new_file(tmp_path: Path):
    model = tflite_model.read_tflite_model(DIGITS)
    graph = model.nodes(2)[0]
    tensors = [
        dataclasses.replace(t, inline=t.inline[:], slots=t.slots[:])
        for t in graph.nodes(0)
    ]
    model.nodes(2).append(
        dataclasses.replace(
            graph,
            children={
                **graph.children,
                0: tensors,
                3: graph.nodes(3)[:],
            },
        )
    )
    twice = tmp_path / "twice.tflite"
    with twice.open("wb") as file:
        write_tree(model, tflite_model.IDENTIFIER, file)
    output, outcome = shrunk(twice, tmp_path, "dynamic")
    assert outcome.options == {"weights": 6}
    assert output.stat().st_size < 36_000
    (name,) = (spec.name for spec in RUNTIME.open(ModelSource(DIGITS)).inputs)
    once, _ = shrunk(DIGITS, tmp_path, "dynamic")
    (alone,), (beside,) = (
        answers(path, {name: pictures()[0]}).values() for path in (once, output)
    )
    assert np.array_equal(alone, beside)


def test_a_table_on_two_levels_follows_both_parents(tmp_path: Path):
    """Offsets lead forward only; a metadata's name is also a deeper signature input's."""
    name = tflite_model.FlatNode()
    name.set_child(0, tflite_model.FlatVector(b"shared"))
    signature = tflite_model.FlatNode()
    signature.set_child(0, [name])
    model = tflite_model.read_tflite_model(DIGITS)
    model.set_child(6, [name])
    model.set_child(7, [signature])
    path = tmp_path / "shared.tflite"
    with path.open("wb") as file:
        write_tree(model, tflite_model.IDENTIFIER, file)
    anew = tflite_model.read_tflite_model(path)
    assert [node.text(0) for node in (*anew.nodes(6), *anew.nodes(7)[0].nodes(0))] == [
        "shared",
        "shared",
    ]
    shrunk(path, tmp_path, "fp16")


def with_shared_tables() -> Any:
    """Return the digits with one more output and buffer that share a table."""
    model = tflite_model.read_tflite_model(DIGITS)
    (graph,) = model.nodes(2)
    tensors = graph.nodes(0)
    buffers = model.nodes(4)
    sizes = []
    for tensor in tensors:
        vector = buffers[tensor.number(2, "I")].vector(0)
        sizes.append(len(vector.data) if vector else 0)
    second_largest = sorted(sizes)[-2]
    shared = tensors[sizes.index(second_largest)]

    tensors.append(shared)
    outputs = np.frombuffer(graph.vector(2).data, "<i4")
    numbers = np.append(outputs, len(tensors) - 1).astype("<i4")
    graph.set_child(2, tflite_model.FlatVector(numbers.tobytes(), 4))
    buffers.append(buffers[shared.number(2, "I")])
    return model


@pytest.mark.parametrize("quantize", ["fp16", "dynamic"])
def test_tensors_may_share_a_table(tmp_path: Path, quantize: str):
    """A constant that is both a weight and an output is unchanged as an output."""
    path = tmp_path / "shared.tflite"
    with path.open("wb") as file:
        write_tree(with_shared_tables(), tflite_model.IDENTIFIER, file)
    output, outcome = shrunk(path, tmp_path, quantize)
    assert outcome.options == {"weights": 3}
    (name,) = (spec.name for spec in RUNTIME.open(ModelSource(path)).inputs)
    values = {name: pictures()[0][:4]}
    before = answers(path, values)
    after = answers(output, values)
    assert len(before) == 2
    for key, expected in before.items():
        assert np.abs(expected - after[key]).max() < 2e-2


def test_weights_beyond_half_floats_are_kept(tmp_path: Path):
    model = tflite_model.read_tflite_model(DIGITS)
    biggest = max(
        model.nodes(4),
        key=lambda buffer: len(buffer.vector(0).data) if buffer.vector(0) else 0,
    )
    values = np.frombuffer(biggest.vector(0).data, "<f4").copy()
    values[0] = 1e6
    biggest.set_child(0, tflite_model.FlatVector(values.tobytes(), 1, 16))
    source = tmp_path / "large.tflite"
    with source.open("wb") as file:
        write_tree(model, tflite_model.IDENTIFIER, file)
    output, outcome = shrunk(source, tmp_path, "fp16")
    assert outcome.options == {"weights": 2}
    name = RUNTIME.open(ModelSource(source)).inputs[0].name
    assert all(
        np.isfinite(value).all()
        for value in answers(output, {name: pictures()[0]}).values()
    )


def test_damaged_models_are_refused_or_rewritten(tmp_path: Path):
    whole = DIGITS.read_bytes()
    numbers = random.Random(15)
    path = tmp_path / "damaged.tflite"
    ends = {"written": 0, "refused": 0}
    description = whole[:512], whole[-6_000:]
    for _ in range(300):
        head, tail = (
            mutate(part, numbers) if numbers.random() < 0.5 else part
            for part in description
        )
        path.write_bytes(head + whole[512:-6_000] + tail)
        try:
            shrunk(path, tmp_path, "dynamic")
            ends["written"] += 1
        except ConversionError:
            ends["refused"] += 1
    assert min(ends.values()) > 10


def test_an_empty_file_is_refused(tmp_path: Path):
    path = tmp_path / "empty.tflite"
    path.touch()
    with pytest.raises(ConversionError, match=r"empty\.tflite cannot be rewritten"):
        shrunk(path, tmp_path, "fp16")


def test_a_tree_beyond_the_range_of_offsets_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pocketserve.formats.flatbuffer_tree.MAX_BYTES", 100_000)
    with pytest.raises(DamagedFileError, match="a FlatBuffer ends at 100000"):
        write_tree(
            tflite_model.read_tflite_model(DIGITS),
            tflite_model.IDENTIFIER,
            io.BytesIO(),
        )


@pytest.mark.assets
@pytest.mark.parametrize(
    ("quantize", "share"),
    [
        ("fp16", 0.55),
        ("dynamic", 0.35),
    ],
)
def test_a_public_classifier_keeps_its_labels_and_answers(
    tmp_path: Path, quantize: str, share: float
):
    assets = find_assets()
    assert assets is not None
    source = (
        assets / "models" / "tflite" / "mobilenet_v1_0.25_224_float_metadata.tflite"
    )
    output, _ = shrunk(source, tmp_path, quantize)
    assert output.stat().st_size < share * source.stat().st_size
    assert read_metadata(output) == read_metadata(source)
    names = [
        file.name
        for tensor in read_metadata(source).outputs
        for file in tensor.associated_files
    ]
    assert names
    assert read_associated_files(output, names, 2**20) == read_associated_files(
        source, names, 2**20
    )
    (spec,) = RUNTIME.open(ModelSource(source)).inputs
    for expected in sorted(
        (assets / "inputs" / "tensors").glob("mnv1_025_float__*.npy")
    ):
        inputs = {spec.name: np.load(expected)}
        before, after = (
            answers(path, inputs)["MobilenetV1/Predictions/Reshape_1"][0]
            for path in (source, output)
        )
        assert np.abs(before - after).max() < 0.1
        assert before.max() < 0.5 or before.argmax() == after.argmax()
