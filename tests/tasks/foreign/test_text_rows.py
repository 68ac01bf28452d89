"""Every row of the tables for texts and sounds has the stated effect."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.tasks.base import NO_HINTS, AnswerOptions, ExtendedAnswer
from pocketserve.tasks.foreign import (
    feature_extractor,
    preprocessor_config,
    sentence_files,
    tokenizer_files,
)
from pocketserve.tasks.foreign.config_json import TABLE as CONFIG
from pocketserve.tasks.foreign.keys import Effect, ForeignFile, Key, check_keys
from pocketserve.tasks.foreign.registry import unknown_keys
from pocketserve.tasks.foreign.tables import TABLES
from pocketserve.tasks.model_facts import MetadataError
from pocketserve.tensors import TensorSpec
from sounds import tone, wav
from text_models import VOCABULARY, bert_inputs, task_of
from vision_models import facts

TEXT = "text-classification"
EMBEDDING = "text-embedding"
AUDIO = "audio-classification"
NUMBERS = {word: number for number, word in enumerate(VOCABULARY)}
LONG = "good film " * 400
Files = Mapping[str, Any]


def token(number: int, content: str, **flags: bool) -> dict[str, Any]:
    return {
        "id": number,
        "content": content,
        **flags,
    }


def bert_json(**parts: Any) -> dict[str, Any]:
    """Return a BERT ``tokenizer.json`` with the tests' vocabulary."""
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": {
            **{
                "type": "BertNormalizer",
                "clean_text": True,
                "handle_chinese_chars": True,
            },
            **{"strip_accents": None, "lowercase": True},
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "BertProcessing",
            "cls": ["[CLS]", NUMBERS["[CLS]"]],
            "sep": ["[SEP]", NUMBERS["[SEP]"]],
        },
        "model": {
            **{
                "type": "WordPiece",
                "unk_token": "[UNK]",
                "continuing_subword_prefix": "##",
            },
            **{"max_input_chars_per_word": 100, "vocab": NUMBERS},
        },
        **parts,
    }


BERT = {"architectures": ["BertForSequenceClassification"], "model_type": "bert"}
VOCAB = "\n".join(VOCABULARY) + "\n"


@dataclass(frozen=True)
class Probe:
    """A model, and a change of one file that must change its input or answer.

    Attributes:
        change: keys that replace those in ``files``; None deletes one.
        outputs: shapes by name.
        length: length of the inputs; -1 leaves it open.
    """

    change: Mapping[str, Any]
    body: bytes = b"good film"
    task: str = TEXT
    files: Files = field(default_factory=dict)
    outputs: Mapping[str, tuple[int, ...]] = field(
        default_factory=lambda: {"logits": (1, 2)}
    )
    length: int = -1


