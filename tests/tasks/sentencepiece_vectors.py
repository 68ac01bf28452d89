"""Create vectors of SentencePiece: models, texts and the library's tokens.

Run in an environment with the library: python tests/tasks/sentencepiece_vectors.py
"""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"
FILE = DATA / "sentencepiece.json"

RULES = {
    "\uff21": "A", "\uff42": "b", "\ufb01": "fi", "\u2026": "...", "\u3000": " ", "\t": " ", "\n": " ", "\xa0": " ",
    "e\u0301": "\xe9", "o\u0308": "\xf6", "o\u0308\u0323": "\u1ecd\u0308", "\xad": "", "\u200b": "", "\u00bd": "1/2",
    "\u2100": "a/c", "\u203c": "! !", "\ufdfa": "\u0635\u0644\u0649 \u0627\u0644\u0644\u0647",
}  # fmt: skip
"""A part of NFKC's rules, so that the models stay small: longer and shorter results,
none, and inner spaces.
"""

MODELS: dict[str, dict[str, Any]] = {
    "unigram": {"model_type": "unigram", "vocab_size": 330, "rules": True},
    "bpe": {
        "model_type": "bpe", "vocab_size": 560, "rules": True, "byte_fallback": True, "split_digits": True,
        "user_defined_symbols": ["<mask>", "<mask>s", "  ", "\n"], "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
    },
    "suffix": {
        "model_type": "unigram", "vocab_size": 500, "treat_whitespace_as_suffix": True, "byte_fallback": True,
        "user_defined_symbols": ["<mask>", "lamp"], "normalization_rule_name": "identity",
    },
    "phrases": {
        "model_type": "bpe", "vocab_size": 300, "split_by_whitespace": False, "add_dummy_prefix": False, "rules": True,
    },
    "albert": {
        "model_type": "unigram", "vocab_size": 250, "pad_id": 0, "unk_id": 1, "bos_id": -1, "eos_id": -1,
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"], "rules": True,
    },
    "unused": {"model_type": "bpe", "vocab_size": 330, "rules": True},
    "word": {"model_type": "word", "vocab_size": 60, "rules": True, "user_defined_symbols": ["lamp"]},
    "char": {
        "model_type": "char", "vocab_size": 330, "rules": True, "byte_fallback": True, "user_defined_symbols": ["lamp"],
    },
    "words-behind": {
        "model_type": "word", "vocab_size": 340, "treat_whitespace_as_suffix": True, "byte_fallback": True,
        "remove_extra_whitespaces": False, "normalization_rule_name": "identity",
    },
}  # fmt: skip
"""Arguments of the trainer.

``rules`` compiles RULES; ``unused`` disables every fifth piece afterwards.
"""

_LANGUAGES = (
    "the lamp light kitchen bedroom turn switch play some music please what is weather today tomorrow morning",
    "größe übung straße café naïve señor привет мир свет дом σοφία φως λόγος",
    "あかり おんがく 東京 天気 123 2024 7.5 don't",
)
WORDS = [word for text in _LANGUAGES for word in text.split()]


def corpus() -> list[str]:
    """Return two thousand random sentences."""
    draw = random.Random(7)
    return [
        " ".join(draw.choices(WORDS, k=draw.randint(3, 9))) + draw.choice(".?!")
        for _ in range(2000)
    ]


TEXTS = [
    "",
    " ",
    "a",
    "turn on the lamp",
    "  turn   on the\tlamp \n",
    "the light",
    "Turn ON",
    "größe übung",
    "привет, мир!",
    "あかりをつけて",
    "東京の天気",
    "🙂 emoji 🙂🙂",
    "\uff21\uff42c \ufb01ne\u2026",
    "cafe\u0301 caf\xe9 o\u0308\u0323 o\u0308",
    "soft\xadhyphen\u200b",
    "\u00bd cup \u2100",
    "\u203c wow",
    "\ufdfa",
    "a\u3000b\xa0c",
    "<mask> and <mask>s <mas",
    "lamp lamps",
    "ends with <mask>",
    "lamp",
    "\u2581already\u2581here \u2581",
    "\u2581\u2581\u2581",
    "x" * 50,
    "the the the the the",
    "unknownßœ\u4e2d\u56fd words",
    "12345",
    "don't",
    "line\none\n\ntwo",
    "   ",
    "tab\tbed",
    "\U0001f469\u200d\U0001f4bb",
    "[CLS] no token [SEP]",
    "<s></s><unk>",
    "\ufffd \x00 \x7f",
    "ααα",
    "music" * 20,
    "e\u0301" * 10,
    "kitchenbedroommorning",
    "a" + "\u0301" * 5,
]


def train(folder: Path, name: str, arguments: dict[str, Any]) -> bytes:
    """Return a ``.model`` file."""
    import sentencepiece as library

    given = dict(arguments)
    if given.pop("rules", False):
        lines = (
            f"{' '.join(f'{ord(c):X}' for c in old)}\t{' '.join(f'{ord(c):X}' for c in new)}"
            for old, new in RULES.items()
        )
        (folder / "rules.tsv").write_text("\n".join(lines) + "\n")
        given["normalization_rule_tsv"] = str(folder / "rules.tsv")
    prefix = str(folder / name)
    library.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()),
        model_prefix=prefix,
        hard_vocab_limit=False,
        num_threads=1,
        minloglevel=2,
        **given,
    )
    return Path(f"{prefix}.model").read_bytes()


def _cleaned_model(name: str, content: bytes) -> bytes:
    """Remove build paths; in ``unused``, disable every fifth piece.

    Needs protobuf 7 or newer.
    """
    from sentencepiece import sentencepiece_model_pb2 as messages

    message = messages.ModelProto.FromString(content)
    message.trainer_spec.model_prefix = name
    message.normalizer_spec.normalization_rule_tsv = ""
    if name == "unused":
        for piece in list(message.pieces)[3::5]:
            if len(piece.piece) > 1:
                piece.type = messages.ModelProto.SentencePiece.UNUSED
    kept: bytes = message.SerializeToString()
    return kept


@functools.cache
def _processor(content: bytes) -> Any:
    import sentencepiece as library

    return library.SentencePieceProcessor(model_proto=content)


def by_library(content: bytes, text: str) -> list[list[int]]:
    """Return the library's tokens with their character offsets."""
    found = _processor(content).encode(text, return_type="offset_mapping")
    return [
        [number, *place]
        for number, place in zip(found["ids"], found["offsets"], strict=True)
    ]


if __name__ == "__main__":
    import tempfile

    import sentencepiece

    made: dict[str, Any] = {
        "library": f"sentencepiece {sentencepiece.__version__}",
        "tokens": {},
    }
    for name, arguments in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            content = _cleaned_model(name, train(Path(folder), name, arguments))
        (DATA / f"{name}.model").write_bytes(content)
        made["tokens"][name] = [by_library(content, text) for text in TEXTS]
        print(name, len(content))
    FILE.write_text(json.dumps(made, separators=(",", ":")) + "\n")
    print(FILE.stat().st_size)
