"""Health, metadata, configuration, statistics, and control of the models folder over
HTTP.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from conftest import Server
from pocketserve.api.model_config import max_batch_size
from pocketserve.tensors import TensorSpec

FLOWER = json.dumps(
    {
        "inputs": [
            {
                "name": "features",
                "datatype": "FP32",
                "shape": [1, 3],
                "data": [5.1, 3.5, 1.4],
            }
        ]
    }
)
TWO_FLOWERS = FLOWER.replace("[1, 3]", "[2, 3]").replace(
    "[5.1, 3.5, 1.4]", "[5.1, 3.5, 1.4, 6, 3, 4]"
)
NUMBERS = b"[5.1,3.5,1.4]"
PHASES = ("queue", "compute_input", "compute_infer", "compute_output")


def index(server, **body: Any) -> dict[tuple[str, str], tuple[str, str]]:
    """Return state and reason by model and version."""
    answer = server.call(
        "POST", "/v2/repository/index", data=json.dumps(body) if body else b""
    )
    assert answer.status_code == 200, answer.text
    return {
        (one["name"], one["version"]): (one["state"], one.get("reason", ""))
        for one in answer.json()
    }


def control(server, model: str, what: str, body: bytes = b"") -> Any:
    return server.call("POST", f"/v2/repository/models/{model}/{what}", data=body)


def replace(target: Path, content: bytes) -> None:
    fresh = target.with_name(f".{target.name}.new")
    fresh.write_bytes(content)
    fresh.replace(target)


# --- Descriptions


@pytest.mark.parametrize(
    ("path", "document"),
    [
        ("/", {"status": "alive"}),
        ("/v2/health/live", {"live": True}),
        ("/v2/health/ready", {"live": True, "ready": True}),
        ("/v2/models", {"models": ["diabetes", "digits", "numbers", "petals"]}),
        ("/v2/models/petals/ready", {"name": "petals", "ready": True}),
        ("/v2/models/petals/versions/tflite/ready", {"name": "petals", "ready": True}),
    ],
)
def test_health_answers(server, document, path):
    answer = server.call("GET", path)
    assert (answer.status_code, answer.json()) == (200, document)
    assert answer.headers["Content-Type"] == "application/json"


def test_the_server_describes_itself_with_and_without_the_slash(server):
    plain = server.call("GET", "/v2")
    slash = server.call("GET", "/v2/")
    assert plain.json() == slash.json()
    assert set(plain.json()) == {"name", "version", "extensions"}
    assert {"binary_tensor_data", "classification", "statistics"} <= set(
        plain.json()["extensions"]
    )


def test_a_model_describes_its_tensors(server):
    document = server.call("GET", "/v2/models/digits").json()
    assert document["name"] == "digits"
    assert {"tflite", "tflite-int8"} <= set(document["versions"])
    assert document["platform"] == "tensorflow_lite"
    assert document["inputs"] == [
        {"name": "image", "datatype": "FP32", "shape": [-1, 8, 8, 1]}
    ]
    assert document["outputs"] == [
        {"name": "scores", "datatype": "FP32", "shape": [-1, 10]}
    ]
    assert document["parameters"]["version"] == "tflite"
    chosen = server.call("GET", "/v2/models/digits/versions/tflite-int8").json()
    assert chosen["parameters"]["version"] == "tflite-int8"
    assert chosen["parameters"]["file_bytes"] < document["parameters"]["file_bytes"]


def test_a_models_configuration_is_in_tritons_form(server):
    document = server.call("GET", "/v2/models/digits/config").json()
    assert document["name"] == "digits"
    assert document["max_batch_size"] > 0
    assert document["dynamic_batching"] == {}
    image = {
        "name": "image",
        "data_type": "TYPE_FP32",
        "dims": [8, 8, 1],
        "format": "FORMAT_NHWC",
    }
    assert document["input"] == [image]
    scores = {
        "name": "scores",
        "data_type": "TYPE_FP32",
        "dims": [10],
        "label_filename": "labels.txt",
    }
    assert document["output"] == [scores]
    assert "sequence_batching" not in document


def test_a_configuration_omits_a_free_batch_dimension(kit_server):
    batched = set()
    for name in ("dynamic_batch", "strings", "two_inputs", "several_outputs"):
        document = kit_server.call("GET", f"/v2/models/{name}/config").json()
        shapes = []
        for one in kit_server.call("GET", f"/v2/models/{name}").json()["inputs"]:
            shapes.append(one["shape"])
        rows = document["max_batch_size"]
        batched.add(rows > 0)
        dims = [[] if "reshape" in one else one["dims"] for one in document["input"]]
        assert dims == [shape[1:] if rows else shape for shape in shapes]
        assert not rows or all(shape[0] == -1 for shape in shapes)
    assert batched == {True, False}


@pytest.mark.parametrize(
    ("shapes", "rows"),
    [
        ([(-1, 3), (-1,)], 1024),
        ([(1, 224, 224, 3), (1, 1001)], 1),
        ([(1,), (1, 4)], 1),
        ([(-1, 3), (1, 4)], 0),
        ([(2, 3), (2,)], 0),
        ([(), ()], 0),
        ([(1, 3), ()], 0),
    ],
)
def test_the_maximum_batch_size(shapes, rows):
    specs = []
    for place, shape in enumerate(shapes):
        specs.append(TensorSpec(f"t{place}", "FP32", shape))
    assert max_batch_size(specs) == rows
    assert max_batch_size([*specs, TensorSpec("any", "FP32", (-1,), open=True)]) == 0


def test_text_is_called_string_in_a_configuration(kit_server):
    document = kit_server.call("GET", "/v2/models/strings/config").json()
    assert document["input"][0]["data_type"] == "TYPE_STRING"


def test_a_version_with_a_missing_file_is_reported(new_server, models_copy, refused):
    with (models_copy / "petals" / "model.toml").open("a") as manifest:
        manifest.write('[versions.gone]\nfile = "gone.tflite"\n')
    server = new_server(models_copy)
    reason = "versions.gone.file names gone.tflite, which does not exist"
    assert reason in refused(
        server.call("GET", "/v2/models/petals/versions/gone"), 503, "MODEL_FAILED"
    )
    assert reason in refused(
        server.call("GET", "/v2/models/petals/versions/gone/ready"),
        503,
        "MODEL_NOT_READY",
    )
    refused(
        server.call("GET", "/v1/models/petals/versions/gone"), 503, "MODEL_NOT_READY"
    )
    document = server.call("GET", "/v1/models/petals").json()
    gone = next(
        one for one in document["model_version_status"] if one["version"] == "gone"
    )
    assert gone["state"] == "END"
    assert reason in gone["status"]["error_message"]
    assert server.call("POST", "/predictions/petals", data=NUMBERS).status_code == 200


# --- Statistics and metrics


def statistics(
    server, path: str = "/v2/models/stats"
) -> dict[tuple[str, str], dict[str, Any]]:
    return {
        (one["name"], one["version"]): one
        for one in server.call("GET", path).json()["model_stats"]
    }


def metrics(server) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    answer = server.call("GET", "/metrics")
    assert answer.status_code == 200
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.text)
    return {
        (one.name, frozenset(one.labels.items())): one.value
        for family in families
        for one in family.samples
    }


def send(server: Server, path: str, body: object) -> int:
    """Send a POST request; return its status."""
    return server.call("POST", path, data=body).status_code


def send_counted_requests(server: Server) -> None:
    """Send six good and two bad requests to petals, and others that it never gets."""
    infer = "/v2/models/petals/infer"
    for _ in range(3):
        assert send(server, infer, FLOWER) == 200
    assert send(server, infer, TWO_FLOWERS) == 200
    assert send(server, "/predictions/petals", b"[[1,2,3],[4,5,6],[7,8,9]]") == 200
    instances = b'{"instances": [[1,2,3]]}'
    assert send(server, "/v1/models/petals:predict", instances) == 200
    wrong_width = FLOWER.replace("[1, 3]", "[1, 2]").replace("5.1, ", "")
    assert send(server, infer, wrong_width) == 400
    assert send(server, "/predictions/petals", b"hello") == 400

    assert send(server, "/predictions/petals?version=nothing", NUMBERS) == 404
    assert send(server, "/predictions/nothing", NUMBERS) == 404
    zeros = json.dumps([0.0] * 64)
    assert send(server, "/predictions/digits?version=tflite-int8", zeros) == 200


def assert_statistics_of_petals(petals: dict[str, Any]) -> None:
    """Check petals' statistics after the counted requests."""
    assert petals["name"] == "petals"
    assert petals["version"] == "tflite"
    assert petals["inference_count"] == 3 * 1 + 2 + 3 + 1
    assert petals["execution_count"] == 3 + 1 + 1 + 1
    assert petals["last_inference"] > 0
    assert petals["memory_usage"][0]["byte_size"] > 0

    durations = petals["inference_stats"]
    counts = {phase: duration["count"] for phase, duration in durations.items()}
    assert counts == {
        "success": 6,
        "fail": 2,
        "superseded": 0,
        "cancelled": 0,
        "expired": 0,
        "refused": 0,
        "queue": 6,
        "compute_input": 6,
        "compute_infer": 6,
        "compute_output": 6,
        "cache_hit": 0,
        "cache_miss": 0,
    }
    total = sum(durations[phase]["ns"] for phase in PHASES)
    assert durations["success"]["ns"] == total

    batches = {}
    for batch in petals["batch_stats"]:
        batches[batch["batch_size"]] = batch["compute_infer"]["count"]
    assert batches == {
        1: 4,
        2: 1,
        3: 1,
    }


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]
PETALS = frozenset({("model", "petals"), ("version", "tflite")})


