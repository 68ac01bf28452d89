"""``model.toml``: what a model's owner says of it, checked key by key.

Every fault names the file, the key and the fix. The format is documented in ``docs/models.md``.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pocketserve.tensors import TensorSpec
from pocketserve_wire import DATATYPES

FILE_NAME = "model.toml"
MAX_MANIFEST_BYTES = 256 * 1024
TASKS = ("image-classification", "tabular-regression", "tensors")


class ManifestError(Exception):
    """A manifest that cannot be used; the text names the file, the key and the fix."""


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """How a picture becomes the input tensor: (pixel - mean) / std with pixels from 0 to 255."""

    color: str | None = None
    resize: str = "stretch"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    invert: str = "never"


@dataclass(frozen=True, slots=True)
class StateOptions:
    """A model that keeps state from request to request.

    Attributes:
        feedback: input -> the output that it takes at the next step.
        max_sequences: sequences that may be open at a time; None leaves it to the engine.
        max_idle: seconds without a request after which a sequence is given up.
    """

    feedback: Mapping[str, str] = field(default_factory=dict)
    max_sequences: int | None = None
    max_idle: float = 60.0


@dataclass(frozen=True, slots=True)
class VersionOptions:
    """One ``[versions.NAME]`` table.

    Attributes:
        file: relative to the model's folder.
        options: the keys that belong to the runtime, such as ``weights``.
        evaluation: what its recipe measured: ``dataset``, ``metric``, ``value``.
        sha256: what the file's content must hash to.
    """

    file: str
    options: Mapping[str, Any] = field(default_factory=dict)
    evaluation: Mapping[str, Any] = field(default_factory=dict)
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """A parsed manifest. Every key is optional; an empty manifest is valid."""

    description: str = ""
    license: str = ""
    task: str | None = None
    default_version: str | None = None
    labels: str | None = None
    threads: int | None = None
    instances: int = 1
    queue_limit: int | None = None
    keep_alive: float | None = None
    image: ImageOptions = field(default_factory=ImageOptions)
    state: StateOptions = field(default_factory=StateOptions)
    feature_names: tuple[str, ...] = ()
    feature_units: tuple[str, ...] = ()
    target_name: str = ""
    target_unit: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    versions: Mapping[str, VersionOptions] = field(default_factory=dict)


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest file.

    Raises:
        ManifestError: for anything that is not as documented.
    """
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ManifestError(f"{path.name}: larger than {MAX_MANIFEST_BYTES} bytes")
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"{path.name}: not valid TOML: {error}") from None
    except (OSError, ValueError, RecursionError) as error:  # ValueError: not UTF-8, or an integer of too many digits
        raise ManifestError(f"{path.name}: cannot be read: {error}") from None
    return parse_manifest(document, path.name)


def parse_manifest(document: Mapping[str, Any], file_name: str = FILE_NAME) -> Manifest:
    """Check a manifest that is already parsed from TOML.

    Raises:
        ManifestError: for an unknown key, a wrong type or a value out of range.
    """
    table = _Table(document, file_name, "")
    image = table.table("image")
    features = table.table("features")
    target = table.table("target")
    state = table.table("state")
    manifest = Manifest(
        description=table.text("description"),
        license=table.text("license"),
        task=table.choice("task", TASKS),
        default_version=table.text("default_version") or None,
        labels=table.relative_path("labels"),
        threads=table.integer("threads", 1, 256),
        instances=table.integer("instances", 1, 64) or 1,
        queue_limit=table.integer("queue_limit", 1, 1024),
        keep_alive=table.number("keep_alive", 0, 1e9),
        image=ImageOptions(
            color=image.choice("color", ("rgb", "grayscale")),
            resize=image.choice("resize", ("stretch", "crop", "letterbox")) or "stretch",
            mean=image.numbers("mean"),
            std=image.numbers("std", nonzero=True),
            invert=image.choice("invert", ("never", "always", "auto")) or "never",
        ),
        state=_state(state),
        feature_names=features.texts("names"),
        feature_units=features.texts("units"),
        target_name=target.text("name"),
        target_unit=target.text("unit"),
        inputs=_specs(table, "inputs"),
        outputs=_specs(table, "outputs"),
        versions=_versions(table),
    )
    for part in (image, features, target, state, table):
        part.refuse_rest()
    if manifest.default_version and manifest.versions and manifest.default_version not in manifest.versions:
        raise ManifestError(
            f"{file_name}: default_version is {manifest.default_version!r}, "
            f"but [versions] has {', '.join(manifest.versions)}"
        )
    return manifest


