"""The tables of all kinds of foreign files.

To add a file: write its table in a module of this package and add it to :data:`TABLES`.
"""

from __future__ import annotations

from pocketserve.tasks.foreign import (
    config_json,
    feature_extractor,
    preprocessor_config,
    sentence_files,
    tflite_metadata,
    tokenizer_files,
    windows_ml,
)
from pocketserve.tasks.foreign.exports import lobe, teachable_machine, ultralytics
from pocketserve.tasks.foreign.keys import ForeignFile

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
