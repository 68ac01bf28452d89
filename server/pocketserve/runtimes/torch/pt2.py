"""Runs exported programs (``torch.export.save``, ``.pt2``) of an owner who says that the file may be trusted.

``torch.export.load`` unpickles parts of the file with pickle's full powers: a hostile file runs whatever code it wants,
and the load even succeeds. So such a file is code and needs consent (:mod:`pocketserve.trust`). Without that, only the
names of its members are read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, getitem
from typing import Any, NamedTuple

from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.model_files import load_errors
from pocketserve.runtimes.torch.common import (
    ModuleSession,
    check_content,
    datatype_of_torch,
    explain_load_error,
    flatten,
    import_torch,
    input_fault,
    leaf_array,
    leaf_spec,
    to_torch,
    weight_bytes,
)
from pocketserve.runtimes.torch.pt2_containers import stand_ins
from pocketserve.tensors import Array, TensorSpec
from pocketserve.trust.verified_files import read_code


class Pt2Runtime:
    """Opens exported programs."""

    platform = "pytorch_export"
    option_keys = frozenset({"trust"})

    def open(self, source: ModelSource) -> Pt2Session:
        check_content(source.path, ("pt2",), "exported program")
        source.flag("trust")  # it is code in any case
        content = read_code(source.path, source.trusted, source.original)
        torch = import_torch()
        with load_errors(
            lambda error: explain_load_error(
                source.path.name, f"torch {torch.__version__}", error
            )
        ):
            with stand_ins(
                source.path
            ):  # it reads names only; the trusted content is unpickled
                program = torch.export.load(io.BytesIO(content))
            return Pt2Session(torch, program, source.threads)


RUNTIME = Pt2Runtime()


class _Input(NamedTuple):
    """A value that the program takes: a tensor, a whole number (``scalar``), or one fixed at export (no spec)."""

    spec: TensorSpec | None
    value: Any = None
    scalar: bool = False


class _GraphTensor:
    """Stands for a result that is a tensor of the graph."""

    def __init__(self, name: str) -> None:
        self.name = name


class Pt2Session(ModuleSession):
    """A loaded program."""

    reset: Callable[[], None]  # only there if runs change tensors of it

    def __init__(self, torch: Any, program: Any, threads: int) -> None:
        super().__init__(torch, threads, " (torch.export)")
        self._inputs = _inputs(program)
        self.inputs: Sequence[TensorSpec] = [
            entry.spec for entry in self._inputs if entry.spec is not None
        ]
        self._nesting = program.call_spec.in_spec
        self.outputs: Sequence[TensorSpec] = _outputs(torch, program)
        self._module = program.module()
        tensors = {**program.constants, **program.state_dict}.values()
        self.memory_bytes = weight_bytes(
            tensor for tensor in tensors if isinstance(tensor, torch.Tensor)
        )
        state = [attrgetter(name)(self._module) for name in sorted(_written(program))]
        self._state = [(tensor, tensor.detach().clone()) for tensor in state]
        if state:
            self.reset = self._reset

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Run; raise ValueError for sizes or types that the program does not take: more rows than at export."""
        values = [self._value(entry, inputs) for entry in self._inputs]
        args, kwargs = self._torch.utils._pytree.tree_unflatten(values, self._nesting)
        try:
            result = self._call(*args, **kwargs)
        except Exception as error:
            if (fault := input_fault(error)) is not None:
                raise fault from error
            raise
        leaves = dict(flatten(result))
        return {
            spec.name: leaf_array(self._torch, leaves[spec.name], spec.datatype)
            for spec in self.outputs
        }

    def close(self) -> None:
        super().close()
        self._state = []

    def _reset(self) -> None:
        with self._torch.no_grad():
            for tensor, first in self._state:
                tensor.resize_(first.shape).copy_(first)

    def _value(self, entry: _Input, inputs: Mapping[str, Array]) -> Any:
        if entry.spec is None:
            return entry.value
        array = inputs[entry.spec.name]
        if entry.scalar:
            if array.size != 1 or array.dtype.kind not in "iu":
                raise ValueError(f"input {entry.spec.name!r} takes one whole number")
            return array.item()
        return to_torch(self._torch, array, entry.spec)


