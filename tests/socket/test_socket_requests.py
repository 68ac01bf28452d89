"""Requests over the socket: concurrent, out of order, cancelled, and over limits."""

from __future__ import annotations

import json
import struct

import pytest

from framed import Framed
from pocketserve_wire.frames import (
    Extension,
    Frame,
    FrameType,
    encode_frame,
    encode_retry_after,
)

NUMBERS = b"[5.1, 3.5, 1.4]"
PETALS = "POST /predictions/petals"
MIB = 1024 * 1024


def test_a_request_is_answered(peer):
    answer = peer.call(PETALS, NUMBERS)
    assert answer.status == 200
    assert answer.json_length == len(answer.body)
    assert not answer.ext
    assert answer.document["predictions"][0]["name"] == "petal_width"


def test_ready_states_the_servers_limits(peer):
    assert peer.limits.max_frame == peer.limits.max_bytes_inflight == 64 * MIB
    assert (peer.limits.max_inflight, peer.limits.idle_ms) == (32, 300_000)
    assert peer.limits.server.startswith("pocketserve/")


def test_concurrent_requests_get_their_own_answers(peer):
    rows = {}
    for number in range(24):
        rows[number] = json.dumps([float(number), 1.0, 1.0]).encode()
    frames = [peer.write(PETALS, row) for row in rows.values()]
    peer.send(b"".join(frames))
    together = peer.answers(len(rows))
    for request_id, row in zip(sorted(together), rows.values(), strict=True):
        alone = peer.call(PETALS, row).document["predictions"]
        assert together[request_id].document["predictions"][0][
            "value"
        ] == pytest.approx(alone[0]["value"], rel=1e-5)


def test_a_request_byte_by_byte(peer):
    for byte in peer.write(PETALS, NUMBERS):
        peer.send(bytes([byte]))
    assert peer.answer().status == 200


def test_ids_may_have_gaps_up_to_the_last(peer):
    for number in (
        7,
        2**31,
        2**32 - 1,
    ):
        assert peer.call("GET /v2", request_id=number).status == 200


def test_bodies_of_every_size_arrive_complete(peer):
    for size in (0, 1, 65_536 - 24, 65_536, 65_537, 300_000, 3 * MIB, 20 * MIB):
        head = json.dumps({"instances": [[1, 2, 3]]}).encode()
        answer = peer.call("POST /v1/models/petals:predict", head.ljust(size))
        assert answer.status == 200


@pytest.mark.parametrize(
    "target",
    ["GET", "GET v2", "GET /v2 HTTP/1.1", "get /v2", "GET http://a/v2", " ", "\x00"],
)
def test_a_malformed_target_fails_only_its_request(peer, target):
    answer = peer.call(target)
    assert (answer.status, answer.code) == (400, "INVALID_REQUEST")
    assert peer.call("GET /v2").status == 200


def test_head_is_answered_without_a_body(peer):
    answer = peer.call("HEAD /v2")
    assert (answer.status, answer.body) == (200, b"")


def test_content_types(peer):
    metrics = peer.call("GET /metrics")
    assert metrics.ext[Extension.CONTENT_TYPE].startswith(b"text/plain")
    assert metrics.json_length == 0
    request = {
        "inputs": [
            {"name": "features", "datatype": "FP32", "shape": [1, 3], "data": [1, 2, 3]}
        ]
    }
    request["parameters"] = {"binary_data_output": True}
    binary = peer.call("POST /v2/models/petals/infer", json.dumps(request).encode())
    assert not binary.ext
    assert 0 < binary.json_length == len(binary.body) - 4


# --- While something runs


def test_answers_arrive_as_they_are_ready(new_server, models_copy, slow):
    server = new_server(models_copy)
    with server.connect() as peer:
        first = peer.ask(slow.target, slow.body)
        slow.begun()
        for _ in range(3):
            assert peer.call(PETALS, NUMBERS).status == 200
        peer.ping(11)
        slow.finish()
        assert peer.answer().request_id == first


def test_requests_and_pings_are_accepted_while_many_wait(new_server, models_copy, slow):
    server = new_server(models_copy)
    with server.connect() as peer:
        waiting = [peer.ask(slow.target, slow.body) for _ in range(20)]
        slow.begun()
        for number in range(20):
            peer.ping(number)
            assert peer.call("GET /v2/health/live").status == 200
        slow.finish()
        answers = peer.answers(len(waiting))
        assert sorted(answers) == waiting
        assert {answer.status for answer in answers.values()} == {200}


