"""Use OpenVINO's ovmsclient over HTTP.

It sends no headers of its own, so it needs a server without a token. Its versions are
numbers; 0 means the default.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from conftest import MODELS, Server, StartServer

pytestmark = pytest.mark.conformance

Array = npt.NDArray[Any]


def connect(server: Server) -> Any:
    from ovmsclient import make_http_client

    return make_http_client(f"127.0.0.1:{server.port}")


@pytest.fixture
def client(open_server: Server) -> Iterator[Any]:
    client = connect(open_server)
    yield client
    client.session.close()


def test_predict(client: Any, digit: Array) -> None:
    scores = client.predict({"image": digit}, "digits")
    assert scores.shape == (1, 10)
    assert scores.argmax() == 0
    width = client.predict({"features": [[5.1, 3.5, 1.4]]}, "petals", 0)
    assert width.shape == (1, 1)
    assert width[0, 0] == pytest.approx(0.2, abs=0.2)


def test_status(client: Any) -> None:
    found = client.get_model_status("digits")
    assert set(found) == {0}
    assert found[0]["state"] == "AVAILABLE"
    assert found[0]["error_code"] == 0
    assert found[0]["error_message"] == ""


def test_metadata(client: Any) -> None:
    found = client.get_model_metadata("digits")
    signature = found["metadata"]["signature_def"]["signature_def"]["serving_default"]
    assert signature["inputs"]["image"]["dtype"] == "DT_FLOAT"
    assert [
        dim["size"] for dim in signature["inputs"]["image"]["tensor_shape"]["dim"]
    ] == ["-1", "8", "8", "1"]


def test_errors(client: Any) -> None:
    from ovmsclient.tfs_compat.base.errors import InvalidInputError, ModelNotFoundError

    for call in (
        lambda: client.predict({"image": [[0.0]]}, "nobody"),
        lambda: client.predict({"image": [[0.0]]}, "digits", 9),
        lambda: client.get_model_status("nobody"),
        lambda: client.get_model_metadata("nobody"),
    ):
        with pytest.raises(ModelNotFoundError, match="Request for unknown model"):
            call()
    with pytest.raises(InvalidInputError, match="expected shape"):
        client.predict({"image": np.zeros((1, 7, 8, 1), np.float32)}, "digits")


def test_numbered_versions(
    new_server: StartServer, tmp_path: Path, digit: Array
) -> None:
    models = tmp_path / "numbered"
    for number, file in ((1, "digits.int8.tflite"), (12, "digits.tflite")):
        (models / "digits" / str(number)).mkdir(parents=True)
        shutil.copy(
            MODELS / "digits" / file, models / "digits" / str(number) / "model.tflite"
        )
    server = new_server(models, "--no-auth")
    client = connect(server)
    (name,) = [
        item["name"]
        for item in server.call("GET", "/v2/models/digits/versions/12").json()["inputs"]
    ]
    assert set(client.get_model_status("digits", 12)) == {12}
    newest = client.predict({name: digit}, "digits")
    np.testing.assert_array_equal(newest, client.predict({name: digit}, "digits", 12))
    assert client.predict({name: digit}, "digits", 1).argmax() == 0
    client.session.close()
