"""Restore the state that a TorchScript program changes when it runs.

A program may count, or add to its buffers; without a restore, a client would see traces
of another one. PyTorch's alias analysis (``AliasDb``) finds the attributes that a run
writes. Programs that write none have no cost. Layers that write only in training don't
count: every module is in evaluation mode.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from pocketserve.runtimes.torch.graphs import nodes_of

AttributePath = tuple[str, ...]


class UndecidedError(Exception):
    """The state can't be restored in place; the program must be reloaded."""


def state_restorer(torch: Any, module: Any) -> Callable[[], None] | None:
    """Return a function that restores a module's present state.

    None if a run never changes the state.
    """
    graph = _in_evaluation(torch, module.inlined_graph.copy())
    attributes = []
    for path in sorted(_written(torch, graph)):
        attributes.append(_Attribute(torch, module._c, path))

    def restore() -> None:
        with torch.no_grad():
            for attribute in attributes:
                attribute.restore()

    return restore if attributes else None


def _in_evaluation(torch: Any, graph: Any) -> Any:
    """Return the graph without its training-only nodes."""
    if not _sets_training(graph):
        for node in graph.findAllNodes("prim::GetAttr", True):
            if node.s("name") == "training":
                graph.setInsertPoint(node)
                node.output().replaceAllUsesWith(graph.insertConstant(False))
    torch._C._jit_pass_constant_propagation_immutable_types(graph)
    torch._C._jit_pass_dce(graph)
    return graph


def _sets_training(graph: Any) -> bool:
    setters = (node for node in nodes_of(graph) if node.kind() == "prim::SetAttr")
    return any(node.s("name") == "training" for node in setters)


def _written(torch: Any, graph: Any) -> set[AttributePath]:
    """Return the attributes that a run may write to."""
    module = next(graph.inputs())
    _check_subgraphs(torch, graph)
    constants = _constants(graph)
    tensors = _separate_tensors(torch, graph, module)
    aliases = graph.alias_db()
    for constant in constants:
        if _is_tensor(constant) and aliases.has_writers(constant):
            raise UndecidedError  # a weight that is part of the program
    written = set()
    for path, tensor in tensors.items():
        if aliases.has_writers(tensor):
            written.add(path)
    for node in nodes_of(graph):
        if node.kind() == "prim::GetAttr" and aliases.has_writers(node.output()):
            written.add(_path_of(node, module))
        elif node.kind() == "prim::SetAttr":
            target, value = node.inputs()
            if target.node().kind() != "prim::CreateObject":
                written.add(_path_of(node, module))
            # A later in-place write to this attribute also changes those that share
            # its memory.
            written |= _sharing(aliases, value, tensors)
    return written


def _sharing(
    aliases: Any, value: Any, tensors: Mapping[AttributePath, Any]
) -> set[AttributePath]:
    """Return the attributes that may share a value's memory."""
    paths = set()
    for path, tensor in tensors.items():
        if aliases.may_contain_alias(value, tensor):
            paths.add(path)
    return paths


def _constants(graph: Any) -> list[Any]:
    constants: list[Any] = []
    for node in nodes_of(graph):
        if node.kind() == "prim::Constant":
            constants += node.outputs()
    return constants


def _separate_tensors(torch: Any, graph: Any, module: Any) -> dict[AttributePath, Any]:
    """Replace tensor attributes by a constant each; return them by path.

    For the alias analysis all attributes may be the same: if one is written, all are.
    """
    getters = []
    for node in graph.findAllNodes("prim::GetAttr", True):
        if _is_tensor(node.output()):
            getters.append((node, _path_of(node, module)))
    tensors: dict[AttributePath, Any] = {}
    graph.setInsertPoint(next(graph.nodes()))
    for node, path in getters:
        if path not in tensors:
            tensors[path] = graph.insertConstant(torch.zeros(1))
        node.output().replaceAllUsesWith(tensors[path])
    return tensors


def _path_of(node: Any, module: Any) -> AttributePath:
    """Return the path from the module to a node's attribute."""
    owner = next(node.inputs())
    if owner == module:
        return (node.s("name"),)
    if owner.node().kind() != "prim::GetAttr":
        raise UndecidedError
    return (*_path_of(owner.node(), module), node.s("name"))


def _check_subgraphs(torch: Any, graph: Any) -> None:
    """Reject calls resolved only at run time, and writes in another thread."""
    for node in nodes_of(graph):
        if node.kind() in ("prim::CallMethod", "prim::CallFunction"):
            raise UndecidedError
        for name in node.attributeNames():
            if node.kindOf(name) != "g":
                continue
            for step in nodes_of(node.g(name)):
                if step.kind() == "prim::SetAttr" or _may_write(torch, step.kind()):
                    raise UndecidedError


def _is_tensor(value: Any) -> bool:
    return bool(value.type().kind() == "TensorType")


def _may_write(torch: Any, operator: str) -> bool:
    if operator in ("aten::batch_norm", "aten::instance_norm"):  # by an argument
        return True
    for schema in torch._C._jit_get_schemas_for_operator(operator):
        for argument in schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                return True
    return False


class _Attribute:
    """An attribute with a copy of its value."""

    def __init__(self, torch: Any, owner: Any, path: AttributePath) -> None:
        *owners, self._name = path
        for name in owners:
            owner = owner.getattr(name)
        self._owner = owner
        try:
            self._value = owner.getattr(self._name)
            self._tensor = isinstance(self._value, torch.Tensor)
            self._copy = (
                self._value.detach().clone()
                if self._tensor
                else copy.deepcopy(self._value)
            )
        except Exception as error:  # an object of a class of the program's own
            raise UndecidedError from error
        self._version = self._value._version if self._tensor else 0

    def restore(self) -> None:
        """Restore the value; a tensor keeps its memory, which others may share."""
        if not self._tensor:
            self._owner.setattr(self._name, copy.deepcopy(self._copy))
            return
        value = self._value
        if value._version != self._version:
            if value.shape != self._copy.shape:  # which no parameter's can be
                value.resize_(self._copy.shape)
            value.copy_(self._copy)
            self._version = value._version
        self._owner.setattr(self._name, value)
