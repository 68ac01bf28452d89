"""Python on a phone: another platform name, missing and broken packages."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import MODELS

pytestmark = pytest.mark.live

SEVEN = MODELS / "digits" / "samples" / "7.png"
ANDROID = """
import ctypes, os, sys, types  # before the platform changes: Python 3.13's ctypes opens Android's libpython
sys.platform = "android"
real = os.uname()
os.uname = lambda: os.uname_result(("Android", *real[1:]))
import platform
platform.system = lambda: "Android"
platform.android_ver = lambda: types.SimpleNamespace(release="15")  # Python 3.13's asks Android's C library
"""
ABSENT = "raise ModuleNotFoundError(f'No module named {__name__!r}', name=__name__)"
BROKEN = {
    "ImportError": "raise ImportError('libc++_shared.so: cannot open shared object file')",
    "OSError": "raise OSError('dlopen failed')",
    "ends": "import os; os._exit(7)",
    "SIGILL": "import os, signal; os.kill(os.getpid(), signal.SIGILL)",
}


def site(folder: Path, **modules: str) -> dict[str, str]:
    """Create modules that shadow installed ones.

    Return the environment that uses them.
    """
    folder.mkdir()
    for name, code in modules.items():
        (folder / f"{name}.py").write_text(code)
    before = os.environ.get("PYTHONPATH", "")
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(folder), before]))}


ONLY_TFLITE_RUNTIME = """
import importlib, os, sys
own = os.path.dirname(os.path.dirname(__file__))
place = sys.path.index(own)
del sys.path[place]  # behind this folder is the real package, which is the same under its newer name
sys.modules.pop("ai_edge_litert", None)
importlib.invalidate_caches()
from ai_edge_litert import interpreter as real
globals().update(vars(real))
sys.path.insert(place, own)
for name in [name for name in sys.modules if name.partition(".")[0] == "ai_edge_litert"]:
    del sys.modules[name]
"""


def ask(server) -> dict:
    answer = server.call("POST", "/predictions/digits", data=SEVEN.read_bytes())
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_server_and_commands_work_on_android(new_server, tmp_path):
    """The server, every command and the doctor work on the platform ``android``.

    ``make test-all`` also runs this with ``tflite_runtime`` as the only runtime, as in
    Termux.
    """
    own = site(tmp_path / "site", sitecustomize=ANDROID)
    server = new_server(MODELS, environment=own)
    assert ask(server)["predictions"][0]["label"] == "7"
    environ = {
        **os.environ,
        **own,
        "POCKETSERVE_STATE_DIR": str(tmp_path / "state"),
    }
    connection = [
        "--url",
        server.url,
        "--token-file",
        str(server.log.with_name("token")),
    ]
    for words in (
        ["models", *connection],
        ["predict", "digits", str(SEVEN), *connection],
        ["token"],
    ):
        command = [sys.executable, "-m", "pocketserve", *words]
        done = subprocess.run(
            command, env=environ, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    command = [sys.executable, "-m", "pocketserve", "doctor", "--json"]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=60
    )
    findings = json.loads(done.stdout)["findings"]
    assert any("Termux (android" in finding["sentence"] for finding in findings), (
        findings
    )
    assert server.stop() == 0


def test_tflite_runtime_alone_suffices_on_android(new_server, tmp_path):
    """``pkg`` installs one runtime under Termux's name.

    The others are reported missing.
    """
    absent = ["ai_edge_litert", "tensorflow", "torch", "onnxruntime", "executorch"]
    own = site(
        tmp_path / "site", sitecustomize=ANDROID, **dict.fromkeys(absent, ABSENT)
    )
    # It has no wheel for this Python.
    if importlib.util.find_spec("tflite_runtime") is None:
        package = tmp_path / "site" / "tflite_runtime"
        package.mkdir()
        (package / "__init__.py").write_text("")
        (package / "interpreter.py").write_text(ONLY_TFLITE_RUNTIME)
    own["POCKETSERVE_STATE_DIR"] = str(tmp_path / "state")
    server = new_server(MODELS, environment=own)
    assert ask(server)["predictions"][0]["label"] == "7"
    runtime = server.call("GET", "/v2/models/digits").json()["parameters"]["runtime"]
    assert runtime.startswith("tflite-runtime"), runtime
    missing = server.call(
        "POST", "/predictions/digits?version=onnx", data=SEVEN.read_bytes()
    )
    assert (missing.status_code, missing.json()["code"]) == (503, "RUNTIME_MISSING"), (
        missing.text
    )
    assert "pkg install" in missing.json()["error"]
    with server.connect() as peer:
        assert peer.call("POST /predictions/petals", b"[5.1, 3.5, 1.4]").status == 200
    assert server.stop() == 0


def test_the_extras_exclude_packages_without_wheels_for_android(tmp_path):
    import tomllib

    from packaging.requirements import Requirement

    extras = tomllib.loads((MODELS.parent / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    wanted = [
        Requirement(text) for extra in ("tflite", "onnx") for text in extras[extra]
    ]
    assert not any(
        r.marker is None or r.marker.evaluate({"sys_platform": "android"})
        for r in wanted
    )


def test_only_pictures_need_pillow(new_server, tmp_path):
    """A picture is rejected with the way out; numbers are answered."""
    server = new_server(MODELS, environment=site(tmp_path / "site", PIL=ABSENT))
    refused = server.call("POST", "/predictions/digits", data=SEVEN.read_bytes())
    assert refused.status_code >= 400 and "pip install" in refused.json()["error"], (
        refused.text
    )
    assert (
        server.call("POST", "/predictions/petals", json=[5.1, 3.5, 1.4]).status_code
        == 200
    )


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_framework_fails_only_its_own_requests(new_server, tmp_path, fault):
    """The server lists its models.

    A request that needs the framework gets the reason.
    """
    shadows = dict.fromkeys(
        ("ai_edge_litert", "tflite_runtime", "tensorflow", "torch", "onnxruntime"),
        BROKEN[fault],
    )
    own = site(tmp_path / "site", **shadows) | {
        "POCKETSERVE_STATE_DIR": str(tmp_path / "state")
    }
    server = new_server(MODELS, environment=own)
    for _ in range(2):
        refused = server.call("POST", "/predictions/digits", data=SEVEN.read_bytes())
        assert (refused.status_code, refused.json()["code"]) == (
            503,
            "RUNTIME_MISSING",
        ), refused.text
    assert "installed" in refused.json()["error"]
    index = server.call("POST", "/v2/repository/index").json()
    assert {entry["name"] for entry in index} == {
        "digits",
        "diabetes",
        "numbers",
        "petals",
    }
    assert not any("quarantine" in entry.get("reason", "") for entry in index)
    assert server.call("GET", "/v2/health/ready").status_code == 200
    environ = {**os.environ, **own}
    command = [sys.executable, "-m", "pocketserve", "doctor", "--json"]
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=60
    )
    broken = []
    for f in json.loads(done.stdout)["findings"]:
        if "installed but broken" in f["sentence"]:
            broken.append(f["sentence"])
    assert done.returncode == 1 and {text.partition(" ")[0] for text in broken} >= set(
        shadows
    ), done.stdout
