"""Use every task on the page in real browsers."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from browsing import IN_BOTH, Visit, choose, come_to_rest, wait_for_overlay
from conftest import MODELS
from firefox import Firefox
from sounds import tone, wav

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [
    pytest.mark.browser,
    pytest.mark.live,
    IN_BOTH,
]

DIGITS = MODELS / "digits" / "samples"
CONTEXT = (
    "ben likes tea. anna lives in oslo. carla works as a pilot. ben lives in rome."
)


@pytest.mark.parametrize("digit", ["3", "7"])
def test_picture(visited: Visit, digit: str) -> None:
    visited.open_model("digits", "picture")
    choose(visited, DIGITS / f"{digit}.png")
    visited.best(digit)
    visited.page.wait_for_selector(
        f"[role=status]:text-is('{digit}')", state="attached"
    )


def test_pasted_and_dropped(visited: Visit) -> None:
    visited.open_model("digits", "picture")
    give = """([bytes, kind]) => {
        const files = new DataTransfer();
        files.items.add(new File([new Uint8Array(bytes)], 'seen.png', {type: 'image/png'}));
        const event = Object.assign(new Event(kind, {bubbles: true}), {clipboardData: files, dataTransfer: files});
        (kind === 'paste' ? window : document.querySelector('.drop')).dispatchEvent(event) }"""
    for kind, digit in (("paste", "4"), ("drop", "1")):
        visited.page.evaluate(
            give, [list((DIGITS / f"{digit}.png").read_bytes()), kind]
        )
        visited.best(digit)


def test_samples_and_history(visited: Visit) -> None:
    """One tap on a sample asks about it.

    The history keeps what was asked.
    """
    page = visited.page
    visited.open_model("digits", "drawing")
    page.click("[data-sample='7.png']:has(img)")
    visited.best("7")
    visited.open_model("petals")
    page.click("[data-sample='row.json']")
    visited.best("0.2266")
    page.click(".history summary")
    names = page.locator(".entries .name").all_inner_texts()
    assert names[-1] == "7"
    assert names[0].startswith("0.2266")
    assert page.locator(".entries img").count() == 1


def test_drawing(visited: Visit) -> None:
    """A stroke from top to bottom is a one."""
    visited.open_model("digits", "drawing")
    box = visited.page.locator(".pad").bounding_box()
    assert box is not None
    mouse = visited.page.mouse
    middle = box["x"] + box["width"] / 2
    mouse.move(middle, box["y"] + 40)
    mouse.down()
    for step in range(1, 11):
        mouse.move(middle, box["y"] + 40 + 20 * step)
    mouse.up()
    visited.best("1")


def test_live_camera(visited: Visit, browser: Browser | Firefox) -> None:
    """One frame is in progress at a time.

    The button stops it.
    """
    visited.open_model("digits", "camera")
    visited.page.click("text=Start the camera")
    # Firefox's camera has its own test picture.
    visited.best("" if isinstance(browser, Firefox) else "7")
    visited.page.wait_for_function(
        "() => /\\d+ frames\\/s · [\\d.,]+ ms/.test(document.querySelector('.tempo')?.textContent)"
    )
    visited.page.evaluate("window.seen = document.querySelector('video').srcObject")
    visited.page.click("text=Stop")
    visited.page.wait_for_selector("text=Start the camera")
    assert visited.page.evaluate("window.seen.active") is False
    come_to_rest(visited)


def test_objects_have_boxes(visited: Visit) -> None:
    visited.open_model("numbers", "picture")
    choose(visited, MODELS / "numbers" / "samples" / "page.jpg")
    visited.page.wait_for_selector(".bars li >> nth=5")
    labels = visited.page.locator(".bars .name").all_inner_texts()
    assert {label.strip() for label in labels} >= {"1", "2", "3", "6", "7", "9"}
    wait_for_overlay(visited, 1000)


def test_poses_have_skeletons(visited: Visit, tmp_path: Path) -> None:
    from drawn import person
    from odd_pictures import saved

    picture, _ = person(14, 640, 480)
    file = tmp_path / "person.png"
    file.write_bytes(saved(picture, "PNG"))
    visited.open_model("poses", "picture")
    choose(visited, file)
    visited.best("person")
    wait_for_overlay(visited, 1000)


def test_shapes_have_boxes(visited: Visit, tmp_path: Path) -> None:
    from drawn import objects
    from odd_pictures import saved

    picture, truth = objects(8, 640, 480)
    file = tmp_path / "shapes.png"
    file.write_bytes(saved(picture, "PNG"))
    visited.open_model("shapes", "picture")
    choose(visited, file)
    visited.page.wait_for_selector(".answer .bars")
    assert visited.page.locator(".bars li").count() == len(truth)


def test_petals_form(visited: Visit) -> None:
    """Names, units and usual ranges are the model's.

    The answer has its unit.
    """
    visited.open_model("petals")
    assert "usually 4.3 to 7.9" in visited.page.inner_text(".fields")
    for name, value in (
        ("sepal_length", "5.1"),
        ("sepal_width", "3.5"),
        ("petal_length", "1.4"),
    ):
        visited.page.fill(f"input[name={name}]", value)
    visited.page.click("form .primary >> nth=0")
    assert "cm" in visited.best("0.2266")


def test_diabetes_form(visited: Visit) -> None:
    row = [59.0, 2, 32.1, 101.0, 157.0, 93.2, 38.0, 4.0, 4.8598, 87.0]
    visited.open_model("diabetes")
    for field, value in zip(
        visited.page.locator("form >> nth=0 >> input").all(), row, strict=True
    ):
        field.fill(str(value))
    visited.page.click("form .primary >> nth=0")
    answer = visited.server.call("POST", "/predictions/diabetes", json=row).json()[
        "predictions"
    ][0]["value"]
    visited.best(f"{answer:.4g}")


def test_many_rows(visited: Visit) -> None:
    visited.open_model("petals")
    visited.page.click("summary:has-text('Many rows')")
    visited.page.fill("textarea[name=lines]", "5.1,3.5,1.4\n6.2,2.9,4.3")
    visited.page.click("details[open] form button")
    visited.best("0.2266")
    assert visited.page.locator(".answer tbody tr").count() == 2


def test_sound_file(visited: Visit, tmp_path: Path) -> None:
    file = tmp_path / "tone.wav"
    file.write_bytes(wav(tone()))
    visited.open_model("tones", "soundFile")
    choose(visited, file)
    visited.best("tone")


def test_microphone(visited: Visit) -> None:
    visited.open_model("tones", "microphone")
    visited.page.click("button:text-is('Record')")
    visited.page.wait_for_selector(".tempo:text-is('2 s')")
    visited.page.click("text=Stop and ask")
    visited.best("tone")


def test_question(visited: Visit) -> None:
    visited.open_model("answers")
    visited.page.fill("[name=question]", "where does anna live?")
    visited.page.fill("[name=context]", CONTEXT)
    visited.page.click("form .primary")
    visited.best("oslo")
    assert visited.page.inner_text("mark") == "oslo"


def test_two_texts(visited: Visit) -> None:
    """The score is for the second text: sigmoid of its tokens less 2, the end token
    included.
    """
    visited.open_model("reranker", "pair")
    visited.page.fill("[name=text]", "good")
    visited.page.fill("[name=textPair]", "good bad good")
    visited.page.click("form .primary")
    assert "88" in visited.best("LABEL_0")


def test_a_query_and_texts(visited: Visit) -> None:
    visited.open_model("reranker", "pairs")
    visited.page.fill("[name=query]", "good")
    visited.page.fill("[name=texts]", "bad\nbad good bad")
    visited.page.click("form .primary")
    visited.page.wait_for_function(
        "() => document.querySelector('.answer')?.textContent.includes('1: LABEL_0')"
    )


def test_nearest_text(visited: Visit) -> None:
    visited.open_model("phrases", "query")
    visited.page.fill("[name=query]", "switch the lamp on")
    visited.page.fill("[name=texts]", "play a song\nturn on the light\ncall my mother")
    visited.page.click("form .primary")
    visited.best("turn on the light")


def test_vector(visited: Visit) -> None:
    visited.open_model("phrases", "text")
    visited.page.fill("[name=text]", "turn on the light")
    visited.page.click("form .primary")
    visited.page.wait_for_selector(".answer .numbers")


def test_recommendation(visited: Visit) -> None:
    visited.open_model("shelf")
    visited.page.fill("[name=items]", "Wild Herbs\nGrowing Roses")
    visited.page.click("form .primary")
    asked = visited.server.call(
        "POST", "/predictions/shelf", json=["Wild Herbs", "Growing Roses"]
    )
    visited.best(asked.json()["predictions"][0]["label"])


def test_tensors(visited: Visit, tmp_path: Path) -> None:
    """Send JSON, a NumPy file and zeros.

    Invalid JSON is reported at once.
    """
    visited.open_model("plain")
    visited.page.fill("textarea[name=values]", "[[5.1, 3.5")
    visited.page.click("form .primary")
    visited.page.wait_for_selector("p.problem")
    visited.page.fill("textarea[name=values]", "[[5.1, 3.5, 1.4]]")
    visited.page.click("form .primary")
    visited.page.wait_for_selector(".numbers:has-text('0.2266')")
    array = io.BytesIO()
    np.save(array, np.array([[6.2, 2.9, 4.3]], np.float32))
    (tmp_path / "row.npy").write_bytes(array.getvalue())
    choose(visited, tmp_path / "row.npy")
    _new_numbers(visited, "0.2266")
    before = visited.page.inner_text(".numbers")
    visited.page.click("text=Try zeros")
    _new_numbers(visited, before)
    assert visited.page.locator(".problem").count() == 0


def _new_numbers(visited: Visit, before: str) -> None:
    """Wait until the answer changes."""
    visited.page.wait_for_function(
        "old => !document.querySelector('.numbers')?.textContent.includes(old)",
        arg=before,
    )


def test_options_are_sent(visited: Visit) -> None:
    visited.open_model("digits", "picture")
    choose(visited, DIGITS / "7.png")
    visited.best("7")
    visited.page.click("summary:has-text('Options')")
    visited.page.fill("label:has-text('top_k') input", "2")
    visited.page.keyboard.press("Tab")
    visited.page.wait_for_function(
        "() => document.querySelectorAll('.bars li').length === 2"
    )
    assert "top_k=2" in visited.page.inner_text(".snippet")


def test_versions_side_by_side(visited: Visit) -> None:
    visited.go("compare/digits")
    visited.page.click("[data-kind=picture]")
    choose(visited, DIGITS / "7.png")
    visited.page.wait_for_selector("section[data-version] >> text=same first answer")
    visited.page.wait_for_selector("section[data-version] >> nth=1 >> text=n = 10")
    assert (
        visited.page.locator("section[data-version] .best")
        .all_inner_texts()[0]
        .startswith("7")
    )
    assert visited.page.locator("section[data-version]").count() == 2


def test_versions_on_the_live_camera(
    visited: Visit, browser: Browser | Firefox
) -> None:
    """Both versions get each frame.

    Times and agreement are shown until it stops.
    """
    visited.go("compare/digits")
    visited.press("[data-kind=camera]")
    visited.page.click("text=Start the camera")
    digit = "7"
    if isinstance(browser, Firefox):
        digit = ""
    for side in range(2):
        visited.page.wait_for_selector(
            f"section[data-version] >> nth={side} >> .best:has-text('{digit}')"
        )
    visited.page.wait_for_selector(
        "section[data-version] >> nth=1 >> text=first answer"
    )
    visited.page.wait_for_function(
        "() => / · /.test(document.querySelector('.tempo').textContent)"
    )
    visited.page.click("text=Stop")
    visited.page.wait_for_selector("text=Start the camera")
    come_to_rest(visited)
