"""Finds the settings of a model's image processor or feature extractor.

They are in ``preprocessor_config.json``, or in a section of ``processor_config.json``,
which comes first. A processor of several media has a section for each. Source:
huggingface/transformers, image_processing_base.py and feature_extraction_utils.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pocketserve.tasks.foreign.keys import Media
from pocketserve.tasks.model_facts import PREPROCESSOR, PROCESSOR, ModelFacts

_SECTIONS: Final[Mapping[Media, tuple[str, ...]]] = {
    "picture": ("image_processor",),
    "sound": ("feature_extractor", "audio_processor"),
}


class ProcessorFile(NamedTuple):
    """Settings and the name of their file."""

    name: str
    settings: dict[str, Any]


def processor_file(facts: ModelFacts, media: Media) -> ProcessorFile:
    """Return the settings beside a model; they are empty if there are none.

    Args:
        media: of the task.

    Raises:
        ModelLoadError: a file can't be read.
    """
    whole = facts.json_beside(PROCESSOR)
    for name in _SECTIONS[media]:
        section = whole.get(name)
        if isinstance(section, dict):
            return ProcessorFile(PROCESSOR, section)
    return ProcessorFile(PREPROCESSOR, facts.json_beside(PREPROCESSOR))


def processor_settings(facts: ModelFacts, media: Media) -> dict[str, Any]:
    """Return the settings alone, as :func:`processor_file` does."""
    return processor_file(facts, media).settings
