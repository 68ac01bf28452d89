"""Tells what a SavedModel would do before TensorFlow loads it, from ``saved_model.pb`` alone.

A SavedModel is a program: its graph may read and write files (``tf.io.read_file`` in a serving function is enough) or
call into Python. Such graphs are refused. What counts is what can run here: the signatures, the initialisers, the
restore step, every function that the loader revives, and every function that those call. The part that saves the model
again lies in every file and holds writing operators, but nothing that is served leads to it.

Tables may be filled from a file when that file is one of the SavedModel's own assets. Each path is followed from the
operator back to where it comes from, through calls and variables; where that is not plainly an asset, it is refused.

This bounds what a stranger's file can do with TensorFlow's documented operators; it is no sandbox against faults in
TensorFlow itself. The protobuf wire format is documented at protobuf.dev, "Encoding"; field numbers are those of
TensorFlow's ``.proto`` files, named in the functions. Where the format allows a field to come twice, all of them count.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path, PurePosixPath

from .flatbuffer import DamagedFileError, mapped

BUDGET = 20_000_000
"""Fields of one file that are read: twenty times what a graph of 50,000 nodes has, and at most half a minute."""

MAX_DEPTH = 30
"""How deeply attributes may nest; functions that are handed functions need two or three levels."""


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

Span = tuple[int, int]
"""Where a message lies in the file: start and end."""


class ForbiddenError(Exception):
    """A SavedModel that would reach out of itself; the text names the operator."""


@dataclass(slots=True)
class Node:
    """One operator of a graph.

    Attributes:
        ops: its kind; several only in a file that was made to deceive.
        inputs: tensors as the graph writes them: ``name``, ``name:0``, ``name:output:0`` or ``^name``.
        calls: functions that its attributes name.
        stream: where ``PrintV2`` prints to.
    """

    name: str = ""
    ops: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    stream: str = ""


@dataclass(slots=True)
class Function:
    """A function of a graph's library.

    Attributes:
        implements: TensorFlow may swap functions that say to implement the same thing.
    """

    name: str = ""
    implements: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)


@dataclass(slots=True)
class MetaGraph:
    """One of a SavedModel's graphs with what the loaders do with it.

    Attributes:
        tags: such as ``serve``.
        signatures: tensors that are fed and fetched, by signature.
        start_ops: nodes that a loader runs at once.
        restore_op: the node that reads the variables.
        assets: tensors that the loader feeds with the path of an asset.
        asset_files: those assets' names.
        kinds: per object of the object graph, whether it is an asset.
        revived: functions that the second loader revives -> the objects that they capture.
    """

    tags: list[str] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    signatures: list[tuple[set[str], set[str]]] = field(default_factory=list)
    start_ops: set[str] = field(default_factory=set)
    restore_op: set[str] = field(default_factory=set)
    assets: set[str] = field(default_factory=set)
    asset_files: list[str] = field(default_factory=list)
    kinds: list[bool] = field(default_factory=list)
    revived: dict[str, list[int]] = field(default_factory=dict)


def read_meta_graphs(folder: Path) -> list[MetaGraph]:
    """What ``saved_model.pb`` holds, without the weights.

    Raises:
        DamagedFileError: the file is missing, cut short, no SavedModel, or too large to check.
    """
    path = folder / "saved_model.pb"
    try:
        with mapped(path) as data:
            reader = _Reader(data)
            # SavedModel: 2 meta_graphs
            graphs = [_meta_graph(reader, span) for span in reader.messages((0, len(data)), 2)]
    except OSError as error:
        raise DamagedFileError(f"saved_model.pb cannot be read: {error.strerror or error}") from error
    if not graphs:
        raise DamagedFileError("there is no graph in it")
    return graphs


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


# --- Reading protobuf


class _Reader:
    """A protobuf file. Every read is checked against the message's end, and paid from a budget."""

    def __init__(self, data: mmap, budget: int = BUDGET) -> None:
        self._data = data
        self._budget = budget

    def fields(self, span: Span) -> Iterator[tuple[int, int | Span]]:
        """Field numbers with their values: integers, or spans of texts and messages."""
        at, end = span
        while at < end:
            self._pay()
            tag, at = self._varint(at, end)
            number, kind = tag >> 3, tag & 7
            if kind == 0:
                value, at = self._varint(at, end)
                yield number, value
                continue
            if kind == 2:
                size, at = self._varint(at, end)
            elif kind in (1, 5):
                size = 8 if kind == 1 else 4
            else:  # groups are not used by TensorFlow
                raise DamagedFileError(f"unknown wire type {kind}")
            if at + size > end:
                raise DamagedFileError("a field leads out of its message")
            yield number, (at, at + size)
            at += size

    def messages(self, span: Span, *numbers: int) -> Iterator[Span]:
        """The spans of the fields with one of these numbers."""
        for number, value in self.fields(span):
            if number in numbers and isinstance(value, tuple):
                yield value

    def text(self, span: Span) -> str:
        return self._data[span[0] : span[1]].decode("utf-8", errors="surrogateescape")

    def texts(self, span: Span, number: int) -> list[str]:
        return [self.text(value) for value in self.messages(span, number)]

    def integers(self, span: Span, number: int) -> list[int]:
        """A repeated integer, packed or not."""
        found: list[int] = []
        for key, value in self.fields(span):
            if key != number:
                continue
            if isinstance(value, int):
                found.append(value)
                continue
            at, end = value
            while at < end:
                self._pay()
                item, at = self._varint(at, end)
                found.append(item)
        return found

    def _varint(self, at: int, end: int) -> tuple[int, int]:
        value = shift = 0
        while at < end and shift < 70:
            byte = self._data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, at
            shift += 7
        raise DamagedFileError("a number does not end")

    def _pay(self) -> None:
        self._budget -= 1
        if self._budget < 0:
            raise DamagedFileError("the graph is too large to check")


