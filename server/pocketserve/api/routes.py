"""The dispatch table: every method and path, for both transports.

A pattern's ``{name}`` stands for one path segment without "/" and ":"; its percent-decoded text is the handler's
``request.path["name"]``. HTTP registers these with Flask; ``openapi.py`` describes them from the same table.
"""

from __future__ import annotations

import dataclasses

from pocketserve.api.messages import ApiRequest, ApiResponse, Route
from pocketserve.service import Service


def _openapi(service: Service, request: ApiRequest) -> ApiResponse:
    """This interface in OpenAPI 3.1."""
    from pocketserve.api.openapi import describe_routes  # late: few ask for it

    return describe_routes(ROUTES, service.config.http_port, auth=service.config.auth)


def _oip() -> list[Route]:
    routes = [
        Route("GET", "/v2/health/live", "oip.live", "oip", "health", open=True),
        Route("GET", "/v2/health/ready", "oip.ready", "oip", "health", open=True),
        Route("GET", "/v2", "oip.server_metadata", "oip", "server_metadata"),
        # The protocol's own document writes this path with a slash, its text without.
        Route("GET", "/v2/", "oip.server_metadata", "oip", "server_metadata"),
        Route("GET", "/v2/models", "oip.list_models", "oip", "model_list"),
        Route(
            "GET",
            "/v2/models/stats",
            "oip.statistics",
            "oip",
            "statistics",
            label="_all",
        ),
    ]
    for base in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        routes += [
            Route("GET", base, "oip.model_metadata", "oip", "model_metadata"),
            Route("GET", f"{base}/ready", "oip.model_ready", "oip", "model_ready"),
            Route("GET", f"{base}/config", "oip.model_config", "oip", "model_config"),
            Route(
                "GET",
                f"{base}/interface",
                "oip.model_interface",
                "oip",
                "model_interface",
            ),
            Route("GET", f"{base}/stats", "oip.statistics", "oip", "statistics"),
            Route(
                "POST",
                f"{base}/infer",
                "oip.infer",
                "oip",
                "infer",
                body="infer",
                binary_tensors=True,
            ),
        ]
    model = "/v2/repository/models/{model}"
    return [
        *routes,
        Route(
            "GET",
            "/v2/models/{model}/samples/{sample}",
            "oip.sample",
            "oip",
            "sample",
        ),
        Route(
            "POST",
            "/v2/repository/index",
            "oip.repository_index",
            "repository",
            "index",
            body="index",
        ),
        Route(
            "POST",
            f"{model}/load",
            "oip.repository_load",
            "repository",
            "load",
            body="load",
            local=True,
        ),
        Route(
            "POST",
            f"{model}/unload",
            "oip.repository_unload",
            "repository",
            "unload",
            body="load",
            local=True,
        ),
    ]


def _triton() -> list[Route]:
    routes: list[Route] = []

    def add(
        methods: str,
        path: str,
        handler: str,
        label: str = "",
        answer: str = "not_offered",
    ) -> None:
        for method in methods.split():
            body = "settings" if method == "POST" else None
            routes.append(
                Route(
                    method,
                    path,
                    f"triton.{handler}",
                    "triton",
                    answer,
                    body=body,
                    label=label,
                )
            )

    add("GET POST", "/v2/trace/setting", "trace_setting")
    add("GET POST", "/v2/models/{model}/trace/setting", "trace_setting", "_model")
    add("GET POST", "/v2/logging", "logging_setting")
    for kind in ("system", "cuda"):
        base, label = f"/v2/{kind}sharedmemory", f"_{kind}"
        region = f"{base}/region/{{region}}"
        add("GET", f"{base}/status", "memory_status", label, "regions")
        add("GET", f"{region}/status", "region_status", label)
        add("POST", f"{region}/register", "register_region", label)
        add("POST", f"{region}/unregister", "unregister_region", label, "unregistered")
        add(
            "POST",
            f"{base}/unregister",
            "unregister_region",
            f"{label}_all",
            "unregistered",
        )
    return routes


def _tfserving() -> list[Route]:
    routes = [
        Route("GET", "/", "tfserving.alive", "tfserving", "alive_or_page", open=True),
        Route(
            "GET",
            "/v1/models",
            "openai.models.list_for_all",
            "tfserving",
            "openai_models",
        ),
    ]
    for base in ("/v1/models/{model}", "/v1/models/{model}/versions/{version}"):
        routes += [
            Route(
                "GET", base, "openai.models.model_status", "tfserving", "model_status"
            ),
            Route(
                "GET",
                f"{base}/metadata",
                "tfserving.v1_model_metadata",
                "tfserving",
                "signature_metadata",
            ),
            Route(
                "POST",
                f"{base}:predict",
                "tfserving.v1_predict",
                "tfserving",
                "v1_predict",
                body="v1_predict",
            ),
            *(
                Route(
                    "POST",
                    f"{base}:{verb}",
                    f"tfserving.{verb}",
                    "tfserving",
                    "not_offered",
                    body="settings",
                )
                for verb in ("classify", "regress", "explain")
            ),
        ]
    return routes


