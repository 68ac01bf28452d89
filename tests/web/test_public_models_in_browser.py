"""Compare the page's labels, masks and boxes with verified public cases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browsing import IN_BOTH, Visit, choose, visit, wait_for_overlay
from conftest import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.assets, pytest.mark.browser, pytest.mark.live, IN_BOTH]


@pytest.fixture
def guest(browser: Browser, asset_server: Server) -> Iterator[Visit]:
    """Return a visitor of a server on the public TFLite files."""
    with visit(browser, asset_server, locale="en-US") as here:
        here.enter()
        yield here


def test_photo(guest: Visit, assets: Path) -> None:
    guest.open_model("mobilenet_v1_0.25_224_float_metadata", "picture")
    choose(guest, assets / "inputs" / "images" / "burger.jpg")
    guest.best("cheeseburger")


def test_areas_have_a_mask(guest: Visit, assets: Path) -> None:
    guest.open_model("deeplabv3", "picture")
    choose(guest, assets / "inputs" / "images" / "segmentation_input_rotation0.jpg")
    guest.page.wait_for_selector(".bars .swatch")
    wait_for_overlay(guest, 10_000)


def test_animals_have_boxes(guest: Visit, assets: Path) -> None:
    guest.open_model("coco_ssd_mobilenet_v1_1.0_quant", "picture")
    choose(guest, assets / "inputs" / "images" / "cats_and_dogs.jpg")
    guest.page.wait_for_selector(".bars .swatch")
    names = {
        name.strip() for name in guest.page.locator(".bars .name").all_inner_texts()
    }
    assert {"cat", "dog"} & names
    wait_for_overlay(guest, 1000)


def test_speech(guest: Visit, assets: Path) -> None:
    guest.open_model("yamnet_audio_classifier_with_metadata", "soundFile")
    choose(guest, assets / "inputs" / "audio" / "speech.wav")
    guest.best("Speech")


def test_opinion(guest: Visit) -> None:
    guest.open_model("nl_classifier_regex_tokenizer", "text")
    guest.page.fill("[name=text]", "This is a wonderful film, the best of the year.")
    guest.page.click("form .primary")
    guest.best("Positive")
