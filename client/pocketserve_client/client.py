"""The facade: what an application calls."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import numpy.typing as npt

from pocketserve_client.arrays import Array, as_array, as_tensor
from pocketserve_client.credentials import find_token
from pocketserve_client.errors import ServerError
from pocketserve_client.http import Answer, HttpTransport
from pocketserve_wire import ApiError, oip, strict_json

DEFAULT_URL = "http://127.0.0.1:8470"


class Client:
    """A connection to one server. Use it as a context manager, or call :meth:`close`.

    Args:
        url: the server's address; by default ``POCKETSERVE_URL``, else ``http://127.0.0.1:8470``.
        token: the access token; by default ``POCKETSERVE_TOKEN``, else what is in the token file.
        token_file: where to read the token, if it is not where the server keeps it by default.
        timeout: seconds for connecting, and for each wait for bytes.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        token_file: Path | None = None,
        timeout: float = 60.0,
    ) -> None:
        self.url = url or os.environ.get("POCKETSERVE_URL", DEFAULT_URL)
        self._transport = HttpTransport(self.url, token or find_token(token_file), timeout)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def is_ready(self) -> bool:
        """Whether the server accepts requests.

        Raises:
            ServerUnreachableError: nobody answered.
        """
        return self._transport.send("GET", "/v2/health/ready").status == 200

    def server_metadata(self) -> dict[str, Any]:
        """Name, version and protocol extensions of the server."""
        metadata: dict[str, Any] = self._json("GET", "/v2")
        return metadata

    def index(self, *, ready_only: bool = False) -> list[dict[str, Any]]:
        """Every version of every model: ``name``, ``version``, ``state`` and often a ``reason``."""
        body = strict_json.dumps({"ready": ready_only})
        entries: list[dict[str, Any]] = self._json("POST", "/v2/repository/index", body)
        return entries

    def is_model_ready(self, model: str, version: str | None = None) -> bool:
        """Whether a request to the model would be answered."""
        return self._transport.send("GET", f"{_path(model, version)}/ready").status == 200

    def model_metadata(self, model: str, version: str | None = None) -> dict[str, Any]:
        """Inputs, outputs and versions of a model."""
        metadata: dict[str, Any] = self._json("GET", _path(model, version))
        return metadata

    def statistics(self, model: str | None = None, version: str | None = None) -> list[dict[str, Any]]:
        """Counters of one version, one model or all models."""
        base = "/v2/models" if model is None else _path(model, version)
        entries: list[dict[str, Any]] = self._json("GET", f"{base}/stats")["model_stats"]
        return entries

    def load(self, model: str, *, release: bool = False) -> None:
        """Load a model, or load it anew after its files have changed.

        Args:
            release: forget first that its files are in quarantine, so that they are tried again.
        """
        body = strict_json.dumps({"parameters": {"release": True}} if release else {})
        self._checked("POST", f"/v2/repository/models/{_segment(model)}/load", body)

    def unload(self, model: str) -> None:
        """Stop serving a model until it is loaded again."""
        self._checked("POST", f"/v2/repository/models/{_segment(model)}/unload", b"{}")

    def infer(
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        outputs: Sequence[str] = (),
        version: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> dict[str, Array]:
        """Send tensors, get tensors; both travel as raw bytes.

        Args:
            inputs: arrays by input name. Plain Python floats become FP64: give NumPy arrays of the model's dtype.
            outputs: names of the outputs wanted; empty means all.
            parameters: request parameters, such as ``timeout`` in microseconds.

        Returns:
            Arrays by output name; they share the answer's memory and are read-only.

        Raises:
            ServerError, ServerUnreachableError: no answer.
            TypeError: an input's elements have no datatype in the protocol.
        """
        request = oip.InferRequest(
            inputs=[as_tensor(name, value) for name, value in inputs.items()],
            outputs=[oip.RequestedOutput(name, binary=True) for name in outputs],
            parameters=dict(parameters or {}),
            binary_output=True,
        )
        body = oip.encode_infer_request(request)
        headers = {"Content-Type": "application/octet-stream"}
        if body.json_length is not None:
            headers["Inference-Header-Content-Length"] = str(body.json_length)
        answer = self._checked("POST", f"{_path(model, version)}/infer", b"".join(body.chunks), headers)
        response = oip.decode_infer_response(answer.body, answer.json_length)
        return {tensor.name: as_array(tensor) for tensor in response.outputs}

    def predict(
        self,
        model: str,
        data: bytes | str | Sequence[Any] | Mapping[str, Any],
        *,
        top_k: int | None = None,
        threshold: float | None = None,
        version: str | None = None,
    ) -> dict[str, Any]:
        """Send raw input, get a labelled answer.

        Args:
            data: the bytes of a picture or ``.npy`` file, or a JSON-like value (numbers, features).
            top_k: entries of the answer at most.
            threshold: lowest score that is answered.

        Returns:
            ``model``, ``version``, ``task``, ``predictions`` (a list) and ``timing_ms``.

        Raises:
            ServerError, ServerUnreachableError: no answer.
        """
        if isinstance(data, str):
            body = data.encode()
        else:
            body = bytes(data) if isinstance(data, bytes | bytearray | memoryview) else strict_json.dumps(data)
        query = {"top_k": top_k, "threshold": threshold, "version": version}
        given = {name: str(value) for name, value in query.items() if value is not None}
        headers = {"Content-Type": "application/octet-stream"}
        answer = self._checked("POST", f"/predictions/{_segment(model)}", body, headers, given)
        prediction: dict[str, Any] = strict_json.loads_object(answer.body)
        return prediction

    def _json(self, method: str, path: str, body: bytes | None = None) -> Any:
        return strict_json.loads(self._checked(method, path, body).body)

    def _checked(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        answer = self._transport.send(method, path, body, headers, query)
        if answer.status != 200:
            raise _server_error(answer)
        return answer


def _path(model: str, version: str | None) -> str:
    base = f"/v2/models/{_segment(model)}"
    return base if version is None else f"{base}/versions/{_segment(version)}"


def _segment(name: str) -> str:
    """A name as one segment of a path. What would lead to another path is no name of a model or version."""
    if name in ("", ".", ".."):
        raise ServerError(404, "MODEL_NOT_FOUND", f"Request for unknown model: nothing can be called {name!r}")
    return quote(name, safe="")


def _server_error(answer: Answer) -> ServerError:
    try:
        document = strict_json.loads_object(answer.body)
    except ApiError:
        document = {}
    message = document.get("error") or f"HTTP {answer.status} without a readable message; is this a pocketserve server?"
    return ServerError(answer.status, str(document.get("code", "")), str(message))
