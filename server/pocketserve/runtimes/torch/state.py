"""Finds what a TorchScript program changes of itself when it runs, and puts it back.

A program may count, or add to its buffers: one caller would see traces of another. PyTorch's analysis of aliases
(``AliasDb``) tells which attributes a run writes, so programs that write none pay nothing. Layers that write only in
training do not count: every module is in evaluation mode.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from pocketserve.runtimes.torch.graphs import nodes_of

AttributePath = tuple[str, ...]


class UndecidedError(Exception):
    """The state can't be restored in place; the program must be reloaded."""


def state_restorer(torch: Any, module: Any) -> Callable[[], None] | None:
    """Return a function that restores the present state of a module; None for one that writes nothing of its own."""
    graph = _in_evaluation(torch, module.inlined_graph.copy())
    attributes = [
        _Attribute(torch, module._c, path) for path in sorted(_written(torch, graph))
    ]

    def restore() -> None:
        with torch.no_grad():
            for attribute in attributes:
                attribute.restore()

    return restore if attributes else None


def _in_evaluation(torch: Any, graph: Any) -> Any:
    """Return the graph without its training-only nodes."""
    if not any(
        node.kind() == "prim::SetAttr" and node.s("name") == "training"
        for node in nodes_of(graph)
    ):
        for node in graph.findAllNodes("prim::GetAttr", True):
            if node.s("name") == "training":
                graph.setInsertPoint(node)
                node.output().replaceAllUsesWith(graph.insertConstant(False))
    torch._C._jit_pass_constant_propagation_immutable_types(graph)
    torch._C._jit_pass_dce(graph)
    return graph


def _written(torch: Any, graph: Any) -> set[AttributePath]:
    """Return the attributes that a run may write to."""
    module = next(graph.inputs())
    _check_subgraphs(torch, graph)
    attributes = graph.findAllNodes("prim::GetAttr", True)
    getters = [
        (node, _path_of(node, module))
        for node in attributes
        if _is_tensor(node.output())
    ]
    constants = [
        value
        for node in nodes_of(graph)
        if node.kind() == "prim::Constant"
        for value in node.outputs()
    ]
    # To the analysis all attributes may be one and the same: if one is written, all are. So each of them becomes a
    # tensor of its own.
    tensors: dict[AttributePath, Any] = {}
    graph.setInsertPoint(next(graph.nodes()))
    for node, path in getters:
        if path not in tensors:
            tensors[path] = graph.insertConstant(torch.zeros(1))
        node.output().replaceAllUsesWith(tensors[path])
    aliases = graph.alias_db()
    if any(_is_tensor(value) and aliases.has_writers(value) for value in constants):
        raise UndecidedError  # a weight that is part of the program
    written = {path for path, value in tensors.items() if aliases.has_writers(value)}
    for node in nodes_of(graph):
        if node.kind() == "prim::GetAttr" and aliases.has_writers(node.output()):
            written.add(_path_of(node, module))
        elif node.kind() == "prim::SetAttr":
            target, value = node.inputs()
            if target.node().kind() != "prim::CreateObject":
                written.add(_path_of(node, module))
            # A later write to this attribute in place changes those that share its memory as well.
            written |= {
                path
                for path, other in tensors.items()
                if aliases.may_contain_alias(value, other)
            }
    return written


def _path_of(node: Any, module: Any) -> AttributePath:
    """Return the names that lead from the module to the attribute that a node gets or sets."""
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
            inner = nodes_of(node.g(name)) if node.kindOf(name) == "g" else ()
            if any(
                step.kind() == "prim::SetAttr" or _may_write(torch, step.kind())
                for step in inner
            ):
                raise UndecidedError


def _is_tensor(value: Any) -> bool:
    return bool(value.type().kind() == "TensorType")


def _may_write(torch: Any, operator: str) -> bool:
    if operator in ("aten::batch_norm", "aten::instance_norm"):  # by an argument
        return True
    schemas = torch._C._jit_get_schemas_for_operator(operator)
    return any(
        a.alias_info is not None and a.alias_info.is_write
        for schema in schemas
        for a in schema.arguments
    )


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
        value = self._value if self._tensor else copy.deepcopy(self._copy)
        if self._tensor and value._version != self._version:
            if value.shape != self._copy.shape:  # which no parameter's can be
                value.resize_(self._copy.shape)
            value.copy_(self._copy)
            self._version = value._version
        self._owner.setattr(self._name, value)
