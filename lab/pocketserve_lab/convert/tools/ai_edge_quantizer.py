"""TFLite to quantised TFLite by ai-edge-quantizer.

It makes int8 weights, or integers throughout after calibration. Operators that it does
not know stay in float32. So do inputs and outputs, and clients see no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pocketserve_lab.convert.converter import (
    ConversionError,
    ConversionOutcome,
    ConversionRequest,
    Converter,
)
from pocketserve_lab.convert.tools.precision.tflite_static import ENDS, TFLiteWriter
from pocketserve_lab.convert.tools.precision.wishes import Precision

CONVERTER = Converter(
    name="ai-edge-quantizer",
    sources=("tflite",),
    kind="tflite",
    module="ai_edge_quantizer",
    quantize=("dynamic", "int8", "int16x8"),
    environment="ai-edge-quantizer",
    wishes=("max_loss", "exclude"),
)

_RECIPES = {
    "dynamic": "dynamic_wi8_afp32",
    "int8": "static_wi8_ai8",
    "int16x8": "static_wi8_ai16",
}
_INTEGERS = frozenset({7, 9, 17})  # TensorType: INT16, INT8, INT4
_TOOL_NAMES = {"TRANSPOSE_CONV": "CONV_2D_TRANSPOSE"}
"""The schema's names of operators that the tool calls otherwise."""

_SIGNATURE = "serving_default"
_NEAREST = "--to tflite --quantize fp16"


def convert(request: ConversionRequest) -> ConversionOutcome:
    """Write the quantised model to ``request.output``.

    Raises:
        ConversionError: the tool fails, nothing can be quantised, or samples are
            missing.
    """
    return quantize_tflite(request, request.source)


def quantize_tflite(
    request: ConversionRequest, source: Path, names: Mapping[str, str] | None = None
) -> ConversionOutcome:
    """Quantise a TFLite file into ``request.output``.

    Args:
        source: the file, which may be a step on the way from ``request.source``.
        names: the names of inputs that clients use -> those of the file's signature;
            without them, its inputs are in order.

    Raises:
        ConversionError: as :func:`convert`.
    """
    from importlib.metadata import version

    original = _Model(source.read_bytes())
    original.modernise()
    content, precision = _quantize_copy(request, original, names)
    model = _Model(content)
    if model.count_integers() <= original.count_integers():
        raise ConversionError(
            f"{request.title} has no operator that can be quantised, or is quantised "
            "already; use it as it is"
        )
    model.take_outputs_of(original)
    request.output.write_bytes(model.pack())
    return ConversionOutcome(
        CONVERTER.name,
        version("ai-edge-quantizer"),
        {"recipe": _RECIPES[request.quantize], **precision.options},
        notes=precision.notes,
        float_bytes=source.stat().st_size,
    )


def _quantize_copy(
    request: ConversionRequest, original: _Model, names: Mapping[str, str] | None
) -> tuple[bytes, Precision]:
    """Quantise a temporary file with the original."""
    prepared = request.output.with_name(f"{request.output.name}.float")
    prepared.write_bytes(original.pack())
    try:
        return _quantized(prepared, request, original, names)
    finally:
        prepared.unlink()


def _quantized(
    prepared: Path,
    request: ConversionRequest,
    original: _Model,
    names: Mapping[str, str] | None,
) -> tuple[bytes, Precision]:
    def new_quantizer() -> Any:
        return _new_quantizer(prepared, _RECIPES[request.quantize])

    try:
        quantizer = new_quantizer()
        if not quantizer.need_calibration:
            content = bytes(quantizer.quantize(None).quantized_model)
            return content, Precision(frozenset(), {}, ())
        _check_control_flow(request, original)
        if not names:
            names = original.signature_names([tensor.name for tensor in request.inputs])
        writer = TFLiteWriter(
            request,
            prepared,
            names,
            original.signature_key(),
            new_quantizer,
            partial(_ranges, prepared),
        )
        precision = writer.choose(original.layers())
        return writer.content(precision.floats), precision
    except (
        ValueError,
        RuntimeError,
        NotImplementedError,
        KeyError,
        IndexError,
    ) as error:
        text = " ".join(str(error).split())
        raise ConversionError(
            f"{CONVERTER.name} cannot quantise {request.title} to {request.quantize}: "
            f"{text:.300}",
            detail=str(error),
            nearest=_NEAREST,
        ) from error


def _check_control_flow(request: ConversionRequest, original: _Model) -> None:
    """Raise ConversionError for a model with graphs in operators."""
    operators = original.control_flow()
    if operators:
        reason = f"TFLite in {request.quantize} has no operator for {operators[0]}"
        raise request.refusal(CONVERTER.name, reason, reason, _NEAREST)


def _new_quantizer(prepared: Path, recipe_name: str) -> Any:
    """Return the tool with a recipe that keeps inputs and outputs."""
    from ai_edge_quantizer import algorithm_manager, qtyping, recipe
    from ai_edge_quantizer.quantizer import Quantizer

    quantizer = Quantizer(str(prepared))
    quantizer.load_quantization_recipe(getattr(recipe, recipe_name)())
    no_change = algorithm_manager.AlgorithmName.NO_QUANTIZE
    for end in (qtyping.TFLOperationName.INPUT, qtyping.TFLOperationName.OUTPUT):
        quantizer.update_quantization_recipe(".*", end, algorithm_key=no_change)
    return quantizer


