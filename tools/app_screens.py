"""Draw the companion app's screens without a phone.

Usage: python tools/app_screens.py [FOLDER]

Layouts, texts, styles and colours are the app's own, but the few kinds of views are
measured by ``app_layout.py`` and drawn here, in Android's font (Roboto). The pictures
show positions and line breaks, not each detail of Android's own drawings. FOLDER gets
the pictures of the documentation (default docs/images).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from app_layout import LINE, ROW_TEXTS, View, lay_out, read
from app_libraries import roboto
from app_resources import Phone, Resources
from PIL import Image, ImageDraw, ImageFont, ImageOps

from pocketserve.tasks.vision.drawing import colour

ROOT = Path(__file__).resolve().parents[1]
DIGITS = (
    ("2", 80, 70),
    ("0", 220, 60),
    ("6", 360, 75),
    ("3", 500, 65),
    ("8", 150, 240),
    ("7", 290, 235),
    ("5", 430, 245),
)
"""The digits that the camera sees, and their places in pixels."""

SCALE = 1.25
"""Pixels of a drawn picture for each dp."""
COLOURS_KEPT = 200
PALETTES = {
    False: {
        "ground": "#FAFAFA",
        "text": "#212121",
        "faint": "#757575",
        "line": "#8A8A8A",
    },
    True: {
        "ground": "#303030",
        "text": "#FFFFFF",
        "faint": "#C1C1C1",
        "line": "#A0A0A0",
    },
}
"""Of Android's theme Material, by day and by night."""

Change = Callable[[View, Resources], None]
Answer = Mapping[str, Any]


@cache
def font(size: float, medium: bool) -> ImageFont.FreeTypeFont:
    """Return Roboto in a size, in pixels."""
    return ImageFont.truetype(
        roboto() / f"Roboto-{'Medium' if medium else 'Regular'}.ttf", size
    )


def width_of(text: str, size: float, medium: bool) -> float:
    """Return the width of a text in dp."""
    return float(font(100, medium).getlength(text)) * size / 100


# Screens


def main_screen(root: View, resources: Resources) -> None:
    """The first screen with a model chosen, and answers."""
    for name, text in (
        ("models", "numbers"),
        ("versions", resources.texts["version_default"].replace("%1$s", "tflite")),
    ):
        root.find(name).text = text
    root.find("bar").text, root.find("bar").icon = "Pocketserve", True
    if resources.phone.width > resources.phone.height:
        _side_by_side(root)
    root.find("results").rows = [
        ("numbers: 3 (97.9 %)", "tflite · 3 (97.9 %), 8 (97.8 %) · 31 ms")
    ]


def _side_by_side(root: View) -> None:
    """Do as MainScreen.arrange does on a wide screen."""
    for name, height in (("choices", "wrap_content"), ("content", "match_parent")):
        parts = root.find(name)
        parts.attributes["orientation"] = "horizontal"
        for part in parts.children:
            part.attributes |= {
                "layout_width": "0dp",
                "layout_height": height,
                "layout_weight": "1",
            }


def live(root: View, resources: Resources) -> None:
    """Live mode."""
    main_screen(root, resources)
    status = root.find("live_status")
    status.visible = True
    text = (
        resources.texts["live_status"].replace("%2$.1f", "24.3").replace("%3$d", "38")
    )
    status.text = text.replace("%1$s", "3 (97.9 %)")


def problem(title: str, text: str, action: str) -> Change:
    """Return a change that shows this problem."""

    def change(root: View, resources: Resources) -> None:
        main_screen(root, resources)
        root.find("problem").visible = True
        for view, name in (
            ("problem_title", title),
            ("problem_text", text),
            ("problem_action", action),
        ):
            root.find(view).text = resources.texts[name]

    return change


def settings(root: View, resources: Resources) -> None:
    """The settings as they are at the first start."""
    root.find("bar").text, root.find("bar").back = resources.texts["settings"], True
    root.find("token_state").text = resources.texts["token_unset"]
    root.find("transport").text = resources.texts["transport_socket"]
    for name, text in (
        ("http_port", "8470"),
        ("socket_port", "8471"),
        ("program", "$PREFIX/bin/pocketserve"),
    ):
        root.find(name).text = text


def scan(root: View, resources: Resources) -> None:
    """The scanner of QR codes."""
    root.find("bar").text, root.find("bar").back = resources.texts["scan"], True


