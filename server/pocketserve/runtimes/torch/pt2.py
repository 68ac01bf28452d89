"""Runs exported programs (``torch.export.save``, ``.pt2``) of an owner who says that the file may be trusted.

``torch.export.load`` unpickles parts of the file with pickle's full powers: a hostile file runs whatever code it wants,
and the load even succeeds. So such a file is code, as a ``model.py`` is, and needs the same consent
(:mod:`pocketserve.trust`). Without that, nothing but the names of its members is looked at.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter, getitem
from typing import Any

from pocketserve.formats.zip_archives import kind_of_zip
from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.runtimes.torch.common import (
    datatype_of_torch,
    file_size,
    flatten,
    import_torch,
    input_fault,
    leaf_array,
    leaf_spec,
    load_error,
    to_torch,
    weight_bytes,
)
from pocketserve.runtimes.torch.pt2_containers import stand_ins
from pocketserve.tensors import Array, TensorSpec
from pocketserve.trust.verified_files import read_code

_INSTEAD = {
    "aoti": "holds native code compiled by AOTInductor, which is not served; save the exported program itself with "
    "torch.export.save",
    "torchscript": "is a TorchScript file; give it the ending .ts",
    "ptl": "is a PyTorch mobile file; give it the ending .ptl",
    "state_dict": "holds weights without a model; build the model in a model.py and name this file as its weights",
    None: "is no exported program, or is damaged; save it again with torch.export.save",
}


class Pt2Runtime:
    """Opens exported programs."""

    platform = "pytorch_export"
    option_keys = frozenset({"trust"})

    def open(self, source: ModelSource) -> Pt2Session:
        """See :class:`~pocketserve.runtimes.base.Runtime`."""
        name = source.path.name
        file_size(source.path)
        kind = kind_of_zip(source.path)
        if kind != "pt2":
            raise ModelLoadError(f"{name} {_INSTEAD[kind]}")
        _check_options(source)
        content = read_code(source.path, source.trusted, source.original)
        torch = import_torch()
        try:
            with stand_ins(source.path):  # names only; what is unpickled is the content that is trusted
                program = torch.export.load(io.BytesIO(content))
            return session_of(torch, program, source.threads)
        except ModelLoadError:
            raise
        except Exception as error:
            raise load_error(name, f"torch {torch.__version__}", error) from error


RUNTIME = Pt2Runtime()
"""The runtime of the kind ``pt2``."""


def _check_options(source: ModelSource) -> None:
    trust = source.options.get("trust", False)
    if not isinstance(trust, bool):
        raise ModelLoadError(f"model.toml: trust is true or false, not {trust!r:.80}")


class _Port:
    """One value that the program takes, in the order of its flattened arguments.

    Attributes:
        spec: what callers send; None for a value that was fixed at export.
        value: the fixed value.
        scalar: callers send a whole number instead of a tensor.
    """

    def __init__(self, spec: TensorSpec | None, value: Any = None, scalar: bool = False) -> None:
        self.spec = spec
        self.value = value
        self.scalar = scalar


class Pt2Session:
    """One exported program.

    Raises:
        ModelLoadError: it takes or returns what the protocol cannot carry.
    """

    signatures: Mapping[str, Signature] = {}

    def __init__(self, torch: Any, program: Any, threads: int) -> None:
        self._torch = torch
        self._threads = threads
        self._ports = _ports(program)
        self.inputs: Sequence[TensorSpec] = [port.spec for port in self._ports if port.spec is not None]
        self._unflatten: Callable[[list[Any]], Any] = _unflattener(program.call_spec.in_spec)
        self.outputs: Sequence[TensorSpec] = _outputs(torch, program)
        self._module: Any = program.module()
        self.runtime = f"torch {torch.__version__} (torch.export)"
        self.device = "cpu"
        tensors = {**program.constants, **program.state_dict}.values()
        self.memory_bytes = weight_bytes(tensor for tensor in tensors if isinstance(tensor, torch.Tensor))

    def run(self, inputs: Mapping[str, Array], signature: str | None = None) -> dict[str, Array]:
        """See :class:`~pocketserve.runtimes.base.Session`.

        Raises:
            ValueError: the program cannot take these sizes or types, such as more rows than it was exported for.
        """
        if self._module is None:
            raise RuntimeError("the session is closed")
        self._torch.set_num_threads(self._threads)  # PyTorch keeps the number by thread, which models share
        args, kwargs = self._unflatten([self._value(port, inputs) for port in self._ports])
        try:
            with self._torch.inference_mode():
                result = self._module(*args, **kwargs)
        except Exception as error:
            if (fault := input_fault(error)) is not None:
                raise fault from error
            raise
        leaves = dict(flatten(result))
        return {spec.name: leaf_array(self._torch, leaves[spec.name], spec.datatype) for spec in self.outputs}

    def close(self) -> None:
        """See :class:`~pocketserve.runtimes.base.Session`."""
        self._module = None

    def _value(self, port: _Port, inputs: Mapping[str, Array]) -> Any:
        if port.spec is None:
            return port.value
        array = inputs[port.spec.name]
        if port.scalar:
            if array.size != 1 or array.dtype.kind not in "iu":
                raise ValueError(f"input {port.spec.name!r} takes one whole number")
            return array.item()
        return to_torch(self._torch, array, port.spec)


class StatefulPt2Session(Pt2Session):
    """One exported program that changes buffers of its own."""

    def __init__(self, torch: Any, program: Any, threads: int) -> None:
        super().__init__(torch, program, threads)
        tensors = [attrgetter(name)(self._module) for name in sorted(_written(program))]
        self._kept = [(tensor, tensor.detach().clone()) for tensor in tensors]

    def reset(self) -> None:
        """See :class:`~pocketserve.runtimes.base.ResettableSession`."""
        with self._torch.no_grad():
            for tensor, first in self._kept:
                tensor.resize_(first.shape).copy_(first)

    def close(self) -> None:
        """See :class:`~pocketserve.runtimes.base.Session`."""
        super().close()
        self._kept = []


def session_of(torch: Any, program: Any, threads: int) -> Pt2Session:
    """Return a session of the class that fits a program.

    Raises:
        ModelLoadError: it takes or returns what the protocol cannot carry.
    """
    return (StatefulPt2Session if _written(program) else Pt2Session)(torch, program, threads)


def _written(program: Any) -> set[str]:
    """The names of the program's own tensors that a run may write to.

    A program tells that where it was brought into functional form; else its operators do.
    """
    own = {entry.arg.name: entry.target for entry in program.graph_signature.input_specs if entry.target is not None}
    held = {node: {own[node.name]} for node in program.graph.nodes if node.op == "placeholder" and node.name in own}
    written = set(program.graph_signature.buffers_to_mutate.values())
    for node in program.graph.nodes:
        given: set[str] = set().union(*(held.get(source, ()) for source in node.all_input_nodes))
        if node.op != "call_function" or not given:
            continue
        schema = getattr(node.target, "_schema", None)
        if schema is None and node.target is not getitem and _inner_graphs_write(program):
            written |= given  # a branch or loop: it has a graph of its own
        if schema is not None and schema.is_mutable:
            written |= {name for at, argument in enumerate(schema.arguments) if _writes(argument)
                        for source in _sources(node, at, argument.name) for name in held.get(source, ())}  # fmt: skip
        if schema is None or any(result.alias_info is not None for result in schema.returns):
            held[node] = given  # a view, or the tensor itself
    return written


def _inner_graphs_write(program: Any) -> bool:
    inner = [module for name, module in program.graph_module.named_modules() if name and hasattr(module, "graph")]
    schemas = [getattr(node.target, "_schema", None) for module in inner for node in module.graph.nodes]
    return any(schema is not None and schema.is_mutable for schema in schemas)


def _writes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _sources(node: Any, at: int, name: str) -> list[Any]:
    value = node.args[at] if at < len(node.args) else node.kwargs.get(name)
    return list(value) if isinstance(value, list | tuple) else [value]


def _ports(program: Any) -> list[_Port]:
    """Return what the program takes, as its signature and the placeholders of its graph tell."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    entries = [entry.arg for entry in program.graph_signature.input_specs if entry.kind.name == "USER_INPUT"]
    return [_port(entry, values.get(entry.name)) for entry in entries]


