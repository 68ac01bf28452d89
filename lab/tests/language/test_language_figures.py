"""Summarize the figures of language models, without an engine."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gguf_files import write_tiny
from pocketserve.cli import main
from pocketserve.runtimes.llm.client import EngineError, EngineTimeoutError
from pocketserve.runtimes.llm.process import EngineEndedError
from pocketserve.terminal.errors import CommandError
from pocketserve_lab.language.comparison import (
    LanguagePlan,
    LanguageSession,
    agreement_of,
    summary_of,
)
from pocketserve_lab.language.subject import (
    LanguageSubject,
    Perplexity,
    TimedAnswer,
    perplexity_of,
)
from pocketserve_lab.language.texts import TEXT, read_sample_text


def test_agreement_counts_whole_texts_and_their_starts() -> None:
    agreement = agreement_of(["abcd", "same", ""], ["abxy", "same", ""])
    assert agreement["same"] == pytest.approx(2 / 3)
    assert agreement["start"] == pytest.approx((0.5 + 1 + 1) / 3)


def test_a_summary_has_medians_and_samples() -> None:
    samples = [TimedAnswer(first, 10, 20, 0.5) for first in (1.0, 9.0, 3.0)]
    figures = summary_of(samples)
    assert figures["first_ms"] == 3.0
    assert figures["samples"][1] == {
        "first_ms": 9.0,
        "prompt_rate": 10,
        "rate": 20,
        "cpu_s": 0.5,
    }


def test_the_text_may_come_from_a_file(tmp_path: Path) -> None:
    assert read_sample_text(None) == TEXT
    path = tmp_path / "t.txt"
    path.write_text(" Some words. \n")
    assert read_sample_text(path) == "Some words."
    path.write_bytes(b"\xff\xff")
    with pytest.raises(CommandError, match="has no text"):
        read_sample_text(path)
    with pytest.raises(CommandError, match="cannot be read"):
        read_sample_text(tmp_path)


@pytest.mark.parametrize(
    ("loss", "per_token", "bits_per_byte"),
    [
        (10 * math.log(2), 2.0, 0.5),
        (10 * 700.0, math.exp(700), 350 / math.log(2)),
        (10 * 701.0, None, 350.5 / math.log(2)),
        (math.inf, None, None),
        (math.nan, None, None),
    ],
)
def test_a_huge_loss_has_no_perplexity(
    loss: float, per_token: float | None, bits_per_byte: float | None
) -> None:
    """JSON has null instead, as it knows no infinity."""
    perplexity = perplexity_of(loss, 10, 20)
    assert perplexity.per_token == pytest.approx(per_token)
    assert perplexity.bits_per_byte == pytest.approx(bits_per_byte)
    json.dumps(asdict(perplexity), allow_nan=False)


def test_options_of_other_models_are_refused_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "models" / "chat").mkdir(parents=True)
    write_tiny(tmp_path / "models" / "chat" / "chat.gguf")
    report = tmp_path / "report"
    words = ["compare", "chat", "--models-dir", str(tmp_path / "models")]
    words += ["--margin", "1%", "--repeat", "2", "--limit", "500"]
    assert main([*words, "--report", str(report)]) == 1
    error = capsys.readouterr().err
    assert "language models take no --limit, --report, --margin, --repeat;" in error
    assert not report.exists()


STEPS = ("prompt_tokens", "time_answer", "greedy_text", "perplexity")
FAULTS = (
    EngineError(400, "broken", "invalid_request_error", {}),
    EngineEndedError("broken"),
    EngineTimeoutError("broken"),
)


class Failing(SimpleNamespace):
    """A subject that fails at one step, and answers at the others."""

    def __init__(self, step: str, fault: Exception | None) -> None:
        super().__init__(
            prompt_tokens=lambda text, tokens: [1, 2],
            time_answer=lambda prompt, tokens: TimedAnswer(1, 2, 3, 4),
            greedy_text=lambda prompt, tokens: "text",
            perplexity=lambda text, most: Perplexity(2, 1, 10),
            memory=dict,
        )
        if fault is not None:
            setattr(self, step, self._failure(fault))

    def _failure(self, fault: Exception) -> Callable[..., Any]:
        def fail(*_: object) -> None:
            raise fault

        return fail


def result_of(subjects: dict[str, Any]) -> dict[str, Any]:
    """Return the comparison of subjects."""

    class Session(LanguageSession):
        def _open(self, service: Any, name: str, version: str, stack: Any) -> None:
            self._subjects[version] = subjects[version]
            self._facts[version] = {}

    entry = SimpleNamespace(versions=subjects)
    service: Any = SimpleNamespace(entry=lambda name: entry)
    plan = LanguagePlan("m", None, "A text.", seconds=0.001)
    session = Session(service, "m", plan, ExitStack(), lambda title, share: None)
    return session.measure()


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("step", STEPS)
def test_a_version_whose_engine_fails_is_left_out(step: str, fault: Exception) -> None:
    """The others are compared, with the next one as the reference."""
    broken = Failing(step, fault)
    result = result_of({"a": broken, "b": Failing(step, None)})
    assert list(result["versions"]) == ["b"]
    assert result["reference"] == "b"
    assert result["skipped"] == {"a": "its engine failed: broken"}
    with pytest.raises(CommandError, match=r"no version .* engine failed: broken"):
        result_of({"a": broken})


@pytest.mark.parametrize(
    ("context", "length"),
    [
        (1000, 300),
        (100, 35),
        (10, 1),
    ],
)
def test_a_timed_prompt_fits_the_context(context: int, length: int) -> None:
    answer = {"tokens": list(range(300))}
    engine: Any = SimpleNamespace(context=context, ask=lambda *_: answer)
    tokens = LanguageSubject(engine).prompt_tokens("A text.", 64)
    assert tokens == list(range(length))
