"""The OpenAPI document is correct and complete."""

from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from openapi_spec_validator import validate

from conftest import MODELS
from pocketserve.api.routes import ROUTES
from pocketserve.auth.guard import Guard
from pocketserve.config import load_config
from pocketserve.service import Service
from pocketserve.transports.http.app import create_app
from pocketserve_wire import ErrorCode


@pytest.fixture(scope="module")
def document(server) -> dict:
    answer = server.call("GET", "/openapi.json")
    assert answer.headers["Content-Type"] == "application/json"
    return answer.json()


def operations(document: dict) -> set[tuple[str, str]]:
    return {
        (method.upper(), path)
        for path, item in document["paths"].items()
        for method in item
    }


def test_the_document_is_valid(document):
    validate(document)
    assert document["openapi"].startswith("3.1")


def test_the_document_lists_the_dispatch_table(document):
    assert operations(document) == {(route.method, route.pattern) for route in ROUTES}
    assert len(ROUTES) == len(operations(document))


def test_flask_serves_only_the_dispatch_table(tmp_path: Path):
    service = Service(load_config({"models_dir": tmp_path}, environ={}))
    app = create_app(service, Guard(None))
    registered = {
        (method, re.sub(r"<(?:segment:)?(\w+)>", r"{\1}", rule.rule))
        for rule in app.url_map.iter_rules()
        for method in rule.methods
    }
    # Flask answers HEAD wherever it answers GET.
    table = {(route.method, route.pattern) for route in ROUTES}
    table |= {("HEAD", pattern) for method, pattern in table if method == "GET"}
    assert registered == table


def test_operations_have_descriptions_and_unique_ids(document):
    listed = [
        operation for item in document["paths"].values() for operation in item.values()
    ]
    offered = set()
    for route in ROUTES:
        if route.answer != "not_offered":
            offered.add((route.pattern, route.method.lower()))
    for path, method in offered:
        assert "200" in document["paths"][path][method]["responses"]
    assert len({operation["operationId"] for operation in listed}) == len(listed)
    for operation in listed:
        assert operation["summary"]
        assert "default" in operation["responses"]
    for path, item in document["paths"].items():
        for operation in item.values():
            named = set()
            for one in operation.get("parameters", ()):
                if one["in"] == "path":
                    named.add(one["name"])
            assert named == set(re.findall(r"{(\w+)}", path))


def test_every_error_code_is_listed(document):
    assert document["components"]["schemas"]["Error"]["properties"]["code"]["enum"] == [
        code.name for code in ErrorCode
    ]


def test_open_operations_are_marked(document):
    for route in ROUTES:
        operation = document["paths"][route.pattern][route.method.lower()]
        assert (operation.get("security") == []) == route.open


BODIES = {
    "infer": {
        "inputs": [
            {
                "name": "features",
                "datatype": "FP32",
                "shape": [1, 3],
                "data": [5.1, 3.5, 1.4],
            }
        ]
    },
    "v1_predict": {"instances": [[5.1, 3.5, 1.4]]},
    "raw": [5.1, 3.5, 1.4],
    "index": {"ready": True},
    "load": {},
    "settings": {},
    "nothing": {},
}


def ticket_of(server) -> str:
    return server.call("POST", "/web/ticket").json()["ticket"]


def test_the_page_is_described(server, document):
    """The path / offers JSON to clients and HTML to browsers."""
    described = document["paths"]["/"]["get"]["responses"]["200"]["content"]
    assert set(described) == {"application/json", "text/html"}
    answer = server.call("GET", "/", headers={"Accept": "text/html"})
    assert answer.headers["Content-Type"].startswith("text/html")
    assert "<html" in answer.text


# Pairing needs a multi-step exchange and a reranker a model of its own: tests/pairing
# and test_http_rerank.py cover them. Language models need an engine: tests/llm.
@pytest.mark.parametrize(
    "route",
    [
        route
        for route in ROUTES
        if route.group not in ("pairing", "rerank", "openai")
        and route.body != "generate"
    ],
    ids=lambda route: f"{route.method} {route.pattern}",
)
def test_answers_are_as_described(new_server, server, document, route):
    if route.answer == "unload":
        server = new_server(MODELS)  # the shared one keeps its models
    path = (
        route.pattern.replace("{model}", "petals")
        .replace("{version}", "tflite")
        .replace("{region}", "r")
        .replace("{sample}", "row.json")
    )
    bodies = BODIES | (
        {"web_session": {"ticket": ticket_of(server)}}
        if route.body == "web_session"
        else {}
    )
    body = None
    if route.body:
        body = json.dumps(bodies[route.body])
    answer = server.call(route.method, path, data=body)
    if route.answer == "not_offered":
        assert (answer.status_code, answer.json()["code"]) == (501, "NOT_IMPLEMENTED")
        return
    assert answer.status_code == 200, answer.text
    described = document["paths"][route.pattern][route.method.lower()]["responses"][
        "200"
    ]["content"]
    content_type = answer.headers["Content-Type"].partition(";")[0]
    assert content_type in described
    if content_type == "application/json":
        schema = {
            **described[content_type]["schema"],
            "components": document["components"],
        }
        jsonschema.validate(answer.json(), schema)


def test_errors_are_as_described(server, document):
    for path in ("/nothing", "/v2/models/nothing"):
        schema = {
            "$ref": "#/components/schemas/Error",
            "components": document["components"],
        }
        jsonschema.validate(server.call("GET", path).json(), schema)


def test_every_described_query_parameter_is_accepted(server, document):
    for path, item in document["paths"].items():
        for method, operation in item.items():
            query = {}
            for p in operation.get("parameters", ()):
                if p["in"] == "query":
                    query[p["name"]] = "0"
            url = path.replace("{model}", "petals").replace("{version}", "tflite")
            if query:
                answer = server.call(method.upper(), url, params=query)
                assert "unknown query parameter" not in answer.text, (method, path)
