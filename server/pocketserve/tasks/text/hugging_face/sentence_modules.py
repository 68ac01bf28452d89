"""Apply a sentence-transformers model's steps after the network.

These are pooling, dense layers and normalisation. ``modules.json`` lists them. Without
it, ``1_Pooling/config.json`` still defines the pooling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.torch.safetensors import parse_safetensors
from pocketserve.tasks.model_facts import MetadataError, ModelFacts
from pocketserve.tensors import Array

MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
MAX_MODULES = 16
MAX_WEIGHT_BYTES = 64 << 20
# Bytes; a dense layer has two tensors. Parsing a header takes many times its size.
MAX_WEIGHT_HEADER = 64 << 10

_PACKAGE = "sentence_transformers."

POOLING_MODES = (
    "cls",
    "max",
    "mean",
    "mean_sqrt_len_tokens",
    "weightedmean",
    "lasttoken",
)
"""In the order in which sentence-transformers joins several.

Source: sentence_transformer/modules/pooling.py.
"""

_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


class Pooling(NamedTuple):
    """The combination of token vectors into one vector.

    Attributes:
        modes: of ``POOLING_MODES``; the vectors of several are joined.
        include_prompt: whether the prompt's tokens count.
    """

    modes: tuple[str, ...] = ("mean",)
    include_prompt: bool = True

    def apply(self, values: Array, is_text: Array, prompt: int = 0) -> Array:
        """Combine token vectors [tokens, size] into one vector.

        Args:
            is_text: booleans [tokens]; False for padding.
            prompt: number of leading prompt tokens, excluded unless ``include_prompt``.
        """
        positions = np.flatnonzero(is_text)
        if not len(positions):
            positions = np.arange(len(values))
            prompt = 0
        numbered = np.arange(1, len(positions) + 1, dtype=np.float32)
        if not self.include_prompt and 0 < prompt < len(positions):
            positions = positions[prompt:]
            numbered = numbered[prompt:]
        rows = values[positions]
        return np.concatenate([_pooled(mode, rows, numbered) for mode in self.modes])


def _pooled(mode: str, rows: Array, weights: Array) -> Array:
    result: Array
    if mode == "cls":
        result = rows[0]
    elif mode == "lasttoken":
        result = rows[-1]
    elif mode == "max":
        result = rows.max(axis=0)
    elif mode == "weightedmean":
        result = (rows * weights[:, None]).sum(axis=0) / weights.sum()
    else:
        divisor = math.sqrt(len(rows)) if mode == "mean_sqrt_len_tokens" else len(rows)
        result = rows.sum(axis=0) / divisor
    return result


class Dense(NamedTuple):
    """A dense layer: activation(weight x + bias)."""

    weight: Array  # [out, in]
    bias: Array | None
    activation: Callable[[Array], Array]

    def apply(self, vector: Array) -> Array:
        values: Array = self.weight @ vector
        return self.activation(values if self.bias is None else values + self.bias)


class Normalize(NamedTuple):
    """Scale a vector to length 1."""

    def apply(self, vector: Array) -> Array:
        size = float(np.linalg.norm(vector))
        return vector / max(size, 1e-12)


class SentenceModules(NamedTuple):
    """The steps after the network."""

    pooling: Pooling | None = None
    steps: tuple[Dense | Normalize, ...] = ()


def has_modules(facts: ModelFacts) -> bool:
    """Return whether ``modules.json`` lists the steps.

    If so, vectors are normalised only if it says so.
    """
    return facts.beside(MODULES) is not None


def sentence_modules(facts: ModelFacts) -> SentenceModules:
    """Read the steps of a sentence-transformers model.

    Raises:
        MetadataError: a module is not supported; the text names it.
    """
    listed = _list(facts)
    if listed is None:
        config = facts.json_beside(POOLING)
        return SentenceModules(_pooling(config) if config else None)
    pooling = None
    steps: list[Dense | Normalize] = []
    for module in listed:
        kind = module.kind
        is_first = pooling is None and not steps
        if kind == "Dropout" or module.is_network:
            continue
        if kind == "Pooling" and is_first and module.path == "1_Pooling":
            pooling = _required_pooling(facts)
        elif kind == "Dense" and module.path in ("2_Dense", "3_Dense"):
            steps.append(_dense(facts, module.path))
        elif kind == "Normalize":
            steps.append(Normalize())
        else:
            raise module.unsupported()
    return SentenceModules(pooling, tuple(steps))


def reject_modules_behind(facts: ModelFacts) -> None:
    """Raise if ``modules.json`` lists more than the network.

    For tasks that read the network's own scores.

    Raises:
        MetadataError: names the module.
    """
    for module in _list(facts) or ():
        if not module.is_network:
            raise module.unsupported()


class _Module(NamedTuple):
    type: str
    path: str

    @property
    def kind(self) -> str:
        """Return the library's class; empty for one of the model's own code."""
        package, _, name = self.type.rpartition(".")
        if package.startswith(_PACKAGE):
            return name
        return ""

    @property
    def is_network(self) -> bool:
        """Return whether it is the network itself."""
        return self.kind == "Transformer" and self.path in ("", ".")

    def unsupported(self) -> MetadataError:
        """Return the error that names the module."""
        return _unsupported(f"module {self.type!r:.80} in folder {self.path!r:.40}")


def _list(facts: ModelFacts) -> list[_Module] | None:
    content = facts.json_list_beside(MODULES)
    if content is None:
        return None
    if len(content) > MAX_MODULES:
        raise _unsupported(f"{len(content)} modules")
    modules = []
    for entry in content:
        kind = None
        if isinstance(entry, dict):
            kind = entry.get("type")
        path = None
        if isinstance(entry, dict):
            path = entry.get("path")
        if not isinstance(kind, str) or not isinstance(path, str):
            raise _unsupported("an entry without type and path")
        modules.append(_Module(kind, path))
    return modules


def _required_pooling(facts: ModelFacts) -> Pooling:
    if facts.beside(POOLING) is None:
        raise MetadataError(f"{MODULES} names {POOLING}, which is missing")
    return _pooling(facts.json_beside(POOLING))


def _pooling(config: Mapping[str, Any]) -> Pooling:
    modes = config.get("pooling_mode")
    if modes is None:
        modes = [mode for flag, mode in _FLAGS.items() if config.get(flag)]
        modes = modes or ["mean"]
    names = modes
    if isinstance(modes, str):
        names = [modes]
    if not isinstance(names, list) or not names or len(names) > len(POOLING_MODES):
        raise _unsupported("pooling_mode in 1_Pooling/config.json")
    for name in names:
        if name not in POOLING_MODES:
            raise _unsupported(
                f"pooling_mode = {str(name)!r:.60} in 1_Pooling/config.json"
            )
    return Pooling(tuple(names), config.get("include_prompt") is not False)


def _dense(facts: ModelFacts, folder: str) -> Dense:
    name = f"{folder}/model.safetensors"
    path = facts.beside(name)
    if path is None:
        raise MetadataError(
            f"{name} is missing: sentence-transformers writes it with "
            "safe_serialization=True; a pytorch_model.bin in its place can't be read"
        )
    function = _activation(facts, f"{folder}/config.json")
    content = facts.read_beside(path, MAX_WEIGHT_BYTES)
    try:
        tensors = parse_safetensors(path, content, MAX_WEIGHT_HEADER)
    except ModelLoadError as error:
        raise MetadataError(f"{name} can't be used: {error}") from None
    weight = _reals(tensors, "linear.weight")
    bias = _reals(tensors, "linear.bias")
    is_dense = weight is not None and weight.ndim == 2
    if weight is None or not is_dense or not _fits_bias(weight, bias):
        raise MetadataError(
            f"{name} can't be used: its tensors are not those of a dense layer"
        )
    facts.weights[name] = weight.nbytes
    return Dense(weight, bias, function)


def _fits_bias(weight: Array, bias: Array | None) -> bool:
    return bias is None or bias.shape == weight.shape[:1]


def _activation(facts: ModelFacts, file: str) -> Callable[[Array], Array]:
    """Return a dense layer's activation function.

    The library's default is Tanh.
    """
    config = facts.json_beside(file)
    default = "torch.nn.modules.activation.Tanh"
    activation = str(config.get("activation_function", default))
    function = _ACTIVATIONS.get(activation.rpartition(".")[2])
    if function is None or not activation.startswith("torch.nn."):
        raise _unsupported(f"activation_function = {activation!r:.60} in {file}")
    return function


def _reals(tensors: Mapping[str, tuple[str, Array]], name: str) -> Array | None:
    """Return a tensor as float32, or None.

    It is None if it is missing or no floating-point tensor.
    """
    kind, values = tensors.get(name, ("", None))
    if values is None or kind not in ("F64", "F32", "F16", "BF16"):
        return None
    if kind == "BF16":
        bits = values.astype(np.uint32) << 16
        return bits.view(np.float32)
    return values.astype(np.float32)


def _gelu(values: Array) -> Array:
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return np.asarray(0.5 * values * (1 + erf(values / math.sqrt(2))), np.float32)


def _identity(values: Array) -> Array:
    return values


def _relu(values: Array) -> Array:
    return np.maximum(values, 0)


def _sigmoid(values: Array) -> Array:
    return np.asarray(0.5 * (1 + np.tanh(0.5 * values)))


_ACTIVATIONS: Mapping[str, Callable[[Array], Array]] = {
    "Identity": _identity,
    "Tanh": np.tanh,
    "ReLU": _relu,
    "Sigmoid": _sigmoid,
    "GELU": _gelu,
}


def _unsupported(part: str) -> MetadataError:
    return MetadataError(f"{MODULES} of sentence-transformers: {part} is not supported")
