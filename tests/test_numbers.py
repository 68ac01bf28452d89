"""Measure the embedded digit detector on new pages against its card."""

from __future__ import annotations

import io
import os
import tomllib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest

from conftest import MODELS
from drawn import recipe
from pocketserve.api import predictions
from pocketserve.api.messages import ApiRequest
from pocketserve.config import load_config
from pocketserve.runtimes.registry import missing_framework
from pocketserve.service import Service
from pocketserve_lab.compare.detections import precision_figures

Image = pytest.importorskip("PIL.Image", reason="pictures need Pillow")
pytest.importorskip("sklearn", reason="the handwriting is scikit-learn's")

FOLDER = MODELS / "numbers"
EVALUATIONS = {
    name: version["evaluation"]
    for name, version in tomllib.loads(
        (FOLDER / "model.toml").read_text(encoding="utf-8")
    )["versions"].items()
}
VERSIONS = [
    "tflite",
    pytest.param("onnx", marks=pytest.mark.onnx),
    pytest.param("torch", marks=pytest.mark.torch),
]
PAGES = 30
SEED = 7
MAX_BYTES = 3_000_000
MAX_SAMPLE_BYTES = 60_000
TOLERANCE = 0.1
"""Thirty pages instead of 300, and of the held-out fonts only the one inside Pillow."""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Run the server without a transport."""
    settings = {
        "models_dir": MODELS,
        "state_dir": tmp_path_factory.mktemp("state"),
        "quarantine": False,
    }
    running = Service(load_config(settings, environ={}))
    yield running
    running.close()


@pytest.fixture(scope="module")
def pages() -> Any:
    """Return JPEG files of held-out pages, with the digits on each."""
    with mock.patch.dict(os.environ, {"POCKETSERVE_FONTS": ""}):
        return recipe("number_pages").photos(PAGES, SEED)


def ask(service: Service, body: bytes, **query: str) -> Any:
    request = ApiRequest(path={"model": "numbers"}, query=query, body=memoryview(body))
    return predictions.document(predictions.ask(service, request))["predictions"]


@pytest.mark.parametrize("version", VERSIONS)
def test_the_cards_score_is_reproduced(
    service: Service, pages: Any, version: str
) -> None:
    missing = missing_framework(service.entry("numbers").versions[version].format)
    if missing:
        pytest.skip(missing)
    answers = [
        ask(service, body, version=version, threshold="0.02") for body, _ in pages
    ]
    flat = [[{**entry["box"], **entry} for entry in answer] for answer in answers]
    figures = precision_figures(flat, [truth for _, truth in pages])
    claimed = EVALUATIONS[version]["value"]
    assert figures["mAP at 0.5"] >= claimed - TOLERANCE
    assert f"**{claimed:.3f}**" in (FOLDER / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "sample", sorted((FOLDER / "samples").iterdir()), ids=lambda path: path.stem
)
def test_digits_are_found_on_samples(service: Service, sample: Any) -> None:
    """They are inside the picture."""
    body = sample.read_bytes()
    assert len(body) < MAX_SAMPLE_BYTES
    with Image.open(io.BytesIO(body)) as picture:
        width, height = picture.size
    boxes = [entry["box"] for entry in ask(service, body)]
    assert len(boxes) >= 4
    for box in boxes:
        assert -5 < box["x"] < box["x"] + box["width"] < width + 5
        assert -5 < box["y"] < box["y"] + box["height"] < height + 5


def test_an_empty_page_has_no_digits(service: Service) -> None:
    for colour in ("white", "black", "grey"):
        file = io.BytesIO()
        Image.new("RGB", (400, 300), colour).save(file, "PNG")
        assert ask(service, file.getvalue()) == []


def test_the_files_are_small() -> None:
    assert (
        sum(path.stat().st_size for path in FOLDER.rglob("*") if path.suffix != ".pyc")
        < MAX_BYTES
    )
