"""Parse ``model.toml``, the owner's settings of a model.

Every error names the file, the key and the fix. ``docs/manifest.md`` documents
the format.
"""

from __future__ import annotations

import math
import re
import string
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pocketserve.repository.toml_table import ManifestError, Section, TomlTable
from pocketserve.task_registry import TASK_NAMES, parameter_names, task_named
from pocketserve.tensors import TensorSpec
from pocketserve_wire import DATATYPES
from pocketserve_wire.files.plain_file import read_plain
from pocketserve_wire.limits import MAX_RANK

FILE_NAME = "model.toml"
MAX_MANIFEST_BYTES = 256 * 1024
MAX_DOTS_SQUARED = 2**24
"""Limit of the sum over all lines. tomllib keeps every prefix of a dotted key, so a key
with 130,000 parts would exhaust the memory."""

MAX_DEPTH = 32
MAX_START_ELEMENTS = 2**26
"""Elements of a state's initial zeros: 256 MiB of FP32 for each sequence, and for each
request without one."""

MAX_FIXED_INPUTS = 64
DEFAULT_IDLE_S = 60.0
MAX_LANGUAGES = 256  # of labels; a requested language is compared with all of them

Options = TypeVar("Options")


class StateOptions(NamedTuple):
    """The settings of a model that keeps state between requests."""

    feedback: Mapping[str, str] = {}
    """The previous step's output by input."""
    start: Mapping[str, tuple[int, ...]] = {}
    """The shape of the initial zeros by input, unless free sizes become 1."""
    max_sequences: int | None = None
    """Limit of open sequences; None leaves it to the engine."""
    max_idle: float = DEFAULT_IDLE_S
    """Seconds without a request after which a sequence is closed."""


class VersionOptions(NamedTuple):
    """A ``[versions.NAME]`` table."""

    file: str
    """Path relative to the model's folder."""
    options: Mapping[str, Any] = {}
    """The runtime's keys, such as ``weights``."""
    evaluation: Mapping[str, Any] = {}
    """Measurements by its recipe: ``dataset``, ``metric``, ``value``."""
    sha256: str | None = None
    """The expected hash of the file's content."""
    provenance: Mapping[str, Any] = {}
    """Its origin: ``source``, ``date``; for a conversion also ``tools``."""
    input_shapes: Mapping[str, tuple[int, ...]] = {}
    """The shapes of inputs whose sizes are free in other versions only."""

    @property
    def is_converted(self) -> bool:
        """Return whether a conversion created the file."""
        return "tools" in self.provenance


