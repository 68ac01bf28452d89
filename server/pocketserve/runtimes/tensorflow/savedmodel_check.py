"""Tells what a SavedModel would do before TensorFlow loads it, from ``saved_model.pb`` alone.

A SavedModel is a program: its graph may read and write files (``tf.io.read_file`` in a serving function is enough) or
call into Python. What is not known to compute only (``savedmodel_ops``) is refused. What counts is what can run here:
the signatures, the initialisers, the restore step, every function that the loader revives, and every function that
those call. The part that saves the model again lies in every file and holds writing operators, but nothing that is
served leads to it.

Tables may be filled from a file when that file is one of the SavedModel's own assets, and variables are restored from
where the loader says. Each path is followed from the operator back to where it comes from, through calls and variables;
where that is not plainly such a file, it is refused: a path may also name a file of another program, or one that
TensorFlow fetches from a network.

This bounds what a stranger's file can do with TensorFlow's documented operators; it is no sandbox against faults in
TensorFlow itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from pocketserve.formats import DamagedFileError

from .savedmodel_graph import Function, MetaGraph, Node, node_name
from .savedmodel_ops import ALLOWED, FROM_FILE, RESTORES

_PLAIN_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
"""Calls that hand their inputs to the function one by one."""

_PATH_USERS = frozenset({"AssignVariableOp", "ReadVariableOp", "VarIsInitializedOp", "DestroyResourceOp"})
"""What may be done with the variable of a path."""


class ForbiddenError(Exception):
    """A SavedModel that would reach out of itself; the text names the operator."""


def check_graphs(graphs: Iterable[MetaGraph]) -> None:
    """Refuse graphs that reach out of the model.

    Raises:
        ForbiddenError: names the operator.
    """
    try:
        for graph in graphs:
            _check_graph(graph)
    except RecursionError:
        raise ForbiddenError("the path of a file that it reads takes too many steps to follow") from None


def check_files(folder: Path, graphs: Iterable[MetaGraph]) -> None:
    """Refuse assets and variables that lie elsewhere, and miss none.

    Raises:
        ForbiddenError: a name or a link leads out of the folder.
        DamagedFileError: an asset or a part of the variables is missing.
    """
    for name in {name for graph in graphs for name in graph.asset_files}:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts or "\0" in name:
            raise ForbiddenError(f"its asset {name!r:.80} lies outside the model's folder")
        if not os.path.isfile(folder / "assets" / name):  # false, too, for a name that no file can have
            raise DamagedFileError(f"assets/{name:.80} is missing")
    root = os.path.realpath(folder)
    for path in folder.rglob("*"):
        if not Path(os.path.realpath(path)).is_relative_to(root):
            raise ForbiddenError(f"{path.relative_to(folder)} is a link that leaves the model's folder")
    _check_shards(folder / "variables")


def _check_shards(folder: Path) -> None:
    """Variables lie in ``variables.index`` and ``variables.data-00000-of-00002`` and so on."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return  # a model without variables
    if not (folder / "variables.index").is_file():
        raise DamagedFileError("variables/variables.index is missing")
    counts = {path.name.rpartition("-of-")[2] for path in folder.glob("variables.data-*-of-*")}
    count = counts.pop() if len(counts) == 1 else "00001"
    for number in range(int(count) if count.isdecimal() and len(count) == 5 else 1):
        name = f"variables.data-{number:05}-of-{count}"
        if not (folder / name).is_file():
            raise DamagedFileError(f"variables/{name} is missing")


def _check_graph(graph: MetaGraph) -> None:
    """Look at everything that can run.

    Only the restore step may read checkpoints, and what it calls; only what the loader runs gets paths of assets. All
    functions count except those that nothing but the saving of the model leads to.
    """
    nothing, assets = _Paths(graph, set(), graph.kinds), _Paths(graph, graph.assets, graph.kinds)
    for fed, fetched in graph.signatures:
        _check_reachable(graph, _Reach(graph).from_tensors(fetched, fed), nothing)
    _check_reachable(graph, _Reach(graph).from_tensors(graph.start_ops), assets)
    restore = _Reach(graph).from_tensors(graph.restore_op)
    _check_reachable(graph, restore, assets, _Paths(graph, {graph.checkpoint} - {""}))
    apart = {*_Reach(graph).from_tensors(graph.save_ops).functions, *restore.functions}
    others = {*(graph.functions.keys() - apart), *graph.captured, *graph.called}
    _check_reachable(graph, _Reach(graph).from_functions(others), assets)


def _check_reachable(graph: MetaGraph, reach: _Reach, assets: _Paths, checkpoint: _Paths | None = None) -> None:
    for scope, node in reach.nodes():
        for op in node.ops:
            if op in FROM_FILE:
                _check_path(scope, node, op, FROM_FILE[op], assets, "one of its assets")
            elif op in RESTORES and checkpoint is not None:
                _check_path(scope, node, op, 0, checkpoint, "that of its own variables")
            elif op not in ALLOWED and op not in graph.functions:  # a function may be an operator itself
                raise ForbiddenError(
                    f"its graph has the operator {op:.80}, which is not one of those that are known to compute only: "
                    "it may reach files, the network, devices or other code"
                )


def _check_path(scope: Function | None, node: Node, op: str, place: int, paths: _Paths, kind: str) -> None:
    if place >= len(node.inputs) or not paths.is_given(scope, node.inputs[place]):
        raise ForbiddenError(f"its graph has the operator {op}, which reads a file that is not {kind}")