def scan_refused(root: View, resources: Resources) -> None:
    """The scanner after the final no to the camera."""
    scan(root, resources)
    root.find("scan_hint").text = resources.texts["camera_settings_scan"]
    root.find("scan_allow").visible = True
    root.find("scan_allow").text = resources.texts["system_settings"]


SCREENS: dict[str, tuple[str, Change]] = {
    "live": ("activity_main", live),
    "unreachable": (
        "activity_main",
        problem("problem_unreachable", "problem_unreachable_help", "start_server"),
    ),
    "forbidden": (
        "activity_main",
        problem("problem_camera", "camera_settings", "system_settings"),
    ),
    "settings": ("activity_settings", settings),
    "scan": ("activity_scan", scan),
    "scan-refused": ("activity_scan", scan_refused),
}
"""Layout and state of each screen that is drawn or tested."""


def screen(name: str, phone: Phone) -> View:
    """Return a screen with everything in its place."""
    layout, change = SCREENS[name]
    resources = Resources(phone)
    root = read(resources.layout(layout), resources)
    change(root, resources)
    lay_out(root, phone, width_of)
    return root


# Drawing


class Painter:
    """Draws placed views.

    Args:
        picture: the camera's picture; None leaves it dark.
        answer: the server's answer to it.
    """

    def __init__(
        self,
        phone: Phone,
        picture: Image.Image | None = None,
        answer: Answer | None = None,
    ) -> None:
        self._phone = phone
        self._picture = picture
        self._answer = answer
        self._shades = PALETTES[phone.night]
        self.image = Image.new(
            "RGB",
            (round(phone.width * SCALE), round(phone.height * SCALE)),
            self._shades["ground"],
        )
        self._draw = ImageDraw.Draw(self.image, "RGBA")

    def paint(self, view: View) -> None:
        """Draw a view and its children."""
        if not view.visible:
            return
        ground = view.resources.colour(view.attributes.get("background", ""))
        if ground is not None:
            self._box(view.x, view.y, view.width, view.height, _rgba(ground))
        kind = getattr(self, f"_{view.kind.lower()}", None)
        if kind is not None:
            kind(view)
        elif view.lines:
            self._lines(
                view,
                view.x + view.padding.left,
                view.y + view.padding.top,
                self._ink(view),
            )
        for child in view.children:
            self.paint(child)

    def finish(self) -> Image.Image:
        """Draw the system's bars; return the picture in few colours."""
        bar = 14 * SCALE
        self._draw.text((bar, 5 * SCALE), "12:30", "#FFFFFF", font(12 * SCALE, True))
        middle = self._phone.width / 2
        low = self._phone.height - 12
        self._box(middle - 50, low, 100, 4, _rgba(self._shades["faint"]))
        return self.image.quantize(COLOURS_KEPT, dither=Image.Dither.NONE)

    def _box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: Any,
        radius: float = 0,
    ) -> None:
        frame = [
            x * SCALE,
            y * SCALE,
            (x + width) * SCALE - 1,
            (y + height) * SCALE - 1,
        ]
        self._draw.rounded_rectangle(frame, radius * SCALE, fill=fill)

    def _ink(self, view: View) -> str:
        given = view.resources.colour(view.attributes.get("textColor", ""))
        faint = "letters" in view.attributes
        return given or self._shades["faint" if faint else "text"]

    def _lines(
        self, view: View, x: float, y: float, ink: str, centred: bool = False
    ) -> None:
        size = view.letters
        medium = view.look.medium or view.attributes.get("textStyle") == "bold"
        room = view.width - view.padding.across
        for number, line in enumerate(view.lines):
            left = x
            if centred:
                left = x + (room - width_of(line, size, medium)) / 2
            self._text(left, y + size * (LINE * number + 0.1), line, size, medium, ink)

    def _text(
        self, x: float, y: float, text: str, size: float, medium: bool, ink: str
    ) -> None:
        self._draw.text((x * SCALE, y * SCALE), text, ink, font(size * SCALE, medium))

    def _middle(self, view: View) -> float:
        """Return the offset of vertically centred lines."""
        lines = view.letters * (LINE * len(view.lines) + 0.16)
        return (
            view.y
            + view.padding.top
            + max(0.0, (view.height - view.padding.along - lines) / 2)
        )

    def _toolbar(self, view: View) -> None:
        self._lines(view, view.x + view.padding.left, self._middle(view), "#FFFFFF")
        middle = view.y + view.inset.top + (view.height - view.inset.top) / 2
        if view.icon:
            left = view.x + view.width - 36
            for row, knob in ((-6, 13), (0, 9), (6, 11)):
                self._box(left + 3, middle + row - 1, 18, 2, (255, 255, 255, 255))
                self._box(left + knob, middle + row - 3, 2, 6, (255, 255, 255, 255))
        if view.back:
            tip = (view.x + 20) * SCALE
            width = round(2 * SCALE)
            self._draw.line(
                [tip, middle * SCALE, tip + 16 * SCALE, middle * SCALE],
                "#FFFFFF",
                width,
            )
            for slope in (-7, 7):
                end = tip + 7 * SCALE, (middle + slope) * SCALE
                self._draw.line([tip, middle * SCALE, *end], "#FFFFFF", width)

    def _button(self, view: View) -> None:
        self._box(
            view.x + 4,
            view.y + 6,
            view.width - 8,
            view.height - 12,
            _rgba(view.resources.colours["tonal"]),
            2,
        )
        self._lines(
            view,
            view.x + view.padding.left,
            self._middle(view),
            self._ink(view),
            centred=True,
        )

    def _edittext(self, view: View) -> None:
        self._lines(
            view, view.x + view.padding.left, self._middle(view), self._shades["text"]
        )
        self._box(
            view.x + 4,
            view.y + view.height - 10,
            view.width - 8,
            1,
            _rgba(self._shades["line"]),
        )

    def _spinner(self, view: View) -> None:
        self._lines(
            view, view.x + view.padding.left, self._middle(view), self._shades["text"]
        )
        x = view.x + view.width - 20
        y = view.y + view.height / 2
        points = [(x - 5, y - 2), (x + 5, y - 2), (x, y + 3)]
        self._draw.polygon(
            [(a * SCALE, b * SCALE) for a, b in points], fill=self._shades["faint"]
        )

    def _switch(self, view: View) -> None:
        self._lines(
            view, view.x + view.padding.left, self._middle(view), self._shades["text"]
        )
        x = view.x + view.width - view.padding.right - 40
        y = view.y + view.height / 2
        accent = view.resources.colours["accent"]
        self._box(x, y - 7, 36, 14, _rgba(accent, 110), 7)
        self._box(x + 18, y - 10, 20, 20, _rgba(accent), 10)

    def _checkbox(self, view: View) -> None:
        y = view.y + view.height / 2
        self._box(view.x + 7, y - 9, 18, 18, _rgba(view.resources.colours["accent"]), 2)
        tick = [(11, 0), (14, 4), (21, -4)]
        points = []
        for a, b in tick:
            points.append(((view.x + a) * SCALE, (y + b) * SCALE))
        self._draw.line(points, "#FFFFFF", round(2 * SCALE))
        self._lines(view, view.x + 32, self._middle(view), self._shades["text"])

    def _textureview(self, view: View) -> None:
        self._box(view.x, view.y, view.width, view.height, (0, 0, 0, 255))
        if self._picture is not None:
            size = (round(view.width * SCALE), round(view.height * SCALE))
            self.image.paste(
                _filled(self._picture, size),
                (round(view.x * SCALE), round(view.y * SCALE)),
            )

    def _overlayview(self, view: View) -> None:
        if self._picture is None or self._answer is None:
            return
        factor = max(
            view.width / self._picture.width, view.height / self._picture.height
        )
        left = view.x + (view.width - self._picture.width * factor) / 2
        top = view.y + (view.height - self._picture.height * factor) / 2
        for painted in (self._frame, self._name):
            for entry in reversed(self._answer["predictions"]):
                box = entry["box"]
                x = left + box["x"] * factor
                y = top + box["y"] * factor
                painted(
                    view,
                    x,
                    y,
                    x + box["width"] * factor,
                    y + box["height"] * factor,
                    entry,
                )

    def _frame(
        self, view: View, x: float, y: float, right: float, low: float, entry: Answer
    ) -> None:
        for thick, fill in ((5, (28, 28, 28)), (3, colour(entry["index"]))):
            self._draw.rectangle(
                [side * SCALE for side in (x, y, right, low)],
                outline=fill,
                width=round(thick * SCALE),
            )

    def _name(
        self, view: View, x: float, y: float, right: float, bottom: float, entry: Answer
    ) -> None:
        shade = colour(entry["index"])
        name = f"{entry['label']} {entry['score']:.0%}".replace("%", " %")
        size = 14 * self._phone.font_scale
        wide = width_of(name, size, False) + size * 0.65
        high = size * 1.3
        start = max(view.x, min(x, view.x + view.width - wide))
        low = y if y - view.y >= high else max(view.y, y) + high
        self._box(start, low - high, wide, high, (*shade, 255))
        light = 0.299 * shade[0] + 0.587 * shade[1] + 0.114 * shade[2] > 140
        self._text(
            start + size * 0.3,
            low - high + size * 0.1,
            name,
            size,
            False,
            "#000000" if light else "#FFFFFF",
        )

    def _listview(self, view: View) -> None:
        y = view.y
        scale = self._phone.font_scale
        for first, second in view.rows:
            for text, size, ink in zip(
                (first, second), ROW_TEXTS, ("text", "faint"), strict=True
            ):
                self._text(
                    view.x + 16, y + 10, text, size * scale, False, self._shades[ink]
                )
                y += size * scale * LINE + 4
            y += 16


