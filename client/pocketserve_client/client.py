"""The synchronous client."""

from __future__ import annotations

import functools
import numbers
import os
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, overload
from urllib.parse import quote, urlencode, urlsplit

import numpy.typing as npt

from pocketserve_client.arrays import as_array, as_tensor
from pocketserve_client.automatic import AutomaticTransport
from pocketserve_client.calls import (
    FOREIGN,
    Call,
    FallbackServer,
    ModelSequence,
    RequestSender,
    SecondSender,
    T,
    Transport,
    check_fallback,
    is_picture,
)
from pocketserve_client.connection import MAX_ANSWER_BYTES
from pocketserve_client.credentials import Credentials, find_credentials, find_state_dir
from pocketserve_client.errors import AddressError, NotOurServerError, ServerError
from pocketserve_client.http import DEFAULT_MAX_ANSWER_BYTES, DEFAULT_URL, HttpTransport
from pocketserve_client.inputs import (
    File,
    Files,
    RawInput,
    is_list_of_files,
    raw_body,
    with_hint,
)
from pocketserve_client.language.chat import ChatStream, Messages, start_chat
from pocketserve_client.language.transcripts import TranscriptStream, start_transcript
from pocketserve_client.socket import SocketTransport
from pocketserve_client.transport import (
    OCTETS,
    Answer,
    LabelledAnswer,
    Outputs,
    Picture,
    Request,
)
from pocketserve_wire import ApiError, oip, strict_json
from pocketserve_wire.addresses import LOOPBACK, SOCKET_PORT
from pocketserve_wire.files import run_file
from pocketserve_wire.handshake import LEAST_MAX_FRAME

FILES_AT_ONCE = 8
"""Concurrent requests for a list of files."""

SHORTEST_S, LONGEST_S = 1e-3, 1e7
"""Limits of timeouts in seconds; the operating system accepts little more."""


