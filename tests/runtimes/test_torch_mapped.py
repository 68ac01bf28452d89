"""Map weights of unconverted PyTorch models where the module can't notice it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch")

from pocketserve.runtimes.base import ModelSource  # noqa: E402
from pocketserve.runtimes.torch import weights as torch_weights  # noqa: E402
from pocketserve.runtimes.torch.eager import RUNTIME, TorchSession  # noqa: E402
from pocketserve.tensors import TensorSpec  # noqa: E402
from trusting import trusted  # noqa: E402

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
    """Return a module that uses tensors in every way, and its folder."""
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
    return RUNTIME.open(
        ModelSource(
            folder / "model.py",
            options={"weights": name},
            inputs=(X,),
            trusted=trusted(folder / "model.py"),
        )
    )


def save_safetensors(state: dict[str, Any], path: Path) -> None:
    from safetensors.torch import save_file

    save_file({name: tensor.clone() for name, tensor in state.items()}, str(path))


def mapped_names(session: TorchSession, path: Path) -> set[str]:
    """Return the tensors whose memory is mapped from the file."""
    ranges = [
        [int(end, 16) for end in line.split()[0].split("-")]
        for line in Path("/proc/self/maps").read_text().splitlines()
        if line.endswith(str(path))
    ]
    tensors = session._module.state_dict(keep_vars=True)
    return {
        name
        for name, tensor in tensors.items()
        if any(low <= tensor.data_ptr() < high for low, high in ranges)
    }


def drop(module: Any, name: str) -> Any:
    setattr(module, name, torch.nn.Identity())
    return module


@pytest.mark.skipif(
    not Path("/proc/self/maps").exists(), reason="mappings are read from /proc"
)
@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_large_private_weights_are_mapped(
    module: Any, tmp_path: Path, name: str
) -> None:
    """Small tensors, views and tensors that a layer loads itself are copied."""
    path = tmp_path / "model.py"
    path.write_text(
        path.read_text().replace(
            "nn.utils.spectral_norm(nn.Linear(4, 4))", "nn.Identity()"
        )
    )
    state = drop(module, "spectral").state_dict()
    (save_safetensors if name.endswith("s") else torch.save)(state, tmp_path / name)
    session = opened(tmp_path, name)
    assert mapped_names(session, tmp_path / name) == {
        "plain.weight",
        "tied.weight",
        "also.weight",
        "short.weight",
    }
    assert session._module.tied.weight is session._module.also.weight
    check(session, module)


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors"])
def test_a_module_that_inspects_its_weights_gets_copies(
    module: Any, tmp_path: Path, name: str
) -> None:
    (save_safetensors if name.endswith("s") else torch.save)(
        module.state_dict(), tmp_path / name
    )
    session = opened(tmp_path, name)
    assert mapped_names(session, tmp_path / name) == set()
    check(session, module)


def check(session: TorchSession, module: Any) -> None:
    """Compare the answers, also after the module wrote to its tensors; the file must
    not change.
    """
    rows = np.random.default_rng(1).random((2, 200), np.float32)
    with torch.inference_mode():
        expected = module(torch.from_numpy(rows)).numpy()
    (given,) = session.run({"x": rows}).values()
    np.testing.assert_allclose(given, expected, rtol=1e-5)


def test_weights_of_another_precision_are_converted(
    module: Any, tmp_path: Path
) -> None:
    torch.save(module.half().state_dict(), tmp_path / "weights.pt")
    session = opened(tmp_path, "weights.pt")
    assert session._module.plain.weight.dtype == torch.float32
    torch.testing.assert_close(
        session._module.plain.weight, module.plain.weight.float(), check_device=False
    )


def test_writing_to_mapped_weights_leaves_the_file_alone(
    module: Any, tmp_path: Path
) -> None:
    path = tmp_path / "weights.pt"
    torch.save(module.state_dict(), path)
    before = path.read_bytes()
    with torch.no_grad():
        opened(tmp_path, path.name)._module.plain.weight.zero_()
    assert path.read_bytes() == before


def test_numbers_drawn_after_the_modules_own_seed_are_kept(
    tmp_path: Path,
) -> None:
    """They depend on earlier draws, so the parameters are drawn, too."""
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
        torch.testing.assert_close(
            opened(tmp_path, "weights.pt")._module.drawn, module.drawn
        )


def built(folder: Path, code: str) -> Any:
    """Return a module of this code in the folder, with new weights in ``weights.pt``."""
    folder.chmod(0o755)
    path = folder / "model.py"
    path.write_text(f"import torch\nfrom torch import nn\n{code}")
    path.chmod(0o644)
    names: dict[str, Any] = {}
    exec(path.read_text(), names)
    module = names["build"]().eval()
    torch.save(module.state_dict(), folder / "weights.pt")
    return module


def test_layers_get_the_version_that_wrote_their_weights(tmp_path: Path) -> None:
    """PyTorch stores versions beside the weights; its quantised layers don't load
    without them.
    """
    module = built(
        tmp_path,
        "class Layer(nn.Linear):\n"
        "    _version = 2\n"
        "    def _load_from_state_dict(self, state, prefix, noted, *rest):\n"
        "        if noted.get('version', 1) < 2:\n"
        "            state[prefix + 'weight'] = state[prefix + 'weight'].T\n"
        "        super()._load_from_state_dict(state, prefix, noted, *rest)\n"
        "def build():\n"
        "    return nn.Sequential(nn.Linear(200, 200), Layer(200, 200))\n",
    )
    check(opened(tmp_path, "weights.pt"), module)


LOADS_IN_ITS_OWN_WAY = {
    "a parent": "def _load_from_state_dict(self, state, prefix, *rest):\n"
    "        state[prefix + 'inner.weight'] = state[prefix + 'inner.weight'].T\n"
    "        super()._load_from_state_dict(state, prefix, *rest)",
    "the whole": "def load_state_dict(self, state, **options):\n"
    "        return super().load_state_dict({**state, 'inner.weight': state['inner.weight'].T}, **options)",
}


@pytest.mark.parametrize(
    "method", LOADS_IN_ITS_OWN_WAY.values(), ids=LOADS_IN_ITS_OWN_WAY
)
def test_a_containing_module_may_change_the_weights_of_its_parts(
    tmp_path: Path, method: str
) -> None:
    module = built(
        tmp_path,
        "class Module(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.inner = nn.Linear(200, 200)\n"
        "    def forward(self, x):\n"
        "        return self.inner(x)\n"
        f"    {method}\n"
        "build = Module\n",
    )
    session = opened(tmp_path, "weights.pt")
    torch.testing.assert_close(
        session._module.inner.weight, module.inner.weight.T, check_device=False
    )


def test_weights_that_a_module_exposes_as_copies_are_filled(
    tmp_path: Path,
) -> None:
    module = built(
        tmp_path,
        "def build():\n"
        "    module = nn.Linear(200, 200)\n"
        "    module.register_state_dict_post_hook(lambda layer, state, prefix, metadata: state.update(\n"
        "        {prefix + 'weight': layer.weight.detach().clone()}))\n"
        "    return module\n",
    )
    check(opened(tmp_path, "weights.pt"), module)


def test_shared_memory_in_the_file_is_not_shared_by_two_tensors(
    tmp_path: Path,
) -> None:
    built(
        tmp_path,
        "class Module(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.register_buffer('sum', torch.zeros(200, 200))\n"
        "        self.register_buffer('start', torch.zeros(200, 200))\n"
        "    def forward(self, x):\n"
        "        self.sum += 1\n"
        "        return x + self.start[0]\n"
        "build = Module\n",
    )
    zeros = torch.zeros(200, 200)
    torch.save({"sum": zeros, "start": zeros}, tmp_path / "weights.pt")
    session = opened(tmp_path, "weights.pt")
    rows = np.ones((1, 200), np.float32)
    for _ in range(2):
        (given,) = session.run({"x": rows}).values()
        np.testing.assert_array_equal(given, rows)


def test_weights_with_two_names_are_not_copied_onto_themselves(
    module: Any, tmp_path: Path
) -> None:
    """That would make all their memory private."""
    names = {"tied.weight", "also.weight"}
    torch.save(
        {name: module.tied.weight.detach() for name in names}, tmp_path / "weights.pt"
    )
    drop(module, "spectral")
    state = torch_weights._state(torch, tmp_path / "weights.pt")
    assert (
        torch_weights._map(torch, module, module.state_dict(keep_vars=True), state)
        == names
    )


DRAWN = {
    "fork": "with torch.random.fork_rng():\n        torch.manual_seed(7)\n        module = nn.Linear(200, 2)\n"
    "        drawn = torch.randn(3)",
    "generator": "own = torch.Generator().manual_seed(7)\n    module = nn.Linear(200, 2)\n"
    "    nn.init.uniform_(module.weight, generator=own)\n    drawn = torch.randn(3, generator=own)",
}


@pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)
def test_numbers_of_a_temporary_generator_are_kept(tmp_path: Path, draw: str) -> None:
    module = built(
        tmp_path,
        f"def build():\n    {draw}\n    module.register_buffer('drawn', drawn, persistent=False)\n    return module\n",
    )
    torch.testing.assert_close(
        opened(tmp_path, "weights.pt")._module.drawn, module.drawn
    )


def test_another_models_seed_is_not_disturbed(module: Any, tmp_path: Path) -> None:
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    opened(tmp_path, "weights.pt")
    torch.testing.assert_close(torch.rand(3), expected)
