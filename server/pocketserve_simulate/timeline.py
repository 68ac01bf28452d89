"""The picture of a simulation: events, latency, requests without an answer, and memory, over one axis of time.

Apps differ in colour (the palette of Okabe and Ito, which colour-blind readers can tell apart) and in the shape of
their dots. Everything is drawn at twice its size and reduced, which smooths it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pocketserve_simulate.scenarios.record import Record
from pocketserve_simulate.scenarios.traffic import RIGHT, Sample
from pocketserve_simulate.scenarios.verdict import SILENCING, Recovery, headline, promises, recoveries

if TYPE_CHECKING:
    from PIL.Image import Image

Colour = tuple[int, int, int]

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
SHAPES: Final = ("disc", "square", "triangle", "diamond")
STEPS_S: Final = (1, 2, 5, 10, 30, 60, 300, 600)
FASTEST_MS, SLOWEST_MS = 0.1, 100_000.0


@dataclass(frozen=True, slots=True)
class Panel:
    """A part of the picture: its upper and lower edge, and how a value becomes a height in it."""

    top: float
    bottom: float
    low: float = 0.0
    high: float = 1.0
    logarithmic: bool = False

    def y(self, value: float) -> float:
        """The height of a value, held within the panel."""
        scaled = math.log10 if self.logarithmic else float
        share = (scaled(value) - scaled(self.low)) / (scaled(self.high) - scaled(self.low))
        return self.bottom - (self.bottom - self.top) * min(1.0, max(0.0, share))


@dataclass(frozen=True, slots=True)
class Place:
    """Where an event's bar, the recovery from it and its label lie, from left to right."""

    left: float
    right: float
    recovered: float
    text: float
    anchor: str
    begin: float
    end: float


def draw(record: Record) -> Image:
    """The picture of a simulation.

    Raises:
        ImportError: Pillow is not installed.
    """
    return _Timeline(record).picture


