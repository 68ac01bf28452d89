"""Test the TensorFlow.js runtime with a real Node process.

The tests need Node on the path, and the npm packages in the folder that
``POCKETSERVE_TFJS_MODULES`` names or in the server's state folder. If they are missing,
the tests fail with the command that installs them, because the mark ``tfjs`` asks for
them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from pocketserve.child.frames import FramePipe
from pocketserve.runtimes.base import (
    TRIAL_VARIABLE,
    ModelLoadError,
    ModelSource,
    ResettableSession,
    RuntimeMissingError,
)
from pocketserve.runtimes.tfjs import session as tfjs
from pocketserve.runtimes.tfjs.packages import find_modules
from pocketserve.runtimes.tfjs.process import WorkerError
from pocketserve.runtimes.tfjs.session import TfjsRuntime, TfjsSession
from pocketserve.tensors import TensorSpec

pytestmark = pytest.mark.tfjs

KERNEL = np.arange(6, dtype=np.float32).reshape(3, 2)
BIAS = np.array([10, 20], np.float32)
X = np.array([[1, 2, 3], [4, 5, 6]], np.float32)
WEIGHTS: list[dict[str, Any]] = [
    {"name": "d/kernel", "shape": [3, 2], "dtype": "float32"},
    {"name": "d/bias", "shape": [2], "dtype": "float32"},
]
RAW = KERNEL.tobytes() + BIAS.tobytes()
TOPOLOGY: dict[str, Any] = {
    "class_name": "Sequential",
    "config": {
        "name": "s",
        "layers": [
            {
                "class_name": "Dense",
                "config": {
                    "name": "d",
                    "units": 2,
                    "use_bias": True,
                    "batch_input_shape": [None, 3],
                    "dtype": "float32",
                },
            }
        ],
    },
}


def write_model(folder: Path, document: dict[str, Any], **shards: bytes) -> Path:
    """Write a model's folder.

    Shards are named without the dots of their files.
    """
    folder.mkdir(exist_ok=True)
    (folder / "model.json").write_text(json.dumps(document))
    for name, content in shards.items():
        (folder / name.replace("_bin", ".bin")).write_bytes(content)
    return folder


def layers_model(
    paths: list[Any], weights: list[dict[str, Any]] = WEIGHTS, **more: Any
) -> dict[str, Any]:
    manifest = [{"paths": paths, "weights": weights}]
    return {
        "format": "layers-model",
        "modelTopology": {"model_config": TOPOLOGY},
        "weightsManifest": manifest,
    } | more


def graph_node(
    name: str, op: str, *inputs: str, dtype: str = "DT_FLOAT", **attributes: Any
) -> dict[str, Any]:
    kind = "T"
    if op in ("Placeholder", "Const"):
        kind = "dtype"
    return {
        "name": name,
        "op": op,
        "input": list(inputs),
        "attr": {kind: {"type": dtype}, **attributes},
    }


def shape_of(*sizes: int) -> dict[str, Any]:
    return {"dim": [{"size": str(size)} for size in sizes]}


def placeholder(name: str, *sizes: int, dtype: str = "DT_FLOAT") -> dict[str, Any]:
    return graph_node(
        name, "Placeholder", dtype=dtype, shape={"shape": shape_of(*sizes)}
    )


def graph_model(nodes: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    weights = []
    for node in nodes:
        if node["op"] == "Const":
            weights.append(
                {
                    "name": node["name"],
                    "shape": [3, 2],
                    "dtype": "float32",
                }
            )
    manifest = [{"paths": ["w.bin"], "weights": weights}] if weights else []
    return {
        "format": "graph-model",
        "modelTopology": {"node": nodes},
        "weightsManifest": manifest,
    } | more


@pytest.fixture(scope="module", autouse=True)
def _installed() -> None:
    """Fail at once with the install command if the packages are missing."""
    find_modules()


@pytest.fixture
def runtime() -> Iterator[TfjsRuntime]:
    """Return a runtime with a process of its own.

    Check that nothing of it is left.
    """
    runtime = TfjsRuntime(run_timeout=20)
    yield runtime
    assert runtime.pid is None, "a test left its process behind"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a valid layers model."""
    return write_model(tmp_path / "dense", layers_model(["w.bin"]), w_bin=RAW)


