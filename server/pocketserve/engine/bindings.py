"""Maps public tensor names and specs to a session's.

A manifest may give a tensor a friendlier name, and a TFLite signature does too; any of the names is accepted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tensors import TensorSpec


class Bindings(NamedTuple):
    """The inputs, or the outputs, of an entry point.

    Attributes:
        specs: public specs in the model's order.
        by_name: spec and session's name of every accepted name.
    """

    specs: tuple[TensorSpec, ...]
    by_name: Mapping[str, tuple[TensorSpec, str]]

    def names(self) -> str:
        """Return the public names as a list for messages."""
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
            names = [repr(candidate.name) for candidate in actual]
            raise ModelLoadError(
                f"the manifest declares {direction} {spec.name!r}, "
                f"but the model has {', '.join(names) or 'none'}"
            )
        renamed[own.name] = _merge(own, spec, direction)
    specs = tuple(renamed.get(spec.name, spec) for spec in actual)
    return Bindings(specs, _by_name(specs, actual))


def _by_name(
    specs: Sequence[TensorSpec], actual: Sequence[TensorSpec]
) -> dict[str, tuple[TensorSpec, str]]:
    """Return all accepted names.

    A tensor's name takes precedence over another one's alias, and the manifest's name
    over the file's.
    """
    by_name: dict[str, tuple[TensorSpec, str]] = {}
    pairs = list(zip(specs, actual, strict=True))
    for spec, own in pairs:
        for alias in spec.aliases:
            by_name.setdefault(alias, (spec, own.name))
    for spec, own in pairs:
        by_name[own.name] = (spec, own.name)
    for spec, own in pairs:
        by_name[spec.name] = (spec, own.name)
    return by_name


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
    """Return a model's spec with the manifest's name and fixed dimensions."""
    name = declared.name
    declares = f"the manifest says {direction} {name!r}"
    if declared.datatype != own.datatype:
        raise ModelLoadError(
            f"{declares} is {declared.datatype}, but the model has {own.datatype}"
        )
    if not _fits(own.shape, declared.shape):
        raise ModelLoadError(
            f"{declares} has shape {list(declared.shape)}, "
            f"but the model has {list(own.shape)}"
        )
    # A manifest may fix a dimension that the file leaves open, but not the reverse.
    shape = []
    for size, declared_size in zip(own.shape, declared.shape, strict=True):
        shape.append(declared_size if size == -1 else size)
    aliases = (*own.aliases, own.name)
    return own._replace(name=name, shape=tuple(shape), aliases=aliases)


def _fits(shape: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    if len(shape) != len(declared):
        return False
    for size, declared_size in zip(shape, declared, strict=True):
        if size != declared_size and -1 not in (size, declared_size):
            return False
    return True
