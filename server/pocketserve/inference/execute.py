"""What a request does with its turn: one run of the model, one for each of its rows, or a step of a sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from pocketserve.engine.lifecycle.handle import ModelHandle
from pocketserve.engine.scheduling.options import RequestOptions
from pocketserve.engine.scheduling.queue import RunResult
from pocketserve.inference.validate import Inputs
from pocketserve.runtimes.base import Session
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.sequences import SequenceStep, SequenceTable


def take_runs(
    running: ModelHandle, steps: Sequence[Inputs], chained: bool, terms: RequestOptions
) -> RunResult[list[dict[str, Array]]]:
    """All runs of one raw input in one turn; chained ones hand the model's state on."""
    if len(steps) == 1:
        one = running.lane.run(_Work(steps[0], None, terms), terms)
        return RunResult([one.result], one.queue_ns, one.run_ns, one.executions, one.batch_rows)
    feedback = running.model.feedback

    def work(session: Session) -> list[dict[str, Array]]:
        results: list[dict[str, Array]] = []
        state: dict[str, Array] = {}
        for index, step in enumerate(steps):
            if step.row_by_row:
                results.append(_run_rows(session, step, None, terms))
                continue
            _checkpoint(terms)
            if index == 0 or not chained:
                _forget(session)
            results.append(_run(session, {**step.state, **state, **step.arrays}, None))
            if chained:
                state = {taken: results[-1][given] for taken, given in feedback.items()}
        return results

    return running.lane.run(work, terms)


def run_in_turn(
    running: ModelHandle, signature: str | None, inputs: Inputs, terms: RequestOptions, step: SequenceStep | None
) -> RunResult[dict[str, Array]]:
    """A tensor request's run: by itself, or as a step of its sequence.

    Raises:
        ApiError: as :meth:`~pocketserve.engine.scheduling.queue.ModelQueue.run`; INVALID_TENSOR or INFERENCE_FAILED for
            a run that failed; INVALID_REQUEST for a sequence on another entry point than the default one.
    """
    if running.sequences is not None and step is not None:
        return _take_step(running, running.sequences, signature, inputs, terms, step)

    return running.lane.run(_Work(inputs, signature, terms), terms)


class _Work:
    """One request's run on whichever session it gets, see
    :class:`~pocketserve.engine.scheduling.batching.BatchWork`."""

    __slots__ = ("arrays", "inputs", "signature", "terms")

    def __init__(self, inputs: Inputs, signature: str | None, terms: RequestOptions) -> None:
        self.inputs = inputs
        self.signature = signature
        self.terms = terms
        self.arrays = None if inputs.row_by_row or inputs.state else inputs.arrays

    def __call__(self, session: Session) -> dict[str, Array]:
        inputs = self.inputs
        if inputs.row_by_row:
            return _run_rows(session, inputs, self.signature, self.terms)
        _forget(session)
        return _run(session, {**inputs.state, **inputs.arrays} if inputs.state else inputs.arrays, self.signature)


class PlainWork:
    """A prepared request's run on whichever session it gets, as :class:`_Work`; there is nothing to forget."""

    __slots__ = ("arrays", "signature")

    def __init__(self, arrays: dict[str, Array], signature: str | None) -> None:
        self.arrays = arrays
        self.signature = signature

    def __call__(self, session: Session) -> dict[str, Array]:
        return _run(session, self.arrays, self.signature)


def _take_step(
    running: ModelHandle,
    table: SequenceTable,
    signature: str | None,
    inputs: Inputs,
    terms: RequestOptions,
    step: SequenceStep,
) -> RunResult[dict[str, Array]]:
    """One step of a sequence: with the state of the step before, and kept for the one behind."""
    begun = failed = False

    def work(session: Session) -> dict[str, Array]:
        nonlocal begun
        begun = True
        outputs = _run(session, {**inputs.state, **sequence.state, **inputs.arrays}, signature)
        sequence.state = {taken: outputs[given] for taken, given in running.model.feedback.items()}
        return outputs

    if signature is not None:
        raise ApiError(ErrorCode.INVALID_REQUEST, "sequences work with the default signature only")
    sequence, ticket = table.enter(step)
    try:
        with sequence.hold(ticket, terms):
            table.prepare(sequence)
            return (sequence.lane or running.lane).run(work, terms)
    except BaseException:
        failed = begun
        raise
    finally:
        table.leave(step, sequence, failed=failed)


def _forget(session: Session) -> None:
    """A request of no sequence must not hear what an earlier one said."""
    # Not isinstance(session, ResettableSession): asking a protocol costs a third of a whole request.
    reset = getattr(session, "reset", None)
    if reset is not None:
        reset()


def _checkpoint(terms: RequestOptions) -> None:
    """Between two runs of one request: a single run cannot be stopped, but a thousand need not all be made."""
    if terms.cancellation is not None and terms.cancellation.cancelled:
        raise ApiError(ErrorCode.CANCELLED, "the request was cancelled by its caller between two runs of the model")


def _run_rows(session: Session, inputs: Inputs, signature: str | None, terms: RequestOptions) -> dict[str, Array]:
    runs = []
    for row in range(inputs.rows):
        _checkpoint(terms)
        _forget(session)
        one = {name: array[row : row + 1] for name, array in inputs.arrays.items()}
        runs.append(_run(session, {**inputs.state, **one}, signature))
    return {name: np.concatenate([np.atleast_1d(run[name]) for run in runs]) for name in runs[0]}


def _run(session: Session, arrays: Mapping[str, Array], signature: str | None) -> dict[str, Array]:
    try:
        return session.run(arrays, signature)
    except ApiError:
        raise
    except ValueError as error:  # runtimes raise it where the input's shape or content is at fault
        raise ApiError(ErrorCode.INVALID_TENSOR, f"the model cannot take this input: {str(error)[:500]}") from error
    except Exception as error:
        detail = f"{type(error).__name__}: {str(error).strip()[:500]}"
        raise ApiError(ErrorCode.INFERENCE_FAILED, f"the model failed on this input: {detail}") from error
