"""Tests of ``pocketserve init``: detected facts, questions, and manifests that work."""

from __future__ import annotations

import argparse
import json
import os
import select
import shutil
import subprocess
import sys
import termios
import time
import tomllib
from collections.abc import Callable
from io import FileIO
from pathlib import Path

import pytest

from conftest import MODELS, ROOT, STATE
from pocketserve.cli.folder import init, module_inputs

DIGITS = MODELS / "digits"
SHAPES = ROOT / "tests" / "models"
NAMES = "\n".join("0123456789")
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def _own_state(_no_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(STATE))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with one bare file, too small for a picture classifier."""
    folder = tmp_path / "models"
    folder.mkdir()
    shutil.copy(DIGITS / "digits.tflite", folder / "bare.tflite")
    return folder


@pytest.fixture
def run(command: Run, folder: Path) -> Run:
    """Run a command beside the folder."""
    return command


@pytest.fixture
def labels(tmp_path: Path) -> Path:
    """Return a file of ten names."""
    (tmp_path / "names").write_text(NAMES)
    return tmp_path / "names"


def manifest(folder: Path) -> dict[str, object]:
    """Return the contents of a model's manifest."""
    return tomllib.loads((folder / "model.toml").read_text())


def test_init_a_bare_file_with_options(run: Run, folder: Path, labels: Path) -> None:
    """It moves into its own folder with a manifest and labels, and answers with names."""
    words = ("--task", "image-classification", "--labels", labels, "--pixels", "0..255")
    code, out, err = run("init", "bare", "--models-dir", folder, *words)
    assert (code, err) == (0, "")
    assert sorted(os.listdir(folder)) == ["bare"]
    assert sorted(os.listdir(folder / "bare")) == [
        "bare.tflite",
        "labels.txt",
        "model.toml",
    ]
    assert manifest(folder / "bare") == {
        "task": "image-classification",
        "labels": "labels.txt",
        "image": {"mean": 0, "std": 1},
    }, "its scores are probabilities: no activation"
    assert (
        "bare is served as image-classification with 10 labels (0, 1, 2 …)."
        in " ".join(out.split())
    )
    moved = f"The model's file moved into {folder}/bare, with a copy of the labels: a manifest holds for the files"
    assert moved in " ".join(out.split())
    code, out, _ = run(
        "predict", "--local", folder / "bare", DIGITS / "samples" / "3.png", "--json"
    )
    assert code == 0
    assert len(json.loads(out)["predictions"][0]["label"]) == 1
    before = (folder / "bare" / "model.toml").read_bytes()
    code, _, err = run("init", folder / "bare")
    assert code == 1
    assert 'is left as it is: it says task = "image-classification" already' in err
    assert (folder / "bare" / "model.toml").read_bytes() == before


def test_assumptions_are_printed_but_not_written(run: Run, folder: Path) -> None:
    """A manifest would make a guess look like a statement."""
    code, out, _ = run(
        "init", "bare", "--models-dir", folder, "--task", "image-classification"
    )
    assert code == 0
    assert "Assumed, since nothing states it: pixels 0..1, resize stretch." in " ".join(
        out.split()
    )
    assert "pocketserve init bare --try PHOTO" in out
    assert "image" not in manifest(folder / "bare")
    shutil.rmtree(folder / "bare")
    shutil.copy(DIGITS / "digits.tflite", folder / "bare.tflite")
    code, out, _ = run(
        "init",
        "bare",
        "--models-dir",
        folder,
        "--task",
        "image-classification",
        "--pixels",
        "0..1",
    )
    assert code == 0
    assert "Assumed" not in out


@pytest.mark.parametrize(
    ("count", "is_taken"),
    [
        (10, True),
        (2, False),
    ],
)
def test_matching_labels_beside_a_bare_file_are_copied(
    run: Run, folder: Path, count: int, is_taken: bool
) -> None:
    """They are copied only if their number matches the classes.

    Otherwise they are only named.
    """
    (folder / "labels.txt").write_text(
        "".join(f"{name}\n" for name in "abcdefghij"[:count])
    )
    code, out, err = run(
        "init", folder / "bare.tflite", "--task", "image-classification"
    )
    assert code == 0, err
    assert (manifest(folder / "bare").get("labels") == "labels.txt") == is_taken
    assert (folder / "labels.txt").is_file(), "it may be another model's, too"
    text = f"{folder}/labels.txt is ignored: it has 2 lines, but the model gives 10 scores."
    assert (text in " ".join(out.split())) != is_taken


