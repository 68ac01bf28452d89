"""The tables of a manifest that belong to tasks, and the tasks that a manifest may name.

A section is a class of options with defaults for every key, and a function that reads it from its table. Tasks get it
by ``manifest.section(ImageOptions)``. Sections stand here and not beside the tasks because the repository, which reads
manifests, knows nothing of tasks.
"""

from __future__ import annotations

from collections.abc import Mapping

from pocketserve.repository.sections import spectrogram, vision, words
from pocketserve.repository.sections.base import Section
from pocketserve.repository.sections.vision import ImageOptions

__all__ = ["SECTIONS", "TASKS", "ImageOptions"]

TASKS = (*vision.TASKS, *words.TASKS, "tensors", "custom")
"""What a manifest's ``task`` may be."""

SECTIONS: Mapping[str, Section] = {**vision.SECTIONS, **words.SECTIONS, **spectrogram.SECTIONS}
"""The tables, by their names in a manifest."""
