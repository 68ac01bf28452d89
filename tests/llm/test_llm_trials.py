"""Refuse hostile language models with a reason, and leave nothing behind."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

import gguf_files
from conftest import StartServer

pytestmark = pytest.mark.llm
TEMPLATES = {
    "broken": "{% if %}",
    "endless": "{% for i in range(1000000000000) %}{% endfor %}x",
    "large": "{{ 'x' * 1000000000000 }}",
}
HELLO = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}


def engines_in(folder: Path) -> list[str]:
    """Return command lines of engines that serve files below a folder."""
    lines = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if b"pocketserve.runtimes.llm.child" in line and str(folder).encode() in line:
            lines.append(line.decode(errors="replace"))
    return lines


@pytest.mark.thorough
def test_hostile_templates_are_refused_and_leave_no_process(
    tmp_path: Path, new_server: StartServer
) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for name, template in TEMPLATES.items():
        file = models / f"{name}.gguf"
        gguf_files.write_tiny(file, tokenizer__chat_template=template)
    state = tmp_path / "state"
    environment = {"POCKETSERVE_STATE_DIR": str(state)}
    server = new_server(models, "--trial-timeout", "20", environment=environment)
    for name in TEMPLATES:
        body = json.dumps({"model": name, **HELLO}).encode()
        answer = server.call("POST", "/v1/chat/completions", data=body)
        assert answer.status_code == 503
        assert "failed to load" in answer.json()["error"]["message"]
    assert engines_in(state) == []
    assert server.call("GET", "/v2/health/ready").status_code == 200


@pytest.mark.thorough
def test_mutated_files_never_harm_the_server(
    tmp_path: Path, new_server: StartServer
) -> None:
    """Each is served or refused with a reason, and the server keeps answering."""
    models = tmp_path / "models"
    models.mkdir()
    whole = gguf_files.write_tiny(tmp_path / "whole.gguf").read_bytes()
    choose = random.Random(0)
    for number in range(12):
        data = bytearray(whole)
        for _ in range(choose.randint(1, 10)):
            data[choose.randrange(len(data))] = choose.randrange(256)
        (models / f"m{number}.gguf").write_bytes(data)
    environment = {"POCKETSERVE_STATE_DIR": str(tmp_path / "state")}
    server = new_server(models, environment=environment)
    for number in range(12):
        body = json.dumps({"model": f"m{number}", **HELLO}).encode()
        answer = server.call("POST", "/v1/chat/completions", data=body)
        assert answer.status_code in (200, 400, 500, 503)
        if answer.status_code != 200:
            assert answer.json()["error"]["message"]
    assert server.call("GET", "/v2/health/ready").status_code == 200
