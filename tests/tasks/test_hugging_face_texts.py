"""Texts are prepared like Hugging Face's libraries prepare them."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import AnswerOptions
from pocketserve.tasks.model_facts import MetadataError
from pocketserve.tasks.text.encoders import longest_first
from pocketserve.tasks.text.hugging_face.added_tokens import AddedToken, added_token
from pocketserve.tasks.text.hugging_face.class_settings import with_class_settings
from pocketserve.tasks.text.hugging_face.lengths import token_limit
from pocketserve.tasks.text.hugging_face.post_processor import (
    UnsupportedProcessorError,
    special_of,
)
from pocketserve.tasks.text.hugging_face.tokenizer_classes import (
    class_in_use,
    reject_other_frame,
    reject_other_model,
    reject_other_numbers,
    reject_other_words,
)
from pocketserve.tasks.text.hugging_face.tokenizer_settings import TokenizerSettings
from pocketserve.tasks.text.tokens import Special
from pocketserve.tasks.text.wordpiece import WordPiece
from pocketserve_wire import ApiError, ErrorCode
from text_models import VOCABULARY, bert_inputs, model, task_of

NUMBERS = {word: number for number, word in enumerate(VOCABULARY)}
VOCAB = "\n".join(VOCABULARY) + "\n"
TEXT = {"task": "text-classification"}


# Activations


def score_of(
    folder: Path, config: Mapping[str, Any], logits: list[float], **table: Any
) -> list[float]:
    """Return the scores of logits, in order."""
    files = {
        "vocab.txt": VOCAB,
        "config.json": {"architectures": ["BertForSequenceClassification"], **config},
    }
    manifest = {**TEXT, **({"classification": table} if table else {})}
    task = task_of(folder, bert_inputs(), {"logits": (1, len(logits))}, manifest, files)
    entries = task.answer([{"logits": np.array([logits], np.float32)}], AnswerOptions())
    by_index = {entry["index"]: entry["score"] for entry in entries}
    return [by_index[index] for index in sorted(by_index)]


SIGMOID_2 = 1 / (1 + np.exp(-2))
ACTIVATIONS: dict[
    str, tuple[dict[str, Any], list[float], dict[str, Any], list[float]]
] = {
    "two logits": ({}, [2, 0], {}, [SIGMOID_2, 1 - SIGMOID_2]),
    "one logit": ({}, [2], {}, [SIGMOID_2]),
    "one logit, regression": ({"problem_type": "regression"}, [2], {}, [2]),
    "two logits, regression": ({"problem_type": "regression"}, [2, 5], {}, [2, 5]),
    "several labels": (
        {"problem_type": "multi_label_classification"},
        [2, 0],
        {},
        [SIGMOID_2, 0.5],
    ),
    "a single label, said": (
        {"problem_type": "single_label_classification"},
        [2, 0],
        {},
        [SIGMOID_2, 1 - SIGMOID_2],
    ),
    "another class": ({"architectures": ["BertModel"]}, [2, 0], {}, [2, 0]),
    "a threshold leaves the activation": ({}, [2, 0], {"threshold": 0.5}, [SIGMOID_2]),
    "an offset leaves the activation": ({}, [2], {"label_offset": 0}, [SIGMOID_2]),
    "the manifest decides": ({}, [2], {"activation": "none"}, [2]),
    "CrossEncoder without activation": (
        {
            "sentence_transformers": {
                "activation_fn": "torch.nn.modules.linear.Identity"
            }
        },
        [2],
        {},
        [2],
    ),
    "function_to_apply": (
        {
            "task_specific_params": {
                "text-classification": {"function_to_apply": "none"}
            }
        },
        [2],
        {},
        [2],
    ),
}


@pytest.mark.parametrize("case", ACTIVATIONS)
def test_activations(tmp_path: Path, case: str) -> None:
    config, logits, table, expected = ACTIVATIONS[case]
    assert score_of(tmp_path, config, logits, **table) == pytest.approx(expected)


@pytest.mark.parametrize(
    "config",
    [
        {"sentence_transformers": {"activation_fn": "mine.Activation"}},
        {
            "sentence_transformers": {
                "activation_fn": "torch.nn.modules.activation.GELU"
            }
        },
        {"function_to_apply": "cube"},
    ],
    ids=str,
)
def test_other_activations_are_named(tmp_path: Path, config: dict[str, Any]) -> None:
    with pytest.raises(MetadataError, match=r"activation_fn|function_to_apply"):
        score_of(tmp_path, config, [2])


# Lengths

LENGTHS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "BERT": ({"model_type": "bert", "max_position_embeddings": 256}, {}, 256),
    "RoBERTa": (
        {"model_type": "roberta", "max_position_embeddings": 514, "pad_token_id": 1},
        {},
        512,
    ),
    "XLM-R without padding": (
        {"model_type": "xlm-roberta", "max_position_embeddings": 514},
        {},
        512,
    ),
    "MPNet": (
        {"model_type": "mpnet", "max_position_embeddings": 514, "pad_token_id": 1},
        {},
        512,
    ),
    "Longformer": (
        {
            "model_type": "longformer",
            "max_position_embeddings": 4098,
            "pad_token_id": 1,
        },
        {},
        4096,
    ),
    "BigBird": ({"model_type": "big_bird", "max_position_embeddings": 4096}, {}, 4096),
    "GPT-2": ({"model_type": "gpt2", "n_positions": 1024}, {}, 1024),
    "T5": ({"model_type": "t5", "n_positions": 128}, {}, 512),
    "DeBERTa V3": (
        {
            "model_type": "deberta-v2",
            "max_position_embeddings": 64,
            "position_biased_input": False,
        },
        {},
        512,
    ),
    "DeBERTa": ({"model_type": "deberta", "max_position_embeddings": 64}, {}, 64),
    "a huge model_max_length": (
        {"model_type": "bert", "max_position_embeddings": 256},
        {"model_max_length": 10**30},
        256,
    ),
    "model_max_length": (
        {"model_type": "bert", "max_position_embeddings": 256},
        {"model_max_length": 128},
        128,
    ),
    "nothing": ({}, {}, 512),
}


@pytest.mark.parametrize("case", LENGTHS)
def test_lengths(tmp_path: Path, case: str) -> None:
    config, tokenizer, expected = LENGTHS[case]
    files = {"config.json": config, "tokenizer_config.json": tokenizer}
    assert (
        token_limit(model(tmp_path, bert_inputs(), {"logits": (1, 2)}, TEXT, files))
        == expected
    )


# Pairs


def test_pairs_are_truncated_like_the_library() -> None:
    tokenizers = pytest.importorskip("tokenizers")
    library = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, "[UNK]")
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    for room in range(1, 12):
        library.enable_truncation(room)
        for first in range(8):
            for second in range(8):
                ids = library.encode("a " * first, "b " * second).ids
                assert longest_first(first, second, room) == (
                    ids.count(0),
                    ids.count(1),
                )


def arrays_of(
    folder: Path, body: Any, length: int = -1, files: Mapping[str, Any] | None = None
) -> dict[str, list[int]]:
    """Return the rows of a request's input arrays."""
    base = {"vocab.txt": VOCAB, **(files or {})}
    task = task_of(folder, bert_inputs(length), {"logits": (1, 2)}, TEXT, base)
    prepared = task.prepare(memoryview(json.dumps(body).encode()))
    return {name: array[0].tolist() for name, array in prepared.runs[0].items()}


