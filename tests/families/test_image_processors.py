"""Test that no setting of an image processor changes the answer without a sign.

Each class of transformers is crossed with sizes, crops and other settings. A setting is
applied exactly, or the model is served as tensors.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from families.processor_settings import (
    PICTURES,
    Difference,
    compare,
    picture_file,
    processor_classes,
    settings_of_cross,
)

pytestmark = pytest.mark.families


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hide the warnings that odd settings cause in transformers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_settings_are_applied_exactly_or_refused(tmp_path: Path) -> None:
    files = {size: picture_file(*size) for size in PICTURES}
    differences: list[Difference] = []
    compared = 0
    for name, processor in processor_classes().items():
        for settings in settings_of_cross():
            rows = compare(tmp_path, name, processor, settings, files)
            compared += rows.compared
            differences.extend(rows.differences)
    assert not differences, "\n".join(str(row) for row in differences[:100])
    assert compared > 1000
