"""Tells whether an ``.onnx`` file is whole and where it leads, before a framework reads it.

An ONNX file may name other files that hold its weights ("external data"). Whoever gives away a model chooses those
names, and older versions of ONNX Runtime follow ``../`` and links out of the model's folder. So every tensor of the
file is looked at first: in graphs, subgraphs, functions and attributes; and so is every node's operator, some of which
reach out as well (:mod:`.operators`). The walk keeps no tree, and is bounded by a budget and by a depth, whatever the
file says. Source: "External Data", ONNX IR specification.
"""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from pocketserve.formats import DamagedFileError, mapped
from pocketserve.formats.protobuf import ProtobufReader, Span
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.failed_downloads import failed_download

from .operators import Name

BUDGET = 5_000_000
"""Fields that are looked at one by one: a forest of trees as ONNX has about one million."""

MAX_DEPTH = 100
"""Messages inside messages: protobuf's own limit."""

MAX_FILE_BYTES = (1 << 31) - 1
"""No protobuf message may be larger."""

MAX_ELEMENTS = 1 << 48
"""Of one tensor, far more than a phone's storage holds."""

_ORT_FORMAT = b"ORTM"
"""What stands behind the first four bytes of a model that ONNX Runtime has compiled for itself."""

_MAX_RANK = 64
_MAX_ENTRY_BYTES = 4096
"""Of a name or value in a tensor's external data; no file system takes longer paths."""

_MAX_NAME_BYTES = 200

_FILE_COST = 200
"""What looking one more file up takes from the budget."""

_CHILDREN: Mapping[str, Mapping[int, str]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
}
"""The ways that lead to tensors, by message and field number. A test holds this against the onnx package."""

_BITS = {1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16}
_BITS |= {17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2}
"""Bits of one element by ``TensorProto.DataType``. Of types that are not here the file must tell the length."""


@dataclass(frozen=True, slots=True)
class GraphFacts:
    """What the walk found.

    Attributes:
        file_bytes: size of the model file.
        external_bytes: size of the weight files that it names, each counted once.
        locations: those files, relative to the model file's folder.
        unranked: inputs and outputs whose shape the file does not tell. ONNX Runtime shows them as scalars.
        operators, functions: what its nodes call, and what it defines.
    """

    file_bytes: int
    external_bytes: int
    unranked: frozenset[str]
    locations: tuple[str, ...] = ()
    operators: frozenset[Name] = frozenset()
    functions: frozenset[Name] = frozenset()


def check_model(path: Path, *, may_change: bool = False) -> GraphFacts:
    """Refuse a model file that is not whole, or whose weights are not whole files beside it.

    Args:
        path: the file with all links resolved; its folder is the one that weights may lie in.
        may_change: whether others may write to the file meanwhile: it is read then, since a mapped file that becomes
            shorter ends the process that looks at it.

    Raises:
        ModelLoadError: one sentence that says what is wrong and what to do.
    """
    try:
        size = _regular_size(path)
        if size > MAX_FILE_BYTES:
            raise ModelLoadError(f"{path.name} is larger than 2 GB; save the model with its weights as external data")
        with nullcontext(path.read_bytes()) if may_change else mapped(path) as data:
            if data[4:8] == _ORT_FORMAT:
                raise ModelLoadError(
                    f"{path.name} is in ONNX Runtime's own format, which depends on its version and on the machine; "
                    "use the .onnx file that it was made from"
                )
            return _facts(ProtobufReader(data, BUDGET), size, _Files(path))
    except DamagedFileError as error:
        raise ModelLoadError(
            f"{path.name} is no ONNX model, or damaged or cut short ({error}); copy or export the file again"
        ) from error
    except OSError as error:
        raise ModelLoadError(f"{path.name} cannot be read: {error.strerror or error}") from error