@pytest.fixture
def session(runtime: TfjsRuntime, folder: Path) -> Iterator[TfjsSession]:
    opened = runtime.open(ModelSource(folder))
    yield opened
    opened.close()


def answer(session: TfjsSession, x: np.ndarray = X) -> np.ndarray:
    return session.run({session.inputs[0].name: x})[session.outputs[0].name]


def answer_once(
    runtime: TfjsRuntime, path: Path, x: np.ndarray = X, **options: Any
) -> np.ndarray:
    opened = runtime.open(ModelSource(path, options=options))
    try:
        return answer(opened, x)
    finally:
        opened.close()


def test_state_is_kept_until_reset(runtime: TfjsRuntime, tmp_path: Path) -> None:
    """A recurrent layer sums up its inputs, in its own process only."""
    layer = {
        **{
            "name": "r",
            "units": 1,
            "stateful": True,
            "batch_input_shape": [1, 1, 1],
            "dtype": "float32",
        },
        **{"activation": "linear", "use_bias": False},
    }
    topology = {
        "class_name": "Sequential",
        "config": {
            "name": "s",
            "layers": [{"class_name": "SimpleRNN", "config": layer}],
        },
    }
    weights = [
        {
            "name": f"r/{name}",
            "shape": [1, 1],
            "dtype": "float32",
        }
        for name in ("kernel", "recurrent_kernel")
    ]
    document = layers_model(
        ["w.bin"], weights, modelTopology={"model_config": topology}
    )
    path = write_model(
        tmp_path / "adds", document, w_bin=np.ones(2, np.float32).tobytes()
    )
    one = np.ones((1, 1, 1), np.float32)
    first, other = (runtime.open(ModelSource(path)) for _ in range(2))
    try:
        assert isinstance(first, ResettableSession)
        assert [answer(first, one).item() for _ in range(3)] == [1, 2, 3]
        assert answer(other, one).item() == 1
        first.reset()
        assert answer(first, one).item() == 1
        assert runtime.pid is not None
        os.kill(runtime.pid, signal.SIGKILL)
        seen = []
        for _ in range(3):
            try:
                seen.append(answer(first, one).item())
            except (WorkerError, RuntimeError):
                seen.append(0)
        assert 2 not in seen[:2] and seen[-1] in (1, 2), (
            "no answer rests on a state that was lost"
        )
        assert 0 in seen
    finally:
        first.close()
        other.close()


def refusal(runtime: TfjsRuntime, path: Path, **options: Any) -> str:
    """Return the sentence with which a model is refused."""
    with pytest.raises(ModelLoadError) as caught:
        runtime.open(ModelSource(path, options=options))
    text = str(caught.value)
    assert "\n" not in text
    return text


# --- Sessions and results


def test_the_session_names_its_format_and_package(session: TfjsSession) -> None:
    assert tfjs.RUNTIME.platform == "tensorflow_js"
    assert tfjs.RUNTIME.option_keys == {"backend"}
    assert session.runtime.startswith("tensorflow.js 4.")
    assert session.device == "wasm"
    assert session.memory_bytes == 2 * len(RAW)  # once more for WebAssembly
    assert session.signatures == {}


def test_layers_model(session: TfjsSession) -> None:
    assert list(session.inputs) == [TensorSpec("d_input", "FP32", (-1, 3))]
    assert list(session.outputs) == [TensorSpec("d", "FP32", (-1, 2))]
    np.testing.assert_allclose(answer(session), X @ KERNEL + BIAS)


def test_results_own_their_memory(session: TfjsSession) -> None:
    first = answer(session)
    kept = first.copy()
    answer(session, X * 9)
    np.testing.assert_array_equal(first, kept)


