"""PyTorch modules that exporters stumble over: each becomes a version, or a sentence that names the operator."""

from __future__ import annotations

from pathlib import Path

import pytest

from places import MODELS
from pocketserve.cli import main
from pocketserve.repository.scan import scan
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.convert.process import ProcessLimits
from pocketserve_lab.convert.registry import converters
from pocketserve_lab.convert.run import Conversion, ConversionSettings, ModelConverter

pytestmark = pytest.mark.torch

MANIFEST = """
[[inputs]]
name = "x"
datatype = "FP32"
shape = {shape}

[versions.torch]
file = "model.py"
arguments = {{ width = 3 }}
"""
HEAD = """
import torch


class Model(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(width, width)

    def forward(self, x):
"""
BRANCH = "if x.sum() > 1.5:\n    return self.inner(x)\nreturn self.inner(x) * 0 - 7"
TAIL = """

def build(width):
    return Model(width)
"""


def made(tmp_path: Path, body: str, shape: str = "[-1, 3]") -> Path:
    """Write an unconverted model with this ``forward`` and let its code run; return the models folder."""
    folder = tmp_path / "models" / "odd"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(
        HEAD + "".join(f"        {line}\n" for line in body.splitlines()) + TAIL
    )
    (folder / "model.toml").write_text(MANIFEST.format(shape=shape))
    assert (
        main(["trust", str(folder), "--yes", "--state-dir", str(tmp_path / "state")])
        == 0
    )
    return folder.parent


def convert(tmp_path: Path, models: Path, kind: str, *names: str) -> Conversion:
    """Convert the model to a kind, by these converters alone if some are named."""
    settings = ConversionSettings(
        models, tmp_path / "state", limits=ProcessLimits(300.0)
    )
    tools = [tool for tool in converters() if tool.name in names] or None
    converter = ModelConverter(
        scan(models)["odd"], settings, lambda title, share: None, print, tools
    )
    try:
        return converter.convert(kind)
    finally:
        converter.close()


@pytest.mark.parametrize("kind", ["torchscript", "ptl", "pt2"])
def test_nested_results(kind: str, tmp_path: Path) -> None:
    """Names lead to the tensors, as the server shows them; what is no tensor is left out."""
    models = made(
        tmp_path, "y = self.inner(x)\nreturn {'boxes': y, 'more': (y + 1, None)}"
    )
    conversion = convert(tmp_path, models, kind)
    assert conversion.agreement is not None and conversion.agreement.error < 1e-6
    assert not any(
        "one row" in note for note in conversion.notes
    )  # the module takes any number of them


def test_a_branch_that_depends_on_values(tmp_path: Path) -> None:
    """A trace would keep one of its sides: it is scripted, and both are there."""
    conversion = convert(tmp_path, made(tmp_path, BRANCH), "torchscript")
    assert conversion.agreement is not None and conversion.agreement.error < 1e-6


def test_values_that_decide_where_the_tool_cannot(tmp_path: Path) -> None:
    """The sentence names the way out. By way of a script it can: such a way is found where the first one fails."""
    models = made(tmp_path, BRANCH)
    with pytest.raises(
        ConversionError, match=r"an exported program .* do not depend on values"
    ) as caught:
        convert(tmp_path, models, "pt2", "torch.export")
    assert caught.value.nearest == "--to torchscript" and caught.value.detail
    assert convert(tmp_path, models, "pt2").version == "pt2"


KEPT = "kept = self.inner(x)[x > 0]\nreturn kept.sum() if len(kept) > 1 else kept.sum() - 7"


