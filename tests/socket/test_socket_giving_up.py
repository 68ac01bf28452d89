"""Cancelled, expired and orphaned requests."""

from __future__ import annotations

import socket
import struct

from pocketserve_wire.frames import Frame, FrameType, encode_frame


def test_a_waiting_request_is_cancelled_at_once(new_server, models_copy, slow):
    server = new_server(models_copy)
    with server.connect() as peer:
        loading = peer.ask(slow.target, slow.body)
        slow.begun()  # sent together, either could be the one that loads
        waiting, patient = (peer.ask(slow.target, slow.body) for _ in range(2))
        peer.cancel(waiting)
        answer = peer.answer()
        assert answer.request_id == waiting
        assert answer.status == 499
        assert answer.code == "CANCELLED"
        slow.finish()
        answers = peer.answers(2)
        assert {one: answers[one].status for one in answers} == {
            loading: 200,
            patient: 200,
        }
        peer.cancel(waiting)  # finished by now
        assert peer.call(slow.target, slow.body).status == 200


def test_a_waiting_request_ends_at_its_deadline(new_server, models_copy, slow):
    server = new_server(models_copy)
    with server.connect() as peer:
        loading = peer.ask(slow.target, slow.body)
        slow.begun()
        hurried = peer.ask(slow.target, slow.body, arg=30)
        answer = peer.answer()
        assert answer.request_id == hurried
        assert answer.status == 504
        assert answer.code == "DEADLINE_EXCEEDED"
        slow.finish()
        answer = peer.answer()
        assert (answer.request_id, answer.status) == (loading, 200)
        assert peer.call(slow.target, slow.body, arg=2**32 - 1).status == 200


def test_a_deadline_counts_from_the_header(new_server, models_copy):
    server = new_server(models_copy, "--load", "petals")
    with server.connect() as peer:
        request = peer.write("POST /predictions/petals", b"[5.1,3.5,1.4]", arg=20)
        peer.send(request[:-1])
        peer.socket.settimeout(0.1)
        try:
            peer.next()
        except TimeoutError:
            peer.socket.settimeout(120)
        peer.send(request[-1:])
        answer = peer.answer()
        assert (answer.status, answer.code) == (504, "DEADLINE_EXCEEDED")


def test_a_lost_connection_cancels_its_waiting_requests(
    local, models_copy, slow, until
):
    server = local(models_dir=models_copy)
    peer = server.connect()
    for _ in range(4):
        peer.ask(slow.target, slow.body)
    slow.begun()
    peer.send(encode_frame(Frame(FrameType.PING)))
    peer.frame(FrameType.PONG)
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.close()
    until(lambda: server.server.workers.busy == 1)  # the one that loads
    slow.finish()
    until(lambda: server.server.workers.busy == 0)
