"""Test the TorchScript runtime."""

from __future__ import annotations

import json
import random
import warnings
import wave
import weakref
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch")

from pocketserve.runtimes.base import ModelLoadError, ModelSource, ResettableSession  # noqa: E402
from pocketserve.runtimes.torch import common as torch_common  # noqa: E402
from pocketserve.runtimes.torch import ptl, torchscript  # noqa: E402
from pocketserve.runtimes.torch.torchscript import RUNTIME, ScriptSession  # noqa: E402
from pocketserve.runtimes.torch.torchscript_values import field_names  # noqa: E402
from pocketserve.tensors import TensorSpec  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(
        "ignore:`torch.jit.load` is deprecated:DeprecationWarning"
    ),
]

MUTATIONS = 60

Save = Callable[..., Path]


class Pair(NamedTuple):
    total: torch.Tensor
    extra: Optional[torch.Tensor]  # noqa: UP045  all that TorchScript reads in a named tuple


class Linear(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.layer(x)


class Nested(torch.nn.Module):
    def forward(self, x):
        return (
            Pair(x.sum(), None),
            {"twice": x * 2, "levels": x},
            [x, x + 1],
            [1, 2],
            3,
            "word",
        )


class Grown(torch.nn.Module):
    """Fills its dictionary in a loop, so that the code doesn't show the keys."""

    def forward(self, x):
        result: dict[str, torch.Tensor] = {}
        for step in range(2):
            result["ab"[step]] = x + step
        return result


class Stepwise(torch.nn.Module):
    """Fills dictionaries and lists like torchvision's segmentation models and
    detectors.
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(
            [torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)]
        )

    def forward(self, x):
        levels: list[torch.Tensor] = []
        for layer in self.layers:
            x = layer(x)
            levels.append(x)
        result: dict[str, torch.Tensor] = {"sum": x.sum()}
        result["out"] = levels[-1]
        result["sum"] = result["out"].sum()
        return result, levels


class Ordered(torch.nn.Module):
    """Starts its dictionary like torchvision's segmentation models."""

    def forward(self, x):
        result: dict[str, torch.Tensor] = OrderedDict()
        result["out"] = x + 1
        result["aux"] = x * 2
        return result


class Copied(torch.nn.Module):
    """Starts its dictionary as a copy of another one."""

    def forward(self, x):
        first: dict[str, torch.Tensor] = {"a": x}
        result = dict(first)
        result["b"] = x
        return result


class Detector(torch.nn.Module):
    def forward(self, x):
        return torch.ops.elsewhere.nms(x)


class Branching(torch.nn.Module):
    def forward(self, x):
        result: dict[str, torch.Tensor] = {}
        if bool(x.sum() > 0):
            result["positive"] = x
        return result


class Emptied(torch.nn.Module):
    def forward(self, x):
        levels = [x, x]
        levels.pop()
        return levels


class Reached(torch.nn.Module):
    """Extends its list under another name."""

    def forward(self, x):
        levels = [x]
        held = {"levels": levels}
        held["levels"].append(x + 1)
        return held


class ReachedAside(torch.nn.Module):
    def forward(self, x):
        levels = [x]
        held = {"levels": levels}
        held["levels"].append(x + 1)
        return levels


class Recurrent(torch.nn.Module):
    def forward(
        self,
        x,
        state: tuple[torch.Tensor, tuple[torch.Tensor, int]],
        more: Optional[tuple[torch.Tensor, torch.Tensor]] = None,  # noqa: UP045
    ):
        total = x + state[0] + state[1][0] * state[1][1]
        if more is None:
            return total
        return total + more[0] + more[1]


class Plain(torch.nn.Module):
    def forward(
        self, x, n: int, f: float, on: bool, word: str, sizes: list[int], late: int = 5
    ):
        return x * n + f + sum(sizes) + float(on) * late, word + "!"


class Counter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count += x.sum()
        return self.count

    @torch.jit.export
    def reset_states(self):
        self.count.zero_()

    @torch.jit.export
    def set_to(self, value: int):
        self.count.fill_(value)


class Types(torch.nn.Module):
    def forward(self, x):
        return (
            x.half(),
            x.to(torch.bfloat16),
            x > 0,
            torch.quantize_per_tensor(x, 0.5, 0, torch.qint8),
            x.t(),
        )


class Complex(torch.nn.Module):
    def forward(self, x):
        return torch.complex(x, x)


class Images(torch.nn.Module):
    def forward(self, images: list[torch.Tensor]):
        return images[0]


class Writer(torch.nn.Module):
    def forward(self, x):
        torch.save(x, "written-by-torchscript")
        return x


class Picky(torch.nn.Module):
    def forward(self, x, mode: int):
        if mode == 1:
            raise ValueError("mode 1 is not for you")
        if mode == 2:
            assert x.shape[0] == 7, "seven rows"
        return x[mode]


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return a function that scripts a module and saves it."""

    def saved(module: Any, name: str = "model.ts") -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            script = torch.jit.script(module)
            script._save_for_lite_interpreter(str(tmp_path / name)) if name.endswith(
                ".ptl"
            ) else script.save(str(tmp_path / name))
        return tmp_path / name

    return saved


def opened(
    path: Path, inputs: tuple = (), outputs: tuple = (), **options: object
) -> ScriptSession:
    return RUNTIME.open(
        ModelSource(path, inputs=inputs, outputs=outputs, options=options)
    )


def floats(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


# --- Names and specs


def test_the_session_names_its_format_and_package(save: Save):
    session = opened(save(Linear()))
    assert RUNTIME.platform == "pytorch_torchscript"
    assert RUNTIME.option_keys == {"arguments", "reset", "trust"}
    assert session.runtime == f"torch {torch.__version__} (TorchScript)"
    assert session.device == "cpu"
    assert session.signatures == {}
    assert session.memory_bytes >= 32
    assert not isinstance(session, ResettableSession)


def test_tensors_without_a_manifest_have_open_specs(save: Save):
    module = Linear().eval()
    session = opened(save(module))
    assert list(session.inputs) == [TensorSpec("x", "FP32", (-1,), open=True)]
    assert list(session.outputs) == [TensorSpec("output_0", "FP32", (-1,), open=True)]
    x = floats(4, 3)
    with torch.inference_mode():
        expected = module(torch.from_numpy(x.copy())).numpy()
    np.testing.assert_allclose(
        session.run({"x": x})["output_0"], expected, rtol=1e-5, atol=1e-6
    )


class Several(torch.nn.Module):
    def forward(self, x):
        rows = x
        if x.sum() > 100:
            rows = x.reshape(-1)
        return x.argmax(-1), x > 0, rows.double(), int(x.shape[0])


@pytest.mark.parametrize("runtime", [RUNTIME, ptl.RUNTIME], ids=["ts", "ptl"])
def test_outputs_are_described_by_earlier_runs(save: Save, runtime: Any):
    session = runtime.open(
        ModelSource(save(Several(), "model.ts" if runtime is RUNTIME else "model.ptl"))
    )

    def outputs(
        *shape: int, fill: float = 1
    ) -> list[tuple[str, tuple[int, ...], bool]]:
        session.run({"x": np.full(shape, fill, np.float32)})
        return [(spec.datatype, spec.shape, spec.open) for spec in session.outputs]

    assert [(spec.datatype, spec.shape, spec.open) for spec in session.outputs] == [
        ("FP32", (-1,), True)
    ] * 4
    known = [
        ("INT64", (-1,), False),
        ("BOOL", (-1, 3), False),
        ("FP64", (-1, 3), False),
        ("INT64", (), False),
    ]
    assert outputs(2, 3) == outputs(5, 3) == known
    known[1:3] = ("BOOL", (-1, -1), False), ("FP64", (-1, -1), False)
    assert outputs(2, 4) == outputs(2, 3) == known
    known[2] = ("FP32", (-1,), True)  # another rank: nothing is sure about it
    assert outputs(2, 3, fill=99) == outputs(2, 3) == known
    with pytest.raises(ValueError):  # noqa: PT011  the text is PyTorch's
        session.run({"x": np.float32(0)})
    assert outputs(2, 3) == known


def test_outputs_are_learned_from_a_run_if_the_manifest_has_inputs(save: Save):
    session = opened(save(Linear()), (TensorSpec("x", "FP32", (-1, 3)),))
    assert list(session.outputs) == [TensorSpec("output_0", "FP32", (-1, 2))]


def test_manifest_names(save: Save):
    inputs = (TensorSpec("features", "FP32", (-1, 3)),)
    outputs = (TensorSpec("logits", "FP32", (-1, 2)),)
    session = opened(save(Linear()), inputs, outputs)
    assert list(session.inputs) == [
        TensorSpec("features", "FP32", (-1, 3), aliases=("x",))
    ]
    assert list(session.outputs) == [
        TensorSpec("logits", "FP32", (-1, 2), aliases=("output_0",))
    ]
    assert session.run({"features": floats(2, 3)})["logits"].shape == (2, 2)


@pytest.mark.parametrize("what", ["inputs", "outputs"])
def test_declarations_that_match_nothing_are_refused(save: Save, what: str):
    specs = tuple(TensorSpec(name, "FP32", (-1, 3)) for name in ("a", "b"))
    with pytest.raises(
        ModelLoadError, match=rf"model.toml declares 2 {what} \(a, b\), the model has 1"
    ):
        opened(save(Linear()), **{what: specs})


def test_nested_results_are_named_by_fields_and_keys(save: Save):
    session = opened(save(Nested()))
    names = [
        "total",
        "extra",
        "twice",
        "levels",
        "output_4",
        "output_5",
        "output_6",
        "output_7",
        "output_8",
    ]
    assert [spec.name for spec in session.outputs] == names
    result = session.run({"x": floats(2)})
    assert list(result) == names
    assert result["total"] == 1
    assert result["extra"].shape == (0,)
    assert result["twice"].tolist() == [0, 2]
    assert result["output_6"].tolist() == [1, 2]
    assert result["output_7"] == 3
    assert result["output_8"] == b"word"


def test_keys_that_only_a_run_shows_are_learned(save: Save):
    path = save(Grown())
    with pytest.raises(ModelLoadError, match="declare"):
        opened(path)
    session = opened(path, (TensorSpec("x", "FP32", (2,)),))
    assert [spec.name for spec in session.outputs] == ["a", "b"]
    session = opened(path, outputs=(TensorSpec("b", "FP32", (-1,)),))
    assert session.run({"x": floats(2)})["b"].tolist() == [1, 2]


def test_results_that_are_built_step_by_step_are_named(save: Save):
    session = opened(save(Stepwise()))
    assert [spec.name for spec in session.outputs] == [
        "sum",
        "out",
        "output_2",
        "output_3",
    ]
    result = session.run({"x": floats(1, 3)})
    np.testing.assert_array_equal(result["out"], result["output_3"])
    assert result["sum"] == result["out"].sum()
    assert result["output_2"].shape == (1, 3)


def test_a_dictionary_that_starts_empty_by_a_call(save: Save):
    session = opened(save(Ordered()))
    assert [spec.name for spec in session.outputs] == ["out", "aux"]
    found = session.run({"x": floats(2, 3)})
    np.testing.assert_array_equal(found["aux"], floats(2, 3) * 2)


@pytest.mark.parametrize("module", [Branching, Copied, Emptied, Reached, ReachedAside])
def test_results_that_depend_on_more_than_the_steps_are_not_named(
    save: Save, module: type
):
    with pytest.raises(ModelLoadError, match="declare"):
        opened(save(module()))


def test_a_result_that_contradicts_its_declaration_is_an_error(save: Save):
    session = opened(save(Grown()), outputs=(TensorSpec("c", "FP32", (-1,)),))
    with pytest.raises(RuntimeError, match="returned a, b instead of c"):
        session.run({"x": floats(2)})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("NamedTuple(a : Tensor, b : Tensor?)", ["a", "b"]),
        ("NamedTuple(a : (int, Dict(str, Tensor)), b : int[])", ["a", "b"]),
        ("(int, int)", []),
    ],
)
def test_field_names(text: str, names: list[str]):
    assert field_names(text) == names


# --- Arguments that aren't tensors

PLAIN = {
    "x": floats(2),
    "n": np.array(2, np.uint8),
    "f": np.array([0.5], np.float32),
    "on": np.array(True),
    "word": np.array([b"h\xc3\xa9"], dtype=object),
    "sizes": np.array([3, 4]),
}


def test_plain_arguments_come_from_tensors(save: Save):
    session = opened(save(Plain()))
    found = []
    for spec in session.inputs:
        found.append((spec.name, spec.datatype, spec.shape, spec.open))
    assert found == [
        ("x", "FP32", (-1,), True),
        ("n", "INT64", (), True),
        ("f", "FP32", (), True),
        ("on", "BOOL", (), True),
        ("word", "BYTES", (), True),
        ("sizes", "INT64", (-1,), True),
    ]
    result = session.run(PLAIN)
    assert result["output_0"].tolist() == [12.5, 14.5]
    assert result["output_1"] == "hé!".encode()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("n", np.array(1.5), "whole numbers"),
        ("n", np.array([1, 2]), "one value, not 2"),
        ("n", np.array([], np.int64), "one value, not 0"),
        ("f", np.array(True), "takes numbers"),
        ("on", np.array(1), "takes BOOL"),
        ("word", np.array(1), "takes texts"),
        ("word", np.array(b"\xff", dtype=object), "utf-8"),
        ("x", np.array([b"a"], dtype=object), "not of texts"),
    ],
)
def test_plain_arguments_of_the_wrong_kind_are_refused(
    save: Save, name: str, value: np.ndarray, message: str
):
    with pytest.raises(ValueError, match=message):
        opened(save(Plain())).run({**PLAIN, name: value})


RECURRENT = {
    "x": floats(2),
    "state.0": floats(2),
    "state.1.0": floats(2),
    "state.1.1": np.array(3),
}


@pytest.mark.parametrize("runtime", [RUNTIME, ptl.RUNTIME], ids=["ts", "ptl"])
def test_a_tuple_becomes_one_input_per_item(save: Save, runtime: Any):
    path = save(Recurrent(), "model.ts" if runtime is RUNTIME else "model.ptl")
    session = runtime.open(ModelSource(path))
    assert [(spec.name, spec.datatype) for spec in session.inputs] == [
        ("x", "FP32"), ("state.0", "FP32"), ("state.1.0", "FP32"), ("state.1.1", "INT64"),
    ]  # fmt: skip
    assert session.run(RECURRENT)["output_0"].tolist() == [0, 5]
    specs = [
        TensorSpec(name, "INT64" if name == "state.1.1" else "FP32", ())
        for name in (*RECURRENT, "more.0", "more.1")
    ]
    session = runtime.open(
        ModelSource(path, inputs=[spec._replace(open=True) for spec in specs])
    )
    assert session.run(
        {
            **RECURRENT,
            "more.0": floats(2),
            "more.1": floats(2),
        }
    )["output_0"].tolist() == [0, 7]


def test_fixed_arguments_are_not_inputs(save: Save):
    fixed = {
        "n": 2,
        "f": 1,
        "on": True,
        "word": "a",
        "sizes": [1, 2],
        "late": 7,
    }
    session = opened(save(Plain()), arguments=fixed)
    assert [spec.name for spec in session.inputs] == ["x"]
    assert session.run({"x": floats(1)})["output_0"].tolist() == [11]


def test_a_default_becomes_an_input_when_the_manifest_names_it(save: Save):
    inputs = (TensorSpec("x", "FP32", (-1,)), TensorSpec("late", "INT64", ()))
    session = opened(
        save(Plain()),
        inputs,
        arguments={
            "n": 1,
            "f": 0.0,
            "on": True,
            "word": "a",
            "sizes": [],
        },
    )
    assert session.run({"x": floats(1), "late": np.array(9)})["output_0"].tolist() == [
        9
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (3, "a table of keyword arguments"),
        ({"m": 1}, "names 'm'"),
        ({"n": 1.5}, "must be int"),
        ({"n": True}, "must be int"),
        ({"f": "a"}, "must be float"),
        ({"word": 1}, "must be str"),
        ({"sizes": 1}, r"must be List\[int\]"),
        ({"x": "a"}, "must be Tensor"),
    ],
)
def test_mismatched_fixed_arguments_are_refused(
    save: Save, arguments: object, message: str
):
    with pytest.raises(ModelLoadError, match=message):
        opened(save(Plain()), arguments=arguments)


def test_arguments_that_no_tensor_can_carry_are_refused(save: Save):
    with pytest.raises(ModelLoadError, match=r"'images' is of type List\[Tensor\]"):
        opened(save(Images()))


# --- State


def test_state_is_kept_until_reset(save: Save):
    session = opened(save(Counter()))
    assert isinstance(session, ResettableSession)
    results = [session.run({"x": floats(2)})["output_0"] for _ in range(3)]
    # Results own their memory.
    assert [result.item() for result in results] == [
        1,
        2,
        3,
    ]
    session.reset()
    assert session.run({"x": floats(2)})["output_0"].item() == 1


def test_the_run_on_zeros_leaves_no_state(save: Save):
    class Steps(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.steps = 0

        def forward(self, x):
            self.steps += 1
            return x + self.steps

    session = opened(save(Steps()), (TensorSpec("x", "FP32", (1,)),))
    assert session.run({"x": floats(1)})["output_0"].item() == 1


def test_the_run_on_zeros_keeps_no_second_copy(
    save: Save, monkeypatch: pytest.MonkeyPatch
):
    """A changed program is freed before it is read again, because both might not fit."""
    loaded: list[weakref.ref[Any]] = []
    load = torchscript.load_checked

    def watched(*args: Any, **options: Any) -> Any:
        assert [reference() for reference in loaded] == [None] * len(loaded)
        module = load(*args, **options)
        loaded.append(weakref.ref(module))
        return module

    monkeypatch.setattr(torchscript, "load_checked", watched)
    opened(save(Linear()), (TensorSpec("x", "FP32", (-1, 3)),))
    assert len(loaded) == 1
    loaded.clear()
    opened(save(Counter()), (TensorSpec("x", "FP32", (-1, 3)),))
    assert len(loaded) == 2


def test_the_manifest_names_the_reset_method(save: Save):
    path = save(Counter())
    assert isinstance(opened(path, reset="reset_states"), ResettableSession)
    for wrong in ("nothing", "set_to", 3):
        with pytest.raises(ModelLoadError, match="reset names"):
            opened(path, reset=wrong)


# --- Numbers


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_datatypes_of_results(save: Save):
    session = opened(save(Types()), (TensorSpec("x", "FP32", (-1, 2)),))
    assert [spec.datatype for spec in session.outputs] == [
        "FP16",
        "BF16",
        "BOOL",
        "FP32",
        "FP32",
    ]
    result = list(session.run({"x": floats(2, 2)}).values())
    assert result[1].tolist() == [[0, 0x3F80], [0x4000, 0x4040]]
    assert result[3].tolist() == [[0, 1], [2, 3]]
    assert result[4].tolist() == [
        [0, 2],
        [1, 3],
    ]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_bfloat16_is_widened_unless_it_is_declared(save: Save):
    result = opened(save(Types())).run({"x": floats(1, 2)})
    assert result["output_1"].dtype == np.float32
    assert result["output_1"].tolist() == [[0, 1]]


def test_bfloat16_inputs(save: Save):
    session = opened(save(Linear().bfloat16()), (TensorSpec("x", "BF16", (-1, 3)),))
    assert session.outputs[0].datatype == "BF16"
    assert (
        session.run({"x": np.full((2, 3), 0x3F80, np.uint16)})["output_0"].dtype
        == np.uint16
    )


def test_a_run_shows_which_sizes_are_free(save: Save):
    session = opened(
        save(torch.nn.Conv2d(3, 4, 21)), (TensorSpec("input", "FP32", (-1, 3, -1, -1)),)
    )
    assert [spec.shape for spec in session.outputs] == [(-1, 4, -1, -1)]
    assert session.run({"input": floats(2, 3, 30, 40)})["output_0"].shape == (
        2,
        4,
        10,
        20,
    )


class Spectrum(torch.nn.Module):
    def forward(self, x):
        return torch.fft.fft(x)


def test_complex_results_are_refused_when_the_model_is_loaded(save: Save):
    with pytest.raises(
        ModelLoadError,
        match="the model's results cannot be served: the protocol has no datatype for c",
    ):
        opened(save(Spectrum()), (TensorSpec("x", "FP32", (4,)),))


class Failing(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.cholesky(x)


def test_files_of_an_older_pytorch_are_named_when_they_fail(save: Save, tmp_path: Path):
    path = save(Failing())
    with pytest.raises(
        RuntimeError, match=r"^linalg\.cholesky: (?!.*before PyTorch 2)"
    ):
        opened(path).run({"x": -np.eye(2, dtype=np.float32)})
    old = tmp_path / "old.ts"
    with zipfile.ZipFile(path) as new, zipfile.ZipFile(old, "w") as archive:
        for name in new.namelist():
            if not name.endswith("byteorder"):
                archive.writestr(name, new.read(name))
    with pytest.raises(
        RuntimeError,
        match=r"^linalg\.cholesky: .*; the file was saved before PyTorch 2\.0",
    ):
        opened(old).run({"x": -np.eye(2, dtype=np.float32)})


def test_an_unsupported_file_is_not_called_damaged():
    error = RuntimeError("Unknown type name 'Something'")
    assert "damaged" not in torch_common.explain_load_error("a.ts", "torch", error)
    error = RuntimeError(
        "PytorchStreamReader failed reading zip archive: not a ZIP archive"
    )
    assert "which may be damaged" in torch_common.explain_load_error(
        "a.ts", "torch", error
    )


def test_internal_advice_of_pytorch_is_left_out():
    error = RuntimeError(
        "'C (of Python compilation unit at: 0x55aa)' has no 'x', please report a bug to PyTorch."
    )
    assert torch_common.error_message(error) == "'C' has no 'x'"


def test_complex_results_are_refused(save: Save):
    with pytest.raises(ModelLoadError, match="no datatype for complex64"):
        opened(save(Complex()), (TensorSpec("x", "FP32", (2,)),))


def test_frozen_weights_count_as_memory(save: Save, tmp_path: Path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        frozen = torch.jit.freeze(torch.jit.script(torch.nn.Linear(100, 100).eval()))
        frozen.save(str(tmp_path / "frozen.ts"))
    assert opened(tmp_path / "frozen.ts").memory_bytes > 40_000


# --- Faults


@pytest.mark.parametrize(
    "x",
    [
        floats(2, 5),
        floats(3)[:2],
        floats(2, 3).astype(np.float64),
        np.float32(1.0),
        floats(2, 2, 2),
    ],
)
def test_inputs_that_do_not_fit(save: Save, x: np.ndarray):
    session = opened(save(Linear()))
    with pytest.raises(ValueError):  # noqa: PT011  the text is PyTorch's
        session.run({"x": np.asarray(x)})
    assert session.run({"x": floats(1, 3)})["output_0"].shape == (1, 2)


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (1, "mode 1 is not for you"),
        (2, "seven rows"),
        (9, "index 9 out of range"),
    ],
)
def test_errors_of_the_model_itself_are_client_errors(
    save: Save, mode: int, message: str
):
    with pytest.raises(ValueError, match=message):
        opened(save(Picky())).run({"x": floats(2, 2), "mode": np.array(mode)})


def test_closed(save: Save):
    session = opened(save(Linear()))
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.run({"x": floats(1, 3)})


def test_files_that_open_files_are_refused(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match=r"calls aten::save"):
        opened(save(Writer()))
    assert not (tmp_path / "written-by-torchscript").exists()


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before 1.6"])
def test_pickles_are_named(tmp_path: Path, zipped: bool):
    for name, saved in (("weights", Linear().state_dict()), ("module", Linear())):
        torch.save(
            saved, tmp_path / f"{name}.pth", _use_new_zipfile_serialization=zipped
        )
        with pytest.raises(
            ModelLoadError,
            match=rf"{name}\.pth holds weights without a model, or a pickled module",
        ):
            opened(tmp_path / f"{name}.pth")


def test_operators_of_other_packages_are_named(save: Save):
    """A torchvision detector without torchvision is an intact file."""
    library = torch.library.Library("elsewhere", "DEF")
    try:
        library.define("nms(Tensor boxes) -> Tensor")
        path = save(Detector())
    finally:
        library._destroy()
    with pytest.raises(
        ModelLoadError,
        match=r"uses the operator elsewhere::nms, which torch .* belongs to another",
    ):
        opened(path)


def test_other_files_are_named(tmp_path: Path):
    torch.save(Linear().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ModelLoadError, match="holds weights without a model"):
        opened(tmp_path / "weights.pt")
    (tmp_path / "text.ts").write_text("no zip")
    with pytest.raises(ModelLoadError, match="is not a TorchScript archive"):
        opened(tmp_path / "text.ts")
    with pytest.raises(ModelLoadError, match="cannot be read"):
        opened(tmp_path / "missing.ts")


def test_damaged_files_raise_only_load_errors(save: Save):
    path = save(Linear())
    whole = path.read_bytes()
    chance = random.Random(7)
    texts = []
    for number in range(MUTATIONS):
        data = bytearray(
            whole[: chance.randrange(len(whole))] if number % 3 == 0 else whole
        )
        for _ in range(8 if data and number % 3 else 0):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        try:
            opened(path)
        except ModelLoadError as error:
            texts.append(str(error))
    assert len(texts) > MUTATIONS // 3
    assert not any("\n" in text for text in texts)


# --- Public models


def chunks(assets: Path) -> list[np.ndarray]:
    with wave.open(str(assets / "inputs" / "audio" / "en_num.wav")) as sound:
        assert sound.getframerate() == 16000
        samples = (
            np.frombuffer(sound.readframes(sound.getnframes()), np.int16).astype(
                np.float32
            )
            / 32768
        )
    return [samples[None, at : at + 512] for at in range(0, len(samples) - 511, 512)]


@pytest.mark.assets
@pytest.mark.parametrize("version", ["v4", "v6"])
def test_silero(assets: Path, version: str):
    case = f"silero_vad_{version}_jit__en_num"
    expected = json.loads((assets / "expected" / f"{case}.json").read_text())
    tolerance = float(expected["tolerance"].removeprefix("abs "))
    session = opened(assets / expected["model"])
    assert isinstance(session, ResettableSession)
    x = np.load(assets / "inputs" / "tensors" / f"{case}.x.npy")
    rate = np.array([16000])
    fresh = np.load(assets / "expected" / f"{case}.fresh_state_prob_of_chunk.npy")
    for _ in range(2):
        got = session.run({"x": x, "sr": rate})["output_0"]
        np.testing.assert_allclose(got.reshape(-1), fresh, atol=tolerance)
        session.reset()
    got = []
    for chunk in chunks(assets):
        got.append(session.run({"x": chunk, "sr": rate})["output_0"].item())
    every = np.load(assets / "expected" / f"{case}.prob_per_chunk.npy")
    np.testing.assert_allclose(got, every, atol=tolerance)
    with pytest.raises(ValueError, match="Supported sampling rates"):
        session.run({"x": x, "sr": np.array(1)})
