"""Use NVIDIA's tritonclient[http] with a live server."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from conftest import MODELS, Server, StartServer

pytestmark = pytest.mark.conformance

Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def http() -> ModuleType:
    import tritonclient.http as module

    return module


@contextmanager
def connected(server: Server, **options: Any) -> Iterator[Any]:
    """Return a client that sends the token with its BasicAuth plugin."""
    import tritonclient.http as http
    from tritonclient.http.auth import BasicAuth

    with http.InferenceServerClient(f"127.0.0.1:{server.port}", **options) as client:
        if server.token:
            client.register_plugin(BasicAuth("anybody", server.token))
        yield client


@pytest.fixture
def client(server: Server) -> Iterator[Any]:
    with connected(server) as client:
        yield client


def tensor(name: str, values: Array, datatype: str, *, binary: bool = True) -> Any:
    import tritonclient.http as http

    item = http.InferInput(name, list(values.shape), datatype)
    item.set_data_from_numpy(values, binary_data=binary)
    return item


def image(values: Array, *, binary: bool = True) -> list[Any]:
    return [tensor("image", values, "FP32", binary=binary)]


@pytest.fixture
def scores(client: Any, digit: Array) -> Array:
    """Return the digit's scores by the simplest call."""
    found = client.infer("digits", image(digit)).as_numpy("scores")
    assert found.dtype == np.float32
    assert found.shape == (1, 10)
    assert found.argmax() == 0
    assert found.sum() == pytest.approx(1, abs=1e-4)
    return found


# --- Health, metadata, configuration


def test_health(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("digits")
    assert client.is_model_ready("digits", "tflite-int8")
    assert not client.is_model_ready("nobody")
    assert not client.is_model_ready("digits", "9")


def test_server_metadata(client: Any, new_server: StartServer) -> None:
    metadata = client.get_server_metadata()
    assert metadata["name"] == "pocketserve"
    assert metadata["version"]
    assert {
        "binary_tensor_data",
        "classification",
        "model_repository",
        "statistics",
    } <= set(metadata["extensions"])
    # Triton's own examples insist on its name.
    with connected(new_server(MODELS, "--server-name", "triton")) as other:
        assert other.get_server_metadata()["name"] == "triton"


def test_model_metadata(client: Any) -> None:
    metadata = client.get_model_metadata("digits")
    assert metadata["name"] == "digits"
    assert metadata["platform"] == "tensorflow_lite"
    assert {"torch", "tflite", "tflite-int8"} <= set(metadata["versions"])
    assert metadata["inputs"] == [
        {"name": "image", "datatype": "FP32", "shape": [-1, 8, 8, 1]}
    ]
    assert metadata["outputs"] == [
        {"name": "scores", "datatype": "FP32", "shape": [-1, 10]}
    ]
    assert (
        client.get_model_metadata("digits", "tflite-int8")["parameters"]["version"]
        == "tflite-int8"
    )


def test_model_config(client: Any) -> None:
    config = client.get_model_config("digits", "tflite")
    assert config["name"] == "digits"
    assert config["max_batch_size"] >= 8
    assert "dynamic_batching" in config
    [given] = config["input"]
    assert given["data_type"] == "TYPE_FP32"
    assert given["dims"] == [8, 8, 1]
    assert given["format"] == "FORMAT_NHWC"
    [answered] = config["output"]
    assert answered["dims"] == [10]
    assert answered["label_filename"] == "labels.txt"


def test_unsupported_features_are_explained(
    client: Any, http: ModuleType, digit: Array
) -> None:
    from tritonclient.utils import InferenceServerException

    assert client.get_system_shared_memory_status() == []
    assert client.get_cuda_shared_memory_status() == []
    client.unregister_system_shared_memory()
    client.unregister_cuda_shared_memory("nothing")
    shared = http.InferRequestedOutput("scores")
    shared.set_shared_memory("region", 40)
    for call in (
        lambda: client.register_system_shared_memory("region", "/region", 40),
        lambda: client.infer("digits", image(digit), outputs=[shared]),
        client.get_trace_settings,
        client.get_log_settings,
    ):
        with pytest.raises(InferenceServerException) as caught:
            call()
        assert caught.value.status() == "501"


# --- Inference: every mixture of JSON and binary


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False, None])
def test_binary_and_json(
    client: Any,
    http: ModuleType,
    digit: Array,
    scores: Array,
    binary_in: bool,
    binary_out: bool | None,
) -> None:
    outputs = (
        None
        if binary_out is None
        else [http.InferRequestedOutput("scores", binary_data=binary_out)]
    )
    result = client.infer("digits", image(digit, binary=binary_in), outputs=outputs)
    np.testing.assert_array_equal(result.as_numpy("scores"), scores)
    in_json = "data" in result.get_output("scores")
    assert in_json is (binary_out is False)
    answer = result.get_response()
    assert answer["model_name"] == "digits"
    assert answer["model_version"] == "tflite"
    assert result.get_output("nobody") is None
    assert result.as_numpy("nobody") is None


