"""Make models to generate classes from: every task and datatype, and hostile labels."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from places import MODELS, ROOT

SMALL = ROOT / "tests" / "models"
EMBEDDED = ("digits", "diabetes", "numbers", "petals")
SERVED = ("answers", "phrases", "poses", "shapes", "shelf", "tones")
"""Small models of this suite: question answering, embedding, poses, detection,
recommendation, sound.
"""

HOSTILE_LABELS = (
    "*/ } class Evil { /*",
    "\\u002a\\u002f } class Evil {",
    '"; System.exit(1); //',
    "${java.lang.System.exit(1)} $x",
    "class",
    "",
    "Same",
    "same",
    "7 dwarfs",
    "{@link Nothing} <script> & @Deprecated",
    "σκύλος \U0001f415",
    "right\u202eleft\ttab \\",
)
HOSTILE_FEATURES = ("class", "*/ evil", "while", "a b", "a-b", "$x", "getClass", "")
DATATYPES = {
    "FLOAT": "f4",
    "DOUBLE": "f8",
    "FLOAT16": "f2",
    "INT8": "i1",
    "INT16": "i2",
    "INT32": "i4",
    "INT64": "i8",
    "UINT8": "u1",
    "UINT16": "u2",
    "UINT32": "u4",
    "UINT64": "u8",
    "BOOL": "?",
    "STRING": "O",
}
"""ONNX's name -> NumPy's."""


def write_models(folder: Path) -> Path:
    """Write all of these models into a folder."""
    for name in EMBEDDED:
        shutil.copytree(MODELS / name, folder / name)
    for name in SERVED:
        shutil.copytree(SMALL / name, folder / name)
    shutil.copyfile(MODELS / "petals" / "petals.tflite", folder / "plain.tflite")
    every_datatype(folder / "wide.onnx")
    text_classifier(folder / "mood")
    table_classifier(folder / "hostile")
    segmenter(folder / "ground")
    return folder


def _save(
    path: Path,
    nodes: list[Any],
    inputs: dict[str, Any],
    outputs: dict[str, Any],
    **weights: Any,
) -> None:
    """Write a graph; inputs and outputs are ``(type, shape)`` by name."""
    import onnx
    from onnx import helper, numpy_helper

    def infos(tensors: dict[str, Any]) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), shape)
            for name, (kind, shape) in tensors.items()
        ]

    constants = [
        numpy_helper.from_array(array, name) for name, array in weights.items()
    ]
    graph = helper.make_graph(nodes, "graph", infos(inputs), infos(outputs), constants)
    path.parent.mkdir(exist_ok=True)
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    path.write_bytes(model.SerializeToString())


def every_datatype(path: Path) -> None:
    """Return every input; FLOAT has two free dimensions, the others have one."""
    from onnx import helper

    shapes = {
        kind: [f"rows {kind}", "columns" if kind == "FLOAT" else 2]
        for kind in DATATYPES
    }
    nodes = []
    for kind in DATATYPES:
        nodes.append(helper.make_node("Identity", [f"in {kind}"], [f"out {kind}"]))
    _save(
        path,
        nodes,
        {f"in {kind}": (kind, shapes[kind]) for kind in DATATYPES},
        {f"out {kind}": (kind, shapes[kind]) for kind in DATATYPES},
    )


def text_classifier(folder: Path) -> None:
    """Classify long and short texts by their largest token."""
    from onnx import helper

    nodes = [
        helper.make_node("Cast", ["input_ids"], ["real"], to=1),
        helper.make_node("ReduceMax", ["real"], ["most"], axes=[1], keepdims=1),
        helper.make_node("MatMul", ["most", "signs"], ["scores"]),
    ]
    signs = np.array([[0.001, -0.001]], np.float32)
    _save(
        folder / "mood.onnx",
        nodes,
        {"input_ids": ("INT64", [1, "n"])},
        {"scores": ("FLOAT", [1, 2])},
        signs=signs,
    )
    (folder / "labels.txt").write_text("great\nsmall\n")
    shutil.copyfile(SMALL / "phrases" / "vocab.txt", folder / "vocab.txt")
    (folder / "model.toml").write_text(
        'task = "text-classification"\nlabels = "labels.txt"\n\n[text]\ntokenizer = "wordpiece"\n'
        'vocabulary = "vocab.txt"\nlower_case = true\nmax_length = 32\n\n[classification]\nactivation = "softmax"\n'
    )


def table_classifier(folder: Path) -> None:
    """Return a row's features as scores with hostile names."""
    import tomlkit
    from onnx import helper

    columns = len(HOSTILE_FEATURES) - 1
    classes = len(HOSTILE_LABELS)
    weights = np.eye(columns, classes, dtype=np.float32)
    nodes = [helper.make_node("MatMul", ["x", "weights"], ["scores"])]
    _save(
        folder / "hostile.onnx",
        nodes,
        {"x": ("FLOAT", ["n", columns])},
        {"scores": ("FLOAT", ["n", classes])},
        weights=weights,
    )
    manifest = {
        "description": "*/ \\u002a/ $x ${1} <b> {@code x}\nand more",
        "task": "tabular-classification",
        "labels": list(HOSTILE_LABELS),
        "features": {
            "names": list(HOSTILE_FEATURES[:columns]),
            "units": ["*/", "cm", "", "$", "", "", ""],
        },
    }
    (folder / "model.toml").write_text(tomlkit.dumps(manifest))


def segmenter(folder: Path) -> None:
    """Classify each pixel by its strongest colour."""
    from onnx import helper

    nodes = [helper.make_node("Identity", ["image"], ["map"])]
    tensor = ("FLOAT", [1, 3, 8, 8])
    _save(folder / "ground.onnx", nodes, {"image": tensor}, {"map": tensor})
    (folder / "model.toml").write_text(
        'task = "image-segmentation"\nlabels = ["red", "green", "blue"]\n'
    )
