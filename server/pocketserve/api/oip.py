"""The Open Inference Protocol v2 with Triton's extensions: health, metadata, inference, statistics, repository."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from pocketserve.api.messages import (
    JSON,
    OCTETS,
    ApiRequest,
    ApiResponse,
    json_response,
    refuse_unknown_query,
    waiting_parameters,
)
from pocketserve.engine.engine import State
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.payload import (
    EncodedPayload,
    Payload,
    Prediction,
    TensorPayload,
)
from pocketserve.repository.files import file_bytes
from pocketserve.repository.manifest import name_fault
from pocketserve.service import ModelStatus, Service
from pocketserve_wire import ApiError, ErrorCode, oip, strict_json
from pocketserve_wire.oip_fields import parse_parameters

if TYPE_CHECKING:
    from pocketserve.engine.lifecycle.handle import ModelHandle
    from pocketserve.engine.lifecycle.state import VersionRecord
    from pocketserve.repository.scan import ModelEntry, VersionEntry

_INDEX_STATES = {
    State.LOADING: "LOADING",
    State.READY: "READY",
    State.ON_DEMAND: "READY",
}


def live(service: Service, request: ApiRequest) -> ApiResponse:
    """The process answers."""
    return json_response({"live": True})


def ready(service: Service, request: ApiRequest) -> ApiResponse:
    """New requests are accepted, and the models of ``load`` are loaded."""
    if service.draining:
        raise ApiError(
            ErrorCode.SHUTTING_DOWN, "the server is shutting down", retry_after_s=1.0
        )
    if service.starting:
        raise ApiError(
            ErrorCode.MODEL_NOT_READY,
            "the models of --load are being loaded",
            retry_after_s=1.0,
        )
    return json_response({"live": True, "ready": True})


def server_metadata(service: Service, request: ApiRequest) -> ApiResponse:
    """Name, version and extensions."""
    return json_response(service.server_metadata())


def list_models(service: Service, request: ApiRequest) -> ApiResponse:
    """The names of all models (KServe)."""
    return json_response({"models": service.model_names()})


def model_ready(service: Service, request: ApiRequest) -> ApiResponse:
    """Return whether a version would answer; one that is not loaded yet but can be counts as ready."""
    status = service.status(request.path["model"], request.path.get("version"))
    if not status.ready:
        raise ApiError(
            ErrorCode.MODEL_NOT_READY,
            f"model {status.model!r} version {status.version!r} is not ready: {status.reason}",
        )
    return json_response({"name": status.model, "ready": True})


def model_metadata(service: Service, request: ApiRequest) -> ApiResponse:
    """Inputs, outputs, versions and runtime of a model."""
    from pocketserve.api.describe import describe_model  # late: no inference needs it

    with service.running(request.path["model"], request.path.get("version")) as (
        entry,
        running,
    ):
        note = service.note(entry, running.model.version.name)
        return json_response(
            describe_model(entry, running, service.config.http_port, note=note)
        )


def model_config(service: Service, request: ApiRequest) -> ApiResponse:
    """Triton's model configuration in its protobuf-JSON form, as far as it applies."""
    # late: no inference needs it
    from pocketserve.api.model_config import triton_config

    with service.running(request.path["model"], request.path.get("version")) as (
        entry,
        running,
    ):
        return json_response(triton_config(entry, running))


def model_interface(service: Service, request: ApiRequest) -> ApiResponse:
    """Tensors, calls of the task, all labels and the fingerprint, for generated code."""
    # late: no inference needs it
    from pocketserve.engine.interface import describe_interface

    with service.running(request.path["model"], request.path.get("version")) as (
        _,
        running,
    ):
        return json_response(describe_interface(running.model))


def sample(service: Service, request: ApiRequest) -> ApiResponse:
    """A file of a model's folder ``samples``, which its card lists."""
    # Imported late: inference doesn't need it.
    from pocketserve.repository.samples import CONTENT_TYPES, read_sample

    refuse_unknown_query(request)
    model, name = request.path["model"], request.path["sample"]
    content = read_sample(service.entry(model), name)
    if content is None:
        text = (
            f"the model {model[:64]!r} has no sample {name[:64]!r}; its card lists them"
        )
        raise ApiError(ErrorCode.NOT_FOUND, text)
    content_type = CONTENT_TYPES[name[name.rindex(".") :]]
    return ApiResponse(content_type=content_type, chunks=[content])


