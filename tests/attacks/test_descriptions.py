"""Bound the cost of hostile patterns, manifests, labels and vocabularies.

Cost is counted, or limited by the kernel in a separate process: no test asserts a time.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import re
import shutil
import socket
import subprocess
import sys
import threading
import zipfile
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import pocketserve
import pocketserve_client
import pocketserve_wire
from conftest import MODELS, Server, StartServer
from pocketserve.repository.manifest import (
    MAX_MANIFEST_BYTES,
    ManifestError,
    read_manifest,
)
from pocketserve.repository.scan import scan
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.metadata import TensorMetadata
from pocketserve.runtimes.metadata_parts import AssociatedFile, FileType
from pocketserve.runtimes.registry import FORMATS
from pocketserve.tasks import labels
from pocketserve.tasks.cancellation import CHECK_INTERVAL, cancellation_scope
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.text.options import TextOptions
from pocketserve.tasks.text.regex_words import (
    MAX_PATTERN_CHARS,
    RegexWords,
    compile_delimiter,
)
from pocketserve.tasks.text.sentencepiece import SentencePiece
from pocketserve.tasks.text.sentencepiece_model import (
    ModelKind,
    PieceType,
    SentencePieceModel,
)
from pocketserve.tasks.text.tokenizers import tokenizer_of
from pocketserve.tasks.text.tokens import Special, Tokenizer
from pocketserve.tasks.text.wordpiece import WORD_CHARS_LIMIT, WordPiece
from pocketserve.tensors import TensorSpec
from pocketserve_client import Client, ServerError
from text_models import model

LIMITED = """
import resource, sys
seconds, megabytes = int(sys.argv[1]), int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
resource.setrlimit(resource.RLIMIT_AS, (megabytes << 20, megabytes << 20))
exec(sys.stdin.read())
"""


def run_limited(code: str, *, cpu_s: int, megabytes: int) -> str:
    """Run Python under kernel limits and return its output."""
    command = [sys.executable, "-c", LIMITED, str(cpu_s), str(megabytes)]
    done = subprocess.run(
        command, input=code, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-2000:] or f"ended by {done.returncode}"
    return done.stdout


# Patterns

UNITS = (
    *(
        "a",
        "1",
        "/",
        " ",
        "[",
        ".",
        "'",
        "\n",
        ":",
        "::",
        "a::",
        "-",
        "_",
        "\\",
        '"',
        "<",
        "=",
        "{",
    ),
    *(
        "a.",
        "1,",
        ":1",
        "/a:1 ",
        "a.cc:1 ",
        "tensor(",
        "seq(tensor(",
        "torch.",
        "aten .",
    ),
)
"""Texts on which a matcher may backtrack."""

BOUNDED = {
    "pocketserve.runtimes.onnx.errors": 6000,
    "pocketserve.runtimes.model_files": 64,
    # matched token by token, never searched for: see below
    "pocketserve.runtimes.torch.source._TOKEN": 3000,
    # matched at the start of a line or as a whole, never searched for
    "pocketserve.formats.plain_yaml": 3000,
    "pocketserve.quarantine.rules._LOADER": 4096,
    "pocketserve.tasks.tabular.tables._COMMA": 20,  # applied to a whole cell only
    "pocketserve.tasks.text.regex_words._SIMPLE": MAX_PATTERN_CHARS,
}
"""Patterns whose input is limited to this many characters."""

ELSEWHERE = {
    f"pocketserve_scale.{name}"
    for name in ("triton_model", "ray_replica", "ray_applications")
}
"""Modules that only Triton and Ray processes can import."""
MATCH = """
import re
for pattern, flags, is_bytes, size in {patterns!r}:
    matcher = re.compile(pattern, flags)
    for unit in {units!r}:
        text = unit * (size // len(unit)) + "!"
        text = text.encode() if is_bytes else text
        matcher.search(text), matcher.fullmatch(text)
"""


def modules() -> Iterator[Any]:
    """Return all modules of the three packages."""
    for package in (pocketserve, pocketserve_wire, pocketserve_client):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not found.name.endswith("__main__") and found.name not in ELSEWHERE:
                yield importlib.import_module(found.name)


def patterns_in(value: Any) -> Iterator[re.Pattern[Any]]:
    if isinstance(value, re.Pattern):
        yield value
    elif isinstance(value, tuple | list):
        for item in value:
            yield from patterns_in(item)


def test_no_pattern_backtracks_for_long() -> None:
    """Try each compiled pattern of the project on 100,000 hostile characters."""
    wanted = {}
    for module in modules():
        for name, value in vars(module).items():
            size = BOUNDED.get(
                module.__name__, BOUNDED.get(f"{module.__name__}.{name}", 100_000)
            )
            for found in patterns_in(value):
                size = min(size, wanted.get((found.pattern, found.flags), (0, size))[1])
                wanted[found.pattern, found.flags] = (
                    isinstance(found.pattern, bytes),
                    size,
                )
    assert len(wanted) > 30
    patterns = [(*key, *value) for key, value in wanted.items()]
    run_limited(MATCH.format(patterns=patterns, units=UNITS), cpu_s=40, megabytes=500)


TOKENS = """
from pocketserve.runtimes.torch.source import _TOKEN
for unit in (b"1", b"1.", b".1", b"1e", b"a", b"1_", b" ", b"\\"", b"\\\\"):
    for end in (b"!", b"a", b"\\n", b"."):
        _TOKEN.match(unit * 4_000_000 + end)
"""


def test_a_program_token_is_matched_in_one_pass() -> None:
    """A number of millions of digits with a letter after it was retried at each digit."""
    run_limited(TOKENS, cpu_s=40, megabytes=500)


COMPILE = """
from pocketserve.tasks.text.regex_words import compile_delimiter
for pattern in ("[]a" * 130 + "(", "[" * 200_000, "(" * 200_000 + ")" * 200_000, "[]" * 100_000, "\\\\" * 200_001,
                "[^]" * 133, "a|" * 199 + "(", "|" * 400, "[a" * 200, "[\\\\" * 200, "a" * 399 + "+"):
    try:
        compile_delimiter(pattern)
    except ValueError as error:
        assert len(str(error)) < 300
"""


def test_delimiters_are_read_in_one_pass() -> None:
    """The previous reader took hours or never finished on these patterns."""
    run_limited(COMPILE, cpu_s=5, megabytes=500)


@pytest.mark.parametrize(
    "pattern",
    [
        "a|",
        "|a",
        "a||b",
        "a*",
        "a?|b",
        "()",
        "",
        "[]",
        "[^]",
        "a+b",
        "(a)+",
        r"[\1]",
        "\\",
    ],
)
def test_unsupported_delimiter_patterns_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="the delimiter"):
        compile_delimiter(pattern)


WORDS_BY_PATTERN = [
    # A match that is longer than a block.
    (
        " +",
        "a" + " " * 3 * CHECK_INTERVAL + "b",
        ["a", "b"],
    ),
    (" +", " " * (CHECK_INTERVAL - 1) + "a" + " " * (2 * CHECK_INTERVAL), ["a"]),
    # Across the end of a block.
    (
        "ab|b",
        "x" * (CHECK_INTERVAL - 1) + "ab",
        ["x" * (CHECK_INTERVAL - 1)],
    ),
    (
        "a" * 399,
        "x" * (CHECK_INTERVAL - 1) + "a" * 399 + "y",
        ["x" * (CHECK_INTERVAL - 1), "y"],
    ),
    ("-", "x" * (3 * CHECK_INTERVAL), ["x" * (3 * CHECK_INTERVAL)]),
]


@pytest.mark.parametrize(
    ("pattern", "text", "words"),
    WORDS_BY_PATTERN,
)
def test_blocks_do_not_change_the_words(
    pattern: str, text: str, words: list[str]
) -> None:
    """A text is searched block by block, with the same result as a single search."""
    assert [
        text[token.start : token.end] for token in RegexWords(pattern, {}).tokens(text)
    ] == words


# Manifests

PARSE = """
from pathlib import Path
from pocketserve.repository.manifest import MAX_MANIFEST_BYTES as most, ManifestError, read_manifest
path = Path({path!r})
texts = [
    "a." * (most // 2 - 4) + "a=1", "[" + "a." * (most // 2 - 4) + "a]", ("a." * 500 + "a=1\\n") * (most // 1010),
    ("a." * 120 + "a=1\\n") * (most // 245), "[[a]]\\n" * (most // 6), "a=" + "1_" * (most // 2 - 4) + "1",
    "a={{" + ",".join(f"b{{i}}=1" for i in range(most // 12)) + "}}", "a=" + "[" * 90 + "]" * 90,
    "a='''" + "''" * (most // 3), "{{" * most,
]
for text in texts:
    path.write_text(text[:most])
    try:
        read_manifest(path)
        raise SystemExit("accepted: " + text[:40])
    except ManifestError:
        pass
"""


def test_a_hostile_manifest_takes_little_memory(tmp_path: Path) -> None:
    """A dotted key of 130,000 parts once took more memory than a phone has."""
    run_limited(
        PARSE.format(path=str(tmp_path / "model.toml")), cpu_s=20, megabytes=600
    )


def test_a_deeply_nested_manifest_is_refused(tmp_path: Path) -> None:
    """Printers of such a manifest would exceed their recursion limit."""
    (tmp_path / "model.toml").write_text(
        '[versions.v]\nfile = "m.tflite"\n' + "a." * 60 + "a = 1\n"
    )
    with pytest.raises(ManifestError, match="nested more than 32 deep"):
        read_manifest(tmp_path / "model.toml")
    assert MAX_MANIFEST_BYTES == 256 * 1024


# Labels

LINES = b"\n" * (1 << 21)


def described(folder: Path, locales: int, content: bytes) -> ModelFacts:
    """Return a TFLite file with labels in several languages from one packed file."""
    facts = model(folder, [TensorSpec("x", "FP32", (1, 2))], {"y": (1, 2)})
    path = folder / "m" / "m.tflite"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("labels.txt", content)
    version = facts.version._replace(
        format=next(kind for kind in FORMATS if kind.name == "tflite")
    )
    facts = ModelFacts(facts.entry, version, facts.inputs, facts.outputs, opened=path)
    kind = FileType.TENSOR_AXIS_LABELS
    files = tuple(
        AssociatedFile("labels.txt", type=kind, locale=f"l{number}")
        for number in range(locales)
    )
    facts.__dict__["metadata"] = type(
        "Metadata", (), {"outputs": (TensorMetadata("y", associated_files=files),)}
    )()
    return facts


def test_a_label_file_of_many_languages_is_kept_once(tmp_path: Path) -> None:
    """Forty locales of one file cost one copy, which counts as the model's memory."""
    facts = described(tmp_path, 40, b"one\ntwo\n" * 1000)
    found = labels.find_labels(facts)
    assert len(found.translations) == 40
    assert len({id(names) for names in found.translations.values()}) == 1
    assert labels.find_labels(facts) is found
    assert 2000 * 65 < facts.memory_bytes < 2000 * 80


@pytest.mark.parametrize(
    ("locales", "content"),
    [
        (40, LINES),
        (5000, b"one\n"),
        (2, b"x" * (9 << 20)),
    ],
)
def test_labels_beyond_their_limits_are_ignored(
    tmp_path: Path, locales: int, content: bytes
) -> None:
    """A model with too many lines, languages or bytes of labels has none in memory."""
    facts = described(tmp_path, locales, content)
    found = labels.find_labels(facts)
    assert not found.names
    assert not found.translations
    assert facts.memory_bytes == 0


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (
            [b"x\n" * 300_000] * 4,
            "the label files have more than 1,048,576 lines in all languages",
        ),
        (
            [b"x" * (3 << 20)] * 3,
            "labels names 2.txt, which has, with the others, more than 8388608 bytes",
        ),
    ],
)
def test_translations_share_one_budget(
    tmp_path: Path, sizes: list[bytes], reason: str
) -> None:
    """Each translation is within the limits, but the sum isn't; a repeated file is
    free.
    """
    folder = tmp_path / "m"
    facts = model(tmp_path, [TensorSpec("x", "FP32", (1, 2))], {"y": (1, 2)})
    for number, content in enumerate(sizes):
        (folder / f"{number}.txt").write_bytes(content)
    again = "".join(f'l{number} = "0.txt"\n' for number in range(40))
    for text, fits in (
        (again, True),
        ("".join(f'l{n} = "{n}.txt"\n' for n in range(len(sizes))), False),
    ):
        (folder / "model.toml").write_text(f'labels = "0.txt"\n[translations]\n{text}')
        entry = facts.entry.__class__(
            "m", folder, {}, "", read_manifest(folder / "model.toml")
        )
        asked = ModelFacts(entry, facts.version, facts.inputs, facts.outputs)
        if fits:
            assert len(labels.find_labels(asked).translations) == 40
        else:
            with pytest.raises(ModelLoadError, match=reason):
                labels.find_labels(asked)


def test_a_model_with_too_many_languages_has_no_translations(tmp_path: Path) -> None:
    """Each request that names a language would search all of them."""
    lines = "".join(f'l{number} = "l.txt"\n' for number in range(257))
    (tmp_path / "model.toml").write_text(f"[translations]\n{lines}")
    with pytest.raises(ManifestError, match="names 257 languages; 256 are possible"):
        read_manifest(tmp_path / "model.toml")


# Tokenizers

BERT = ("[PAD]", "[CLS]", "[SEP]", "[UNK]", "a", "##a", "b" * 999)


def bert(**model: Any) -> dict[str, Any]:
    """Return a ``tokenizer.json`` with BERT's pipeline."""
    whole = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "vocab": {piece: n for n, piece in enumerate(BERT)},
        **model,
    }
    return {
        "model": whole,
        "normalizer": {"type": "BertNormalizer"},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    }


def tokenizer_json(folder: Path, content: dict[str, Any]) -> Tokenizer:
    facts = model(folder, [TensorSpec("ids", "INT64", (-1, -1))], {"y": (1, 2)})
    (folder / "m" / "tokenizer.json").write_text(json.dumps(content))
    return tokenizer_of(facts, facts.manifest.section(TextOptions))


def test_a_files_word_limit_is_capped(tmp_path: Path) -> None:
    """Splitting a word takes quadratic time, whatever limit the file declares."""
    tokenizer = tokenizer_json(tmp_path, bert(max_input_chars_per_word=10**9))
    assert [token.number for token in tokenizer.tokens("a" * WORD_CHARS_LIMIT)] == [
        4
    ] + [5] * (WORD_CHARS_LIMIT - 1)
    assert [
        token.number for token in tokenizer.tokens("a" * (WORD_CHARS_LIMIT + 1))
    ] == [3]


def sentences(kind: ModelKind) -> SentencePiece:
    """Return a SentencePiece tokenizer with pieces of up to 128 characters."""
    pieces = ["<unk>", "a", "\u2581", *("a" * size for size in range(2, 129))]
    types = bytearray([PieceType.UNKNOWN, *[PieceType.NORMAL] * (len(pieces) - 1)])
    scores = array("f", [-float(n) for n in range(len(pieces))])
    built = SentencePieceModel(
        pieces,
        scores,
        types,
        kind,
        0,
        None,
        None,
        None,
        False,
        False,
        b"",
        True,
        True,
        True,
    )
    return SentencePiece(built, Special(), lower_case=True)


TOKENIZERS: dict[str, Callable[[], Tokenizer]] = {
    "wordpiece": lambda: WordPiece(
        {p: n for n, p in enumerate(BERT)},
        Special(),
        lower_case=True,
        max_word_chars=1000,
    ),
    "regex": lambda: RegexWords("a" * (MAX_PATTERN_CHARS - 1) + "b", {}),
    **{kind.name.lower(): (lambda kind=kind: sentences(kind)) for kind in ModelKind},
}


@pytest.mark.parametrize("unit", ["a", " ", "a ", "\u4e00", "."])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers_stop_when_the_request_is_abandoned(name: str, unit: str) -> None:
    """A tokenizer checks for cancellation at least every few thousand characters."""
    asked = 0
    text = unit * (3 * CHECK_INTERVAL // len(unit))

    class GoneError(Exception):
        pass

    def check(at: int) -> Callable[[], None]:
        def ask() -> None:
            nonlocal asked
            asked += 1
            if asked == at:
                raise GoneError

        return ask

    tokenizer = TOKENIZERS[name]()
    with cancellation_scope(check(0)):
        for _ in tokenizer.tokens(text):
            pass
    total = asked
    assert total >= 3
    for at in (2, total // 2, total):
        asked = 0
        with cancellation_scope(check(at)), pytest.raises(GoneError):
            list(tokenizer.tokens(text))


@pytest.mark.parametrize(
    "odd",
    [
        {"continuing_subword_prefix": "#" * 10_000},
        {"max_input_chars_per_word": "many"},
        {"vocab": {"[CLS]": "one", "[SEP]": 2, "[UNK]": 3}},
        {"vocab": {"[CLS]": -1, "[SEP]": 2, "[UNK]": 3}},
        {"vocab": {"[CLS]": 2**40, "[SEP]": 2, "[UNK]": 3}},
        {"type": ["WordPiece"]},
    ],
    ids=["prefix", "word limit", "text", "negative", "large", "type"],
)
def test_unsupported_tokenizers_are_left_to_the_library_or_refused(
    tmp_path: Path, odd: dict[str, Any]
) -> None:
    """Our own code could not bound their work."""
    with pytest.raises(ModelLoadError, match=r"tokenizers library|cannot be used"):
        tokenizer_json(tmp_path, bert(**odd))


BERT_TEXT = json.dumps(
    {
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 10**9,
            "vocab": {
                "[PAD]": 0,
                "[UNK]": 1,
                "[CLS]": 2,
                "[SEP]": 3,
                "b" * 1_000_000: 4,
                "a": 5,
                "##a": 6,
            },
        },
        "added_tokens": [],
    }
)


def growing(*content: str) -> dict[str, Any]:
    """Return a normalizer that inserts ever longer texts."""
    parts = [
        {
            "type": "Replace",
            "pattern": {"String": "\u1e9e"},
            "content": text,
        }
        for text in content
    ]
    return {
        "type": "Sequence",
        "normalizers": [{"type": "Sequence", "normalizers": parts}],
    }


@pytest.mark.parametrize(
    "content",
    [
        ["b" * 1_000_000],
        ["\u1e9e\u1e9e"] * 40,
    ],
    ids=["long", "often"],
)
def test_a_tokenizer_that_makes_texts_longer_is_refused(
    tmp_path: Path, content: list[str]
) -> None:
    """The trial's texts lack the letter: a short request would take all memory."""
    document = json.loads(BERT_TEXT) | {"normalizer": growing(*content)}
    with pytest.raises(
        ModelLoadError, match="replaces texts by more than 256 times longer ones"
    ):
        tokenizer_json(tmp_path, document)
    (tmp_path / "other").mkdir()
    fine = json.loads(BERT_TEXT) | {"normalizer": growing("ss", "s")}
    assert list(tokenizer_json(tmp_path / "other", fine).tokens("a"))


def test_the_library_has_the_same_word_limit_as_our_code(tmp_path: Path) -> None:
    """Splitting a long word takes quadratic time, and the library can't be cancelled."""
    tokenizer = tokenizer_json(tmp_path, json.loads(BERT_TEXT))
    assert len(list(tokenizer.tokens("a" * WORD_CHARS_LIMIT))) == WORD_CHARS_LIMIT
    assert len(list(tokenizer.tokens("a" * (WORD_CHARS_LIMIT + 1)))) == 1, (
        "an unknown word"
    )


# Special files


def fifo(path: Path) -> None:
    os.mkfifo(path)


def listener(path: Path) -> None:
    held.append(socket.socket(socket.AF_UNIX))
    before = os.getcwd()
    os.chdir(path.parent)  # the path of a socket must be short
    held[-1].bind(path.name)
    os.chdir(before)


def sparse(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


held: list[socket.socket] = []
ODD = {
    "pipe": fifo,
    "socket": listener,
    "folder": Path.mkdir,
    "sparse": sparse,
    "loop": lambda path: path.symlink_to(path),
}
NAMED = {
    "labels": ('labels = "odd"', "odd"),
    "translations": ('labels = "good.txt"\n[translations]\nde = "odd"', "odd"),
    "vocabulary": (
        'task = "text-classification"\n[text]\ntokenizer = "regex"\nvocabulary = "odd"',
        "odd",
    ),
    "tokenizer.json": (
        'task = "text-classification"\n[text]\ntokenizer = "huggingface"',
        "tokenizer.json",
    ),
    "task.py": ('task = "custom"', "task.py"),
    "config.json": ('task = "image-classification"', "config.json"),
}


@pytest.fixture
def _released() -> Iterator[None]:
    yield
    while held:
        held.pop().close()


@pytest.mark.usefixtures("_released")
@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("named", NAMED)
def test_special_files_are_skipped_or_refused_without_waiting(
    tmp_path: Path, named: str, odd: str
) -> None:
    """Cover pipes, sockets, folders, cyclic links and a sparse file of a terabyte."""
    from pocketserve.tasks.selection import select_task

    folder = tmp_path / "m"
    folder.mkdir()
    manifest, name = NAMED[named]
    (folder / "model.toml").write_text(manifest)
    (folder / "m.tflite").write_bytes(bytes(8) + b"TFL3")
    (folder / "good.txt").write_text("one\ntwo\n")
    ODD[odd](folder / name)
    entry = scan(tmp_path)["m"]
    facts = ModelFacts(
        entry,
        entry.versions["tflite"],
        (TensorSpec("x", "INT32", (1, 2)),),
        (TensorSpec("y", "FP32", (1, 2)),),
    )
    with pytest.raises(ModelLoadError) as caught:
        labels.find_labels(facts) if named in (
            "labels",
            "translations",
        ) else select_task(facts)
    assert len(str(caught.value)) < 400


# In the folder of a running server

FREEZING = "[]a" * 130 + "("
HOSTILE: dict[str, tuple[str, dict[str, Callable[[Path], object]]]] = {
    "delimiter": (
        f'task = "text-classification"\n[text]\ntokenizer = "regex"\ndelimiter = \'{FREEZING}\'\nvocabulary = "v.txt"',
        {
            "v.txt": lambda path: path.write_text(
                "<PAD> 0\n<START> 1\n<UNKNOWN> 2\na 3\n"
            )
        },
    ),
    "tokenizer": (
        'task = "text-classification"\n[text]\ntokenizer = "huggingface"',
        {"tokenizer.json": lambda path: path.write_text(BERT_TEXT)},
    ),
    "labels": (
        'labels = "l.txt"\n[translations]\n'
        + "".join(f'x{n} = "l{n}.txt"\n' for n in range(40)),
        {
            name: lambda path: path.write_bytes(b"\n" * (8 << 20))
            for name in ("l.txt", *(f"l{n}.txt" for n in range(40)))
        },
    ),
    "pipe": ('labels = "l.txt"', {"l.txt": os.mkfifo}),
    "pipe for a manifest": ("", {"model.toml": os.mkfifo}),
    "dots": ("a" + ".a" * 100_000 + " = 1", {}),
    "depth": ("a = " + "[" * 100_000, {}),
    "config": ("", {"config.json": lambda path: path.write_text("[" * 4_000_000)}),
    "code": ("", {"task.py": lambda path: path.write_text("while True: pass")}),
}


def connect_to(server: Server, kind: str) -> Client:
    """Return a client of one transport, ``http`` or ``socket``."""
    port = server.port
    if kind == "socket":
        port = server.socket_port
    return Client(f"{kind}://127.0.0.1:{port}", token=server.token, timeout=120)


def refusal_of_odd(server: Server, kind: str) -> str:
    """Return the error of a request to the model ``odd``, or an empty text."""
    with connect_to(server, kind) as client:
        client.index()
        try:
            client.predict("odd", "a" * 200_000)
        except ServerError as error:
            return str(error)
        return ""


def lay_hostile_model(folder: Path, name: str) -> None:
    """Write a text model with a row of :data:`HOSTILE`."""
    manifest, files = HOSTILE[name]
    lay_text_model(folder)
    if "model.toml" not in files:
        (folder / "model.toml").write_text(manifest)
    for file, make in files.items():
        make(folder / file)


@pytest.mark.live
@pytest.mark.onnx
@pytest.mark.parametrize("name", HOSTILE)
def test_other_models_answer_while_a_hostile_folder_is_requested(
    new_server: StartServer, tmp_path: Path, name: str
) -> None:
    """Clients use both transports while a new hostile folder is requested on both."""
    models = tmp_path / "models"
    shutil.copytree(MODELS / "petals", models / "petals")
    server = new_server(models, "--state-dir", str(tmp_path / "state"))
    lay_hostile_model(models / "odd", name)
    assert server.token is not None
    ended = threading.Event()
    honest = []

    def go_on(kind: str) -> None:
        with connect_to(server, kind) as client:
            while not ended.is_set():
                answer = client.predict("petals", [5.1, 3.5, 1.4])
                honest.append(answer["predictions"])

    transports = ("http", "socket")
    with ThreadPoolExecutor(8) as pool:
        going = [pool.submit(go_on, kind) for kind in transports]
        asked = [pool.submit(refusal_of_odd, server, kind) for kind in transports]
        try:
            answers = [future.result(240) for future in asked]
        finally:
            ended.set()
        for future in going:
            future.result(120)

    assert len(honest) >= 2
    assert honest == [honest[0]] * len(honest)
    for answer in answers:
        assert "\n" not in answer
        assert len(answer) < 1500
    assert server.process.poll() is None
    assert server.stop() == 0


def lay_text_model(folder: Path) -> None:
    """Write an ONNX model that takes token ids and returns two scores."""
    onnx = pytest.importorskip(
        "onnx", reason="the environment of the older runtime has no ONNX"
    )
    folder.mkdir()
    ids = onnx.helper.make_tensor_value_info(
        "input_ids", onnx.TensorProto.INT64, [1, None]
    )
    scores = onnx.helper.make_tensor_value_info(
        "logits", onnx.TensorProto.FLOAT, [1, 2]
    )
    nodes = [
        onnx.helper.make_node("Cast", ["input_ids"], ["x"], to=onnx.TensorProto.FLOAT),
        onnx.helper.make_node("ReduceMean", ["x"], ["mean"], axes=[1], keepdims=1),
        onnx.helper.make_node("Concat", ["mean", "mean"], ["logits"], axis=1),
    ]
    graph = onnx.helper.make_graph(nodes, "g", [ids], [scores])
    opset = onnx.helper.make_opsetid("", 13)
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8),
        folder / "odd.onnx",
    )
