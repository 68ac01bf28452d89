"""PyTorch to ExecuTorch for XNNPACK, which runs on every phone's processor: float, or int8 after calibration."""

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
"""What a program takes at once: its memory is planned when it is made, so that there has to be a bound."""

TRACED_ROWS = 32
"""With fewer than 16, PyTorch's choice of a convolution makes ``rows < 16`` a condition, and so the bound."""

_OPERATOR = re.compile(r"(?:aten|torchvision|prims|quantized)[.:]+\w+")
_DATA_DEPENDENT = ("DataDependent", "data-dependent", "unbacked")
_NEAREST = "--to torchscript or --to onnx"


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the program at ``request.output``.

    Raises:
        ConversionError: the tool refuses the model; the sentence names the operator where the tool does.
    """
    import torch

    source = load_pytorch(torch, request)
    way, faults = "", []
    for rows in (TRACED_ROWS, 1):
        free = rows > 1
        if free and not any(example.shape[:1] == (-1,) for example in source.examples):
            continue
        try:
            content = _program(torch, source, request, rows)
            way = f"1 to {MOST_ROWS} rows" if free else "one row"
            break
        except ConversionError:
            raise
        except Exception as error:  # any of PyTorch's and the tool's
            faults.append(error)
    if not way:
        raise _refusal(request, faults[-1]) from faults[-1]
    request.output.write_bytes(content)
    single = rows == 1 and bool(faults)
    notes = (
        ("it takes one row at a time, because the tool cannot leave their number open",)
        if single
        else ()
    )
    return ConversionOutcome(
        CONVERTER.name,
        version("executorch"),
        {"takes": way, "delegate": "xnnpack"},
        notes=notes,
    )


def _program(
    torch: Any, source: PytorchModel, request: ConversionRequest, rows: int
) -> bytes:
    """Return the program, traced with so many rows; the number stays free unless it is 1."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackPartitioner,
    )
    from executorch.exir import to_edge_transform_and_lower

    values = tuple(_with_rows(example, rows) for example in source.examples)
    free = torch.export.Dim("rows", min=1, max=MOST_ROWS)
    shapes = [
        {0: free} if rows > 1 and example.shape[:1] == (-1,) else None
        for example in source.examples
    ]
    module = source.module
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters announce their successors
        if isinstance(module, torch.jit.ScriptModule):
            from torch._export.converter import TS2EPConverter

            module = TS2EPConverter(module, values).convert().module()
        program = torch.export.export(module, values, dynamic_shapes=shapes)
        if request.quantize == "int8":
            module = _quantized(program.module(), request, source.examples)
            program = torch.export.export(module, values, dynamic_shapes=shapes)
        lowered = to_edge_transform_and_lower(
            program, partitioner=[XnnpackPartitioner()]
        )
    if _open_sizes(lowered.exported_program()) < _open_sizes(program):
        raise ValueError(
            "lowering fixed the number of rows"
        )  # as that of a split does: no other one would be taken
    return bytes(lowered.to_executorch().buffer)


def _open_sizes(program: Any) -> int:
    return sum(size.is_Symbol for size in program.range_constraints)


def _with_rows(example: Example, rows: int) -> Any:
    """Return the example's value with so many rows, if the caller chooses their number."""
    if example.shape[:1] != (-1,):
        return example.value
    return example.value[:1].repeat(rows, *(1 for _ in example.value.shape[1:]))


def _quantized(module: Any, request: ConversionRequest, examples: list[Example]) -> Any:
    """Return the module with int8 weights for each channel, and int8 between layers by the samples' ranges."""
    import torch
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = XNNPACKQuantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=True)
    )
    prepared = prepare_pt2e(module, quantizer)
    for sample in sample_inputs(request):
        prepared(
            *(torch.from_numpy(sample[example.name].copy()) for example in examples)
        )
    return convert_pt2e(prepared)


def _refusal(request: ConversionRequest, error: Exception) -> ConversionError:
    text = f"{type(error).__name__}: {error}"
    operators = sorted(set(_OPERATOR.findall(text)))
    reason = f"the operator {operators[0]} has no counterpart" if operators else ""
    if any(words in text for words in _DATA_DEPENDENT):
        reason = (
            "its shapes depend on its inputs' values; export what "
            "comes before, and let the server's task decode it"
        )
    return request.refusal(CONVERTER.name, text, reason, _NEAREST)
