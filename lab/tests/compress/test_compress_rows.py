"""Measure every row of docs/generated/compression.md again (``make test-convert``)."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from compress.table import Row, documented_rows, load_tool
from conftest import ROOT
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.convert.environments import FOLDER_VARIABLE

pytestmark = pytest.mark.convert
TOOL = load_tool()

TOLERANCE = 0.01
"""Tolerance of the accuracy, and relative tolerance of an error: processors round
differently while training.
"""

# TorchScript stores the paths of the sources.
SIZE_TOLERANCE = {
    "rel": 0.03,
    "abs": 1000,
}


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Return the environments' folder: the project's, or the variable's."""
    monkeypatch.setenv(
        FOLDER_VARIABLE, os.environ.get(FOLDER_VARIABLE) or str(ROOT / ".converters")
    )


@pytest.mark.parametrize("row", documented_rows(TOOL), ids=lambda row: row.name)
def test_the_document_states_the_measured_values(row: Row, tmp_path: Path) -> None:
    """A row has accuracy and sizes, or the reason of a refusal."""
    if row.refusal:
        # Before its figures.
        with pytest.raises(
            ConversionError, match=re.escape(" ".join(row.refusal.split()[:6]))
        ):
            TOOL.compress(row.cell, tmp_path)
        return
    compression = TOOL.compress(row.cell, tmp_path)
    assert compression.before.value == pytest.approx(row.before, rel=1e-3)
    absolute = {"accuracy": {"abs": TOLERANCE}}.get(
        compression.after.metric, {"rel": TOLERANCE}
    )
    assert compression.after.value == pytest.approx(row.after, **absolute)
    sizes = (
        compression.conversion.source_bytes,
        compression.conversion.result_bytes,
        *compression.gzip_bytes,
    )
    assert sizes == pytest.approx(row.sizes, **SIZE_TOLERANCE)