def infer(service: Service, request: ApiRequest) -> InferenceCall:
    """Run a model on tensors; with the parameter ``task``, on raw bytes.

    Raises:
        ApiError: the request is invalid.
    """
    body, json_length = request.body, request.json_length
    template = None
    if json_length is not None:
        template = oip.find_template(body, json_length)
    if (
        template is not None
        and template.all_raw
        and not request.query
        and "task" not in template.parameters
    ):
        request.client_id = template.id
        payload = EncodedPayload(template, body)
        return _call(service, request, payload, template.parameters, _answer)
    record = service.open_call(request.path["model"], request.path.get("version"))
    try:
        if template is None:
            decoded = oip.decode_infer_request(body, json_length)
            return _call_of(service, request, decoded, record)
        return _call_of(service, request, template.read(body), record)
    except BaseException:
        service.abandon_call()
        raise


def _call_of(
    service: Service,
    request: ApiRequest,
    decoded: oip.InferRequest,
    record: VersionRecord,
) -> InferenceCall:
    """Return the call of a decoded request."""
    request.client_id = decoded.id
    parameters: Mapping[str, Any] = decoded.parameters
    if request.query:
        # A raw body has no parameters of its own, so the query string may set them.
        parameters = decoded.parameters | waiting_parameters(request)
    respond = partial(_encode, decoded)
    payload: Payload = TensorPayload(decoded)
    # Other servers use other values of a parameter of this name.
    if decoded.parameters.get("task") is True:
        # Imported late: few requests use tasks this way.
        from pocketserve.api import tasks

        payload, respond_to_task = tasks.payload_of(decoded)
        respond = partial(_encode_task, decoded, respond_to_task)
    return _call(service, request, payload, parameters, respond, record)


def _call(
    service: Service,
    request: ApiRequest,
    payload: Payload,
    parameters: Mapping[str, Any],
    respond: Callable[[Any], ApiResponse],
    record: VersionRecord | None = None,
) -> InferenceCall:
    options = service.request_options(
        parameters,
        request.deadline,
        request.cancellation,
        request.received,
        request.owner,
    )
    path = request.path
    return InferenceCall(
        path["model"],
        path.get("version"),
        payload,
        options,
        request.execute,
        respond,
        None,
        request.keeps_thread,
        record,
    )


def _encode_task(
    request: oip.InferRequest,
    respond_to_task: Callable[[Prediction], oip.InferResponse],
    prediction: Prediction,
) -> ApiResponse:
    return _encode(request, respond_to_task(prediction))


def _encode(request: oip.InferRequest, response: oip.InferResponse) -> ApiResponse:
    binary: dict[str, bool] | bool = request.binary_output
    if request.outputs:
        binary = {output.name: output.binary for output in request.outputs}
    return _answer(oip.encode_infer_response(response, binary))


def _answer(body: oip.EncodedBody) -> ApiResponse:
    chunks, json_length = body
    return ApiResponse(
        200, JSON if json_length is None else OCTETS, chunks, json_length, True
    )


def statistics(service: Service, request: ApiRequest) -> ApiResponse:
    """Counters of one version, of all versions of a model, or of everything."""
    statuses = _statuses(service, request)
    entries = [_statistics_entry(service, status) for status in statuses]
    content: dict[str, Any] = {"model_stats": entries}
    if service.replica is not None:
        content["worker"] = service.replica.name
    return json_response(content)


def _statuses(service: Service, request: ApiRequest) -> list[ModelStatus]:
    """Return the versions whose statistics are requested."""
    name = request.path.get("model")
    if name is not None and "version" in request.path:
        return [service.status(name, request.path["version"])]
    if name is None:
        return [status for status in service.statuses() if status.version]
    # Clients of a single-version server expect one entry: omit versions that never ran.
    used = []
    for status in service.model_statuses(service.entry(name)):
        statistics = service.engine.statistics(name, status.version)
        if status.version and statistics.last_inference_ms:
            used.append(status)
    return used or [service.status(name, None)]


