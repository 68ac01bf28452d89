"""Import ONNX Runtime and create its sessions."""

from __future__ import annotations

import logging
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pocketserve.runtimes.base import ModelLoadError, ModelSource
from pocketserve.runtimes.devices import Options, current_first, device_name
from pocketserve.runtimes.engines import engine_note
from pocketserve.runtimes.framework_import import require_framework
from pocketserve.runtimes.onnx import INSTALL

from .errors import clean_text

_log = logging.getLogger(__name__)

CPU = "CPUExecutionProvider"
_EXACT_SUMS = "session.x64quantprecision", "1"
"""Session entry for processors where :func:`sums_overflow`.

On other processors, runs would take three to four times as long.

Source: ``kOrtSessionOptionsAvx2PrecisionMode`` of ONNX Runtime.
"""
_SHARED_WEIGHTS = "Attempt to replace the existing tensor"
"""Part of an error if operators share int8 weights or zero points.

:data:`_EXACT_SUMS` then defines a name twice (1.31.1).
"""
_NO_DEVICES = (CPU, "AzureExecutionProvider")  # the latter uses a remote server


def provider_options(source: ModelSource) -> tuple[list[str], bool]:
    """Return the providers other than the CPU, and whether they are required."""
    names = source.options.get("providers", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ModelLoadError(
            'the option providers is a list such as ["NnapiExecutionProvider"], not '
            f"{names!r:.100}"
        )
    providers = [name for name in dict.fromkeys(names) if name != CPU]
    return providers, source.flag("required")


def onnx_devices(options: Options) -> dict[str, Options]:
    """Return a version's devices: the CPU and the available providers."""
    plain = dict(options)
    plain.pop("providers", None)
    plain.pop("required", None)
    devices = {"cpu": plain}
    for name in import_package("onnxruntime").get_available_providers():
        if name not in _NO_DEVICES:
            devices[device_name(name)] = plain | {"providers": [name]}
    current = "cpu"
    for name in options.get("providers", ()):
        if name != CPU:
            current = device_name(name)
            break
    return current_first(devices, current, options)


def import_package(module: str) -> Any:
    """Import ONNX Runtime with telemetry off."""
    ort = require_framework(module, "ONNX Runtime", INSTALL, needs="InferenceSession")
    getattr(ort, "disable_telemetry_events", lambda: None)()
    return ort


def sums_overflow(
    machine: str = platform.machine(), processor: Path = Path("/proc/cpuinfo")
) -> bool:
    """Return whether ONNX Runtime's int8 sums overflow on this processor.

    They do on x86-64 without VNNI, and are up to 12 % off.

    Args:
        processor: the file with the processor's features; VNNI counts as missing if
            there is no such file.
    """
    if machine not in ("x86_64", "AMD64"):
        return False
    try:
        return "_vnni" not in processor.read_text(encoding="ascii", errors="replace")
    except OSError:
        return True


def open_native(
    ort: Any,
    path: Path,
    threads: int,
    providers: Sequence[str],
    required: bool,
    exact_sums: bool,
) -> tuple[Any, str]:
    """Create an InferenceSession; return it and its device.

    A provider that fails is left out unless it is required. A faulty model also fails on
    the CPU; that error is reported.

    Args:
        exact_sums: whether to prevent overflows of int8 sums, see
            :func:`sums_overflow`.
    """
    available = ort.get_available_providers()

    def check(names: Sequence[str], fault: str) -> None:
        if names and required:
            raise _provider_error(names, fault, available)

    missing = [name for name in providers if name not in available]
    check(missing, "is not part of this onnxruntime")
    present = [name for name in providers if name in available]
    fault = ""
    try:
        native = _native(ort, path, threads, present, exact_sums)
    except Exception as error:
        if not present:
            raise
        native = _native(ort, path, threads, [], exact_sums)
        fault = f" ({clean_text(str(error), 200)})"
        check(present, f"did not start{fault}")
    failed = [name for name in providers if name not in native.get_providers()]
    check(failed, "did not start")
    if failed:
        _log.warning(
            "%s runs without %s%s%s",
            path.name,
            ", ".join(failed),
            fault,
            engine_note(*failed),
        )
    device = _device(native)
    if device == "cpu":
        check(providers, "runs no part of this model")
    return native, device


def _provider_error(
    names: Sequence[str], fault: str, available: Sequence[str]
) -> ModelLoadError:
    note = engine_note(*set(names).difference(available))
    return ModelLoadError(
        f"the execution provider {', '.join(names)[:200]} {fault}; available "
        f"are {', '.join(available)}: change providers in model.toml, or remove "
        f"required to run on the CPU{note}"
    )


def _native(
    ort: Any, path: Path, threads: int, providers: Sequence[str], exact_sums: bool
) -> Any:
    if not exact_sums:
        return _session(ort, path, threads, providers)
    try:
        return _session(ort, path, threads, providers, _EXACT_SUMS)
    except Exception as error:
        if _SHARED_WEIGHTS not in str(error):
            raise
    _log.warning(
        "%s: operators share int8 weights or zero points, so that sums may overflow "
        "here",
        path.name,
    )
    return _session(ort, path, threads, providers)


def _session(
    ort: Any,
    path: Path,
    threads: int,
    providers: Sequence[str],
    *entries: tuple[str, str],
) -> Any:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Only fatal errors: others are raised, and their log lines would contain the model's
    # names.
    options.log_severity_level = 4
    # The memory pattern keeps a block per set of shapes: 138 MB instead of 97 MB for a
    # text detector with one shape, 244 instead of 186 with four, for 3 % of speed. The
    # arena stays on: without it 205 MB and 20 % slower (x86-64).
    options.enable_mem_pattern = False
    for pool in ("intra", "inter"):
        # Spinning keeps a phone's cores awake.
        options.add_session_config_entry(f"session.{pool}_op.allow_spinning", "0")
    # The check covers ONNX only, whatever the file's name.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    for entry in entries:
        options.add_session_config_entry(*entry)
    if providers:
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return ort.InferenceSession(
        str(path),
        options,
        providers=[*providers, CPU],
        enable_fallback=0,
        read_config_from_model=0,
    )


def _device(native: Any) -> str:
    """Return the providers that run a part of the model.

    Older packages report all providers of the session instead.
    """
    names = list(native.get_providers())
    if names != [CPU] and hasattr(native, "get_provider_graph_assignment_info"):
        used = {part.ep_name for part in native.get_provider_graph_assignment_info()}
        names = [name for name in names if name in used]
    devices = []
    for name in names or [CPU]:
        if name == CPU:
            devices.append("cpu")
        else:
            devices.append(name)
    return ", ".join(devices)