def assert_counters_of_petals(samples: Samples, petals: dict[str, Any]) -> None:
    """Check that the counters of petals equal its statistics."""
    success = PETALS | {("outcome", "success")}
    failure = PETALS | {("outcome", "failure")}
    inferences = samples["pocketserve_inferences_total", PETALS]
    assert inferences == petals["inference_count"]
    executions = samples["pocketserve_executions_total", PETALS]
    assert executions == petals["execution_count"]
    assert samples["pocketserve_requests_total", success] == 6
    assert samples["pocketserve_requests_total", failure] == 2
    assert samples["pocketserve_loads_total", success] == 1
    assert samples["pocketserve_loads_total", failure] == 0
    assert samples["pocketserve_load_seconds_total", PETALS] > 0
    assert samples["pocketserve_model_loaded", PETALS] == 1
    assert samples["pocketserve_queue_length", PETALS] == 0


def assert_durations_of_petals(samples: Samples, durations: dict[str, Any]) -> None:
    """Check that the durations of petals equal its statistics."""
    for phase in PHASES:
        labels = PETALS | {("phase", phase)}
        seconds = samples["pocketserve_phase_seconds_total", labels]
        assert seconds == pytest.approx(durations[phase]["ns"] / 1e9)

    buckets = {}
    for (name, labels), value in samples.items():
        if name == "pocketserve_request_seconds_bucket" and labels >= PETALS:
            buckets[dict(labels)["le"]] = value
    assert list(buckets.values()) == sorted(buckets.values())
    assert buckets["+Inf"] == 6
    assert samples["pocketserve_request_seconds_count", PETALS] == 6
    seconds = samples["pocketserve_request_seconds_sum", PETALS]
    assert seconds == pytest.approx(durations["success"]["ns"] / 1e9)


