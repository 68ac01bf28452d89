"""Apply each event to a real server and clients: nothing acknowledged is lost."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from conftest import MODELS
from pocketserve_client import (
    Client,
    NotOurServerError,
    ServerError,
    ServerUnreachableError,
)
from pocketserve_client.automatic import AutomaticTransport
from pocketserve_client.http import HttpTransport
from pocketserve_client.socket import SocketTransport
from pocketserve_client.transport import Request
from pocketserve_simulate.phone.device import PhoneModel
from pocketserve_simulate.phone.events import EventError, PhoneEvent

from .asking import Asker, Record
from .conftest import FLOWER, WIDTH, Served, eventually, width

pytestmark = [pytest.mark.live, pytest.mark.simulated]
TRANSPORTS = ("socket", "http")


def more_right(record: Record, count: int = 10) -> None:
    """Wait for this many further right answers."""
    before = record.right()
    eventually(lambda: record.right() >= before + count)


def doctor(served: Served) -> dict[str, str]:
    """Return the doctor's findings on the phone by subject."""
    command = [
        sys.executable,
        "-m",
        "pocketserve",
        "simulate",
        "--folder",
        str(served.phone.image.folder),
    ]
    command += ["--", "doctor", str(MODELS), "--json"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=90, stdin=subprocess.DEVNULL
    )
    findings = json.loads(done.stdout)["findings"]
    return {
        finding["subject"]: finding["level"] + ": " + finding["sentence"]
        for finding in findings
    }


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_frozen_server_answers_again_after_the_thaw(serve_on, transport):
    """The client times out, and the same client works again later."""
    served = serve_on()
    with served.client(transport, reconnect=0.0) as client:
        assert width(client) == pytest.approx(WIDTH, abs=1e-3)
        freeze = PhoneEvent("freeze")
        served.phone.begin(freeze)
        patient = client.async_predict("petals", FLOWER)
        impatient = client.async_predict("petals", FLOWER)
        with pytest.raises(ServerUnreachableError, match=r"within 0\.5 s"):
            impatient.result(0.5)
        assert served.phone.processes.pid is not None  # the process still exists
        served.phone.end(freeze)
        # Late, but not lost.
        assert patient.result()["predictions"][0]["value"] == pytest.approx(
            WIDTH, abs=1e-3
        )
        assert width(client) == pytest.approx(WIDTH, abs=1e-3)
    assert not served.phone.processes.exits


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_clients_find_a_killed_server_again(serve_on, transport):
    """The next start reports the kill."""
    served = serve_on()
    processes = served.phone.processes
    right = pytest.approx(WIDTH, abs=1e-3)
    kill = PhoneEvent("kill")
    with served.client(transport, reconnect=60.0) as client:
        assert width(client) == right
        before = processes.pid
        served.phone.begin(kill)
        assert processes.pid is None
        ends = [(gone.pid, gone.code, gone.cause) for gone in processes.exits]
        assert ends == [(before, -9, "kill")]
        with pytest.raises(ProcessLookupError):
            os.kill(before, 0)

        pending = client.async_predict("petals", FLOWER)  # while nothing listens
        served.phone.end(kill)
        assert pending.result()["predictions"][0]["value"] == right
        assert width(client) == right
    assert served.await_ready()["pid"] == processes.pid != before
    reason = "was killed, most likely by Android; what helps: termux-wake-lock"
    assert f"(process {before}) {reason}" in served.log


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("kind", ["freeze", "kill"])
def test_answers_around_an_event_are_right(serve_on, kind, transport):
    """A request in progress is answered rightly or fails, and service resumes."""
    served = serve_on()
    with Asker(served.client(transport, timeout=0.4, reconnect=0.0)) as record:
        more_right(record)
        for _ in range(2):
            event = PhoneEvent(kind)
            served.phone.begin(event)
            seen = len(record.errors)
            eventually(lambda seen=seen: len(record.errors) > seen)
            served.phone.end(event)
            more_right(record)
    assert all(isinstance(error, ServerUnreachableError) for error in record.errors)


def cores_of_threads(process: int) -> set[tuple[int, ...]]:
    """Return the sets of cores on which a process's threads may run."""
    cores = set()
    for name in os.listdir(f"/proc/{process}/task"):
        cores.add(tuple(sorted(os.sched_getaffinity(int(name)))))
    return cores


