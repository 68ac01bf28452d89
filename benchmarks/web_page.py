"""The page's live camera in a real Chromium.

Usage: python -m benchmarks.web_page [--frames 40000] [--folder models --model digits]

``make test-browser`` fetches the browser.

It prints a line of JSON every thousand answers, and the figures with their goals at the
end. Times are medians: ``make`` of encoding a frame as JPEG, ``trip`` of its request,
``age`` from the frame's arrival in the page to its answer, ``drawn`` to the next
repaint. ``camera`` is the frame's delay before the page, which the page can't change.
The charts keep ten minutes, so memory is compared with that after half of the frames:
40,000 take 23 minutes at 30 a second. Nothing else should run meanwhile. No test asserts
these figures.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.memory import resident_mb
from benchmarks.processes import Ours, our_server

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parents[1]
EVERY = 1000  # answers between two measurements of memory
MOST_FRAMES = 100_000
AGE_GOAL, SHARE_GOAL, GROWTH_GOAL = 1.5, 0.9, 1.05
LIMIT_MS = 120_000  # for a thousand answers
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--enable-precise-memory-info",
)
CAMERA = ("--use-fake-device-for-media-stream=fps=30", "--use-fake-ui-for-media-stream")

WATCH = """(most) => {
    const seen = { frames: 0, answers: 0 };
    for (const name of ['camera', 'make', 'trip', 'age', 'drawn']) seen[name] = new Float64Array(most);
    let latest = {}, sent = {};
    window.seen = seen;
    const play = HTMLVideoElement.prototype.play;
    HTMLVideoElement.prototype.play = function () {
        const note = (now, frame) => {
            seen.frames += 1;
            latest = { captured: frame.captureTime, shown: performance.now() };
            this.requestVideoFrameCallback(note);
        };
        this.requestVideoFrameCallback(note);
        return play.call(this);
    };
    const draw = CanvasRenderingContext2D.prototype.drawImage;
    CanvasRenderingContext2D.prototype.drawImage = function (...given) {
        sent = { ...latest, grabbed: performance.now() };
        return draw.apply(this, given);
    };
    const ask = window.fetch;
    window.fetch = async (path, options) => {
        if (!String(path).startsWith('/predictions/')) return ask(path, options);
        const began = performance.now(), { captured, shown, grabbed } = sent;
        const answer = await ask(path, options);
        await answer.clone().arrayBuffer();
        const now = performance.now(), at = seen.answers % most;
        seen.answers += 1;
        seen.trip[at] = now - began;
        seen.make[at] = began - grabbed;
        seen.age[at] = now - shown;
        seen.camera[at] = shown - captured;
        requestAnimationFrame(() => { seen.drawn[at] = performance.now() - shown; });
        return answer;
    };
}"""
FIGURES = """() => {
    const middle = (list) => list.slice(0, seen.answers).sort()[seen.answers >> 1];
    const times = ['camera', 'make', 'trip', 'age', 'drawn'].map((name) => [`${name}_ms`, middle(seen[name])]);
    return { frames: seen.frames, answers: seen.answers, ...Object.fromEntries(times) };
}"""


def main(arguments: list[str] | None = None) -> int:
    """Run it; print missed goals."""
    parser = argparse.ArgumentParser(
        description="The page's live camera in a real Chromium, over many frames."
    )
    parser.add_argument(
        "--frames", type=int, default=40_000, help="answers to wait for [40000]"
    )
    parser.add_argument(
        "--every",
        type=int,
        default=EVERY,
        help="answers between two looks at the memory [1000]",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "models",
        help="the models [the embedded ones]",
    )
    parser.add_argument(
        "--model", default="digits", help="one of them that takes pictures [digits]"
    )
    options = parser.parse_args(arguments)
    if not 0 < options.every <= options.frames <= MOST_FRAMES:
        parser.error(
            f"--frames must be 1 to {MOST_FRAMES}, and --every no more than that"
        )
    with our_server(options.folder) as server:
        report(measure(server, options), options.frames // 2)
    return 0


def measure(server: Ours, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Show the model to the camera; return periodic figures."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=_chromium(), args=[*FLAGS, *CAMERA]
        )
        page = browser.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.add_init_script(f"({WATCH})({MOST_FRAMES})")
        page.goto(f"http://127.0.0.1:{server.http}/#try/{options.model}")
        page.click("[data-kind=camera]")
        page.click("text=Start the camera")
        look = _memory(page, server.pid)
        rows = []
        for answers in range(options.every, options.frames + 1, options.every):
            page.wait_for_function("most => seen.answers >= most", arg=answers)
            rows.append({**page.evaluate(FIGURES), **look()})
            print(json.dumps(rows[-1]), flush=True)
        browser.close()
    return rows


def _memory(page: Page, server: int) -> Callable[[], dict[str, float]]:
    """Return the page's heap and the server's memory in MB."""
    tools = page.context.new_cdp_session(page)

    def look() -> dict[str, float]:
        tools.send("HeapProfiler.collectGarbage")
        heap = tools.send("Runtime.getHeapUsage")["usedSize"] / 1e6
        return {"page_mb": round(heap, 2), "server_mb": round(resident_mb(server), 2)}

    return look


def report(rows: list[dict[str, Any]], settled: int) -> None:
    """Print the figures and their goals."""
    last = rows[-1]
    early = next(row for row in rows if row["answers"] >= settled)
    figures = [
        ("frames answered", last["answers"] / last["frames"], SHARE_GOAL, True),
        (
            "age of an answer, p50, by its round trip",
            last["age_ms"] / last["trip_ms"],
            AGE_GOAL,
            False,
        ),
        (
            "memory of the page, by that after half",
            last["page_mb"] / early["page_mb"],
            GROWTH_GOAL,
            False,
        ),
        (
            "memory of the server, by that after half",
            last["server_mb"] / early["server_mb"],
            GROWTH_GOAL,
            False,
        ),
    ]
    for name, value, goal, least in figures:
        met = value >= goal if least else value <= goal
        print(f"{name:45}{value:8.3f}   goal {goal}{'' if met else '   MISSED'}")


def _chromium() -> Path:
    sys.path.append(str(ROOT / "tools"))
    from browser import provide

    chromium: Path = provide("chromium")
    return chromium


if __name__ == "__main__":
    sys.exit(main())
