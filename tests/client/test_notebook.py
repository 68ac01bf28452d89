"""Check the HTML of answers for notebooks."""

from __future__ import annotations

import ast
import base64
import json
from typing import Any

import numpy as np
import pytest

from conftest import ROOT, Server
from pocketserve_client.transport import LabelledAnswer, Outputs, Picture

EXAMPLE = ROOT / "docs" / "recipes" / "answers.ipynb"
HOSTILE = "<img src=x onerror=alert(1)>\"'&"


def test_answer_is_a_table_of_its_entries() -> None:
    entries = [{"label": "cat", "score": 0.51234}, {"label": "dog", "mask": "AA=="}]
    html = LabelledAnswer(model="pets", predictions=entries)._repr_html_()
    assert "<th>label</th><th>score</th></tr>" in html
    assert "<tr><td>cat</td><td>0.5123</td></tr><tr><td>dog</td><td></td>" in html
    assert "AA==" not in html


@pytest.mark.parametrize("key", ["model", "version", "task", "text", "picture"])
def test_texts_of_an_answer_are_escaped(key: str) -> None:
    answer = LabelledAnswer({key: HOSTILE, "predictions": [{HOSTILE: {"a": HOSTILE}}]})
    html = answer._repr_html_()
    assert "<img" not in html
    assert html.count("&lt;img") >= 2


def test_answer_has_its_picture() -> None:
    picture = base64.b64encode(b"\x89PNG").decode()
    html = LabelledAnswer(picture=picture, predictions=[])._repr_html_()
    assert f'src="data:image/png;base64,{picture}"' in html


@pytest.mark.parametrize(
    "entries",
    [
        None,
        "text",
        [1, None],
        [],
    ],
)
def test_answer_of_another_shape_is_shown(entries: Any) -> None:
    assert "<small>" in LabelledAnswer(predictions=entries)._repr_html_()


def test_long_answers_are_cut() -> None:
    html = LabelledAnswer(predictions=[{"index": 1}] * 60)._repr_html_()
    assert html.count("<tr>") == 51
    assert "<p>10 more</p>" in html


def test_outputs_are_a_table_with_waveforms() -> None:
    signal = np.sin(np.arange(2000, dtype=np.float32))
    signal[5] = np.nan
    outputs = Outputs({HOSTILE: signal[None], "none": np.zeros((0, 2), np.float32)})
    html = outputs._repr_html_()
    assert "[1, 2000]" in html
    assert html.count("<svg") == 1
    assert "nan" not in html.partition("<svg")[2]
    assert "<img" not in html


def test_picture_says_its_type() -> None:
    png = Picture(b"\x89PNG...")
    jpeg = Picture(b"\xff\xd8...")
    assert (png._repr_png_(), png._repr_jpeg_()) == (b"\x89PNG...", None)
    assert (jpeg._repr_png_(), jpeg._repr_jpeg_()) == (None, b"\xff\xd8...")


@pytest.mark.live
def test_example_notebook_runs(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    (tmp_path / "token").write_text(str(server.token))
    monkeypatch.setenv("POCKETSERVE_URL", server.url)
    monkeypatch.setenv("POCKETSERVE_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.chdir(ROOT)
    cells = json.loads(EXAMPLE.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    values = []
    for cell in cells:
        if cell["cell_type"] == "code":
            values.append(run_cell("".join(cell["source"]), names))
    tables = [value._repr_html_() for value in values if hasattr(value, "_repr_html_")]
    pictures = [value for value in values if isinstance(value, Picture)]
    assert len(tables) == 3
    assert "<td>7</td>" in tables[0]
    assert "data:image/png" in tables[1]
    assert pictures[0]._repr_png_()


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell; return the value of its last line, as a notebook does."""
    module = ast.parse(source)
    last = module.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(module, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)
