"""The picture of a simulation over time.

Apps differ in colour (the palette of Okabe and Ito, for colour-blind readers) and in
the shape of their dots. Everything is drawn at twice its size and reduced, which
smooths it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from pocketserve_simulate.scenarios.record import RIGHT, PastEvent, Record, Sample
from pocketserve_simulate.scenarios.verdict import (
    SILENCING,
    Recovery,
    headline,
    promises,
    recoveries,
)

if TYPE_CHECKING:
    from PIL.Image import Image

Colour = tuple[int, int, int]
Point = tuple[float, float]

# Pixels of the picture before it is halved.
WIDTH = 3000
LEFT = 340
RIGHT_EDGE = 2940
LEGEND = 660
MARGIN = 48
GAP = 104
ROW_HEIGHT = 52
LATENCY_HEIGHT = 660
MEMORY_HEIGHT = 300
LARGE = 52
NORMAL = 36
SMALL = 32

PAPER = (255, 255, 255)
INK = (25, 25, 25)
FAINT = (95, 95, 95)
GRID = (218, 218, 218)
SILENCE = (222, 222, 222)
BAND = (240, 240, 240)
PALETTE = (
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (0, 0, 0),
)
SHAPES = ((32, 0, 1.0), (4, 0, 1.25), (3, 0, 1.35), (4, 45, 1.3))
"""Disc, square, triangle and diamond as regular polygons.

Corners, degrees of rotation, and radius in proportion to the disc's.
"""

STEPS_S = (1, 2, 5, 10, 30, 60, 300, 600)
FASTEST_MS = 0.1
SLOWEST_MS = 100_000.0


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of the picture: its vertical edges, and the values at these edges."""

    top: float
    bottom: float
    low: float = 0.0
    high: float = 1.0
    logarithmic: bool = False

    def y(self, value: float) -> float:
        """Return the height of a value, limited to the panel."""
        low = self.low
        high = self.high
        if self.logarithmic:
            low = math.log10(low)
            high = math.log10(high)
            value = math.log10(value)
        share = _limited((value - low) / (high - low))
        return self.bottom - (self.bottom - self.top) * share


def _limited(share: float) -> float:
    """Return a share within 0 and 1."""
    return min(1.0, max(0.0, share))


class Panels(NamedTuple):
    """All panels of the picture."""

    events: Panel
    latency: Panel
    failures: Panel
    memory: Panel


def draw(record: Record) -> Image:
    """Return the picture of a simulation; ImportError without Pillow."""
    return _Timeline(record).draw()


