"""The states of a version: one table says which event leads where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketserve.engine.lifecycle.state import TRANSITIONS, Event, State, VersionState
from pocketserve_wire import ApiError, ErrorCode

ERROR = ApiError(ErrorCode.MODEL_FAILED, "damaged")


def after(*events: Event) -> VersionState:
    """Return a slot after events; failures bring ``ERROR``."""
    slot = VersionState()
    for event in events:
        slot.apply(event, ERROR if event in (Event.LOAD_FAILED, Event.RELOAD_FAILED) else None)
    return slot


@pytest.mark.parametrize(
    ("events", "state", "failed"),
    [
        ((), State.ON_DEMAND, False),
        ((Event.LOAD_STARTED, Event.LOADED), State.READY, False),
        ((Event.LOAD_STARTED, Event.LOAD_FAILED), State.FAILED, True),
        ((Event.LOAD_STARTED, Event.LOAD_FAILED, Event.ALLOWED), State.ON_DEMAND, False),
        ((Event.LOAD_STARTED, Event.LOAD_FAILED, Event.LOAD_STARTED, Event.LOADED), State.READY, False),
        ((Event.LOAD_STARTED, Event.LOADED, Event.LOAD_STARTED, Event.RELOAD_FAILED), State.READY, True),
        ((Event.LOAD_STARTED, Event.LOADED, Event.EVICTED), State.ON_DEMAND, False),
        ((Event.LOAD_STARTED, Event.LOADED, Event.UNLOADED), State.STOPPED, False),
        ((Event.UNLOADED, Event.LOAD_STARTED, Event.LOAD_DEFERRED), State.STOPPED, False),
        ((Event.LOAD_STARTED, Event.LOAD_FAILED, Event.LOAD_STARTED, Event.LOAD_DEFERRED), State.FAILED, True),
    ],
)
def test_where_events_lead(events: tuple[Event, ...], state: State, failed: bool) -> None:
    """The error of a failed load stays until something else is decided."""
    slot = after(*events)
    assert (slot.state, slot.error is not None) == (state, failed)


@given(st.lists(st.sampled_from(Event), max_size=30))
def test_any_events(events: list[Event]) -> None:
    """What the table does not have is refused and changes nothing."""
    slot = VersionState()
    for event in events:
        before = (slot.state, slot.error)
        possible = (slot.state, event) in TRANSITIONS or (slot.state, event) == (State.LOADING, Event.LOAD_DEFERRED)
        if possible:
            slot.apply(event, ERROR)
        else:
            with pytest.raises(RuntimeError, match=slot.state.value):
                slot.apply(event, ERROR)
            assert (slot.state, slot.error) == before


def test_every_state_but_loading_can_begin_to_load_and_can_be_unloaded() -> None:
    for state in set(State) - {State.LOADING}:
        assert TRANSITIONS[state, Event.LOAD_STARTED] is State.LOADING
        assert TRANSITIONS[state, Event.UNLOADED] is State.STOPPED
