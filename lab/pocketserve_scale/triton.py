"""Export a models folder as a model repository of Triton, which our engine runs.

Triton's versions are numbers and ours are names, so each version is a model of its own,
``digits.tflite-int8``. The default version is also exported as ``digits``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.service import Service
from pocketserve.tensors import TensorSpec
from pocketserve_wire import DATATYPES, ApiError

CONFIG_FILE: Final = "config.pbtxt"
MAX_NAME_BYTES: Final = 255
"""Length of a folder's name, on all common file systems."""
MODEL_CODE: Final = '''"""The same for every model; config.pbtxt names it.

Triton's Python needs pocketserve.
"""

import os
import sys

# Triton's Python ignores the variable.
sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))

from pocketserve_scale.triton_model import TritonPythonModel  # noqa: E402

__all__ = ["TritonPythonModel"]
'''


class ExportRow(NamedTuple):
    """A version, exported or left out.

    Attributes:
        names: of its models in Triton; empty if it is left out.
        reason: why it is left out.
    """

    model: str
    version: str
    names: tuple[str, ...]
    reason: str = ""


def export_models(service: Service, models_dir: Path, target: Path) -> list[ExportRow]:
    """Write a Triton model for each suitable version.

    The folder appears atomically.

    Args:
        models_dir: the folder's path for Triton's processes.
        target: a folder that does not exist yet.

    Returns:
        A row for each version, left out or not.

    Raises:
        FileExistsError, OSError: the target cannot be made.
    """
    if target.exists():
        raise FileExistsError(17, "it exists already", str(target))
    partial = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
    partial.mkdir(parents=True)
    rows = []
    try:
        for status in service.statuses():
            rows.append(
                _export(service, status.model, status.version, models_dir, partial)
            )
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return rows


def _export(
    service: Service, name: str, version: str, models_dir: Path, folder: Path
) -> ExportRow:
    names: tuple[str, ...] = (f"{name}.{version}",)
    try:
        with service.running(name, version) as (entry, handle):
            if version == entry.default_version:
                names = (*names, name)
            reason = _left_out(handle) or _unnameable(names, folder)
            if reason:
                return ExportRow(name, version, (), reason)
            for triton_name in names:
                _write_model(folder / triton_name, triton_name, handle, models_dir)
    except ApiError as error:
        return ExportRow(name, version, (), f"{error.code.name}: {error.message}")
    return ExportRow(name, version, names)


def _write_model(
    folder: Path, name: str, handle: ModelHandle, models_dir: Path
) -> None:
    code = folder / "1" / "model.py"
    code.parent.mkdir(parents=True)
    code.write_text(MODEL_CODE)
    (folder / CONFIG_FILE).write_text(config_text(name, handle, models_dir))


def _left_out(handle: ModelHandle) -> str:
    """Return why a version cannot run in Triton's Python backend.

    Empty if it can.
    """
    if handle.sequences is not None:
        return (
            "it keeps state between requests, which Triton would spread over processes"
        )
    for spec in (*handle.model.inputs.specs, *handle.model.outputs.specs):
        if spec.open:
            return "its file does not state shapes and datatypes, which Triton needs"
        if spec.datatype == "BF16":
            return "Triton's Python backend has no BF16"
    return ""


def _unnameable(names: Sequence[str], folder: Path) -> str:
    """Return why these names of folders are impossible.

    Empty if they are not.
    """
    for name in names:
        if len(os.fsencode(name)) > MAX_NAME_BYTES:
            return (
                "its name in Triton, model and version, is longer than "
                f"{MAX_NAME_BYTES} bytes: rename the model"
            )
        if (folder / name).exists():
            return (
                f"another version is {name!r} in Triton already: rename one of the "
                "models"
            )
    return ""


def config_text(name: str, handle: ModelHandle, models_dir: Path) -> str:
    """Return a model's ``config.pbtxt``, Triton's ModelConfig in text form."""
    model = handle.model
    lines = [
        f"name: {_quoted(name)}",
        'backend: "python"',
        "max_batch_size: 0  # the shapes hold the batch already",
    ]
    for spec in model.inputs.specs:
        lines += _tensor("input", spec)
    for spec in model.outputs.specs:
        lines += _tensor("output", spec)
    lines += [
        "instance_group [ { kind: KIND_CPU count: 1 } ]",
        _parameter("model", model.entry.name),
        _parameter("version", model.version.name),
        _parameter("models_dir", str(models_dir)),
    ]
    return "\n".join(lines) + "\n"


def _parameter(key: str, value: str) -> str:
    text = f"value: {{ string_value: {_quoted(value)} }}"
    return f"parameters {{ key: {_quoted(key)} {text} }}"


def _tensor(kind: str, spec: TensorSpec) -> Sequence[str]:
    # Triton has no scalars: they have one element in a row.
    dims = ", ".join(map(str, spec.shape or (1,)))
    datatype = DATATYPES[spec.datatype].protobuf_name
    return [
        f"{kind} [",
        f"  {{ name: {_quoted(spec.name)} data_type: {datatype} dims: [ {dims} ] }}",
        "]",
    ]


def _quoted(text: str) -> str:
    """Quote a text for a protocol buffer's text form.

    Bytes outside printable ASCII are octal.
    """
    quoted = ""
    for byte in os.fsencode(text):
        if 32 <= byte < 127 and byte not in b'"\\':
            quoted += chr(byte)
        else:
            quoted += f"\\{byte:03o}"
    return f'"{quoted}"'
