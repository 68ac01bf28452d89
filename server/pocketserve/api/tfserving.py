"""TensorFlow Serving's REST API v1, merged with KServe's v1.

Sources: TensorFlow Serving "RESTful API"; its behaviour where the page is silent (`results`, doubled
`signature_def`); KServe "V1 Inference Protocol".
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pocketserve.api.messages import (
    ApiRequest,
    ApiResponse,
    inference_call,
    json_response,
    not_offered,
    waiting_parameters,
)
from pocketserve.engine.bindings import Bindings
from pocketserve.engine.lifecycle.loaded_model import LoadedModel
from pocketserve.engine.lifecycle.state import VersionRecord
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.payload import (
    FormPart,
    Prediction,
    RawPayload,
    TensorPayload,
    media_of,
)
from pocketserve.service import ModelStatus, Service
from pocketserve.tasks import parameters
from pocketserve.tasks.arrays import nested
from pocketserve.tasks.base import Task
from pocketserve.tensors import Array, TensorSpec, to_array
from pocketserve_wire import DATATYPES, ApiError, ErrorCode, Tensor, oip, strict_json
from pocketserve_wire.oip_fields import bad_parameter, bad_request
from pocketserve_wire.tensor import from_json_values, invalid

_DTYPES = {
    "FP16": "HALF",
    "BF16": "BFLOAT16",
    "FP32": "FLOAT",
    "FP64": "DOUBLE",
    "BYTES": "STRING",
}
_NOT_IN_JSON = ("FP16", "BF16", "UINT16")
STEP = 1 << 14  # numbers that are texts at a time, of 128 bytes each
DEFAULT_SIGNATURE = "serving_default"
INSTEAD = "which this server does not support; use :predict, or POST /predictions/NAME for labels"


def alive(service: Service, request: ApiRequest) -> ApiResponse:
    """KServe's liveness probe; over HTTP a browser gets the page."""
    answer = json_response({"status": "alive"})
    answer.headers["Vary"] = "Accept"  # browsers get the page over HTTP
    return answer


def status_document(service: Service, request: ApiRequest) -> dict[str, Any]:
    """TF Serving's version states and KServe's readiness in one object."""
    name = request.path["model"]
    version = request.path.get("version")
    if version is None:
        statuses = service.model_statuses(service.entry(name))
        status = _default_status(service, name, statuses)
    else:
        status = service.status(name, version)
        # OpenVINO's client asks for the default version as 0 and wants a number back.
        statuses = [status._replace(version=version)]
    if not status.ready:
        raise ApiError(
            ErrorCode.MODEL_NOT_READY, f"model {name!r} is not ready: {status.reason}"
        )
    return {
        "name": name,
        "ready": True,
        "model_version_status": list(map(_version_status, statuses)),
    }


def _default_status(
    service: Service, name: str, statuses: Sequence[ModelStatus]
) -> ModelStatus:
    default = service.default_of(service.entry(name))
    for status in statuses:
        if status.version == default:
            return status
    return statuses[0]


def v1_model_metadata(service: Service, request: ApiRequest) -> ApiResponse:
    """The signature definitions."""
    with service.running(request.path["model"], request.path.get("version")) as (
        entry,
        running,
    ):
        model = running.model
    signatures = {
        name or DEFAULT_SIGNATURE: _signature_def(*points)
        for name, points in model.entry_points.items()
    }
    # Show the public names of the default entry point, under its usual name.
    signatures[DEFAULT_SIGNATURE] = _signature_def(model.inputs, model.shown_outputs)
    return json_response(
        {
            "model_spec": {
                "name": entry.name,
                "signature_name": "",
                "version": model.version.name,
            },
            "metadata": {"signature_def": {"signature_def": signatures}},
        }
    )


classify = not_offered(f":classify takes tf.Example features, {INSTEAD}")
regress = not_offered(f":regress takes tf.Example features, {INSTEAD}")
explain = not_offered(f"explanations are not supported, {INSTEAD}")


class _PredictBody(NamedTuple):
    """A predict request's body.

    Attributes:
        is_rows: row format (``instances``) instead of columnar format (``inputs``).
        signature: the requested entry point; None for the default.
    """

    values: Any
    is_rows: bool
    signature: str | None


def v1_predict(service: Service, request: ApiRequest) -> InferenceCall:
    """Row format (``instances``) or columnar format (``inputs``)."""
    record = service.open_call(request.path["model"], request.path.get("version"))
    try:
        return _predict(service, request, record)
    except BaseException:
        service.abandon_call()
        raise