def test_a_wrong_number_of_labels_is_reported_once(
    folder: Path, tmp_path: Path
) -> None:
    """The task's own warning is not printed as well."""
    (tmp_path / "two").write_text("a\nb\n")
    words = [
        sys.executable,
        "-m",
        "pocketserve",
        "init",
        folder / "bare.tflite",
        "--labels",
        tmp_path / "two",
    ]
    words += ["--task", "image-classification"]
    ended = subprocess.run(
        words, capture_output=True, text=True, check=True, timeout=60
    )
    assert ended.stderr == "", "nor what the framework writes itself"
    assert (
        " ".join(ended.stdout.split()).count("the model has 2 labels for 10 classes")
        == 1
    )


def test_a_hub_folder_needs_no_questions(run: Run, folder: Path) -> None:
    """``config.json`` gives the task and names, ``preprocessor_config.json`` the pixel
    range.
    """
    home = folder / "hub"
    home.mkdir()
    shutil.copy(DIGITS / "digits.tflite", home)
    config = {
        "architectures": ["ViTForImageClassification"],
        "id2label": dict(enumerate("abcdefghij")),
    }
    (home / "config.json").write_text(json.dumps(config))
    (home / "preprocessor_config.json").write_text(
        '{"image_mean": [0.5], "image_std": [0.5]}'
    )
    code, out, err = run("init", home)
    assert (code, err) == (0, "")
    assert manifest(home) == {"task": "image-classification"}
    assert "# config.json calls it ViTForImageClassification." in out
    assert "image-classification with 10 labels (a, b, c …)." in " ".join(out.split())


def test_a_self_describing_file_gets_no_manifest(run: Run, folder: Path) -> None:
    """The file itself states its purpose."""
    shutil.copy(SHAPES / "shapes-yolo" / "shapes-yolo.tflite", folder / "shapes.tflite")
    code, out, err = run("init", folder / "shapes.tflite")
    assert (code, err) == (0, "")
    sentence = "shapes needs no model.toml: its files say that it is for object-detection with 4 labels (circle, "
    assert " ".join(out.split()).startswith(sentence)
    assert sorted(os.listdir(folder)) == ["bare.tflite", "shapes.tflite"]


def test_a_tokenizer_beside_the_model_selects_a_task(run: Run, folder: Path) -> None:
    """A vector per token means embedding.

    Two numbers mean question answering, if their names say which is which.
    """
    for model in ("phrases", "answers"):
        (folder / model).mkdir()
        for name in (f"{model}.tflite", "vocab.txt"):
            shutil.copy(SHAPES / model / name, folder / model)
    assert run("init", folder / "phrases")[0] == 0
    assert manifest(folder / "phrases") == {"task": "text-embedding"}
    sentence = "answers cannot be served as question-answering: task question-answering: name text.start_output"
    assert sentence in run("init", folder / "answers")[2]


def test_init_completes_a_manifest_without_a_task(run: Run, folder: Path) -> None:
    """Existing keys and comments stay, unless an option replaces them."""
    home = folder / "own"
    home.mkdir()
    shutil.copy(DIGITS / "digits.tflite", home)
    text = '# mine\nlabels = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]  # ten\n\n[image]\nmean = 7\n'
    (home / "model.toml").write_text(text)
    code, out, err = run(
        "init", home, "--task", "image-classification", "--pixels", "signed"
    )
    assert code == 0, err
    assert manifest(home)["task"] == "image-classification"
    assert manifest(home)["image"] == {"mean": 127.5, "std": 127.5}
    assert (home / "model.toml").read_text().startswith("# mine\nlabels = ")
    assert "# ten" in out + text
    (home / "model.toml").write_text("task = 7\n")
    assert (
        "is left as it is: own/model.toml: task must be one of" in run("init", home)[2]
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            [],
            "nothing shows what bare does; name it: --task image-classification or "
            "object-detection",
        ),
        (
            ["--task", "question-answering"],
            "bare cannot be served as question-answering: ",
        ),
        (
            ["--task", "image-classification", "--labels", "no-such-file"],
            "no-such-file cannot be read",
        ),
    ],
)
def test_rejected_options_change_nothing(
    run: Run, folder: Path, words: list[str], sentence: str
) -> None:
    code, out, err = run("init", "bare", "--models-dir", folder, *words)
    assert code == 1
    assert out == ""
    assert sentence in err
    assert os.listdir(folder) == ["bare.tflite"]


