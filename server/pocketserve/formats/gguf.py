"""Read the header of a GGUF file (a language model for llama.cpp) within limits.

The layout is that of ggml's ``docs/gguf.md``: little-endian, keys with values, then descriptions of the tensors.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from pocketserve.formats import DamagedFileError
from pocketserve.formats.gguf_parts import MAX_PARTS, later_parts

MAGIC: Final = b"GGUF"
VERSIONS: Final = (2, 3)
_START_BYTES: Final = 24
MAX_KEYS: Final = 4096
MAX_TENSORS: Final = 65_536
MAX_HEADER_BYTES: Final = 64 * 2**20
MAX_KEY_BYTES: Final = 65_535
MAX_ELEMENTS: Final = 1 << 22
"""Elements of all arrays together; the largest vocabularies have 262,144 tokens."""

MAX_REMEMBERED: Final = 32
"""Headers that are kept; each has up to 64 KiB."""

MAX_LAYERS: Final = 512
MAX_CONTEXT: Final = 1 << 24
MAX_WIDTH: Final = 1 << 18
MAX_HEADS: Final = 1 << 14
MAX_TEMPLATE_BYTES: Final = 64 * 1024
TOOLS_TEMPLATE: Final = "tokenizer.chat_template.tool_use"
"""The key of the template that engines prefer for requests with tools."""

_TOOLS: Final = re.compile(r"\btools\b")
MAX_DIMENSIONS: Final = 4
MAX_TEXT: Final = 200
"""Characters of a name or licence that are kept."""

KV_TYPES: Final[Mapping[str, tuple[int, int]]] = {
    "f16": (1, 2),
    "q8_0": (32, 34),
    "q4_0": (32, 18),
}
"""Types of the context's cache: the values of a block, and its bytes."""

_NUMBERS: Final[Mapping[int, str]] = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_REAL_LAYOUTS: Final = ("<f", "<d")
_STRING, _ARRAY = 8, 9
_SHORT_ARRAY: Final = 1024
"""Elements of an array of numbers that are kept; of longer ones only the length counts."""

_BLOCKS: Final[Mapping[int, tuple[int, int]]] = {
    0: (1, 4),
    1: (1, 2),
    2: (32, 18),
    3: (32, 20),
    6: (32, 22),
    7: (32, 24),
    8: (32, 34),
    10: (256, 84),
    11: (256, 110),
    12: (256, 144),
    13: (256, 176),
    14: (256, 210),
    15: (256, 292),
    16: (256, 66),
    17: (256, 74),
    18: (256, 98),
    19: (256, 50),
    20: (32, 18),
    21: (256, 110),
    22: (256, 82),
    23: (256, 136),
    24: (1, 1),
    25: (1, 2),
    26: (1, 4),
    27: (1, 8),
    28: (1, 8),
    29: (256, 56),
    30: (1, 2),
    34: (256, 54),
    35: (256, 66),
    39: (32, 17),
    40: (64, 36),
    41: (128, 18),
}
"""Values and bytes of a block, by the tensor type's number in ggml.h."""

_FILE_TYPES: Final[Mapping[int, str]] = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    11: "Q3_K_S",
    12: "Q3_K_M",
    13: "Q3_K_L",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    32: "BF16",
}
"""Names of quantisations, by ``general.file_type``."""

RANK: Final = "rank"
_POOLING: Final = ("none", "mean", "cls", "last", RANK)


@dataclass(frozen=True)
class GgufHeader:
    """The facts of a language model's file.

    Attributes:
        context: tokens that the model was made for.
        kv_values: values of the cache for one token, over all layers.
        head_sizes: values of a head's key, and of its value.
        quantisation: such as ``Q4_K_M``; empty where the file doesn't say.
        template: the chat template, empty where there is none.
        knows_tools: whether a template of the file writes a request's tools.
        pooling: of an embedding model, such as ``mean``; empty for others.
        parameters: number of weights.
    """

    architecture: str
    name: str
    licence: str
    context: int
    layers: int
    width: int
    vocabulary: int
    kv_values: int
    head_sizes: tuple[int, int]
    quantisation: str
    template: str
    knows_tools: bool
    pooling: str
    parameters: int
    file_bytes: int

    def can_store(self, kind: str) -> bool:
        """Return whether the cache can have a type: heads are stored in whole blocks."""
        block = KV_TYPES[kind][0]
        return all(size % block == 0 for size in self.head_sizes)

    def kv_bytes(self, context: int, kind: str = "f16") -> int:
        """Return the bytes of the cache for so many tokens."""
        values, size = KV_TYPES[kind]
        return context * self.kv_values * size // values


