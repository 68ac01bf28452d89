"""Make a model whose tensors have no dimension."""

from __future__ import annotations

from pathlib import Path


def scalar_model(path: Path) -> None:
    """Write a model that doubles a scalar."""
    import onnx

    helper = onnx.helper
    double = onnx.TensorProto.DOUBLE
    ends = [helper.make_tensor_value_info(name, double, []) for name in ("x", "y")]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])], "double", ends[:1], ends[1:]
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    path.write_bytes(model.SerializeToString())
