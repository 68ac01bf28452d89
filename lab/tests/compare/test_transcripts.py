"""Judge transcripts by their wrong words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.terminal.errors import CommandError
from pocketserve_lab.compare.judge import judge
from pocketserve_lab.compare.samples import Facts, SampleError, read_samples
from pocketserve_lab.compare.scores import measure_for
from pocketserve_lab.compare.speech.transcripts import (
    speech_figures,
    word_accuracy,
    word_errors,
    words_in,
)
from pocketserve_lab.compare.worker import Subject
from sounds import wav
from whisper_files import TEXT, TinyWhisper

SPEECH = Facts("speech-to-text")
RATE = 16_000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("It's 6.20 AM\u2014'here'.", ["it's", "6", "20", "am", "here"]),
        ("Stra\u00dfe, don\u2019t", ["strasse", "don't"]),
        ("a_b\x00c $5", ["a", "b", "c", "5"]),
        (
            "\u0939\u093f\u0928\u094d\u0926\u0940, \u0915\u094d\u200d\u0937\u0964",
            ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u0915\u094d\u0937"],
        ),
        ("\u4eca\u65e5 ok", ["\u4eca", "\u65e5", "ok"]),
    ],
)
def test_words_have_no_case_and_punctuation(text: str, words: list[str]) -> None:
    assert words_in(text) == words


@pytest.mark.parametrize(
    ("expected", "text", "errors"),
    [
        ("a b c", "a b c", 0),
        ("a b c", "a x c", 1),
        ("a b c", "a c", 1),
        ("a b c", "z a b c d", 2),
        ("a a", "a a a", 1),
        ("a b a", "a", 2),
        ("a b", "", 2),
        ("", "a", 1),
    ],
)
def test_errors_are_words_to_change(expected: str, text: str, errors: int) -> None:
    assert word_errors(expected.split(), text.split()) == errors


def test_long_transcripts_are_compared_where_they_differ_or_refused() -> None:
    """Shared starts and ends cost little."""
    words = ["a"] * 50_000
    assert word_errors([*words, "x", *words], [*words, "y", "z", *words]) == 2
    with pytest.raises(CommandError, match=r"5,000 and 5,000 .* split"):
        word_errors(["a"] * 5000, ["b"] * 5000)


def answer(text: str, **more: Any) -> dict[str, Any]:
    return {
        "predictions": [],
        "text": text,
        **more,
    }


def test_a_worse_version_loses_by_its_words() -> None:
    truths = ["one two three four"] * 8
    good = [answer("One, two, three, four.", run_s=1, duration=4)] * 8
    bad = [answer("one two", run_s=2, duration=4)] * 8
    judged = judge("speech-to-text", {"good": good, "bad": bad}, "good", truths)
    assert judged["good"]["accuracy"]["value"] == 1
    accuracy = judged["bad"]["accuracy"]
    assert (accuracy["metric"], accuracy["value"]) == ("word accuracy", 0.5)
    figures = {"word error rate": 0.5, "real-time factor": 0.5}
    assert accuracy["figures"] == figures
    assert judged["bad"]["test"]["worse"]
    assert not any(judged["bad"]["agreement"]["same"])


def test_invented_words_count_once_there_should_be_none() -> None:
    assert word_accuracy(answer(""), "") == 1
    assert word_accuracy(answer("you"), "") == 0
    assert word_accuracy(answer("a b c"), "x") == 0
    assert speech_figures([answer("you")], [""]) == {"word error rate": 1}


def test_true_words_are_in_the_column_answer(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(b"")
    labels = tmp_path / "labels.csv"
    labels.write_text("file,answer\na.wav,Hello there\n")
    (sample,) = read_samples(tmp_path, SPEECH, 10)
    assert sample.truth == "Hello there"
    labels.write_text("file,label,x,y,width,height\na.wav,b,1,1,1,1\n")
    with pytest.raises(SampleError, match="column 'answer'"):
        read_samples(tmp_path, SPEECH, 10)


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[Subject]:
    TinyWhisper().write(tmp_path / "models/tiny")
    job = {
        "model": "tiny",
        "models_dir": str(tmp_path / "models"),
        "version": "whisper",
        "threads": 1,
    }
    running = Subject(job)
    yield running
    running.close()


@pytest.mark.onnx
def test_the_worker_measures_transcripts(subject: Subject, tmp_path: Path) -> None:
    count = round(1.5 * RATE)
    noise = np.random.default_rng(0).standard_normal(count)
    samples = 0.2 * noise * np.sin(np.arange(count) / RATE * 2 * np.pi * 2) ** 2
    path = tmp_path / "talk.wav"
    path.write_bytes(wav(samples[:, None]))
    subject.open()
    subject.take([{"path": str(path)}])
    (answered,) = subject.answer(0, 1)["answers"]
    measure = measure_for("speech-to-text")
    assert measure.score(answered, TEXT) == 1
    figures = measure.overall([answered], [TEXT])
    assert figures["word error rate"] == 0
    assert figures["real-time factor"] > 0
