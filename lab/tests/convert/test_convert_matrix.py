"""Convert every format into every kind in every mode (``make test-convert``).

A cell converts the embedded models and the five networks of ``matrix_torch.py`` and
``matrix_keras.py``. A server with all frameworks serves the result beside the original,
and both must agree within the documented bound; or the refusal is one of the documented
sentences. What no converter makes is refused for one model only, because that depends
on formats alone.

``outcomes.json`` has the outcome of each cell, which must be reproduced;
docs/generated/conversions.md is made from it. All cells take hours: ``-k "unet and
from-onnx"`` runs a part. With ``POCKETSERVE_MATRIX=FILE`` each outcome is added to that
file, and cells in it are skipped; ``tools/convert_tables.py FILE`` imports it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from conftest import MODELS, ROOT, Server, start_server
from convert.local_words import USER, leaked_word
from pocketserve.repository.scan import scan
from pocketserve.runtimes.tfjs.packages import MODULES_VARIABLE
from pocketserve_lab.conversion import refusal_sentence
from pocketserve_lab.convert.converter import (
    KINDS,
    QUANTIZE_MODES,
    TENSOR_KINDS,
    ConversionError,
)
from pocketserve_lab.convert.environments import ENVIRONMENTS, FOLDER_VARIABLE, ensure
from pocketserve_lab.convert.plan import SOURCE_ORDER, plans_for
from pocketserve_lab.convert.process import ProcessLimits
from pocketserve_lab.convert.registry import converters
from pocketserve_lab.convert.run import ConversionSettings, ModelConverter
from pocketserve_lab.convert.verify import check_agreement, compare_outputs
from trusting import trust_one

pytestmark = pytest.mark.convert

EMBEDDED = ("digits", "petals", "diabetes")
NETWORKS = ("mobilenet", "unet", "transformer", "lstm", "detector")
OF_KERAS = ("keras", "savedmodel", "tflite")
"""The sources of each network of ``matrix_keras.py``; the others are those of
``matrix_torch.py``.
"""

AGREES = "agrees"
WRITTEN = "written"
"""The outcomes of a served kind, and of a kind that nothing here runs."""

CELL_LIMIT_S = 300.0
ASKED_ROWS = 8
FRAMEWORKS = ROOT / ".venv-all"
RESULTS = os.environ.get("POCKETSERVE_MATRIX")
RECORDED: dict[str, str] = json.loads(
    Path(__file__).with_name("outcomes.json").read_text(encoding="utf-8")
)
DOCUMENT = Path(__file__).with_name("refusals.md").read_text(encoding="utf-8")


class Cell(NamedTuple):
    """A model, its source format, the target kind and the mode."""

    model: str
    source: str
    kind: str
    mode: str

    def __str__(self) -> str:
        return f"{self.model}-from-{self.source}-to-{self.kind}-{self.mode}"

    @property
    def folder(self) -> str:
        """Return the name of the source's folder."""
        return (
            f"{self.model}-keras"
            if self.model in NETWORKS and self.source in OF_KERAS
            else self.model
        )


def cells() -> list[Cell]:
    """Return all cells by model and source, without those in the results."""
    lines = (
        Path(RESULTS).read_text(encoding="utf-8").splitlines()
        if RESULTS and Path(RESULTS).exists()
        else []
    )
    done = {json.loads(line)[0] for line in lines}
    every = (
        Cell(model, source, kind, mode)
        for model in (*EMBEDDED, *NETWORKS)
        for source in SOURCE_ORDER
        for kind in TENSOR_KINDS
        for mode in QUANTIZE_MODES
        if model == EMBEDDED[0] or has_way(source, kind, mode)
    )
    return [cell for cell in every if str(cell) not in done]


def has_way(source: str, kind: str, mode: str) -> bool:
    """Return whether converters exist for it."""
    try:
        return bool(plans_for(source, kind, mode, converters()))
    except ConversionError:
        return False


def sentences() -> dict[str, re.Pattern[str]]:
    """Return the documented refusals as patterns; an ellipsis matches any words."""
    table = DOCUMENT.partition("\n|---|---|\n")[2]
    lines = table.splitlines()
    texts = [line.strip("| ").partition(" | ")[2].strip() for line in lines]
    return {
        text: re.compile(".+".join(map(re.escape, text.split("…"))), re.DOTALL)
        for text in texts
    }


def documented(refusal: str) -> str | None:
    """Return the documented sentence that matches a refusal."""
    return next(
        (text for text, pattern in sentences().items() if pattern.fullmatch(refusal)),
        None,
    )


