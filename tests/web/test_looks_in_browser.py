"""Check the page's look, texts and accessibility in both languages."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browsing import IN_BOTH, Visit, choose, pass_frames, visit
from conftest import MODELS, ROOT, StartServer
from firefox import Firefox

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = [pytest.mark.browser, pytest.mark.live]

Visitor = Callable[..., AbstractContextManager[Visit]]
SHOTS = ROOT / "build" / "web"
PHONE = {"width": 320, "height": 640}
DESKTOP = {"width": 1200, "height": 800}
GREEK = {
    "models": "Μοντέλα",
    "try": "Δοκιμή",
    "compare": "Σύγκριση",
    "activity": "Λειτουργία",
}
ENGLISH = {
    "models": "Models",
    "try": "Try",
    "compare": "Compare",
    "activity": "Activity",
}

LOOKS = {
    "phone-light-en": (PHONE, "light", "en-US"),
    "phone-dark-el": (PHONE, "dark", "el-GR"),
    "desktop-light-el": (DESKTOP, "light", "el-GR"),
    "desktop-dark-en": (DESKTOP, "dark", "en-US"),
}


def check(visited: Visit, name: str, width: int) -> None:
    """Check the width and axe's rules, and save a screenshot."""
    from axe_playwright_python.sync_playwright import Axe

    filled, seen = visited.page.evaluate(
        "[document.documentElement.scrollWidth, innerWidth]"
    )
    assert filled <= seen == width
    SHOTS.mkdir(parents=True, exist_ok=True)
    visited.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)
    faults = Axe().run(visited.page).response["violations"]
    assert [
        (fault["id"], [node["html"][:200] for node in fault["nodes"]])
        for fault in faults
    ] == []


@IN_BOTH
@pytest.mark.parametrize("look", LOOKS)
def test_every_part_is_accessible(
    visitor: Visitor, browser: Browser | Firefox, look: str
) -> None:
    viewport, scheme, locale = LOOKS[look]
    name = look
    if isinstance(browser, Firefox):
        name = f"firefox-{look}"
    titles = ENGLISH
    if locale.startswith("el"):
        titles = GREEK
    with visitor(viewport=viewport, color_scheme=scheme, locale=locale) as here:
        here.page.goto(here.server.url)
        here.page.wait_for_selector("#token")
        check(here, f"{name}-login", viewport["width"])
        here.page.goto("about:blank")
        here.enter()
        assert here.page.get_attribute("html", "lang") == locale[:2]
        for summary in here.page.locator("article[data-model=digits] summary").all():
            summary.click()
        for part, title in titles.items():
            here.page.click(f"nav a[href='#{part}']")
            here.page.wait_for_selector(f"h1:text-is('{title}')")
            _use(here, part)
            check(here, f"{name}-{part}", viewport["width"])


def _use(here: Visit, part: str) -> None:
    """Get an answer where the part gives some."""
    if part == "try":
        here.open_model("numbers", "picture")
        choose(here, MODELS / "numbers" / "samples" / "page.jpg")
        here.page.wait_for_selector(".bars")
        here.page.click(".options summary")
    elif part == "compare":
        here.go("compare/digits")
        here.page.click("[data-kind=picture]")
        choose(here, MODELS / "digits" / "samples" / "7.png")
        here.page.wait_for_selector("section[data-version] >> nth=1 >> .bars")
    elif part == "activity":
        here.page.click(".charts summary >> nth=0")
        here.page.wait_for_selector(".charts td")


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        ("petals", None),
        ("tones", "microphone"),
        ("answers", None),
        ("digits", "drawing"),
        ("plain", None),
    ],
)
def test_every_form_is_accessible(
    visitor: Visitor, model: str, kind: str | None
) -> None:
    with visitor(viewport=PHONE) as here:
        here.enter()
        here.open_model(model, kind)
        check(here, f"phone-form-{model}", PHONE["width"])


