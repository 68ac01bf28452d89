"""Sections and names of the tasks on sound, text and tables."""

from __future__ import annotations

from collections.abc import Mapping

from pocketserve.repository.sections.base import Section

TASKS: tuple[str, ...] = ("tabular-regression",)
SECTIONS: Mapping[str, Section] = {}
