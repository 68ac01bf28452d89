"""Triton's other extensions: none is offered.

Triton's clients clean up before they begin: status and unregistering of all regions are answered as if there were none.
"""

from __future__ import annotations

from pocketserve.api.messages import ApiRequest, ApiResponse, json_response, not_offered
from pocketserve.service import Service
from pocketserve_wire import strict_json
from pocketserve_wire.oip_fields import NO_SHARED_MEMORY

register_region = not_offered(NO_SHARED_MEMORY)
region_status = not_offered(
    NO_SHARED_MEMORY, "One region of shared memory: there is none."
)
trace_setting = not_offered(
    "requests are not traced; GET /v2/models/stats and /metrics have the times"
)
logging_setting = not_offered(
    "the log level is set when the server starts: pocketserve serve --log-level"
)


def memory_status(service: Service, request: ApiRequest) -> ApiResponse:
    """The regions of shared memory: there are none."""
    return json_response([])


def unregister_region(service: Service, request: ApiRequest) -> ApiResponse:
    """Unregister regions of shared memory: there are none, which is no fault, as in Triton."""
    if len(request.body):
        strict_json.loads_object(request.body)
    return json_response({})
