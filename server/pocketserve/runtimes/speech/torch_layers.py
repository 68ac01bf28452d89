"""The layers that speech models share, computed by PyTorch from named weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

NORM_EPSILON: Final = 1e-5


class KeysValues(NamedTuple):
    """Keys and values of an attention: [1, heads, positions, size]."""

    keys: Any
    values: Any


class TorchLayers:
    """Computes layers; closed by removing the weights.

    Args:
        torch: the module.
        threads: of each run.
    """

    def __init__(self, torch: Any, weights: Mapping[str, Any], threads: int) -> None:
        self._torch = torch
        self._functional = torch.nn.functional
        self._weights: Mapping[str, Any] = weights
        self._threads = threads
        self.runtime = f"torch {torch.__version__}"

    def close(self) -> None:
        """Release the weights."""
        self._weights = {}

    def _weight_bytes(self) -> int:
        total = 0
        for weight in self._weights.values():
            total += weight.numel() * 4
        return total

    def _running(self) -> Any:
        """Return the context of a run."""
        if not self._weights:
            raise RuntimeError("the session is closed")
        # PyTorch keeps the number by thread, and models share threads.
        self._torch.set_num_threads(self._threads)
        return self._torch.inference_mode()

    def _keys_values(self, value: Any, name: str, heads: int) -> KeysValues:
        keys = self._split(self._linear(value, f"{name}.k_proj"), heads)
        return KeysValues(
            keys, self._split(self._linear(value, f"{name}.v_proj"), heads)
        )

    def _attend(
        self, value: Any, context: KeysValues, name: str, heads: int, mask: Any = None
    ) -> Any:
        queries = self._split(self._linear(value, f"{name}.q_proj"), heads)
        mixed = self._functional.scaled_dot_product_attention(
            queries, context.keys, context.values, attn_mask=mask
        )
        return self._linear(mixed.transpose(1, 2).flatten(2), f"{name}.out_proj")

    def _linear(self, value: Any, name: str) -> Any:
        weight = self._weights[f"{name}.weight"]
        return self._functional.linear(value, weight, self._weights.get(f"{name}.bias"))

    def _norm(self, value: Any, name: str, epsilon: float = NORM_EPSILON) -> Any:
        weight = self._weights[f"{name}.weight"]
        bias = self._weights[f"{name}.bias"]
        return self._functional.layer_norm(value, weight.shape, weight, bias, epsilon)

    def _split(self, value: Any, heads: int) -> Any:
        """Return [1, heads, positions, size] of [1, positions, width]."""
        return value.unflatten(2, (heads, -1)).transpose(1, 2)
