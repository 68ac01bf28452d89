"""Compute the expected output of programs with generated classes.

It comes from the Python client, as lines ``name<TAB>JSON``.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen_models import DATATYPES, HOSTILE_LABELS
from pocketserve_client import Client

WRONG_LENGTH = "image takes [-1, 8, 8, 1], -1 being any size; 65 elements of shape [1, 8, 8, 1] do not fill it"
CONTEXT = "ben likes tea. anna lives in oslo. ben lives in rome."
ROWS = [[7, 6, 5, 4, 3, 2, 1], [0, float("nan"), 0, 9, 0, 0, 0]]

Lines = dict[str, list[list[Any]]]
"""Values by line name."""


def all_lines(client: Client, inputs: Path) -> Lines:
    """Return a program's expected output; ``inputs`` is its folder of inputs."""
    return {
        **pictures(client, inputs),
        **others(client, inputs),
        **tensors(client),
    }


def box(entry: dict[str, Any]) -> list[float]:
    """Return a box as the programs print it."""
    return [entry["box"][key] for key in ("x", "y", "width", "height")]


def body_line(body: dict[str, Any]) -> list[Any]:
    """Return the line of a person: score, box, and the first of the points."""
    points = body["keypoints"]
    first = points[0]
    label = first["label"].upper().replace(" ", "_")
    place = [
        first["x"],
        first["y"],
        first["score"],
    ]
    return [
        body["score"],
        box(body),
        len(points),
        label,
        *place,
    ]


def frame_score(client: Client, file: Path, **options: Any) -> list[list[Any]]:
    """Return the score of the best digit on a camera's frame."""
    parameters = {
        "width": 16,
        "height": 16,
        **options,
    }
    answer = client.predict("digits", file, parameters=parameters)
    return [[answer["predictions"][0]["score"]]]


def found_on(client: Client, model: str, file: Path) -> list[dict[str, Any]]:
    """Return the entries of the answer to a picture."""
    entries: list[dict[str, Any]] = client.predict(model, file)["predictions"]
    return entries


def pictures(client: Client, inputs: Path) -> Lines:
    """Return the answers to pictures."""
    digits = []
    for e in found_on(client, "digits", inputs / "seven.png"):
        digits.append(
            [
                True,
                e["label"],
                e["label"],
                e["index"],
                e["score"],
            ]
        )
    numbers_found = []
    for e in found_on(client, "numbers", inputs / "page.jpg"):
        numbers_found.append(
            [
                e["label"],
                e["index"],
                e["score"],
                box(e),
            ]
        )
    shapes = []
    for e in found_on(client, "shapes", inputs / "drawing.png"):
        shapes.append(
            [
                e["label"].upper(),
                e["score"],
                box(e),
            ]
        )
    ground = []
    for e in found_on(client, "ground", inputs / "drawing.png"):
        ground.append(
            [
                e["label"].upper(),
                e["share"],
                e["pixels"],
            ]
        )
    bodies = found_on(client, "poses", inputs / "person.png")
    nv21 = frame_score(client, inputs / "frame.nv21", format="nv21", rotation=90)
    rgba = frame_score(client, inputs / "frame.rgba", format="rgba")
    return {
        "digits": digits,
        "digits best": [["LABEL_7"]],
        "digits nv21": nv21,
        "digits planes": nv21,
        "digits rgba": rgba,
        "numbers": numbers_found,
        "shapes": shapes,
        "ground": ground,
        "poses": [body_line(body) for body in bodies],
    }


def entries_of(client: Client, model: str, content: Any) -> list[dict[str, Any]]:
    """Return the entries of the answer to JSON or bytes."""
    body = content
    if not isinstance(content, bytes):
        body = json.dumps(content).encode()
    entries: list[dict[str, Any]] = client.predict(model, body)["predictions"]
    return entries


def numbers(client: Client) -> Lines:
    """Return the answers to numbers."""
    diabetes_row = [59, 2, 32.1, 101, 157, 93.2, 38, 4, 4.8598, 87]
    petals = entries_of(client, "petals", [5.1, 3.5, 1.4])[0]
    rows = entries_of(client, "petals", [[5.1, 3.5, 1.4], [6, 3, 5]])
    diabetes = entries_of(client, "diabetes", diabetes_row)[0]
    hostile = entries_of(client, "hostile", ROWS)
    shelf = entries_of(client, "shelf", [1, 2])
    return {
        "petals": [[petals["value"], "petal_width", "cm", 5.1]],
        "petals rows": [[rows[1]["value"]]],
        "diabetes": [[diabetes["value"]]],
        "hostile": [
            [label_text(e["index"]), e["label"], e["score"], e["row"]] for e in hostile
        ],
        "hostile outside": [[True]],
        "shelf": [[e["label"], e["index"], e["score"]] for e in shelf],
    }


