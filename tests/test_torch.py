"""Serve unconverted PyTorch models, running only their owner's code."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import MODELS, Server, StartServer
from pocketserve.runtimes.base import ModelLoadError, ModelSource, RuntimeMissingError
from pocketserve.runtimes.torch.eager import RUNTIME, TorchSession
from pocketserve.runtimes.torch.safetensors import read_safetensors
from pocketserve.tensors import TensorSpec
from pocketserve_client import Client, ServerError
from trusting import trust_all, trusted

pytestmark = pytest.mark.torch

Array = npt.NDArray[Any]

# Two frameworks add the same numbers in different orders.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}

LINEAR = """
from torch import nn

def build(width=2):
    return nn.Linear(3, width)
"""
CONVOLUTION = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv1d(2, 4, 25), nn.ReLU())
"""
X = TensorSpec("x", "FP32", (-1, 3))
ROWS = np.array([[1, 2, 3], [-1, 0.5, 0]], np.float32)


@pytest.fixture(scope="module")
def torch() -> ModuleType:
    import torch as module

    return module


Open = Callable[..., TorchSession]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Return a function that opens a module: ``opened(code, inputs=…, outputs=…,
    weights=…)``.
    """
    tmp_path.chmod(0o755)

    def open_it(
        code: str,
        *,
        inputs: tuple[TensorSpec, ...] = (X,),
        outputs: tuple[TensorSpec, ...] = (),
        **options: Any,
    ) -> TorchSession:
        path = tmp_path / "model.py"
        path.write_text(code)
        path.chmod(0o644)
        return RUNTIME.open(
            ModelSource(
                path,
                options=options,
                inputs=inputs,
                outputs=outputs,
                trusted=trusted(path),
            )
        )

    return open_it


def refused(opened: Open, code: str, text: str, **options: Any) -> None:
    """Check that a model is refused with a sentence that contains a text."""
    with pytest.raises(ModelLoadError) as caught:
        opened(code, **options)
    message = str(caught.value)
    assert text in message
    assert "\n" not in message
    assert len(message) < 700


def returning(expression: str) -> str:
    """Return the code of a module that returns an expression of its input x."""
    return (
        "import torch\n\nclass Module(torch.nn.Module):\n    def forward(self, x):\n"
        f"        return {expression}\n\nbuild = Module\n"
    )


# --- Through a live server


@pytest.mark.live
@pytest.mark.parametrize(
    ("model", "name", "shape"),
    [
        ("digits", "image", (4, 8, 8, 1)),
        ("diabetes", "features", (4, 10)),
    ],
)
def test_embedded_models_answer_like_their_conversions(
    server: Server, model: str, name: str, shape: tuple[int, ...]
) -> None:
    values = np.random.default_rng(5).random(shape, np.float32)
    with Client(server.url, server.token) as client:
        metadata = client.model_metadata(model, "torch")
        assert metadata["platform"] == "pytorch_eager"
        assert metadata["parameters"]["runtime"].startswith("torch ")
        (eager,) = client.infer(model, {name: values}, version="torch").values()
        (converted,) = client.infer(model, {name: values}, version="tflite").values()
    assert eager.dtype == converted.dtype == np.float32
    np.testing.assert_allclose(eager, converted, **TOLERANCE)


@pytest.mark.live
def test_a_hostile_weights_file_fails_that_version_only(
    new_server: StartServer, models_copy: Path
) -> None:
    manifest = models_copy / "diabetes" / "model.toml"
    manifest.write_text(
        manifest.read_text().replace("weights.safetensors", "weights.pt")
    )
    witness = models_copy / "witness"
    (models_copy / "diabetes" / "weights.pt").write_bytes(
        pickle.dumps(Hostile(witness))
    )
    with Client(*address(new_server(trust_all(models_copy)))) as client:
        with pytest.raises(
            ServerError, match=r"failed to load 'diabetes' .*: weights\.pt cannot"
        ) as caught:
            client.infer(
                "diabetes", {"features": np.zeros((1, 10), np.float32)}, version="torch"
            )
        assert caught.value.status == 503
        assert caught.value.code == "MODEL_FAILED"
        assert client.infer("diabetes", {"features": np.zeros((1, 10), np.float32)})
    assert not witness.exists()


@pytest.mark.live
def test_bfloat16_in_and_out_of_a_server(
    new_server: StartServer, tmp_path: Path, torch: ModuleType
) -> None:
    folder = tmp_path / "models" / "half"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(returning("x * 2"))
    (folder / "model.toml").write_text(
        '[[inputs]]\nname = "x"\ndatatype = "BF16"\nshape = [-1]\n'
    )
    server = new_server(trust_all(tmp_path / "models"))
    metadata = server.call("GET", "/v2/models/half").json()
    assert [output["datatype"] for output in metadata["outputs"]] == ["BF16"]
    header = b'{"inputs":[{"name":"x","shape":[2],"datatype":"BF16","parameters":{"binary_data_size":4}}],'
    header += b'"parameters":{"binary_data_output":true}}'
    values = torch.tensor([1.5, -3.0], dtype=torch.bfloat16)
    body = header + values.view(torch.uint8).numpy().tobytes()
    answer = server.call(
        "POST",
        "/v2/models/half/infer",
        data=body,
        headers={"Inference-Header-Content-Length": str(len(header))},
    )
    assert answer.status_code == 200, answer.text
    found = torch.frombuffer(bytearray(answer.content[-4:]), dtype=torch.bfloat16)
    assert found.tolist() == [3.0, -6.0]


@pytest.mark.live
def test_metadata_says_what_only_a_run_can_tell(
    new_server: StartServer, tmp_path: Path, torch: ModuleType
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.trace(torch.nn.Flatten(0), torch.ones(2, 3)).save(
            str(folder / "flat.ts")
        )
    server = new_server(folder)
    unknown = {
        "datatype": "FP32",
        "shape": [-1],
        "parameters": {"open": True},
    }
    for url in (server.url, f"socket://127.0.0.1:{server.socket_port}"):
        with Client(url, server.token) as client:
            before = client.model_metadata("flat")
            assert before["outputs"] == [{"name": "output_0", **unknown}]
            client.infer("flat", {"input": np.ones((2, 3), np.int64)})
            after = client.model_metadata("flat")
            assert after["outputs"] == [
                {"name": "output_0", "datatype": "INT64", "shape": [-1]}
            ]
            assert after["inputs"] == before["inputs"] == [{"name": "input", **unknown}]
            client.unload("flat")
            client.load("flat")
    config = server.call("GET", "/v2/models/flat/config").json()
    assert config["output"][0]["data_type"] == "TYPE_FP32"
    shown = server.call("GET", "/v1/models/flat/metadata").json()["metadata"][
        "signature_def"
    ]["signature_def"]
    assert shown["serving_default"]["outputs"]["output_0"]["tensor_shape"] == {
        "dim": [],
        "unknown_rank": True,
    }


def address(server: Server) -> tuple[str, str | None]:
    return server.url, server.token


# --- Code and file permissions


class Hostile:
    """Creates a file when it is unpickled without protection."""

    def __init__(self, witness: Path) -> None:
        self._witness = str(witness)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self._witness,)


@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_pickled_code_is_not_run(
    opened: Open, tmp_path: Path, torch: ModuleType, kind: str
) -> None:
    witness = tmp_path / "witness"
    weights = tmp_path / "weights.pt"
    hostile = {"weight": Hostile(witness)}
    if kind == "torch":
        torch.save(hostile, weights)
    else:
        weights.write_bytes(pickle.dumps(hostile))
    refused(
        opened,
        LINEAR,
        "weights.pt cannot be read as plain weights",
        weights="weights.pt",
    )
    assert not witness.exists()
    # The file is a real threat: read without protection, it creates its file.
    torch.load(weights, weights_only=False) if kind == "torch" else pickle.loads(
        weights.read_bytes()
    )
    assert witness.is_dir()


def test_untrusted_code_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(f"open({str(tmp_path / 'witness')!r}, 'w')\n{LINEAR}")
    with pytest.raises(
        ModelLoadError,
        match=r"model\.py is code that is not trusted; `pocketserve trust /",
    ):
        RUNTIME.open(ModelSource(path, inputs=(X,), trusted=trusted(Path(__file__))))
    assert not (tmp_path / "witness").exists()


def test_links_out_of_the_folder_are_not_followed(opened: Open, tmp_path: Path) -> None:
    for name in ("../weights.safetensors", "/etc/hostname", "link.safetensors"):
        if name == "link.safetensors":
            (tmp_path / name).symlink_to(MODELS / "diabetes" / "weights.safetensors")
        refused(
            opened, LINEAR, "weights must be a file in the model's folder", weights=name
        )


# --- Weights


def test_state_dict(opened: Open, tmp_path: Path, torch: ModuleType) -> None:
    linear = torch.nn.Linear(3, 2)
    torch.save(linear.state_dict(), tmp_path / "weights.pt")
    found = opened(LINEAR, weights="weights.pt").run({"x": ROWS})
    np.testing.assert_allclose(
        found["output_0"], linear(torch.tensor(ROWS)).detach().numpy(), **TOLERANCE
    )


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: {
            "epoch": 3,
            "state_dict": state,
            "optimizer": {"state": {}, "lr": 0.1},
        },
        lambda state: {f"module.{name}": tensor for name, tensor in state.items()},
        lambda state: {
            "model": {f"module.model.{name}": tensor for name, tensor in state.items()},
            "note": "x",
        },
        lambda state: {
            "ema": {name: tensor * 0 for name, tensor in state.items()},
            "model": state,
        },
    ],
)
def test_state_dict_as_training_scripts_save_it(
    opened: Open, tmp_path: Path, torch: ModuleType, wrap: Callable[[Any], Any]
) -> None:
    linear = torch.nn.Linear(3, 2)
    torch.save(wrap(linear.state_dict()), tmp_path / "weights.pt")
    found = opened(LINEAR, weights="weights.pt").run({"x": ROWS})
    np.testing.assert_allclose(
        found["output_0"], linear(torch.tensor(ROWS)).detach().numpy(), **TOLERANCE
    )


def test_state_dict_of_an_old_pytorch(
    opened: Open, tmp_path: Path, torch: ModuleType
) -> None:
    linear = torch.nn.Linear(3, 2)
    torch.save(
        linear.state_dict(),
        tmp_path / "weights.pth",
        _use_new_zipfile_serialization=False,
    )
    found = opened(LINEAR, weights="weights.pth").run({"x": ROWS})
    np.testing.assert_allclose(
        found["output_0"], linear(torch.tensor(ROWS)).detach().numpy(), **TOLERANCE
    )


def test_weights_that_a_clone_lacks_are_explained(
    opened: Open, tmp_path: Path, torch: ModuleType
) -> None:
    for name in ("weights.pt", "weights.safetensors"):
        (tmp_path / name).write_text(
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n"
        )
        refused(
            opened,
            LINEAR,
            f"{name} is only a pointer of Git LFS: run git lfs pull",
            weights=name,
        )


def test_shared_weights_may_be_saved_once(
    opened: Open, tmp_path: Path, torch: ModuleType
) -> None:
    """Language models share their word table with the last layer."""
    code = (
        "import torch\n\nclass Tied(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.first = torch.nn.Linear(3, 3)\n        self.last = torch.nn.Linear(3, 3)\n"
        "        self.last.weight = self.first.weight\n"
        "    def forward(self, x):\n        return self.last(x)\n\nbuild = Tied\n"
    )
    weights = {
        "first.weight": torch.eye(3) * 2,
        "first.bias": torch.zeros(3),
        "last.bias": torch.ones(3),
    }
    torch.save(weights, tmp_path / "weights.pt")
    np.testing.assert_array_equal(
        opened(code, weights="weights.pt").run({"x": ROWS})["output_0"], ROWS * 2 + 1
    )
    del weights["last.bias"]
    torch.save(weights, tmp_path / "weights.pt")
    refused(
        opened,
        code,
        "weights.pt does not fit the module: it lacks 'last.bias'",
        weights="weights.pt",
    )


def test_safetensors_with_every_float(
    opened: Open, tmp_path: Path, torch: ModuleType
) -> None:
    from safetensors.torch import save_file

    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        linear = torch.nn.Linear(3, 2).to(dtype)
        save_file(linear.state_dict(), tmp_path / "weights.safetensors")
        found = opened(LINEAR, weights="weights.safetensors").run({"x": ROWS})[
            "output_0"
        ]
        expected = linear.float()(torch.tensor(ROWS)).detach().numpy()
        np.testing.assert_allclose(found, expected, **TOLERANCE)


def test_function_with_arguments(opened: Open) -> None:
    code = LINEAR.replace("build", "make")
    session = opened(code, function="make", arguments={"width": 5})
    assert session.outputs == (TensorSpec("output_0", "FP32", (-1, 5)),)
    assert session.run({"x": ROWS})["output_0"].shape == (2, 5)


def test_free_sizes_may_have_to_exceed_a_window(opened: Open):
    """The first run uses sizes that fit, and finds the outputs' free sizes."""
    session = opened(CONVOLUTION, inputs=(TensorSpec("x", "FP32", (-1, 2, -1)),))
    assert [(spec.datatype, spec.shape) for spec in session.outputs] == [
        ("FP32", (-1, 4, -1))
    ]
    assert session.run({"x": np.zeros((3, 2, 30), np.float32)})["output_0"].shape == (
        3,
        4,
        6,
    )


