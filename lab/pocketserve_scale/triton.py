"""A models folder as a model repository of Triton: one model for each version, run by our engine inside of Triton.

Triton's versions are numbers and ours are names, so each version is a model of its own, ``digits.tflite-int8``. The
default version is there as ``digits``, too.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.service import Service
from pocketserve.tensors import TensorSpec
from pocketserve_wire import DATATYPES, ApiError

CONFIG_FILE: Final = "config.pbtxt"
MAX_NAME_BYTES: Final = 255  # of a folder, on all usual file systems
MODEL_CODE: Final = '''"""The same for every model; config.pbtxt says which. Triton's Python needs pocketserve."""

import os
import sys

sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))  # Triton's Python passes over it

from pocketserve_scale.triton_model import TritonPythonModel  # noqa: E402

__all__ = ["TritonPythonModel"]
'''


class ExportRow(NamedTuple):
    """A version, exported or left out."""

    model: str
    version: str
    names: tuple[
        str, ...
    ]  # of the models that Triton has for it; empty where it is left out
    reason: str = ""  # why it is left out


def export_models(service: Service, models_dir: Path, target: Path) -> list[ExportRow]:
    """Write a Triton model for each version that can be one; the folder appears whole or not at all.

    Args:
        models_dir: the folder, as Triton's processes are to find it.
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
    try:
        rows = [
            _export(service, name, version, models_dir, partial)
            for name, version in _versions(service)
        ]
        partial.rename(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return rows


def _versions(service: Service) -> Iterator[tuple[str, str]]:
    for status in service.statuses():
        yield status.model, status.version


def _export(
    service: Service, name: str, version: str, models_dir: Path, folder: Path
) -> ExportRow:
    try:
        with service.running(name, version) as (entry, handle):
            names = (
                f"{name}.{version}",
                *((name,) if version == entry.default_version else ()),
            )
            reason = _left_out(handle) or _unnameable(names, folder)
            if reason:
                return ExportRow(name, version, (), reason)
            for triton_name in names:
                (folder / triton_name / "1").mkdir(parents=True)
                (folder / triton_name / "1" / "model.py").write_text(MODEL_CODE)
                (folder / triton_name / CONFIG_FILE).write_text(
                    config_text(triton_name, handle, models_dir)
                )
    except ApiError as error:
        return ExportRow(name, version, (), f"{error.code.name}: {error.message}")
    return ExportRow(name, version, names)


def _left_out(handle: ModelHandle) -> str:
    """Return why a loaded version cannot be a model of Triton's Python backend; empty where it can."""
    specs = (*handle.model.inputs.specs, *handle.model.outputs.specs)
    if handle.sequences is not None:
        return (
            "it keeps state between requests, which Triton would spread over processes"
        )
    if any(spec.open for spec in specs):
        return "its file does not tell shapes and datatypes, which Triton must know beforehand"
    if any(spec.datatype == "BF16" for spec in specs):
        return "Triton's Python backend has no BF16"
    return ""


def _unnameable(names: Sequence[str], folder: Path) -> str:
    """Return why Triton's models cannot have these names, which are those of their folders; empty where they can."""
    for name in names:
        if len(os.fsencode(name)) > MAX_NAME_BYTES:
            return f"its name in Triton, model and version, is longer than {MAX_NAME_BYTES} bytes: rename the model"
        if (folder / name).exists():
            return f"another version is {name!r} in Triton already: rename one of the models"
    return ""


def config_text(name: str, handle: ModelHandle, models_dir: Path) -> str:
    """Return a model's ``config.pbtxt``, a ModelConfig of Triton's ``model_config.proto`` in text form."""
    model = handle.model
    parameters = {
        "model": model.entry.name,
        "version": model.version.name,
        "models_dir": str(models_dir),
    }
    lines = [
        f"name: {_quoted(name)}",
        'backend: "python"',
        "max_batch_size: 0  # the shapes hold the batch already",
        *(line for spec in model.inputs.specs for line in _tensor("input", spec)),
        *(line for spec in model.outputs.specs for line in _tensor("output", spec)),
        "instance_group [ { kind: KIND_CPU count: 1 } ]",
        *(
            f"parameters {{ key: {_quoted(key)} {_string(value)} }}"
            for key, value in parameters.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def _tensor(kind: str, spec: TensorSpec) -> Sequence[str]:
    dims = ", ".join(
        map(str, spec.shape or (1,))
    )  # Triton knows no scalars: theirs have one element in a row
    datatype = DATATYPES[spec.datatype].protobuf_name
    return [
        f"{kind} [",
        f"  {{ name: {_quoted(spec.name)} data_type: {datatype} dims: [ {dims} ] }}",
        "]",
    ]


def _string(value: str) -> str:
    return f"value: {{ string_value: {_quoted(value)} }}"


def _quoted(text: str) -> str:
    """Return a text as a string of a protocol buffer's text form: bytes beyond printable ASCII in octal."""
    plain = (
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"
        for byte in os.fsencode(text)
    )
    return f'"{"".join(plain)}"'
