"""Check from ``saved_model.pb`` alone what a SavedModel would do in TensorFlow.

A SavedModel is a program: its graph may read and write files or call into Python. Any
operator that is not known to compute only (:data:`OPERATORS`) is rejected in all code
that can run here: the signatures, the initialisers, the restore step, all functions that
the loader revives, and those that they call. The code that saves the model writes files,
but no signature leads to it.

Tables may be filled from the SavedModel's own assets, and variables restored from the
loader's path. Each path is traced to its origin, through calls and variables, since it
may name a file of another program, or one that TensorFlow downloads. This does not
protect against faults in TensorFlow itself.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.name_lists import read_names
from pocketserve_wire.files.plain_file import lies_in

from .savedmodel_graph import Function, MetaGraph, Node, node_name

OPERATORS = read_names(__package__, "savedmodel_operators.txt")
"""An allow-list of operators by purpose, so that new and unknown ones are rejected.

A listed operator only computes from its inputs and attributes, or changes the model's
own state: variables, tables, tensor arrays and random numbers. An operator is left out
if any input, attribute or state gives it access to something else: files (also
vocabularies by path, ``DecodeProtoV2``, ``ImmutableConst``, dumps and writers of
summaries); data sets, iterators and queues; the network, other processes, devices and
Python; the process (``Abort``, ``Sleep``, printing, batching threads, barriers); XLA's
operators, whose custom calls find any symbol of the process by name; calibration and
tests; and names that begin with ``_`` except ``_EagerConst``, as only TensorFlow's
optimizers write them.
"""

ALLOWED = frozenset().union(*OPERATORS.values())
RESTORES = frozenset({"Restore", "RestoreSlice", "RestoreV2"})
"""Operators that read checkpoints.

They are allowed in the step that restores the model's variables from the loader's path.
"""

FROM_FILE = {"InitializeTableFromTextFile": 1, "InitializeTableFromTextFileV2": 1}
"""Operators that may read an asset, with the position of the path in their inputs."""

_PLAIN_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
"""Calls that pass their inputs to the function one by one."""

_PATH_USERS = frozenset(
    {"AssignVariableOp", "ReadVariableOp", "VarIsInitializedOp", "DestroyResourceOp"}
)
"""Operators that may use the variable of a path."""


class ForbiddenError(Exception):
    """A SavedModel does something forbidden."""


def check_meta_graphs(graphs: Iterable[MetaGraph]) -> None:
    """Raise ``ForbiddenError`` for graphs that do more than compute.

    They may restore their own variables and read their own assets.
    """
    try:
        for graph in graphs:
            _check_graph(graph)
    except RecursionError:
        raise ForbiddenError(
            "it computes a file's path in too many nested steps to check"
        ) from None


def check_files(folder: Path, graphs: Iterable[MetaGraph]) -> None:
    """Raise for files that are missing or outside the model's folder."""
    for graph in graphs:
        for name in graph.asset_files:
            _check_asset(folder, name)
    for path in folder.rglob("*"):
        if not lies_in(path, folder):
            raise ForbiddenError(
                f"{path.relative_to(folder)} is a link that leaves the model's folder"
            )
    _check_shards(folder / "variables")