def test_batches(client: Any, digit: Array, scores: Array) -> None:
    found = client.infer("digits", image(np.repeat(digit, 5, axis=0))).as_numpy(
        "scores"
    )
    np.testing.assert_allclose(found, np.repeat(scores, 5, axis=0), atol=1e-5)


@pytest.mark.parametrize("algorithm", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [True, False])
def test_compression(
    client: Any, digit: Array, scores: Array, algorithm: str, binary: bool
) -> None:
    for options in (
        {"request_compression_algorithm": algorithm},
        {"response_compression_algorithm": algorithm},
        {
            "request_compression_algorithm": algorithm,
            "response_compression_algorithm": algorithm,
        },
    ):
        found = client.infer("digits", image(digit, binary=binary), **options).as_numpy(
            "scores"
        )
        np.testing.assert_array_equal(found, scores)


def test_classification(
    client: Any, http: ModuleType, digit: Array, scores: Array
) -> None:
    for binary in (True, False):
        outputs = [
            http.InferRequestedOutput("scores", binary_data=binary, class_count=3)
        ]
        result = client.infer(
            "digits", image(np.repeat(digit, 2, axis=0)), outputs=outputs
        )
        assert result.get_output("scores")["datatype"] == "BYTES"
        found = result.as_numpy("scores")
        assert found.shape == (2, 3)
        best = found[0, 0].decode() if isinstance(found[0, 0], bytes) else found[0, 0]
        value, index, label = best.split(":")
        assert (index, label) == ("0", "0")
        assert float(value) == pytest.approx(scores.max(), abs=1e-6)


def test_ids_and_parameters(client: Any, digit: Array) -> None:
    result = client.infer(
        "digits",
        image(digit),
        request_id="Löwe 7",
        priority=1,
        timeout=5_000_000,
        parameters={"mine": 1},
    )
    assert result.get_response()["id"] == "Löwe 7"
    assert "id" not in client.infer("digits", image(digit)).get_response()
    sequence = client.infer(
        "digits", image(digit), sequence_id=5, sequence_start=True, sequence_end=True
    )
    assert sequence.as_numpy("scores") is not None


def test_versions(client: Any, digit: Array, scores: Array) -> None:
    result = client.infer("digits", image(digit), model_version="tflite-int8")
    assert result.get_response()["model_version"] == "tflite-int8"
    np.testing.assert_allclose(result.as_numpy("scores"), scores, atol=0.1)


def test_many_concurrent_requests(server: Server, digit: Array, scores: Array) -> None:
    with connected(server, concurrency=4) as client:
        waiting = [
            client.async_infer("digits", image(digit), request_id=str(number))
            for number in range(12)
        ]
        for number, request in enumerate(waiting):
            result = request.get_result(timeout=30)
            assert result.get_response()["id"] == str(number)
            np.testing.assert_array_equal(result.as_numpy("scores"), scores)


