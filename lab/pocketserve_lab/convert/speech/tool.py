"""The process that writes Whisper as ONNX, and compares it with the original.

Run as ``python -m pocketserve_lab.convert.speech.tool request.json``.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from pocketserve.engine.lifecycle.setup import set_up
from pocketserve.repository.scan import Models
from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.registry import runtime_for
from pocketserve.runtimes.speech.files import ENCODER, MERGED, SUFFIX
from pocketserve.runtimes.speech.layer_weights import (
    WhisperShape,
    read_shape,
    weight_shapes,
)
from pocketserve.runtimes.speech.torch_weights import (
    array_of,
    required_config,
    stored_weights,
)
from pocketserve.tensors import Array
from pocketserve_lab.compare.speech.transcripts import word_errors, words_in
from pocketserve_lab.convert.converter import ConversionError
from pocketserve_lab.convert.speech.whisper_onnx import DecoderWriter, EncoderWriter
from pocketserve_lab.convert.tool_process import report
from pocketserve_wire import ApiError

MAX_ERRORS: Final = {"none": 1e-3, "dynamic": 0.3}
"""By quantisation: the norm of the logits' difference, as a share of their own."""

MAX_WRONG: Final = {"none": 0.01, "dynamic": 0.1}
"""By quantisation: the share of words that may differ on samples."""

COMPARED_TOKENS: Final = 16
NOISE_S: Final = 2
SWELLS_PER_SECOND: Final = 4
QUANTISED: Final = ("MatMul", "Gather")


class SpeechVersion(NamedTuple):
    """A loaded version with its task."""

    session: Any
    task: Any

    def text(self, content: bytes) -> str:
        """Return the transcript of a sound file."""
        prepared = self.task.prepare(memoryview(content))
        options = self.task.read_options({})
        transcript = self.task.transcribe(
            self.session,
            prepared.context,
            options,
            lambda: None,
        )
        text: str = transcript.text
        return text


def convert(document: Mapping[str, Any]) -> dict[str, Any]:
    """Write the files, and compare them with the original.

    Args:
        document: ``source``, the weights; ``output``, the folder of a model with the
            files of its task; ``quantize``; ``samples``, the sound files.

    Returns:
        ``tools``; ``error`` and ``largest``, of the logits; ``samples``, their number.

    Raises:
        ConversionError: the result answers differently from the original.
    """
    source = Path(document["source"])
    output = Path(document["output"])
    quantize = document["quantize"]
    try:
        _write(source, output, quantize)
        original = _load(source.parent, "whisper-torch")
        result = _load(output, "whisper")
        error, largest = _compare_logits(original, result)
        _check_error(error, quantize)
        count = _compare_words(
            original,
            result,
            document["samples"],
            quantize,
        )
    except (ModelLoadError, ApiError) as failure:
        raise ConversionError(str(failure)) from None
    tools = [f"onnx {importlib.metadata.version('onnx')}"]
    if quantize != "none":
        tools.append(f"onnxruntime {importlib.metadata.version('onnxruntime')}")
    return {"tools": tools, "error": error, "largest": largest, "samples": count}


def _write(source: Path, output: Path, quantize: str) -> None:
    import onnx

    shape = read_shape(required_config(source.parent))
    weights = _weights(source, shape)
    encoder = output / f"{ENCODER}{SUFFIX}"
    decoder = output / f"{MERGED}{SUFFIX}"
    is_float = quantize == "none"
    EncoderWriter(onnx, weights, shape).write(encoder)
    writer = DecoderWriter(
        onnx,
        weights,
        shape,
        stores_table_once=is_float,
    )
    writer.write(decoder)
    if not is_float:
        for path in (encoder, decoder):
            _quantise(path)


def _weights(source: Path, shape: WhisperShape) -> dict[str, Array]:
    """Return all weights in single precision."""
    stored = stored_weights(source)
    weights = {}
    for name, expected in weight_shapes(shape).items():
        weights[name] = array_of(name, stored.get(name), expected)
    return weights


def _quantise(path: Path) -> None:
    """Replace a file by one with weights in int8."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    whole = path.with_name(f"whole-{path.name}")
    path.rename(whole)
    data = path.with_name(f"{path.name}_data")
    quantize_dynamic(
        whole,
        path,
        weight_type=QuantType.QInt8,
        per_channel=True,
        # The weights of the cross-attention are in branches.
        extra_options={"EnableSubgraph": True},
        op_types_to_quantize=list(QUANTISED),
        use_external_data_format=data.exists(),
    )
    whole.unlink()
    data.unlink(missing_ok=True)


def _load(folder: Path, version_name: str) -> SpeechVersion:
    entry = Models(folder.parent)[folder.name]
    for version in entry.versions.values():
        if version.format.name == version_name:
            source = ModelSource(path=version.path)
            session: Any = runtime_for(version.format).open(source)
            task = set_up(
                entry,
                version,
                session,
                1,
                source,
            ).task
            return SpeechVersion(session, task)
    raise ConversionError(f"{folder.name} has no {version_name} version")


def _compare_logits(
    original: SpeechVersion, result: SpeechVersion
) -> tuple[float, float]:
    """Return the relative error and the largest difference of logits.

    Both read the tokens that the original says to a noise.
    """
    features = original.task.features(_noise(original.task.rate))
    token = original.task.start_token
    cache = original.session.encode(features)
    result_cache = result.session.encode(features)
    errors = []
    largest = 0.0
    for _ in range(COMPARED_TOKENS):
        step = original.session.step([token], cache)
        result_step = result.session.step([token], result_cache)
        # The same number added to all logits changes nothing.
        logits = step.logits - step.logits.mean()
        difference = result_step.logits - result_step.logits.mean() - logits
        size = float(np.linalg.norm(logits))
        errors.append(float(np.linalg.norm(difference)) / size)
        largest = max(largest, float(np.abs(difference).max()))
        token = int(logits.argmax())
        cache = step.cache
        result_cache = result_step.cache
    return float(np.mean(errors)), largest


def _noise(rate: int) -> Array:
    """Return noise that swells like speech."""
    count = NOISE_S * rate
    noise = np.random.default_rng(0).standard_normal(count)
    swell = np.sin(np.arange(count) / rate * np.pi * SWELLS_PER_SECOND) ** 2
    samples: Array = (0.2 * noise * swell).astype(np.float32)
    return samples


def _check_error(error: float, quantize: str) -> None:
    accepted = MAX_ERRORS[quantize]
    if not error <= accepted:
        raise ConversionError(
            "the result answers differently from the original: its logits differ by"
            f" {error:.2g} of their size, and at most {accepted:g} is accepted"
        )


def _compare_words(
    original: SpeechVersion,
    result: SpeechVersion,
    samples: Sequence[str],
    quantize: str,
) -> int:
    """Return the number of compared samples."""
    expected_words = 0
    wrong_words = 0
    for name in samples:
        content = Path(name).read_bytes()
        try:
            expected = words_in(original.text(content))
            words = words_in(result.text(content))
        except ApiError as error:
            file = Path(name).name
            raise ConversionError(f"the sample {file!r}: {error}") from None
        expected_words += len(expected)
        wrong_words += word_errors(expected, words)
    if wrong_words > MAX_WRONG[quantize] * expected_words:
        raise ConversionError(
            f"the result writes {wrong_words} of {expected_words} words differently from"
            " the original, which is too many"
        )
    return len(samples)


if __name__ == "__main__":
    sys.exit(report(Path(sys.argv[1]), convert))
