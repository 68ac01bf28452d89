"""Check verified answers of real models in every format, without manifests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from asset_cases import Case, all_cases, run_case, serving
from conftest import find_assets
from pocketserve_client import Client

pytestmark = [pytest.mark.assets, pytest.mark.live]

MARGIN = 0.15
"""A top label is required if its lead is this large; otherwise kernels and resizing may
swap the first two.
"""

TRANSPARENT = ("sparrow.png",)
"""The expected answers ignore the alpha channel; the server puts such a picture on
white, as a viewer does.
"""

MARKS = {
    "onnx": pytest.mark.onnx,
    "torchscript": pytest.mark.torch,
    "ptl": pytest.mark.torch,
    "keras": pytest.mark.tensorflow,
    "savedmodel": pytest.mark.tensorflow,
    "tfjs": pytest.mark.tfjs,
}

CASES = all_cases(find_assets())


def is_labelled_picture(case: Case) -> bool:
    """Return whether the file's own metadata has labels for a picture."""
    sources = case.content["source_inputs"]
    return (
        case.format == "tflite"
        and "top5" in case.content["answer"]
        and sources[0].endswith((".jpg", ".png"))
    )


@pytest.fixture(scope="module")
def client(form: str, assets: Path) -> Iterator[Client]:
    """Return a client of a server on all models of one format."""
    with serving(assets, form) as client:
        yield client


def parameters(cases: list[Case]) -> list[Any]:
    """Return the cases with their format and their framework's mark."""
    return [
        pytest.param(c.format, c, id=str(c), marks=MARKS.get(c.format, ()))
        for c in cases
    ]


@pytest.mark.parametrize("form", ["tflite"], scope="module")
def test_every_file_is_served_without_a_manifest(client: Client, assets: Path) -> None:
    """Each .tflite of the folder is in the index and has metadata."""
    names = {path.stem for path in (assets / "models" / "tflite").glob("*.tflite")}
    assert {entry["name"] for entry in client.index()} == names
    for name in names:
        metadata = client.model_metadata(name)
        assert metadata["inputs"] and metadata["outputs"], name


@pytest.mark.parametrize(("form", "case"), parameters(CASES), scope="module")
def test_a_case_gives_its_outputs(client: Client, case: Case) -> None:
    run_case(client, case)


@pytest.mark.parametrize(
    ("form", "picture"),
    parameters([case for case in CASES if is_labelled_picture(case)]),
    scope="module",
)
def test_a_picture_gives_its_label(client: Client, picture: Case) -> None:
    """The label is in the file's metadata."""
    best = picture.content["answer"]["top5"]
    source = picture.content["source_inputs"][0]
    answer = client.predict(
        picture.model, (picture.root / source).read_bytes(), top_k=5
    )
    assert answer["task"] == "image-classification"
    found = [prediction["label"] for prediction in answer["predictions"]]
    if best[0]["score"] - best[1]["score"] >= MARGIN:
        assert found[0] == best[0]["label"]
    elif Path(source).name not in TRANSPARENT:
        assert best[0]["label"] in found
