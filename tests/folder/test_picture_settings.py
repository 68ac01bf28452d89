"""Tests of ``pocketserve init --try`` and of changing single settings in a manifest."""

from __future__ import annotations

import argparse
import shlex
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from colour_models import colour_model, plain_picture
from conftest import STATE
from pocketserve.cli.folder import init
from pocketserve.cli.folder.picture_settings import SettingsTrial, option_line

pytest.importorskip("onnx", reason="makes the models")
pytest.importorskip("PIL.Image", reason="pictures need Pillow")

pytestmark = pytest.mark.onnx

Run = Callable[..., tuple[int, str, str]]
MANIFEST = """# mine
task = "image-classification"  # it names colours

[image]  # by hand
mean = 0
std = 255  # fractions
resize = "crop"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _no_settings: None) -> Path:
    """Return the folder of a model that distinguishes red, green and blue."""
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(STATE))
    home = tmp_path / "colours"
    colour_model(home / "colours.onnx")
    (home / "labels.txt").write_text("red\ngreen\nblue\n")
    (tmp_path / "photo.png").write_bytes(plain_picture())
    return home


def test_try_shows_the_answer_for_each_choice(command: Run, home: Path) -> None:
    code, out, err = command("init", home, "--try", home.parent / "photo.png")

    assert code == 0, err
    answers = [line.split()[:3] for line in out.splitlines()[1:9]]
    assert [answer[:2] for answer in answers] == [
        [pixels, color]
        for pixels in ("0..1", "0..255", "signed", "imagenet")
        for color in ("rgb", "bgr")
    ]
    assert [answer[2] for answer in answers] == ["red", "blue"] * 4
    assert f"  pocketserve init {home} --pixels signed --color bgr" in out
    assert not (home / "model.toml").exists()


def test_printed_commands_repeat_the_other_options(command: Run, home: Path) -> None:
    names = home.parent / "my names"
    names.write_text("rouge\nvert\nbleu\n")
    (home / "labels.txt").unlink()
    words = [
        "--task",
        "image-classification",
        "--labels",
        names,
        "--activation",
        "softmax",
    ]
    code, out, err = command("init", home, "--try", home.parent / "photo.png", *words)

    assert code == 0, err
    line = next(
        line
        for line in out.splitlines()
        if line.endswith("--pixels signed --color bgr")
    )
    program, *repeated = shlex.split(line)
    assert program == "pocketserve"

    code, _, err = command(*repeated)

    assert code == 0, err
    manifest = tomllib.loads((home / "model.toml").read_text())
    assert manifest["task"] == "image-classification"
    assert manifest["classification"] == {"activation": "softmax"}
    assert (home / "labels.txt").read_text() == names.read_text()


def test_a_printed_command_repeats_the_shape_and_folder_of_a_module() -> None:
    parser = argparse.ArgumentParser()
    init.add_parser(parser.add_subparsers())
    words = ["init", "net", "--shape=-1,3,32,32", "--models-dir", "my models"]
    options = parser.parse_args(words)

    line = option_line(options, SettingsTrial("signed", "bgr", "red", None))
    repeated = parser.parse_args(shlex.split(line)[1:])

    assert (repeated.shape, repeated.models_dir) == ((-1, 3, 32, 32), "my models")
    assert (repeated.pixels, repeated.color) == ("signed", "bgr")


def test_the_selected_choice_is_written(
    command: Run, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(init, "_can_ask", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: "6")
    code, _, err = command(
        "init",
        home,
        "--try",
        home.parent / "photo.png",
        "--task",
        "image-classification",
    )

    assert code == 0, err
    manifest = tomllib.loads((home / "model.toml").read_text())
    assert manifest["image"] == {
        "mean": 127.5,
        "std": 127.5,
        "color": "bgr",
    }


@pytest.mark.parametrize("answer", ["", "0", "9", "x"])
def test_try_without_a_choice_changes_nothing(
    command: Run, home: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    monkeypatch.setattr(init, "_can_ask", lambda: True)
    monkeypatch.setattr("builtins.input", lambda question: answer)
    code, _, _ = command("init", home, "--try", home.parent / "photo.png")

    assert code == 0
    assert not (home / "model.toml").exists()


@pytest.mark.parametrize(
    ("words", "old", "new"),
    [
        (["--pixels", "0..255"], "std = 255  # fractions", "std = 1  # fractions"),
        (["--color", "bgr"], 'resize = "crop"\n', 'resize = "crop"\ncolor = "bgr"\n'),
        (["--pixels", "signed"], "mean = 0\nstd = 255 ", "mean = 127.5\nstd = 127.5 "),
    ],
)
def test_changing_one_setting_keeps_the_others(
    command: Run, home: Path, words: list[str], old: str, new: str
) -> None:
    (home / "model.toml").write_text(MANIFEST)
    code, _, err = command("init", home, *words)

    assert code == 0, err
    assert (home / "model.toml").read_text() == MANIFEST.replace(old, new)


def test_replace_the_labels(command: Run, home: Path) -> None:
    (home / "model.toml").write_text(MANIFEST)
    (home / "labels.txt").unlink()
    (home.parent / "names").write_text("rouge\nvert\nbleu\n")
    code, out, err = command("init", home, "--labels", home.parent / "names")

    assert code == 0, err
    assert "rouge" in out
    assert (home / "labels.txt").read_text() == "rouge\nvert\nbleu\n"
    assert tomllib.loads((home / "model.toml").read_text())["labels"] == "labels.txt"


def test_an_incompatible_setting_is_rejected(command: Run, home: Path) -> None:
    colour_model(
        home / "colours.onnx", (1, 3, 32, 32), {"Image.BitmapPixelFormat": "Rgb8"}
    )
    text = MANIFEST.replace('resize = "crop"', 'color = "grayscale"')
    (home / "model.toml").write_text(text)
    code, _, err = command("init", home, "--pixels", "signed")

    assert code == 1
    assert "image.color" in err
    assert (home / "model.toml").read_text() == text


def test_try_rejects_a_file_that_is_no_photo(command: Run, home: Path) -> None:
    (home.parent / "text").write_text("no picture")
    code, _, err = command("init", home, "--try", home.parent / "text")

    assert code == 1
    assert "picture" in err


def test_predict_prints_assumptions_once(command: Run, home: Path) -> None:
    photo = home.parent / "photo.png"
    code, out, err = command("predict", "--local", home, photo, photo)

    assert code == 0, err
    assert (
        " ".join(out.split()).count(
            "Assumed: pixels 0..1, colours RGB, resize stretch."
        )
        == 1
    )


def test_add_prints_assumptions(command: Run, home: Path) -> None:
    code, out, err = command("add", home, "--models-dir", home.parent / "models")

    assert code == 0, err
    assert "Assumed: pixels 0..1, colours RGB, resize stretch." in " ".join(out.split())
