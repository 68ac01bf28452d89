"""Every row of docs/compress.md is measured again, in the converters' environments: ``make test-convert``."""

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
"""Of the accuracy, and of an error as a share: other processors round otherwise while training."""

SIZE_TOLERANCE = {
    "rel": 0.03,
    "abs": 1000,
}  # TorchScript stores the paths of the sources


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environments lie in the project's folder, unless the variable names another place."""
    monkeypatch.setenv(
        FOLDER_VARIABLE, os.environ.get(FOLDER_VARIABLE) or str(ROOT / ".converters")
    )


@pytest.mark.parametrize("row", documented_rows(TOOL), ids=lambda row: row.name)
def test_the_document_states_what_is_measured(row: Row, tmp_path: Path) -> None:
    """Accuracy before and after and sizes, or that the recipe refuses the model, and why."""
    if row.refusal:
        with pytest.raises(
            ConversionError, match=re.escape(" ".join(row.refusal.split()[:6]))
        ):  # before its figures
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
