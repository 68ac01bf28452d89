"""Read any bytes or refuse them with the reader's error.

A reader must never hang or crash.
"""

from __future__ import annotations

import random
import signal
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from mutation import mutate
from readers import READERS
from soaking import note, rounds

pytest.importorskip("PIL.Image", reason="pictures need Pillow")

SHORT = 150
LONG = rounds(1_500, 20_000)
CPU_LIMIT_S = 20.0
"""CPU seconds for a file of a few kilobytes; more than that counts as a hang."""


@contextmanager
def bounded() -> Iterator[None]:
    """Raise if the block takes more CPU time than any file may."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(
            f"it took more than {CPU_LIMIT_S:g} s of the processor's time"
        )

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@pytest.mark.parametrize("name", READERS)
def test_valid_files_are_read(name: str, tmp_path: Path) -> None:
    for content in READERS[name].corpus():
        READERS[name].read(content, tmp_path)


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize(
    "length",
    [
        pytest.param(SHORT, id="short"),
        pytest.param(LONG, id="long", marks=pytest.mark.soak),
    ],
)
def test_any_file_is_read_or_refused(name: str, length: int, tmp_path: Path) -> None:
    reader = READERS[name]
    corpus = reader.corpus()
    source = random.Random(zlib.crc32(name.encode()))
    refused = 0
    for number in range(length):
        content = mutate(source.choice(corpus), source, reader.words)
        try:
            with bounded():
                reader.read(content, tmp_path)
        except reader.refuses:
            refused += 1
        except Exception as error:
            (tmp_path / "content").write_bytes(content)
            pytest.fail(
                f"round {number}: {type(error).__name__}: {error}; the content lies in {tmp_path / 'content'}"
            )
    assert name in ("frames", "infer") or refused > 0
    note(f"mutations, {name}", f"{length}: {refused} refused, no other error")


def test_equal_seeds_give_equal_mutations() -> None:
    def some(seed: int) -> list[Any]:
        source = random.Random(seed)
        return [mutate(bytes(range(100)), source, (b"word",)) for _ in range(50)]

    assert some(1) == some(1) != some(2)