# --- Other models and datatypes


def test_texts(odd_server: Server, http: ModuleType) -> None:
    words = np.array(["ja", "Löwe", "", "\u65e5\u672c"], dtype=object)
    with connected(odd_server) as client:
        for binary in (True, False):
            outputs = [
                http.InferRequestedOutput(name, binary_data=binary)
                for name in ("column", "first")
            ]
            result = client.infer(
                "strings",
                [tensor("text", words, "BYTES", binary=binary)],
                outputs=outputs,
            )
            column = result.as_numpy("column")
            assert column.shape == (4, 1)
            # The client gives bytes for binary answers and text for JSON.
            found = []
            for item in column[:, 0]:
                if isinstance(item, str):
                    found.append(item)
                else:
                    found.append(item.decode())
            assert found == words.tolist()
            assert result.as_numpy("first").shape == (1,)


@pytest.mark.parametrize(
    "flags",
    [
        (True, False),
        (False, True),
        (True, True),
        (False, False),
    ],
)
def test_several_inputs_by_their_names(
    odd_server: Server, flags: tuple[bool, bool]
) -> None:
    a = np.array([5, 7], np.float32)
    b = np.array([1, 2], np.float32)
    inputs = [
        tensor("b", b, "FP32", binary=flags[1]),
        tensor("a", a, "FP32", binary=flags[0]),
    ]
    with connected(odd_server) as client:
        total = client.infer("two_inputs", inputs)
        np.testing.assert_array_equal(
            total.as_numpy(total.get_response()["outputs"][0]["name"]), a + b
        )
        chosen = client.infer(
            "two_signatures", inputs, parameters={"signature_name": "subtract"}
        )
        np.testing.assert_array_equal(
            chosen.as_numpy(chosen.get_response()["outputs"][0]["name"]), a - b
        )


def test_several_outputs_mixed(odd_server: Server, http: ModuleType) -> None:
    """FP16 has no JSON form and is sent as binary.

    Other outputs mix both forms.
    """
    x = np.array([0.5, 1, -2, 0], np.float32)
    inputs = [
        tensor("x", x, "FP32", binary=False),
        tensor("flag", np.array(True), "BOOL"),
    ]
    with connected(odd_server) as client:
        specs = {
            spec["name"]: spec["datatype"]
            for spec in client.get_model_metadata("several_outputs")["outputs"]
        }
        assert set(specs.values()) == {"INT64", "FP32", "FP16", "BOOL"}
        whole = client.infer("several_outputs", inputs)
        outputs = [
            http.InferRequestedOutput(
                name, binary_data=datatype == "FP16" or index % 2 == 0
            )
            for index, (name, datatype) in enumerate(reversed(specs.items()))
        ]
        mixed = client.infer("several_outputs", inputs, outputs=outputs)
        for name, datatype in specs.items():
            expected = whole.as_numpy(name)
            assert (
                mixed.as_numpy(name).dtype
                == expected.dtype
                == http.triton_to_np_dtype(datatype)
            )
            np.testing.assert_array_equal(mixed.as_numpy(name), expected)


def test_quantised_input_as_it_is_and_as_real_numbers(odd_server: Server) -> None:
    with connected(odd_server) as client:
        stored = client.infer(
            "int8_io", [tensor("x", np.array([[1, 2, 3]], np.int8), "INT8")]
        )
        real = client.infer(
            "int8_io", [tensor("x", np.array([[0.1, 0.2, 0.3]], np.float32), "FP32")]
        )
    assert [
        stored.get_response()["outputs"][0]["datatype"],
        real.get_response()["outputs"][0]["datatype"],
    ] == [
        "INT8",
        "FP32",
    ]


