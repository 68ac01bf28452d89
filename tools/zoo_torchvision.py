"""A torchvision architecture without weights: the ``model.py`` of each in the zoo (see ``tools/zoo_models.py``)."""

from __future__ import annotations

from typing import Any

import torch

try:
    import torchvision
except (
    RuntimeError
):  # its compiled operators are those of another build of PyTorch; none is needed here
    for operator in ("nms", "qnms"):
        torch.library.define(
            f"torchvision::{operator}",
            "(Tensor boxes, Tensor scores, float threshold) -> Tensor",
        )
    import torchvision


class Heads(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not typed here
    """Answer the raw scores and boxes of a detector: of its RPN where it has one, which is the first of two stages."""

    def __init__(self, detector: Any) -> None:
        super().__init__()
        self.backbone = detector.backbone
        self.head = detector.rpn.head if hasattr(detector, "rpn") else detector.head

    def forward(self, image: Any) -> Any:
        """Take pictures [rows, 3, height, width] in float32; return the head's tensors."""
        return self.head(list(self.backbone(image).values()))


def build(architecture: str) -> Any:
    """Build it; nothing is downloaded."""
    models = torchvision.models
    if architecture in models.list_models(module=models):
        return models.get_model(architecture, weights=None)
    module = models.get_model(architecture, weights=None, weights_backbone=None)
    return (
        Heads(module)
        if architecture in models.list_models(module=models.detection)
        else module
    )
