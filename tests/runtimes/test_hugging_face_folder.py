"""Read Hugging Face folders without a framework: their facts, files and faults."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from pocketserve.formats import DamagedFileError
from pocketserve.repository.scan import scan
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.hugging_face.folder import other_files, read_folder
from pocketserve.runtimes.hugging_face.pieces import TextPieces

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "max_position_embeddings": 512,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "vocab_size": 32,
}
LAYER_VALUES = 2 * 2 * 2 * 16
"""Values of the cache for a token: keys and values, layers, KV heads, head size."""


def write(folder: Path, name: str = "model.safetensors", **changes: Any) -> Path:
    """Write a folder with one tensor of 6 half floats; return ``config.json``."""
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text("{}")
    entry = {
        "dtype": "BF16",
        "shape": [2, 3],
        "data_offsets": [0, 12],
    }
    header = json.dumps({name: entry}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(12)
    (folder / name).write_bytes(content)
    config = folder / "config.json"
    values = {**CONFIG, **changes}
    present = {name: value for name, value in values.items() if value is not None}
    config.write_text(json.dumps(present))
    return config


def test_the_facts_come_from_the_configuration_and_the_weights(tmp_path: Path) -> None:
    header = read_folder(write(tmp_path / "m"))
    assert (header.architecture, header.context) == ("LlamaForCausalLM", 512)
    assert (header.parameters, header.file_bytes) == (6, 12)
    assert header.dtype == "bfloat16"
    assert header.kv_bytes(10) == 10 * LAYER_VALUES * 2


def test_a_folder_is_a_model_in_one_version(tmp_path: Path) -> None:
    write(tmp_path / "m")
    (tmp_path / "m" / "own.py").write_text("")
    version = scan(tmp_path)["m"].versions["transformers"]
    assert version.problem is None
    assert set(other_files(version.path)) == {"tokenizer.json", "model.safetensors"}


@pytest.mark.parametrize(
    "architectures",
    [
        ["BertForTokenClassification"],
        [],
        None,
        "LlamaForCausalLM",
        [3],
    ],
)
def test_other_architectures_are_no_language_models(
    tmp_path: Path, architectures: Any
) -> None:
    write(tmp_path / "m", architectures=architectures)
    assert not scan(tmp_path)["m"].versions


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"hidden_size": 0}, "hidden_size must be from 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers must be from 1"),
        ({"num_hidden_layers": None}, "has no num_hidden_layers"),
        ({"max_position_embeddings": "512"}, "max_position_embeddings must be"),
        ({"num_key_value_heads": 3}, "don't divide"),
        ({"vocab_size": True}, "vocab_size must be"),
    ],
)
def test_impossible_numbers_are_refused(
    tmp_path: Path, changes: Any, text: str
) -> None:
    with pytest.raises(DamagedFileError, match=text):
        read_folder(write(tmp_path / "m", **changes))


def test_quantised_weights_are_refused_with_a_way_out(tmp_path: Path) -> None:
    config = write(tmp_path / "m", quantization_config={"quant_method": "gptq"})
    with pytest.raises(ModelLoadError, match=r"\(gptq\).* add the model's GGUF file"):
        read_folder(config)


def test_pickled_weights_are_refused_with_a_way_out(tmp_path: Path) -> None:
    config = write(tmp_path / "m")
    config.with_name("model.safetensors").rename(tmp_path / "m" / "pytorch_model.bin")
    assert "transformers" in scan(tmp_path)["m"].versions
    with pytest.raises(ModelLoadError, match=r"pickles .*save_pretrained"):
        other_files(config)


@pytest.mark.parametrize(
    ("index", "text"),
    [
        ({}, "has no weight_map"),
        ({"weight_map": {"a": "gone.safetensors"}}, "has no gone.safetensors"),
        ({"weight_map": {"a": "../x.safetensors"}}, "which is not a weights file"),
        ({"weight_map": {"a": "x.bin"}}, "which is not a weights file"),
    ],
)
def test_faults_of_an_index_are_explained(
    tmp_path: Path, index: Any, text: str
) -> None:
    config = write(tmp_path / "m")
    config.with_name("model.safetensors").unlink()
    config.with_name("model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelLoadError, match=text):
        other_files(config)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    config = write(tmp_path / "m")
    config.with_name("tokenizer.json").unlink()
    with pytest.raises(ModelLoadError, match="has no tokenizer"):
        other_files(config)


def test_cut_weights_are_refused(tmp_path: Path) -> None:
    config = write(tmp_path / "m")
    weights = config.with_name("model.safetensors")
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelLoadError, match="truncated"):
        read_folder(config)


def pieces(texts: list[bytes], *stops: str) -> list[str]:
    """Return the pieces of an answer whose tokens have these bytes."""

    def decode(tokens: Any) -> str:
        joined = b"".join(texts[token] for token in tokens)
        return joined.decode("utf-8", "replace")

    answer = TextPieces(decode, stops)
    result = []
    for token in range(len(texts)):
        result.append(answer.add(token))
        if answer.stopped:
            break
    return [*result, answer.finish()]


def test_pieces_are_whole_characters() -> None:
    assert pieces([b"a", b"\xe2", b"\x82", b"\xac", b"b"]) == [
        "a",
        "",
        "",
        "€",
        "b",
        "",
    ]


def test_an_unfinished_character_ends_as_a_replacement() -> None:
    assert pieces([b"a", b"\xe2"]) == ["a", "", "\ufffd"]


def test_a_stop_text_across_tokens_is_left_out() -> None:
    assert pieces([b"one", b"<e", b"nd>", b"two"], "<end>") == ["one", "", "", ""]


def test_the_start_of_a_stop_text_is_sent_once_it_is_none() -> None:
    assert pieces([b"one<", b"e", b"x"], "<end>") == ["one", "", "<ex", ""]
    assert pieces([b"one<", b"e"], "<end>") == ["one", "", "<e"]