def test_read_only_and_strided_inputs(session: TfjsSession) -> None:
    wide = np.repeat(X, 2, axis=1)[:, ::2]
    wide.flags.writeable = False
    np.testing.assert_allclose(answer(session, wide), X @ KERNEL + BIAS)


def test_the_path_of_the_file_is_accepted(runtime: TfjsRuntime, folder: Path) -> None:
    np.testing.assert_allclose(
        answer_once(runtime, folder / "model.json"), X @ KERNEL + BIAS
    )


def test_the_cpu_backend_is_an_option(runtime: TfjsRuntime, folder: Path) -> None:
    opened = runtime.open(ModelSource(folder, options={"backend": "cpu"}))
    assert opened.device == "cpu"
    np.testing.assert_allclose(answer(opened), X @ KERNEL + BIAS)
    opened.close()


def test_an_unknown_backend_is_refused(runtime: TfjsRuntime, folder: Path) -> None:
    assert "'wasm' or 'cpu'" in refusal(runtime, folder, backend="webgl")


@pytest.mark.parametrize(
    "topology",
    [
        TOPOLOGY,
        {"model_config": TOPOLOGY},
        json.dumps({"model_config": TOPOLOGY}),
    ],
)
def test_dialects_of_the_topology_are_read(
    runtime: TfjsRuntime, tmp_path: Path, topology: Any
) -> None:
    model = write_model(
        tmp_path / "m", layers_model(["w.bin"], modelTopology=topology), w_bin=RAW
    )
    np.testing.assert_allclose(answer_once(runtime, model), X @ KERNEL + BIAS)


def test_groups_and_shards_with_and_without_an_extension(
    runtime: TfjsRuntime, tmp_path: Path
) -> None:
    document = layers_model([])
    document["weightsManifest"] = [
        {"paths": ["group1-shard1of2", "g:shard2of2"], "weights": WEIGHTS[:1]},
        {"paths": ["group2.bin"], "weights": WEIGHTS[1:]},
    ]
    del document["format"]  # old converters wrote none
    model = write_model(tmp_path / "m", document, group2_bin=BIAS.tobytes())
    # The cut is in the middle of a number.
    (model / "group1-shard1of2").write_bytes(KERNEL.tobytes()[:7])
    (model / "g:shard2of2").write_bytes(KERNEL.tobytes()[7:])
    np.testing.assert_allclose(answer_once(runtime, model), X @ KERNEL + BIAS)


@pytest.mark.parametrize(
    ("dtype", "stored", "extra"),
    [
        ("uint8", KERNEL.astype(np.uint8), {"scale": 1.0, "min": 0.0}),
        ("uint16", KERNEL.astype(np.uint16), {"scale": 1.0, "min": 0.0}),
        ("float16", KERNEL.astype(np.float16), {}),
    ],
)
def test_quantised_weights(
    runtime: TfjsRuntime,
    tmp_path: Path,
    dtype: str,
    stored: np.ndarray,
    extra: dict[str, float],
) -> None:
    kernel = WEIGHTS[0] | {
        "quantization": {"dtype": dtype, "original_dtype": "float32", **extra}
    }
    model = write_model(
        tmp_path / "m",
        layers_model(["w.bin"], [kernel, WEIGHTS[1]]),
        w_bin=stored.tobytes() + BIAS.tobytes(),
    )
    np.testing.assert_allclose(
        answer_once(runtime, model), X @ KERNEL + BIAS, rtol=1e-3
    )


