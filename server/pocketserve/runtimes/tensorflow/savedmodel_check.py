"""Checks what a SavedModel would do before TensorFlow loads it, from ``saved_model.pb`` alone.

A SavedModel is a program: its graph may read and write files or call into Python. What is not known to compute only
(:data:`OPERATORS`) is refused in all that can run here: the signatures, the initialisers, the restore step, every
function that the loader revives, and what those call. The part that saves the model again lies in every file and
writes, but nothing that is served leads to it.

Tables may be filled from the SavedModel's own assets, and variables restored from where the loader says: each path is
followed back to where it comes from, through calls and variables, since it may name a file of another program, or one
that TensorFlow fetches from a network. This is no sandbox against faults in TensorFlow itself.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from pocketserve.formats import DamagedFileError
from pocketserve.runtimes.name_lists import read_names
from pocketserve_wire.files.plain_file import lies_in

from .savedmodel_graph import Function, MetaGraph, Node, node_name

OPERATORS = read_names(__package__, "savedmodel_operators.txt")
"""Operators by what they do: an allow-list, so that what is new or unknown is refused.

An operator is on it if all that it does is to compute from its inputs and attributes, or to change what the model
itself holds: its variables, tables, tensor arrays and random numbers. Left out is what leads elsewhere by any input,
attribute or state: files (also vocabularies by path, ``DecodeProtoV2``, ``ImmutableConst``, dumps and writers of
summaries); data sets, iterators and queues; the network, other processes, devices and Python; the process (``Abort``,
``Sleep``, printing, batching threads, barriers); XLA's operators, whose custom calls find any symbol of the process
by name; calibration and tests; and names that begin with ``_`` but ``_EagerConst``, which only TensorFlow's
optimizers write.
"""

ALLOWED = frozenset().union(*OPERATORS.values())
RESTORES = frozenset({"Restore", "RestoreSlice", "RestoreV2"})
"""Read checkpoints: allowed in the step that restores the model's own variables, from where the loader says."""

FROM_FILE = {"InitializeTableFromTextFile": 1, "InitializeTableFromTextFileV2": 1}
"""Operators that may read an asset, and which of their inputs is the path."""

_PLAIN_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
"""Calls that hand their inputs to the function one by one."""

_PATH_USERS = frozenset(
    {"AssignVariableOp", "ReadVariableOp", "VarIsInitializedOp", "DestroyResourceOp"}
)
"""What may be done with the variable of a path."""


class ForbiddenError(Exception):
    """A SavedModel does something forbidden, which the text names."""


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
    for name in {name for graph in graphs for name in graph.asset_files}:
        if (
            PurePosixPath(name).is_absolute()
            or ".." in PurePosixPath(name).parts
            or "\0" in name
        ):
            raise ForbiddenError(
                f"its asset {name!r:.80} lies outside the model's folder"
            )
        if not os.path.isfile(
            folder / "assets" / name
        ):  # false, too, for a name that no file can have
            raise DamagedFileError(f"assets/{name:.80} is missing")
    for path in folder.rglob("*"):
        if not lies_in(path, folder):
            raise ForbiddenError(
                f"{path.relative_to(folder)} is a link that leaves the model's folder"
            )
    _check_shards(folder / "variables")


def _check_shards(folder: Path) -> None:
    """Variables lie in ``variables.index`` and ``variables.data-00000-of-00002`` and so on."""
    if not folder.is_dir() or not any(folder.iterdir()):
        return  # a model without variables
    if not (folder / "variables.index").is_file():
        raise DamagedFileError("variables/variables.index is missing")
    counts = {
        path.name.rpartition("-of-")[2] for path in folder.glob("variables.data-*-of-*")
    }
    count = counts.pop() if len(counts) == 1 else "00001"
    for number in range(int(count) if count.isdecimal() and len(count) == 5 else 1):
        name = f"variables.data-{number:05}-of-{count}"
        if not (folder / name).is_file():
            raise DamagedFileError(f"variables/{name} is missing")


def _check_graph(graph: MetaGraph) -> None:
    """Check everything that can run: all functions count but those that only the saving of the model leads to.

    Only the restore step may read checkpoints, and what it calls; only what the loader runs gets paths of assets.
    """
    no_paths, assets = (
        _Paths(graph, set(), graph.kinds),
        _Paths(graph, graph.assets, graph.kinds),
    )
    for fed, fetched in graph.signatures:
        _check_reach(graph, _Reach(graph, fetched, fed), no_paths)
    _check_reach(graph, _Reach(graph, graph.start_ops), assets)
    restore = _Reach(graph, graph.restore_op)
    _check_reach(graph, restore, assets, _Paths(graph, {graph.checkpoint} - {""}))
    apart = {*_Reach(graph, graph.save_ops).functions, *restore.functions}
    rest = {*(graph.functions.keys() - apart), *graph.captured, *graph.callees}
    _check_reach(graph, _Reach(graph, functions=rest), assets)