def test_a_pair_has_types_and_padding(tmp_path: Path) -> None:
    arrays = arrays_of(tmp_path, {"text": "good", "text_pair": "bad film"}, 8)
    words = ["[CLS]", "good", "[SEP]", "bad", "film", "[SEP]", "[PAD]", "[PAD]"]
    assert arrays["input_ids"] == [NUMBERS[word] for word in words]
    assert arrays["token_type_ids"] == [0, 0, 0, 1, 1, 1, 0, 0]
    assert arrays["attention_mask"] == [1, 1, 1, 1, 1, 1, 0, 0]


def test_padding_and_truncation_at_the_left(tmp_path: Path) -> None:
    sides = {
        "padding_side": "left",
        "truncation_side": "left",
        "pad_token": "[MASK]",
        "pad_token_type_id": 3,
    }
    files = {"tokenizer_config.json": sides}
    arrays = arrays_of(tmp_path, "good", 5, files)
    assert arrays["input_ids"] == [
        NUMBERS[word] for word in ("[MASK]", "[MASK]", "[CLS]", "good", "[SEP]")
    ]
    assert arrays["attention_mask"] == [0, 0, 1, 1, 1]
    assert arrays["token_type_ids"] == [3, 3, 0, 0, 0]
    cut = arrays_of(tmp_path, "good bad great film", 4, files)
    assert cut["input_ids"] == [
        NUMBERS[word] for word in ("[CLS]", "great", "film", "[SEP]")
    ]


FIXED_LENGTHS: dict[str, tuple[dict[str, Any], int]] = {
    "max_seq_length": ({"sentence_bert_config.json": {"max_seq_length": 8}}, 8),
    "model_max_length": ({"tokenizer_config.json": {"model_max_length": 8}}, 8),
    "limits above the size": (
        {
            "sentence_bert_config.json": {"max_seq_length": 512},
            "tokenizer_config.json": {"model_max_length": 512},
        },
        64,
    ),
    "no limit": ({}, 64),
}


@pytest.mark.parametrize("case", FIXED_LENGTHS)
def test_a_fixed_size_input_is_padded_beyond_the_listed_limit(
    tmp_path: Path, case: str
) -> None:
    files, tokens = FIXED_LENGTHS[case]
    arrays = arrays_of(tmp_path, "good " * 100, 64, files)
    words = ["[CLS]", *["good"] * (tokens - 2), "[SEP]", *["[PAD]"] * (64 - tokens)]
    assert arrays["input_ids"] == [NUMBERS[word] for word in words]
    assert arrays["attention_mask"] == [1] * tokens + [0] * (64 - tokens)


