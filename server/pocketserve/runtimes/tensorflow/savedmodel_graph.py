"""Read a SavedModel's graphs, functions, nodes, signatures and file names.

Field numbers are those of TensorFlow's ``.proto`` files, named in the functions. Where a
field may be repeated, all values count. Of a text that occurs twice, the last counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pocketserve.formats import DamagedFileError, mapped
from pocketserve.formats.protobuf import ProtobufReader, Span

BUDGET = 20_000_000
"""Limit of fields in a file; reading them takes at most half a minute.

A graph of 50,000 nodes has a twentieth.
"""

MAX_DEPTH = 30
"""Limit of nested attributes; functions as arguments of functions need two or three."""

INIT_SIGNATURE = "__saved_model_init_op"
_ASSET = 5
_OBJECT_KINDS = frozenset({4, _ASSET, 6, 7, 8, 9, 10, 12})
_Named = TypeVar("_Named", "Node", "Function")


@dataclass(slots=True)
class Node:
    """A node of a graph."""

    name: str
    # its operator; several only in a file made to deceive
    ops: list[str]
    # as in the graph: ``name``, ``name:0``, ``name:output:0`` or ``^name``
    inputs: list[str]
    # functions in its attributes
    calls: list[str] = field(default_factory=list)
    # names under which nodes share a resource
    shared_names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Function:
    """A function of a graph's library.

    TensorFlow may replace a function by another one with the same ``implements``.
    """

    name: str
    implements: list[str]
    arguments: list[str]
    nodes: dict[str, Node]


@dataclass(slots=True)
class MetaGraph:
    """A graph of a SavedModel, with its use by the loaders."""

    tags: list[str]  # such as ``serve``
    nodes: dict[str, Node]
    functions: dict[str, Function]
    signatures: list[tuple[set[str], set[str]]]  # tensors that are fed and fetched
    start_ops: set[str]  # nodes that a loader runs at once
    save_ops: set[str]  # the nodes that write the variables
    restore_op: set[str]  # the node that reads them
    checkpoint: str  # the tensor that the loader feeds with their path
    assets: set[str]  # those that it feeds with the path of an asset
    asset_files: list[str]
    # for each object of the object graph, whether it is an asset and nothing else
    kinds: list[bool]
    # by function that the second loader revives: the objects that it captures
    captured: dict[str, list[int]]
    # functions that objects of the second loader call by name
    callees: set[str]


def read_meta_graphs(folder: Path) -> list[MetaGraph]:
    """Read ``saved_model.pb``, without the weights.

    Raises:
        DamagedFileError: the file cannot be read.
    """
    with mapped(folder / "saved_model.pb") as data:
        reader = ProtobufReader(data, BUDGET)
        # SavedModel: 2 meta_graphs
        graphs = [
            _meta_graph(reader, span) for span in reader.messages((0, len(data)), 2)
        ]
    if not graphs:
        raise DamagedFileError("there is no graph in it")
    return graphs


def _last(texts: list[str]) -> str:
    if texts:
        return texts[-1]
    return ""


def _meta_graph(reader: ProtobufReader, span: Span) -> MetaGraph:
    """Read a MetaGraphDef.

    1 meta_info_def (4 tags), 2 graph_def (GraphDef: 1 node, 2 library (1 function)), 3
    saver_def (1 filename_tensor_name, 2 save_tensor_name, 3 restore_op_name), 4
    collection_def (2 value (CollectionDef: 1 node_list (1 value))), 5 signature_def (1
    key, 2 value (SignatureDef: 1 inputs, 2 outputs)), 6 asset_file_def (1 tensor_info (1
    name), 2 filename), 7 object_graph_def.
    """
    start_ops = set(reader.texts(span, 4, 2, 1, 1))
    signatures = []
    for entry in reader.messages(span, 5):
        is_initializer = reader.texts(entry, 1) == [INIT_SIGNATURE]
        for value in reader.messages(entry, 2):
            fed = _mapped(reader, value, 1)
            fetched = _mapped(reader, value, 2)
            if is_initializer:
                # The loader runs it and feeds the assets; requests can't.
                start_ops |= fetched
            else:
                signatures.append((fed, fetched))
    nodes = (_node(reader, node) for node in reader.spans(span, 2, 1))
    functions = (_function(reader, part) for part in reader.spans(span, 2, 2, 1))
    kinds, callees = _objects(reader, span)
    return MetaGraph(
        tags=reader.texts(span, 1, 4),
        nodes=_unique("nodes", nodes),
        functions=_unique("functions", functions),
        signatures=signatures,
        start_ops=start_ops,
        save_ops=set(reader.texts(span, 3, 2)),
        restore_op=set(reader.texts(span, 3, 3)),
        checkpoint=node_name(_last(reader.texts(span, 3, 1))),
        assets=_assets(reader, span),
        asset_files=reader.texts(span, 6, 2),
        kinds=kinds,
        captured=_captured_objects(reader, span),
        callees=callees,
    )


def _assets(reader: ProtobufReader, span: Span) -> set[str]:
    """Return the nodes to which the loader feeds paths of assets."""
    assets = set()
    for asset in reader.messages(span, 6):
        # Of a tensor that is named twice, only the last name is fed.
        for text in reader.texts(asset, 1, 1)[-1:]:
            assets.add(node_name(text))
    return assets


def _unique(kind: str, items: Iterable[_Named]) -> dict[str, _Named]:
    by_name: dict[str, _Named] = {}
    for item in items:
        if by_name.setdefault(item.name, item) is not item:
            raise DamagedFileError(f"there are two {kind} {item.name!r:.80}")
    return by_name


def _function(reader: ProtobufReader, span: Span) -> Function:
    """Read a FunctionDef.

    1 signature (OpDef: 1 name, 2 input_arg (1 name)), 3 node_def, 5 attr (1 key, 2
    value: 2 s).
    """
    implements = []
    for attribute in reader.messages(span, 5):
        if _last(reader.texts(attribute, 1)) == "api_implements":
            implements += reader.texts(attribute, 2, 2)
    arguments = []
    for argument in reader.spans(span, 1, 2):
        arguments += reader.texts(argument, 1)[-1:]
    nodes = (_node(reader, node) for node in reader.messages(span, 3))
    return Function(
        name=_last(reader.texts(span, 1, 1)),
        implements=implements,
        arguments=arguments,
        nodes=_unique("nodes", nodes),
    )


def _node(reader: ProtobufReader, span: Span) -> Node:
    """Read a NodeDef: 1 name, 2 op, 3 input, 5 attr (1 key, 2 value (2 s))."""
    texts: dict[int, list[str]] = {1: [], 2: [], 3: []}
    attributes = []
    for number, part in reader.parts(span):
        if number in texts:
            texts[number].append(reader.text(part))
        elif number == 5:
            attributes.append(part)
    node = Node(_last(texts[1]), ops=texts[2], inputs=texts[3])
    for attribute in attributes:
        _add_attribute(reader, attribute, node)
    return node


def _add_attribute(reader: ProtobufReader, attribute: Span, node: Node) -> None:
    is_shared_name = _last(reader.texts(attribute, 1)) == "shared_name"
    for value in reader.messages(attribute, 2):
        node.calls += _called_functions(reader, value)
        if is_shared_name:
            node.shared_names += reader.texts(value, 2)


def _called_functions(reader: ProtobufReader, span: Span, depth: int = 0) -> list[str]:
    """Return the functions in an AttrValue, and those passed to them.

    AttrValue: 1 list (9 func), 10 func. NameAttrList: 1 name, 2 attr (2 value).
    """
    if depth > MAX_DEPTH:
        raise DamagedFileError("its attributes nest too deeply")
    names = []
    for function in (*reader.messages(span, 10), *reader.spans(span, 1, 9)):
        names += reader.texts(function, 1)
        for value in reader.spans(function, 2, 2):
            names += _called_functions(reader, value, depth + 1)
    return names


def _mapped(reader: ProtobufReader, span: Span, number: int) -> set[str]:
    """Return the tensors of one of a SignatureDef's maps (2 value).

    TensorInfo: 1 name, 4 coo_sparse (1, 2, 3 names), 5 composite_tensor (2 components).
    Composites do not nest in practice, and are not served.
    """
    names: set[str] = set()
    for info in reader.spans(span, number, 2):
        for path in ((1,), (4, 1), (4, 2), (4, 3), (5, 2, 1)):
            names.update(reader.texts(info, *path))
    return names


def _objects(reader: ProtobufReader, span: Span) -> tuple[list[bool], set[str]]:
    """Return the objects' kinds, and the functions that objects call.

    MetaGraphDef: 7 object_graph_def (SavedObjectGraph: 1 nodes). SavedObject: 5 asset, 6
    function (1 concrete_functions), 8 bare_concrete_function (1 concrete_function_name).
    It is one of the kinds 4 to 10 and 12, by the last such field.
    """
    kinds = []
    callees: set[str] = set()
    for node in reader.spans(span, 7, 1):
        numbers = {number for number, _ in reader.parts(node)}
        kinds.append(numbers & _OBJECT_KINDS == {_ASSET})
        for function in reader.messages(node, 6, 8):
            callees.update(reader.texts(function, 1))
    return kinds, callees


def _captured_objects(reader: ProtobufReader, span: Span) -> dict[str, list[int]]:
    """Return the objects that functions capture, by function.

    SavedObjectGraph: 2 concrete_functions (1 key, 2 value: 2 bound_inputs).
    """
    captured: dict[str, list[int]] = {}
    for entry in reader.spans(span, 7, 2):
        name = _last(reader.texts(entry, 1))
        if name in captured:
            raise DamagedFileError(f"the function {name!r:.80} is described twice")
        captured[name] = []
        for value in reader.messages(entry, 2):
            captured[name] += reader.integers(value, 2)
    return captured


def node_name(tensor: str) -> str:
    """Return the node of a tensor: ``^name`` and ``name:0`` are of ``name``."""
    return tensor.removeprefix("^").partition(":")[0]