class Manifest(NamedTuple):
    """A parsed manifest. Every key is optional; an empty manifest is valid."""

    description: str = ""
    license: str = ""
    task: str | None = None
    default_version: str | None = None
    labels: str | tuple[str, ...] | None = None
    """The labels, or the file that contains them."""
    translations: Mapping[str, str | tuple[str, ...]] = {}
    threads: int | None = None
    instances: int = 1
    queue_limit: int | None = None
    batching: bool | None = None
    max_batch: int | None = None
    keep_alive: float | None = None
    sections: Mapping[type, Any] = {}
    """The options of tasks by class."""
    state: StateOptions = StateOptions()
    feature_names: tuple[str, ...] = ()
    feature_units: tuple[str, ...] = ()
    feature_minimum: tuple[float, ...] = ()
    """Usual lowest values."""
    feature_maximum: tuple[float, ...] = ()
    """Usual highest values."""
    target_name: str = ""
    target_unit: str = ""
    target_names: tuple[str, ...] = ()
    """Of a model with several targets, in the order of its outputs."""
    target_units: tuple[str, ...] = ()
    ignored_keys: tuple[str, ...] = ()
    """Unsupported keys of other tools' files that the owner knows to be irrelevant."""
    fixed_inputs: Mapping[str, Any] = {}
    """The constant value of an input: a number or nested lists of numbers."""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    versions: Mapping[str, VersionOptions] = {}
    files: tuple[str, ...] = ()
    """Names of files in the options of tasks, such as a vocabulary."""

    def section(self, kind: type[Options]) -> Options:
        """Return the options of a task's table, or their defaults."""
        options: Options = self.sections.get(kind) or kind()
        return options

    def inputs_of(self, version: str) -> tuple[TensorSpec, ...]:
        """Return a version's inputs with its own fixed sizes."""
        options = self.versions.get(version)
        if options is None or not options.input_shapes:
            return self.inputs
        specs = []
        for spec in self.inputs:
            shape = options.input_shapes.get(spec.name, spec.shape)
            specs.append(spec._replace(shape=shape))
        return tuple(specs)

    def of_one_version(self) -> Manifest:
        """Return the manifest without other versions and descriptions."""
        return self._replace(
            description="", license="", versions={}, default_version=None
        )


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest file."""
    try:
        content = read_plain(path, MAX_MANIFEST_BYTES)
        _check_dots(content, path.name)
        document = tomllib.loads(content.decode("utf-8"))
        if not _is_shallow(document, MAX_DEPTH):
            raise ManifestError(
                f"{path.name}: its tables and lists are nested more than {MAX_DEPTH} "
                "deep"
            )
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(
            f"{path.name}: not valid TOML: {error}{_hint(content, str(error))}"
        ) from None
    except OSError as error:
        raise ManifestError(f"{path.name}: cannot be read: {error.strerror}") from None
    # ValueError: not UTF-8, or an integer with too many digits.
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path.name}: cannot be read: {error}") from None
    return parse_manifest(document, path.name)


def _check_dots(content: bytes, file_name: str) -> None:
    dots_squared = 0
    for line in content.split(b"\n"):
        dots_squared += line.count(b".") ** 2
    if dots_squared > MAX_DOTS_SQUARED:
        raise ManifestError(
            f"{file_name}: it has lines with too many dots; "
            "put fewer numbers into a line"
        )


def _hint(content: bytes, error: str) -> str:
    """Return the fix for an unquoted value, or ""."""
    number = re.search(r"at line (\d+)", error)
    if number is None:
        return ""
    line = content.decode().split("\n")[int(number[1]) - 1]
    bare = re.fullmatch(r"\s*([\w.-]+)\s*=\s*([A-Za-z][\w./-]*)\s*(#.*)?", line)
    if bare is None:
        return ""
    key = bare[1]
    word = bare[2]
    if word in ("True", "False"):
        return f"; write {key} = {word.lower()}"
    return f'; put it in quotes: {key} = "{word}"'


def _is_shallow(value: Any, depth: int) -> bool:
    inside: Iterable[Any] = ()
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, list):
        inside = value
    return depth > 0 and all(_is_shallow(item, depth - 1) for item in inside)


def parse_manifest(document: Mapping[str, Any], file_name: str = FILE_NAME) -> Manifest:
    """Parse a manifest's TOML document."""
    table = TomlTable(document, file_name, "")
    features = table.table("features")
    target = table.table("target")
    state = table.table("state")
    task = table.choice("task", TASK_NAMES)
    manifest = _basic_manifest(table, task)
    manifest = _with_columns(manifest, features, target)
    manifest = manifest._replace(state=_state(state))
    parts = {
        "features": features,
        "target": target,
        "state": state,
        "": table,
    }
    # Last, because it imports other tasks only if keys are left.
    manifest = _with_sections(manifest, _sections(table, task, parts))
    for part in parts.values():
        part.refuse_rest(partial(_way_out, parts, task))
    _check_default_version(manifest, file_name)
    return manifest


def _basic_manifest(table: TomlTable, task: str | None) -> Manifest:
    """Parse everything except features, target, state and tasks."""
    return Manifest(
        description=table.text("description"),
        license=table.text("license"),
        task=task,
        default_version=table.text("default_version") or None,
        labels=table.path_or_texts("labels"),
        translations=_translations(table),
        threads=table.integer("threads", 1, 256),
        instances=table.integer("instances", 1, 64) or 1,
        queue_limit=table.integer("queue_limit", 1, 1024),
        batching=table.flag("batching"),
        max_batch=table.integer("max_batch", 1, 1024),
        keep_alive=table.number("keep_alive", 0, 1e9),
        ignored_keys=table.texts("ignored_keys"),
        fixed_inputs=_fixed_inputs(table),
        inputs=_specs(table, "inputs"),
        outputs=_specs(table, "outputs"),
        versions=_versions(table),
    )


def _with_columns(
    manifest: Manifest, features: TomlTable, target: TomlTable
) -> Manifest:
    """Add the descriptions of the features and targets."""
    minimum = features.numbers("minimum", each="feature")
    maximum = features.numbers("maximum", each="feature")
    return manifest._replace(
        feature_names=features.texts("names"),
        feature_units=features.texts("units"),
        feature_minimum=minimum or (),
        feature_maximum=maximum or (),
        target_name=target.text("name"),
        target_unit=target.text("unit"),
        target_names=target.texts("names"),
        target_units=target.texts("units"),
    )