def _facts(reader: ProtobufReader, size: int, files: _Files) -> GraphFacts:
    unranked: set[str] = set()
    graphs = list(reader.messages((0, size), 7))
    if not graphs:
        raise DamagedFileError("there is no graph in it")
    calls = _Calls()
    for tensor in _tensors(reader, size, calls):
        entries = _external_entries(reader, tensor)
        if entries:
            files.check(entries, _tensor_bytes(reader, tensor), reader)
    for graph in graphs:
        unranked.update(_unranked(reader, graph))
    return GraphFacts(size, files.total_bytes(), frozenset(unranked), files.locations(), *calls.names())


class _Calls:
    """Collects the types and domains of nodes and functions. Of a field that comes twice, each counts."""

    _FIELDS: Mapping[str, Mapping[int, int]] = {"NodeProto": {4: 1, 7: 0}, "FunctionProto": {1: 1, 10: 0}}
    """Where op_type or name, and domain, stand: field number -> part of the name."""

    def __init__(self) -> None:
        self._found: dict[str, set[Name]] = {"NodeProto": set(), "FunctionProto": set()}
        self._open: list[tuple[str, tuple[set[str], set[str]]]] = []

    def begin(self, message: str) -> None:
        self._open.append((message, (set(), set())))

    def note(self, reader: ProtobufReader, number: int, span: Span) -> None:
        """Take a field of the innermost message."""
        message, parts = self._open[-1]
        part = self._FIELDS.get(message, {}).get(number)
        if part is not None:
            parts[part].add(
                bytes(reader.data[span[0] : min(span[1], span[0] + _MAX_NAME_BYTES)]).decode(errors="replace")
            )

    def end(self) -> None:
        message, (domains, kinds) = self._open.pop()
        if message in self._found:
            self._found[message].update((domain, kind) for domain in domains or {""} for kind in kinds or {""})

    def names(self) -> tuple[frozenset[Name], frozenset[Name]]:
        return frozenset(self._found["NodeProto"]), frozenset(self._found["FunctionProto"])


def _tensors(reader: ProtobufReader, size: int, calls: _Calls) -> Iterator[Span]:
    """Yield the span of every TensorProto, wherever it is, and collect nodes and functions.

    Protobuf merges a message that occurs twice, so a repeated ``graph`` is walked like one.
    """
    stack = [("ModelProto", reader.parts((0, size)))]
    calls.begin("ModelProto")
    while stack:
        message, parts = stack[-1]
        part = next(parts, None)
        if part is None:
            stack.pop()
            calls.end()
            continue
        number, span = part
        calls.note(reader, number, span)
        child = _CHILDREN[message].get(number)
        if child == "TensorProto":
            yield span
        elif child is not None:
            if len(stack) >= MAX_DEPTH:
                raise DamagedFileError("it is nested too deeply")
            stack.append((child, reader.parts(span)))
            calls.begin(child)


def _external_entries(reader: ProtobufReader, tensor: Span) -> dict[str, str]:
    """TensorProto 13, external_data: StringStringEntryProto with 1 key, 2 value.

    Whether field 14 says that they count is not asked: with a message that occurs in two parts, the parts differ.
    """
    entries: dict[str, str] = {}
    for entry in reader.messages(tensor, 13):
        fields = {number: _short_text(reader, span) for number, span in reader.parts(entry) if number in (1, 2)}
        key = fields.get(1, "")
        if key in entries:
            raise DamagedFileError(f"a tensor has two places of its weights ({key})")
        entries[key] = fields.get(2, "")
    return entries


def _short_text(reader: ProtobufReader, span: Span) -> str:
    if span[1] - span[0] > _MAX_ENTRY_BYTES:
        raise DamagedFileError("a name is too long")
    return reader.text(span)


