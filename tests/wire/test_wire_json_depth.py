"""Measure a document's depth before parsing it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from pocketserve_wire.strict_json import depth_of

TEXTS = st.text(alphabet='[]{}"\\/:,\n\té€😀a', max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4)
    ),
    max_leaves=12,
)


def depth(value: Any) -> int:
    """Return the depth as the parser nests."""
    if not isinstance(value, list | dict):
        return 0
    return 1 + max(
        (
            depth(child)
            for child in (value if isinstance(value, list) else value.values())
        ),
        default=0,
    )


@given(VALUES, st.booleans(), st.sampled_from([None, 1]))
def test_the_depth_is_that_of_the_parsed_document(
    value: Any, ascii_only: bool, indent: int | None
) -> None:
    assert depth_of(
        json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    ) == depth(value)


@given(VALUES, st.integers(0, 20), st.binary(max_size=20))
@example(None, 0, b"]")
def test_containers_before_a_syntax_error_are_counted(
    value: Any, levels: int, rest: bytes
) -> None:
    """A parser reaches that depth before it finds the error."""
    start = b"[" * levels + json.dumps(value).encode()
    assert depth_of(start + b", " + rest) >= levels + depth(value)


@given(st.text(alphabet='[]{}",:1\\', max_size=40))
def test_no_document_is_parsed_deeper_than_measured(text: str) -> None:
    try:
        value = json.loads(text)
    except ValueError:
        return
    assert depth_of(text.encode()) == depth(value)


DEEP = """
import threading
from pocketserve_wire import ApiError, strict_json
refused = []
def parse(document):
    try:
        strict_json.loads(document)
    except ApiError as error:
        refused.append(error.code.name)
threading.stack_size(256 * 1024)
for document in (b"[" * 200_000, b'{"a":' * 200_000, b"[" * 50_000 + b"]" * 50_000, b'["]",' * 200_000):
    thread = threading.Thread(target=parse, args=(document,))
    thread.start()
    thread.join()
print(refused)
"""


def test_a_small_stack_is_enough() -> None:
    """The parser's own limit may exceed a thread's stack, which would crash."""
    done = subprocess.run(
        [sys.executable, "-c", DEEP],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(["MALFORMED_JSON"] * 4))
