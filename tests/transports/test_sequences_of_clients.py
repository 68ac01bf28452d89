"""Test client sequences: steps share state over both transports.

Steps are tensors or raw input.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from conftest import Server, start_server
from pocketserve_client import Client, ServerError
from sequence_models import FEEDBACK, running_sum

pytest.importorskip("onnx", reason="makes the models")

pytestmark = [pytest.mark.live, pytest.mark.onnx]

VOICE = 'task = "voice-activity"\n[audio]\nsample_rate = 8000\nwindow = 4\n' + FEEDBACK
MODELS = {"sum": (2, FEEDBACK), "voice": (4, VOICE)}


@pytest.fixture(scope="module")
def sums(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server on stateful models."""
    folder = tmp_path_factory.mktemp("sums")
    for name, (size, manifest) in MODELS.items():
        (folder / name).mkdir()
        running_sum(folder / name / f"{name}.onnx", size)
        (folder / name / "model.toml").write_text(manifest)
    server = start_server(tmp_path_factory.mktemp("server"), folder)
    yield server
    assert server.stop() == 0


@pytest.fixture(scope="module", params=["http", "socket"])
def client(request: pytest.FixtureRequest, sums: Server) -> Iterator[Client]:
    url = (
        sums.url
        if request.param == "http"
        else f"socket://127.0.0.1:{sums.socket_port}"
    )
    with Client(url, sums.token) as connected:
        yield connected


def total(answer: Any) -> float:
    """Return the sum so far from either kind of answer."""
    if "predictions" in answer:
        return float(answer["predictions"][0]["data"][0])
    return float(answer["y"][0, 0])


def x(value: float) -> dict[str, Any]:
    return {"x": np.array([[value, 0]], np.float32)}


def test_steps_share_a_state(client: Client) -> None:
    """Tensors and raw input may alternate.

    Other requests have their own state.
    """
    with (
        client.sequence("sum") as first,
        client.sequence("sum", sequence_id="b") as second,
    ):
        assert total(first.infer(x(1))) == 1
        assert total(second.predict([10, 0])) == 10
        assert total(first.predict([2, 0], parameters={"priority": 1})) == 3
        assert total(second.infer(x(20), outputs=["y"])) == 30
        assert total(client.predict("sum", [5, 0])) == 5
        assert total(first.infer(x(4))) == 7


def test_the_end_of_a_block_closes_the_sequence(client: Client) -> None:
    """Its state is discarded.

    A block without steps, or closed already, ends silently.
    """
    with client.sequence("sum", sequence_id=9) as steps:
        steps.predict([1, 0])
    for parameters in ({"sequence_id": 9}, {"sequence_id": "9"}):
        with pytest.raises(ServerError, match="'9' is not open"):
            client.predict("sum", [1, 0], parameters=parameters)
    with client.sequence("sum") as steps:
        pass
    with client.sequence("sum", sequence_id=9) as steps:
        steps.infer(x(1))
        client.infer("sum", {}, parameters={"sequence_id": 9, "sequence_end": True})


def test_the_first_step_may_fail(client: Client) -> None:
    """It has opened nothing; the next step does."""
    with client.sequence("sum") as steps:
        with pytest.raises(ServerError, match="expected FP32"):
            steps.predict([1, 2, 3])
        assert total(steps.predict([1, 0])) == 1


def test_a_last_step_may_be_sent_by_hand(client: Client) -> None:
    """Programs without this client use query parameters."""
    assert (
        total(
            client.predict(
                "sum", [1, 0], parameters={"sequence_id": 3, "sequence_start": True}
            )
        )
        == 1
    )
    assert total(client.infer("sum", x(1), parameters={"sequence_id": 3})) == 2
    assert (
        total(
            client.predict(
                "sum", [1, 0], parameters={"sequence_id": "3", "sequence_end": "true"}
            )
        )
        == 3
    )
    with pytest.raises(ServerError, match="is not open"):
        client.predict("sum", [1, 0], parameters={"sequence_id": 3})


def test_a_sound_may_be_sent_in_pieces(client: Client) -> None:
    """Windows continue across pieces, so a microphone can be streamed."""
    loud = np.full(8, 1 / 64, np.float64)
    pool = {"pool": "none"}
    with client.sequence("voice") as pieces:
        answers = [
            pieces.predict(loud, parameters=pool)["predictions"] for _ in range(3)
        ]
    scores = [entry["score"] for answer in answers for entry in answer]
    assert scores == pytest.approx([k / 16 for k in range(1, 7)], abs=1e-5)
    (alone, _) = client.predict("voice", loud, parameters=pool)["predictions"]
    assert alone["score"] == pytest.approx(1 / 16, abs=1e-5)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        (
            {"sequence_id": "a" * 257},
            "sequence_id must be an integer from 0 or a short string",
        ),
        ({"sequence_id": 4, "sequence_start": "yes"}, "must be true or false"),
        ({"sequence_id": 4, "sequence_start": "1"}, "must be true or false"),
    ],
)
def test_bad_parameters_are_refused(
    client: Client, parameters: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ServerError, match=reason) as caught:
        client.predict("sum", [1, 0], parameters=parameters)
    assert caught.value.code == "INVALID_PARAMETER"


def test_raw_input_over_the_open_inference_protocol(client: Client) -> None:
    """A step may also be one BYTES element."""
    data = np.array([b"[1, 0]"], object)
    marks = {"task": True, "sequence_id": "oip"}
    for step in (
        {"sequence_start": True},
        {},
        {"sequence_end": True},
    ):
        (answer,) = client.infer("sum", {"raw": data}, parameters={**marks, **step})[
            "answer"
        ]
    assert b'"data": [3.0]' in answer or b'"data":[3.0]' in answer