def test_a_fixed_size_input_above_the_default_length_is_filled(tmp_path: Path) -> None:
    arrays = arrays_of(tmp_path, "good " * 1000, 600)
    assert arrays["attention_mask"] == [1] * 600


def template(*parts: tuple[str, int]) -> list[dict[str, Any]]:
    return [
        {"Sequence" if name in "AB" else "SpecialToken": {"id": name, "type_id": kind}}
        for name, kind in parts
    ]


XLNET = {
    "type": "TemplateProcessing",
    "single": template(("A", 0), ("<sep>", 0), ("<cls>", 2)),
    "pair": template(("A", 0), ("<sep>", 0), ("B", 1), ("<sep>", 1), ("<cls>", 2)),
    "special_tokens": {
        name: {"id": name, "ids": [number]}
        for number, name in enumerate(("<sep>", "<cls>"), 4)
    },
}
PROCESSORS: dict[str, tuple[Any, Special]] = {
    "none": (None, Special(pair_types=(0, 0))),
    "BERT": (
        {"type": "BertProcessing", "cls": ["a", 1], "sep": ["b", 2]},
        Special((1,), (2,), (2,)),
    ),
    "RoBERTa": (
        {"type": "RobertaProcessing", "cls": ["a", 1], "sep": ["b", 2]},
        Special((1,), (2, 2), (2,), pair_types=(0,) * 6),
    ),
    "XLNet": (
        XLNET,
        Special((), (4,), (4, 5), single_types=(0, 0, 2), pair_types=(0, 0, 1, 1, 2)),
    ),
    "in a sequence": (
        {"type": "Sequence", "processors": [{"type": "ByteLevel"}, XLNET]},
        Special((), (4,), (4, 5), single_types=(0, 0, 2), pair_types=(0, 0, 1, 1, 2)),
    ),
}


@pytest.mark.parametrize("case", PROCESSORS)
def test_post_processors(case: str) -> None:
    processor, expected = PROCESSORS[case]
    assert special_of(processor) == expected


@pytest.mark.parametrize(
    "processor",
    [
        [],
        {"type": "Mine"},
        {"type": "Sequence", "processors": [XLNET, XLNET]},
        {"type": "BertProcessing", "cls": ["a"], "sep": ["b", 2]},
        {**XLNET, "single": template(("B", 0))},
        {**XLNET, "special_tokens": {}},
        {**XLNET, "single": [{"Sequence": {"id": "A", "type_id": "0"}}]},
    ],
    ids=lambda processor: str(processor)[:40],
)
def test_other_post_processors_are_named(processor: Any) -> None:
    with pytest.raises(UnsupportedProcessorError, match="post_processor"):
        special_of(processor)


DEFAULT_PAIR = template(("A", 0), ("B", 1))
BERT_TEMPLATE = {
    "type": "TemplateProcessing",
    "single": template(("[CLS]", 0), ("A", 0), ("[SEP]", 0)),
    "special_tokens": {
        name: {"id": name, "ids": [NUMBERS[name]]} for name in ("[CLS]", "[SEP]")
    },
}


def tokenizer_json(**post_processor: Any) -> dict[str, Any]:
    """Return a BERT ``tokenizer.json`` with this template."""
    return {
        "normalizer": {"type": "BertNormalizer"},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {**BERT_TEMPLATE, **post_processor},
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "vocab": NUMBERS},
    }


OTHER_PAIRS: dict[str, tuple[Any, str]] = {
    "the default pair": ({"pair": DEFAULT_PAIR}, "pair begins or ends unlike"),
    "texts in another order": (
        {"pair": template(("[CLS]", 0), ("B", 0), ("A", 0))},
        "pair has its texts in another",
    ),
    "an unknown token": (
        {"pair": template(("<x>", 0), ("A", 0), ("B", 0))},
        "special_tokens lacks '<x>'",
    ),
    "no pair": ({}, "has no template"),
}


@pytest.mark.parametrize("case", OTHER_PAIRS)
def test_other_pair_templates_reject_only_pairs(tmp_path: Path, case: str) -> None:
    parts, fault = OTHER_PAIRS[case]
    files = {"tokenizer.json": tokenizer_json(**parts)}
    arrays = arrays_of(tmp_path, "good film", files=files)
    assert arrays["input_ids"] == [
        NUMBERS[word] for word in ("[CLS]", "good", "film", "[SEP]")
    ]
    with pytest.raises(ApiError, match=fault) as refused:
        arrays_of(tmp_path, {"text": "good", "text_pair": "bad"}, files=files)
    assert refused.value.code == ErrorCode.INVALID_INPUT


