"""Compare sound answers with transformers' pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest

from families.sound_classifiers import FAMILIES as SOUND_FAMILIES
from families.sound_classifiers import MODELS, sounds, wav_of, write_sound_classifier
from families.text_reference import Served, by_label, differences

# The libraries warn of their own deprecations.
pytestmark = [pytest.mark.families, pytest.mark.filterwarnings("ignore")]

FAMILIES = [*SOUND_FAMILIES]


@pytest.mark.parametrize("name", MODELS)
def test_classifiers_answer_like_the_pipeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    pipeline = write_sound_classifier(MODELS[name], tmp_path / "models" / "m")
    server = Served(tmp_path / "models", tmp_path / "state")
    answers = []
    try:
        for samples in sounds():
            answer = by_label(server.ask("m", wav_of(samples), top_k=10))
            assert differences(answer, by_label(pipeline(samples, top_k=None))) == []
            answers.append(answer)
    finally:
        server.close()
    assert len({max(answer.values()) for answer in answers}) > 1