def test_empty_input(odd_server: Server) -> None:
    empty = np.zeros(0, np.float32)
    with connected(odd_server) as client:
        for binary in (True, False):
            inputs = [
                tensor("a", empty, "FP32", binary=binary),
                tensor("b", empty, "FP32", binary=binary),
            ]
            result = client.infer("two_inputs", inputs)
            assert result.as_numpy(
                result.get_response()["outputs"][0]["name"]
            ).shape == (0,)


# --- Faults


UNKNOWN_MODEL = "Request for unknown model"


def check_error(call: Callable[[], Any], status: str, text: str) -> None:
    """Check the status and the text of a failing call."""
    from tritonclient.utils import InferenceServerException

    with pytest.raises(InferenceServerException) as caught:
        call()
    assert caught.value.status() == status, str(caught.value)
    assert text in caught.value.message()
    assert str(caught.value).startswith(f"[{status}] ")


def test_unknown_names_are_errors(client: Any, digit: Array) -> None:
    from tritonclient.utils import InferenceServerException

    inputs = image(digit)
    check_error(lambda: client.infer("nobody", inputs), "404", UNKNOWN_MODEL)
    check_error(lambda: client.get_model_metadata("nobody"), "404", UNKNOWN_MODEL)
    check_error(lambda: client.get_model_config("nobody"), "404", UNKNOWN_MODEL)
    check_error(
        lambda: client.infer("digits", inputs, model_version="9"), "404", UNKNOWN_MODEL
    )
    check_error(lambda: client.get_inference_statistics("nobody"), "404", "nobody")
    check_error(lambda: client.load_model("nobody"), "404", "failed to load")
    with pytest.raises(InferenceServerException, match=r"Request for unknown model"):
        client.async_infer("nobody", inputs).get_result(timeout=30)
    with pytest.raises(InferenceServerException) as caught:
        client.infer("nobody", inputs)
    assert caught.value.message().startswith(UNKNOWN_MODEL)


def test_mismatched_tensors_are_errors(
    client: Any, http: ModuleType, digit: Array
) -> None:
    wrong_shape = image(np.zeros((1, 7, 8, 1), np.float32))
    shapes = "expected shape [-1, 8, 8, 1], got [1, 7, 8, 1]"
    check_error(lambda: client.infer("digits", wrong_shape), "400", shapes)
    wrong_dtype = [tensor("image", digit.astype(np.float64), "FP64")]
    dtypes = "expected datatype FP32, got FP64"
    check_error(lambda: client.infer("digits", wrong_dtype), "400", dtypes)
    wrong_name = [tensor("picture", digit, "FP32")]
    names = "unexpected inference input 'picture'"
    check_error(lambda: client.infer("digits", wrong_name), "400", names)
    unknown = [http.InferRequestedOutput("nobody")]
    check_error(
        lambda: client.infer("digits", image(digit), outputs=unknown),
        "400",
        "unexpected inference output",
    )
    check_error(lambda: client.infer("digits", []), "400", "image")


def test_trace_settings_are_not_supported(client: Any) -> None:
    check_error(lambda: client.get_trace_settings(), "501", "not traced")


def test_a_file_that_cannot_be_served(odd_server: Server) -> None:
    from tritonclient.utils import InferenceServerException

    with connected(odd_server) as client:
        for call in (client.get_model_metadata, client.load_model):
            with pytest.raises(
                InferenceServerException, match="failed to load 'complex'"
            ) as caught:
                call("complex")
            assert caught.value.status() == "503"
        assert not client.is_model_ready("complex")
        (entry,) = [
            entry
            for entry in client.get_model_repository_index()
            if entry["name"] == "complex"
        ]
        assert entry["state"] == "UNAVAILABLE"
        assert "complex64" in entry["reason"]


def test_configurations_from_the_network_are_refused(client: Any) -> None:
    from tritonclient.utils import InferenceServerException

    with pytest.raises(
        InferenceServerException, match="failed to load 'digits'"
    ) as caught:
        client.load_model("digits", config=json.dumps({"max_batch_size": "16"}))
    assert caught.value.status() == "501"


