"""Keep hostile texts from controlling terminals or forging logs."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import MODELS, STATE, Server
from pocketserve.terminal.log_output import LogFormatter
from pocketserve.terminal.output import plain_output, printable
from pocketserve_wire.strict_json import dumps

from .test_hostile_servers import Peer

TIMEOUT_S = 120.0
ESC = "\x1b]0;pwned\x07\x1b[2J\x9b31m\u202eABC\u2066\u200b\r\n2026-11-22 00:00:00,000 INFO FAKE \x7f"
FORGED = "2026-11-22 00:00:00,000 INFO FAKE"
SEVEN = MODELS / "digits" / "samples" / "7.png"


def is_plain(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


def run(*words: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command; check that its output is plain and has no forged line."""
    environment = {
        **os.environ,
        "POCKETSERVE_STATE_DIR": str(STATE),
        "PYTHONUTF8": "1",
    }
    command = [sys.executable, "-m", "pocketserve", *map(str, words)]
    done = subprocess.run(
        command, capture_output=True, cwd=folder, env=environment, timeout=TIMEOUT_S
    )
    out = done.stdout.decode()
    err = done.stderr.decode()
    assert is_plain(out + err), [char for char in out + err if not char.isprintable()]
    assert not any(line.startswith(FORGED) for line in (out + err).splitlines())
    return subprocess.CompletedProcess(command, done.returncode, out, err)


@pytest.fixture(scope="module")
def hostile_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a models folder whose names, keys and labels contain escapes."""
    folder = tmp_path_factory.mktemp("hostile") / "models"
    folder.mkdir()
    digits = MODELS / "digits" / "digits.tflite"
    text = json.dumps(ESC)  # a TOML string, too
    shutil.copy(digits, folder / f"{ESC}.tflite")
    manifests = {
        "key": f"{text} = 1\n",
        "value": f"task = {text}\n",
        "file": f"[versions.a]\nfile = {text}\n",
        "version": f'[versions.{text}]\nfile = "x.tflite"\n',
        "labels": 'task = "image-classification"\nlabels = "labels.txt"\n[versions.a]\nfile = "x.tflite"\n',
    }
    for name, manifest in manifests.items():
        (folder / name).mkdir()
        (folder / name / "model.toml").write_text(manifest, encoding="utf-8")
        shutil.copy(digits, folder / name / "x.tflite")
    label = ESC.replace("\n", "").replace("\r", "")
    (folder / "labels" / "labels.txt").write_text(
        "\n".join(f"{label}{index}" for index in range(10)), encoding="utf-8"
    )
    (folder / "damaged").mkdir()
    (folder / "damaged" / f"{ESC}.onnx").write_bytes(b"\x08\x08" + ESC.encode())
    return folder


@pytest.mark.live
def test_commands_on_hostile_folders_print_plain_text(hostile_models, tmp_path):
    for name in ("key", "file", ESC):
        run(
            "inspect",
            name,
            "--local",
            "--models-dir",
            hostile_models,
            folder=tmp_path,
        )
    run(
        "predict",
        "damaged",
        SEVEN,
        "--local",
        "--models-dir",
        hostile_models,
        folder=tmp_path,
    )
    shown = run(
        "predict",
        "labels",
        SEVEN,
        "--local",
        "--models-dir",
        hostile_models,
        folder=tmp_path,
    )
    assert shown.returncode == 0
    assert r"\x1b]0;pwned\x07" in shown.stdout
    assert r"\u202e" in shown.stdout
    said = run(
        "predict",
        "labels",
        SEVEN,
        "--local",
        "--models-dir",
        hostile_models,
        "--json",
        folder=tmp_path,
    )
    first = json.loads(said.stdout)["predictions"][0]
    # JSON carries the same text in its own escapes.
    assert first["label"].startswith("\x1b]0;pwned\x07")
    run("doctor", hostile_models, folder=tmp_path)
    assert run("inspect", ESC, "--debug", folder=tmp_path).returncode == 1
    assert (
        run(
            "predict", "digits", ESC, "--local", "--models-dir", MODELS, folder=tmp_path
        ).returncode
        == 1
    )
    assert run(f"--{ESC}", folder=tmp_path).returncode == 2


@pytest.mark.live
def test_a_server_with_a_hostile_folder_and_its_clients_print_plain_text(
    hostile_models, new_server, tmp_path
):
    server = new_server(hostile_models, "--log-level", "debug")
    where = ["--url", server.url, "--token-file", server.log.with_name("token")]
    for words in (
        ["models"],
        ["models", "--all"],
        ["models", "--check"],
        ["models", "--json"],
    ):
        assert run(*words, *where, folder=tmp_path).returncode == 0
    for name in ("key", "version", "labels", "damaged"):
        run("predict", name, SEVEN, *where, folder=tmp_path)
    server.call("POST", "/v2/repository/models/%1b%5d0;x%07%0a2026/load", data=b"{}")
    server.stop()
    log = server.log.read_text(encoding="utf-8")
    assert is_plain(log)
    assert not any(line.startswith(FORGED) for line in log.splitlines())
    assert r"\x1b]0;pwned\x07" in log


def check_log(server: Server, *models: str) -> None:
    """Send requests that the models refuse, and check the log, C++ output included."""
    tensor = {
        "name": "x",
        "shape": [2],
        "datatype": "INT64",
        "data": [5, 5],
    }
    for model in models:
        answer = server.call(
            "POST", f"/v2/models/{model}/infer", json={"inputs": [tensor]}
        )
        assert answer.json()["code"] == "INVALID_TENSOR"
    server.stop()
    log = server.log.read_bytes().decode()
    assert is_plain(log)
    assert not any(line.startswith(FORGED) for line in log.splitlines())


@pytest.mark.live
@pytest.mark.onnx
def test_onnx_runtimes_own_messages_are_plain(new_server, tmp_path):
    """It prints graph names in each error of a run."""
    onnx = pytest.importorskip(
        "onnx", reason="the environment of the older runtime has no ONNX"
    )
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Gather", [ESC, "x"], ["y"], name=ESC)],
        ESC,
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.INT64, [2])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])],
        [onnx.numpy_helper.from_array(np.arange(3, dtype=np.float32), ESC)],
    )
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(
        onnx.helper.make_model(graph, ir_version=8, opset_imports=opset),
        tmp_path / "m.onnx",
    )
    check_log(new_server(tmp_path), "m")


@pytest.mark.live
@pytest.mark.torch
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_warnings_of_a_script_are_plain(new_server, tmp_path):
    torch = pytest.importorskip("torch")
    text = "".join(f"\\{byte:03o}" for byte in ESC.encode())  # as TorchScript spells it
    module = torch.jit.ScriptModule()
    module.define(f"""
