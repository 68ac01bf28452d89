"""Load and run a network of transformers, in a process of its own."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from pocketserve.runtimes.hugging_face.folder import CONFIG
from pocketserve.runtimes.hugging_face.heads import (
    BASE,
    POOLED,
    Head,
    class_of,
    head_of,
)
from pocketserve.runtimes.hugging_face.library import (
    LoadedNetwork,
    UnservedNetworkError,
    load_network,
)
from pocketserve.runtimes.hugging_face.task_folder import MODULES
from pocketserve.runtimes.hugging_face.weights import read_json
from pocketserve.tensors import Array

TEXT: Final = "input_ids"
PICTURE: Final = "pixel_values"
SOUND: Final = "input_values"
FEATURES: Final = "input_features"
MASK: Final = "attention_mask"
EXTRACTOR: Final = "preprocessor_config.json"

PROBE_TOKENS: Final = 8
PROBE_SIDE: Final = 224
PROBE_SAMPLES: Final = 16_000
MAX_PROBE_SIDE: Final = 2048


@dataclass(frozen=True)
class NetworkInput:
    """An input: -1 stands for a dimension of any size."""

    name: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class NetworkOutput:
    """An output: -1 stands for a dimension of any size."""

    name: str
    shape: tuple[int, ...]


class Network:
    """A network in single precision, with its inputs and outputs.

    Raises:
        UnservedNetworkError: it has no known inputs, lacks weights, or needs code of
            its own.
        Exception: any error of the library.
    """

    def __init__(self, folder: str, torch: Any, transformers: Any) -> None:
        self._torch = torch
        self._transformers = transformers
        self._folder = Path(folder)
        config = read_json(self._folder / CONFIG)
        self._head = self._find_head(config)
        loaded = self._load(config)
        self._model = loaded.model
        self._has_random_pooler = loaded.has_random_pooler
        self.inputs = self._find_inputs()
        self.outputs = self._probe()

    def run(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs by name."""
        answer = self._run(arrays)
        outputs = {}
        for output in self.outputs:
            outputs[output.name] = self._to_array(answer[output.name])
        return outputs

    def try_out(self) -> bool:
        """Return whether the example's outputs are numbers."""
        outputs = self.run(self._example())
        return all(np.isfinite(array).all() for array in outputs.values())

    def _find_head(self, config: Mapping[str, Any]) -> Head:
        name = class_of(config) or ""
        is_embedder = (self._folder / MODULES).is_file()
        head = head_of(name, is_embedder=is_embedder)
        if head is None:
            raise UnservedNetworkError(f"the architecture {name:.80} is not served")
        return head

    def _load(self, config: Mapping[str, Any]) -> LoadedNetwork:
        """Load the class of the library itself, never one of the folder."""
        name = class_of(config) or ""
        network_class = self._library_class(name, config.get("model_type"))
        if not name.endswith(self._head.ends):
            # A network for embeddings is used without its head.
            network_class = self._transformers.AutoModel
        return load_network(
            network_class,
            str(self._folder),
            self._torch.float32,
            may_lack_pooler=self._head is BASE,
        )

    def _library_class(self, name: str, kind: Any) -> Any:
        """Return the library's class of a name."""
        library = self._transformers
        network_class: Any = None
        if kind in library.CONFIG_MAPPING:
            network_class = getattr(library, name, None)
        is_class = isinstance(network_class, type)
        if not is_class or not issubclass(network_class, library.PreTrainedModel):
            raise UnservedNetworkError(
                f"its architecture ({name:.80}) is not a part of transformers"
                f" {library.__version__}; code of the folder is not run, so export the"
                " model to ONNX and add that file"
            )
        return network_class

    def _find_inputs(self) -> list[NetworkInput]:
        main = str(self._model.main_input_name)
        if main == TEXT:
            return self._text_inputs()
        if main == PICTURE:
            channels = int(getattr(self._model.config, "num_channels", None) or 3)
            return [NetworkInput(PICTURE, "FP32", (-1, channels, -1, -1))]
        if main in (SOUND, FEATURES):
            return self._sound_inputs(main)
        raise UnservedNetworkError(f"its input {main!r:.80} is made by no task")

    def _text_inputs(self) -> list[NetworkInput]:
        """Return the tensors that its tokenizer makes and the network takes."""
        tokenizer = self._transformers.AutoTokenizer.from_pretrained(
            str(self._folder), local_files_only=True, trust_remote_code=False
        )
        parameters = inspect.signature(self._model.forward).parameters
        inputs = []
        for name in tokenizer.model_input_names:
            if name in parameters:
                inputs.append(NetworkInput(name, "INT64", (-1, -1)))
        return inputs

    def _sound_inputs(self, main: str) -> list[NetworkInput]:
        shape = self._sound_shape(main)
        inputs = [NetworkInput(main, "FP32", shape)]
        if len(shape) == 2 and self._extracts_mask():
            inputs.append(NetworkInput(MASK, "INT64", (-1, -1)))
        return inputs

    def _sound_shape(self, main: str) -> tuple[int, ...]:
        """Return the shape of samples or of features."""
        config = self._model.config
        bins = getattr(config, "num_mel_bins", None)
        if main == FEATURES and bins and hasattr(config, "max_source_positions"):
            return (-1, bins, 2 * config.max_source_positions)
        if main == SOUND and bins and hasattr(config, "max_length"):
            return (-1, config.max_length, bins)
        if main == FEATURES:
            raise UnservedNetworkError("its sound features are made by no task")
        return (-1, -1)

    def _extracts_mask(self) -> bool:
        path = self._folder / EXTRACTOR
        return path.is_file() and read_json(path).get("return_attention_mask") is True

    def _probe(self) -> list[NetworkOutput]:
        """Run an example, and return the outputs with its sizes."""
        answer = self._run(self._example())
        outputs = []
        for expected in self._head.outputs:
            if expected.name == POOLED and self._has_random_pooler:
                continue
            value = answer.get(expected.name)
            if not self._torch.is_tensor(value):
                if expected.is_optional:
                    continue
                raise UnservedNetworkError(f"it has no output {expected.name}")
            shape = [int(size) for size in value.shape]
            for axis in range(len(shape)):
                if axis in expected.free:
                    shape[axis] = -1
            outputs.append(NetworkOutput(expected.name, tuple(shape)))
        return outputs

    def _example(self) -> dict[str, Array]:
        """Return small inputs that suit the network."""
        arrays: dict[str, Array] = {}
        for entry in self.inputs:
            if entry.dtype == "INT64":
                arrays[entry.name] = self._example_numbers(entry.name)
                continue
            shape = [1, *entry.shape[1:]]
            if entry.name == PICTURE:
                shape[2:] = self._example_size()
            for axis, size in enumerate(shape):
                if size < 0:
                    shape[axis] = PROBE_SAMPLES
            arrays[entry.name] = np.zeros(shape, np.float32)
        return arrays

    def _example_numbers(self, name: str) -> Array:
        """Return numbers of tokens, or a mask."""
        if name == MASK and self.inputs[0].name != TEXT:
            return np.ones((1, PROBE_SAMPLES), np.int64)
        value = 0
        if name == MASK:
            value = 1
        elif name == TEXT:
            value = self._end_token()
        return np.full((1, PROBE_TOKENS), value, np.int64)

    def _end_token(self) -> int:
        """Return the token that ends a text; 0 if unknown.

        Some classifiers read the state of the last token of this kind.
        """
        config = self._model.config
        end = getattr(config, "eos_token_id", None)
        size = getattr(config, "vocab_size", 0)
        if isinstance(end, int) and 0 <= end < size:
            return end
        return 0

    def _example_size(self) -> list[int]:
        """Return height and width."""
        size = getattr(self._model.config, "image_size", None)
        sides = [size, size]
        if isinstance(size, list | tuple):
            sides = list(size)
        if len(sides) != 2:
            return [PROBE_SIDE, PROBE_SIDE]
        checked: list[int] = []
        for side in sides:
            if isinstance(side, int) and 0 < side <= MAX_PROBE_SIDE:
                checked.append(side)
            else:
                checked.append(PROBE_SIDE)
        return checked

    def _run(self, arrays: Mapping[str, Array]) -> Any:
        tensors = {}
        for name, array in arrays.items():
            writable = np.require(array, requirements="W")
            tensors[name] = self._torch.from_numpy(writable)
        with self._torch.inference_mode():
            return self._model(**tensors, return_dict=True)

    def _to_array(self, tensor: Any) -> Array:
        array: Array = tensor.to(self._torch.float32).contiguous().numpy()
        return array
