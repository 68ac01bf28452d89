"""Label files in the formats of tools and editors."""

from __future__ import annotations

import codecs
import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketserve.formats import DamagedFileError
from pocketserve.repository.sidecar_files import LABEL_FILES
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.registry import FORMATS
from pocketserve.tasks.base import AnswerOptions
from pocketserve.tasks.foreign.label_files import (
    MAX_LABELS,
    check_line_count,
    fit_to_classes,
    parse_labels,
)
from pocketserve.tasks.labels import find_labels
from pocketserve.tasks.selection import select_task
from vision_models import facts

COLOURS = ["red", "green", "blue"]

FORMS: dict[str, tuple[str, bytes, list[str]]] = {
    "one a line": ("labels.txt", b"red\ngreen\nblue\n", COLOURS),
    "Windows line ends": ("labels.txt", b"red\r\ngreen\r\nblue\r\n", COLOURS),
    "byte order mark": ("labels.txt", codecs.BOM_UTF8 + b"red\ngreen\nblue\n", COLOURS),
    "UTF-16, little-endian": (
        "labels.txt",
        codecs.BOM_UTF16_LE + "rød\nblå\n".encode("utf-16-le"),
        ["rød", "blå"],
    ),
    "UTF-16, big-endian": (
        "labels.txt",
        codecs.BOM_UTF16_BE + "rød\nblå\n".encode("utf-16-be"),
        ["rød", "blå"],
    ),
    "UTF-32": ("labels.txt", "rød\nblå\n".encode("utf-32"), ["rød", "blå"]),
    "index name": ("labels.txt", b"0 red\n1 green\n2 blue\n", COLOURS),
    "index name, wide": (
        "labels.txt",
        b"0  light red\n1\tgreen\n2   blue\n",
        ["light red", "green", "blue"],
    ),
    "index: name": ("labels.txt", b"0: red\n1: green\n2:blue\n", COLOURS),
    "index, name": ("labels.txt", b"0,red\n1,green\n2, blue\n", COLOURS),
    "index. name": ("labels.txt", b"0. red\n1. green\n2) blue\n", COLOURS),
    "index - name": ("labels.txt", b"0 - red\n1 - green\n2 - blue\n", COLOURS),
    "tabs": ("labels.txt", b"0\tred\n1\tgreen\n2\tblue\n", COLOURS),
    "name index": ("labels.txt", b"red 0\ngreen 1\nblue 2\n", COLOURS),
    "name: index": ("labels.txt", b"red: 0\ngreen: 1\nblue: 2\n", COLOURS),
    "name, index": (
        "labels.txt",
        b"red,2\ngreen,0\nblue,1\n",
        ["green", "blue", "red"],
    ),
    "another order": ("labels.txt", b"2 blue\n0 red\n1 green\n", COLOURS),
    "leading zeros": ("labels.txt", b"000 red\n001 green\n002 blue\n", COLOURS),
    "index and duplicates": (
        "labels.txt",
        b"0 crane\n1 maillot\n2 crane\n",
        ["crane", "maillot", "crane"],
    ),
    "gaps": ("labels.txt", b"0 red\n3 green\n", ["red", "", "", "green"]),
    "blank lines between numbers": (
        "labels.txt",
        b"0 red\n\n1 green\n\n\n2 blue\n\n",
        COLOURS,
    ),
    "duplicates": (
        "labels.txt",
        b"crane\nmaillot\ncrane\n",
        ["crane", "maillot", "crane"],
    ),
    "digits": ("labels.txt", b"0\n1\n2\n", ["0", "1", "2"]),
    "years": ("labels.txt", b"1998\n1999\n2001\n", ["1998", "1999", "2001"]),
    "years and makes": (
        "labels.txt",
        b"1998 Ford\n1999 Audi\n",
        ["1998 Ford", "1999 Audi"],
    ),
    "names that begin with numbers": (
        "labels.txt",
        b"7 up\n1 apple\n",
        ["7 up", "1 apple"],
    ),
    "ranges": ("labels.txt", b"0 - 2\n3 - 9\n10 - 19\n", ["0 - 2", "3 - 9", "10 - 19"]),
    "ranges without gaps": (
        "labels.txt",
        b"0 - 1\n1 - 2\n2 - 3\n",
        ["0 - 1", "1 - 2", "2 - 3"],
    ),
    "digits by index": ("labels.txt", b"0 - 0\n1 - 1\n2 - A\n", ["0", "1", "A"]),
    "gaps in another order": ("labels.txt", b"4 blue\n0 red\n", ["4 blue", "0 red"]),
    "ranges in words": ("labels.txt", b"0 to 2\n3 to 9\n", ["0 to 2", "3 to 9"]),
    "ranges with a dash": ("labels.txt", "0 – 2\n3 – 9\n".encode(), ["0 – 2", "3 – 9"]),
    "gaps and dashes": (
        "labels.txt",
        b"0 - red\n3 - green\n",
        ["0 - red", "3 - green"],
    ),
    "numbers of things": (
        "labels.txt",
        b"2 doors\n4 doors\n5 doors\n",
        ["2 doors", "4 doors", "5 doors"],
    ),
    "coins": (
        "labels.txt",
        b"1 euro\n2 euro\n5 euro\n",
        ["1 euro", "2 euro", "5 euro"],
    ),
    "coins and plurals": (
        "labels.txt",
        b"1 euro\n2 euros\n5 euros\n",
        ["1 euro", "2 euros", "5 euros"],
    ),
    "coins of two kinds": (
        "labels.txt",
        b"1 cent\n2 cents\n5 euros\n10 euros\n20 euros\n",
        ["1 cent", "2 cents", "5 euros", "10 euros", "20 euros"],
    ),
    "numbers of furniture": (
        "labels.txt",
        b"1 bed\n3 beds\n2 sofas\n",
        ["1 bed", "3 beds", "2 sofas"],
    ),
    "numbers of boxes": (
        "labels.txt",
        b"1 box\n2 boxes\n3 bags\n",
        ["1 box", "2 boxes", "3 bags"],
    ),
    "plurals after an index": (
        "labels.txt",
        b"1: bed\n3: beds\n2: sofas\n",
        ["", "bed", "sofas", "beds"],
    ),
    "CSV, plurals after an index": (
        "labels.csv",
        b"1,bed\n3,beds\n2,sofas\n",
        ["", "bed", "sofas", "beds"],
    ),
    "numbered classes": (
        "labels.txt",
        b"class 0\nclass 1\nclass 2\n",
        ["class 0", "class 1", "class 2"],
    ),
    "numbers in some lines": (
        "labels.txt",
        b"0 red\ngreen\n2 blue\n",
        ["0 red", "green", "2 blue"],
    ),
    "a number twice": ("labels.txt", b"0 red\n0 green\n", ["0 red", "0 green"]),
    "aircraft": (
        "labels.txt",
        b"Boeing 737\nAirbus 320\n",
        ["Boeing 737", "Airbus 320"],
    ),
    "synonyms": (
        "labels.txt",
        b"tench, Tinca tinca\ngoldfish\n",
        ["tench, Tinca tinca", "goldfish"],
    ),
    "empty": ("labels.txt", b"", []),
    "JSON list": ("labels.json", b'["red", "green", "blue"]', COLOURS),
    "JSON, index to name": (
        "labels.json",
        b'{"2": "blue", "0": "red", "1": "green"}',
        COLOURS,
    ),
    "JSON, name to index": (
        "labels.json",
        b'{"blue": 2, "red": 0, "green": 1}',
        COLOURS,
    ),
    "JSON, name to index as text": (
        "labels.json",
        b'{"blue": "1", "red": "0"}',
        ["red", "blue"],
    ),
    "JSON, digits": ("labels.json", b'{"1": "7", "0": "3"}', ["3", "7"]),
    "JSON, Keras": (
        "labels.json",
        b'{"0": ["n01", "red"], "1": ["n02", "green"]}',
        ["red", "green"],
    ),
    "JSON, list within": (
        "labels.json",
        b'{"version": 1, "labels": ["red", "green"]}',
        ["red", "green"],
    ),
    "JSON, id2label": (
        "labels.json",
        b'{"id2label": {"1": "green", "0": "red"}}',
        ["red", "green"],
    ),
    "JSON, objects": (
        "labels.json",
        b'[{"id": 1, "name": "green"}, {"id": 0, "name": "red"}]',
        ["red", "green"],
    ),
    "JSON, byte order mark": ("labels.json", codecs.BOM_UTF8 + b'["red"]', ["red"]),
    "CSV with names": ("labels.csv", b"index,name\n1,green\n0,red\n", ["red", "green"]),
    "CSV, three columns": (
        *(
            "labels.csv",
            b'index,mid,display_name\n0,/m/1,"Child speech, kid"\n1,/m/2,Bark\n',
        ),
        ["Child speech, kid", "Bark"],
    ),
    "CSV without names": (
        "labels.csv",
        b'1,"green, dark"\n0,red\n',
        ["red", "green, dark"],
    ),
    "CSV, joined column names": (
        "labels.csv",
        b"ClassId,SignName\n1,Stop\n0,Yield\n",
        ["Yield", "Stop"],
    ),
    "CSV, column names with spaces": (
        "labels.csv",
        b"Class ID, Class Name\n1,green\n0,red\n",
        ["red", "green"],
    ),
    "CSV, unknown column names": (
        "labels.csv",
        b"Nr,Farbe\n1,green\n0,red\n",
        ["red", "green"],
    ),
    "CSV, unknown column names, index last": (
        "labels.csv",
        b"Farbe,Nr\ngreen,1\nred,0\n",
        ["red", "green"],
    ),
    "CSV, names without an index": (
        "labels.csv",
        b"tench,fish\ncrane,2\nhen,bird\n",
        ["tench fish", "crane 2", "hen bird"],
    ),
    "CSV, one column": ("labels.csv", b"label\nred\ngreen\n", ["red", "green"]),
    "label map": (
        "label_map.pbtxt",
        b"item {\n  id: 1\n  name: 'red'\n}\n# item { id: 9 }\nitem {\n  name: \"/m/2\"\n  id: 2\n"
        b'  display_name: "green"\n}\n',
        ["", "red", "green"],
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_label_file_formats(form: str) -> None:
    name, content, expected = FORMS[form]

    parsed = parse_labels(name, content)

    assert parsed.names == expected
    assert parsed.note == ""


def test_text_that_only_looks_like_python_is_a_label() -> None:
    assert parse_labels("labels.txt", b"{[]: 1}").names == ["{[]: 1}"]


def test_a_legacy_encoding_is_read_with_a_note() -> None:
    parsed = parse_labels("labels.txt", "röt\nblå\n“grön”\n".encode("cp1252"))

    assert parsed.names == ["röt", "blå", "“grön”"]
    assert parsed.note == "is not UTF-8 and is read as Windows-1252; save it as UTF-8"
    assert parse_labels("labels.txt", b"r\xf6t\x81\n").note.startswith(
        "is not UTF-8 and is read as Latin-1"
    )


FAULTS: dict[str, tuple[str, bytes, str]] = {
    "binary": ("labels.txt", b"\x00\x01\x02", "is not a text file"),
    "half a character": (
        "labels.txt",
        codecs.BOM_UTF16_LE + b"r\0e",
        "is not valid UTF-16",
    ),
    "a set": ("labels.txt", b"{'b', 'a'}\n", "is a Python set, which has no order"),
    "a map with a set": ("labels.txt", b"{'names': {'b', 'a'}}", "is a Python set"),
    "broken JSON": ("labels.json", b"[", "is not valid JSON"),
    "deep JSON": ("labels.json", b"[" * 100_000, "is not valid JSON"),
    "a number": ("labels.json", b"5", "must be a list of names"),
    "a list of numbers": ("labels.json", b"[1, 2]", "must be a list of names"),
    "nested maps": ("labels.json", b'{"a": {"b": 0}}', "must be a list of names"),
    "one index for two names": (
        "labels.json",
        b'{"red": 0, "green": 0}',
        "gives the index 0 to two names",
    ),
    "a huge index": ("labels.json", b'{"red": 9999999}', "too many gaps"),
    "a negative index": ("labels.json", b'{"red": -1}', "too many gaps"),
    "many names": (
        "labels.json",
        b"[" + b"1," * (2 * MAX_LABELS + 1) + b"1]",
        "has more than",
    ),
    "no items": ("label_map.pbtxt", b"nothing", "has no item"),
    "an item without a name": (
        "label_map.pbtxt",
        b"item { id: 1 }",
        "has an item without id or name",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_invalid_label_files(fault: str) -> None:
    name, content, message = FAULTS[fault]

    with pytest.raises(DamagedFileError, match=message):
        parse_labels(name, content)


@pytest.mark.parametrize(
    "sign", [b" ", b"0", b"\t", b"item ", b"item {", b"0 a    ", b"\xc2\xa0"]
)
@pytest.mark.parametrize("name", ["labels.txt", "labels.csv", "label_map.pbtxt"])
def test_a_long_line_is_read_in_one_pass(name: str, sign: bytes) -> None:
    """A pattern with restarts would not finish on a megabyte."""
    content = sign * (10**6 // len(sign)) + b"x"
    with contextlib.suppress(DamagedFileError):
        assert len(parse_labels(name, content).names) <= 1


def test_lines_are_counted_before_they_are_split() -> None:
    with pytest.raises(DamagedFileError, match="lines in all languages together"):
        check_line_count([b"\n" * (MAX_LABELS + 1)])


@pytest.mark.parametrize(
    ("names", "classes", "expected"),
    [
        (["a", "b"], 2, ["a", "b"]),
        (["a", "b", "", ""], 2, ["a", "b"]),
        (["a", "", "b", ""], 2, ["a", "b"]),
        (["a", "", "b"], 3, ["a", "", "b"]),
        (["", "a", "b"], 2, ["a", "b"]),
        (["", "a", "b"], 3, ["", "a", "b"]),
        (["a", "b", ""], 1, ["a", "b"]),
        (["a", "b", "c"], 2, ["a", "b", "c"]),
        (["a", "b", ""], 0, ["a", "b", ""]),
    ],
)
def test_blank_lines_and_numbers_from_one(
    names: list[str], classes: int, expected: list[str]
) -> None:
    assert list(fit_to_classes(names, classes)) == expected


@pytest.mark.parametrize("name", LABEL_FILES)
def test_usual_file_names_are_found(tmp_path: Path, name: str) -> None:
    content: Any = "red\ngreen\n"
    if name.endswith("json"):
        content = json.dumps(["red", "green"])
    elif name.endswith("pbtxt"):
        content = "item { id: 1 name: 'red' } item { id: 2 name: 'green' }"

    labels = find_labels(facts(tmp_path, {"s": (1, 2)}, files={name: content}))

    assert list(labels.names) == ["red", "green"]


def test_a_label_map_of_a_tflite_detector(tmp_path: Path) -> None:
    """Its ids begin at 1, but the classes of TFLite's detection operator at 0."""
    outputs = {
        "boxes": (1, 10, 4),
        "classes": (1, 10),
        "scores": (1, 10),
        "count": (1,),
    }
    items = "item { id: 1 name: 'red' } item { id: 2 name: 'green' }"
    model = facts(tmp_path, outputs, files={"label_map.pbtxt": items})
    kind = next(kind for kind in FORMATS if kind.name == "tflite")
    tflite = dataclasses.replace(
        model,
        version=model.version._replace(format=kind._replace(metadata=None)),
        cache={},
    )

    assert list(find_labels(model).names) == ["", "red", "green"]
    assert list(find_labels(tflite).names) == ["red", "green"]


UNKNOWN_COUNTS: dict[str, dict[str, tuple[int, ...]]] = {
    "YOLO": {"rows": (1, 6, 8400)},
    "YOLO with finished boxes": {"rows": (1, 300, 6)},
    "SSD": {"boxes": (1, 10, 4), "classes": (1, 10), "scores": (1, 10), "count": (1,)},
    "unknown sizes": {"s": (-1, -1)},
}


@pytest.mark.parametrize("outputs", UNKNOWN_COUNTS)
@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"labels": "labels.txt"},
    ],
)
def test_numbers_from_one_without_a_count_of_classes(
    tmp_path: Path, outputs: str, manifest: dict[str, str]
) -> None:
    files = {"labels.txt": "1 helmet\n2 vest\n"}

    assert list(
        find_labels(facts(tmp_path, UNKNOWN_COUNTS[outputs], manifest, files)).names
    ) == ["helmet", "vest"]


@pytest.mark.parametrize(
    ("outputs", "manifest"),
    [
        ({"map": (1, 3, 64, 64)}, {}),
        ({"map": (1, 64, 64, 3)}, {}),
        ({"items": (1, 10), "scores": (1, 10)}, {"task": "recommendation"}),
        ({"scores": (1, 100, 3), "boxes": (1, 100, 4)}, {}),
        (
            {"rows": (1, 6, 8400)},
            {"task": "object-detection", "detection": {"label_offset": 1}},
        ),
    ],
)
def test_class_zero_without_a_name(
    tmp_path: Path, outputs: dict[str, tuple[int, ...]], manifest: dict[str, Any]
) -> None:
    """It is background, padding, or labelled by the manifest."""
    model = facts(tmp_path, outputs, manifest, {"labels.txt": "1 helmet\n2 vest\n"})

    assert list(find_labels(model).names) == ["", "helmet", "vest"]


def test_an_unreadable_file_beside_the_model_leaves_it_without_labels(
    tmp_path: Path,
) -> None:
    model = facts(
        tmp_path, {"s": (1, 2)}, {"task": "image-classification"}, {"labels.json": "{"}
    )
    task = select_task(model)
    (best, *_) = task.answer([{"s": np.float32([[0.1, 0.9]])}], AnswerOptions(), None)

    assert best["label"] == "1"
    assert len(model.notes) == 1
    assert model.notes[0].startswith(
        "the model has no class names: labels.json is not valid JSON"
    )


def test_an_unreadable_file_in_the_manifest_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(
        ModelLoadError,
        match=r"model\.toml: labels names names\.json, which is not valid JSON",
    ):
        find_labels(
            facts(
                tmp_path, {"s": (1, 2)}, {"labels": "names.json"}, {"names.json": "{"}
            )
        )


def test_one_score_and_two_labels_are_a_classifier(tmp_path: Path) -> None:
    """The score is the second label's probability, as in Keras' binary classifiers."""
    task = select_task(
        facts(tmp_path, {"s": (1, 1)}, files={"labels.txt": "cat\ndog\n\n"})
    )

    assert task.name == "image-classification"
    best = task.answer([{"s": np.float32([[0.75]])}], AnswerOptions(), None)[0]
    assert best == {
        "label": "dog",
        "index": 1,
        "score": 0.75,
    }


def test_one_score_and_one_label_are_no_classifier(tmp_path: Path) -> None:
    assert (
        select_task(facts(tmp_path, {"s": (1, 1)}, files={"labels.txt": "cat\n"})).name
        == "tensors"
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("labels.txt", "[2] blue\n[0] red\n[1] green\n"),
        ("labels.txt", "(2) blue\n(0) red\n(1) green\n"),
        ("labels.txt", "2.blue\n0.red\n1.green\n"),
        ("labels.txt", "2;blue\n0;red\n1;green\n"),
        ("labels.txt", "{2: 'blue', 0: 'red', 1: 'green'}"),
        ("labels.txt", "['red', 'green', 'blue']\n"),
        ("labels.txt", '["red", "green", "blue"]'),
        ("labels.txt", '{"2": "blue", "0": "red", "1": "green"}\n'),
        ("labels.txt", '"red"\n"green"\n"blue"\n'),
        ("labels.txt", "'red',\n'green',\n'blue'\n"),
        ("labels.txt", "red,\ngreen,\nblue,\n"),
        ("labels.txt", "- red\n- green\n- blue\n"),
        ("labels.txt", "names:\n  2: blue\n  0: red\n  1: green\n"),
        ("labels.txt", "# classes\n2 blue\n0 red\n1 green\n"),
        ("labels.txt", "2: blue\n  # the first\n0: red\n\n1: green\n# end\n"),
        ("labels.txt", "# classes\nblue 2\nred 0\ngreen 1\n"),
        ("labels.txt", "# YAML\nnames:\n  2: blue\n  0: red\n  1: green\n"),
        ("labels.txt", "names:\n  # comment\n  2: blue\n  0: red\n  1: green\n"),
        ("labels.txt", "# YAML\nnames:\n- red\n# comment\n- green\n- blue\n"),
        ("labels.txt", "('red', 'green', 'blue')\n"),
        ("labels.txt", "((2, 'blue'), (0, 'red'), (1, 'green'))"),
        ("labels.txt", "{'names': ('red', 'green', 'blue')}"),
        ("labels.json", '[[2, "blue"], [0, "red"], [1, "green"]]'),
        ("labels.json", '{"2": {"name": "blue"}, "0": {"name": "red"}, "1": "green"}'),
        (
            "labels.json",
            '{"categories": [{"id": 1, "name": "green"}, {"id": 2, "name": "blue"}, '
            '{"id": 0, "name": "red"}]}',
        ),
        ("labels.csv", "id;name\n2;blue\n0;red\n1;green\n"),
        ("labels.csv", "id\tname\n2\tblue\n0\tred\n1\tgreen\n"),
    ],
)
def test_label_files_of_other_tools(name: str, content: str) -> None:
    assert parse_labels(name, content.encode()).names == ["red", "green", "blue"]


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("# classes\nred\ngreen\nblue\n", ["red", "green", "blue"]),
        ("red, green, blue\n", ["red", "green", "blue"]),
        ("#\n$\n%\n", ["#", "$", "%"]),
    ],
)
def test_names_that_match_the_number_of_classes(content: str, names: list[str]) -> None:
    parsed = parse_labels("labels.txt", content.encode()).names

    assert fit_to_classes(parsed, 3) == names


