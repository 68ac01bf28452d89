"""Write Hugging Face folders of language models, from the toy chat model's weights."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from places import ROOT

CHAT_FILE = ROOT / "tests" / "models" / "chat" / "chat.gguf"
HEADS, KV_HEADS, LAYERS = 4, 2, 4
WIDTH, CONTEXT, VOCABULARY = 128, 512, 512
PARTS = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": WIDTH,
    "intermediate_size": 384,
    "max_position_embeddings": CONTEXT,
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "vocab_size": VOCABULARY,
}


def write_folder(folder: Path, shards: int = 1, **changes: Any) -> Path:
    """Write the toy chat model as a folder; return its ``config.json``.

    Args:
        shards: number of files of weights; several have an index.
        changes: members of ``config.json``.
    """
    import gguf  # late: these tests are also collected where it is not installed

    folder.mkdir(parents=True)
    reader = gguf.GGUFReader(CHAT_FILE)
    write_weights(folder, _weights(reader), shards)
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(reader)))
    settings = {"eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    template = reader.get_field("tokenizer.chat_template").contents()
    (folder / "chat_template.jinja").write_text(template)
    config = folder / "config.json"
    config.write_text(json.dumps(CONFIG | changes))
    return config


def _weights(reader: Any) -> dict[str, Any]:
    import gguf

    weights = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values = values.astype(np.float32)
        name = tensor.name.removesuffix(".weight")
        if name.endswith("attn_q"):
            values = _in_halves(values, HEADS)
        if name.endswith("attn_k"):
            values = _in_halves(values, KV_HEADS)
        weights[_name_in_folder(name)] = values
    return weights


def _name_in_folder(name: str) -> str:
    if name == "token_embd":
        return "model.embed_tokens.weight"
    if name == "output_norm":
        return "model.norm.weight"
    _, layer, part = name.split(".")
    return f"model.layers.{layer}.{PARTS[part]}.weight"


def _in_halves(values: Any, heads: int) -> Any:
    """Reorder rotary pairs: llama.cpp has them side by side, the folder in halves."""
    rows = values.shape[0] // heads // 2
    pairs = values.reshape(heads, rows, 2, values.shape[1])
    return pairs.swapaxes(1, 2).reshape(values.shape)


def write_weights(folder: Path, weights: dict[str, Any], shards: int) -> None:
    """Write a file of weights, or several with their index."""
    if shards == 1:
        write_safetensors(folder / "model.safetensors", weights)
        return
    places = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        part = {}
        for key in list(weights)[number::shards]:
            part[key] = weights[key]
        write_safetensors(folder / name, part)
        places.update(dict.fromkeys(part, name))
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def write_safetensors(path: Path, weights: Mapping[str, Any]) -> None:
    """Write arrays of 32-bit floats."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in weights.items():
        start = len(data)
        content = np.ascontiguousarray(values).tobytes()
        data += content
        offsets = [start, len(data)]
        shape = list(values.shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def _tokenizer(reader: Any) -> dict[str, Any]:
    tokens = reader.get_field("tokenizer.ggml.tokens").contents()
    merges = reader.get_field("tokenizer.ggml.merges").contents()
    special = []
    for number, token in enumerate(tokens[:3]):
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
        special.append({"id": number, "content": token, "special": True, **flags})
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    digits = {"type": "Digits", "individual_digits": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: number for number, token in enumerate(tokens)},
            "merges": merges,
        },
    }
