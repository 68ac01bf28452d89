"""New and removed version numbers never make a model unavailable."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conftest import Server, StartServer
from numbered_models import (
    BROKEN,
    answer_of,
    await_that,
    external,
    put,
    sum_of_files,
    times,
)

pytestmark = pytest.mark.onnx

ONE = times(1)
TWO = times(2)
THREE = times(3)


class Versions:
    """A server of one model with numbered versions."""

    def __init__(self, server: Server, root: Path) -> None:
        self.server = server
        self.root = root

    def ask(self, version: str = "") -> tuple[int, str, Any]:
        """Send a request; return its answer."""
        path = "/v2/models/m/infer"
        if version:
            path = f"/v2/models/m/versions/{version}/infer"
        return answer_of(self.server.call, path)

    def row(self, version: str) -> dict[str, Any]:
        """Return the index's row of a version."""
        entries = self.server.call("POST", "/v2/repository/index").json()
        found: dict[str, Any] = next(
            entry
            for entry in entries
            if (entry["name"], entry["version"]) == ("m", version)
        )
        return found

    def note(self) -> str:
        """Return the metadata's note on an unserved version."""
        return str(
            self.server.call("GET", "/v2/models/m").json()["parameters"].get("note", "")
        )

    def is_ready(self, path: str = "/v2/models/m/ready") -> bool:
        """Return whether the model, or the server, is ready."""
        return self.server.call("GET", path).status_code == 200

    def logged(self, text: str) -> int:
        """Count the log's occurrences of a text."""
        return self.server.log.read_text().count(text)


@pytest.fixture
def start(new_server: StartServer, tmp_path: Path) -> Callable[..., Versions]:
    root = tmp_path / "models"

    def started(*options: str, **versions: bytes) -> Versions:
        for name, content in versions.items():
            put(root, int(name[1:]), content)
        return Versions(
            new_server(root, "--state-dir", str(tmp_path / "state"), *options), root
        )

    return started


def test_a_good_version_replaces_the_previous_in_the_background(
    start: Callable[..., Versions],
) -> None:
    served = start(v1=ONE)
    assert served.ask() == (200, "1", 1.0)
    put(served.root, 2, TWO)
    while (answer := served.ask()) != (200, "2", 2.0):
        assert answer == (200, "1", 1.0)
        assert served.is_ready()
        assert served.is_ready("/v2/health/ready")
    assert served.row("2")["default"] is True
    assert served.row("1")["default"] is False
    assert served.ask("1") == (200, "1", 1.0)
    assert served.logged("version 2 answers by default now, after 1") == 1


@pytest.mark.parametrize(
    "content",
    [
        BROKEN,
        TWO[:60],
        b"",
    ],
    ids=["broken", "half", "empty"],
)
def test_a_broken_version_changes_nothing(
    start: Callable[..., Versions], content: bytes
) -> None:
    served = start(v1=ONE)
    assert served.ask() == (200, "1", 1.0)
    folder = put(served.root, 2, content)
    # The listing may show an error before the load has failed.
    await_that(lambda: "failed to load" in served.row("2")["reason"])
    assert served.row("2")["state"] == "UNAVAILABLE"
    assert [served.ask() for _ in range(5)] == [(200, "1", 1.0)] * 5
    reason = served.row("2")["reason"]
    assert "failed to load 'm' version '2'" in reason
    assert reason.endswith("version 1 is the default version")
    assert served.row("1")["default"] is True
    assert served.is_ready()
    assert not served.is_ready("/v2/models/m/versions/2/ready")
    assert served.ask("2")[0] == 503
    assert served.note().startswith("version 2: failed to load 'm' version '2'")
    assert served.logged("failed to load 'm' version '2'") == 1
    (folder / "model.onnx").write_bytes(TWO)
    await_that(lambda: served.ask() == (200, "2", 2.0))
    assert served.note() == ""
    assert served.row("2")["reason"] == ""