def _meta_graph(reader: _Reader, span: Span) -> MetaGraph:
    """MetaGraphDef: 1 meta_info_def (4 tags), 2 graph_def, 3 saver_def (3 restore_op_name), 4 collection_def,
    5 signature_def, 6 asset_file_def (1 tensor_info, 2 filename), 7 object_graph_def."""
    graph = MetaGraph()
    for number, value in reader.fields(span):
        if isinstance(value, int):
            continue
        if number == 1:
            graph.tags += reader.texts(value, 4)
        elif number == 2:
            _graph_def(reader, value, graph)
        elif number == 3:
            graph.restore_op.update(reader.texts(value, 3))
        elif number == 4:
            graph.start_ops.update(_collection(reader, value))
        elif number == 5:
            graph.signatures += [_signature(reader, entry) for entry in reader.messages(value, 2)]
        elif number == 6:
            graph.assets.update(_base(n) for info in reader.messages(value, 1) for n in reader.texts(info, 1))
            graph.asset_files += reader.texts(value, 2)
        elif number == 7:
            _object_graph(reader, value, graph)
    return graph


def _graph_def(reader: _Reader, span: Span, graph: MetaGraph) -> None:
    """GraphDef: 1 node, 2 library. FunctionDefLibrary: 1 function."""
    _add_nodes(graph.nodes, (_node(reader, node) for node in reader.messages(span, 1)))
    for library in reader.messages(span, 2):
        for entry in reader.messages(library, 1):
            function = _function(reader, entry)
            if function.name in graph.functions:
                raise DamagedFileError(f"there are two functions {function.name!r:.80}")
            graph.functions[function.name] = function


def _function(reader: _Reader, span: Span) -> Function:
    """FunctionDef: 1 signature (OpDef: 1 name, 2 input_arg (1 name)), 3 node_def, 5 attr (1 key, 2 value: 2 s)."""
    function = Function()
    for number, value in reader.fields(span):
        if isinstance(value, int):
            continue
        if number == 1:
            function.name = "".join(reader.texts(value, 1)[-1:]) or function.name
            for argument in reader.messages(value, 2):
                function.arguments += reader.texts(argument, 1)[-1:]
        elif number == 3:
            _add_nodes(function.nodes, [_node(reader, value)])
        elif number == 5 and reader.texts(value, 1)[-1:] == ["api_implements"]:
            function.implements += [text for inner in reader.messages(value, 2) for text in reader.texts(inner, 2)]
    return function


