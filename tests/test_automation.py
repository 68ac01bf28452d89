"""Send the requests of docs/automation.md, and run its script."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from conftest import MODELS, ROOT, Server

pytestmark = pytest.mark.live

PAGE = (ROOT / "docs" / "automation.md").read_text(encoding="utf-8")
ADDRESS = "http://127.0.0.1:8470"
SPEAK = 'echo "$1" > "$SPOKEN"\n'
STAND_INS = {
    "termux-camera-photo": 'cp "$PHOTO" "$1"\n',
    "termux-tts-speak": SPEAK,
    "termux-toast": SPEAK,
}


@dataclass
class ToolRequest:
    """A request as a tool sends it."""

    url: str
    body: str
    method: str = "POST"
    headers: dict[str, str] = field(default_factory=dict)


def section(title: str) -> str:
    """Return the text below a heading."""
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def block(title: str, language: str) -> str:
    """Return the only block of a language below a heading."""
    pattern = rf"^```{language}\n(.*?)^```$"
    (code,) = re.findall(pattern, section(title), re.MULTILINE | re.DOTALL)
    return str(code)


def http_shortcuts() -> ToolRequest:
    words = shlex.split(block("HTTP Shortcuts", "sh request").replace("\\\n", " "))
    options = dict(zip(words[4::2], words[5::2], strict=True))
    assert words[1] == "-X"
    headers = re.findall(r"-H '(.*?): (.*?)'", section("HTTP Shortcuts"))
    return ToolRequest(words[3], options["-d"], words[2], dict(headers))


def tasker() -> ToolRequest:
    rows = re.findall(r"^\| (.*?) \| `(.*?)` \|$", section("Tasker"), re.MULTILINE)
    fields = dict(rows)
    name, _, value = fields["Headers"].partition(":")
    key, _, number = fields["Query Parameters"].partition(":")
    url = f"{fields['URL']}?{key}={number}"
    return ToolRequest(url, fields["Body"], fields["Method"], {name: value})


def home_assistant() -> ToolRequest:
    lines = block("Home Assistant", "yaml request").splitlines()
    pairs = [line.strip(" -").partition(": ") for line in lines]
    values = {name: value.strip('"') for name, _, value in pairs}
    headers = {name: values[name] for name in ("Authorization", "Content-Type")}
    return ToolRequest(values["resource"], values["payload"], values["method"], headers)


def node_red() -> ToolRequest:
    source, node, _ = json.loads(block("Node-RED", "json request"))
    headers = {header["keyValue"]: header["valueValue"] for header in node["headers"]}
    # Node-RED sends an object or a list with this type.
    headers["Content-Type"] = "application/json"
    return ToolRequest(node["url"], source["payload"], node["method"], headers)


def n8n() -> ToolRequest:
    (node,) = json.loads(block("n8n", "json request"))["nodes"]
    fields: dict[str, Any] = node["parameters"]
    headers = {
        header["name"]: header["value"]
        for header in fields["headerParameters"]["parameters"]
    }
    headers["Content-Type"] = "application/json"
    return ToolRequest(fields["url"], fields["jsonBody"], fields["method"], headers)


@pytest.mark.parametrize(
    "tool", [http_shortcuts, tasker, home_assistant, node_red, n8n]
)
def test_request_of_a_tool_is_answered(tool: Any, server: Server) -> None:
    request = tool()
    assert request.url.startswith(ADDRESS)
    assert request.headers["Authorization"] == "Bearer TOKEN"
    headers = {**request.headers, "Authorization": f"Bearer {server.token}"}
    path = request.url.removeprefix(ADDRESS)
    answer = server.call(request.method, path, data=request.body, headers=headers)
    assert answer.status_code == 200, answer.text
    (entry,) = answer.json()["predictions"]
    assert entry["name"] == "petal_width"
    assert entry["value"] == pytest.approx(0.23, abs=0.1)


@pytest.mark.parametrize(
    ("photo", "spoken"),
    [
        (MODELS / "digits" / "samples" / "7.png", "7\n"),
        (MODELS / "digits" / "model.toml", "No answer. Does the server run?\n"),
    ],
    ids=["photo", "broken"],
)
def test_script_speaks_the_answer(
    server: Server, tmp_path: Path, photo: Path, spoken: str
) -> None:
    script = block("A photo, spoken: Termux:API", "sh script")
    for name, code in STAND_INS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{code}")
        (tmp_path / name).chmod(0o700)
    programs = [
        str(tmp_path),
        str(Path(sys.executable).parent),
        os.environ["PATH"],
    ]
    (tmp_path / "token").write_text(str(server.token))
    environment = {
        **os.environ,
        "PATH": os.pathsep.join(programs),
        "TMPDIR": str(tmp_path),
        "POCKETSERVE_URL": server.url,
        "POCKETSERVE_TOKEN_FILE": str(tmp_path / "token"),
        "PHOTO": str(photo),
        "SPOKEN": str(tmp_path / "spoken"),
    }
    command = ["sh", "-euc", script]
    subprocess.run(command, env=environment, check=True, timeout=120)
    assert (tmp_path / "spoken").read_text() == spoken
