"""Provide model facts without a model, and a picture."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pocketserve.repository.manifest import parse_manifest
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes.registry import FORMATS
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tensors import TensorSpec

PICTURE = TensorSpec("image", "FP32", (1, 100, 200, 3))


def facts(
    folder: Path,
    outputs: Mapping[str, tuple[int, ...]],
    manifest: Mapping[str, Any] | None = None,
    files: Mapping[str, Any] | None = None,
    image: TensorSpec = PICTURE,
    properties: Mapping[str, str] | None = None,
) -> ModelFacts:
    """Return a model in its own folder, as an ONNX file that is never opened.

    Args:
        outputs: shapes by name; FP32.
        files: files beside it; dicts become JSON.
    """
    own = folder / "m"
    own.mkdir(exist_ok=True)
    for name, content in (files or {}).items():
        (own / name).write_text(
            content if isinstance(content, str) else json.dumps(content),
            encoding="utf-8",
        )
    kind = next(kind for kind in FORMATS if kind.name == "onnx")
    version = VersionEntry("onnx", kind, own / "m.onnx")
    entry = ModelEntry(
        "m", own, {"onnx": version}, "onnx", parse_manifest(dict(manifest or {}))
    )
    specs = tuple(TensorSpec(name, "FP32", shape) for name, shape in outputs.items())
    return ModelFacts(
        entry,
        version,
        (image,),
        specs,
        dict(properties or {}),
        10**7,
    )


def picture(width: int = 400, height: int = 400, kind: str = "PNG") -> memoryview:
    """Return a picture file of this size."""
    from PIL import Image

    gradient = np.add.outer(np.arange(height), np.arange(width)) % 256
    file = io.BytesIO()
    Image.fromarray(gradient.astype(np.uint8)).convert("RGB").save(file, kind)
    return memoryview(file.getvalue())
