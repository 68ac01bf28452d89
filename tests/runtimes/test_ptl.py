"""Test the runtime of PyTorch's mobile files."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import warnings
import wave
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch")

from pocketserve.runtimes.base import ModelLoadError, ModelSource, ResettableSession  # noqa: E402
from pocketserve.runtimes.torch.ptl import RUNTIME  # noqa: E402
from pocketserve.runtimes.torch.torchscript import ScriptSession  # noqa: E402
from pocketserve.tensors import TensorSpec  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings(
        "ignore:`torch.jit.load` is deprecated:DeprecationWarning"
    ),
]

MUTATIONS = 60

Save = Callable[..., Path]


class Plain(torch.nn.Module):
    def forward(
        self, x, n: int, f: float = 0.5, word: str = "a", sizes: list[int] | None = None
    ):
        extra = 0 if sizes is None else sum(sizes)
        return x * n + f + extra, word


class Named(torch.nn.Module):
    def forward(self, x):
        return {"a": x, "b": x + 1}


class Pair(NamedTuple):
    total: torch.Tensor
    more: torch.Tensor


class Fields(torch.nn.Module):
    def forward(self, x):
        return Pair(x.sum(), x), x


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


class Writer(torch.nn.Module):
    def forward(self, x):
        torch.save(x, "written-by-ptl")
        return x


@pytest.fixture
def save(tmp_path: Path) -> Save:
    """Return a function that scripts a module and saves it in the mobile form."""

    def saved(module: Any, name: str = "model.ptl") -> Path:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            torch.jit.script(module)._save_for_lite_interpreter(str(tmp_path / name))
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


def rewritten(
    path: Path, change: Callable[[str, bytes], tuple[str, bytes] | None]
) -> Path:
    """Return the archive with members changed, or omitted where ``change`` gives None."""
    target = path.with_name(f"changed-{path.name}")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            if (kept := change(name, old.read(name))) is not None:
                new.writestr(*kept)
    return target


def test_the_session_names_its_format_and_package(save: Save):
    session = opened(save(torch.nn.Linear(3, 2)))
    assert RUNTIME.platform == "pytorch_mobile"
    assert RUNTIME.option_keys == {"arguments", "reset", "trust"}
    assert session.runtime == f"torch {torch.__version__} (TorchScript)"
    assert session.device == "cpu"
    assert session.signatures == {}
    assert session.memory_bytes > 0
    assert not isinstance(session, ResettableSession)


def test_names_and_types_come_from_the_program(save: Save):
    session = opened(save(torch.nn.Linear(3, 2)))
    assert list(session.inputs) == [TensorSpec("input", "FP32", (-1,), open=True)]
    assert list(session.outputs) == [TensorSpec("output_0", "FP32", (-1,), open=True)]
    assert session.run({"input": floats(4, 3)})["output_0"].shape == (4, 2)


def test_outputs_are_learned_from_a_run_if_the_manifest_has_inputs(save: Save):
    session = opened(save(torch.nn.Linear(3, 2)), (TensorSpec("x", "FP32", (-1, 3)),))
    assert list(session.inputs) == [
        TensorSpec("x", "FP32", (-1, 3), aliases=("input",))
    ]
    assert list(session.outputs) == [TensorSpec("output_0", "FP32", (-1, 2))]


def test_keys_come_from_the_code(save: Save):
    path = save(Named())
    assert list(opened(path).run({"x": floats(1)})) == ["a", "b"]


def test_plain_arguments(save: Save):
    path = save(Plain())
    session = opened(path)
    assert [spec.name for spec in session.inputs] == ["x", "n"]
    result = session.run({"x": floats(2), "n": np.array([2])})
    assert result["output_0"].tolist() == [0.5, 2.5]
    assert result["output_1"] == b"a"
    session = opened(path, arguments={"n": 3, "sizes": [1, 2]})
    assert [spec.name for spec in session.inputs] == ["x"]
    assert session.run({"x": floats(2)})["output_0"].tolist() == [3.5, 6.5]
    specs = (
        TensorSpec("x", "FP32", (-1,)),
        TensorSpec("n", "INT64", ()),
        TensorSpec("word", "BYTES", ()),
    )
    word = np.array(b"new", dtype=object)
    assert (
        opened(path, specs).run(
            {
                "x": floats(1),
                "n": np.array(1),
                "word": word,
            }
        )["output_1"]
        == b"new"
    )


@pytest.mark.parametrize(
    "value",
    [
        np.array(1.5),
        np.array([1, 2]),
        np.array(True),
        np.array(b"a", dtype=object),
    ],
)
def test_wrong_kinds_are_refused(save: Save, value: np.ndarray):
    with pytest.raises(ValueError, match="input 'n' takes"):
        opened(save(Plain())).run({"x": floats(1), "n": value})
    with pytest.raises(ModelLoadError, match=r"arguments\.n must be int"):
        opened(
            save(Plain()),
            arguments={"n": value.tolist() if value.dtype != object else "a"},
        )


def test_state_is_kept_and_reset(save: Save):
    session = opened(save(Counter()), (TensorSpec("x", "FP32", (-1,)),))
    assert isinstance(session, ResettableSession)
    results = [session.run({"x": floats(2)})["output_0"] for _ in range(3)]
    assert [result.item() for result in results] == [1, 2, 3]
    session.reset()
    assert session.run({"x": floats(2)})["output_0"].item() == 1
    with pytest.raises(ModelLoadError, match="reset names 'nothing'"):
        opened(save(Counter()), reset="nothing")


@pytest.mark.parametrize(
    "x",
    [
        floats(2, 5),
        floats(2, 3).astype(np.float64),
        np.asarray(np.float32(1)),
    ],
)
def test_inputs_that_do_not_fit(save: Save, x: np.ndarray):
    session = opened(save(torch.nn.Linear(3, 2)))
    with pytest.raises(ValueError):  # noqa: PT011  the text is PyTorch's
        session.run({"input": x})
    assert session.run({"input": floats(1, 3)})["output_0"].shape == (1, 2)


def test_closed(save: Save):
    session = opened(save(Counter()))
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.reset()


def test_a_named_tuple_inside_a_tuple(save: Save):
    assert opened(save(Fields())).run({"x": floats(3)})["total"] == 3


def test_missing_operators_are_named(save: Save):
    def patched(name: str, data: bytes) -> tuple[str, bytes]:
        return name, data.replace(b"torch.linear", b"ops.prepacked.l")

    path = rewritten(save(torch.nn.Linear(3, 2)), patched)
    with pytest.raises(ModelLoadError, match=r"prepacked::l.*optimize_for_mobile"):
        opened(path)


# --- Files that are refused


def test_files_that_open_files_are_refused(
    save: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelLoadError, match=r"calls aten::save"):
        opened(save(Writer()))
    assert not (tmp_path / "written-by-ptl").exists()


def test_other_files_are_named(tmp_path: Path):
    (tmp_path / "b.ptl").write_bytes(b"\0\0\0\0PTMF" + bytes(100))
    with pytest.raises(ModelLoadError, match="FlatBuffer form"):
        opened(tmp_path / "b.ptl")
    (tmp_path / "b.ptl").write_bytes(b"PK\3\4PTMF" + bytes(100))
    with pytest.raises(ModelLoadError, match="FlatBuffer form"):
        opened(tmp_path / "b.ptl")
    (tmp_path / "c.ptl").write_bytes(b"")
    with pytest.raises(ModelLoadError, match="is not a PyTorch mobile file"):
        opened(tmp_path / "c.ptl")
    with pytest.raises(ModelLoadError, match="cannot be read"):
        opened(tmp_path / "missing.ptl")


def test_a_pickle_in_the_bytecode_calls_nothing(save: Save, tmp_path: Path):
    """The bytecode is ignored, and the program beside it is served."""
    target = tmp_path / "made-by-pickle"
    hostile = b"cos\nmkdir\n(V" + str(target).encode() + b"\ntR."

    def patched(name: str, data: bytes) -> tuple[str, bytes]:
        return name, hostile if name.endswith("bytecode.pkl") else data

    session = opened(rewritten(save(Counter()), patched))
    assert session.run({"x": floats(2)})["output_0"].item() == 1
    assert not target.exists()


OPEN_ALL = """
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.torch.ptl import RUNTIME
refused = 0
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        RUNTIME.open(ModelSource(path))
    except ModelLoadError:
        refused += 1
