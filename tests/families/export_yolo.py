"""Export Ultralytics YOLO models with random weights, and get their own predictions."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from families.reference import import_torchvision

SIDE = 96


@dataclass(frozen=True)
class Export:
    """A model of Ultralytics.

    Attributes:
        config: the name of its configuration, such as ``yolo11n-seg``.
        task: Ultralytics' name of its task.
        format: Ultralytics' name of the format.
        options: further arguments of the exporter.
    """

    config: str
    task: str
    format: str = "onnx"
    options: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """Return a name for the models folder."""
        more = "".join(f"-{key}" for key, _ in self.options)
        return f"{self.config}-{self.format}{more}"


def import_ultralytics() -> Any:
    """Import Ultralytics without access to the network."""
    os.environ |= {
        "YOLO_OFFLINE": "True",
        "YOLO_AUTOINSTALL": "False",
        "YOLO_VERBOSE": "False",
    }
    import_torchvision()
    import torchvision
    import ultralytics
    from ultralytics.utils.nms import TorchNMS

    # Its compiled operators belong to another build of PyTorch.
    if not torchvision.extension._has_ops():
        torchvision.ops.nms = TorchNMS.nms
    return ultralytics


def export(model: Export, folder: Path) -> Path:
    """Export a model with random weights and return the file."""
    ultralytics = import_ultralytics()
    import torch

    torch.manual_seed(3)
    yolo = ultralytics.YOLO(f"{model.config}.yaml", task=model.task)
    _spread(torch, yolo.model)
    yolo.model.pt_path = str(folder / f"{model.config}.pt")
    options = {"opset": 17, "simplify": False} if model.format == "onnx" else {}
    path = yolo.export(
        format=model.format, imgsz=SIDE, **options, **dict(model.options)
    )
    return Path(path)


def _spread(torch: Any, network: Any) -> None:
    """Set weights that make scores and boxes vary over the picture."""
    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d) and module.weight.requires_grad:
            torch.nn.init.kaiming_normal_(module.weight)
    network.train()
    random = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for _ in range(4):  # batch normalisation learns the range of the activations
            network(torch.rand(2, 3, SIDE, SIDE, generator=random))
        for name, value in network.named_parameters():
            if "cv3" in name and name.endswith(".2.weight"):  # of the classes' scores
                value.mul_(4.0)
            if "cv3" in name and name.endswith(".2.bias"):
                value.fill_(-4.0)
    network.eval()


def predictions(
    path: Path, model: Export, picture: Any, threshold: float, iou: float
) -> Any:
    """Return Ultralytics' own result for a Pillow image."""
    ultralytics = import_ultralytics()
    yolo = ultralytics.YOLO(str(path), task=model.task)
    # It expects arrays as BGR.
    colours = np.ascontiguousarray(np.asarray(picture)[:, :, ::-1])
    (result,) = yolo.predict(
        colours,
        imgsz=SIDE,
        conf=threshold,
        iou=iou,
        max_det=100,
        device="cpu",
        verbose=False,
        save=False,
    )
    return result
