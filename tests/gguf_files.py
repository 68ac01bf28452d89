"""Write small GGUF files: models with random weights, and damaged ones."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TOOLS_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n# Tools\n<tools>{% for tool in tools %}\n"
    "{{ tool | tojson }}{% endfor %}\n</tools>\nFor each call, write <tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' and m.tool_calls %}"
    "<|im_start|>assistant{% for call in m.tool_calls %}\n<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": '
    "{{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}"
    "\n</tool_response><|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Writes tools and calls as the templates of Qwen and Hermes do."""

END = 2
"""The token that ends an answer."""

WIDTH = 64
LAYERS = 2
HEADS = 4
KV_HEADS = 2
FORWARD = 96
CONTEXT = 512


def metadata(**changes: Any) -> dict[str, Any]:
    """Return the keys of a tiny model; a change to None removes a key.

    Names of arguments have ``__`` for a dot.
    """
    tokens = tiny_tokens()
    types = [3] * 3 + [1] * (len(tokens) - 3)
    values: dict[str, Any] = {
        "general.architecture": "llama",
        "general.name": "Tiny random",
        "general.license": "apache-2.0",
        "general.file_type": 1,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.block_count": LAYERS,
        "llama.feed_forward_length": FORWARD,
        "llama.attention.head_count": HEADS,
        "llama.attention.head_count_kv": KV_HEADS,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": WIDTH // HEADS,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.merges": ["t h"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": TEMPLATE,
    }
    for name, value in changes.items():
        key = name.replace("__", ".")
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    return values


def byte_letters() -> list[str]:
    """Return the letter that GPT-2 writes for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + len(letters) - len(printable))
    return [letters[byte] for byte in range(256)]


def tiny_tokens() -> list[str]:
    """Return a vocabulary of all bytes, as GPT-2 writes them."""
    return ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *byte_letters(), "th"]


def random_matrix(random: Any, rows: int, columns: int) -> Any:
    """Return small random numbers."""
    return (random.standard_normal((rows, columns)) * 0.2).astype(np.float16)


def keeping_first(random: Any, rows: int, columns: int) -> Any:
    """Return a random matrix that adds nothing to the first component."""
    values = random_matrix(random, rows, columns)
    values[0] = 0.0
    return values


def layer_tensors(random: Any) -> dict[str, Any]:
    """Return the weights of one layer."""
    ones = np.ones(WIDTH, np.float32)
    kv_width = WIDTH // HEADS * KV_HEADS
    return {
        "attn_norm.weight": ones,
        "ffn_norm.weight": ones,
        "attn_q.weight": random_matrix(random, WIDTH, WIDTH),
        "attn_k.weight": random_matrix(random, kv_width, WIDTH),
        "attn_v.weight": random_matrix(random, kv_width, WIDTH),
        "attn_output.weight": keeping_first(random, WIDTH, WIDTH),
        "ffn_gate.weight": random_matrix(random, FORWARD, WIDTH),
        "ffn_up.weight": random_matrix(random, FORWARD, WIDTH),
        "ffn_down.weight": keeping_first(random, WIDTH, FORWARD),
    }


def tensors(seed: int = 0) -> dict[str, Any]:
    """Return the weights of a tiny Llama, random.

    It writes ASCII letters and never ends an answer, except where a grammar demands it:
    the first component is constant, and lowers the scores of all other tokens.
    """
    random = np.random.default_rng(seed)
    tokens = tiny_tokens()
    embeddings = random_matrix(random, len(tokens), WIDTH)
    embeddings[:, 0] = 4.0
    scores = random_matrix(random, len(tokens), WIDTH)
    scores[:, 0] = 0.0
    for number, token in enumerate(tokens):
        if len(token) != 1 or not token.isascii():
            scores[number] = 0.0
            scores[number, 0] = -100.0
    weights: dict[str, Any] = {
        "token_embd.weight": embeddings,
        "output.weight": scores,
        "output_norm.weight": np.ones(WIDTH, np.float32),
    }
    for layer in range(LAYERS):
        for name, values in layer_tensors(random).items():
            weights[f"blk.{layer}.{name}"] = values
    return weights


def write_tiny(path: Path, seed: int = 0, **changes: Any) -> Path:
    """Write a complete tiny model that an engine can run."""
    path.write_bytes(encode(metadata(**changes), tensors(seed)))
    return path


def write_parts(folder: Path, stem: str, count: int) -> list[Path]:
    """Write the tiny model in parts, as llama-gguf-split does; return the files."""
    weights = list(tensors().items())
    size = -(-len(weights) // count)
    paths = []
    for number in range(count):
        split = {
            "split.no": np.uint16(number),
            "split.count": np.uint16(count),
            "split.tensors.count": np.int32(len(weights)),
        }
        values = {**metadata(), **split} if number == 0 else split
        path = folder / f"{stem}-{number + 1:05}-of-{count:05}.gguf"
        part = dict(weights[number * size : (number + 1) * size])
        path.write_bytes(encode(values, part))
        paths.append(path)
    return paths


def write_script(path: Path, pieces: Sequence[bytes], **changes: Any) -> Path:
    """Write a model that answers with these pieces, each of them a token, and ends.

    Each token but the last raises the score of the next one alone.
    """
    letters = byte_letters()
    tokens = tiny_tokens()
    chain = [tokens.index(letters[ord("\n")])]  # the last token of the template
    for piece in pieces:
        token = "".join(letters[byte] for byte in piece)
        if token not in tokens:
            tokens.append(token)
        chain.append(tokens.index(token))
    chain.append(END)
    weights = tensors()
    embeddings = np.full((len(tokens), WIDTH), 0.01, np.float16)
    scores = np.zeros((len(tokens), WIDTH), np.float16)
    for place, (token, following) in enumerate(itertools.pairwise(chain)):
        embeddings[token, place] = 1.0
        scores[following, place] = 20.0
    for name in weights:
        if name.endswith(("attn_output.weight", "ffn_down.weight")):
            weights[name] = np.zeros_like(weights[name])
    weights["token_embd.weight"] = embeddings
    weights["output.weight"] = scores
    values = metadata(**changes)
    values["tokenizer.ggml.tokens"] = tokens
    values["tokenizer.ggml.token_type"] = [3] * 3 + [1] * (len(tokens) - 3)
    values["llama.vocab_size"] = len(tokens)
    path.write_bytes(encode(values, weights))
    return path


def encode(values: Mapping[str, Any], weights: Mapping[str, Any]) -> bytes:
    """Return the bytes of a GGUF file of version 3."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(weights), len(values))]
    for key, value in values.items():
        head += [_text(key), _value(value)]
    data = b""
    for name, array in weights.items():
        shape = array.shape[::-1]
        head.append(_text(name) + struct.pack("<I", len(shape)))
        head.append(struct.pack(f"<{len(shape)}Q", *shape))
        kind = 0
        if array.dtype == np.float16:
            kind = 1
        head.append(struct.pack("<IQ", kind, len(data)))
        data += _padded(array.tobytes())
    return _padded(b"".join(head)) + data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 32)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<I?", 7, value)
    if isinstance(value, np.uint16):
        return struct.pack("<IH", 2, int(value))
    if isinstance(value, np.int32):
        return struct.pack("<Ii", 5, int(value))
    if isinstance(value, int):
        if value < 0:
            return struct.pack("<Iq", 11, value)
        if value >= 2**32:
            return struct.pack("<IQ", 10, value)
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _text(value)
    items = list(value)
    if items and isinstance(items[0], str):
        return struct.pack("<IIQ", 9, 8, len(items)) + b"".join(map(_text, items))
    return struct.pack(f"<IIQ{len(items)}i", 9, 5, len(items), *items)
