"""Read Triton's ``config.pbtxt``: apply supported settings, report the others.

The file is a protocol buffer in text form, a ``ModelConfig`` of Triton's
``model_config.proto``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pocketserve.repository.manifest import Manifest, StateOptions
from pocketserve.repository.toml_table import is_contained_name
from pocketserve.repository.triton_fields import MAX_NOTES, Message, check_fields
from pocketserve.repository.version_policy import VersionPolicy
from pocketserve_wire.files.plain_file import read_plain

MAX_BYTES = 1 << 20
MAX_DEPTH = 16
MAX_ROWS = 1024  # limit of ``max_batch`` in a manifest
MAX_WAITING = 1024  # limit of ``queue_limit`` in a manifest
MAX_IDLE_S = 86_400.0
MAX_DIGITS = 20

_TOKEN = re.compile(
    r"\s+|#[^\n]*"
    r"|(?P<text>\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')"
    r"|(?P<word>[A-Za-z_][\w.]*|[-+]?[\d.][\w.+-]*)|(?P<mark>[{}\[\]:,;])"
)
MAX_NUMBERS = 64  # versions in ``version_policy``

BACKENDS = frozenset({"onnxruntime", "pytorch", "tensorflow", "armnn_tflite"})
PLATFORMS = frozenset({"onnxruntime_onnx", "pytorch_libtorch", "tensorflow_savedmodel"})
"""Triton's backends and platforms for formats that are served here."""

CHOOSING_PARAMETERS = frozenset(
    {"TF_SIGNATURE_DEF", "TF_GRAPH_TAG", "TF_INIT_OPS_FILE"}
)
"""Parameters of backends that select the graph to run."""


class TextFormatError(ValueError):
    """The file is not a protocol buffer in text form."""


class TritonConfig(NamedTuple):
    """The supported settings of a ``config.pbtxt``.

    Attributes:
        labels: the label file of the first output.
        problem: why the model cannot be served.
        notes: sentences about settings that are not applied.
        file_name: the model file in each version's folder.
        max_batch: rows of a batch; 0 for no batching.
        feedback: the previous step's output by input.
        max_idle: seconds until an idle sequence is closed.
    """

    labels: str | None = None
    problem: str | None = None
    notes: tuple[str, ...] = ()
    policy: VersionPolicy = VersionPolicy()
    file_name: str | None = None
    max_batch: int | None = None
    queue_limit: int | None = None
    feedback: Mapping[str, str] = {}
    max_idle: float | None = None

    def manifest(self) -> Manifest:
        """Return the settings as a manifest."""
        state = StateOptions(feedback=self.feedback)
        if self.max_idle is not None:
            state = state._replace(max_idle=self.max_idle)
        manifest = Manifest(
            labels=self.labels, queue_limit=self.queue_limit, state=state
        )
        if self.max_batch == 0:
            return manifest._replace(batching=False)
        return manifest._replace(max_batch=self.max_batch)


def read_config(path: Path) -> TritonConfig:
    """Read a ``config.pbtxt``; all errors are reported in ``problem``."""
    name = f"{path.parent.name}/{path.name}"
    try:
        text = read_plain(path, MAX_BYTES).decode("utf-8")
        config = parse(text.replace("\r\n", "\n").replace("\r", "\n"))
        problem, notes = check_fields(config)
        if problem is not None:
            return TritonConfig(problem=f"{name}: {problem}", notes=notes)
        return _read(config, name, notes)
    except OSError as error:
        return TritonConfig(problem=f"{name} cannot be read: {error.strerror}")
    except UnservedError as error:
        return TritonConfig(problem=f"{name}: {error}")
    except ValueError as error:
        return TritonConfig(problem=f"{name} cannot be read: {error}")


class UnservedError(Exception):
    """An unsupported setting; the message continues after the file's name."""


