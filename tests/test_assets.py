"""Real models with verified answers: exact tensors in, expected outputs out, over HTTP and without a manifest."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Server, find_assets

from pocketserve_client import Client

pytestmark = [pytest.mark.assets, pytest.mark.live]

MARGIN = 0.15
"""A top label is demanded where it leads by this much; below it, kernels and resizing may swap the first two."""

TRANSPARENT = ("sparrow.png",)
"""The expected answers ignore the alpha channel; the server puts such a picture on white, as a viewer does."""


def _cases(root: Path | None) -> list[dict[str, Any]]:
    if root is None:
        return []
    cases = [json.loads(path.read_text()) for path in sorted((root / "expected").glob("*.json"))]
    return [case for case in cases if case["model"].endswith(".tflite")]


CASES = _cases(find_assets())
PICTURES = [case for case in CASES if "top5" in case["answer"] and case["source_inputs"][0].endswith((".jpg", ".png"))]

TOLERANCES = {"abs 0.01": 0.01, "abs 0.02": 0.02, "abs 1e-3": 1e-3, "abs 1e-4": 1e-4, "rtol 1e-4": 1e-4}


@pytest.fixture(scope="module")
def client(asset_server: Server) -> Client:
    """A client of the server on the public TFLite files."""
    return Client(asset_server.url, asset_server.token)


def test_every_file_is_served_without_a_manifest(client: Client, assets: Path) -> None:
    """Each .tflite of the folder is in the index and has metadata."""
    names = {path.stem for path in (assets / "models" / "tflite").glob("*.tflite")}
    assert {entry["name"] for entry in client.index()} == names
    for name in names:
        metadata = client.model_metadata(name)
        assert metadata["inputs"] and metadata["outputs"], name


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["id"]))
def test_exact_tensors(client: Client, assets: Path, case: dict[str, Any]) -> None:
    """The case's tensor gives the case's outputs within the case's tolerance."""
    name = Path(case["model"]).stem
    metadata = client.model_metadata(name)
    arrays = [np.load(assets / item["npy"]) for item in case["inputs"]]
    inputs = {spec["name"]: array for spec, array in zip(metadata["inputs"], arrays, strict=True)}
    outputs = client.infer(name, inputs)
    for expected in case["outputs"]:
        if "npy" in expected:
            _compare(case, outputs, expected["name"], np.load(assets / expected["npy"]))


def _compare(case: dict[str, Any], outputs: dict[str, Any], name: str, expected: Any) -> None:
    if name == "argmax":
        (scores,) = outputs.values()
        assert np.mean(scores.argmax(-1).reshape(expected.shape) == expected) >= 0.99
        return
    got = outputs.get(name, next(iter(outputs.values())))
    got = got.reshape(expected.shape)
    text = case["tolerance"]
    if text.startswith("score within"):  # a detector's boxes, classes and scores
        assert np.allclose(got, expected, atol=0.05)
    elif text.startswith("same ai-edge-litert build"):
        assert np.abs(got.astype(int) - expected.astype(int)).max() <= 20
    else:
        tolerance = next(value for start, value in TOLERANCES.items() if text.startswith(start))
        assert np.allclose(got, expected, rtol=tolerance if "rtol" in text else 0, atol=tolerance)


@pytest.mark.parametrize("case", PICTURES, ids=lambda case: str(case["id"]))
def test_picture_gives_its_label(client: Client, assets: Path, case: dict[str, Any]) -> None:
    """The picture itself gives the label that the file's metadata holds for it."""
    best = case["answer"]["top5"]
    answer = client.predict(Path(case["model"]).stem, (assets / case["source_inputs"][0]).read_bytes(), top_k=5)
    assert answer["task"] == "image-classification"
    found = [prediction["label"] for prediction in answer["predictions"]]
    if best[0]["score"] - best[1]["score"] >= MARGIN:
        assert found[0] == best[0]["label"]
    elif Path(case["source_inputs"][0]).name not in TRANSPARENT:
        assert best[0]["label"] in found