def test_other_pair_templates_reject_question_answering(tmp_path: Path) -> None:
    names = {"start_logits": (1, -1), "end_logits": (1, -1)}
    files = {"tokenizer.json": tokenizer_json(pair=DEFAULT_PAIR)}
    with pytest.raises(ModelLoadError, match="pair begins or ends unlike"):
        task_of(tmp_path, bert_inputs(), names, {"task": "question-answering"}, files)


def test_the_librarys_template_without_a_pair_encodes_single_texts(
    tmp_path: Path,
) -> None:
    library = pytest.importorskip("tokenizers")
    made = library.Tokenizer(library.models.WordLevel(NUMBERS, "[UNK]"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    specials = [(name, NUMBERS[name]) for name in ("[CLS]", "[SEP]")]
    made.post_processor = library.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=specials
    )
    arrays = arrays_of(
        tmp_path, "good film", files={"tokenizer.json": json.loads(made.to_str())}
    )
    assert arrays["input_ids"] == made.encode("good film").ids


def test_a_missing_library_is_named_with_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    pipeline = {
        "normalizer": {"type": "BertNormalizer"},
        "pre_tokenizer": {"type": "ByteLevel"},
        "model": {},
    }
    with pytest.raises(
        ModelLoadError,
        match=r"pre_tokenizer.type = 'ByteLevel'.*pip install 'pocketserve\[text\]'",
    ):
        arrays_of(tmp_path, "good", files={"tokenizer.json": pipeline})


# Added tokens

ADDED = (
    AddedToken(500, "[E1]"),
    AddedToken(501, "covid19", normalized=True),
    AddedToken(502, "ood", single_word=True),
    AddedToken(503, "<l>", lstrip=True),
    AddedToken(504, "<r>", rstrip=True),
    AddedToken(505, "[E1]2"),
    AddedToken(506, "Great Film", normalized=True),
)
ADDED_TEXTS = (
    "[E1] good film",
    "good[E1]film [E1]2",
    "COVID19 and covid19x",
    "good ood oodx x.ood",
    "good  <l>  film  <r>  bad <l><r> ",
    "a great film, a GREAT FILM",
    "",
    "   ",
    "<r> <l>",
)


@pytest.mark.parametrize("text", ADDED_TEXTS)
def test_added_tokens_match_the_library(text: str) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {
        **NUMBERS,
        **{f"unused{number}": number for number in range(len(NUMBERS), 500)},
    }
    library = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(vocabulary, unk_token="[UNK]")
    )
    library.normalizer = tokenizers.normalizers.BertNormalizer()
    library.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    for token in ADDED:
        flags = token._asdict()
        del flags["number"]
        library.add_tokens([tokenizers.AddedToken(**flags)])
    ours = WordPiece(
        vocabulary, Special(unknown=NUMBERS["[UNK]"]), lower_case=True, added=ADDED
    )
    encoded = library.encode(text, add_special_tokens=False)
    assert [token.number for token in ours.tokens(text)] == encoded.ids


@pytest.mark.parametrize(
    "entry",
    [
        None,
        {"id": -1, "content": "a"},
        {"id": 1, "content": ""},
        {"id": True, "content": "a"},
        {"id": 1, "content": 5},
    ],
    ids=str,
)
def test_other_entries_are_not_tokens(entry: Any) -> None:
    assert added_token(entry) is None


def test_special_tokens_of_a_text_stay_text(tmp_path: Path) -> None:
    listed = {
        "added_tokens_decoder": {
            str(NUMBERS["[SEP]"]): {"content": "[SEP]", "special": True}
        }
    }
    arrays = arrays_of(tmp_path, "[SEP]", files={"tokenizer_config.json": listed})
    assert arrays["input_ids"].count(NUMBERS["[SEP]"]) == 1


# Modules of sentence-transformers

SENTENCES = "sentence_transformers.models"


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        ([("Transformer", "")], "no pooling"),
        ([("Transformer", ""), ("Pooling", "1_Pooling")], "which is missing"),
        ([("Normalize", "1_Normalize"), ("Pooling", "1_Pooling")], "Pooling"),
    ],
    ids=["without pooling", "without its file", "normalised first"],
)
def test_unspecified_pooling_is_named(
    tmp_path: Path, listed: list[tuple[str, str]], reason: str
) -> None:
    modules = [{"type": f"{SENTENCES}.{kind}", "path": path} for kind, path in listed]
    files = {"vocab.txt": VOCAB, "modules.json": json.dumps(modules)}
    with pytest.raises(MetadataError, match=reason):
        task_of(
            tmp_path,
            bert_inputs(),
            {"last_hidden_state": (1, -1, 2)},
            {"task": "text-embedding"},
            files,
        )


