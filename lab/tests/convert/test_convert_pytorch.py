"""Convert PyTorch modules that are hard to export, or name the operator."""

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


def write_model(tmp_path: Path, body: str, shape: str = "[-1, 3]") -> Path:
    """Write an unconverted model with this ``forward``, and trust its code."""
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
    """Convert the model to a kind, optionally by these converters only."""
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
def test_nested_results_get_the_servers_names(kind: str, tmp_path: Path) -> None:
    """Results that are not tensors are omitted."""
    models = write_model(
        tmp_path, "y = self.inner(x)\nreturn {'boxes': y, 'more': (y + 1, None)}"
    )
    conversion = convert(tmp_path, models, kind)
    assert conversion.agreement is not None
    assert conversion.agreement.error < 1e-6
    # The module accepts any number of them.
    assert not any("one row" in note for note in conversion.notes)


def test_a_branch_that_depends_on_values_is_scripted(tmp_path: Path) -> None:
    """A trace would keep only one of its sides."""
    conversion = convert(tmp_path, write_model(tmp_path, BRANCH), "torchscript")
    assert conversion.agreement is not None
    assert conversion.agreement.error < 1e-6


@pytest.mark.convert
def test_values_that_decide_are_refused_or_scripted(tmp_path: Path) -> None:
    """The message names the way out; a path with a script is used after the first
    fails.
    """
    models = write_model(tmp_path, BRANCH)
    with pytest.raises(
        ConversionError, match=r"an exported program .* do not depend on values"
    ) as caught:
        convert(tmp_path, models, "pt2", "torch.export")
    assert caught.value.nearest == "--to torchscript"
    assert caught.value.detail
    assert convert(tmp_path, models, "pt2").version == "pt2"


KEPT = "kept = self.inner(x)[x > 0]\nreturn kept.sum() if len(kept) > 1 else kept.sum() - 7"


@pytest.mark.convert
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
def test_operators_that_exporters_refuse_are_named(
    body: str, kind: str, tool: str, sentence: str, nearest: str, tmp_path: Path
) -> None:
    """The message suggests a kind that works."""
    with pytest.raises(ConversionError, match=sentence) as caught:
        convert(tmp_path, write_model(tmp_path, body), kind, tool)
    assert caught.value.nearest == nearest
    assert caught.value.detail


def test_a_model_of_one_row_keeps_its_sizes(tmp_path: Path) -> None:
    """They are as declared, so there is no note."""
    models = write_model(
        tmp_path, "return self.inner(x.reshape(1, -1)[:, :3])", "[1, 3]"
    )
    assert convert(tmp_path, models, "pt2").notes == ()


@pytest.mark.convert
def test_a_program_whose_rows_cannot_stay_open_has_a_note(tmp_path: Path) -> None:
    """ExecuTorch fixes the rows of split tensors, so the program takes one at a time."""
    models = write_model(
        tmp_path, "return torch.cat(self.inner(x).split([1, 2], 1)[::-1], 1)"
    )
    conversion = convert(tmp_path, models, "executorch")
    assert conversion.agreement is not None
    assert conversion.agreement.error < 1e-6
    assert any("one row" in note for note in conversion.notes)


def test_untrusted_code_is_not_run(tmp_path: Path) -> None:
    """The message says how to allow it."""
    models = write_model(tmp_path, "return self.inner(x)")
    (models / "odd" / "model.py").write_text("raise SystemExit\n")
    with pytest.raises(ConversionError, match="pocketserve trust"):
        convert(tmp_path, models, "torchscript")


def test_mobile_from_torchscript_and_back(tmp_path: Path) -> None:
    """The embedded model's archives need no Python code."""
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
        assert conversion.agreement is not None
        assert conversion.agreement.error < 1e-6


@pytest.mark.convert
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_torchscript_of_unknown_ranks_is_converted(tmp_path: Path) -> None:
    """The tracing exporter can't transpose such a tensor, the newer one can."""
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
    assert conversion.agreement is not None
    assert conversion.agreement.error < 1e-6
    assert any("one row" in note for note in conversion.notes)


def test_operations_that_the_tracing_exporter_refuses_are_named() -> None:
    """The message names the operation, not the operator that made the value."""
    from pocketserve_lab.convert.tools.pytorch import _sentence

    text = "Unsupported: ONNX export of transpose for tensor of unknown rank.  [The node has kind 'onnx::Reshape'.]"
    sentence = _sentence("ONNX", text, RuntimeError(text))
    assert (
        sentence
        == "ONNX has no counterpart of the operator transpose for tensor of unknown rank"
    )


@pytest.mark.parametrize("is_mobile", [False, True], ids=["TorchScript", "mobile"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_cleaned_file_keeps_its_operators_and_names_no_folder(
    is_mobile: bool, tmp_path: Path
) -> None:
    """In the oldest version of the operators, whole numbers are divided with a floor."""
    import torch

    from pocketserve_lab.convert.tools.cleaning import clean_script

    class Halves(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x / 2

    values = torch.tensor([3, -3, 5])
    module = torch.jit.trace(Halves().eval(), values)
    path = tmp_path / "halves.pt"
    if is_mobile:
        module._save_for_lite_interpreter(str(path))
    else:
        module.save(str(path))
    clean_script(torch, path)
    if is_mobile:
        from torch.jit.mobile import _load_for_lite_interpreter as load
    else:
        load = torch.jit.load
    assert load(str(path))(values).tolist() == [1.5, -1.5, 2.5]
    assert str(Path(__file__).parent).encode() not in path.read_bytes()
