"""Metadata of model files: names, labels, normalisation, tokenizers.

:attr:`~pocketserve.runtimes.model_format.ModelFormat.metadata` reads it.
"""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pocketserve.runtimes.metadata_parts import (
        AssociatedFile,
        Content,
        Normalization,
        ProcessUnit,
    )

MAX_LITERAL_BYTES = 1 << 18
"""Limit of a Python literal; parsing one takes a hundred times its size."""


class TensorMetadata(NamedTuple):
    """The author's description of one input or output."""

    name: str
    description: str = ""
    content: Content | None = None
    process_units: tuple[ProcessUnit, ...] = ()
    associated_files: tuple[AssociatedFile, ...] = ()
    unknown: tuple[str, ...] = ()  # parts of newer schemas: ``process_unit_7``

    @property
    def normalization(self) -> Normalization | None:
        """The first normalisation among the process units."""
        if not self.process_units:
            return None
        from pocketserve.runtimes.metadata_parts import Normalization  # late, see there

        for unit in self.process_units:
            if isinstance(unit, Normalization):
                return unit
        return None

    @property
    def label_files(self) -> list[AssociatedFile]:
        """The label files of the last axis, else those of the values."""
        if not self.associated_files:
            return []
        from pocketserve.runtimes.metadata_parts import FileType  # late, see there

        for kind in (FileType.TENSOR_AXIS_LABELS, FileType.TENSOR_VALUE_LABELS):
            files = [file for file in self.associated_files if file.type is kind]
            if files:
                return files
        return []


class ClassOutput(NamedTuple):
    """An output of a classifier, according to its graph.

    Attributes:
        targets: for each target, the class names in the order of the score columns; if
            empty, the class is the column's number.
        is_label: whether the values are classes; otherwise they are scores.
        lowest_wins: whether the class has the lowest value of its row, such as a distance.
    """

    targets: tuple[tuple[str, ...], ...]
    is_label: bool = True
    lowest_wins: bool = False


class ModelMetadata(NamedTuple):
    """The author's description of a model and its main graph.

    Attributes:
        is_from_operators: whether the graph's operators tell it, so that other files
            overrule it.
    """

    name: str = ""
    description: str = ""
    version: str = ""
    author: str = ""
    license: str = ""
    inputs: tuple[TensorMetadata, ...] = ()
    outputs: tuple[TensorMetadata, ...] = ()
    associated_files: tuple[AssociatedFile, ...] = ()
    input_process_units: tuple[ProcessUnit, ...] = ()
    unknown: tuple[str, ...] = ()  # process units of newer schemas for all inputs
    is_from_operators: bool = False


def parse_properties(content: bytes) -> dict[str, str]:
    """Parse a JSON object or Python dict into texts in Python's notation.

    Anything else gives an empty dict. Ultralytics writes a JSON object into TFLite and
    TorchScript files, and texts in Python's notation into ONNX files. Older versions
    wrote a Python dict into TFLite files.
    """
    try:
        members = json.loads(content)
    except (ValueError, RecursionError):
        members = _literal(content)
    if not isinstance(members, dict):
        return {}
    return {str(name): str(value) for name, value in members.items()}


def _literal(content: bytes) -> Any:
    """Parse a Python literal; return None for anything else."""
    if len(content) > MAX_LITERAL_BYTES:
        return None
    try:
        return ast.literal_eval(content.decode("utf-8"))
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None
