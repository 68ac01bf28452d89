"""Samples as tools take them: a dictionary of inputs for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pocketserve_lab.convert.converter import ConversionError, ConversionRequest


def sample_inputs(request: ConversionRequest) -> Iterator[dict[str, Any]]:
    """Yield the inputs of each sample by the source's names.

    Raises:
        ConversionError: the request has no samples, or an input is missing in them.
    """
    import numpy as np

    if request.samples is None:
        raise ConversionError(
            f"{request.quantize} needs samples to calibrate with; give --samples FOLDER"
        )
    with np.load(request.samples, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    rows = _row_inputs(request, arrays)
    number = min(map(len, arrays.values()))
    for index in range(number):
        sample = {}
        for name, array in arrays.items():
            sample[name] = array[index : index + 1] if name in rows else array[index]
        yield sample


def _row_inputs(request: ConversionRequest, arrays: dict[str, Any]) -> set[str]:
    """Return the inputs that take rows; ConversionError if one has no samples."""
    rows = set()
    for tensor in request.inputs:
        if tensor.name not in arrays:
            raise ConversionError(
                f"the samples have no array for the input {tensor.name!r}"
            )
        # Samples of a free first size that counts no rows are stacked.
        is_stacked = arrays[tensor.name].ndim > len(tensor.shape) > 1
        if tensor.shape[:1] in ((-1,), (1,)) and not is_stacked:
            rows.add(tensor.name)
    return rows


def write_variant_answers(
    request: ConversionRequest, answer: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> tuple[str, ...]:
    """Write a result's answers to the variants; return the outcome's files.

    Args:
        answer: takes inputs by the source's names; raises RuntimeError or ValueError for
            a shape that the result does not take.
    """
    files = []
    for number, variant in enumerate(request.variants):
        target = request.output.with_name(f"variant-{number}.npz")
        answered = _write_answer(Path(variant), target, answer)
        files.append(str(target) if answered else "")
    return tuple(files)


def _write_answer(
    variant: Path, target: Path, answer: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> bool:
    """Write the answer to one variant; return whether there is any."""
    import numpy as np

    with np.load(variant, allow_pickle=False) as file:
        inputs = {name: file[name] for name in file.files}
    try:
        outputs = answer(inputs)
    except (RuntimeError, ValueError):
        return False
    np.savez(target, **outputs)
    return True
