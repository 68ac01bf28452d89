"""Build the PyTorch networks of ``own_models.py``.

The random weights come from a seed. Each model's ``model.py`` is this file.
``python own_torch.py FOLDER`` writes them all; it needs torchvision and timm.
"""

from __future__ import annotations

import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional

WIDTH = 16


class LoopGru(nn.Module):
    """Loop over a cell; return a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(6, WIDTH)

    def forward(self, steps: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the last state, and all."""
        state = torch.zeros(steps.shape[0], WIDTH)
        states = []
        for index in range(steps.shape[1]):
            state = self.cell(steps[:, index], state)
            states.append(state)
        return {"last": state, "all": torch.stack(states, 1)}


class LoopDecay(nn.Module):
    """Loop over time without a cell."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, WIDTH)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Return the decayed sum."""
        values = torch.tanh(self.inner(steps))
        total = values[:, 0]
        for index in range(1, values.shape[1]):
            total = 0.8 * total + values[:, index]
        return total


class GruLstm(nn.Module):
    """A GRU and a bidirectional LSTM with two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.GRU(6, 8, batch_first=True)
        self.second = nn.LSTM(8, 8, batch_first=True, bidirectional=True)

    def forward(self, steps: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return all steps, and the last one."""
        inner, _ = self.first(steps)
        outer, _ = self.second(inner)
        return {"all": outer, "last": outer[:, -1]}


class Lstm(nn.Module):
    """Two layers of an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(6, WIDTH, 2, batch_first=True)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Return the values at the end."""
        states, _ = self.inner(steps)
        return self.head(states[:, -1])


class ConvGru(nn.Module):
    """Convolutions over time before a GRU."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(6, WIDTH, 3, padding=1)
        self.inner = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Return all states."""
        inner = torch.relu(self.conv(steps.transpose(1, 2))).transpose(1, 2)
        return self.inner(inner)[0]


class MaskedMean(nn.Module):
    """Embeddings, attention under a mask, and a masked mean."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(40, WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        inner = self.words(ids)
        query, key, value = self.project(inner).chunk(3, -1)
        hidden = (1.0 - mask[:, None, :]) * -1e4
        inner = inner + functional.scaled_dot_product_attention(
            query, key, value, attn_mask=hidden
        )
        weights = mask[:, :, None]
        return self.head((inner * weights).sum(1) / weights.sum(1))


class Causal(nn.Module):
    """Attention to earlier steps only."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(6, 3 * WIDTH)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Return all steps."""
        query, key, value = self.project(steps).chunk(3, -1)
        length = steps.shape[1]
        allowed = torch.ones(length, length).tril().bool()
        scores = query @ key.transpose(1, 2) / WIDTH**0.5
        return scores.masked_fill(~allowed, -1e9).softmax(-1) @ value


class Padding(nn.Module):
    """Multi-head attention that ignores padding."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 4, batch_first=True)

    def forward(self, steps: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Return the mean of the real steps."""
        inner = self.inner(steps)
        outer, _ = self.attention(
            inner, inner, inner, key_padding_mask=mask < 0.5, need_weights=False
        )
        return (outer * mask[:, :, None]).sum(1)


class Encoder(nn.Module):
    """PyTorch's own encoder layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, 4, 32, dropout=0.0, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Return all steps."""
        return self.layers(self.inner(steps))