class _Reach:
    """What is run when some tensors of the main graph are fetched, or some functions called."""

    def __init__(self, graph: MetaGraph) -> None:
        self._graph = graph
        self._main: dict[str, Node] = {}
        self.functions: dict[str, Function] = {}
        self._alike: dict[str, list[str]] = {}
        for function in graph.functions.values():
            for group in function.implements:
                self._alike.setdefault(group, []).append(function.name)

    def nodes(self) -> Iterator[tuple[Function | None, Node]]:
        """All of it, with the function that it lies in; None is the main graph."""
        for node in self._main.values():
            yield None, node
        for function in self.functions.values():
            # All of a function counts: what has side effects runs even when no result needs it.
            for node in function.nodes.values():
                yield function, node

    def from_tensors(self, fetched: Iterable[str], fed: Iterable[str] = ()) -> _Reach:
        stops = {_tensor(name) for name in fed}
        waiting = [name for name in fetched if _tensor(name) not in stops]
        while waiting:
            name = node_name(waiting.pop())
            node = self._graph.nodes.get(name)
            if node is None or name in self._main:
                continue
            self._main[name] = node
            self.from_functions((*node.calls, *node.ops))
            waiting += [source for source in node.inputs if _tensor(source) not in stops]
        return self

    def from_functions(self, names: Iterable[str]) -> _Reach:
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            function = self._graph.functions.get(name)
            if function is None or name in self.functions:
                continue
            self.functions[name] = function
            # An operator may be a function's name itself.
            waiting += [called for node in function.nodes.values() for called in (*node.calls, *node.ops)]
            waiting += [name for group in function.implements for name in self._alike.get(group, ())]
        return self


class _Paths:
    """Tells tensors that can only be a path that the loader gives.

    Args:
        given: tensors of the main graph that the loader feeds with such paths.
        kinds: per object of the object graph, whether it is such a path; functions may capture it.
    """

    def __init__(self, graph: MetaGraph, given: set[str], kinds: Sequence[bool] = ()) -> None:
        self._graph = graph
        self._given = given
        self._kinds = kinds
        # By the function that a tensor lies in (empty for the main graph) and its node: each place is looked at once,
        # however many ways lead to it.
        self._known: dict[tuple[str, str], bool] = {}

    def is_given(self, scope: Function | None, tensor: str) -> bool:
        name = node_name(tensor)
        place = (scope.name if scope else "", name)
        if place not in self._known:
            self._known[place] = False  # what leads to itself comes from nowhere
            self._known[place] = self._comes_from_loader(scope, name)
        return self._known[place]

    def _comes_from_loader(self, scope: Function | None, name: str) -> bool:
        if scope is not None and name in scope.arguments:
            return self._is_given_argument(scope, scope.arguments.index(name))
        if scope is None and name in self._given:
            return True
        node = (scope.nodes if scope else self._graph.nodes).get(name)
        if node is None or not node.inputs:
            return False
        if node.ops == ["Identity"]:
            return self.is_given(scope, node.inputs[0])
        if scope is None and node.ops == ["ReadVariableOp"]:
            return self._is_given_variable(node.inputs[0])
        return False

    def _is_given_variable(self, handle: str) -> bool:
        """TensorFlow 2 keeps an asset's path in a variable of the main graph, which nothing else may write to."""
        if not self._is_alone(node_name(handle)):
            return False
        users = [n for n in self._graph.nodes.values() if node_name(handle) in map(node_name, n.inputs)]
        if not all(set(user.ops) <= _PATH_USERS for user in users):
            return False
        written = [user for user in users if "AssignVariableOp" in user.ops]
        return bool(written) and all(self.is_given(None, user.inputs[1]) for user in written if user.inputs[1:])

    def _is_alone(self, name: str) -> bool:
        """Return whether a variable is known by one node only."""
        variable = self._graph.nodes.get(name)
        shared = set(variable.shared_names or [name]) if variable is not None else set()
        scopes = (self._graph.nodes, *(function.nodes for function in self._graph.functions.values()))
        nodes = (node for scope in scopes for node in scope.values() if "VarHandleOp" in node.ops)
        return [node for node in nodes if shared & {node.name, *node.shared_names}] == [variable]

    def _is_given_argument(self, function: Function, index: int) -> bool:
        """Every caller must hand over such a path, and the loader must capture one."""
        verdicts = []
        scopes: list[tuple[Function | None, dict[str, Node]]] = [(None, self._graph.nodes)]
        scopes += [(other, other.nodes) for other in self._graph.functions.values()]
        for scope, nodes in scopes:
            for node in nodes.values():
                if function.name in (*node.calls, *node.ops):
                    plain = set(node.ops) <= _PLAIN_CALLS and index < len(node.inputs)
                    verdicts.append(plain and self.is_given(scope, node.inputs[index]))
        if function.name in self._graph.captured:
            captured = self._graph.captured[function.name]
            at = index - (len(function.arguments) - len(captured))
            verdicts.append(0 <= at < len(captured) and self._is_kind(captured[at]))
        return bool(verdicts) and all(verdicts)

    def _is_kind(self, number: int) -> bool:
        return 0 <= number < len(self._kinds) and self._kinds[number]


def _tensor(name: str) -> str:
    """One spelling for a tensor of the main graph."""
    return name if ":" in name or name.startswith("^") else f"{name}:0"
