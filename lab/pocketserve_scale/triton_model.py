"""A version as a model of Triton's Python backend.

Triton imports it in the process of that model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from typing import Any, Final

import triton_python_backend_utils as backend

from pocketserve.config import load_config
from pocketserve.inference.blocking import submit_and_wait
from pocketserve.inference.call import InferenceCall
from pocketserve.inference.payload import TensorPayload
from pocketserve.service import Service
from pocketserve.tensors import to_array, to_tensor
from pocketserve_wire import ApiError, Tensor
from pocketserve_wire.oip import InferRequest, RequestedOutput

_CODES: Final = {
    400: "INVALID_ARG",
    404: "NOT_FOUND",
    501: "UNSUPPORTED",
    429: "UNAVAILABLE",
    503: "UNAVAILABLE",
}
"""Triton's code for the status of our errors; INTERNAL for any other status."""


class TritonPythonModel:
    """A version in its own process, as Triton's Python backend calls it."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the version that the model's configuration names.

        Args:
            args: Triton's, among them the configuration as JSON in ``model_config``.

        Raises:
            TritonModelException: it cannot be loaded.
        """
        config = json.loads(args["model_config"])
        parameters = config["parameters"]
        self._model = parameters["model"]["string_value"]
        self._version = parameters["version"]["string_value"]
        self._datatypes = {}
        for entry in config["input"]:
            self._datatypes[entry["name"]] = _datatype(entry["data_type"])
        folder = os.environ.get("POCKETSERVE_MODELS_DIR")
        settings = {
            "models_dir": folder or parameters["models_dir"]["string_value"],
            "batching": "false",
            "socket": "false",
        }
        self._service = Service(load_config(settings))
        self._scalars = set()
        try:
            with self._service.running(self._model, self._version) as (_, handle):
                for spec in handle.model.inputs.specs:
                    if not spec.shape:
                        self._scalars.add(spec.name)
        except ApiError as error:
            raise backend.TritonModelException(_sentence(error)) from None

    def execute(self, requests: Iterable[Any]) -> list[Any]:
        """Answer each request with tensors or an error."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            inputs = [self._input(tensor) for tensor in request.inputs()]
            names = [RequestedOutput(name) for name in request.requested_output_names()]
            payload = TensorPayload(InferRequest(inputs, names))
            options = self._service.request_options({})
            call = InferenceCall(self._model, self._version, payload, options)
            response = submit_and_wait(self._service.submit, call)
            outputs = []
            for tensor in response.outputs:
                array = to_array(tensor)
                # In Triton, a scalar has one element in a row, as in the configuration.
                array = array.reshape(array.shape or 1)
                outputs.append(backend.Tensor(tensor.name, array))
        except ApiError as error:
            return backend.InferenceResponse(error=_triton_error(error))
        return backend.InferenceResponse(output_tensors=outputs)

    def _input(self, tensor: Any) -> Tensor:
        name, array = tensor.name(), tensor.as_numpy()
        if name in self._scalars and array.size == 1:
            array = array.reshape(())
        return to_tensor(name, array, self._datatypes.get(name))

    def finalize(self) -> None:
        """Unload the version."""
        self._service.close()


def _datatype(name: str) -> str:
    """Return the protocol's datatype, such as FP32 for TYPE_FP32 in a configuration."""
    short = name.removeprefix("TYPE_")
    return "BYTES" if short == "STRING" else short


def _triton_error(error: ApiError) -> Any:
    code = getattr(backend.TritonError, _CODES.get(error.status, "INTERNAL"))
    return backend.TritonError(_sentence(error), code)


def _sentence(error: ApiError) -> str:
    return f"{error.code.name}: {error.message}"
