"""Make picture classifiers with known answers: the mean red, green and blue."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np


def colour_model(
    path: Path,
    shape: tuple[int, ...] = (1, 3, 32, 32),
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write an ONNX model of three scores, for channels that come first."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.eye(3, dtype=np.float32) * 5, "weights")
    nodes = [
        helper.make_node("ReduceMean", ["image"], ["means"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["means", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["scores"], axis=-1),
    ]
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("scores", TensorProto.FLOAT, (1, 3))]
    graph = helper.make_graph(nodes, "colours", inputs, outputs, [weights])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    for key, value in (metadata or {}).items():
        model.metadata_props.add(key=key, value=value)
    onnx.checker.check_model(model)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())


def plain_picture(
    colour: tuple[int, int, int] = (250, 10, 10), size: tuple[int, int] = (48, 32)
) -> bytes:
    """Return a PNG of one colour."""
    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, "PNG")
    return file.getvalue()
