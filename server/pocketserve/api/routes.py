"""The dispatch table: every (method, path) the server answers, for both transports.

A pattern's ``{name}`` stands for one path segment without "/" and ":"; its percent-decoded text is the handler's
``request.path["name"]``. HTTP registers these with Flask; ``openapi.py`` describes them from the same table.
"""

from __future__ import annotations

from pocketserve.api.messages import ApiRequest, ApiResponse, Route
from pocketserve.service import Service


def _openapi(service: Service, request: ApiRequest) -> ApiResponse:
    """This interface in OpenAPI 3.1."""
    from pocketserve.api import openapi  # late: few ask for it

    return openapi.document(ROUTES, service.config.http_port, auth=service.config.auth)


def _oip() -> list[Route]:
    routes = [
        Route("GET", "/v2/health/live", "oip.live", "oip", "health", open=True),
        Route("GET", "/v2/health/ready", "oip.ready", "oip", "health", open=True),
        Route("GET", "/v2", "oip.server_metadata", "oip", "server_metadata"),
        # The protocol's own document writes this path with a slash, its text without.
        Route("GET", "/v2/", "oip.server_metadata", "oip", "server_metadata"),
        Route("GET", "/v2/models", "oip.list_models", "oip", "model_list"),
        Route("GET", "/v2/models/stats", "oip.statistics", "oip", "statistics"),
    ]
    for base in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            Route("GET", base, "oip.model_metadata", "oip", "model_metadata"),
            Route("GET", f"{base}/ready", "oip.model_ready", "oip", "model_ready"),
            Route("GET", f"{base}/config", "oip.model_config", "oip", "model_config"),
            Route("GET", f"{base}/stats", "oip.statistics", "oip", "statistics"),
            Route("POST", f"{base}/infer", "oip.infer", "oip", "infer", body="infer"),
        ]
    return routes


def _repository() -> list[Route]:
    base = "/v2/repository"
    model = f"{base}/models/{{model}}"
    return [
        Route("POST", f"{base}/index", "oip.repository_index", "repository", "index", body="index"),
        Route("POST", f"{model}/load", "oip.repository_load", "repository", "load", body="load"),
        Route("POST", f"{model}/unload", "oip.repository_unload", "repository", "unload", body="load"),
    ]


def _triton() -> list[Route]:
    def get(path: str, handler: str, answer: str = "not_offered", label: str = "") -> Route:
        return Route("GET", path, handler, "triton", answer, label=label)

    def post(path: str, handler: str, answer: str = "not_offered", label: str = "") -> Route:
        return Route("POST", path, handler, "triton", answer, body="settings", label=label)

    routes = []
    for method in (get, post):
        routes += [
            method("/v2/trace/setting", "triton.trace_setting"),
            method("/v2/models/{model}/trace/setting", "triton.trace_setting", label="_model"),
            method("/v2/logging", "triton.logging_setting"),
        ]
    for kind in ("system", "cuda"):
        base, label = f"/v2/{kind}sharedmemory", f"_{kind}"
        region = f"{base}/region/{{region}}"
        routes += [
            get(f"{base}/status", "triton.memory_status", "regions", label),
            get(f"{region}/status", "triton.region_status", "not_offered", label),
            post(f"{region}/register", "triton.register_region", "not_offered", label),
            post(f"{region}/unregister", "triton.unregister_region", "unregistered", label),
            post(f"{base}/unregister", "triton.unregister_region", "unregistered", f"{label}_all"),
        ]
    return routes


def _tfserving() -> list[Route]:
    routes = [
        Route("GET", "/", "tfserving.alive", "tfserving", "alive", open=True),
        Route("GET", "/v1/models", "tfserving.list_models", "tfserving", "model_list"),
    ]
    for base in ("/v1/models/{model}", "/v1/models/{model}/versions/{version}"):
        routes += [
            Route("GET", base, "tfserving.model_status", "tfserving", "model_status"),
            Route("GET", f"{base}/metadata", "tfserving.model_metadata", "tfserving", "signature_metadata"),
            Route("POST", f"{base}:predict", "tfserving.predict", "tfserving", "v1_predict", body="v1_predict"),
            Route("POST", f"{base}:classify", "tfserving.classify", "tfserving", "not_offered", body="settings"),
            Route("POST", f"{base}:regress", "tfserving.regress", "tfserving", "not_offered", body="settings"),
            Route("POST", f"{base}:explain", "tfserving.explain", "tfserving", "not_offered", body="settings"),
        ]
    return routes


def _own() -> list[Route]:
    return [
        Route("POST", "/predictions/{model}", "predictions.predict", "predictions", "prediction", body="raw"),
        # curl -T, TorchServe's example, sends PUT.
        Route("PUT", "/predictions/{model}", "predictions.predict", "predictions", "prediction", body="raw"),
        # TorchServe's path for a version, and its health check.
        Route("POST", "/predictions/{model}/{version}", "predictions.predict", "predictions", "prediction", body="raw"),
        Route("PUT", "/predictions/{model}/{version}", "predictions.predict", "predictions", "prediction", body="raw"),
        Route("GET", "/ping", "predictions.ping", "predictions", "alive", open=True),
        Route("POST", "/pairing/open", "pairing.open_desk", "pairing", "pairing_code", body="nothing", owner=True),
        Route("POST", "/pairing/close", "pairing.close_desk", "pairing", "pairing_closed", body="nothing", owner=True),
        Route("GET", "/pairing", "pairing.state", "pairing", "pairing_state", owner=True),
        Route("POST", "/pairing/begin", "pairing.begin", "pairing", "pairing_begun", body="pairing_begin", open=True),
        Route("POST", "/pairing/finish", "pairing.finish", "pairing", "pairing_done", body="pairing_finish", open=True),
        Route("GET", "/metrics", "metrics.metrics", "metrics", "metrics"),
        # Where TensorFlow Serving has them.
        Route("GET", "/monitoring/prometheus/metrics", "metrics.metrics", "metrics", "metrics", label="_monitoring"),
        Route("GET", "/openapi.json", "routes._openapi", "metrics", "openapi"),
    ]


ROUTES = (*_oip(), *_repository(), *_triton(), *_tfserving(), *_own())
"""Every route. A literal segment goes before a placeholder: no model can be called "stats"."""