def assert_statistics_by_path(server: Server, petals: dict[str, Any]) -> None:
    """Check which versions the statistics of a model, a version and all list."""
    # The default version never ran, so the used version is the only entry.
    digits = statistics(server, "/v2/models/digits/stats")
    assert list(digits) == [("digits", "tflite-int8")]
    diabetes = statistics(server, "/v2/models/diabetes/stats")
    assert list(diabetes) == [("diabetes", "tflite")]
    of_version = statistics(server, "/v2/models/petals/versions/tflite/stats")
    assert list(of_version.values()) == [petals]
    everything = statistics(server)
    assert everything["petals", "tflite"] == petals
    unused = everything["diabetes", "tflite"]
    assert unused["inference_stats"]["success"]["count"] == 0


def assert_metrics_of_the_process(server: Server, samples: Samples) -> None:
    """Check the metrics that belong to no model."""
    if Path("/proc/self/stat").exists():
        assert samples["process_resident_memory_bytes", frozenset()] > 10 * 2**20
        assert samples["process_cpu_seconds_total", frozenset()] > 0
    memory_bytes = 0
    for version in statistics(server).values():
        if version["memory_usage"]:
            memory_bytes += version["memory_usage"][0]["byte_size"]
    assert samples["pocketserve_models_memory_bytes", frozenset()] == memory_bytes


