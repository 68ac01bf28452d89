"""Run Whisper's ONNX exports: an encoder, and one merged decoder or a pair.

Inputs and outputs have the names of Hugging Face's exporter: ``past_key_values.N.decoder.key``
and ``present.N.decoder.key``, or ``encoder`` and ``value``. Keys and values of the
encoder are computed by the first step and stay the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError, ModelSource, Signature
from pocketserve.runtimes.onnx.errors import clean_text
from pocketserve.runtimes.onnx.session import RUNTIME as ONNX
from pocketserve.runtimes.onnx.session import OnnxSession, OpenedFile
from pocketserve.runtimes.speech.files import decoder_names
from pocketserve.runtimes.speech.interface import TokenStep
from pocketserve.tensors import Array, TensorSpec

FEATURES: Final = "input_features"
TOKENS: Final = "input_ids"
ENCODED: Final = "encoder_hidden_states"
BRANCH: Final = "use_cache_branch"
PAST: Final = "past_key_values."
PRESENT: Final = "present."
LOGITS: Final = "logits"
CACHED_POSITIONS: Final = 1500  # of the encoder; a text has at most 448 tokens
_KINDS: Final = {"tensor(float)": np.float32, "tensor(float16)": np.float16}


class WhisperOnnxRuntime:
    """Opens an encoder with its decoder."""

    platform = ONNX.platform
    option_keys = ONNX.option_keys

    def open(self, source: ModelSource) -> WhisperOnnxSession:
        encoder = ONNX.open(source)
        folder = source.path.resolve().parent
        decoders = []
        for name in decoder_names(source.path):
            decoders.append(Decoder(name, ONNX.open_file(source, folder / name)))
        return WhisperOnnxSession(encoder, decoders[0], decoders[-1])


class Cache(NamedTuple):
    """The decoder's memory.

    Attributes:
        encoded: the encoder's output.
        past: keys and values by input name, as OrtValues; empty before the first token.
    """

    encoded: Array
    past: Mapping[str, Any]


class Decoder:
    """A decoder's file.

    Attributes:
        past: specs of keys and values, the layers' and those of the encoder.
        size: bytes of the file and its weights.

    Raises:
        ModelLoadError: it has other inputs or outputs than a decoder of Whisper.
    """

    def __init__(self, name: str, opened: OpenedFile) -> None:
        self._native = opened.native
        self._value_of = opened.ort.OrtValue.ortvalue_from_numpy
        self.size = opened.facts.total_bytes
        self.past = {}
        self._names = set()
        for arg in opened.native.get_inputs():
            self._names.add(arg.name)
            if arg.name.startswith(PAST):
                self.past[arg.name] = arg
            elif arg.name not in (TOKENS, ENCODED, BRANCH):
                raise _unknown_layout(name, f"the input {clean_text(arg.name, 100)}")
        self.outputs = [arg.name for arg in opened.native.get_outputs()]
        if TOKENS not in self._names or LOGITS not in self.outputs:
            raise _unknown_layout(name, f"no {TOKENS} or no {LOGITS}")
        self.is_merged = BRANCH in self._names

    def run(self, tokens: Sequence[int], cache: Cache) -> TokenStep:
        """Read tokens, and return the logits after the last one."""
        feeds = {TOKENS: self._value_of(np.array([tokens], np.int64))}
        if ENCODED in self._names:
            feeds[ENCODED] = self._value_of(cache.encoded)
        if self.is_merged:
            feeds[BRANCH] = self._value_of(np.array([bool(cache.past)]))
        for name, arg in self.past.items():
            value = cache.past.get(name)
            feeds[name] = self._empty(arg) if value is None else value
        output_names = self._wanted_outputs(cache)
        try:
            values = self._native.run_with_ort_values(output_names, feeds)
        except Exception as error:
            raise RuntimeError(clean_text(str(error), 300)) from error
        past = dict(cache.past)
        for name, value in zip(output_names[1:], values[1:], strict=True):
            past[PAST + name.removeprefix(PRESENT)] = value
        logits = values[0].numpy()[0, -1]
        return TokenStep(logits, Cache(cache.encoded, past))

    def _wanted_outputs(self, cache: Cache) -> list[str]:
        """Return the outputs to compute; the encoder's part never changes."""
        output_names = [LOGITS]
        for name in self.outputs:
            is_encoders = ".encoder." in name
            if name.startswith(PRESENT) and not (cache.past and is_encoders):
                output_names.append(name)
        return output_names

    def _empty(self, arg: Any) -> Any:
        """Return keys or values of no token: [1, heads, 0, size]."""
        shape = [0] * len(arg.shape)
        for axis, length in enumerate(arg.shape):
            if isinstance(length, int):
                shape[axis] = length
        shape[0] = 1
        kind = _KINDS.get(arg.type, np.float32)
        return self._value_of(np.zeros(shape, kind))