def test_a_classifier_followed_by_modules_is_rejected(tmp_path: Path) -> None:
    """Such rerankers compute their score from the logits of two tokens."""
    package = "sentence_transformers.cross_encoder.modules.logit_score"
    modules = [
        {"type": f"{SENTENCES}.Transformer", "path": ""},
        {"type": f"{package}.LogitScore", "path": "1_LogitScore"},
    ]
    files = {"vocab.txt": VOCAB, "modules.json": json.dumps(modules)}
    with pytest.raises(MetadataError, match="LogitScore"):
        task_of(
            tmp_path,
            bert_inputs(),
            {"logits": (1, -1, 9)},
            {"task": "text-classification"},
            files,
        )


@pytest.mark.parametrize("shape", [(-1, -1, 9), (1, 16, 9)], ids=str)
def test_scores_for_each_token_are_rejected(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    with pytest.raises(ModelLoadError, match="scores for each token"):
        task_of(
            tmp_path,
            bert_inputs(),
            {"logits": shape},
            {"task": "text-classification"},
            {"vocab.txt": VOCAB},
        )


@pytest.mark.parametrize(
    ("package", "kind", "path"),
    [
        (SENTENCES, "Router", "1_Router"),
        (SENTENCES, "LSTM", "1_LSTM"),
        (SENTENCES, "Dense", "9_Dense"),
        (SENTENCES, "WordEmbeddings", "0_Words"),
        (SENTENCES, "Transformer", "0_Transformer"),
        (SENTENCES, "Pooling", "pooling"),
        ("custom_st", "Transformer", ""),
    ],
)
def test_other_modules_are_named(
    tmp_path: Path, package: str, kind: str, path: str
) -> None:
    (tmp_path / "m").mkdir()
    listed = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": f"{package}.{kind}", "path": path},
    ]
    (tmp_path / "m" / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(ModelLoadError, match=kind):
        task_of(
            tmp_path,
            bert_inputs(),
            {"last_hidden_state": (1, -1, 2)},
            {"task": "text-embedding"},
            {"vocab.txt": VOCAB},
        )


def test_a_dense_layer_with_a_long_header_is_rejected(tmp_path: Path) -> None:
    folder = tmp_path / "m" / "2_Dense"
    folder.mkdir(parents=True)
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({str(number): empty for number in range(2000)}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    files = {
        "vocab.txt": VOCAB,
        "modules.json": json.dumps(
            [{"type": "sentence_transformers.models.Dense", "path": "2_Dense"}]
        ),
    }
    with pytest.raises(MetadataError, match="at most 65536 are read"):
        task_of(
            tmp_path,
            bert_inputs(),
            {"last_hidden_state": (1, -1, 2)},
            {"task": "text-embedding"},
            files,
        )


# Question answering


def test_no_answer_is_among_the_answers(tmp_path: Path) -> None:
    manifest = {"task": "question-answering", "text": {"impossible": True}}
    names = {"start_logits": (1, -1), "end_logits": (1, -1)}
    task = task_of(tmp_path, bert_inputs(), names, manifest, {"vocab.txt": VOCAB})
    prepared = task.prepare(memoryview(b'{"question": "who", "context": "good film"}'))
    row = np.zeros((1, 6), np.float32)
    row[0, 0] = 5  # [CLS], which stands for "no answer"
    best = task.answer(
        [{"start_logits": row, "end_logits": row}], AnswerOptions(), prepared.context
    )[0]
    likelihood = float(np.exp(5) / (np.exp(5) + 2))
    assert best == {
        "answer": "",
        "start": 0,
        "end": 0,
        "score": pytest.approx(likelihood**2),
    }


# Parts that a tokenizer's class builds anew

LOWER: dict[str, Any] = {"type": "Lowercase"}
NFC: dict[str, Any] = {"type": "NFC"}
BERT_NORMALIZER: dict[str, Any] = {"type": "BertNormalizer", "lowercase": True}
CLASS_NORMALIZER: dict[str, Any] = {
    **BERT_NORMALIZER,
    "clean_text": True,
    "handle_chinese_chars": True,
    "strip_accents": None,
}
OTHER_NORMALIZER: dict[str, Any] = {
    **BERT_NORMALIZER,
    "clean_text": False,
    "handle_chinese_chars": False,
    "strip_accents": True,
}
HERBERT_NORMALIZER: dict[str, Any] = {
    **CLASS_NORMALIZER,
    "lowercase": False,
    "strip_accents": False,
}
WORDPIECE_OPTIONS: dict[str, Any] = {
    "continuing_subword_prefix": "##",
    "max_input_chars_per_word": 100,
}
OTHER_OPTIONS: dict[str, Any] = {
    "continuing_subword_prefix": "@@",
    "max_input_chars_per_word": 5,
}
METASPACE: dict[str, Any] = {"type": "Metaspace", "prepend_scheme": "always"}


def sequence(*parts: Any) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


@pytest.mark.parametrize(
    ("name", "before", "value", "after"),
    [
        ("DebertaV2", sequence(NFC), True, sequence(LOWER, NFC)),
        ("DebertaV2", sequence(LOWER, NFC), False, sequence(NFC)),
        ("Albert", sequence(LOWER, NFC), True, sequence(LOWER, NFC)),
        ("XLNet", NFC, True, sequence(LOWER, NFC)),
        ("Camembert", sequence(NFC), True, sequence(NFC)),
        ("MPNet", BERT_NORMALIZER, False, {**CLASS_NORMALIZER, "lowercase": False}),
        ("Bert", OTHER_NORMALIZER, True, CLASS_NORMALIZER),
        ("Herbert", OTHER_NORMALIZER, True, HERBERT_NORMALIZER),
        ("PreTrained", BERT_NORMALIZER, False, BERT_NORMALIZER),
    ],
)
def test_the_class_decides_on_small_letters(
    name: str, before: Any, value: bool, after: Any
) -> None:
    settings = TokenizerSettings(f"{name}Tokenizer", lower_case=value)
    document = with_class_settings(json.dumps({"normalizer": before}), settings)
    assert json.loads(document) == {"normalizer": after}


@pytest.mark.parametrize(
    ("name", "value", "scheme"),
    [
        ("Camembert", False, "never"),
        ("DebertaV2", False, "first"),
        ("XLMRoberta", True, "always"),
        ("XLMRoberta", None, "always"),
        ("T5", False, "always"),
    ],
)
def test_the_class_decides_on_the_space_in_front(
    name: str, value: bool | None, scheme: str
) -> None:
    settings = TokenizerSettings(f"{name}Tokenizer", prefix_space=value)
    split = {"type": "Sequence", "pretokenizers": [METASPACE]}
    document = with_class_settings(json.dumps({"pre_tokenizer": split}), settings)
    (part,) = json.loads(document)["pre_tokenizer"]["pretokenizers"]
    assert part["prepend_scheme"] == scheme


@pytest.mark.parametrize(
    ("name", "direction", "is_left"),
    [("XLNet", None, True), ("XLNet", "Right", False), ("Bert", None, False)],
)
def test_the_class_decides_on_the_side_of_padding(
    name: str, direction: str | None, is_left: bool
) -> None:
    settings = TokenizerSettings(f"{name}Tokenizer")
    padding = {"direction": direction}
    special = settings.complete(Special(), {}.get, padding)
    assert special.pad_left is is_left


def test_the_name_of_padding_comes_before_its_number() -> None:
    padding = {"pad_token": "[PAD]", "pad_id": 3}
    settings = TokenizerSettings()

    assert settings.complete(Special(), {"[PAD]": 5}.get, padding).pad == 5
    with pytest.raises(MetadataError, match=r"padding\.pad_token = '\[PAD\]'"):
        settings.complete(Special(), {}.get, padding)
    named = TokenizerSettings(names={"pad": "<pad>"})
    assert named.complete(Special(), {"<pad>": 1}.get, padding).pad == 1
    roberta = TokenizerSettings("RobertaTokenizer")
    assert roberta.complete(Special(), {"[PAD]": 5, "<pad>": 1}.get, padding).pad == 1


def test_a_generic_class_that_removes_special_tokens_is_named() -> None:
    special = special_of(BERT_TEMPLATE)
    settings = TokenizerSettings("TokenizersBackend", add_bos=False)
    with pytest.raises(MetadataError, match="add_bos_token"):
        settings.complete(special, NUMBERS.get)


@pytest.mark.parametrize(("name", "first"), [("BigBird", ()), ("Llama", (7,))])
def test_the_class_decides_on_the_token_in_front(
    name: str, first: tuple[int, ...]
) -> None:
    names = {"bos": "<s>"}
    settings = TokenizerSettings(f"{name}Tokenizer", add_bos=True, names=names)
    assert settings.complete(Special(), {"<s>": 7}.get).first == first


@pytest.mark.parametrize(
    ("name", "names", "expected"),
    [
        ("Bert", {"unk": "[NO]"}, {"unk_token": "[NO]", **WORDPIECE_OPTIONS}),
        ("Splinter", {}, {"unk_token": "[UNK]", **WORDPIECE_OPTIONS}),
        ("PreTrained", {}, {"unk_token": "[UNK]", **OTHER_OPTIONS}),
    ],
)
def test_the_class_decides_on_the_options_of_words(
    name: str, names: dict[str, str], expected: dict[str, Any]
) -> None:
    settings = TokenizerSettings(f"{name}Tokenizer", names=names)
    model = {"unk_token": "[UNK]", **OTHER_OPTIONS}
    document = with_class_settings(json.dumps({"model": model}), settings)
    assert json.loads(document) == {"model": expected}


def test_the_class_decides_on_the_options_of_bytes() -> None:
    model = {"type": "BPE", "ignore_merges": True, "byte_fallback": True}
    split = {"type": "ByteLevel", "add_prefix_space": True}
    text = json.dumps({"model": model, "pre_tokenizer": split})
    document = json.loads(with_class_settings(text, TokenizerSettings("GPT2Tokenizer")))
    assert document["pre_tokenizer"]["add_prefix_space"] is False
    assert document["model"]["ignore_merges"] is False
    assert document["model"]["byte_fallback"] is False


@pytest.mark.parametrize("unknown", ["<unk>", "<s>"])
def test_another_unknown_token_is_named(unknown: str) -> None:
    settings = TokenizerSettings("CamembertTokenizer", names={"unk": unknown})
    text = json.dumps(XLNET_FILE)
    if unknown == "<unk>":
        with_class_settings(text, settings)
        return
    with pytest.raises(MetadataError, match="unk_token = '<s>'"):
        with_class_settings(text, settings)


def test_begin_and_end_that_a_class_ignores_are_named() -> None:
    settings = TokenizerSettings("T5Tokenizer", add_bos=True, names={"bos": "<s>"})
    with pytest.raises(MetadataError, match="add_bos_token"):
        settings.complete(Special(), {"<s>": 7}.get)


@pytest.mark.parametrize("role", ["cls", "sep", "unk"])
def test_other_special_words_of_a_vocabulary_are_named(role: str) -> None:
    reject_other_words("", {role: f"[{role.upper()}]"})
    with pytest.raises(MetadataError, match=f"{role}_token = '<x>'"):
        reject_other_words("", {role: "<x>"})


@pytest.mark.parametrize("is_new", [False, True])
def test_the_map_of_special_tokens_counts_in_older_folders(
    tmp_path: Path, is_new: bool
) -> None:
    config: dict[str, Any] = {"pad_token": "[PAD]"}
    if is_new:
        config["added_tokens_decoder"] = {}
    files = {
        "tokenizer_config.json": config,
        "special_tokens_map.json": {"pad_token": "[MASK]"},
    }
    arrays = arrays_of(tmp_path, "good", 6, files)
    expected = "[PAD]" if is_new else "[MASK]"
    assert arrays["input_ids"][-1] == NUMBERS[expected]


def test_splinter_without_tokenizer_json_is_refused(tmp_path: Path) -> None:
    files = {"tokenizer_config.json": {"tokenizer_class": "SplinterTokenizer"}}
    with pytest.raises(ModelLoadError, match="Splinter"):
        arrays_of(tmp_path, "good", files=files)


def test_another_end_of_mbart_is_named() -> None:
    special = Special(last=(2, 9), single_types=(0, 0, 0), pair_types=(0, 0, 0, 0))
    numbers = {"</s>": 2, "<x>": 3}
    with pytest.raises(MetadataError, match="eos_token, '<x>'"):
        reject_other_frame("MBartTokenizer", special, {"eos": "<x>"}, numbers.get)
    reject_other_frame("MBartTokenizer", special, {}, numbers.get)


def test_splinter_with_padding_on_the_left_is_named() -> None:
    reject_other_words("BertTokenizer", {}, "left")
    with pytest.raises(MetadataError, match="padding_side"):
        reject_other_words("SplinterTokenizer", {}, "left")


# Classes that don't fit the file

XLNET_FILE: dict[str, Any] = {
    "model": {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0]]},
    "normalizer": sequence({"type": "NFKD"}, {"type": "StripAccents"}),
    "pre_tokenizer": {
        "type": "Sequence",
        "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE],
    },
}


