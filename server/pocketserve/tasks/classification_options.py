"""The manifest's options for a row of scores."""

from __future__ import annotations

from typing import Annotated, NamedTuple

from pocketserve.repository.toml_table import Section, TomlTable

ACTIVATIONS = ("none", "sigmoid", "softmax")


class ClassificationOptions(NamedTuple):
    """The manifest's ``[classification]``.

    Attributes:
        activation: what makes probabilities of the model's numbers; ``none`` takes them as they are.
        label_offset: added to a class's number to find its label.
        threshold: lowest score that is answered; None leaves it to the file.
    """

    activation: Annotated[str, TomlTable.choice, ACTIVATIONS] = "none"
    label_offset: Annotated[int, TomlTable.integer, -1000, 1000] = 0
    threshold: Annotated[float | None, TomlTable.number, -1e30, 1e30] = None


CLASSIFICATION = Section("classification", ClassificationOptions)
