"""Checks whether an ``.onnx`` file is whole and where it leads, before a framework reads it.

An ONNX file may name other files that hold its weights ("external data"). Whoever gives away a model chooses those
names, and older versions of ONNX Runtime follow ``../`` and links out of the model's folder. So every tensor of the
file is checked first: in graphs, subgraphs, functions and attributes; and so is every node's operator, some of which
reach out as well (:mod:`.operators`). The walk keeps no tree, and is bounded by a budget and by a depth, whatever the
file says. Source: "External Data", ONNX IR specification.
"""

from __future__ import annotations

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

BUDGET = 5_000_000  # fields that are read one by one: a forest of trees as ONNX has about one million

# Messages inside messages, and bytes of one: protobuf's own limits.
MAX_DEPTH = 100
MAX_FILE_BYTES = (1 << 31) - 1

MAX_ELEMENTS = 1 << 48  # of one tensor, far more than a phone's storage holds
_MAX_RANK = 64
_MAX_ENTRY_BYTES = 4096  # of a name or value in a tensor's external data; no file system takes longer paths
_MAX_NAME_BYTES = 200  # of an operator's type or domain; more than any has
_NO_FILE = r"^[A-Za-z]:|_ORT_MEM_ADDR"  # a drive of Windows, an address in memory
_FILE_COST = 200  # units of the budget that looking up one more file costs

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
"""The ways that lead to tensors, by message and field number. A test holds this against the onnx package."""

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
"""Bits of one element by ``TensorProto.DataType``. Of types that are not here the file must tell the length."""


class GraphFacts(NamedTuple):
    """Facts that the file itself tells."""

    total_bytes: (
        int  # of the file, and of the weight files at ``locations``, each counted once
    )
    locations: tuple[str, ...]
    # inputs and outputs whose shape the file does not tell. ONNX Runtime shows them as scalars.
    unranked: frozenset[str]
    # operators, functions: the names that its nodes call, and those that it defines
    operators: frozenset[OperatorName]
    functions: frozenset[OperatorName]


def check_model(path: Path, *, may_change: bool = False) -> GraphFacts:
    """Refuse a model file that is not whole, or whose weights are not whole files beside it.

    Args:
        path: the file with all links resolved; its folder is the one that weights may lie in.
        may_change: whether others may write to the file meanwhile: it is read then, since a mapped file that becomes
            shorter ends the process that reads it.
    """
    with file_errors(
        path.name,
        "is no ONNX model, or damaged or cut short",
        "copy or export the file again",
    ):
        size = regular_size(path)
        if size > MAX_FILE_BYTES:
            raise ModelLoadError(
                f"{path.name} is larger than 2 GB; save the model with its weights as external data"
            )
        with nullcontext(path.read_bytes()) if may_change else mapped(path) as data:
            if data[4:8] == b"ORTM":
                raise ModelLoadError(
                    f"{path.name} is in ONNX Runtime's own format, which depends on its version and on the machine; "
                    "use the .onnx file that it was made from"
                )
            return _ModelWalk(ProtobufReader(data, BUDGET), path).facts(
                len(data)
            )  # it may be shorter by now


def external_files(path: Path) -> tuple[str, ...]:
    """Return the names of files with weights that a model names, while others may write to it."""
    return check_model(path, may_change=True).locations