MONEY = ["1 euro", "2 pounds", "5 yen"]
MONEY_BY_INDEX = ["euro", "pounds", "", "", "yen"]


@pytest.mark.parametrize(
    ("classes", "names"),
    [
        (3, MONEY),
        (0, MONEY),
        (5, MONEY_BY_INDEX),
        (6, ["", *MONEY_BY_INDEX]),
    ],
)
def test_numbers_with_gaps_are_an_index_if_they_match_the_classes(
    tmp_path: Path, classes: int, names: list[str]
) -> None:
    outputs = {"s": (1, classes or -1)}
    files = {"labels.txt": "\n".join(MONEY)}

    labels = find_labels(facts(tmp_path, outputs, files=files))

    assert list(labels.names) == names


@pytest.mark.parametrize("classes", [90, 91, -1])
def test_many_numbers_with_few_gaps_are_an_index(tmp_path: Path, classes: int) -> None:
    numbers = [number for number in range(1, 91) if number % 9]
    files = {"labels.txt": "\n".join(f"{number} kind {number}" for number in numbers)}
    outputs = {"boxes": (1, 10, 4), "scores": (1, 10, classes)}

    labels = find_labels(facts(tmp_path, outputs, files=files))

    first = 0
    if labels.names[0]:
        first = 1
    shifted = ["", *labels.names] if first else labels.names
    assert shifted[8] == "kind 8"
    assert shifted[9] == ""
    assert shifted[89] == "kind 89"


@pytest.mark.parametrize(
    "content",
    [
        "# red\n# green\n",
        "# 0 red\ngreen\n",
        "(red)\n",
        "[red\ngreen]\n",
        "{red}\n",
        "- red\ngreen\n",
        '"a" or "b"\nc\n',
    ],
)
def test_prefixes_that_not_all_names_have_are_kept(content: str) -> None:
    assert parse_labels("labels.txt", content.encode()).names == content.splitlines()
