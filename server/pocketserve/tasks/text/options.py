"""The manifest's options for tasks on text."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable

POOLING = ("mean", "cls", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")


class TextOptions(NamedTuple):
    """The manifest's ``[text]``; see ``docs/tasks.md``.

    None leaves a key to the files in or beside the model.

    Attributes:
        ids: name of the tensor, if it is not obvious; also ``mask``, ``types``, ``output``.
        stride: tokens that adjacent windows of a long context share.
        max_answer: maximum tokens of an answer.
        impossible: whether "no answer", an empty text with its score, may be an answer.
    """

    tokenizer: Annotated[
        str | None,
        TomlTable.choice,
        ("wordpiece", "regex", "sentencepiece", "huggingface"),
    ] = None
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
    pooling: Annotated[str | None, TomlTable.choice, POOLING] = None
    normalize: Annotated[bool | None, TomlTable.flag] = None
    stride: Annotated[int | None, TomlTable.integer, 0, 1 << 14] = None
    max_answer: Annotated[int | None, TomlTable.integer, 1, 1000] = None
    impossible: Annotated[bool, TomlTable.flag] = False
    max_chars: Annotated[int, TomlTable.integer, 1, 10_000_000] = 200_000


TEXT = Section("text", TextOptions, files=lambda options: (options.vocabulary,))
