"""Refuse ONNX models whose operators reach outside the model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.onnx.operators import DOMAINS, MICROSOFT
from pocketserve.runtimes.onnx.session import RUNTIME

onnx = pytest.importorskip("onnx")
pytestmark = pytest.mark.onnx
helper = onnx.helper
FLOAT = onnx.TensorProto.FLOAT


def model(*nodes: Any, functions: tuple[Any, ...] = (), **opsets: int) -> Any:
    """Return a model from ``x`` to ``y``."""
    values = [[helper.make_tensor_value_info(name, FLOAT, [1])] for name in "xy"]
    domains = [
        helper.make_opsetid("", 17),
        *(helper.make_opsetid(n.replace("_", "."), v) for n, v in opsets.items()),
    ]
    graph = helper.make_graph(list(nodes), "g", *values)
    return helper.make_model(
        graph, opset_imports=domains, ir_version=9, functions=list(functions)
    )


def call(
    kind: str,
    domain: str = "",
    inputs: str = "x",
    outputs: str = "y",
    **attributes: Any,
) -> Any:
    return helper.make_node(
        kind, list(inputs), list(outputs), domain=domain, **attributes
    )


def refusal(tmp_path: Path, document: Any) -> str:
    path = tmp_path / "m.onnx"
    path.write_bytes(document.SerializeToString())
    with pytest.raises(ModelLoadError) as caught:
        RUNTIME.open(ModelSource(path))
    return str(caught.value)


FOREIGN = [
    (
        "EPContext",
        "com.microsoft",
        "compiled for one kind of accelerator, whose files are not opened",
    ),
    (
        "Snpe",
        "com.microsoft",
        "compiled for one kind of accelerator, whose files are not opened",
    ),
    ("PythonOp", "com.microsoft", "the operator com.microsoft:PythonOp,"),
    ("TritonOp", "com.microsoft", "the operator com.microsoft:TritonOp,"),
    (
        "OpenAIAudioToText",
        "com.microsoft.extensions",
        "the operator com.microsoft.extensions:OpenAIAudioToText,",
    ),
    (
        "AzureTritonInvoker",
        "com.microsoft.extensions",
        "the operator com.microsoft.extensions:AzureTritonInvoker,",
    ),
    ("PyOp", "ai.onnx.contrib", "the operator ai.onnx.contrib:PyOp,"),
    ("ATen", "org.pytorch.aten", "the operator org.pytorch.aten:ATen,"),
]


@pytest.mark.parametrize(("kind", "domain", "words"), FOREIGN)
def test_operators_with_side_effects_are_refused(
    tmp_path: Path, kind: str, domain: str, words: str
) -> None:
    attributes = (
        {"ep_cache_context": "../../other.bin", "embed_mode": 0}
        if kind == "EPContext"
        else {}
    )
    assert words in refusal(tmp_path, model(call(kind, domain, **attributes)))


def test_such_operators_are_found_in_branches_and_functions(tmp_path: Path) -> None:
    branch = helper.make_graph(
        [call("EPContext", "com.microsoft", "", "z")], "b", [], []
    )
    branch.output.append(helper.make_tensor_value_info("z", FLOAT, [1]))
    condition = helper.make_node(
        "Constant", [], ["c"], value=helper.make_tensor("v", 9, [], [True])
    )
    inside = model(
        condition, call("If", inputs="c", then_branch=branch, else_branch=branch)
    )
    assert "one kind of accelerator" in refusal(tmp_path, inside)
    body = [call("PyOp", "ai.onnx.contrib", "a", "b")]
    function = helper.make_function(
        "mine", "Mine", ["a"], ["b"], body, [helper.make_opsetid("ai.onnx.contrib", 1)]
    )
    assert "PyOp" in refusal(
        tmp_path, model(call("Mine", "mine"), functions=(function,), mine=1)
    )


def test_a_node_with_two_types_is_checked_for_both(tmp_path: Path) -> None:
    """Protobuf readers take the last one.

    The check must not depend on that.
    """
    document = model(call("Identity"))
    text = document.graph.node[0].SerializeToString()
    other = b"\x22\x09EPContext" + b"\x3a\x0dcom.microsoft"
    for changed in (text + other, other + text):
        raw = document.SerializeToString()
        graph = document.graph.SerializeToString()
        replaced = graph.replace(
            bytes([0x0A, len(text)]) + text, bytes([0x0A, len(changed)]) + changed
        )
        whole = raw.replace(
            bytes([0x3A, len(graph)]) + graph, bytes([0x3A, len(replaced)]) + replaced
        )
        assert whole != raw
        path = tmp_path / "m.onnx"
        path.write_bytes(whole)
        with pytest.raises(ModelLoadError, match="one kind of accelerator"):
            RUNTIME.open(ModelSource(path))


def test_a_models_own_function_may_have_any_unreserved_name(tmp_path: Path) -> None:
    function = helper.make_function(
        "mine",
        "Twice",
        ["a"],
        ["b"],
        [call("Add", "", "aa", "b")],
        [helper.make_opsetid("", 17)],
    )
    path = tmp_path / "m.onnx"
    path.write_bytes(
        model(call("Twice", "mine"), functions=(function,), mine=1).SerializeToString()
    )
    assert RUNTIME.open(ModelSource(path)).run({"x": np.array([2], np.float32)})[
        "y"
    ].tolist() == [4]


def test_each_operator_of_the_package_is_listed() -> None:
    """An operator of a new version is refused until somebody has reviewed it."""
    from pocketserve.runtimes.onnx.native import import_package

    import_package("onnxruntime")
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    known = {
        (schema.domain, schema.name) for schema in native.get_all_operator_schema()
    }
    assert {
        name for domain, name in known if domain == "com.microsoft"
    } == MICROSOFT | {"EPContext", "Snpe"}
    assert {domain for domain, _ in known} - {"com.microsoft"} <= DOMAINS