@dataclass(frozen=True)
class _Array:
    """An array: its length, and its elements if they are few numbers."""

    length: int
    numbers: tuple[int, ...] = ()


class _GgufReader:
    """Reads values one after the other, within the file and the limits.

    The file is read and not mapped: its owner may cut it meanwhile.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._end = min(size, MAX_HEADER_BYTES)
        self._elements = 0
        self.position = 0

    def take(self, count: int) -> bytes:
        """Return the next bytes."""
        data = b""
        if count <= self._end - self.position:
            data = self._file.read(count)
        if len(data) != count:
            raise DamagedFileError("the header ends early; copy the file again")
        self.position += count
        return data

    def number(self, layout: str) -> Any:
        """Return a number of this ``struct`` layout."""
        return struct.unpack(layout, self.take(struct.calcsize(layout)))[0]

    def text_bytes(self, limit: int) -> bytes:
        """Return a text's bytes."""
        length = self.number("<Q")
        if length > limit:
            raise DamagedFileError(f"the header has a text of {length} bytes")
        return self.take(length)

    def value(self, kind: int) -> Any:
        """Return a value of a type; of an array as much as is needed."""
        if kind in _NUMBERS:
            return self.number(_NUMBERS[kind])
        if kind == _STRING:
            return self.text_bytes(MAX_HEADER_BYTES)
        if kind == _ARRAY:
            return self._array()
        raise DamagedFileError(f"the header has a value of the unknown type {kind}")

    def _array(self) -> _Array:
        kind = self.number("<I")
        length = self.number("<Q")
        self._elements += length
        if self._elements > MAX_ELEMENTS:
            raise DamagedFileError(f"the header has an array of {length} elements")
        if kind == _STRING:
            for _ in range(length):
                self.take(self.number("<Q"))
            return _Array(length)
        if kind not in _NUMBERS:
            raise DamagedFileError(f"the header has an array of the type {kind}")
        return self._number_array(_NUMBERS[kind], length)

    def _number_array(self, layout: str, length: int) -> _Array:
        if length > _SHORT_ARRAY or layout in _REAL_LAYOUTS:
            self.take(length * struct.calcsize(layout))
            return _Array(length)
        numbers = [int(self.number(layout)) for _ in range(length)]
        return _Array(length, tuple(numbers))


@dataclass(frozen=True)
class _GgufFile:
    """A file of a model.

    Attributes:
        number: of a part, from 0.
        count: of all parts; 1 for a whole model.
        header: None for a later part, which has only tensors.
        all_tensors: those of all parts; None if the file doesn't say.
    """

    number: int
    count: int
    header: GgufHeader | None
    parameters: int
    tensors: int
    all_tensors: int | None
    size: int


_Identity = tuple[int, ...]
"""A file's device, number, size and times."""

_files: dict[_Identity, _GgufFile] = {}
"""Whole models and parts that were asked for, but not the parts beside them."""

_joined: dict[tuple[_Identity, ...], GgufHeader] = {}
"""Headers of models in several parts, by the identities of all parts."""


def read_gguf(path: Path) -> GgufHeader:
    """Read and check the header of a model. A file that didn't change is read once.

    Args:
        path: the first part, if the model has several.

    Raises:
        DamagedFileError: it is damaged, or no model that can be served.
    """
    first = _read_once(path)
    if first.header is None:
        raise DamagedFileError(
            f"it is part {first.number + 1} of {first.count} of a model, which can't be"
            " served alone; add the first part, with all others beside it"
        )
    if first.count == 1:
        return first.header
    return _join_parts(path, first, first.header)


