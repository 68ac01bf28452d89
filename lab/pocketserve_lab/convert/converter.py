"""The contract between the command and its converters. Needs the standard library only: tools import it anywhere."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.messages import excerpt

QUANTIZE_MODES = ("none", "fp16", "dynamic", "int8", "int16x8")
"""As it is; weights in half floats; weights in int8; weights and sums in int8; int16 between layers of int8 weights."""


class ConversionError(Exception):
    """A conversion that cannot be done.

    Attributes:
        message: one sentence, which names the layer or operator where one is to blame.
        detail: the tool's own text, for ``--debug``.
        nearest: what to try instead, such as ``--to onnx``; empty where none is known.
    """

    def __init__(self, message: str, *, detail: str = "", nearest: str = "") -> None:
        super().__init__(message)
        self.message, self.detail, self.nearest = message, detail, nearest


class KindOfFile(NamedTuple):
    """A kind that can be written: the end of its file's name, and whether it is a folder."""

    suffix: str
    folder: bool = False
    served: bool = True


KINDS: Mapping[str, KindOfFile] = {
    "tflite": KindOfFile(".tflite"),
    "onnx": KindOfFile(".onnx"),
    "torchscript": KindOfFile(".ts"),
    "ptl": KindOfFile(".ptl"),
    "pt2": KindOfFile(".pt2"),
    "executorch": KindOfFile(".pte"),
    "keras": KindOfFile(".keras"),
    "savedmodel": KindOfFile("", folder=True),
    "tfjs": KindOfFile("", folder=True),
    "openvino": KindOfFile("", folder=True, served=False),
    "coreml": KindOfFile(".mlpackage", folder=True, served=False),
}
"""By the names that ``--to`` takes: those of the runtimes' formats, and of kinds that other engines serve."""


@dataclass(frozen=True)
class SourceTensor:
    """An input or output of the source.

    Attributes:
        datatype: the protocol's name, such as ``FP32``.
        shape: -1 where the caller chooses.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Converter:
    """A tool that makes one kind of file.

    Attributes:
        name: as ``--json`` and the provenance call it, such as ``litert-torch``.
        sources: the formats that it reads, by their names in the runtimes' ``FORMATS``.
        kind: of :data:`KINDS`, what it writes.
        module: in ``pocketserve_lab.convert.tools``, or by its full name; its ``convert(request)`` returns a
            :class:`ConversionOutcome`.
        quantize: the modes that it can do.
        environment: of ``environments.py``; None runs in the server's own environment, on the device.
        packages: what must be importable there for that, such as ``torch``.
        fallback: an environment for where these packages are missing.
        needs_samples: the modes that calibrate.
        single: whether the file takes one row at a time, although the source takes any number.
    """

    name: str
    sources: tuple[str, ...]
    kind: str
    module: str
    quantize: tuple[str, ...] = ("none",)
    environment: str | None = None
    packages: tuple[str, ...] = ()
    fallback: str | None = None
    needs_samples: tuple[str, ...] = ("int8", "int16x8")
    single: bool = False


@dataclass(frozen=True)
class ConversionRequest:
    """Describe one run of a converter; a tool's process reads it as JSON.

    Attributes:
        source: the model file or folder; for unconverted PyTorch its ``model.py``.
        format: of the source, such as ``torch``.
        output: the temporary file, or folder that does not exist yet, which the tool writes.
        kind: of the output, of :data:`KINDS`.
        function, weights, arguments: of unconverted PyTorch, as in the manifest's version table.
        inputs, outputs: in the model's order, by the names that callers use; the file may have others.
        samples: an .npz with an array for each input by name; the first axis counts samples, and where an input's own
            first size is free or 1, a sample is a row of it: ``array[i:i+1]`` is what the model takes. Without samples
            of the user's these are made up, and no mode that calibrates is asked for.
        quantize: of :data:`QUANTIZE_MODES`.
        options: the converter's own.
        trusted: SHA-256 of the source's code that its owner lets run.
        title: what sentences call the source: its file's name, but of a file between two steps what it was made of.
    """

    source: Path
    format: str
    output: Path
    kind: str = ""
    function: str = "build"
    weights: Path | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[SourceTensor, ...] = ()
    outputs: tuple[SourceTensor, ...] = ()
    samples: Path | None = None
    quantize: str = "none"
    options: Mapping[str, Any] = field(default_factory=dict)
    trusted: tuple[str, ...] = ()
    title: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.source.name)

    def refusal(
        self, tool: str, text: str, reason: str = "", nearest: str = ""
    ) -> ConversionError:
        """Return the error of a tool that cannot convert this; without a reason, its own text says why."""
        message = f"{tool} cannot convert {self.title}: {reason or excerpt(text)}"
        return ConversionError(message, detail=text, nearest=nearest)

    def to_json(self) -> str:
        """Return it as JSON text."""
        return json.dumps(dataclasses.asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> ConversionRequest:
        """Return what :meth:`to_json` wrote.

        Raises:
            ValueError, TypeError, KeyError: the text is nothing of the kind.
        """
        values = json.loads(text)
        for key in ("source", "output", "weights", "samples"):
            values[key] = None if values[key] is None else Path(values[key])
        for key in ("inputs", "outputs"):
            values[key] = tuple(
                SourceTensor(t["name"], t["datatype"], tuple(t["shape"]))
                for t in values[key]
            )
        return cls(**{**values, "trusted": tuple(values["trusted"])})


@dataclass(frozen=True)
class ConversionOutcome:
    """Describe a file that a tool has written.

    Attributes:
        tool, version: what made it, such as ``litert-torch`` and ``0.10.0``.
        options: those that it used, for the provenance.
        inputs, outputs: the source's name -> the file's, where the tool renamed it.
        layouts: the source's input -> ``NCHW`` or ``NHWC``, where the tool changed it.
        answers: an .npz with the result's outputs, the first axis counting the samples, of a tool that has run its
            result itself: of a kind that is not served here, nothing else can.
        notes: sentences for the user, such as that the file takes one row at a time.
        float_bytes: of the same file before it was quantised, where the tool wrote it; else what it read counts.
    """

    tool: str
    version: str
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    answers: str = ""
    float_bytes: int = 0

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> ConversionOutcome:
        """Return what :func:`dataclasses.asdict` made plain."""
        return cls(**{**values, "notes": tuple(values["notes"])})
