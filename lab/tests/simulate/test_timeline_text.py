"""Parse events as users write them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserve_simulate.phone.events import (
    KINDS,
    EventError,
    parse_events,
    parse_line,
)


def test_a_timeline_is_parsed():
    events = parse_events("kill@8, freeze@3+2 ,battery@1.5+10:percent=8:plugged=1,")
    assert [(e.kind, e.at, e.seconds, dict(e.options)) for e in events] == [
        ("battery", 1.5, 10.0, {"percent": 8.0, "plugged": 1.0}),
        ("freeze", 3.0, 2.0, {}),
        ("kill", 8.0, 1.0, {}),
    ]
    assert parse_events("") == []
    assert parse_events("background@0")[0].seconds == 5.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("freeze", "looks like freeze@3+2"),
        ("freeze@", "looks like"),
        ("freeze@x", "the start must be a number between 0 and 86400, not 'x'"),
        ("freeze@-1", "the start must be"),
        ("freeze@nan", "the start must be"),
        ("freeze@1+inf", "seconds must be"),
        ("freeze@1+", "seconds must be"),
        ("quake@1", "there is no event 'quake'"),
        ("freeze@1:hard", "an option looks like percent=8, not 'hard'"),
        ("battery@1:percent=900", "percent must be a number between 0 and 100"),
        (",".join(["kill@1"] * 65), "there are 65 events, of 64 at most"),
    ],
)
def test_invalid_timelines_are_refused(text, expected):
    with pytest.raises(EventError) as caught:
        parse_events(text)
    assert expected in str(caught.value)


def test_typed_lines_are_parsed():
    assert parse_line("freeze").seconds == math.inf
    assert parse_line(" freeze  2.5 ").seconds == 2.5
    event = parse_line("battery 10 percent=5 plugged=1")
    assert event.seconds == 10.0
    assert dict(event.options) == {"percent": 5.0, "plugged": 1.0}
    assert dict(parse_line("thermal speed=0.2").options) == {"speed": 0.2}
    with pytest.raises(EventError, match="seconds must be"):
        parse_line("freeze soon")


@given(
    st.text(max_size=60)
    | st.from_regex(r"[a-z_]{1,10}@[0-9.+:=a-z,@-]{0,30}", fullmatch=True)
)
def test_any_text_is_events_or_an_error(text):
    for parse in (
        parse_events,
        lambda line: [parse_line(line)] if line.split() else [],
    ):
        try:
            events = parse(text)
        except EventError:
            continue
        assert all(event.kind in KINDS and event.at >= 0 for event in events)
