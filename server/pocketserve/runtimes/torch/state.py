"""Finds what a TorchScript program changes of itself when it runs, and puts it back.

A program may count, or add to its own buffers: one caller would hear what another one said. Which attributes a run
writes is told by PyTorch's own analysis of what may share memory with what (``AliasDb``), so that programs that write
nothing of their own pay nothing. Layers that write only while they are trained do not count: every module is in
evaluation mode.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from pocketserve.runtimes.torch.graphs import nodes_of

Names = tuple[str, ...]


class UndecidedError(Exception):
    """What a program writes to cannot be put back piece by piece."""


def restorer(torch: Any, module: Any) -> Callable[[], None] | None:
    """Return what makes a module as it is now; None for one that writes nothing of its own.

    Raises:
        UndecidedError: it writes to what cannot be told or copied; it has to be loaded again.
    """
    graph = _in_evaluation(torch, module.inlined_graph.copy())
    kept = [_Kept(torch, _at(module._c, path), path[-1]) for path in sorted(_written(torch, graph))]

    def restore() -> None:
        with torch.no_grad():
            for attribute in kept:
                attribute.restore()

    return restore if kept else None


def _at(root: Any, path: Sequence[str]) -> Any:
    """The object that has the last attribute of a path."""
    for name in path[:-1]:
        root = root.getattr(name)
    return root


def _in_evaluation(torch: Any, graph: Any) -> Any:
    """The graph without what runs in training only."""
    if not any(node.kind() == "prim::SetAttr" and node.s("name") == "training" for node in nodes_of(graph)):
        for node in graph.findAllNodes("prim::GetAttr", True):
            if node.s("name") == "training":
                graph.setInsertPoint(node)
                node.output().replaceAllUsesWith(graph.insertConstant(False))
    torch._C._jit_pass_constant_propagation_immutable_types(graph)
    torch._C._jit_pass_dce(graph)
    return graph


def _written(torch: Any, graph: Any) -> set[Names]:
    """The attributes that a run may write to, each as the names that lead to it."""
    itself = next(graph.inputs())
    _check_subgraphs(torch, graph)
    tensors = [node for node in graph.findAllNodes("prim::GetAttr", True) if _is_tensor(node.output())]
    names = [_names_of(node, itself) for node in tensors]
    constants = [node.output() for node in nodes_of(graph) if node.kind() == "prim::Constant" and _has_tensor(node)]
    # Attributes could be one and the same for the analysis: it would take all for written if one is. So each of them
    # becomes a tensor of its own.
    apart: dict[Names, Any] = {}
    graph.setInsertPoint(next(graph.nodes()))
    for node, path in zip(tensors, names, strict=True):
        if path not in apart:
            apart[path] = graph.insertConstant(torch.zeros(1))
        node.output().replaceAllUsesWith(apart[path])
    shared = graph.alias_db()
    if any(shared.has_writers(value) for value in constants):
        raise UndecidedError  # a weight that is part of the program
    written = {path for path, value in apart.items() if shared.has_writers(value)}
    for node in nodes_of(graph):
        if node.kind() == "prim::GetAttr" and shared.has_writers(node.output()):
            written.add(_names_of(node, itself))
        elif node.kind() == "prim::SetAttr":
            target, value = node.inputs()
            if target.node().kind() != "prim::CreateObject":
                written.add(_names_of(node, itself))
            # Whoever changes the one attribute in place later changes the other one as well.
            written |= {path for path, other in apart.items() if shared.may_contain_alias(value, other)}
    return written


def _names_of(node: Any, itself: Any) -> Names:
    """The names that lead from the module to the attribute that a node gets or sets."""
    owner = next(node.inputs())
    if owner == itself:
        return (node.s("name"),)
    if owner.node().kind() != "prim::GetAttr":
        raise UndecidedError
    return (*_names_of(owner.node(), itself), node.s("name"))


def _check_subgraphs(torch: Any, graph: Any) -> None:
    """Refuse what cannot be followed: calls that only the run resolves, and writing in another thread."""
    for node in nodes_of(graph):
        if node.kind() in ("prim::CallMethod", "prim::CallFunction"):
            raise UndecidedError
        for name in node.attributeNames():
            inner = nodes_of(node.g(name)) if node.kindOf(name) == "g" else ()
            if any(step.kind() == "prim::SetAttr" or may_write(torch, step.kind()) for step in inner):
                raise UndecidedError


def _is_tensor(value: Any) -> bool:
    return bool(value.type().kind() == "TensorType")


def _has_tensor(node: Any) -> bool:
    return any(_is_tensor(value) for value in node.outputs())


def may_write(torch: Any, operator: str) -> bool:
    """Tell whether an operator writes to what it is given; ``operator`` is a name such as ``aten::add_``."""
    if operator in ("aten::batch_norm", "aten::instance_norm"):  # by an argument
        return True
    schemas = torch._C._jit_get_schemas_for_operator(operator)
    return any(a.alias_info is not None and a.alias_info.is_write for schema in schemas for a in schema.arguments)


class _Kept:
    """One attribute, as it was."""

    def __init__(self, torch: Any, owner: Any, name: str) -> None:
        self._owner, self._name = owner, name
        try:
            self._value = owner.getattr(name)
            self._tensor = isinstance(self._value, torch.Tensor)
            self._copy = self._value.detach().clone() if self._tensor else copy.deepcopy(self._value)
        except Exception as error:  # an object of a class of the program's own
            raise UndecidedError from error
        self._version = self._value._version if self._tensor else 0

    def restore(self) -> None:
        """Put it back. A tensor keeps its memory, which others may share."""
        if not self._tensor:
            self._owner.setattr(self._name, copy.deepcopy(self._copy))
            return
        value = self._value
        if value._version != self._version:
            if value.shape != self._copy.shape:
                value.resize_(self._copy.shape)
            value.copy_(self._copy)
            self._version = value._version
        self._owner.setattr(self._name, value)
