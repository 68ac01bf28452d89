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
    return {**pictures(client, inputs), **others(client, inputs), **tensors(client)}


def box(entry: dict[str, Any]) -> list[float]:
    """Return a box as the programs print it."""
    return [entry["box"][key] for key in ("x", "y", "width", "height")]


def pictures(client: Client, inputs: Path) -> Lines:
    """Return the answers to pictures."""

    def ask(model: str, file: str, **options: Any) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = client.predict(
            model, inputs / file, parameters=options
        )["predictions"]
        return entries

    def first_score(file: str, **options: Any) -> list[list[Any]]:
        return [[ask("digits", file, width=16, height=16, **options)[0]["score"]]]

    digits = ask("digits", "seven.png")
    bodies = ask("poses", "person.png")
    points = [one["keypoints"] for one in bodies]
    return {
        "digits": [
            [True, e["label"], e["label"], e["index"], e["score"]] for e in digits
        ],
        "digits best": [["LABEL_7"]],
        "digits nv21": first_score("frame.nv21", format="nv21", rotation=90),
        "digits planes": first_score("frame.nv21", format="nv21", rotation=90),
        "digits rgba": first_score("frame.rgba", format="rgba"),
        "numbers": [
            [e["label"], e["index"], e["score"], box(e)]
            for e in ask("numbers", "page.jpg")
        ],
        "shapes": [
            [e["label"].upper(), e["score"], box(e)]
            for e in ask("shapes", "drawing.png")
        ],
        "ground": [
            [e["label"].upper(), e["share"], e["pixels"]]
            for e in ask("ground", "drawing.png")
        ],
        "poses": [
            [
                e["score"],
                box(e),
                len(p),
                p[0]["label"].upper().replace(" ", "_"),
                p[0]["x"],
                p[0]["y"],
                p[0]["score"],
            ]
            for e, p in zip(bodies, points, strict=True)
        ],
    }


def others(client: Client, inputs: Path) -> Lines:
    """Return the answers to numbers, texts and sounds."""

    def ask(model: str, content: Any) -> list[dict[str, Any]]:
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        entries: list[dict[str, Any]] = client.predict(model, body)["predictions"]
        return entries

    petals, rows = (
        ask("petals", [5.1, 3.5, 1.4])[0],
        ask("petals", [[5.1, 3.5, 1.4], [6, 3, 5]]),
    )
    moods = ask("mood", ["a film", "σ"])
    span = ask("answers", {"question": "where does anna live?", "context": CONTEXT})[0]
    match = ask(
        "phrases",
        {"query": "switch the lamp on", "texts": ["play a song", "turn on the light"]},
    )[0]
    sound = ask("tones", (inputs / "tone.wav").read_bytes())
    hostile = ask("hostile", ROWS)
    return {
        "petals": [[petals["value"], "petal_width", "cm", 5.1]],
        "petals rows": [[rows[1]["value"]]],
        "diabetes": [
            [
                ask("diabetes", [59, 2, 32.1, 101, 157, 93.2, 38, 4, 4.8598, 87])[0][
                    "value"
                ]
            ]
        ],
        "hostile": [
            [label_text(e["index"]), e["label"], e["score"], e["row"]] for e in hostile
        ],
        "hostile outside": [[True]],
        "mood": [[e["label"].upper(), e["score"], e["input"]] for e in moods],
        "mood one": [[ask("mood", ['a "film"'])[0]["label"].upper()]],
        "answers": [[span[key] for key in ("answer", "start", "end", "score")]],
        "phrases": [[ask("phrases", ["turn on the light"])[0]["embedding"]]],
        "phrases match": [[match["index"], match["score"]]],
        "shelf": [[e["label"], e["index"], e["score"]] for e in ask("shelf", [1, 2])],
        "tones": [[e["label"], e["score"], True] for e in sound],
        "tones wav": [[sound[0]["score"]]],
    }


def label_text(index: int) -> str:
    """Return the label as the server sends it."""
    return HOSTILE_LABELS[index].strip() or str(index)


def tensors(client: Client) -> Lines:
    """Return the answers to tensors."""
    image = np.repeat(np.array([0, 1], np.float32), 64).reshape(2, 8, 8, 1)
    name = client.model_metadata("plain")["inputs"][0]["name"]
    plain = client.infer(
        "plain", {name: np.array([[5.1, 3.5, 1.4], [6, 3, 5]], np.float32)}
    )
    wide: dict[str, list[Any]] = {
        **{
            "FLOAT": [1, 2, 3, 4, 5, 6],
            "DOUBLE": [0.5, -1],
            "FLOAT16": [1, -2],
            "INT8": [-1, 127],
        },
        **{
            "INT16": [-300, 300],
            "INT32": [-70000, 70000],
            "INT64": [-(2**40), 2**40],
            "UINT8": [-1, 1],
        },
        **{
            "UINT16": [65535, 1],
            "UINT32": [2**32 - 1, 1],
            "UINT64": [1, 2],
            "BOOL": [True, False],
        },
        "STRING": ["σ", "b"],
    }
    assert wide.keys() == DATATYPES.keys()
    return {
        "digits infer": [
            [
                client.infer("digits", {"image": image})["scores"].reshape(-1).tolist(),
                [2, 10],
            ]
        ],
        "digits length": [
            [
                "image takes [-1, 8, 8, 1], -1 being any size; 65 elements of shape [1, 8, 8, 1] do not fill it"
            ]
        ],
        "plain": [[next(iter(plain.values())).reshape(-1).tolist()]],
        "wide": [list(wide.values())],
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
    return (
        pytest.approx(value, rel=1e-6, abs=1e-9) if isinstance(value, float) else value
    )
