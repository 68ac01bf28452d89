"""Search for the smallest model with int8 layers that keeps an accuracy.

Each layer is quantised alone first, to order the layers by their error. The most
sensitive ones then stay in floats, as few as possible.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

MIN_SAVING = 64
"""Bytes that a layer counts as saving at least.

Layers without weights save nothing, but compute faster."""

MAX_EXCHANGES = 32
"""Exchanges of two layers that are tried in a row."""

Layers = frozenset[str]


class Measured(NamedTuple):
    """A model with some layers in floats.

    Attributes:
        size: of its file, in bytes.
        loss: that the user limits.
        error: of its outputs; unlike the loss, it shows small differences.
    """

    size: int
    loss: float
    error: float


MeasureLayers = Callable[[Layers], Measured]
"""Quantise all layers but these, and measure the result."""


class FloatLayers(NamedTuple):
    """Layers that stay in floats, and the measured result."""

    floats: Layers
    measured: Measured


class PrecisionSearch:
    """Searches for the layers that must stay in floats.

    Args:
        layers: the names of those that can be quantised.
        measure: called once for each set of layers.
        max_loss: the accepted loss.
    """

    def __init__(
        self, layers: Sequence[str], measure: MeasureLayers, max_loss: float
    ) -> None:
        self._layers = tuple(layers)
        self._measure = measure
        self._max_loss = max_loss
        self._results: dict[Layers, Measured] = {}

    def best(self) -> FloatLayers | None:
        """Return the smallest model found; None if only floats keep the accuracy."""
        no_floats: Layers = frozenset()
        if self._is_accepted(no_floats):
            return FloatLayers(no_floats, self._result(no_floats))
        choices = []
        for order in self._orders():
            for start in (order[: self._fewest(order)], self._one_by_one(order)):
                if len(start) < len(order):
                    floats = self._exchanged(self._without_needless(start))
                    choices.append(FloatLayers(floats, self._result(floats)))
        return min(choices, key=lambda choice: choice.measured.size, default=None)

    def _one_by_one(self, order: Sequence[str]) -> list[str]:
        """Quantise each layer, the least sensitive first, if that is accepted.

        With few samples, the loss of a single layer may exceed that of several.
        """
        floats = list(order)
        for layer in reversed(order):
            fewer = [name for name in floats if name != layer]
            if self._is_accepted(frozenset(fewer)):
                floats = fewer
        return floats

    def _result(self, floats: Layers) -> Measured:
        """Return the result with these layers in floats."""
        if floats not in self._results:
            self._results[floats] = self._measure(floats)
        return self._results[floats]

    def _is_accepted(self, floats: Layers) -> bool:
        """Return whether the loss is small enough; NaN is not."""
        return self._result(floats).loss <= self._max_loss

    def _orders(self) -> list[list[str]]:
        """Return the layers by error per saved byte, and by saved bytes."""
        all_floats = frozenset(self._layers)
        costs = {}
        for layer in self._layers:
            alone = self._result(all_floats - {layer})
            # Errors of independent layers add up in their squares.
            costs[layer] = alone.error**2 / max(MIN_SAVING, self._saving(layer))
        by_cost = sorted(self._layers, key=lambda layer: costs[layer], reverse=True)
        return [by_cost, sorted(self._layers, key=self._saving)]

    def _fewest(self, order: Sequence[str]) -> int:
        """Return how many of the first layers must stay in floats."""
        low, high = 1, len(order)
        while low < high:
            middle = (low + high) // 2
            if self._is_accepted(frozenset(order[:middle])):
                high = middle
            else:
                low = middle + 1
        return high

    def _without_needless(self, floats: Sequence[str]) -> Layers:
        """Quantise layers after all whose error the others leave room for."""
        remaining = frozenset(floats)
        order = sorted(floats, key=self._saving, reverse=True)
        before: Layers = frozenset()
        # Errors can cancel out: a layer that was needed may not be without another.
        while remaining != before:
            before = remaining
            for layer in order:
                fewer = remaining - {layer}
                if layer in remaining and self._is_accepted(fewer):
                    remaining = fewer
        return remaining

    def _exchanged(self, floats: Layers) -> Layers:
        """Exchange two layers as long as the file becomes smaller."""
        size = self._result(floats).size
        pairs = itertools.product(
            sorted(floats, key=self._saving, reverse=True),
            [layer for layer in self._layers if layer not in floats],
        )
        for layer, other in itertools.islice(pairs, MAX_EXCHANGES):
            exchanged = floats - {layer} | {other}
            if not self._is_accepted(exchanged):
                continue
            fewer = self._without_needless(tuple(exchanged))
            if self._result(fewer).size < size:
                return self._exchanged(fewer)
        return floats

    def _saving(self, layer: str) -> int:
        """Return the bytes that a layer saves alone."""
        all_floats = frozenset(self._layers)
        alone = self._result(all_floats - {layer})
        return self._result(all_floats).size - alone.size