def test_graph_model_with_a_signature(runtime: TfjsRuntime, tmp_path: Path) -> None:
    signature = {
        "inputs": {
            "pixels": {
                "name": "x:0",
                "dtype": "DT_FLOAT",
                "tensorShape": shape_of(-1, 3),
            }
        },
        "outputs": {
            "scores": {
                "name": "y:0",
                "dtype": "DT_FLOAT",
                "tensorShape": shape_of(-1, 2),
            }
        },
    }
    nodes = [
        placeholder("x", -1, 3),
        graph_node("w", "Const"),
        graph_node("y", "MatMul", "x", "w"),
    ]
    model = write_model(
        tmp_path / "m", graph_model(nodes, signature=signature), w_bin=KERNEL.tobytes()
    )
    opened = runtime.open(ModelSource(model))
    assert list(opened.inputs) == [
        TensorSpec("x", "FP32", (-1, 3), aliases=("pixels", "x:0"))
    ]
    assert list(opened.outputs) == [
        TensorSpec("scores", "FP32", (-1, 2), aliases=("y:0", "y"))
    ]
    np.testing.assert_allclose(answer(opened), X @ KERNEL)
    opened.close()


def test_graph_model_without_declared_outputs(
    runtime: TfjsRuntime, tmp_path: Path
) -> None:
    nodes = [
        placeholder("x", -1, 3),
        graph_node("w", "Const"),
        graph_node("y", "MatMul", "x", "w"),
    ]
    model = write_model(tmp_path / "m", graph_model(nodes), w_bin=KERNEL.tobytes())
    opened = runtime.open(ModelSource(model))
    assert list(opened.outputs) == [TensorSpec("y", "FP32", (-1, 2))]
    np.testing.assert_allclose(answer(opened), X @ KERNEL)
    opened.close()


def test_integers_and_booleans(runtime: TfjsRuntime, tmp_path: Path) -> None:
    nodes = [
        placeholder("a", 3, dtype="DT_INT32"),
        placeholder("b", 3, dtype="DT_BOOL"),
        graph_node("sum", "AddV2", "a", "a", dtype="DT_INT32"),
        graph_node("not", "LogicalNot", "b", dtype="DT_BOOL"),
    ]
    opened = runtime.open(ModelSource(write_model(tmp_path / "m", graph_model(nodes))))
    assert [(spec.name, spec.datatype, spec.shape) for spec in opened.outputs] == [
        ("sum", "INT32", (3,)),
        ("not", "BOOL", (3,)),
    ]
    results = opened.run(
        {"a": np.array([1, -2, 3], np.int32), "b": np.array([True, False, True])}
    )
    assert results["sum"].tolist() == [2, -4, 6]
    assert results["not"].dtype == np.bool_
    assert results["not"].tolist() == [
        False,
        True,
        False,
    ]
    opened.close()


def test_casts_to_bool_on_the_wasm_backend(
    runtime: TfjsRuntime, tmp_path: Path
) -> None:
    """The backend's own kernel maps 0.5 and 256 to false."""
    types = {"SrcT": {"type": "DT_FLOAT"}, "DstT": {"type": "DT_BOOL"}}
    nodes = [placeholder("x", 4), graph_node("y", "Cast", "x", **types)]
    opened = runtime.open(ModelSource(write_model(tmp_path / "m", graph_model(nodes))))
    assert opened.device == "wasm"
    assert answer(opened, np.array([0, 0.5, 256, -1], np.float32)).tolist() == [
        False,
        True,
        True,
        True,
    ]
    opened.close()


def test_text_inputs_are_refused_with_an_explanation(
    runtime: TfjsRuntime, tmp_path: Path
) -> None:
    nodes = [placeholder("x", -1, dtype="DT_STRING"), graph_node("y", "Identity", "x")]
    assert "type string, which cannot be served" in refusal(
        runtime, write_model(tmp_path / "m", graph_model(nodes))
    )


@pytest.mark.parametrize("told", [True, False])
def test_text_outputs_are_refused_when_the_model_is_loaded(
    runtime: TfjsRuntime, tmp_path: Path, told: bool
) -> None:
    nodes = [placeholder("x", 2), graph_node("y", "Const")]
    document = graph_model(nodes)
    document["weightsManifest"][0]["weights"] = [
        {"name": "y", "shape": [1], "dtype": "string"}
    ]
    if told:
        document["signature"] = {
            "outputs": {"y": {"name": "y:0", "dtype": "DT_STRING"}}
        }
    text = (5).to_bytes(4, "little") + b"hello"
    assert "type string, which cannot be served" in refusal(
        runtime, write_model(tmp_path / "m", document, w_bin=text)
    )


