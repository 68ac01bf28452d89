"""Calls: retries after a lost connection, decoded results, and sequences."""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import CancelledError
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

import numpy.typing as npt

from pocketserve_client.arrays import Array
from pocketserve_client.automatic import AutomaticTransport
from pocketserve_client.connection import PendingAnswer
from pocketserve_client.errors import (
    AddressError,
    ConnectionLostError,
    GatewayError,
    NotOurServerError,
    PocketserveError,
    ServerError,
    ServerUnreachableError,
    ShuttingDownError,
)
from pocketserve_client.http import HttpPending, HttpTransport
from pocketserve_client.inputs import RawInput
from pocketserve_client.language.streams import AnswerLines
from pocketserve_client.socket import SocketTransport
from pocketserve_client.transport import LEAST_S, Answer, Request
from pocketserve_wire import ApiError, strict_json

if TYPE_CHECKING:
    from pocketserve_client.client import Client

T = TypeVar("T")
Transport = AutomaticTransport | HttpTransport | SocketTransport

FOREIGN: Final = "this address is not a pocketserve server; check the port"

MAX_ERROR_BYTES: Final = 1 << 20  # longer bodies are not parsed as an error document
RETRY_EVERY_S: Final = 0.05
"""Interval of retries; a refused connection on this device takes microseconds."""

GATEWAY_STATUS: Final = frozenset({500, 502, 503, 504})
"""Status codes of proxies whose server is gone, without our error code.

Ray Serve uses 500.
"""

LOST: Final = (ConnectionLostError, GatewayError, ShuttingDownError)
LostError = ConnectionLostError | GatewayError | ShuttingDownError
log = logging.getLogger("pocketserve_client")
FIRST_SHARE: Final = 0.5
"""The first server's share of a call's time; the fallback gets the rest."""


class FallbackServer(NamedTuple):
    """A second server for calls that the first one cannot answer now.

    See ``fallback`` of :class:`Client`.

    Args:
        url: ``socket://HOST:PORT``, ``http://HOST:PORT`` or ``https://HOST[:PORT]``.
        token: its own access token. None sends none; the first server's token is never
            sent to it.
        token_file: a file with the token instead.
    """

    url: str
    token: str | None = None
    token_file: Path | None = None


def needs_other_server(error: PocketserveError) -> bool:
    """Return whether another server may succeed.

    It may if this one is unreachable or rejects requests for now; an invalid request
    is invalid everywhere.
    """
    if isinstance(error, ServerError):
        return error.is_retryable or isinstance(error, GatewayError)
    return isinstance(error, ServerUnreachableError)


def check_fallback(fallback: FallbackServer) -> FallbackServer:
    """Return the fallback; raise TypeError or AddressError if it is invalid."""
    if not isinstance(fallback, FallbackServer):
        raise TypeError(
            "fallback takes FallbackServer(url, token_file=…), "
            f"not a {type(fallback).__name__}"
        )
    if not fallback.url:
        raise AddressError(
            "a fallback needs the URL of its server, such as http://192.168.1.20:8470"
        )
    return fallback


