"""Convert models of our own, and ask the results what they never saw.

``make test-own-models``. Each model of ``own_models.py`` is converted by every path from its
format. A server serves the result beside the original, and both answer five shapes that
no sample and no check of the conversion had. Each answer must be right, or the size that
it rejects must be noted at the conversion; each refusal must name a path that works.

``own_outcomes.json`` has the outcomes, of which ``tools/convert_tables.py`` makes
docs/generated/own-models.md. ``POCKETSERVE_CONVERSION_LOG=FILE`` adds each outcome to that
file, and skips the outcomes without a fault in either: a run of many hours can end and go
on elsewhere. Only a run without it converts by every path again, and finds regressions.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import ROOT, Server, start_server
from convert.local_words import USER, leaked_word
from convert.own_models import OWN_MODELS, OwnModel, Sizes
from convert.own_paths import RIGHT, WRITTEN, Way, fault, ways_from
from pocketserve.repository.scan import scan
from pocketserve_lab.conversion import refusal_sentence
from pocketserve_lab.convert.converter import KINDS, QUANTIZE_MODES, ConversionError
from pocketserve_lab.convert.environments import ENVIRONMENTS, FOLDER_VARIABLE, ensure
from pocketserve_lab.convert.process import ProcessLimits
from pocketserve_lab.convert.run import Conversion, ConversionSettings, ModelConverter
from pocketserve_lab.convert.variants import SINGLE_ROW
from pocketserve_lab.convert.verify import variant_bound, variant_error
from trusting import trust_one

pytestmark = pytest.mark.own_models

PATH_LIMIT_S = 300.0
RESULTS = os.environ.get("POCKETSERVE_CONVERSION_LOG")
BUILDERS = {
    "own_torch.py": ROOT / ".venv-zoo" / "bin" / "python",
    "own_trees.py": ROOT / ".venv-zoo" / "bin" / "python",
}

RECORDED = Path(__file__).with_name("own_outcomes.json")
MODEL_ARRAYS = {"float32": "FP32", "int32": "INT32", "int64": "INT64"}


def one_of_each_kind_first(models: Iterable[OwnModel]) -> list[OwnModel]:
    """Return the models, the first of each kind before the second."""
    counts: Counter[str] = Counter()
    places = {}
    for model in models:
        places[model.name] = counts[model.family]
        counts[model.family] += 1
    return sorted(models, key=lambda model: places[model.name])


def earlier_outcomes(model: str) -> dict[str, str]:
    """Return a model's outcomes without a fault in a run that goes on."""
    if not RESULTS:
        return {}
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    source = recorded[model]["source"]
    outcomes = dict(recorded[model]["outcomes"])
    if Path(RESULTS).exists():
        for line in Path(RESULTS).read_text(encoding="utf-8").splitlines():
            name, way, outcome = json.loads(line)
            if name == model:
                outcomes[way] = outcome
    faultless = {}
    for way, outcome in outcomes.items():
        if not fault(outcome, outcomes, source):
            faultless[way] = outcome
    return faultless


class Workshop:
    """The models, and a server for them.

    Attributes:
        models, state: the folders of both.
    """

    def __init__(self, folder: Path, server: Server) -> None:
        self.models, self.state = folder / "models", folder / "state"
        self._server = server
        self._converters: dict[str, ModelConverter] = {}
        self._outcomes: dict[str, dict[str, str]] = {}

    def close(self) -> None:
        """Remove the converters' work folders."""
        for converter in self._converters.values():
            converter.close()

    def outcomes(self, model: OwnModel, mode: str) -> dict[str, str]:
        """Convert a model by every path of a mode; return all outcomes so far."""
        if model.name not in self._outcomes:
            self._outcomes[model.name] = earlier_outcomes(model.name)
        outcomes = self._outcomes[model.name]
        for way in ways_from(model.source, mode):
            if str(way) in outcomes:
                continue
            outcome = self._outcome(model, self._converter(model), way)
            outcomes[str(way)] = outcome
            if RESULTS:
                with open(RESULTS, "a", encoding="utf-8") as file:
                    row = [model.name, str(way), outcome]
                    file.write(json.dumps(row, ensure_ascii=False) + "\n")
        return outcomes

    def _converter(self, model: OwnModel) -> ModelConverter:
        """Return a model's converter, which keeps the original's answers."""
        if model.name not in self._converters:
            settings = ConversionSettings(
                self.models, self.state, limits=ProcessLimits(PATH_LIMIT_S)
            )
            entry = scan(self.models)[model.name]
            self._converters[model.name] = ModelConverter(
                entry, settings, lambda title, share: None, print
            )
        return self._converters[model.name]

    def _outcome(self, model: OwnModel, converter: ModelConverter, way: Way) -> str:
        try:
            conversion = converter.convert(way.kind, way.mode)
        except ConversionError as error:
            print(error.detail)
            return f"refused: {refusal_sentence(error)}"
        leak = leaked_word(conversion.path)
        if leak:
            return f"not clean: {leak}"
        if not KINDS[way.kind].served:
            return _noted(conversion, WRITTEN)
        # A program of torch.export is code.
        trust_one(self.models, model.name, self.state)
        return self._asked(model, conversion, way)

    def _asked(self, model: OwnModel, conversion: Conversion, way: Way) -> str:
        """Ask the original and the result; return the outcome."""
        assert conversion.agreement is not None
        accepted = variant_bound(conversion.agreement, way.mode)
        for sizes, arrays in model.questions():
            original = self._answer(model.name, conversion.source, arrays)
            assert isinstance(original, dict), original
            result = self._answer(model.name, conversion.version, arrays)
            if isinstance(result, str):
                if not _is_noted(model, conversion, sizes):
                    return f"frozen: {dict(sizes)}: {result}"
                continue
            error = variant_error(original, result)
            if not error <= accepted:
                return f"wrong: {dict(sizes)} differs by {error:.2g}"
        return _noted(conversion, RIGHT)

    def _answer(
        self, model: str, version: str, arrays: Mapping[str, Any]
    ) -> dict[str, Any] | str:
        """Return the outputs by name, or the error's text."""
        inputs = []
        for name, array in arrays.items():
            inputs.append(
                {
                    "name": name,
                    "shape": list(array.shape),
                    "datatype": MODEL_ARRAYS[str(array.dtype)],
                    "data": array.ravel().tolist(),
                }
            )
        path = f"/v2/models/{model}/versions/{version}/infer"
        response = self._server.call("POST", path, json={"inputs": inputs})
        if response.status_code != 200:
            return response.text
        outputs = {}
        for output in response.json()["outputs"]:
            outputs[output["name"]] = np.reshape(output["data"], output["shape"])
        return outputs