def test_counters_are_exact(new_server, models_copy):
    server = new_server(models_copy)
    for version in statistics(server).values():
        assert version["inference_count"] == 0
        assert version["last_inference"] == 0

    send_counted_requests(server)

    (petals,) = statistics(server, "/v2/models/petals/stats").values()
    assert_statistics_of_petals(petals)
    assert_statistics_by_path(server, petals)
    samples = metrics(server)
    assert_counters_of_petals(samples, petals)
    assert_durations_of_petals(samples, petals["inference_stats"])
    assert_metrics_of_the_process(server, samples)
    unused_labels = frozenset({("model", "diabetes"), ("version", "tflite")})
    assert ("pocketserve_inferences_total", unused_labels) not in samples

    # Counters survive an unload.
    assert control(server, "petals", "unload").status_code == 200
    (after,) = statistics(server, "/v2/models/petals/stats").values()
    assert after == petals | {"memory_usage": []}


def test_failed_loads_are_counted(new_server, models_copy):
    (models_copy / "broken.tflite").write_bytes(b"\0\0\0\0TFL3" + bytes(64))
    server = new_server(models_copy)
    assert server.call("POST", "/predictions/broken", data=NUMBERS).status_code == 503
    labels = frozenset({("model", "broken"), ("version", "tflite")})
    assert (
        metrics(server)["pocketserve_loads_total", labels | {("outcome", "failure")}]
        == 1
    )


# --- Load and unload


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"parameters": null}', b'{"parameters": {}}']
)
def test_loading_and_unloading(new_server, models_copy, refused, body):
    server = new_server(models_copy)
    assert index(server)["petals", "tflite"] == ("READY", "loads on first use")
    answer = control(server, "petals", "load", body)
    assert answer.status_code == 200
    assert answer.json() == {"name": "petals", "load": True}
    assert index(server)["petals", "tflite"] == ("READY", "")

    answer = control(
        server,
        "petals",
        "unload",
        b'{"parameters": {"unload_dependents": false}}' if body else body,
    )
    assert answer.status_code == 200
    assert answer.json() == {"name": "petals", "unload": True}
    assert index(server)["petals", "tflite"] == ("UNAVAILABLE", "unloaded")
    assert ("petals", "tflite") not in index(server, ready=True)
    text = refused(
        server.call("POST", "/v2/models/petals/infer", data=FLOWER),
        404,
        "MODEL_NOT_FOUND",
    )
    assert text.startswith(
        "Request for unknown model: 'petals' has no available versions"
    )
    refused(server.call("GET", "/v2/models/petals"), 404, "MODEL_NOT_FOUND")
    refused(server.call("GET", "/v2/models/petals/ready"), 503, "MODEL_NOT_READY")
    refused(server.call("GET", "/v1/models/petals"), 503, "MODEL_NOT_READY")
    assert (
        server.call("POST", "/predictions/diabetes", json=[1.0] * 10).status_code == 200
    )

    assert control(server, "petals", "load").status_code == 200
    assert (
        server.call("POST", "/v2/models/petals/infer", data=FLOWER).status_code == 200
    )


def test_an_unknown_model_can_be_unloaded_but_not_loaded(server, refused):
    assert control(server, "nothing", "unload").status_code == 200
    assert "failed to load" in refused(
        control(server, "nothing", "load"), 404, "MODEL_NOT_FOUND"
    )


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("index", b"[]", 400, "MALFORMED_JSON"),
        ("index", b"{", 400, "MALFORMED_JSON"),
        ("index", b'{"ready": "yes"}', 400, "INVALID_REQUEST"),
        ("models/petals/load", b"hello", 400, "MALFORMED_JSON"),
        ("models/petals/unload", b"hello", 400, "MALFORMED_JSON"),
        (
            "models/petals/load",
            b'{"parameters": {"config": "{}"}}',
            501,
            "NOT_IMPLEMENTED",
        ),
        (
            "models/petals/load",
            b'{"parameters": {"file:1/x.tflite": "AAAA"}}',
            501,
            "NOT_IMPLEMENTED",
        ),
    ],
)
def test_invalid_repository_requests_change_nothing(
    server, refused, path, body, status, code
):
    before = index(server)
    refused(server.call("POST", f"/v2/repository/{path}", data=body), status, code)
    assert index(server) == before