def _check_asset(folder: Path, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\0" in name:
        raise ForbiddenError(f"its asset {name!r:.80} lies outside the model's folder")
    # ``isfile`` is also False for a name that no file can have.
    if not os.path.isfile(folder / "assets" / name):
        raise DamagedFileError(f"assets/{name:.80} is missing")


def _check_shards(folder: Path) -> None:
    """Check that all files of the variables exist.

    They are ``variables.index``, ``variables.data-00000-of-00002`` and so on.
    """
    if not folder.is_dir() or not any(folder.iterdir()):
        return  # a model without variables
    if not (folder / "variables.index").is_file():
        raise DamagedFileError("variables/variables.index is missing")
    count = _shard_count(folder)
    is_number = count.isdecimal() and len(count) == 5
    for number in range(int(count) if is_number else 1):
        name = f"variables.data-{number:05}-of-{count}"
        if not (folder / name).is_file():
            raise DamagedFileError(f"variables/{name} is missing")


def _shard_count(folder: Path) -> str:
    """Return the number of data files that their names announce."""
    counts = set()
    for path in folder.glob("variables.data-*-of-*"):
        counts.add(path.name.rpartition("-of-")[2])
    if len(counts) == 1:
        return counts.pop()
    return "00001"


def _check_graph(graph: MetaGraph) -> None:
    """Check everything that can run: all functions except those only for saving.

    Only the restore step and the functions that it calls may read checkpoints. Only
    steps of the loader get paths of assets.
    """
    no_paths = _Paths(graph, set(), graph.kinds)
    assets = _Paths(graph, graph.assets, graph.kinds)
    for fed, fetched in graph.signatures:
        _check_reach(graph, _Reach(graph, fetched, fed), no_paths)
    _check_reach(graph, _Reach(graph, graph.start_ops), assets)
    restore = _Reach(graph, graph.restore_op)
    checkpoint = _Paths(graph, {graph.checkpoint} - {""})
    _check_reach(graph, restore, assets, checkpoint)
    save = _Reach(graph, graph.save_ops)
    rest = graph.functions.keys() - save.functions.keys() - restore.functions.keys()
    revived = {*rest, *graph.captured, *graph.callees}
    _check_reach(graph, _Reach(graph, functions=revived), assets)


def _check_reach(
    graph: MetaGraph, reach: _Reach, assets: _Paths, checkpoint: _Paths | None = None
) -> None:
    for node in reach.nodes.values():
        _check_node(graph, None, node, assets, checkpoint)
    # All nodes of a function count: those with side effects run even if no result needs
    # them.
    for function in reach.functions.values():
        for node in function.nodes.values():
            _check_node(graph, function, node, assets, checkpoint)


def _check_node(
    graph: MetaGraph,
    scope: Function | None,
    node: Node,
    assets: _Paths,
    checkpoint: _Paths | None,
) -> None:
    for op in node.ops:
        if op in FROM_FILE:
            _check_path(scope, node, op, FROM_FILE[op], assets, "one of its assets")
        elif op in RESTORES and checkpoint is not None:
            _check_path(scope, node, op, 0, checkpoint, "that of its own variables")
        # An operator may be a function's name.
        elif op not in ALLOWED and op not in graph.functions:
            raise ForbiddenError(
                f"its graph has the operator {op:.80}, which is not one of those that "
                "are known to compute only: it may reach files, the network, devices or "
                "other code"
            )


def _check_path(
    scope: Function | None, node: Node, op: str, index: int, paths: _Paths, kind: str
) -> None:
    if index >= len(node.inputs) or not paths.contain(scope, node.inputs[index]):
        raise ForbiddenError(
            f"its graph has the operator {op}, which reads a file that is not {kind}"
        )


class _Reach:
    """The nodes and functions that a run of the main graph executes."""

    def __init__(
        self,
        graph: MetaGraph,
        fetched: Iterable[str] = (),
        fed: Iterable[str] = (),
        functions: Iterable[str] = (),
    ) -> None:
        self.nodes: dict[str, Node] = {}
        self.functions: dict[str, Function] = {}
        self._graph = graph
        self._stops = set(map(_tensor, fed))
        self._alternatives: dict[str, list[str]] = defaultdict(list)
        for function in graph.functions.values():
            for group in function.implements:
                self._alternatives[group].append(function.name)
        self._follow(list(fetched), list(functions))

    def _follow(self, tensors: list[str], names: list[str]) -> None:
        """Add everything that computes tensors and that functions execute."""
        while tensors or names:
            if tensors:
                node = self._add_node(tensors.pop())
                if node is not None:
                    tensors += node.inputs
                    names += self._called_by(node)
            else:
                names += self._add_function(names.pop())

    def _add_node(self, tensor: str) -> Node | None:
        """Add the node of a tensor; return None if it is fed, unknown or added."""
        node = self._graph.nodes.get(node_name(tensor))
        if node is None or node.name in self.nodes or _tensor(tensor) in self._stops:
            return None
        self.nodes[node.name] = node
        return node

    def _add_function(self, name: str) -> list[str]:
        """Add a function; return the names of functions that it may call."""
        function = self._graph.functions.get(name)
        if function is None or name in self.functions:
            return []
        self.functions[name] = function
        names = []
        for group in function.implements:
            names += self._alternatives[group]
        for node in function.nodes.values():
            names += self._called_by(node)
        return names

    def _called_by(self, node: Node) -> Iterable[str]:
        # An operator may be a function's name.
        return (*node.calls, *node.ops)


class _NodeScope(NamedTuple):
    """The main graph, or a function, with its nodes."""

    function: Function | None
    nodes: dict[str, Node]


class _Paths:
    """Tensors whose value can only be a path from the loader.

    Args:
        sources: tensors of the main graph that the loader feeds with such paths.
        kinds: for each object of the object graph, whether it is such a path; functions
            may capture it.
    """

    def __init__(
        self, graph: MetaGraph, sources: set[str], kinds: Sequence[bool] = ()
    ) -> None:
        self._graph = graph
        self._sources = sources
        self._kinds = kinds
        self._scopes: list[_NodeScope] = [_NodeScope(None, graph.nodes)]
        for function in graph.functions.values():
            self._scopes.append(_NodeScope(function, function.nodes))
        # By function (empty for the main graph) and node. Each is followed only once,
        # even if many paths lead to it.
        self._verdicts: dict[tuple[str, str], bool] = {}

    def contain(self, scope: Function | None, tensor: str) -> bool:
        """Return whether a tensor is such a path."""
        name = node_name(tensor)
        scope_name = ""
        if scope is not None:
            scope_name = scope.name
        key = (scope_name, name)
        if key not in self._verdicts:
            self._verdicts[key] = False  # a cycle has no origin
            self._verdicts[key] = self._comes_from_loader(scope, name)
        return self._verdicts[key]

    def _comes_from_loader(self, scope: Function | None, name: str) -> bool:
        nodes = self._graph.nodes
        if scope is not None:
            nodes = scope.nodes
            if name in scope.arguments:
                return self._is_passed(scope, scope.arguments.index(name))
        elif name in self._sources:
            return True
        node = nodes.get(name)
        if node is None or not node.inputs:
            return False
        source = node.inputs[0]
        if node.ops == ["Identity"]:
            return self.contain(scope, source)
        if scope is None and node.ops == ["ReadVariableOp"]:
            return self._is_in_variable(node_name(source))
        return False

    def _is_in_variable(self, name: str) -> bool:
        """Check a variable of the main graph, where TensorFlow 2 keeps an asset's path.

        No other value may be written to it, and no other node may share it.
        """
        variable = self._graph.nodes.get(name)
        if variable is None or not self._is_only_handle(variable):
            return False
        is_written = False
        for user in self._graph.nodes.values():
            if name not in map(node_name, user.inputs):
                continue
            if not set(user.ops) <= _PATH_USERS:
                return False
            if "AssignVariableOp" in user.ops:
                is_written = True
                if len(user.inputs) > 1 and not self.contain(None, user.inputs[1]):
                    return False
        return is_written

    def _is_only_handle(self, variable: Node) -> bool:
        """Return whether a node is the only handle of its variable."""
        shared = set(variable.shared_names or [variable.name])
        handles = []
        for scope in self._scopes:
            for node in scope.nodes.values():
                if "VarHandleOp" not in node.ops:
                    continue
                names = (node.name, *node.shared_names)
                if not shared.isdisjoint(names):
                    handles.append(node)
        return handles == [variable]

    def _is_passed(self, function: Function, index: int) -> bool:
        """Return whether all calls and the loader pass such a path as an argument."""
        verdicts = []
        for scope, nodes in self._scopes:
            for node in nodes.values():
                if function.name in node.calls or function.name in node.ops:
                    verdicts.append(self._passes(scope, node, index))
        captured = self._graph.captured.get(function.name)
        if captured is not None:
            first_captured = len(function.arguments) - len(captured)
            verdicts.append(self._is_captured(captured, index - first_captured))
        return bool(verdicts) and all(verdicts)

    def _passes(self, scope: Function | None, node: Node, index: int) -> bool:
        """Return whether a call passes such a path as an argument."""
        is_plain = set(node.ops) <= _PLAIN_CALLS
        if not is_plain or index >= len(node.inputs):
            return False
        return self.contain(scope, node.inputs[index])

    def _is_captured(self, captured: Sequence[int], position: int) -> bool:
        """Return whether a captured object is such a path."""
        if not 0 <= position < len(captured):
            return False
        number = captured[position]
        if not 0 <= number < len(self._kinds):
            return False
        return self._kinds[number]


def _tensor(name: str) -> str:
    """Return the full spelling of a tensor of the main graph."""
    if ":" in name or name.startswith("^"):
        return name
    return f"{name}:0"
