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
    Example,
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
"""An unsupported operator of the older ONNX exporter.

The operators that its message names after that only made the value."""

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
    """Write the model to ``request.output``, as the kind of the request.

    Raises:
        ConversionError: PyTorch fails; the text names the operator or the layer if
            PyTorch does.
    """
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = load_pytorch(torch, request)
    write = _WRITERS[request.kind]
    without_gradients = torch.no_grad()
    if request.kind in ("torchscript", "ptl"):
        without_gradients = torch.inference_mode()
    with without_gradients:
        options, notes = write(torch, model, request)
    return ConversionOutcome("torch", torch.__version__, options=options, notes=notes)


def _write_script(
    torch: Any, model: PytorchModel, request: ConversionRequest
) -> Written:
    way = write_torchscript(torch, model, request.format, request.output)
    return {"way": way}, ()


def write_torchscript(
    torch: Any, model: PytorchModel, format: str, output: Path
) -> str:
    """Write a model as TorchScript and return the method.

    That is ``traced``, ``scripted``, or ``copied`` if it was TorchScript already.

    Raises:
        ConversionError: PyTorch fails.
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
    """Return the model as a program, and the method.

    It is traced, or scripted if its code branches on computed values.
    """
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
    categories = [item.category for item in tracer_warnings]
    if any(issubclass(each, torch.jit.TracerWarning) for each in categories):
        # TorchScript supports a part of Python only; otherwise the trace is compared
        # with the original.
        with contextlib.suppress(Exception):
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
    """Return the model as an exported program, with notes.

    It has free sizes if its code supports that, else fixed ones.
    """
    if model.program is not None:
        return model.program, ()
    if request.format in ("torchscript", "ptl"):
        return _exported_script(model), (_SINGLE_ROW,)
    errors = []
    for shapes, values, notes in _ways(torch, model):
        try:
            program = torch.export.export(
                model.module, values, dynamic_shapes=shapes, strict=False
            )
            return program, notes
        except Exception as error:
            errors.append(error)
    with _faults("an exported program", "--to torchscript"):
        raise errors[-1]


def _exported_script(model: PytorchModel) -> Any:
    from torch._export.converter import TS2EPConverter

    with _faults("an exported program", "--to onnx"):
        return TS2EPConverter(model.module, model.values).convert()


def _ways(
    torch: Any, model: PytorchModel
) -> Iterator[tuple[Any, tuple[Any, ...], tuple[str, ...]]]:
    """Yield dynamic shapes, arguments and notes to try in turn.

    Free sizes as declared, then as PyTorch infers them, then fixed ones.
    """
    if not any(-1 in example.shape for example in model.examples):
        yield None, model.values, ()
        return
    batch = torch.export.Dim("batch")
    dynamic, auto = torch.export.Dim.DYNAMIC, torch.export.Dim.AUTO
    declared = [_dynamic_shape(each, batch, dynamic) for each in model.examples]
    yield declared, model.values, ()
    inferred = [_dynamic_shape(each, auto, auto) for each in model.examples]
    yield inferred, model.values, ()
    single = tuple(value[:1] for value in model.values)
    yield None, single, (_SINGLE_ROW,)


def _dynamic_shape(example: Example, batch: Any, free: Any) -> dict[int, Any]:
    """Return the free axes of an input."""
    axes = {}
    for axis, size in enumerate(example.shape):
        if size == -1:
            axes[axis] = batch if axis == 0 else free
    return axes


def _write_onnx(torch: Any, model: PytorchModel, request: ConversionRequest) -> Written:
    """Write an ONNX file by the newer or older exporter.

    The older one traces. TorchScript uses them in the other order: its exported program
    would take one row at a time.
    """
    is_script = request.format == "torchscript"
    exporters = [_write_exported, _write_traced]
    if is_script:
        exporters.reverse()
    errors = []
    for write in exporters:
        try:
            return write(torch, model, request)
        except Exception as error:
            errors.append(error)
    if is_script:
        with _faults("ONNX", "--to ptl"):
            raise errors[0]
    exported, traced = errors
    with _faults("ONNX", "--to torchscript", exported):
        raise traced


_WRITERS: dict[str, Callable[[Any, PytorchModel, ConversionRequest], Written]] = {
    "torchscript": _write_script,
    "ptl": _write_mobile,
    "pt2": _write_program,
    "onnx": _write_onnx,
}


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
    for tensor in request.outputs:
        shapes[tensor.name] = tensor.shape
    free = {}
    for name, shape in shapes.items():
        axes = _free_axes(name, shape)
        if axes:
            free[name] = axes
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
    """Return names for the axes whose size the client chooses.

    The first axis is the same batch throughout.
    """
    axes = {}
    for axis, size in enumerate(shape):
        if size == -1:
            axes[axis] = f"{name}_{axis}" if axis else "batch"
    return axes


@contextlib.contextmanager
def _faults(
    target: str, nearest: str, first: Exception | None = None
) -> Iterator[None]:
    """Turn an exporter's error into one sentence.

    Args:
        first: the error of the exporter before it, for the detail.
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
            f"{target} needs sizes and branches that do not depend on values, and "
            f"{_place(text)} of this model has some; export what comes before it, and "
            "let the server's task decode that"
        )
    unsupported = _UNSUPPORTED.search(text)
    if unsupported:
        return f"{target} has no counterpart of the operator {unsupported[1]}"
    layer = _in_layer(text)
    operator = _OPERATOR.search(text)
    if operator:
        return f"{target} has no counterpart of the operator {operator[0]}{layer}"
    return f"{target} cannot be made{layer}: {excerpt(error)}"


def _place(text: str) -> str:
    """Return the operator or layer that an error names."""
    operator = _OPERATOR.search(text)
    if operator:
        return f"the operator {operator[0]}"
    layer = _LAYER.search(text)
    if layer:
        return f"the layer {layer[1]}"
    return "the code"


def _in_layer(text: str) -> str:
    layer = _LAYER.search(text)
    return f" in the layer {layer[1]}" if layer else ""