PUNCTUATION_FILE = {**XLNET_FILE, "pre_tokenizer": {"type": "Punctuation"}}


@pytest.mark.parametrize(
    ("name", "document", "is_registered", "reason"),
    [
        ("BertTokenizer", XLNET_FILE, False, "for WordPiece, not for Unigram"),
        ("BertTokenizer", XLNET_FILE, True, "for WordPiece, not for Unigram"),
        ("RobertaTokenizer", XLNET_FILE, False, "for BPE, not for Unigram"),
        ("CamembertTokenizer", XLNET_FILE, False, "NFKD, StripAccents"),
        ("T5Tokenizer", XLNET_FILE, False, r"model\.unk_id"),
        ("AlbertTokenizer", XLNET_FILE, False, r"model\.unk_id"),
        ("CamembertTokenizer", XLNET_FILE, True, ""),
        ("XLMRobertaTokenizer", XLNET_FILE, True, r"model\.unk_id"),
        ("DebertaV2Tokenizer", PUNCTUATION_FILE, True, "splits at punctuation"),
        ("XLNetTokenizer", XLNET_FILE, False, ""),
        ("PreTrainedTokenizer", XLNET_FILE, False, ""),
        ("UnknownTokenizer", XLNET_FILE, False, ""),
        ("GPT2Tokenizer", {"model": {"vocab": {}, "merges": []}}, True, ""),
        ("MPNetTokenizer", {"model": {"vocab": {}}}, True, ""),
        ("LlamaTokenizer", {"model": {"vocab": []}}, True, "not for Unigram"),
    ],
)
def test_a_class_of_another_file_is_named(
    name: str, document: dict[str, Any], is_registered: bool, reason: str
) -> None:
    if not reason:
        reject_other_model(name, document, is_registered=is_registered)
        return
    with pytest.raises(MetadataError, match=f"tokenizer_class = .*{reason}"):
        reject_other_model(name, document, is_registered=is_registered)