def count_parts(path: Path) -> int:
    """Return the number of a model's parts, of which a file is one.

    Raises:
        DamagedFileError: it is damaged, or no model that can be served.
    """
    return _read_once(path).count


def _join_parts(path: Path, first: _GgufFile, header: GgufHeader) -> GgufHeader:
    """Return the header of a model in parts, which are read once if they are whole."""
    names = later_parts(path.name)
    if len(names) != first.count - 1:
        raise DamagedFileError(
            f"it is part 1 of {first.count} of a model; its name must end in"
            f" -00001-of-{first.count:05}.gguf, and the other parts must be beside it"
        )
    key = _part_identities(path, names, first.count)
    if key not in _joined:
        joined = _add_parts(path, names, first, header)
        if len(_joined) >= MAX_REMEMBERED:
            _joined.clear()
        _joined[key] = joined
    return _joined[key]


def _part_identities(path: Path, names: list[str], count: int) -> tuple[_Identity, ...]:
    """Return the identities of all parts, which must be beside the first."""
    identities = [_identity(path)]
    for name in names:
        beside = path.with_name(name)
        if not beside.is_file():
            raise DamagedFileError(
                f"it is part 1 of {count} of a model, but {name} is missing;"
                " put it beside the first part"
            )
        identities.append(_identity(beside))
    return tuple(identities)


def _add_parts(
    path: Path, names: list[str], first: _GgufFile, header: GgufHeader
) -> GgufHeader:
    """Return the header of a model with later parts, which are checked."""
    parts = [first]
    for number, name in enumerate(names, 1):
        parts.append(_read_part(path.with_name(name), number, first.count))
    tensors = sum(part.tensors for part in parts)
    if first.all_tensors not in (None, tensors):
        raise DamagedFileError(
            f"its parts have {tensors} tensors, and not {first.all_tensors}; copy all"
            " parts of one model again"
        )
    parameters = sum(part.parameters for part in parts)
    size = sum(part.size for part in parts)
    return replace(header, parameters=parameters, file_bytes=size)


def _read_part(path: Path, number: int, count: int) -> _GgufFile:
    """Read a later part, which must have a number and count of parts."""
    try:
        part = _read_file(path)
    except DamagedFileError as error:
        raise DamagedFileError(f"{path.name}: {error}") from error
    if (part.number, part.count) != (number, count):
        raise DamagedFileError(
            f"{path.name} is part {part.number + 1} of {part.count}, and not"
            f" {number + 1} of {count}; copy it again"
        )
    return part


def _read_once(path: Path) -> _GgufFile:
    identity = _identity(path)
    file_facts = _files.get(identity)
    if file_facts is None:
        file_facts = _read_file(path)
        if len(_files) >= MAX_REMEMBERED:
            _files.clear()
        _files[identity] = file_facts
    return file_facts


def _read_file(path: Path) -> _GgufFile:
    try:
        with path.open("rb") as file:
            return _read(file, os.fstat(file.fileno()).st_size)
    except OSError as error:
        raise _unreadable(error) from error


def _identity(path: Path) -> _Identity:
    try:
        stat = path.stat()
    except OSError as error:
        raise _unreadable(error) from error
    times = (stat.st_mtime_ns, stat.st_ctime_ns)
    return (stat.st_dev, stat.st_ino, stat.st_size, *times)


def _unreadable(error: OSError) -> DamagedFileError:
    return DamagedFileError(f"it cannot be read: {error.strerror}")