def _predict(
    service: Service, request: ApiRequest, record: VersionRecord
) -> InferenceCall:
    document = _read_document(request)
    waiting = waiting_parameters(request)
    model = _loaded_model(service, request, record, waiting)
    body = _read_body(document, model)
    bound = model.entry_points[body.signature][0]
    media = media_of(model.task)
    if body.signature is None and media and _is_media(body.values, bound):
        names = [spec.name for spec in bound.specs]
        return _predict_files(service, request, body, media, names, record)
    decoded = oip.InferRequest()
    if body.signature is not None:
        decoded.parameters["signature_name"] = body.signature
    is_narrowed = False
    for tensor in _read_tensors(body, bound, model):
        column = _as_column(tensor, bound.by_name[tensor.name][0])
        decoded.inputs.append(column)
        is_narrowed = is_narrowed or column is not tensor
    payload = TensorPayload(decoded, row_by_row=body.is_rows)
    respond = partial(_respond, body.is_rows, is_narrowed)
    return inference_call(service, request, payload, waiting, respond, record=record)


def _read_document(request: ApiRequest) -> dict[str, Any]:
    if request.content_type.startswith("application/cloudevents"):
        raise ApiError(
            ErrorCode.NOT_IMPLEMENTED,
            "CloudEvents are not supported; send their data as plain JSON",
        )
    document = strict_json.loads_object(request.body)
    signature = document.get("signature_name", DEFAULT_SIGNATURE)
    if not isinstance(signature, str):
        raise bad_request(
            f"signature_name must be a string, not {strict_json.json_type(signature)}"
        )
    return document


def _loaded_model(
    service: Service,
    request: ApiRequest,
    record: VersionRecord,
    waiting: Mapping[str, Any],
) -> LoadedModel:
    """Return the model, loading it if necessary."""
    options = service.request_options(
        waiting, request.deadline, request.cancellation, request.received, request.owner
    )
    name, version = request.path["model"], request.path.get("version")
    return service.model_of(record, name, version, options)


def _read_body(document: dict[str, Any], model: LoadedModel) -> _PredictBody:
    """Return the body's values and format.

    Raises:
        ApiError: INVALID_PARAMETER for an unknown signature; INVALID_REQUEST unless
            there is exactly one of ``instances`` and ``inputs``.
    """
    signature = document.get("signature_name", DEFAULT_SIGNATURE)
    key = None if signature in ("", DEFAULT_SIGNATURE) else signature
    if key not in model.entry_points:
        raise bad_parameter(
            f"signature_name {signature!r:.80}", "is not one of the model's"
        )
    is_rows = "instances" in document
    if is_rows == ("inputs" in document):
        count = "both" if is_rows else "neither"
        raise bad_request(f"the body must have 'instances' or 'inputs', it has {count}")
    return _PredictBody(document["instances" if is_rows else "inputs"], is_rows, key)


def _is_media(values: Any, bound: Bindings) -> bool:
    """Return whether the values are media files in base64."""
    for spec in bound.specs:
        if spec.datatype == "BYTES":
            return False
    return _holds_text(values)


def _read_tensors(
    body: _PredictBody, bound: Bindings, model: LoadedModel
) -> list[Tensor]:
    values = body.values
    optional: Collection[str] = ()
    if body.signature is None:
        optional = model.optional_inputs
        values = _by_feature(values, body.is_rows, bound, model.task)
    required = [spec for spec in bound.specs if spec.name not in optional]
    if body.is_rows:
        return _from_instances(values, bound, required)
    return _from_inputs(values, bound, required)


def _predict_files(
    service: Service,
    request: ApiRequest,
    body: _PredictBody,
    media: str,
    names: list[str],
    record: VersionRecord,
) -> InferenceCall:
    """Run the task on base64 files, and return a list of entries for each."""
    # Imported late: few requests hold files.
    from pocketserve.tasks.encoded import files_in_json

    files, is_list = files_in_json(body.values, media, names)
    hints, answer_options = parameters.hints_and_options(request.query, "")
    if "annotate" in answer_options.values:
        raise bad_parameter("annotate", "is answered by POST /predictions/NAME")
    parts = [FormPart("", memoryview(content)) for content in files]
    payload = RawPayload(memoryview(b""), answer_options, hints, parts=parts)
    respond = partial(_respond_to_files, body.is_rows, is_list)
    waiting = waiting_parameters(request)
    return inference_call(service, request, payload, waiting, respond, record=record)


