"""PyTorch's own exporters: to TorchScript, PyTorch Mobile, torch.export and ONNX."""

from __future__ import annotations

import contextlib
import functools
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pocketserve.messages import excerpt
from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.convert.tools.sources.pytorch_source import (
    PytorchModel,
    load_pytorch,
)

_ONNX = ("torch", "onnx", "onnxscript")
_converter = functools.partial(Converter, module="pytorch", fallback="pytorch")

CONVERTERS = (
    _converter(
        "torch.jit", ("torch", "pt2", "ptl"), "torchscript", packages=("torch",)
    ),
    _converter(
        "torch.mobile", ("torch", "torchscript", "pt2"), "ptl", packages=("torch",)
    ),
    _converter("torch.export", ("torch", "torchscript"), "pt2", packages=("torch",)),
    _converter("torch.onnx", ("torch", "pt2", "torchscript"), "onnx", packages=_ONNX),
)

OPSET = 18
_OPERATOR = re.compile(r"(?:aten|prims|prim|torchvision|quantized|onnx)::[\w.]+")
_UNSUPPORTED = re.compile(r"ONNX export of (?:operator )?([^.,:\[\n]+)")
"""What the older ONNX exporter cannot do. The operators that it names after that only made the value."""

_LAYER = re.compile(r"""(?:L\['self'\]|self)\.([\w.\[\]']+)""")
_DATA_DEPENDENT = (
    "data-dependent",
    "DataDependent",
    "GuardOnDataDependentSymNode",
    "unbacked symint",
    "u0",
)
_SINGLE_ROW = (
    "it takes one row at a time, because the model's own code fixes the number of rows"
)


