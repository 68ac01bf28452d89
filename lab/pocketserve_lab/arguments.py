"""Bounded numbers as command-line arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TypeVar

MAX_SECONDS = 86_400
MAX_ROUNDS = 1_000_000
MAX_THREADS = 256
Number = TypeVar("Number", int, float)


def parse_seconds(text: str) -> float:
    """Parse a positive duration of at most ``MAX_SECONDS``."""
    seconds = _number(float, text)
    if not 0 < seconds <= MAX_SECONDS:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most {MAX_SECONDS}")
    return seconds


def parse_rounds(text: str) -> int:
    """Parse a number of samples from 1 to ``MAX_ROUNDS``."""
    rounds = _number(int, text)
    if not 1 <= rounds <= MAX_ROUNDS:
        raise argparse.ArgumentTypeError(f"must be between 1 and {MAX_ROUNDS}")
    return rounds


def parse_threads(text: str) -> int:
    """Parse a number of threads; 0 is the default."""
    threads = _number(int, text)
    if not 0 <= threads <= MAX_THREADS:
        raise argparse.ArgumentTypeError(f"must be between 0 and {MAX_THREADS}")
    return threads


def parse_share(text: str) -> float:
    """Parse a share such as ``0.5%`` or ``0.005``."""
    share = _number(float, text.removesuffix("%"))
    if text.endswith("%"):
        share /= 100
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError("must be between 0% and 100%, such as 0.5%")
    return share


def _number(kind: Callable[[str], Number], text: str) -> Number:
    try:
        return kind(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, not {text!r}") from None