def _read(file: BinaryIO, size: int) -> _GgufFile:
    """Read a file without its weights."""
    reader = _GgufReader(file, size)
    _check_start(reader, size)
    tensors = reader.number("<Q")
    keys = reader.number("<Q")
    if tensors > MAX_TENSORS or keys > MAX_KEYS:
        raise DamagedFileError(f"it has {tensors} tensors and {keys} keys")
    values = _read_values(reader, keys)
    _refuse_other_kinds(values)
    count = _integer(values, "split.count", 0, MAX_PARTS, default=1) or 1
    number = _integer(values, "split.no", 0, count - 1, default=0)
    if not tensors and count == 1:
        raise DamagedFileError("it has no weights")
    parameters = _read_tensors(reader, tensors, values, size)
    header = None
    if number == 0:
        header = _header(values, parameters, size)
    all_tensors = values.get("split.tensors.count")
    if not isinstance(all_tensors, int):
        all_tensors = None
    return _GgufFile(
        number,
        count,
        header,
        parameters,
        tensors,
        all_tensors,
        size,
    )


def _check_start(reader: _GgufReader, size: int) -> None:
    if size < _START_BYTES or reader.take(len(MAGIC)) != MAGIC:
        raise DamagedFileError(
            "it is not a GGUF file, or it is truncated; copy it again"
        )
    version = reader.number("<I")
    if version not in VERSIONS:
        raise DamagedFileError(
            f"it has version {version} of GGUF; version 3 can be read"
        )


