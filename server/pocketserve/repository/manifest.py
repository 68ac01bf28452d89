"""``model.toml``: what a model's owner says of it, checked key by key.

Every fault names the file, the key and the fix. The format is documented in ``docs/manifest.md``.
"""

from __future__ import annotations

import math
import re
import string
import tomllib
from collections.abc import Mapping, Sequence
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
"""Of all lines. tomllib keeps each beginning of a dotted key, so that one of 130,000 parts would take all memory."""

MAX_DEPTH = 32
MAX_START_ELEMENTS = 2**26
"""Of a state's first zeros, 256 MiB of FP32: each request of no sequence, and each sequence, has its own."""

MAX_FIXED_INPUTS = 64
MAX_LANGUAGES = 256  # of labels. A request that names one is compared with all of them

Options = TypeVar("Options")


class StateOptions(NamedTuple):
    """A model that keeps state from request to request."""

    feedback: Mapping[
        str, str
    ] = {}  # input -> the output that it takes at the next step
    start: Mapping[
        str, tuple[int, ...]
    ] = {}  # input -> shape of its first zeros, if not its own with free sizes as 1
    max_sequences: int | None = (
        None  # sequences that may be open at a time; None leaves it to the engine
    )
    max_idle: float = (
        60.0  # seconds without a request after which a sequence is given up
    )


class VersionOptions(NamedTuple):
    """A ``[versions.NAME]`` table."""

    file: str  # relative to the model's folder
    options: Mapping[
        str, Any
    ] = {}  # the keys that belong to the runtime, such as ``weights``
    evaluation: Mapping[
        str, Any
    ] = {}  # what its recipe measured: ``dataset``, ``metric``, ``value``
    sha256: str | None = None  # what the file's content must hash to
    provenance: Mapping[
        str, Any
    ] = {}  # where it is from: ``source``, ``date``; of a conversion ``tools`` as well

    @property
    def is_converted(self) -> bool:
        """Return whether a conversion has made the file, and may make it anew."""
        return "tools" in self.provenance


class Manifest(NamedTuple):
    """A parsed manifest. Every key is optional; an empty manifest is valid."""

    description: str = ""
    license: str = ""
    task: str | None = None
    default_version: str | None = None
    labels: str | tuple[str, ...] | None = (
        None  # the file that holds them, or themselves
    )
    translations: Mapping[str, str | tuple[str, ...]] = {}
    threads: int | None = None
    instances: int = 1
    queue_limit: int | None = None
    batching: bool | None = None
    max_batch: int | None = None
    keep_alive: float | None = None
    sections: Mapping[
        type, Any
    ] = {}  # the tables of tasks, by the class of their options
    state: StateOptions = StateOptions()
    feature_names: tuple[str, ...] = ()
    feature_units: tuple[str, ...] = ()
    feature_minimum: tuple[float, ...] = ()  # usual least and greatest values
    feature_maximum: tuple[float, ...] = ()
    target_name: str = ""
    target_unit: str = ""
    target_names: tuple[
        str, ...
    ] = ()  # of a model with several targets, in the order of its outputs
    target_units: tuple[str, ...] = ()
    ignored_keys: tuple[
        str, ...
    ] = ()  # unsupported keys of other tools' files that the owner knows to be irrelevant
    fixed_inputs: Mapping[
        str, Any
    ] = {}  # input -> a number or nested lists of numbers that it always gets
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    versions: Mapping[str, VersionOptions] = {}
    files: tuple[
        str, ...
    ] = ()  # names of files that these tables name, such as a vocabulary

    def section(self, kind: type[Options]) -> Options:
        """Return the options in a task's own table, such as ``manifest.section(ImageOptions)``, or their defaults."""
        options: Options = self.sections.get(kind) or kind()
        return options

    def of_one_version(self) -> Manifest:
        """Return the manifest without what it says of other versions, and to people only."""
        return self._replace(
            description="", license="", versions={}, default_version=None
        )


def read_manifest(path: Path) -> Manifest:
    """Read and check a manifest file."""
    try:
        content = read_plain(path, MAX_MANIFEST_BYTES)
        if (
            sum(line.count(b".") ** 2 for line in content.split(b"\n"))
            > MAX_DOTS_SQUARED
        ):
            raise ManifestError(
                f"{path.name}: it has lines with too many dots; put fewer numbers into a line"
            )
        document = tomllib.loads(content.decode("utf-8"))
        if not _is_shallow(document, MAX_DEPTH):
            raise ManifestError(
                f"{path.name}: its tables and lists are nested more than {MAX_DEPTH} deep"
            )
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(
            f"{path.name}: not valid TOML: {error}{_hint(content, str(error))}"
        ) from None
    except OSError as error:
        raise ManifestError(f"{path.name}: cannot be read: {error.strerror}") from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # ValueError: not UTF-8, or an integer of too many digits
        raise ManifestError(f"{path.name}: cannot be read: {error}") from None
    return parse_manifest(document, path.name)


