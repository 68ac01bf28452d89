"""Models of our own, with the sizes that they are converted and asked with.

The networks are in ``own_torch.py``, ``own_keras.py`` and ``own_trees.py``. Each model is
converted with samples of one shape, and asked with five others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SAMPLES = 12
TREE_SAMPLES = 32

Sizes = Mapping[str, int]
Arrays = dict[str, Any]


@dataclass(frozen=True)
class OwnInput:
    """An input of a model.

    Attributes:
        shape: numbers, and names of sizes that the client chooses.
        values: ``normal``, ``unit`` (0 to 1), ``mask`` (zeros and ones, the first 1), or
            an exclusive limit of whole numbers: a number, or the name of a size.
    """

    name: str
    shape: tuple[int | str, ...]
    values: str | int = "normal"
    datatype: str = "FP32"

    @property
    def free_shape(self) -> list[int]:
        """The shape for a manifest."""
        return [size if isinstance(size, int) else -1 for size in self.shape]

    def array(self, random: np.random.Generator, sizes: Sizes) -> Any:
        """Return random values for some sizes."""
        shape = []
        for size in self.shape:
            shape.append(size if isinstance(size, int) else sizes[size])
        dtype = {
            "FP32": np.float32,
            "INT64": np.int64,
            "INT32": np.int32,
        }
        return self._values(random, shape, sizes).astype(dtype[self.datatype])

    def _values(
        self, random: np.random.Generator, shape: list[int], sizes: Sizes
    ) -> Any:
        if self.values == "normal":
            return random.normal(size=shape)
        if self.values == "unit":
            return random.random(shape)
        if self.values == "mask":
            mask = random.random(shape) < 0.7
            mask[..., 0] = True
            return mask
        limit = self.values
        if isinstance(limit, str):
            limit = sizes[limit]
        return random.integers(0, limit, shape)


@dataclass(frozen=True)
class OwnModel:
    """A model.

    Attributes:
        family: its kind in the table.
        source: the format that it is converted from.
        seen: the sizes of its samples.
        unseen: five that the conversion does not see.
        outputs: names.
    """

    name: str
    family: str
    inputs: tuple[OwnInput, ...]
    seen: Sizes
    unseen: tuple[Sizes, ...]
    source: str = "torch"
    outputs: tuple[str, ...] = ("y",)

    def samples(self) -> Iterator[Arrays]:
        """Yield the samples."""
        random = np.random.default_rng(1)
        for _ in range(TREE_SAMPLES if self.source == "onnx" else SAMPLES):
            yield self.arrays(random, self.seen)

    def questions(self) -> Iterator[tuple[Sizes, Arrays]]:
        """Yield inputs of the sizes that the conversion does not see."""
        random = np.random.default_rng(2)
        for sizes in self.unseen:
            yield sizes, self.arrays(random, sizes)

    def arrays(self, random: np.random.Generator, sizes: Sizes) -> Arrays:
        """Return random inputs by name."""
        return {each.name: each.array(random, sizes) for each in self.inputs}

    def write_samples(self, home: Path) -> None:
        """Write the samples into the model's folder."""
        (home / "samples").mkdir(parents=True)
        for number, arrays in enumerate(self.samples()):
            np.savez(home / "samples" / f"{number:02}.npz", **arrays)

    def manifest(self, file: str, options: str = "") -> str:
        """Return ``model.toml`` for the source's file."""
        tables = []
        for each in self.inputs:
            tables.append(
                f"[[inputs]]\nname = {json.dumps(each.name)}\n"
                f'datatype = "{each.datatype}"\nshape = {each.free_shape}\n'
            )
        tables.append(f"[versions.{self.source}]\nfile = {json.dumps(file)}\n{options}")
        return "\n".join(tables)


def _rows(*counts: int) -> tuple[Sizes, ...]:
    return tuple({"rows": count} for count in counts)


def _lengths(*pairs: tuple[int, int]) -> tuple[Sizes, ...]:
    return tuple({"rows": rows, "length": length} for rows, length in pairs)


def _pictures(*triples: tuple[int, int, int]) -> tuple[Sizes, ...]:
    sizes = []
    for rows, height, width in triples:
        sizes.append(
            {
                "rows": rows,
                "height": height,
                "width": width,
            }
        )
    return tuple(sizes)


def _graphs(*pairs: tuple[int, int]) -> tuple[Sizes, ...]:
    return tuple({"nodes": nodes, "edges": edges} for nodes, edges in pairs)


ONE_ROW = {"rows": 1}
SERIES = {"rows": 1, "length": 12}
LENGTHS = _lengths((1, 7), (1, 17), (3, 12), (3, 5), (5, 23))
PICTURE = {
    "rows": 1,
    "height": 32,
    "width": 32,
}
PICTURES = _pictures((1, 48, 32), (1, 32, 56), (3, 32, 32), (3, 72, 88), (5, 56, 72))
GRAPH = {"nodes": 20, "edges": 48}
GRAPHS = _graphs((7, 48), (20, 33), (11, 70), (33, 20), (50, 90))
COUNTS = _rows(3, 5, 7, 11, 13)

