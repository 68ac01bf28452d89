"""Plots of a run: ``python -m benchmarks.plot build/benchmarks.json docs/images``.

It needs matplotlib, which only the environment of the benchmarks has.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from pathlib import Path
from typing import Any

COLOURS = 64
"""A palette reduces plots to a quarter; the source distribution contains them."""

AXES = {
    "payload": (
        "the request's tensor",
        "latency-by-payload.png",
        "4,004 B out, one connection",
    ),
    "connections": (
        "connections that ask without a pause",
        "latency-by-connections.png",
        "150,528 B in, 4,004 B out",
    ),
}
STYLES = {
    "pocketserve, socket": ("#0b6e4f", "o"),
    "pocketserve, HTTP": ("#3aa17e", "s"),
    "MLServer, JSON": ("#c44536", "^"),
    "MLServer, gRPC, raw body": ("#e88873", "v"),
    "LitServe, JSON": ("#7a5195", "D"),
    "LitServe, raw body": ("#b78ed6", "d"),
    "TorchServe, raw body": ("#f2a541", "P"),
    "tutorial, JSON lists": ("#555555", "X"),
}
OTHER = ("#222222", "")
"""Floors: dashed."""

CLOSE = 2.5
"""Payloads closer than this factor have staggered labels."""


def main(source: Path, folder: Path) -> int:
    """Draw the run's curves; return the exit code."""
    content = json.loads(source.read_text(encoding="utf-8"))
    curves = [item for item in content["results"] if item["kind"] == "curve"]
    if not curves:
        print(f"{source} holds no curves; run: make bench ONLY=P1", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for axis, (label, file, title) in AXES.items():
        chosen = [curve for curve in curves if curve["axis"] == axis]
        if chosen:
            draw(
                chosen,
                label,
                f"{title}; {content['machine']['processor']}",
                folder / file,
            )
            print(folder / file)
    return 0


def draw(curves: list[dict[str, Any]], label: str, title: str, path: Path) -> None:
    """Draw medians with quartile bands on logarithmic axes."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from PIL import Image

    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    # The legend has the order of the curves' right ends.
    ordered = sorted(curves, key=lambda curve: -statistics.median(curve["samples"][-1]))
    for number, curve in enumerate(ordered):
        _draw_curve(axes, curve, number)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel=label,
        ylabel="milliseconds (median, middle half)",
    )
    points = sorted({point for curve in curves for point in curve["points"]})
    labels = [f"{point:g}" for point in points]
    if curves[0]["axis"] == "payload":
        labels = _sizes(points)
    axes.set_xticks(points, labels)
    axes.xaxis.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_title(title, fontsize=10)
    axes.grid(which="major", alpha=0.3)
    axes.legend(fontsize=9, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)
    with Image.open(path) as drawn:
        drawn.convert("RGB").quantize(COLOURS).save(path, optimize=True)


def _draw_curve(axes: Any, curve: dict[str, Any], number: int) -> None:
    side = curve["side"]
    points = curve["points"]
    samples = curve["samples"]
    colour, marker = STYLES.get(side, OTHER)
    medians = [statistics.median(times) / 1e3 for times in samples]
    low, high = zip(*(_quarters(times) for times in samples), strict=True)
    axes.fill_between(points, low, high, color=colour, alpha=0.15, lw=0)
    width = 1.2
    if side.startswith("pocketserve"):
        width = 2.5
    line = "-" if marker else ("--", ":")[number % 2]
    axes.plot(points, medians, marker + line, color=colour, lw=width, label=side)


def _sizes(points: list[float]) -> list[str]:
    """Return labels, the second of two close ones lower."""
    said = [_size(point) for point in points]
    for number, (one, other) in enumerate(itertools.pairwise(points), 1):
        if other < CLOSE * one:
            said[number] = f"\n{said[number]}"
    return said


def _size(count: float) -> str:
    for unit, many in (("MB", 1 << 20), ("kB", 1 << 10)):
        if count >= many:
            return f"{count / many:.0f} {unit}"
    return f"{count:.0f} B"


def _quarters(samples: list[float]) -> tuple[float, float]:
    if len(samples) < 2:
        return samples[0] / 1e3, samples[0] / 1e3
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low / 1e3, high / 1e3


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m benchmarks.plot build/benchmarks.json FOLDER")
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
