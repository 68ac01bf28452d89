"""Reads names of classes from the graph of a classifier, as converters of scikit-learn and boosted trees write it.

Such a model has an output with the winning class of each row, and another with scores by column. The names of the
columns are in the nodes before the output of classes. The walk from that output goes backwards over nodes that keep the
classes, and ends at a node that has them. Sources: "Operators", ai.onnx.ml (TreeEnsembleClassifier, LinearClassifier,
SVMClassifier, LabelEncoder, ZipMap, ArrayFeatureExtractor); onnx/sklearn-onnx, operator_converters.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path

from pocketserve.formats import DamagedFileError, mapped
from pocketserve.formats.protobuf import ProtobufReader, Span
from pocketserve.runtimes.metadata import ClassOutput

BUDGET = 5_000_000  # fields that are read one by one, as in :mod:`.check`
MAX_STEPS = 400  # nodes from outputs to their classes, over all outputs
MAX_CLASSES = 1 << 16
MAX_NAMES = (
    8 * MAX_CLASSES
)  # in all lists of a file: those of classifiers, encoders and score columns
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


def read_class_outputs(path: Path) -> dict[str, ClassOutput]:
    """Return outputs whose values or columns are classes, by name; empty if the graph shows none.

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

    Field numbers: GraphProto 1 node, 5 initializer, 12 output; NodeProto 1 input, 2 output, 4 op_type, 5 attribute;
    AttributeProto 1 name, 5 t, 8 ints, 9 strings; TensorProto 1 dims, 2 data_type, 5 int32_data, 6 string_data,
    7 int64_data, 8 name, 9 raw_data.
    """

    def __init__(self, reader: ProtobufReader, graph: Span) -> None:
        self._reader = reader
        self._steps = MAX_STEPS
        self._names_left = MAX_NAMES
        self._bytes_left = MAX_NAME_BYTES
        self._class_outputs: dict[
            str, ClassOutput | None
        ] = {}  # by tensor; None also while its classes are looked for
        self._nodes: dict[
            str, tuple[Span, int]
        ] = {}  # by output: its node, and which of the node's outputs it is
        self._tensors: dict[str, Span] = {}
        self._outputs: list[str] = []
        for number, span in reader.parts(graph):
            if number == 1:
                for position, name in enumerate(reader.texts(span, 2)):
                    self._nodes[name] = span, position
            elif number == 5:
                self._tensors[self._name(span, 8)] = span
            elif number == 12:
                self._outputs.append(self._name(span, 1))

    def class_outputs(self) -> dict[str, ClassOutput]:
        outputs: dict[str, ClassOutput] = {}
        for name in self._outputs:
            classes = self._classes(name)
            columns = () if classes is not None else self._columns(name)
            if classes is not None:
                outputs[name] = classes
            elif columns:
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
        kind = self._kind(span)
        inputs = self._reader.texts(span, 1)
        if kind in _CLASSIFIERS and position == 0 and kind != "ZipMap":
            names = self._class_attribute(span)
            return ClassOutput((names,)) if names else None
        if kind in ("ArgMax", "ArgMin"):
            return ClassOutput(((),), lowest_wins=kind == "ArgMin")
        if kind in ("ArrayFeatureExtractor", "Gather") and len(inputs) == 2:
            names = self._constant(inputs[0])
            return ClassOutput((names,)) if len(names) > 1 else None
        if kind == "Concat":
            return self._of_several_targets(inputs)
        source = (
            self._classes(inputs[0])
            if inputs and kind in (*_KEEP_CLASSES, "LabelEncoder")
            else None
        )
        if source is None or kind != "LabelEncoder":
            return source
        encoded = [self._encoded(span, names) for names in source.targets]
        return source._replace(targets=tuple(encoded)) if all(encoded) else None

    def _of_several_targets(self, inputs: Sequence[str]) -> ClassOutput | None:
        targets: list[Names] = []
        for name in inputs:
            classes = self._classes(name)
            if classes is None or classes.lowest_wins:
                return None
            if len(targets) + len(classes.targets) > MAX_TARGETS:
                return None
            targets += classes.targets
        return ClassOutput(tuple(targets)) if targets else None

    def _columns(self, name: str) -> Names:
        """Return the names of score columns; empty if unknown."""
        node = self._step_to(name)
        if node is None:
            return ()
        span, position = node
        kind = self._kind(span)
        if kind == "ZipMap" or (kind in _CLASSIFIERS and position == 1):
            return self._class_attribute(span)
        inputs = self._reader.texts(span, 1)
        return self._columns(inputs[0]) if inputs and kind in _KEEP_COLUMNS else ()

    def _step_to(self, name: str) -> tuple[Span, int] | None:
        self._steps -= 1
        return self._nodes.get(name) if self._steps >= 0 else None

    def _kind(self, node: Span) -> str:
        return "".join(self._reader.texts(node, 4)[-1:])

    def _attributes(self, node: Span) -> Iterator[tuple[str, Span]]:
        for span in self._reader.messages(node, 5):
            yield self._name(span, 1), span

    def _class_attribute(self, node: Span) -> Names:
        for name, span in self._attributes(node):
            if name in _CLASS_ATTRIBUTES and (names := self._list(span)):
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
        if not all(name in mapping for name in names):
            return ()
        self._pay_names(len(names))
        return tuple(mapping[name] for name in names) if names else values

    def _list(self, attribute: Span) -> Names:
        """Return an attribute's integers or texts, as texts."""
        texts = self._texts(self._reader.messages(attribute, 9))
        return texts or self._signed(self._reader.integers(attribute, 8))

    def _constant(self, name: str) -> Names:
        """Return a constant list of integers or texts as texts; else empty."""
        tensor = self._tensors.get(name)
        if (
            tensor is None
            and (node := self._step_to(name)) is not None
            and self._kind(node[0]) == "Constant"
        ):
            values = [
                self._reader.messages(span, 5)
                for key, span in self._attributes(node[0])
                if key == "value"
            ]
            tensor = next(values[0], None) if values else None
        return () if tensor is None else self._elements(tensor)

    def _elements(self, tensor: Span) -> Names:
        sizes = [size for size in self._reader.integers(tensor, 1) if size != 1]
        kind = self._reader.integers(tensor, 2)[-1:]
        if len(sizes) != 1 or sizes[0] > MAX_CLASSES:
            return ()
        if kind == [_STRING]:
            return self._texts(self._reader.messages(tensor, 6))
        if kind not in ([_INT32], [_INT64]):
            return ()
        raw = b"".join(
            self._reader.data[start:end]
            for start, end in self._reader.messages(tensor, 9)
        )
        code, size, field = ("i", 4, 5) if kind == [_INT32] else ("q", 8, 7)
        if raw and len(raw) == size * sizes[0]:
            self._pay_names(sizes[0])
            return tuple(
                str(value) for value in struct.unpack(f"<{sizes[0]}{code}", raw)
            )
        return self._signed(self._reader.integers(tensor, field))

    def _texts(self, spans: Iterator[Span]) -> Names:
        names: list[str] = []
        for start, end in spans:
            self._pay_names(1, end - start)
            if len(names) == MAX_CLASSES:
                raise DamagedFileError("it names too many classes")
            names.append(self._reader.data[start:end].decode("utf-8", errors="replace"))
        return tuple(names)

    def _signed(self, values: Sequence[int]) -> Names:
        """Return 64-bit integers, stored without sign, as texts."""
        self._pay_names(len(values))
        if len(values) > MAX_CLASSES:
            raise DamagedFileError("it names too many classes")
        return tuple(
            str(value - (1 << 64) if value >= 1 << 63 else value) for value in values
        )

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
        """Return a name without reading later fields, which are in number order."""
        for number, part in self._reader.parts(span):
            if number == field:
                return self._reader.text(part)
        return ""
