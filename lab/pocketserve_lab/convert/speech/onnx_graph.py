"""An ONNX graph under construction, from the weights of a transformer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

OPSET: Final = 17
IR_VERSION: Final = 9
EPSILON: Final = 1e-5
MAX_FILE_BYTES: Final = 1_500_000_000
"""A larger graph has its weights beside it: a protobuf has 2 GiB at most."""

AxisSizes = Sequence[object]


class OnnxGraph:
    """Adds operators; methods return the names of values.

    Args:
        onnx: the module.
        weights: by the names of Hugging Face's files, in single precision.
    """

    def __init__(self, onnx: Any, weights: Mapping[str, Any]) -> None:
        self._onnx = onnx
        self._weights = weights
        self._count = 0
        self._nodes: list[Any] = []
        self._constants: dict[str, Any] = {}
        self._bytes = 0
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def add_input(self, name: str, kind: str, shape: AxisSizes) -> None:
        """Add an input; a text is the name of a free size."""
        self._inputs.append(self._tensor(name, kind, shape))

    def add_output(self, name: str, kind: str, shape: AxisSizes) -> None:
        """Declare an existing value as an output."""
        self._outputs.append(self._tensor(name, kind, shape))

    def _tensor(self, name: str, kind: str, shape: AxisSizes | None) -> Any:
        number = getattr(self._onnx.TensorProto, kind)
        return self._onnx.helper.make_tensor_value_info(name, number, shape)

    def op(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add an operator with one output.

        Args:
            name: of the output.
        """
        output = name or self._new_name()
        node = self._onnx.helper.make_node(
            kind,
            inputs,
            [output],
            **attributes,
        )
        self._nodes.append(node)
        return output

    def _new_name(self) -> str:
        self._count += 1
        return f"value_{self._count}"

    def constant(self, value: Any) -> str:
        return self._add_constant(self._new_name(), np.asarray(value))

    def weight(self, name: str) -> str:
        if name in self._constants:
            return name
        return self._add_constant(name, self._weights[name])

    def _transposed(self, name: str) -> str:
        key = f"{name}.transposed"
        if key in self._constants:
            return key
        return self._add_constant(key, np.ascontiguousarray(self._weights[name].T))

    def _add_constant(self, name: str, array: Any) -> str:
        self._constants[name] = self._onnx.numpy_helper.from_array(array, name)
        self._bytes += array.nbytes
        return name

    def linear(self, value: str, name: str, output: str = "") -> str:
        """Add a product, and a bias if there is one.

        Args:
            output: the name of a product without bias.
        """
        weight = self._transposed(f"{name}.weight")
        product = self.op(
            "MatMul",
            value,
            weight,
            name=output,
        )
        if f"{name}.bias" in self._weights:
            product = self.op("Add", product, self.weight(f"{name}.bias"))
        return product

    def norm(self, value: str, name: str, output: str = "") -> str:
        scale = self.weight(f"{name}.weight")
        bias = self.weight(f"{name}.bias")
        return self.op(
            "LayerNormalization",
            value,
            scale,
            bias,
            name=output,
            epsilon=EPSILON,
        )

    def gelu(self, value: str) -> str:
        factor = self.constant(np.float32(0.5**0.5))
        unit = self.constant(np.float32(1))
        half = self.constant(np.float32(0.5))
        scaled = self.op("Mul", value, factor)
        curve = self.op("Erf", scaled)
        curve = self.op("Add", curve, unit)
        value = self.op("Mul", value, half)
        return self.op("Mul", value, curve)

    def split_heads(self, value: str, heads: int, size: int) -> str:
        """Return [batch, heads, length, size] of [batch, length, width]."""
        shape = self.constant(np.array([0, -1, heads, size]))
        value = self.op("Reshape", value, shape)
        return self.op("Transpose", value, perm=[0, 2, 1, 3])

    def join_heads(self, value: str, width: int) -> str:
        """Return [batch, length, width] of [batch, heads, length, size]."""
        moved = self.op("Transpose", value, perm=[0, 2, 1, 3])
        shape = self.constant(np.array([0, -1, width]))
        return self.op("Reshape", moved, shape)

    def choose(
        self, condition: str, output: str, if_true: str, if_false: str, count: int
    ) -> str:
        """Move the last operators into the branch of a condition.

        Args:
            if_true: a value that exists already.
            if_false: the output of the last operator.
            count: the number of these operators.
        """
        branch_nodes = self._nodes[-count:]
        del self._nodes[-count:]
        otherwise = self._branch("otherwise", if_false, branch_nodes)
        copied = self._new_name()
        copy = self._onnx.helper.make_node("Identity", [if_true], [copied])
        past = self._branch("past", copied, [copy])
        return self.op(
            "If",
            condition,
            name=output,
            then_branch=past,
            else_branch=otherwise,
        )

    def _branch(self, name: str, output: str, nodes: Sequence[Any]) -> Any:
        tensor = self._tensor(output, "FLOAT", None)
        return self._onnx.helper.make_graph(
            nodes,
            name,
            [],
            [tensor],
        )

    @property
    def size(self) -> int:
        """Return the number of operators so far."""
        return len(self._nodes)

    def save(self, path: Path) -> None:
        """Write the file; a large one has its weights beside it."""
        helper = self._onnx.helper
        constants = list(self._constants.values())
        graph = helper.make_graph(
            self._nodes,
            path.stem,
            self._inputs,
            self._outputs,
            constants,
        )
        opsets = [helper.make_opsetid("", OPSET)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
        is_large = self._bytes > MAX_FILE_BYTES
        self._onnx.save(
            model,
            path,
            save_as_external_data=is_large,
            location=f"{path.name}_data",
        )
