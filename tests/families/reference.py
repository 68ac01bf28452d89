"""Compare the server with the libraries that made a model.

Frameworks are imported inside functions: ``tools/family_table.py`` reads the rows
without them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from conftest import Server

SIZES = (
    (64, 48),
    (200, 50),
    (37, 91),
    (256, 256),
    (120, 300),
)
"""(width, height) of each family's test pictures."""

LABELS = ("apple", "pear", "plum", "quince", "fig")


@dataclass(frozen=True)
class Family:
    """A family of models; one row of the table in ``docs/generated/families.md``.

    Attributes:
        name: the name that its library gives it.
        library: the library that builds and reads the model.
        task: the server's task for it; ``tensors`` for a family that the server refuses to
        guess.
        formats: the model formats in which it is compared.
        note: a limit that users should know.
    """

    name: str
    library: str
    task: str
    formats: tuple[str, ...] = ("ONNX",)
    note: str = ""


def pictures() -> list[bytes]:
    """Return PNG files of smooth colours with noise, in the sizes above."""
    import PIL.Image

    random = np.random.default_rng(7)
    files = []
    for width, height in SIZES:
        x = np.linspace(0, 255, width)[None, :, None]
        y = np.linspace(0, 255, height)[:, None, None]
        colours = np.concatenate(
            [
                x + 0 * y,
                y + 0 * x,
                (x + y) / 2,
            ],
            axis=2,
        )
        noisy = colours + random.normal(0, 25, colours.shape)
        file = io.BytesIO()
        PIL.Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "PNG")
        files.append(file.getvalue())
    return files


def open_picture(file: bytes) -> Any:
    """Return a Pillow image."""
    import PIL.Image

    return PIL.Image.open(io.BytesIO(file)).convert("RGB")


def import_torchvision() -> None:
    """Import torchvision without compiled operators for another PyTorch; none is
    needed.
    """
    import torch

    try:
        import torchvision
    except RuntimeError:
        for operator in ("nms", "qnms"):
            torch.library.define(
                f"torchvision::{operator}",
                "(Tensor boxes, Tensor scores, float threshold) -> Tensor",
            )
        import torchvision  # noqa: F401


def export_to_onnx(
    model: Any,
    path: Path,
    inputs: Mapping[str, Any],
    outputs: Sequence[str],
    dynamic: Mapping[str, Mapping[int, str]],
    *,
    dynamo: bool = False,
) -> None:
    """Export a PyTorch model; outputs are named by the fields of its result.

    Args:
        dynamic: names of axes that are free, by input or output.
        dynamo: uses the newer exporter, for operators that the older one doesn't know.
    """
    import torch

    class Named(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not typed here
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, *values: Any) -> Any:
            answer = self.inner(**dict(zip(inputs, values, strict=True)))
            if isinstance(answer, torch.Tensor):
                return answer
            return tuple(answer[name] for name in outputs)

    model.eval()
    torch.onnx.export(
        Named().eval(),
        tuple(inputs.values()),
        str(path),
        input_names=list(inputs),
        output_names=list(outputs),
        dynamic_axes={name: dict(axes) for name, axes in dynamic.items()} or None,
        opset_version=18,
        dynamo=dynamo,
        external_data=False,
    )


class ServedFamily:
    """A model in the folder of a running server.

    Args:
        models: the server's folder.
        write: writes the model's files into a folder.
    """

    def __init__(
        self, server: Server, models: Path, name: str, write: Callable[[Path], None]
    ) -> None:
        self._server, self.name = server, name
        # Hidden, so that the server ignores it until it is complete.
        building = models / f".{name}"
        building.mkdir()
        write(building)
        building.rename(models / name)

    def ask(self, file: bytes, **parameters: Any) -> dict[str, Any]:
        """Return the answer for a picture."""
        response = self._server.call(
            "POST", f"/predictions/{self.name}", data=file, params=parameters
        )
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def metadata(self) -> dict[str, Any]:
        """Return the model's metadata."""
        response = self._server.call("GET", f"/v2/models/{self.name}")
        assert response.status_code == 200, response.text
        content: dict[str, Any] = response.json()
        return content
