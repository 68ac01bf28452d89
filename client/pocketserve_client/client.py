"""The facade: what an application calls."""

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
    Files,
    RawInput,
    is_list_of_files,
    raw_body,
    with_hint,
)
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
"""Requests under way together for a list of files."""

SHORTEST_S, LONGEST_S = 1e-3, 1e7
"""Of timeouts, in seconds; the operating system's own calls take little more."""


class Client:
    """A connection to one server. Use it as a context manager, or call :meth:`close`. Threads may share it. A process
    that is forked from one with a client may use it, too: it gets connections of its own.

    Args:
        url: ``socket://HOST:PORT`` or ``http://HOST:PORT``. By default ``POCKETSERVE_URL``, else this machine's
            default ports: the socket where it can be reached; and HTTP where nobody listens for the socket and the
            state folder shows that a running server of this user has the port.
        token: the access token; by default what is in ``token_file``, else ``POCKETSERVE_TOKEN``, else what is in the
            file that ``POCKETSERVE_TOKEN_FILE`` names, or where a server of the same user keeps it.
        token_file: a file that holds it.
        timeout: seconds for connecting, and for each answer; over HTTP for both together.
        reconnect: seconds for which a call looks for a server that was lost, before it fails. Only calls that may be
            repeated without harm do: all but :meth:`load`, :meth:`unload` and steps of a sequence.
        max_answer_bytes: bytes of the largest answer that is taken, from 4,096.
        fallback: another server with the same models, such as a desktop's. Requests of :meth:`infer`, :meth:`predict`
            and :meth:`model_metadata` go there when the first one is away or refuses for now, such as by QUEUE_FULL or
            LOW_POWER; steps of a sequence and all other calls never do. ``timeout`` then limits both servers together,
            of which the first one has half, and no lost server is looked for. The answer's ``server`` tells which one.

    Raises:
        AddressError: the URL cannot be a server's.
        ValueError: a time is no number of seconds, or a size no number of bytes.
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
        seconds, size = (
            _seconds("timeout", timeout, SHORTEST_S),
            _bytes("max_answer_bytes", max_answer_bytes),
        )
        transport = _open(address, credentials.token, seconds, size)
        second = (
            None
            if fallback is None
            else _second_sender(check_fallback(fallback), self.url, seconds, size)
        )
        self._sender = RequestSender(
            transport, _seconds("reconnect", reconnect, 0.0), credentials.advice, second
        )

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
            "a Client can neither be pickled nor copied: make one in each process"
        )

    def is_ready(self) -> bool:
        """Return whether the server accepts requests.

        Raises:
            ServerUnreachableError: nobody answered.
        """
        return self._ready("/v2/health/ready")

    def server_metadata(self) -> dict[str, Any]:
        """Return name, version and protocol extensions of the server."""
        return self._object("GET", "/v2")

    def index(self, *, ready_only: bool = False) -> list[dict[str, Any]]:
        """Return every version of every model: ``name``, ``version``, ``state`` and ``reason``, often empty."""
        return _objects(
            _document(self._send("POST", "/v2/repository/index", {"ready": ready_only}))
        )

    def models(self) -> list[str]:
        """Return the names of all models, in the server's order."""
        return list(dict.fromkeys(str(entry.get("name")) for entry in self.index()))

    def is_model_ready(self, model: str, version: str | None = None) -> bool:
        """Return whether a request to the model would be answered."""
        return self._ready(f"{_path(model, version)}/ready")

    def model_metadata(
        self, model: str, version: str | None = None, *, timeout: float | None = None
    ) -> dict[str, Any]:
        """Return inputs, outputs and versions of a model; ``timeout`` as in :meth:`infer`."""
        request = Request("GET", _path(model, version), may_fall_back=True).within(
            _own_timeout(timeout)
        )
        return _object(_document(self._sender.send(request)))

    def model_interface(self, model: str, version: str | None = None) -> dict[str, Any]:
        """Return what a program that asks the model is written from: tensors, calls, labels, ``fingerprint``."""
        return self._object("GET", f"{_path(model, version)}/interface")

    def statistics(
        self, model: str | None = None, version: str | None = None
    ) -> list[dict[str, Any]]:
        """Return counters of one version, one model or all models."""
        base = "/v2/models" if model is None else _path(model, version)
        return _objects(self._object("GET", f"{base}/stats").get("model_stats"))

    def load(
        self, model: str, *, release: bool = False, timeout: float | None = None
    ) -> None:
        """Load a model, or load it anew after its files have changed.

        Args:
            release: forget first that its files are in quarantine, so that they are tried again.
            timeout: as in :meth:`infer`; a large model may take longer than an answer.
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
        """Open the pairing of one app by a code of ten digits: ``code``, ``remaining_s`` in seconds, ``tries``."""
        return self._object("POST", "/pairing/open", {}, idempotent=False)

    def close_pairing(self) -> None:
        """Make the code worthless."""
        self._object("POST", "/pairing/close", {})

    def pairing_state(self, *, wait_ms: int = 0) -> str:
        """Return ``open``, ``paired``, ``refused``, ``expired`` or ``closed``.

        Args:
            wait_ms: answer only after so many milliseconds (2,000 at most), or once it is not open any more.
        """
        return str(self._object("GET", f"/pairing?wait_ms={wait_ms}").get("state"))

    def page_ticket(self) -> dict[str, Any]:
        """Return a ticket for the server's page: ``ticket``, good once, ``expires_in`` in seconds, and its ``url``.

        The page's address is ``url`` with ``#ticket=`` and the ticket behind it.
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
        """Send tensors, get tensors; both travel as raw bytes.

        Args:
            inputs: arrays by input name. Plain Python floats become FP64: give NumPy arrays of the model's dtype.
            outputs: names of the outputs wanted; empty means all.
            parameters: request parameters, such as ``priority`` or ``stream``; see :meth:`sequence` for models with a
                memory.
            wait: seconds that the request may wait for its turn, else DEADLINE_EXCEEDED.
            datatypes: ``BF16`` by input name, for arrays that do not tell it: floats are rounded, uint16 are the bits.
                Arrays of ml_dtypes' bfloat16 tell it.
            timeout: seconds for this call, in place of the client's, which None stands for. There is no call without
                a limit.

        Returns:
            Arrays by output name; they share the answer's memory.

        Raises:
            ServerError, ServerUnreachableError: no answer.
            TypeError: an input's elements have no datatype in the protocol.
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
        """Send tensors as :meth:`infer` does, without waiting for the answer.

        Over the socket any number of calls share the connection and their answers come in any order.
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
        """Send raw input, get a labelled answer.

        Args:
            data: a picture, sound or ``.npy`` file, as its bytes, its ``Path`` or opened in binary mode; a Pillow
                image; a NumPy array, which is sent as such a file: the input tensor's values in their own shape (a
                leading batch dimension of 1 may be missing), or uint8 of shape [height, width, 3] in RGB for a model
                that takes pictures; a pandas DataFrame or Series, whose columns are the features; or a JSON-like
                value: numbers, a dict of features by name, or a list of either. A ``str`` is a text. A list of files,
                of whichever form, is one request for each.
            top_k: entries of the answer at most.
            threshold: lowest score that is answered.
            annotate: ``png`` or ``jpeg`` asks for the picture with the answer drawn on it instead of the answer,
                ``both`` for the answer with that picture, a PNG, in base64 as ``picture``.
            parameters: further query parameters: the task's, such as ``{"format": "nv21", "width": 640}``, and
                ``stream`` or ``priority``.
            content_type: what the data is, for tasks that cannot tell it from the bytes.
            wait: seconds that the request may wait for its turn, else DEADLINE_EXCEEDED.
            timeout: as in :meth:`infer`; of each request, where there are several.

        Returns:
            A dict of ``model``, ``version``, ``task``, ``predictions`` (a list) and ``timing_ms``, and of ``assumed``
            (a list) where no file of the model states how a picture is read; with ``png`` or ``jpeg`` the bytes of
            such a file. For a list of files a list of these, in the same order.

        Raises:
            ServerError, ServerUnreachableError: no answer.
            OSError: the file cannot be read.
            TypeError: the data is nothing of these.
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
        """Send files, several at a time but the steps of a sequence; the first failure ends it."""
        at_once = 1 if query.get("sequence_id") is not None else FILES_AT_ONCE
        calls: deque[Call[Any]] = deque()
        answers = []
        try:
            for file in files:
                if len(calls) == at_once:
                    answers.append(calls.popleft().result())
                request = _predict_request(
                    model, file, query, wait, content_type
                ).within(timeout)
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
        """Send raw input as :meth:`predict` does, but for lists of files, without waiting for the answer."""
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
        """Return a sequence of requests to a model with a memory, to be used as a context manager.

        Args:
            sequence_id: its name, not 0 or empty; by default a random number. Who starts another of this name ends
                the first.
        """
        return ModelSequence(self, model, sequence_id, version)

    def _ready(self, path: str) -> bool:
        try:
            self._send(
                "GET", path, idempotent=False
            )  # about now: no search for a lost server
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
        request = Request(
            method, path, [body] if body else [], len(body), idempotent=idempotent
        )
        return self._sender.send(request.within(_own_timeout(timeout)))

    def _object(
        self, method: str, path: str, content: Any = None, *, idempotent: bool = True
    ) -> dict[str, Any]:
        return _object(
            _document(self._send(method, path, content, idempotent=idempotent))
        )


def _seconds(name: str, value: float, least: float) -> float:
    if (
        not isinstance(value, numbers.Real) or not least <= float(value) <= LONGEST_S
    ):  # NumPy's are Real, too
        raise ValueError(
            f"{name} must be a number of seconds from {least:g} to {LONGEST_S:,.0f}, not {value!r}"
        )
    return float(value)


def _own_timeout(timeout: float | None) -> float | None:
    """Return the timeout of one call; None leaves it to the client's."""
    return None if timeout is None else _seconds("timeout", timeout, SHORTEST_S)


