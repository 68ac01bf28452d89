"""The chart of a comparison: bars with intervals.

Drawn as SVG for the page and by Pillow for a picture.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.messages import plural
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import human_bytes, printable
from pocketserve_lab.compare.report import data_summary, number, score_text

WIDTH, ROW, TITLE, GAP = 600, 28, 40, 18
LEFT, BAR, TEXT = 175, 290, 16
"""In pixels: narrow enough for a phone to show it with legible text."""

INK, MUTED, LINE, CHOSEN, PLAIN = "#1d2129", "#667085", "#344054", "#0b7a4b", "#7c9cc9"
MAX_NAME = 18
MAX_LINE, NOTE, NOTE_ROW = 85, 14, 20


class Shape(NamedTuple):
    """A rectangle with a colour, or a text.

    x and y in pixels are the upper left corner, or the start of the text's baseline.
    """

    x: float
    y: float
    width: float = 0.0
    height: float = 0.0
    colour: str = INK
    text: str = ""
    anchor: str = "start"
    size: int = TEXT


class BarPanel(NamedTuple):
    """A figure of all versions; ``intervals`` may be empty."""

    title: str
    values: Mapping[str, float]
    texts: Mapping[str, str]
    intervals: Mapping[str, tuple[float, float]]


def panels_of(result: Mapping[str, Any]) -> list[BarPanel]:
    """Return the panels of time, size, memory and score."""
    versions = result["versions"]
    sizes, memory, scores = {}, {}, {}
    for name, facts in versions.items():
        sizes[name] = facts["file_bytes"]
        memory[name] = facts["memory_bytes"]["private"]
        if facts["accuracy"] is not None:
            scores[name] = facts["accuracy"]
    panels = [_time_panel(versions), _bytes_panel("File (less is better)", sizes)]
    if None not in memory.values():
        panels.append(_bytes_panel("Private memory (less is better)", memory))
    if scores:
        panels.append(_score_panel(scores))
    return panels


def _time_panel(versions: Mapping[str, Any]) -> BarPanel:
    runs = {name: facts["run_ms"]["p50"] for name, facts in versions.items()}
    times = _values(runs)
    texts = {name: number(value) for name, value in times.items()}
    title = "Run of the model, p50 ms with 95 % interval (less is better)"
    if len(_intervals(runs)) < len(runs):
        title = "Run of the model, p50 ms; too few turns for intervals (less is better)"
    return BarPanel(title, times, texts, _intervals(runs))


def _score_panel(scores: Mapping[str, Mapping[str, Any]]) -> BarPanel:
    texts = {}
    for name, score in scores.items():
        texts[name] = score_text(score).partition(" ")[0]
    first = next(iter(scores.values()))
    better = "more" if first["more_is_better"] else "less"
    title = f"{first['metric']}, 95 % interval ({better} is better)"
    return BarPanel(title, _values(scores), texts, _intervals(scores))


def _values(estimates: Mapping[str, Any]) -> dict[str, float]:
    return {name: estimate["value"] for name, estimate in estimates.items()}


def _intervals(estimates: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Return the intervals of those estimates that have one."""
    intervals = {}
    for name, estimate in estimates.items():
        if estimate["low"] is not None:
            intervals[name] = estimate["low"], estimate["high"]
    return intervals


def _bytes_panel(title: str, sizes: Mapping[str, int]) -> BarPanel:
    texts = {name: human_bytes(size) for name, size in sizes.items()}
    return BarPanel(title, sizes, texts, {})


def shapes_of(result: Mapping[str, Any]) -> tuple[list[Shape], int]:
    """Return all shapes to draw, and the height of the picture."""
    recommended = result["recommendation"]["version"]
    shapes = []
    top = 10.0
    for panel in panels_of(result):
        shapes += _panel_shapes(panel, top, recommended)
        top += TITLE + ROW * len(panel.values) + GAP
    for note in notes_of(result):
        for line in _wrapped(note, MAX_LINE):
            shapes.append(Shape(10, top + 16, text=line, colour=MUTED, size=NOTE))
            top += NOTE_ROW
    return shapes, math.ceil(top)


def notes_of(result: Mapping[str, Any]) -> list[str]:
    """Return how much was measured, and a warning of a loaded device."""
    recommendation = result["recommendation"]
    turns = plural(recommendation["turns"], "turn")
    notes = [f"{turns} of each version; {data_summary(result['data'])}"]
    if recommendation["load_warning"]:
        notes.append(recommendation["load_warning"])
    return notes


