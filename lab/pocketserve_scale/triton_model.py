"""A version as a model of Triton's Python backend. It is imported by Triton's own process for that model."""

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
"""Triton's code for the status of one of our errors; every other one is INTERNAL."""


class TritonPythonModel:
    """A version in a process of its own, with the methods that Triton's Python backend calls."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the version that the model's configuration names, or raise Triton's exception.

        Args:
            args: Triton's, among them the configuration as JSON in ``model_config``.
        """
        config = json.loads(args["model_config"])
        values = {
            name: entry["string_value"] for name, entry in config["parameters"].items()
        }
        self._model, self._version = values["model"], values["version"]
        self._datatypes = {
            entry["name"]: _datatype(entry["data_type"]) for entry in config["input"]
        }
        folder = os.environ.get("POCKETSERVE_MODELS_DIR") or values["models_dir"]
        self._service = Service(
            load_config({"models_dir": folder, "batching": "false", "socket": "false"})
        )
        try:
            with self._service.running(self._model, self._version) as (_, handle):
                self._scalars = {
                    spec.name for spec in handle.model.inputs.specs if not spec.shape
                }
        except ApiError as error:
            raise backend.TritonModelException(_sentence(error)) from None

    def execute(self, requests: Iterable[Any]) -> list[Any]:
        """Answer each request with tensors, or with an error of its own."""
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        try:
            inputs = [self._input(tensor) for tensor in request.inputs()]
            names = [RequestedOutput(name) for name in request.requested_output_names()]
            payload = TensorPayload(InferRequest(inputs, names))
            call = InferenceCall(
                self._model, self._version, payload, self._service.request_options({})
            )
            response = submit_and_wait(self._service.submit, call)
            arrays = {tensor.name: to_array(tensor) for tensor in response.outputs}
            # A scalar has one element in a row there, as in the configuration.
            outputs = [
                backend.Tensor(name, array.reshape(array.shape or 1))
                for name, array in arrays.items()
            ]
        except ApiError as error:
            return backend.InferenceResponse(error=_triton_error(error))
        return backend.InferenceResponse(output_tensors=outputs)

    def _input(self, tensor: Any) -> Tensor:
        name, array = tensor.name(), tensor.as_numpy()
        array = (
            array.reshape(()) if name in self._scalars and array.size == 1 else array
        )
        return to_tensor(name, array, self._datatypes.get(name))

    def finalize(self) -> None:
        """Unload the version."""
        self._service.close()


def _datatype(name: str) -> str:
    """Return the protocol's datatype for the configuration's, such as FP32 for TYPE_FP32."""
    short = name.removeprefix("TYPE_")
    return "BYTES" if short == "STRING" else short


def _triton_error(error: ApiError) -> Any:
    code = getattr(backend.TritonError, _CODES.get(error.status, "INTERNAL"))
    return backend.TritonError(_sentence(error), code)


def _sentence(error: ApiError) -> str:
    return f"{error.code.name}: {error.message}"
