"""Choose what runs a version: the devices that its format has on this machine, by the names that people give them.

A device is a table of options: what a manifest's ``[versions.NAME]`` holds to have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pocketserve.runtimes.model_format import ModelFormat

Options = Mapping[str, Any]

PROVIDER = "ExecutionProvider"
"""The end of ONNX Runtime's names."""


def devices_of(format: ModelFormat, options: Options) -> dict[str, Options]:
    """Return what a version can run on here: by each device's name the options that choose it, the present one first.

    Raises:
        RuntimeMissingError, ModelLoadError: the framework, which knows its devices, cannot be imported.
    """
    return {"cpu": options} if format.devices is None else dict(format.devices(options))


def device_name(text: str) -> str:
    """Return a device's name as people may write it, in one spelling: ``nnapi`` for ``NnapiExecutionProvider``."""
    return text.strip().removesuffix(PROVIDER).lower()


def is_accelerated(options: Options) -> bool:
    """Return whether a version asks for something beside the CPU, which may be ``required``."""
    return bool(options.keys() & {"delegate", "providers"})


def current_first(
    devices: Mapping[str, Options], current: str, options: Options
) -> dict[str, Options]:
    """Return the devices with the one in front that a version's own options choose; they stay as they are."""
    return {
        current: options,
        **{name: table for name, table in devices.items() if name != current},
    }