class _Timeline:
    def __init__(self, record: Record) -> None:
        from PIL import ImageFont

        self._record = record
        self._names = list(record.streams)
        self._fonts = {}
        for size in (LARGE, NORMAL, SMALL):
            self._fonts[size] = ImageFont.load_default(size)
        last = int(record.seconds)
        self._ticks = range(0, last + 1, _tick_step(record.seconds))

    def draw(self) -> Image:
        """Return the whole picture."""
        from PIL import Image, ImageDraw

        record = self._record
        answers = [sample for sample in record.samples if sample.outcome == RIGHT]
        panels = self._panels(answers)
        height = 2 * round(panels.memory.bottom / 2 + 62)
        image = Image.new("RGB", (WIDTH, height), PAPER)
        self._pen = ImageDraw.Draw(image)
        self._draw_title()
        for panel in panels:
            self._draw_background(panel)
        self._draw_axis(panels.memory.bottom + 16)
        self._draw_events(panels.events)
        self._draw_latency(panels.latency, answers)
        self._draw_failures(panels.failures)
        self._draw_memory(panels.memory)
        half = (image.width // 2, image.height // 2)
        return image.resize(half, Image.Resampling.LANCZOS)

    def _panels(self, answers: Sequence[Sample]) -> Panels:
        """Return the panels from top to bottom."""
        rows = max(1, len(recoveries(self._record)))
        events = Panel(316, 316 + ROW_HEIGHT * rows)
        waits = [_wait_ms(sample) for sample in answers]
        latency = _latency_panel(waits, events.bottom + GAP)
        top = latency.bottom + GAP
        failures = Panel(top, top + ROW_HEIGHT * len(self._names))
        memory = _memory_panel(self._record, failures.bottom + GAP)
        return Panels(events, latency, failures, memory)

    def _draw_axis(self, top: float) -> None:
        """Draw the seconds below the last panel."""
        for second in self._ticks:
            self._text(
                self._x(second),
                top,
                str(second),
                SMALL,
                FAINT,
                anchor="ma",
            )
        self._text(LEFT - 24, top, "seconds", SMALL, FAINT, anchor="ra")

    def _draw_title(self) -> None:
        """Draw the headline, the description and the verdict."""
        width = WIDTH - 2 * MARGIN
        description = self._fit(self._record.description, width, NORMAL)
        self._text(MARGIN, 36, headline(self._record), LARGE)
        self._text(MARGIN, 110, description, NORMAL, FAINT)
        self._draw_verdict(width)

    def _draw_verdict(self, width: float) -> None:
        """Draw whether all promises were kept."""
        judged = promises(self._record)
        violations = [promise.text for promise in judged if not promise.holds]
        verdict = f"all {len(judged)} promises kept"
        colour = PALETTE[0]
        if violations:
            verdict = f"BROKEN: {'; '.join(violations)}"
            colour = PALETTE[1]
        text = self._fit(verdict, width, NORMAL)
        self._text(MARGIN, 168, text, NORMAL, colour)

    def _draw_background(self, panel: Panel) -> None:
        """Draw a band for each event, and a line for each tick.

        Darker bands, of events without any answers, are on top.
        """
        events = sorted(self._record.events, key=lambda event: event.kind in SILENCING)
        for event in events:
            left, right = self._span(event, 4)
            colour = BAND
            if event.kind in SILENCING:
                colour = SILENCE
            frame = (left, panel.top, right, panel.bottom)
            self._pen.rectangle(frame, colour)
        for second in self._ticks:
            x = self._x(second)
            self._line([(x, panel.top), (x, panel.bottom)], GRID, 2)

    def _span(self, event: PastEvent, width: float) -> tuple[float, float]:
        """Return the horizontal edges of an event, with a least width."""
        left = self._x(event.begun)
        right = self._x(event.ended)
        return left, max(right, left + width)

    def _draw_events(self, panel: Panel) -> None:
        """Draw a row for each event."""
        title = "events, and in how many seconds every app had right answers again"
        self._text(MARGIN, panel.top - 60, title)
        top = panel.top + 6
        for recovery in recoveries(self._record):
            self._draw_event(recovery, top)
            top += ROW_HEIGHT

    def _draw_event(self, recovery: Recovery, top: float) -> None:
        """Draw the bar of an event, the recovery from it, and a label."""
        event = recovery.event
        seconds = recovery.seconds or 0.0
        left, right = self._span(event, 10)
        end = max(right, self._x(recovery.since + seconds))
        recovery_frame = (right, top + 14, end, top + 26)
        self._pen.rectangle(recovery_frame, PALETTE[1])
        colour = FAINT
        if event.kind in SILENCING:
            colour = INK
        event_frame = (left, top, right, top + 40)
        self._pen.rectangle(event_frame, colour)
        self._draw_label(_label(recovery), left, end, top + 20)

    def _draw_label(self, text: str, left: float, end: float, y: float) -> None:
        """Draw a label after a bar, or before it if it does not fit."""
        length = self._fonts[SMALL].getlength(text)
        if end + 12 + length < WIDTH - 24:
            self._text(end + 12, y, text, SMALL, anchor="lm")
        else:
            self._text(left - 12, y, text, SMALL, anchor="rm")

    def _draw_latency(self, panel: Panel, answers: Sequence[Sample]) -> None:
        """Draw a dot for each answer, on a logarithmic scale."""
        self._text(MARGIN, panel.top - 64, "latency of right answers, ms")
        self._draw_legend(panel.top - 44)
        value = panel.low
        while value <= 1.01 * panel.high:
            self._scale(panel, value)
            value *= 10.0
        for sample in answers:
            wait = max(panel.low, _wait_ms(sample))
            position = (self._x(sample.ended), panel.y(wait))
            index = self._names.index(sample.stream)
            self._dot(position, index, 6.4)

    def _draw_legend(self, y: float) -> None:
        """Draw the dot and the name of each app."""
        left = float(LEGEND)
        for index, name in enumerate(self._names):
            client = self._record.streams[name]["client"]
            text = f"{name} ({client})"
            self._dot((left, y), index, 11)
            self._text(left + 24, y, text, SMALL, anchor="lm")
            left += 76 + self._fonts[SMALL].getlength(text)

    def _draw_failures(self, panel: Panel) -> None:
        """Draw a row for each app, with its failed and refused requests."""
        self._draw_failure_legend(panel.top - 36)
        rows = {}
        for index, name in enumerate(self._names):
            middle = panel.top + ROW_HEIGHT * (index + 0.5)
            rows[name] = middle
            self._line([(LEFT, middle), (RIGHT_EDGE, middle)], GRID, 2)
            label = self._fit(name, LEFT - 72, SMALL)
            self._text(LEFT - 24, middle, label, SMALL, anchor="rm")
        for sample in self._record.samples:
            if sample.outcome != RIGHT:
                self._draw_failure(sample, rows[sample.stream])

    def _draw_failure_legend(self, y: float) -> None:
        """Draw the marks of failed and refused requests, with their meaning."""
        allowed = "refused, which the scenario allows at any time"
        self._text(MARGIN, y, "without an answer", anchor="lm")
        self._cross((LEGEND, y), FAINT)
        self._text(LEGEND + 24, y, "failed", SMALL, anchor="lm")
        self._dash((LEGEND + 180, y), FAINT)
        self._text(LEGEND + 200, y, allowed, SMALL, anchor="lm")

    def _draw_failure(self, sample: Sample, middle: float) -> None:
        """Draw a cross, or a dash for an allowed refusal."""
        index = self._names.index(sample.stream)
        colour = PALETTE[index % len(PALETTE)]
        position = (self._x(sample.ended), middle)
        if self._record.is_allowed(sample):
            self._dash(position, colour)
        else:
            self._cross(position, colour)

    def _draw_memory(self, panel: Panel) -> None:
        """Draw the memory as a line, which ends where no process runs."""
        self._text(MARGIN, panel.top - 64, "resident memory of the server, MB")
        for share in (0.0, 0.5, 1.0):
            self._scale(panel, panel.high * share)
        points: list[Point] = []
        for second, resident in [*self._record.memory, (0.0, None)]:
            if resident is not None:
                megabytes = resident / 1e6
                points.append((self._x(second), panel.y(megabytes)))
            elif points:
                self._line(points, PALETTE[0], 4)
                points = []

    def _scale(self, panel: Panel, value: float) -> None:
        """Draw a line across a panel at a value, and the value."""
        height = panel.y(value)
        self._line([(LEFT, height), (RIGHT_EDGE, height)], GRID, 2)
        self._text(
            LEFT - 24,
            height,
            f"{value:,g}",
            SMALL,
            FAINT,
            anchor="rm",
        )

    def _x(self, second: float) -> float:
        """Return the horizontal position of a time."""
        share = _limited(second / self._record.seconds)
        return LEFT + (RIGHT_EDGE - LEFT) * share

    def _fit(self, text: str, width: float, size: int) -> str:
        """Return the text, cut if it is too wide."""
        length = self._fonts[size].getlength
        if length(text) <= width:
            return text
        while text and length(text + "...") > width:
            text = text[:-1]
        return text + "..."

    def _text(
        self,
        x: float,
        y: float,
        text: str,
        size: int = NORMAL,
        colour: Colour = INK,
        anchor: str = "la",
    ) -> None:
        self._pen.text((x, y), text, colour, self._fonts[size], anchor)

    def _line(self, points: Sequence[Point], colour: Colour, width: int) -> None:
        """Draw a line with round joints."""
        self._pen.line(points, colour, width, "curve")

    def _dot(self, position: Point, index: int, radius: float) -> None:
        """Draw an app's mark."""
        corners, rotation, factor = SHAPES[index % len(SHAPES)]
        colour = PALETTE[index % len(PALETTE)]
        x, y = position
        circle = (x, y, radius * factor)
        self._pen.regular_polygon(circle, corners, rotation, colour)

    def _cross(self, position: Point, colour: Colour) -> None:
        """Draw two crossing lines."""
        x, y = position
        left = x - 10
        right = x + 10
        top = y - 10
        bottom = y + 10
        self._line([(left, top), (right, bottom)], colour, 4)
        self._line([(left, bottom), (right, top)], colour, 4)

    def _dash(self, position: Point, colour: Colour) -> None:
        """Draw a short horizontal line."""
        x, y = position
        self._line([(x - 4, y), (x + 4, y)], colour, 4)


def _tick_step(seconds: float) -> int:
    """Return the smallest step that gives at most twenty ticks."""
    for step in STEPS_S:
        if seconds / step <= 20:
            return step
    return STEPS_S[-1]


def _label(recovery: Recovery) -> str:
    kind = recovery.event.kind.replace("_", " ")
    if recovery.seconds is None:
        return f"{kind}: never again"
    return f"{kind}: {recovery.seconds:.2f} s"


def _wait_ms(sample: Sample) -> float:
    return 1000 * (sample.ended - sample.sent)


def _latency_panel(waits: Sequence[float], top: float) -> Panel:
    """Return a panel from and to powers of ten that include all waits."""
    fastest = max(FASTEST_MS, min(waits, default=1.0))
    low = 10 ** math.floor(math.log10(min(SLOWEST_MS / 10, fastest)))
    slowest = max([10 * low, *waits])
    high = 10 ** math.ceil(math.log10(min(SLOWEST_MS, slowest)))
    return Panel(
        top=top,
        bottom=top + LATENCY_HEIGHT,
        low=low,
        high=high,
        logarithmic=True,
    )


def _memory_panel(record: Record, top: float) -> Panel:
    """Return a panel from 0 to more than the largest memory."""
    largest = 1
    if record.memory:
        largest = max(resident or 1 for _, resident in record.memory)
    return Panel(
        top=top,
        bottom=top + MEMORY_HEIGHT,
        low=0.0,
        high=_round_up(largest / 1e6),
    )


def _round_up(value: float) -> float:
    """Return the next number that reads well on an axis."""
    size = 10 ** math.floor(math.log10(value))
    for factor in (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8):
        if size * factor >= value:
            return float(size * factor)
    return float(size * 10)
