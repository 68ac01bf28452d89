"""Plant faults into public networks on which ``compare --layers`` was not tuned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import PIL.Image
import pytest
from onnx import helper, numpy_helper

from pocketserve_lab.compare.layers import compare_layers
from pocketserve_lab.compare.session import Plan
from vision_cases import MNIST, TURNED

pytestmark = [pytest.mark.assets, pytest.mark.onnx]

VERSIONS = """
[versions.whole]
file = "whole.onnx"

[versions.faulty]
file = "faulty.onnx"
"""


@pytest.fixture(autouse=True)
def _no_trials(monkeypatch: pytest.MonkeyPatch) -> None:
    """The changes are small, and trials would take most of the time."""
    monkeypatch.setenv("POCKETSERVE_QUARANTINE", "false")


def nodes(model: Any, operator: str) -> list[Any]:
    """Return the nodes of a kind, in order."""
    return [node for node in model.graph.node if node.op_type == operator]


def constant(model: Any, array: Any) -> str:
    """Add a constant and return its name."""
    name = f"planted_{len(model.graph.initializer)}"
    model.graph.initializer.append(numpy_helper.from_array(np.asarray(array), name))
    return name


def planted_chain(model: Any, name: str, chain: Sequence[tuple[str, Any]]) -> list[Any]:
    """Return operators in a row that begin with a tensor."""
    last = name
    planted = []
    for number, (operator, values) in enumerate(chain):
        attributes = {}
        inputs = []
        if isinstance(values, dict):
            attributes = values
        else:
            inputs = [constant(model, value) for value in values]
        output = f"{name}_planted{number}"
        node = helper.make_node(operator, [last, *inputs], [output], **attributes)
        planted.append(node)
        last = output
    return planted


def insert_after(model: Any, name: str, *chain: tuple[str, Any]) -> None:
    """Insert operators with constants after a tensor, for all its readers."""
    readers = [node for node in model.graph.node if name in node.input]
    planted = planted_chain(model, name, chain)
    last = planted[-1].output[0]
    for node in readers:
        for place, each in enumerate(node.input):
            if each == name:
                node.input[place] = last
    at = 0
    for number, node in enumerate(model.graph.node):
        if name in node.output:
            at = number + 1
            break
    for offset, node in enumerate(planted):
        model.graph.node.insert(at + offset, node)


def weight(model: Any, name: str, change: Callable[[Any], Any]) -> None:
    """Change an initializer, or the value of a node Constant."""
    for entry in model.graph.initializer:
        if entry.name == name:
            entry.CopyFrom(
                numpy_helper.from_array(
                    change(numpy_helper.to_array(entry).copy()), name
                )
            )
    for node in nodes(model, "Constant"):
        if name in node.output:
            value = numpy_helper.to_array(node.attribute[0].t).copy()
            node.attribute[0].t.CopyFrom(numpy_helper.from_array(change(value), name))


def rounding_of(scale: float) -> list[tuple[str, Any]]:
    """Return operators that round to int8."""
    return [
        ("QuantizeLinear", (np.float32(scale), np.int8(0))),
        ("DequantizeLinear", (np.float32(scale), np.int8(0))),
    ]


def reorder(*perm: int) -> tuple[str, Any]:
    """Return an operator that exchanges axes."""
    return ("Transpose", {"perm": list(perm)})


def plant_in_inputs(model: Any, fault: str) -> bool:
    """Plant a fault of the preprocessing; return whether it is one."""
    image = model.graph.input[0].name
    if fault == "wants 0 to 1":
        insert_after(model, image, ("Mul", [np.float32(255)]))
    elif fault == "wants another mean":
        insert_after(model, image, ("Add", [np.float32(40)]))
    elif fault == "wants 0 to 255":
        scale = ("Mul", [np.float32(1 / 127.5)])
        shift = ("Sub", [np.float32(1)])
        insert_after(model, image, scale, shift)
    elif fault == "wants RGB":
        insert_after(model, image, ("Gather", {"axis": 1}))
        gather = nodes(model, "Gather")[0]
        gather.input.append(constant(model, np.array([2, 1, 0])))
    elif fault == "height and width":
        insert_after(model, image, reorder(0, 1, 3, 2))
    else:
        return False
    return True


def plant_in_activations(model: Any, fault: str) -> bool:
    """Plant a fault of activations or their ranges; return whether it is one."""
    relus = nodes(model, "Relu")
    largest = LARGEST[len(nodes(model, "Conv"))]
    second = relus[1].output[0]
    if fault == "range too narrow":
        insert_after(model, second, *rounding_of(largest / 5 / 127))
    elif fault == "range too wide":
        insert_after(model, second, *rounding_of(largest * 20 / 127))
    elif fault == "ReLU missing":
        relus[1].op_type = "Identity"
    elif fault == "leaky ReLU":
        relus[1].op_type = "LeakyRelu"
        relus[1].attribute.append(helper.make_attribute("alpha", 0.2))
    elif fault == "overflow":
        insert_after(model, second, ("Mul", [np.float32(3e38)]))
    elif fault == "rounded as it should be":
        for number, relu in enumerate(relus[:2]):
            step = largest * (1.1 + number) / 127
            insert_after(model, relu.output[0], *rounding_of(step))
    else:
        return False
    return True


def plant_in_weights(model: Any, fault: str) -> None:
    """Plant a fault of the weights."""
    if fault == "bias missing":
        weight(model, nodes(model, "Add")[1].input[1], lambda bias: 0 * bias)
    elif fault == "normalisation wrong":
        normalisation = nodes(model, "BatchNormalization")[2]
        weight(model, normalisation.input[1], lambda scale: scale[::-1].copy())
    elif fault == "weights wrong":
        random = np.random.default_rng(1)

        def add_noise(values: Any) -> Any:
            noise = random.normal(0, values.std(), values.shape)
            return values + noise.astype(values.dtype)

        weight(model, nodes(model, "Conv")[1].input[1], add_noise)


def plant(model: Any, fault: str) -> None:
    """Plant a fault."""
    if plant_in_inputs(model, fault):
        return
    if plant_in_activations(model, fault):
        return
    plant_in_weights(model, fault)


LARGEST = {2: 1700.0, 53: 10.0}
"""Approximate maximum after the second ReLU, by the number of convolutions."""

DIGIT = ("mnist", MNIST, "")
TURN = ("ppocr_v2_cls", TURNED, "upright\nturned\n")
CASES = [
    (DIGIT, "wants 0 to 1", "preprocessing"),
    (DIGIT, "wants another mean", "preprocessing"),
    (DIGIT, "height and width", "layout"),
    (DIGIT, "range too narrow", "calibration"),
    (DIGIT, "range too wide", "calibration"),
    (DIGIT, "ReLU missing", "activation"),
    (DIGIT, "leaky ReLU", "activation"),
    (DIGIT, "bias missing", "weights"),
    (DIGIT, "weights wrong", "operator"),
    (DIGIT, "overflow", "overflow"),
    (TURN, "wants 0 to 255", "preprocessing"),
    (TURN, "wants RGB", "channels"),
    (TURN, "range too narrow", "calibration"),
    (TURN, "range too wide", "calibration"),
    (TURN, "ReLU missing", "activation"),
    (TURN, "leaky ReLU", "activation"),
    (TURN, "normalisation wrong", "weights"),
    (TURN, "weights wrong", "operator"),
]


def save_samples(assets: Path, folder: Path) -> None:
    """Write four crops of a page, and one of a photograph."""
    folder.mkdir(parents=True)
    with PIL.Image.open(assets / "inputs" / "images" / "page.png") as page:
        for number in range(4):
            left = 20 + 60 * number
            top = 10 + 30 * number
            part = page.convert("RGB").crop((left, top, left + 192, top + 48))
            part.save(folder / f"page{number}.png")
    with PIL.Image.open(assets / "inputs" / "images" / "coffee.png") as photograph:
        part = photograph.convert("RGB").crop((100, 100, 292, 148))
        part.save(folder / "photograph.png")


def lay_out(
    assets: Path, folder: Path, subject: tuple[str, str, str], fault: str
) -> Plan:
    """Write the model with both versions, and crops of a page and a photograph."""
    name, manifest, labels = subject
    net = folder / "net"
    save_samples(assets, net / "samples")
    (net / "model.toml").write_text(manifest + VERSIONS)
    (net / "labels.txt").write_text(labels)
    model = onnx.load(assets / "models" / "onnx" / f"{name}.onnx")
    for opset in model.opset_import:
        # Rounding needs it, and the other operators keep their meaning.
        opset.version = max(opset.version, 10)
    model.ir_version = max(model.ir_version, 4)
    onnx.save(model, net / "whole.onnx")
    plant(model, fault)
    onnx.save(model, net / "faulty.onnx")
    return Plan("net", str(folder))


def explained(
    assets: Path, folder: Path, subject: tuple[str, str, str], fault: str
) -> dict[str, Any]:
    """Compare a correct network with a faulty one."""
    return compare_layers(lay_out(assets, folder, subject, fault), ("whole", "faulty"))


def test_planted_faults_are_named(assets: Path, tmp_path: Path) -> None:
    """At least eight of ten are found."""
    rows = []
    for number, (subject, fault, kind) in enumerate(CASES):
        cause = explained(assets, tmp_path / str(number), subject, fault)["cause"] or {
            "kind": "none",
            "sentence": "",
        }
        rows.append(
            (
                cause["kind"] == kind,
                subject[0],
                fault,
                kind,
                cause["kind"],
                cause["sentence"],
            )
        )
    wrong = [row[1:] for row in rows if not row[0]]
    assert len(wrong) <= 0.2 * len(CASES), wrong


@pytest.mark.parametrize("subject", [DIGIT, TURN], ids=["mnist", "turned"])
@pytest.mark.parametrize("fault", ["none", "rounded as it should be"])
def test_a_correct_version_is_not_called_faulty(
    subject: tuple[str, str, str], fault: str, assets: Path, tmp_path: Path
) -> None:
    """It may be identical or rounded to int8."""
    cause = explained(assets, tmp_path, subject, fault)["cause"]
    assert cause is None or cause["kind"] == "rounding", cause