def shown_url(url: str) -> str:
    """Return a URL without the name and password in it."""
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _bytes(name: str, value: int) -> int:
    if (
        not isinstance(value, numbers.Integral)
        or not LEAST_MAX_FRAME <= int(value) <= MAX_ANSWER_BYTES
    ):
        raise ValueError(
            f"{name} must be a number of bytes from {LEAST_MAX_FRAME:,} to {MAX_ANSWER_BYTES:,}"
        )
    return int(value)


def _open(
    url: str | None, token: str | None, timeout: float, maximum: int
) -> Transport:
    if url is None:
        socket = SocketTransport((LOOPBACK, SOCKET_PORT), token, timeout, maximum)
        owner = functools.partial(
            run_file.http_server, find_state_dir(), urlsplit(DEFAULT_URL).port or 0
        )
        return AutomaticTransport(
            socket, HttpTransport(DEFAULT_URL, token, timeout, maximum, owner)
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:  # half of an IPv6 address, or a port that is none
        host = port = None
    if host and parts.scheme in ("http", "https"):
        return HttpTransport(url, token, timeout, maximum)
    if (
        host
        and port is not None
        and parts.scheme == "socket"
        and parts.path in ("", "/")
    ):
        return SocketTransport((host, port), token, timeout, maximum)
    raise AddressError(
        f"a server's address looks like {DEFAULT_URL} or socket://{LOOPBACK}:{SOCKET_PORT}, not {url!r}"
    )


def _second_sender(
    fallback: FallbackServer, first_url: str, timeout: float, maximum: int
) -> SecondSender:
    """Return what asks the fallback; its token is the one that it was given, and no other."""
    if not fallback.token and fallback.token_file is None:
        credentials = Credentials(None, "the fallback was given no token")
    else:
        credentials = find_credentials(fallback.token, fallback.token_file)
    transport = _open(fallback.url, credentials.token, timeout, maximum)
    return SecondSender(
        RequestSender(transport, 0.0, credentials.advice),
        fallback.url,
        first_url,
        timeout,
    )


def _infer_request(
    model: str,
    inputs: Mapping[str, npt.ArrayLike],
    outputs: Sequence[str],
    version: str | None,
    parameters: Mapping[str, Any] | None,
    wait: float | None,
    datatypes: Mapping[str, str] | None,
) -> Request:
    if not isinstance(inputs, Mapping):
        raise TypeError(
            f"infer() takes arrays by input name, such as {{'x': array}}, not a {type(inputs).__name__}"
        )
    if isinstance(outputs, str):
        raise TypeError(f"outputs are a list of names, such as [{outputs!r}]")
    datatypes = datatypes or {}
    if unknown := datatypes.keys() - inputs.keys():
        raise TypeError(
            f"datatypes names inputs that are not given: {', '.join(sorted(unknown))}"
        )
    options = dict(parameters or {})
    if wait is not None:
        options.setdefault("timeout", max(1, round(wait * 1e6)))
    message = oip.InferRequest(
        inputs=[
            as_tensor(name, value, datatypes.get(name))
            for name, value in inputs.items()
        ],
        outputs=[oip.RequestedOutput(name, binary=True) for name in outputs],
        parameters=options,
        binary_output=True,
    )
    body = oip.encode_infer_request(message)
    length = body.json_length if body.json_length is not None else body.length
    # A step changes its sequence's state: once is not twice.
    idempotent = not options.get("sequence_id")
    return Request(
        "POST",
        f"{_path(model, version)}/infer",
        body.chunks,
        length,
        OCTETS,
        wait,
        idempotent,
        True,
    )


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
    options = {
        name: _query_text(value) for name, value in query.items() if value is not None
    }
    if wait is not None:
        options.setdefault("timeout_ms", str(1000 * wait))
    path = f"/predictions/{_segment(model)}" + (
        f"?{urlencode(options, quote_via=quote)}" if options else ""
    )
    idempotent = "sequence_id" not in options
    return Request(
        "POST",
        path,
        [body] if len(body) else [],
        0,
        content_type,
        wait,
        idempotent,
        True,
    )


def _query_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _prediction(answer: Answer) -> Any:
    """Return the answer's JSON, or the file that was asked for instead."""
    content = (
        Picture(answer.body)
        if is_picture(answer)
        else LabelledAnswer(_object(_document(answer)))
    )
    content.server = answer.server
    return content


def _document(answer: Answer) -> Any:
    return _decode(strict_json.loads, answer.body)


def _decode(decode: Callable[..., T], *arguments: Any) -> T:
    try:
        return decode(*arguments)
    except ApiError as error:
        text = (
            "the answer is larger than this client reads, or what "
            "answers at this address is not a pocketserve server"
        )
        raise NotOurServerError(f"{text} ({error.message})") from None


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
    """Return a name as one segment of a path. What would lead to another path is no name of a model or version."""
    if not isinstance(name, str):
        raise TypeError(
            f"a model's or version's name is a str, not a {type(name).__name__}"
        )
    if name in ("", ".", ".."):
        raise ServerError(
            404,
            "MODEL_NOT_FOUND",
            f"Request for unknown model: nothing can be called {name!r}",
        )
    return _quoted(name)


_quoted = functools.lru_cache(maxsize=256)(functools.partial(quote, safe=""))