class RequestSender:
    """Sends requests, and repeats idempotent ones after the server was lost.

    Retries end after ``reconnect`` seconds.
    """

    def __init__(
        self,
        transport: Transport,
        reconnect: float,
        token_advice: str,
        fallback: SecondSender | None = None,
    ) -> None:
        self.transport = transport
        self.fallback = fallback
        self._reconnect = reconnect
        self._token_advice = token_advice

    def send(self, request: Request) -> Answer:
        """Send a request and wait for the answer.

        Raises:
            ServerError: the status is not 200.
        """
        if self.fallback is not None and request.may_fall_back and request.idempotent:
            return self._send_to_either(request, self.fallback)
        try:
            return self._send_once(request)
        except LOST as error:
            return self.send_again(request, error)

    def stream(self, request: Request) -> AnswerLines:
        """Return the lines of a request's answer as they come.

        They raise ServerError if the status is not 200.
        """
        return AnswerLines(lambda: self.transport.stream(request), self._checked)

    def _checked(self, answer: Answer) -> Answer:
        """Return an answer; raise the error that another status than 200 means."""
        try:
            return check_answer(answer)
        except ServerError as error:
            raise self.advised(error) from None

    def _send_to_either(self, request: Request, fallback: SecondSender) -> Answer:
        """Try the first server for its share of the time, then the fallback."""
        begin = time.monotonic()
        try:
            answer = self._send_once(fallback.first_part(request, begin))
        except PocketserveError as error:
            return fallback.send(request, begin, error)
        return fallback.mark_first(answer)

    def send_again(self, request: Request, error: LostError) -> Answer:
        """Repeat a request after its server was lost, until it succeeds or times out.

        After an error of a gateway only inference is repeated: another program may have
        sent that error.
        """
        deadline = min(time.monotonic() + self._reconnect, request.deadline)
        repeatable = request.idempotent and (
            request.may_fall_back or isinstance(error, ConnectionLostError)
        )
        while repeatable:
            left = deadline - time.monotonic()
            if left <= 0:
                break
            time.sleep(min(RETRY_EVERY_S, left))
            try:
                return self._send_once(request)
            except LOST as again:
                error = again
        raise error

    def _send_once(self, request: Request) -> Answer:
        begin = time.monotonic()
        try:
            answer = self.transport.send(request)
            log_exchange(request, answer, begin)
            return check_answer(answer)
        except ServerError as error:
            raise self.advised(error) from None

    def advised(self, error: PocketserveError) -> PocketserveError:
        """Add advice to an error about the token."""
        if (
            not isinstance(error, ServerError)
            or error.code != "UNAUTHORIZED"
            or error.advice
        ):
            return error
        return ServerError(error.status, error.code, error.message, self._token_advice)


def log_exchange(request: Request, answer: Answer, begin: float) -> None:
    """Log a request and its answer, without contents and query parameters."""
    if log.isEnabledFor(logging.DEBUG):
        path = request.path.partition("?")[0]
        milliseconds = 1000 * (time.monotonic() - begin)
        log.debug(
            "%s %s %d, %.1f ms, %d bytes",
            request.method,
            path,
            answer.status,
            milliseconds,
            len(answer.body),
        )


class SecondSender:
    """Sends requests to the fallback, within ``seconds`` for both servers."""

    def __init__(
        self, sender: RequestSender, url: str, first_url: str, seconds: float
    ) -> None:
        self.sender = sender
        self._url = url
        self._first_url = first_url
        self._seconds = seconds

    def first_part(self, request: Request, begin: float) -> Request:
        """Return the request with its deadline at the first server."""
        seconds = FIRST_SHARE * self._seconds_of(request)
        return request._replace(deadline=begin + seconds)

    def mark_first(self, answer: Answer) -> Answer:
        """Return an answer that names the first server."""
        return answer._replace(server=self._first_url)

    def send(
        self,
        request: Request,
        begin: float,
        error: PocketserveError,
        until: float = math.inf,
    ) -> Answer:
        """Send a request that failed at the first server.

        Args:
            error: the first server's error, raised again if the fallback doesn't help.
            until: monotonic time at which the caller stops waiting, if that is earlier
                than the call's own deadline.
        """
        if not needs_other_server(error):
            raise error
        deadline = min(begin + self._seconds_of(request), until)
        try:
            answer = self.sender.send(
                request._replace(deadline=deadline, idempotent=False)
            )
        except PocketserveError as second:
            error.add_note(f"the fallback {self._url} did not answer either: {second}")
            raise error from second
        return answer._replace(server=self._url)

    def _seconds_of(self, request: Request) -> float:
        return self._seconds if request.timeout is None else request.timeout