@pytest.mark.parametrize(
    "text",
    [
        "Kernel 'Complex' not registered for backend 'wasm'",
        "'complex' not yet implemented or not found in the registry. This kernel may not be supported by the backend",
        "BatchMatMul for non non-float32 tensors not yet supported.",
    ],
)
def test_a_missing_operator_names_the_backend_that_has_it(text: str) -> None:
    error = tfjs._run_error({"error": text, "input": True})
    assert isinstance(error, RuntimeError)
    assert 'set backend = "cpu" for this version in model.toml' in str(error)


def test_an_operator_that_wasm_lacks_runs_on_the_other_backend(
    runtime: TfjsRuntime, tmp_path: Path
) -> None:
    nodes = [
        placeholder("x", 2),
        graph_node("c", "Complex", "x", "x"),
        graph_node("y", "Real", "c"),
    ]
    folder = write_model(tmp_path / "m", graph_model(nodes))
    opened = runtime.open(ModelSource(folder))
    with pytest.raises(RuntimeError, match='set backend = "cpu"'):
        answer(opened, np.ones(2, np.float32))
    opened.close()
    opened = runtime.open(ModelSource(folder, options={"backend": "cpu"}))
    assert answer(opened, np.array([1, 2], np.float32)).tolist() == [1, 2]
    opened.close()


def test_a_mismatched_input_is_a_client_error(session: TfjsSession) -> None:
    with pytest.raises(ValueError, match="shape"):
        answer(session, np.zeros((1, 4), np.float32))
    np.testing.assert_allclose(answer(session), X @ KERNEL + BIAS)


def test_large_tensors_pass_through_the_pipes(session: TfjsSession) -> None:
    rows = np.arange(3 * 400_000, dtype=np.float32).reshape(-1, 3) % 7
    np.testing.assert_allclose(answer(session, rows), rows @ KERNEL + BIAS)


def test_no_tensors_are_left_behind(
    runtime: TfjsRuntime, session: TfjsSession, folder: Path
) -> None:
    for _ in range(20):
        answer(session)
    runtime.open(ModelSource(folder)).close()
    worker = runtime._worker
    with worker.exclusive():
        reply, _ = worker.ask({"op": "close", "model": "unknown"}, (), 5)
    assert reply == {"tensors": 2}, "the open model's kernel and bias, and nothing else"


# --- Files that are refused


@pytest.mark.parametrize(
    "name",
    [
        "../x.bin",
        "a/../../x.bin",
        "/etc/hostname",
        "http://host/x.bin",
        "..\\x",
        "w\\x",
        "",
        7,
        "\ud800",
        os.fsdecode(b"\xff"),
    ],
)
def test_weights_outside_the_folder_are_refused(
    runtime: TfjsRuntime, tmp_path: Path, name: Any
) -> None:
    (tmp_path / "x.bin").write_bytes(RAW)
    (tmp_path / "m").mkdir()
    for inside in ("w\\x", os.fsdecode(b"\xff")):
        (tmp_path / "m" / inside).write_bytes(RAW)
    told = refusal(runtime, write_model(tmp_path / "m", layers_model([name])))
    assert told.startswith(
        f"m/model.json keeps weights in {name!r}, which is not a file inside its folder"
    )
    assert runtime.pid is None


def test_a_link_out_of_the_folder_is_refused(
    runtime: TfjsRuntime, tmp_path: Path
) -> None:
    (tmp_path / "x.bin").write_bytes(RAW)
    model = write_model(tmp_path / "m", layers_model(["w.bin"]))
    (model / "w.bin").symlink_to(tmp_path / "x.bin")
    assert "'w.bin', which is not a file inside its folder" in refusal(runtime, model)


