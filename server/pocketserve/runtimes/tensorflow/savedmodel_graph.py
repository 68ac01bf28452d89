"""Reads what matters of a SavedModel's protobuf: its graphs, functions, nodes, signatures and files.

Field numbers are those of TensorFlow's ``.proto`` files, named in the functions. Where the format allows a field to
come twice, all of them count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from pocketserve.formats import DamagedFileError, mapped
from pocketserve.formats.protobuf import ProtobufReader, Span

BUDGET = 20_000_000
"""Fields of one file that are read: twenty times what a graph of 50,000 nodes has, and at most half a minute."""

MAX_DEPTH = 30
"""How deeply attributes may nest; functions that are handed functions need two or three levels."""

_INIT_SIGNATURE = "__saved_model_init_op"
_ASSET = 5
_OBJECT_KINDS = frozenset({4, _ASSET, 6, 7, 8, 9, 10, 12})


@dataclass(slots=True)
class Node:
    """One operator of a graph.

    Attributes:
        ops: its kind; several only in a file that was made to deceive.
        inputs: tensors as the graph writes them: ``name``, ``name:0``, ``name:output:0`` or ``^name``.
        calls: functions that its attributes name.
        shared_names: under which it shares what it holds with other nodes.
    """

    name: str = ""
    ops: list[str] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    shared_names: list[str] = field(default_factory=list)


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
        save_ops, restore_op: the nodes that write and read the variables.
        checkpoint: the tensor that the loader feeds with the path of the variables.
        assets: tensors that the loader feeds with the path of an asset.
        asset_files: those assets' names.
        kinds: per object of the object graph, whether it is an asset and nothing else.
        captured: functions that the second loader revives -> the objects that they capture.
        called: functions that objects of the second loader call by name.
    """

    tags: list[str] = field(default_factory=list)
    nodes: dict[str, Node] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    signatures: list[tuple[set[str], set[str]]] = field(default_factory=list)
    start_ops: set[str] = field(default_factory=set)
    save_ops: set[str] = field(default_factory=set)
    restore_op: set[str] = field(default_factory=set)
    checkpoint: str = ""
    assets: set[str] = field(default_factory=set)
    asset_files: list[str] = field(default_factory=list)
    kinds: list[bool] = field(default_factory=list)
    captured: dict[str, list[int]] = field(default_factory=dict)
    called: set[str] = field(default_factory=set)


def read_meta_graphs(folder: Path) -> list[MetaGraph]:
    """Return what ``saved_model.pb`` holds, without the weights.

    Raises:
        DamagedFileError: the file is missing, cut short, no SavedModel, or too large to check.
    """
    path = folder / "saved_model.pb"
    try:
        with mapped(path) as data:
            reader = ProtobufReader(data, BUDGET)
            # SavedModel: 2 meta_graphs
            graphs = [_meta_graph(reader, span) for span in reader.messages((0, len(data)), 2)]
    except OSError as error:
        raise DamagedFileError(f"saved_model.pb cannot be read: {error.strerror or error}") from error
    if not graphs:
        raise DamagedFileError("there is no graph in it")
    return graphs


def _meta_graph(reader: ProtobufReader, span: Span) -> MetaGraph:
    """MetaGraphDef: 1 meta_info_def (4 tags), 2 graph_def, 3 saver_def (1 filename_tensor_name, 2 save_tensor_name,
    3 restore_op_name), 4 collection_def, 5 signature_def, 6 asset_file_def (1 tensor_info (1 name), 2 filename),
    7 object_graph_def. Of a text that comes twice the last one counts: of what is fed, it is the only one that is."""
    graph = MetaGraph()
    for number, value in reader.parts(span):
        if number == 1:
            graph.tags += reader.texts(value, 4)
        elif number == 2:
            _graph_def(reader, value, graph)
        elif number == 3:
            graph.restore_op.update(reader.texts(value, 3))
            graph.save_ops.update(reader.texts(value, 2))
            graph.checkpoint = node_name("".join(reader.texts(value, 1)[-1:])) or graph.checkpoint
        elif number == 4:
            graph.start_ops.update(_collection(reader, value))
        elif number == 5:
            _add_signature(reader, value, graph)
        elif number == 6:
            tensors = [name for info in reader.messages(value, 1) for name in reader.texts(info, 1)]
            graph.assets.update(map(node_name, tensors[-1:]))
            graph.asset_files += reader.texts(value, 2)
        elif number == 7:
            _object_graph(reader, value, graph)
    return graph


def _graph_def(reader: ProtobufReader, span: Span, graph: MetaGraph) -> None:
    """GraphDef: 1 node, 2 library. FunctionDefLibrary: 1 function."""
    _add_nodes(graph.nodes, (_node(reader, node) for node in reader.messages(span, 1)))
    for library in reader.messages(span, 2):
        for entry in reader.messages(library, 1):
            function = _function(reader, entry)
            if function.name in graph.functions:
                raise DamagedFileError(f"there are two functions {function.name!r:.80}")
            graph.functions[function.name] = function


