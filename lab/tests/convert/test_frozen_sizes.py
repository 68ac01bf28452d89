"""Convert models with free sizes: none may be fixed without a note."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from pocketserve.cli import main
from pocketserve.repository.manifest import read_manifest
from pocketserve.repository.scan import scan
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.convert.process import ProcessLimits
from pocketserve_lab.convert.registry import converters
from pocketserve_lab.convert.run import Conversion, ConversionSettings, ModelConverter

pytestmark = pytest.mark.torch

LOOP = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = torch.nn.GRUCell(6, 16)

    def forward(self, steps{rest}):
        state = torch.zeros(steps.shape[0], 16)
        states = []
        for index in range(steps.shape[1]):
            state = self.cell(steps[:, index], state)
            states.append(state)
        return {result}
"""
RECURRENT = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.GRU(6, 8, batch_first=True)
        self.second = torch.nn.LSTM(8, 8, batch_first=True, bidirectional=True)

    def forward(self, steps):
        inner, _ = self.first(steps)
        outer, _ = self.second(inner)
        return {"all": outer, "last": outer[:, -1]}
"""
BRANCH = """
class Model(torch.nn.Module):
    def forward(self, steps):
        if steps.sum() > 1e9:
            return {"last": steps * 2}
        return {"last": steps - 7}
"""
ATTENTION = """
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(6, 6)

    def forward(self, steps):
        x = self.inner(steps)
        return torch.nn.functional.scaled_dot_product_attention(x, x, steps)
"""
LOOP_DICT = LOOP.format(
    rest="", result='{"last": state, "states": torch.stack(states, 1)}'
)
LOOP_UNUSED = LOOP.format(rest=", *unused", result="state")

HEAD = "import torch\n\ntorch.manual_seed(0)\n"
TAIL = "\ndef build():\n    return Model()\n"
MANIFEST = """
[[inputs]]
name = "steps"
datatype = "FP32"
shape = [-1, -1, 6]

[versions.torch]
file = "model.py"
"""


class Workshop(NamedTuple):
    """A model that its owner trusts, with samples of length 10."""

    models: Path
    state: Path

    def convert(self, kind: str, *names: str) -> Conversion:
        """Convert the model, optionally by these tools only."""
        settings = ConversionSettings(
            self.models, self.state, limits=ProcessLimits(300.0)
        )
        tools = [tool for tool in converters() if tool.name in names] or None
        converter = ModelConverter(
            scan(self.models)["odd"], settings, lambda title, share: None, print, tools
        )
        try:
            return converter.convert(kind)
        finally:
            converter.close()

    def input_shapes(self, version: str) -> Any:
        """Return the fixed shapes in the manifest."""
        manifest = read_manifest(self.models / "odd" / "model.toml")
        return manifest.versions[version].input_shapes


def workshop(tmp_path: Path, code: str) -> Workshop:
    """Write a model and its samples."""
    models, state = tmp_path / "models", tmp_path / "state"
    samples = models / "odd" / "samples"
    samples.mkdir(parents=True)
    (models / "odd" / "model.py").write_text(HEAD + code + TAIL)
    (models / "odd" / "model.toml").write_text(MANIFEST)
    random = np.random.default_rng(0)
    for number in range(6):
        steps = random.normal(size=(1, 10, 6)).astype(np.float32)
        np.savez(samples / f"{number}.npz", steps=steps)
    arguments = ["trust", str(models / "odd"), "--yes", "--state-dir", str(state)]
    assert main(arguments) == 0
    return Workshop(models, state)


def check_clean(path: Path, home: Path) -> None:
    """Check that a file names no folder of this machine, and no source line."""
    contents = [path.read_bytes()]
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            contents += [archive.read(name) for name in archive.namelist()]
    for words in (home.name, "site-packages", "self.inner(", "self.cell("):
        for content in contents:
            assert words.encode() not in content


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_traced_loop_gets_a_fixed_length(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The trace repeats the loop as often as for the sample."""
    import torch

    shop = workshop(tmp_path, LOOP_DICT)
    conversion = shop.convert("torchscript")
    assert conversion.fixed == {"steps": (-1, 10, 6)}
    assert any("fixed at 10" in note for note in conversion.notes)
    assert shop.input_shapes("torchscript") == {"steps": (-1, 10, 6)}
    program = torch.jit.load(str(conversion.path))
    program(torch.zeros(3, 10, 6))
    with pytest.raises(Exception, match="fixed size 10"):
        program(torch.zeros(1, 12, 6))
    monkeypatch.setenv("POCKETSERVE_STATE_DIR", str(shop.state))
    arguments = ["inspect", "odd", "--local", "--version", "torchscript"]
    arguments += ["--models-dir", str(shop.models), "--json"]
    capsys.readouterr()
    assert main(arguments) == 0
    described = json.loads(capsys.readouterr().out)
    assert described["inputs"][0]["shape"] == [-1, 10, 6]
    assert described["parameters"]["provenance_fixed_sizes"] == "steps [any, 10, 6]"
    check_clean(conversion.path, tmp_path)


@pytest.mark.convert
def test_a_mobile_file_declares_its_fixed_length(tmp_path: Path) -> None:
    """PyTorch Mobile runs the same check as TorchScript."""
    conversion = workshop(tmp_path, LOOP_UNUSED).convert("ptl")
    assert conversion.fixed == {"steps": (-1, 10, 6)}
    check_clean(conversion.path, tmp_path)


@pytest.mark.convert
def test_an_exported_loop_has_a_note(tmp_path: Path) -> None:
    """torch.export unrolls it, too."""
    conversion = workshop(tmp_path, LOOP_UNUSED).convert("pt2")
    assert conversion.fixed == {"steps": (-1, 10, 6)}
    assert any("fixed at 10" in note for note in conversion.notes)


@pytest.mark.convert
def test_the_exporter_that_keeps_the_length_free_wins(tmp_path: Path) -> None:
    """The newer ONNX exporter fixes the length of recurrent layers."""
    import onnx

    conversion = workshop(tmp_path, RECURRENT).convert("onnx")
    assert conversion.fixed == {}
    assert not any("fixed" in note for note in conversion.notes)
    graph = onnx.load(str(conversion.path)).graph
    dimensions = graph.input[0].type.tensor_type.shape.dim
    assert [bool(each.dim_param) for each in dimensions] == [True, True, False]
    check_clean(conversion.path, tmp_path)


@pytest.mark.convert
def test_free_sizes_stay_free(tmp_path: Path) -> None:
    """A model without loops needs no note."""
    shop = workshop(tmp_path, ATTENTION)
    for kind in ("torchscript", "pt2"):
        conversion = shop.convert(kind)
        assert conversion.fixed == {}
        check_clean(conversion.path, tmp_path)


def test_a_trace_of_one_branch_is_refused(tmp_path: Path) -> None:
    """All samples take the same side, so their outputs agree."""
    with pytest.raises(ConversionError, match="do not depend on values"):
        workshop(tmp_path, BRANCH).convert("torchscript", "torch.jit")
