"""Requests over the socket: one after the other, many at once, and what is no request at all."""

from __future__ import annotations

import json

import pytest

from framed import Framed

NUMBERS = b"[5.1, 3.5, 1.4]"


@pytest.fixture
def peer(server):
    with server.connect() as connection:
        yield connection


def test_a_request_is_answered(peer):
    answer = peer.call("POST /predictions/petals", NUMBERS)
    assert answer.status == 200 and answer.json_length == len(answer.body)
    assert answer.document["predictions"][0]["name"] == "petal_width"


def test_what_the_server_allows_is_said_in_ready(peer):
    assert peer.limits.max_frame == peer.limits.max_bytes_inflight == 64 * 1024 * 1024
    assert (peer.limits.max_inflight, peer.limits.idle_ms) == (32, 300_000)
    assert peer.limits.server.startswith("pocketserve/")


def test_many_requests_at_once_each_get_their_own_answer(peer):
    asked = {peer.ask("POST /predictions/petals", json.dumps([float(n), 1.0, 1.0]).encode()): n for n in range(20)}
    answers = peer.answers(len(asked))
    values = {number: answers[one].document["predictions"][0]["value"] for one, number in asked.items()}
    for number, value in values.items():
        alone = peer.call("POST /predictions/petals", json.dumps([float(number), 1.0, 1.0]).encode())
        assert alone.document["predictions"][0]["value"] == value


def test_a_server_without_a_token_asks_for_none(new_server, models_copy):
    server = new_server(models_copy, "--no-auth")
    with Framed(server.socket_port, None) as connection:
        assert connection.call("GET /v2").status == 200


def test_the_socket_can_be_switched_off(new_server, models_copy):
    server = new_server(models_copy, "--no-socket")
    assert server.ready["socket"] is None
    assert server.call("GET", "/v2").status_code == 200