def _function(reader: ProtobufReader, span: Span) -> Function:
    """FunctionDef: 1 signature (OpDef: 1 name, 2 input_arg (1 name)), 3 node_def, 5 attr (1 key, 2 value: 2 s)."""
    function = Function()
    for number, value in reader.parts(span):
        if number == 1:
            function.name = "".join(reader.texts(value, 1)[-1:]) or function.name
            for argument in reader.messages(value, 2):
                function.arguments += reader.texts(argument, 1)[-1:]
        elif number == 3:
            _add_nodes(function.nodes, [_node(reader, value)])
        elif number == 5 and reader.texts(value, 1)[-1:] == ["api_implements"]:
            function.implements += [text for inner in reader.messages(value, 2) for text in reader.texts(inner, 2)]
    return function


def _node(reader: ProtobufReader, span: Span) -> Node:
    """NodeDef: 1 name, 2 op, 3 input, 5 attr (1 key, 2 value: AttrValue (2 s))."""
    node = Node()
    for number, value in reader.parts(span):
        if number == 1:
            node.name = reader.text(value)
        elif number == 2:
            node.ops.append(reader.text(value))
        elif number == 3:
            node.inputs.append(reader.text(value))
        elif number == 5:
            key = reader.texts(value, 1)[-1:]
            for attribute in reader.messages(value, 2):
                node.calls += _named_functions(reader, attribute)
                if key == ["shared_name"]:
                    node.shared_names += reader.texts(attribute, 2)
    return node


def _named_functions(reader: ProtobufReader, span: Span, depth: int = 0) -> list[str]:
    """AttrValue: 1 list (9 func), 10 func. NameAttrList: 1 name, 2 attr (2 value). Those handed over may get others."""
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


def _collection(reader: ProtobufReader, span: Span) -> list[str]:
    """An entry of collection_def: 2 value (CollectionDef: 1 node_list (1 value))."""
    lists = (nodes for value in reader.messages(span, 2) for nodes in reader.messages(value, 1))
    return [name for nodes in lists for name in reader.texts(nodes, 1)]


def _add_signature(reader: ProtobufReader, span: Span, graph: MetaGraph) -> None:
    """An entry of signature_def: 1 key, 2 value (SignatureDef)."""
    signatures = [_signature(reader, value) for value in reader.messages(span, 2)]
    if reader.texts(span, 1) == [_INIT_SIGNATURE]:  # not for callers: the loader runs it, and feeds the assets
        graph.start_ops.update(name for _, fetched in signatures for name in fetched)
    else:
        graph.signatures += signatures


def _signature(reader: ProtobufReader, span: Span) -> tuple[set[str], set[str]]:
    """SignatureDef: 1 inputs, 2 outputs (both maps: 2 value)."""
    fed, fetched = (
        {name for entry in reader.messages(span, number) for info in reader.messages(entry, 2)
         for name in _tensor_names(reader, info)}
        for number in (1, 2)
    )  # fmt: skip
    return fed, fetched


def _tensor_names(reader: ProtobufReader, span: Span) -> list[str]:
    """TensorInfo: 1 name, 4 coo_sparse (1, 2, 3 names), 5 composite_tensor (2 components)."""
    names = reader.texts(span, 1)
    for sparse in reader.messages(span, 4):
        names += [reader.text(name) for name in reader.messages(sparse, 1, 2, 3)]
    for composite in reader.messages(span, 5):
        for component in reader.messages(composite, 2):
            names += reader.texts(component, 1)  # composites do not nest in practice, and are not served
    return names


def _object_graph(reader: ProtobufReader, span: Span, graph: MetaGraph) -> None:
    """SavedObjectGraph: 1 nodes (SavedObject), 2 concrete_functions (1 key, 2 value: 2 bound_inputs).

    SavedObject: 5 asset, 6 function (1 concrete_functions), 8 bare_concrete_function (1 concrete_function_name); of 4
    to 10 and 12 it is one, the last.
    """
    for node in reader.messages(span, 1):
        kinds = {number for number, _ in reader.parts(node) if number in _OBJECT_KINDS}
        graph.kinds.append(kinds == {_ASSET})
        for function in reader.messages(node, 6, 8):
            graph.called.update(reader.texts(function, 1))
    for entry in reader.messages(span, 2):
        name = "".join(reader.texts(entry, 1)[-1:])
        bound = [number for value in reader.messages(entry, 2) for number in reader.integers(value, 2)]
        if name in graph.captured:
            raise DamagedFileError(f"the function {name!r:.80} is described twice")
        graph.captured[name] = bound


def node_name(tensor: str) -> str:
    """The node of a tensor: ``^name`` and ``name:0`` are of ``name``."""
    return tensor.removeprefix("^").partition(":")[0]