def test_a_broken_model_has_a_reason_and_the_others_keep_serving(
    new_server, models_copy, refused
):
    (models_copy / "petals" / "petals.tflite").write_bytes(b"garbage" * 100)
    (models_copy / "broken.tflite").write_bytes(b"\0\0\0\0TFL3" + bytes(100))
    (models_copy / "diabetes" / "model.toml").write_text('taks = "tensors"\n')
    (models_copy / "empty.tflite").touch()
    server = new_server(models_copy)

    for model, reason in (
        ("petals", "petals.tflite is not a TFLite model"),
        ("broken", "damaged"),
        ("empty", "TFL3"),
    ):
        assert (
            server.call("POST", f"/predictions/{model}", data=NUMBERS).status_code
            == 503
        )
        text = refused(server.call("GET", f"/v2/models/{model}"), 503, "MODEL_FAILED")
        assert text.startswith(f"failed to load '{model}' version 'tflite'")
        assert reason in text
        assert index(server)[model, "tflite"] == ("UNAVAILABLE", text)
        assert reason in refused(
            server.call("GET", f"/v2/models/{model}/ready"), 503, "MODEL_NOT_READY"
        )
        assert reason in refused(control(server, model, "load"), 503, "MODEL_FAILED")
    text = refused(server.call("GET", "/v2/models/diabetes"), 503, "MODEL_FAILED")
    assert "diabetes/model.toml: unknown key taks; did you mean 'task'?" in text
    assert index(server)["diabetes", ""][0] == "UNAVAILABLE"
    assert "taks" in index(server)["diabetes", ""][1]
    assert (
        server.call("POST", "/predictions/digits", json=[0.0] * 64).status_code == 200
    )
    assert server.call("GET", "/v2/models").json()["models"] == [
        "broken",
        "diabetes",
        "digits",
        "empty",
        "petals",
    ]


def test_an_impossible_file_name_hides_no_model(new_server, models_copy):
    for kind, text in (
        ("labels", 'labels = "{}"\n'),
        ("file", '[versions.a]\nfile = "{}.tflite"\n'),
    ):
        (models_copy / kind).mkdir()
        shutil.copy(models_copy / "petals" / "petals.tflite", models_copy / kind)
        (models_copy / kind / "model.toml").write_text(text.format("n" * 300))
    server = new_server(models_copy)
    told = index(server)
    assert all(
        "a path inside the model's folder" in told[name, ""][1]
        for name in ("labels", "file")
    )
    assert told["petals", "tflite"][0] == "READY"


def test_a_model_with_unknown_operators_is_rejected(kit_server, refused):
    assert "custom operator" in refused(
        kit_server.call("GET", "/v2/models/custom_op"), 503, "MODEL_FAILED"
    )
    assert index(kit_server)["custom_op", "tflite"][0] == "UNAVAILABLE"
    assert kit_server.call("GET", "/v2/models/strings").status_code == 200


def test_a_repaired_model_is_served_without_a_restart(new_server, models_copy):
    file = models_copy / "petals" / "petals.tflite"
    good = file.read_bytes()
    file.write_bytes(b"garbage")
    server = new_server(models_copy)
    assert server.call("POST", "/predictions/petals", data=NUMBERS).status_code == 503
    replace(file, good)
    assert server.call("POST", "/predictions/petals", data=NUMBERS).status_code == 200
    assert index(server)["petals", "tflite"] == ("READY", "")


