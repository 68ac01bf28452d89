"""Build five PyTorch networks that are hard to export.

The random weights come from a seed. The matrix uses this file as the ``model.py`` of
each, and runs it to export the other formats: ``python matrix_torch.py FOLDER``.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional


class MobileNet(nn.Module):
    """Depthwise convolutions with squeeze and excitation.

    Pictures [n, 3, 32, 32] -> scores [n, 4], with hard-swish.
    """

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(
                3,
                16,
                3,
                2,
                1,
                bias=False,
            ),
            nn.BatchNorm2d(16),
            nn.Hardswish(),
        )
        self.expand = nn.Sequential(
            nn.Conv2d(16, 48, 1, bias=False), nn.BatchNorm2d(48), nn.Hardswish()
        )
        self.depthwise = nn.Sequential(
            nn.Conv2d(
                48,
                48,
                5,
                1,
                2,
                groups=48,
                bias=False,
            ),
            nn.BatchNorm2d(48),
        )
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(48, 12, 1),
            nn.ReLU(),
            nn.Conv2d(12, 48, 1),
            nn.Hardsigmoid(),
        )
        self.project = nn.Sequential(
            nn.Conv2d(48, 16, 1, bias=False), nn.BatchNorm2d(16)
        )
        self.head = nn.Sequential(nn.Linear(16, 32), nn.Hardswish(), nn.Linear(32, 4))

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        inner = self.stem(picture)
        wide = self.depthwise(self.expand(inner))
        inner = inner + self.project(wide * self.squeeze(wide))
        return self.head(functional.adaptive_avg_pool2d(inner, 1).flatten(1))


class UNet(nn.Module):
    """Transposed convolutions and skips.

    Pictures [n, 3, 32, 32] -> masks [n, 2, 32, 32].
    """

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (
            _block(3, 8),
            _block(8, 16),
            _block(16, 32),
        )
        self.up_second, self.up_first = (
            nn.ConvTranspose2d(32, 16, 2, 2),
            nn.ConvTranspose2d(16, 8, 2, 2),
        )
        self.back_second, self.back_first = _block(32, 16), _block(16, 8)
        self.last = nn.Conv2d(8, 2, 1)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Return the masks."""
        first = self.first(picture)
        second = self.second(functional.max_pool2d(first, 2))
        third = self.third(functional.max_pool2d(second, 2))
        back = self.back_second(torch.cat([self.up_second(third), second], 1))
        return torch.sigmoid(
            self.last(self.back_first(torch.cat([self.up_first(back), first], 1)))
        )


def _block(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
    )


class Attention(nn.Module):
    """One layer of a transformer, [n, 16, 32] -> the same."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.join = nn.Linear(32, 96), nn.Linear(32, 32)
        self.hidden = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.first, self.second = nn.LayerNorm(32), nn.LayerNorm(32)

    def forward(self, inner: torch.Tensor) -> torch.Tensor:
        """Return the layer's output."""
        heads = [
            part.unflatten(2, (4, 8)).transpose(1, 2)
            for part in self.project(inner).chunk(3, 2)
        ]
        attended = functional.scaled_dot_product_attention(*heads)
        inner = self.first(inner + self.join(attended.transpose(1, 2).flatten(2)))
        return self.second(inner + self.hidden(inner))


