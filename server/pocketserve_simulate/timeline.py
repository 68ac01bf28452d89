"""The picture of a simulation: events, latency, requests without an answer, and memory, over one axis of time.

Apps differ in colour (the palette of Okabe and Ito, which colour-blind readers can tell apart) and in the shape of
their dots. Everything is drawn at twice its size and reduced, which smooths it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pocketserve_simulate.scenarios.record import RIGHT, Record, Sample
from pocketserve_simulate.scenarios.verdict import SILENCING, Recovery, headline, promises, recoveries

if TYPE_CHECKING:
    from PIL.Image import Image

Colour = tuple[int, int, int]
Point = tuple[float, float]

SCALE: Final = 2
WIDTH: Final = 1500
LEFT, RIGHT_EDGE = 170, 1470
LEGEND: Final = 330
GAP: Final = 52
LANE_HEIGHT, ROW_HEIGHT, LATENCY_HEIGHT, MEMORY_HEIGHT = 30, 26, 330, 150
LARGE, NORMAL, SMALL = 26, 18, 16

PAPER, INK, FAINT, GRID = (255, 255, 255), (25, 25, 25), (95, 95, 95), (218, 218, 218)
SILENCE, BAND = (222, 222, 222), (240, 240, 240)
PALETTE: Final[tuple[Colour, ...]] = (
    (0, 114, 178),
    (213, 94, 0),
    (0, 158, 115),
    (204, 121, 167),
    (230, 159, 0),
    (86, 180, 233),
    (0, 0, 0),
)
SHAPES: Final = ((32, 0, 1.0), (4, 0, 1.25), (3, 0, 1.35), (4, 45, 1.3))
"""Disc, square, triangle and diamond as regular polygons: corners, degrees of rotation, radius beside the disc's."""

STEPS_S: Final = (1, 2, 5, 10, 30, 60, 300, 600)
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
        low, high, value = (
            map(math.log10, (self.low, self.high, value)) if self.logarithmic else (self.low, self.high, value)
        )
        return self.bottom - (self.bottom - self.top) * min(1.0, max(0.0, (value - low) / (high - low)))


@dataclass(frozen=True, slots=True)
class Place:
    """Positions of an event's bar, the recovery from it and its label, from left to right."""

    left: float
    right: float
    recovered: float
    text: float
    anchor: str
    begin: float
    end: float


def draw(record: Record) -> Image:
    """Return the picture of a simulation.

    Raises:
        ImportError: Pillow is not installed.
    """
    return _Timeline(record).draw()


