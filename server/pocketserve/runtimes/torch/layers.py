"""Read the intermediate results of an unconverted PyTorch module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pocketserve.runtimes.base import ModelSource
from pocketserve.runtimes.layer_outputs import LayerOutput, RunLayers
from pocketserve.tensors import Array

from .common import import_torch
from .eager import TorchSession, build_module

_COPIES = frozenset(
    {"alias", "clone", "contiguous", "detach", "empty", "lift_fresh", "_to_copy"}
)
"""Operators that compute nothing."""


def open_torch_layers(source: ModelSource) -> RunLayers:
    """Open the module so that each run returns its operators' results.

    Hooks of modules would miss ``F.relu``.

    Raises:
        ModelLoadError: as for serving; the code needs its owner's consent.
    """
    torch = import_torch()
    from torch.utils._python_dispatch import TorchDispatchMode  # late, as the framework

    session = TorchSession(torch, build_module(torch, source), source)

    class Watch(TorchDispatchMode):  # type: ignore[misc]  # the framework has no types
        """Keeps the results of all operators on real numbers."""

        def __init__(self) -> None:
            super().__init__()
            self.outputs: list[LayerOutput] = []

        def __torch_dispatch__(
            self, operator: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            result = operator(*args, **(kwargs or {}))
            name = (
                operator.overloadpacket.__name__
                if hasattr(operator, "overloadpacket")
                else str(operator)
            )
            first = result[0] if isinstance(result, tuple) and result else result
            if (
                torch.is_tensor(first)
                and first.is_floating_point()
                and name not in _COPIES
            ):
                array = np.array(first.detach().float().cpu().numpy())
                self.outputs.append(
                    LayerOutput(f"{name}_{len(self.outputs)}", name, array)
                )
            return result

    def run(inputs: Mapping[str, Array]) -> list[LayerOutput]:
        with Watch() as watch:
            session.run(inputs)
        return list(watch.outputs)

    return run
