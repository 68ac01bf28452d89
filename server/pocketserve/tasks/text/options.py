"""The manifest's options for tasks on text."""

from __future__ import annotations

from typing import NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable, with_defaults


class TextOptions(NamedTuple):
    """The manifest's ``[text]``.

    Attributes:
        tokenizer: ``wordpiece``, ``regex``, ``sentencepiece`` or ``huggingface``; None takes what lies in or beside the
            model.
        vocabulary: a file beside the model, one token per line.
        delimiter: ``regex``: what stands between words.
        lower_case: None follows the files beside the model, else the vocabulary.
        add_bos, add_eos: ``sentencepiece``: put its pieces for the beginning and the end around a text.
        max_length: tokens at most; None takes what the input's shape says.
        ids, mask, types: names of inputs that their names do not explain.
        output: name of the output, where the model has several.
        start_output, end_output: question answering: the logits of where the answer starts and ends.
        pooling: embedding: ``mean``, ``cls`` or ``max`` over a text's tokens.
        normalize: embedding: scale to length 1.
        stride: question answering: tokens that neighbouring windows of a long context share.
        max_answer: question answering: tokens of an answer at most.
        max_chars: longer texts are refused.
    """

    tokenizer: str | None = None
    vocabulary: str | None = None
    delimiter: str = ""
    lower_case: bool | None = None
    add_bos: bool | None = None
    add_eos: bool | None = None
    max_length: int | None = None
    ids: str = ""
    mask: str = ""
    types: str = ""
    output: str = ""
    start_output: str = ""
    end_output: str = ""
    pooling: str | None = None
    normalize: bool | None = None
    stride: int = 128
    max_answer: int = 30
    max_chars: int = 200_000


def _text(table: TomlTable) -> TextOptions:
    names = ("delimiter", "ids", "mask", "types", "output", "start_output", "end_output")
    return with_defaults(
        TextOptions,
        tokenizer=table.choice("tokenizer", ("wordpiece", "regex", "sentencepiece", "huggingface")),
        vocabulary=table.relative_path("vocabulary"),
        lower_case=table.flag("lower_case"),
        add_bos=table.flag("add_bos"),
        add_eos=table.flag("add_eos"),
        max_length=table.integer("max_length", 2, 1 << 16),
        pooling=table.choice("pooling", ("mean", "cls", "max")),
        normalize=table.flag("normalize"),
        stride=table.integer("stride", 0, 1 << 14),
        max_answer=table.integer("max_answer", 1, 1000),
        max_chars=table.integer("max_chars", 1, 10_000_000),
        **{name: table.text(name) for name in names},
    )


TEXT = Section("text", TextOptions, _text, lambda options: (options.vocabulary,))
