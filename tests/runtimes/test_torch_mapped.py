"""Weights of unconverted PyTorch models stay in the file, mapped, where the module cannot tell the difference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from pocketserve.runtimes.base import ModelSource  # noqa: E402
from pocketserve.runtimes.torch_eager import RUNTIME, TorchSession  # noqa: E402
from pocketserve.tensors import TensorSpec  # noqa: E402

pytestmark = pytest.mark.torch

CODE = """
import torch
from torch import nn

class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.plain = nn.Linear(200, 200)
        self.tied = nn.Linear(200, 200, bias=False)
        self.also = self.tied
        self.short = nn.Linear(200, 200).half()
        self.norm = nn.BatchNorm1d(20_000)
        self.register_buffer("table", torch.zeros(200, 200))
        self.rows = self.table[:100]
        self.spectral = nn.utils.spectral_norm(nn.Linear(4, 4))

    def forward(self, x):
        x = self.also(self.plain(x)) + self.short.weight.float().sum() + self.norm.weight.sum()
        return x[:, :100] @ self.rows
"""
X = TensorSpec("x", "FP32", (-1, 200))


@pytest.fixture
def module(tmp_path: Path) -> Any:
    """A module whose tensors are used in every way; its code lies in the folder."""
    tmp_path.chmod(0o755)
    path = tmp_path / "model.py"
    path.write_text(CODE + "\nbuild = Module\n")
    path.chmod(0o644)
    names: dict[str, Any] = {}
    exec(CODE, names)
    made = names["Module"]().eval()
    made.table.copy_(torch.randn(200, 200))
    return made


def opened(folder: Path, name: str) -> TorchSession:
    return RUNTIME.open(ModelSource(folder / "model.py", options={"weights": name}, inputs=(X,)))


def save_safetensors(state: dict[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.clone() for name, tensor in state.items()}, str(path))


def mapped_names(session: TorchSession, path: Path) -> set[str]:
    """The tensors whose memory is the file's."""
    ranges = [
        [int(end, 16) for end in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(path))
    ]
    tensors = session._module.state_dict(keep_vars=True)
    return {name for name, tensor in tensors.items() if any(low <= tensor.data_ptr() < high for low, high in ranges)}


def drop(module: Any, name: str) -> Any:
    setattr(module, name, torch.nn.Identity())
    return module


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="mappings are read from /proc")
@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_what_is_the_modules_alone_and_large_is_mapped(module: Any, tmp_path: Path, name: str) -> None:
    """Not small ones, nor what the module sees as a view too, nor what a layer loads in a way of its own."""
    path = tmp_path / "model.py"
    path.write_text(path.read_text().replace("nn.utils.spectral_norm(nn.Linear(4, 4))", "nn.Identity()"))
    state = drop(module, "spectral").state_dict()
    (save_safetensors if name.endswith("s") else torch.save)(state, tmp_path / name)
    session = opened(tmp_path, name)
    assert mapped_names(session, tmp_path / name) == {"plain.weight", "tied.weight", "also.weight", "short.weight"}
    assert session._module.tied.weight is session._module.also.weight
    check(session, module)


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_a_module_that_wants_to_see_its_weights_first_gets_copies(module: Any, tmp_path: Path, name: str) -> None:
    (save_safetensors if name.endswith("s") else torch.save)(module.state_dict(), tmp_path / name)
    session = opened(tmp_path, name)
    assert mapped_names(session, tmp_path / name) == set()
    check(session, module)


def check(session: TorchSession, module: Any) -> None:
    """The same answers, also after the module wrote to its own tensors, which leaves the file as it was."""
    rows = np.random.default_rng(1).random((2, 200), np.float32)
    with torch.inference_mode():
        expected = module(torch.from_numpy(rows)).numpy()
    (given,) = session.run({"x": rows}).values()
    np.testing.assert_allclose(given, expected, rtol=1e-5)


def test_weights_of_another_precision_are_converted(module: Any, tmp_path: Path) -> None:
    torch.save(module.half().state_dict(), tmp_path / "weights.pt")
    session = opened(tmp_path, "weights.pt")
    assert session._module.plain.weight.dtype == torch.float32
    torch.testing.assert_close(session._module.plain.weight, module.plain.weight.float(), check_device=False)


def test_writing_to_mapped_weights_leaves_the_file_alone(module: Any, tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    torch.save(module.state_dict(), path)
    before = path.read_bytes()
    with torch.no_grad():
        opened(tmp_path, path.name)._module.plain.weight.zero_()
    assert path.read_bytes() == before


def test_numbers_that_a_module_draws_after_a_seed_of_its_own_stay(tmp_path: Path) -> None:
    """They depend on all that was drawn before, so the parameters are drawn too."""
    tmp_path.chmod(0o755)
    code = (
        "import torch\n\ndef build():\n    torch.manual_seed(7)\n    module = torch.nn.Linear(200, 2)\n"
        "    module.register_buffer('drawn', torch.randn(3), persistent=False)\n    return module\n"
    )
    (tmp_path / "model.py").write_text(code)
    (tmp_path / "model.py").chmod(0o644)
    names: dict[str, Any] = {}
    exec(code, names)
    module = names["build"]()
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    for _ in range(2):
        torch.testing.assert_close(opened(tmp_path, "weights.pt")._module.drawn, module.drawn)