def test_the_index_shows_changes_of_the_folder(new_server, models_copy, refused):
    server = new_server(models_copy)
    shutil.copy(models_copy / "petals" / "petals.tflite", models_copy / "copied.tflite")
    shutil.rmtree(models_copy / "diabetes")
    assert {name for name, _ in index(server)} == {"copied", "digits", "petals"}
    shutil.copy(models_copy / "copied.tflite", models_copy / "my copy.tflite")
    state, reason = index(server)["my copy.tflite", ""]
    assert state == "UNAVAILABLE"
    assert "'my copy.tflite' is skipped: a model's name has no spaces" in reason
    shutil.copy(
        models_copy / "copied.tflite", os.fsencode(models_copy) + b"/\xff .tflite"
    )
    assert ("? .tflite", "") in index(server)
    assert server.call("GET", "/v2/models/copied").json()["inputs"][0]["shape"] == [
        -1,
        3,
    ]
    refused(server.call("GET", "/v2/models/diabetes"), 404, "MODEL_NOT_FOUND")
    (models_copy / "copied.tflite").unlink()
    assert "copied" not in {name for name, _ in index(server)}


def test_a_repaired_manifest_is_served(new_server, models_copy):
    """The next request uses the repaired manifest."""
    broken = models_copy / "broken"
    shutil.copytree(models_copy / "petals", broken)
    (broken / "model.toml").write_text("[")
    server = new_server(models_copy)
    for name, status in (("nothing", 404), ("broken", 503)):
        answer = server.call("POST", f"/predictions/{name}", data="[5.1, 3.5, 1.4]")
        assert answer.status_code == status
    shutil.copy(models_copy / "petals" / "model.toml", broken)
    assert (
        server.call("POST", "/predictions/broken", data="[5.1, 3.5, 1.4]").status_code
        == 200
    )


def test_loading_uses_a_new_model_and_a_changed_file(new_server, models_copy):
    server = new_server(models_copy)
    before = server.call("GET", "/v2/models/digits").json()["parameters"]["file_bytes"]
    shutil.copy(models_copy / "petals" / "petals.tflite", models_copy / "copied.tflite")
    assert control(server, "copied", "load").status_code == 200
    assert index(server)["copied", "tflite"] == ("READY", "")
    changed = (models_copy / "digits" / "digits.int8.tflite").read_bytes()
    replace(models_copy / "digits" / "digits.tflite", changed)
    assert control(server, "digits", "load").status_code == 200
    after = server.call("GET", "/v2/models/digits").json()["parameters"]
    assert after["file_bytes"] == len(changed) < before


def test_a_failed_reload_keeps_the_model_serving(new_server, models_copy, refused):
    server = new_server(models_copy)
    first = server.call("POST", "/v2/models/petals/infer", data=FLOWER).json()
    replace(models_copy / "petals" / "petals.tflite", b"garbage")
    assert "failed to load" in refused(
        control(server, "petals", "load"), 503, "MODEL_FAILED"
    )
    assert server.call("POST", "/v2/models/petals/infer", data=FLOWER).json() == first
    assert index(server)["petals", "tflite"][0] == "READY"


def test_a_budget_that_is_too_small_is_explained(new_server, models_copy, refused):
    server = new_server(models_copy, "--memory-budget", "2400")
    answer = server.call("GET", "/v2/models/digits")
    assert "memory budget is 2400" in refused(answer, 503, "MEMORY_BUDGET")
    assert int(answer.headers["Retry-After"]) >= 1
    for _ in range(3):
        assert (
            server.call("POST", "/predictions/petals", data=NUMBERS).status_code == 200
        )
        assert (
            server.call("POST", "/predictions/diabetes", json=[1.0] * 10).status_code
            == 200
        )


def test_models_are_listed_for_kserve_and_openai(server):
    """The object contains the members of both.

    Each client skips the other's.
    """
    document = server.call("GET", "/v1/models").json()
    assert document["models"] == ["diabetes", "digits", "numbers", "petals"]
    assert document["object"] == "list"
    for name, model in zip(document["models"], document["data"], strict=True):
        assert (model["id"], model["object"]) == (name, "model")
        assert model["created"] > 0
    status = server.call("GET", "/v1/models/petals").json()
    assert (status["id"], status["ready"]) == ("petals", True)


def test_embeddings_of_an_unsuitable_model_are_explained(server):
    body = b'{"model": "petals", "input": "x"}'
    answer = server.call("POST", "/v1/embeddings", data=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def test_completions_of_an_unsuitable_model_are_explained(server):
    body = b'{"model": "petals", "messages": [{"role": "user", "content": "x"}]}'
    answer = server.call("POST", "/v1/chat/completions", data=body)
    assert answer.status_code == 400
    assert "is not a language model" in answer.json()["error"]["message"]
