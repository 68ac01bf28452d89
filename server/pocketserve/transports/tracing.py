"""OpenTelemetry: a span for each request, sent to the collector that the standard environment variables name.

Nothing of OpenTelemetry is imported unless these variables ask for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from pocketserve.engine.statistics import Traffic
from pocketserve.transports.request_log import MAX_ID, path_text

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SERVICE_NAME = "pocketserve"
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
PROTOCOL = "http/protobuf"
CLOSE_S = 2.0  # for sending the last spans when the server ends
MAX_METHOD = 16  # characters, as of the next
MAX_MODEL = 128

log = logging.getLogger(__name__)


def is_requested(environ: Mapping[str, str]) -> bool:
    """Return whether the environment names a collector and doesn't disable traces."""
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if environ.get("OTEL_TRACES_EXPORTER", "otlp").strip() not in ("", "otlp"):
        return False
    return any(environ.get(name, "").strip() for name in ENDPOINTS)


def trace_requests(traffic: Traffic, environ: Mapping[str, str]) -> None:
    """Send a span for each request from now on, or log why that isn't possible.

    Does nothing if the environment doesn't ask for it.
    """
    if not is_requested(environ):
        return
    protocol = _first(environ, PROTOCOLS) or PROTOCOL
    if protocol != PROTOCOL:
        log.warning(
            "no traces are sent: %r is not supported; set OTEL_EXPORTER_OTLP_PROTOCOL=%s",
            protocol,
            PROTOCOL,
        )
        return
    try:
        provider = _open_provider()
    except ImportError:
        log.warning(
            "no traces are sent: OpenTelemetry is not installed; "
            "pip install 'pocketserve[otel]'"
        )
        return
    except Exception as error:  # the SDK refuses a bad variable in many ways
        log.warning("no traces are sent: %s: %s", type(error).__name__, error)
        return
    spans = SpanWriter(provider, traffic.log_request)
    traffic.log_request, traffic.close_log = spans.write, spans.close
    log.info("traces are sent to %s", _first(environ, ENDPOINTS))


def _first(environ: Mapping[str, str], names: tuple[str, ...]) -> str:
    """Return the first of several variables that is set."""
    for name in names:
        if value := environ.get(name, "").strip():
            return value
    return ""


def _open_provider() -> TracerProvider:
    """Return a provider with an OTLP exporter; both read the environment."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    resource = Resource.create()
    name = str(resource.attributes.get("service.name", ""))
    if not name or name.startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": SERVICE_NAME}))
    # Its own end is unbounded where the collector doesn't answer; see `close`.
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


class SpanWriter:
    """Records a span for each answered request, from any thread.

    Args:
        write_line: writes the request's log line as well; None where requests aren't logged.
    """

    def __init__(
        self, provider: TracerProvider, write_line: Callable[..., None] | None
    ) -> None:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import (
            TraceContextTextMapPropagator,
        )

        self._provider, self._write_line = provider, write_line
        self._tracer = provider.get_tracer("pocketserve")
        self._api = trace
        self._propagator = TraceContextTextMapPropagator()

    def write(
        self,
        transport: str,
        method: str,
        path: str,
        model: str,
        status: int,
        *,
        trusted: bool = True,
        **details: Any,
    ) -> None:
        """Record a request; the arguments are those of ``RequestLog.write``."""
        if self._write_line is not None:
            self._write_line(
                transport, method, path, model, status, trusted=trusted, **details
            )
        # Every app on the device can send requests without the token.
        if trusted:
            safe_path = path_text(path.encode("latin-1", "replace"), status)
            attributes = {
                "http.request.method": method[:MAX_METHOD],
                "url.path": safe_path,
                "http.response.status_code": status,
                "http.request.body.size": details["bytes_in"],
                "http.response.body.size": details["bytes_out"],
                "pocketserve.transport": transport,
                "pocketserve.model": model[:MAX_MODEL],
            }
            self._record(
                _name_of(method, safe_path, model, status), attributes, details
            )

    def _record(
        self, name: str, attributes: dict[str, Any], details: Mapping[str, Any]
    ) -> None:
        for key, value in (details.get("ids") or {}).items():
            if value and key != "trace_id":
                attributes[f"pocketserve.{key}"] = value[:MAX_ID]
        ended_ns = time.time_ns()
        duration_ns = int((time.monotonic() - details["started"]) * 1e9)
        span = self._tracer.start_span(
            name,
            context=self._propagator.extract(details.get("trace") or {}),
            kind=self._api.SpanKind.SERVER,
            attributes=attributes,
            start_time=ended_ns - duration_ns,
        )
        if attributes["http.response.status_code"] >= 500:
            span.set_status(self._api.StatusCode.ERROR)
        span.end(ended_ns)

    def close(self) -> None:
        """Send the spans in memory, for a bounded time."""
        thread = threading.Thread(target=self._provider.shutdown, daemon=True)
        thread.start()
        thread.join(CLOSE_S)


def _name_of(method: str, path: str, model: str, status: int) -> str:
    """Return a span's name, of which there are few: method, and path without the model."""
    short = method[:MAX_METHOD]
    if status == HTTPStatus.NOT_FOUND:
        return short
    if not model:
        return f"{short} {path}"
    before, _, after = path.partition(f"/{path_text(model.encode(), status)}")
    return f"{short} {before}/{{model}}{after}"
