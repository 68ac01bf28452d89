"""The server notices changes of its models folder, and broken files do no harm."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import MODELS, Server, StartServer
from held_server import until
from pocketserve_client import Client
from pocketserve_client.errors import ServerError
from trusting import trust_one

ZEROS = json.dumps([[[0.0]] * 8] * 8).encode()
NUMBERS = b"[5.1,3.5,1.4]"
KEPT = "is still served as it was loaded: "


class Served:
    """A server on copies of the embedded models."""

    def __init__(self, server: Server, models: Path) -> None:
        self.server = server
        self.models = models

    def predict(
        self, model: str = "petals", body: bytes = NUMBERS
    ) -> list[dict[str, Any]]:
        """Return a model's answer."""
        answer = self.server.call("POST", f"/predictions/{model}", data=body)
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["predictions"]
        return found

    def index(self, model: str = "petals") -> tuple[str, str]:
        """Return the state and reason of a model's TFLite version after a rescan."""
        entries = self.server.call("POST", "/v2/repository/index").json()
        return next(
            (e["state"], e.get("reason", ""))
            for e in entries
            if (e["name"], e["version"]) == (model, "tflite")
        )

    def note(self, model: str = "petals") -> str:
        """Return the metadata's note on a change that is not served."""
        parameters = self.server.call(
            "GET", f"/v2/models/{model}/versions/tflite"
        ).json()["parameters"]
        return str(parameters.get("note", ""))

    def await_answer(
        self, expected: object, model: str = "petals", body: bytes = NUMBERS
    ) -> None:
        """Poll until a model answers as expected.

        Every request must be answered.
        """
        until(lambda: self.predict(model, body) == expected)

    def await_index(self, expected: tuple[str, str], model: str = "petals") -> None:
        """Poll until the index shows a state and the start of a reason."""
        until(
            lambda: (
                self.index(model)[0] == expected[0]
                and self.index(model)[1].startswith(expected[1])
            )
        )

    def load(self, model: str = "petals") -> tuple[int, str]:
        """Load a model; return the status and error."""
        answer = self.server.call("POST", f"/v2/repository/models/{model}/load")
        return answer.status_code, answer.json().get("error", "")

    def edit(self, file: str, old: str, new: str) -> None:
        """Edit a text file."""
        text = (self.models / file).read_text()
        assert old in text
        (self.models / file).write_text(text.replace(old, new))

    def count_in_log(self, text: str) -> int:
        """Count the log's occurrences of a text."""
        return self.server.log.read_text().count(text)


@pytest.fixture
def served(new_server: StartServer, models_copy: Path, tmp_path: Path) -> Served:
    return Served(
        new_server(models_copy, "--state-dir", str(tmp_path / "state")), models_copy
    )


def test_an_unchanged_model_is_not_reloaded(served: Served) -> None:
    before = served.predict()
    # Only for human readers.
    served.edit("petals/model.toml", 'license = "Apache-2.0"', 'license = "MIT"')
    served.edit("petals/model.toml", "versions.onnx", "versions.other")
    (served.models / "petals" / "notes.txt").write_text("nothing of the model's")
    assert served.index() == ("READY", "")
    assert served.predict() == before
    assert served.count_in_log("loaded petals/tflite") == 1


@pytest.mark.parametrize("change", ["labels", "manifest", "file"])
def test_a_change_is_loaded_in_the_background(served: Served, change: str) -> None:
    model, body = ("digits", ZEROS) if change == "labels" else ("petals", NUMBERS)
    before = served.predict(model, body)
    if change == "labels":
        (served.models / "digits" / "labels.txt").write_text(
            "".join(f"number {digit}\n" for digit in range(10))
        )
    elif change == "manifest":
        served.edit(
            "petals/model.toml",
            'name = "petal_width"\nunit',
            'name = "petal_breadth"\nunit',
        )
    else:
        fresh = served.models / "petals" / ".fresh"
        fresh.write_bytes((MODELS / "diabetes" / "diabetes.tflite").read_bytes())
        fresh.replace(served.models / "petals" / "petals.tflite")
    if change == "file":  # it takes ten numbers, and the manifest declares three
        served.await_index(
            ("READY", f"{KEPT}failed to load 'petals' version 'tflite': ")
        )
        assert served.predict(model, body) == before
        return
    until(lambda: served.predict(model, body) != before)
    assert json.dumps(served.predict(model, body)).count(
        "number" if change == "labels" else "petal_breadth"
    )
    assert served.index(model) == ("READY", "")
    assert served.count_in_log(f"loaded {model}/tflite") == 2


def test_a_broken_file_is_tried_once_while_the_old_one_serves(
    served: Served,
) -> None:
    before = served.predict()
    file = served.models / "petals" / "petals.tflite"
    good = file.read_bytes()
    file.write_bytes(b"garbage" * 50)
    assert [served.predict() for _ in range(3)] == [before] * 3
    served.await_index(
        (
            "READY",
            f"{KEPT}failed to load 'petals' version 'tflite': petals.tflite is no",
        )
    )
    assert [served.predict() for _ in range(3)] == [before] * 3
    assert served.count_in_log("petals.tflite is not a TFLite model") == 1
    file.write_bytes(good)
    until(lambda: served.count_in_log("loaded petals/tflite") == 2)
    assert served.predict() == before
    served.await_index(("READY", ""))


def test_consent_to_another_model_does_not_retry_a_broken_one(
    served: Served, tmp_path: Path
) -> None:
    (served.models / "petals" / "petals.tflite").write_bytes(b"garbage" * 50)
    for other in ("first", "second"):
        own = served.models / other
        own.mkdir()
        (own / "task.py").write_text("")
        (own / "own.tflite").write_bytes(
            (MODELS / "petals" / "petals.tflite").read_bytes()
        )
        trust_one(served.models, other, tmp_path / "state")
        answer = served.server.call("POST", "/predictions/petals", data=NUMBERS)
        assert answer.status_code == 503, answer.text
    assert served.count_in_log("petals.tflite is not a TFLite model") == 1


