"""Lists of models that OpenAI's, KServe's and TensorFlow Serving's clients read."""

from __future__ import annotations

from typing import Any

from pocketserve.api.messages import ApiRequest, ApiResponse, json_response
from pocketserve.api.tfserving import status_document
from pocketserve.repository.scan import ModelEntry
from pocketserve.service import Service

OWNER = "pocketserve"


def list_for_all(service: Service, request: ApiRequest) -> ApiResponse:
    """All models, for OpenAI's clients as `data` and for KServe's as `models`."""
    names = service.model_names()
    data = [_description(service.entry(name)) for name in names]
    return json_response({"object": "list", "data": data, "models": names})


def model_status(service: Service, request: ApiRequest) -> ApiResponse:
    """A model for OpenAI's clients, with TF Serving's states and KServe's readiness."""
    document = status_document(service, request)
    if request.path.get("version") is None:
        document |= _description(service.entry(request.path["model"]))
    return json_response(document)


def _description(entry: ModelEntry) -> dict[str, Any]:
    return {
        "id": entry.name,
        "object": "model",
        "created": _changed(entry),
        "owned_by": OWNER,
    }


def _changed(entry: ModelEntry) -> int:
    """Return the time of a model's default file, in seconds since 1970."""
    version = entry.versions.get(entry.default_version)
    if version is None:
        return 0
    try:
        return int(version.path.stat().st_mtime)
    except OSError:
        return 0
