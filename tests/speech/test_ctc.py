"""CTC models: letters at frames become words with times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import Server, start_server
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks.speech.ctc import CtcVocabulary, ctc_vocabulary
from sounds import wav

RATE = 16_000
FRAME = 320
LETTERS = ("<pad>", "|", "H", "I", "A")
LEVELS = (0.0, 0.1, 0.2, 0.3, 0.4)
VOCABULARY = CtcVocabulary(("", "", "H", "I", "A"), blank=0, delimiter=1)


def logits_of(tokens: str) -> Any:
    """Return logits [frames, tokens] of digits."""
    places = np.array([int(token) for token in tokens], int)
    return 9.0 * np.eye(len(LETTERS))[places]


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ("", []),
        ("0000", []),
        ("0223301", [("HI", 1, 5)]),
        ("2020331104", [("HHI", 0, 6), ("A", 9, 10)]),
        ("1121113", [("H", 2, 3), ("I", 6, 7)]),
        ("24", [("HA", 0, 2)]),
    ],
)
def test_repeated_letters_are_one_unless_a_blank_separates_them(
    tokens: str, words: list[tuple[str, int, int]]
) -> None:
    words_found = VOCABULARY.words(logits_of(tokens))
    assert [(word.text, word.start, word.end) for word in words_found] == words


class Files:
    """The files beside a model."""

    def __init__(self, **contents: Any) -> None:
        self._contents = contents

    def json_beside(self, name: str) -> Any:
        return self._contents.get(name.removesuffix(".json"), {})


@pytest.mark.parametrize(
    ("vocab", "config", "reason"),
    [
        ({}, {}, "vocab.json is missing"),
        ({"a": 7}, {}, "must be an integer from 0 to 0"),
        ({"a": True}, {}, "must be an integer"),
        ({"eng": {"a": 0}}, {}, "a table for each language"),
        ({"a": 0}, {"pad_token_id": 3}, "pad_token_id must be 0 to 0"),
        ({"a": 0}, {"vocab_size": 1 << 40}, "too large"),
        ({"a": 0}, {"vocab_size": None}, "vocab_size must be"),
        ({"a": 0}, {"vocab_size": "32"}, "vocab_size must be"),
        ({"a": 0}, {"vocab_size": True}, "vocab_size must be"),
    ],
)
def test_damaged_files_are_refused(
    vocab: dict[str, Any], config: dict[str, Any], reason: str
) -> None:
    files: Any = Files(vocab=vocab)
    with pytest.raises(ModelLoadError, match=reason):
        ctc_vocabulary(files, config)


def ctc_nodes(helper: Any) -> list[Any]:
    """Return the operators from samples to logits."""
    return [
        helper.make_node("Unsqueeze", ["input_values", "axis"], ["channel"]),
        helper.make_node("Conv", ["channel", "mean"], ["means"], strides=[FRAME]),
        helper.make_node("Transpose", ["means"], ["frames"], perm=[0, 2, 1]),
        helper.make_node("Sub", ["frames", "levels"], ["distances"]),
        helper.make_node("Mul", ["distances", "distances"], ["squares"]),
        helper.make_node("Mul", ["squares", "factor"], ["logits"]),
    ]


def write_model(folder: Path, kind: str) -> None:
    """Write a model whose letters are the levels of the sound's frames."""
    onnx = pytest.importorskip("onnx")
    helper, number = onnx.helper, onnx.TensorProto.FLOAT
    mean = np.full((1, 1, FRAME), 1 / FRAME, np.float32)
    levels = np.array(LEVELS, np.float32)[None, None, :]
    constants = {
        "mean": mean,
        "levels": levels,
        "factor": np.float32(-3000),
    }
    nodes = ctc_nodes(helper)
    initializers = [onnx.numpy_helper.from_array(np.array([1]), "axis")]
    for name, value in constants.items():
        initializers.append(onnx.numpy_helper.from_array(np.asarray(value), name))
    samples = helper.make_tensor_value_info("input_values", number, ["batch", "n"])
    shape = ["batch", "t", len(LETTERS)]
    logits = helper.make_tensor_value_info("logits", number, shape)
    graph = helper.make_graph(nodes, "ctc", [samples], [logits], initializers)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx")
    write_configuration(folder, kind)


def write_configuration(folder: Path, kind: str) -> None:
    """Write the files beside the model."""
    files: dict[str, Any] = {
        "config": {"model_type": "wav2vec2", "architectures": [kind], "vocab_size": 5},
        "vocab": {letter: place for place, letter in enumerate(LETTERS)},
        "preprocessor_config": {
            "feature_extractor_type": "Wav2Vec2FeatureExtractor",
            "sampling_rate": RATE,
            "do_normalize": False,
        },
    }
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


def speech(*pieces: tuple[int, int]) -> bytes:
    """Return a sound: the level of each token for some frames."""
    samples = [np.full(frames * FRAME, LEVELS[token]) for token, frames in pieces]
    return wav(np.concatenate(samples)[:, None], bits=32, floating=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("models")
    write_model(models / "letters", "Wav2Vec2ForCTC")
    running = start_server(tmp_path_factory.mktemp("server"), models)
    yield running
    assert running.stop() == 0


SOUND = speech(
    (0, 50),
    (2, 5),
    (3, 5),
    (1, 2),
    (0, 98),
    (4, 5),
    (0, 50),
)


@pytest.mark.onnx
@pytest.mark.live
def test_words_come_with_their_times(server: Server) -> None:
    answer = server.call("POST", "/predictions/letters", data=SOUND).json()
    assert answer["task"] == "speech-to-text"
    entries = []
    for entry in answer["predictions"]:
        entries.append(
            (
                entry["text"],
                entry["start"],
                entry["end"],
            )
        )
    assert entries == [
        ("HI", pytest.approx(1, abs=0.1), pytest.approx(1.2, abs=0.1)),
        ("A", pytest.approx(3.2, abs=0.1), pytest.approx(3.3, abs=0.1)),
    ]
    assert answer["text"] == "HI A"


@pytest.mark.onnx
@pytest.mark.live
def test_openais_interface_and_captions_take_ctc_models(server: Server) -> None:
    files = {"file": ("a.wav", SOUND), "model": (None, "letters")}
    answer = server.call("POST", "/v1/audio/transcriptions", files=files)
    assert answer.json() == {"text": "HI A"}
    translation = server.call("POST", "/v1/audio/translations", files=files)
    assert translation.status_code == 400
    path = "/predictions/letters?sequence_id=1&sequence_start=true"
    step = server.call("POST", path, data=SOUND).json()
    assert (step["text"], step["final"]) == ("HI A", True)
