"""Send traces to a local collector with OpenTelemetry's own SDK."""

from __future__ import annotations

import http.server
import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from conftest import MODELS, Server, StartServer
from numbered_models import await_that
from pocketserve.engine.statistics import Traffic
from pocketserve.transports import tracing

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT_SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{PARENT_SPAN}-01"
ROW = {
    "name": "features",
    "datatype": "FP32",
    "shape": [1, 3],
    "data": [5.1, 3.5, 1.4],
}
BODY = {"id": "order-7", "inputs": [ROW]}


class Collector:
    """An OTLP/HTTP receiver that keeps spans with their service's name."""

    def __init__(self) -> None:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
            ExportTraceServiceRequest,
        )

        spans = self.spans = list[tuple[str, Any]]()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                sent = ExportTraceServiceRequest.FromString(self.rfile.read(size))
                for resource in sent.resource_spans:
                    service = attributes_of(resource.resource)["service.name"]
                    for scope in resource.scope_spans:
                        spans.extend((service, span) for span in scope.spans)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *arguments: object) -> None:
                """Print nothing."""

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self.server.shutdown()
        self.server.server_close()


def attributes_of(item: Any) -> dict[str, Any]:
    """Return the attributes of a span or resource."""
    values = {}
    for pair in item.attributes:
        values[pair.key] = getattr(pair.value, pair.value.WhichOneof("value"))
    return values


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


def send_requests(server: Server) -> None:
    """Send a traced, an unknown, a socket and an unauthenticated request."""
    path = "/v2/models/petals/infer"
    headers = {"traceparent": PARENT, "X-Request-Id": "web-1"}
    assert server.call("POST", path, json=BODY, headers=headers).status_code == 200
    assert server.call("POST", "/predictions/nothing", data=b"[1]").status_code == 404
    with server.connect() as connection:
        connection.call(f"POST {path}", json.dumps(BODY).encode())
    anonymous = server.session.post(f"{server.url}{path}", json=BODY)
    assert anonymous.status_code == 401


@pytest.mark.otel
@pytest.mark.live
def test_each_request_is_a_span_of_its_trace(
    new_server: StartServer, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    server = new_server(MODELS)
    send_requests(server)
    server.stop()  # sends the spans in memory

    posts = [each for each in collector.spans if each[1].name.startswith("POST")]
    assert {service for service, _ in posts} == {"pocketserve"}
    traced, refused, by_socket = (span for _, span in posts)

    assert traced.name == "POST /v2/models/{model}/infer"
    assert traced.trace_id.hex() == TRACE
    assert traced.parent_span_id.hex() == PARENT_SPAN
    assert traced.start_time_unix_nano <= traced.end_time_unix_nano
    attributes = attributes_of(traced)
    assert attributes["http.response.status_code"] == 200
    assert attributes["pocketserve.model"] == "petals"
    assert attributes["pocketserve.request_id"] == "web-1"
    assert attributes["pocketserve.id"] == "order-7"

    assert refused.name == "POST"
    assert attributes_of(refused)["http.response.status_code"] == 404
    assert refused.trace_id.hex() != TRACE
    assert not refused.parent_span_id

    assert by_socket.name == "POST /v2/models/{model}/infer"
    assert attributes_of(by_socket)["pocketserve.transport"] == "socket"


@pytest.mark.otel
@pytest.mark.live
def test_the_standard_variables_name_the_service(
    new_server: StartServer, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    monkeypatch.setenv("OTEL_SERVICE_NAME", "kitchen")
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
    server = new_server(MODELS, "--request-log", "on")
    server.call("GET", "/v2/models/petals")
    await_that(lambda: bool(collector.spans))  # without waiting for the end
    assert {service for service, _ in collector.spans} == {"kitchen"}
    assert "GET /v2/models/petals 200" in server.log.read_text()


@pytest.mark.otel
@pytest.mark.live
def test_a_missing_collector_does_not_delay_answers(
    new_server: StartServer, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    server = new_server(MODELS)
    collector.server.server_close()
    for _ in range(20):
        answer = server.call("POST", "/v2/models/petals/infer", json=BODY)
        assert answer.status_code == 200
    assert server.stop() == 0


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OTEL_SERVICE_NAME": "kitchen"},
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
            "OTEL_SDK_DISABLED": "true",
        },
        {
            "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1",
            "OTEL_TRACES_EXPORTER": "none",
        },
        {"OTEL_EXPORTER_OTLP_ENDPOINT": " "},
    ],
)
def test_nothing_is_traced_by_default(variables: dict[str, str]) -> None:
    traffic = Traffic()
    tracing.trace_requests(traffic, variables)
    assert traffic.log_request is None
    assert traffic.close_log is None


def test_failures_to_trace_are_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    traffic = Traffic()
    with caplog.at_level(logging.WARNING):
        tracing.trace_requests(
            traffic, {**endpoint, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}
        )
    assert "set OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf" in caplog.text
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    for name in [name for name in sys.modules if name.startswith("opentelemetry.")]:
        monkeypatch.delitem(sys.modules, name)
    with caplog.at_level(logging.WARNING):
        tracing.trace_requests(traffic, endpoint)
    assert "pip install 'pocketserve[otel]'" in caplog.text
    assert traffic.log_request is None