def _noted(conversion: Conversion, outcome: str) -> str:
    """Return an outcome with the sizes that the conversion notes as fixed."""
    fixed = []
    for name, shape in conversion.fixed.items():
        sizes = ["any" if size == -1 else str(size) for size in shape]
        fixed.append(f"{name} [{', '.join(sizes)}]")
    if fixed:
        return f"{outcome}, fixed: {'; '.join(fixed)}"
    if any(SINGLE_ROW in note for note in conversion.notes):
        return f"{outcome}, fixed: one row"
    return outcome


def _is_noted(model: OwnModel, conversion: Conversion, sizes: Sizes) -> bool:
    """Return whether a note names one of the sizes that differ from the samples'."""
    changed = {name for name, size in sizes.items() if size != model.seen[name]}
    names = dict(zip(conversion.fixed, model.inputs, strict=False))
    by_name = {each.name: each for each in model.inputs}
    for name, shape in conversion.fixed.items():
        own = by_name.get(name, names[name])
        for size, free in zip(shape, own.shape, strict=False):
            if size != -1 and free in changed:
                return True
    has_row_note = any(SINGLE_ROW in note for note in conversion.notes)
    return has_row_note and sizes.get("rows") != model.seen.get("rows")


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workshop]:
    """Build and serve the models."""
    folder = tmp_path_factory.mktemp("own") / USER
    folder.mkdir()
    environments = Path(
        os.environ.get(FOLDER_VARIABLE) or ROOT / ".converters"
    ).absolute()
    models, state = folder / "models", folder / "state"
    models.mkdir()
    state.mkdir(mode=0o700)
    keras = ensure(
        ENVIRONMENTS["tensorflow"], environments, lambda title, share: None, print
    )
    for script, python in {**BUILDERS, "own_keras.py": keras}.items():
        command = [python, Path(__file__).with_name(script), models]
        done = subprocess.run(
            command, check=False, timeout=900, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    variables = {
        FOLDER_VARIABLE: str(environments),
        "POCKETSERVE_STATE_DIR": str(state),
        "HOME": str(folder),
        "USER": USER,
    }
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in variables.items():
            patch.setenv(variable, value)
        for model in scan(models):
            trust_one(models, model, state)
        server = start_server(
            folder, models, environment=variables, python=sys.executable
        )
        workshop = Workshop(folder, server)
        try:
            yield workshop
        finally:
            workshop.close()
            server.stop()


MODELS = one_of_each_kind_first(OWN_MODELS.values())


# The first decorator varies fastest: all models without quantisation come first.
@pytest.mark.parametrize("model", MODELS, ids=[model.name for model in MODELS])
@pytest.mark.parametrize("mode", QUANTIZE_MODES)
def test_every_path_of_a_model(mode: str, model: OwnModel, workshop: Workshop) -> None:
    """No answer is wrong, no size fixed without a note, no refusal without a way."""
    outcomes = workshop.outcomes(model, mode)
    faults = {}
    for way, outcome in outcomes.items():
        text = fault(outcome, outcomes, model.source)
        if text:
            faults[way] = text
    assert not faults