@pytest.mark.parametrize(
    ("name", "processor", "reason"),
    [
        ("BertTokenizer", BERT_TEMPLATE, ""),
        ("AlbertTokenizer", XLNET, ""),
        ("BertTokenizer", XLNET, "other special tokens"),
        ("XLNetTokenizer", BERT_TEMPLATE, "other special tokens"),
        ("RobertaTokenizer", BERT_TEMPLATE, "another cls_token, '<s>'"),
        ("BertTokenizer", None, "other special tokens"),
    ],
)
def test_a_class_with_other_special_tokens_is_named(
    name: str, processor: Any, reason: str
) -> None:
    special = special_of(processor)
    if not reason:
        reject_other_frame(name, special, {}, NUMBERS.get)
        return
    with pytest.raises(MetadataError, match=f"tokenizer_class = .*{reason}"):
        reject_other_frame(name, special, {}, NUMBERS.get)


def test_a_class_with_another_separator_is_named() -> None:
    special = special_of(BERT_TEMPLATE)
    with pytest.raises(MetadataError, match=r"another sep_token, '\[MASK\]'"):
        reject_other_frame("BertTokenizer", special, {"sep": "[MASK]"}, NUMBERS.get)


@pytest.mark.parametrize(
    ("in_file", "declared", "fits"),
    [
        ((), (), True),
        ((("new", 2),), (), True),
        ((("new", 2),), (("new", 2),), True),
        ((), (("new", 2),), True),
        ((), (("new", 3),), False),
        ((("more", 3),), (("new", 2),), False),
    ],
)
def test_added_tokens_with_other_numbers_are_named(
    in_file: tuple[tuple[str, int], ...],
    declared: tuple[tuple[str, int], ...],
    fits: bool,
) -> None:
    vocabulary = {"a": 0, "b": 1}
    both = []
    for pairs in (in_file, declared):
        both.append([AddedToken(number, content) for content, number in pairs])
    if fits:
        reject_other_numbers("BertTokenizer", vocabulary, *both)
        return
    with pytest.raises(MetadataError, match="added_tokens_decoder"):
        reject_other_numbers("BertTokenizer", vocabulary, *both)


