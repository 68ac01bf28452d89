"""SentencePiece tokens equal the library's, and any file is bounded."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
import zipfile
from collections.abc import Mapping
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ROOT, Server, StartServer
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import ModelMetadata, TensorMetadata
from pocketserve.runtimes.metadata_parts import (
    AssociatedFile,
    FileType,
    SentencePieceTokenizer,
)
from pocketserve.runtimes.registry import FORMATS
from pocketserve.tasks.base import AnswerOptions
from pocketserve.tasks.cancellation import CHECK_INTERVAL, cancellation_scope
from pocketserve.tasks.selection import select_task
from pocketserve.tasks.text import charsmap, sentencepiece_model
from pocketserve.tasks.text.options import TextOptions
from pocketserve.tasks.text.sentencepiece import SentencePiece
from pocketserve.tasks.text.sentencepiece_model import SentencePieceError, read_model
from pocketserve.tasks.text.tokenizers import sentencepiece_of
from pocketserve.tasks.text.tokens import Special
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import ApiError, ErrorCode
from tasks.sentencepiece_vectors import (
    DATA,
    FILE,
    MODELS,
    RULES,
    TEXTS,
    WORDS,
    by_library,
    train,
)
from text_models import bert_inputs, model, task_of

SETTINGS = settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=150,
)
RECORDED = json.loads(FILE.read_text(encoding="utf-8"))
FULL = {
    "nmt_nfkc": "unigram",
    "nfkc": "bpe",
    "nmt_nfkc_cf": "unigram",
}
"""The library's own large rules, and the kind of model to test them with."""


def content_of(name: str) -> bytes:
    """Return a small model's file."""
    return (DATA / f"{name}.model").read_bytes()


def tokens(content: bytes, text: str) -> list[list[int]]:
    """Return our tokens: number, start and end."""
    return [
        list(token)
        for token in SentencePiece(read_model(content), Special()).tokens(text)
    ]


LETTERS = st.sampled_from(
    [
        *"ablmp thelig\t\n\u2581éüßпривет東京あ🙂ﬁ…½\u00ad\u200b12.\uff21\ufffd\x00",
        *RULES,
        "e\u0301\u0301",
        "<mask>",
    ]
)
SENTENCES = st.one_of(
    st.lists(st.one_of(LETTERS, st.sampled_from(WORDS), st.just(" ")), max_size=30).map(
        "".join
    ),
    st.text(max_size=30),
)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("number", range(len(TEXTS)))
def test_tokens_equal_the_stored_tokens_of_the_library(name: str, number: int) -> None:
    """Numbers and offsets, by unigram and BPE, with every option."""
    assert tokens(content_of(name), TEXTS[number]) == RECORDED["tokens"][name][number]


# Compared with the library itself


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the small models and those with complete tables of rules."""
    pytest.importorskip("sentencepiece", reason="needs the sentencepiece library")
    made = {name: content_of(name) for name in MODELS}
    folder = tmp_path_factory.mktemp("sentencepiece")
    for rules, kind in FULL.items():
        made[rules] = train(
            folder,
            rules,
            {
                "model_type": kind,
                "vocab_size": 300,
                "normalization_rule_name": rules,
            },
        )
    return made


@pytest.mark.parametrize("name", [*MODELS, *FULL])
def test_random_texts_have_the_librarys_tokens(
    library: dict[str, bytes], name: str
) -> None:
    content = library[name]
    ours = SentencePiece(read_model(content), Special())

    @given(SENTENCES)
    @SETTINGS
    def compare(text: str) -> None:
        assert [list(token) for token in ours.tokens(text)] == by_library(content, text)

    compare()


@pytest.mark.parametrize("name", FULL)
def test_every_character_has_the_librarys_tokens(
    library: dict[str, bytes], name: str
) -> None:
    """Covers the first 128 thousand characters, and all of Hangul."""
    content = library[name]
    ours = SentencePiece(read_model(content), Special())
    chars = [chr(code) for code in range(0x20000) if not 0xD800 <= code < 0xE000]
    for start in range(0, len(chars), 1000):
        text = "a".join(chars[start : start + 1000])
        assert [list(token) for token in ours.tokens(text)] == by_library(
            content, text
        ), hex(ord(chars[start]))
    parts = "".join(
        chr(0x1100 + n % 19) + chr(0x1161 + n % 21) + chr(0x11A8 + n % 27)
        for n in range(3000)
    )
    assert [list(token) for token in ours.tokens(parts)] == by_library(content, parts)


# Properties of any text and file


@given(st.sampled_from([*MODELS]), SENTENCES)
@SETTINGS
def test_token_offsets_are_in_order(name: str, text: str) -> None:
    """Tokens don't overlap, lie in the text, and are pieces of the model."""
    read = read_model(content_of(name))
    found = list(SentencePiece(read, Special()).tokens(text))
    assert all(0 <= token.start <= token.end <= len(text) for token in found)
    assert all(
        one.end <= two.end and one.start <= two.start for one, two in pairwise(found)
    )
    assert all(0 <= token.number < len(read.pieces) for token in found)


