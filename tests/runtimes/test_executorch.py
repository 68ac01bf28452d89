"""Test the ExecuTorch runtime."""

from __future__ import annotations

import random
import re
import subprocess
import sys
import warnings
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch")
pytest.importorskip("torchao")

from pocketserve.runtimes.base import (  # noqa: E402
    ModelLoadError,
    ModelSource,
    ResettableSession,
    RuntimeMissingError,
)
from pocketserve.runtimes.executorch import INSTALL  # noqa: E402
from pocketserve.runtimes.executorch.session import RUNTIME, ExecutorchSession  # noqa: E402
from pocketserve.tensors import TensorSpec  # noqa: E402

pytestmark = pytest.mark.torch

MUTATIONS = 90
# XNNPACK adds in an order of its own, and a sum may be near zero.
TOLERANCE = {
    "rtol": 1e-5,
    "atol": 1e-6,
}


class Types(torch.nn.Module):
    def forward(self, x, times: int, half, on):
        return x.view(2, 3) * times, half + half, x.to(torch.int64), ~on


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of programs.

    Warnings of the exporter are ignored.
    """
    folder = tmp_path_factory.mktemp("executorch")
    layer = torch.nn.Linear(3, 2)
    rows = ({0: torch.export.Dim("rows", min=1, max=8)},)
    types = (
        torch.ones(6),
        4,
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.bool),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Imported here as well, so that later imports don't warn.
        import executorch.runtime  # noqa: F401
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
            XnnpackPartitioner,
        )
        from executorch.exir import to_edge_transform_and_lower

        for name, module, arguments, shapes, parts in (
            ("static", layer, (torch.ones(2, 3),), None, []),
            ("rows", layer, (torch.ones(2, 3),), rows, []),
            ("xnnpack", layer, (torch.ones(2, 3),), rows, [XnnpackPartitioner()]),
            ("types", Types(), types, None, []),
        ):
            exported = torch.export.export(module, arguments, dynamic_shapes=shapes)
            program = to_edge_transform_and_lower(
                exported, partitioner=parts
            ).to_executorch()
            (folder / f"{name}.pte").write_bytes(program.buffer)
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    np.save(folder / "expected.npy", layer(x).detach().numpy())
    return folder


def opened(path: Path) -> ExecutorchSession:
    return RUNTIME.open(ModelSource(path))


def floats(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_the_session_names_its_format_and_package(models: Path):
    session = opened(models / "static.pte")
    assert (RUNTIME.platform, RUNTIME.option_keys) == ("executorch", frozenset())
    assert session.runtime.startswith("executorch ")
    assert session.device == "cpu"
    assert session.signatures == {}
    assert session.memory_bytes == (models / "static.pte").stat().st_size + 24
    assert not isinstance(session, ResettableSession)


def test_weights_are_the_same_in_every_run(models: Path):
    """The suite reseeds each framework's random numbers before a test."""
    drawn = torch.rand(3)
    torch.manual_seed(0)
    torch.testing.assert_close(drawn, torch.rand(3), rtol=0, atol=0)
    torch.manual_seed(0)
    x = torch.arange(6, dtype=torch.float32).reshape(2, 3)
    expected = torch.nn.Linear(3, 2)(x).detach().numpy()
    np.testing.assert_array_equal(np.load(models / "expected.npy"), expected)


@pytest.mark.parametrize(
    ("name", "shapes"),
    [
        ("static", ((2, 3), (2, 2))),
        ("rows", ((-1, -1), (-1, -1))),
    ],
)
def test_specs(models: Path, name: str, shapes: tuple):
    session = opened(models / f"{name}.pte")
    assert list(session.inputs) == [TensorSpec("input_0", "FP32", shapes[0])]
    assert list(session.outputs) == [TensorSpec("output_0", "FP32", shapes[1])]


@pytest.mark.parametrize("name", ["static", "rows", "xnnpack"])
def test_runs(models: Path, name: str):
    session = opened(models / f"{name}.pte")
    first = session.run({"input_0": floats(2, 3)})["output_0"]
    session.run({"input_0": floats(2, 3) + 1})
    np.testing.assert_allclose(first, np.load(models / "expected.npy"), **TOLERANCE)


@pytest.mark.parametrize("name", ["rows", "xnnpack"])
def test_runs_other_counts_of_rows(models: Path, name: str):
    session = opened(models / f"{name}.pte")
    for count in (8, 1, 5):
        assert session.run({"input_0": floats(count, 3)})["output_0"].shape == (
            count,
            2,
        )