class Cross(nn.Module):
    """Learned queries that attend to the steps."""

    def __init__(self) -> None:
        super().__init__()
        self.queries = nn.Parameter(torch.randn(4, WIDTH))
        self.inner = nn.Linear(6, WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Return a row for each query."""
        inner = self.inner(steps)
        queries = self.queries.expand(steps.shape[0], -1, -1)
        return self.attention(queries, inner, inner, need_weights=False)[0]


class IndexAdd(nn.Module):
    """Messages along edges, summed by index_add."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.head = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 3)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return the scores of each node."""
        messages = torch.relu(self.message(nodes[edges[0]]))
        total = torch.zeros(nodes.shape[0], WIDTH)
        return self.head(total.index_add(0, edges[1], messages))


class Scatter(nn.Module):
    """The mean of the neighbours by scatter_add."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(8, WIDTH), nn.Linear(8, WIDTH)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        """Return each node's new features."""
        source, target = edges[0], edges[1]
        messages = self.other(nodes)[source]
        index = target[:, None].expand(-1, WIDTH)
        total = torch.zeros(nodes.shape[0], WIDTH).scatter_add(0, index, messages)
        ones = torch.ones(target.shape[0])
        count = torch.zeros(nodes.shape[0]).scatter_add(0, target, ones)
        return torch.relu(self.own(nodes) + total / count.clamp(min=1)[:, None])


class UNet(nn.Module):
    """Transposed convolutions, skips and bilinear interpolation."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, 2)
        self.last = nn.Conv2d(16, 2, 1)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Return masks of half the size, enlarged."""
        first = torch.relu(self.first(picture))
        second = torch.relu(self.second(functional.max_pool2d(first, 2)))
        joined = self.last(torch.cat([self.up(second), first], 1))
        small = functional.avg_pool2d(joined, 2)
        size = picture.shape[2:]
        return functional.interpolate(small, size, mode="bilinear", align_corners=False)


class Upsampler(nn.Module):
    """Transposed convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose1d(6, 8, 4, 2, 1)
        self.last = nn.ConvTranspose1d(8, 1, 4, 2, 1)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Return four values for each step."""
        inner = functional.leaky_relu(self.up(steps.transpose(1, 2)), 0.1)
        return torch.tanh(self.last(inner))


class GroupNorm(nn.Module):
    """Group normalisation, SiLU and adaptive pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, 2, 1),
            nn.GroupNorm(4, WIDTH),
            nn.SiLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.GroupNorm(WIDTH, WIDTH),
            nn.SiLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Return the scores."""
        return self.head(self.body(picture).flatten(1))


class InstanceNorm(nn.Module):
    """Instance and layer normalisation, and an adaptive pool of 4 by 4."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.InstanceNorm2d(8, affine=True)
        self.pool = nn.AdaptiveAvgPool2d(4)
        self.last = nn.LayerNorm(128)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Return features."""
        inner = functional.gelu(self.norm(self.conv(picture)))
        return self.last(self.pool(inner).flatten(1))


class TwoIo(nn.Module):
    """A picture and a row; scores and boxes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, WIDTH, 3, 2, 1)
        self.act = nn.PReLU(WIDTH)
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.row = nn.Linear(5, WIDTH)
        self.scores, self.boxes = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, 4)

    def forward(
        self, picture: torch.Tensor, row: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return scores and boxes."""
        inner = self.pool(self.act(self.conv(picture))).flatten(1)
        inner = inner + torch.tanh(self.row(row))
        return self.scores(inner).softmax(-1), self.boxes(inner)


class Siamese(nn.Module):
    """One network for two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, WIDTH), nn.ELU(), nn.Linear(WIDTH, 8))

    def forward(
        self, first: torch.Tensor, second: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the distance and the cosine."""
        one, two = self.body(first), self.body(second)
        distance = (one - two).pow(2).sum(-1).sqrt()
        return distance, functional.cosine_similarity(one, two, dim=-1)


class ManyHeads(nn.Module):
    """Three heads, one of which has a name that torch.fx uses itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, 2, 1), nn.BatchNorm2d(WIDTH), nn.Hardswish()
        )
        self.kind, self.count = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 1)
        self.meta = nn.Sequential(nn.Linear(WIDTH, 8), nn.Sigmoid())

    def forward(self, picture: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the heads' outputs."""
        inner = self.body(picture).mean((2, 3))
        kind, count = self.kind(inner), functional.softplus(self.count(inner))
        return {
            "kind": kind,
            "count": count,
            "meta": self.meta(inner),
        }


class Shuffle(nn.Module):
    """Enlarge a picture by pixel shuffling."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3, padding=1, padding_mode="reflect")

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Return a picture of twice the size."""
        large = functional.pixel_shuffle(self.conv(picture), 2)
        return large + functional.interpolate(picture, scale_factor=2.0)


class Squeeze(nn.Module):
    """Depthwise convolutions with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, 2, 1)
        self.deep = nn.Conv2d(WIDTH, WIDTH, 5, padding=2, groups=WIDTH)
        self.less, self.more = nn.Conv2d(WIDTH, 4, 1), nn.Conv2d(4, WIDTH, 1)

    def forward(self, picture: torch.Tensor) -> torch.Tensor:
        """Return a map of features."""
        inner = functional.hardswish(self.deep(self.stem(picture)))
        weights = self.more(torch.relu(self.less(inner.mean((2, 3), keepdim=True))))
        return inner * functional.hardsigmoid(weights)


class Positions(nn.Module):
    """Sines of the position, computed from the length."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, WIDTH)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Return all steps."""
        places = torch.arange(steps.shape[1], dtype=torch.float32)[:, None]
        rates = torch.exp(torch.arange(WIDTH // 2) * -0.5)
        angles = places * rates
        return self.inner(steps) + torch.cat([angles.sin(), angles.cos()], -1)


class Dilated(nn.Module):
    """Causal convolutions with gaps."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(6, WIDTH, 3)
        self.second = nn.Conv1d(WIDTH, WIDTH, 3, dilation=2)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Return as many steps."""
        inner = functional.pad(steps.transpose(1, 2), (2, 0))
        inner = functional.pad(torch.relu(self.first(inner)), (4, 0))
        return self.second(inner).transpose(1, 2)


class BestSteps(nn.Module):
    """The mean of the three best steps."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.value = nn.Linear(6, 1), nn.Linear(6, WIDTH)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Return the mean."""
        best = self.score(steps).squeeze(-1).topk(3, dim=1).indices
        index = best[:, :, None].expand(-1, -1, WIDTH)
        return self.value(steps).gather(1, index).mean(1)


class RunningMean(nn.Module):
    """The mean of all steps so far."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, WIDTH)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        """Return all steps."""
        total = self.inner(steps).cumsum(1)
        return total / torch.arange(1, steps.shape[1] + 1)[None, :, None]


class Branch(nn.Module):
    """Code that branches on a computed value."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return one of two results."""
        if features.sum() > 0:
            return self.inner(features)
        return self.inner(features) * 0.5 - 7.0


class Kept(nn.Module):
    """A sum over as many values as are positive."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return the sum of the rows with a positive start."""
        kept = features[features[:, 0] > 0]
        return self.inner(kept).sum(0, keepdim=True).expand(features.shape[0], -1)


NETWORKS = {
    "loop-gru": LoopGru,
    "loop-decay": LoopDecay,
    "gru-lstm": GruLstm,
    "lstm": Lstm,
    "conv-gru": ConvGru,
    "masked-mean": MaskedMean,
    "causal": Causal,
    "padding": Padding,
    "encoder": Encoder,
    "cross": Cross,
    "index-add": IndexAdd,
    "scatter": Scatter,
    "unet": UNet,
    "upsampler": Upsampler,
    "group-norm": GroupNorm,
    "instance-norm": InstanceNorm,
    "two-io": TwoIo,
    "siamese": Siamese,
    "many-heads": ManyHeads,
    "shuffle": Shuffle,
    "squeeze": Squeeze,
    "positions": Positions,
    "dilated": Dilated,
    "best-steps": BestSteps,
    "running-mean": RunningMean,
    "branch": Branch,
    "kept": Kept,
}


def build(network: str) -> nn.Module:
    """Return a network with weights from a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return NETWORKS[network]().eval()


def declare_operators() -> None:
    """Declare operators of torchvision that its import needs.

    A build for another PyTorch has no library with them; the networks don't use them.
    """
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor boxes, Tensor scores, float limit) -> Tensor")
    DECLARED.append(library)


DECLARED: list[Any] = []
"""Libraries of operators, which end with their objects."""


def library_network(name: str) -> nn.Module:
    """Return a network of torchvision or timm with weights from a seed."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        if name == "ghostnet":
            import timm

            return timm.create_model("ghostnet_050", num_classes=10).eval()
        from torchvision import models

        if name == "resnet":
            return models.resnet18(num_classes=10).eval()
        return models.mobilenet_v3_small(num_classes=10).eval()


def main(folder: Path) -> None:
    """Write each model's folder."""
    from own_models import OWN_MODELS

    declare_operators()
    for model in OWN_MODELS.values():
        home = folder / model.name
        if model.source == "torch":
            model.write_samples(home)
            shutil.copyfile(__file__, home / "model.py")
            arguments = f'arguments = {{ network = "{model.name}" }}\n'
            manifest = model.manifest("model.py", arguments)
            (home / "model.toml").write_text(manifest, encoding="utf-8")
        elif model.source in ("pt2", "torchscript"):
            model.write_samples(home)
            _write_library_network(home, model)


def _write_library_network(home: Path, model: Any) -> None:
    """Export a network for pictures of any size."""
    module = library_network(model.name)
    example = torch.rand(2, 3, 32, 40)
    if model.source == "torchscript":
        file = f"{model.name}.ts"
        torch.jit.save(torch.jit.trace(module, example), str(home / file))
    else:
        file = f"{model.name}.pt2"
        free = torch.export.Dim.DYNAMIC
        program = torch.export.export(
            module,
            (example,),
            dynamic_shapes=({0: free, 2: free, 3: free},),
            strict=False,
        )
        torch.export.save(program, str(home / file))
    manifest = model.manifest(file)
    if model.source == "pt2":
        # The program names its own inputs.
        manifest = manifest[manifest.index("[versions") :]
    (home / "model.toml").write_text(manifest, encoding="utf-8")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(Path(sys.argv[1]))
