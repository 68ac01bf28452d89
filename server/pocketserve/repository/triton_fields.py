"""All fields of Triton's ``ModelConfig``, and their treatment.

Source: ``protobuf/model_config.proto`` of triton-inference-server/common. A message
that is listed without its fields is treated as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, NamedTuple

Message = dict[str, list[Any]]
"""The fields of a message by name, each with its values in order."""

MAX_NOTES: Final = 8  # sentences about one file
_MAX_SHOWN = 80  # characters of an unknown field's name


class Treatment(Enum):
    """The treatment of a field."""

    APPLIED = "applied"
    HARMLESS = "no answer depends on it"
    NAMED = "not applied, which a request notices; named in the metadata"
    REFUSED = "answers would differ, so the model is not served"


class ConfigField(NamedTuple):
    """A field by its path, such as ``input.dims``, and its description."""

    path: str
    treatment: Treatment
    text: str


_A = Treatment.APPLIED
_H = Treatment.HARMLESS
_N = Treatment.NAMED
_R = Treatment.REFUSED

FIELDS: Final = (
    ConfigField("name", _H, "is not read: a model is called like its folder"),
    ConfigField("platform", _A, "must be one whose files are served here"),
    ConfigField("backend", _A, "must be one whose files are served here"),
    ConfigField("runtime", _H, "chooses between builds of a backend"),
    ConfigField("version_policy.latest.num_versions", _A, "offers the newest versions"),
    ConfigField("version_policy.all", _A, "offers all versions"),
    ConfigField(
        "version_policy.specific.versions", _A, "offers the versions that it names"
    ),
    ConfigField(
        "max_batch_size", _A, "limits the rows that run together; 0 means no batching"
    ),
    ConfigField("input.name", _H, "is not read: the model's own names count"),
    ConfigField("input.data_type", _H, "is not read: the model's own datatypes count"),
    ConfigField(
        "input.format", _H, "is not read: the server finds where the channels are"
    ),
    ConfigField("input.dims", _H, "is not read: the model's own shapes count"),
    ConfigField(
        "input.reshape", _A, "is not applied; requests send the shape that it names"
    ),
    ConfigField(
        "input.is_shape_tensor", _R, "is for TensorRT, which is not served here"
    ),
    ConfigField(
        "input.allow_ragged_batch",
        _R,
        "joins inputs of several lengths, which is not supported",
    ),
    ConfigField("input.optional", _N, "is not applied; requests send every input"),
    ConfigField(
        "input.is_non_linear_format_io", _R, "is for TensorRT, which is not served here"
    ),
    ConfigField("output.name", _H, "is not read: the model's own names count"),
    ConfigField("output.data_type", _H, "is not read: the model's own datatypes count"),
    ConfigField("output.dims", _H, "is not read: the model's own shapes count"),
    ConfigField(
        "output.reshape", _A, "is not applied; answers have the shape that it names"
    ),
    ConfigField("output.label_filename", _A, "names the labels of the first output"),
    ConfigField(
        "output.is_shape_tensor", _R, "is for TensorRT, which is not served here"
    ),
    ConfigField(
        "output.is_non_linear_format_io",
        _R,
        "is for TensorRT, which is not served here",
    ),
    ConfigField(
        "batch_input",
        _R,
        "adds inputs that are made from a batch, which is not supported",
    ),
    ConfigField(
        "batch_output",
        _R,
        "cuts an output by the inputs of a batch, which is not supported",
    ),
    ConfigField("optimization", _H, "is about speed on a GPU or with another runtime"),
    ConfigField("dynamic_batching.preferred_batch_size", _H, "is about speed"),
    ConfigField(
        "dynamic_batching.max_queue_delay_microseconds",
        _H,
        "is about speed: no request waits for others",
    ),
    ConfigField(
        "dynamic_batching.preserve_ordering",
        _H,
        "is about the order of answers, which are matched by request",
    ),
    ConfigField(
        "dynamic_batching.priority_levels",
        _H,
        "is about speed: requests name their priority",
    ),
    ConfigField(
        "dynamic_batching.default_priority_level",
        _H,
        "is about speed: requests name their priority",
    ),
    ConfigField(
        "dynamic_batching.default_queue_policy.timeout_action",
        _H,
        "is about requests that wait too long",
    ),
    ConfigField(
        "dynamic_batching.default_queue_policy.default_timeout_microseconds",
        _H,
        "is the server's setting here",
    ),
    ConfigField(
        "dynamic_batching.default_queue_policy.allow_timeout_override",
        _H,
        "is always allowed here",
    ),
    ConfigField(
        "dynamic_batching.default_queue_policy.max_queue_size",
        _A,
        "limits the requests that wait",
    ),
    ConfigField(
        "dynamic_batching.priority_queue_policy",
        _H,
        "is about requests that wait too long",
    ),
    ConfigField("sequence_batching.direct", _H, "is about speed"),
    ConfigField("sequence_batching.oldest", _H, "is about speed"),
    ConfigField(
        "sequence_batching.max_sequence_idle_microseconds",
        _A,
        "is how long an idle sequence stays open",
    ),
    ConfigField(
        "sequence_batching.control_input",
        _R,
        "asks for controls of sequences as inputs, which are not served; "
        "feed outputs back by [state] in a model.toml",
    ),
    ConfigField(
        "sequence_batching.state.input_name", _A, "takes the output of the step before"
    ),
    ConfigField(
        "sequence_batching.state.output_name", _A, "is fed back to the next step"
    ),
    ConfigField(
        "sequence_batching.state.data_type",
        _H,
        "is not read: the model's own datatypes count",
    ),
    ConfigField(
        "sequence_batching.state.dims", _H, "is not read: the model's own shapes count"
    ),
    ConfigField(
        "sequence_batching.state.initial_state.name", _H, "is a name for people"
    ),
    ConfigField(
        "sequence_batching.state.initial_state.data_type",
        _H,
        "is not read: the model's own datatypes count",
    ),
    ConfigField(
        "sequence_batching.state.initial_state.dims",
        _R,
        "gives the first state a shape; use [state.start]",
    ),
    ConfigField(
        "sequence_batching.state.initial_state.zero_data",
        _H,
        "is how a sequence starts anyway",
    ),
    ConfigField(
        "sequence_batching.state.initial_state.data_file",
        _R,
        "fills the first state, which always is zeros here",
    ),
    ConfigField(
        "sequence_batching.state.use_same_buffer_for_input_output", _H, "is about speed"
    ),
    ConfigField("sequence_batching.state.use_growable_memory", _H, "is about speed"),
    ConfigField(
        "sequence_batching.iterative_sequence",
        _R,
        "runs a request several times, which is not supported",
    ),
    ConfigField(
        "ensemble_scheduling",
        _R,
        "makes it one of the ensembles, which are not served; "
        "ask its models one by one",
    ),
    ConfigField(
        "instance_group",
        _H,
        "is about speed on Triton's devices; model.toml has `instances`",
    ),
    ConfigField("default_model_filename", _A, "is the file of each version"),
    ConfigField("cc_model_filenames", _H, "is for GPUs"),
    ConfigField("metric_tags", _H, "is about metrics"),
    ConfigField("parameters", _A, "are settings of a backend"),
    ConfigField("model_warmup", _H, "is about the first requests' speed"),
    ConfigField(
        "model_operations", _R, "loads custom operators, which is not supported"
    ),
    ConfigField(
        "model_transaction_policy.decoupled",
        _R,
        "gives a request any number of answers, which is not supported",
    ),
    ConfigField(
        "model_repository_agents",
        _R,
        "changes the model's files before they are loaded, which is not supported",
    ),
    ConfigField("response_cache", _H, "is about speed"),
    ConfigField("model_metrics", _H, "is about metrics"),
)

BY_PATH: Final = {field.path: field for field in FIELDS}
_ABOVE: Final = frozenset(
    path[:at] for path in BY_PATH for at, letter in enumerate(path) if letter == "."
)
"""The paths of messages that are listed by their fields."""
_NO_EFFECT: Final = frozenset({"", "0", "false", "False", "f"})
"""Values that equal a missing field."""


def check_fields(config: Message) -> tuple[str | None, tuple[str, ...]]:
    """Return the reason not to serve a model, and notes on fields."""
    notes: dict[str, None] = {}  # in order, without duplicates
    for path, values in _leaves(config, ""):
        field = BY_PATH.get(path)
        if field is None:
            name = path[:_MAX_SHOWN]
            notes[f"{name} is not a field that this server knows, and is not used"] = (
                None
            )
            continue
        if not _has_effect(values):
            continue
        sentence = f"{path} {field.text}"
        if field.treatment is Treatment.REFUSED:
            return sentence, tuple(notes)[:MAX_NOTES]
        if field.treatment is Treatment.NAMED:
            notes[sentence] = None
    return None, tuple(notes)[:MAX_NOTES]


def _leaves(message: Message, prefix: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield path and values of each field."""
    for name, values in message.items():
        path = f"{prefix}{name}"
        if path not in _ABOVE:
            yield path, values
            continue
        for value in values:
            if isinstance(value, dict):
                yield from _leaves(value, f"{path}.")


def _has_effect(values: list[Any]) -> bool:
    """Return whether any value differs from a missing field."""
    return any(isinstance(value, dict) or value not in _NO_EFFECT for value in values)
