"""Samples as tools take them: one dictionary of inputs each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pocketserve_lab.convert.converter import ConversionError, ConversionRequest


def sample_inputs(request: ConversionRequest) -> Iterator[dict[str, Any]]:
    """Yield the inputs of each sample as NumPy arrays by the source's names.

    Raises:
        ConversionError: the request has no samples, or they lack an input.
    """
    import numpy as np

    if request.samples is None:
        raise ConversionError(
            f"{request.quantize} needs samples to calibrate with; give --samples FOLDER"
        )
    with np.load(request.samples, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    lacking = [tensor.name for tensor in request.inputs if tensor.name not in arrays]
    if lacking:
        raise ConversionError(f"the samples have no array for the input {lacking[0]!r}")
    rows = {
        tensor.name for tensor in request.inputs if tensor.shape[:1] in ((-1,), (1,))
    }
    for at in range(min(len(array) for array in arrays.values())):
        yield {
            name: array[at : at + 1] if name in rows else array[at]
            for name, array in arrays.items()
        }