Written = tuple[dict[str, Any], tuple[str, ...]]
"""Options for the provenance, and notes for the user."""


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the model at ``request.output`` as what ``request.kind`` says.

    Raises:
        ConversionError: PyTorch cannot; the sentence names the operator or the layer where it does.
    """
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = load_pytorch(torch, request)
    write: Callable[[Any, PytorchModel, ConversionRequest], Written] = {
        "torchscript": _write_script,
        "ptl": _write_mobile,
        "pt2": _write_program,
        "onnx": _write_onnx,
    }[request.kind]
    with (
        torch.inference_mode()
        if request.kind in ("torchscript", "ptl")
        else torch.no_grad()
    ):
        options, notes = write(torch, model, request)
    return ConversionOutcome("torch", torch.__version__, options=options, notes=notes)


def _write_script(
    torch: Any, model: PytorchModel, request: ConversionRequest
) -> Written:
    return {"way": write_torchscript(torch, model, request.format, request.output)}, ()


def write_torchscript(
    torch: Any, model: PytorchModel, format: str, output: Path
) -> str:
    """Write a model as TorchScript; return how: ``traced``, ``scripted``, or ``copied`` where it was TorchScript.

    Raises:
        ConversionError: PyTorch cannot.
    """
    program, way = _torchscript(torch, model, format)
    torch.jit.save(program, str(output))
    return way


def _write_mobile(
    torch: Any, model: PytorchModel, request: ConversionRequest
) -> Written:
    program, way = _torchscript(torch, model, request.format)
    with _faults("PyTorch Mobile", "--to torchscript"):
        program._save_for_lite_interpreter(str(request.output))
    return {"way": way}, ()


def _torchscript(torch: Any, model: PytorchModel, format: str) -> tuple[Any, str]:
    """Return the model as a program, and how: traced, or scripted where its code decides by computed values."""
    if format in ("torchscript", "ptl"):
        return model.module, "copied"
    with (
        _faults("TorchScript", "--to onnx"),
        warnings.catch_warnings(record=True) as tracer_warnings,
    ):
        warnings.simplefilter("always")
        traced = torch.jit.trace(
            model.module, model.values, check_trace=False, strict=False
        )
    if any(
        issubclass(item.category, torch.jit.TracerWarning) for item in tracer_warnings
    ):
        with contextlib.suppress(
            Exception
        ):  # TorchScript knows a part of Python only: then the trace is compared
            return torch.jit.script(model.module), "scripted"
    return traced, "traced"


def _write_program(
    torch: Any, model: PytorchModel, request: ConversionRequest
) -> Written:
    program, notes = _exported(torch, model, request)
    torch.export.save(program, str(request.output))
    return {}, notes


def _exported(
    torch: Any, model: PytorchModel, request: ConversionRequest
) -> tuple[Any, tuple[str, ...]]:
    """Return the model as an exported program: with free sizes where its code allows that, else with fixed ones."""
    if model.program is not None:
        return model.program, ()
    if request.format in ("torchscript", "ptl"):
        from torch._export.converter import TS2EPConverter

        with _faults("an exported program", "--to onnx"):
            return TS2EPConverter(model.module, model.values).convert(), (_SINGLE_ROW,)
    faults = []
    for shapes, values, notes in _ways(torch, model):
        try:
            return torch.export.export(
                model.module, values, dynamic_shapes=shapes, strict=False
            ), notes
        except Exception as error:
            faults.append(error)
    with _faults("an exported program", "--to torchscript"):
        raise faults[-1]


def _ways(
    torch: Any, model: PytorchModel
) -> Iterator[tuple[Any, tuple[Any, ...], tuple[str, ...]]]:
    """Yield dynamic shapes, arguments and notes: free sizes as declared, as PyTorch infers them, and none."""
    if any(-1 in example.shape for example in model.examples):
        batch = torch.export.Dim("batch")
        for free in (torch.export.Dim.DYNAMIC, torch.export.Dim.AUTO):
            yield (
                [
                    {
                        axis: batch
                        if axis == 0 and free is torch.export.Dim.DYNAMIC
                        else free
                        for axis, size in enumerate(example.shape)
                        if size == -1
                    }
                    for example in model.examples
                ],
                model.values,
                (),
            )
        yield None, tuple(value[:1] for value in model.values), (_SINGLE_ROW,)
    else:
        yield None, model.values, ()


def _write_onnx(torch: Any, model: PytorchModel, request: ConversionRequest) -> Written:
    """Write an ONNX file by the exporter that is built on torch.export, else by the older one, which traces.

    TorchScript takes them in the other order: its exported program would take one row at a time.
    """
    exporters = [_write_exported, _write_traced]
    if request.format == "torchscript":
        exporters.reverse()
    faults = []
    for write in exporters:
        try:
            return write(torch, model, request)
        except Exception as error:
            faults.append(error)
    traced = faults.pop(exporters.index(_write_traced))
    nearest = "--to ptl" if request.format == "torchscript" else "--to torchscript"
    with _faults(
        "ONNX", nearest, None if request.format == "torchscript" else faults[0]
    ):
        raise traced


def _write_exported(
    torch: Any, model: PytorchModel, request: ConversionRequest
) -> Written:
    program, notes = _exported(torch, model, request)
    exported = torch.onnx.export(
        program, dynamo=True, optimize=True, verbose=False, **_names(model, request)
    )
    exported.save(str(request.output), external_data=False)
    return {"exporter": "dynamo", "opset": OPSET}, notes


def _write_traced(
    torch: Any, model: PytorchModel, request: ConversionRequest
) -> Written:
    shapes = {example.name: example.shape for example in model.examples}
    shapes |= {tensor.name: tensor.shape for tensor in request.outputs}
    free = {
        name: axes
        for name, shape in shapes.items()
        if (axes := _free_axes(name, shape))
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model.module,
            model.values,
            str(request.output),
            dynamo=False,
            opset_version=OPSET,
            dynamic_axes=free or None,
            **_names(model, request),
        )
    return {"exporter": "legacy", "opset": OPSET}, ()


def _names(model: PytorchModel, request: ConversionRequest) -> dict[str, list[str]]:
    return {
        "input_names": [example.name for example in model.examples],
        "output_names": [tensor.name for tensor in request.outputs],
    }


def _free_axes(name: str, shape: tuple[int, ...]) -> dict[int, str]:
    """Return names for the axes whose size the caller chooses; the rows have one name throughout."""
    return {
        axis: f"{name}_{axis}" if axis else "batch"
        for axis, size in enumerate(shape)
        if size == -1
    }


@contextlib.contextmanager
def _faults(
    target: str, nearest: str, first: Exception | None = None
) -> Iterator[None]:
    """Turn what an exporter raises into one sentence that names the operator or the layer.

    Args:
        first: what the exporter before it raised, for the detail.
    """
    try:
        yield
    except ConversionError:
        raise
    except Exception as error:
        text = "\n".join(str(item) for item in (first, error) if item is not None)
        raise ConversionError(
            _sentence(target, text, error), detail=text, nearest=nearest
        ) from error


def _sentence(target: str, text: str, error: Exception) -> str:
    if any(words in text for words in _DATA_DEPENDENT):
        return (
            f"{target} needs sizes and branches that do not depend on values, and {_place(text)} of this model has "
            "some; export what comes before it, and let the server's task decode that"
        )
    if unsupported := _UNSUPPORTED.search(text):
        return f"{target} has no counterpart of the operator {unsupported[1]}"
    if operator := _OPERATOR.search(text):
        return f"{target} has no counterpart of the operator {operator[0]}{_in_layer(text)}"
    return f"{target} cannot be made{_in_layer(text)}: {excerpt(error)}"


def _place(text: str) -> str:
    operator = _OPERATOR.search(text)
    layer = _LAYER.search(text)
    return (
        f"the operator {operator[0]}"
        if operator
        else f"the layer {layer[1]}"
        if layer
        else "the code"
    )


def _in_layer(text: str) -> str:
    layer = _LAYER.search(text)
    return f" in the layer {layer[1]}" if layer else ""
