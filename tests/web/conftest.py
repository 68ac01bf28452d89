"""Provide the browser and servers for tests of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from browsing import FAKE_DEVICES, Visit, launch, two_frames, visit
from conftest import MODELS, Server, start_server
from firefox import Firefox
from places import ROOT, copy_folder
from sounds import tone, wav
from text_models import write_reranker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

Visitor = Callable[..., AbstractContextManager[Visit]]


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    """Start the program that drives browsers."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def chromium(
    playwright: Playwright, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Browser]:
    """Return Chromium with a fake camera that shows a seven, and a tone as microphone."""
    folder = tmp_path_factory.mktemp("media")
    (folder / "seven.mjpeg").write_bytes(
        two_frames((MODELS / "digits" / "samples" / "7.png").read_bytes())
    )
    (folder / "tone.wav").write_bytes(wav(tone(5.0)))
    files = (
        f"--use-file-for-fake-video-capture={folder / 'seven.mjpeg'}",
        f"--use-file-for-fake-audio-capture={folder / 'tone.wav'}",
    )
    started = launch(playwright, *FAKE_DEVICES, *files)
    yield started
    started.close()


@pytest.fixture
def browser(request: pytest.FixtureRequest) -> Browser | Firefox:
    """Return Chromium, or with the parameter ``firefox`` Firefox and its own fake
    devices.
    """
    if getattr(request, "param", "chromium") == "firefox":
        return Firefox()
    chromium: Browser = request.getfixturevalue("chromium")
    return chromium


@pytest.fixture(scope="session")
def page_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on the embedded models and on test models for the other tasks."""
    models = tmp_path_factory.mktemp("page-models")
    for folder in [
        *(MODELS / name for name in ("digits", "diabetes", "numbers", "petals")),
        *sorted((ROOT / "tests/models").iterdir()),
    ]:
        copy_folder(folder, models / folder.name)
    (models / "plain").mkdir()
    (models / "plain" / "plain.tflite").write_bytes(
        (MODELS / "petals" / "petals.tflite").read_bytes()
    )
    write_reranker(models / "reranker")
    running = start_server(tmp_path_factory.mktemp("page-server"), models)
    yield running
    assert running.stop() == 0


@pytest.fixture
def visitor(browser: Browser, page_server: Server) -> Visitor:
    """Return a factory of visitors: ``with visitor(locale="el-GR") as visited: ...``."""
    return partial(visit, browser, page_server, **{"locale": "en-US"})


@pytest.fixture
def visited(visitor: Visitor) -> Iterator[Visit]:
    """Return a visitor who opened the page with a ticket."""
    with visitor() as here:
        here.enter()
        yield here
