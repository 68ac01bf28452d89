"""Networks of Hugging Face folders: their process, its limits, end and restart."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from confinement import check_confined, check_no_internet_socket
from pocketserve.child.frames import FramePipe
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
    with pytest.raises(NetworkEndedError, match="signal SIGKILL") as caught:
        session.run(picture())
    assert caught.value.by_system
    np.testing.assert_array_equal(session.run(picture())["logits"], before)
    assert session.pid != first


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_the_next_request_gets_no_answer_of_an_interrupted_one(
    session: TaskFolderSession,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    expected = session.run(picture())["logits"]
    with monkeypatch.context() as patch:
        patch.setattr(FramePipe, "receive", Mock(side_effect=error))
        with pytest.raises(error):
            session.run({"pixel_values": -picture()["pixel_values"]})
    np.testing.assert_array_equal(session.run(picture())["logits"], expected)


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
        with pytest.raises(ModelLoadError, match="outputs are not numbers"):
            session.try_out()
    finally:
        session.close()


def write_bert(folder: Path, network: str, **options: Any) -> Path:
    """Write a tiny BERT with its tokenizer; return ``config.json``."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=8,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    getattr(transformers, network)(config, **options).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c"]
    (folder / "vocab.txt").write_text("\n".join(words))
    return folder / "config.json"


def rewrite(path: Path, **changes: Any) -> None:
    """Change members of ``config.json``."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    ("network", "changes", "pattern"),
    [
        (
            "BertModel",
            {"architectures": ["BertForSequenceClassification"]},
            "classifier.bias",
        ),
        (
            "BertForSequenceClassification",
            {"num_hidden_layers": 3},
            r"encoder\.layer\.1\..* and \d+ more",
        ),
        ("BertForSequenceClassification", {"vocab_size": 9}, "word_embeddings"),
    ],
)
def test_weights_that_do_not_fill_the_network_are_refused(
    tmp_path: Path, network: str, changes: dict[str, Any], pattern: str
) -> None:
    path = write_bert(tmp_path / "part", network)
    rewrite(path, **changes)
    with pytest.raises(ModelLoadError, match=pattern):
        RUNTIME.open(ModelSource(path))


def test_a_classifier_needs_its_pooler(tmp_path: Path) -> None:
    import safetensors.numpy

    path = write_bert(tmp_path / "part", "BertForSequenceClassification")
    weights = path.with_name("model.safetensors")
    tensors = {}
    for name, array in safetensors.numpy.load_file(weights).items():
        if "pooler" not in name:
            tensors[name] = array
    safetensors.numpy.save_file(tensors, weights, {"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"bert\.pooler\.dense\.bias"):
        RUNTIME.open(ModelSource(path))


@pytest.mark.parametrize(
    ("network", "options", "outputs"),
    [
        ("BertModel", {}, ["last_hidden_state", "pooler_output"]),
        ("BertModel", {"add_pooling_layer": False}, ["last_hidden_state"]),
        ("BertForMaskedLM", {}, ["last_hidden_state"]),
    ],
)
def test_a_pooler_without_weights_gives_no_output(
    tmp_path: Path, network: str, options: dict[str, Any], outputs: list[str]
) -> None:
    path = write_bert(tmp_path / "embedder", network, **options)
    path.with_name("modules.json").write_text("[]")
    session = RUNTIME.open(ModelSource(path))
    try:
        assert [output.name for output in session.outputs] == outputs
    finally:
        session.close()
