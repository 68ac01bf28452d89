"""Checks all foreign files beside a model, and the metadata inside it, against their tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pocketserve.repository.sidecar_files import LABEL_FILES, NAMES, TASK_FILE
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.model_facts import (
    CONFIG,
    MetadataError,
    ModelFacts,
)

if TYPE_CHECKING:
    from pocketserve.tasks.foreign.keys import ForeignFile

TFLITE_METADATA: Final = "TFLite metadata"
FOREIGN_FILES: Final = tuple(
    name for name in NAMES if name not in (*LABEL_FILES, TASK_FILE)
)


def reject_unsupported_keys(facts: ModelFacts, task: str) -> None:
    """Raise if a file beside the model asks for something that the task can't do.

    ``ignored_keys`` in ``model.toml`` lists keys that the owner knows to be irrelevant.

    Raises:
        MetadataError: names the file and its keys; the model is then served as tensors.
    """
    tables = _tables(facts)
    if not tables:
        return
    from pocketserve.tasks.foreign.keys import check_keys  # late, as its tables

    model_type = _model_type(facts)
    for table in tables:
        if table.is_replaced is not None and table.is_replaced(facts):
            continue
        content = table.complete(_content(facts, table), model_type)
        findings = check_keys(
            table,
            content,
            task,
            has_fixed_size=_has_fixed_size(facts),
            ignored=facts.manifest.ignored_keys,
        )
        keys = findings.unsupported
        if keys:
            listed = ", ".join(str(key) for key in keys)
            paths = json.dumps([key.path for key in keys], ensure_ascii=False)
            raise MetadataError(
                f"{_place(facts, table)} has settings that are not supported: {listed}; if they don't "
                f"matter, write ignored_keys = {paths} into model.toml"
            )


def unknown_keys(facts: ModelFacts) -> dict[str, tuple[str, ...]]:
    """Return keys that no table knows, by file; files without such keys are left out."""
    unknown: dict[str, tuple[str, ...]] = {}
    tables = _tables(facts)
    if not tables:
        return unknown
    from pocketserve.tasks.foreign.keys import check_keys  # late, as its tables

    for table in tables:
        findings = check_keys(table, _content(facts, table))
        if findings.unknown:
            unknown[_file_name(facts, table)] = findings.unknown
    return unknown


def _tables(facts: ModelFacts) -> Sequence[ForeignFile]:
    """Return the tables to check; none for a model without metadata that has no other tool's file beside it."""
    metadata = facts.metadata
    has_metadata = bool(
        facts.properties or metadata.inputs or metadata.outputs or metadata.unknown
    )
    if not has_metadata and not any(
        facts.beside(name) is not None for name in FOREIGN_FILES
    ):
        return ()
    from pocketserve.tasks.foreign.tables import (
        TABLES,
    )  # late: many models need none of them

    return TABLES


def _has_fixed_size(facts: ModelFacts) -> bool:
    """Return whether no input leaves a dimension open, except for the batch."""
    dimensions = [
        dimension for spec in facts.sent_inputs for dimension in spec.shape[1:]
    ]
    is_open = any(spec.open for spec in facts.sent_inputs)
    return not is_open and -1 not in dimensions


def _model_type(facts: ModelFacts) -> object:
    try:
        return facts.json_beside(CONFIG).get("model_type")
    except ModelLoadError:
        return None


def _content(facts: ModelFacts, table: ForeignFile) -> dict[str, Any]:
    """Return the parsed content.

    It is empty if the file is another tool's, or if it is missing or damaged, which the task that needs it reports.
    """
    if table.name == TFLITE_METADATA:
        from pocketserve.tasks.foreign.tflite_metadata import (
            process_units_of,
        )  # late, as its table

        return process_units_of(facts.metadata)
    if table.is_inside:
        content: dict[str, Any] = dict(facts.properties)
    else:
        try:
            content = _read(facts, table)
        except ModelLoadError:
            return {}
    if table.belongs is not None and not table.belongs(content):
        return {}
    return content


def _read(facts: ModelFacts, table: ForeignFile) -> dict[str, Any]:
    if table.media is None:
        return facts.json_beside(table.name)
    from pocketserve.tasks.foreign.processor_file import (
        processor_settings,  # late, as its table
    )

    return processor_settings(facts, table.media)


def _file_name(facts: ModelFacts, table: ForeignFile) -> str:
    """Return the name of the file that was checked."""
    if table.media is None:
        return table.name
    from pocketserve.tasks.foreign.processor_file import (
        processor_file,  # late, as its table
    )

    return processor_file(facts, table.media).name


def _place(facts: ModelFacts, table: ForeignFile) -> str:
    name = _file_name(facts, table)
    return name if table.is_inside else f"{name} beside the model"
