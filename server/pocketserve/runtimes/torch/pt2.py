"""Run exported programs (``torch.export.save``, ``.pt2``) that their owner trusts.

``torch.export.load`` unpickles parts of the file without restrictions: a hostile file
runs any code, and the load even succeeds. So such a file is code and needs consent
(:mod:`pocketserve.trust`). Without consent, only the names of its members are read.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
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
            # This reads names only; the trusted content is unpickled.
            with stand_ins(source.path):
                program = torch.export.load(io.BytesIO(content))
            return Pt2Session(torch, program, source.threads)


RUNTIME = Pt2Runtime()


class _Input(NamedTuple):
    """An argument of the program."""

    spec: TensorSpec | None  # None for a value fixed at export
    value: Any = None
    scalar: bool = False  # whether it is a whole number instead of a tensor


class _GraphTensor:
    """A placeholder for a result that is a tensor of the graph."""

    def __init__(self, name: str) -> None:
        self.name = name


class Pt2Session(ModuleSession):
    """A loaded program."""

    reset: Callable[[], None]  # only there if runs change tensors of it

    def __init__(self, torch: Any, program: Any, threads: int) -> None:
        super().__init__(torch, threads, " (torch.export)")
        self._inputs = _inputs(program)
        self.inputs: Sequence[TensorSpec] = _without_constants(self._inputs)
        self._nesting = program.call_spec.in_spec
        self.outputs: Sequence[TensorSpec] = _outputs(torch, program)
        self._module = program.module()
        values = {**program.constants, **program.state_dict}.values()
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        self.memory_bytes = weight_bytes(tensors)
        self._state: list[tuple[Any, Any]] = []
        for name in sorted(_written(program)):
            tensor = attrgetter(name)(self._module)
            start = tensor.detach().clone()
            self._state.append((tensor, start))
        if self._state:
            self.reset = self._reset

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Run the program.

        Raises:
            ValueError: the program rejects the sizes or types, such as more rows than
                at export.
        """
        values = [self._value(entry, inputs) for entry in self._inputs]
        args, kwargs = self._torch.utils._pytree.tree_unflatten(values, self._nesting)
        try:
            result = self._call(*args, **kwargs)
        except Exception as error:
            fault = input_fault(error)
            if fault is not None:
                raise fault from error
            raise
        leaves = dict(flatten(result))
        arrays = {}
        for spec in self.outputs:
            leaf = leaves[spec.name]
            arrays[spec.name] = leaf_array(self._torch, leaf, spec.datatype)
        return arrays

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


def _without_constants(inputs: Sequence[_Input]) -> list[TensorSpec]:
    """Return the specs of the inputs that requests send."""
    specs = []
    for entry in inputs:
        if entry.spec is not None:
            specs.append(entry.spec)
    return specs


def _written(program: Any) -> set[str]:
    """Return the names of the program's tensors that a run may write to.

    The signature lists them for a program in functional form. Otherwise the operators
    of its graph show them.
    """
    targets = {}
    for entry in program.graph_signature.input_specs:
        if entry.target is not None:
            targets[entry.arg.name] = entry.target
    # By node: the tensors that may share the memory of its value.
    aliases: dict[Any, set[str]] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in targets:
            aliases[node] = {targets[node.name]}
    written = set(program.graph_signature.buffers_to_mutate.values())
    for node in program.graph.nodes:
        shared: set[str] = set()
        for source in node.all_input_nodes:
            shared |= aliases.get(source, set())
        if node.op != "call_function" or not shared:
            continue
        schema = getattr(node.target, "_schema", None)
        if schema is None:
            # A branch or loop has a graph of its own.
            if node.target is not getitem and _inner_graphs_write(program):
                written |= shared
            aliases[node] = shared
            continue
        for source in _written_arguments(node, schema):
            written |= aliases.get(source, set())
        if any(result.alias_info is not None for result in schema.returns):
            aliases[node] = shared  # a view, or the tensor itself
    return written


def _written_arguments(node: Any, schema: Any) -> Iterator[Any]:
    """Yield the arguments that an operator writes to."""
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = node.kwargs.get(argument.name)
        if position < len(node.args):
            value = node.args[position]
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _inner_graphs_write(program: Any) -> bool:
    for name, module in program.graph_module.named_modules():
        if not name or not hasattr(module, "graph"):
            continue
        for node in module.graph.nodes:
            schema = getattr(node.target, "_schema", None)
            if schema is not None and schema.is_mutable:
                return True
    return False


def _inputs(program: Any) -> list[_Input]:
    """Return the program's inputs in the order of its flattened arguments."""
    values = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            values[node.name] = node.meta.get("val")
    inputs = []
    for entry in _user_arguments(program.graph_signature.input_specs, "USER_INPUT"):
        kind = type(entry).__name__
        value = values.get(entry.name)
        if kind == "ConstantArgument":
            inputs.append(_Input(None, entry.value))
        elif kind == "TensorArgument" and hasattr(value, "shape"):
            inputs.append(_Input(_spec(entry.name, value)))
        elif kind == "SymIntArgument":
            inputs.append(_Input(TensorSpec(entry.name, "INT64", ()), scalar=True))
        else:
            raise ModelLoadError(
                f"the program's argument {entry.name!r} is a {kind}, which no tensor "
                "can carry"
            )
    return inputs


def _outputs(torch: Any, program: Any) -> list[TensorSpec]:
    """Return the results, named by their nesting.

    Names in the graph, such as ``add_1``, have no meaning.
    """
    results = []
    for entry in _user_arguments(program.graph_signature.output_specs, "USER_OUTPUT"):
        results.append(_placeholder(entry))
    nested = torch.utils._pytree.tree_unflatten(results, program.call_spec.out_spec)
    values = {}
    for node in program.graph.nodes:
        values[node.name] = node.meta.get("val")
    specs = []
    for name, leaf in flatten(nested):
        if isinstance(leaf, _GraphTensor):
            specs.append(_spec(name, values[leaf.name]))
        elif leaf is not None:
            specs.append(leaf_spec(torch, name, leaf))
    return specs


_SYMBOLIC = {"SymIntArgument": 0, "SymFloatArgument": 0.0, "SymBoolArgument": False}


def _placeholder(entry: Any) -> Any:
    """Return a value of a result's type."""
    kind = type(entry).__name__
    if kind == "TensorArgument":
        return _GraphTensor(entry.name)
    if kind == "ConstantArgument":
        return entry.value
    return _SYMBOLIC.get(kind, entry)


def _spec(name: str, value: Any) -> TensorSpec:
    """Return a graph tensor's spec; symbolic sizes are free."""
    try:
        datatype = datatype_of_torch(value.dtype)
    except ValueError as error:
        raise ModelLoadError(f"tensor {name!r} cannot be served: {error}") from error
    shape = []
    for size in value.shape:
        if type(size) is int:
            shape.append(size)
        else:
            shape.append(-1)
    return TensorSpec(name, datatype, tuple(shape))


def _user_arguments(specs: Any, kind: str) -> list[Any]:
    return [entry.arg for entry in specs if entry.kind.name == kind]