def _with_sections(manifest: Manifest, pairs: list[tuple[Section, Any]]) -> Manifest:
    """Add the options of tasks, and their files."""
    sections = {}
    files: list[str] = []
    for section, options in pairs:
        sections[section.options] = options
        files += [name for name in section.files(options) if name is not None]
    return manifest._replace(sections=sections, files=tuple(files))


def _check_default_version(manifest: Manifest, file_name: str) -> None:
    default = manifest.default_version
    versions = manifest.versions
    if default and versions and default not in versions:
        raise ManifestError(
            f"{file_name}: default_version is {default!r}, but [versions] has "
            f"{', '.join(versions)}"
        )


def is_valid_name(name: str) -> bool:
    """Return whether a model or version may have a name."""
    if not 0 < len(name) <= 128:
        return False
    if name.startswith("."):
        return False
    if name == "stats":  # /v2/models/stats is the statistics of all models
        return False
    return not any(map(_is_forbidden, name))


def _is_forbidden(char: str) -> bool:
    """Return whether a name must not contain a character."""
    if char in "/:\\%?#":
        return True
    code = ord(char)
    if code < 33 or code == 127:
        return True
    return "\ud800" <= char <= "\udfff"


def _translations(table: TomlTable) -> dict[str, str | tuple[str, ...]]:
    """Parse ``[translations]``: labels by language."""
    inner = table.table("translations")
    labels = {}
    for tag in inner.left():
        translated = inner.path_or_texts(tag)
        if translated is not None:
            labels[tag] = translated
    if len(labels) > MAX_LANGUAGES:
        raise table.fault(
            "translations",
            f"names {len(labels)} languages; {MAX_LANGUAGES} are possible",
        )
    return labels


def _sections(
    table: TomlTable, task: str | None, parts: Mapping[str, TomlTable]
) -> list[tuple[Section, Any]]:
    """Parse the tables of tasks, the model's own first.

    Other tasks are imported only if keys are left.

    Args:
        parts: the other tables by name, for the error of an unknown key.
    """
    pairs = []
    for name in (task, *TASK_NAMES):
        if name is None or not table.left():
            continue
        for section in task_named(name).sections:
            inner = table.optional_table(section.name)
            if inner is not None:
                pairs.append((section, section.read(inner)))
                inner.refuse_rest(partial(_way_out, parts, task))
    return pairs


def _way_out(parts: Mapping[str, TomlTable], task: str | None, key: str) -> str:
    """Return where an unknown key would be valid, or ""."""
    if key in parts[""].known_keys():
        if key in parts or key in _table_names():
            return f"it is a table of its own, [{key}]"
        return "it belongs above the first [table]"
    names = []
    if task:
        names = _tables_with(key, (task,))
    if not names:
        names = [name for name, part in parts.items() if key in part.known_keys()]
        names += _tables_with(key, TASK_NAMES)
    if names:
        headers = [f"[{name}]" for name in names]
        return f"it belongs in {' or '.join(headers)}"
    if key not in parameter_names():
        return ""
    option = f"--set {key}=…"
    if key == "top_k":
        option = "--top-k N"
    return (
        f"each request states it, as the parameter {key}: "
        f"`pocketserve predict` takes {option}"
    )


def _table_names() -> set[str]:
    """Return the names of all tables of tasks."""
    names = set()
    for task in TASK_NAMES:
        names |= {section.name for section in task_named(task).sections}
    return names


def _tables_with(key: str, tasks: Sequence[str]) -> list[str]:
    """Return the tables of tasks that allow a key."""
    names = []
    for task in tasks:
        for section in task_named(task).sections:
            if key in section.known_keys():
                names.append(section.name)
    return list(dict.fromkeys(names))


def _state(table: TomlTable) -> StateOptions:
    """Parse ``[state]``."""
    feedback = table.table("feedback").rest()
    for name, output in feedback.items():
        if not isinstance(output, str):
            raise table.fault(f"feedback.{name}", "must name an output")
    shapes = _start_shapes(table, feedback)
    idle = table.number("max_idle", 0, 1e9)
    if idle is None:
        idle = DEFAULT_IDLE_S
    maximum = table.integer("max_sequences", 1, 1024)
    return StateOptions(feedback, shapes, maximum, idle)


