"""A comparison as one HTML page that needs no other file and no network, with the whole result in it as JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from pocketserve.cli.output import printable
from pocketserve.compare.figure import svg_of
from pocketserve.compare.report import HEADER, LEGEND, figures_of, table_rows
from pocketserve.messages import plural

JUDGED = ("VERSION", "RUNS ON", "TEST", "SAID", "FURTHER FIGURES")
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1d2129; max-width: 85rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: .85rem; }
th, td { text-align: right; padding: .3rem .45rem; border-bottom: 1px solid #d0d5dd; vertical-align: bottom; }
td { white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
.wide { overflow-x: auto; }
.chosen { background: #e6f4ec; font-weight: 600; }
.answer { border-left: .3rem solid #0b7a4b; padding: .5rem 1rem; background: #f4faf7; }
.small { color: #667085; font-size: .85rem; }
svg { width: 100%; height: auto; font-family: inherit; }
"""


def page_of(result: Mapping[str, Any]) -> str:
    """Return the page's HTML; every name in it is escaped."""
    device, data = result["device"], result["data"]
    content = plural(len(data["samples"]), "sample") if data["samples"] else "random numbers"
    load = "?" if device["load"] is None else f"{device['load']:.1f}"
    facts = (
        f"{result['created']}; {device['machine']}, {plural(device['cores'], 'core')}, {device['system']}; load "
        f"{load}; {content}, {data['labelled']} with a label"
        f"{', ' + data['origin'] if data['samples'] else ''}; pocketserve {result['pocketserve']}"
    )
    title = _text(f"{result['model']}: versions compared")
    return f"""<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>{STYLE}</style></head>
<body>
<h1>{title}</h1>
<p class="small">{_text(facts)}</p>
<p class="answer">{_text(result["recommendation"]["sentences"])}</p>
<p class="small">Rule: {_text(result["recommendation"]["rule"])}</p>
{svg_of(result)}
<h2>All figures</h2>
{_table(HEADER, table_rows(result))}
<p class="small">{_text(" ".join(LEGEND.split()))}</p>
<h2>Answers against {_text(result["reference"])}</h2>
{_table(JUDGED, [_judged(*item) for item in result["versions"].items()])}
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


def _judged(name: str, facts: Mapping[str, Any]) -> list[str]:
    figures = ", ".join(f"{key} {text}" for key, text in figures_of(facts["accuracy"])) if facts["accuracy"] else ""
    return [
        name,
        f"{facts['device']}, {facts['runtime']}",
        facts["test"].get("name", ""),
        facts["test"]["text"],
        figures,
    ]


def _skipped(skipped: Mapping[str, str]) -> str:
    if not skipped:
        return ""
    items = "".join(f"<li><b>{_text(name)}</b>: {_text(reason)}</li>" for name, reason in skipped.items())
    return f"<h2>Not compared</h2><ul>{items}</ul>"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{_text(cell)}</th>" for cell in header)
    lines = []
    for row in rows:
        mark = ' class="chosen"' if row[0].endswith(" *") else ""
        lines.append(f"<tr{mark}>" + "".join(f"<td>{_text(cell)}</td>" for cell in row) + "</tr>")
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(lines)}</table></div>'


def _text(text: str) -> str:
    return html.escape(printable(text))


def _json(result: Mapping[str, Any]) -> str:
    """Return JSON that ends no script element, whatever the names in it."""
    return json.dumps(result).replace("<", "\\u003c")
