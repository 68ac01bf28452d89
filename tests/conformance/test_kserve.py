"""Use KServe's InferenceRESTClient with both of its protocols."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from conftest import MODELS, Server, StartServer

pytestmark = pytest.mark.conformance

Array = npt.NDArray[Any]


def run(protocol: str, work: Callable[[Any], Awaitable[None]]) -> None:
    """Call a function with a client."""
    from kserve import InferenceRESTClient, RESTConfig

    async def main() -> None:
        async with InferenceRESTClient(
            RESTConfig(protocol=protocol, timeout=30)
        ) as client:
            await work(client)

    asyncio.run(asyncio.wait_for(main(), 60))


def bearer(server: Server) -> dict[str, str]:
    return {"Authorization": f"Bearer {server.token}"}


def request(
    model: str,
    name: str,
    values: Array,
    datatype: str,
    *,
    binary_in: bool,
    binary_out: bool,
) -> Any:
    from kserve import InferInput, InferRequest
    from kserve.protocol.infer_type import RequestedOutput

    item = InferInput(name, list(values.shape), datatype)
    item.set_data_from_numpy(values, binary_data=binary_in)
    outputs = [RequestedOutput("scores", parameters={"binary_data": binary_out})]
    return InferRequest(
        model_name=model,
        infer_inputs=[item],
        request_outputs=outputs,
        request_id="Nr. 7",
    )


def image(values: Array, *, binary_in: bool = True, binary_out: bool = True) -> Any:
    return request(
        "digits", "image", values, "FP32", binary_in=binary_in, binary_out=binary_out
    )


def test_v2_health(server: Server) -> None:
    headers = bearer(server)

    async def work(client: Any) -> None:
        assert await client.is_server_live(server.url) is True
        assert await client.is_server_ready(server.url) is True
        assert (
            await client.is_model_ready(server.url, "digits", headers=headers) is True
        )
        assert (
            await client.is_model_ready(server.url, "nobody", headers=headers) is False
        )
        assert await client.is_model_ready(server.url, "digits") is False

    run("v2", work)


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_v2_infer(
    server: Server, digit: Array, binary_in: bool, binary_out: bool
) -> None:
    async def work(client: Any) -> None:
        sent = image(digit, binary_in=binary_in, binary_out=binary_out)
        seen: dict[str, str] = {}
        answer = await client.infer(
            server.url, sent, "digits", headers=bearer(server), response_headers=seen
        )
        assert answer.model_name == "digits"  # the client ignores the version
        assert answer.id == "Nr. 7"
        assert ("inference-header-content-length" in seen) is binary_out
        (output,) = answer.outputs
        scores = output.as_numpy()
        assert scores.shape == (1, 10)
        assert scores.argmax() == 0
        assert "content-encoding" not in seen

    run("v2", work)


def test_v2_plain_dict(server: Server, digit: Array) -> None:
    async def work(client: Any) -> None:
        data = {
            "inputs": [
                {
                    "name": "image",
                    "shape": [1, 8, 8, 1],
                    "datatype": "FP32",
                    "data": digit.tolist(),
                }
            ]
        }
        answer = await client.infer(server.url, data, "digits", headers=bearer(server))
        assert answer.outputs[0].as_numpy().argmax() == 0

    run("v2", work)


def test_v2_empty_input(server: Server) -> None:
    """The client sends ``"data": null`` and no length header for an empty binary input."""
    from kserve import InferInput, InferRequest

    async def work(client: Any) -> None:
        item = InferInput("features", [0, 3], "FP32")
        item.set_data_from_numpy(np.zeros((0, 3), np.float32), binary_data=True)
        sent = InferRequest(model_name="petals", infer_inputs=[item])
        answer = await client.infer(server.url, sent, "petals", headers=bearer(server))
        assert list(answer.outputs[0].shape) == [0, 1]

    run("v2", work)


def test_v2_errors(server: Server, digit: Array) -> None:
    import httpx

    async def work(client: Any) -> None:
        wrong = image(np.zeros((1, 7, 8, 1), np.float32))
        for sent, model, headers, text in (
            (
                image(digit),
                "nobody",
                bearer(server),
                r"Request for unknown model: 'nobody'.*'404 ",
            ),
            (
                wrong,
                "digits",
                bearer(server),
                r"expected shape \[-1, 8, 8, 1\], got \[1, 7, 8, 1\].*'400 ",
            ),
            (image(digit), "digits", None, r"a valid token is required.*'401 "),
        ):
            with pytest.raises(httpx.HTTPStatusError, match=text):
                await client.infer(server.url, sent, model, headers=headers)

    run("v2", work)


def test_v1(server: Server, digit: Array) -> None:
    import httpx

    headers = bearer(server)

    async def work(client: Any) -> None:
        assert await client.is_server_live(server.url) is True
        assert (
            await client.is_model_ready(server.url, "digits", headers=headers) is True
        )
        with pytest.raises(
            httpx.HTTPStatusError, match=r"Request for unknown model: 'nobody'.*'404 "
        ):
            await client.is_model_ready(server.url, "nobody", headers=headers)
        answer = await client.infer(
            server.url, {"instances": digit.tolist()}, "digits", headers=headers
        )
        assert np.array(answer["predictions"]).shape == (1, 10)
        with pytest.raises(
            httpx.HTTPStatusError, match=r"'instances' or 'inputs'.*'400 "
        ):
            await client.infer(server.url, {"rows": []}, "digits", headers=headers)
        with pytest.raises(
            httpx.HTTPStatusError, match=r"explanations are not supported.*'501 "
        ):
            await client.explain(
                server.url, "digits", {"instances": []}, headers=headers
            )

    run("v1", work)


def test_an_unloaded_model_is_not_ready(new_server: StartServer) -> None:
    server = new_server(MODELS)
    assert server.call("POST", "/v2/repository/models/digits/unload").status_code == 200

    async def work(client: Any) -> None:
        assert (
            await client.is_model_ready(server.url, "digits", headers=bearer(server))
            is False
        )
        assert (
            await client.is_model_ready(server.url, "petals", headers=bearer(server))
            is True
        )

    run("v1", work)  # this protocol accepts only 503 for "no"
    run("v2", work)
