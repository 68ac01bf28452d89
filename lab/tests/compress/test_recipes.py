"""Test recipes as functions against the accuracies in docs/generated/compression.md."""

from __future__ import annotations

import copy
import hashlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compress.table import Row, documented_rows, load_tool
from conftest import MODELS, ROOT
from pocketserve.runtimes.base import ModelSource
from pocketserve_lab.compress.recipe import (
    OPTIONS,
    TrainingData,
    checked_options,
    load_data,
    save_data,
)
from pocketserve_lab.compress.registry import recipe_named, recipes
from pocketserve_lab.compress.scores import Score, score_answers
from pocketserve_lab.convert.converter import ConversionError

pytestmark = pytest.mark.torch
TOOL = load_tool()

TOLERANCE = 0.01
MAX_LOSS = 0.05
MAX_INT8_LOSS = 0.005


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Train with one thread like the tool, since parallel tests would compete."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def module_of(path: Path, weights: str | None = None) -> Any:
    """Build a module from its file as a server does."""
    import torch

    from pocketserve.runtimes.torch.eager import build_module

    trusted = frozenset([hashlib.sha256(path.read_bytes()).hexdigest()])
    options = {"weights": weights} if weights else {}
    return build_module(
        torch, ModelSource(path, options=options, trusted=trusted, origin=path)
    )


def data_of(model: str, folder: Path) -> tuple[TrainingData, TrainingData]:
    """Return a model's training samples, and those to measure with."""
    sets = []
    for path in TOOL.write_data(model, folder):
        with np.load(path) as arrays:
            sets.append(TrainingData((arrays[TOOL.INPUTS[model]],), arrays["labels"]))
    return sets[0], sets[1]


def score(module: Any, data: TrainingData) -> Score:
    """Return a module's score on samples."""
    import torch

    with torch.inference_mode():
        return score_answers(
            module(*map(torch.from_numpy, data.inputs)).numpy(), data.labels
        )


def quick(rows: list[Row]) -> list[Row]:
    """Return a row per recipe, and refusals, without separate environments."""
    plain = set()
    for name, recipe in recipes().items():
        if recipe.packages == ("torch",):
            plain.add(name)
    own = []
    for row in rows:
        if row.cell.recipe in plain and "version" not in row.cell.options:
            own.append(row)
    first = {row.cell.recipe: row for row in reversed(own) if not row.refusal}
    return [row for row in own if row.refusal or row in first.values()]


def check_scores(row: Row, before: Score, after: Score) -> None:
    """Compare the scores with the document's, within the tolerance of the metric."""
    tolerance = {"rel": TOLERANCE}
    if after.metric == "accuracy":
        tolerance = {"abs": TOLERANCE}
    assert before.value == pytest.approx(row.before, rel=1e-3)
    assert after.value == pytest.approx(row.after, **tolerance)


@pytest.mark.parametrize("row", quick(documented_rows(TOOL)), ids=lambda row: row.name)
def test_a_row_of_the_document_is_reproduced(row: Row, tmp_path: Path) -> None:
    """Too large a loss is refused, and the original module is unchanged."""
    recipe = recipe_named(row.cell.recipe)
    module = module_of(MODELS / row.cell.model / "model.py", "weights.safetensors")
    train, test = data_of(row.cell.model, tmp_path)
    options = TOOL.options_of(row.cell)
    further = {}
    if recipe.takes_student:
        further["student"] = module_of(ROOT / options.pop("student"))
    numbers = {name: OPTIONS[name].type(value) for name, value in options.items()}
    before = score(module, test)
    weights = copy.deepcopy(module.state_dict())

    refused = ""
    try:
        checked = checked_options(recipe, numbers)
        result = recipe.compress(module, train, **checked, **further)
    except ConversionError as error:
        refused = error.message
    else:
        after = score(result.module, test)
        if after.loss_since(before) > MAX_LOSS:
            refused = f"the {after.metric} on"
        if not row.refusal:
            check_scores(row, before, after)
    assert bool(row.refusal) == bool(refused)
    assert row.refusal.startswith(refused[:30])
    for name, weight in module.state_dict().items():
        assert (weights[name] == weight).all()


@pytest.mark.parametrize("name", list(recipes()))
def test_every_recipe_is_documented(name: str) -> None:
    """Its options are those of the command."""
    text = (ROOT / "docs" / "compress.md").read_text(encoding="utf-8")
    assert any(
        row.cell.recipe == name and not row.refusal for row in documented_rows(TOOL)
    )
    assert f"\n**{name}** " in text
    assert set(recipe_named(name).defaults) <= set(OPTIONS)


def test_pruned_weights_stay_zero() -> None:
    """Training keeps the requested number of zeros, and changes the rest."""
    import torch

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
    )
    data = TrainingData(
        (np.random.default_rng(0).random((32, 4), np.float32),), np.arange(32) % 2
    )
    pruned = (
        recipe_named("magnitude-pruning")
        .compress(module, data, amount=0.75, epochs=2)
        .module
    )
    weights = [layer.weight for layer in pruned if hasattr(layer, "weight")]
    assert sum(int((weight == 0).sum()) for weight in weights) == 36
    assert not (pruned[2].bias == module[2].bias).any()  # it is trained