def others(client: Client, inputs: Path) -> Lines:
    """Return the answers to numbers, texts and sounds."""
    moods = entries_of(client, "mood", ["a film", "σ"])
    mood = entries_of(client, "mood", ['a "film"'])[0]
    question = {"question": "where does anna live?", "context": CONTEXT}
    span = entries_of(client, "answers", question)[0]
    phrase = entries_of(client, "phrases", ["turn on the light"])[0]
    texts = ["play a song", "turn on the light"]
    query = {"query": "switch the lamp on", "texts": texts}
    match = entries_of(client, "phrases", query)[0]
    sound = entries_of(client, "tones", (inputs / "tone.wav").read_bytes())
    return {
        **numbers(client),
        "mood": [[e["label"].upper(), e["score"], e["input"]] for e in moods],
        "mood one": [[mood["label"].upper()]],
        "answers": [[span["answer"], span["start"], span["end"], span["score"]]],
        "phrases": [[phrase["embedding"]]],
        "phrases match": [[match["index"], match["score"]]],
        "tones": [[e["label"], e["score"], True] for e in sound],
        "tones wav": [[sound[0]["score"]]],
    }


def label_text(index: int) -> str:
    """Return the label as the server sends it."""
    return HOSTILE_LABELS[index].strip() or str(index)


WIDE: dict[str, list[Any]] = {
    "FLOAT": [1, 2, 3, 4, 5, 6],
    "DOUBLE": [0.5, -1],
    "FLOAT16": [1, -2],
    "INT8": [-1, 127],
    "INT16": [-300, 300],
    "INT32": [-70000, 70000],
    "INT64": [-(2**40), 2**40],
    "UINT8": [-1, 1],
    "UINT16": [65535, 1],
    "UINT32": [2**32 - 1, 1],
    "UINT64": [1, 2],
    "BOOL": [True, False],
    "STRING": ["σ", "b"],
}
"""Values by datatype, as Java reads them back."""


def tensors(client: Client) -> Lines:
    """Return the answers to tensors."""
    assert WIDE.keys() == DATATYPES.keys()
    image = np.repeat(np.array([0, 1], np.float32), 64).reshape(2, 8, 8, 1)
    scores = client.infer("digits", {"image": image})["scores"]
    name = client.model_metadata("plain")["inputs"][0]["name"]
    rows = np.array([[5.1, 3.5, 1.4], [6, 3, 5]], np.float32)
    plain = next(iter(client.infer("plain", {name: rows}).values()))
    wrong_length = (
        "image takes [-1, 8, 8, 1], -1 being any size; "
        "65 elements of shape [1, 8, 8, 1] do not fill it"
    )
    return {
        "digits infer": [[scores.reshape(-1).tolist(), [2, 10]]],
        "digits length": [[wrong_length]],
        "plain": [[plain.reshape(-1).tolist()]],
        "wide": [list(WIDE.values())],
    }


def check(printed: str, expected: Lines) -> None:
    """Compare a program's lines: texts and integers exactly, floats approximately."""
    lines: defaultdict[str, list[list[Any]]] = defaultdict(list)
    for line in printed.splitlines():
        name, _, values = line.partition("\t")
        lines[name].append(json.loads(values))
    labels = lines.pop("hostile label")
    assert [text for _, text in labels] == [
        label_text(i) for i in range(len(HOSTILE_LABELS))
    ]
    assert len({name for name, _ in labels}) == len(labels)
    assert lines.keys() == expected.keys()
    for name, rows in expected.items():
        assert rows, name
        assert lines[name] == [[near(value) for value in row] for row in rows], name


def near(value: Any) -> Any:
    """Return the value with floats rounded like text and single precision."""
    if isinstance(value, list):
        return [near(one) for one in value]
    if isinstance(value, float):
        return pytest.approx(value, rel=1e-6, abs=1e-9)
    return value