def _filled(picture: Image.Image, size: tuple[int, int]) -> Image.Image:
    """Return the middle of a picture that fills a size."""
    factor = max(size[0] / picture.width, size[1] / picture.height)
    larger = picture.resize(
        (
            max(size[0], round(picture.width * factor)),
            max(size[1], round(picture.height * factor)),
        )
    )
    left = (larger.width - size[0]) // 2
    top = (larger.height - size[1]) // 2
    return larger.crop((left, top, left + size[0], top + size[1]))


def _rgba(colour: str, alpha: int = 255) -> tuple[int, int, int, int]:
    parts = []
    for at in range(1, len(colour), 2):
        parts.append(int(colour[at : at + 2], 16))
    red, green, blue = parts[-3:]
    return red, green, blue, parts[0] if len(parts) == 4 else alpha


def draw(
    name: str,
    phone: Phone,
    picture: Image.Image | None = None,
    answer: Answer | None = None,
) -> Image.Image:
    """Return the picture of a screen."""
    painter = Painter(phone, picture, answer)
    painter.paint(screen(name, phone))
    return painter.finish()


PICTURES: dict[str, tuple[str, Phone]] = {
    "app-live": ("live", Phone(411, 731)),
    "app-live-dark-el": ("live", Phone(320, 640, 1.3, "el", night=True)),
    "app-problem": ("unreachable", Phone(320, 640)),
    "app-problem-dark-el": ("forbidden", Phone(411, 731, 1.0, "el", night=True)),
    "app-settings": ("settings", Phone(320, 640)),
    "app-scan-dark": ("scan-refused", Phone(320, 640, 1.3, night=True)),
}
"""The documentation's pictures: a screen and the phone that it is on."""


