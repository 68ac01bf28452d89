"""The chart of a comparison: bars with their intervals, drawn as SVG for the page and by Pillow for a picture."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import human_bytes, printable
from pocketserve_lab.compare.report import number, score_text

WIDTH, ROW, TITLE, GAP = 600, 28, 40, 18
LEFT, BAR, TEXT = 175, 290, 16
"""In pixels; so narrow that a phone can show all of it with letters that can be read."""

INK, MUTED, LINE, CHOSEN, PLAIN = "#1d2129", "#667085", "#344054", "#0b7a4b", "#7c9cc9"
MAX_NAME = 18


class Shape(NamedTuple):
    """A rectangle with a colour, or a text; x and y in pixels are its upper left corner, or the text's baseline."""

    x: float
    y: float
    width: float = 0.0
    height: float = 0.0
    colour: str = INK
    text: str = ""
    anchor: str = "start"
    size: int = TEXT


class BarPanel(NamedTuple):
    """A figure over all versions; ``intervals`` may be empty."""

    title: str
    values: Mapping[str, float]
    texts: Mapping[str, str]
    intervals: Mapping[str, tuple[float, float]]


def panels_of(result: Mapping[str, Any]) -> list[BarPanel]:
    """Return the panels: time of a run, size of the file, memory, and the score or the agreement."""
    versions = result["versions"]
    runs = {name: facts["run_ms"]["p50"] for name, facts in versions.items()}
    panels = [
        BarPanel(
            "Run of the model, p50 ms with 95 % interval (less is better)",
            {name: run["value"] for name, run in runs.items()},
            {name: number(run["value"]) for name, run in runs.items()},
            _intervals(runs),
        ),
        _bytes_panel(
            "File (less is better)",
            {name: facts["file_bytes"] for name, facts in versions.items()},
        ),
    ]
    memory = {
        name: facts["memory_bytes"]["private"] for name, facts in versions.items()
    }
    if None not in memory.values():
        panels.append(_bytes_panel("Private memory (less is better)", memory))
    scores = {
        name: facts["accuracy"]
        for name, facts in versions.items()
        if facts["accuracy"] is not None
    }
    if scores:
        less = next(iter(scores.values()))["more_is_better"]
        title = f"{next(iter(scores.values()))['metric']}, 95 % interval ({'more' if less else 'less'} is better)"
        texts = {
            name: score_text(score).partition(" ")[0] for name, score in scores.items()
        }
        panels.append(
            BarPanel(
                title,
                {name: score["value"] for name, score in scores.items()},
                texts,
                _intervals(scores),
            )
        )
    return panels


def _intervals(estimates: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the ends of the intervals, of those estimates that have one."""
    return {
        name: (each["low"], each["high"])
        for name, each in estimates.items()
        if each["low"] is not None
    }


def _bytes_panel(title: str, sizes: Mapping[str, int]) -> BarPanel:
    return BarPanel(
        title, sizes, {name: human_bytes(size) for name, size in sizes.items()}, {}
    )


def shapes_of(result: Mapping[str, Any]) -> tuple[list[Shape], int]:
    """Return everything to draw, and the height of the picture."""
    recommended, shapes, top = result["recommendation"]["version"], [], 10.0
    for panel in panels_of(result):
        shapes.append(Shape(10, top + 24, text=panel.title, size=TEXT + 1))
        top += TITLE
        largest = (
            max(
                [
                    *panel.values.values(),
                    *(high for _, high in panel.intervals.values()),
                ],
                default=0.0,
            )
            or 1.0
        )
        for name, value in panel.values.items():
            colour = CHOSEN if name == recommended else PLAIN
            middle = top + ROW / 2
            shapes.append(Shape(LEFT - 10, middle + 5, text=_short(name), anchor="end"))
            shapes.append(
                Shape(LEFT, top + 4, max(1.0, BAR * value / largest), ROW - 8, colour)
            )
            end = LEFT + BAR * value / largest
            if name in panel.intervals:
                low, high = (
                    LEFT + BAR * edge / largest for edge in panel.intervals[name]
                )
                shapes.append(Shape(low, middle - 1, max(1.0, high - low), 2, LINE))
                shapes += [Shape(edge, middle - 5, 2, 10, LINE) for edge in (low, high)]
                end = max(end, high)
            shapes.append(
                Shape(end + 10, middle + 5, text=panel.texts[name], colour=MUTED)
            )
            top += ROW
        top += GAP
    return shapes, math.ceil(top)


def _short(name: str) -> str:
    name = printable(name)
    return name if len(name) <= MAX_NAME else name[: MAX_NAME - 1] + "…"


def svg_of(result: Mapping[str, Any]) -> str:
    """Return the chart as an SVG element."""
    shapes, height = shapes_of(result)
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="The versions\' figures as bars">'
    return head + "".join(map(_svg, shapes)) + "</svg>"


def _svg(shape: Shape) -> str:
    if not shape.text:
        size = f'width="{shape.width:.1f}" height="{shape.height:.1f}"'
        return (
            f'<rect x="{shape.x:.1f}" y="{shape.y:.1f}" {size} fill="{shape.colour}"/>'
        )
    place = f'x="{shape.x:.1f}" y="{shape.y:.1f}" font-size="{shape.size}" text-anchor="{shape.anchor}"'
    return f'<text {place} fill="{shape.colour}">{html.escape(shape.text)}</text>'


def write_png(result: Mapping[str, Any], path: Path) -> None:
    """Draw the chart into a PNG file, with the recommendation below it.

    Raises:
        CommandError: Pillow is missing.
        OSError: the file cannot be written.
    """
    try:
        from PIL import Image, ImageDraw, ImageFont
    except ImportError:
        raise CommandError(
            "--png needs Pillow: pip install 'pocketserve[image]'; --html needs nothing"
        ) from None
    shapes, height = shapes_of(result)
    lines = _wrapped(result["recommendation"]["sentences"], 78)
    shapes += [
        Shape(10, height + 20 + 22 * line, text=text) for line, text in enumerate(lines)
    ]
    picture = Image.new("RGB", (WIDTH, height + 22 * len(lines) + 20), "white")
    canvas = ImageDraw.Draw(picture)
    for shape in shapes:
        if shape.text:
            font = ImageFont.load_default(shape.size)
            at = "rs" if shape.anchor == "end" else "ls"
            canvas.text(
                (shape.x, shape.y), printable(shape.text), shape.colour, font, anchor=at
            )
        else:
            right, bottom = shape.x + shape.width - 1, shape.y + shape.height - 1
            canvas.rectangle(
                (shape.x, shape.y, max(shape.x, right), max(shape.y, bottom)),
                shape.colour,
            )
    picture.save(path, "PNG")


def _wrapped(text: str, width: int) -> Sequence[str]:
    import textwrap

    return textwrap.wrap(printable(text), width)