class Call(Generic[T]):
    """A request that was sent without waiting for its answer.

    It can be awaited in asyncio; cancelling the task cancels the request.
    """

    def __init__(
        self, sender: RequestSender, request: Request, decode: Callable[[Answer], T]
    ) -> None:
        self._sender = sender
        self._request = request
        self._decode = decode
        self._cancelled = False
        self._pending: HttpPending | PendingAnswer | PocketserveError
        self._outcome: Answer | Exception | None = None
        self._fallback: SecondSender | None = None
        if request.may_fall_back and request.idempotent:
            self._fallback = sender.fallback
        self._begin = time.monotonic()
        first = request
        if self._fallback is not None:
            first = self._fallback.first_part(request, self._begin)
        self._deadline = first.deadline
        try:
            self._pending = sender.transport.start(first)
        except PocketserveError as error:
            if not self._can_recover_from(error):
                raise sender.advised(error) from None
            self._pending = error

    def _can_recover_from(self, error: PocketserveError) -> bool:
        """Return whether :meth:`result` retries after this error."""
        if isinstance(error, ConnectionLostError):
            return True
        return self._fallback is not None and needs_other_server(error)

    def done(self) -> bool:
        """Return whether the answer or an error has arrived.

        :meth:`result` may still have to retry after a lost connection.
        """
        if self._outcome is not None or isinstance(self._pending, Exception):
            return True
        return self._pending.is_done()

    def cancel(self) -> None:
        """Ask the server not to start the request.

        :meth:`result` then raises CANCELLED, or returns an answer that was finished.
        """
        self._cancelled = True
        if not isinstance(self._pending, Exception):
            self._pending.cancel()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the answer. Repeated calls return the same result.

        Args:
            timeout: seconds until the request is abandoned; by default the client's
                timeout. With a fallback it limits both servers together.

        Raises:
            ServerError, ServerUnreachableError: no answer.
        """
        if self._outcome is None:
            try:
                self._outcome = self._answer(timeout)
            except PocketserveError as error:
                self._outcome = self._sender.advised(error)
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._decode(self._outcome)

    def __await__(self) -> Generator[Any, None, T]:
        return self._wait_in_thread().__await__()

    async def _wait_in_thread(self) -> T:
        # Imported late, because it needs asyncio.
        from pocketserve_client.aio.threads import run_in_thread

        future = run_in_thread(self.result)
        try:
            return await future
        finally:
            if future.cancelled():
                run_in_thread(self.cancel)

    def _answer(self, timeout: float | None) -> Answer:
        if self._fallback is None:
            return self._answer_of_first(timeout)
        now = time.monotonic()
        seconds = math.inf if timeout is None else timeout
        left = max(LEAST_S, min(self._deadline - now, FIRST_SHARE * seconds))
        try:
            answer = self._answer_of_first(left)
        except PocketserveError as error:
            if self._cancelled:
                raise
            return self._fallback.send(self._request, self._begin, error, now + seconds)
        return self._fallback.mark_first(answer)

    def _answer_of_first(self, timeout: float | None) -> Answer:
        if timeout is None and self._request.timeout is not None:
            timeout = self._request.seconds_left(self._request.timeout)
        try:
            if isinstance(self._pending, Exception):
                raise self._pending
            answer = self._pending.result(timeout)
            log_exchange(self._request, answer, self._begin)
            return check_answer(answer)
        except CancelledError:
            raise ServerError(
                499, "CANCELLED", "the request was cancelled before it was sent"
            ) from None
        except LOST as error:
            if self._fallback is not None and not self._cancelled:
                raise  # the fallback is next, not a retry here
            if self._cancelled:
                text = "the connection was lost after the request had been cancelled"
                raise ServerError(499, "CANCELLED", text) from None
            return self._sender.send_again(self._request, error)


def is_picture(answer: Answer) -> bool:
    """Return whether the answer is the requested picture, not JSON."""
    return answer.content_type.startswith("image/")


def check_answer(answer: Answer) -> Answer:
    """Return a successful answer.

    Raises:
        ServerError: the server reported an error.
        NotOurServerError: the answer is not from a Pocketserve server.
    """
    if answer.status != 200:
        raise _error_of(answer)
    if not _may_be_ours(answer):
        raise NotOurServerError(FOREIGN)
    return answer


def _may_be_ours(answer: Answer) -> bool:
    """Return whether the body is empty, JSON, tensors or a picture.

    JSON is only recognized here; it is parsed later, or never, as in a health check.
    """
    if answer.json_length is not None or not answer.body:
        return True
    return answer.body[0] in b"{[" or is_picture(answer)


_OPENAI_CODES: Final[Mapping[str, str]] = {
    "CONTEXT_LENGTH_EXCEEDED": "CONTEXT_EXCEEDED",
    "INVALID_API_KEY": "UNAUTHORIZED",
}
"""Our codes for OpenAI's words."""


