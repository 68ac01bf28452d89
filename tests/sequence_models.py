"""Make stateful models for tests of sequences."""

from __future__ import annotations

from pathlib import Path

FEEDBACK = '\n[state.feedback]\nstate = "stateN"\n'


def running_sum(path: Path, size: int) -> None:
    """Write a model that adds its input's sum to its state, and returns the state."""
    import onnx

    helper = onnx.helper
    float32 = onnx.TensorProto.FLOAT
    ends = []
    for name, shape in (
        ("x", [1, size]),
        ("state", [1, 1]),
        ("y", [1, 1]),
        ("stateN", [1, 1]),
    ):
        ends.append(helper.make_tensor_value_info(name, float32, shape))
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=1),
        helper.make_node("Add", ["sum", "state"], ["stateN"]),
        helper.make_node("Identity", ["stateN"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "sum", ends[:2], ends[2:])
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8
    )
    path.write_bytes(model.SerializeToString())
