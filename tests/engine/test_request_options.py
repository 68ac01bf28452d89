"""Request options: the earliest limit applies, and invalid parameters are rejected."""

from __future__ import annotations

import functools

import pytest

from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.engine.scheduling.options import (
    DEFAULT_PRIORITY,
    MAX_TIMEOUT_US,
    read_options,
)
from pocketserve_wire import ApiError, ErrorCode

NOW = 1000.0
read = functools.partial(read_options, longest_wait=60.0, clock=lambda: NOW)


@pytest.mark.parametrize(
    ("parameters", "deadline", "expected"),
    [
        ({}, None, 1060.0),
        ({"other": 1}, None, 1060.0),
        ({"timeout": 0}, None, 1060.0),
        ({"timeout": 5_000_000}, None, 1005.0),
        ({"timeout": MAX_TIMEOUT_US}, None, 1060.0),
        ({}, 1003.0, 1003.0),
        ({}, 1100.0, 1060.0),
        ({}, 900.0, 900.0),
        ({"timeout": 5_000_000}, 1003.0, 1003.0),
        ({"timeout": 1_000_000}, 1003.0, 1001.0),
    ],
)
def test_the_earliest_limit_applies(parameters, deadline, expected):
    assert read(parameters, deadline).deadline == expected


def test_the_other_options_are_copied():
    switch = Cancellation()
    terms = read({"priority": 1, "stream": "camera"}, None, switch)
    assert terms.rank == 1
    assert terms.stream == ("", "camera")
    assert terms.arrived == NOW
    assert terms.cancellation is switch
    plain = read({"priority": 0})
    assert plain.rank == DEFAULT_PRIORITY
    assert plain.stream == ""
    assert plain.cancellation is None


@pytest.mark.parametrize(
    "parameters",
    [
        {"timeout": -1},
        {"timeout": 1.5},
        {"timeout": True},
        {"timeout": "5"},
        {"timeout": MAX_TIMEOUT_US + 1},
        {"priority": -1},
        {"priority": 2**32},
        {"priority": "1"},
        {"priority": False},
        {"stream": "x" * 129},
    ],
)
def test_invalid_parameters_are_rejected(parameters):
    with pytest.raises(ApiError) as caught:
        read(parameters)
    assert caught.value.code is ErrorCode.INVALID_PARAMETER
    assert next(iter(parameters)) in caught.value.message


def test_the_transport_sets_the_arrival_time():
    assert read({"stream": "camera"}).arrived == NOW
    late = read({"stream": "camera"}, received=NOW - 2)
    assert (late.arrived, late.deadline) == (NOW - 2, NOW + 60.0)
