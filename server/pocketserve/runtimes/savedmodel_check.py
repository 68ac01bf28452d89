"""Tells what a SavedModel would do before TensorFlow loads it, from ``saved_model.pb`` alone.

A SavedModel is a program: its graph may read and write files (``tf.io.read_file`` in a serving function is enough) or
call into Python. Such graphs are refused. What counts is what can run here: the signatures, the initialisers, the
restore step, every function that the loader revives, and every function that those call. The part that saves the model
again lies in every file and holds writing operators, but nothing that is served leads to it.

Tables may be filled from a file when that file is one of the SavedModel's own assets. Each path is followed from the
operator back to where it comes from, through calls and variables; where that is not plainly an asset, it is refused.

This bounds what a stranger's file can do with TensorFlow's documented operators; it is no sandbox against faults in
TensorFlow itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

from .flatbuffer import DamagedFileError
from .savedmodel_graph import Function, MetaGraph, Node, node_name


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CODE = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
_FILES = _names(
    """
    ReadFile WriteFile MatchingFiles MatchingFilesDataset WholeFileReader WholeFileReaderV2 TextLineReader
    TextLineReaderV2 FixedLengthRecordReader FixedLengthRecordReaderV2 TFRecordReader TFRecordReaderV2 LMDBReader
    TextLineDataset FixedLengthRecordDataset FixedLengthRecordDatasetV2 TFRecordDataset TFRecordDatasetV2 CSVDataset
    CSVDatasetV2 LMDBDataset SqlDataset CacheDataset CacheDatasetV2 LoadDataset SaveDataset SaveDatasetV2
    SnapshotDataset SnapshotDatasetV2 SnapshotDatasetReader SnapshotNestedDatasetReader SnapshotChunkDataset
    ListSnapshotChunksDataset DistributedSave GenerateVocabRemapping LoadAndRemapMatrix FileSystemSetConfiguration
    ImportEvent SummaryWriter CreateSummaryFileWriter CreateSummaryDbWriter Save SaveSlices SaveV2 MergeV2Checkpoints
    DebugIdentity DebugIdentityV2 DebugIdentityV3 DebugNanCount DebugNumericSummary DebugNumericSummaryV2 Copy CopyHost
    """
)
_NETWORK = _names(
    """
    DataServiceDataset DataServiceDatasetV2 DataServiceDatasetV3 DataServiceDatasetV4 RegisterDataset RegisterDatasetV2
    RpcServer RpcServerStart RpcServerRegister RpcClient RpcCall BigQueryReader ConfigureDistributedTPU WorkerHeartbeat
    """
)
REFUSED = _CODE | _FILES | _NETWORK
"""Operators that reach out of the model: into Python, files (also through a debug URL) or the network."""

_RESTORES = frozenset({"Restore", "RestoreSlice", "RestoreV2"})
"""Read checkpoints. Only the loader's restore step has business with them; a signature has not."""

_FROM_FILE = {"InitializeTableFromTextFile": 1, "InitializeTableFromTextFileV2": 1}
"""Operators that may read an asset, and which of their inputs is the path."""

_PLAIN_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
"""Calls that hand their inputs to the function one by one."""

_EXPERIMENTAL = "Experimental"
"""Older names of datasets: the same operator with this in front."""

