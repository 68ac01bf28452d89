"""Which runtime opens which kind of file. Importing this module imports no framework."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from .base import Runtime


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of model file.

    Attributes:
        name: the version's name when a manifest gives none, such as ``tflite``.
        suffixes: file name endings, longest first where they overlap.
        module: the module with a ``RUNTIME`` object, or None where this release has no runtime for it.
        extra: the pip extra that brings the framework.
    """

    name: str
    suffixes: tuple[str, ...]
    module: str | None
    extra: str | None = None


KINDS: tuple[Kind, ...] = (
    Kind("tflite", (".tflite",), "pocketserve.runtimes.tflite", "tflite"),
    Kind("torch", (".py",), "pocketserve.runtimes.torch_eager", "torch"),
    # Known by name so that they are listed with a reason instead of being passed over in silence.
    Kind("onnx", (".onnx",), None),
    Kind("keras", (".keras", ".h5", ".hdf5"), None),
    Kind("torchscript", (".ts", ".torchscript", ".jit"), None),
    Kind("ptl", (".ptl",), None),
    Kind("pt2", (".pt2",), None),
    Kind("executorch", (".pte",), None),
)
"""All kinds, in the order in which a default version is chosen when nothing else decides."""


def kind_named(name: str) -> Kind | None:
    """The kind of that name."""
    return next((kind for kind in KINDS if kind.name == name), None)


def kind_of(file_name: str) -> Kind | None:
    """The kind that a file's name announces, or None for a file that is no model."""
    return next((kind for kind in KINDS if file_name.lower().endswith(kind.suffixes)), None)


def is_model_file(file_name: str) -> bool:
    """Whether an undeclared file is taken for a model; of Python files only ``model.py`` is."""
    kind = kind_of(file_name)
    return kind is not None and (kind.name != "torch" or file_name == "model.py")


def runtime_for(kind: Kind) -> Runtime:
    """Import and return the runtime of a kind that has one (its framework is imported later, by ``open``)."""
    assert kind.module is not None
    runtime: Runtime = importlib.import_module(kind.module).RUNTIME
    return runtime
