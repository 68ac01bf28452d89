"""Base64 and data URLs: accepted spellings, and errors for all others."""

from __future__ import annotations

import base64
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketserve.inference.payload import FormPart, RawPayload
from pocketserve.inference.raw_input import read_raw_inputs
from pocketserve.tasks.base import AnswerOptions, Hints
from pocketserve.tasks.cancellation import cancellation_scope
from pocketserve.tasks.encoded import decode_base64, decode_file, files_in_json
from pocketserve.tasks.selection import select_task
from pocketserve_wire import ApiError, ErrorCode
from vision_models import facts

CONTENT = bytes(range(256))
STANDARD = base64.b64encode(CONTENT).decode()
SAFE = base64.urlsafe_b64encode(CONTENT).decode()


@pytest.mark.parametrize(
    "text",
    [
        STANDARD,
        SAFE,
        STANDARD.rstrip("="),
        SAFE.rstrip("="),
        base64.encodebytes(CONTENT).decode(),
        base64.encodebytes(CONTENT).decode().replace("\n", "\r\n"),
        f"  {STANDARD}\t\n",
        "data:image/png;base64," + STANDARD,
        "DATA:image/png;charset=utf-8;BASE64," + STANDARD,
        "data:;base64," + SAFE,
        "data:image/png;base64," + STANDARD.replace("+", "%2B").replace("=", "%3D"),
    ],
)
def test_each_spelling_is_accepted(text: str) -> None:
    assert decode_file(text, "it") == CONTENT


@pytest.mark.parametrize(
    "text",
    [
        "AB " * 2**20,
        "AB AB\r\n" * 2**19,
        "data:;base64," + "AB A" * 2**19,
        "data:;base64," + "%2F" * 2**20,
    ],
)
def test_decoding_needs_a_few_times_the_memory_of_the_text(text: str) -> None:
    tracemalloc.start()
    try:
        decode_file(text, "it")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 4 * len(text)


class Recorder:
    """A pool of bytes without a limit."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def acquire(self, count: int, check: Callable[[], None]) -> int:
        self.counts.append(count)
        return count

    def release(self, count: int) -> None:
        pass


@pytest.mark.parametrize("head", ["", "data:image/png;base64,"])
def test_text_is_decoded_within_the_budget(tmp_path: Path, head: str) -> None:
    content = bytes(100_000)
    text = head.encode() + base64.b64encode(content)
    task = select_task(
        facts(tmp_path, {"s": (1, 2)}, files={"labels.txt": "cat\ndog\n"})
    )
    hints = Hints("text/plain")
    payload = RawPayload(memoryview(text), AnswerOptions(), hints)
    pool = Recorder()

    with cancellation_scope(pytest.fail, pool):
        found = read_raw_inputs(payload, task, [])

    assert [bytes(item.body) for item in found.inputs] == [content]
    assert len(pool.counts) == 1
    assert pool.counts[0] > 2 * len(text)


def test_a_form_field_is_decoded_within_the_budget(tmp_path: Path) -> None:
    content = bytes(100_000)
    text = base64.b64encode(content)
    task = select_task(
        facts(tmp_path, {"s": (1, 2)}, files={"labels.txt": "cat\ndog\n"})
    )
    part = FormPart("image", memoryview(text), is_file=False)
    payload = RawPayload(memoryview(b""), AnswerOptions(), Hints(), parts=[part])
    pool = Recorder()

    with cancellation_scope(pytest.fail, pool):
        found = read_raw_inputs(payload, task, [])

    assert [bytes(item.body) for item in found.inputs] == [content]
    assert len(pool.counts) == 1
    assert pool.counts[0] > 2 * len(text)


@pytest.mark.parametrize("size", range(9))
def test_each_length_of_padding(size: int) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        text = encode(CONTENT[:size]).decode()
        assert decode_base64(text) == decode_base64(text.rstrip("=")) == CONTENT[:size]


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "aGVsb",
        "aGVs=",
        "aGVs===",
        "aGVs*",
        "aG=Vs",
        "=",
        "====",
        "ä",
        "aGVs\0",
        "data:",
        "data:,abc",
        "data:a,b",
        "data:" + "x" * 300 + ";base64,aGVs",
    ],
)
def test_invalid_base64_is_rejected(text: str) -> None:
    with pytest.raises(
        ApiError, match=r"^it is (not base64|a data URL without base64)"
    ) as caught:
        decode_file(text, "it")
    assert caught.value.code is ErrorCode.INVALID_INPUT


@pytest.mark.parametrize(
    ("value", "files", "is_list"),
    [
        (SAFE, 1, False),
        ({"b64": SAFE}, 1, False),
        ({"image": {"b64": SAFE}}, 1, False),
        ({"x": {"b64": SAFE}}, 1, False),
        ({"instances": [{"b64": SAFE}]}, 1, True),
        ({"instances": [{"x": {"b64": SAFE}}, SAFE]}, 2, True),
        ({"inputs": {"x": [{"b64": SAFE}, SAFE]}}, 2, True),
        ([SAFE] * 64, 64, True),
    ],
)
def test_each_form_of_json_is_accepted(value: Any, files: int, is_list: bool) -> None:
    assert files_in_json(value, "picture", ["x"]) == ([CONTENT] * files, is_list)


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        True,
        {},
        [],
        {"b64": None},
        {"b64": 1},
        {"y": SAFE},
        {"b64": SAFE, "image": SAFE},
        [[SAFE]],
        [SAFE] * 65,
        {"instances": {}},
        {"audio": SAFE},
    ],
)
def test_other_json_is_rejected(value: Any) -> None:
    with pytest.raises(ApiError) as caught:
        files_in_json(value, "picture", ["x"])
    assert caught.value.code is ErrorCode.INVALID_INPUT


values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["b64", "x", "inputs", "k"]), inner)
    ),
    max_leaves=12,
)


@given(values)
@settings(
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=300,
)
def test_random_json_does_no_harm(value: Any) -> None:
    """It is decoded or rejected."""
    try:
        files, _ = files_in_json(value, "picture", ["x"])
    except ApiError:
        return
    assert all(isinstance(file, bytes) for file in files)
