"""Recipes as functions, on the embedded models and their data: the accuracy is the one that docs/compress.md states."""

from __future__ import annotations

import copy
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compress.table import Row, documented_rows, load_tool
from conftest import MODELS, ROOT
from pocketserve.compress.recipe import OPTIONS, TrainingData, checked_options, load_data, save_data
from pocketserve.compress.registry import recipe_named, recipes
from pocketserve.compress.scores import Score, score_answers
from pocketserve.convert.converter import ConversionError
from pocketserve.runtimes.base import ModelSource

pytestmark = pytest.mark.torch
TOOL = load_tool()

TOLERANCE = 0.01
MAX_LOSS = 0.05


def module_of(path: Path, weights: str | None = None) -> Any:
    """Build a module from its file as a server does."""
    import torch

    from pocketserve.runtimes.torch.eager import build_module

    trusted = frozenset([hashlib.sha256(path.read_bytes()).hexdigest()])
    options = {"weights": weights} if weights else {}
    return build_module(torch, ModelSource(path, options=options, trusted=trusted, origin=path))


def data_of(model: str, folder: Path) -> tuple[TrainingData, TrainingData]:
    """The samples that a model was trained on, and those to measure with."""
    sets = []
    for path in TOOL.write_data(model, folder):
        with np.load(path) as arrays:
            sets.append(TrainingData((arrays[TOOL.INPUTS[model]],), arrays["labels"]))
    return sets[0], sets[1]


def score(module: Any, data: TrainingData) -> Score:
    """A module's score on samples."""
    import torch

    with torch.inference_mode():
        return score_answers(module(*map(torch.from_numpy, data.inputs)).numpy(), data.labels)


def runnable(rows: list[Row]) -> list[Row]:
    """The rows whose recipes' packages are part of the environment of all frameworks."""
    return [row for row in rows if recipe_named(row.cell.recipe).packages == ("torch",)]


@pytest.mark.parametrize("row", runnable(documented_rows(TOOL)), ids=lambda row: row.name)
def test_a_row_of_the_document(row: Row, tmp_path: Path) -> None:
    """Before and after are as stated, or the loss is too large; the module that went in is as it was."""
    recipe = recipe_named(row.cell.recipe)
    module = module_of(MODELS / row.cell.model / "model.py", "weights.safetensors")
    train, test = data_of(row.cell.model, tmp_path)
    options = TOOL.options_of(row.cell)
    further = {"student": module_of(ROOT / options.pop("student"))} if recipe.takes_student else {}
    numbers = {name: OPTIONS[name].type(value) for name, value in options.items()}
    before, weights = score(module, test), copy.deepcopy(module.state_dict())
    try:
        result = recipe.compress(module, train, **checked_options(recipe, numbers), **further)
    except ConversionError as error:
        refused = error.message
    else:
        after = score(result.module, test)
        refused = f"the {after.metric} on" if after.loss_since(before) > MAX_LOSS else ""
        if not row.refusal:
            allowed = {"accuracy": {"abs": TOLERANCE}}.get(after.metric, {"rel": TOLERANCE})
            assert before.value == pytest.approx(row.before, rel=1e-3)
            assert after.value == pytest.approx(row.after, **allowed)
    assert bool(row.refusal) == bool(refused) and row.refusal.startswith(refused[:30])
    assert all((weights[name] == weight).all() for name, weight in module.state_dict().items())


@pytest.mark.parametrize("name", list(recipes()))
def test_every_recipe_has_a_row_and_words(name: str) -> None:
    """In the table, and below it; its options are those of the command."""
    text = (ROOT / "docs" / "compress.md").read_text(encoding="utf-8")
    assert any(row.cell.recipe == name and not row.refusal for row in documented_rows(TOOL))
    assert f"\n**{name}** " in text
    assert set(recipe_named(name).defaults) <= set(OPTIONS)


def test_the_zeros_of_pruning_stay() -> None:
    """As many weights as asked for are zero at the end of training, and the others are not."""
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    data = TrainingData((np.random.default_rng(0).random((32, 4), np.float32),), np.arange(32) % 2)
    pruned = recipe_named("magnitude-pruning").compress(module, data, amount=0.75, epochs=2).module
    weights = [layer.weight for layer in pruned if hasattr(layer, "weight")]
    assert sum(int((weight == 0).sum()) for weight in weights) == 36
    assert not any((layer.bias == other.bias).all() for layer, other in ((pruned[0], module[0]),))


def test_data_that_does_not_fit() -> None:
    """Labels of no class, and of another number of values, are refused before anything is trained."""
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Softmax(1))
    inputs = (np.zeros((8, 4), np.float32),)
    prune = recipe_named("magnitude-pruning").compress
    with pytest.raises(ConversionError, match="the labels name class 2, and the model has 2 classes"):
        prune(module, TrainingData(inputs, np.full(8, 2)), amount=0.5, epochs=1)
    with pytest.raises(ConversionError, match="answers 2 numbers a sample, and the labels have 1"):
        prune(module, TrainingData(inputs, np.zeros((8, 1), np.float32)), amount=0.5, epochs=1)
    with pytest.raises(ConversionError, match="training diverged"):
        prune(module, TrainingData((np.full((8, 4), np.inf, np.float32),), np.zeros(8, np.int64)), amount=0.5, epochs=1)
    with pytest.raises(ConversionError, match="needs convolutions or linear layers"):
        prune(torch.nn.GRU(2, 2), TrainingData(inputs, np.zeros(8, np.int64)), amount=0.5, epochs=1)


def test_options() -> None:
    """Defaults stand where nothing is given; others than the recipe's own, and wild ones, are refused."""
    pruning = recipe_named("magnitude-pruning")
    assert checked_options(pruning, {"amount": 0.25, "epochs": None}) == {**pruning.defaults, "amount": 0.25}
    with pytest.raises(ConversionError, match=r"takes no --clusters; it takes --amount, --epochs"):
        checked_options(pruning, {"clusters": 4})
    with pytest.raises(ConversionError, match=r"--amount must lie between 0\.01 and 0\.99, not 2"):
        checked_options(pruning, {"amount": 2.0})
    with pytest.raises(ConversionError, match=r"did you mean magnitude-pruning\?.*there are"):
        recipe_named("magnitude-prunning")


def test_data_is_kept_as_it_is(tmp_path: Path) -> None:
    """Inputs come back in the order that is asked for, with their labels."""
    save_data(tmp_path / "d.npz", {"b": np.ones(2), "a": np.zeros(2)}, np.arange(2))
    data = load_data(tmp_path / "d.npz", ("a", "b"))
    assert [array[0] for array in data.inputs] == [0, 1] and list(data.labels) == [0, 1]
