"""Texts become tokens; model outputs become labels, answers and vectors."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.base import AnswerOptions, Hints
from pocketserve.tasks.text import texts as module
from pocketserve.tasks.text.options import TextOptions
from pocketserve.tasks.text.regex_words import RegexWords, compile_delimiter
from pocketserve.tasks.text.texts import read_texts
from pocketserve.tasks.text.tokenizers import tokenizer_of
from pocketserve.tensors import TensorSpec
from pocketserve_wire import ApiError, ErrorCode, strict_json
from text_models import VOCABULARY, bert_inputs, model, task_of

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=200,
)
FILES: Mapping[str, Any] = {
    "vocab.txt": "\n".join(VOCABULARY) + "\n",
    "l.txt": "bad\ngood\n",
}
NUMBER = {word: number for number, word in enumerate(VOCABULARY)}


def numbers(words: str) -> list[int]:
    """Return the numbers of tokens."""
    return [NUMBER[word] for word in words.split()]


# Forms of a text


def texts(body: bytes, content_type: str = "") -> Any:
    """Return the texts of a body."""
    return read_texts(memoryview(body), Hints(content_type), 100)


READ: dict[str, tuple[bytes, str, Any]] = {
    "plain": ("é a".encode(), "", (["é a"], False)),
    "with a mark of byte order": (b"\xef\xbb\xbfhello", "", (["hello"], False)),
    "Latin": (b"caf\xe9", "text/plain; charset=ISO-8859-1", (["café"], False)),
    "UTF-16": ("a".encode("utf-16"), 'text/plain;charset="utf-16"', (["a"], False)),
    "a JSON text": (b'"hello"', "", (["hello"], False)),
    "a JSON object": (b'{"text": "hello"}', "", (["hello"], False)),
    "a JSON list": (b'["a", "b"]', "", (["a", "b"], True)),
    "texts in an object": (b'{"texts": ["a"]}', "application/json", (["a"], True)),
    "text that looks like JSON": (b'["a"]', "text/plain", (['["a"]'], False)),
    "no JSON after all": (b"[sic] hello", "", (["[sic] hello"], False)),
    "a list of numbers that is a text": (b"[1, 2]", "text/plain", (["[1, 2]"], False)),
    "a number": (b"12", "", (["12"], False)),
    "a quotation": (b'"Great" film', "", (['"Great" film'], False)),
}


def test_oversized_json_is_treated_as_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """This applies to undeclared JSON with too many bytes or brackets.

    The text's own limit remains.
    """
    monkeypatch.setattr(module, "MAX_TEXTS", 2)
    longest = json.dumps(["\U0001f600" * 100] * 2, indent=8).encode()
    assert texts(longest) == (["\U0001f600" * 100] * 2, True)
    monkeypatch.setattr(strict_json, "MAX_JSON_CONTAINERS", 8)
    monkeypatch.setattr(strict_json, "MAX_JSON_SCALARS", 8)
    assert texts(b'["[[[[[[[" ]') == (["[[[[[[["], True)
    assert texts(b'["a,,,,,,,"]') == (["a,,,,,,,"], True)
    monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("parsed"))
    assert texts(b"[0,0,0,0,0,0,0,0,0]") == (["[0,0,0,0,0,0,0,0,0]"], False)
    with pytest.raises(ApiError, match="more than 100 characters"):
        texts(b'["a"' + b" " * 4000 + b"]")
    assert texts(b"[[[[[[[[[]") == (["[[[[[[[[[]"], False)


@pytest.mark.parametrize("case", READ)
def test_forms_of_a_text(case: str) -> None:
    """Bytes, charsets and JSON."""
    body, content_type, expected = READ[case]
    assert texts(body, content_type) == expected


REFUSED: dict[str, tuple[bytes, str, str]] = {
    "empty": (b"", "", "text is empty"),
    "spaces": (b" \n", "", "text is empty"),
    "not UTF-8": (b"ab\xff", "", r"not UTF-8 \(byte 2\)"),
    "an unknown charset": (b"a", "text/plain; charset=ebcdic", "charset 'ebcdic'"),
    "too many characters": (b"a" * 101, "", "101 characters, the limit is 100"),
    "far too many": (b"a" * 1000, "", "more than 100 characters"),
    "no texts": (b"[]", "application/json", "list of texts is empty"),
    "one is empty": (b'["a", ""]', "", "text is empty"),
    "many": (json.dumps(["a"] * 257).encode(), "", "257 texts, the limit is 256"),
    "JSON of something else": (b"[1]", "application/json", "JSON for this model is"),
    "a list of numbers": (
        b"[1, 2]",
        "",
        "JSON for this model is a text, .*; with Content-Type text/plain it is a text",
    ),
    "lists of texts": (b'[["a"], ["b"]]', "", "JSON for this model is a text"),
    "another name": (b'{"review": "good"}', "", "JSON for this model is a text"),
    "more than a text": (
        b'{"text": "good", "top_k": 1}',
        "",
        "JSON for this model is a text",
    ),
    "a text that is a number": (b'{"text": 5}', "", "JSON for this model is a text"),
    "broken JSON": (b"[1", "application/json", "JSON"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_texts_are_rejected(case: str) -> None:
    body, content_type, text = REFUSED[case]
    with pytest.raises(ApiError, match=text):
        texts(body, content_type)


@given(st.binary(max_size=80), st.sampled_from(["", "text/plain", "application/json"]))
@SETTINGS
def test_random_bytes_are_a_text_or_rejected(body: bytes, content_type: str) -> None:
    """Only ApiError is raised."""
    code = ErrorCode.INVALID_INPUT
    try:
        found, _ = texts(body, content_type)
    except ApiError as error:
        found = []
        code = error.code
    assert code in (ErrorCode.INVALID_INPUT, ErrorCode.MALFORMED_JSON)
    assert all(text.strip() for text in found)


# Delimiters

GOOD = [
    r"[^\w']+",
    r"[^\w\']+",
    r"\s+",
    r" ",
    r"\W+",
    r"[\s,.;]+",
    r"([^a-z]+)",
    r"\s+|[,.!?]",
    r"\.|-",
]
EVIL = [
    r"[[:alpha:]]+",
    r"[a--b]",
    r"(a+)+$",
    r"(a|a)*b",
    r"a*a*a*b",
    r"(.*)x",
    r".*",
    r"(?=a)",
    r"(?i)a",
    r"\1",
    r"a{9999}",
    r"[a",
    "a" * 500,
]


@pytest.mark.parametrize("pattern", GOOD)
def test_delimiters(pattern: str) -> None:
    """Lists of characters and classes are read and leave the words."""
    assert compile_delimiter(pattern).pattern
    words = RegexWords(pattern, {"<START>": 1, "<UNKNOWN>": 2})
    assert words.special.first == (1,)
    found = [(token.start, token.end) for token in words.tokens("ab. cd-ef")]
    assert found
    assert all(start < end for start, end in found)


@pytest.mark.parametrize("pattern", EVIL)
def test_untrusted_delimiters_are_rejected(pattern: str) -> None:
    """Patterns that could run forever are rejected, and so are invalid ones."""
    with pytest.raises(ValueError, match="delimiter"):
        compile_delimiter(pattern)


@given(st.text(max_size=40))
@SETTINGS
def test_words_are_the_text_between_delimiters(text: str) -> None:
    """Words and delimiters together form the text.

    Shorthand classes mean ASCII.
    """
    words = RegexWords(r"[^\w']+", {})
    found = []
    for token in words.tokens(text):
        found.append("".join(text[token.start : token.end]))
    assert found == [word for word in compile_delimiter(r"[^\w']+").split(text) if word]


# Classification


def arrays(task: Any, body: bytes) -> Any:
    """Return the inputs of the first run."""
    return task.prepare(memoryview(body)).runs[0]


@pytest.mark.parametrize("kind", ["INT32", "INT64"])
def test_a_bert_classifier(tmp_path: Path, kind: str) -> None:
    """Three named inputs, padded to the model's length, with special tokens around the
    text.
    """
    task = task_of(
        tmp_path,
        bert_inputs(8, kind),
        {"logits": (1, 2)},
        {"task": "text-classification", "labels": "l.txt"},
        FILES,
    )
    found = arrays(task, b"The films, who?")
    assert {
        name: (a.shape, a.dtype.name) for name, a in found.items()
    } == dict.fromkeys(
        ("input_ids", "attention_mask", "token_type_ids"), ((1, 8), kind.lower())
    )
    assert found["input_ids"].tolist() == [numbers("[CLS] the film ##s , who ? [SEP]")]
    assert arrays(task, b"good")["attention_mask"].tolist() == [
        [1, 1, 1, 0, 0, 0, 0, 0]
    ]
    long = arrays(task, b"good film " * 50)["input_ids"][0].tolist()
    assert long == numbers("[CLS] good film good film good film [SEP]")


def test_open_lengths(tmp_path: Path) -> None:
    """A model of any length gets the text up to the trained length in its files."""
    manifest = {"task": "text-classification", "labels": "l.txt"}
    files = {**FILES, "tokenizer_config.json": {"model_max_length": 5}}
    task = task_of(tmp_path, bert_inputs(), {"logits": (1, 2)}, manifest, files)
    assert arrays(task, b"good")["input_ids"].shape == (1, 3)
    assert arrays(task, b"good " * 50)["input_ids"].shape == (1, 5)


def test_a_hugging_face_folder(tmp_path: Path) -> None:
    """Labels, logits and case come from the files beside such a model."""
    config = {
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "NEGATIVE", "1": "POSITIVE"},
    }
    files = {
        "vocab.txt": FILES["vocab.txt"],
        "config.json": config,
        "tokenizer_config.json": {"do_lower_case": False},
    }
    task = task_of(
        tmp_path,
        bert_inputs(),
        {"logits": (1, 2)},
        {"task": "text-classification"},
        files,
    )
    assert arrays(task, b"Good")["input_ids"].tolist() == [numbers("[CLS] [UNK] [SEP]")]
    found = task.answer(
        [{"logits": np.array([[0.0, np.log(3)]])}], AnswerOptions(), False
    )
    assert [(e["label"], round(e["score"], 6)) for e in found] == [
        ("POSITIVE", 0.75),
        ("NEGATIVE", 0.25),
    ]


def test_label_languages(tmp_path: Path) -> None:
    """Labels are in the request's language, with a fallback for unknown ones."""
    manifest = {
        "task": "text-classification",
        "labels": "l.txt",
        "translations": {"de": "de.txt"},
    }
    task = task_of(
        tmp_path,
        bert_inputs(),
        {"y": (1, 2)},
        manifest,
        {**FILES, "de.txt": "schlecht\ngut\n"},
    )
    scores = [{"y": np.array([[0.1, 0.9]])}]
    found = []
    for tag in ("de-AT", "fr", None):
        found.append(
            task.answer(scores, AnswerOptions(1, language=tag), False)[0]["label"]
        )
    assert found == ["gut", "good", "good"]