def dense_file() -> bytes:
    """Return a safetensors file of a dense layer that doubles two numbers."""
    weight = np.array([[2, 0], [0, 2]], "<f4").tobytes()
    header = json.dumps(
        {"linear.weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}
    ).encode()
    return struct.pack("<Q", len(header)) + header + weight


def modules(*kinds: str) -> str:
    names = [
        ("0", "Transformer"),
        *((f"{number}_{kind}", kind) for number, kind in enumerate(kinds, 1)),
    ]
    listed = [
        {
            "path": path if path != "0" else "",
            "type": f"sentence_transformers.models.{kind}",
        }
        for path, kind in names
    ]
    return json.dumps(listed)


BYTE_LEVEL = {
    **{"version": "1.0", "truncation": None, "padding": None, "added_tokens": []},
    **{"normalizer": None, "post_processor": None, "decoder": None},
    "pre_tokenizer": {
        **{"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True},
        "use_regex": True,
    },
    "model": {
        **{"type": "BPE", "dropout": None, "unk_token": None, "fuse_unk": False},
        **{"continuing_subword_prefix": None, "end_of_word_suffix": None},
        "byte_fallback": False,
        "vocab": {"g": 0, "o": 1, "d": 2, "\u0120": 3},
        "merges": [],
    },
}
TOKENS: Mapping[str, tuple[int, ...]] = {"last_hidden_state": (1, -1, 2)}
POOLED = {
    "vocab.txt": VOCAB,
    "modules.json": modules("Pooling"),
    "1_Pooling/config.json": {"word_embedding_dimension": 2},
}
DENSE = {
    **POOLED,
    "modules.json": modules("Pooling", "Dense"),
    "2_Dense/model.safetensors": dense_file(),
}
DENSE_3 = {
    **POOLED,
    "modules.json": json.dumps(
        [
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            {"path": "3_Dense", "type": "sentence_transformers.models.Dense"},
        ]
    ),
    "3_Dense/model.safetensors": dense_file(),
}
QUERY = b'{"query": "good", "texts": ["bad film", "film"]}'
IDS_AND_ROLES = {"vocab.txt": VOCAB}
ADDED = {"added_tokens": [token(500, "goodfilm", normalized=True)]}
NO_SPECIAL = {
    "type": "TemplateProcessing",
    "single": [{"Sequence": {"id": "A", "type_id": 0}}],
    "special_tokens": {},
}
NO_SPECIAL["pair"] = [
    {"Sequence": {"id": "A", "type_id": 0}},
    {"Sequence": {"id": "B", "type_id": 1}},
]
PAD = "[MASK]"

PROBES: dict[tuple[str, str], Probe] = {
    ("config.json", "architectures"): Probe({"architectures": ["BertModel"]}),
    ("config.json", "id2label"): Probe({"id2label": {"0": "no", "1": "yes"}}),
    ("config.json", "problem_type"): Probe({"problem_type": "regression"}),
    ("config.json", "max_position_embeddings"): Probe(
        {"max_position_embeddings": 64}, LONG.encode()
    ),
    ("config.json", "n_positions"): Probe({"n_positions": 64}, LONG.encode()),
    ("config.json", "pad_token_id"): Probe(
        {"pad_token_id": 3},
        LONG.encode(),
        files={"config.json": {"model_type": "roberta", "max_position_embeddings": 66}},
    ),
    ("config.json", "position_biased_input"): Probe(
        {"position_biased_input": False},
        LONG.encode(),
        files={
            "config.json": {"model_type": "deberta-v2", "max_position_embeddings": 66}
        },
    ),
    ("config.json", "model_type"): Probe(
        {"model_type": "roberta"},
        LONG.encode(),
        files={"config.json": {"max_position_embeddings": 66}},
    ),
    ("config.json", "num_labels"): Probe(
        {"num_labels": 1}, outputs={"logits": (1, -1)}
    ),
    ("config.json", "function_to_apply"): Probe({"function_to_apply": "none"}),
    ("config.json", "task_specific_params.*.function_to_apply"): Probe(
        {"task_specific_params": {TEXT: {"function_to_apply": "sigmoid"}}}
    ),
    ("config.json", "sentence_transformers.activation_fn"): Probe(
        {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
    ),
    ("config.json", "sbert_ce_default_activation_function"): Probe(
        {"sbert_ce_default_activation_function": "torch.nn.modules.activation.Sigmoid"}
    ),
    ("tokenizer_config.json", "added_tokens_decoder"): Probe(
        {"added_tokens_decoder": {"500": {"content": "goodfilm"}}}, b"goodfilm"
    ),
    ("tokenizer_config.json", "do_lower_case"): Probe(
        {"do_lower_case": False}, b"GOOD"
    ),
    ("tokenizer_config.json", "strip_accents"): Probe(
        {"strip_accents": False}, "góod".encode()
    ),
    ("tokenizer_config.json", "tokenize_chinese_chars"): Probe(
        {"tokenize_chinese_chars": False}, "中国".encode()
    ),
    ("tokenizer_config.json", "add_bos_token"): Probe(
        {"add_bos_token": True, "bos_token": "the"}
    ),
    ("tokenizer_config.json", "add_eos_token"): Probe(
        {"add_eos_token": True, "eos_token": "the"}
    ),
    ("tokenizer_config.json", "add_prefix_space"): Probe(
        {"add_prefix_space": True},
        b"good",
        files={
            "tokenizer.json": BYTE_LEVEL,
            "tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer"},
        },
    ),
    ("tokenizer_config.json", "bos_token"): Probe(
        {"bos_token": "a"},
        files={"tokenizer_config.json": {"add_bos_token": True, "bos_token": "the"}},
    ),
    ("tokenizer_config.json", "eos_token"): Probe(
        {"eos_token": "a"},
        files={"tokenizer_config.json": {"add_eos_token": True, "eos_token": "the"}},
    ),
    ("tokenizer_config.json", "pad_token"): Probe({"pad_token": PAD}, length=12),
    ("tokenizer_config.json", "pad_token_type_id"): Probe(
        {"pad_token_type_id": 3}, length=12
    ),
    ("tokenizer_config.json", "padding_side"): Probe(
        {"padding_side": "left"}, length=12
    ),
    ("tokenizer_config.json", "truncation_side"): Probe(
        {"truncation_side": "left"}, b"a of to in is it", length=5
    ),
    ("tokenizer_config.json", "model_max_length"): Probe(
        {"model_max_length": 20}, LONG.encode()
    ),
    ("tokenizer_config.json", "tokenizer_class"): Probe(
        {"tokenizer_class": "PreTrainedTokenizerFast"},
        b"GOOD",
        files={
            "tokenizer.json": bert_json(),
            "tokenizer_config.json": {"do_lower_case": False},
        },
    ),
    ("special_tokens_map.json", "pad_token"): Probe({"pad_token": PAD}, length=12),
    ("special_tokens_map.json", "bos_token"): Probe(
        {"bos_token": {"content": "the"}},
        files={"tokenizer_config.json": {"add_bos_token": True}},
    ),
    ("special_tokens_map.json", "eos_token"): Probe(
        {"eos_token": "the"}, files={"tokenizer_config.json": {"add_eos_token": True}}
    ),
    ("tokenizer.json", "truncation.direction"): Probe(
        bert_json(truncation={"direction": "Left"}),
        b"a of to in is it",
        length=5,
        files={"tokenizer.json": bert_json()},
    ),
    ("tokenizer.json", "padding.direction"): Probe(
        bert_json(padding={"direction": "Left"}),
        length=12,
        files={"tokenizer.json": bert_json()},
    ),
    ("tokenizer.json", "padding.pad_id"): Probe(
        bert_json(padding={"pad_id": 4}),
        length=12,
        files={"tokenizer.json": bert_json()},
    ),
    ("tokenizer.json", "padding.pad_token"): Probe(
        bert_json(padding={"pad_token": "[UNK]"}),
        length=12,
        files={"tokenizer.json": bert_json()},
    ),
    ("tokenizer.json", "padding.pad_type_id"): Probe(
        bert_json(padding={"pad_type_id": 4}),
        length=12,
        files={"tokenizer.json": bert_json()},
    ),
    ("tokenizer.json", "added_tokens"): Probe(
        bert_json(**ADDED), b"GOODFILM", files={"tokenizer.json": bert_json()}
    ),
    ("tokenizer.json", "normalizer"): Probe(
        bert_json(normalizer={"type": "BertNormalizer", "lowercase": False}),
        b"GOOD",
        files={"tokenizer.json": bert_json()},
    ),
    ("tokenizer.json", "pre_tokenizer"): Probe(
        bert_json(pre_tokenizer={"type": "WhitespaceSplit"}),
        b"good.",
        files={"tokenizer.json": bert_json()},
    ),
    ("tokenizer.json", "post_processor"): Probe(
        bert_json(post_processor=NO_SPECIAL), files={"tokenizer.json": bert_json()}
    ),
    ("tokenizer.json", "model"): Probe(
        bert_json(
            model={
                "type": "WordPiece",
                "unk_token": "[UNK]",
                "vocab": {**NUMBERS, "goodfilm": 99},
            }
        ),
        b"goodfilm",
        files={"tokenizer.json": bert_json()},
    ),
    **{
        ("1_Pooling/config.json", key): Probe(
            {key: True, "pooling_mode_mean_tokens": False},
            task=EMBEDDING,
            files=POOLED,
            outputs=TOKENS,
        )
        for key in (
            "pooling_mode_cls_token",
            "pooling_mode_max_tokens",
            "pooling_mode_mean_sqrt_len_tokens",
            "pooling_mode_weightedmean_tokens",
            "pooling_mode_lasttoken",
        )
    },
    ("1_Pooling/config.json", "pooling_mode_mean_tokens"): Probe(
        {"pooling_mode_mean_tokens": True},
        task=EMBEDDING,
        files={**POOLED, "1_Pooling/config.json": {"pooling_mode_cls_token": True}},
        outputs=TOKENS,
    ),
    ("1_Pooling/config.json", "pooling_mode"): Probe(
        {"pooling_mode": ["cls", "max"]}, task=EMBEDDING, files=POOLED, outputs=TOKENS
    ),
    ("1_Pooling/config.json", "include_prompt"): Probe(
        {"include_prompt": False},
        task=EMBEDDING,
        files={
            **POOLED,
            "config_sentence_transformers.json": {
                "prompts": {"x": "the "},
                "default_prompt_name": "x",
            },
        },
        outputs=TOKENS,
    ),
    ("config_sentence_transformers.json", "prompts"): Probe(
        {"prompts": {"query": "the "}}, QUERY, EMBEDDING, POOLED, TOKENS
    ),
    ("config_sentence_transformers.json", "default_prompt_name"): Probe(
        {"default_prompt_name": "x"},
        task=EMBEDDING,
        files={
            **POOLED,
            "config_sentence_transformers.json": {"prompts": {"x": "the "}},
        },
        outputs=TOKENS,
    ),
    ("config_sentence_transformers.json", "similarity_fn_name"): Probe(
        {"similarity_fn_name": "euclidean"}, QUERY, EMBEDDING, POOLED, TOKENS
    ),
    ("config_sentence_transformers.json", "activation_fn"): Probe(
        {"activation_fn": "torch.nn.modules.linear.Identity"}
    ),
    ("sentence_bert_config.json", "max_seq_length"): Probe(
        {"max_seq_length": 20}, LONG.encode(), EMBEDDING, POOLED, TOKENS
    ),
    ("sentence_bert_config.json", "do_lower_case"): Probe(
        {"do_lower_case": True},
        b"GOOD",
        EMBEDDING,
        {**POOLED, "tokenizer_config.json": {"do_lower_case": False}},
        TOKENS,
    ),
    ("2_Dense/config.json", "activation_function"): Probe(
        {"activation_function": "torch.nn.modules.linear.Identity"},
        task=EMBEDDING,
        files=DENSE,
        outputs=TOKENS,
    ),
    ("3_Dense/config.json", "activation_function"): Probe(
        {"activation_function": "torch.nn.modules.activation.ReLU"},
        task=EMBEDDING,
        files=DENSE_3,
        outputs=TOKENS,
    ),
}

WAV2VEC2 = {
    "config.json": {
        "architectures": ["Wav2Vec2ForSequenceClassification"],
        "model_type": "wav2vec2",
    },
    "preprocessor_config.json": {"feature_extractor_type": "Wav2Vec2FeatureExtractor"},
}
AST = {
    "config.json": {"architectures": ["ASTForAudioClassification"]},
    "preprocessor_config.json": {
        "feature_extractor_type": "ASTFeatureExtractor",
        "num_mel_bins": 8,
        "max_length": 12,
    },
}
WHISPER = {
    "config.json": {
        "architectures": ["WhisperForAudioClassification"],
        "model_type": "whisper",
    },
    "preprocessor_config.json": {
        **{
            "feature_extractor_type": "WhisperFeatureExtractor",
            "feature_size": 8,
            "chunk_length": 1,
        },
    },
}
SOUND_PROBES: dict[str, tuple[Files, dict[str, Any]]] = {
    "feature_extractor_type": (
        WAV2VEC2,
        {"feature_extractor_type": "ASTFeatureExtractor"},
    ),
    "audio_processor_type": (
        WAV2VEC2,
        {"audio_processor_type": "AudioSpectrogramTransformerAudioProcessor"},
    ),
    "sampling_rate": (WAV2VEC2, {"sampling_rate": 8000}),
    "do_normalize": (WAV2VEC2, {"do_normalize": False}),
    "num_mel_bins": (AST, {"num_mel_bins": 9}),
    "max_length": (AST, {"max_length": 13}),
    "mean": (AST, {"mean": 0.0}),
    "std": (AST, {"std": 1.0}),
    "feature_size": (WHISPER, {"feature_size": 9}),
    "n_fft": (WHISPER, {"n_fft": 512}),
    "hop_length": (WHISPER, {"hop_length": 200}),
    "chunk_length": (WHISPER, {"chunk_length": 2}),
}

TEXT_TABLES = (
    CONFIG,
    tokenizer_files.CONFIG,
    tokenizer_files.SPECIAL_TOKENS,
    tokenizer_files.TOKENIZER,
    sentence_files.POOLING,
    sentence_files.SETTINGS,
    sentence_files.TRANSFORMER,
    *sentence_files.DENSE,
    *sentence_files.NORMALIZE,
)
SOUND = [TensorSpec("input_values", "FP32", (-1, -1))]
FEATURES = [TensorSpec("input_values", "FP32", (-1, -1, -1))]


def write(folder: Path, files: Files) -> None:
    """Write the files that flat text fixtures cannot describe."""
    for name, content in files.items():
        path = folder / "m" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(
                content if isinstance(content, str) else json.dumps(content)
            )


def outputs_of(
    run: Mapping[str, Any], names: Mapping[str, tuple[int, ...]]
) -> dict[str, Any]:
    """Return outputs that depend on the input: fixed logits, or two numbers per token."""
    if "last_hidden_state" in names:
        ids = run["input_ids"].astype(np.float32)
        places = np.arange(ids.shape[1], dtype=np.float32)[None]
        return {
            "last_hidden_state": np.stack(
                [np.sin(ids + 1) + places, np.cos(ids)], axis=2
            )
        }
    return {
        "logits": np.array([[1.5, -0.5][: abs(names["logits"][-1]) or 2]], np.float32)
    }


def result_of(folder: Path, probe: Probe, files: Files) -> Any:
    """Return the input arrays and the answer of a model with these files."""
    folder.mkdir()
    write(folder, files)
    kind = {"task": probe.task}
    task = task_of(folder, bert_inputs(probe.length, "INT64"), probe.outputs, kind)
    prepared = task.prepare(memoryview(probe.body), NO_HINTS)
    results = [outputs_of(run, probe.outputs) for run in prepared.runs]
    answer = task.answer(results, AnswerOptions(), prepared.context)
    assert not isinstance(answer, ExtendedAnswer)
    inputs = [
        {name: array.tolist() for name, array in run.items()} for run in prepared.runs
    ]
    return inputs, answer


def base_files(probe: Probe) -> dict[str, Any]:
    files = {"vocab.txt": VOCAB, **probe.files}
    config = files.get("config.json", {})
    files["config.json"] = {**BERT, **config}
    return files


IGNORED_BY_BERT = (
    *("add_bos_token", "add_eos_token", "bos_token", "eos_token", "normalizer"),
    *("pad_token_type_id", "padding.pad_id", "padding.pad_token"),
    *("padding.pad_type_id", "post_processor"),
)
"""Keys that transformers' class for BERT replaces by its own rules."""

WORDS_OF_BERT = ("cls_token", "sep_token", "unk_token")
"""Keys that matter for ``vocab.txt`` alone, where other words than BERT's are refused."""


def changed_files(probe: Probe, name: str) -> dict[str, Any]:
    files = base_files(probe)
    files[name] = {**files.get(name, {}), **probe.change}
    return files


def rows(effect: Effect, tables: tuple[ForeignFile, ...] = TEXT_TABLES) -> list[Any]:
    """Return the file name and row of each case.

    Keys of pictures are tested elsewhere.
    """
    parameters = []
    for table in tables:
        for row in table.keys:
            is_of_pictures = row.path in (
                "num_channels",
                "label_names",
            ) or row.path.startswith("pretrained_cfg.")
            if row.effect is effect and not is_of_pictures:
                parameters.append(
                    pytest.param(table.name, row, id=f"{table.name}:{row.path}")
                )
    return parameters


@pytest.mark.parametrize(("name", "row"), rows(Effect.APPLIED))
def test_an_applied_key_changes_input_or_answer(
    tmp_path: Path, name: str, row: Key
) -> None:
    if (name, row.path) not in PROBES:
        pytest.fail(f"no probe for {row.path} of {name}")
    probe = PROBES[name, row.path]
    if row.path in IGNORED_BY_BERT:
        files = {**probe.files, "config.json": {"model_type": "other"}}
        probe = dataclasses.replace(probe, files=files)
    if row.path in ("pre_tokenizer", "add_prefix_space"):
        pytest.importorskip("tokenizers")
    before = result_of(tmp_path / "before", probe, base_files(probe))
    after = result_of(tmp_path / "after", probe, changed_files(probe, name))
    assert after != before


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return a document with one key."""
    for part in reversed(path.split(".")):
        value = {part.replace("*", "any"): value}
    assert isinstance(value, dict)
    return value


@pytest.mark.parametrize(("name", "row"), rows(Effect.HARMLESS))
def test_a_harmless_key_changes_nothing(tmp_path: Path, name: str, row: Key) -> None:
    pooled = name.startswith(("1_", "2_", "3_", "sentence", "config_"))
    probe = Probe(
        nested(row.path, None if row.path in ("truncation", "padding") else "odd")
    )
    if pooled:
        probe = Probe(probe.change, task=EMBEDDING, files=DENSE, outputs=TOKENS)
    if name == "tokenizer.json":
        probe = Probe({**bert_json(), **probe.change}, files={name: bert_json()})
    if row.path in WORDS_OF_BERT:
        files = {"tokenizer.json": bert_json(), "config.json": {"model_type": "other"}}
        probe = dataclasses.replace(probe, files=files)
    before = result_of(tmp_path / "before", probe, base_files(probe))
    after = result_of(tmp_path / "after", probe, changed_files(probe, name))
    assert after == before
    assert check_keys(table_named(name), probe.change).unknown == ()


@pytest.mark.parametrize(("name", "row"), rows(Effect.UNSUPPORTED))
def test_an_unsupported_key_is_named(tmp_path: Path, name: str, row: Key) -> None:
    task = EMBEDDING if EMBEDDING in row.tasks else TEXT
    probe = Probe(nested(row.path, "odd"), task=task, files=DENSE, outputs=TOKENS)
    with pytest.raises(MetadataError, match=row.path.rpartition(".")[2]):
        result_of(tmp_path / "m", probe, changed_files(probe, name))


def test_picture_settings_do_not_affect_a_text_model(
    tmp_path: Path,
) -> None:
    probe = Probe({})
    processor = {
        "image_processor_type": "NougatImageProcessor",
        "do_crop_margin": True,
        "size_divisor": 32,
    }
    files = {**base_files(probe), "preprocessor_config.json": processor}
    assert result_of(tmp_path / "with", probe, files) == result_of(
        tmp_path / "without", probe, base_files(probe)
    )


def table_named(name: str) -> ForeignFile:
    return next(table for table in TABLES if table.name == name)


def sound_input(folder: Path, files: Files) -> Any:
    """Return a sound model's input for a tone, without a manifest."""
    folder.mkdir()
    write(folder, files)
    kind = str(feature_extractor.extractor_class(files["preprocessor_config.json"]))
    specs = SOUND if kind.startswith("Wav2Vec2") else FEATURES
    task = task_of(folder, specs, {"logits": (1, 2)})
    assert task.name == AUDIO, task.advice
    prepared = task.prepare(memoryview(wav(tone(0.3) * 0.5)), NO_HINTS)
    return [run["input_values"].tolist() for run in prepared.runs]


@pytest.mark.parametrize(
    ("name", "row"), rows(Effect.APPLIED, (feature_extractor.TABLE,))
)
def test_an_applied_key_changes_the_sound(tmp_path: Path, name: str, row: Key) -> None:
    files, change = SOUND_PROBES[row.path]
    changed = {**files, name: {**files[name], **change}}
    assert sound_input(tmp_path / "before", files) != sound_input(
        tmp_path / "after", changed
    )


@pytest.mark.parametrize(
    ("name", "row"), rows(Effect.HARMLESS, (feature_extractor.TABLE,))
)
def test_a_harmless_key_does_not_change_the_sound(
    tmp_path: Path, name: str, row: Key
) -> None:
    changed = {**WAV2VEC2, name: {**WAV2VEC2[name], row.path: True}}
    assert sound_input(tmp_path / "before", WAV2VEC2) == sound_input(
        tmp_path / "after", changed
    )


@pytest.mark.parametrize(
    ("name", "row"), rows(Effect.UNSUPPORTED, (feature_extractor.TABLE,))
)
def test_a_model_with_an_unsupported_key_is_served_as_tensors(
    tmp_path: Path, name: str, row: Key
) -> None:
    changed = {**WAV2VEC2, name: {**WAV2VEC2[name], row.path: "odd"}}
    write(tmp_path, changed)
    task = task_of(tmp_path, SOUND, {"logits": (1, 2)})
    assert task.name == "tensors"
    assert row.path in task.problem


@pytest.mark.parametrize(
    "content",
    [
        {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "new_key": 1},
        {
            "feature_extractor_type": "ClapFeatureExtractor",
            "sampling_rate": 48000,
            "fft_window_size": 1024,
        },
        {"feature_extractor_type": ["odd"], "sampling_rate": 16000, "do_pad": True},
        {"image_processor_type": "ViTImageProcessor", "sampling_rate": 16000},
        {"feature_extractor_type": "ViTFeatureExtractor", "size": 224},
        {"feature_extractor_type": {}, "size": 224},
    ],
)
def test_a_file_applies_to_pictures_or_sounds(content: Files) -> None:
    tables = (feature_extractor.TABLE, preprocessor_config.TABLE)
    owners = [
        table
        for table in tables
        if table.belongs is not None and table.belongs(content)
    ]

    is_of_pictures = "image_processor_type" in content or "size" in content
    assert owners == [
        preprocessor_config.TABLE if is_of_pictures else feature_extractor.TABLE
    ]


def test_unknown_keys_of_sounds_are_not_reported(tmp_path: Path) -> None:
    write(
        tmp_path,
        {
            **WAV2VEC2,
            "preprocessor_config.json": {
                "sampling_rate": 16000,
                "new_key": 1,
                "dither": 0.0,
            },
        },
    )
    model = facts(tmp_path, {"logits": (1, 2)}, image=SOUND[0])

    assert unknown_keys(model) == {}
