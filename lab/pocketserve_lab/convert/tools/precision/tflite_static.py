"""TFLite in integers throughout, apart from some layers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pocketserve_lab.convert.converter import ConversionRequest
from pocketserve_lab.convert.tools.precision.search import Layers, Measured
from pocketserve_lab.convert.tools.precision.wishes import (
    LossMeter,
    Precision,
    SampleInputs,
    choose_precision,
    split_samples,
)

ENDS = frozenset({"INPUT", "OUTPUT"})
"""Names that the tool lists among its operators."""

SignatureInputs = list[dict[str, Any]]
"""Samples by the names of the file's signature."""


class TFLiteWriter:
    """Quantises one file with different layers in floats; it calibrates once.

    Args:
        prepared: the file in floats, with a signature.
        names: the signature's names of inputs by the source's.
        key: the signature's.
        new_quantizer: returns the tool with its recipe.
        ranges: calibrates it.
    """

    def __init__(
        self,
        request: ConversionRequest,
        prepared: Path,
        names: Mapping[str, str],
        key: str,
        new_quantizer: Callable[[], Any],
        ranges: Callable[[Any, dict[str, SignatureInputs]], Any],
    ) -> None:
        self._request = request
        self._prepared = prepared
        self._key = key
        self._new_quantizer = new_quantizer
        split = split_samples(request)
        samples = _renamed(split.calibration, names)
        self._ranges = ranges(new_quantizer(), {key: samples})
        self._samples = split._replace(every=_renamed(split.every, names))
        self._meter: LossMeter | None = None

    def choose(self, layers: Sequence[str]) -> Precision:
        """Choose the layers that stay in floats."""
        return choose_precision(self._request, layers, self.measured)

    def content(self, floats: Layers) -> bytes:
        """Return the file with these layers in floats."""
        from ai_edge_quantizer import algorithm_manager, qtyping

        quantizer = self._new_quantizer()
        for name in sorted(floats):
            # The tool searches for this in the names of an operator's outputs.
            quantizer.update_quantization_recipe(
                f"(^|;){re.escape(name)}(;|$)",
                qtyping.TFLOperationName.ALL_SUPPORTED,
                algorithm_key=algorithm_manager.AlgorithmName.NO_QUANTIZE,
            )
        return bytes(
            quantizer.quantize(
                self._ranges, enable_progress_report=False
            ).quantized_model
        )

    def measured(self, floats: Layers) -> Measured:
        """Measure the file with these layers in floats."""
        if self._meter is None:
            original = SignatureRunner(self._prepared.read_bytes(), self._key)
            self._meter = LossMeter(self._request.task, self._samples, original.answer)
        content = self.content(floats)
        runner = SignatureRunner(content, self._key)
        return self._meter.measured(len(content), runner.answer)


class SignatureRunner:
    """Runs a file by its signature."""

    def __init__(self, content: bytes, key: str) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self._interpreter = Interpreter(model_content=content)
        self._runner = self._interpreter.get_signature_runner(key)

    def answer(self, sample: SampleInputs) -> dict[str, Any]:
        """Return the outputs by name."""
        outputs: dict[str, Any] = self._runner(**sample)
        return outputs


def _renamed(
    samples: Sequence[SampleInputs], names: Mapping[str, str]
) -> SignatureInputs:
    renamed = []
    for sample in samples:
        renamed.append({names[name]: array for name, array in sample.items()})
    return renamed