class Transformer(nn.Module):
    """Embeddings and attention: tokens [n, 16] -> scores [n, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = (
            nn.Embedding(64, 32),
            nn.Parameter(torch.randn(16, 32) * 0.3),
        )
        self.layers, self.head = (
            nn.Sequential(Attention(), Attention()),
            nn.Linear(32, 4),
        )

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        return self.head(self.layers(self.words(tokens) + self.places).mean(1))


class Lstm(nn.Module):
    """A recurrent layer: series [n, 12, 6] -> values [n, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.head = nn.LSTM(6, 24, batch_first=True), nn.Linear(24, 3)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        """Return the values."""
        steps, _ = self.recurrent(series)
        return self.head(steps[:, -1])


class Detector(nn.Module):
    """Two inputs and two outputs.

    Pictures [n, 3, 32, 32], rows [n, 5] -> boxes [n, 64, 4], scores [n, 64, 3].
    """

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _block(3, 16), nn.MaxPool2d(2), _block(16, 24), nn.MaxPool2d(2)
        )
        self.row = nn.Linear(5, 24)
        self.boxes, self.scores = (
            nn.Conv2d(24, 4, 3, padding=1),
            nn.Conv2d(24, 3, 3, padding=1),
        )

    def forward(
        self, picture: torch.Tensor, row: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the boxes and the scores."""
        inner = self.body(picture) * torch.tanh(self.row(row))[:, :, None, None]
        boxes = self.boxes(inner).flatten(2).transpose(1, 2)
        return boxes, torch.softmax(self.scores(inner).flatten(2).transpose(1, 2), -1)


NETWORKS = {
    "mobilenet": MobileNet,
    "unet": UNet,
    "transformer": Transformer,
    "lstm": Lstm,
    "detector": Detector,
}


def build(network: str) -> nn.Module:
    """Return a network with seeded weights and trained normalisations."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        module = NETWORKS[network]()
        # In training mode, so that normalisations collect statistics.
        for _ in range(20):
            with torch.no_grad():
                module(*examples(network, 16))
    return module.eval()


def examples(network: str, rows: int) -> tuple[torch.Tensor, ...]:
    """Return random inputs of a network."""
    if network == "transformer":
        return (torch.randint(0, 64, (rows, 16)),)
    if network == "lstm":
        return (torch.randn(rows, 12, 6),)
    picture = torch.rand(rows, 3, 32, 32)
    return (picture, torch.randn(rows, 5)) if network == "detector" else (picture,)


NAMES = {
    "mobilenet": (["picture"], ["scores"]),
    "unet": (["picture"], ["masks"]),
    "transformer": (["tokens"], ["scores"]),
    "lstm": (["series"], ["values"]),
    "detector": (["picture", "row"], ["boxes", "scores"]),
}
"""Names of inputs and outputs."""


def main(folder: Path) -> None:
    """Write samples, this file as model.py, and PyTorch's formats of each network."""
    for network, (inputs, outputs) in NAMES.items():
        home = folder / network
        home.mkdir(parents=True)
        torch.manual_seed(11)
        shapes = _write_samples(home, network, inputs)
        (home / "model.py").write_text(
            Path(__file__).read_text(encoding="utf-8"), encoding="utf-8"
        )
        module = build(network)
        values = examples(network, 2)
        results = module(*values)
        results = results if isinstance(results, tuple) else (results,)
        traced = torch.jit.trace(module, values)
        torch.jit.save(traced, str(home / f"{network}.ts"))
        traced._save_for_lite_interpreter(str(home / f"{network}.ptl"))
        rows = torch.export.Dim("rows")
        program = torch.export.export(
            module, values, dynamic_shapes=[{0: rows} for _ in values], strict=False
        )
        torch.export.save(program, str(home / f"{network}.pt2"))
        exported = torch.onnx.export(
            program,
            dynamo=True,
            input_names=inputs,
            output_names=outputs,
            verbose=False,
        )
        exported.save(str(home / f"{network}.onnx"), external_data=False)
        shapes |= {
            name: [-1, *result.shape[1:]]
            for name, result in zip(outputs, results, strict=True)
        }
        (home / "model.toml").write_text(
            _manifest(network, inputs, outputs, shapes), encoding="utf-8"
        )


def _write_samples(home: Path, network: str, names: list[str]) -> dict[str, list[int]]:
    """Write 24 samples and return the inputs' shapes."""
    import numpy as np

    values = examples(network, 24)
    (home / "samples").mkdir()
    np.savez(
        home / "samples" / "rows.npz",
        **{n: v.numpy() for n, v in zip(names, values, strict=True)},
    )
    return {
        name: [-1, *value.shape[1:]] for name, value in zip(names, values, strict=True)
    }


def _manifest(
    network: str, inputs: list[str], outputs: list[str], shapes: dict[str, list[int]]
) -> str:
    datatype = "INT64" if network == "transformer" else "FP32"
    kinds = {**dict.fromkeys(inputs, datatype), **dict.fromkeys(outputs, "FP32")}
    tables = [
        f'[[{key}]]\nname = "{name}"\ndatatype = "{kinds[name]}"\nshape = {shapes[name]}\n'
        for key, names in (("inputs", inputs), ("outputs", outputs))
        for name in names
    ]
    files = {
        "torchscript": ".ts",
        "ptl": ".ptl",
        "pt2": ".pt2",
        "onnx": ".onnx",
    }
    tables += [
        f'[versions.torch]\nfile = "model.py"\narguments = {{ network = "{network}" }}\n'
    ]
    tables += [
        f'[versions.{version}]\nfile = "{network}{suffix}"\n'
        for version, suffix in files.items()
    ]
    return 'default_version = "onnx"\n\n' + "\n".join(tables)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