def test_a_missing_shard_is_named(runtime: TfjsRuntime, folder: Path) -> None:
    (folder / "w.bin").unlink()
    reason = "which is not there; copy that file into the model's folder"
    assert (
        refusal(runtime, folder)
        == f"dense/model.json keeps weights in 'w.bin', {reason}"
    )


@pytest.mark.parametrize(
    "name",
    [
        "n" * 300,
        "/".join(["d" * 200] * 30),
    ],
    ids=["name", "path"],
)
def test_impossible_names_of_weights_are_refused(
    runtime: TfjsRuntime, tmp_path: Path, name: str
) -> None:
    told = refusal(runtime, write_model(tmp_path / "m", layers_model([name])))
    assert told.startswith(
        f"m/model.json keeps weights in {name!r:.200}, which is not there"
    )


@pytest.mark.parametrize(
    "content",
    [
        b"",
        RAW[:-1],
        RAW + b"x",
    ],
)
def test_a_shard_of_the_wrong_size_is_refused(
    runtime: TfjsRuntime, folder: Path, content: bytes
) -> None:
    (folder / "w.bin").write_bytes(content)
    assert f"have {len(content)} bytes and must have {len(RAW)}" in refusal(
        runtime, folder
    )


def test_garbage_weights_of_the_right_size_do_no_harm(
    runtime: TfjsRuntime, folder: Path
) -> None:
    (folder / "w.bin").write_bytes(b"\xff" * len(RAW))
    assert np.isnan(answer_once(runtime, folder)).all()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{",
        b"\xff\xfe",
        b'{"modelTopology": {}}',
        b"[" * 100_000,
        b'{"weightsManifest": 3}',
    ],
)
def test_a_damaged_model_json_is_refused(
    runtime: TfjsRuntime, folder: Path, content: bytes
) -> None:
    (folder / "model.json").write_bytes(content)
    assert "is not a complete TensorFlow.js model" in refusal(runtime, folder)


def test_hostile_weights_are_refused(runtime: TfjsRuntime, tmp_path: Path) -> None:
    for weight in (
        {"shape": [-1]},
        {"shape": [2**70]},
        {"dtype": "float128"},
        {"shape": None},
    ):
        model = write_model(
            tmp_path / "m", layers_model(["w.bin"], [WEIGHTS[0] | weight]), w_bin=RAW
        )
        assert refusal(runtime, model)


def test_an_unknown_layer_is_explained(runtime: TfjsRuntime, tmp_path: Path) -> None:
    topology = json.loads(json.dumps(TOPOLOGY))
    topology["config"]["layers"][0]["class_name"] = "Lambda"
    model = write_model(
        tmp_path / "m", layers_model(["w.bin"], modelTopology=topology), w_bin=RAW
    )
    assert "TensorFlow.js cannot load m/model.json: Unknown layer: Lambda" in refusal(
        runtime, model
    )
    assert runtime.pid is None


def test_an_unknown_operator_fails_the_run(
    runtime: TfjsRuntime, tmp_path: Path
) -> None:
    nodes = [placeholder("x", 3), graph_node("y", "MadeUp", "x")]
    opened = runtime.open(ModelSource(write_model(tmp_path / "m", graph_model(nodes))))
    assert opened.outputs[0].open
    with pytest.raises(RuntimeError, match="MadeUp"):
        answer(opened, X[0])
    opened.close()


# --- Missing programs