def _respond_to_files(rows: bool, is_list: bool, prediction: Prediction) -> ApiResponse:
    answer: dict[str, Any]
    if rows:
        answer = {"predictions": prediction.per_input}
    else:
        answer = {
            "outputs": prediction.per_input if is_list else prediction.predictions
        }
    return ApiResponse(chunks=[strict_json.dumps(answer)], compressible=True)


def _holds_text(values: Any) -> bool:
    """Return whether the first nested value is a text."""
    while isinstance(values, list | dict) and values:
        values = values[0] if isinstance(values, list) else next(iter(values.values()))
    return isinstance(values, str)


def _by_feature(values: Any, rows: bool, bound: Bindings, task: Task) -> Any:
    """Return rows or columns by feature name as matrix rows.

    Other values are returned unchanged.
    """
    first = values[0] if rows and isinstance(values, list) and values else values
    if not _is_named(first) or any(name in bound.by_name for name in first):
        return values
    # late, as above
    from pocketserve.inference.columns import (
        matrix_features,
        rows_of_columns,
        rows_of_objects,
    )

    features = matrix_features(task, bound)
    if not features:
        return values
    return (
        rows_of_objects(values, features) if rows else rows_of_columns(values, features)
    )


def _respond(rows: bool, narrowed: bool, response: oip.InferResponse) -> ApiResponse:
    tensors: list[Tensor] = []
    outputs: dict[str, Any] = {}
    for tensor in response.outputs:
        if narrowed:
            tensor = _without_column(tensor)
        tensors.append(tensor)
        outputs[tensor.name] = _to_values(tensor)
    answer: dict[str, Any] = {"outputs": outputs}
    if rows:
        answer = {"predictions": _as_rows(outputs, tensors)}
    elif len(outputs) == 1:
        answer = {"outputs": next(iter(outputs.values()))}
    return ApiResponse(chunks=[strict_json.dumps(answer)], compressible=True)


def _version_status(status: ModelStatus) -> dict[str, Any]:
    state, code, message = "AVAILABLE", "OK", ""
    if not status.ready:
        state, code, message = "END", "UNAVAILABLE", status.reason
    return {
        "version": status.version,
        "state": state,
        "status": {"error_code": code, "error_message": message},
    }


def _signature_def(inputs: Bindings, outputs: Bindings) -> dict[str, Any]:
    return {
        "inputs": {spec.name: _tensor_info(spec, inputs) for spec in inputs.specs},
        "outputs": {spec.name: _tensor_info(spec, outputs) for spec in outputs.specs},
        "method_name": "tensorflow/serving/predict",
        "defaults": {},
    }


def _tensor_info(spec: TensorSpec, bound: Bindings) -> dict[str, Any]:
    return {
        "dtype": f"DT_{_DTYPES.get(spec.datatype, spec.datatype)}",
        "tensor_shape": {
            "dim": []
            if spec.open
            else [{"size": str(dim), "name": ""} for dim in spec.shape],
            "unknown_rank": spec.open,
        },
        "name": bound.by_name[spec.name][1],
    }


def _from_instances(
    instances: Any, bound: Bindings, required: Sequence[TensorSpec]
) -> list[Tensor]:
    if not isinstance(instances, list) or not instances:
        raise bad_request("instances must be an array with at least one element")
    if _is_named(instances[0]):
        columns = _columns_of_objects(instances, bound, required)
    elif len(required) == 1:
        columns = {required[0].name: instances}
    else:
        raise bad_request(f"instances must be objects with the inputs {bound.names()}")
    tensors = []
    for spec in bound.specs:
        if spec.name in columns:
            tensors.append(_column(spec, columns[spec.name]))
    return tensors


def _columns_of_objects(
    instances: list[Any], bound: Bindings, required: Sequence[TensorSpec]
) -> dict[str, list[Any]]:
    """Return objects, one per row, as lists of values by input name."""
    names = {spec.name for spec in bound.specs}
    first = set(instances[0])
    if {spec.name for spec in required} <= first <= names:
        # All rows alike may leave out inputs that the server fills in.
        names = first
    for index, row in enumerate(instances):
        if not isinstance(row, dict) or set(row) != names:
            raise bad_request(
                f"instances[{index}] must be an object with the inputs {bound.names()}"
            )
    columns: dict[str, list[Any]] = {}
    for name in names:
        columns[name] = [row[name] for row in instances]
    return columns