@pytest.mark.parametrize(
    ("body", "kind", "tool", "sentence", "nearest"),
    [
        (
            *("return torch.special.bessel_j0(self.inner(x))", "onnx", "torch.onnx"),
            *(
                r"^ONNX has no counterpart of the operator aten::special_bessel_j0",
                "--to torchscript",
            ),
        ),
        (
            *(KEPT, "pt2", "torch.export"),
            *(
                r"^an exported program needs sizes and branches that do not depend on values, and",
                "--to torchscript",
            ),
        ),
    ],
    ids=["an operator without a counterpart", "sizes that depend on values"],
)
def test_what_exporters_refuse(
    body: str, kind: str, tool: str, sentence: str, nearest: str, tmp_path: Path
) -> None:
    """The sentence names the operator, and the kind that works."""
    with pytest.raises(ConversionError, match=sentence) as caught:
        convert(tmp_path, made(tmp_path, body), kind, tool)
    assert caught.value.nearest == nearest and caught.value.detail


def test_a_model_of_one_row(tmp_path: Path) -> None:
    """Its sizes are fixed, as they are declared; there is nothing to note."""
    models = made(tmp_path, "return self.inner(x.reshape(1, -1)[:, :3])", "[1, 3]")
    assert convert(tmp_path, models, "pt2").notes == ()


def test_a_program_whose_rows_cannot_stay_open(tmp_path: Path) -> None:
    """ExecuTorch's lowering fixes the rows of what is split: the program takes one at a time, and the note says so."""
    models = made(tmp_path, "return torch.cat(self.inner(x).split([1, 2], 1)[::-1], 1)")
    conversion = convert(tmp_path, models, "executorch")
    assert conversion.agreement is not None and conversion.agreement.error < 1e-6
    assert any("one row" in note for note in conversion.notes)


def test_code_that_nobody_trusts(tmp_path: Path) -> None:
    """It is not run, and the sentence says how to allow it."""
    models = made(tmp_path, "return self.inner(x)")
    (models / "odd" / "model.py").write_text("raise SystemExit\n")
    with pytest.raises(ConversionError, match="pocketserve trust"):
        convert(tmp_path, models, "torchscript")


def test_mobile_from_torchscript_and_back(tmp_path: Path) -> None:
    """An embedded model's archives, without any code of Python's."""
    import shutil

    shutil.copytree(MODELS / "petals", tmp_path / "models" / "petals")
    for version, kind in (
        ("torchscript", "ptl"),
        ("ptl", "torchscript"),
        ("pt2", "torchscript"),
    ):
        settings = ConversionSettings(
            tmp_path / "models", tmp_path / "state", version=version
        )
        converter = ModelConverter(
            scan(tmp_path / "models")["petals"],
            settings,
            lambda title, share: None,
            print,
        )
        try:
            conversion = converter.convert(kind)
        finally:
            converter.close()
        assert conversion.version == f"{kind}-from-{version}"
        assert conversion.agreement is not None and conversion.agreement.error < 1e-6


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_of_unknown_ranks(tmp_path: Path) -> None:
    """The exporter that traces cannot turn such a tensor round; the one for exported programs can."""
    import torch

    class Turned(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.unflatten(-1, (3, 1)).transpose(1, 2) * 2

    folder = tmp_path / "models" / "odd"
    folder.mkdir(parents=True)
    torch.jit.trace(Turned(), torch.rand(2, 3)).save(folder / "odd.ts")
    (folder / "model.toml").write_text(
        MANIFEST.partition("[versions")[0].format(shape="[-1, 3]")
    )
    conversion = convert(tmp_path, folder.parent, "onnx", "torch.onnx")
    assert conversion.agreement is not None and conversion.agreement.error < 1e-6
    assert any("one row" in note for note in conversion.notes)


def test_what_the_tracing_exporter_refuses() -> None:
    """The sentence names what it cannot do, not the operator that made the value."""
    from pocketserve_lab.convert.tools.pytorch import _sentence

    text = "Unsupported: ONNX export of transpose for tensor of unknown rank.  [The node has kind 'onnx::Reshape'.]"
    sentence = _sentence("ONNX", text, RuntimeError(text))
    assert (
        sentence
        == "ONNX has no counterpart of the operator transpose for tensor of unknown rank"
    )