class Workshop:
    """Models, a server for them, and the current source's converter.

    Attributes:
        models, state: the folders of both.
    """

    def __init__(self, folder: Path, server: Server) -> None:
        self.models, self.state, self._server = (
            folder / "models",
            folder / "state",
            server,
        )
        self._converter: ModelConverter | None = None
        self._of = ("", "")

    def close(self) -> None:
        """Remove the converter's leftovers."""
        if self._converter is not None:
            self._converter.close()

    def outcome(self, cell: Cell) -> str:
        """Convert and query the server; return ``AGREES``, ``WRITTEN`` or a refusal."""
        home = self.models / cell.folder
        before = sorted(home.rglob("*"))
        try:
            conversion = self._converter_of(cell).convert(cell.kind, cell.mode)
        except ConversionError as error:
            print(error.detail)
            assert sorted(home.rglob("*")) == before
            return refusal_sentence(error)
        assert conversion.path.exists()
        assert conversion.result_bytes > 0
        assert leaked_word(conversion.path) == ""
        if not KINDS[cell.kind].served:
            # Not a version, which the next cell would replace.
            shutil.rmtree(conversion.path)
            return WRITTEN
        # A program of torch.export is code.
        trust_one(self.models, cell.folder, self.state)
        with np.load(next(home.glob("samples/*.npz"))) as file:
            samples = dict(file)
        task = "image-classification" if cell.model == "digits" else "tensors"
        original = self._answers(cell.folder, conversion.source, samples)
        result = self._answers(cell.folder, conversion.version, samples)
        check_agreement(
            compare_outputs(original, result, task, ASKED_ROWS, random=False), cell.mode
        )
        return AGREES

    def _converter_of(self, cell: Cell) -> ModelConverter:
        """Return the converter of a version, which runs the original once."""
        if self._of != (cell.folder, cell.source):
            self.close()
            entry = scan(self.models)[cell.folder]
            assert entry.versions[cell.source].problem is None
            settings = ConversionSettings(
                self.models,
                self.state,
                version=cell.source,
                limits=ProcessLimits(CELL_LIMIT_S),
            )
            self._converter = ModelConverter(
                entry, settings, lambda title, share: None, print
            )
            self._of = (cell.folder, cell.source)
        assert self._converter is not None
        return self._converter

    def _answers(
        self, model: str, version: str, samples: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the server's answers to the first samples, one at a time."""
        answers: dict[str, list[Any]] = {}
        datatypes = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}
        for row in range(ASKED_ROWS):
            inputs = [
                {"name": name, "shape": [1, *samples[name].shape[1:]], "datatype": datatypes[str(samples[name].dtype)],
                 "data": samples[name][row].ravel().tolist()}
                for name in samples
            ]  # fmt: skip
            path = f"/v2/models/{model}/versions/{version}/infer"
            response = self._server.call("POST", path, json={"inputs": inputs})
            assert response.status_code == 200, response.text
            for output in response.json()["outputs"]:
                answers.setdefault(output["name"], []).append(
                    np.reshape(output["data"], output["shape"])[0]
                )
        return {name: np.stack(rows) for name, rows in answers.items()}


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """Serve the embedded models and the networks with every framework."""
    folder = tmp_path_factory.mktemp("matrix") / USER
    (folder / "models").mkdir(parents=True)
    environments = Path(
        os.environ.get(FOLDER_VARIABLE) or ROOT / ".converters"
    ).absolute()
    copy_embedded(folder / "models")
    for name, script in (
        ("pytorch", "matrix_torch.py"),
        ("tensorflow", "matrix_keras.py"),
    ):
        python = ensure(
            ENVIRONMENTS[name], environments, lambda title, share: None, print
        )
        command = [python, Path(__file__).with_name(script), folder / "models"]
        done = subprocess.run(
            command, check=False, timeout=900, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    surroundings = {
        FOLDER_VARIABLE: str(environments),
        MODULES_VARIABLE: str(FRAMEWORKS / "tfjs"),
        "POCKETSERVE_STATE_DIR": str(folder / "state"),
        "HOME": str(folder),
        "USER": USER,
    }
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in surroundings.items():
            patch.setenv(variable, value)
        (folder / "state").mkdir(mode=0o700)
        for model in scan(folder / "models"):
            trust_one(folder / "models", model, folder / "state")
        python = FRAMEWORKS / "bin" / "python"  # `make test-convert` makes it
        server = start_server(
            folder, folder / "models", environment=surroundings, python=python
        )
        workshop = Workshop(folder, server)
        try:
            yield workshop
        finally:
            workshop.close()
            server.stop()


def copy_embedded(models: Path) -> None:
    """Copy the embedded models, with samples of their training data."""
    from sklearn.datasets import load_diabetes, load_digits, load_iris

    rows = {
        "digits": {"image": load_digits().images[:24, ..., None] / 16},
        "petals": {"features": load_iris().data[::6, :3]},
        "diabetes": {"features": load_diabetes(scaled=False).data[:24]},
    }
    for model in EMBEDDED:
        shutil.copytree(MODELS / model, models / model)
        (models / model / "samples").mkdir(exist_ok=True)
        arrays = {
            name: values.astype(np.float32) for name, values in rows[model].items()
        }
        np.savez(models / model / "samples" / "rows.npz", **arrays)


@pytest.mark.parametrize("cell", cells(), ids=str)
def test_a_cell_of_the_matrix(cell: Cell, workshop: Workshop) -> None:
    """It agrees or is refused, as it was before."""
    outcome = workshop.outcome(cell)
    if RESULTS:
        with open(RESULTS, "a", encoding="utf-8") as file:
            file.write(json.dumps([str(cell), outcome], ensure_ascii=False) + "\n")
    is_good = outcome in (AGREES, WRITTEN)
    assert is_good or documented(outcome), outcome
    recorded = RECORDED.get(str(cell), outcome)
    assert outcome == recorded or (
        not is_good and documented(outcome) == documented(recorded)
    )