def test_the_best_loadable_new_version_is_used(
    start: Callable[..., Versions],
) -> None:
    served = start(v1=ONE)
    assert served.ask() == (200, "1", 1.0)
    put(served.root, 2, TWO)
    put(served.root, 3, BROKEN)
    await_that(lambda: served.ask() == (200, "2", 2.0))
    await_that(lambda: served.row("3")["state"] == "UNAVAILABLE")
    assert served.ask() == (200, "2", 2.0)
    put(served.root, 4, times(4))
    await_that(lambda: served.ask() == (200, "4", 4.0))


def test_the_start_uses_the_highest_loadable_version(
    start: Callable[..., Versions],
) -> None:
    served = start(v1=ONE, v2=TWO, v3=BROKEN)
    assert served.is_ready()
    assert served.ask() == (200, "2", 2.0)
    assert served.row("2")["default"] is True
    assert served.row("3")["state"] == "UNAVAILABLE"
    assert (
        served.server.call("GET", "/v2/models/m").json()["parameters"][
            "default_version"
        ]
        == "2"
    )
    assert served.server.call("GET", "/v1/models/m").status_code == 200
    assert served.is_ready()


def test_a_restart_keeps_the_model(start: Callable[..., Versions]) -> None:
    served = start(v1=ONE)
    assert served.ask() == (200, "1", 1.0)
    put(served.root, 2, BROKEN)
    await_that(lambda: served.row("2")["state"] == "UNAVAILABLE")
    served.server.stop()
    again = start("--load", "m")
    assert again.ask() == (200, "1", 1.0)
    assert again.is_ready()


def test_without_a_loadable_version_the_best_one_explains_why(
    start: Callable[..., Versions],
) -> None:
    served = start(v1=BROKEN, v2=b"")
    status, code, text = served.ask()
    assert status == 503
    assert code == "MODEL_FAILED"
    assert "version '2'" in text
    assert not served.is_ready()
    put(served.root, 3, THREE)
    assert served.ask() == (200, "3", 3.0)


def test_the_best_remaining_version_replaces_a_removed_default(
    start: Callable[..., Versions],
) -> None:
    served = start(v1=ONE, v2=TWO, v3=THREE)
    assert served.ask() == (200, "3", 3.0)
    shutil.rmtree(served.root / "m" / "3")
    assert served.ask() == (200, "2", 2.0)
    (served.root / "m" / "2" / "model.onnx").unlink()
    (served.root / "m" / "2").rmdir()
    assert served.ask() == (200, "1", 1.0)


def test_an_idle_model_loads_a_new_version_after_its_next_request(
    start: Callable[..., Versions],
) -> None:
    served = start("--keep-alive", "0.2", v1=ONE)
    assert served.ask() == (200, "1", 1.0)
    await_that(lambda: served.row("1")["loaded"] is False)
    put(served.root, 2, TWO)
    assert served.row("2")["reason"].startswith("pending: ")
    assert served.row("1")["default"] is True
    assert served.ask() == (200, "1", 1.0)
    await_that(lambda: served.ask() == (200, "2", 2.0))


def test_a_reload_uses_a_new_version_at_once_or_explains_why(
    start: Callable[..., Versions],
) -> None:
    served = start(v1=ONE)
    assert served.ask() == (200, "1", 1.0)
    put(served.root, 2, TWO)
    assert served.server.call("POST", "/v2/repository/models/m/load").status_code == 200
    assert served.ask() == (200, "2", 2.0)
    put(served.root, 3, BROKEN)
    answer = served.server.call("POST", "/v2/repository/models/m/load")
    assert answer.status_code == 503
    assert "version '3'" in answer.json()["error"]
    assert served.ask() == (200, "2", 2.0)


def test_an_unloaded_model_stays_unloaded(start: Callable[..., Versions]) -> None:
    served = start(v1=ONE)
    assert served.ask() == (200, "1", 1.0)
    served.server.call("POST", "/v2/repository/models/m/unload")
    put(served.root, 2, TWO)
    assert served.ask()[0] == 404
    assert served.ask("2")[0] == 404
    assert served.row("2")["reason"] == "unloaded"
    served.server.call("POST", "/v2/repository/models/m/load")
    assert served.ask() == (200, "2", 2.0)
    assert served.ask("1") == (200, "1", 1.0)