def _start_shapes(
    table: TomlTable, feedback: Mapping[str, Any]
) -> dict[str, tuple[int, ...]]:
    """Parse ``[state.start]``: the shapes of a sequence's first inputs."""
    shapes = {}
    start = table.table("start").rest()
    for name, shape in start.items():
        key = f"start.{name}"
        if name not in feedback:
            raise table.fault(key, "is not an input of state.feedback")
        shapes[name] = _start_shape(table, key, shape)
    return shapes


def _start_shape(table: TomlTable, key: str, shape: Any) -> tuple[int, ...]:
    if not _is_shape(shape) or -1 in shape:
        raise table.fault(key, "must be a list of sizes, such as [1, 2, 0, 64]")
    limits = f"is larger than {MAX_START_ELEMENTS:,} numbers, or has too many sizes"
    if len(shape) > MAX_RANK or max(shape, default=0) > MAX_START_ELEMENTS:
        raise table.fault(key, limits)
    if math.prod(max(1, size) for size in shape) > MAX_START_ELEMENTS:
        raise table.fault(key, limits)
    return tuple(shape)


def _fixed_inputs(table: TomlTable) -> dict[str, Any]:
    """Parse ``[fixed_inputs]``: values by input."""
    values = table.table("fixed_inputs").rest()
    if len(values) > MAX_FIXED_INPUTS:
        raise table.fault(
            "fixed_inputs",
            f"has {len(values)} inputs; {MAX_FIXED_INPUTS} are possible",
        )
    for name, value in values.items():
        if not _is_numbers(value):
            raise table.fault(
                f"fixed_inputs.{name}",
                "must be a number or a list of numbers",
            )
    return values


def _is_numbers(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_numbers(item) for item in value)
    return isinstance(value, bool | int | float)


def _versions(table: TomlTable) -> dict[str, VersionOptions]:
    """Parse ``[versions]``."""
    versions: dict[str, VersionOptions] = {}
    for name, inner in table.named_tables("versions").items():
        if not is_valid_name(name):
            raise table.fault(
                f"versions.{name}",
                "is not a name that fits into a URL path",
            )
        file = inner.relative_path("file")
        if file is None:
            raise inner.fault("file", "is missing; name the model file")
        sha256 = inner.take("sha256", _is_sha256, "64 hexadecimal digits")
        evaluation = inner.table("evaluation").rest()
        provenance = inner.table("provenance").rest()
        input_shapes = _input_shapes(inner)
        versions[name] = VersionOptions(
            file,
            inner.rest(),
            evaluation,
            sha256,
            provenance,
            input_shapes,
        )
    return versions


def _input_shapes(version: TomlTable) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for name, shape in version.table("input_shapes").rest().items():
        if not _is_shape(shape) or len(shape) > MAX_RANK:
            raise version.fault(
                f"input_shapes.{name}",
                "must be a list of sizes, with -1 for free sizes",
            )
        shapes[name] = tuple(shape)
    return shapes


def _specs(table: TomlTable, key: str) -> tuple[TensorSpec, ...]:
    """Parse ``[[inputs]]`` or ``[[outputs]]``."""
    specs = []
    for inner in table.tables(key):
        name = inner.text("name")
        if not name:
            raise inner.fault("name", "is missing")
        datatype = inner.choice("datatype", tuple(DATATYPES))
        shape = inner.take(
            "shape",
            _is_shape,
            "a list of sizes, with -1 for free sizes",
        )
        if datatype is None:
            raise inner.fault("datatype", "is missing")
        if shape is None:
            raise inner.fault("shape", "is missing")
        inner.refuse_rest()
        specs.append(TensorSpec(name, datatype, tuple(shape)))
    return tuple(specs)


def _is_shape(value: Any) -> bool:
    """Return whether a value is a list of sizes."""
    if not isinstance(value, list):
        return False
    return all(type(dim) is int and dim >= -1 for dim in value)


def _is_sha256(value: Any) -> bool:
    if not isinstance(value, str) or len(value) != 64:
        return False
    return set(value) <= set(string.hexdigits)


def name_fault(name: str) -> str:
    """Return the advice for a file or folder with an invalid name."""
    return (
        f"{name[:128]!r} is skipped: a model's name has no spaces, none of "
        ": \\ % ? # and 128 characters at most, and is not stats; rename it"
    )
