"""Get the same scores for one digit from every client."""

from __future__ import annotations

import asyncio
import json
import subprocess
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from conftest import Server
from pocketserve_client import Client

pytestmark = pytest.mark.conformance

Array = npt.NDArray[Any]

# FP32 survives its decimal form in every protocol, so only batching's rounding is
# tolerated.
TOLERANCE = 1e-6


def with_pocketserve(server: Server, digit: Array) -> Array:
    with Client(server.url, token="unused" * 8) as client:
        return client.infer("digits", {"image": digit})["scores"]


def with_pocketserve_predict(server: Server, digit: Array) -> Array:
    with Client(server.url, token="unused" * 8) as client:
        answer = client.predict("digits", digit.tolist(), top_k=10)
    scores = np.zeros((1, 10))
    for item in answer["predictions"]:
        scores[0, item["index"]] = item["score"]
    return scores


def with_tritonclient(
    server: Server, digit: Array, *, binary_in: bool, binary_out: bool
) -> Array:
    import tritonclient.http as http

    item = http.InferInput("image", list(digit.shape), "FP32")
    item.set_data_from_numpy(digit, binary_data=binary_in)
    outputs = [http.InferRequestedOutput("scores", binary_data=binary_out)]
    with http.InferenceServerClient(f"127.0.0.1:{server.port}") as client:
        return client.infer("digits", [item], outputs=outputs).as_numpy("scores")


def with_kserve(server: Server, digit: Array, protocol: str) -> Array:
    from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

    async def ask() -> Array:
        async with InferenceRESTClient(
            RESTConfig(protocol=protocol, timeout=30)
        ) as client:
            if protocol == "v1":
                answer = await client.infer(
                    server.url, {"instances": digit.tolist()}, "digits"
                )
                return np.array(answer["predictions"])
            item = InferInput("image", list(digit.shape), "FP32")
            item.set_data_from_numpy(digit)
            answer = await client.infer(
                server.url, InferRequest("digits", [item]), "digits"
            )
            return answer.outputs[0].as_numpy()

    return asyncio.run(asyncio.wait_for(ask(), 60))


def with_ovmsclient(server: Server, digit: Array) -> Array:
    from ovmsclient import make_http_client

    client = make_http_client(f"127.0.0.1:{server.port}")
    try:
        return client.predict({"image": digit}, "digits")
    finally:
        client.session.close()


def with_curl(server: Server, digit: Array) -> Array:
    body = {
        "inputs": [
            {
                "name": "image",
                "shape": list(digit.shape),
                "datatype": "FP32",
                "data": digit.tolist(),
            }
        ]
    }
    command = [
        "curl",
        "-q",
        "-sS",
        "--max-time",
        "30",
        "--noproxy",
        "*",
        "-d",
        json.dumps(body),
    ]
    command.append(f"{server.url}/v2/models/digits/infer")
    done = subprocess.run(command, capture_output=True, timeout=60, check=True)
    (output,) = json.loads(done.stdout)["outputs"]
    return np.reshape(output["data"], output["shape"])


WAYS = {
    "pocketserve_client infer": with_pocketserve,
    "pocketserve_client predict": with_pocketserve_predict,
    "tritonclient binary": lambda s, d: with_tritonclient(
        s, d, binary_in=True, binary_out=True
    ),
    "tritonclient JSON": lambda s, d: with_tritonclient(
        s, d, binary_in=False, binary_out=False
    ),
    "tritonclient mixed": lambda s, d: with_tritonclient(
        s, d, binary_in=True, binary_out=False
    ),
    "kserve v1": lambda s, d: with_kserve(s, d, "v1"),
    "kserve v2": lambda s, d: with_kserve(s, d, "v2"),
    "ovmsclient": with_ovmsclient,
    "curl": with_curl,
}


@pytest.mark.parametrize("way", WAYS)
def test_all_clients_get_the_same_scores(
    open_server: Server, digit: Array, way: str
) -> None:
    body = {"instances": digit.tolist()}
    plain = open_server.call("POST", "/v1/models/digits:predict", json=body).json()[
        "predictions"
    ]
    scores = WAYS[way](open_server, digit)
    assert np.shape(scores) == (1, 10)
    np.testing.assert_allclose(scores, plain, rtol=0, atol=TOLERANCE)
