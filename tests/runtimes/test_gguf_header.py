"""Read valid GGUF headers, and refuse invalid ones within limits."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import pytest

import gguf_files
from pocketserve.formats import DamagedFileError
from pocketserve.formats.gguf import MAX_REMEMBERED, MAX_TEMPLATE_BYTES, read_gguf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "m.gguf"


def head_bytes(version: int = 3, tensors: int = 1, keys: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys)


def test_a_valid_file_gives_its_facts(path: Path) -> None:
    header = read_gguf(gguf_files.write_tiny(path))
    assert header.architecture == "llama"
    assert header.name == "Tiny random"
    assert header.context == gguf_files.CONTEXT
    assert header.layers == gguf_files.LAYERS
    assert header.vocabulary == len(gguf_files.tiny_tokens())
    assert header.quantisation == "F16"
    assert header.template == gguf_files.TEMPLATE
    assert header.pooling == ""
    weights = gguf_files.tensors().values()
    assert header.parameters == sum(array.size for array in weights)


def test_the_cache_is_counted_per_token_layer_and_type(path: Path) -> None:
    header = read_gguf(gguf_files.write_tiny(path))
    head = gguf_files.WIDTH // gguf_files.HEADS
    per_token = 2 * gguf_files.LAYERS * gguf_files.KV_HEADS * head
    assert header.kv_bytes(100) == 100 * per_token * 2
    assert header.kv_bytes(32, "q8_0") == 32 * per_token * 34 // 32
    assert header.kv_bytes(32, "q4_0") == 32 * per_token * 18 // 32


def test_kv_heads_and_key_lengths_may_differ(path: Path) -> None:
    changes = {
        "llama__attention__head_count_kv": [1, 2],
        "llama__attention__key_length": 24,
        "llama__attention__value_length": 8,
    }
    header = read_gguf(gguf_files.write_tiny(path, **changes))
    assert header.kv_values == 3 * 32


def test_without_kv_heads_there_are_as_many_as_heads(path: Path) -> None:
    changes = {"llama__attention__head_count_kv": None}
    header = read_gguf(gguf_files.write_tiny(path, **changes))
    assert header.kv_values == 2 * gguf_files.LAYERS * gguf_files.WIDTH


def test_an_embedding_model_names_its_pooling(path: Path) -> None:
    header = read_gguf(gguf_files.write_tiny(path, llama__pooling_type=1))
    assert header.pooling == "mean"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a GGUF file"),
        (b"GGUF\3\0\0\0", "not a GGUF file"),
        (b"GGML" + head_bytes()[4:], "not a GGUF file"),
        (head_bytes(version=0), "version 0"),
        (head_bytes(version=99), "version 99"),
        (head_bytes(tensors=2**31), "2147483648 tensors"),
        (head_bytes(keys=2**60), "keys"),
        (head_bytes(keys=1) + struct.pack("<Q", 2**62), "text of"),
        (head_bytes(keys=1) + struct.pack("<Q", 3) + b"a.b", "ends early"),
    ],
)
def test_bad_starts_are_refused(path: Path, data: bytes, reason: str) -> None:
    path.write_bytes(data)
    with pytest.raises(DamagedFileError, match=reason):
        read_gguf(path)


BAD_VALUES = [
    ({"llama__context_length": 0}, "context_length"),
    ({"llama__context_length": 2**32 - 1}, "context_length"),
    ({"llama__context_length": None}, "missing"),
    ({"llama__context_length": -1}, "context_length"),
    ({"llama__context_length": "512"}, "context_length"),
    ({"llama__block_count": 2**31}, "block_count"),
    ({"llama__block_count": 100_000}, "block_count"),
    ({"llama__block_count": 0}, "block_count"),
    ({"llama__embedding_length": 2**31}, "embedding_length"),
    ({"llama__attention__head_count": 0}, "head_count"),
    ({"llama__attention__head_count_kv": 7}, "don't divide"),
    ({"llama__attention__head_count_kv": [1, 2, 2]}, "values for its layers"),
    ({"general__architecture": None}, "architecture"),
    ({"general__type": "adapter"}, "adapter"),
    ({"general__type": "mmproj"}, "projector"),
    ({"general__type": "vocab"}, "'vocab'"),
    ({"split__count": 3}, "part 1 of 3"),
    ({"llama__pooling_type": 4}, "reranker"),
    (
        {"tokenizer__chat_template": "x" * (MAX_TEMPLATE_BYTES + 1)},
        "chat template",
    ),
]


@pytest.mark.parametrize(
    ("changes", "reason"),
    BAD_VALUES,
)
def test_values_out_of_range_are_refused(
    path: Path, changes: dict[str, object], reason: str
) -> None:
    gguf_files.write_tiny(path, **changes)
    with pytest.raises(DamagedFileError, match=reason):
        read_gguf(path)


def test_a_truncated_file_is_refused(path: Path) -> None:
    whole = gguf_files.write_tiny(path).read_bytes()
    for kept in (
        len(whole) // 2,
        len(whole) // 200,
        len(whole) - 1024,
    ):
        path.write_bytes(whole[:kept])
        with pytest.raises(DamagedFileError):
            read_gguf(path)


def test_a_file_without_weights_is_refused(path: Path) -> None:
    path.write_bytes(gguf_files.encode(gguf_files.metadata(), {}))
    with pytest.raises(DamagedFileError, match="no weights"):
        read_gguf(path)


def test_an_oversized_array_is_refused(path: Path) -> None:
    key = struct.pack("<Q", 3) + b"a.b"
    array = struct.pack("<IIQ", 9, 0, 2**62)
    path.write_bytes(head_bytes(keys=1) + key + array)
    with pytest.raises(DamagedFileError, match="elements"):
        read_gguf(path)


def test_nested_arrays_are_refused(path: Path) -> None:
    key = struct.pack("<Q", 3) + b"a.b"
    array = struct.pack("<IIQ", 9, 9, 1)
    path.write_bytes(head_bytes(keys=1) + key + array + bytes(64))
    with pytest.raises(DamagedFileError, match="array of the type 9"):
        read_gguf(path)


def test_mutated_headers_give_facts_or_a_reason(path: Path) -> None:
    whole = bytearray(gguf_files.write_tiny(path).read_bytes())
    choose = random.Random(0)
    for _ in range(200):
        data = bytearray(whole)
        for _ in range(choose.randint(1, 10)):
            data[choose.randrange(2000)] = choose.randrange(256)
        path.write_bytes(data)
        try:
            header = read_gguf(path)
        except DamagedFileError:
            continue
        assert header.kv_bytes(4096) >= 0


def test_parts_count_as_one_model(tmp_path: Path) -> None:
    whole = read_gguf(gguf_files.write_tiny(tmp_path / "whole.gguf"))
    parts = gguf_files.write_parts(tmp_path, "m", 3)
    header = read_gguf(parts[0])
    assert header.parameters == whole.parameters
    assert header.file_bytes == sum(path.stat().st_size for path in parts)
    assert header.template == whole.template


def test_a_later_part_alone_is_refused(tmp_path: Path) -> None:
    parts = gguf_files.write_parts(tmp_path, "m", 3)
    with pytest.raises(DamagedFileError, match=r"part 2 of 3 .* add the first part"):
        read_gguf(parts[1])


def remove_last(parts: list[Path]) -> None:
    parts[2].unlink()


def rename_first(parts: list[Path]) -> None:
    parts[0].rename(parts[0].with_name("m.gguf"))
    parts[0] = parts[0].with_name("m.gguf")


def swap_later(parts: list[Path]) -> None:
    content = parts[1].read_bytes()
    parts[1].write_bytes(parts[2].read_bytes())
    parts[2].write_bytes(content)


def cut_last(parts: list[Path]) -> None:
    parts[2].write_bytes(parts[2].read_bytes()[:-32])


def take_another(parts: list[Path]) -> None:
    gguf_files.write_tiny(parts[1])


def empty_one(parts: list[Path]) -> None:
    split = {"split.no": 1, "split.count": 3}
    parts[1].write_bytes(gguf_files.encode(split, {}))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (remove_last, "m-00003-of-00003.gguf is missing"),
        (rename_first, "name must end in -00001-of-00003.gguf"),
        (swap_later, "is part 3 of 3, and not 2 of 3"),
        (cut_last, "m-00003-of-00003.gguf: .* copy or download it again"),
        (take_another, "is part 1 of 1, and not 2 of 3"),
        (empty_one, "its parts have .* tensors, and not"),
    ],
)
def test_faults_of_parts_are_named(tmp_path: Path, damage: Any, reason: str) -> None:
    parts = gguf_files.write_parts(tmp_path, "m", 3)
    damage(parts)
    with pytest.raises(DamagedFileError, match=reason):
        read_gguf(parts[0])


def test_a_changed_part_is_read_again(tmp_path: Path) -> None:
    parts = gguf_files.write_parts(tmp_path, "m", 2)
    read_gguf(parts[0])
    parts[1].write_bytes(b"GGUF")
    with pytest.raises(DamagedFileError, match="m-00002-of-00002"):
        read_gguf(parts[0])


def test_a_model_of_many_parts_is_read_once(tmp_path: Path) -> None:
    parts = gguf_files.write_parts(tmp_path, "m", MAX_REMEMBERED + 8)
    assert read_gguf(parts[0]) is read_gguf(parts[0])