def sheet() -> Image.Image:
    """Return the camera's picture."""
    paper = Image.linear_gradient("L").resize((640, 480))
    picture = ImageOps.colorize(paper, "#CFC8B4", "#A59D86")
    ink = Image.new("L", picture.size, 0)
    pen = ImageDraw.Draw(ink)
    for digit, x, y in DIGITS:
        pen.text((x, y), digit, 255, font(92, False))
    turned = ink.rotate(-4, Image.Resampling.BICUBIC)
    picture.paste((38, 40, 48), mask=turned)
    return picture


def ask(picture: Image.Image) -> Answer:
    """Return the embedded model's answer to a picture."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sheet.png"
        picture.save(file)
        return _predict(file)


def _predict(file: Path) -> Answer:
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "predict",
        "numbers",
        str(file),
        "--local",
        "--json",
    ]
    told = subprocess.run(
        [*command, "--models-dir", str(ROOT / "models")],
        capture_output=True,
        text=True,
        check=True,
    )
    answer: Answer = json.loads(told.stdout)
    return answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw the documentation's pictures; returns the exit code."""
    given = arguments
    if arguments is None:
        given = sys.argv[1:]
    folder = Path(given[0]) if given else ROOT / "docs" / "images"
    picture = sheet()
    answer = ask(picture)
    for file, (name, phone) in PICTURES.items():
        seen = (picture, answer) if name == "live" else (None, None)
        draw(name, phone, *seen).save(folder / f"{file}.png", optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
