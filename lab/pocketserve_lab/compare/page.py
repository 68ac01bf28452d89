"""A comparison as a self-contained HTML page."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pocketserve.messages import plural
from pocketserve.terminal.output import printable
from pocketserve_lab.compare.figure import svg_of
from pocketserve_lab.compare.report import (
    HEADER,
    LEGEND,
    data_summary,
    figures_of,
    interval_warning,
    number,
    score_with_interval,
    spread_rows,
    table_rows,
    with_interval,
)

STYLE = """
:root { color-scheme: light dark; --ink: #1d2129; --muted: #667085; --line: #d0d5dd; --page: #fff;
  --good: #0b7a4b; --best: #e6f4ec; --box: #f4faf7; --bar: #7c9cc9; --edge: #344054; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8ec; --muted: #a3acba; --line: #3a4150; --page: #14171c;
  --good: #35b27d; --best: #173a2b; --box: #17251f; --bar: #4f73a8; --edge: #cfd6e0; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 85rem;
  margin: 1rem auto; padding: 0 1rem; overflow-wrap: break-word; }
h1 { font-size: 1.6rem; }
h2 { font-size: 1.25rem; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { text-align: right; padding: .3rem .45rem; border-bottom: 1px solid var(--line); vertical-align: bottom; }
td { white-space: nowrap; }
th:first-child, td:first-child, .words th, .words td { text-align: left; }
th:first-child, td:first-child { position: sticky; left: 0; background: var(--page); }
.wide { overflow-x: auto; }
.chosen, .chosen td:first-child { background: var(--best); font-weight: 600; }
.answer { border-left: .3rem solid var(--good); padding: .5rem 1rem; background: var(--box); }
.small { color: var(--muted); font-size: .85rem; }
svg { width: 100%; max-width: 48rem; height: auto; font-family: inherit; }
svg [fill="#1d2129"] { fill: var(--ink); }
svg [fill="#667085"] { fill: var(--muted); }
svg [fill="#344054"] { fill: var(--edge); }
svg [fill="#0b7a4b"] { fill: var(--good); }
svg [fill="#7c9cc9"] { fill: var(--bar); }
"""
JUDGED = ("VERSION", "RUNS ON", "SCORE", "TEST", "RESULT", "FURTHER FIGURES")
SPREAD = ("VERSION", "RUN p50 ms", "SCORE", "MEMORY")
TIMES = ("VERSION", "RUN p50 ms", "p90", "p99", "ANSWER p50 ms", "p90", "p99")


def page_of(result: Mapping[str, Any]) -> str:
    """Return the page's HTML, with every name escaped."""
    title = _text(f"{result['model']}: versions compared")
    recommendation = result["recommendation"]
    times = []
    judgements = []
    for name, version in result["versions"].items():
        times.append(_times(name, version))
        is_reference = name == result["reference"]
        judgements.append(_judged(name, version, is_reference=is_reference))
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{STYLE}</style></head>
<body>
<h1>{title}</h1>
<p class="small">{_text(_facts(result))}</p>
<p class="answer">{_text(recommendation["sentences"])}</p>
<p class="small">Rule: {_text(recommendation["rule"])}</p>
{svg_of(result)}
<h2>All figures</h2>
{_table(HEADER, table_rows(result))}
<p class="small">{_text(" ".join(LEGEND.split()))}</p>
<h2>Times, with the 95 % intervals of medians</h2>
{_table(TIMES, times)}
<p class="small">{_text(interval_warning(result))}</p>
<h2>Answers against {_text(result["reference"])}</h2>
{_table(JUDGED, judgements, "words")}
{_spread(result)}
{_skipped(result["skipped"])}
<h2>Everything, with all samples</h2>
<details><summary>JSON</summary>
<script type="application/json" id="result">{_json(result)}</script>
<p><button onclick="save()">Save as a file</button></p></details>
<script>
function save() {{
  const link = document.createElement("a");
  const text = document.getElementById("result").textContent;
  link.href = URL.createObjectURL(new Blob([text], {{type: "application/json"}}));
  link.download = "compare.json";
  link.click();
}}
</script>
</body>
</html>
"""


def _facts(result: Mapping[str, Any]) -> str:
    """Return a line on the device, data and time."""
    device = result["device"]
    load = "?" if device["load"] is None else f"{device['load']:.1f}"
    cores = plural(device["cores"], "core")
    return (
        f"{result['created']}; {device['machine']}, {cores}, {device['system']}; "
        f"load {load}; {data_summary(result['data'])}; "
        f"{plural(result['recommendation']['turns'], 'turn')}; "
        f"pocketserve {result['pocketserve']}"
    )


def _times(name: str, facts: Mapping[str, Any]) -> list[str]:
    cells = [name]
    for key in ("run_ms", "answer_ms"):
        cells.append(with_interval(facts[key]["p50"]))
        for share in ("p90", "p99"):
            cells.append(number(facts[key][share]["value"]))
    return cells


def _judged(name: str, facts: Mapping[str, Any], *, is_reference: bool) -> list[str]:
    figures = []
    if facts["accuracy"]:
        figures = [f"{key} {text}" for key, text in figures_of(facts["accuracy"])]
    test = facts["test"]
    return [
        name,
        f"{facts['device']}, {facts['runtime']}",
        score_with_interval(facts["accuracy"]),
        "" if is_reference else test.get("name", ""),
        "reference" if is_reference else test["text"],
        ", ".join(figures),
    ]


def _spread(result: Mapping[str, Any]) -> str:
    """Return the table of repeated runs; empty for a single one."""
    if "repeats" not in result:
        return ""
    repeats = result["repeats"]
    table = _table(SPREAD, spread_rows(repeats))
    return f"<h2>Spread over {repeats['number']} runs</h2>{table}"


def _skipped(skipped: Mapping[str, str]) -> str:
    if not skipped:
        return ""
    items = ""
    for name, reason in skipped.items():
        items += f"<li><b>{_text(name)}</b>: {_text(reason)}</li>"
    return f"<h2>Not compared</h2><ul>{items}</ul>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "") -> str:
    lines = ["<tr>" + _table_cells("th", header) + "</tr>"]
    for row in rows:
        mark = ' class="chosen"' if row[0].endswith(" *") else ""
        lines.append(f"<tr{mark}>" + _table_cells("td", row) + "</tr>")
    return f'<div class="wide {kind}"><table>{"".join(lines)}</table></div>'


def _table_cells(element: str, texts: Sequence[str]) -> str:
    cells = [f"<{element}>{_text(text)}</{element}>" for text in texts]
    return "".join(cells)


def _text(text: str) -> str:
    return html.escape(printable(text))


def _json(result: Mapping[str, Any]) -> str:
    """Return JSON in which no name can close the script element."""
    return json.dumps(result).replace("<", "\\u003c")
