"""The picture that Ultralytics describes in a TorchScript archive."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pocketserve.runtimes.torch.torchscript import _picture_input


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        ("[640, 480]", (1, 3, 640, 480)),
        ("[640, -1]", None),
        ("[640, 640, 640]", None),
        ("640", None),
        ("", None),
        ("__import__('os')", None),
        ("[" * 200_000, None),
        (f"[{'9' * 5000}, 1]", None),
    ],
)
def test_only_a_plain_size_is_taken(
    size: str, shape: tuple[int, int, int, int] | None
) -> None:
    argument: Any = SimpleNamespace(name="x", is_tensor=True)
    specs = _picture_input([argument], {"imgsz": size, "batch": "1"})
    assert [spec.shape for spec in specs] == ([] if shape is None else [shape])
