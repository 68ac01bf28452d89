"""Check an ``.onnx`` file and its external files before loading.

An ONNX file may refer to other files with its weights ("external data"). The author of
a model chooses those names, and older versions of ONNX Runtime follow ``../`` and links
out of the model's folder. So each tensor in graphs, subgraphs, functions and attributes
is checked first, and each operator, as some access files as well (:mod:`.operators`).
The walk builds no tree and is bounded by a budget and a depth. Source: "External Data",
ONNX IR specification.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import NamedTuple

from pocketserve.formats import DamagedFileError, mapped
from pocketserve.formats.protobuf import ProtobufReader, Span
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.model_files import (
    failed_download,
    file_errors,
    regular_size,
    weight_file,
)

from .operators import OperatorName

BUDGET = 5_000_000  # fields read one by one; a random forest has about one million

# protobuf's own limits of nesting and of a message's bytes
MAX_DEPTH = 100
MAX_FILE_BYTES = (1 << 31) - 1

MAX_ELEMENTS = 1 << 48  # of one tensor; far more than fits on a phone
_MAX_RANK = 64
# of a name or value in a tensor's external data; paths are not longer
_MAX_ENTRY_BYTES = 4096
_MAX_NAME_BYTES = 200  # of an operator's type or domain; real ones are shorter
_NO_FILE = r"^[A-Za-z]:|_ORT_MEM_ADDR"  # a Windows drive, a memory address
_FILE_COST = 200  # cost of a file lookup in the budget

_CHILDREN: Mapping[str, Mapping[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": dict.fromkeys((5, 10), "TensorProto")
    | dict.fromkeys((6, 11), "GraphProto")
    | dict.fromkeys((22, 23), "SparseTensorProto"),
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
}
"""Fields that lead to tensors, by message; a test compares with the onnx package."""

_NAMES: Mapping[str, Mapping[int, int]] = {
    "NodeProto": {7: 0, 4: 1},
    "FunctionProto": {10: 0, 1: 1},
}
"""Field numbers of domain (0) and op_type or name (1)."""

_BITS = {
    1: 32,
    2: 8,
    3: 8,
    4: 16,
    5: 16,
    6: 32,
    7: 64,
    9: 8,
    10: 16,
    11: 64,
    12: 32,
    13: 64,
    14: 64,
    15: 128,
    16: 16,
}
_BITS |= {17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2}
"""Bits of an element by ``TensorProto.DataType``.

A tensor of another type needs a length in the file.
"""


class GraphFacts(NamedTuple):
    """Facts from the file itself."""

    total_bytes: int  # of the file and its weight files, each counted once
    locations: tuple[str, ...]
    # inputs and outputs without a shape; ONNX Runtime reports them as scalars
    unranked: frozenset[str]
    # operators, functions: the names that nodes call, and those that the file defines
    operators: frozenset[OperatorName]
    functions: frozenset[OperatorName]


def check_model(path: Path, *, may_change: bool = False) -> GraphFacts:
    """Reject an incomplete model file, or one with invalid weight files.

    Args:
        path: the file with all links resolved; weights must be in its folder.
        may_change: whether others may write to the file meanwhile. It is then read
            instead of mapped, as truncating a mapped file crashes its reader.
    """
    with file_errors(
        path.name,
        "is not an ONNX model, or damaged or truncated",
        "copy or export the file again",
    ):
        size = regular_size(path)
        if size > MAX_FILE_BYTES:
            raise ModelLoadError(
                f"{path.name} is larger than 2 GB; save the model with its weights as "
                "external data"
            )
        with nullcontext(path.read_bytes()) if may_change else mapped(path) as data:
            if data[4:8] == b"ORTM":
                raise ModelLoadError(
                    f"{path.name} is in ONNX Runtime's own format, which depends on its "
                    "version and on the machine; use the .onnx file that it was made "
                    "from"
                )
            walk = _ModelWalk(ProtobufReader(data, BUDGET), path)
            return walk.facts(len(data))  # not ``size``: the file may have shrunk


def external_files(path: Path) -> tuple[str, ...]:
    """Return the names of a model's weight files; others may write to the model."""
    return check_model(path, may_change=True).locations


