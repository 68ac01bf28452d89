"""List and name the devices that can run a version on this machine.

A device is given by the options that select it in a manifest's ``[versions.NAME]``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketserve.runtimes.model_format import ModelFormat

Options = Mapping[str, Any]

PROVIDER = "ExecutionProvider"
"""Suffix of ONNX Runtime's device names."""


def devices_of(format: ModelFormat, options: Options) -> dict[str, Options]:
    """Map each available device to the options that select it, current one first.

    Raises:
        RuntimeMissingError, ModelLoadError: the framework cannot be imported.
    """
    if format.devices is None:
        return {"cpu": options}
    return dict(format.devices(options))


def device_name(text: str) -> str:
    """Normalize a device name: ``NnapiExecutionProvider`` becomes ``nnapi``."""
    return text.strip().removesuffix(PROVIDER).lower()


def is_accelerated(options: Options) -> bool:
    """Return whether a version requests a device other than the CPU."""
    return bool(options.keys() & {"delegate", "providers"})


def current_first(
    devices: Mapping[str, Options], current: str, options: Options
) -> dict[str, Options]:
    """Move the current device to the front, with the version's own options."""
    remaining = dict(devices)
    remaining.pop(current, None)
    return {current: options, **remaining}