def test_mismatched_labels_are_refused() -> None:
    """Unknown classes and wrong counts are refused before training."""
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Softmax(1))
    inputs = (np.zeros((8, 4), np.float32),)
    prune = recipe_named("magnitude-pruning").compress
    with pytest.raises(
        ConversionError, match="the labels name class 2, and the model has 2 classes"
    ):
        prune(module, TrainingData(inputs, np.full(8, 2)), amount=0.5, epochs=1)
    with pytest.raises(
        ConversionError, match="answers 2 numbers a sample, and the labels have 1"
    ):
        prune(
            module,
            TrainingData(inputs, np.zeros((8, 1), np.float32)),
            amount=0.5,
            epochs=1,
        )
    with pytest.raises(ConversionError, match="training diverged"):
        prune(
            module,
            TrainingData((np.full((8, 4), np.inf, np.float32),), np.zeros(8, np.int64)),
            amount=0.5,
            epochs=1,
        )
    with pytest.raises(ConversionError, match="needs convolutions or linear layers"):
        prune(
            torch.nn.GRU(2, 2),
            TrainingData(inputs, np.zeros(8, np.int64)),
            amount=0.5,
            epochs=1,
        )


@pytest.mark.parametrize("name", ["dynamic-quantization", "static-quantization"])
def test_int8_digits_keep_their_accuracy(name: str, tmp_path: Path) -> None:
    """On unseen samples it loses at most half a point."""
    module = module_of(MODELS / "digits" / "model.py", "weights.safetensors")
    train, test = data_of("digits", tmp_path)
    result = recipe_named(name).compress(module, train)
    assert score(result.module, test).value >= score(module, test).value - MAX_INT8_LOSS


def network(torch: Any) -> Any:
    """Return a network with a trained batch norm after a convolution."""
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm2d(4)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    flat = (
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 8 * 8, 3),
    )
    return torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), norm, *flat).eval()


def test_fusion_folds_batch_norms() -> None:
    """The answers are the same.

    Saved programs are folded as well.
    """
    import torch

    images = np.random.default_rng(0).random((8, 1, 8, 8), np.float32)
    data = TrainingData((images,), np.zeros(8, np.int64))
    module = network(torch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        traced = torch.jit.trace(module, torch.from_numpy(images[:2]))
    for source in (module, traced):
        result = recipe_named("fusion").compress(source, data)
        assert result.notes == ("folded into the layers before: 1 batch_norm",)
        assert "batch_norm" not in str(result.module.inlined_graph)
        with torch.inference_mode():
            expected, answers = (
                each(torch.from_numpy(images)).numpy()
                for each in (module, result.module)
            )
        np.testing.assert_allclose(answers, expected, atol=1e-5)


def test_all_weights_are_in_clusters() -> None:
    """Each layer has the requested number of distinct, trained weights."""
    import torch

    from pocketserve_lab.compress.recipes.clustering import nearest_means

    images = np.random.default_rng(0).random((64, 1, 8, 8), np.float32)
    data = TrainingData((images,), np.arange(64) % 3)
    module = network(torch)
    clustered = (
        recipe_named("clustering").compress(module, data, clusters=5, epochs=2).module
    )
    for layer, before in ((clustered[0], module[0]), (clustered[4], module[4])):
        assert len(layer.weight.unique()) <= 5 < len(before.weight.unique())
        untrained, _ = nearest_means(before.weight.detach().numpy().reshape(-1), 5)
        assert not torch.isin(layer.weight, torch.from_numpy(untrained)).all()
    means, index = nearest_means(np.array([0, 0.2, 2, 2.2, 5], np.float32), 3)
    np.testing.assert_allclose(means[index], [0.1, 0.1, 2.1, 2.1, 5], rtol=1e-6)


@pytest.mark.parametrize("name", ["static-quantization", "qat"])
def test_code_that_branches_on_values_is_refused(name: str) -> None:
    """PyTorch can't trace it: the message names the recipe and an alternative."""
    import torch

    class Branching(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 2)

        def forward(self, x: Any) -> Any:
            if x.sum() > 0:
                return self.inner(x)
            return x[:, :2]

    recipe = recipe_named(name)
    data = TrainingData((np.ones((8, 4), np.float32),), np.zeros(8, np.int64))
    with pytest.raises(
        ConversionError, match=f"^{name} follows forward without values"
    ) as caught:
        recipe.compress(Branching(), data, **recipe.defaults)
    assert caught.value.nearest.startswith("--recipe dynamic-quantization")


def test_options_have_defaults_and_limits() -> None:
    """Options of other recipes are refused."""
    pruning = recipe_named("magnitude-pruning")
    assert checked_options(pruning, {"amount": 0.25, "epochs": None}) == {
        **pruning.defaults,
        "amount": 0.25,
    }
    with pytest.raises(
        ConversionError, match=r"takes no --clusters; it takes --amount, --epochs"
    ):
        checked_options(pruning, {"clusters": 4})
    with pytest.raises(
        ConversionError, match=r"--amount must be between 0\.01 and 0\.99, not 2"
    ):
        checked_options(pruning, {"amount": 2.0})
    with pytest.raises(
        ConversionError, match=r"did you mean 'magnitude-pruning'\?.*there are"
    ):
        recipe_named("magnitude-prunning")


def test_data_is_stored_unchanged(tmp_path: Path) -> None:
    """Inputs are returned in the requested order, with their labels."""
    save_data(tmp_path / "d.npz", {"b": np.ones(2), "a": np.zeros(2)}, np.arange(2))
    data = load_data(tmp_path / "d.npz", ("a", "b"))
    assert [array[0] for array in data.inputs] == [0, 1]
    assert list(data.labels) == [0, 1]