def test_a_background_app_gets_slow_cores_only(serve_on):
    """This affects every thread.

    Models are reopened with as many threads.
    """
    even = PhoneModel(
        "even",
        fast_cores=4,
        slow_cores=4,
        speed=1.0,
        memory_mb=2000,
        slow_khz=2_300_000,
    )
    served = serve_on(even)
    phone = served.phone
    event = PhoneEvent("background")
    all_cores = phone.cores.all
    background = phone.cores.background
    has_fewer = len(all_cores) > len(background)
    with Asker(served.client("socket")) as record:
        more_right(record)
        phone.begin(event)
        assert cores_of_threads(phone.processes.pid) == {background}
        assert phone.speed == pytest.approx(even.slow_speed)
        more_right(record)
        if has_fewer:
            fewer = f"runs with {len(background)} threads now"
            eventually(lambda: fewer in served.log)

        phone.end(event)
        affinity = os.sched_getaffinity(phone.processes.pid or 0)
        assert tuple(sorted(affinity)) == all_cores
        assert phone.speed == 1.0
        if has_fewer:
            usual = f"runs with {len(all_cores)} threads now"
            eventually(lambda: usual in served.log)
        more_right(record)
    assert not record.errors
    assert not phone.processes.exits


def test_a_hot_phone_is_slow_and_reports_it(serve_on):
    """Everything is answered."""
    served = serve_on()
    zone = served.phone.image.root / "sys/class/thermal/thermal_zone0/temp"
    cool = int(zone.read_text())
    hot = PhoneEvent("thermal", options={"speed": 0.2, "degrees": 46})
    with Asker(served.client("http")) as record:
        served.phone.begin(hot)
        more_right(record)
        assert int(zone.read_text()) > cool
        assert served.phone.speed == pytest.approx(0.2)
        assert "the battery is hot (46 °C)" in doctor(served)["battery"]
        served.phone.end(hot)
        assert int(zone.read_text()) == cool
        assert served.phone.speed == 1.0
        more_right(record)
    assert not record.errors


def test_a_low_battery_saves_power(serve_on):
    """It is noticed with the first model, unless Termux:API doesn't answer."""
    served = serve_on()
    low = PhoneEvent("battery")
    hanging = PhoneEvent("battery", options={"answers": 0})
    served.phone.begin(low)
    with Asker(served.client("socket")) as record, served.client("http") as client:
        more_right(record)
        eventually(lambda: "low power (the battery is at 8 %)" in served.log)
        with pytest.raises(ServerError) as refused:
            width(client, parameters={"priority": 7})
        assert refused.value.code == "LOW_POWER"
        assert "the battery is low (8 %)" in doctor(served)["battery"]
        served.phone.begin(hanging)
        assert "does not answer" in doctor(served)["battery"]
        more_right(record)
        served.phone.end(hanging)
        served.phone.end(low)
        assert doctor(served)["battery"].startswith("ok: ")
        more_right(record)
    assert not record.errors


@pytest.mark.parametrize(
    "options",
    [
        {"answers": 0},
        {"percent": 90},
    ],
)
def test_a_hung_battery_program_delays_nothing(serve_on, options):
    """Its end is not awaited either."""
    served = serve_on()
    served.phone.begin(PhoneEvent("battery", options=options))
    with served.client("socket") as client:
        assert width(client, parameters={"priority": 7}) == pytest.approx(
            WIDTH, abs=1e-3
        )
    assert "low power" not in served.log
    served.phone.close()
    assert served.phone.processes.exits[-1].code == 0


def test_mild_memory_pressure_keeps_models_loaded(serve_on):
    """The server and the doctor see the lower figure."""
    served = serve_on()
    some = PhoneEvent("memory_pressure", options={"mb": 250})
    with Asker(served.client("socket")) as record:
        served.phone.begin(some)
        assert (
            "of memory are available: Android will end the server"
            in doctor(served)["memory"]
        )
        more_right(record)
        served.phone.end(some)
        assert doctor(served)["memory"].startswith("ok: ")
    assert not record.errors
    assert not served.phone.processes.exits


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_severe_memory_pressure_kills_the_server(serve_on, transport):
    """Clients get an error and find the next server."""
    served = serve_on()
    before = served.phone.processes.pid
    maximum = PhoneEvent("memory_pressure", options={"mb": 10})
    with Asker(served.client(transport, reconnect=0.0)) as record:
        more_right(record)
        served.phone.begin(maximum)
        eventually(lambda: record.errors)
        assert [(gone.code, gone.cause) for gone in served.phone.processes.exits] == [
            (-9, "memory")
        ]
        served.phone.end(maximum)
        more_right(record)
    assert all(isinstance(error, ServerUnreachableError) for error in record.errors)
    assert (
        f"(process {before}) was killed, most likely by Android; what helps: termux-wake-lock"
        in served.log
    )