def _read_values(reader: _GgufReader, count: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for _ in range(count):
        key = reader.text_bytes(MAX_KEY_BYTES).decode("utf-8", errors="replace")
        kind = reader.number("<I")
        values[key] = reader.value(kind)
    return values


def _refuse_other_kinds(values: Mapping[str, Any]) -> None:
    kind = _text(values, "general.type") or "model"
    if kind == "adapter":
        raise DamagedFileError(
            "it is an adapter for another model; merge it into that model first"
        )
    if kind == "mmproj":
        raise DamagedFileError(
            "it is the projector of a model for pictures, which is not supported;"
            " add the language model itself"
        )
    if kind != "model":
        raise DamagedFileError(f"it is of the kind {kind!r:.80}, not a model")


def _read_tensors(
    reader: _GgufReader, count: int, values: Mapping[str, Any], file_bytes: int
) -> int:
    """Check that all tensors lie in the file; return the number of weights."""
    alignment = _integer(values, "general.alignment", 1, 1 << 20, default=32)
    parameters = 0
    end = 0
    for _ in range(count):
        tensor = _read_tensor(reader)
        parameters += tensor.elements
        end = max(end, tensor.end)
    start = -(-reader.position // alignment) * alignment
    if start + end > file_bytes:
        raise DamagedFileError(
            f"it has {file_bytes} bytes, but its tensors need {start + end};"
            " copy or download it again"
        )
    return parameters


@dataclass(frozen=True)
class _TensorPlace:
    """A tensor's size, and its end behind the header."""

    elements: int
    end: int


def _read_tensor(reader: _GgufReader) -> _TensorPlace:
    reader.text_bytes(MAX_KEY_BYTES)
    elements = _elements(reader)
    kind = reader.number("<I")
    offset = reader.number("<Q")
    values_per_block, block_bytes = _BLOCKS.get(kind, (1, 0))
    size = -(-elements // values_per_block) * block_bytes
    return _TensorPlace(elements, offset + size)


def _elements(reader: _GgufReader) -> int:
    """Return the number of a tensor's values."""
    dimensions = reader.number("<I")
    if dimensions > MAX_DIMENSIONS:
        raise DamagedFileError(f"it has a tensor with {dimensions} dimensions")
    elements = 1
    for _ in range(dimensions):
        elements *= reader.number("<Q")
    return elements


def _header(values: Mapping[str, Any], parameters: int, file_bytes: int) -> GgufHeader:
    architecture = _text(values, "general.architecture")
    if not architecture:
        raise DamagedFileError("it doesn't name its architecture")
    layers = _integer(values, f"{architecture}.block_count", 1, MAX_LAYERS)
    width = _integer(values, f"{architecture}.embedding_length", 1, MAX_WIDTH)
    context = _integer(values, f"{architecture}.context_length", 1, MAX_CONTEXT)
    attention = _read_attention(values, architecture, layers, width)
    template = _template(values)
    return GgufHeader(
        architecture=architecture,
        name=_text(values, "general.name"),
        licence=_text(values, "general.license"),
        context=context,
        layers=layers,
        width=width,
        vocabulary=_vocabulary(values),
        kv_values=attention.kv_values,
        head_sizes=attention.head_sizes,
        quantisation=_quantisation(values),
        template=template,
        knows_tools=TOOLS_TEMPLATE in values or _TOOLS.search(template) is not None,
        pooling=_pooling(values, architecture),
        parameters=parameters,
        file_bytes=file_bytes,
    )


def _vocabulary(values: Mapping[str, Any]) -> int:
    tokens = values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, _Array):
        return tokens.length
    return 0


def _quantisation(values: Mapping[str, Any]) -> str:
    number = values.get("general.file_type")
    if not isinstance(number, int):
        return ""
    return _FILE_TYPES.get(number, "")


def _pooling(values: Mapping[str, Any], architecture: str) -> str:
    number = values.get(f"{architecture}.pooling_type")
    if not isinstance(number, int) or not 0 < number < len(_POOLING):
        return ""
    pooling = _POOLING[number]
    if pooling == RANK:
        raise DamagedFileError(
            "it is a reranker, which is not supported; add an embedding model instead"
        )
    return pooling


@dataclass(frozen=True)
class _Attention:
    """As in :class:`GgufHeader`."""

    kv_values: int
    head_sizes: tuple[int, int]


def _read_attention(
    values: Mapping[str, Any], architecture: str, layers: int, width: int
) -> _Attention:
    attention = f"{architecture}.attention"
    heads = _per_layer(values, f"{attention}.head_count", layers)
    kv_heads = heads
    if f"{attention}.head_count_kv" in values:
        kv_heads = _per_layer(values, f"{attention}.head_count_kv", layers)
    _check_heads(heads, kv_heads)
    default = width // max(1, *heads)
    key = _integer(values, f"{attention}.key_length", 0, MAX_WIDTH, default)
    value = _integer(values, f"{attention}.value_length", 0, MAX_WIDTH, default)
    return _Attention(sum(kv_heads) * (key + value), (key, value))


def _check_heads(heads: list[int], kv_heads: list[int]) -> None:
    for head, kv_head in zip(heads, kv_heads, strict=True):
        if kv_head and head % kv_head:
            raise DamagedFileError(
                f"it has {head} attention heads, which {kv_head} KV heads don't divide"
            )


def _per_layer(values: Mapping[str, Any], key: str, layers: int) -> list[int]:
    """Return a count of heads for each layer."""
    value = values.get(key)
    if isinstance(value, _Array):
        if len(value.numbers) != layers:
            raise DamagedFileError(f"{key} has {value.length} values for its layers")
        numbers = list(value.numbers)
    else:
        numbers = [_integer(values, key, 1, MAX_HEADS)] * layers
    if not all(0 <= number <= MAX_HEADS for number in numbers):
        raise DamagedFileError(f"{key} must be from 0 to {MAX_HEADS}")
    return numbers


def _template(values: Mapping[str, Any]) -> str:
    template = values.get("tokenizer.chat_template")
    if not isinstance(template, bytes):
        return ""
    if len(template) > MAX_TEMPLATE_BYTES:
        raise DamagedFileError(
            f"its chat template has {len(template)} bytes, the limit is"
            f" {MAX_TEMPLATE_BYTES}"
        )
    return template.decode("utf-8", errors="replace")


def _text(values: Mapping[str, Any], key: str) -> str:
    value = values.get(key)
    if not isinstance(value, bytes):
        return ""
    return value.decode("utf-8", errors="replace")[:MAX_TEXT]


def _integer(
    values: Mapping[str, Any], key: str, low: int, high: int, default: int | None = None
) -> int:
    """Return an integer within limits."""
    value = values.get(key, default)
    if type(value) is not int or not low <= value <= high:
        text = "missing"
        if value is not None:
            text = f"{value!r:.40}"
        raise DamagedFileError(f"{key} must be from {low} to {high}; it is {text}")
    return value
