"""The tables of foreign files, and the check of all files beside a model.

To add a file: write its table in a module of this package and add it to :data:`TABLES`.
"""

from __future__ import annotations

from typing import Any

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.foreign import (
    config_json,
    feature_extractor,
    lobe,
    preprocessor_config,
    sentence_files,
    teachable_machine,
    tflite_metadata,
    tokenizer_files,
    ultralytics,
    windows_ml,
)
from pocketserve.tasks.foreign.keys import ForeignFile, check_keys
from pocketserve.tasks.model_facts import MetadataError, ModelFacts

TABLES: tuple[ForeignFile, ...] = (
    config_json.TABLE,
    preprocessor_config.TABLE,
    teachable_machine.TABLE,
    lobe.TABLE,
    ultralytics.TABLE,
    feature_extractor.TABLE,
    tokenizer_files.CONFIG,
    tokenizer_files.SPECIAL_TOKENS,
    tokenizer_files.TOKENIZER,
    sentence_files.POOLING,
    sentence_files.SETTINGS,
    sentence_files.TRANSFORMER,
    *sentence_files.DENSE,
    *sentence_files.NORMALIZE,
    windows_ml.TABLE,
    tflite_metadata.TABLE,
)


def reject_unsupported_keys(facts: ModelFacts, task: str) -> None:
    """Raise if a file beside the model asks for something that the task can't do.

    ``ignored_keys`` in ``model.toml`` lists keys that the owner knows to be irrelevant.

    Raises:
        MetadataError: names the file and its keys; the model is then served as tensors.
    """
    model_type = _content(facts, config_json.TABLE).get("model_type")
    for table in TABLES:
        content = table.complete(_content(facts, table), model_type)
        findings = check_keys(table, content, task)
        keys = [finding for finding in findings.unsupported if finding.path not in facts.manifest.ignored_keys]
        if keys:
            listed = ", ".join(str(key) for key in keys)
            raise MetadataError(
                f"{_place(table)} has settings that are not supported: {listed}; if they don't "
                f'matter, write ignored_keys = ["{keys[0].path}"] into model.toml'
            )


def unknown_keys(facts: ModelFacts) -> dict[str, tuple[str, ...]]:
    """Return keys that no table knows, by file; files without such keys are left out."""
    unknown = {}
    for table in TABLES:
        findings = check_keys(table, _content(facts, table))
        if findings.unknown:
            unknown[table.name] = findings.unknown
    return unknown


def _content(facts: ModelFacts, table: ForeignFile) -> dict[str, Any]:
    """Return the parsed content.

    It is empty if the file is another tool's, or if it is missing or damaged, which the task that needs it reports.
    """
    if table is tflite_metadata.TABLE:
        return tflite_metadata.process_units_of(facts.metadata)
    if table.is_inside:
        content: dict[str, Any] = dict(facts.properties)
    else:
        try:
            content = facts.json_beside(table.name)
        except ModelLoadError:
            return {}
    if table.belongs is not None and not table.belongs(content):
        return {}
    return content


def _place(table: ForeignFile) -> str:
    return table.name if table.is_inside else f"{table.name} beside the model"