@IN_BOTH
def test_the_keyboard_alone_is_enough(visited: Visit) -> None:
    """Tab and Enter lead from the list to an answer."""
    visited.page.keyboard.press("Tab")
    assert visited.page.evaluate("document.activeElement.className") == "skip"
    visited.page.focus("article[data-model=petals] a.primary")
    visited.page.keyboard.press("Enter")
    visited.page.wait_for_selector(".work[data-model=petals]")
    visited.page.focus("input[name=sepal_length]")
    visited.page.keyboard.press("Enter")
    visited.best("cm")


def test_status_is_announced_once_a_second(visited: Visit) -> None:
    """Of thirty texts within milliseconds a screen reader gets one or two, including
    the last.
    """
    spoken = visited.page.evaluate(
        """async () => {
        const { src } = document.querySelector('script[type=module]'); // a second copy would say nothing
        const { say, statusElement } = await import(new URL('page.js', src));
        const heard = [];
        const done = new Promise(resolve => new MutationObserver(() => {
            heard.push([performance.now(), statusElement.textContent]);
            if (statusElement.textContent === 'label 29') resolve();
        }).observe(statusElement, { childList: true, characterData: true, subtree: true }));
        for (let number = 0; number < 30; number++) {
            say(`label ${number}`);
            await new Promise(requestAnimationFrame);
        }
        await done;
        return heard }"""
    )
    assert spoken[-1][1] == "label 29"
    assert len(spoken) <= 3
    assert all(
        later[0] - earlier[0] > 900 for earlier, later in itertools.pairwise(spoken)
    )


def test_answers_do_not_move_the_page(visited: Visit) -> None:
    """Controls stay in place while the camera's answers arrive."""
    visited.open_model("digits", "camera")
    visited.page.click("text=Start the camera")
    visited.best("7")
    visited.page.evaluate(
        """() => { window.moved = 0; new PerformanceObserver(list => {
        for (const entry of list.getEntries()) window.moved += entry.value }).observe({ type: 'layout-shift' }) }"""
    )
    answers = (
        "() => Number(document.querySelector('.tempo').textContent.split(' ')[0]) > 0"
    )
    visited.page.wait_for_function(answers)
    pass_frames(visited, 90)
    assert visited.page.evaluate("window.moved") < 0.02
    visited.page.click("text=Stop")


def test_labels_are_shown_as_text(
    browser: Browser, models_copy: Path, new_server: StartServer
) -> None:
    """Markup in a model's labels is not interpreted."""
    label = "<img src=x onerror=alert(1)>"
    (models_copy / "digits" / "labels.txt").write_text(
        "".join(f"{number} {label}\n" for number in range(10))
    )
    server = new_server(models_copy)
    with visit(browser, server, locale="en-US") as here:
        here.enter()
        here.open_model("digits", "picture")
        choose(here, MODELS / "digits" / "samples" / "7.png")
        here.best(label)
        assert here.page.locator("main img[src=x]").count() == 0


@pytest.mark.parametrize("language", ["curl", "python"])
def test_displayed_requests_work(visited: Visit, language: str, tmp_path: Path) -> None:
    """They give the page's answer, and don't contain the token."""
    visited.open_model("digits", "picture")
    choose(visited, MODELS / "digits" / "samples" / "7.png")
    visited.best("7")
    visited.press(f"[data-language={language}]")
    text = visited.page.inner_text(".snippet")
    token = visited.server.token
    assert token is not None
    assert token not in text
    assert "7.png" in text
    command = (
        ["sh", "-c", text.replace("$(pocketserve token)", token)]
        if language == "curl"
        else [sys.executable, "-c", text]
    )
    surroundings = {
        **os.environ,
        "POCKETSERVE_TOKEN": token,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    done = subprocess.run(
        command,
        cwd=MODELS / "digits" / "samples",
        env=surroundings,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert '"7"' in done.stdout.replace("'", '"'), done.stderr


@pytest.mark.parametrize("language", ["java", "kotlin"])
def test_requests_for_apps_name_the_input(visited: Visit, language: str) -> None:
    visited.open_model("petals")
    visited.page.click("form .primary >> nth=0")
    visited.best("cm")
    visited.press(f"[data-language={language}]")
    text = visited.page.inner_text(".snippet")
    assert 'predict("petals"' in text
    assert "sepal_length" in text
    assert f"httpPort({visited.server.port})" in text