def forward(self, x: Tensor) -> Tensor:
    warnings.warn("{text}")
    if int(x.sum()) == 10:
        raise Exception("{text}")
    return x
""")
    module.save(str(tmp_path / "script.ts"))
    module._save_for_lite_interpreter(str(tmp_path / "lite.ptl"))
    for name in ("script.ts", "lite.ptl"):
        path = tmp_path / "models" / Path(name).stem / name
        path.parent.mkdir(parents=True)
        (tmp_path / name).rename(path)
        inputs = '[[inputs]]\nname = "x"\ndatatype = "INT64"\nshape = [2]\n'
        path.with_name("model.toml").write_text(
            f'[versions.a]\nfile = "{name}"\n{inputs}'
        )
    check_log(new_server(tmp_path / "models"), "script", "lite")


ENTRY = {
    "name": ESC,
    "version": ESC,
    "state": ESC,
    "reason": ESC,
}
TENSOR = {
    "name": ESC,
    "datatype": ESC,
    "shape": [1],
}
DESCRIPTION = {
    "name": ESC,
    "versions": [ESC],
    "platform": ESC,
    "parameters": {ESC: ESC},
    "inputs": [TENSOR],
    "outputs": [TENSOR],
    "card": {"input": ESC, "labels": 2, "first_labels": [ESC], "examples": {ESC: ESC}},
    "metadata": {"name": ESC, "inputs": [{"name": ESC, "description": ESC}]},
}
PREDICTION = {
    "model": ESC,
    "version": ESC,
    "task": ESC,
    "predictions": [{ESC: ESC}],
    "timing_ms": {"infer": 1.0},
}
ASKED = {
    "models": [ENTRY],
    "models --all": [ENTRY],
    "models --json": [ENTRY],
    "models --check": [{**ENTRY, "state": "READY"}],
    "inspect m": DESCRIPTION,
    "inspect m --json": DESCRIPTION,
    "predict m 1": PREDICTION,
    "pair": {"code": ESC, "remaining_s": 1.0, "state": ESC},
}


@pytest.mark.parametrize("words", ASKED)
@pytest.mark.parametrize("status", [200, 400])
def test_answers_of_a_hostile_server_are_printed_plainly(words, status, tmp_path):
    document = ASKED[words] if status == 200 else {"error": ESC, "code": ESC}
    body = dumps(document)
    answer = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b" % (
        status,
        len(body),
        body,
    )
    with Peer(lambda: [answer]) as peer:
        done = run(
            *words.split(), "--url", f"http://127.0.0.1:{peer.port}", folder=tmp_path
        )
    assert r"\x1b" in done.stdout + done.stderr or r"\u001b" in done.stdout


def test_a_page_instead_of_an_answer_is_printed_plainly(tmp_path):
    page = (
        b"HTTP/1.1 500 X\r\nContent-Length: 9\r\nConnection: close\r\n\r\n\x1b]0;pwned"
    )
    with Peer(lambda: [page]) as peer:
        done = run("models", "--url", f"http://127.0.0.1:{peer.port}", folder=tmp_path)
    assert done.returncode == 1
    assert r"\x1b]0;pwned" in done.stderr


def test_letters_of_all_scripts_are_kept():
    text = "né 名前 שלום مرحبا हिन्दी 😀\u00a0\u3000ﬀ"
    assert printable(text) == text
    assert printable(text, keep="\n") == text
    assert (
        printable("a\u200db\u00ad\ufeff\U000e0041") == r"a\u200db\xad\ufeff\U000e0041"
    )


def test_a_closed_stream_stays_closed(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    with plain_output():
        assert sys.stderr is None
        assert sys.stdout is not None


def test_a_log_record_is_one_line():
    formatter = LogFormatter("%(levelname)s %(message)s")
    record = logging.LogRecord(
        "x", logging.INFO, "", 0, "tried %s\nINFO FAKE", (ESC,), None
    )
    assert "\n" not in formatter.format(record)
    assert is_plain(formatter.format(record))
    try:
        raise ValueError(f"{ESC}\nINFO FAKE")
    except ValueError:
        record = logging.LogRecord(
            "x", logging.ERROR, "", 0, "failed", (), sys.exc_info()
        )
    first, *more = formatter.format(record).split("\n")
    assert first == "ERROR failed"
    assert more
    assert all(line.startswith("    ") and is_plain(line) for line in more)
