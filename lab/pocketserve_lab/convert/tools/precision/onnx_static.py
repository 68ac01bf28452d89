"""ONNX in int8 throughout, apart from some layers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    wishes_of,
)

RUNTIME_METHODS = {
    "min-max": "MinMax",
    "percentile": "Percentile",
    "entropy": "Entropy",
}
"""ONNX Runtime's names of the methods of calibration."""

_PASSING = frozenset(
    {
        "Clip",
        "Flatten",
        "MaxPool",
        "Pad",
        "Relu",
        "Reshape",
        "Resize",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators that are quantised only if their input is."""


def write_static(
    request: ConversionRequest, prepared: Path, *, per_channel: bool
) -> Precision:
    """Quantise a prepared file into ``request.output``.

    Raises:
        ConversionError: the user's wishes can't be met.
    """
    writer = OnnxWriter(request, prepared, per_channel=per_channel)
    precision = choose_precision(request, writer.layers(), writer.measured)
    writer.write(precision.floats, request.output)
    return precision


class OnnxWriter:
    """Quantises one file with different layers in floats; it calibrates once.

    Args:
        prepared: gets names for its operators.
    """

    def __init__(
        self, request: ConversionRequest, prepared: Path, *, per_channel: bool
    ) -> None:
        self._prepared = prepared
        self._per_channel = per_channel
        self._names = _name_operators(prepared)
        self._inputs = input_names(request, prepared)
        self._samples = split_samples(request)
        self._method = RUNTIME_METHODS[wishes_of(request).calibration]
        self._ranges = prepared.with_name("ranges.json")
        self._trial = prepared.with_name("trial.onnx")
        self._task = request.task
        self._meter: LossMeter | None = None

    def layers(self) -> list[str]:
        """Return the names of the operators that can be quantised."""
        return self._names

    def write(self, floats: Layers, output: Path) -> None:
        """Write the file with these layers in floats."""
        from onnxruntime.quantization import (
            CalibrationMethod,
            QuantFormat,
            QuantType,
            quantize_static,
        )

        # The fast kernels of ARM processors need both to be signed.
        quantize_static(
            self._prepared,
            output,
            _reader(self._samples.calibration, self._inputs),
            quant_format=QuantFormat.QDQ,
            per_channel=self._per_channel,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=sorted(floats),
            calibrate_method=CalibrationMethod[self._method],
            calibration_cache_path=self._ranges,
        )

    def measured(self, floats: Layers) -> Measured:
        """Measure the file with these layers in floats."""
        if self._meter is None:
            self._meter = LossMeter(
                self._task,
                self._samples,
                PlainSession(self._prepared, self._inputs).answer,
            )
        self.write(floats, self._trial)
        session = PlainSession(self._trial, self._inputs)
        return self._meter.measured(self._trial.stat().st_size, session.answer)


class PlainSession:
    """A file in ONNX Runtime without any option, as other programs run it.

    Args:
        inputs: the file's names by the source's.
    """

    def __init__(self, path: Path, inputs: Mapping[str, str]) -> None:
        import onnxruntime

        self._inputs = inputs
        self._session = onnxruntime.InferenceSession(
            str(path), providers=["CPUExecutionProvider"]
        )

    def answer(self, sample: SampleInputs) -> dict[str, Any]:
        """Return the outputs, by their numbers."""
        arrays = _renamed(sample, self._inputs)
        outputs = self._session.run(None, arrays)
        return {str(number): output for number, output in enumerate(outputs)}


def input_names(request: ConversionRequest, path: Path) -> dict[str, str]:
    """Return a file's names of inputs by the source's."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    names = {}
    for tensor, entry in zip(request.inputs, model.graph.input, strict=True):
        names[tensor.name] = entry.name
    return names


def _name_operators(path: Path) -> list[str]:
    """Name all operators of a file; return the names of those to quantise."""
    import onnx
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    model = onnx.load(path)
    quantizable = {*QDQRegistry, *QLinearOpsRegistry} - _PASSING
    used: set[str] = set()
    names = []
    for number, node in enumerate(model.graph.node):
        if not node.name or node.name in used:
            node.name = f"{node.op_type}_{number}"
        used.add(node.name)
        if node.op_type in quantizable:
            names.append(node.name)
    onnx.save(model, path)
    return names


def _renamed(sample: SampleInputs, names: Mapping[str, str]) -> dict[str, Any]:
    return {names[name]: array for name, array in sample.items()}


def _reader(samples: Sequence[SampleInputs], names: Mapping[str, str]) -> Any:
    """Return samples as the tool reads them."""
    from onnxruntime.quantization import CalibrationDataReader

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # the tool is not typed here
        def __init__(self, samples: Iterable[SampleInputs]) -> None:
            self._samples: Iterator[SampleInputs] = iter(samples)

        def get_next(self) -> dict[str, Any] | None:
            sample = next(self._samples, None)
            if sample is None:
                return None
            return _renamed(sample, names)

    return Reader(samples)