class _ModelWalk:
    """Visits all messages of a model that lead to tensors or operators.

    All occurrences of a repeated field are visited.
    """

    def __init__(self, reader: ProtobufReader, path: Path) -> None:
        self._reader = reader
        self._files = _WeightFiles(path)
        self._names: dict[str, set[OperatorName]] = {
            "NodeProto": set(),
            "FunctionProto": set(),
        }

    def facts(self, size: int) -> GraphFacts:
        graphs = list(self._reader.messages((0, size), 7))
        if not graphs:
            raise DamagedFileError("there is no graph in it")
        self._visit("ModelProto", (0, size), 1)
        unranked: set[str] = set()
        for graph in graphs:
            unranked.update(self._unranked(graph))
        return GraphFacts(
            total_bytes=size + sum(self._files.sizes.values()),
            locations=tuple(sorted(self._files.targets)),
            unranked=frozenset(unranked),
            operators=frozenset(self._names["NodeProto"]),
            functions=frozenset(self._names["FunctionProto"]),
        )

    def _visit(self, message: str, span: Span, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise DamagedFileError("it is nested too deeply")
        domains = set[str]()
        kinds = set[str]()
        names = (domains, kinds)
        children = _CHILDREN[message]
        name_fields = _NAMES.get(message, {})
        for number, part in self._reader.parts(span):
            child = children.get(number)
            if child == "TensorProto":
                self._check_tensor(part)
            elif child is not None:
                self._visit(child, part, depth + 1)
            elif number in name_fields:
                names[name_fields[number]].add(self._short_name(part))
        if message in self._names:
            pairs = itertools.product(domains or {""}, kinds or {""})
            self._names[message].update(pairs)

    def _short_name(self, span: Span) -> str:
        start, end = span
        name = self._reader.data[start : min(end, start + _MAX_NAME_BYTES)]
        return name.decode(errors="replace")

    def _check_tensor(self, tensor: Span) -> None:
        """Check the external data of a TensorProto.

        Fields: 1 dims, 2 data_type, 13 external_data. Field 14, which enables external
        data, is ignored: the parts of a repeated message may disagree.
        """
        entries = self._external_data(tensor)
        if entries:
            self._files.check(entries, self._tensor_bytes(tensor), self._reader)

    def _external_data(self, tensor: Span) -> dict[str, str]:
        """Return the entries (StringStringEntryProto: 1 key, 2 value) by key."""
        entries: dict[str, str] = {}
        for entry in self._reader.messages(tensor, 13):
            key = value = ""
            for number, span in self._reader.parts(entry):
                if number == 1:
                    key = self._text(span)
                elif number == 2:
                    value = self._text(span)
            if key in entries:
                raise DamagedFileError(
                    f"a tensor has two places of its weights ({key})"
                )
            entries[key] = value
        return entries

    def _tensor_bytes(self, tensor: Span) -> int:
        """Return the minimum size of a tensor; 0 for a type of unknown size."""
        dims = self._reader.integers(tensor, 1)
        types = self._reader.integers(tensor, 2)
        elements = MAX_ELEMENTS + 1
        if len(dims) <= _MAX_RANK:
            elements = math.prod(dims)
        if elements > MAX_ELEMENTS:
            raise DamagedFileError("a tensor has an impossible shape")
        bits = 0
        if types:
            bits = _BITS.get(types[-1], 0)
        return (elements * bits + 7) // 8

    def _unranked(self, graph: Span) -> Iterator[str]:
        """Yield the names of inputs (11) and outputs (12) that are shapeless tensors."""
        for span in self._reader.messages(graph, 11, 12):
            value = dict(self._reader.parts(span))
            kind = dict(self._reader.parts(value.get(2, (0, 0))))
            if 1 not in kind or 1 not in value:
                continue
            has_shape = any(self._reader.messages(kind[1], 2))
            if not has_shape:
                yield self._text(value[1])

    def _text(self, span: Span) -> str:
        if span[1] - span[0] > _MAX_ENTRY_BYTES:
            raise DamagedFileError("a name is too long")
        return self._reader.text(span)


class _WeightFiles:
    """A model's weight files: ``targets`` by location, and their ``sizes``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.targets: dict[str, Path] = {}
        self.sizes: dict[Path, int] = {}

    def check(
        self, entries: Mapping[str, str], tensor_bytes: int, reader: ProtobufReader
    ) -> None:
        """Check that a tensor's file is allowed, exists and is long enough."""
        location = entries.get("location", "")
        size = self._size_at(location, reader)
        offset = _count(entries.get("offset", "0"))
        length = _count(entries.get("length", "0"))
        minimum = offset + max(length, tensor_bytes)
        if minimum > size:
            raise self._too_short(location, size, minimum)

    def _size_at(self, location: str, reader: ProtobufReader) -> int:
        """Return the size of a file, which is looked up once."""
        if location not in self.targets:
            reader.pay(_FILE_COST + len(location))
            target, size = weight_file(self._path, self._path.name, location, _NO_FILE)
            self.targets[location] = target
            self.sizes[target] = size
        return self.sizes[self.targets[location]]

    def _too_short(self, location: str, size: int, minimum: int) -> ModelLoadError:
        reason = failed_download(self._path.parent / location)
        if reason is not None:
            return ModelLoadError(
                f"{self._path.name} keeps its weights elsewhere, and {reason}"
            )
        return ModelLoadError(
            f"{self._path.name} keeps weights in {location[:200]!r}, which is truncated "
            f"({size} of at least {minimum} bytes); copy that file again"
        )


def _count(text: str) -> int:
    """Parse a byte count of external data."""
    if not re.fullmatch(r"[0-9]{1,19}", text):
        raise DamagedFileError("the place of a tensor's weights is not a number")
    return int(text)