class _Timeline:
    def __init__(self, record: Record) -> None:
        from PIL import Image, ImageDraw, ImageFont

        self._record = record
        self._names = list(record.streams)
        self._recoveries = recoveries(record)
        self._fonts = {size: ImageFont.load_default(size * SCALE) for size in (LARGE, NORMAL, SMALL)}
        places = [self._place(recovery) for recovery in self._recoveries]
        lanes = _lanes(places)
        lane_count = max(lanes, default=-1) + 1
        failing = [sample for sample in record.samples if sample.outcome != RIGHT]
        events = Panel(158, 158 + LANE_HEIGHT * max(1, lane_count))
        latency = _latency_panel(record, events.bottom + GAP)
        failures = Panel(latency.bottom + GAP, latency.bottom + GAP + ROW_HEIGHT * len(self._names))
        maximum = max((memory.bytes or 0 for memory in record.memory), default=0)
        top = failures.bottom + GAP
        memory = Panel(top, top + MEMORY_HEIGHT, 0.0, _round_up(max(maximum, 1) / 1e6))
        height = round(memory.bottom + 62)
        self._image = Image.new("RGB", (WIDTH * SCALE, height * SCALE), PAPER)
        self._pen = ImageDraw.Draw(self._image)
        self._draw_title()
        for panel in (events, latency, failures, memory):
            self._draw_bands(panel)
            self._draw_seconds(panel)
        self._draw_axis(memory.bottom)
        self._draw_events(events, places, lanes)
        self._draw_latency(latency)
        self._draw_failures(failures, failing)
        self._draw_memory(memory)
        self.picture = self._image.resize((WIDTH, height), Image.Resampling.LANCZOS)

    # Parts

    def _draw_title(self) -> None:
        judged = promises(self._record)
        broken = [promise.text for promise in judged if not promise.kept]
        verdict = f"all {len(judged)} promises kept" if not broken else f"BROKEN: {'; '.join(broken)}"
        self._text((24, 18), headline(self._record), LARGE)
        self._text((24, 55), self._fit(self._record.description, WIDTH - 48, NORMAL), NORMAL, FAINT)
        colour = PALETTE[1] if broken else PALETTE[0]
        self._text((24, 84), self._fit(verdict, WIDTH - 48, NORMAL), NORMAL, colour)

    def _draw_bands(self, panel: Panel) -> None:
        """What goes on behind a panel; what silences everybody is darker, and on top."""
        for silencing in (False, True):
            for event in self._record.events:
                if (event.kind in SILENCING) is silencing:
                    left, right = self._x(event.begun), max(self._x(event.ended), self._x(event.begun) + 2)
                    self._box(left, panel.top, right, panel.bottom, SILENCE if silencing else BAND)

    def _draw_seconds(self, panel: Panel) -> None:
        for second in self._ticks:
            self._line([(self._x(second), panel.top), (self._x(second), panel.bottom)], GRID)

    def _draw_axis(self, bottom: float) -> None:
        for second in self._ticks:
            self._text((self._x(second), bottom + 8), str(second), SMALL, FAINT, "ma")
        self._text((LEFT - 12, bottom + 8), "seconds", SMALL, FAINT, "ra")

    @property
    def _ticks(self) -> range:
        step = next((step for step in STEPS_S if self._record.seconds / step <= 20), STEPS_S[-1])
        return range(0, int(self._record.seconds) + 1, step)

    def _draw_events(self, panel: Panel, places: Sequence[Place], lanes: Sequence[int]) -> None:
        self._text((24, panel.top - 30), "events, and in how many seconds every app had right answers again", NORMAL)
        for recovery, place, lane in zip(self._recoveries, places, lanes, strict=True):
            top = panel.top + LANE_HEIGHT * lane + 5
            self._box(place.right, top + 7, place.recovered, top + 13, PALETTE[1])
            self._box(place.left, top, place.right, top + 20, INK if recovery.event.kind in SILENCING else FAINT)
            self._text((place.text, top + 10), _label(recovery), SMALL, INK, place.anchor)

    def _place(self, recovery: Recovery) -> Place:
        """The label stands behind the bar and the recovery, or before them where the picture ends."""
        left = self._x(recovery.event.begun)
        right = max(self._x(recovery.event.ended), left + 5)
        recovered = max(right, self._x(recovery.since + (recovery.seconds or 0.0)))
        width = self._width(_label(recovery), SMALL)
        if recovered + 6 + width < WIDTH - 12:
            return Place(left, right, recovered, recovered + 6, "lm", left, recovered + 6 + width)
        return Place(left, right, recovered, left - 6, "rm", left - 6 - width, recovered)

    def _draw_latency(self, panel: Panel) -> None:
        self._text((24, panel.top - 32), "latency of right answers, ms", NORMAL)
        self._draw_legend(panel.top - 32)
        value = panel.low
        while value <= panel.high * 1.001:
            self._scale(panel, value, f"{value:,g}")
            value *= 10
        for sample in self._record.samples:
            if sample.outcome == RIGHT:
                at = self._x(sample.ended), panel.y(max(panel.low, 1000 * (sample.ended - sample.sent)))
                self._dot(at, self._names.index(sample.stream), 3.2)

    def _draw_legend(self, top: float) -> None:
        left = float(LEGEND)
        for index, name in enumerate(self._names):
            text = f"{name} ({self._record.streams[name]['client']})"
            self._dot((left, top + 10), index, 5.5)
            self._text((left + 12, top + 10), text, SMALL, INK, "lm")
            left += 12 + self._width(text, SMALL) + 26

    def _draw_failures(self, panel: Panel, failing: Sequence[Sample]) -> None:
        top = panel.top - 18
        self._text((24, top), "without an answer", NORMAL, INK, "lm")
        self._cross((LEGEND, top), FAINT)
        self._text((LEGEND + 12, top), "failed", SMALL, INK, "lm")
        self._dash((LEGEND + 90, top), FAINT)
        self._text((LEGEND + 100, top), "refused, which the scenario allows at any time", SMALL, INK, "lm")
        for index, name in enumerate(self._names):
            middle = panel.top + ROW_HEIGHT * (index + 0.5)
            self._line([(LEFT, middle), (RIGHT_EDGE, middle)], GRID)
            self._text((LEFT - 12, middle), self._fit(name, LEFT - 36, SMALL), SMALL, INK, "rm")
        for sample in failing:
            index = self._names.index(sample.stream)
            at = self._x(sample.ended), panel.top + ROW_HEIGHT * (index + 0.5)
            allowed = sample.code in self._record.streams[sample.stream]["allow"]
            (self._dash if allowed else self._cross)(at, PALETTE[index % len(PALETTE)])

    def _draw_memory(self, panel: Panel) -> None:
        self._text((24, panel.top - 32), "resident memory of the server, MB", NORMAL)
        for share in (0.0, 0.5, 1.0):
            self._scale(panel, panel.high * share, f"{panel.high * share:g}")
        points: list[tuple[float, float]] = []
        for memory in [*self._record.memory, None]:
            if memory is None or memory.bytes is None:
                self._line(points, PALETTE[0], 2.2)
                points = []
            else:
                points.append((self._x(memory.at), panel.y(memory.bytes / 1e6)))

    def _scale(self, panel: Panel, value: float, text: str) -> None:
        height = panel.y(value)
        self._line([(LEFT, height), (RIGHT_EDGE, height)], GRID)
        self._text((LEFT - 12, height), text, SMALL, FAINT, "rm")

    # Pens: measures are those of the finished picture

    def _x(self, second: float) -> float:
        return LEFT + (RIGHT_EDGE - LEFT) * min(1.0, max(0.0, second / self._record.seconds))

    def _width(self, text: str, size: int) -> float:
        return self._fonts[size].getlength(text) / SCALE

    def _fit(self, text: str, width: float, size: int) -> str:
        """The text, cut where it is too wide."""
        if self._width(text, size) <= width:
            return text
        while text and self._width(text + "...", size) > width:
            text = text[:-1]
        return text + "..."

    def _text(self, at: tuple[float, float], text: str, size: int, colour: Colour = INK, anchor: str = "la") -> None:
        self._pen.text(_scaled(at), text, colour, self._fonts[size], anchor)

    def _line(self, points: Sequence[tuple[float, float]], colour: Colour, width: float = 1.0) -> None:
        if len(points) > 1:
            self._pen.line([_scaled(point) for point in points], colour, round(width * SCALE), "curve")

    def _box(self, left: float, top: float, right: float, bottom: float, colour: Colour) -> None:
        self._pen.rectangle((*_scaled((left, top)), *_scaled((right, bottom))), colour)

    def _dot(self, at: tuple[float, float], index: int, radius: float) -> None:
        corners = _corners(SHAPES[index % len(SHAPES)], at, radius)
        colour = PALETTE[index % len(PALETTE)]
        if corners:
            self._pen.polygon([_scaled(corner) for corner in corners], colour)
        else:
            x, y = _scaled(at)
            self._pen.ellipse((x - radius * SCALE, y - radius * SCALE, x + radius * SCALE, y + radius * SCALE), colour)

    def _cross(self, at: tuple[float, float], colour: Colour) -> None:
        (x, y), arm = at, 5.0
        self._line([(x - arm, y - arm), (x + arm, y + arm)], colour, 2)
        self._line([(x - arm, y + arm), (x + arm, y - arm)], colour, 2)

    def _dash(self, at: tuple[float, float], colour: Colour) -> None:
        self._line([(at[0] - 2, at[1]), (at[0] + 2, at[1])], colour, 2)