# --- The token


def test_token_as_a_header(
    server: Server, http: ModuleType, digit: Array, scores: Array
) -> None:
    from tritonclient.utils import InferenceServerException

    headers = {"Authorization": f"Bearer {server.token}"}
    with http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        assert client.is_server_live()
        assert client.is_server_ready()
        found = client.infer("digits", image(digit), headers=headers).as_numpy("scores")
        np.testing.assert_array_equal(found, scores)
        # The client keeps its own headers in that dict; later calls must not break.
        client.infer(
            "digits",
            image(digit),
            headers=headers,
            request_compression_algorithm="gzip",
        )
        assert {"Content-Encoding", "Inference-Header-Content-Length"} <= set(headers)
        assert client.get_model_metadata("digits", headers=headers)["name"] == "digits"
        assert client.get_model_repository_index(headers=headers)
        assert client.is_model_ready("digits", headers=headers)
        for wrong in (None, {"Authorization": "Bearer no"}):
            with pytest.raises(
                InferenceServerException, match="a valid token is required"
            ) as caught:
                client.infer("digits", image(digit), headers=wrong)
            assert caught.value.status() == "401"
        assert not client.is_model_ready("digits")


# --- Model repository and statistics, on a separate server because they change its
# state


def test_repository(new_server: StartServer, digit: Array) -> None:
    from tritonclient.utils import InferenceServerException

    with connected(new_server(MODELS)) as client:
        index = {
            (entry["name"], entry["version"]): entry
            for entry in client.get_model_repository_index()
        }
        assert {name for name, _ in index} == {
            "digits",
            "diabetes",
            "numbers",
            "petals",
        }
        assert index["digits", "tflite"]["state"] == "READY"
        client.load_model("digits")
        client.unload_model("digits")
        assert not client.is_model_ready("digits")
        stopped = next(
            entry
            for entry in client.get_model_repository_index()
            if entry["name"] == "digits"
        )
        assert stopped["state"] == "UNAVAILABLE"
        assert stopped["reason"] == "unloaded"
        with pytest.raises(InferenceServerException) as caught:
            client.infer("digits", image(digit))
        assert caught.value.status() == "404"
        assert caught.value.message().startswith(
            "Request for unknown model: 'digits' has no available versions"
        )
        client.load_model("digits")
        assert client.is_model_ready("digits")
        assert client.infer("digits", image(digit)).as_numpy("scores").argmax() == 0
        client.unload_model("nobody")
        client.unload_model("digits", unload_dependents=True)
        assert not client.is_model_ready("digits")


def rows_run(statistics: list[Any]) -> dict[tuple[str, str], int]:
    """Return the number of rows that each version has run, if any."""
    rows = {}
    for entry in statistics:
        if entry["inference_count"]:
            rows[entry["name"], entry["version"]] = entry["inference_count"]
    return rows


def test_statistics_are_true(new_server: StartServer, digit: Array) -> None:
    from tritonclient.utils import InferenceServerException

    with connected(new_server(MODELS)) as client:
        for rows in (1, 3):
            client.infer("digits", image(np.repeat(digit, rows, axis=0)))
        client.infer("digits", image(digit), model_version="tflite-int8")
        with pytest.raises(InferenceServerException):
            client.infer("digits", image(digit[:, :4]))
        (entry,) = client.get_inference_statistics("digits", "tflite")["model_stats"]
        assert entry["name"] == "digits"
        assert entry["version"] == "tflite"
        assert entry["inference_count"] == 4
        assert entry["execution_count"] == 2
        phases = entry["inference_stats"]
        assert phases["success"]["count"] == 2
        assert phases["fail"]["count"] == 1
        assert all(
            phases[key]["count"] == 2
            for key in ("queue", "compute_input", "compute_infer", "compute_output")
        )
        assert 0 < phases["compute_infer"]["ns"] <= phases["success"]["ns"]
        assert entry["last_inference"] > 0
        whole = client.get_inference_statistics()["model_stats"]
        assert rows_run(whole) == {
            ("digits", "tflite"): 4,
            ("digits", "tflite-int8"): 1,
        }
        client.infer(
            "petals", [tensor("features", np.ones((2, 3), np.float32), "FP32")]
        )
        (only,) = client.get_inference_statistics("petals")["model_stats"]
        assert only["inference_count"] == 2
        assert only["execution_count"] == 1


