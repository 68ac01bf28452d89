"""The reader of plain YAML."""

from __future__ import annotations

from typing import Any

import pytest

from pocketserve.formats import DamagedFileError
from pocketserve.formats.plain_yaml import read_plain_yaml

DOCUMENTS: dict[str, Any] = {
    "a: 1\nb: -2.5\nc: 1.0e-05\nd: true\ne: null\nf: ''\n": {
        "a": 1,
        "b": -2.5,
        "c": 1e-5,
        "d": True,
        "e": None,
        "f": "",
    },
    '# comment\n---\nno: no # of two\n\'1\': "\\x41\\u00e9\\t\\""\n': {
        "no": "no",
        "1": 'Aé\t"',
    },
    "names:\n- it's\n- 'it''s'\n- a - b\n": {"names": ["it's", "it's", "a - b"]},
    "names:\n  0: a\n  1: 'b: c'\nkpt:\n  0:\n  - x\n  - y\nlast: 1": {
        "names": {0: "a", 1: "b: c"},
        "kpt": {0: ["x", "y"]},
        "last": 1,
    },
    "a: long\n  text\nb: 'two\n  lines'\nc: \"x\\\n  \\ y\"\n": {
        "a": "long text",
        "b": "two lines",
        "c": "x y",
    },
    "a: [640, 480]\nb: {0: x, 1: y}\nc: []\nd: {}\ne:\nf:\n": {
        "a": [640, 480],
        "b": {0: "x", 1: "y"},
        "c": [],
        "d": {},
        "e": None,
        "f": None,
    },
    "- 1\n-\n  - 2\n": [1, [2]],
    "": None,
}


@pytest.mark.parametrize("text", DOCUMENTS)
def test_plain_documents(text: str) -> None:
    assert read_plain_yaml(text) == DOCUMENTS[text]


@pytest.mark.parametrize(
    "text",
    [
        "a: &x 1",
        "a: *x",
        "a: !!python/object x",
        "a: |\n  text",
        "- - 1",
        "- a: 1\n  b: 2",
        "a:\n  b: 1\n    c: 2",
        "a: 1\nb",
        "a: 'x",
        'a: "x',
        "a: [1, [2]]",
        "".join("  " * depth + "a:\n" for depth in range(50)),
        "a: 1\n" * 100_001,
    ],
    ids=range(13),
)
def test_other_documents_are_rejected(text: str) -> None:
    with pytest.raises(DamagedFileError, match="line"):
        read_plain_yaml(text)
