"""Transcripts and live captions on the page, by a tiny Whisper that says fixed words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from browsing import FAKE_DEVICES, Visit, choose, launch, visit
from conftest import Server, start_server
from sounds import wav
from whisper_files import TEXT, TinyWhisper

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

pytestmark = [pytest.mark.browser, pytest.mark.live, pytest.mark.onnx]

WORD = TEXT.strip()
RATE = 16_000


@pytest.fixture(scope="module")
def speech_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write noise that rises and falls like speech."""
    count = 4 * RATE
    noise = np.random.default_rng(0).standard_normal(count)
    samples = 0.2 * noise * np.sin(np.arange(count) / RATE * 2 * np.pi * 2) ** 2
    file = tmp_path_factory.mktemp("sound") / "speech.wav"
    file.write_bytes(wav(samples[:, None]))
    return file


@pytest.fixture(scope="module")
def speech_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    models = tmp_path_factory.mktemp("models")
    TinyWhisper().write(models / "whisper")
    running = start_server(tmp_path_factory.mktemp("server"), models)
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def speaking(playwright: Playwright, speech_file: Path) -> Iterator[Browser]:
    """Start Chromium with this sound as microphone."""
    started = launch(
        playwright, *FAKE_DEVICES, f"--use-file-for-fake-audio-capture={speech_file}"
    )
    yield started
    started.close()


@pytest.fixture
def listening(speaking: Browser, speech_server: Server) -> Iterator[Visit]:
    phone = {"width": 360, "height": 640}
    with visit(speaking, speech_server, locale="en-US", viewport=phone) as here:
        here.enter()
        yield here


def test_file_is_written_down_and_saved(listening: Visit, speech_file: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    page = listening.page
    listening.open_model("whisper", "soundFile")
    choose(listening, speech_file)
    page.wait_for_selector(f".transcript:has-text('{WORD}')")
    page.wait_for_function(
        """() => document.querySelector('.transcript').getBoundingClientRect().bottom
        <= document.querySelector('nav').getBoundingClientRect().top"""
    )
    files = {}
    for kind in ("txt", "srt", "vtt"):
        with page.expect_download() as started:
            page.click(f"[data-file={kind}]")
        files[kind] = Path(started.value.path()).read_text("utf-8")
    assert files["txt"] == page.inner_text(".transcript") + "\n"
    assert re.match(r"1\n00:00:0\d,\d{3} --> 00:00:0\d,\d{3}\nYes\.\n", files["srt"])
    assert re.match(r"WEBVTT\n\n00:00:0\d\.\d{3} --> .+\nYes\.\n", files["vtt"])
    page.click("summary:has-text('Times')")
    assert Axe().run(page).response["violations"] == []
    assert page.locator(".answer tbody tr").count() == files["vtt"].count("-->")


def test_captions_are_fixed_word_by_word(listening: Visit) -> None:
    """Words that two answers agree on never change."""
    page = listening.page
    listening.open_model("whisper", "captions")
    page.click("text=Start captions")
    page.wait_for_selector(f".agreed:has-text('{WORD}')")
    agreed = page.inner_text(".agreed")
    page.wait_for_function(
        "before => document.querySelector('.agreed').textContent.length > before.length",
        arg=agreed,
    )
    page.click(".controls .primary")
    page.wait_for_function("() => !document.querySelector('.open').textContent")
    assert page.inner_text(".agreed").startswith(agreed)
