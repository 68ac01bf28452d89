"""Check the companion app's layouts for accessibility, like a linter.

It covers large letters, TalkBack, right-to-left, dark mode and touch targets.
``test_app_screens.py`` draws the screens.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from conftest import ROOT

SAMPLE = ROOT / "android_bridge" / "sample"
RES = SAMPLE / "res"
ANDROID = "{http://schemas.android.com/apk/res/android}"
LAYOUTS = sorted((RES / "layout").glob("*.xml"))
TOUCHED = {"Button", "CheckBox", "EditText", "Spinner", "Switch"}
WITH_TEXT = {*TOUCHED, "TextView"}
PICTURES = {"ImageButton", "ImageView", "TextureView", "View"}
LEAST_TARGET_DP = 48
LEAST_CONTRAST = 4.5


def styles() -> dict[str, dict[str, str]]:
    """Return each style's items, including those of its parents in this app."""
    tree = ElementTree.parse(RES / "values/styles.xml")
    own = {
        style.attrib["name"]: {i.attrib["name"]: i.text or "" for i in style}
        for style in tree.getroot()
    }
    return {
        name: {**own.get(name.rpartition(".")[0], {}), **items}
        for name, items in own.items()
    }


STYLES = styles()


def attributes(element: ElementTree.Element) -> dict[str, str]:
    """Return a view's attributes, its style's included; names like ``android:text``."""
    given = {}
    for key, value in element.attrib.items():
        given[key.replace(ANDROID, "android:")] = value
    return {**STYLES.get(given.get("style", "").removeprefix("@style/"), {}), **given}


def views() -> list[tuple[str, str, dict[str, str]]]:
    """Return file, class and attributes of every view."""
    return [
        (
            path.stem,
            element.tag.rpartition(".")[2],
            attributes(element),
        )
        for path in LAYOUTS
        for element in ElementTree.parse(path).iter()
    ]


VIEWS = views()


def test_there_are_screens() -> None:
    assert len(LAYOUTS) == 4
    assert len(VIEWS) > 40


def test_every_text_can_be_translated() -> None:
    for file, view, said in VIEWS:
        for name in ("text", "hint", "contentDescription", "title"):
            value = said.get(f"android:{name}", "@string/")
            assert value.startswith("@string/"), (file, view, value)


def test_lengths_scale_with_the_screen_and_letters_with_the_setting() -> None:
    for file, view, said in VIEWS:
        for name, value in said.items():
            length = re.fullmatch(r"-?[\d.]+([a-z]+)", value)
            if length is not None and not name.endswith(
                ("maxLength", "maxLines", "weight")
            ):
                assert length[1] == ("sp" if name == "android:textSize" else "dp"), (
                    file,
                    view,
                    name,
                    value,
                )


def test_positions_use_start_and_end_instead_of_left_and_right() -> None:
    for file, view, said in VIEWS:
        sides = [n for n in said if re.search(r"(Left|Right|_toLeftOf|_toRightOf)$", n)]
        assert not sides and not re.search(
            r"\b(left|right)\b", said.get("android:gravity", "")
        ), (file, view, sides)
    manifest = ElementTree.parse(SAMPLE / "AndroidManifest.xml")
    application = manifest.find("application")
    assert application is not None
    assert application.get(f"{ANDROID}supportsRtl") == "true"


@pytest.mark.parametrize(
    ("file", "view", "said"), [entry for entry in VIEWS if entry[1] in WITH_TEXT]
)
def test_letters_of_any_size_fit(file: str, view: str, said: dict[str, str]) -> None:
    """A view with text is as high as its text."""
    assert said["android:layout_height"] == "wrap_content", said
    assert view == "EditText" or (
        "android:maxLines" not in said and "android:ellipsize" not in said
    )


@pytest.mark.parametrize(
    ("file", "view", "said"), [entry for entry in VIEWS if entry[1] in TOUCHED]
)
def test_touch_targets_are_large_enough(
    file: str, view: str, said: dict[str, str]
) -> None:
    least = re.fullmatch(r"(\d+)dp", said.get("android:minHeight", ""))
    assert least is not None and int(least[1]) >= LEAST_TARGET_DP, said