# --- The asyncio client


# The client reads only the status of a health check, and aiohttp warns about the unread
# rest.
forgetful = pytest.mark.filterwarnings("ignore:Unclosed connection:ResourceWarning")


def run(server: Server, work: Callable[[Any], Awaitable[None]]) -> None:
    """Call a function with an asyncio client that has the token."""
    import tritonclient.http.aio as aio
    from tritonclient.http.auth import BasicAuth

    async def main() -> None:
        async with aio.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
            client.register_plugin(BasicAuth("anybody", server.token or ""))
            await work(client)

    asyncio.run(asyncio.wait_for(main(), 60))
    gc.collect()  # so that the warning appears now and not in another test


@forgetful
def test_aio_describes(server: Server) -> None:
    async def work(client: Any) -> None:
        assert await client.is_server_live()
        assert await client.is_server_ready()
        assert await client.is_model_ready("digits")
        assert not await client.is_model_ready("nobody")
        assert (await client.get_server_metadata())["name"] == "pocketserve"
        assert (await client.get_model_metadata("digits"))["inputs"][0][
            "name"
        ] == "image"
        assert (await client.get_model_config("digits"))["input"][0][
            "data_type"
        ] == "TYPE_FP32"
        names = {entry["name"] for entry in await client.get_model_repository_index()}
        assert names == {"digits", "diabetes", "numbers", "petals"}
        assert (await client.get_inference_statistics("petals"))["model_stats"][0][
            "name"
        ] == "petals"

    run(server, work)


def test_aio_infers(
    server: Server, http: ModuleType, digit: Array, scores: Array
) -> None:
    async def work(client: Any) -> None:
        for binary in (True, False):
            outputs = [http.InferRequestedOutput("scores", binary_data=binary)]
            for coding in (None, "gzip", "deflate"):
                result = await client.infer(
                    "digits",
                    image(digit, binary=binary),
                    outputs=outputs,
                    request_compression_algorithm=coding,
                    response_compression_algorithm=coding,
                )
                np.testing.assert_array_equal(result.as_numpy("scores"), scores)
        together = [
            client.infer("digits", image(digit), request_id=str(number))
            for number in range(8)
        ]
        for number, result in enumerate(await asyncio.gather(*together)):
            assert result.get_response()["id"] == str(number)
            np.testing.assert_array_equal(result.as_numpy("scores"), scores)

    run(server, work)


def test_aio_errors(server: Server, digit: Array) -> None:
    from tritonclient.utils import InferenceServerException

    async def work(client: Any) -> None:
        for call in (
            client.infer("nobody", image(digit)),
            client.get_model_metadata("nobody"),
            client.infer("digits", image(digit), model_version="9"),
        ):
            with pytest.raises(InferenceServerException) as caught:
                await call
            assert caught.value.status() == "404"
            assert caught.value.message().startswith("Request for unknown model")
        with pytest.raises(
            InferenceServerException, match="expected datatype FP32, got INT32"
        ):
            await client.infer(
                "digits", [tensor("image", digit.astype(np.int32), "INT32")]
            )

    run(server, work)


@forgetful
def test_aio_repository(new_server: StartServer) -> None:
    async def work(client: Any) -> None:
        await client.load_model("petals")
        await client.unload_model("petals")
        assert not await client.is_model_ready("petals")
        await client.load_model("petals")
        assert await client.is_model_ready("petals")

    run(new_server(MODELS), work)