def test_one_score_with_two_labels(tmp_path: Path) -> None:
    """It is the second label's probability."""
    manifest = {
        "task": "text-classification",
        "labels": "l.txt",
        "classification": {"activation": "sigmoid"},
    }
    task = task_of(tmp_path, bert_inputs(), {"y": (1, 1)}, manifest, FILES)
    found = task.answer(
        [{"y": np.array([[0.0]])}, {"y": np.array([[9.0]])}], AnswerOptions(1), True
    )
    assert [(e["input"], e["label"]) for e in found] == [(0, "bad"), (1, "good")]


def test_a_model_with_its_own_tokenizer(tmp_path: Path) -> None:
    """A BYTES input gets the text."""
    task = task_of(
        tmp_path,
        [TensorSpec("text", "BYTES", (1,))],
        {"y": (1, 2)},
        {"task": "text-classification", "labels": "l.txt"},
        FILES,
    )
    assert arrays(task, "größe".encode())["text"].tolist() == ["größe".encode()]
    # Half of a character.
    assert arrays(task, b'["a\\ud800b"]')["text"].tolist() == ["a\ufffdb".encode()]


WRONG: dict[str, tuple[list[TensorSpec], dict[str, Any], dict[str, Any], str]] = {
    "no tokenizer": (
        bert_inputs(),
        {},
        {},
        "put its tokenizer.json or vocab.txt beside it",
    ),
    "no such file": (
        bert_inputs(),
        {"vocabulary": "v.txt"},
        FILES,
        "v.txt is not beside the model",
    ),
    "no vocabulary of BERT": (
        bert_inputs(),
        {},
        {"vocab.txt": "a\nb\n"},
        r"has no \[CLS\]",
    ),
    "an input of no known role": (
        [*bert_inputs(), TensorSpec("pixels", "FP32", (1, 8))],
        {},
        FILES,
        "name them as text.ids",
    ),
    "no such input": (
        bert_inputs(),
        {"ids": "x"},
        FILES,
        "text.ids names 'x'; the model has 'input_ids'",
    ),
    "no tokenizer.json": (
        bert_inputs(),
        {"tokenizer": "huggingface"},
        FILES,
        "no tokenizer.json beside the model",
    ),
    "a broken tokenizer.json": (
        bert_inputs(),
        {},
        {"tokenizer.json": "{"},
        "tokenizer.json beside the model cannot",
    ),
    "an evil delimiter": (
        bert_inputs(),
        {"tokenizer": "regex", "delimiter": "(a+)+"},
        FILES,
        "delimiter",
    ),
    "no such output": (bert_inputs(), {"output": "z"}, FILES, "text.output names 'z'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_incompatible_models_are_rejected(tmp_path: Path, case: str) -> None:
    """The error says which entry to add."""
    inputs, table, files, text = WRONG[case]
    with pytest.raises(ModelLoadError, match=text):
        task_of(
            tmp_path,
            inputs,
            {"y": (1, 2)},
            {"task": "text-classification", "text": table},
            files,
        )


def test_other_tokenizers_use_the_library(tmp_path: Path) -> None:
    """Tokenizers other than BERT's use the library, with the same special tokens."""
    library = pytest.importorskip("tokenizers", reason="needs the tokenizers library")
    made = library.Tokenizer(
        library.models.WordLevel(
            {
                "<s>": 0,
                "</s>": 1,
                "<unk>": 2,
                "<pad>": 3,
                "hi": 4,
            },
            "<unk>",
        )
    )
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.post_processor = library.processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 1)],
    )
    facts = model(
        tmp_path,
        bert_inputs(),
        {"y": (1, 2)},
        files={"tokenizer.json": json.loads(made.to_str())},
    )
    tokenizer = tokenizer_of(facts, TextOptions())
    special = tokenizer.special
    assert special.first == (0,)
    assert special.middle == (1, 1)
    assert special.last == (1,)
    assert special.pad == 3
    assert special.unknown == 2
    assert [tuple(token) for token in tokenizer.tokens("hi you")] == [
        (4, 0, 2),
        (2, 3, 6),
    ]


