"""Compare gunicorn with two workers to the plain server."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest

from conftest import Server
from gunicorn_server import COMMAND, gunicorn, wait_until, workers_of
from numbered_models import put, times
from places import MODELS, ROOT
from questions import LOCAL, QUESTIONS, check_large_bodies, check_same

pytestmark = pytest.mark.live


@pytest.mark.parametrize("question", QUESTIONS)
def test_it_answers_like_the_plain_server(
    server: Server, two_workers: Server, question: str
) -> None:
    """Status, body and headers agree for each worker."""
    check_same(question, server, two_workers)


@pytest.mark.parametrize("path", LOCAL)
def test_changes_of_a_single_worker_are_refused(two_workers: Server, path: str) -> None:
    """Load, unload, release and pairing would change one arbitrary process."""
    answer = two_workers.call("POST", path, json={"parameters": {"release": True}})
    assert answer.status_code == 501
    assert answer.json()["code"] == "NOT_IMPLEMENTED"


def test_statistics_name_the_worker(two_workers: Server) -> None:
    """Counters belong to one worker."""
    assert two_workers.call("GET", "/v2/models/digits/stats").json()["worker"] in (
        "0",
        "1",
    )
    lines = []
    for line in two_workers.call("GET", "/metrics").text.splitlines():
        if line[0] != "#":
            lines.append(line)
    assert lines
    assert all(re.search(r'[{,]worker="[01]"', line) for line in lines)


def test_an_unauthenticated_body_is_not_read(two_workers: Server) -> None:
    """The limit is a pairing message, with a length or in chunks.

    Others have one, too.
    """
    check_large_bodies(two_workers)


def test_settings_and_files_are_those_of_serve(two_workers: Server) -> None:
    """The run file proves the port to clients.

    Each worker has its own folder.
    """
    state = two_workers.log.parent / "state"
    run = json.loads((state / "runs" / f"{two_workers.process.pid}.json").read_text())
    assert run["http"] == f"127.0.0.1:{two_workers.port}"
    assert run["models_dir"] == str(MODELS)
    assert sorted(path.name for path in (state / "workers").iterdir()) == ["0", "1"]
    assert len(set(workers_of(two_workers))) == 2
    assert two_workers.ready["pid"] == two_workers.process.pid


def test_the_document_has_the_tested_command() -> None:
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert (
        f"POCKETSERVE_MODELS_DIR=mymodels gunicorn {' '.join(COMMAND[3:])} --workers 2"
        in text
    )


def test_a_model_can_be_loaded_at_start(tmp_path: Path) -> None:
    """With ``load``, a worker accepts requests once the model is loaded."""
    with gunicorn(tmp_path, MODELS, workers=1, POCKETSERVE_LOAD="petals") as server:
        index = server.call("POST", "/v2/repository/index").json()
    assert [entry["name"] for entry in index if entry.get("loaded")] == ["petals"]


def test_idle_workers_load_a_changed_file(tmp_path: Path) -> None:
    """They need no request; the index shows each worker's models."""
    models = tmp_path / "models"
    folder = put(models, 1, times(1))
    with gunicorn(tmp_path, models, POCKETSERVE_LOAD="m") as server:

        def loads() -> int:
            return server.log.read_text().count("loaded m/1 in")

        wait_until(lambda: loads() == 2, server.log)
        (folder / ".fresh").write_bytes(times(2))
        (folder / ".fresh").replace(folder / "model.onnx")
        wait_until(lambda: loads() == 4, server.log)
        digests: dict[str, str] = {}

        def has_asked_both() -> bool:
            (row,) = server.call(
                "POST", "/v2/repository/index", headers={"Connection": "close"}
            ).json()
            digests[row["worker"]] = row["sha256"]
            return len(digests) == 2

        wait_until(has_asked_both, server.log)
        assert set(digests.values()) == {hashlib.sha256(times(2)).hexdigest()}