def _check_reach(
    graph: MetaGraph, reach: _Reach, assets: _Paths, checkpoint: _Paths | None = None
) -> None:
    # All of a function counts: what has side effects runs even when no result needs it.
    scopes: list[tuple[Function | None, dict[str, Node]]] = [(None, reach.nodes)]
    scopes += [(function, function.nodes) for function in reach.functions.values()]
    steps = (
        (scope, node, op)
        for scope, nodes in scopes
        for node in nodes.values()
        for op in node.ops
    )
    for scope, node, op in steps:
        if op in FROM_FILE:
            _check_path(scope, node, op, FROM_FILE[op], assets, "one of its assets")
        elif op in RESTORES and checkpoint is not None:
            _check_path(scope, node, op, 0, checkpoint, "that of its own variables")
        elif (
            op not in ALLOWED and op not in graph.functions
        ):  # a function may be an operator itself
            raise ForbiddenError(
                f"its graph has the operator {op:.80}, which is not one of those that are known to compute only: "
                "it may reach files, the network, devices or other code"
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
        alike: dict[str, list[str]] = defaultdict(list)
        for function in graph.functions.values():
            for group in function.implements:
                alike[group].append(function.name)
        tensors, names, stops = list(fetched), list(functions), set(map(_tensor, fed))
        while tensors or names:
            if tensors:
                tensor = tensors.pop()
                node = graph.nodes.get(node_name(tensor))
                if node is None or node.name in self.nodes or _tensor(tensor) in stops:
                    continue
                self.nodes[node.name] = node
                tensors += node.inputs
                nodes: Iterable[Node] = [node]
            else:
                name = names.pop()
                if name not in graph.functions or name in self.functions:
                    continue
                function = self.functions[name] = graph.functions[name]
                names += [
                    other for group in function.implements for other in alike[group]
                ]
                nodes = function.nodes.values()
            # An operator may be a function's name itself.
            names += [callee for node in nodes for callee in (*node.calls, *node.ops)]


class _Paths:
    """Tensors that can only be a path that the loader gives.

    Args:
        sources: tensors of the main graph that the loader feeds with such paths.
        kinds: per object of the object graph, whether it is such a path; functions may capture it.
    """

    def __init__(
        self, graph: MetaGraph, sources: set[str], kinds: Sequence[bool] = ()
    ) -> None:
        self._graph = graph
        self._sources = sources
        self._kinds = kinds
        self._scopes: list[tuple[Function | None, dict[str, Node]]] = [
            (None, graph.nodes)
        ]
        self._scopes += [
            (function, function.nodes) for function in graph.functions.values()
        ]
        # By the function that a tensor lies in (empty for the main graph) and its node: each is followed once, however
        # many ways lead to it.
        self._verdicts: dict[tuple[str, str], bool] = {}

    def contain(self, scope: Function | None, tensor: str) -> bool:
        key = (scope.name if scope else "", node_name(tensor))
        if key not in self._verdicts:
            self._verdicts[key] = False  # what leads to itself comes from nowhere
            self._verdicts[key] = self._comes_from_loader(scope, key[1])
        return self._verdicts[key]

    def _comes_from_loader(self, scope: Function | None, name: str) -> bool:
        if scope is not None and name in scope.arguments:
            return self._is_passed(scope, scope.arguments.index(name))
        if scope is None and name in self._sources:
            return True
        node = (scope.nodes if scope else self._graph.nodes).get(name)
        if node is None or not node.inputs:
            return False
        if node.ops == ["Identity"]:
            return self.contain(scope, node.inputs[0])
        return (
            scope is None
            and node.ops == ["ReadVariableOp"]
            and self._is_in_variable(node_name(node.inputs[0]))
        )

    def _is_in_variable(self, name: str) -> bool:
        """Check a variable of the main graph, in which TensorFlow 2 keeps an asset's path: nothing else may write to
        it, nor any other node hold it.
        """
        variable = self._graph.nodes.get(name)
        if variable is None:
            return False
        shared = set(variable.shared_names or [name])
        handles = (
            n
            for _, nodes in self._scopes
            for n in nodes.values()
            if "VarHandleOp" in n.ops
        )
        if [node for node in handles if shared & {node.name, *node.shared_names}] != [
            variable
        ]:
            return False
        users = [
            node
            for node in self._graph.nodes.values()
            if name in map(node_name, node.inputs)
        ]
        writers = [node for node in users if "AssignVariableOp" in node.ops]
        return (
            all(set(user.ops) <= _PATH_USERS for user in users)
            and bool(writers)
            and all(
                self.contain(None, writer.inputs[1])
                for writer in writers
                if writer.inputs[1:]
            )
        )

    def _is_passed(self, function: Function, index: int) -> bool:
        """Return whether every caller passes such a path, and the loader captures one."""
        verdicts = []
        for scope, nodes in self._scopes:
            for node in nodes.values():
                if function.name in (*node.calls, *node.ops):
                    plain = set(node.ops) <= _PLAIN_CALLS and index < len(node.inputs)
                    verdicts.append(plain and self.contain(scope, node.inputs[index]))
        captured = self._graph.captured.get(function.name)
        if captured is not None:
            at = index - (len(function.arguments) - len(captured))
            number = captured[at] if 0 <= at < len(captured) else -1
            verdicts.append(0 <= number < len(self._kinds) and self._kinds[number])
        return bool(verdicts) and all(verdicts)


def _tensor(name: str) -> str:
    """Return the full spelling of a tensor of the main graph."""
    return name if ":" in name or name.startswith("^") else f"{name}:0"
