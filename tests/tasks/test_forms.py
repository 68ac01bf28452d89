"""Model cards for programs that build forms: input kinds, parameters, columns,
skeletons.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from conftest import MODELS, ROOT
from pocketserve.api import predictions
from pocketserve.api.describe import describe_model
from pocketserve.api.messages import ApiRequest
from pocketserve.config import load_config
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.service import Service
from pocketserve.tasks.form import ACCEPTED, Feature
from pocketserve.tasks.parameters import NAMES, parameter
from pocketserve.tasks.vision.pose_estimation import COCO, COCO_SKELETON
from pocketserve.tensors import TensorSpec
from pocketserve_wire import ApiError, ErrorCode
from sounds import stored, tone
from text_models import task_of
from vision_models import picture

TEST_MODELS = ROOT / "tests" / "models"
PICTURES = {"digits", "shapes", "poses"}
TEXT = b"the cat sat on the mat"
QUESTION = json.dumps(
    {
        "question": "where does the tram stop?",
        "context": "The tram stops at the station.",
    }
).encode()
SAMPLES = {
    "petals": (b"[5.1, 3.5, 1.4]", "rows"),
    "digits": ((MODELS / "digits" / "samples" / "7.png").read_bytes(), "picture"),
    "shapes": (bytes(picture()), "picture"),
    "poses": (bytes(picture()), "picture"),
    "tones": (stored(tone(2.0), 16), "sound"),
    "phrases": (TEXT, "text"),
    "answers": (QUESTION, "question"),
    "shelf": (b"[3, 4]", "items"),
}
RAW_SOUND = {"format": "pcm16"}  # raw samples of the tone, without a header


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Serve every task with a model in this repository.

    Trials of known files would only take time.
    """
    folder = tmp_path_factory.mktemp("models")
    for name in SAMPLES:
        parent = TEST_MODELS
        if (MODELS / name).exists():
            parent = MODELS
        shutil.copytree(parent / name, folder / name)
    settings = {
        "models_dir": folder,
        "state_dir": tmp_path_factory.mktemp("state"),
        "quarantine": False,
    }
    running = Service(load_config(settings, environ={}))
    yield running
    running.close()


def card_of(service: Service, name: str) -> dict[str, Any]:
    """Return a model's card as JSON carries it."""
    with service.running(name, None) as (entry, handle):
        card: dict[str, Any] = json.loads(
            json.dumps(describe_model(entry, handle)["card"], allow_nan=False)
        )
    return card


def answer_of(service: Service, name: str, query: dict[str, Any]) -> list[Any]:
    """Return the entries of the answer to a model's sample."""
    extra = RAW_SOUND if name == "tones" else {}
    texts = {key: str(value) for key, value in {**query, **extra}.items()}
    request = ApiRequest({"model": name}, texts, memoryview(SAMPLES[name][0]))
    entries: list[Any] = predictions.document(predictions.ask(service, request))[
        "predictions"
    ]
    return entries


@pytest.mark.parametrize("name", SAMPLES)
def test_the_first_kind_of_input_is_the_models(service: Service, name: str) -> None:
    """The model's sample has this kind and gets an answer."""
    card = card_of(service, name)
    assert card["accepts"][0] == SAMPLES[name][1]
    assert set(card["accepts"]) <= ACCEPTED.keys()
    assert isinstance(answer_of(service, name, {}), list)


@pytest.mark.parametrize("name", SAMPLES)
def test_stated_defaults_are_the_real_ones(service: Service, name: str) -> None:
    """A request with all defaults gets the same answer as one without parameters."""
    parameters = card_of(service, name)["parameters"]
    defaults = {
        key: schema["default"]
        for key, schema in parameters.items()
        if "default" in schema
    }
    raw = {"rotation", "format"}  # they need a raw frame, or declare a header
    query = {key: value for key, value in defaults.items() if key not in raw}
    assert answer_of(service, name, query) == answer_of(service, name, {})
    for key, value in defaults.items():
        jsonschema.validate(value, parameters[key])


@pytest.mark.parametrize("name", SAMPLES)
def test_values_outside_a_schema_are_rejected(service: Service, name: str) -> None:
    """A number out of range and an unknown choice are rejected by the model."""
    for key, schema in card_of(service, name)["parameters"].items():
        assert schema["description"]
        outside = (
            [schema["maximum"] + 1]
            if "maximum" in schema
            else ["no such choice"]
            if "enum" in schema
            else []
        )
        for value in outside:
            if key == "format" and name == "tones":
                continue  # the sample is raw, and its own format is named
            with pytest.raises(ApiError) as caught:
                answer_of(service, name, {key: value})
            assert caught.value.code is ErrorCode.INVALID_PARAMETER


