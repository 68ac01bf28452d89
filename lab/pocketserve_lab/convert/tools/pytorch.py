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
from pocketserve_lab.convert.tools.cleaning import (
    clean_onnx,
    clean_program,
    clean_script,
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
    return ConversionOutcome(
        "torch",
        torch.__version__,
        options=options,
        notes=notes,
        other_methods=_other_methods(request, options),
    )


def _other_methods(
    request: ConversionRequest, options: dict[str, Any]
) -> tuple[str, ...]:
    """Return the exporters for ONNX that were not used."""
    if request.kind != "onnx" or request.method:
        return ()
    return tuple(name for name in _EXPORTERS if name != options["exporter"])


def _write_script(
    torch: Any, model: PytorchModel, request: ConversionRequest
) -> Written:
    way = write_torchscript(torch, model, request, request.output)
    return {"way": way}, ()


def write_torchscript(
    torch: Any, model: PytorchModel, request: ConversionRequest, output: Path
) -> str:
    """Write a model as TorchScript and return the method.

    That is ``traced``, ``scripted``, or ``copied`` if it was TorchScript already.

    Raises:
        ConversionError: PyTorch fails.
    """
    program, way = _torchscript(torch, model, request)
    torch.jit.save(program, str(output))
    clean_script(torch, output)
    return way


def _write_mobile(
    torch: Any, model: PytorchModel, request: ConversionRequest
) -> Written:
    program, way = _torchscript(torch, model, request)
    with _faults("PyTorch Mobile", "--to torchscript"):
        program._save_for_lite_interpreter(str(request.output))
    clean_script(torch, request.output)
    return {"way": way}, ()


def _torchscript(
    torch: Any, model: PytorchModel, request: ConversionRequest
) -> tuple[Any, str]:
    """Return the model as a program, and the method.

    It is traced, or scripted if its code branches on computed values.
    """
    if request.format in ("torchscript", "ptl"):
        return model.module, "copied"
    with _faults("TorchScript", "--to onnx"), _tracing(torch) as has_warned:
        traced = torch.jit.trace(
            model.module, model.values, check_trace=False, strict=False
        )
    if not has_warned():
        return _guarded(torch, model, request, traced), "traced"
    # TorchScript supports a part of Python only.
    with contextlib.suppress(Exception):
        return torch.jit.script(model.module), "scripted"
    with _faults("TorchScript", "--to executorch"):
        _check_independent(torch, model)
    return _guarded(torch, model, request, traced), "traced"


@contextlib.contextmanager
def _tracing(torch: Any) -> Iterator[Callable[[], bool]]:
    """Catch warnings; the function returns whether the tracer gave one."""
    with warnings.catch_warnings(record=True) as tracer_warnings:
        warnings.simplefilter("always")
        yield lambda: any(
            issubclass(item.category, torch.jit.TracerWarning)
            for item in tracer_warnings
        )


def _check_independent(torch: Any, model: PytorchModel) -> None:
    """Reject a module whose code branches on computed values.

    A trace would keep one of the branches. PyTorch's fake tensors have no values.
    """
    from torch._subclasses import fake_tensor

    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    with mode:
        values = [mode.from_tensor(value) for value in model.values]
        try:
            model.module(*values)
        except fake_tensor.DataDependentOutputException as error:
            raise RuntimeError(f"data-dependent: {error}") from error
        # Other operators without a fake version do not branch.
        except Exception:
            return


def _guarded(
    torch: Any, model: PytorchModel, request: ConversionRequest, traced: Any
) -> Any:
    """Return a trace that rejects other sizes than the fixed ones."""
    if not request.fixed:
        return traced
    holder = torch.nn.Module()
    holder.traced = traced
    guarded = torch.jit.script(holder.eval())
    guarded.define(_guard_source(model, request))
    return guarded


def _guard_source(model: PytorchModel, request: ConversionRequest) -> str:
    """Return a ``forward`` that checks the fixed sizes and calls the trace."""
    numbers = {}
    arguments = []
    for number, example in enumerate(model.examples):
        numbers[example.name] = number
        arguments.append(f"input_{number}")
    names = ", ".join(arguments)
    lines = [f"def forward(self, {names}):"]
    for name, axis in request.fixed:
        number = numbers[name]
        size = model.examples[number].shape[axis]
        lines.append(_guard(number, axis, size))
    lines.append(f"    return self.traced({names})")
    return "\n".join([*lines, ""])


def _guard(number: int, axis: int, size: int) -> str:
    """Return the line that checks an input's size."""
    message = f"input {number} of this file has a fixed size {size} on axis {axis}"
    return f"    assert input_{number}.size({axis}) == {size}, {message!r}"


def _write_program(
    torch: Any, model: PytorchModel, request: ConversionRequest
) -> Written:
    program, notes = _exported(torch, model, request)
    clean_program(torch, program)
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
    if request.method:
        with _faults("ONNX", "--to torchscript"):
            return _EXPORTERS[request.method](torch, model, request)
    is_script = request.format == "torchscript"
    exporters = list(_EXPORTERS.values())
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
    clean_onnx(request.output)
    return {"exporter": "dynamo", "opset": OPSET}, notes


def _write_traced(
    torch: Any, model: PytorchModel, request: ConversionRequest
) -> Written:
    with _tracing(torch) as has_warned:
        torch.onnx.export(
            model.module,
            model.values,
            str(request.output),
            dynamo=False,
            opset_version=OPSET,
            dynamic_axes=_all_free_axes(model, request) or None,
            **_names(model, request),
        )
    if has_warned() and not isinstance(model.module, torch.jit.ScriptModule):
        _check_independent(torch, model)
    clean_onnx(request.output)
    return {"exporter": "legacy", "opset": OPSET}, ()


_EXPORTERS: dict[str, Callable[[Any, PytorchModel, ConversionRequest], Written]] = {
    "dynamo": _write_exported,
    "legacy": _write_traced,
}
"""The exporters for ONNX."""


def _names(model: PytorchModel, request: ConversionRequest) -> dict[str, list[str]]:
    """Return the names of inputs and outputs for the ONNX exporters."""
    return {
        "input_names": [example.name for example in model.examples],
        "output_names": [tensor.name for tensor in request.outputs],
    }


def _all_free_axes(
    model: PytorchModel, request: ConversionRequest
) -> dict[str, dict[int, str]]:
    """Return the free axes of all inputs and outputs that have some."""
    shapes = {example.name: example.shape for example in model.examples}
    for tensor in request.outputs:
        shapes[tensor.name] = tensor.shape
    free = {}
    for name, shape in shapes.items():
        axes = _free_axes(name, shape)
        if axes:
            free[name] = axes
    return free


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
