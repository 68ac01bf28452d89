"""A torchvision architecture without weights, as ``model.py``."""

from __future__ import annotations

from typing import Any

import torch

try:
    import torchvision
except (
    RuntimeError
):  # its compiled operators need another build of PyTorch, and aren't needed here
    for operator in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{operator}",
            "(Tensor boxes, Tensor scores, float threshold) -> Tensor",
        )
    import torchvision


class Heads(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not typed here
    """A detector's backbone and first-stage head."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone = detector.backbone
        self.head = detector.rpn.head if hasattr(detector, "rpn") else detector.head

    def forward(self, image: Any) -> Any:
        """Map float32 pictures [rows, 3, height, width] to the head's tensors."""
        return self.head(list(self.backbone(image).values()))


def build(architecture: str) -> Any:
    """Build it; nothing is downloaded."""
    models = torchvision.models
    if architecture in models.list_models(module=models):
        return models.get_model(architecture, weights=None)
    module = models.get_model(architecture, weights=None, weights_backbone=None)
    if architecture in models.list_models(module=models.detection):
        return Heads(module)
    return module