class WhisperOnnxSession:
    """A loaded Whisper model; as tensors it is the encoder.

    Attributes:
        memory_bytes: the files, and the cache of one text.
    """

    signatures: Mapping[str, Signature] = {}

    def __init__(
        self, encoder: OnnxSession, first: Decoder, following: Decoder
    ) -> None:
        self._encoder: OnnxSession | None = encoder
        self._first: Decoder | None = first
        self._next: Decoder | None = following
        self.inputs: Sequence[TensorSpec] = encoder.inputs
        self.outputs: Sequence[TensorSpec] = encoder.outputs
        self.runtime = encoder.runtime
        self.device = encoder.device
        names = [spec.name for spec in encoder.inputs]
        if names != [FEATURES]:
            raise _unknown_layout("the encoder", f"the inputs {', '.join(names)[:200]}")
        _check_caches(first, following)
        self.memory_bytes = encoder.memory_bytes + first.size + _cache_bytes(following)
        if following is not first:
            self.memory_bytes += following.size

    def run(
        self, inputs: Mapping[str, Array], signature: str | None = None
    ) -> dict[str, Array]:
        """Run the encoder."""
        if self._encoder is None:
            raise RuntimeError("the session is closed")
        return self._encoder.run(inputs)

    def encode(self, features: Array) -> Cache:
        """Return the cache before the first token."""
        outputs = self.run({FEATURES: features})
        return Cache(outputs[self.outputs[0].name], {})

    def step(self, tokens: Sequence[int], cache: Cache) -> TokenStep:
        """Read tokens, and return the logits after the last one."""
        if self._first is None or self._next is None:
            raise RuntimeError("the session is closed")
        if not cache.past:
            return self._first.run(tokens, cache)
        # Exported with a past, a decoder is only sure to read one token at a time.
        step = None
        for token in tokens:
            step = self._next.run([token], cache)
            cache = step.cache
        assert step is not None
        return step

    def try_out(self) -> None:
        """Decode two tokens of silence, for a trial."""
        (spec,) = self.inputs
        shape = [max(1, length) for length in spec.shape]
        kind = np.float16 if spec.datatype == "FP16" else np.float32
        step = self.step([0], self.encode(np.zeros(shape, kind)))
        step = self.step([0], step.cache)
        if not np.isfinite(step.logits).all():
            raise ModelLoadError(
                "the decoder's logits are not numbers; the file is probably damaged"
            )

    def close(self) -> None:
        self._encoder = self._first = self._next = None


def _check_caches(first: Decoder, following: Decoder) -> None:
    """Raise if the first step doesn't compute all that the next one takes."""
    for name in following.past:
        output = PRESENT + name.removeprefix(PAST)
        if output not in first.outputs:
            raise ModelLoadError(
                f"the decoder's first step has no output {clean_text(output, 100)},"
                " which the next one takes; export both files together"
            )
    if not following.past:
        raise ModelLoadError(
            "the decoder keeps no past; export the model with its past"
            " (automatic-speech-recognition-with-past)"
        )


def _cache_bytes(decoder: Decoder) -> int:
    total = 0
    for arg in decoder.past.values():
        size = 4
        for length in arg.shape[1:]:
            size *= length if isinstance(length, int) else CACHED_POSITIONS
        total += size
    return total


def _unknown_layout(name: str, fault: str) -> ModelLoadError:
    return ModelLoadError(
        f"{name} has {fault}, unlike Whisper's exports; export it with optimum-cli as"
        " automatic-speech-recognition-with-past"
    )


RUNTIME = WhisperOnnxRuntime()
