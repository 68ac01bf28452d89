"""Read the companion app's resources for a phone's settings."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

RES = Path(__file__).resolve().parents[1] / "android_bridge" / "sample" / "res"
ANDROID = "{http://schemas.android.com/apk/res/android}"
ACTION_BARS_DP = {False: 56, True: 48}
"""Height of a toolbar in landscape or portrait mode."""
TEXT_SIZES = {"Subhead": 16.0, "Caption": 12.0}
"""Of android:style/TextAppearance.Material.*, in sp."""


@dataclass(frozen=True)
class Phone:
    """A phone's settings that affect a screen. Lengths are in dp.

    Attributes:
        font_scale: the user's setting for the size of letters.
        language: of the texts, such as ``el``.
        status_bar: the height that stays clear at the top; ``navigation_bar``: at the bottom.
    """

    width: float
    height: float
    font_scale: float = 1.0
    language: str = "en"
    night: bool = False
    status_bar: float = 24.0
    navigation_bar: float = 24.0

    @property
    def name(self) -> str:
        """Return a short description."""
        shade = "light"
        if self.night:
            shade = "dark"
        return f"{self.width:.0f}dp-{self.language}-{shade}-{self.font_scale}"


@dataclass(frozen=True)
class Resources:
    """The resources that a phone picks."""

    phone: Phone
    folder: Path = field(default=RES)

    @cached_property
    def texts(self) -> dict[str, str]:
        """Return all texts by name, English where there is no translation."""
        folders = ["values"] + (
            [] if self.phone.language == "en" else [f"values-{self.phone.language}"]
        )
        return {
            name: text
            for folder in folders
            for name, text in self._items(folder, "strings").items()
        }

    @cached_property
    def colours(self) -> dict[str, str]:
        """Return all colours by name, ``#RRGGBB`` or ``#AARRGGBB``."""
        night = self._items("values-night", "colors") if self.phone.night else {}
        return {**self._items("values", "colors"), **night}

    @cached_property
    def styles(self) -> dict[str, dict[str, str]]:
        """Return each style's items, inherited ones included."""
        tree = ElementTree.parse(self.folder / "values" / "styles.xml").getroot()
        own = {
            style.attrib["name"]: {i.attrib["name"]: i.text or "" for i in style}
            for style in tree
        }
        parents = {style.attrib["name"]: style.get("parent", "") for style in tree}
        return {
            name: {
                **own.get(name.rpartition(".")[0], {}),
                **_appearance(parents[name]),
                **items,
            }
            for name, items in own.items()
        }

    def _items(self, folder: str, file: str) -> dict[str, str]:
        root = ElementTree.parse(self.folder / folder / f"{file}.xml").getroot()
        return {
            item.attrib["name"]: (item.text or "").replace("\\n", "\n") for item in root
        }

    def layout(self, name: str) -> ElementTree.Element:
        """Return the root of a layout."""
        return ElementTree.parse(self.folder / "layout" / f"{name}.xml").getroot()

    def attributes(self, element: ElementTree.Element) -> dict[str, str]:
        """Return a view's attributes, including those of its style."""
        style = self.styles.get(element.get("style", "").removeprefix("@style/"), {})
        given = {}
        for key, value in element.attrib.items():
            given[key.removeprefix(ANDROID)] = value
        both = {
            **{key.removeprefix("android:"): value for key, value in style.items()},
            **given,
        }
        turned = self.phone.height < min(self.phone.width, 600)
        bar = f"{ACTION_BARS_DP[turned]}dp"
        return {
            key: bar if value == "?android:attr/actionBarSize" else value
            for key, value in both.items()
        }

    def text(self, value: str) -> str:
        """Return a text or the one that a reference names."""
        if value.startswith("@string/"):
            return self.texts[value.removeprefix("@string/")]
        return value

    def colour(self, value: str) -> str | None:
        """Return the app's colour for a reference, if any."""
        if value.startswith("@color/"):
            return self.colours[value.removeprefix("@color/")]
        return {
            "@android:color/black": "#000000",
            "@android:color/white": "#FFFFFF",
        }.get(value)

    def letters(self, attributes: dict[str, str], default: float) -> float:
        """Return the size of a view's letters in dp."""
        appearance = re.search(
            r"TextAppearance\.Material\.(\w+)$", attributes.get("textAppearance", "")
        )
        size = (
            TEXT_SIZES[appearance[1]]
            if appearance
            else float(attributes.get("letters", default))
        )
        return size * self.phone.font_scale


def _appearance(parent: str) -> dict[str, str]:
    """Return the text size that a style inherits from the platform."""
    match = re.search(r"TextAppearance\.Material\.(\w+)$", parent)
    if match:
        return {"letters": str(TEXT_SIZES[match[1]])}
    return {}


def dp(value: str, default: float = 0.0) -> float:
    """Return a length in dp."""
    match = re.fullmatch(r"(-?[\d.]+)dp", value)
    if match:
        return float(match[1])
    return default
