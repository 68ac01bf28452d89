"""Tests of a version's states and their transition table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserve.engine.lifecycle.state import TRANSITIONS, Event, State, VersionRecord
from pocketserve_wire import ApiError, ErrorCode

ERROR = ApiError(ErrorCode.MODEL_FAILED, "damaged")


def after(*events: Event) -> VersionRecord:
    """Return a version's record after events; failures carry ``ERROR``."""
    record = VersionRecord()
    for event in events:
        record.apply(
            event, ERROR if event in (Event.LOAD_FAILED, Event.RELOAD_FAILED) else None
        )
    return record


@pytest.mark.parametrize(
    ("events", "state", "failed"),
    [
        ((), State.ON_DEMAND, False),
        ((Event.LOAD_STARTED, Event.LOADED), State.READY, False),
        ((Event.LOAD_STARTED, Event.LOAD_FAILED), State.FAILED, True),
        ((Event.LOAD_STARTED, Event.LOAD_FAILED, Event.RESET), State.ON_DEMAND, False),
        (
            (Event.LOAD_STARTED, Event.LOAD_FAILED, Event.LOAD_STARTED, Event.LOADED),
            State.READY,
            False,
        ),
        (
            (Event.LOAD_STARTED, Event.LOADED, Event.LOAD_STARTED, Event.RELOAD_FAILED),
            State.READY,
            True,
        ),
        ((Event.LOAD_STARTED, Event.LOADED, Event.EVICTED), State.ON_DEMAND, False),
        ((Event.LOAD_STARTED, Event.LOADED, Event.UNLOADED), State.STOPPED, False),
        (
            (Event.UNLOADED, Event.LOAD_STARTED, Event.LOAD_DEFERRED),
            State.STOPPED,
            False,
        ),
        (
            (
                Event.LOAD_STARTED,
                Event.LOAD_FAILED,
                Event.LOAD_STARTED,
                Event.LOAD_DEFERRED,
            ),
            State.FAILED,
            True,
        ),
    ],
)
def test_each_event_leads_to_its_state(
    events: tuple[Event, ...], state: State, failed: bool
) -> None:
    """A failed load keeps its error until another decision."""
    record = after(*events)
    assert (record.state, record.error is not None) == (state, failed)


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_random_events(events: list[Event]) -> None:
    """Events outside the table are rejected and change nothing."""
    record = VersionRecord()
    for event in events:
        before = (record.state, record.error)
        possible = (record.state, event) in TRANSITIONS or (record.state, event) == (
            State.LOADING,
            Event.LOAD_DEFERRED,
        )
        if possible:
            record.apply(event, ERROR)
        else:
            with pytest.raises(RuntimeError, match=record.state.value):
                record.apply(event, ERROR)
            assert (record.state, record.error) == before


def test_every_state_except_loading_can_load_and_unload() -> None:
    for state in set(State) - {State.LOADING}:
        assert TRANSITIONS[state, Event.LOAD_STARTED] is State.LOADING
        assert TRANSITIONS[state, Event.UNLOADED] is State.STOPPED