STEPS = (OwnInput("steps", ("rows", "length", 6)),)
IMAGE = (OwnInput("picture", ("rows", 3, "height", "width"), "unit"),)
IDS = OwnInput("ids", ("rows", "length"), 40, "INT64")
MASK = OwnInput("mask", ("rows", "length"), "mask")
NODES = OwnInput("nodes", ("nodes", 8))
EDGES = OwnInput("edges", (2, "edges"), "nodes", "INT64")
TABLE = (OwnInput("features", ("rows", 6)),)

_TORCH = (
    OwnModel("loop-gru", "loops", STEPS, SERIES, LENGTHS, outputs=("last", "all")),
    OwnModel("loop-decay", "loops", STEPS, SERIES, LENGTHS),
    OwnModel("gru-lstm", "recurrent", STEPS, SERIES, LENGTHS, outputs=("all", "last")),
    OwnModel("lstm", "recurrent", STEPS, SERIES, LENGTHS),
    OwnModel("conv-gru", "recurrent", STEPS, SERIES, LENGTHS),
    OwnModel("masked-mean", "attention with masks", (IDS, MASK), SERIES, LENGTHS),
    OwnModel("causal", "attention with masks", STEPS, SERIES, LENGTHS),
    OwnModel("padding", "attention with masks", (*STEPS, MASK), SERIES, LENGTHS),
    OwnModel("encoder", "multi-head attention", STEPS, SERIES, LENGTHS),
    OwnModel("cross", "multi-head attention", STEPS, SERIES, LENGTHS),
    OwnModel("index-add", "graph operators", (NODES, EDGES), GRAPH, GRAPHS),
    OwnModel("scatter", "graph operators", (NODES, EDGES), GRAPH, GRAPHS),
    OwnModel("unet", "transposed convolutions", IMAGE, PICTURE, PICTURES),
    OwnModel("upsampler", "transposed convolutions", STEPS, SERIES, LENGTHS),
    OwnModel("group-norm", "normalisations", IMAGE, PICTURE, PICTURES),
    OwnModel("instance-norm", "normalisations", IMAGE, PICTURE, PICTURES),
    OwnModel(
        "two-io",
        "two inputs and outputs",
        (*IMAGE, OwnInput("row", ("rows", 5))),
        PICTURE,
        PICTURES,
        outputs=("scores", "boxes"),
    ),
    OwnModel(
        "siamese",
        "two inputs and outputs",
        (OwnInput("first", ("rows", 6)), OwnInput("second", ("rows", 6))),
        ONE_ROW,
        COUNTS,
        outputs=("distance", "cosine"),
    ),
    OwnModel(
        "many-heads",
        "several heads",
        IMAGE,
        PICTURE,
        PICTURES,
        outputs=("kind", "count", "meta"),
    ),
    OwnModel("shuffle", "free pictures", IMAGE, PICTURE, PICTURES),
    OwnModel("squeeze", "free pictures", IMAGE, PICTURE, PICTURES),
    OwnModel("positions", "free lengths", STEPS, SERIES, LENGTHS),
    OwnModel("dilated", "free lengths", STEPS, SERIES, LENGTHS),
    OwnModel("best-steps", "sorting", STEPS, SERIES, LENGTHS),
    OwnModel("running-mean", "free lengths", STEPS, SERIES, LENGTHS),
    OwnModel("branch", "values that decide", TABLE, ONE_ROW, COUNTS),
    OwnModel("kept", "values that decide", TABLE, ONE_ROW, COUNTS),
    OwnModel(
        "mobilenet-v3", "torchvision", IMAGE, PICTURE, PICTURES, "pt2", outputs=("y",)
    ),
    OwnModel("resnet", "torchvision", IMAGE, PICTURE, PICTURES, "torchscript"),
    OwnModel("ghostnet", "timm", IMAGE, PICTURE, PICTURES, "pt2"),
)

_KERAS = (
    OwnModel("normalised", "Keras with preprocessing", TABLE, ONE_ROW, COUNTS, "keras"),
    OwnModel(
        "rescaled",
        "Keras with preprocessing",
        (OwnInput("picture", ("rows", "height", "width", 3), 256),),
        PICTURE,
        PICTURES,
        "keras",
    ),
    OwnModel(
        "buckets",
        "Keras with preprocessing",
        (*TABLE, OwnInput("kind", ("rows", 1), 8, "INT32")),
        ONE_ROW,
        COUNTS,
        "keras",
    ),
    OwnModel("keras-lstm", "Keras, free lengths", STEPS, SERIES, LENGTHS, "keras"),
    OwnModel("keras-conv", "Keras, free lengths", STEPS, SERIES, LENGTHS, "keras"),
)

_TREES = (
    OwnModel("forest", "tree ensembles", TABLE, ONE_ROW, COUNTS, "onnx"),
    OwnModel("boosted", "tree ensembles", TABLE, ONE_ROW, COUNTS, "onnx"),
)

OWN_MODELS = {model.name: model for model in (*_TORCH, *_KERAS, *_TREES)}
