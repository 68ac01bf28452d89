"""Check a request's tensors against a model, and run the model on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pocketserve.engine.bindings import Bindings
from pocketserve.engine.scheduling.cancellation import Cancellation
from pocketserve.messages import plural
from pocketserve.runtimes.base import Session
from pocketserve.tensors import Array, TensorSpec, check_against, quantize, to_array
from pocketserve_wire import ApiError, ErrorCode, Tensor
from pocketserve_wire.oip import RequestedOutput

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.sequences import Sequence as OpenSequence
    from pocketserve.engine.lifecycle.sequences import SequenceStep


class Inputs(NamedTuple):
    """The checked inputs of a request.

    Attributes:
        arrays: the client's arrays, by the session's names.
        rows: batch rows in them.
        row_by_row: run the model once for each row.
        reals: the client sent real numbers to a quantized model.
        state: initial values of a stateful model's state inputs.
    """

    arrays: dict[str, Array]
    rows: int
    row_by_row: bool
    reals: bool
    state: dict[str, Array]

    @property
    def size(self) -> int:
        """Return the bytes of the arrays."""
        return sum(array.nbytes for array in self.arrays.values())


class BoundOutput(NamedTuple):
    """An output that the client requested.

    Attributes:
        session_name: the session's name for it.
    """

    requested: RequestedOutput
    spec: TensorSpec
    session_name: str


SEQUENCE_PARAMETERS = frozenset({"sequence_id", "sequence_start", "sequence_end"})


def step_of(parameters: Mapping[str, Any], owner: str) -> SequenceStep | None:
    """Return a request's step of a sequence; None outside of sequences.

    Raises:
        ApiError: INVALID_PARAMETER.
    """
    if SEQUENCE_PARAMETERS.isdisjoint(parameters):
        return None
    # Imported late: few models keep state.
    from pocketserve.engine.lifecycle.sequences import read_step

    return read_step(parameters, owner)


def collect(
    tensors: Sequence[Tensor],
    bound: Bindings,
    row_by_row: bool,
    first_state: Mapping[str, Array],
) -> Inputs:
    """Check tensors against the model and bind them by name.

    Args:
        row_by_row: accept several rows where the model takes one.
        first_state: initial values of the inputs that clients may leave out.

    Raises:
        ApiError: INVALID_REQUEST for wrong names; INVALID_TENSOR for wrong datatypes
            or shapes.
    """
    arrays: dict[str, Array] = {}
    batches: dict[str, Tensor] = {}
    reals = splits = False
    rows = 1
    for tensor in tensors:
        binding = bound.by_name.get(tensor.name)
        if binding is None:
            raise _bad_inputs(f"unexpected inference input {tensor.name!r}", bound)
        spec, session_name = binding
        if session_name in arrays:
            fault = f"input {spec.name!r} is given twice under different names"
            raise _bad_inputs(fault, bound)
        checked = _check(spec, tensor, row_by_row)
        arrays[session_name] = checked.array
        reals = reals or checked.is_real
        splits = splits or checked.splits
        rows = max(rows, checked.rows)
        if spec.batch and tensor.shape:
            first = batches.setdefault(spec.batch, tensor)
            _check_same_rows(spec, tensor, first)
    state: dict[str, Array] = {}
    if len(arrays) < len(bound.specs):
        state = _initial_state(bound, arrays, first_state)
    if splits:
        _check_equal_rows(arrays, bound)
    return Inputs(arrays, rows, splits, reals, state)


class _CheckedTensor(NamedTuple):
    """A tensor that the model accepts.

    Attributes:
        rows: batch rows; 1 for other tensors.
        splits: the model takes its rows one by one.
        is_real: it was quantized from real numbers.
    """

    array: Array
    rows: int
    splits: bool
    is_real: bool


def _check(spec: TensorSpec, tensor: Tensor, row_by_row: bool) -> _CheckedTensor:
    shape = tensor.shape
    splits = row_by_row and spec.shape[:1] == (1,) and _has_many_rows(shape)
    check_against(spec, tensor, rows_free=splits)
    array = to_array(tensor)
    is_real = spec.quantization is not None and tensor.datatype == "FP32"
    if is_real:
        array = quantize(array, spec)
    rows = 1
    if splits or (shape and spec.shape[:1] == (-1,)):
        rows = shape[0]
    return _CheckedTensor(array, rows, splits, is_real)


def _has_many_rows(shape: tuple[int, ...]) -> bool:
    return len(shape) > 0 and shape[0] > 1


def _check_same_rows(spec: TensorSpec, tensor: Tensor, first: Tensor) -> None:
    """Raise if two inputs that share a batch dimension differ in rows."""
    if first.shape[0] == tensor.shape[0]:
        return
    sizes = (
        f"input {tensor.name!r} has {plural(tensor.shape[0], 'row')}, "
        f"input {first.name!r} has {first.shape[0]}"
    )
    raise ApiError(
        ErrorCode.INVALID_TENSOR,
        f"{sizes}; the model has one size for both, {spec.batch!r:.80}",
    )


def _initial_state(
    bound: Bindings, arrays: Mapping[str, Array], first_state: Mapping[str, Array]
) -> dict[str, Array]:
    """Return initial values for the inputs that the client left out."""
    state: dict[str, Array] = {}
    for spec in bound.specs:
        session_name = bound.by_name[spec.name][1]
        if session_name in arrays:
            continue
        if session_name not in first_state:
            raise _bad_inputs(f"input {spec.name!r} is missing", bound)
        # A copy, as a model may write into its inputs.
        state[session_name] = first_state[session_name].copy()
    return state


def _check_equal_rows(arrays: Mapping[str, Array], bound: Bindings) -> None:
    counts = {array.shape[0] for array in arrays.values()}
    if len(counts) != 1:
        raise _bad_inputs("the inputs have different numbers of rows", bound)


def _bad_inputs(fault: str, bound: Bindings) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REQUEST, f"{fault}; the model takes {bound.names()}"
    )


def ensure_running(
    start: Callable[[Callable[[], None]], None], check: Callable[[], None]
) -> None:
    """Start a session's own process again if it died.

    Args:
        start: the session's ``ensure_running``; few sessions have one.
        check: called while waiting; may raise to give up.

    Raises:
        ApiError: INFERENCE_FAILED; those of the check.
    """
    try:
        start(check)
    except ApiError:
        raise
    except Exception as error:
        raise _failure(error) from error


def _failure(error: Exception) -> ApiError:
    detail = f"{type(error).__name__}: {str(error).strip()[:500]}"
    return ApiError(
        ErrorCode.INFERENCE_FAILED, f"the model failed on this input: {detail}"
    )


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
    except ValueError as error:
        # Runtimes raise ValueError for an input of the wrong shape or content.
        detail = str(error)[:500]
        raise ApiError(
            ErrorCode.INVALID_TENSOR, f"the model does not accept this input: {detail}"
        ) from error
    except Exception as error:
        raise _failure(error) from error


def run_inputs(
    session: Session,
    inputs: Inputs,
    signature: str | None,
    cancellation: Cancellation | None,
) -> dict[str, Array]:
    """Run checked inputs, row by row if necessary.

    Raises:
        ApiError: as :func:`run_session`; CANCELLED between two rows.
    """
    if inputs.row_by_row:
        return _run_rows(session, inputs, signature, cancellation)
    reset(session)
    arrays = inputs.arrays
    if inputs.state:
        arrays = {**inputs.state, **arrays}
    return run_session(session, arrays, signature)


def _run_rows(
    session: Session,
    inputs: Inputs,
    signature: str | None,
    cancellation: Cancellation | None,
) -> dict[str, Array]:
    runs: list[dict[str, Array]] = []
    for row in range(inputs.rows):
        _check_cancelled(cancellation)
        reset(session)
        arrays = dict(inputs.state)
        for name, array in inputs.arrays.items():
            arrays[name] = array[row : row + 1]
        runs.append(run_session(session, arrays, signature))
    return _joined(runs)


def _joined(runs: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """Return the outputs of single rows as outputs of all rows."""
    outputs: dict[str, Array] = {}
    for name in runs[0]:
        parts = [np.atleast_1d(run[name]) for run in runs]
        outputs[name] = np.concatenate(parts)
    return outputs


def run_steps(
    session: Session,
    steps: Sequence[Inputs],
    feedback: Mapping[str, str] | None,
    cancellation: Cancellation | None,
    sequence: OpenSequence | None = None,
) -> list[dict[str, Array]]:
    """Run the model several times for one raw input.

    Args:
        feedback: outputs that each run passes to the next, by input name; None where
            the runs are independent.
        sequence: supplies the first run's state and keeps the last run's; None
            outside of a sequence.

    Raises:
        ApiError: as :func:`run_inputs`.
    """
    results: list[dict[str, Array]] = []
    state = {} if sequence is None else sequence.state
    for index, step in enumerate(steps):
        if step.row_by_row:
            results.append(run_inputs(session, step, None, cancellation))
            continue
        _check_cancelled(cancellation)
        if sequence is None and (index == 0 or feedback is None):
            reset(session)
        arrays = {**step.state, **state, **step.arrays}
        outputs = run_session(session, arrays, None)
        results.append(outputs)
        state = _next_state(outputs, feedback)
    if sequence is not None:
        sequence.state = state
    return results


def _next_state(
    outputs: Mapping[str, Array], feedback: Mapping[str, str] | None
) -> dict[str, Array]:
    """Return the outputs that the next run takes as inputs."""
    state: dict[str, Array] = {}
    if feedback is not None:
        for name, output in feedback.items():
            state[name] = outputs[output]
    return state


def reset(session: Session) -> None:
    """Clear the state that earlier requests left in a session."""
    # isinstance(session, ResettableSession) takes a third of a whole request's time.
    method = getattr(session, "reset", None)
    if method is not None:
        method()


def _check_cancelled(cancellation: Cancellation | None) -> None:
    if cancellation is not None and cancellation.cancelled:
        raise ApiError(
            ErrorCode.CANCELLED,
            "the request was cancelled by its caller between two runs of the model",
        )