def _read(config: Message, source: str, notes: tuple[str, ...]) -> TritonConfig:
    _check_backend(config)
    _check_parameters(config)
    batching = _message_of(config, "dynamic_batching")
    sequences = _message_of(config, "sequence_batching")
    queue = _message_of(batching, "default_queue_policy")
    policy = _message_of(config, "version_policy")
    max_batch = _number(config, "max_batch_size", 2**31 - 1)
    if max_batch is not None:
        max_batch = min(max_batch, MAX_ROWS)
    queue_limit = _number(queue, "max_queue_size", 2**32 - 1) or None
    if queue_limit is not None:
        queue_limit = min(queue_limit, MAX_WAITING)
    max_idle = None
    idle_us = _number(sequences, "max_sequence_idle_microseconds", 2**64 - 1)
    if idle_us:
        max_idle = min(idle_us / 1e6, MAX_IDLE_S)
    return TritonConfig(
        labels=_labels(config),
        notes=(*notes, *_reshape_notes(config), *_parameter_notes(config)),
        policy=_policy(policy, source),
        file_name=_file_name(config),
        max_batch=max_batch,
        queue_limit=queue_limit,
        feedback=_feedback(sequences),
        max_idle=max_idle,
    )


def _reshape_notes(config: Message) -> list[str]:
    notes = []
    for kind in ("input", "output"):
        for tensor in _messages(config, kind):
            note = _check_reshape(kind, tensor)
            if note:
                notes.append(note)
    return notes


def _check_backend(config: Message) -> None:
    backend = _last(config, "backend")
    platform = _last(config, "platform")
    if backend == "python":
        raise UnservedError(
            "code for Triton's Python backend is not served; write a model.py or a "
            "task.py, with a model.toml"
        )
    advice = "is not served; a model.toml in its place serves the file"
    if backend and backend not in BACKENDS:
        raise UnservedError(f"the backend {str(backend)[:40]!r} {advice}")
    if not backend and platform and platform not in PLATFORMS:
        raise UnservedError(f"the platform {str(platform)[:40]!r} {advice}")


def _check_parameters(config: Message) -> None:
    for name in _parameter_names(config):
        if name in CHOOSING_PARAMETERS:
            raise UnservedError(
                f"the parameter {name} is not applied; "
                "model.toml has `signature` and `loader`"
            )


def _parameter_names(config: Message) -> list[str]:
    names = []
    for parameter in _messages(config, "parameters"):
        name = _last(parameter, "key")
        if isinstance(name, str):
            names.append(name[:40])
    return names


def _parameter_notes(config: Message) -> list[str]:
    return [
        f"the parameter {name} is not used"
        for name in _parameter_names(config)[:MAX_NOTES]
    ]


def _check_reshape(kind: str, tensor: Message) -> str:
    """Return a note on a reshape, or reject it."""
    reshape = _last(tensor, "reshape")
    if reshape is None:
        return ""
    shape = reshape.get("shape", []) if isinstance(reshape, dict) else []
    if len(shape) == len(tensor.get("dims", [])):
        raise UnservedError(
            f"{kind}.reshape to as many dimensions is not applied; "
            "a model.toml serves it unchanged"
        )
    name = str(_last(tensor, "name"))[:40]
    return (
        f"{kind}.reshape of {name!r} is not applied: the shape is {_as_text(shape)}, "
        "after a batch dimension if any"
    )


def _as_text(shape: list[Any]) -> str:
    return f"[{', '.join(str(size)[:20] for size in shape[:16])}]"


def _labels(config: Message) -> str | None:
    """Return the label file of the first output."""
    names = [_last(output, "label_filename") for output in _messages(config, "output")]
    for name in names[1:]:
        if isinstance(name, str) and name:
            raise UnservedError(
                "output.label_filename is used for the first output only; "
                "a model.toml has `labels`"
            )
    if not names or not is_contained_name(names[0]):
        return None
    first: str = names[0]
    return first