def _panel_shapes(panel: BarPanel, top: float, recommended: str | None) -> list[Shape]:
    """Return the title and the bars of a panel."""
    shapes = [Shape(10, top + 24, text=panel.title, size=TEXT + 1)]
    top += TITLE
    scale = BAR / _largest(panel)
    for name in panel.values:
        colour = CHOSEN if name == recommended else PLAIN
        shapes += _bar(panel, name, top, scale, colour)
        top += ROW
    return shapes


def _largest(panel: BarPanel) -> float:
    """Return the number at the right end of a panel's bars."""
    numbers = list(panel.values.values())
    numbers += [high for _, high in panel.intervals.values()]
    return max(numbers, default=0.0) or 1.0


def _bar(
    panel: BarPanel, name: str, top: float, scale: float, colour: str
) -> list[Shape]:
    """Return one version's name, bar, interval and number."""
    middle = top + ROW / 2
    length = panel.values[name] * scale
    shapes = [
        Shape(LEFT - 10, middle + 5, text=_short(name), anchor="end"),
        Shape(LEFT, top + 4, max(1.0, length), ROW - 8, colour),
    ]
    end = LEFT + length
    if name in panel.intervals:
        low, high = panel.intervals[name]
        left, right = LEFT + low * scale, LEFT + high * scale
        shapes += _whisker(left, right, middle)
        end = max(end, right)
    shapes.append(Shape(end + 10, middle + 5, text=panel.texts[name], colour=MUTED))
    return shapes


def _whisker(left: float, right: float, middle: float) -> list[Shape]:
    """Return the line of an interval, with its ends."""
    return [
        Shape(left, middle - 1, max(1.0, right - left), 2, LINE),
        Shape(left, middle - 5, 2, 10, LINE),
        Shape(right, middle - 5, 2, 10, LINE),
    ]


def _short(name: str) -> str:
    name = printable(name)
    if len(name) > MAX_NAME:
        return name[: MAX_NAME - 1] + "…"
    return name


def svg_of(result: Mapping[str, Any]) -> str:
    """Return the chart as an SVG element."""
    shapes, height = shapes_of(result)
    label = "The versions' figures as bars"
    head = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">'
    return head + "".join(map(_svg, shapes)) + "</svg>"


def _svg(shape: Shape) -> str:
    position = f'x="{shape.x:.1f}" y="{shape.y:.1f}"'
    fill = f'fill="{shape.colour}"'
    if not shape.text:
        size = f'width="{shape.width:.1f}" height="{shape.height:.1f}"'
        return f"<rect {position} {size} {fill}/>"
    style = f'font-size="{shape.size}" text-anchor="{shape.anchor}"'
    return f"<text {position} {style} {fill}>{html.escape(shape.text)}</text>"


def write_png(result: Mapping[str, Any], path: Path) -> None:
    """Draw the chart and the recommendation into a PNG file.

    Raises:
        CommandError: Pillow is missing.
        OSError: the file cannot be written.
    """
    try:
        from PIL import Image, ImageDraw
    except ImportError:
        raise CommandError(
            "--png needs Pillow: pip install 'pocketserve[image]'; --html needs nothing"
        ) from None
    shapes, height = shapes_of(result)
    lines = _wrapped(result["recommendation"]["sentences"], 78)
    for line, text in enumerate(lines):
        shapes.append(Shape(10, height + 20 + 22 * line, text=text))
    picture = Image.new("RGB", (WIDTH, height + 22 * len(lines) + 20), "white")
    canvas = ImageDraw.Draw(picture)
    for shape in shapes:
        _draw(canvas, shape)
    picture.save(path, "PNG")


def _draw(canvas: Any, shape: Shape) -> None:
    """Draw one shape on a canvas of Pillow."""
    from PIL import ImageFont

    if shape.text:
        font = ImageFont.load_default(shape.size)
        anchor = "rs" if shape.anchor == "end" else "ls"
        start = shape.x, shape.y
        text = printable(shape.text)
        canvas.text(start, text, shape.colour, font, anchor=anchor)
        return
    right = max(shape.x, shape.x + shape.width - 1)
    bottom = max(shape.y, shape.y + shape.height - 1)
    canvas.rectangle((shape.x, shape.y, right, bottom), shape.colour)


def _wrapped(text: str, width: int) -> Sequence[str]:
    import textwrap

    return textwrap.wrap(printable(text), width)
