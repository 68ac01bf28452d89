"""What each event does to a real server and real clients, and that nothing acknowledged is lost."""

from __future__ import annotations

import os

import pytest

from pocketserve.simulate.events import Event
from pocketserve_client import ServerUnreachableError

from .conftest import WIDTH, width

pytestmark = pytest.mark.live
TRANSPORTS = ("socket", "http")


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_freeze(serve_on, transport):
    """The client gives up at its deadline; after the thaw the same client has right answers again."""
    served = serve_on()
    with served.client(transport, timeout=0.5, reconnect=0.0) as client, served.client(transport) as patient:
        assert width(client) == pytest.approx(WIDTH, abs=1e-3)
        assert width(patient) == pytest.approx(WIDTH, abs=1e-3)
        freeze = Event("freeze")
        served.phone.begin(freeze)
        waiting = patient.async_predict("petals", [5.1, 3.5, 1.4])
        with pytest.raises(ServerUnreachableError) as caught:
            width(client)
        assert "did not answer" in str(caught.value)
        assert served.phone.alive  # the process is there all the while
        served.phone.end(freeze)
        assert waiting.result()["predictions"][0]["value"] == pytest.approx(WIDTH, abs=1e-3)  # late, but not lost
        assert width(client) == pytest.approx(WIDTH, abs=1e-3)
    assert not served.phone.exits


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_kill(serve_on, transport):
    """A client finds the server again by itself once it is started again; that start tells of the kill."""
    served = serve_on()
    with served.client(transport, reconnect=60.0) as client:
        assert width(client) == pytest.approx(WIDTH, abs=1e-3)
        before = served.phone.pid
        kill = Event("kill")
        served.phone.begin(kill)
        assert not served.phone.alive
        assert [(gone.pid, gone.code, gone.cause) for gone in served.phone.exits] == [(before, -9, "kill")]
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)
        asked = client.async_predict("petals", [5.1, 3.5, 1.4])  # while nobody listens
        served.phone.end(kill)
        assert asked.result()["predictions"][0]["value"] == pytest.approx(WIDTH, abs=1e-3)
        assert width(client) == pytest.approx(WIDTH, abs=1e-3)
    assert served.await_ready()["pid"] == served.phone.pid != before
    assert f"the last server (process {before}) was killed" in served.log