def _port(entry: Any, value: Any) -> _Port:
    kind = type(entry).__name__
    if kind == "ConstantArgument":
        return _Port(None, entry.value)
    if kind == "TensorArgument" and hasattr(value, "shape"):
        return _Port(_spec(entry.name, value))
    if kind == "SymIntArgument":
        return _Port(TensorSpec(entry.name, "INT64", ()), scalar=True)
    raise ModelLoadError(f"the program's argument {entry.name!r} is a {kind}, which no tensor can carry")


def _outputs(torch: Any, program: Any) -> list[TensorSpec]:
    """The results under the names that their nesting gives: those in the graph (``add_1``) say nothing to callers."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    entries = [entry.arg for entry in program.graph_signature.output_specs if entry.kind.name == "USER_OUTPUT"]
    nested = _unflattener(program.call_spec.out_spec)([_stand_in(entry) for entry in entries])
    specs = []
    for name, leaf in flatten(nested):
        if isinstance(leaf, _Node):
            specs.append(_spec(name, values[leaf.name]))
        elif leaf is not None:
            specs.append(leaf_spec(torch, name, leaf))
    return specs


class _Node:
    """A result that is the value of a node of the graph."""

    def __init__(self, name: str) -> None:
        self.name = name


def _stand_in(entry: Any) -> Any:
    """A value of the kind that a run returns there."""
    kind = type(entry).__name__
    if kind == "TensorArgument":
        return _Node(entry.name)
    plain = {"SymIntArgument": 0, "SymFloatArgument": 0.0, "SymBoolArgument": False}
    return entry.value if kind == "ConstantArgument" else plain.get(kind, entry)


def _spec(name: str, value: Any) -> TensorSpec:
    """The spec of a tensor in the graph; sizes that were symbols at export are free.

    Raises:
        ModelLoadError: the protocol cannot carry its numbers.
    """
    try:
        datatype = datatype_of_torch(value.dtype)
    except ValueError as error:
        raise ModelLoadError(f"tensor {name!r} cannot be served: {error}") from error
    return TensorSpec(name, datatype, tuple(size if type(size) is int else -1 for size in value.shape))


def _unflattener(spec: Any) -> Callable[[list[Any]], Any]:
    from torch.utils._pytree import tree_unflatten

    return lambda leaves: tree_unflatten(leaves, spec)