class _Timeline:
    def __init__(self, record: Record) -> None:
        from PIL import ImageFont

        self._record = record
        self._names = list(record.streams)
        self._fonts = {size: ImageFont.load_default(size * SCALE) for size in (LARGE, NORMAL, SMALL)}
        step = next((step for step in STEPS_S if record.seconds / step <= 20), STEPS_S[-1])
        self._ticks = range(0, int(record.seconds) + 1, step)

    def draw(self) -> Image:
        from PIL import Image, ImageDraw

        all_recoveries = recoveries(self._record)
        places = [self._place(recovery) for recovery in all_recoveries]
        lanes = _lanes(places)
        events = Panel(158, 158 + LANE_HEIGHT * (max(lanes, default=0) + 1))
        answers = [sample for sample in self._record.samples if sample.outcome == RIGHT]
        latency = _latency_panel([_wait_ms(sample) for sample in answers], events.bottom + GAP)
        failures = Panel(latency.bottom + GAP, latency.bottom + GAP + ROW_HEIGHT * len(self._names))
        maximum = max((resident or 0 for _, resident in self._record.memory), default=0)
        top = failures.bottom + GAP
        memory = Panel(top, top + MEMORY_HEIGHT, 0.0, _round_up(max(maximum, 1) / 1e6))
        height = round(memory.bottom + 62)
        image = Image.new("RGB", (WIDTH * SCALE, height * SCALE), PAPER)
        self._pen = ImageDraw.Draw(image)
        self._draw_title()
        for panel in (events, latency, failures, memory):
            self._draw_background(panel)
        for second in self._ticks:
            self._text((self._x(second), memory.bottom + 8), str(second), SMALL, FAINT, "ma")
        self._text((LEFT - 12, memory.bottom + 8), "seconds", SMALL, FAINT, "ra")
        self._text((24, 128), "events, and in how many seconds every app had right answers again")
        for recovery, place, lane in zip(all_recoveries, places, lanes, strict=True):
            top = events.top + LANE_HEIGHT * lane + 5
            self._box(place.right, top + 7, place.recovered, top + 13, PALETTE[1])
            self._box(place.left, top, place.right, top + 20, INK if recovery.event.kind in SILENCING else FAINT)
            self._text((place.text, top + 10), _label(recovery), SMALL, INK, place.anchor)
        self._draw_latency(latency, answers)
        self._draw_failures(failures)
        self._draw_memory(memory)
        return image.resize((WIDTH, height), Image.Resampling.LANCZOS)

    # Parts

    def _draw_title(self) -> None:
        judged = promises(self._record)
        broken = [promise.text for promise in judged if not promise.kept]
        verdict = f"BROKEN: {'; '.join(broken)}" if broken else f"all {len(judged)} promises kept"
        self._text((24, 18), headline(self._record), LARGE)
        self._text((24, 55), self._fit(self._record.description, WIDTH - 48, NORMAL), NORMAL, FAINT)
        self._text((24, 84), self._fit(verdict, WIDTH - 48, NORMAL), NORMAL, PALETTE[1 if broken else 0])

    def _draw_background(self, panel: Panel) -> None:
        """Draw bands of events, the darker ones that silence everybody on top, and a line per tick."""
        for event in sorted(self._record.events, key=lambda event: event.kind in SILENCING):
            left, right = self._x(event.begun), max(self._x(event.ended), self._x(event.begun) + 2)
            self._box(left, panel.top, right, panel.bottom, SILENCE if event.kind in SILENCING else BAND)
        for second in self._ticks:
            self._line([(self._x(second), panel.top), (self._x(second), panel.bottom)], GRID)

    def _place(self, recovery: Recovery) -> Place:
        """Return the label behind the bar and the recovery, or before them where the picture ends."""
        left = self._x(recovery.event.begun)
        right = max(self._x(recovery.event.ended), left + 5)
        recovered = max(right, self._x(recovery.since + (recovery.seconds or 0.0)))
        width = self._width(_label(recovery), SMALL)
        if recovered + 6 + width < WIDTH - 12:
            return Place(left, right, recovered, recovered + 6, "lm", left, recovered + 6 + width)
        return Place(left, right, recovered, left - 6, "rm", left - 6 - width, recovered)

    def _draw_latency(self, panel: Panel, answers: Sequence[Sample]) -> None:
        self._text((24, panel.top - 32), "latency of right answers, ms")
        left = float(LEGEND)
        for index, name in enumerate(self._names):
            text = f"{name} ({self._record.streams[name]['client']})"
            self._dot((left, panel.top - 22), index, 5.5)
            self._text((left + 12, panel.top - 22), text, SMALL, INK, "lm")
            left += 12 + self._width(text, SMALL) + 26
        for power in range(round(math.log10(panel.low)), round(math.log10(panel.high)) + 1):
            self._scale(panel, 10.0**power)
        for sample in answers:
            at = self._x(sample.ended), panel.y(max(panel.low, _wait_ms(sample)))
            self._dot(at, self._names.index(sample.stream), 3.2)

    def _draw_failures(self, panel: Panel) -> None:
        top = panel.top - 18
        self._text((24, top), "without an answer", NORMAL, INK, "lm")
        self._cross((LEGEND, top), FAINT)
        self._text((LEGEND + 12, top), "failed", SMALL, INK, "lm")
        self._dash((LEGEND + 90, top), FAINT)
        self._text((LEGEND + 100, top), "refused, which the scenario allows at any time", SMALL, INK, "lm")
        rows = {name: panel.top + ROW_HEIGHT * (index + 0.5) for index, name in enumerate(self._names)}
        for name, middle in rows.items():
            self._line([(LEFT, middle), (RIGHT_EDGE, middle)], GRID)
            self._text((LEFT - 12, middle), self._fit(name, LEFT - 36, SMALL), SMALL, INK, "rm")
        for sample in self._record.samples:
            if sample.outcome != RIGHT:
                mark = self._dash if self._record.is_allowed(sample) else self._cross
                colour = PALETTE[self._names.index(sample.stream) % len(PALETTE)]
                mark((self._x(sample.ended), rows[sample.stream]), colour)

    def _draw_memory(self, panel: Panel) -> None:
        self._text((24, panel.top - 32), "resident memory of the server, MB")
        for share in (0.0, 0.5, 1.0):
            self._scale(panel, panel.high * share)
        points: list[Point] = []
        for second, resident in [*self._record.memory, (0.0, None)]:
            if resident is None:
                self._line(points, PALETTE[0], 2.2)
                points = []
            else:
                points.append((self._x(second), panel.y(resident / 1e6)))

    def _scale(self, panel: Panel, value: float) -> None:
        height = panel.y(value)
        self._line([(LEFT, height), (RIGHT_EDGE, height)], GRID)
        self._text((LEFT - 12, height), f"{value:,g}", SMALL, FAINT, "rm")

    # Pens: measures are those of the finished picture

    def _x(self, second: float) -> float:
        return LEFT + (RIGHT_EDGE - LEFT) * min(1.0, max(0.0, second / self._record.seconds))

    def _width(self, text: str, size: int) -> float:
        return self._fonts[size].getlength(text) / SCALE

    def _fit(self, text: str, width: float, size: int) -> str:
        """Return the text, cut where it is too wide."""
        if self._width(text, size) <= width:
            return text
        while text and self._width(text + "...", size) > width:
            text = text[:-1]
        return text + "..."

    def _text(self, at: Point, text: str, size: int = NORMAL, colour: Colour = INK, anchor: str = "la") -> None:
        self._pen.text(_scaled(at), text, colour, self._fonts[size], anchor)

    def _line(self, points: Sequence[Point], colour: Colour, width: float = 1.0) -> None:
        if len(points) > 1:
            self._pen.line([_scaled(point) for point in points], colour, round(width * SCALE), "curve")

    def _box(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        self._pen.rectangle((*_scaled((left, top)), *_scaled((right, bottom))), colour)

    def _dot(self, at: Point, index: int, radius: float) -> None:
        corners, rotation, factor = SHAPES[index % len(SHAPES)]
        colour = PALETTE[index % len(PALETTE)]
        self._pen.regular_polygon((*_scaled(at), radius * factor * SCALE), corners, rotation, colour)

    def _cross(self, at: Point, colour: Colour) -> None:
        (x, y), arm = at, 5.0
        self._line([(x - arm, y - arm), (x + arm, y + arm)], colour, 2)
        self._line([(x - arm, y + arm), (x + arm, y - arm)], colour, 2)

    def _dash(self, at: Point, colour: Colour) -> None:
        self._line([(at[0] - 2, at[1]), (at[0] + 2, at[1])], colour, 2)


def _label(recovery: Recovery) -> str:
    kind = recovery.event.kind.replace("_", " ")
    return f"{kind}: never again" if recovery.seconds is None else f"{kind}: {recovery.seconds:.2f} s"


def _wait_ms(sample: Sample) -> float:
    return 1000 * (sample.ended - sample.sent)


def _lanes(places: Sequence[Place]) -> list[int]:
    """Return for each event the first lane in which neither its bar nor its label meets another."""
    lanes: list[list[Place]] = [[] for _ in places]
    numbers = []
    for p in places:
        number, lane = next(
            (number, lane)
            for number, lane in enumerate(lanes)
            if all(other.end + 10 < p.begin or p.end + 10 < other.begin for other in lane)
        )
        lane.append(p)
        numbers.append(number)
    return numbers


def _latency_panel(waits: Sequence[float], top: float) -> Panel:
    low = 10 ** math.floor(math.log10(min(SLOWEST_MS / 10, max(FASTEST_MS, min(waits, default=1.0)))))
    high = 10 ** math.ceil(math.log10(min(SLOWEST_MS, max([10 * low, *waits]))))
    return Panel(top, top + LATENCY_HEIGHT, low, high, logarithmic=True)


def _round_up(value: float) -> float:
    """Return the next number that reads well on an axis."""
    size = 10 ** math.floor(math.log10(value))
    return float(next(size * factor for factor in (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10) if size * factor >= value))


def _scaled(at: Point) -> Point:
    return at[0] * SCALE, at[1] * SCALE
