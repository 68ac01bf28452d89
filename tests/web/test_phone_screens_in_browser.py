"""On phones the answer is on the screen when it arrives, and the input outlives other choices."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browsing import Visit, choose, visit
from conftest import MODELS, Server, StartServer
from firefox import Firefox
from sounds import tone, wav

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.live]

Visitor = Callable[..., AbstractContextManager[Visit]]
SIZES = [(320, 640), (360, 640), (390, 844), (412, 915), (768, 1024), (1280, 800)]
SEVEN = MODELS / "digits" / "samples" / "7.png"
PAGE = MODELS / "numbers" / "samples" / "page.jpg"
IS_ON_SCREEN = """selector => {
    const best = document.querySelector(selector)?.getBoundingClientRect();
    const bar = document.querySelector('nav').getBoundingClientRect();
    const end = bar.top > innerHeight / 2 ? bar.top : innerHeight;
    return Boolean(best) && best.top >= 0 && best.bottom <= end;
}"""
CAPTION_IS = "text => document.querySelector('.over').innerText === text"
CAPTION_IS_OTHER = "text => document.querySelector('.over').innerText !== text"


def see_answer(here: Visit) -> None:
    """Wait for an answer inside the window and above the bar."""
    here.page.wait_for_selector(".work[aria-busy=false] .answer .best")
    here.page.wait_for_function(IS_ON_SCREEN, arg=".answer .best")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_answer_is_on_the_screen(
    visitor: Visitor, size: tuple[int, int], tmp_path: Path
) -> None:
    sound = tmp_path / "tone.wav"
    sound.write_bytes(wav(tone()))
    width, height = size
    with visitor(viewport={"width": width, "height": height}) as here:
        here.enter()
        ask_about_pictures(here)
        ask_about_values(here)
        ask_about_texts(here)
        ask_about_sounds(here, sound)
        ask_about_drawings(here)
        ask_about_camera(here)


def ask_about_pictures(here: Visit) -> None:
    here.open_model("digits", "picture")
    choose(here, SEVEN)
    here.best("7")
    see_answer(here)
    here.open_model("numbers", "picture")
    choose(here, PAGE)
    here.page.wait_for_selector(".answer .swatch")
    see_answer(here)


def ask_about_values(here: Visit) -> None:
    here.open_model("petals")
    here.page.click("form .primary >> nth=0")
    here.best("cm")
    see_answer(here)
    here.open_model("plain")
    here.page.click("button:text-is('Try zeros')")
    here.page.wait_for_selector(".answer .numbers")
    here.page.wait_for_function(IS_ON_SCREEN, arg=".answer p")


def ask_about_texts(here: Visit) -> None:
    here.open_model("answers")
    here.page.fill("[name=question]", "where does anna live?")
    here.page.fill("[name=context]", "anna lives in oslo. ben lives in rome.")
    here.page.click("form .primary")
    here.best("oslo")
    see_answer(here)
    here.open_model("phrases", "query")
    here.page.fill("[name=query]", "switch the lamp on")
    here.page.fill("[name=texts]", "play a song\nturn on the light")
    here.page.click("form .primary")
    here.best("turn on the light")
    see_answer(here)
    here.open_model("phrases", "texts")
    here.page.fill("[name=texts]", "play a song\nturn on the light")
    here.page.click("form .primary")
    here.page.wait_for_selector(".answer .numbers")
    here.page.wait_for_function(IS_ON_SCREEN, arg=".answer p")
    here.open_model("reranker", "pairs")
    here.page.fill("[name=query]", "anna")
    here.page.fill("[name=texts]", "anna lives in oslo\nben lives in rome")
    here.page.click("form .primary")
    see_answer(here)
    here.open_model("shelf")
    here.page.fill("[name=items]", "Wild Herbs\nGrowing Roses")
    here.page.click("form .primary")
    see_answer(here)


def ask_about_sounds(here: Visit, sound: Path) -> None:
    here.open_model("tones", "soundFile")
    choose(here, sound)
    here.best("tone")
    see_answer(here)
    here.open_model("tones", "microphone")
    here.page.click("button:text-is('Record')")
    here.page.wait_for_selector(".tempo:text-is('1 s')")
    here.page.click("text=Stop and ask")
    see_answer(here)


def ask_about_drawings(here: Visit) -> None:
    here.open_model("digits", "drawing")
    here.page.locator(".pad").click()
    see_answer(here)


def ask_about_camera(here: Visit) -> None:
    start_camera(here)
    here.page.click("text=Stop")


def start_camera(here: Visit) -> None:
    here.press("[data-kind=camera]")
    here.page.click("text=Start the camera")
    here.best("7")
    see_answer(here)


def test_answer_is_on_the_screen_in_firefox(page_server: Server) -> None:
    viewport = {"width": 360, "height": 640}
    with visit(Firefox(), page_server, viewport=viewport) as here:
        here.enter()
        ask_about_pictures(here)
        ask_about_values(here)
        ask_about_texts(here)


def test_full_screen_has_the_camera_controls(visitor: Visitor) -> None:
    with visitor(viewport={"width": 360, "height": 640}) as here:
        here.enter()
        here.open_model("numbers")
        here.press("[data-kind=camera]")
        here.page.click("text=Start the camera")
        here.page.click("button:text-is('Full screen')")
        here.page.wait_for_selector(".deck input[type=range]")
        here.press(".deck button:text-is('Freeze')")
        box = here.page.locator(".deck button:text-is('Save picture')").bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= 640
        here.page.click(".deck button:text-is('Full screen')")
        here.page.wait_for_selector(".deck", state="detached")
        here.page.click("button:text-is('Stop')")


def test_one_box_is_shown_alone(visited: Visit) -> None:
    visited.open_model("numbers", "picture")
    choose(visited, PAGE)
    visited.page.wait_for_selector(".bars button.name")
    everything = visited.page.inner_text(".over")
    visited.page.click(".bars button.name >> nth=1")
    visited.page.wait_for_selector(".bars button.name[aria-pressed=true]")
    visited.page.wait_for_function(CAPTION_IS_OTHER, arg=everything)
    visited.page.click(".bars button.name >> nth=1")
    visited.page.wait_for_function(CAPTION_IS, arg=everything)


def test_answers_to_rows_are_saved(visited: Visit) -> None:
    visited.open_model("petals")
    visited.page.click("summary:has-text('Many rows')")
    visited.page.fill("[name=lines]", "5.1,3.5,1.4\n6.2,2.9,4.3")
    visited.page.click("details form button")
    visited.page.wait_for_selector("[data-save=rows]")
    with visited.page.expect_download() as started:
        visited.page.click("[data-save=rows]")
    text = Path(started.value.path()).read_text("utf-8")
    head, first, second = csv.reader(text.splitlines())
    assert head == ["row", "name", "value", "unit"]
    assert (first[0], first[3], second[0]) == ("1", "cm", "2")


def test_many_versions_are_folded(
    browser: Browser, models_copy: Path, new_server: StartServer
) -> None:
    file = models_copy / "digits" / "digits.tflite"
    for number in range(1, 13):
        folder = models_copy / "many" / str(number)
        folder.mkdir(parents=True)
        shutil.copyfile(file, folder / "model.tflite")
    with visit(browser, new_server(models_copy), locale="en-US") as here:
        here.enter()
        assert here.page.title() == "Models – Pocketserve"
        here.go("compare/many")
        here.page.wait_for_selector("details.versions summary:has-text('12, 11')")
        here.page.click("details.versions summary")
        boxes = here.page.locator("details.versions .tick").all_inner_texts()
        assert boxes == [str(number) for number in range(12, 0, -1)]


def test_picture_is_asked_of_the_next_model_and_version(visited: Visit) -> None:
    visited.open_model("digits", "picture")
    choose(visited, SEVEN)
    visited.best("7")
    visited.go("try/digits/onnx")
    visited.page.wait_for_selector(".answer .timing:has-text('onnx')")
    visited.best("7")
    visited.go("try/numbers")
    visited.page.wait_for_selector(".work[data-model=numbers][aria-busy=false]")
    assert visited.page.locator(".stage img").count() == 1


def test_picture_and_answer_are_there_after_coming_back(visited: Visit) -> None:
    visited.open_model("digits", "picture")
    choose(visited, SEVEN)
    visited.best("7")
    visited.go("models")
    visited.page.wait_for_selector("article")
    visited.go("try")
    visited.page.wait_for_selector(".work[data-model=digits] .stage img")
    visited.best("7")


def test_refused_picture_leaves_no_old_answer(visited: Visit) -> None:
    visited.open_model("digits", "picture")
    choose(visited, SEVEN)
    visited.best("7")
    refusal = '{"error": "One sentence.", "code": "INTERNAL"}'
    visited.page.route(
        "**/predictions/**",
        lambda route: route.fulfill(
            status=500, body=refusal, content_type="application/json"
        ),
    )
    choose(visited, MODELS / "digits" / "samples" / "3.png")
    visited.problem("INTERNAL")
    assert visited.page.locator(".answer").count() == 0
    assert visited.page.inner_text(".over") == ""


def test_large_photo_is_sent_in_the_size_that_the_model_needs(
    visited: Visit, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from PIL import Image

    photo = tmp_path_factory.mktemp("photo") / "large.png"
    with Image.open(SEVEN) as seven:
        seven.convert("RGB").resize((3000, 3000)).save(photo)
    visited.open_model("digits", "picture")
    sizes = []

    def note(route: object) -> None:
        sizes.append(len(route.request.post_data_buffer or b""))  # type: ignore[attr-defined]
        route.continue_()  # type: ignore[attr-defined]

    visited.page.route("**/predictions/**", note)
    choose(visited, photo)
    visited.best("7")
    with visited.page.expect_response("**/predictions/**"):
        visited.page.check("label:has-text('Send the full size') input")
    visited.best("7")
    assert sizes[1] == photo.stat().st_size
    assert sizes[0] < 200_000


def test_search_that_finds_nothing_says_so(visited: Visit) -> None:
    visited.page.fill("input[type=search]", "nothing like it")
    visited.page.click("button:text-is('Show all')")
    visited.page.fill("input[type=search]", "picture label")
    visited.page.wait_for_selector("article[data-model=digits]")
    visited.go("activity")
    visited.page.wait_for_selector(".charts")
    visited.go("models")
    visited.page.wait_for_selector("article[data-model=digits]")
    assert visited.page.input_value("input[type=search]") == "picture label"


def test_unloaded_model_can_be_tried(visited: Visit) -> None:
    visited.server.call("POST", "/v2/repository/models/petals/unload")
    visited.go("activity")
    visited.go("models")
    card = visited.page.locator("article[data-model=petals]")
    card.locator(".chip.stopped").wait_for()
    card.locator("a:text-is('Try')").click()
    visited.page.wait_for_selector(".work[data-model=petals]")
    visited.page.click("form .primary >> nth=0")
    visited.best("cm")


def test_history_is_saved(visited: Visit) -> None:
    visited.open_model("numbers")
    visited.page.click("[data-sample='page.jpg']:has(img)")
    visited.best("objects")
    visited.page.click(".history summary")
    files = {}
    for kind in ("json", "csv"):
        with visited.page.expect_download() as started:
            visited.page.click(f"[data-export={kind}]")
        files[kind] = Path(started.value.path()).read_text("utf-8")
    (entry,) = json.loads(files["json"])
    assert (entry["model"], entry["input"]) == ("numbers", "page.jpg")
    assert len(entry["predictions"]) > 3
    head, row = csv.reader(files["csv"].splitlines())
    assert dict(zip(head, row, strict=True))["input"] == "page.jpg"
    with visited.page.expect_download() as started:
        visited.page.click(".entries button")
    from PIL import Image

    with Image.open(started.value.path()) as picture:
        assert picture.format == "JPEG"
        assert max(picture.size) <= 640