def test_a_lone_surrogate_is_an_unknown_character() -> None:
    """JSON can express a lone surrogate, which is an unknown character."""
    for name in MODELS:
        assert tokens(content_of(name), "a\ud800b") == tokens(
            content_of(name), "a\ufffdb"
        )


@given(st.binary(max_size=200))
@SETTINGS
def test_random_bytes_are_a_model_or_rejected(content: bytes) -> None:
    with pytest.raises(SentencePieceError):
        read_model(content)


@given(
    st.sampled_from([*MODELS]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=20),
)
@settings(SETTINGS, max_examples=400)
def test_damaged_models_do_no_harm(name: str, changes: list[tuple[float, int]]) -> None:
    """A changed file is rejected or gives tokens, and misleading rules terminate."""
    content = bytearray(content_of(name))
    for place, byte in changes:
        content[int(place * (len(content) - 1))] = byte
    try:
        ours = SentencePiece(read_model(bytes(content)), Special())
    except SentencePieceError:
        return
    for text in ("turn on the lamp", "".join(RULES), "größe 123 🙂 \u2581 <mask>"):
        assert all(token.start <= token.end <= len(text) for token in ours.tokens(text))


@given(st.binary(max_size=300))
@SETTINGS
def test_damaged_rules_do_no_harm(rules: bytes) -> None:
    """Any rules terminate with some text."""
    blob = struct.pack("<I", len(rules) // 4 * 4) + rules + b"ab\0c"
    rewritten = read_model(content_of("unigram"))._replace(charsmap=blob)
    try:
        ours = SentencePiece(rewritten, Special())
    except SentencePieceError:
        return
    assert len(list(ours.tokens("turn on é é é"))) < 1000


REFUSED: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "not exactly one unknown piece"),
    "a text": (b"<unk>\n<s>\n", "not a SentencePiece model"),
    "a zip file": (b"PK\x03\x04" + bytes(100), "not a SentencePiece model"),
    "cut off": (content_of("unigram")[:900], "not a SentencePiece model"),
    "a piece twice": (
        content_of("unigram") + b"\x0a\x05\x0a\x03\xe2\x96\x81",
        "has the same piece twice",
    ),
    "an empty piece": (b"\x0a\x02\x0a\x00", "a piece has 0 characters"),
    "a long piece": (
        b"\x0a\x85\x01\x0a\x82\x01" + b"a" * 130,
        "a piece has 130 characters",
    ),
    "no finite score": (
        b"\x0a\x08\x0a\x01a\x15" + struct.pack("<f", np.inf),
        "no finite score",
    ),
    "an unknown type": (b"\x0a\x05\x0a\x01a\x18\x09", "is of unknown type 9"),
    "an unknown kind": (
        content_of("unigram") + b"\x12\x02\x18\x05",
        r"its type is 5; known are .* \(1 to 4\)",
    ),
    "no pieces for bytes": (
        content_of("unigram") + b"\x12\x03\x98\x02\x01",
        "some bytes have no piece",
    ),
    "rules that are none": (
        content_of("unigram") + b"\x1a\x04\x12\x02ab",
        "rules of normalisation are damaged",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_models_are_rejected_with_one_sentence(case: str) -> None:
    content, text = REFUSED[case]
    with pytest.raises(
        ModelLoadError, match=rf"tokenizer x\.model cannot be used: .*{text}"
    ):
        sentencepiece_of(content, "x.model", TextOptions())


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of the file, pieces, and characters after normalisation."""
    content = content_of("unigram")
    ours = SentencePiece(read_model(content), Special())
    monkeypatch.setattr(charsmap, "MAX_NORMALIZED", 50)
    assert list(ours.tokens("\ufdfa" * 5))
    with pytest.raises(ApiError, match="more than 50 characters once it is normalised"):
        list(ours.tokens("\ufdfa" * 10))
    monkeypatch.setattr(sentencepiece_model, "MAX_PIECES", 50)
    with pytest.raises(SentencePieceError, match="more than 50 pieces"):
        read_model(content)
    monkeypatch.setattr(sentencepiece_model, "MAX_MODEL_BYTES", 50)
    with pytest.raises(SentencePieceError, match="the limit is 50"):
        read_model(content)


class Counting:
    """A request that is cancelled at a given check."""

    def __init__(self, last: int) -> None:
        self.asked = 0
        self._last = last

    def __call__(self) -> None:
        self.asked += 1
        if self.asked > self._last:
            raise ApiError(ErrorCode.CANCELLED, "given up")


@pytest.mark.parametrize("name", MODELS)
def test_a_cancelled_request_ends_its_tokenization(name: str) -> None:
    """A long text stops while it is normalised or split."""
    ours = SentencePiece(read_model(content_of(name)), Special())
    text = "lamplight" * 10_000
    whole = Counting(1 << 30)
    with cancellation_scope(whole):
        found = list(ours.tokens(text))
    assert whole.asked > len(text) // CHECK_INTERVAL
    assert list(ours.tokens(text)) == found
    for last in (0, 1, whole.asked // 2, whole.asked - 1):
        with (
            cancellation_scope(Counting(last)),
            pytest.raises(ApiError, match="given up"),
        ):
            list(ours.tokens(text))


def test_only_the_needed_part_of_a_text_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long text costs no more than a short one with the same first tokens."""
    ours = SentencePiece(read_model(content_of("unigram")), Special())
    text = "turn on the lamp please "
    monkeypatch.setattr(charsmap, "MAX_NORMALIZED", 100)
    assert list(islice(ours.tokens(text * 1000), 8)) == list(
        islice(ours.tokens(text * 3), 8)
    )


@pytest.mark.parametrize("name", MODELS)
def test_long_texts(name: str) -> None:
    """100,000 characters without a space, or of one letter, take no longer than others."""
    ours = SentencePiece(read_model(content_of(name)), Special())
    for text in (
        "a" * 100_000,
        " " * 100_000,
        "the lamp " * 11_000,
        "\u2581" * 100_000,
        "<mask>" * 10_000,
    ):
        assert all(token.end <= len(text) for token in ours.tokens(text))


# In a model


ALBERT = content_of("albert")
NUMBERS = {piece: number for number, piece in enumerate(read_model(ALBERT).pieces)}
LABELS = AssociatedFile("labels.txt", type=FileType.TENSOR_AXIS_LABELS)


def described(
    folder: Path,
    unit: SentencePieceTokenizer,
    names: list[str],
    content: bytes = ALBERT,
    manifest: Mapping[str, Any] | None = None,
) -> Any:
    """Return the task of a TFLite file with this tokenizer."""
    folder.mkdir(exist_ok=True)
    inputs = [
        TensorSpec(f"serving_default_{name}:0", "INT32", (1, 8)) for name in names
    ]
    facts = model(folder, inputs, {"Identity": (1, 2)}, manifest)
    path = folder / "m" / "m.tflite"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("30k.model", content)
        archive.writestr("labels.txt", "bad\ngood")
    kind = next(kind for kind in FORMATS if kind.name == "tflite")
    version = facts.version._replace(format=kind, path=path)
    facts = dataclasses.replace(facts, version=version)
    outputs = (TensorMetadata("probability", associated_files=(LABELS,)),)
    tensors = tuple(TensorMetadata(name) for name in names)
    facts.__dict__["metadata"] = ModelMetadata(
        inputs=tensors, outputs=outputs, input_process_units=(unit,)
    )
    return select_task(facts)


def test_a_tokenizer_from_the_files_metadata(tmp_path: Path) -> None:
    """A classifier with a SentencePiece file needs no manifest.

    BERT-like ones get special tokens.
    """
    unit = SentencePieceTokenizer((AssociatedFile("30k.model"),), ())
    task = described(tmp_path, unit, ["ids", "mask", "segment_ids"])
    assert task.name == "text-classification"
    run = task.prepare(memoryview(b"Turn ON the lamp.")).runs[0]
    ids, mask = (
        run[f"serving_default_{name}:0"][0].tolist() for name in ("ids", "mask")
    )
    words = "[CLS] ▁turn"
    assert ids[:2] == [NUMBERS[piece] for piece in words.split()]
    assert NUMBERS["[SEP]"] in ids
    assert ids[sum(mask) :] == [NUMBERS["<pad>"]] * (8 - sum(mask))


NAMED = SentencePieceTokenizer((AssociatedFile("30k.model"),), ())
UNUSABLE: dict[str, tuple[SentencePieceTokenizer, bytes, str]] = {
    "no file": (
        SentencePieceTokenizer((), ()),
        b"",
        "names a tokenizer but no vocabulary file",
    ),
    "a file that is not there": (
        SentencePieceTokenizer((AssociatedFile("other.model"),), ()),
        b"",
        r"vocabulary cannot be read.*other\.model",
    ),
    "an unknown kind": (
        NAMED,
        content_of("unigram") + b"\x12\x02\x18\x05",
        "known are unigram, BPE",
    ),
    "cut off": (NAMED, content_of("unigram")[:900], "not a SentencePiece model"),
}


@pytest.mark.parametrize("case", UNUSABLE)
def test_an_unusable_tokenizer(
    case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A hub model is served as tensors with a warning.

    If the manifest requires the task, it is an error.
    """
    unit, content, why = UNUSABLE[case]
    task = described(tmp_path / "hub", unit, ["ids"], content)
    assert task.name == "tensors"
    assert re.search(why, task.problem)
    assert re.search(
        f"served as tensors, not as text-classification: .*{why}", caplog.text
    )
    manifests: list[dict[str, Any]] = [
        {"task": "text-classification"},
        {"text": {"lower_case": True}},
    ]
    for number, manifest in enumerate(manifests):
        with pytest.raises(ModelLoadError, match=why):
            described(tmp_path / str(number), unit, ["ids"], content, manifest)


def ids_by(folder: Path, file: str, text: str, **table: Any) -> list[int]:
    """Return the tokens of a model whose manifest names a SentencePiece file."""
    (folder / "m").mkdir(parents=True)
    (folder / "m" / "spiece.model").write_bytes(content_of(file))
    options = {"tokenizer": "sentencepiece", **table}
    task = task_of(
        folder,
        bert_inputs()[:1],
        {"y": (1, 2)},
        {"task": "text-classification", "text": options},
    )
    found: list[int] = (
        task.prepare(memoryview(text.encode())).runs[0]["input_ids"][0].tolist()
    )
    return found


def test_a_tokenizer_from_a_manifest(tmp_path: Path) -> None:
    """The manifest names the file.

    It also says whether begin and end pieces surround a text.
    """
    bare = [token[0] for token in tokens(content_of("unigram"), "the lamp")]
    assert ids_by(tmp_path / "1", "unigram", "the lamp") == bare
    assert ids_by(
        tmp_path / "2", "unigram", "the lamp", add_bos=True, add_eos=True
    ) == [1, *bare, 2]
    assert ids_by(tmp_path / "3", "unigram", "the lamp", add_eos=True) == [*bare, 2]
    assert ids_by(tmp_path / "4", "unigram", "THE lamp", lower_case=True) == bare
    assert ids_by(tmp_path / "5", "unigram", "THE lamp") != bare
    albert = [token[0] for token in tokens(content_of("albert"), "the lamp")]
    assert ids_by(tmp_path / "6", "albert", "The LAMP") == [
        NUMBERS["[CLS]"],
        *albert,
        NUMBERS["[SEP]"],
    ]
    assert ids_by(tmp_path / "7", "albert", "the lamp", add_eos=False) == albert
    with pytest.raises(
        ModelLoadError,
        match=r"text\.add_bos is true, but the tokenizer has no such piece",
    ):
        ids_by(tmp_path / "8", "albert", "the lamp", add_bos=True)
    with pytest.raises(
        ModelLoadError, match=r"text\.vocabulary x\.model is not beside the model"
    ):
        ids_by(tmp_path / "9", "albert", "the lamp", vocabulary="x.model")


def test_answers_begin_with_a_letter(tmp_path: Path) -> None:
    """The space before a word belongs to its piece, but not to an answer."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "spiece.model").write_bytes(content_of("albert"))
    outputs = {"end_logits": (1, 40), "start_logits": (1, 40)}
    manifest = {"task": "question-answering", "text": {"tokenizer": "sentencepiece"}}
    task = task_of(tmp_path, bert_inputs(40), outputs, manifest)
    asked = {"question": "what", "context": "please turn on  the lamp"}
    context = task.prepare(memoryview(json.dumps(asked).encode())).context
    ((_, _, front),) = context[2]
    place = front + next(
        n for n, token in enumerate(context[1]) if token.number == NUMBERS["▁lamp"]
    )
    logits = np.zeros((1, 40), np.float32)
    logits[0, place] = 9.0
    best = task.answer(
        [{"end_logits": logits, "start_logits": logits}], AnswerOptions(1), context
    )[0]
    assert best["answer"] == "lamp"
    assert best["start"] == 20
    assert best["end"] == 24


def make_embedder(folder: Path) -> None:
    """Create a model whose texts are split by a SentencePiece file."""
    folder.mkdir(parents=True)
    phrases = ROOT / "tests" / "models" / "phrases" / "phrases.tflite"
    (folder / "pieces.tflite").write_bytes(phrases.read_bytes())
    (folder / "spiece.model").write_bytes(content_of("albert"))
    (folder / "model.toml").write_text(
        'task = "text-embedding"\n[text]\ntokenizer = "sentencepiece"\npooling = "mean"\n'
    )


def embedding_of_tokens(server: Server, text: str) -> Array:
    """Return the pooled output of a text's own tokens, sent as a tensor."""
    pieces = [token[0] for token in tokens(content_of("albert"), text)]
    ids = [
        NUMBERS["[CLS]"],
        *pieces,
        NUMBERS["[SEP]"],
    ]
    row = {
        "name": "input_ids",
        "datatype": "INT32",
        "shape": [1, 16],
        "data": ids + [0] * (16 - len(ids)),
    }
    answer = server.call("POST", "/v2/models/pieces/infer", json={"inputs": [row]})
    vectors = np.reshape(answer.json()["outputs"][0]["data"], (16, -1))
    pooled = vectors[: len(ids)].mean(axis=0)
    return pooled / np.linalg.norm(pooled)


@pytest.mark.live
def test_a_served_model_with_a_tokenizer(
    new_server: StartServer, tmp_path: Path
) -> None:
    """Over HTTP and the socket, a text gives the same answer as its tokens."""
    make_embedder(tmp_path / "models" / "pieces")
    server = new_server(tmp_path / "models")
    path = "/predictions/pieces"
    text = "turn on the größe lamp"
    answer = server.call("POST", path, data=text.encode())
    assert answer.status_code == 200, answer.text
    predictions = answer.json()["predictions"]
    with server.connect() as framed:
        body = framed.call(f"POST {path}", text.encode()).body
    assert json.loads(body)["predictions"] == predictions
    np.testing.assert_allclose(
        predictions[0]["embedding"], embedding_of_tokens(server, text), rtol=1e-4
    )
    for wrong, part in (
        (b"", "text is empty"),
        (b"\xff", "not UTF-8"),
        (b"a" * 200_001, "the limit is 200000"),
    ):
        rejected = server.call("POST", path, data=wrong)
        assert rejected.status_code == 400
        assert part in rejected.json()["error"]
    long_text = server.call("POST", path, data=b"lamp " * 20_000)
    assert long_text.status_code == 200
