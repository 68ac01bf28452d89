"""Tests of the event loop with epoll and with poll."""

from __future__ import annotations

import os
import select
import threading
from time import monotonic

import pytest

from pocketserve.transports.socket.event_loop import EventLoop
from pocketserve.transports.socket.poller import BROKEN, PollPoller, best_poller

POLLERS = {"best": best_poller, "poll": PollPoller}


@pytest.fixture(params=POLLERS)
def event_loop(request):
    """Return an event loop that has not run."""
    return EventLoop(POLLERS[request.param]())


@pytest.fixture
def running(event_loop):
    """Return a running event loop."""
    thread = threading.Thread(target=event_loop.run)
    thread.start()
    yield event_loop
    event_loop.stop()
    thread.join(120)
    assert not thread.is_alive()


class Heard:
    """Record notifications."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self.told = threading.Semaphore(0)

    def _note(self, event: object) -> None:
        self.events.append(event)
        self.told.release()

    def on_ready(self, events: int) -> None:
        self._note("broken" if events & BROKEN else "ready")

    def on_time(self) -> None:
        self._note(monotonic())

    def on_fault(self) -> None:
        self._note("fault")


def test_each_arming_delivers_one_event(running):
    read, write = os.pipe()
    heard = Heard()
    running.add(read, heard)
    os.write(write, b"x")
    assert not heard.told.acquire(timeout=0.05)
    for _ in range(3):
        running.arm(read)
        assert heard.told.acquire(timeout=120)
        assert not heard.told.acquire(timeout=0.02)
    running.arm(read)
    assert heard.told.acquire(timeout=120)
    running.disarm(read)
    os.close(write)
    assert heard.told.acquire(timeout=120)
    assert heard.events == ["ready"] * 4 + ["broken"]
    running.remove(read, heard)
    running.remove(read, heard)
    os.close(read)


def test_timers_fire_in_order_even_if_set_while_sleeping(running):
    late = Heard()
    soon = Heard()
    never = Heard()
    begun = monotonic()
    running.set_timer(late, begun + 0.2)
    running.set_timer(never, begun + 0.15)
    running.set_timer(soon, begun + 0.05)
    running.set_timer(never, None)
    forgotten = monotonic()
    assert soon.told.acquire(timeout=120)
    assert late.told.acquire(timeout=120)
    assert begun + 0.05 <= soon.events[0] <= late.events[0]
    assert late.events[0] >= begun + 0.2
    # Its time had passed before it was cancelled.
    assert not never.events or forgotten >= begun + 0.15


def test_calls_run_on_the_loops_thread_until_its_end(event_loop):
    thread = threading.Thread(target=event_loop.run)
    thread.start()
    seen: list[threading.Thread] = []
    done = threading.Event()
    assert event_loop.call(
        lambda: (seen.append(threading.current_thread()), done.set())
    )
    assert done.wait(120)
    assert seen == [thread]
    event_loop.stop()
    thread.join(120)
    assert not event_loop.call(done.clear)
    assert done.is_set()
    event_loop.set_timer(Heard(), monotonic())  # nothing is woken any more


def test_a_failing_callback_does_not_end_the_loop(running):
    class Failing(Heard):
        def on_time(self) -> None:
            raise ValueError

    failing = Failing()
    other = Heard()
    running.set_timer(failing, monotonic())
    assert failing.told.acquire(timeout=120)
    assert failing.events == ["fault"]
    running.set_timer(other, monotonic())
    assert other.told.acquire(timeout=120)


def test_a_server_without_epoll(local):
    server = local(event_loop=EventLoop(PollPoller()))
    peers = [server.connect() for _ in range(5)]
    for turn in range(20):
        for peer in peers:
            assert peer.call("POST /predictions/petals", b"[1,2,3]").status == 200
            peer.ping(turn)
    for peer in peers:
        asked = [peer.ask("POST /predictions/petals", b"[1,2,3]") for _ in range(20)]
        assert sorted(peer.answers(20)) == asked
        peer.close()


def test_this_system_has_epoll():
    assert hasattr(select, "epoll") == isinstance(
        best_poller(), getattr(select, "epoll", ())
    )