# Question answering

ASK = {
    "question": "who was it?",
    "context": "The capital of France is Paris, it is great.",
}


def reader(folder: Path, length: int = 40, **table: Any) -> Any:
    """Return a model for questions."""
    outputs = {"end_logits": (1, length), "start_logits": (1, length)}
    return task_of(
        folder,
        bert_inputs(length),
        outputs,
        {"task": "question-answering", "text": table},
        FILES,
    )


def logits(length: int, start: int, end: int) -> dict[str, Any]:
    """Return outputs that are certain of one span."""
    found = {}
    for name in ("start_logits", "end_logits"):
        found[name] = np.zeros((1, length), np.float32)
    found["start_logits"][0, start] = found["end_logits"][0, end] = 9.0
    return found


def test_answer_a_question(tmp_path: Path) -> None:
    """The question, the context, and an answer with its character offsets."""
    task = reader(tmp_path)
    prepared = task.prepare(memoryview(json.dumps(ASK).encode()))
    words = (
        "[CLS] who was it ? [SEP] the capital of france is paris , it is great . [SEP]"
    )
    count = len(words.split())
    assert prepared.runs[0]["input_ids"][0, :count].tolist() == numbers(words)
    assert prepared.runs[0]["token_type_ids"][0].tolist() == [0] * 6 + [1] * (
        count - 6
    ) + [0] * (40 - count)
    found = task.answer([logits(40, 9, 11)], AnswerOptions(top_k=2), prepared.context)
    assert {key: found[0][key] for key in ("answer", "start", "end")} == {
        "answer": "France is Paris",
        "start": 15,
        "end": 30,
    }
    assert len(found) == 2
    assert 0.9 < found[0]["score"] <= 1
    assert found[1]["score"] < 0.01
    assert (
        task.answer(
            [logits(40, 9, 11)], AnswerOptions(threshold=0.99999), prepared.context
        )
        == []
    )


