"""Triton's further extensions: shared memory, tracing and logging. None is offered here; its clients are told so.

They clean up before they begin: asking for regions, and letting go of all of them, is answered as if there were none.
"""

from __future__ import annotations

from pocketserve.api.messages import ApiRequest, ApiResponse, json_response
from pocketserve.service import Service
from pocketserve_wire import ApiError, ErrorCode, strict_json
from pocketserve_wire.oip_fields import NO_SHARED_MEMORY


def memory_status(service: Service, request: ApiRequest) -> ApiResponse:
    """The regions of shared memory: there are none."""
    return json_response([])


def region_status(service: Service, request: ApiRequest) -> ApiResponse:
    """One region of shared memory: there is none."""
    raise ApiError(ErrorCode.NOT_IMPLEMENTED, NO_SHARED_MEMORY)


def register_region(service: Service, request: ApiRequest) -> ApiResponse:
    """Not offered."""
    raise ApiError(ErrorCode.NOT_IMPLEMENTED, NO_SHARED_MEMORY)


def unregister_region(service: Service, request: ApiRequest) -> ApiResponse:
    """Let go of regions of shared memory: there are none, which is no fault, as in Triton."""
    if len(request.body):
        strict_json.loads_object(request.body)
    return json_response({})


def trace_setting(service: Service, request: ApiRequest) -> ApiResponse:
    """Not offered."""
    raise ApiError(ErrorCode.NOT_IMPLEMENTED, "requests are not traced; GET /v2/models/stats and /metrics tell times")


def logging_setting(service: Service, request: ApiRequest) -> ApiResponse:
    """Not offered."""
    raise ApiError(
        ErrorCode.NOT_IMPLEMENTED, "what is logged is set when the server starts: pocketserve serve --log-level"
    )