print(refused)
"""


def test_damaged_files_raise_only_load_errors(save: Save, tmp_path: Path):
    whole = save(Plain()).read_bytes()
    chance = random.Random(7)
    folder = tmp_path / "damaged"
    folder.mkdir()
    for number in range(MUTATIONS):
        data = bytearray(
            whole[: chance.randrange(len(whole))] if number % 3 == 0 else whole
        )
        for _ in range(8 if data and number % 3 else 0):
            data[chance.randrange(len(data))] = chance.randrange(256)
        (folder / f"{number}.ptl").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", OPEN_ALL, str(folder)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > MUTATIONS // 3


# --- Public models


@pytest.mark.assets
def test_silero(assets: Path):
    case = "silero_vad_v4_ptl__en_num"
    expected = json.loads((assets / "expected" / f"{case}.json").read_text())
    tolerance = float(expected["tolerance"].removeprefix("abs "))
    session = opened(assets / expected["model"])
    assert isinstance(session, ResettableSession)
    assert session.runtime.endswith("(TorchScript)")
    x = np.load(assets / "inputs" / "tensors" / f"{case}.x.npy")
    rate = np.array(16000)
    fresh = np.load(
        assets / "expected" / "silero_vad_v4_jit__en_num.fresh_state_prob_of_chunk.npy"
    )
    np.testing.assert_allclose(
        session.run({"x": x, "sr": rate})["output_0"].reshape(-1), fresh, atol=tolerance
    )
    session.reset()
    got = []
    for chunk in chunks(assets / "inputs" / "audio" / "en_num.wav"):
        got.append(session.run({"x": chunk, "sr": rate})["output_0"].item())
    probabilities = np.load(assets / "expected" / f"{case}.prob_per_chunk.npy")
    np.testing.assert_allclose(got, probabilities, atol=tolerance)
    with pytest.raises(ValueError, match="Supported sampling rates"):
        session.run({"x": x, "sr": np.array(1)})


def chunks(path: Path) -> list[Any]:
    """Return the samples of a recording as rows of 512."""
    with wave.open(str(path)) as sound:
        content = sound.readframes(sound.getnframes())
    samples = np.frombuffer(content, np.int16).astype(np.float32) / 32768
    rows = []
    for at in range(0, len(samples) - 511, 512):
        rows.append(samples[None, at : at + 512])
    return rows