def test_mistakes_in_the_code_are_named(opened: Open) -> None:
    missing = "model.py has no function 'build'"
    failed = "model.py failed when it was run"
    refused(opened, "x = 1", f"{missing} that builds the module")
    refused(opened, "build = 1", missing)
    refused(opened, LINEAR, "model.py has no function 3", function=3)
    refused(opened, "1 / 0", f"{failed}: ZeroDivisionError: division by zero")
    refused(opened, "import nowhere", "No module named 'nowhere'")
    refused(opened, "def build(:", f"{failed}: SyntaxError")
    refused(opened, "raise SystemExit(3)", f"{failed}: SystemExit: 3")
    number = "def build(): return 1"
    refused(opened, number, "build() in model.py returned int, not an nn.Module")
    error = "def build(): raise ValueError('first\\nsecond')"
    refused(opened, error, "build() in model.py failed: ValueError: first")
    depth = {"depth": 1}
    refused(opened, LINEAR, "unexpected keyword argument 'depth'", arguments=depth)
    refused(opened, LINEAR, "arguments must be a table", arguments=[1])


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("nowhere.pt", "the weights file nowhere.pt does not exist"),
        ("other.pt", "other.pt does not fit the module: "),
        ("numbers.pt", "numbers.pt does not fit the module: "),
        ("list.pt", "list.pt holds list, not a state dict"),
        ("module.pt", "it holds torch.nn.modules.linear.Linear, which is code"),
        ("broken.pt", "broken.pt cannot be read as plain weights"),
        (
            "broken.safetensors",
            "broken.safetensors is not a valid safetensors file",
        ),
    ],
)
def test_unusable_weights_are_named(
    opened: Open, tmp_path: Path, torch: ModuleType, file: str, part: str
) -> None:
    torch.save(torch.nn.Linear(4, 2).state_dict(), tmp_path / "other.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({"weight": 1}, tmp_path / "numbers.pt")
    torch.save(torch.nn.Linear(3, 2), tmp_path / "module.pt")
    (tmp_path / "broken.pt").write_bytes(b"PK\3\4 not a zip after all")
    (tmp_path / "broken.safetensors").write_bytes(b"short")
    refused(opened, LINEAR, part, weights=file)


def test_mistakes_in_the_declared_inputs_are_named(opened: Open) -> None:
    refused(opened, LINEAR, "declare [[inputs]]", inputs=())
    wrong = TensorSpec("x", "FP32", (-1, 4))
    failed = "a first run on zeros (x [-1, 4]) failed: RuntimeError"
    refused(opened, LINEAR, failed, inputs=(wrong,))
    refused(opened, LINEAR, "check [[inputs]] in model.toml", inputs=(X, X))
    small = TensorSpec("x", "FP32", (1, 2, 3))
    refused(opened, CONVOLUTION, "Kernel size can't be greater", inputs=(small,))


def test_results_that_are_not_tensors_are_named(opened: Open) -> None:
    instead = "instead of tensors"
    refused(opened, returning("object()"), f"the module returns object {instead}")
    refused(opened, returning("None"), f"the module returns nothing {instead}")
    complex_one = returning("None, x.to(torch.complex64)")
    refused(opened, complex_one, "the protocol has no datatype for complex64")
    refused(opened, returning("x.to(torch.complex64)"), "complex64")
    two = "returns 2 outputs, model.toml declares 1"
    refused(opened, returning("(x, x)"), two, outputs=(X,))


def test_declared_outputs_are_checked(opened: Open) -> None:
    """A wrong declaration must not silently give wrong numbers."""
    for declared, text in (
        (
            TensorSpec("y", "BF16", (-1, 3)),
            "declares output 'y' as BF16 [-1, 3], but the module returns FP32 [1, 3]",
        ),
        (TensorSpec("y", "FP64", (-1, 3)), "declares output 'y' as FP64"),
        (TensorSpec("y", "FP32", (-1, 2)), "declares output 'y' as FP32 [-1, 2]"),
        (TensorSpec("y", "FP32", (-1, 3, 1)), "declares output 'y' as FP32 [-1, 3, 1]"),
    ):
        refused(opened, returning("x"), text, outputs=(declared,))
    missing = (TensorSpec("z", "FP32", (-1, 3)),)
    refused(
        opened,
        returning("{'y': x}"),
        "the module returns no output 'z', only 'y'",
        outputs=missing,
    )


def test_an_old_torch_is_refused(
    opened: Open, torch: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version, usable in (
        ("2.9.1", False),
        ("1.13.0+cpu", False),
        ("2.10.0", True),
        ("3.0.0a0+git1", True),
    ):
        monkeypatch.setattr(torch, "__version__", version)
        if usable:
            assert opened(LINEAR).runtime == f"torch {version}"
            continue
        with pytest.raises(
            RuntimeMissingError,
            match=r"is too old to read model files safely; install 2\.10 or newer: pip",
        ):
            opened(LINEAR)


# --- Outputs


def test_outputs_by_position_and_by_name(opened: Open) -> None:
    pair = opened(returning("(x, x.sum(1))"))
    assert [spec.name for spec in pair.outputs] == ["output_0", "output_1"]
    assert [spec.shape for spec in pair.outputs] == [(-1, 3), (-1,)]
    named = (TensorSpec("same", "FP32", (-1, 3)), TensorSpec("total", "FP32", (-1,)))
    found = opened(returning("[x, x.sum(1)]"), outputs=named).run({"x": ROWS})
    np.testing.assert_array_equal(found["same"], ROWS)
    np.testing.assert_allclose(found["total"], ROWS.sum(axis=1))
    table = opened(returning("{'doubled': x * 2, 'positive': x > 0}"))
    assert {spec.name: spec.datatype for spec in table.outputs} == {
        "doubled": "FP32",
        "positive": "BOOL",
    }
    assert set(table.run({"x": ROWS})) == {"doubled", "positive"}


def test_nested_outputs_and_values_without_a_tensor(opened: Open) -> None:
    nested = opened(
        returning(
            "(x, (x.sum(1), None), {'scores': [x + 1], 'cache': object()}, float(x.sum()))"
        )
    )
    assert [spec.name for spec in nested.outputs] == [
        "output_0",
        "output_1",
        "scores.0",
        "output_5",
    ]
    found = nested.run({"x": ROWS})
    np.testing.assert_array_equal(found["scores.0"], ROWS + 1)
    np.testing.assert_allclose([found["output_1"].sum(), found["output_5"]], ROWS.sum())
    code = returning("Result(x * 2)").replace(
        "import torch\n", "import torch\nfrom dataclasses import dataclass\n"
    )
    code = code.replace(
        "class Module",
        "@dataclass\nclass Result:\n    y: object\n    z: object = None\n\nclass Module",
    )
    np.testing.assert_array_equal(opened(code).run({"x": ROWS})["y"], ROWS * 2)


def test_an_output_may_exist_only_sometimes(opened: Open) -> None:
    session = opened(returning("(x[:, 0] if x.sum() == 0 else None, x)"))
    found = session.run({"x": ROWS})
    assert found["output_0"].shape == (0,)
    np.testing.assert_array_equal(found["output_1"], ROWS)


def test_inputs_that_forward_names_are_passed_by_name(opened: Open) -> None:
    code = returning("x - z").replace("self, x", "self, x, y=None, z=None")
    z = TensorSpec("z", "FP32", (-1, 3))
    for inputs in ((X, z), (z, X)):
        session = opened(code, inputs=inputs)
        np.testing.assert_array_equal(
            session.run({"z": ROWS * 3, "x": ROWS})["output_0"], ROWS * -2
        )


def test_several_inputs_are_in_the_manifests_order(opened: Open) -> None:
    code = returning("x - y").replace("self, x", "self, x, y")
    y = TensorSpec("y", "FP32", (-1, 3))
    session = opened(code, inputs=(X, y))
    np.testing.assert_array_equal(
        session.run({"y": ROWS * 3, "x": ROWS})["output_0"], ROWS * -2
    )


def test_bfloat16_is_passed_as_bits(opened: Open) -> None:
    session = opened(returning("x.to(torch.bfloat16)"))
    assert session.outputs == (TensorSpec("output_0", "BF16", (-1, 3)),)
    bits = session.run({"x": ROWS})["output_0"]
    assert bits.dtype == np.uint16
    # Few bits: nothing is lost.
    np.testing.assert_array_equal((bits.astype(np.uint32) << 16).view(np.float32), ROWS)
    there = TensorSpec("x", "BF16", (-1, 3))
    np.testing.assert_array_equal(
        opened(returning("x.float()"), inputs=(there,)).run({"x": bits})["output_0"],
        ROWS,
    )


def test_answers_own_their_memory_and_inputs_are_unchanged(opened: Open) -> None:
    session = opened(returning("x.add_(1)"))
    values = ROWS.copy()
    values.flags.writeable = False
    first = session.run({"x": values})["output_0"]
    np.testing.assert_array_equal(values, ROWS)
    kept = first.copy()
    session.run({"x": values * 7})
    np.testing.assert_array_equal(first, kept)


# --- The safetensors reader compared with the format's own package


def arrays_of_every_kind() -> Mapping[str, Array]:
    random = np.random.default_rng(3)
    kinds = [
        "bool",
        "uint8",
        "int8",
        "uint16",
        "int16",
        "uint32",
        "int32",
        "uint64",
        "int64",
        "float16",
        "float32",
        "float64",
    ]
    whole = {}
    for kind in kinds:
        whole[kind] = random.integers(0, 2, (2, 3)).astype(kind)
    return whole | {
        "scalar": np.array(7.5),
        "empty": np.zeros((0, 4), np.float32),
        "löwe": np.arange(5),
    }


def test_files_of_the_package_are_read(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    path = tmp_path / "all.safetensors"
    save_file(
        dict(arrays_of_every_kind()), path, metadata={"format": "np", "who": "löwe"}
    )
    expected = load_file(path)
    found = read_safetensors(path)
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert found[name][1].dtype == array.dtype
        assert found[name][1].shape == array.shape
        np.testing.assert_array_equal(found[name][1], array)


def test_bfloat16_is_read(tmp_path: Path, torch: ModuleType) -> None:
    from safetensors.torch import load_file, save_file

    path = tmp_path / "bf16.safetensors"
    save_file({"x": torch.linspace(-2, 2, 12).reshape(3, 4).to(torch.bfloat16)}, path)
    kind, bits = read_safetensors(path)["x"]
    assert kind == "BF16"
    expected = load_file(path)["x"]
    assert torch.equal(torch.from_numpy(bits.copy()).view(torch.bfloat16), expected)


def test_the_embedded_weights_are_read() -> None:
    from safetensors.numpy import load_file

    for model in ("digits", "diabetes"):
        path = MODELS / model / "weights.safetensors"
        found = read_safetensors(path)
        for name, array in load_file(path).items():
            np.testing.assert_array_equal(found[name][1], array)


def test_a_file_without_tensors_is_read(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    path = tmp_path / "none.safetensors"
    save_file({}, path)
    assert read_safetensors(path) == {}


def spoilt(path: Path, data: bytes, **tensors: tuple[list[int], list[int]]) -> Path:
    """Return a file of bytes with shape and offsets for each tensor."""
    entries = {}
    for name, (shape, at) in tensors.items():
        entries[name] = {
            "dtype": "U8",
            "shape": shape,
            "data_offsets": at,
        }
    header = json.dumps(entries).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header + data)
    return path


def test_overlapping_or_slow_tensors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with pytest.raises(ModelLoadError, match="its tensors overlap"):
        read_safetensors(spoilt(path, bytes(4), a=([2], [0, 2]), b=([2], [1, 3])))
    with pytest.raises(ModelLoadError, match="has 200000 dimensions, at most 64"):
        read_safetensors(spoilt(path, bytes(4), a=([2**63 - 1] * 200_000, [0, 4])))


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """Return a valid file's bytes, and a path for damaged ones."""
    from safetensors.numpy import save

    arrays = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.ones(3, bool),
        "c": np.zeros((0, 2), np.int16),
    }
    return tmp_path_factory.mktemp("safetensors") / "spoilt.safetensors", save(arrays)


def read_or_refuse(path: Path, content: bytes) -> None:
    """Read bytes or refuse them with one sentence.

    Nothing else may happen.
    """
    path.write_bytes(content)
    try:
        tensors = read_safetensors(path)
    except ModelLoadError as error:
        message = str(error)
    else:
        assert all(isinstance(array, np.ndarray) for _, array in tensors.values())
        return
    assert message.startswith("spoilt.safetensors is not a valid safetensors file: ")
    assert "\n" not in message
    assert "request" not in message


def test_every_truncation_is_refused(sample: tuple[Path, bytes]) -> None:
    path, content = sample
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ModelLoadError, match="is not a valid safetensors file"):
            read_safetensors(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(ModelLoadError, match="cover"):
        read_safetensors(path)


@settings(
    derandomize=True,
    deadline=None,
    max_examples=300,
    database=None,
)
@given(st.data())
def test_mutated_files_are_read_or_refused(
    sample: tuple[Path, bytes], data: st.DataObject
) -> None:
    path, content = sample
    spoilt = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        spoilt[data.draw(st.integers(0, len(spoilt) - 1))] = data.draw(
            st.integers(0, 255)
        )
    read_or_refuse(path, bytes(spoilt))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)
sizes = st.integers(-1, 4) | st.integers(2**31 - 1, 2**66) | json_values
entries = json_values | st.fixed_dictionaries(
    {
        "dtype": st.sampled_from(["F32", "BF16", "BOOL", "U8", "F8_E4M3"])
        | json_values,
        "shape": st.lists(sizes, max_size=3) | st.just([1] * 100) | json_values,
        "data_offsets": st.lists(sizes, min_size=1, max_size=3) | json_values,
    }
)


@settings(
    derandomize=True,
    deadline=None,
    max_examples=400,
    database=None,
)
@given(
    st.dictionaries(st.text(max_size=4), entries, max_size=3), st.binary(max_size=16)
)
def test_any_header_is_read_or_refused(
    sample: tuple[Path, bytes], header: Any, content: bytes
) -> None:
    import json

    text = json.dumps(header).encode()
    read_or_refuse(sample[0], struct.pack("<Q", len(text)) + text + content)


LIES = {
    "a size beyond 64 bits beside an empty one": (
        b'{"a":{"dtype":"F32","shape":[0,36893488147419103232],"data_offsets":[0,0]}}'
    ),
    "99 dimensions": b'{"a":{"dtype":"F32","shape":['
    + b",".join([b"1"] * 99)
    + b'],"data_offsets":[0,4]}}',
    "the end before the start": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}}',
    "a boolean as a size": b'{"a":{"dtype":"F32","shape":[true],"data_offsets":[0,4]}}',
    "a name twice": (
        b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'
    ),
    "an array": b"[]",
    "no UTF-8": b"\xff",
    "nothing": b"",
}


@pytest.mark.parametrize("header", LIES.values(), ids=LIES)
def test_false_headers_are_refused(sample: tuple[Path, bytes], header: bytes) -> None:
    path, _ = sample
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(ModelLoadError, match="is not a valid safetensors file"):
        read_safetensors(path)


def test_a_length_beyond_the_file_allocates_nothing(sample: tuple[Path, bytes]) -> None:
    path, _ = sample
    for length in (
        1,
        2**40,
        2**64 - 1,
    ):
        path.write_bytes(struct.pack("<Q", length))
        with pytest.raises(ModelLoadError, match="does not fit into the file"):
            read_safetensors(path)


def test_copies_of_a_model_do_not_share_their_code(
    opened: Open, tmp_path: Path
) -> None:
    """Two folders may both have a model.py."""
    first = opened(returning("x + 1"))
    (tmp_path / "other").mkdir()
    path = Path(shutil.copy(tmp_path / "model.py", tmp_path / "other" / "model.py"))
    path.write_text(returning("x + 2"))
    second = RUNTIME.open(ModelSource(path, inputs=(X,), trusted=trusted(path)))
    assert first.run({"x": ROWS})["output_0"][0, 0] == 2
    assert second.run({"x": ROWS})["output_0"][0, 0] == 3