def _error_of(answer: Answer) -> ServerError:
    document: dict[str, Any] = {}
    if len(answer.body) <= MAX_ERROR_BYTES:
        with contextlib.suppress(ApiError):
            document = strict_json.loads_object(answer.body)
    fault = document.get("error")
    if isinstance(fault, dict):  # of a route in OpenAI's form
        word = str(fault.get("code") or "").upper()
        code = _OPENAI_CODES.get(word, word)
        message = str(fault.get("message", ""))
        error_class = _error_class(answer.status, code, fault)
        return error_class(answer.status, code, message)
    message = str(fault or "")
    if not message:
        text = bytes(answer.body[:200]).decode("ascii", errors="replace").strip()
        message = f"status {answer.status}: {text or 'nothing'}; is this a pocketserve server?"
    code = str(document.get("code", ""))
    error_class = _error_class(answer.status, code, document)
    return error_class(answer.status, code, str(message))


def _error_class(
    status: int, code: str, document: Mapping[str, Any]
) -> type[ServerError]:
    if code == "SHUTTING_DOWN":
        return ShuttingDownError
    is_gateway = not document and status in GATEWAY_STATUS
    return GatewayError if is_gateway else ServerError


class ModelSequence:
    """The steps of one sequence, made by :meth:`Client.sequence`.

    Use it as a context manager, or call :meth:`close`; from one thread at a time. A
    step that fails after the model has started ends the sequence: further steps are
    rejected.
    """

    def __init__(
        self,
        client: Client,
        model: str,
        sequence_id: int | str | None,
        version: str | None,
    ) -> None:
        self.id = sequence_id or secrets.randbits(63) + 1
        self._client, self._model, self._version = client, model, version
        self._open = False

    def __enter__(self) -> ModelSequence:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def infer(
        self, inputs: Mapping[str, npt.ArrayLike], **options: Any
    ) -> dict[str, Array]:
        """Send the next step's tensors, as :meth:`Client.infer` does.

        Inputs that are part of the model's state may be omitted.
        """
        answer = self._client.infer(
            self._model, inputs, version=self._version, **self._step(options)
        )
        self._open = True
        return answer

    def predict(self, data: RawInput, **options: Any) -> Any:
        """Send the next step's raw input, as :meth:`Client.predict` does."""
        answer = self._client.predict(
            self._model, data, version=self._version, **self._step(options)
        )
        self._open = True
        return answer

    def close(self) -> None:
        """End the sequence. The server drops abandoned ones after a while."""
        if self._open:
            self._open = False
            end = {"sequence_id": self.id, "sequence_end": True}
            # It fails if the sequence has ended already, also with the server.
            with contextlib.suppress(PocketserveError):
                self._client.infer(
                    self._model, {}, version=self._version, parameters=end
                )

    def _step(self, options: dict[str, Any]) -> dict[str, Any]:
        parameters = {**(options.get("parameters") or {}), "sequence_id": self.id}
        if not self._open:
            parameters["sequence_start"] = True
        return {**options, "parameters": parameters}