def _label(recovery: Recovery) -> str:
    kind = recovery.event.kind.replace("_", " ")
    return f"{kind}: never again" if recovery.seconds is None else f"{kind}: {recovery.seconds:.2f} s"


def _lanes(places: Sequence[Place]) -> list[int]:
    """For each event the first lane in which neither its bar nor its label meets another."""
    taken: list[list[Place]] = []
    lanes = []
    for place in places:
        free = (
            n for n, lane in enumerate(taken) if all(p.end + 10 < place.begin or place.end + 10 < p.begin for p in lane)
        )
        lane = next(free, len(taken))
        taken[lane : lane + 1] = [[*(taken[lane] if lane < len(taken) else []), place]]
        lanes.append(lane)
    return lanes


def _latency_panel(record: Record, top: float) -> Panel:
    waits = [1000 * (s.ended - s.sent) for s in record.samples if s.outcome == RIGHT] or [1.0]
    low = 10 ** math.floor(math.log10(min(SLOWEST_MS / 10, max(FASTEST_MS, min(waits)))))
    high = 10 ** math.ceil(math.log10(min(SLOWEST_MS, max(*waits, 10 * low))))
    return Panel(top, top + LATENCY_HEIGHT, low, high, logarithmic=True)


def _round_up(value: float) -> float:
    """The next number that reads well on an axis."""
    size = 10 ** math.floor(math.log10(value))
    return float(next(size * factor for factor in (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10) if size * factor >= value))


def _corners(shape: str, at: tuple[float, float], radius: float) -> list[tuple[float, float]]:
    """The corners of a shape about as large as a disc of that radius; none for a disc."""
    x, y = at
    if shape == "square":
        side = radius * 0.88
        return [(x - side, y - side), (x + side, y - side), (x + side, y + side), (x - side, y + side)]
    if shape == "triangle":
        return [(x, y - 1.3 * radius), (x + 1.2 * radius, y + radius), (x - 1.2 * radius, y + radius)]
    if shape == "diamond":
        return [(x, y - 1.3 * radius), (x + 1.3 * radius, y), (x, y + 1.3 * radius), (x - 1.3 * radius, y)]
    return []


def _scaled(at: tuple[float, float]) -> tuple[float, float]:
    return at[0] * SCALE, at[1] * SCALE