def test_buttons_in_a_row_share_its_width() -> None:
    """Otherwise the first one grows with large letters, and the last is cut off."""
    for path in LAYOUTS:
        for row in ElementTree.parse(path).iter("LinearLayout"):
            said = attributes(row)
            if said.get("android:orientation") == "horizontal":
                shares = [
                    attributes(button).get("android:layout_weight")
                    for button in row.findall("Button")
                ]
                assert all(share == "1" for share in shares), (path.stem, shares)


def test_contents_longer_than_the_screen_scroll() -> None:
    """Examples are the settings, and the panel with its help text."""
    for path, name in (
        (RES / "layout/activity_settings.xml", "save"),
        (RES / "layout/activity_main.xml", "problem"),
    ):
        scrolling = [
            element
            for view in ElementTree.parse(path).iter("ScrollView")
            for element in view.iter()
        ]
        assert name in {
            attributes(e).get("android:id", "").rpartition("/")[2] for e in scrolling
        }


def test_every_control_has_a_text_for_talkback() -> None:
    labelled = {
        said["android:labelFor"].rpartition("/")[2]
        for _, _, said in VIEWS
        if "android:labelFor" in said
    }
    for file, view, said in VIEWS:
        name = said.get("android:id", "").rpartition("/")[2]
        silent = said.get("android:importantForAccessibility") == "no"
        if view in {"EditText", "Spinner"}:
            assert name in labelled, (file, name)
        if view in PICTURES or (
            view.endswith("View") and view not in {"TextView", "ScrollView"}
        ):
            assert silent or "android:contentDescription" in said, (file, view, name)
        # TalkBack would read it instead of the typed text.
        assert view != "EditText" or "android:contentDescription" not in said, (
            file,
            name,
        )


def test_secrets_are_not_offered_to_other_apps() -> None:
    for file, view, said in VIEWS:
        assert view != "EditText" or said.get("android:importantForAutofill") == "no", (
            file,
            said,
        )


def colours(folder: str) -> dict[str, str]:
    return {
        c.attrib["name"]: c.text or ""
        for c in ElementTree.parse(RES / folder / "colors.xml").getroot()
    }


def luminance(colour: str) -> float:
    """Return the luminance of ``#RRGGBB`` by WCAG 2."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (
        p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def test_texts_have_enough_contrast_by_day_and_night() -> None:
    day = colours("values")
    night = {**day, **colours("values-night")}
    for palette in (day, night):
        assert contrast(palette["panel"], palette["panel_text"]) >= LEAST_CONTRAST
        # The title in the bar.
        assert contrast(palette["primary"], "#FFFFFF") >= LEAST_CONTRAST
    # White letters on the shade over the brightest possible preview.
    over_white = round(255 * (1 - int(day["shade"][1:3], 16) / 255))
    assert (
        contrast(f"#{over_white:02X}" + f"{over_white:02X}" * 2, "#FFFFFF")
        >= LEAST_CONTRAST
    )
    assert set(colours("values-night")) <= set(day)


def test_colours_are_named() -> None:
    for file, view, said in VIEWS:
        assert not [value for value in said.values() if value.startswith("#")], (
            file,
            view,
            said,
        )


def test_every_named_view_is_used_and_every_used_view_exists() -> None:
    sources = "\n".join(
        path.read_text("utf-8") for path in (SAMPLE / "src").rglob("*.java")
    )
    used = set(re.findall(r"(?<!android\.)R\.id\.(\w+)", sources))
    named = set()
    for _, _, said in VIEWS:
        if "android:id" in said:
            named.add(said["android:id"].rpartition("/")[2])
    assert used == named


def test_a_rotated_screen_keeps_its_contents() -> None:
    """The first screen is not recreated, because its answers are in memory only."""
    manifest = ElementTree.parse(SAMPLE / "AndroidManifest.xml")
    kept = {}
    for activity in manifest.iter("activity"):
        kept[activity.attrib[f"{ANDROID}name"]] = set(
            activity.get(f"{ANDROID}configChanges", "").split("|")
        )
    assert {"orientation", "screenSize", "smallestScreenSize", "screenLayout"} <= kept[
        ".MainActivity"
    ]


def test_every_layout_is_used() -> None:
    assert {path.stem for path in LAYOUTS} == set(
        re.findall(
            r"(?<!android\.)R\.layout\.(\w+)",
            "".join(p.read_text("utf-8") for p in _java()),
        )
    )


def _java() -> list[Path]:
    return list((SAMPLE / "src").rglob("*.java"))