def test_missing_packages_name_the_command(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(RuntimeMissingError) as caught:
        TfjsRuntime(tmp_path).open(ModelSource(folder))
    command = f"npm install --prefix {tmp_path} @tensorflow/tfjs@4.22.0 @tensorflow/tfjs-backend-wasm@4.22.0"
    assert command in str(caught.value)
    assert "pkg install nodejs" in str(caught.value)


def test_missing_node_is_named(folder: Path) -> None:
    with pytest.raises(RuntimeMissingError, match="pkg install nodejs"):
        TfjsRuntime(node="no-such-node").open(ModelSource(folder))


def test_a_node_that_fails_to_start_is_explained(tmp_path: Path, folder: Path) -> None:
    fake = tmp_path / "node"
    fake.write_text("#!/bin/sh\necho something is broken >&2\nexit 3\n")
    fake.chmod(0o755)
    with pytest.raises(
        RuntimeMissingError,
        match=r"does not start: .* with exit code 3 .*something is broken",
    ):
        TfjsRuntime(node=str(fake)).open(ModelSource(folder))


# --- The process


def test_all_models_share_one_process_which_ends_with_the_last(
    runtime: TfjsRuntime, folder: Path
) -> None:
    first = runtime.open(ModelSource(folder))
    second = runtime.open(ModelSource(folder))
    pid = runtime.pid
    assert pid is not None
    first.close()
    np.testing.assert_allclose(answer(second), X @ KERNEL + BIAS)
    assert runtime.pid == pid
    second.close()
    assert runtime.pid is None
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_closed_session_refuses_runs(runtime: TfjsRuntime, folder: Path) -> None:
    opened = runtime.open(ModelSource(folder))
    opened.close()
    opened.close()
    with pytest.raises(RuntimeError, match="closed"):
        answer(opened)


def test_a_session_works_after_its_process_was_killed(
    runtime: TfjsRuntime, session: TfjsSession
) -> None:
    pid = runtime.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 120
    while runtime.pid is not None:  # the kernel takes a moment
        assert time.monotonic() < deadline
    np.testing.assert_allclose(answer(session), X @ KERNEL + BIAS)
    assert runtime.pid not in (None, pid)


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_the_next_request_gets_no_answer_of_an_interrupted_one(
    session: TfjsSession,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(FramePipe, "receive", Mock(side_effect=error))
        with pytest.raises(error):
            answer(session, -X)
    np.testing.assert_allclose(answer(session), X @ KERNEL + BIAS)


def test_a_hung_process_is_killed_and_the_next_run_works(folder: Path) -> None:
    runtime = TfjsRuntime(run_timeout=0.3)
    session = runtime.open(ModelSource(folder))
    pid = runtime.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(
        WorkerError, match=r"did not answer within 0\.3 s and was ended"
    ):
        answer(session)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    np.testing.assert_allclose(answer(session), X @ KERNEL + BIAS)
    session.close()
    assert runtime.pid is None


def test_only_requests_in_progress_fail_when_the_process_dies(
    folder: Path,
) -> None:
    runtime = TfjsRuntime(run_timeout=30)
    session = runtime.open(ModelSource(folder))
    pid = runtime.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # so that the request is in progress for certain
    killer = threading.Timer(0.2, os.kill, (pid, signal.SIGKILL))
    killer.start()
    with pytest.raises(
        WorkerError, match="ended with signal SIGKILL while it worked on this request"
    ):
        answer(session)
    killer.join()
    np.testing.assert_allclose(answer(session), X @ KERNEL + BIAS)
    session.close()


def test_a_hung_process_cannot_block_large_inputs(folder: Path) -> None:
    runtime = TfjsRuntime(run_timeout=0.3)
    session = runtime.open(ModelSource(folder))
    assert runtime.pid is not None
    os.kill(runtime.pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match="did not answer"):
        answer(session, np.zeros((1_000_000, 3), np.float32))
    session.close()
    assert runtime.pid is None


def test_an_idle_process_ends_and_is_restarted(folder: Path) -> None:
    runtime = TfjsRuntime(idle=0.1)
    session = runtime.open(ModelSource(folder))
    deadline = time.monotonic() + 120
    while runtime.pid is not None:
        assert time.monotonic() < deadline
    np.testing.assert_allclose(answer(session), X @ KERNEL + BIAS)
    session.close()
    assert runtime.pid is None


def test_sessions_of_many_threads_share_the_process(
    runtime: TfjsRuntime, folder: Path
) -> None:
    sessions = [runtime.open(ModelSource(folder)) for _ in range(4)]
    wrong: list[str] = []

    def work(session: TfjsSession, factor: int) -> None:
        for _ in range(25):
            if not np.allclose(answer(session, X * factor), X * factor @ KERNEL + BIAS):
                wrong.append(f"factor {factor}")

    threads = [
        threading.Thread(target=work, args=(one, number))
        for number, one in enumerate(sessions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for one in sessions:
        one.close()
    assert not wrong


def test_the_process_ends_with_its_parent(folder: Path) -> None:
    code = (
        "import sys, os; from pathlib import Path; from pocketserve.runtimes.base import ModelSource; "
        "from pocketserve.runtimes.tfjs.session import RUNTIME; session = "
        "RUNTIME.open(ModelSource(Path(sys.argv[1]))); "
        "print(RUNTIME.pid, flush=True); os._exit(0)"
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        capture_output=True,
        timeout=60,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
    )
    deadline = time.monotonic() + 120
    while _exists(int(done.stdout)):
        assert time.monotonic() < deadline


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Where nobody reaps orphans, an ended one stays listed.
    stat = Path(f"/proc/{pid}/stat")
    return not (stat.exists() and ") Z " in stat.read_text())


# --- Public models


def _expected(assets: Path, name: str) -> dict[str, Any]:
    case: dict[str, Any] = json.loads(
        (assets / "expected" / f"{name}.json").read_text()
    )
    return case


def _compare(
    assets: Path, case: dict[str, Any], results: dict[str, np.ndarray]
) -> None:
    for expected in case["outputs"]:
        np.testing.assert_allclose(
            results[expected["name"]],
            np.load(assets / expected["npy"]),
            rtol=1e-3,
            atol=1e-4,
            err_msg=expected["name"],
        )


@pytest.mark.assets
@pytest.mark.parametrize("picture", ["burger", "chelsea", "coffee"])
def test_darknet_tiny(runtime: TfjsRuntime, assets: Path, picture: str) -> None:
    case = _expected(assets, f"darknet_tiny__{picture}")
    opened = runtime.open(ModelSource(assets / case["model"]))
    results = opened.run(
        {entry["name"]: np.load(assets / entry["npy"]) for entry in case["inputs"]}
    )
    opened.close()
    _compare(assets, case, results)


@pytest.mark.assets
def test_handtrack(runtime: TfjsRuntime, assets: Path) -> None:
    """It has control flow, quantised weights, and a cast to bool (see above)."""
    image = pytest.importorskip("PIL.Image")
    case = _expected(assets, "handtrack__astronaut")
    with image.open(assets / case["source_inputs"][0]) as picture:
        pixels = np.asarray(picture.convert("RGB").resize((512, 512)), np.int32)[None]
    opened = runtime.open(ModelSource(assets / case["model"]))
    assert opened.device == "wasm"
    assert list(opened.inputs) == [
        TensorSpec("input_tensor", "INT32", (1, -1, -1, 3), aliases=("input_tensor:0",))
    ]
    results = opened.run({"input_tensor": pixels})
    opened.close()
    _compare(assets, case, results)


@pytest.mark.parametrize("in_trial", [False, True])
def test_a_trials_process_ends_with_its_group(
    folder: Path, monkeypatch: pytest.MonkeyPatch, in_trial: bool
) -> None:
    """A trial is killed as a group, so a hung model must not outlive it; a server's
    child has its own group.
    """
    if in_trial:
        monkeypatch.setenv(TRIAL_VARIABLE, "1")
    runtime = TfjsRuntime()
    session = runtime.open(ModelSource(folder))
    try:
        assert runtime.pid is not None
        assert (os.getpgid(runtime.pid) == os.getpgrp()) is in_trial
    finally:
        session.close()