def _policy(message: Message, source: str) -> VersionPolicy:
    if "specific" in message:
        versions = _message_of(message, "specific").get("versions", [])[:MAX_NUMBERS]
        return VersionPolicy(
            specific=tuple(str(_as_number(item, 2**63 - 1)) for item in versions),
            source=source,
        )
    if "latest" in message:
        number = _number(_message_of(message, "latest"), "num_versions", 2**32 - 1)
        return VersionPolicy(latest=number or 1, source=source)
    return VersionPolicy(source=source)


def _file_name(config: Message) -> str | None:
    name = _last(config, "default_model_filename")
    if name in (None, ""):
        return None
    if not is_contained_name(name) or "/" in name:
        raise UnservedError(
            "default_model_filename must be a file in the folder of each version"
        )
    return str(name)


def _feedback(sequences: Message) -> dict[str, str]:
    feedback = {}
    for state in _messages(sequences, "state"):
        input_name = _last(state, "input_name")
        output_name = _last(state, "output_name")
        if not (isinstance(input_name, str) and isinstance(output_name, str)):
            raise UnservedError(
                "sequence_batching.state must name an input and an output"
            )
        feedback[input_name] = output_name
    return feedback


def _messages(message: Message, name: str) -> list[Message]:
    return [value for value in message.get(name, []) if isinstance(value, dict)]


def _message_of(message: Message, name: str) -> Message:
    value = _last(message, name)
    if isinstance(value, dict):
        return value
    return {}


def _number(message: Message, name: str, high: int) -> int | None:
    value = _last(message, name)
    if value is None:
        return None
    return _as_number(value, high)


def _as_number(value: Any, high: int) -> int:
    number = -1
    if isinstance(value, str) and value.isdecimal() and len(value) <= MAX_DIGITS:
        number = int(value)
    if not 0 <= number <= high:
        raise ValueError(f"{str(value)[:40]!r} is not a number from 0 to {high}")
    return number


def _last(message: Message, name: str) -> Any:
    """Return the last value of a field."""
    return next(reversed(message.get(name, [])), None)


def parse(text: str) -> Message:
    """Parse a message in text form."""
    tokens = [*_tokens(text)][::-1]
    message = _message(tokens, 0)
    if tokens:
        raise TextFormatError("a bracket is closed that was never opened")
    return message


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise TextFormatError(
                f"line {text.count(chr(10), 0, at) + 1} is not a protocol buffer's text"
            )
        at = match.end()
        kind = match.lastgroup
        if kind is not None:
            yield kind, match[0][1:-1] if kind == "text" else match[0]


def _message(tokens: list[tuple[str, str]], depth: int) -> Message:
    """Parse a message's fields, up to the closing bracket."""
    if depth > MAX_DEPTH:
        raise TextFormatError(f"messages nest more than {MAX_DEPTH} deep")
    fields: Message = {}
    while tokens and tokens[-1] != ("mark", "}"):
        kind, name = tokens.pop()
        if kind != "word":
            raise TextFormatError(f"a field's name is expected, not {name!r:.40}")
        _skip(tokens, ":")
        fields.setdefault(name, []).extend(_values(tokens, depth))
        _skip(tokens, ",;")
    return fields


def _values(tokens: list[tuple[str, str]], depth: int) -> list[Any]:
    """Parse one value, or a list of values in brackets."""
    if not _skip(tokens, "["):
        return [_value(tokens, depth)]
    values = []
    while not _skip(tokens, "]"):
        values.append(_value(tokens, depth))
        _skip(tokens, ",")
    return values


def _value(tokens: list[tuple[str, str]], depth: int) -> Any:
    if not tokens:
        raise TextFormatError("it ends before a value")
    kind, text = tokens.pop()
    if kind != "mark":
        return text
    if text != "{":
        raise TextFormatError(f"a value is expected, not {text!r}")
    message = _message(tokens, depth + 1)
    if not _skip(tokens, "}"):
        raise TextFormatError("a bracket is never closed")
    return message


def _skip(tokens: list[tuple[str, str]], marks: str) -> bool:
    """Remove the next token if it is one of the marks."""
    if tokens and tokens[-1][0] == "mark" and tokens[-1][1] in marks:
        tokens.pop()
        return True
    return False