def _hint(content: bytes, error: str) -> str:
    """Return the cure of a bare word as a value in the line that an error names; empty for other faults."""
    number = re.search(r"at line (\d+)", error)
    line = content.decode().split("\n")[int(number[1]) - 1] if number else ""
    bare = re.fullmatch(r"\s*([\w.-]+)\s*=\s*([A-Za-z][\w./-]*)\s*(#.*)?", line)
    if bare is None:
        return ""
    key, word = bare[1], bare[2]
    return (
        f"; write {key} = {word.lower()}"
        if word in ("True", "False")
        else f'; put it in quotes: {key} = "{word}"'
    )


def _is_shallow(value: Any, depth: int) -> bool:
    inside = (
        value.values()
        if isinstance(value, dict)
        else value
        if isinstance(value, list)
        else ()
    )
    return depth > 0 and all(_is_shallow(item, depth - 1) for item in inside)


def parse_manifest(document: Mapping[str, Any], file_name: str = FILE_NAME) -> Manifest:
    """Check a manifest that is already parsed from TOML."""
    table = TomlTable(document, file_name, "")
    features = table.table("features")
    target = table.table("target")
    state = table.table("state")
    task = table.choice("task", TASK_NAMES)
    manifest = Manifest(
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
        state=_state(state),
        feature_names=features.texts("names"),
        feature_units=features.texts("units"),
        feature_minimum=features.numbers("minimum", each="feature") or (),
        feature_maximum=features.numbers("maximum", each="feature") or (),
        target_name=target.text("name"),
        target_unit=target.text("unit"),
        target_names=target.texts("names"),
        target_units=target.texts("units"),
        ignored_keys=table.texts("ignored_keys"),
        fixed_inputs=_fixed_inputs(table),
        inputs=_specs(table, "inputs"),
        outputs=_specs(table, "outputs"),
        versions=_versions(table),
    )
    parts = {"features": features, "target": target, "state": state, "": table}
    pairs = _sections(
        table, task, parts
    )  # last: all tasks are asked where a key is left
    files = (
        name
        for section, options in pairs
        for name in section.files(options)
        if name is not None
    )
    manifest = manifest._replace(
        sections={section.options: options for section, options in pairs},
        files=tuple(files),
    )
    for part in parts.values():
        part.refuse_rest(partial(_way_out, parts, task))
    default, versions = manifest.default_version, manifest.versions
    if default and versions and default not in versions:
        raise ManifestError(
            f"{file_name}: default_version is {default!r}, but [versions] has {', '.join(versions)}"
        )
    return manifest


def is_valid_name(name: str) -> bool:
    """Return whether a model or version may have this name: it stands in URL paths and in metrics."""
    return (
        0 < len(name) <= 128
        and not name.startswith(".")
        and name != "stats"  # /v2/models/stats is the statistics of all models
        and not any(
            char in "/:\\%?#" or ord(char) < 33 or ord(char) == 127 for char in name
        )
        and not any("\ud800" <= char <= "\udfff" for char in name)
    )


def _translations(table: TomlTable) -> dict[str, str | tuple[str, ...]]:
    """Parse ``[translations]``: what ``labels`` is, by language."""
    inner = table.table("translations")
    labels = {
        tag: each
        for tag in inner.left()
        if (each := inner.path_or_texts(tag)) is not None
    }
    if len(labels) > MAX_LANGUAGES:
        raise table.fault(
            "translations",
            f"names {len(labels)} languages; {MAX_LANGUAGES} are possible",
        )
    return labels


def _sections(
    table: TomlTable, task: str | None, parts: Mapping[str, TomlTable]
) -> list[tuple[Section, Any]]:
    """Parse the tables of tasks, the manifest's own task first: no other is imported where nothing else is left.

    Args:
        parts: the tables that belong to no task, by name, for the error of an unknown key.
    """
    pairs = []
    for name in (task, *TASK_NAMES):
        if name is not None and table.left():
            for section in task_named(name).sections:
                if (inner := table.optional_table(section.name)) is not None:
                    pairs.append((section, section.read(inner)))
                    inner.refuse_rest(partial(_way_out, parts, task))
    return pairs


