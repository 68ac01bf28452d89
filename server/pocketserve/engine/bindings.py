"""Maps public tensor names and specs to a session's.

A manifest may give a tensor a friendlier name, and a TFLite signature does too; any of the names is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tensors import TensorSpec


class Bindings(NamedTuple):
    """Hold one direction's tensors."""

    specs: tuple[TensorSpec, ...]  # public specs in the model's order
    by_name: Mapping[
        str, tuple[TensorSpec, str]
    ]  # every accepted name -> (the spec, the session's own name)

    def names(self) -> str:
        """The callers' names as a list for messages."""
        return ", ".join(repr(spec.name) for spec in self.specs)


def bind_specs(
    actual: Sequence[TensorSpec], declared: Sequence[TensorSpec], direction: str
) -> Bindings:
    """Match a manifest's tensors with the model's, in any order.

    Raises ModelLoadError if one does not fit.
    """
    renamed: dict[str, TensorSpec] = {}
    for position, spec in enumerate(declared):
        own = _find(actual, spec, position, len(declared))
        if own is None or own.name in renamed:
            names = ", ".join(repr(candidate.name) for candidate in actual) or "none"
            raise ModelLoadError(
                f"the manifest declares {direction} {spec.name!r}, but the model has {names}"
            )
        renamed[own.name] = _merge(own, spec, direction)
    specs = tuple(renamed.get(spec.name, spec) for spec in actual)
    by_name: dict[str, tuple[TensorSpec, str]] = {}
    for spec, own in zip(specs, actual, strict=True):
        by_name |= {
            name: (spec, own.name) for name in spec.aliases if name not in by_name
        }
    # A tensor's name comes before another one's alias, and the manifest's before the file's.
    by_name |= {
        own.name: (spec, own.name) for spec, own in zip(specs, actual, strict=True)
    }
    by_name |= {
        spec.name: (spec, own.name) for spec, own in zip(specs, actual, strict=True)
    }
    return Bindings(specs, by_name)


def _find(
    actual: Sequence[TensorSpec], spec: TensorSpec, position: int, count: int
) -> TensorSpec | None:
    """Find a declared tensor by name, by alias, or by position."""
    for candidate in actual:
        if spec.name == candidate.name:
            return candidate
    for candidate in actual:
        if spec.name in candidate.aliases:
            return candidate
    # Names that differ altogether are matched in order, when both sides have as many.
    return actual[position] if count == len(actual) else None


def _merge(own: TensorSpec, declared: TensorSpec, direction: str) -> TensorSpec:
    if declared.datatype != own.datatype:
        raise ModelLoadError(
            f"the manifest says {direction} {declared.name!r} is {declared.datatype}, but the model has {own.datatype}"
        )
    fits = len(own.shape) == len(declared.shape) and all(
        -1 in (a, b) or a == b for a, b in zip(own.shape, declared.shape, strict=True)
    )
    if not fits:
        shapes = f"shape {list(declared.shape)}, but the model has {list(own.shape)}"
        raise ModelLoadError(
            f"the manifest says {direction} {declared.name!r} has {shapes}"
        )
    # A manifest may fix a dimension that the file leaves open, but cannot open one that the file fixes.
    shape = tuple(
        a if a != -1 else b for a, b in zip(own.shape, declared.shape, strict=True)
    )
    return own._replace(
        name=declared.name, shape=shape, aliases=(*own.aliases, own.name)
    )
