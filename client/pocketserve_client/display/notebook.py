"""HTML of answers for notebooks, imported when a notebook first shows one."""

from __future__ import annotations

import base64
import binascii
import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pocketserve_client.arrays import Array

MAX_ROWS = 50
MAX_TEXT = 120  # characters of a cell
WAVE_POINTS = 400
WAVE_HEIGHT = 60  # pixels
LEAST_SAMPLES = 1000  # of a one-dimensional array that is drawn as a waveform
HIDDEN = frozenset(("mask", "mask_box"))
"""Keys of entries that no person reads; the picture shows them."""


def answer_html(answer: Mapping[str, Any]) -> str:
    """Return the annotated picture, the text and a table of the entries."""
    parts = []
    if picture := _png_address(answer.get("picture")):
        parts.append(f'<img alt="the annotated picture" src="{picture}">')
    if isinstance(text := answer.get("text"), str):
        parts.append(f"<p>{html.escape(text)}</p>")
    entries = answer.get("predictions")
    if isinstance(entries, list):
        parts.append(_entry_table(entries))
    names = (str(answer.get(key, "")) for key in ("model", "version", "task"))
    parts.append(f"<p><small>{html.escape(' · '.join(names))}</small></p>")
    return "\n".join(parts)


def outputs_html(outputs: Mapping[str, Array]) -> str:
    """Return a table of tensors, with long one-dimensional ones as waveforms."""
    rows = []
    waves = []
    for name, array in outputs.items():
        rows.append([name, array.dtype, list(array.shape), _range_text(array)])
        if _is_wave(array):
            waves.append(f"<p>{html.escape(name)}</p>{_wave(array.reshape(-1))}")
    table = _table(["output", "datatype", "shape", "values"], rows)
    return "\n".join([table, *waves])


def _png_address(picture: Any) -> str:
    """Return a data URL; empty if the text is not base64."""
    if not isinstance(picture, str):
        return ""
    try:
        content = base64.b64decode(picture, validate=True)
    except (binascii.Error, ValueError):
        return ""
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


def _entry_table(entries: Sequence[Any]) -> str:
    rows = [entry for entry in entries[:MAX_ROWS] if isinstance(entry, dict)]
    names = _columns(rows)
    cells = [[row.get(name, "") for name in names] for row in rows]
    left = len(entries) - len(rows)
    more = f"<p>{left} more</p>" if left else ""
    return _table(names, cells) + more


def _columns(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return the keys in the order in which they first appear."""
    names: dict[str, None] = {}
    for row in rows:
        names.update(dict.fromkeys(row))
    return [name for name in names if name not in HIDDEN]


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    lines = []
    for row in rows:
        cells = "".join(f"<td>{html.escape(_cell(value))}</td>" for value in row)
        lines.append(f"<tr>{cells}</tr>")
    return (
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = json.dumps(value) if isinstance(value, dict | list) else str(value)
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}…"


def _range_text(array: Array) -> str:
    is_number = array.dtype.kind in "iuf"
    if not is_number or not array.size:
        return ""
    return f"{_cell(float(array.min()))} to {_cell(float(array.max()))}"


def _is_wave(array: Array) -> bool:
    return (
        array.dtype.kind == "f"
        and array.size >= LEAST_SAMPLES
        and array.size == max(array.shape)
    )


def _wave(samples: Array) -> str:
    """Draw the lowest and highest value of each part of a signal, as SVG."""
    values = np.nan_to_num(samples.astype(np.float64), posinf=0.0, neginf=0.0)
    largest = max(float(np.abs(values).max()), 1e-12)
    middle = WAVE_HEIGHT / 2
    commands = []
    for x, part in enumerate(np.array_split(values, WAVE_POINTS)):
        top = middle - middle * float(part.max()) / largest
        bottom = middle - middle * float(part.min()) / largest
        commands.append(f"M{x} {top:.1f}V{bottom:.1f}")
    path = "".join(commands)
    return (
        f'<svg width="{WAVE_POINTS}" height="{WAVE_HEIGHT}" role="img" '
        f'aria-label="waveform"><path d="{path}" stroke="teal"/></svg>'
    )
