"""Limits of connections: idle clients, eviction and unread answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from http_running import (
    ANSWER,
    HUGE_ANSWER,
    LONG,
    SHORT,
    TOKEN,
    Start,
    ask,
    http_servers,
    is_closed,
    send,
    until,
)
from pocketserve.transports.http.connections import MAX_UNREAD, HttpTimeouts


@pytest.fixture
def start() -> Iterator[Start]:
    with http_servers() as begin:
        yield begin


def test_the_header_and_a_small_body_are_sent_together(start):
    running = start(HttpTimeouts(LONG, LONG, LONG))
    with running.connect() as connection:
        sent = []
        original = None
        assert ask(connection).endswith(b"hello")
        (channel,) = running.channels
        original = channel.send
        channel.send = lambda data, do_close=True: (
            sent.append(bytes(data)) or original(data, do_close=do_close)
        )
        assert ask(connection).endswith(b"hello")
    assert len(sent) == 1
    assert sent[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert sent[0].endswith(b"\r\n\r\nhello")


@pytest.mark.parametrize("attempt", range(5))
def test_a_client_that_sends_no_more_gets_its_whole_answer(start, attempt):
    running = start(HttpTimeouts(LONG, LONG, LONG))
    with running.connect() as connection:
        send(connection, "/huge")
        connection.shutdown(socket.SHUT_WR)
        count = 0
        while part := connection.recv(1 << 20):
            count += len(part)
    assert count > HUGE_ANSWER


def test_urgent_data_ends_the_connection(start):
    running = start(HttpTimeouts(LONG, LONG, LONG))
    with running.connect() as connection:
        connection.send(b"x", socket.MSG_OOB)
        assert is_closed(connection)


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"GET / HTTP/1.1\r\nHost: 127",
        b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\nx",
    ],
)
def test_an_unauthenticated_connection_without_a_request_is_closed(start, said):
    running = start(HttpTimeouts(SHORT, LONG, LONG))
    with running.connect() as connection:
        connection.sendall(said)
        assert is_closed(connection)
    assert running.asked == []


def test_partial_requests_do_not_extend_an_unauthenticated_connection(start):
    running = start(HttpTimeouts(SHORT, LONG, LONG))

    def refused() -> bool:
        try:
            connection.sendall(b"G")
        except OSError:  # reset, or a broken pipe
            return True
        return False

    with running.connect() as connection:
        until(refused)


def test_only_unauthenticated_connections_close_after_their_answer(start):
    running = start(HttpTimeouts(LONG, LONG, LONG))
    with (
        running.connect() as friend,
        running.connect() as unauthenticated,
        running.connect() as guesser,
    ):
        assert ask(friend).endswith(b"hello")
        assert ask(unauthenticated, token=None).endswith(b"hello")
        assert ask(guesser, token="wrong").endswith(b"hello")
        running.hurry(HttpTimeouts(SHORT, LONG, LONG))
        assert is_closed(unauthenticated)
        assert is_closed(guesser)
        assert ask(friend).endswith(b"hello")


def test_an_upload_with_the_token_counts_as_authenticated(start):
    running = start(HttpTimeouts(LONG, LONG, LONG))
    with running.connect() as connection, running.connect() as unauthenticated:
        head = f"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 2\r\n\r\n"
        connection.sendall(head.encode() + b"x")
        until(lambda: any(channel.authenticated for channel in running.channels))
        running.hurry(HttpTimeouts(SHORT, LONG, LONG))
        assert is_closed(unauthenticated)
        connection.sendall(b"y")
        assert connection.recv(65536).endswith(b"hello")


def test_an_idle_authenticated_connection_is_closed(start):
    running = start(HttpTimeouts(LONG, SHORT, LONG))
    with running.connect() as connection:
        assert ask(connection).endswith(b"hello")
        assert is_closed(connection)


def test_a_running_request_outlasts_every_timeout(start):
    running = start(HttpTimeouts(LONG, LONG, LONG))
    with running.connect() as connection:
        send(connection, "/wait")
        until(lambda: running.asked == ["/wait"])
        running.hurry(HttpTimeouts(SHORT, SHORT, SHORT))
        with running.connect() as unauthenticated:
            assert is_closed(unauthenticated)
        running.release.set()
        assert connection.recv(65536).endswith(b"hello")


def test_the_longest_idle_unauthenticated_connection_is_evicted(start):
    running = start(HttpTimeouts(LONG, LONG, LONG), maximum=4)
    with ExitStack() as stack:
        friend = stack.enter_context(running.connect())
        assert ask(friend).endswith(b"hello")
        idle_connections = [stack.enter_context(running.connect()) for _ in range(3)]
        until(lambda: len(running.channels) == 4)
        late_connection = stack.enter_context(running.connect())
        assert ask(late_connection).endswith(b"hello")
        assert is_closed(idle_connections[0])
        assert ask(idle_connections[1], token=None).endswith(b"hello")
        assert ask(idle_connections[2], token=None).endswith(b"hello")
        assert ask(friend).endswith(b"hello")
        assert ask(late_connection).endswith(b"hello")


def test_unauthenticated_connections_cannot_block_others(start):
    running = start(HttpTimeouts(LONG, LONG, LONG), maximum=4)
    with ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(running.connect())
        late_connection = stack.enter_context(running.connect())
        assert ask(late_connection).endswith(b"hello")
        for _ in range(40):
            stack.enter_context(running.connect())
        assert ask(late_connection).endswith(b"hello")


def test_a_connection_with_a_running_request_is_not_evicted(start):
    running = start(HttpTimeouts(LONG, LONG, LONG), maximum=2)
    with ExitStack() as stack:
        first, second = (stack.enter_context(running.connect()) for _ in range(2))
        send(first, "/wait")
        send(second, "/wait")
        until(lambda: len(running.asked) == 2)
        third = stack.enter_context(running.connect())
        send(third, "/")
        running.release.set()
        # One of the two is evicted as soon as it is idle, but only after its answer.
        assert first.recv(65536).endswith(b"hello")
        assert second.recv(65536).endswith(b"hello")
        assert third.recv(65536).endswith(b"hello")


def test_an_arriving_request_is_not_lost_to_a_new_connection(start):
    running = start(HttpTimeouts(LONG, LONG, LONG), maximum=2)
    for _ in range(50):
        with running.connect() as first, running.connect() as second:
            until(lambda: len(running.channels) == 2)
            send(first, "/")
            # second is evicted: first has sent a request
            with running.connect() as third:
                assert first.recv(65536).endswith(b"hello")
                assert ask(third).endswith(b"hello")
                assert is_closed(second)
        until(lambda: running.channels == [])


def test_a_client_that_never_reads_uses_no_thread_and_little_memory(start):
    running = start(HttpTimeouts(LONG, LONG, LONG))
    with ExitStack() as stack:
        # Three times the threads.
        greedy = [stack.enter_context(running.connect()) for _ in range(12)]
        for connection in greedy:
            for _ in range(60):
                send(connection, "/large")
        with running.connect() as honest:
            until(
                lambda: all(
                    channel.total_outbufs_len > MAX_UNREAD
                    for channel in running.channels
                    if channel.requests
                )
            )
            assert ask(honest).endswith(b"hello")
        for channel in running.channels:
            assert channel.total_outbufs_len <= MAX_UNREAD + ANSWER + 1024
        # A client that finally reads gets every answer.
        received = 0
        while received < 60 * ANSWER:
            data = greedy[0].recv(1 << 20)
            assert data, f"closed after {received} bytes"
            received += len(data)


def test_a_client_that_never_reads_is_reset(start):
    running = start(HttpTimeouts(LONG, LONG, LONG))
    with running.connect() as connection:
        for _ in range(60):
            send(connection, "/large")
        running.hurry(HttpTimeouts(LONG, LONG, SHORT))
        until(lambda: running.channels == [])
        assert running.server.pending_output() == 0
        with running.connect() as honest:
            assert ask(honest).endswith(b"hello")


def test_without_connections_the_loop_sleeps_indefinitely(start):
    running = start(HttpTimeouts(LONG, LONG, LONG))
    rest = running.server.close_expired
    rests = []
    running.server.close_expired = lambda: rests.append(rest()) or rests[-1]
    with running.connect() as connection:
        assert ask(connection).endswith(b"hello")
        running.hurry(HttpTimeouts(SHORT, SHORT, SHORT))
        assert is_closed(connection)
    until(lambda: bool(rests) and rests[-1] is None)