def test_existing_labels_are_not_overwritten(
    run: Run, folder: Path, labels: Path
) -> None:
    home = folder / "own"
    home.mkdir()
    shutil.copy(DIGITS / "digits.tflite", home)
    (home / "labels.txt").write_text("x\n" * 10)
    code, _, err = run(
        "init", home, "--task", "image-classification", "--labels", labels
    )
    assert code == 1
    assert "labels.txt exists already, with other names" in err
    assert (home / "labels.txt").read_text() == "x\n" * 10
    assert not (home / "model.toml").exists()


def test_questions_appear_on_the_terminal(folder: Path, labels: Path) -> None:
    """Output of frameworks does not hide a question.

    Labels beside the file are proposed.
    """
    shutil.copy(labels, folder / "labels.txt")
    terminal, end = os.openpty()
    termios.tcsetwinsize(end, (24, 45))
    words = [sys.executable, "-m", "pocketserve", "init", folder / "bare.tflite"]
    with (
        subprocess.Popen(words, stdin=end, stdout=end, stderr=end) as process,
        open(terminal, "r+b", 0) as screen,
    ):
        os.close(end)
        questions = {
            b"What does it do? ": b"1",
            b"one a line [%s, - for none]: " % bytes(folder / "labels.txt"): b"",
            b"How does it expect pixels (leave empty if unknown)? ": b"1",
        }
        for question, answer in questions.items():
            assert question in shown_until(screen, question)
            screen.write(answer + b"\n")
        shown = shown_until(screen, b"is served as")
        assert process.wait(timeout=60) == 0
    assert b"XNNPACK" not in shown
    assert manifest(folder / "bare")["labels"] == "labels.txt"


def shown_until(screen: FileIO, text: bytes) -> bytes:
    """Return terminal output up to a text, or all output after a minute."""
    shown = b""
    deadline = time.monotonic() + 60
    while (
        text not in shown
        and select.select([screen], [], [], max(0.0, deadline - time.monotonic()))[0]
    ):
        shown += screen.read(4096)
    return shown


def test_answer_questions_on_a_terminal(
    run: Run, folder: Path, labels: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question has a default, accepts a number or name, and repeats after an
    invalid answer.
    """
    answers = iter(["nonsense", "1", "missing.txt", str(labels), "", "softmax"])
    questions: list[str] = []

    def answer(question: str) -> str:
        questions.append(question)
        return next(answers)

    monkeypatch.setattr(init, "_can_ask", lambda: True)
    monkeypatch.setattr("builtins.input", answer)
    monkeypatch.setattr(init, "_gives_probabilities", lambda model: False)
    code, out, err = run("init", "bare", "--models-dir", folder)
    assert code == 0, err
    assert "'nonsense' is none of these names or numbers." in out
    assert (
        "missing.txt cannot be read: No such file or directory; name another, or none"
        in out
    )
    assert manifest(folder / "bare")["classification"] == {"activation": "softmax"}
    assert '\nlabels = "labels.txt"' in (folder / "bare" / "model.toml").read_text()
    assert "image" not in manifest(folder / "bare"), "Enter states nothing"
    assert "Assumed, since nothing states it: pixels 0..1" in " ".join(out.split())
    assert questions[0] == questions[1] == "What does it do? [a number or name] "
    assert [question.partition(" [")[0] for question in questions[2:]] == [
        *["File with the names of its classes, one a line"] * 2,
        "How does it expect pixels (leave empty if unknown)?",
        "Its scores are not probabilities. Which activation makes them so?",
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        "--1,3",
        "1,-",
        "1,,3",
        "wide",
        "1" * 5000,
        "0,3",
        "-2,3",
        "9999999,3",
    ],
)
def test_a_wrong_shape_repeats_the_question(
    capsys: pytest.CaptureFixture[str], wrong: str
) -> None:
    answers = iter([wrong, " -1, 3x32x32"])

    assert module_inputs._ask_shape(lambda question: next(answers)) == (-1, 3, 32, 32)
    assert "must be" in capsys.readouterr().out
    with pytest.raises(argparse.ArgumentTypeError):
        module_inputs.parse_sizes(wrong)