class _Table:
    """One TOML table that is taken apart key by key; what is left over at the end is a spelling mistake."""

    def __init__(self, values: Mapping[str, Any], file_name: str, prefix: str) -> None:
        self._left = dict(values)
        self._known: list[str] = []
        self._file = file_name
        self._prefix = prefix

    def fault(self, key: str, detail: str) -> ManifestError:
        return ManifestError(f"{self._file}: {self._prefix}{key} {detail}")

    def take(self, key: str, check: Callable[[Any], bool], expected: str) -> Any:
        self._known.append(key)
        value = self._left.pop(key, None)
        if value is not None and not check(value):
            raise self.fault(key, f"must be {expected}, not {_show(value)}")
        return value

    def text(self, key: str) -> str:
        return self.take(key, lambda value: isinstance(value, str), "text") or ""

    def texts(self, key: str) -> tuple[str, ...]:
        check = lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value)  # noqa: E731
        return tuple(self.take(key, check, "a list of texts") or ())

    def choice(self, key: str, choices: tuple[str, ...]) -> str | None:
        value: str | None = self.take(key, lambda value: value in choices, f"one of {', '.join(choices)}")
        return value

    def integer(self, key: str, low: int, high: int) -> int | None:
        check = lambda value: type(value) is int and low <= value <= high  # noqa: E731
        value: int | None = self.take(key, check, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, low: float, high: float) -> float | None:
        check = lambda value: _is_number(value) and low <= value <= high  # noqa: E731
        value: float | None = self.take(key, check, f"a number from {low:g} to {high:g}")
        return value

    def numbers(self, key: str, *, nonzero: bool = False) -> tuple[float, ...] | None:
        def check(value: Any) -> bool:
            items = value if isinstance(value, list) else [value]
            return bool(items) and all(_is_number(item) and (item or not nonzero) for item in items)

        value = self.take(key, check, "numbers, one per colour channel" + (" and none of them 0" if nonzero else ""))
        if value is None:
            return None
        return tuple(float(item) for item in (value if isinstance(value, list) else [value]))

    def relative_path(self, key: str) -> str | None:
        value: str | None = self.take(key, is_contained_name, "a path inside the model's folder")
        return value

    def table(self, key: str) -> _Table:
        value = self.take(key, lambda value: isinstance(value, dict), "a table")
        return _Table(value or {}, self._file, f"{self._prefix}{key}.")

    def tables(self, key: str) -> list[_Table]:
        check = lambda value: isinstance(value, list) and all(isinstance(item, dict) for item in value)  # noqa: E731
        values = self.take(key, check, f"a list of tables ([[{key}]])") or []
        return [_Table(value, self._file, f"{self._prefix}{key}[{index}].") for index, value in enumerate(values)]

    def named_tables(self, key: str) -> dict[str, _Table]:
        inner = self.table(key)
        return {name: inner.table(name) for name in list(inner._left)}

    def rest(self) -> dict[str, Any]:
        rest, self._left = self._left, {}
        return rest

    def refuse_rest(self) -> None:
        for key in self._left:
            close = difflib.get_close_matches(key, self._known, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known keys are {', '.join(self._known)}"
            raise ManifestError(f"{self._file}: unknown key {self._prefix}{key}; {hint}")


def is_contained_name(value: object) -> bool:
    """Whether a manifest's path is relative and stays below its folder as written (links are checked later)."""
    if not isinstance(value, str) or not value or "\0" in value or "\\" in value or value.startswith("/"):
        return False
    return ".." not in value.split("/")


def is_valid_name(name: str) -> bool:
    """Whether a model or version may have this name: it stands in URL paths and in metrics."""
    return (
        0 < len(name) <= 128
        and not name.startswith(".")
        and name != "stats"  # /v2/models/stats is the statistics of all models
        and not any(char in "/:\\%?#" or ord(char) < 33 or ord(char) == 127 for char in name)
        and not any("\ud800" <= char <= "\udfff" for char in name)
    )


def _state(table: _Table) -> StateOptions:
    feedback = table.table("feedback").rest()
    for taken, given in feedback.items():
        if not isinstance(given, str):
            raise table.fault(f"feedback.{taken}", "must name an output")
    max_idle = table.number("max_idle", 0, 1e9)
    most = table.integer("max_sequences", 1, 1024)
    return StateOptions(feedback, most, StateOptions().max_idle if max_idle is None else max_idle)


def _versions(table: _Table) -> dict[str, VersionOptions]:
    versions: dict[str, VersionOptions] = {}
    for name, inner in table.named_tables("versions").items():
        if not is_valid_name(name):
            raise table.fault(f"versions.{name}", "is not a name that fits into a URL path")
        file = inner.relative_path("file")
        if file is None:
            raise inner.fault("file", "is missing; name the model file")
        evaluation = inner.table("evaluation").rest()
        sha256 = inner.take("sha256", _is_sha256, "64 hexadecimal digits")
        versions[name] = VersionOptions(file=file, evaluation=evaluation, sha256=sha256, options=inner.rest())
    return versions


def _specs(table: _Table, key: str) -> tuple[TensorSpec, ...]:
    specs = []
    for inner in table.tables(key):
        name = inner.text("name")
        if not name:
            raise inner.fault("name", "is missing")
        datatype = inner.choice("datatype", tuple(DATATYPES))
        shape = inner.take("shape", _is_shape, "a list of sizes, with -1 where the caller chooses")
        if datatype is None or shape is None:
            raise inner.fault("datatype" if datatype is None else "shape", "is missing")
        inner.refuse_rest()
        specs.append(TensorSpec(name, datatype, tuple(shape)))
    return tuple(specs)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(dim) is int and dim >= -1 for dim in value)


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and len(value) == 64 and all(char in "0123456789abcdefABCDEF" for char in value)


def _is_number(value: Any) -> bool:
    # Bounded so that it fits a float32; NaN and infinities fail the comparison.
    return isinstance(value, int | float) and not isinstance(value, bool) and -1e30 <= value <= 1e30


def _show(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except ValueError:  # TOML reads hexadecimal integers of any length; Python prints 4300 digits at most
        return "a number of over 4300 digits"