def _from_inputs(
    inputs: Any, bound: Bindings, required: Sequence[TensorSpec]
) -> list[Tensor]:
    if _is_named(inputs):
        for spec in required:
            if spec.name not in inputs:
                raise bad_request(
                    f"inputs lacks {spec.name!r}; the model takes {bound.names()}"
                )
        tensors = []
        for spec in bound.specs:
            if spec.name in inputs:
                tensors.append(_column(spec, inputs[spec.name]))
        return tensors
    if len(required) != 1:
        raise bad_request(f"inputs must be an object with {bound.names()}")
    return [_column(required[0], inputs)]


def _as_column(tensor: Tensor, spec: TensorSpec) -> Tensor:
    """Return an input of shape [n] as [n, 1].

    TensorFlow Serving's examples send it so.
    """
    single = len(tensor.shape) == 1 and not spec.open and spec.shape[1:] == (1,)
    return dataclasses.replace(tensor, shape=(*tensor.shape, 1)) if single else tensor


def _without_column(tensor: Tensor) -> Tensor:
    """Return an output of one value per row as a flat array."""
    single = len(tensor.shape) == 2 and tensor.shape[1] == 1
    return dataclasses.replace(tensor, shape=tensor.shape[:1]) if single else tensor


def _is_named(value: Any) -> bool:
    return isinstance(value, dict) and set(value) != {"b64"}


def _column(spec: TensorSpec, values: Any) -> Tensor:
    """Parse nested values of an input.

    Unlike in OIP, the nesting gives the shape and must be rectangular.
    """
    location = f"input {spec.name!r}"
    if spec.datatype in _NOT_IN_JSON:
        raise ApiError(
            ErrorCode.NOT_IMPLEMENTED,
            f"{location}: {spec.datatype} cannot be sent in this API",
        )
    # A quantized input takes real numbers here: JSON clients don't know its scale.
    datatype = DATATYPES["FP32" if spec.quantization is not None else spec.datatype]
    shape, flat = nested(values, location)
    if datatype.name == "BYTES":
        return Tensor(
            spec.name, "BYTES", shape, [_text(value, location) for value in flat]
        )
    return Tensor(
        spec.name,
        datatype.name,
        shape,
        from_json_values(flat, datatype, shape, location),
    )


def _text(value: Any, location: str) -> bytes:
    if isinstance(value, dict) and isinstance(value.get("b64"), str):
        try:
            from pocketserve.tasks.encoded import decode_base64  # late, as above

            return decode_base64(value["b64"])
        except ValueError:
            raise invalid(location, "b64 is not valid base64") from None
    if not isinstance(value, str):
        raise invalid(
            location,
            f"must be a string or {{'b64': ...}}, not {strict_json.json_type(value)}",
        )
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError:
        raise invalid(location, "a string contains half of a surrogate pair") from None


def _to_values(tensor: Tensor) -> Any:
    """Return nested lists, FP32 in its shortest exact form."""
    if tensor.datatype in _NOT_IN_JSON:
        text = (
            f"output {tensor.name!r} is {tensor.datatype}, which this API cannot send"
        )
        raise ApiError(ErrorCode.NOT_IMPLEMENTED, text)
    array = to_array(tensor)
    flat = array.reshape(-1)
    if array.dtype == object:
        return _texts(flat, tensor.name).reshape(array.shape).tolist()
    if array.dtype == np.float32:
        return _exact(flat).reshape(array.shape).tolist()
    return array.tolist()


def _texts(elements: Array, name: str) -> Array:
    texts = np.empty(elements.size, dtype=object)
    for index, element in enumerate(elements.tolist()):
        texts[index] = _encode_text(element, name)
    return texts


def _exact(values: Array) -> Array:
    """Return FP32 as the FP64 that is printed with the fewest digits."""
    exact = np.empty(values.size)
    for start in range(0, values.size, STEP):
        part = slice(start, start + STEP)
        exact[part] = values[part].astype("U32").astype(np.float64)
    return exact


def _encode_text(element: bytes, name: str) -> Any:
    if name.endswith("_bytes"):
        return {"b64": base64.b64encode(element).decode("ascii")}
    return element.decode("utf-8", errors="replace")


def _as_rows(outputs: dict[str, Any], tensors: list[Tensor]) -> list[Any]:
    sizes = {tensor.shape[0] if tensor.shape else None for tensor in tensors}
    if len(sizes) != 1 or None in sizes:
        raise bad_request(
            "the outputs do not all have one row per instance; use 'inputs' instead"
        )
    if len(outputs) == 1:
        rows: list[Any] = next(iter(outputs.values()))
        return rows
    objects = []
    for values in zip(*outputs.values(), strict=True):
        objects.append(dict(zip(outputs, values, strict=True)))
    return objects