class Client:
    """A connection to one server, to be used as a context manager or closed.

    Threads may share it. A forked process may use it, too: it opens its own
    connections.

    Args:
        url: ``socket://HOST:PORT`` or ``http://HOST:PORT``. By default
            ``POCKETSERVE_URL``, else the default ports on this device: the socket if it
            is reachable; HTTP only if nothing listens on the socket's port and the
            state folder proves that a running server of this user has the HTTP port.
        token: the access token; by default the content of ``token_file``, else
            ``POCKETSERVE_TOKEN``, else the content of ``POCKETSERVE_TOKEN_FILE``, else
            the token that a server of the same user has stored.
        token_file: a file with the token.
        timeout: seconds for connecting and for each answer; over HTTP for both
            together.
        reconnect: seconds during which a call retries after its server was lost. Only
            idempotent calls are retried: all except :meth:`load`, :meth:`unload` and
            steps of a sequence.
        max_answer_bytes: size limit of an answer, from 4,096 bytes.
        fallback: another server with the same models, such as a desktop's. It receives
            the requests of :meth:`infer`, :meth:`predict` and :meth:`model_metadata`
            while the first server is unreachable or rejects them for now, for example
            with QUEUE_FULL or LOW_POWER. It never receives other calls or steps of a
            sequence. ``timeout`` then limits both servers together, the first one gets
            half of it, and lost servers are not retried. The answer's ``server`` is the
            URL of the server that answered.

    Raises:
        AddressError: the URL is not a valid server address.
        ValueError: a timeout or size is out of range.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        token_file: Path | None = None,
        timeout: float = 60.0,
        reconnect: float = 5.0,
        max_answer_bytes: int = DEFAULT_MAX_ANSWER_BYTES,
        fallback: FallbackServer | None = None,
    ) -> None:
        address = url or os.environ.get("POCKETSERVE_URL") or None
        self.url = address or DEFAULT_URL
        credentials = find_credentials(token, token_file)
        seconds = _seconds("timeout", timeout, SHORTEST_S)
        size = _bytes("max_answer_bytes", max_answer_bytes)
        transport = _open(address, credentials.token, seconds, size)
        second: SecondSender | None = None
        if fallback is not None:
            checked = check_fallback(fallback)
            second = _second_sender(checked, self.url, seconds, size)
        retry_s = _seconds("reconnect", reconnect, 0.0)
        self._sender = RequestSender(transport, retry_s, credentials.advice, second)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._sender.transport.close()
        if self._sender.fallback is not None:
            self._sender.fallback.sender.transport.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({shown_url(self.url)!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a Client cannot be pickled or copied: make one in each process"
        )

    def is_ready(self) -> bool:
        """Return whether the server accepts requests.

        Raises:
            ServerUnreachableError: no server answered.
        """
        return self._ready("/v2/health/ready")

    def server_metadata(self) -> dict[str, Any]:
        """Return name, version and protocol extensions of the server."""
        return self._object("GET", "/v2")

    def index(self, *, ready_only: bool = False) -> list[dict[str, Any]]:
        """Return all versions of all models.

        Each has ``name``, ``version``, ``state`` and ``reason``, which is often empty.
        """
        answer = self._send("POST", "/v2/repository/index", {"ready": ready_only})
        return _objects(_document(answer))

    def models(self) -> list[str]:
        """Return the names of all models, in the server's order."""
        names = [str(entry.get("name")) for entry in self.index()]
        return list(dict.fromkeys(names))

    def is_model_ready(self, model: str, version: str | None = None) -> bool:
        """Return whether the model accepts requests."""
        return self._ready(f"{_path(model, version)}/ready")

    def model_metadata(
        self, model: str, version: str | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Return a model's inputs, outputs and versions.

        Args:
            timeout: as in :meth:`infer`.
        """
        request = Request("GET", _path(model, version), may_fall_back=True)
        answer = self._sender.send(request.within(_own_timeout(timeout)))
        return _object(_document(answer))

    def model_interface(self, model: str, version: str | None = None) -> dict[str, Any]:
        """Return a model's interface for code generation.

        It has the tensors, calls, labels and the ``fingerprint``.
        """
        return self._object("GET", f"{_path(model, version)}/interface")

    def statistics(
        self, model: str | None = None, version: str | None = None
    ) -> list[dict[str, Any]]:
        """Return statistics of one version, one model or all models."""
        base = "/v2/models" if model is None else _path(model, version)
        return _objects(self._object("GET", f"{base}/stats").get("model_stats"))

    def chat(
        self,
        model: str,
        messages: Messages,
        *,
        timeout: float | None = None,
        **fields: Any,
    ) -> ChatStream:
        """Ask a language model, and return its answer piece by piece.

        The pieces come as the model writes them. Closing the answer stops the model.

        Args:
            messages: a text, or a chat: objects with ``role`` and ``content``.
            timeout: seconds for the whole answer; by default ten minutes.
            fields: further fields of OpenAI's interface, such as ``max_tokens``,
                ``temperature`` or ``stop``.

        Raises:
            ServerError, ServerUnreachableError: no answer, with the first piece.
        """
        return start_chat(self._sender, model, messages, fields, _own_timeout(timeout))

    def transcribe(
        self,
        model: str,
        sound: File,
        *,
        language: str | None = None,
        prompt: str | None = None,
        temperature: float | None = None,
        translate: bool = False,
        timeout: float | None = None,
    ) -> TranscriptStream:
        """Write down the speech in a sound, and return it segment by segment.

        The segments come as soon as they are known. Closing the transcript stops the
        model.

        Args:
            sound: a WAV file or another recording: its bytes, its ``Path``, or a file
                opened in binary mode.
            language: of the speech, as a code; without it a multilingual model detects
                it.
            prompt: names and words that guide the spelling.
            temperature: 0 always takes the most likely words.
            translate: translate into English.
            timeout: seconds for the whole transcript; by default ten minutes.

        Raises:
            OSError: the file cannot be read.
            ServerError, ServerUnreachableError: no answer, with the first segment.
        """
        fields = {
            "language": language,
            "prompt": prompt,
            "temperature": temperature,
            "translate": translate,
        }
        own = _own_timeout(timeout)
        return start_transcript(self._sender, model, sound, fields, own)

    def load(
        self, model: str, *, release: bool = False, timeout: float | None = None
    ) -> None:
        """Load a model, or reload it after its files have changed.

        Args:
            release: first release its files from quarantine, so that they are tried
                again.
            timeout: as in :meth:`infer`; loading a large model may take longer than an
                answer.
        """
        content = {"parameters": {"release": True}} if release else {}
        path = f"/v2/repository/models/{_segment(model)}/load"
        self._send("POST", path, content, idempotent=False, timeout=timeout)

    def unload(self, model: str) -> None:
        """Stop serving a model until it is loaded again."""
        self._send(
            "POST",
            f"/v2/repository/models/{_segment(model)}/unload",
            {},
            idempotent=False,
        )

    def open_pairing(self) -> dict[str, Any]:
        """Open pairing for one app.

        Returns:
            ``code`` (ten digits), ``remaining_s`` (seconds) and ``tries``.
        """
        return self._object("POST", "/pairing/open", {}, idempotent=False)

    def close_pairing(self) -> None:
        """Close pairing; the code becomes invalid."""
        self._object("POST", "/pairing/close", {})

    def pairing_state(self, *, wait_ms: int = 0) -> str:
        """Return ``open``, ``paired``, ``refused``, ``expired`` or ``closed``.

        Args:
            wait_ms: long-poll for up to this many milliseconds (2,000 at most) while
                the state is ``open``.
        """
        return str(self._object("GET", f"/pairing?wait_ms={wait_ms}").get("state"))

    def page_ticket(self) -> dict[str, Any]:
        """Return a one-time ticket for the server's page.

        The page's address is ``url``, then ``#ticket=`` and the ticket.

        Returns:
            ``ticket``, ``expires_in`` (seconds) and ``url``.
        """
        return self._object("POST", "/web/ticket", {}, idempotent=False)

    def infer(
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        outputs: Sequence[str] = (),
        version: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        wait: float | None = None,
        datatypes: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Outputs:
        """Run a model on tensors; both directions use raw bytes.

        Args:
            inputs: arrays by input name. Plain Python floats become FP64: pass NumPy
                arrays with the model's dtype.
            outputs: names of the requested outputs; empty means all.
            parameters: request parameters, such as ``priority`` or ``stream``; use
                :meth:`sequence` for stateful models.
            wait: seconds the request may be queued before it fails with
                DEADLINE_EXCEEDED.
            datatypes: ``BF16`` by input name, for arrays of another dtype: floats are
                rounded, uint16 elements are the bits. ml_dtypes' bfloat16 arrays need
                no entry.
            timeout: seconds for this call; None means the client's timeout. Every call
                has a limit.

        Returns:
            Arrays by output name; they share the answer's memory.

        Raises:
            ServerError, ServerUnreachableError: no answer.
            TypeError: the protocol has no datatype for an input's elements.
        """
        request = _infer_request(
            model, inputs, outputs, version, parameters, wait, datatypes
        )
        return _tensors(self._sender.send(request.within(_own_timeout(timeout))))

    def async_infer(
        self,
        model: str,
        inputs: Mapping[str, npt.ArrayLike],
        *,
        outputs: Sequence[str] = (),
        version: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        wait: float | None = None,
        datatypes: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Call[Outputs]:
        """Start :meth:`infer` without waiting for the answer.

        On the socket any number of calls share the connection, and their answers arrive
        in any order.
        """
        request = _infer_request(
            model, inputs, outputs, version, parameters, wait, datatypes
        )
        return Call(self._sender, request.within(_own_timeout(timeout)), _tensors)

    @overload
    def predict(
        self,
        model: str,
        data: Files,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        version: str | None = ...,
        annotate: Literal["both"] | None = ...,
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
        wait: float | None = ...,
        timeout: float | None = ...,
    ) -> list[LabelledAnswer]: ...
    @overload
    def predict(
        self,
        model: str,
        data: Files,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        version: str | None = ...,
        annotate: Literal["png", "jpeg"],
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
        wait: float | None = ...,
        timeout: float | None = ...,
    ) -> list[Picture]: ...
    @overload
    def predict(
        self,
        model: str,
        data: RawInput,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        version: str | None = ...,
        annotate: Literal["both"] | None = ...,
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
        wait: float | None = ...,
        timeout: float | None = ...,
    ) -> LabelledAnswer: ...
    @overload
    def predict(
        self,
        model: str,
        data: RawInput,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        version: str | None = ...,
        annotate: Literal["png", "jpeg"],
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
        wait: float | None = ...,
        timeout: float | None = ...,
    ) -> Picture: ...
    @overload
    def predict(
        self,
        model: str,
        data: RawInput | Files,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        version: str | None = ...,
        annotate: str | None,
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
        wait: float | None = ...,
        timeout: float | None = ...,
    ) -> Any: ...
    def predict(
        self,
        model: str,
        data: RawInput | Files,
        *,
        top_k: int | None = None,
        threshold: float | None = None,
        version: str | None = None,
        annotate: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        content_type: str = OCTETS,
        wait: float | None = None,
        timeout: float | None = None,
    ) -> Any:
        """Run a model on raw input and return a labelled answer.

        Args:
            data: one of the following. A list of files is sent as one request each.

                - a picture, sound or ``.npy`` file: its bytes, its ``Path``, or a file
                  opened in binary mode
                - a Pillow image
                - a NumPy array with the values and shape of the input tensor (a leading
                  batch dimension of 1 may be missing), or a uint8 RGB picture of shape
                  [height, width, 3]; it is sent as a ``.npy`` file
                - a pandas DataFrame or Series whose columns are the features
                - a JSON-like value: numbers, a dict of features by name, or a list of
                  either
                - a ``str``, which is a text
            top_k: maximum number of predictions.
            threshold: lowest score to return.
            annotate: ``png`` or ``jpeg`` returns the picture with the answer drawn on
                it; ``both`` adds that picture to the answer, as a base64 PNG named
                ``picture``.
            parameters: additional query parameters: the task's, such as
                ``{"format": "nv21", "width": 640}``, and ``stream`` or ``priority``.
            content_type: the media type, for tasks that cannot tell it from the bytes.
            wait: seconds the request may be queued before it fails with
                DEADLINE_EXCEEDED.
            timeout: as in :meth:`infer`, for each request.

        Returns:
            A dict with ``model``, ``version``, ``task``, ``predictions`` (a list) and
            ``timing_ms``, and with ``assumed`` (a list) if the model's files do not
            define how to decode a picture. With ``png`` or ``jpeg`` the bytes of that
            file. For a list of files a list of these, in the same order.

        Raises:
            ServerError, ServerUnreachableError: no answer.
            OSError: the file cannot be read.
            TypeError: the data has an unsupported type.
        """
        query = {
            "top_k": top_k,
            "threshold": threshold,
            "version": version,
            "annotate": annotate,
            **(parameters or {}),
        }
        own = _own_timeout(timeout)
        if is_list_of_files(data):
            return self._predict_files(model, data, query, wait, content_type, own)
        request = _predict_request(model, data, query, wait, content_type).within(own)
        try:
            return _prediction(self._sender.send(request))
        except ServerError as error:
            raise with_hint(error, data) from None

    def _predict_files(
        self,
        model: str,
        files: Files,
        query: Mapping[str, Any],
        wait: float | None,
        content_type: str,
        timeout: float | None,
    ) -> list[Any]:
        """Send files concurrently, but steps of a sequence one by one.

        The first error cancels the remaining requests.
        """
        at_once = 1 if query.get("sequence_id") is not None else FILES_AT_ONCE
        calls: deque[Call[Any]] = deque()
        answers = []
        try:
            for file in files:
                if len(calls) == at_once:
                    answers.append(calls.popleft().result())
                request = _predict_request(model, file, query, wait, content_type)
                request = request.within(timeout)
                calls.append(Call(self._sender, request, _prediction))
            while calls:
                answers.append(calls.popleft().result())
            return answers
        finally:
            for call in calls:
                call.cancel()

    @overload
    def async_predict(
        self,
        model: str,
        data: RawInput,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        version: str | None = ...,
        annotate: Literal["both"] | None = ...,
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
        wait: float | None = ...,
        timeout: float | None = ...,
    ) -> Call[LabelledAnswer]: ...
    @overload
    def async_predict(
        self,
        model: str,
        data: RawInput,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        version: str | None = ...,
        annotate: Literal["png", "jpeg"],
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
        wait: float | None = ...,
        timeout: float | None = ...,
    ) -> Call[Picture]: ...
    @overload
    def async_predict(
        self,
        model: str,
        data: RawInput,
        *,
        top_k: int | None = ...,
        threshold: float | None = ...,
        version: str | None = ...,
        annotate: str | None,
        parameters: Mapping[str, Any] | None = ...,
        content_type: str = ...,
        wait: float | None = ...,
        timeout: float | None = ...,
    ) -> Call[Any]: ...
    def async_predict(
        self,
        model: str,
        data: RawInput,
        *,
        top_k: int | None = None,
        threshold: float | None = None,
        version: str | None = None,
        annotate: str | None = None,
        parameters: Mapping[str, Any] | None = None,
        content_type: str = OCTETS,
        wait: float | None = None,
        timeout: float | None = None,
    ) -> Call[Any]:
        """Start :meth:`predict` without waiting; lists of files are not supported."""
        query = {
            "top_k": top_k,
            "threshold": threshold,
            "version": version,
            "annotate": annotate,
            **(parameters or {}),
        }
        request = _predict_request(model, data, query, wait, content_type)
        return Call(self._sender, request.within(_own_timeout(timeout)), _prediction)

    def sequence(
        self,
        model: str,
        *,
        sequence_id: int | str | None = None,
        version: str | None = None,
    ) -> ModelSequence:
        """Return a sequence of requests to a stateful model, a context manager.

        Args:
            sequence_id: its id, not 0 or empty; by default a random number. Starting
                another sequence with the same id ends the first one.
        """
        return ModelSequence(self, model, sequence_id, version)

    def _ready(self, path: str) -> bool:
        try:
            # Not idempotent, because a retry would delay the result.
            self._send("GET", path, idempotent=False)
        except ServerError:
            return False
        return True

    def _send(
        self,
        method: str,
        path: str,
        content: Any = None,
        *,
        idempotent: bool = True,
        timeout: float | None = None,
    ) -> Answer:
        body = b"" if content is None else strict_json.dumps(content)
        chunks = [body] if body else []
        request = Request(method, path, chunks, len(body), idempotent=idempotent)
        return self._sender.send(request.within(_own_timeout(timeout)))

    def _object(
        self, method: str, path: str, content: Any = None, *, idempotent: bool = True
    ) -> dict[str, Any]:
        answer = self._send(method, path, content, idempotent=idempotent)
        return _object(_document(answer))


def _seconds(name: str, value: float, least: float) -> float:
    is_number = isinstance(value, numbers.Real)  # includes NumPy's numbers
    if not is_number or not least <= float(value) <= LONGEST_S:
        raise ValueError(
            f"{name} must be a number of seconds from {least:g} to {LONGEST_S:,.0f}, "
            f"not {value!r}"
        )
    return float(value)


def _own_timeout(timeout: float | None) -> float | None:
    """Return a call's own timeout; None means the client's."""
    return None if timeout is None else _seconds("timeout", timeout, SHORTEST_S)


def shown_url(url: str) -> str:
    """Return a URL without user name and password."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _bytes(name: str, value: int) -> int:
    is_number = isinstance(value, numbers.Integral)
    if not is_number or not LEAST_MAX_FRAME <= int(value) <= MAX_ANSWER_BYTES:
        raise ValueError(
            f"{name} must be a number of bytes from {LEAST_MAX_FRAME:,} to "
            f"{MAX_ANSWER_BYTES:,}"
        )
    return int(value)


def _open(
    url: str | None, token: str | None, timeout: float, maximum: int
) -> Transport:
    if url is None:
        return _open_default(token, timeout, maximum)
    invalid = AddressError(
        f"a server's address looks like {DEFAULT_URL} or "
        f"socket://{LOOPBACK}:{SOCKET_PORT}, not {url!r}"
    )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # an incomplete IPv6 address, or an invalid port
        raise invalid from None
    if host and parts.scheme in ("http", "https"):
        return HttpTransport(url, token, timeout, maximum)
    is_socket = parts.scheme == "socket" and parts.path in ("", "/")
    if host and port is not None and is_socket:
        return SocketTransport((host, port), token, timeout, maximum)
    raise invalid


def _open_default(token: str | None, timeout: float, maximum: int) -> Transport:
    """Return the transport for the default ports of this device."""
    socket = SocketTransport((LOOPBACK, SOCKET_PORT), token, timeout, maximum)
    port = urlsplit(DEFAULT_URL).port or 0
    owner = functools.partial(run_file.http_server, find_state_dir(), port)
    http = HttpTransport(DEFAULT_URL, token, timeout, maximum, owner)
    return AutomaticTransport(socket, http)


def _second_sender(
    fallback: FallbackServer, first_url: str, timeout: float, maximum: int
) -> SecondSender:
    """Return the sender for the fallback, which uses only the fallback's own token."""
    if not fallback.token and fallback.token_file is None:
        credentials = Credentials(None, "the fallback has no token")
    else:
        credentials = find_credentials(fallback.token, fallback.token_file)
    transport = _open(fallback.url, credentials.token, timeout, maximum)
    sender = RequestSender(transport, 0.0, credentials.advice)
    return SecondSender(sender, fallback.url, first_url, timeout)


def _infer_request(
    model: str,
    inputs: Mapping[str, npt.ArrayLike],
    outputs: Sequence[str],
    version: str | None,
    parameters: Mapping[str, Any] | None,
    wait: float | None,
    datatypes: Mapping[str, str] | None,
) -> Request:
    _check_infer_arguments(inputs, outputs, datatypes)
    options = dict(parameters or {})
    if wait is not None:
        options.setdefault("timeout", max(1, round(wait * 1e6)))
    tensors = []
    for name, value in inputs.items():
        tensors.append(as_tensor(name, value, (datatypes or {}).get(name)))
    message = oip.InferRequest(
        inputs=tensors,
        outputs=[oip.RequestedOutput(name, binary=True) for name in outputs],
        parameters=options,
        binary_output=True,
    )
    body = oip.encode_infer_request(message)
    return Request(
        "POST",
        f"{_path(model, version)}/infer",
        body.chunks,
        json_length=body.length if body.json_length is None else body.json_length,
        content_type=OCTETS,
        wait=wait,
        # A step changes its sequence's state.
        idempotent=not options.get("sequence_id"),
        may_fall_back=True,
    )


def _check_infer_arguments(
    inputs: object, outputs: Sequence[str], datatypes: Mapping[str, str] | None
) -> None:
    if not isinstance(inputs, Mapping):
        raise TypeError(
            "infer() takes arrays by input name, such as {'x': array}, "
            f"not a {type(inputs).__name__}"
        )
    if isinstance(outputs, str):
        raise TypeError(f"outputs are a list of names, such as [{outputs!r}]")
    unknown = (datatypes or {}).keys() - inputs.keys()
    if unknown:
        raise TypeError(f"datatypes names unknown inputs: {', '.join(sorted(unknown))}")


def _tensors(answer: Answer) -> Outputs:
    response = _decode(oip.decode_infer_response, answer.body, answer.json_length)
    outputs = Outputs((tensor.name, as_array(tensor)) for tensor in response.outputs)
    outputs.server = answer.server
    return outputs


def _predict_request(
    model: str,
    data: RawInput,
    query: Mapping[str, Any],
    wait: float | None,
    content_type: str,
) -> Request:
    body = raw_body(data)
    options = {}
    for name, value in query.items():
        if value is not None:
            options[name] = _query_text(value)
    if wait is not None:
        options.setdefault("timeout_ms", str(1000 * wait))
    path = f"/predictions/{_segment(model)}"
    if options:
        path += f"?{urlencode(options, quote_via=quote)}"
    return Request(
        "POST",
        path,
        [body] if len(body) else [],
        content_type=content_type,
        wait=wait,
        idempotent="sequence_id" not in options,
        may_fall_back=True,
    )


def _query_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _prediction(answer: Answer) -> Any:
    """Decode the answer's JSON, or return the requested picture."""
    if is_picture(answer):
        picture = Picture(answer.body)
        picture.server = answer.server
        return picture
    labelled = LabelledAnswer(_object(_document(answer)))
    labelled.server = answer.server
    return labelled


def _document(answer: Answer) -> Any:
    return _decode(strict_json.loads, answer.body)


def _decode(decode: Callable[..., T], *arguments: Any) -> T:
    try:
        return decode(*arguments)
    except ApiError as error:
        raise NotOurServerError(
            "the answer is larger than this client reads, or this address is not "
            f"a pocketserve server ({error.message})"
        ) from None


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise NotOurServerError(FOREIGN)
    return value


def _objects(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list):
        raise NotOurServerError(FOREIGN)
    return [_object(item) for item in value]


def _path(model: str, version: str | None) -> str:
    base = f"/v2/models/{_segment(model)}"
    return base if version is None else f"{base}/versions/{_segment(version)}"


def _segment(name: str) -> str:
    """Quote a name as one segment of a path.

    Names that would lead to another path are rejected.
    """
    if not isinstance(name, str):
        raise TypeError(
            f"a model's or version's name is a str, not a {type(name).__name__}"
        )
    if name in ("", ".", ".."):
        raise ServerError(
            404,
            "MODEL_NOT_FOUND",
            f"Request for unknown model: {name!r} is not a valid name",
        )
    return _quoted(name)


_quoted = functools.lru_cache(maxsize=256)(functools.partial(quote, safe=""))
