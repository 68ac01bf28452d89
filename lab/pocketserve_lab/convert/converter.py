"""The contract between the command and its converters.

Needs the standard library only: tools import it in any environment.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.messages import excerpt

QUANTIZE_MODES = ("none", "fp16", "dynamic", "int8", "int16x8")
"""The modes, in the order of the command's help.

Unchanged; weights in half floats; weights in int8; weights and sums in int8; int16
between layers of int8 weights."""

GGUF_MODES = ("q8_0",)
"""Further modes, of GGUF files: weights in int8, with a factor for each 32."""


INT8_MODES = ("int8", "int16x8")
INT8_OPTIONS: Mapping[str, str] = {
    "max_loss": "--max-loss",
    "exclude": "--exclude",
    "calibration": "--calibration",
}
"""Options of these modes: key of a request -> option of the command."""

CALIBRATION_METHODS = ("min-max", "percentile", "entropy")


class ConversionError(Exception):
    """A conversion that is not possible.

    Attributes:
        message: one sentence, which names the layer or operator at fault, if one is
            known.
        detail: the tool's own text, for ``--debug``.
        nearest: an alternative, such as ``--to onnx``; empty if none is known.
    """

    def __init__(self, message: str, *, detail: str = "", nearest: str = "") -> None:
        super().__init__(message)
        self.message, self.detail, self.nearest = message, detail, nearest


class KindOfFile(NamedTuple):
    """A kind of file or folder that can be written."""

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
    "gguf": KindOfFile(".gguf"),
    "keras": KindOfFile(".keras"),
    "savedmodel": KindOfFile("", folder=True),
    "tfjs": KindOfFile("", folder=True),
    "openvino": KindOfFile("", folder=True, served=False),
    "coreml": KindOfFile(".mlpackage", folder=True, served=False),
}
"""By the names that ``--to`` takes."""

TENSOR_KINDS = tuple(kind for kind in KINDS if kind != "gguf")
"""Those of models of tensors; the other one is for language models."""


@dataclass(frozen=True)
class SourceTensor:
    """An input or output of the source.

    Attributes:
        datatype: the protocol's name, such as ``FP32``.
        shape: -1 for a size that the client chooses.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> SourceTensor:
        """Return a tensor from plain JSON values."""
        return cls(values["name"], values["datatype"], tuple(values["shape"]))


@dataclass(frozen=True)
class Converter:
    """A tool that makes one kind of file.

    Attributes:
        name: in ``--json`` and the provenance, such as ``litert-torch``.
        sources: the formats that it reads, by their names in the runtimes' ``FORMATS``.
        kind: that it writes, of :data:`KINDS`.
        module: in ``pocketserve_lab.convert.tools``, or by its full name; its
            ``convert(request)`` returns a :class:`ConversionOutcome`.
        quantize: the modes that it supports.
        environment: of ``environments.py``; None runs in the server's own environment,
            on the device.
        packages: modules that the server's environment needs for that, such as
            ``torch``.
        fallback: an environment to use if these are missing.
        needs_samples: the modes that calibrate.
        single: whether the file takes one row at a time, although the source takes any
            number.
        wishes: the options of ``INT8_OPTIONS`` that it knows.
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
    wishes: tuple[str, ...] = ()


@dataclass(frozen=True)
class ConversionRequest:
    """A run of a converter.

    A tool's process reads it as JSON.

    Attributes:
        source: the model file or folder; for unconverted PyTorch its ``model.py``.
        format: of the source, such as ``torch``.
        output: the temporary file, or folder that does not exist yet, to write.
        kind: of the output, of :data:`KINDS`.
        function, weights, arguments: of unconverted PyTorch, as in the manifest's
            version table.
        inputs, outputs: in the model's order, by the names that clients use; the file
            may have others.
        samples: an .npz with an array for each input by name; the first axis counts
            samples. If an input's own first size is free or 1, a sample is a row of it:
            the model takes ``array[i:i+1]``. Without samples of the user's these are
            random, and the mode is none that calibrates.
        quantize: of :data:`QUANTIZE_MODES`.
        task: the model's.
        options: the converter's own, and those of ``INT8_OPTIONS``.
        trusted: SHA-256 of the source's code that its owner trusts.
        method: of the ``other_methods`` of an earlier outcome; empty for the tool's
            first choice.
        fixed: the axes ``(input, axis)`` that are free in the source and must be fixed
            in the file, at the size in ``inputs``.
        variants: .npz files with the inputs of other shapes that the original takes,
            for a tool that runs its result itself.
        title: of the source in messages: its file's name, or for a file between two
            steps its origin.
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
    task: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    trusted: tuple[str, ...] = ()
    method: str = ""
    fixed: tuple[tuple[str, int], ...] = ()
    variants: tuple[str, ...] = ()
    title: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.source.name)

    def refusal(
        self, tool: str, text: str, reason: str = "", nearest: str = ""
    ) -> ConversionError:
        """Return the error of a tool that cannot convert this.

        Without a reason, the tool's own text is used.
        """
        message = f"{tool} cannot convert {self.title}: {reason or excerpt(text)}"
        return ConversionError(message, detail=text, nearest=nearest)

    def to_json(self) -> str:
        """Return it as JSON text."""
        return json.dumps(dataclasses.asdict(self), default=str)

    @classmethod
    def from_json(cls, text: str) -> ConversionRequest:
        """Return the request that :meth:`to_json` wrote.

        Raises:
            ValueError, TypeError, KeyError: the text is not a request.
        """
        values = json.loads(text)
        for key in ("source", "output", "weights", "samples"):
            values[key] = None if values[key] is None else Path(values[key])
        for key in ("inputs", "outputs"):
            values[key] = tuple(map(SourceTensor.from_plain, values[key]))
        values["trusted"] = tuple(values["trusted"])
        values["variants"] = tuple(values["variants"])
        values["fixed"] = tuple((name, axis) for name, axis in values["fixed"])
        return cls(**values)


@dataclass(frozen=True)
class ConversionOutcome:
    """A file that a tool has written.

    Attributes:
        tool, version: that made it, such as ``litert-torch`` and ``0.10.0``.
        options: those that it used, for the provenance.
        inputs, outputs: the source's name -> the file's, if the tool renamed it.
        layouts: the source's input -> ``NCHW`` or ``NHWC``, if the tool changed it.
        answers: an .npz with the result's outputs, the first axis counting the samples,
            of a tool that has run its result itself: a kind that is not served here
            cannot be run otherwise.
        variant_answers: an .npz with the outputs for each of the request's variants,
            or an empty text if the result takes no such shape.
        notes: sentences for the user, such as that the file takes one row at a time.
        float_bytes: of the same file before quantisation, if the tool wrote it; else
            the size of the source counts.
        other_methods: that the tool has for the same kind of file, which may keep more
            sizes free.
    """

    tool: str
    version: str
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    layouts: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    answers: str = ""
    variant_answers: tuple[str, ...] = ()
    float_bytes: int = 0
    other_methods: tuple[str, ...] = ()

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> ConversionOutcome:
        """Return the outcome that :func:`dataclasses.asdict` made plain."""
        notes = tuple(values["notes"])
        other_methods = tuple(values["other_methods"])
        answers = tuple(values["variant_answers"])
        lists = {"notes": notes, "other_methods": other_methods}
        return cls(**{**values, **lists, "variant_answers": answers})