def test_types_and_fixed_numbers(models: Path):
    session = opened(models / "types.pte")
    found = [
        (spec.name, spec.datatype, spec.shape)
        for spec in (*session.inputs, *session.outputs)
    ]
    assert found == [
        ("input_0", "FP32", (6,)),
        ("input_2", "BF16", (2,)),
        ("input_3", "BOOL", (2,)),
        ("output_0", "FP32", (2, 3)),
        ("output_1", "BF16", (2,)),
        ("output_2", "INT64", (6,)),
        ("output_3", "BOOL", (2,)),
    ]
    ones = np.full(2, 0x3F80, np.uint16)
    result = session.run(
        {
            "input_0": floats(6),
            "input_2": ones,
            "input_3": np.array([True, False]),
        }
    )
    assert result["output_0"].tolist() == [[0, 4, 8], [12, 16, 20]]
    assert result["output_1"].tolist() == [0x4000] * 2
    assert result["output_2"].tolist() == list(range(6))
    assert result["output_3"].tolist() == [False, True]


@pytest.mark.parametrize("name", ["static", "rows", "xnnpack"])
@pytest.mark.parametrize(
    "x",
    [
        floats(9, 3),
        floats(2, 4),
        floats(6),
        floats(2, 2),
        floats(2, 3).astype(np.int32),
    ],
)
def test_inputs_that_do_not_fit(models: Path, name: str, x: np.ndarray):
    session = opened(models / f"{name}.pte")
    with pytest.raises(ValueError, match="shapes"):
        session.run({"input_0": x})
    assert session.run({"input_0": floats(2, 3)})["output_0"].shape == (2, 2)


def test_closed(models: Path):
    session = opened(models / "static.pte")
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.run({"input_0": floats(2, 3)})


def test_remains_of_an_uninstalled_package_are_not_a_framework(
    models: Path, monkeypatch: pytest.MonkeyPatch
):
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(RuntimeMissingError, match=re.escape(f"run: {INSTALL}")):
        opened(models / "static.pte")


# --- Files that are refused


@pytest.mark.assets
def test_the_hostile_file_is_refused(assets: Path):
    hostile = assets.parent / "hostile" / "executorch-abort-garbage.pte"
    if not hostile.is_file():
        pytest.skip("the folder of hostile files is not there")
    with pytest.raises(ModelLoadError, match="is not an ExecuTorch program"):
        opened(hostile)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"ET12",
        b"\xff" * 4000,
        b"\0\0\0\0ETxx" + bytes(100),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes):
    (tmp_path / "a.pte").write_bytes(content)
    with pytest.raises(ModelLoadError):
        opened(tmp_path / "a.pte")
    with pytest.raises(ModelLoadError, match="cannot be read"):
        opened(tmp_path / "missing.pte")


def test_names_that_are_not_utf_8_are_refused(models: Path, tmp_path: Path):
    """Logging such a name would end the process."""
    content = (models / "rows.pte").read_bytes()
    assert b"aten::addmm" in content
    (tmp_path / "a.pte").write_bytes(content.replace(b"aten::addmm", b"aten::\xe4ddmm"))
    with pytest.raises(ModelLoadError, match="not UTF-8"):
        opened(tmp_path / "a.pte")
    (tmp_path / "a.pte").write_bytes(content.replace(b"aten::addmm", b"aten::uddmm"))
    with pytest.raises(ModelLoadError, match=r"cannot load a\.pte"):
        opened(tmp_path / "a.pte")


def test_truncated_files_are_refused(models: Path, tmp_path: Path):
    content = (models / "xnnpack.pte").read_bytes()
    for length in range(0, len(content) - 16, 101):
        (tmp_path / "a.pte").write_bytes(content[:length])
        with pytest.raises(ModelLoadError):
            opened(tmp_path / "a.pte")


OPEN_ALL = """
import sys, warnings
warnings.simplefilter("ignore")
from pathlib import Path
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.executorch.session import RUNTIME
refused = 0
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        RUNTIME.open(ModelSource(path))
    except ModelLoadError:
        refused += 1
print(refused)
"""


def test_damaged_files_raise_only_load_errors(models: Path, tmp_path: Path):
    """The program has no delegates, whose formats nothing here can check."""
    whole = (models / "rows.pte").read_bytes()
    chance = random.Random(7)
    for number in range(MUTATIONS):
        data = bytearray(whole)
        for _ in range(1 + number % 8):
            data[chance.randrange(len(data))] = chance.randrange(256)
        (tmp_path / f"{number}.pte").write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", OPEN_ALL, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout) > MUTATIONS // 4