def _ranges(
    prepared: Path, quantizer: Any, samples: dict[str, list[dict[str, Any]]]
) -> Any:
    """Return the range of each tensor over all samples.

    By default the tool uses a moving average, which starts with the first sample and
    clips larger numbers of later ones.
    """
    from ai_edge_quantizer.calibrator import Calibrator
    from ai_edge_quantizer.recipe_manager import RecipeManager
    from ai_edge_quantizer.utils.qsv_utils import min_max_update

    recipes = RecipeManager()
    recipes.load_quantization_recipe(quantizer.get_quantization_recipe())
    calibrator = Calibrator(str(prepared), qsv_update_func=min_max_update)
    calibrator.calibrate(samples, recipes)
    return calibrator.get_model_qsvs()


class _Model:
    """A TFLite model as the objects of its schema."""

    def __init__(self, content: bytes) -> None:
        import numpy as np
        from ai_edge_litert import schema_py_generated as schema

        self._schema = schema
        self._model: Any = schema.ModelT.InitFromPackedBuf(content, 0)
        for buffer in self._model.buffers:
            # The tool writes the weights of larger models after the description.
            if buffer.offset > 1:
                end = buffer.offset + buffer.size
                buffer.data = np.frombuffer(content, np.uint8)[buffer.offset : end]
                buffer.offset = buffer.size = 0

    def pack(self) -> bytes:
        """Return the model as a file's content."""
        from flatbuffers import Builder

        builder = Builder(1024)
        builder.Finish(self._model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def modernise(self) -> None:
        """Add the fields that the tool needs in an old model.

        They are the newer of two fields for an operator's kind, and a signature.
        Without them the tool changes nothing, and does not report it.
        """
        for code in self._model.operatorCodes:
            code.builtinCode = max(code.builtinCode, code.deprecatedBuiltinCode)
        if self._model.signatureDefs:
            return
        graph = self._graph()
        signature = self._schema.SignatureDefT()
        signature.signatureKey = _SIGNATURE.encode()
        signature.inputs = [self._tensor_map(index) for index in graph.inputs]
        signature.outputs = [self._tensor_map(index) for index in graph.outputs]
        self._model.signatureDefs = [signature]

    def signature_key(self) -> str:
        """Return the name of the main graph's signature."""
        return str(self._signature().signatureKey.decode())

    def signature_names(self, names: list[str]) -> dict[str, str]:
        """Return the signature's name of each input of the main graph.

        Args:
            names: of the inputs as clients use them, in the graph's order.
        """
        by_tensor = {}
        for entry in self._signature().inputs:
            by_tensor[entry.tensorIndex] = entry.name.decode()
        own_names = [by_tensor[index] for index in self._graph().inputs]
        return dict(zip(names, own_names, strict=True))

    def control_flow(self) -> list[str]:
        """Return the operators that have graphs of their own.

        The tool leaves such operators in float32 but quantises their graphs; the file
        cannot be loaded.
        """
        codes = {code.builtinCode for code in self._model.operatorCodes}
        operators = []
        for name in ("WHILE", "IF"):
            if getattr(self._schema.BuiltinOperator, name) in codes:
                operators.append(name)
        return operators

    def layers(self) -> list[str]:
        """Return the names of the operators that the tool can quantise.

        The name is that of an operator's first output.
        """
        from ai_edge_quantizer.qtyping import TFLOperationName

        kinds = {}
        for name, number in vars(self._schema.BuiltinOperator).items():
            kinds[number] = _TOOL_NAMES.get(name, name)
        quantizable = {operation.name for operation in TFLOperationName} - ENDS
        graph = self._graph()
        layers = []
        for operator in graph.operators:
            code = self._model.operatorCodes[operator.opcodeIndex].builtinCode
            if kinds[code] in quantizable and len(operator.outputs):
                layers.append(graph.tensors[operator.outputs[0]].name.decode())
        return layers

    def count_integers(self) -> int:
        """Count the tensors that are stored or computed in small integers."""
        count = 0
        for graph in self._model.subgraphs:
            for tensor in graph.tensors:
                count += tensor.type in _INTEGERS and tensor.quantization is not None
        return count

    def take_outputs_of(self, original: _Model) -> None:
        """Restore the names and free dimensions of the outputs.

        The tool adds new tensors for them.
        """
        graph, before = self._graph(), original._graph()
        for index, old_index in zip(graph.outputs, before.outputs, strict=True):
            tensor, old = graph.tensors[index], before.tensors[old_index]
            for other in graph.tensors:
                if other.name == old.name:
                    other.name = old.name + b"/quantized"
            tensor.name = old.name
            tensor.shapeSignature = old.shapeSignature

    def _graph(self) -> Any:
        return self._model.subgraphs[0]

    def _signature(self) -> Any:
        return next(
            entry for entry in self._model.signatureDefs if entry.subgraphIndex == 0
        )

    def _tensor_map(self, index: int) -> Any:
        entry = self._schema.TensorMapT()
        entry.name, entry.tensorIndex = self._graph().tensors[index].name, index
        return entry