class _ModelWalk:
    """Visits all messages of a model that lead to tensors or operators. Of a field that occurs twice, each counts."""

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
        unranked = {name for graph in graphs for name in self._unranked(graph)}
        names = (
            frozenset(self._names[message])
            for message in ("NodeProto", "FunctionProto")
        )
        total_bytes = size + sum(self._files.sizes.values())
        return GraphFacts(
            total_bytes, tuple(sorted(self._files.targets)), frozenset(unranked), *names
        )

    def _visit(self, message: str, span: Span, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise DamagedFileError("it is nested too deeply")
        domains, kinds = parts = set[str](), set[str]()
        for number, part in self._reader.parts(span):
            child = _CHILDREN[message].get(number)
            if child == "TensorProto":
                self._check_tensor(part)
            elif child is not None:
                self._visit(child, part, depth + 1)
            elif (index := _NAMES.get(message, {}).get(number)) is not None:
                name = self._reader.data[
                    part[0] : min(part[1], part[0] + _MAX_NAME_BYTES)
                ]
                parts[index].add(name.decode(errors="replace"))
        if message in self._names:
            self._names[message].update(
                (domain, kind) for domain in domains or {""} for kind in kinds or {""}
            )

    def _check_tensor(self, tensor: Span) -> None:
        """TensorProto: 1 dims, 2 data_type, 13 external_data (StringStringEntryProto: 1 key, 2 value).

        Whether field 14 says that external data count is not asked: with a message that occurs in two parts, the parts
        differ.
        """
        entries: dict[str, str] = {}
        for entry in self._reader.messages(tensor, 13):
            fields = {
                number: self._text(span)
                for number, span in self._reader.parts(entry)
                if number in (1, 2)
            }
            key = fields.get(1, "")
            if key in entries:
                raise DamagedFileError(
                    f"a tensor has two places of its weights ({key})"
                )
            entries[key] = fields.get(2, "")
        if not entries:
            return
        dims, types = self._reader.integers(tensor, 1), self._reader.integers(tensor, 2)
        elements = math.prod(dims) if len(dims) <= _MAX_RANK else MAX_ELEMENTS + 1
        if elements > MAX_ELEMENTS:
            raise DamagedFileError("a tensor has an impossible shape")
        self._files.check(
            entries,
            -(-elements * _BITS.get(types[-1] if types else 0, 0) // 8),
            self._reader,
        )

    def _unranked(self, graph: Span) -> Iterator[str]:
        """Yield names in GraphProto 11 input, 12 output of tensors (TypeProto 1) without shape (Tensor 2)."""
        for span in self._reader.messages(graph, 11, 12):
            value = dict(self._reader.parts(span))
            kind = dict(self._reader.parts(value.get(2, (0, 0))))
            if 1 in kind and 1 in value and not any(self._reader.messages(kind[1], 2)):
                yield self._text(value[1])

    def _text(self, span: Span) -> str:
        if span[1] - span[0] > _MAX_ENTRY_BYTES:
            raise DamagedFileError("a name is too long")
        return self._reader.text(span)


class _WeightFiles:
    """The weight files that a model names: ``targets`` by location, and their ``sizes``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.targets: dict[str, Path] = {}
        self.sizes: dict[Path, int] = {}

    def check(
        self, entries: Mapping[str, str], tensor_bytes: int, reader: ProtobufReader
    ) -> None:
        """Check that the file of one tensor is allowed, exists, and is long enough."""
        location = entries.get("location", "")
        if location not in self.targets:
            reader.pay(_FILE_COST + len(location))
            target, size = weight_file(self._path, self._path.name, location, _NO_FILE)
            self.targets[location], self.sizes[target] = target, size
        size = self.sizes[self.targets[location]]
        offset, length = (_count(entries.get(key, "0")) for key in ("offset", "length"))
        minimum = offset + max(length, tensor_bytes)
        if minimum > size:
            if (reason := failed_download(self._path.parent / location)) is not None:
                raise ModelLoadError(
                    f"{self._path.name} keeps its weights elsewhere, and {reason}"
                )
            fault = f"which is cut short ({size} of at least {minimum} bytes); copy that file again"
            raise ModelLoadError(
                f"{self._path.name} keeps weights in {location[:200]!r}, {fault}"
            )


def _count(text: str) -> int:
    """Return a number of bytes as external data writes it."""
    if not re.fullmatch(r"[0-9]{1,19}", text):
        raise DamagedFileError("the place of a tensor's weights is no number")
    return int(text)