_Verdicts = dict[tuple[str, str], bool]
"""Whether a tensor is an asset's path, by the function that it lies in (empty for the main graph) and its node."""


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
        if not (folder / "assets" / name).is_file():
            raise DamagedFileError(f"assets/{name} is missing")
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

    Only the restore step may read checkpoints, and what it calls.
    """
    for fed, fetched in graph.signatures:
        _check_reachable(graph, _Reach(graph).from_tensors(fetched, fed), restoring=False)
    _check_reachable(graph, _Reach(graph).from_tensors(graph.start_ops), restoring=False)
    _check_reachable(graph, _Reach(graph).from_functions(graph.revived), restoring=False)
    _check_reachable(graph, _Reach(graph).from_tensors(graph.restore_op), restoring=True)


def _check_reachable(graph: MetaGraph, reach: _Reach, *, restoring: bool) -> None:
    for scope, node in reach.nodes():
        for op in node.ops:
            _check_op(graph, scope, node, op, restoring)


def _check_op(graph: MetaGraph, scope: Function | None, node: Node, op: str, restoring: bool) -> None:
    plain = op.removeprefix(_EXPERIMENTAL)
    if plain in REFUSED or (op in _RESTORES and not restoring):
        raise ForbiddenError(f"its graph has the operator {op}, which {_what_it_does(plain)}")
    if op == "PrintV2" and node.stream.lower().startswith("file:"):
        raise ForbiddenError(f"its graph has the operator {op}, which writes to a file")
    place = _FROM_FILE.get(op)
    if place is not None:
        path = node.inputs[place] if place < len(node.inputs) else ""
        if not _is_asset(graph, scope, path, {}):
            raise ForbiddenError(f"its graph has the operator {op}, which reads a file that is not one of its assets")


def _what_it_does(op: str) -> str:
    if op in _CODE:
        return "calls Python code"
    return "uses the network" if op in _NETWORK else "reads or writes files"


class _Reach:
    """What is run when some tensors of the main graph are fetched, or some functions called."""

    def __init__(self, graph: MetaGraph) -> None:
        self._graph = graph
        self._main: dict[str, Node] = {}
        self._functions: dict[str, Function] = {}
        self._alike: dict[str, list[str]] = {}
        for function in graph.functions.values():
            for group in function.implements:
                self._alike.setdefault(group, []).append(function.name)

    def nodes(self) -> Iterator[tuple[Function | None, Node]]:
        """All of it, with the function that it lies in; None is the main graph."""
        for node in self._main.values():
            yield None, node
        for function in self._functions.values():
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
            if function is None or name in self._functions:
                continue
            self._functions[name] = function
            # An operator may be a function's name itself.
            waiting += [called for node in function.nodes.values() for called in (*node.calls, *node.ops)]
            waiting += [name for group in function.implements for name in self._alike.get(group, ())]
        return self


def _is_asset(graph: MetaGraph, scope: Function | None, tensor: str, known: _Verdicts) -> bool:
    """Whether a path can only be that of one of the SavedModel's assets.

    Args:
        known: verdicts so far; each place is looked at once, however many ways lead to it.
    """
    name = node_name(tensor)
    place = (scope.name if scope else "", name)
    if place not in known:
        known[place] = False  # what leads to itself comes from nowhere
        known[place] = _comes_from_asset(graph, scope, name, known)
    return known[place]


def _comes_from_asset(graph: MetaGraph, scope: Function | None, name: str, known: _Verdicts) -> bool:
    if scope is not None and name in scope.arguments:
        return _is_asset_argument(graph, scope, scope.arguments.index(name), known)
    if scope is None and name in graph.assets:
        return True
    node = (scope.nodes if scope else graph.nodes).get(name)
    if node is None or not node.inputs:
        return False
    if node.ops == ["Identity"]:
        return _is_asset(graph, scope, node.inputs[0], known)
    if scope is None and node.ops == ["ReadVariableOp"]:
        return _is_asset_variable(graph, node.inputs[0], known)
    return False


def _is_asset_variable(graph: MetaGraph, handle: str, known: _Verdicts) -> bool:
    """TensorFlow 2 keeps an asset's path in a variable of the main graph."""
    written = [node for node in graph.nodes.values() if node.inputs[:1] == [handle] and "AssignVariableOp" in node.ops]
    return bool(written) and all(_is_asset(graph, None, node.inputs[1], known) for node in written if node.inputs[1:])


def _is_asset_argument(graph: MetaGraph, function: Function, index: int, known: _Verdicts) -> bool:
    """Every caller must hand over an asset, and the loader must capture one."""
    verdicts = []
    scopes: list[tuple[Function | None, dict[str, Node]]] = [(None, graph.nodes)]
    scopes += [(other, other.nodes) for other in graph.functions.values()]
    for scope, nodes in scopes:
        for node in nodes.values():
            if function.name in (*node.calls, *node.ops):
                plain = set(node.ops) <= _PLAIN_CALLS and index < len(node.inputs)
                verdicts.append(plain and _is_asset(graph, scope, node.inputs[index], known))
    if function.name in graph.revived:
        captured = graph.revived[function.name]
        at = index - (len(function.arguments) - len(captured))
        verdicts.append(0 <= at < len(captured) and _kind(graph, captured[at]))
    return bool(verdicts) and all(verdicts)


def _kind(graph: MetaGraph, number: int) -> bool:
    return 0 <= number < len(graph.kinds) and graph.kinds[number]


def _tensor(name: str) -> str:
    """One spelling for a tensor of the main graph."""
    return name if ":" in name or name.startswith("^") else f"{name}:0"