def test_no_answer(tmp_path: Path) -> None:
    """If the model selects the first token, no span scores high."""
    task = reader(tmp_path)
    context = task.prepare(memoryview(json.dumps(ASK).encode())).context
    assert task.answer([logits(40, 0, 0)], AnswerOptions(), context)[0]["score"] < 0.01
    backwards = task.answer([logits(40, 11, 9)], AnswerOptions(), context)
    assert all(
        entry["start"] < entry["end"] and entry["score"] < 0.01 for entry in backwards
    )


@pytest.mark.parametrize("count", [1, 2, 14, 15, 16, 29, 30, 31, 100, 400])
@pytest.mark.parametrize("stride", [0, 1, 7, 30])
def test_windows_cover_long_contexts(tmp_path: Path, count: int, stride: int) -> None:
    """Every token is in a window.

    Adjacent windows overlap, and offsets refer to the whole text.
    """
    task = reader(tmp_path, 20, stride=stride)
    text = " ".join(["paris"] * count)
    body = json.dumps({"question": "who ?", "context": text}).encode()
    prepared = task.prepare(memoryview(body))
    windows = prepared.context[2]
    covered: set[int] = set()
    for first, size, front in windows:
        assert 0 < size <= 20 - 5
        assert front == 4
        covered |= set(range(first, first + size))
    assert covered == set(range(count))

    last = len(prepared.runs) - 1
    _, size, front = windows[last]
    end = front + size - 1
    outputs = [logits(20, 0, 0)] * last + [logits(20, end, end)]
    best = task.answer(outputs, AnswerOptions(top_k=1), prepared.context)[0]
    assert best["end"] == len(text)
    assert best["answer"] == "paris"