def test_a_manifests_new_default_is_used_once_loaded(
    start: Callable[..., Versions],
) -> None:
    served = start(v1=ONE, v2=TWO)
    assert served.ask() == (200, "2", 2.0)
    (served.root / "m" / "model.toml").write_text('default_version = "1"\n')
    await_that(lambda: served.ask() == (200, "1", 1.0))
    put(served.root, 3, THREE)
    assert served.row("3")["default"] is False
    assert served.ask() == (200, "1", 1.0)


FILES = ("a.bin", "b.bin", "c.bin")


def test_a_version_of_several_files_is_never_a_mixture(
    start: Callable[..., Versions], tmp_path: Path
) -> None:
    served = start(v1=external(FILES))
    folder = served.root / "m" / "1"
    sum_of_files(folder, dict.fromkeys(FILES, 1.0))
    assert served.ask() == (200, "1", 4.0)
    for value in (2.0, 3.0):
        sum_of_files(tmp_path, dict.fromkeys(FILES, value))
        for name in FILES:  # one after the other, each atomically
            (tmp_path / name).replace(folder / name)
        expected = (200, "1", 1 + 3 * value)
        while (answer := served.ask()) != expected:
            assert answer == (200, "1", 1 + 3 * (value - 1))


def test_a_version_whose_files_arrive_one_by_one_is_loaded_whole(
    start: Callable[..., Versions],
) -> None:
    served = start(v1=ONE)
    assert served.ask() == (200, "1", 1.0)
    folder = served.root / "m" / "2"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(external(FILES))
    assert served.ask() == (200, "1", 1.0)
    for name in FILES:
        sum_of_files(folder, {name: 5.0})
        assert served.ask() == (200, "1", 1.0)
    while (answer := served.ask()) != (200, "2", 16.0):
        assert answer == (200, "1", 1.0)


def test_requests_the_index_and_the_configuration_follow_the_version_policy(
    start: Callable[..., Versions],
) -> None:
    served = start(v1=ONE, v2=TWO, v3=THREE)
    config = served.root / "m" / "config.pbtxt"
    config.write_text(
        'version_policy { specific { versions: [ 1, 2 ] } } shiny: 1 input { name: "x" optional: true }'
    )
    assert served.ask() == (200, "2", 2.0)
    assert served.ask("1") == (200, "1", 1.0)
    status, code, text = served.ask("3")
    assert (status, code) == (404, "VERSION_NOT_FOUND")
    assert text.endswith(
        "is not served: m/config.pbtxt: version_policy offers versions 1, 2 only"
    )
    row = served.row("3")
    assert row["state"] == "UNAVAILABLE"
    assert row["default"] is False
    assert "version_policy" in row["reason"]
    metadata = served.server.call("GET", "/v2/models/m").json()
    assert metadata["versions"] == ["1", "2"]
    assert metadata["parameters"]["not_applied"] == (
        "shiny is not a field that this server knows, and is not used; "
        "input.optional is not applied; requests send every input"
    )
    in_force = served.server.call("GET", "/v2/models/m/config").json()
    assert in_force["version_policy"] == {"specific": {"versions": [1, 2]}}


def test_the_previous_latest_version_answers_until_the_new_one_is_loaded(
    start: Callable[..., Versions],
) -> None:
    served = start(v1=ONE)
    (served.root / "m" / "config.pbtxt").write_text(
        "version_policy { latest { num_versions: 1 } }"
    )
    assert served.ask() == (200, "1", 1.0)
    put(served.root, 2, BROKEN)
    await_that(lambda: "failed to load" in served.row("2")["reason"])
    assert served.ask() == (200, "1", 1.0)
    assert served.ask("1") == (200, "1", 1.0)
    put(served.root, 3, THREE)
    await_that(lambda: served.ask() == (200, "3", 3.0))
    assert served.ask("1")[:2] == (404, "VERSION_NOT_FOUND")
