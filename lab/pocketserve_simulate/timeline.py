"""The picture of a simulation: events, latency, requests without an answer, and memory, over one axis of time.

Apps differ in colour (the palette of Okabe and Ito, which colour-blind readers can tell apart) and in the shape of
their dots. Everything is drawn at twice its size and reduced, which smooths it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pocketserve_simulate.scenarios.record import RIGHT, Record, Sample
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
WIDTH, LEFT, RIGHT_EDGE, LEGEND, MARGIN, GAP = 3000, 340, 2940, 660, 48, 104
ROW_HEIGHT, LATENCY_HEIGHT, MEMORY_HEIGHT = 52, 660, 300
LARGE, NORMAL, SMALL = 52, 36, 32

PAPER, INK, FAINT, GRID = (255, 255, 255), (25, 25, 25), (95, 95, 95), (218, 218, 218)
SILENCE, BAND = (222, 222, 222), (240, 240, 240)
PALETTE = (
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (0, 0, 0),
)
# Disc, square, triangle and diamond as regular polygons: corners, degrees of rotation, radius beside the disc's.
SHAPES = ((32, 0, 1.0), (4, 0, 1.25), (3, 0, 1.35), (4, 45, 1.3))
STEPS_S = (1, 2, 5, 10, 30, 60, 300, 600)
FASTEST_MS, SLOWEST_MS = 0.1, 100_000.0


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of the picture: its upper and lower edge, and the values at its lower and upper edge."""

    top: float
    bottom: float
    low: float = 0.0
    high: float = 1.0
    logarithmic: bool = False

    def y(self, value: float) -> float:
        """Return the height of a value, held within the panel."""
        low, high, value = map(
            math.log10 if self.logarithmic else float, (self.low, self.high, value)
        )
        return self.bottom - (self.bottom - self.top) * min(
            1.0, max(0.0, (value - low) / (high - low))
        )


def draw(record: Record) -> Image:
    """Return the picture of a simulation; ImportError where Pillow is not installed."""
    return _Timeline(record).draw()


