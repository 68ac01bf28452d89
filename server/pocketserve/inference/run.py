"""Run the model on one request's inputs: once, once for each row, or as a step of a sequence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.inference.validate import Inputs
from pocketserve.runtimes.base import Session
from pocketserve.tensors import Array
from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pocketserve.engine.lifecycle.sequences import Sequence as OpenSequence


def run_session(
    session: Session, arrays: Mapping[str, Array], signature: str | None
) -> dict[str, Array]:
    """Run a session once.

    Raises:
        ApiError: INVALID_TENSOR, INFERENCE_FAILED.
    """
    try:
        return session.run(arrays, signature)
    except ApiError:
        raise
    except (
        ValueError
    ) as error:  # runtimes raise it where the input's shape or content is at fault
        raise ApiError(
            ErrorCode.INVALID_TENSOR,
            f"the model cannot take this input: {str(error)[:500]}",
        ) from error
    except Exception as error:
        detail = f"{type(error).__name__}: {str(error).strip()[:500]}"
        raise ApiError(
            ErrorCode.INFERENCE_FAILED, f"the model failed on this input: {detail}"
        ) from error


def run_inputs(
    session: Session,
    inputs: Inputs,
    signature: str | None,
    cancellation: Cancellation | None,
) -> dict[str, Array]:
    """Run validated inputs, row by row where the model takes one row only.

    Raises:
        ApiError: as :func:`run_session`; CANCELLED between two rows.
    """
    if not inputs.row_by_row:
        reset(session)
        return run_session(
            session,
            {**inputs.state, **inputs.arrays} if inputs.state else inputs.arrays,
            signature,
        )
    runs = []
    for row in range(inputs.rows):
        _check(cancellation)
        reset(session)
        single_row = {
            name: array[row : row + 1] for name, array in inputs.arrays.items()
        }
        runs.append(run_session(session, {**inputs.state, **single_row}, signature))
    return {
        name: np.concatenate([np.atleast_1d(run[name]) for run in runs])
        for name in runs[0]
    }


def run_steps(
    session: Session,
    steps: Sequence[Inputs],
    feedback: Mapping[str, str] | None,
    cancellation: Cancellation | None,
    sequence: OpenSequence | None = None,
) -> list[dict[str, Array]]:
    """Run the model several times for one raw input.

    Args:
        feedback: the outputs that a run hands to the next one, by the names of its inputs; None where the runs are
            independent.
        sequence: what the input is a step of: the first run takes its state, and the last one leaves its own.

    Raises:
        ApiError: as :func:`run_inputs`.
    """
    results: list[dict[str, Array]] = []
    state = {} if sequence is None else sequence.state
    for index, step in enumerate(steps):
        if step.row_by_row:
            results.append(run_inputs(session, step, None, cancellation))
            continue
        _check(cancellation)
        if sequence is None and (index == 0 or feedback is None):
            reset(session)
        results.append(
            run_session(session, {**step.state, **state, **step.arrays}, None)
        )
        state = {name: results[-1][output] for name, output in (feedback or {}).items()}
    if sequence is not None:
        sequence.state = state
    return results


def reset(session: Session) -> None:
    """Have a model that keeps state inside forget what earlier requests sent."""
    # Not isinstance(session, ResettableSession): asking a protocol costs a third of a whole request.
    method = getattr(session, "reset", None)
    if method is not None:
        method()


def _check(cancellation: Cancellation | None) -> None:
    if cancellation is not None and cancellation.cancelled:
        raise ApiError(
            ErrorCode.CANCELLED,
            "the request was cancelled by its caller between two runs of the model",
        )