def test_a_cancelled_request_is_still_answered(new_server, models_copy, slow):
    server = new_server(models_copy)
    with server.connect() as peer:
        running = peer.ask(slow.target, slow.body)
        slow.begun()
        peer.cancel(running)
        peer.cancel(running)
        peer.cancel(99)
        slow.finish()
        answer = peer.answer()
        assert answer.request_id == running
        assert answer.status == 200 or answer.code == "CANCELLED"
        peer.cancel(running)  # finished by now
        assert peer.call(PETALS, NUMBERS).status == 200


def test_a_request_cancelled_right_away_is_answered(peer):
    for _ in range(20):
        request = peer.write(PETALS, NUMBERS)
        peer.send(request + encode_frame(Frame(FrameType.CANCEL, peer.last_id)))
        answer = peer.answer()
        assert answer.status == 200 or answer.code == "CANCELLED"


# --- Limits


def test_requests_over_the_limit_are_rejected_at_once(new_server, models_copy, slow):
    server = new_server(models_copy, "--socket-inflight", "2")
    with server.connect() as peer:
        assert peer.limits.max_inflight == 2
        running = [peer.ask(slow.target, slow.body) for _ in range(2)]
        slow.begun()
        for size in (3, 100_000):
            refused = peer.call(slow.target, bytes(size))
            assert (refused.status, refused.code) == (429, "QUEUE_FULL")
            assert refused.ext[Extension.RETRY_AFTER_MS] == encode_retry_after(100)
        peer.ping(1)
        with server.connect() as other:
            assert other.call(PETALS, NUMBERS).status == 200
        slow.finish()
        assert sorted(peer.answers(2)) == running
        assert peer.call(PETALS, NUMBERS).status == 200


def test_bodies_over_the_total_limit_are_rejected(new_server, models_copy, slow):
    server = new_server(
        models_copy, "--max-body-bytes", "100000", "--socket-bytes-inflight", "100000"
    )
    with server.connect() as peer:
        running = peer.ask(slow.target, slow.body.ljust(60_000))
        slow.begun()
        refused = peer.call(PETALS, NUMBERS.ljust(60_000))
        assert (refused.status, refused.code) == (429, "QUEUE_FULL")
        assert peer.call(PETALS, NUMBERS.ljust(30_000)).status == 200
        slow.finish()
        assert peer.answer().request_id == running
        assert peer.call(PETALS, NUMBERS.ljust(100_000)).status == 200


def test_a_body_over_the_limit_is_read_and_rejected(new_server, models_copy):
    server = new_server(models_copy, "--max-body-bytes", "100000")
    with server.connect() as peer:
        assert peer.limits.max_frame == 100_000
        assert peer.call(PETALS, NUMBERS.ljust(100_000)).status == 200
        for size in (100_001, 100_000 + MIB):
            answer = peer.call(PETALS, NUMBERS.ljust(size))
            assert (answer.status, answer.code) == (413, "BODY_TOO_LARGE")
        assert peer.call(PETALS, NUMBERS).status == 200
        peer.ask(PETALS, b"", json_length=0)
        assert peer.answer().status == 400
        peer.send(
            peer.write(PETALS, NUMBERS)[:20]
            + struct.pack("<I", 100_000 + MIB + 1)
            + b"x" * 50
        )
        assert peer.ends().document["code"] == "FRAME_TOO_LARGE"


def test_an_answer_over_the_clients_limit(server):
    with server.connect(max_frame=4096) as peer:
        answer = peer.call("GET /openapi.json")
        assert (answer.status, answer.code) == (413, "BODY_TOO_LARGE")
        assert peer.call("GET /v2").status == 200


def test_all_connections_share_the_limit_on_requests(new_server, models_copy, slow):
    server = new_server(models_copy, "--http-threads", "6")
    with server.connect() as first, server.connect() as second:
        for peer in (first, second):
            for _ in range(4):
                peer.ask(slow.target, slow.body)
        slow.begun()
        slow.finish()
        statuses = [
            answer.status
            for peer in (first, second)
            for answer in peer.answers(4).values()
        ]
        assert len(statuses) == 8
        assert set(statuses) <= {200, 429}
        assert statuses.count(200) >= 2


# --- Other settings of the server


def test_a_server_without_a_token_needs_none(new_server, models_copy):
    server = new_server(models_copy, "--no-auth")
    with Framed(server.socket_port, None) as connection:
        assert connection.call("GET /v2").status == 200


def test_the_socket_can_be_switched_off(new_server, models_copy):
    server = new_server(models_copy, "--no-socket")
    assert server.ready["socket"] is None
    assert server.call("GET", "/v2").status_code == 200
