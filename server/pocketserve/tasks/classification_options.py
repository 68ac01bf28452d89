"""The manifest's options for a row of scores."""

from __future__ import annotations

from typing import NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable

ACTIVATIONS = ("none", "sigmoid", "softmax")


class ClassificationOptions(NamedTuple):
    """The manifest's ``[classification]``.

    Attributes:
        activation: what makes probabilities of the model's numbers; ``none`` takes them as they are.
        label_offset: added to a class's number to find its label.
        threshold: lowest score that is answered; None leaves it to the file.
    """

    activation: str = "none"
    label_offset: int = 0
    threshold: float | None = None


def _classification(table: TomlTable) -> ClassificationOptions:
    return ClassificationOptions(
        activation=table.choice("activation", ACTIVATIONS) or "none",
        label_offset=table.integer("label_offset", -1000, 1000) or 0,
        threshold=table.number("threshold", -1e30, 1e30),
    )


CLASSIFICATION = Section("classification", ClassificationOptions, _classification)