@pytest.mark.parametrize(
    "by",
    [
        90 * 86_400,
        -90 * 86_400,
    ],
)
def test_a_clock_jump_changes_the_date_only(serve_on, by):
    """Deadlines, loaded models, connections and open pairings are unaffected."""
    served = serve_on()
    jump = PhoneEvent("clock_jump", options={"by": by})
    right = pytest.approx(WIDTH, abs=1e-3)
    with served.client("socket") as client, Asker(served.client("http")) as record:
        client.open_pairing()
        waiting = client.async_predict("petals", FLOWER, wait=30)
        served.phone.begin(jump)
        assert waiting.result()["predictions"][0]["value"] == right
        assert width(client, wait=30) == right
        more_right(record)

        index = client.index()
        tflite = [entry for entry in index if entry["version"] == "tflite"]
        states = {entry["name"]: entry["state"] for entry in tflite}
        assert states["digits"] == states["petals"] == "READY"
        assert client.pairing_state() == "open"

        # The server really saw another day.
        last = client.statistics("petals", "tflite")[0]["last_inference"] / 1000
        true_now = os.stat(served.folder / "ready.json").st_mtime
        assert abs(last - true_now - by) < 86_400

        served.phone.end(jump)
        assert width(client, wait=30) == right
        more_right(record)
    assert not record.errors
    assert not served.phone.processes.exits


def check_clients_refuse(served: Served, client: Client, token: str) -> None:
    """Check that no client trusts the hijacker of the server's ports."""
    with pytest.raises(ServerUnreachableError):
        width(client)  # the lost connection
    with pytest.raises(NotOurServerError):
        width(client)
    with served.client("socket") as another, pytest.raises(NotOurServerError):
        width(another)
    http_port, socket_port = served.ports
    automatic = AutomaticTransport(
        SocketTransport(("127.0.0.1", socket_port), token, 60),
        HttpTransport(f"http://127.0.0.1:{http_port}", token, 60),
    )
    # It must not fall back to HTTP with the token either.
    with pytest.raises(NotOurServerError):
        automatic.send(Request("GET", "/v2"))
    automatic.close()


def test_a_port_hijacker_gets_no_token(serve_on):
    """Clients send it nothing, and the server reports the taken ports."""
    served = serve_on()
    token = served.token_file.read_text().strip()
    event = PhoneEvent("squatter")
    taken = "Address already in use; stop what uses it or choose another with"
    with served.client("socket", reconnect=0.0) as client:
        assert width(client) == pytest.approx(WIDTH, abs=1e-3)
        served.phone.begin(event)
        hijacker = served.phone.hijackers[event]
        check_clients_refuse(served, client, token)
        eventually(lambda: taken in served.log)

        heard = b"".join(bytes(received) for received in hijacker.received)
        assert heard
        assert token.encode() not in heard
        assert b"petals" not in heard
        assert b"/v2" not in heard

        served.phone.end(event)
        served.await_ready()
        assert width(client) == pytest.approx(WIDTH, abs=1e-3)
    assert served.await_ready()["http"]["port"] == served.ports[0]
    codes = [(gone.code, gone.cause) for gone in served.phone.processes.exits]
    assert codes[0] == (-9, "squatter")
    assert set(codes[1:]) == {(1, "squatter")}


def test_a_hijacker_reads_everything_over_http(serve_on):
    """docs/security.md documents it: HTTP can't identify the listener."""
    served = serve_on()
    token = served.token_file.read_text().strip()
    event = PhoneEvent("squatter")
    with served.client("http", reconnect=0.0) as client:
        assert width(client) == pytest.approx(WIDTH, abs=1e-3)
        served.phone.begin(event)
        hijacker = served.phone.hijackers[event]
        with pytest.raises(ServerUnreachableError):
            width(client)
        assert any(token.encode() in bytes(said) for said in hijacker.received)
        served.phone.end(event)
        served.await_ready()
        assert width(client) == pytest.approx(WIDTH, abs=1e-3)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (PhoneEvent("earthquake"), "there is no event 'earthquake'"),
        (PhoneEvent("memory-presure"), "squatter; did you mean 'memory_pressure'?"),
        (
            PhoneEvent("battery", options={"percnt": 1}),
            "it has percent, plugged, answers; did you mean 'percent'?",
        ),
        (
            PhoneEvent("freeze", options={"hard": 1}),
            "has no option 'hard'; it has none",
        ),
        (
            PhoneEvent("battery", options={"percent": 101}),
            "percent must be a number between 0 and 100, not 101",
        ),
        (PhoneEvent("battery", options={"percent": "8"}), "not '8'"),
        (PhoneEvent("thermal", options={"speed": 0}), "between 0.05 and 1"),
        (PhoneEvent("squatter", options={"ports": [70000]}), "a list of port numbers"),
        (PhoneEvent("squatter", options={"ports": 8470}), "a list of port numbers"),
    ],
)
def test_impossible_events_are_refused(event, expected):
    from pocketserve_simulate.phone.events import check_event

    with pytest.raises(EventError) as caught:
        check_event(event)
    assert expected in str(caught.value)


def test_a_hijacker_cannot_take_used_ports(serve_on):
    """The event is cancelled, and the server is restarted."""
    served = serve_on()
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(EventError, match="cannot be taken"),
    ):
        served.phone.begin(
            PhoneEvent("squatter", options={"ports": [other.getsockname()[1]]})
        )
    assert not served.phone.under_way()
    served.await_ready()