def repository_index(service: Service, request: ApiRequest) -> ApiResponse:
    """Every version of every model with its state, after a scan of the folder."""
    only_ready = _body_flag(request, "ready")
    entries = []
    for status in service.statuses(rescan=True):
        if status.ready or not only_ready:
            entries.append(_index_entry(service, status))
    if not only_ready:
        for name in service.repository.models().misnamed:
            entries.append(_misnamed_entry(name))
    return json_response(entries)


def _index_entry(service: Service, status: ModelStatus) -> dict[str, Any]:
    # Triton and MLServer always have a reason, and their clients rely on it.
    entry = {
        "name": status.model,
        "version": status.version,
        "state": _INDEX_STATES.get(status.state, "UNAVAILABLE"),
        "reason": status.reason,
    }
    return entry | _listing(service, status)


def _misnamed_entry(name: str) -> dict[str, Any]:
    # A file's name may not be UTF-8, but JSON must be.
    text = name.encode("utf-8", "replace").decode()
    return {
        "name": text,
        "version": "",
        "state": "UNAVAILABLE",
        "reason": name_fault(text),
    }


def _listing(service: Service, status: ModelStatus) -> dict[str, Any]:
    """Return a version's further entries in the index.

    There are none for a version without files.
    """
    model = service.repository.models().get(status.model)
    version = model.versions.get(status.version) if model is not None else None
    if model is None or version is None:
        return {}
    entry: dict[str, Any] = {}
    if service.replica is not None:
        entry["worker"] = service.replica.name
    running = service.engine.running(status.model, status.version)
    if running is not None and running.model.snapshot is not None:
        entry["sha256"] = running.model.snapshot.digest
    entry["default"] = version.name == service.default_of(model)
    entry["loaded"] = running is not None
    entry["file_bytes"] = file_bytes(version)
    entry["task"] = _task_of(model, version, running)
    return entry


def _task_of(
    model: ModelEntry, version: VersionEntry, running: ModelHandle | None
) -> str:
    """Return a version's task; empty if only a load can tell."""
    if version.format.task is not None and not model.manifest.task:
        # Of a loaded model, too: an embedding model in GGUF is no chat.
        task = version.format.task(version.path)
        if task:
            return task
    if running is not None:
        return running.model.task.name
    return model.manifest.task or ""


def repository_load(service: Service, request: ApiRequest) -> ApiResponse:
    """Load or reload a model; with ``release`` also from quarantine."""
    parameters = dict(_body_parameters(request))
    release = parameters.pop("release", False)
    if not isinstance(release, bool):
        raise ApiError(
            ErrorCode.INVALID_PARAMETER, "parameters.release must be true or false"
        )
    if parameters:
        # A file or a configuration from the network would be untrusted code.
        raise ApiError(
            ErrorCode.NOT_IMPLEMENTED,
            f"failed to load {request.path['model']!r}: files and configurations are not accepted over the network; "
            "put them into the models folder and load without parameters",
        )
    if release:
        service.release(request.path["model"])
    service.load(request.path["model"])
    return json_response({"name": request.path["model"], "load": True})


def repository_unload(service: Service, request: ApiRequest) -> ApiResponse:
    """Stop serving a model until it is loaded again."""
    _body_parameters(request)
    service.unload(request.path["model"])
    return json_response({"name": request.path["model"], "unload": True})


def _statistics_entry(service: Service, status: ModelStatus) -> dict[str, Any]:
    running = service.engine.running(status.model, status.version)
    memory_bytes = running.memory_bytes if running is not None else 0
    return service.engine.statistics(status.model, status.version).to_json(
        status.model, status.version, memory_bytes
    )


def _body_object(request: ApiRequest) -> dict[str, Any]:
    return strict_json.loads_object(request.body) if len(request.body) else {}


def _body_parameters(request: ApiRequest) -> dict[str, Any]:
    return parse_parameters(_body_object(request).get("parameters"), "parameters")


def _body_flag(request: ApiRequest, key: str) -> bool:
    value = _body_object(request).get(key, False)
    if not isinstance(value, bool):
        raise ApiError(ErrorCode.INVALID_REQUEST, f"{key} must be true or false")
    return value