def _tensor_bytes(reader: ProtobufReader, tensor: Span) -> int:
    """Size of a tensor's elements by TensorProto 1 dims, 2 data_type; 0 for a type that is not known."""
    dims, types = reader.integers(tensor, 1), reader.integers(tensor, 2)
    elements = math.prod(dims) if len(dims) <= _MAX_RANK else MAX_ELEMENTS + 1
    if elements > MAX_ELEMENTS:
        raise DamagedFileError("a tensor has an impossible shape")
    return -(-elements * _BITS.get(types[-1] if types else 0, 0) // 8)


def _unranked(reader: ProtobufReader, graph: Span) -> Iterator[str]:
    """Names in GraphProto 11 input, 12 output whose type is a tensor (TypeProto 1) without shape (Tensor 2)."""
    for span in reader.messages(graph, 11, 12):
        value = dict(reader.parts(span))
        kind = dict(reader.parts(value.get(2, (0, 0))))
        if 1 in kind and 1 in value and not any(reader.messages(kind[1], 2)):
            yield _short_text(reader, value[1])


class _Files:
    """The weight files that a model names.

    Args:
        path: the model file with all links resolved.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._sizes: dict[str, int] = {}
        self._found: dict[Path, int] = {}

    def check(self, entries: Mapping[str, str], tensor_bytes: int, reader: ProtobufReader) -> None:
        """See that the file of one tensor is allowed, there, and long enough.

        Raises:
            ModelLoadError: it is not.
        """
        location = entries.get("location", "")
        if location not in self._sizes:
            reader.pay(_FILE_COST + len(location))
            self._sizes[location] = self._look_up(location)
        offset, length = (_count(entries.get(key, "0")) for key in ("offset", "length"))
        needed, there = offset + max(length, tensor_bytes), self._sizes[location]
        if needed > there:
            if (words := failed_download(self._path.parent / location)) is not None:
                raise ModelLoadError(f"{self._path.name} keeps its weights elsewhere, and {words}")
            fault = f"which is cut short ({there} of at least {needed} bytes)"
            raise self._refused(location, fault, "copy that file again")

    def locations(self) -> tuple[str, ...]:
        return tuple(sorted(self._sizes))

    def total_bytes(self) -> int:
        return sum(self._found.values())

    def _look_up(self, location: str) -> int:
        """Size of a file inside the model's folder."""
        folder = self._path.parent
        if not _is_plain(location):
            raise self._outside(location)
        target = Path(os.path.realpath(folder / location))
        if not target.is_relative_to(folder):
            raise self._outside(location)
        try:
            self._found[target] = _regular_size(target)
        except OSError as error:
            if not os.path.lexists(target):
                raise self._refused(location, "which is not there", "copy that file into the model's folder") from None
            raise self._refused(location, "which cannot be read", "copy that file again") from error
        return self._found[target]

    def _outside(self, location: str) -> ModelLoadError:
        return self._refused(
            location, "which is not a file inside its folder", "save the model again with its weights beside it"
        )

    def _refused(self, location: str, fault: str, advice: str) -> ModelLoadError:
        return ModelLoadError(f"{self._path.name} keeps weights in {location[:200]!r}, {fault}; {advice}")


def _is_plain(location: str) -> bool:
    """Return whether a location is a relative path that only goes down.

    A NUL would hide what comes after it. ``*/_ORT_MEM_ADDR_/*`` is ONNX Runtime's sign for "the offset is an address in
    memory".
    """
    parts = re.split(r"[/\\]", location)
    odd = "\0" in location or "_ORT_MEM_ADDR" in location or re.match(r"[A-Za-z]:", location)
    return bool(location) and not odd and parts[0] != "" and ".." not in parts


def _count(text: str) -> int:
    """A number of bytes as external data writes it."""
    if not re.fullmatch(r"[0-9]{1,19}", text):
        raise DamagedFileError("the place of a tensor's weights is no number")
    return int(text)


def _regular_size(path: Path) -> int:
    """Bytes of a regular file: opening a pipe would wait, a device would never end."""
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise OSError(0, "it is no regular file")
    return status.st_size