class _Timeline:
    def __init__(self, record: Record) -> None:
        from PIL import ImageFont

        self._record = record
        self._names = list(record.streams)
        self._fonts = {
            size: ImageFont.load_default(size) for size in (LARGE, NORMAL, SMALL)
        }
        step = next(
            (step for step in STEPS_S if record.seconds / step <= 20), STEPS_S[-1]
        )
        self._ticks = range(0, int(record.seconds) + 1, step)

    def draw(self) -> Image:
        from PIL import Image, ImageDraw

        record = self._record
        all_recoveries = recoveries(record)
        answers = [sample for sample in record.samples if sample.outcome == RIGHT]
        events = Panel(316, 316 + ROW_HEIGHT * max(1, len(all_recoveries)))
        latency = _latency_panel(
            [_wait_ms(sample) for sample in answers], events.bottom + GAP
        )
        failures = Panel(
            latency.bottom + GAP, latency.bottom + GAP + ROW_HEIGHT * len(self._names)
        )
        maximum = max((resident or 1 for _, resident in record.memory), default=1)
        top = failures.bottom + GAP
        memory = Panel(top, top + MEMORY_HEIGHT, 0.0, _round_up(maximum / 1e6))
        image = Image.new("RGB", (WIDTH, 2 * round(memory.bottom / 2 + 62)), PAPER)
        self._pen = ImageDraw.Draw(image)
        self._draw_title()
        for panel in (events, latency, failures, memory):
            self._draw_background(panel)
        for second in self._ticks:
            self._text(
                self._x(second), memory.bottom + 16, str(second), SMALL, FAINT, "ma"
            )
        self._text(LEFT - 24, memory.bottom + 16, "seconds", SMALL, FAINT, "ra")
        self._text(
            MARGIN,
            256,
            "events, and in how many seconds every app had right answers again",
        )
        for index, recovery in enumerate(all_recoveries):
            self._draw_event(recovery, events.top + ROW_HEIGHT * index + 6)
        self._draw_latency(latency, answers)
        self._draw_failures(failures)
        self._draw_memory(memory)
        return image.resize(
            (image.width // 2, image.height // 2), Image.Resampling.LANCZOS
        )

    def _draw_title(self) -> None:
        judged = promises(self._record)
        violations = "; ".join(promise.text for promise in judged if not promise.holds)
        verdict = (
            f"BROKEN: {violations}"
            if violations
            else f"all {len(judged)} promises kept"
        )
        self._text(MARGIN, 36, headline(self._record), LARGE)
        self._text(
            MARGIN,
            110,
            self._fit(self._record.description, WIDTH - 2 * MARGIN, NORMAL),
            NORMAL,
            FAINT,
        )
        self._text(
            MARGIN,
            168,
            self._fit(verdict, WIDTH - 2 * MARGIN, NORMAL),
            NORMAL,
            PALETTE[1 if violations else 0],
        )

    def _draw_background(self, panel: Panel) -> None:
        """Draw bands of events, the darker ones that silence everybody on top, and a line per tick."""
        for event in sorted(
            self._record.events, key=lambda event: event.kind in SILENCING
        ):
            left, right = (
                self._x(event.begun),
                max(self._x(event.ended), self._x(event.begun) + 4),
            )
            colour = SILENCE if event.kind in SILENCING else BAND
            self._pen.rectangle((left, panel.top, right, panel.bottom), colour)
        for second in self._ticks:
            self._line(
                [(self._x(second), panel.top), (self._x(second), panel.bottom)], GRID, 2
            )

    def _draw_event(self, recovery: Recovery, top: float) -> None:
        """Draw the bar of an event, and the recovery from it; the label is before them where the picture ends."""
        event = recovery.event
        took = (
            "never again" if recovery.seconds is None else f"{recovery.seconds:.2f} s"
        )
        label = f"{event.kind.replace('_', ' ')}: {took}"
        left, right = (
            self._x(event.begun),
            max(self._x(event.ended), self._x(event.begun) + 10),
        )
        end = max(right, self._x(recovery.since + (recovery.seconds or 0.0)))
        self._pen.rectangle((right, top + 14, end, top + 26), PALETTE[1])
        self._pen.rectangle(
            (left, top, right, top + 40), INK if event.kind in SILENCING else FAINT
        )
        fits = end + 12 + self._fonts[SMALL].getlength(label) < WIDTH - 24
        self._text(
            end + 12 if fits else left - 12,
            top + 20,
            label,
            SMALL,
            INK,
            "lm" if fits else "rm",
        )

    def _draw_latency(self, panel: Panel, answers: Sequence[Sample]) -> None:
        self._text(MARGIN, panel.top - 64, "latency of right answers, ms")
        left = float(LEGEND)
        for index, name in enumerate(self._names):
            text = f"{name} ({self._record.streams[name]['client']})"
            self._dot((left, panel.top - 44), index, 11)
            self._text(left + 24, panel.top - 44, text, SMALL, INK, "lm")
            left += 76 + self._fonts[SMALL].getlength(text)
        for power in range(
            round(math.log10(panel.low)), round(math.log10(panel.high)) + 1
        ):
            self._scale(panel, 10.0**power)
        for sample in answers:
            at = self._x(sample.ended), panel.y(max(panel.low, _wait_ms(sample)))
            self._dot(at, self._names.index(sample.stream), 6.4)

    def _draw_failures(self, panel: Panel) -> None:
        top = panel.top - 36
        self._text(MARGIN, top, "without an answer", NORMAL, INK, "lm")
        self._cross((LEGEND, top), FAINT)
        self._text(LEGEND + 24, top, "failed", SMALL, INK, "lm")
        self._dash((LEGEND + 180, top), FAINT)
        self._text(
            LEGEND + 200,
            top,
            "refused, which the scenario allows at any time",
            SMALL,
            INK,
            "lm",
        )
        rows = {
            name: panel.top + ROW_HEIGHT * (index + 0.5)
            for index, name in enumerate(self._names)
        }
        for name, middle in rows.items():
            self._line([(LEFT, middle), (RIGHT_EDGE, middle)], GRID, 2)
            self._text(
                LEFT - 24, middle, self._fit(name, LEFT - 72, SMALL), SMALL, INK, "rm"
            )
        for sample in self._record.samples:
            if sample.outcome != RIGHT:
                mark = self._dash if self._record.is_allowed(sample) else self._cross
                colour = PALETTE[self._names.index(sample.stream) % len(PALETTE)]
                mark((self._x(sample.ended), rows[sample.stream]), colour)

    def _draw_memory(self, panel: Panel) -> None:
        self._text(MARGIN, panel.top - 64, "resident memory of the server, MB")
        for share in (0.0, 0.5, 1.0):
            self._scale(panel, panel.high * share)
        points: list[Point] = []
        for second, resident in [*self._record.memory, (0.0, None)]:
            if resident is not None:
                points.append((self._x(second), panel.y(resident / 1e6)))
            elif points:
                self._line(points, PALETTE[0], 4)
                points = []

    def _scale(self, panel: Panel, value: float) -> None:
        height = panel.y(value)
        self._line([(LEFT, height), (RIGHT_EDGE, height)], GRID, 2)
        self._text(LEFT - 24, height, f"{value:,g}", SMALL, FAINT, "rm")

    def _x(self, second: float) -> float:
        return LEFT + (RIGHT_EDGE - LEFT) * min(
            1.0, max(0.0, second / self._record.seconds)
        )

    def _fit(self, text: str, width: float, size: int) -> str:
        """Return the text, cut where it is too wide."""
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
        self._pen.line(points, colour, width, "curve")

    def _dot(self, at: Point, index: int, radius: float) -> None:
        corners, rotation, factor = SHAPES[index % len(SHAPES)]
        self._pen.regular_polygon(
            (*at, radius * factor), corners, rotation, PALETTE[index % len(PALETTE)]
        )

    def _cross(self, at: Point, colour: Colour) -> None:
        (x, y), arm = at, 10.0
        self._line([(x - arm, y - arm), (x + arm, y + arm)], colour, 4)
        self._line([(x - arm, y + arm), (x + arm, y - arm)], colour, 4)

    def _dash(self, at: Point, colour: Colour) -> None:
        self._line([(at[0] - 4, at[1]), (at[0] + 4, at[1])], colour, 4)


def _wait_ms(sample: Sample) -> float:
    return 1000 * (sample.ended - sample.sent)


def _latency_panel(waits: Sequence[float], top: float) -> Panel:
    low = 10 ** math.floor(
        math.log10(min(SLOWEST_MS / 10, max(FASTEST_MS, min(waits, default=1.0))))
    )
    high = 10 ** math.ceil(math.log10(min(SLOWEST_MS, max([10 * low, *waits]))))
    return Panel(top, top + LATENCY_HEIGHT, low, high, logarithmic=True)


def _round_up(value: float) -> float:
    """Return the next number that reads well on an axis."""
    size = 10 ** math.floor(math.log10(value))
    return float(
        next(
            size * factor
            for factor in (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10)
            if size * factor >= value
        )
    )
