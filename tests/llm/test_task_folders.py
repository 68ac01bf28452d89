"""Networks of Hugging Face folders: their process, its limits, end and restart."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from confinement import check_confined, check_no_internet_socket
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.hugging_face.task_process import NetworkEndedError
from pocketserve.runtimes.hugging_face.task_session import RUNTIME, TaskFolderSession

# The library warns of its own deprecations.
pytestmark = [pytest.mark.llm, pytest.mark.filterwarnings("ignore")]

SIDE = 32
CLASSES = 5
OWN_CODE = "raise SystemExit('this file must not run')\n"


def write_vit(folder: Path, **changes: Any) -> Path:
    """Write a tiny ViT with changes of ``config.json``; return that file."""
    import transformers

    config = transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        image_size=SIDE,
        patch_size=16,
        num_labels=CLASSES,
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    path = folder / "config.json"
    content = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps(content))
    return path


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_vit(tmp_path_factory.mktemp("models") / "vit")


@pytest.fixture(scope="module")
def session(config: Path) -> Iterator[TaskFolderSession]:
    session = RUNTIME.open(ModelSource(config))
    yield session
    session.close()


def picture(side: int = SIDE) -> dict[str, Any]:
    values = np.random.default_rng(1).random((1, 3, side, side), np.float32)
    return {"pixel_values": values}


def test_inputs_and_outputs_are_described(session: TaskFolderSession) -> None:
    (given,) = session.inputs
    (answered,) = session.outputs
    assert (given.name, given.shape) == ("pixel_values", (-1, 3, -1, -1))
    assert (answered.name, answered.shape) == ("logits", (-1, CLASSES))


def test_the_process_is_confined(session: TaskFolderSession) -> None:
    assert session.pid is not None
    check_confined(session.pid)
    check_no_internet_socket(session.pid)


def test_an_input_that_does_not_fit_is_the_clients_fault(
    session: TaskFolderSession,
) -> None:
    with pytest.raises(ValueError, match="doesn't match"):
        session.run(picture(2 * SIDE))
    assert session.run(picture())["logits"].shape == (1, CLASSES)


def test_a_killed_process_is_started_again(session: TaskFolderSession) -> None:
    before = session.run(picture())["logits"]
    first = session.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    with pytest.raises(NetworkEndedError, match="signal SIGKILL"):
        session.run(picture())
    np.testing.assert_array_equal(session.run(picture())["logits"], before)
    assert session.pid != first


def test_code_of_the_folder_is_refused_and_not_run(tmp_path: Path) -> None:
    names = {
        "AutoConfig": "own.OwnConfig",
        "AutoModelForImageClassification": "own.OwnForImageClassification",
    }
    path = write_vit(
        tmp_path / "own",
        auto_map=names,
        model_type="own",
        architectures=["OwnForImageClassification"],
    )
    (tmp_path / "own" / "own.py").write_text(OWN_CODE)
    with pytest.raises(ModelLoadError, match="code of the folder is not run"):
        RUNTIME.open(ModelSource(path))


def test_known_architectures_ignore_code_beside_them(tmp_path: Path) -> None:
    names = {"AutoModelForImageClassification": "own.OwnForImageClassification"}
    path = write_vit(tmp_path / "own", auto_map=names)
    (tmp_path / "own" / "own.py").write_text(OWN_CODE)
    session = RUNTIME.open(ModelSource(path))
    try:
        assert session.run(picture())["logits"].shape == (1, CLASSES)
    finally:
        session.close()


def test_weights_that_are_no_numbers_fail_the_trial(tmp_path: Path) -> None:
    import safetensors.numpy

    path = write_vit(tmp_path / "nan")
    weights = path.with_name("model.safetensors")
    tensors = safetensors.numpy.load_file(weights)
    tensors["classifier.bias"] = np.full(CLASSES, np.nan, np.float32)
    safetensors.numpy.save_file(tensors, weights, {"format": "pt"})
    session = RUNTIME.open(ModelSource(path))
    try:
        with pytest.raises(ModelLoadError, match="outputs are no numbers"):
            session.try_out()
    finally:
        session.close()
