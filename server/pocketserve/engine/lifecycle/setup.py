"""Builds bindings, task and state of a model, also in trials."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from pocketserve.engine.bindings import Bindings, bind_specs
from pocketserve.repository.manifest import Manifest
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes.base import ModelLoadError, ModelSource, Session
from pocketserve.tasks.arrays import constant
from pocketserve.tasks.base import Task
from pocketserve.tasks.foreign.registry import unknown_keys
from pocketserve.tasks.model_facts import ModelFacts, properties_of
from pocketserve.tasks.selection import select_task
from pocketserve.tensors import Array, zeros
from pocketserve_wire import ApiError


class Setup(NamedTuple):
    """Everything that a model's files decide, without sessions."""

    # Inputs and outputs by signature; None is the default.
    entry_points: Mapping[str | None, tuple[Bindings, Bindings]]
    task: Task
    # By the session's name of an input: the output that becomes its next value.
    feedback: Mapping[str, str]
    # Inputs that a request may omit: fixed ones, and a state's first values.
    first_state: Mapping[str, Array]
    task_bytes: int  # estimated memory of labels and tokenizers
    assumed: tuple[str, ...]  # settings that no file states, such as ``pixels 0..1``
    # Faults of files beside the model that don't prevent serving.
    notes: tuple[str, ...]
    # Unknown keys of other tools' files, by file.
    unknown_keys: Mapping[str, tuple[str, ...]]


def set_up(
    entry: ModelEntry,
    version: VersionEntry,
    session: Session,
    max_image_pixels: int,
    source: ModelSource,
) -> Setup:
    """Read metadata, labels and tokenizers, and choose the task.

    Raises ModelLoadError.
    """
    points = _entry_points(session, entry.manifest, version)
    inputs, outputs = points[None]
    facts = read_facts(entry, version, session, max_image_pixels, source)
    task = select_task(facts)
    return Setup(
        entry_points=points,
        task=task,
        feedback=_feedback(entry, inputs, outputs),
        first_state={**_fixed_inputs(entry, inputs), **_first_state(entry, inputs)},
        task_bytes=facts.memory_bytes,
        assumed=tuple(facts.assumed),
        notes=tuple(facts.notes),
        unknown_keys=unknown_keys(facts),
    )


def read_facts(
    entry: ModelEntry,
    version: VersionEntry,
    session: Session,
    max_image_pixels: int,
    source: ModelSource,
) -> ModelFacts:
    """Return the facts for choosing a task.

    Raises ModelLoadError if the manifest's tensors do not fit.
    """
    inputs, outputs = _entry_points(session, entry.manifest, version)[None]
    properties = properties_of(version._replace(path=source.path), session)
    shapes = inputs.specs, outputs.specs
    facts = ModelFacts(
        entry,
        version,
        *shapes,
        properties,
        max_image_pixels,
        source.path,
        source.trusted,
        source.sides,
    )
    if not facts.may_be_export:
        return facts
    # late: few models are exports
    from pocketserve.tasks.foreign.exports.properties import properties_beside

    return dataclasses.replace(
        facts, properties={**properties_beside(facts), **properties}
    )


def _entry_points(
    session: Session, manifest: Manifest, version: VersionEntry
) -> dict[str | None, tuple[Bindings, Bindings]]:
    # The manifest speaks of the main entry point only.
    main = (
        bind_specs(session.inputs, manifest.inputs_of(version.name), "input"),
        bind_specs(session.outputs, manifest.outputs, "output"),
    )
    points: dict[str | None, tuple[Bindings, Bindings]] = {None: main}
    for name, signature in session.signatures.items():
        points[name] = (
            bind_specs(signature.inputs, (), "input"),
            bind_specs(signature.outputs, (), "output"),
        )
    return points


def _feedback(entry: ModelEntry, inputs: Bindings, outputs: Bindings) -> dict[str, str]:
    """Return the manifest's feedback in the session's own names."""
    feedback: dict[str, str] = {}
    for input_name, output_name in entry.manifest.state.feedback.items():
        for name, bound, direction in (
            (input_name, inputs, "input"),
            (output_name, outputs, "output"),
        ):
            if name not in bound.by_name:
                text = f"state.feedback names {direction} {name!r}; the model has {bound.names()}"
                raise ModelLoadError(f"model.toml: {text}")
        (spec, own), (source, other) = (
            inputs.by_name[input_name],
            outputs.by_name[output_name],
        )
        if spec.datatype != source.datatype:
            text = f"{output_name!r} is {source.datatype}, but {input_name!r} takes {spec.datatype}"
            raise ModelLoadError(f"model.toml: state.feedback: {text}")
        feedback[own] = other
    return feedback


def _fixed_inputs(entry: ModelEntry, inputs: Bindings) -> dict[str, Array]:
    """Return the manifest's ``[fixed_inputs]`` by session names."""
    fixed: dict[str, Array] = {}
    for name, value in entry.manifest.fixed_inputs.items():
        if name not in inputs.by_name:
            raise ModelLoadError(
                f"model.toml: fixed_inputs names {name!r}; the model has {inputs.names()}"
            )
        if name in entry.manifest.state.feedback:
            raise ModelLoadError(
                f"model.toml: {name!r} is in fixed_inputs and in state.feedback; keep one of them"
            )
        spec, own = inputs.by_name[name]
        try:
            fixed[own] = constant(value, spec)
        except ApiError as error:
            raise ModelLoadError(
                f"model.toml: fixed_inputs.{name} does not fit: {error}"
            ) from None
    return fixed


def _first_state(entry: ModelEntry, inputs: Bindings) -> dict[str, Array]:
    """Return zeros for the feedback inputs by session names."""
    state = entry.manifest.state
    first: dict[str, Array] = {}
    for input_name in state.feedback:
        spec, own = inputs.by_name[input_name]
        shape = state.start.get(input_name)
        if shape is not None and not spec.open and not spec.accepts(shape):
            raise ModelLoadError(
                f"model.toml: state.start.{input_name} is {list(shape)}, but the input's shape is {list(spec.shape)}"
            )
        first[own] = zeros(spec if shape is None else spec._replace(shape=shape))
    return first