BAD_QUESTIONS = {
    "text": (b"who?", "takes a JSON object"),
    "a list": (b'["who?"]', "takes a JSON object"),
    "no context": (b'{"question": "who"}', "text 'context' is missing"),
    "a number": (b'{"question": 1, "context": "a"}', "text 'question' is missing"),
    "an empty context": (b'{"question": "who", "context": " "}', "text is empty"),
    "something else": (
        b'{"question": "who", "context": "a", "x": 1}',
        "unknown key 'x'",
    ),
    "a long question": (
        json.dumps({"question": "who " * 30, "context": "a"}).encode(),
        "question has 30 tokens",
    ),
    "a question of nothing": (
        b'{"question": "\\u200b", "context": "a"}',
        "question has 0 tokens",
    ),
}


@pytest.mark.parametrize("case", BAD_QUESTIONS)
def test_invalid_questions_are_rejected(tmp_path: Path, case: str) -> None:
    body, text = BAD_QUESTIONS[case]
    with pytest.raises(ApiError, match=text):
        reader(tmp_path).prepare(memoryview(body))


def test_a_context_without_tokens(tmp_path: Path) -> None:
    """An empty context gives no answer and no error."""
    task = reader(tmp_path)
    prepared = task.prepare(
        memoryview(json.dumps({"question": "who?", "context": "\u200b"}).encode())
    )
    assert task.answer([logits(40, 0, 0)], AnswerOptions(), prepared.context) == []


