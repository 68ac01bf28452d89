"""Draw the companion app's screens on the desktop, and check the layout."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
from PIL import Image, ImageChops, ImageStat

from conftest import ROOT

from .conftest import load_script

pytestmark = pytest.mark.java
IMAGES = ROOT / "docs" / "images"
MOST_BYTES = 40_000
SIZES = ((320, 568), (411, 731), (568, 320), (800, 1280))
"""Width and height in dp: a small phone, a usual one, the small one turned, a tablet.
"""


@pytest.fixture(scope="module")
def screens() -> Iterator[ModuleType]:
    """Import the module that draws screens, with the modules beside it."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        yield load_script(ROOT / "tools" / "app_screens.py")
    finally:
        sys.path.remove(str(ROOT / "tools"))


def faults(screens: ModuleType, name: str, phone: Any) -> list[str]:
    layout = sys.modules["app_layout"]
    return layout.faults(screens.screen(name, phone), phone, screens.width_of)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("language", ["en", "de", "el"])
@pytest.mark.parametrize("scale", [1.0, 1.3])
def test_nothing_is_clipped_split_or_too_small(screens, size, language, scale) -> None:
    phone = screens.Phone(*size, scale, language)
    told = {name: faults(screens, name, phone) for name in screens.SCREENS}
    assert not {name: texts for name, texts in told.items() if texts}


def test_every_screen_has_room_for_answers(screens) -> None:
    for size, scale in itertools.product(SIZES, (1.0, 1.3)):
        phone = screens.Phone(*size, scale, "el")
        assert screens.screen("live", phone).find("results").height >= 40


def test_the_layouts_are_placed_as_android_does(screens) -> None:
    root = screens.screen("live", screens.Phone(400, 700))
    bar, below, live = (root.find(name) for name in ("bar", "below_bar", "live"))
    assert (bar.y, bar.height) == (0, 24 + 56)
    assert (below.y, below.height) == (80, 620)
    preview, shutter, gallery = (
        root.find(name) for name in ("preview", "shutter", "gallery")
    )
    assert live.x == 0
    assert live.width == 400
    assert live.height == 48
    # Two halves of the space that the two lists and the navigation bar leave.
    assert preview.height == (620 - 24 - 2 * 48) / 2
    assert live.y == preview.y + preview.height
    assert shutter.x == 4
    assert shutter.width == 196
    assert gallery.x == 200
    assert gallery.width == 196


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"id": "shutter", "text": "Donaudampfschifffahrtsgesellschaft"},
            "a word is torn",
        ),
        (
            {"id": "bar", "text": "A title that is longer than a small phone is wide"},
            "cut at the side",
        ),
        ({"id": "gallery", "minHeight": "40dp"}, "too small for a finger"),
        ({"id": "live_status", "layout_height": "8dp"}, "cut at the bottom"),
        ({"id": "results", "layout_height": "0dp", "layout_weight": "0"}, "no size"),
        (
            {"id": "models", "layout_width": "400dp", "layout_weight": "0"},
            "over a side",
        ),
    ],
)
def test_each_layout_fault_is_detected(screens, change, fault) -> None:
    layout = sys.modules["app_layout"]
    phone = screens.Phone(320, 568)
    root = screens.screen("live", phone)
    view = root.find(change.pop("id"))
    view.text = change.pop("text", view.text)
    view.attributes |= change
    layout.lay_out(root, phone, screens.width_of)
    assert any(fault in text for text in layout.faults(root, phone, screens.width_of))


def test_buttons_do_not_shout(screens) -> None:
    phone = screens.Phone(411, 731, language="el")
    assert screens.screen("live", phone).find("gallery").lines == ["Επιλογή εικόνας"]


def test_only_a_token_can_be_forgotten(screens) -> None:
    assert (
        not screens.screen("settings", screens.Phone(320, 640)).find("forget").visible
    )


def test_the_documentations_pictures_are_small_and_shown() -> None:
    page = (ROOT / "docs" / "android-app.md").read_text("utf-8")
    pictures = sorted(IMAGES.glob("app-*.png"))
    assert pictures
    for picture in pictures:
        assert picture.stat().st_size <= MOST_BYTES
        assert f"](images/{picture.name})" in page


def test_the_documentations_pictures_are_up_to_date(screens, tmp_path) -> None:
    """Run ``python tools/app_screens.py`` after changes of layouts, texts or colours."""
    assert {f"{name}.png" for name in screens.PICTURES} == {
        file.name for file in IMAGES.glob("app-*.png")
    }
    screens.main([str(tmp_path)])
    for name in screens.PICTURES:
        old, new = (
            Image.open(folder / f"{name}.png").convert("RGB")
            for folder in (IMAGES, tmp_path)
        )
        assert old.size == new.size
        # Other releases of Pillow antialias letters slightly differently.
        assert max(ImageStat.Stat(ImageChops.difference(old, new)).mean) < 1, name