def _openai() -> list[Route]:
    def route(path: str, answer: str) -> Route:
        handler = f"openai.generate.{answer}"
        return Route("POST", path, handler, "openai", answer, body=answer, streams=True)

    return [
        route("/v1/chat/completions", "chat_completion"),
        route("/v1/completions", "completion"),
        Route(
            "POST",
            "/v1/responses",
            "openai.responses.create_response",
            "openai",
            "response",
            body="response",
            streams=True,
        ),
        Route(
            "POST",
            "/v1/embeddings",
            "openai.embeddings.embeddings",
            "openai",
            "embeddings",
            body="embeddings",
            streams=True,  # to notice a client that leaves; no part is sent
        ),
        _audio("transcription"),
        _audio("translation"),
    ]


def _audio(answer: str) -> Route:
    return Route(
        "POST",
        f"/v1/audio/{answer}s",
        f"openai.transcriptions.{answer}",
        "openai",
        answer,
        body="sound_form",
        streams=True,
    )


def _generate() -> list[Route]:
    routes = []
    for base in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
        for name, function, answer in (
            ("generate", "generate_whole", "generated"),
            ("generate_stream", "generate_stream", "generated_stream"),
        ):
            routes.append(
                Route(
                    "POST",
                    f"{base}/{name}",
                    f"openai.triton.{function}",
                    "triton",
                    answer,
                    body="generate",
                    streams=True,
                )
            )
    return routes


def _of_one_process() -> list[Route]:
    routes = [
        Route(
            "POST",
            "/pairing/open",
            "pairing.open_desk",
            "pairing",
            "pairing_code",
            body="nothing",
            owner=True,
        ),
        Route(
            "POST",
            "/pairing/close",
            "pairing.close_desk",
            "pairing",
            "pairing_closed",
            body="nothing",
            owner=True,
        ),
        Route(
            "GET", "/pairing", "pairing.state", "pairing", "pairing_state", owner=True
        ),
        Route(
            "POST",
            "/pairing/begin",
            "pairing.begin",
            "pairing",
            "pairing_begun",
            body="pairing_begin",
            open=True,
        ),
        Route(
            "POST",
            "/pairing/finish",
            "pairing.finish",
            "pairing",
            "pairing_done",
            body="pairing_finish",
            open=True,
        ),
        Route(
            "POST",
            "/web/ticket",
            "web.ticket",
            "web",
            "web_ticket",
            body="nothing",
            owner=True,
        ),
        Route(
            "POST",
            "/web/session",
            "web.session",
            "web",
            "web_session",
            body="web_session",
            open=True,
        ),
    ]
    return [dataclasses.replace(route, local=True) for route in routes]


def _own() -> list[Route]:
    # curl -T, TorchServe's example, sends PUT; the version in the path and the health check are TorchServe's, too.
    predictions = [
        Route(
            method, path, "predictions.predict", "predictions", "prediction", body="raw"
        )
        for path in ("/predictions/{model}", "/predictions/{model}/{version}")
        for method in ("POST", "PUT")
    ]
    return [
        *predictions,
        Route("POST", "/v1/rerank", "rerank.rerank", "rerank", "rerank", body="rerank"),
        Route(
            "POST",
            "/rerank",
            "rerank.rerank",
            "rerank",
            "rerank",
            body="rerank",
            label="_short",
        ),
        Route("GET", "/ping", "predictions.ping", "predictions", "alive", open=True),
        *_of_one_process(),
        Route("GET", "/metrics", "metrics.metrics", "metrics", "metrics"),
        # Where TensorFlow Serving has them.
        Route(
            "GET",
            "/monitoring/prometheus/metrics",
            "metrics.metrics",
            "metrics",
            "metrics",
            label="_monitoring",
        ),
        Route("GET", "/openapi.json", "routes._openapi", "metrics", "openapi"),
    ]


ROUTES = (*_oip(), *_triton(), *_tfserving(), *_openai(), *_generate(), *_own())
"""Every route. A literal segment goes before a placeholder: no model can be called "stats"."""