@pytest.mark.parametrize("entry", [[["a"], 0], [{}, 0], [], ["a"], "a", None])
def test_entries_of_another_form_count_as_no_words(entry: Any) -> None:
    """The library tells which entry is wrong."""
    words = 2 if entry == ["a"] else 1
    declared = [AddedToken(words, "new")]
    reject_other_numbers("T5Tokenizer", [["b", 0.0], entry], [], declared)


@pytest.mark.parametrize(
    ("name", "setting", "lowers"),
    [
        ("SplinterTokenizer", None, True),
        ("SplinterTokenizer", False, False),
        ("HerbertTokenizer", True, False),
        ("DPRReaderTokenizer", False, True),
        ("ConvBertTokenizer", True, None),
        ("RetriBertTokenizer", True, None),
    ],
)
def test_classes_decide_on_small_letters(
    name: str, setting: bool | None, lowers: bool | None
) -> None:
    """None leaves it to ``tokenizer.json``."""
    settings = TokenizerSettings(name, setting)
    assert settings.of_bert_class is (lowers is not None)
    if lowers is not None:
        assert settings.case_of_class is lowers


@pytest.mark.parametrize(
    ("declared", "model_type", "name"),
    [
        ("BertTokenizerFast", "xlnet", "BertTokenizer"),
        ("", "xlnet", "XLNetTokenizer"),
        ("BertTokenizer", "nystromformer", "TokenizersBackend"),
        ("XLMRobertaTokenizer", "bert", "XLMRobertaTokenizer"),
        ("", None, ""),
    ],
)
def test_the_class_in_use(declared: str, model_type: str | None, name: str) -> None:
    assert class_in_use(declared, model_type) == name


def test_classes_with_rules_of_their_own_are_named(tmp_path: Path) -> None:
    files = {
        "vocab.txt": VOCAB,
        "tokenizer_config.json": {"tokenizer_class": "BertJapaneseTokenizer"},
    }
    with pytest.raises(MetadataError, match="tokenizer_class = 'BertJapanese"):
        task_of(tmp_path, bert_inputs(), {"logits": (1, 2)}, TEXT, files)


def test_the_class_makes_small_letters_by_default() -> None:
    assert TokenizerSettings("BertTokenizer").case_of_class is True
    assert TokenizerSettings("BertTokenizer", lower_case=False).case_of_class is False
    assert TokenizerSettings("RobertaTokenizer").case_of_class is None
