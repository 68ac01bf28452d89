"""Plots of a run: ``python -m benchmarks.plot build/benchmarks.json docs/images``.

Needs matplotlib, which only the environment of the benchmarks has.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

AXES = {
    "payload": ("bytes of the request's tensor", "latency-by-payload.png", "One connection"),
    "connections": ("connections", "latency-by-connections.png", "150,528 B in, 4,004 B out"),
}
COLOURS = ("#0b6e4f", "#3aa17e", "#c44536", "#7a5195", "#b78ed6", "#f2a541", "#555555")
MARKERS = "os^DvPX"


def main(source: Path, folder: Path) -> int:
    """Draw what the run holds; says which plots were made."""
    content = json.loads(source.read_text(encoding="utf-8"))
    curves = [item for item in content["results"] if item["kind"] == "curve"]
    if not curves:
        print(f"{source} holds no curves; run: make bench ONLY=P1", file=sys.stderr)
        return 1
    folder.mkdir(parents=True, exist_ok=True)
    for axis, (label, file, title) in AXES.items():
        chosen = [curve for curve in curves if curve["axis"] == axis]
        if chosen:
            draw(chosen, label, f"{title}; {content['machine']['processor']}", folder / file)
            print(folder / file)
    return 0


def draw(curves: list[dict[str, Any]], label: str, title: str, path: Path) -> None:
    """Medians as lines, the middle half of the samples as a band, both axes logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for number, curve in enumerate(curves):
        colour = COLOURS[number % len(COLOURS)]
        medians = [statistics.median(kept) / 1e3 for kept in curve["samples"]]
        quarters = [_quarters(kept) for kept in curve["samples"]]
        axes.fill_between(
            curve["points"],
            [low for low, _ in quarters],
            [high for _, high in quarters],
            color=colour,
            alpha=0.15,
            lw=0,
        )
        width = 2.5 if curve["side"].startswith("pocketserve") else 1.2
        axes.plot(curve["points"], medians, MARKERS[number % 7] + "-", color=colour, lw=width, label=curve["side"])
    axes.set(xscale="log", yscale="log", xlabel=label, ylabel="milliseconds (median, middle half)")
    axes.set_title(title, fontsize=10)
    axes.grid(which="major", alpha=0.3)
    axes.legend(fontsize=9)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def _quarters(samples: list[float]) -> tuple[float, float]:
    if len(samples) < 2:
        return samples[0] / 1e3, samples[0] / 1e3
    low, _, high = statistics.quantiles(samples, n=4, method="inclusive")
    return low / 1e3, high / 1e3


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m benchmarks.plot build/benchmarks.json FOLDER")
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
