"""Read class names from the graph of a classifier.

Converters of scikit-learn and of boosted trees write such graphs: one output has each
row's winning class, another has scores by column. The names of the columns are in the
nodes before the output of classes. The search follows the graph backwards from that
output, over nodes that keep the classes, to a node that defines them. Sources:
"Operators", ai.onnx.ml (TreeEnsembleClassifier, LinearClassifier, SVMClassifier,
LabelEncoder, ZipMap, ArrayFeatureExtractor); onnx/sklearn-onnx, operator_converters.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from pocketserve.formats import DamagedFileError, mapped
from pocketserve.formats.protobuf import ProtobufReader, Span
from pocketserve.runtimes.metadata import ClassOutput

BUDGET = 5_000_000  # fields that are read one by one, as in :mod:`.check`
MAX_STEPS = 400  # nodes from outputs to their classes, over all outputs
MAX_CLASSES = 1 << 16
# in all lists of a file: those of classifiers, encoders and score columns
MAX_NAMES = 8 * MAX_CLASSES
MAX_NAME_BYTES = 4 << 20  # of all names of a file together
MAX_TARGETS = 400  # of one output

_KEEP_CLASSES = frozenset(
    ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
)
_KEEP_COLUMNS = frozenset(
    ("Cast", "Div", "Identity", "Mul", "Normalizer", "Sigmoid", "Softmax")
)
_CLASSIFIERS = frozenset(
    ("LinearClassifier", "SVMClassifier", "TreeEnsembleClassifier", "ZipMap")
)
_CLASS_ATTRIBUTES = ("classlabels_ints", "classlabels_int64s", "classlabels_strings")
_INT32, _INT64, _STRING = 6, 7, 8  # TensorProto.DataType

Names = tuple[str, ...]


class _IntegerStorage(NamedTuple):
    """The storage of one integer type in a TensorProto."""

    struct_code: str
    item_bytes: int
    field: int


_INTEGERS = {_INT32: _IntegerStorage("i", 4, 5), _INT64: _IntegerStorage("q", 8, 7)}


class _NodeOutput(NamedTuple):
    """A node, and the position of one of its outputs."""

    node: Span
    position: int


def read_class_outputs(path: Path) -> dict[str, ClassOutput]:
    """Return the outputs whose values or columns are classes.

    The result is empty if the graph doesn't show any.
    Raises:
        DamagedFileError: the file is damaged, or its graph is too large.
    """
    with mapped(path) as data:
        reader = ProtobufReader(data, BUDGET)
        graphs = list(reader.messages((0, len(data)), 7))
        if len(graphs) != 1:
            return {}
        return _ClassGraph(reader, graphs[0]).class_outputs()


class _ClassGraph:
    """Follows the nodes of a main graph backwards from its outputs.

    Field numbers: GraphProto 1 node, 5 initializer, 12 output; NodeProto 1 input, 2
    output, 4 op_type, 5 attribute; AttributeProto 1 name, 5 t, 8 ints, 9 strings;
    TensorProto 1 dims, 2 data_type, 5 int32_data, 6 string_data, 7 int64_data, 8 name,
    9 raw_data.
    """

    def __init__(self, reader: ProtobufReader, graph: Span) -> None:
        self._reader = reader
        self._steps = MAX_STEPS
        self._names_left = MAX_NAMES
        self._bytes_left = MAX_NAME_BYTES
        # by tensor; None, too, while its classes are being determined
        self._class_outputs: dict[str, ClassOutput | None] = {}
        self._nodes: dict[str, _NodeOutput] = {}
        self._tensors: dict[str, Span] = {}
        self._outputs: list[str] = []
        self._read_graph(graph)

    def _read_graph(self, graph: Span) -> None:
        """Find the nodes (1), the weights (5) and the outputs (12)."""
        reader = self._reader
        for number, span in reader.parts(graph):
            if number == 1:
                for position, name in enumerate(reader.texts(span, 2)):
                    self._nodes[name] = _NodeOutput(span, position)
            elif number == 5:
                name = self._name(span, 8)
                self._tensors[name] = span
            elif number == 12:
                name = self._name(span, 1)
                self._outputs.append(name)

    def class_outputs(self) -> dict[str, ClassOutput]:
        outputs: dict[str, ClassOutput] = {}
        for name in self._outputs:
            classes = self._classes(name)
            if classes is not None:
                outputs[name] = classes
                continue
            columns = self._columns(name)
            if columns:
                outputs[name] = ClassOutput((columns,), is_label=False)
        return outputs

    def _classes(self, name: str) -> ClassOutput | None:
        """Return the classes of a tensor's values, or None if unknown."""
        node = self._step_to(name)
        if node is None:
            return None
        if name not in self._class_outputs:
            self._class_outputs[name] = None
            self._class_outputs[name] = self._classes_of_node(*node)
        return self._class_outputs[name]

    def _classes_of_node(self, span: Span, position: int) -> ClassOutput | None:
        """Return the classes of a node's output, or None if unknown."""
        kind = self._kind(span)
        if kind in _CLASSIFIERS and kind != "ZipMap" and position == 0:
            return _class_output(self._class_attribute(span), least=1)
        if kind in ("ArgMax", "ArgMin"):
            return ClassOutput(((),), lowest_wins=kind == "ArgMin")
        inputs = self._reader.texts(span, 1)
        if kind in ("ArrayFeatureExtractor", "Gather") and len(inputs) == 2:
            return _class_output(self._constant(inputs[0]), least=2)
        return self._classes_of_inputs(kind, span, inputs)

    def _classes_of_inputs(
        self, kind: str, span: Span, inputs: list[str]
    ) -> ClassOutput | None:
        """Return the classes of a node that passes on those of its inputs."""
        if kind == "Concat":
            return self._of_several_targets(inputs)
        if not inputs:
            return None
        if kind in _KEEP_CLASSES:
            return self._classes(inputs[0])
        if kind == "LabelEncoder":
            return self._encoded_classes(span, inputs[0])
        return None

    def _encoded_classes(self, encoder: Span, source: str) -> ClassOutput | None:
        """Return the classes of a tensor after a LabelEncoder."""
        classes = self._classes(source)
        if classes is None:
            return None
        targets = []
        for names in classes.targets:
            encoded = self._encoded(encoder, names)
            if not encoded:
                return None
            targets.append(encoded)
        return classes._replace(targets=tuple(targets))

    def _of_several_targets(self, inputs: Sequence[str]) -> ClassOutput | None:
        targets: list[Names] = []
        for name in inputs:
            classes = self._classes(name)
            if classes is None or classes.lowest_wins:
                return None
            if len(targets) + len(classes.targets) > MAX_TARGETS:
                return None
            targets += classes.targets
        if targets:
            return ClassOutput(tuple(targets))
        return None

    def _columns(self, name: str) -> Names:
        """Return the names of score columns; empty if unknown."""
        output = self._step_to(name)
        if output is None:
            return ()
        node, position = output
        kind = self._kind(node)
        if kind == "ZipMap" or (kind in _CLASSIFIERS and position == 1):
            return self._class_attribute(node)
        inputs = self._reader.texts(node, 1)
        if not inputs or kind not in _KEEP_COLUMNS:
            return ()
        return self._columns(inputs[0])

    def _step_to(self, name: str) -> _NodeOutput | None:
        self._steps -= 1
        if self._steps < 0:
            return None
        return self._nodes.get(name)

    def _kind(self, node: Span) -> str:
        return "".join(self._reader.texts(node, 4)[-1:])

    def _attributes(self, node: Span) -> Iterator[tuple[str, Span]]:
        for span in self._reader.messages(node, 5):
            yield self._name(span, 1), span

    def _class_attribute(self, node: Span) -> Names:
        for name, span in self._attributes(node):
            if name not in _CLASS_ATTRIBUTES:
                continue
            names = self._list(span)
            if names:
                return names
        return ()

    def _encoded(self, node: Span, names: Names) -> Names:
        """Map names with a LabelEncoder; empty if a name isn't among its keys."""
        keys: Names = ()
        values: Names = ()
        for name, span in self._attributes(node):
            if name in ("keys_int64s", "keys_strings"):
                keys = self._list(span)
            elif name in ("values_int64s", "values_strings"):
                values = self._list(span)
        mapping = dict(zip(keys, values, strict=False))
        encoded = []
        for name in names:
            if name not in mapping:
                return ()
            encoded.append(mapping[name])
        self._pay_names(len(names))
        if not names:
            return values
        return tuple(encoded)

    def _list(self, attribute: Span) -> Names:
        """Return an attribute's integers or texts, as texts."""
        texts = self._texts(self._reader.messages(attribute, 9))
        return texts or self._signed(self._reader.integers(attribute, 8))

    def _constant(self, name: str) -> Names:
        """Return a constant list of integers or texts as texts; else empty."""
        tensor = self._tensors.get(name)
        if tensor is None:
            tensor = self._constant_node_value(name)
        if tensor is None:
            return ()
        return self._elements(tensor)

    def _constant_node_value(self, name: str) -> Span | None:
        """Return the tensor in the ``Constant`` node of a name, or None."""
        output = self._step_to(name)
        if output is None or self._kind(output.node) != "Constant":
            return None
        for key, span in self._attributes(output.node):
            if key == "value":
                return next(self._reader.messages(span, 5), None)
        return None

    def _elements(self, tensor: Span) -> Names:
        """Return the elements of a list; empty for other shapes and types."""
        sizes = [size for size in self._reader.integers(tensor, 1) if size != 1]
        if len(sizes) != 1 or sizes[0] > MAX_CLASSES:
            return ()
        kinds = self._reader.integers(tensor, 2)
        if not kinds:
            return ()
        kind = kinds[-1]
        if kind == _STRING:
            return self._texts(self._reader.messages(tensor, 6))
        storage = _INTEGERS.get(kind)
        if storage is None:
            return ()
        return self._integer_names(tensor, storage, sizes[0])

    def _integer_names(
        self, tensor: Span, storage: _IntegerStorage, count: int
    ) -> Names:
        """Return the integers of a tensor as names."""
        raw = self._raw_data(tensor)
        if not raw or len(raw) != storage.item_bytes * count:
            return self._signed(self._reader.integers(tensor, storage.field))
        self._pay_names(count)
        values = struct.unpack(f"<{count}{storage.struct_code}", raw)
        return tuple(map(str, values))

    def _raw_data(self, tensor: Span) -> bytearray:
        raw = bytearray()
        for start, end in self._reader.messages(tensor, 9):
            raw += self._reader.data[start:end]
        return raw

    def _texts(self, spans: Iterator[Span]) -> Names:
        """Return texts as names."""
        names: list[str] = []
        for start, end in spans:
            self._pay_names(1, end - start)
            if len(names) == MAX_CLASSES:
                raise DamagedFileError("it names too many classes")
            content = self._reader.data[start:end]
            names.append(content.decode("utf-8", errors="replace"))
        return tuple(names)

    def _signed(self, values: Sequence[int]) -> Names:
        """Return 64-bit integers, stored without sign, as texts."""
        self._pay_names(len(values))
        if len(values) > MAX_CLASSES:
            raise DamagedFileError("it names too many classes")
        names = []
        for value in values:
            if value >= 1 << 63:
                value -= 1 << 64
            names.append(str(value))
        return tuple(names)

    def _pay_names(self, count: int, size: int = 0) -> None:
        """Take names from the limits of the file.

        Raises:
            DamagedFileError: the file has too many names.
        """
        self._names_left -= count
        self._bytes_left -= size
        if self._names_left < 0 or self._bytes_left < 0:
            raise DamagedFileError("it names too many classes")

    def _name(self, span: Span, field: int) -> str:
        """Return a name; stop reading at its field."""
        for number, part in self._reader.parts(span):
            if number == field:
                return self._reader.text(part)
        return ""


def _class_output(names: Names, least: int) -> ClassOutput | None:
    """Return the classes with these names; None if there are fewer than ``least``."""
    if len(names) < least:
        return None
    return ClassOutput((names,))