# Embedding


def embedder(
    folder: Path, shape: tuple[int, ...] = (1, 8, 2), files: Any = None, **table: Any
) -> Any:
    """Return a model for vectors of two numbers."""
    manifest = {"task": "text-embedding", "text": table}
    return task_of(
        folder,
        bert_inputs(8),
        {"last_hidden_state": shape},
        manifest,
        {**FILES, **(files or {})},
    )


TOKENS = np.array(
    [[[3, 0], [0, 4], [3, 0], [100, 100], [0, 0], [0, 0], [0, 0], [0, 0]]], np.float32
)


@pytest.mark.parametrize(
    ("table", "files", "expected"),
    [
        ({"pooling": "mean", "normalize": False}, {}, [2, 4 / 3]),
        ({}, {}, [0.83205, 0.5547]),
        ({"pooling": "cls"}, {}, [1, 0]),
        ({"pooling": "max", "normalize": False}, {}, [3, 4]),
        ({}, {"1_Pooling": {"pooling_mode_cls_token": True}}, [1, 0]),
    ],
    ids=str,
)
def test_pooling(
    tmp_path: Path, table: dict[str, Any], files: dict[str, Any], expected: list[float]
) -> None:
    """Padding does not take part in it."""
    (tmp_path / "m" / "1_Pooling").mkdir(parents=True)
    for name, content in files.items():
        (tmp_path / "m" / name / "config.json").write_text(json.dumps(content))
    task = embedder(tmp_path, **table)
    prepared = task.prepare(memoryview(b"good"))
    found = task.answer(
        [{"last_hidden_state": TOKENS}], AnswerOptions(), prepared.context
    )
    assert found == [{"index": 0, "embedding": pytest.approx(expected, rel=1e-4)}]


def test_a_list_and_a_query(tmp_path: Path) -> None:
    """Vectors are in the order of the texts.

    With a query, texts are ordered by cosine.
    """
    task = embedder(tmp_path, (1, 2))
    outputs = []
    for row in (
        [2, 0],
        [0, 5],
        [3, 3],
    ):
        outputs.append({"last_hidden_state": np.array([row], np.float32)})
    several = task.prepare(memoryview(b'["a", "b", "c"]'))
    assert [
        e["index"] for e in task.answer(outputs, AnswerOptions(), several.context)
    ] == [0, 1, 2]
    compared = task.prepare(memoryview(b'{"query": "a", "texts": ["b", "c"]}'))
    assert len(compared.runs) == 3
    found = task.answer(outputs, AnswerOptions(), compared.context)
    assert [(e["index"], round(e["score"], 4)) for e in found] == [
        (1, 0.7071),
        (0, 0.0),
    ]
    assert (
        len(task.answer(outputs, AnswerOptions(threshold=0.5), compared.context)) == 1
    )
    silent = [{"last_hidden_state": np.zeros((1, 2), np.float32)}] * 3
    assert [
        e["score"] for e in task.answer(silent, AnswerOptions(), compared.context)
    ] == [0, 0]
