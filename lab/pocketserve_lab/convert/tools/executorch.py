"""PyTorch to ExecuTorch for XNNPACK, which runs on every phone's CPU.

Float, or int8 after calibration.
"""

from __future__ import annotations

import re
import warnings
from importlib.metadata import version
from typing import Any

from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.convert.tools.calibration import sample_inputs
from pocketserve_lab.convert.tools.sources.pytorch_source import (
    Example,
    PytorchModel,
    load_pytorch,
)

CONVERTER = Converter(
    name="executorch",
    sources=("torch", "pt2", "torchscript", "ptl"),
    kind="executorch",
    module="executorch",
    quantize=("none", "int8"),
    environment="executorch",
)

MOST_ROWS = 512
"""Most rows of a program: its memory is planned in advance, which needs a limit."""

TRACED_ROWS = 32
"""Rows of the traced example.

With fewer than 16, PyTorch's choice of a convolution makes ``rows < 16`` a condition,
and so the limit."""

_OPERATOR = re.compile(r"(?:aten|torchvision|prims|quantized)[.:]+\w+")
_DATA_DEPENDENT = ("DataDependent", "data-dependent", "unbacked")
_NEAREST = "--to torchscript or --to onnx"
_ONE_ROW = "it takes one row at a time, because the tool cannot leave their number open"


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the program to ``request.output``.

    Raises:
        ConversionError: the tool fails; the text names the operator if the tool does.
    """
    import torch

    source = load_pytorch(torch, request)
    takes = "one row"
    notes: tuple[str, ...] = ()
    if not _has_free_rows(source):
        content = _program_or_refusal(torch, source, request, 1)
    else:
        try:
            content = _program(torch, source, request, TRACED_ROWS)
            takes = f"1 to {MOST_ROWS} rows"
        except ConversionError:
            raise
        # Errors of PyTorch and the tool have no common class.
        except Exception:
            content = _program_or_refusal(torch, source, request, 1)
            notes = (_ONE_ROW,)
    request.output.write_bytes(content)
    return ConversionOutcome(
        CONVERTER.name,
        version("executorch"),
        {"takes": takes, "delegate": "xnnpack"},
        notes=notes,
    )


def _has_free_rows(source: PytorchModel) -> bool:
    return any(example.shape[:1] == (-1,) for example in source.examples)


def _program_or_refusal(
    torch: Any, source: PytorchModel, request: ConversionRequest, rows: int
) -> bytes:
    """Return the program, or raise the tool's error as one sentence."""
    try:
        return _program(torch, source, request, rows)
    except ConversionError:
        raise
    except Exception as error:
        raise _refusal(request, error) from error


def _program(
    torch: Any, source: PytorchModel, request: ConversionRequest, rows: int
) -> bytes:
    """Return the program, traced with so many rows.

    The number stays free unless it is 1.
    """
    values = tuple(_with_rows(example, rows) for example in source.examples)
    shapes = _dynamic_shapes(torch, source, rows)
    with warnings.catch_warnings():
        # The exporters announce their successors.
        warnings.simplefilter("ignore")
        module = _exportable(torch, source.module, values)
        program = torch.export.export(module, values, dynamic_shapes=shapes)
        if request.quantize == "int8":
            module = _quantized(program.module(), request, source.examples)
            program = torch.export.export(module, values, dynamic_shapes=shapes)
        lowered = _lower(program)
    # Lowering a split fixes the number of rows: any other number would be rejected.
    if _open_sizes(lowered.exported_program()) < _open_sizes(program):
        raise ValueError("lowering fixed the number of rows")
    return bytes(lowered.to_executorch().buffer)


def _dynamic_shapes(
    torch: Any, source: PytorchModel, rows: int
) -> list[dict[int, Any] | None]:
    """Return the free number of rows of each input; None for a fixed input."""
    free = torch.export.Dim("rows", min=1, max=MOST_ROWS)
    shapes: list[dict[int, Any] | None] = []
    for example in source.examples:
        if rows > 1 and example.shape[:1] == (-1,):
            shapes.append({0: free})
        else:
            shapes.append(None)
    return shapes


def _exportable(torch: Any, module: Any, values: tuple[Any, ...]) -> Any:
    """Return a module that can be exported."""
    if not isinstance(module, torch.jit.ScriptModule):
        return module
    from torch._export.converter import TS2EPConverter

    return TS2EPConverter(module, values).convert().module()


def _lower(program: Any) -> Any:
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower

    return to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])


def _open_sizes(program: Any) -> int:
    return sum(size.is_Symbol for size in program.range_constraints)


def _with_rows(example: Example, rows: int) -> Any:
    """Repeat an example's first row, if rows are free."""
    if example.shape[:1] != (-1,):
        return example.value
    first_row = example.value[:1]
    return first_row.repeat(rows, *[1] * (first_row.ndim - 1))


def _quantized(module: Any, request: ConversionRequest, examples: list[Example]) -> Any:
    """Quantise a module to int8 by channel.

    The ranges between layers are those of the samples.
    """
    import torch
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    config = get_symmetric_quantization_config(is_per_channel=True)
    prepared = prepare_pt2e(module, XNNPACKQuantizer().set_global(config))
    for sample in sample_inputs(request):
        values = []
        for example in examples:
            values.append(torch.from_numpy(sample[example.name].copy()))
        prepared(*values)
    return convert_pt2e(prepared)


def _refusal(request: ConversionRequest, error: Exception) -> ConversionError:
    text = f"{type(error).__name__}: {error}"
    operators = sorted(set(_OPERATOR.findall(text)))
    reason = f"the operator {operators[0]} has no counterpart" if operators else ""
    if any(words in text for words in _DATA_DEPENDENT):
        reason = (
            "its shapes depend on its inputs' values; export what comes before, and "
            "let the server's task decode it"
        )
    return request.refusal(CONVERTER.name, text, reason, _NEAREST)