def _way_out(parts: Mapping[str, TomlTable], task: str | None, key: str) -> str:
    """Return which table an unknown key belongs into, or how a request says it; empty where neither knows it."""
    if key in parts[""].known_keys():
        is_table = key in parts or any(
            section.name == key
            for name in TASK_NAMES
            for section in task_named(name).sections
        )
        return (
            f"it is a table of its own, [{key}]"
            if is_table
            else "it belongs above the first [table]"
        )
    own = _tables_with(key, (task,) if task else ())
    names = own or [
        name for name, part in parts.items() if key in part.known_keys()
    ] + _tables_with(key, TASK_NAMES)
    if names:
        return f"it belongs into {' or '.join(f'[{name}]' for name in names)}"
    if key not in parameter_names():
        return ""
    option = "--top-k N" if key == "top_k" else f"--set {key}=…"
    return f"each request says it, as the parameter {key}: `pocketserve predict` takes {option}"


def _tables_with(key: str, tasks: Sequence[str]) -> list[str]:
    """Return the names of tables of tasks that may have a key."""
    sections = {
        section.name: section for name in tasks for section in task_named(name).sections
    }
    return [name for name, section in sections.items() if key in section.known_keys()]


def _state(table: TomlTable) -> StateOptions:
    feedback = table.table("feedback").rest()
    for name, output in feedback.items():
        if not isinstance(output, str):
            raise table.fault(f"feedback.{name}", "must name an output")
    start = table.table("start").rest()
    for name, shape in start.items():
        if name not in feedback:
            raise table.fault(f"start.{name}", "is no input of state.feedback")
        if not _is_shape(shape) or -1 in shape:
            raise table.fault(
                f"start.{name}", "must be a list of sizes, such as [1, 2, 0, 64]"
            )
        if (
            len(shape) > MAX_RANK
            or math.prod(max(1, size) for size in shape) > MAX_START_ELEMENTS
        ):
            raise table.fault(
                f"start.{name}",
                f"is larger than {MAX_START_ELEMENTS:,} numbers, or has too many sizes",
            )
    idle, maximum = (
        table.number("max_idle", 0, 1e9),
        table.integer("max_sequences", 1, 1024),
    )
    shapes = {name: tuple(shape) for name, shape in start.items()}
    return StateOptions(feedback, shapes, maximum, 60.0 if idle is None else idle)


def _fixed_inputs(table: TomlTable) -> dict[str, Any]:
    """Parse ``[fixed_inputs]``: values by the names of inputs."""
    values = table.table("fixed_inputs").rest()
    if len(values) > MAX_FIXED_INPUTS:
        raise table.fault(
            "fixed_inputs", f"has {len(values)} inputs; {MAX_FIXED_INPUTS} are possible"
        )
    for name, value in values.items():
        if not _is_numbers(value):
            raise table.fault(
                f"fixed_inputs.{name}", "must be a number or a list of numbers"
            )
    return values


def _is_numbers(value: Any) -> bool:
    if isinstance(value, list):
        return all(_is_numbers(item) for item in value)
    return isinstance(value, bool | int | float)


def _versions(table: TomlTable) -> dict[str, VersionOptions]:
    versions: dict[str, VersionOptions] = {}
    for name, inner in table.named_tables("versions").items():
        if not is_valid_name(name):
            raise table.fault(
                f"versions.{name}", "is not a name that fits into a URL path"
            )
        file = inner.relative_path("file")
        if file is None:
            raise inner.fault("file", "is missing; name the model file")
        evaluation, provenance = (
            inner.table("evaluation").rest(),
            inner.table("provenance").rest(),
        )
        sha256 = inner.take("sha256", _is_sha256, "64 hexadecimal digits")
        versions[name] = VersionOptions(
            file, inner.rest(), evaluation, sha256, provenance
        )
    return versions


def _specs(table: TomlTable, key: str) -> tuple[TensorSpec, ...]:
    specs = []
    for inner in table.tables(key):
        name = inner.text("name")
        if not name:
            raise inner.fault("name", "is missing")
        datatype = inner.choice("datatype", tuple(DATATYPES))
        shape = inner.take(
            "shape", _is_shape, "a list of sizes, with -1 where the caller chooses"
        )
        if datatype is None or shape is None:
            raise inner.fault("datatype" if datatype is None else "shape", "is missing")
        inner.refuse_rest()
        specs.append(TensorSpec(name, datatype, tuple(shape)))
    return tuple(specs)


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(
        type(dim) is int and dim >= -1 for dim in value
    )


def _is_sha256(value: Any) -> bool:
    return (
        isinstance(value, str)
        and len(value) == 64
        and set(value) <= set(string.hexdigits)
    )


def name_fault(name: str) -> str:
    """Return what to do about a file or folder whose name :func:`is_valid_name` refuses."""
    return (
        f"{name[:128]!r} is passed over: a model's name has no spaces, none of : \\ % ? # and 128 characters at most, "
        "and is not stats; rename it"
    )
