"""The manifest's options for tasks on text."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable


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

    tokenizer: Annotated[str | None, TomlTable.choice, ("wordpiece", "regex", "sentencepiece", "huggingface")] = None
    vocabulary: Annotated[str | None, TomlTable.relative_path] = None
    delimiter: Annotated[str, TomlTable.text] = ""
    lower_case: Annotated[bool | None, TomlTable.flag] = None
    add_bos: Annotated[bool | None, TomlTable.flag] = None
    add_eos: Annotated[bool | None, TomlTable.flag] = None
    max_length: Annotated[int | None, TomlTable.integer, 2, 1 << 16] = None
    ids: Annotated[str, TomlTable.text] = ""
    mask: Annotated[str, TomlTable.text] = ""
    types: Annotated[str, TomlTable.text] = ""
    output: Annotated[str, TomlTable.text] = ""
    start_output: Annotated[str, TomlTable.text] = ""
    end_output: Annotated[str, TomlTable.text] = ""
    pooling: Annotated[str | None, TomlTable.choice, ("mean", "cls", "max")] = None
    normalize: Annotated[bool | None, TomlTable.flag] = None
    stride: Annotated[int, TomlTable.integer, 0, 1 << 14] = 128
    max_answer: Annotated[int, TomlTable.integer, 1, 1000] = 30
    max_chars: Annotated[int, TomlTable.integer, 1, 10_000_000] = 200_000


TEXT = Section("text", TextOptions, files=lambda options: (options.vocabulary,))