def test_a_broken_manifest_keeps_the_old_model_serving(served: Served) -> None:
    before = served.predict()
    served.edit("petals/model.toml", "task = ", "task : ")
    state, reason = served.index()
    assert state == "READY"
    assert reason.startswith(f"{KEPT}petals/model.toml: not valid TOML")
    assert served.predict() == before
    status, error = served.load()
    assert status == 503
    assert "petals/model.toml: not valid TOML" in error
    assert served.predict() == before
    served.index()
    assert (
        served.count_in_log(
            "petals is still served as it was loaded: petals/model.toml"
        )
        == 1
    )
    assert served.note().startswith(f"{KEPT}petals/model.toml: not valid TOML")
    served.edit("petals/model.toml", "task : ", "task = ")
    assert served.index() == ("READY", "")
    assert served.note() == ""
    assert served.predict() == before
    assert served.count_in_log("loaded petals/tflite") == 1


def test_a_broken_manifest_prevents_loading(served: Served) -> None:
    served.edit("petals/model.toml", "task = ", "task : ")
    entries = served.server.call("POST", "/v2/repository/index").json()
    assert [e["state"] for e in entries if e["name"] == "petals"] == ["UNAVAILABLE"]
    answer = served.server.call("POST", "/predictions/petals", data=NUMBERS)
    assert answer.status_code == 503
    assert "petals/model.toml: not valid TOML" in answer.json()["error"]


def test_a_loaded_model_survives_the_loss_of_its_file(
    served: Served,
) -> None:
    before = served.predict()
    (served.models / "petals" / "petals.tflite").unlink()
    assert served.predict() == before
    state, reason = served.index()
    assert state == "READY"
    assert reason.startswith(KEPT)
    assert "petals.tflite, which does not exist" in reason
    served.server.call("POST", "/v2/repository/models/petals/unload")
    answer = served.server.call("POST", "/predictions/petals", data=NUMBERS)
    assert answer.status_code == 404


@pytest.fixture(params=["http", "socket"])
def client(served: Served, request: pytest.FixtureRequest) -> Iterator[Client]:
    """Create a client of each transport."""
    port = served.server.ready[request.param]["port"]
    with Client(f"{request.param}://127.0.0.1:{port}", served.server.token) as client:
        yield client


def predict(client: Client, model: str, version: str | None = None) -> Any:
    """Return a model's answer to one flower, or the error's code."""
    try:
        return client.predict(model, [5.1, 3.5, 1.4], version=version)["predictions"]
    except ServerError as error:
        return error.code


def test_models_and_versions_are_added_and_removed(
    served: Served, client: Client
) -> None:
    expected = predict(client, "petals")
    assert predict(client, "fresh") == "MODEL_NOT_FOUND"
    shutil.copytree(served.models / "petals", served.models / "fresh")
    assert predict(client, "fresh") == expected
    (served.models / "fresh").rename(served.models / "other")
    assert predict(client, "fresh") == "MODEL_NOT_FOUND"
    assert predict(client, "other") == expected
    assert (
        served.count_in_log("unloading fresh/tflite: it is gone from the folder") == 1
    )
    text = (served.models / "other" / "model.toml").read_text()
    assert predict(client, "other", "second") == "VERSION_NOT_FOUND"
    table = '[versions.second]\nfile = "petals.tflite"\n'
    (served.models / "other" / "model.toml").write_text(f"{text}\n{table}")
    assert predict(client, "other", "second") == expected
    (served.models / "other" / "model.toml").write_text(text)
    assert predict(client, "other", "second") == "VERSION_NOT_FOUND"
    shutil.rmtree(served.models / "other")
    assert predict(client, "other") == "MODEL_NOT_FOUND"


def test_a_bare_file_is_served_and_replaced(served: Served, client: Client) -> None:
    file = served.models / "flow.tflite"
    file.write_bytes((MODELS / "petals" / "petals.tflite").read_bytes())
    assert client.model_metadata("flow")["inputs"][0]["shape"] == [-1, 3]
    file.write_bytes((MODELS / "diabetes" / "diabetes.tflite").read_bytes())
    until(lambda: client.model_metadata("flow")["inputs"][0]["shape"] == [-1, 10])
    file.unlink()
    assert "flow" not in {entry["name"] for entry in client.index()}
    assert predict(client, "flow") == "MODEL_NOT_FOUND"


def test_a_file_is_used_once_its_writer_closes_it(
    served: Served, client: Client
) -> None:
    expected = predict(client, "petals")
    file = served.models / "petals" / "petals.tflite"
    content = file.read_bytes()
    with file.open("wb") as half:
        half.write(content[:100])
        half.flush()
        assert predict(client, "petals") == expected
        half.write(content[100:])
    until(lambda: served.count_in_log("loaded petals/tflite") == 2)
    assert predict(client, "petals") == expected
    assert served.count_in_log("is not a TFLite model") == 0


def test_a_models_folder_is_moved_away_and_back(served: Served, client: Client) -> None:
    """Meanwhile the loaded models keep serving."""
    expected = predict(client, "petals")
    away = served.models.with_name("away")
    served.models.rename(away)
    assert predict(client, "petals") == expected
    away.rename(served.models)
    (served.models / "petals").rename(served.models / "moved")
    assert predict(client, "moved") == expected
    assert predict(client, "petals") == "MODEL_NOT_FOUND"
