"""Every converter on the embedded models, in its own environment: ``make test-convert``.

Each cell publishes a version that answers as the original does, which is then served and asked; or is refused by a
sentence that is documented.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import MODELS, ROOT
from pocketserve.convert.converter import KINDS, ConversionError, Converter
from pocketserve.convert.environments import FOLDER_VARIABLE
from pocketserve.convert.process import ProcessLimits
from pocketserve.convert.registry import converters
from pocketserve.convert.run import ConversionSettings, ModelConverter
from pocketserve.repository.scan import scan

pytestmark = pytest.mark.convert


def cells() -> Iterator[tuple[Converter, str, str, str]]:
    """Each converter with each source and mode, on the digits; and unquantised on the regressions."""
    for converter in converters():
        for source in converter.sources:
            for mode in converter.quantize:
                yield converter, "digits", source, mode
            if "none" in converter.quantize:
                yield converter, "petals", source, "none"
                yield converter, "diabetes", source, "none"


def cell_name(cell: tuple[Converter, str, str, str]) -> str:
    """The name of a cell among the tests."""
    converter, model, source, mode = cell
    return f"{converter.name}: {model} from {source}, {mode}"


@pytest.fixture(autouse=True)
def environments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environments lie in the project's folder, unless the variable names another place."""
    monkeypatch.setenv(FOLDER_VARIABLE, os.environ.get(FOLDER_VARIABLE) or str(ROOT / ".converters"))


def convert(models: Path, state: Path, cell: tuple[Converter, str, str, str]) -> None:
    """Convert, check what was published, and ask it."""
    tool, model, source, mode = cell
    entry = scan(models)[model]
    settings = ConversionSettings(models, state, quantize=mode, version=source, limits=ProcessLimits(1800.0))
    converter = ModelConverter(entry, settings, lambda title, share: None, print, [tool])
    try:
        conversion = converter.convert(tool.kind)
    finally:
        converter.close()
    assert conversion.path.exists() and conversion.result_bytes > 0
    if KINDS[tool.kind].served:
        assert conversion.agreement is not None
        after = scan(models)[model]
        assert after.versions[conversion.version].format.name == tool.kind
        assert after.versions[conversion.version].problem is None
        assert after.default_version == entry.default_version


@pytest.mark.parametrize("cell", list(cells()), ids=cell_name)
def test_a_cell_of_the_matrix(cell: tuple[Converter, str, str, str], tmp_path: Path) -> None:
    """The digits have samples of their own; the regressions are compared on made-up rows."""
    shutil.copytree(MODELS / cell[1], tmp_path / "models" / cell[1])
    refusal = None
    try:
        convert(tmp_path / "models", tmp_path / "state", cell)
    except ConversionError as error:
        refusal = error
    documented = (ROOT / "docs" / "convert.md").read_text(encoding="utf-8")
    assert refusal is None or refusal.message in documented, f"{refusal.message}\n{refusal.detail}"
    assert not list((tmp_path / "state").glob("convert-*"))
