"""The zoo's architectures, paths and results file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple


class Architecture(NamedTuple):
    """An architecture of a library; the shape is one input picture's."""

    library: str
    name: str
    task: str
    parameters: int
    shape: Sequence[int]


class ConversionPath(NamedTuple):
    """A path from a format to a kind; ``group`` orders the passes."""

    library: str
    source: str
    kind: str
    group: int
    quantize: str = "none"

    @property
    def name(self) -> str:
        """As the results have it."""
        return f"{self.source}>{self.kind}" + (
            "" if self.quantize == "none" else f"-{self.quantize}"
        )


PATHS = (
    ConversionPath("torchvision", "torch", "torchscript", 1),
    ConversionPath("torchvision", "torch", "onnx", 0),
    ConversionPath("torchvision", "torch", "pt2", 1),
    ConversionPath("keras", "keras", "tflite", 0),
    ConversionPath("torchvision", "pt2", "tflite", 2),
    ConversionPath("torchvision", "pt2", "executorch", 3),
    ConversionPath("keras", "keras", "onnx", 3),
)


class Results:
    """The results file: architectures first, then conversions."""

    def __init__(self, path: Path) -> None:
        self._path = path
        lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
        # The last one may have been cut off.
        values = [json.loads(line) for line in lines if line.endswith("}")]
        self.architectures = [
            Architecture(**value) for value in values if "path" not in value
        ]
        self.conversions = {
            (value["name"], value["path"]): value for value in values if "path" in value
        }
        # One was cut off, or replaced by a later one.
        if len(lines) > len(self.architectures) + len(self.conversions):
            self._rewrite()

    def add_architectures(self, architectures: Iterable[Architecture]) -> None:
        """Record a library's architectures."""
        for architecture in architectures:
            self.architectures.append(architecture)
            self._append(architecture._asdict())

    def add(self, conversion: dict[str, Any]) -> None:
        """Record the result of a conversion."""
        self.conversions[conversion["name"], conversion["path"]] = conversion
        self._append(conversion)

    def _append(self, value: dict[str, Any]) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(value))

    def _rewrite(self) -> None:
        values = [
            *(architecture._asdict() for architecture in self.architectures),
            *self.conversions.values(),
        ]
        self._path.write_text("".join(map(_line, values)), encoding="utf-8")


def _line(value: dict[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"