def test_every_parameter_belongs_to_a_task(service: Service) -> None:
    """Every parameter is on some card.

    The models here neither segment nor transcribe.
    """
    absent = {"mask", "speech_task", "prompt", "temperature"}
    declared = {key for name in SAMPLES for key in card_of(service, name)["parameters"]}
    assert declared | absent == set(NAMES)


def test_a_card_lists_only_the_parameters_of_its_task(service: Service) -> None:
    """A sound has a rate and no width.

    A table regression has no parameter.
    """
    tones, shapes = (
        card_of(service, name)["parameters"] for name in ("tones", "shapes")
    )
    assert {"rate", "pool"} <= tones.keys()
    assert "width" not in tones
    assert tones["rate"]["default"] == 16_000
    assert "pcm16" in tones["format"]["enum"]
    assert "nv21" in shapes["format"]["enum"]
    assert tones["language"]["examples"] == ["de"]
    assert "language" not in shapes
    assert "rate" not in shapes
    assert 0 <= shapes["iou"]["default"] <= 1
    assert card_of(service, "petals")["parameters"] == {}


def test_the_columns_of_a_table(service: Service) -> None:
    """Names, units and the usual range of a table's columns."""
    assert card_of(service, "petals")["features"][0] == {
        "name": "sepal_length",
        "unit": "cm",
        "type": "number",
        "minimum": 4.3,
        "maximum": 7.9,
    }
    assert "features" not in card_of(service, "digits")


def test_text_columns(tmp_path: Path) -> None:
    """A pipeline's columns may be texts.

    Without a range, none is shown.
    """
    inputs = [TensorSpec("age", "FP32", (-1, 1)), TensorSpec("town", "BYTES", (-1, 1))]
    manifest = {"task": "tabular-regression", "features": {"names": ["age", "town"]}}
    assert task_of(tmp_path, inputs, {"y": (-1, 1)}, manifest).form().features == [
        Feature("age"),
        Feature("town", kind="string"),
    ]


@pytest.mark.parametrize(
    ("features", "text"),
    [
        ({"minimum": [1]}, "features.minimum has 1"),
        ({"maximum": [1, 2, 3]}, "features.maximum has 3"),
        ({"minimum": [1, 5], "maximum": [2, 4]}, "must not be above"),
    ],
)
def test_mismatched_ranges_are_rejected(
    tmp_path: Path, features: dict[str, Any], text: str
) -> None:
    """The manifest is at fault."""
    manifest = {
        "task": "tabular-regression",
        "features": {"names": ["a", "b"], **features},
    }
    with pytest.raises(ModelLoadError, match=text):
        task_of(tmp_path, [TensorSpec("x", "FP32", (-1, 2))], {"y": (-1, 1)}, manifest)


def test_values_outside_the_usual_range_are_answered(service: Service) -> None:
    """The range is only a hint for forms."""
    request = ApiRequest({"model": "petals"}, {}, memoryview(b"[50, 40, 30]"))
    assert predictions.document(predictions.ask(service, request))["predictions"][0][
        "value"
    ]


def test_the_skeleton_of_a_pose(service: Service) -> None:
    """The pairs are those joined by the server's own drawing."""
    card = card_of(service, "poses")
    assert card["keypoints"] == list(COCO)
    assert card["skeleton"] == [list(pair) for pair in COCO_SKELETON]
    (entry, *_) = answer_of(service, "poses", {"threshold": 0})
    assert [point["label"] for point in entry["keypoints"]] == card["keypoints"]


def test_a_non_finite_threshold_is_omitted() -> None:
    """A file may contain any float.

    The schema omits it, since JSON cannot carry it.
    """
    for value in (float("nan"), float("inf")):
        assert "default" not in parameter("threshold", default=value).described_schema()


def test_tensors_of_several_inputs(tmp_path: Path) -> None:
    """A model without a task takes tensors and has no parameters."""
    inputs = [TensorSpec("a", "FP32", (1,)), TensorSpec("b", "FP32", (1,))]
    assert task_of(tmp_path, inputs, {"y": (1,)}).form().facts() == {
        "accepts": ["tensors"],
        "parameters": {},
    }