def _node(reader: _Reader, span: Span) -> Node:
    """NodeDef: 1 name, 2 op, 3 input, 5 attr (1 key, 2 value)."""
    node = Node()
    for number, value in reader.fields(span):
        if isinstance(value, int):
            continue
        if number == 1:
            node.name = reader.text(value)
        elif number == 2:
            node.ops.append(reader.text(value))
        elif number == 3:
            node.inputs.append(reader.text(value))
        elif number == 5:
            _attribute(reader, value, node)
    return node


def _attribute(reader: _Reader, span: Span, node: Node) -> None:
    """AttrValue: 1 list (9 func), 2 s, 10 func. NameAttrList: 1 name, 2 attr (1 key, 2 value)."""
    key = "".join(reader.texts(span, 1)[-1:])
    for value in reader.messages(span, 2):
        for number, inner in reader.fields(value):
            if number == 2 and key == "output_stream" and isinstance(inner, tuple):
                node.stream += reader.text(inner)
        node.calls += _named_functions(reader, value)


def _named_functions(reader: _Reader, span: Span, depth: int = 0) -> list[str]:
    """The functions in an AttrValue (see above); one that is handed over may be given others in turn."""
    if depth > MAX_DEPTH:
        raise DamagedFileError("its attributes nest too deeply")
    handed = [*reader.messages(span, 10)]
    handed += [func for several in reader.messages(span, 1) for func in reader.messages(several, 9)]
    names = [name for func in handed for name in reader.texts(func, 1)]
    for func in handed:
        for entry in reader.messages(func, 2):
            names += [
                name for value in reader.messages(entry, 2) for name in _named_functions(reader, value, depth + 1)
            ]
    return names


def _add_nodes(known: dict[str, Node], nodes: Iterable[Node]) -> None:
    for node in nodes:
        if node.name in known:
            raise DamagedFileError(f"there are two nodes {node.name!r:.80}")
        known[node.name] = node


def _collection(reader: _Reader, span: Span) -> list[str]:
    """An entry of collection_def: 2 value (CollectionDef: 1 node_list (1 value))."""
    lists = (nodes for value in reader.messages(span, 2) for nodes in reader.messages(value, 1))
    return [name for nodes in lists for name in reader.texts(nodes, 1)]


def _signature(reader: _Reader, span: Span) -> tuple[set[str], set[str]]:
    """SignatureDef: 1 inputs, 2 outputs (both maps: 2 value)."""
    fed, fetched = (
        {name for entry in reader.messages(span, number) for info in reader.messages(entry, 2)
         for name in _tensor_names(reader, info)}
        for number in (1, 2)
    )  # fmt: skip
    return fed, fetched


def _tensor_names(reader: _Reader, span: Span) -> list[str]:
    """TensorInfo: 1 name, 4 coo_sparse (1, 2, 3 names), 5 composite_tensor (2 components)."""
    names = reader.texts(span, 1)
    for sparse in reader.messages(span, 4):
        names += [reader.text(name) for name in reader.messages(sparse, 1, 2, 3)]
    for composite in reader.messages(span, 5):
        for component in reader.messages(composite, 2):
            names += reader.texts(component, 1)  # composites do not nest in practice, and are not served
    return names


def _object_graph(reader: _Reader, span: Span, graph: MetaGraph) -> None:
    """SavedObjectGraph: 1 nodes (SavedObject: 5 asset), 2 concrete_functions (1 key, 2 value: 2 bound_inputs)."""
    for node in reader.messages(span, 1):
        graph.kinds.append(any(True for _ in reader.messages(node, 5)))
    for entry in reader.messages(span, 2):
        name = "".join(reader.texts(entry, 1)[-1:])
        bound = [number for value in reader.messages(entry, 2) for number in reader.integers(value, 2)]
        if name in graph.revived:
            raise DamagedFileError(f"the function {name!r:.80} is described twice")
        graph.revived[name] = bound


# --- Judging


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
            name = _base(waiting.pop())
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
    name = _base(tensor)
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


def _base(tensor: str) -> str:
    """The node of a tensor: ``^name`` and ``name:0`` are of ``name``."""
    return tensor.removeprefix("^").partition(":")[0]


def _tensor(name: str) -> str:
    """One spelling for a tensor of the main graph."""
    return name if ":" in name or name.startswith("^") else f"{name}:0"