def _written(program: Any) -> set[str]:
    """Return the names of the program's tensors that a run may write to.

    The signature of a program in functional form tells them; else the operators of its graph do.
    """
    targets = {
        entry.arg.name: entry.target
        for entry in program.graph_signature.input_specs
        if entry.target is not None
    }
    # The tensors whose memory the value of a node may share.
    placeholders = [node for node in program.graph.nodes if node.op == "placeholder"]
    aliases = {
        node: {targets[node.name]} for node in placeholders if node.name in targets
    }
    written = set(program.graph_signature.buffers_to_mutate.values())
    for node in program.graph.nodes:
        shared: set[str] = set().union(
            *(aliases.get(source, ()) for source in node.all_input_nodes)
        )
        if node.op != "call_function" or not shared:
            continue
        schema = getattr(node.target, "_schema", None)
        if (
            schema is None
            and node.target is not getitem
            and _inner_graphs_write(program)
        ):
            written |= shared  # a branch or loop: it has a graph of its own
        for at, argument in enumerate(schema.arguments if schema is not None else ()):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = (
                    node.args[at]
                    if at < len(node.args)
                    else node.kwargs.get(argument.name)
                )
                for source in value if isinstance(value, list | tuple) else (value,):
                    written |= aliases.get(source, set())
        if schema is None or any(
            result.alias_info is not None for result in schema.returns
        ):
            aliases[node] = shared  # a view, or the tensor itself
    return written


def _inner_graphs_write(program: Any) -> bool:
    inner = [
        module
        for name, module in program.graph_module.named_modules()
        if name and hasattr(module, "graph")
    ]
    schemas = [
        getattr(node.target, "_schema", None)
        for module in inner
        for node in module.graph.nodes
    ]
    return any(schema is not None and schema.is_mutable for schema in schemas)


def _inputs(program: Any) -> list[_Input]:
    """Return the program's inputs in the order of its flattened arguments."""
    values = {
        node.name: node.meta.get("val")
        for node in program.graph.nodes
        if node.op == "placeholder"
    }
    inputs = []
    for entry in _user_arguments(program.graph_signature.input_specs, "USER_INPUT"):
        kind, value = type(entry).__name__, values.get(entry.name)
        if kind == "ConstantArgument":
            inputs.append(_Input(None, entry.value))
        elif kind == "TensorArgument" and hasattr(value, "shape"):
            inputs.append(_Input(_spec(entry.name, value)))
        elif kind == "SymIntArgument":
            inputs.append(_Input(TensorSpec(entry.name, "INT64", ()), scalar=True))
        else:
            raise ModelLoadError(
                f"the program's argument {entry.name!r} is a {kind}, which no tensor can carry"
            )
    return inputs


def _outputs(torch: Any, program: Any) -> list[TensorSpec]:
    """Return the results under the names that their nesting gives: those in the graph (``add_1``) tell nothing."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    plain = {"SymIntArgument": 0, "SymFloatArgument": 0.0, "SymBoolArgument": False}
    results = []
    for entry in _user_arguments(program.graph_signature.output_specs, "USER_OUTPUT"):
        kind = type(entry).__name__
        tensor = _GraphTensor(entry.name) if kind == "TensorArgument" else None
        results.append(
            tensor
            or (entry.value if kind == "ConstantArgument" else plain.get(kind, entry))
        )
    specs = []
    for name, leaf in flatten(
        torch.utils._pytree.tree_unflatten(results, program.call_spec.out_spec)
    ):
        if isinstance(leaf, _GraphTensor):
            specs.append(_spec(name, values[leaf.name]))
        elif leaf is not None:
            specs.append(leaf_spec(torch, name, leaf))
    return specs


def _spec(name: str, value: Any) -> TensorSpec:
    """Return a graph tensor's spec; symbolic sizes are free."""
    try:
        datatype = datatype_of_torch(value.dtype)
    except ValueError as error:
        raise ModelLoadError(f"tensor {name!r} cannot be served: {error}") from error
    return TensorSpec(
        name, datatype, tuple(size if type(size) is int else -1 for size in value.shape)
    )


def _user_arguments(specs: Any, kind: str) -> list[Any]:
    return [entry.arg for entry in specs if entry.kind.name == kind]
