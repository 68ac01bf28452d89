"""Calls: requests that are sent again when their connection was lost, answers turned into results, and sequences."""

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
from pocketserve_client.socket import SocketTransport
from pocketserve_client.transport import LEAST_S, Answer, Request
from pocketserve_wire import ApiError, strict_json

if TYPE_CHECKING:
    from pocketserve_client.client import Client

T = TypeVar("T")
Transport = AutomaticTransport | HttpTransport | SocketTransport

FOREIGN: Final = (
    "what answers at this address is not a pocketserve server; look at the port"
)

MAX_ERROR_BYTES: Final = (
    1 << 20
)  # of a body that may be one of our errors; those are short
RETRY_EVERY_S: Final = 0.05  # to find a lost server; a refused connection on this machine costs microseconds
GATEWAY_STATUS: Final = frozenset({500, 502, 503, 504})
"""What proxies say, without a code of ours, when a server behind them is gone; Ray Serve takes 500 for it."""

LOST: Final = (ConnectionLostError, GatewayError, ShuttingDownError)
LostError = ConnectionLostError | GatewayError | ShuttingDownError
log = logging.getLogger("pocketserve_client")
FIRST_SHARE: Final = 0.5
"""Share of a call's time that the first server may take, so that some is left for the other one."""


class FallbackServer(NamedTuple):
    """A server for calls that the first one cannot take now; see ``fallback`` of :class:`Client`.

    Args:
        url: ``socket://HOST:PORT``, ``http://HOST:PORT`` or ``https://HOST[:PORT]``.
        token: its own access token. None sends none: the token of the first server never goes there.
        token_file: a file that holds it instead.
    """

    url: str
    token: str | None = None
    token_file: Path | None = None


def needs_other_server(error: PocketserveError) -> bool:
    """Return whether a server is away or refuses for now; a request that is wrong, is so anywhere."""
    if isinstance(error, ServerError):
        return error.is_retryable or isinstance(error, GatewayError)
    return isinstance(error, ServerUnreachableError)


def check_fallback(fallback: FallbackServer) -> FallbackServer:
    """Return it; TypeError or AddressError for what is no other server."""
    if not isinstance(fallback, FallbackServer):
        raise TypeError(
            f"fallback takes FallbackServer(url, token_file=…), not a {type(fallback).__name__}"
        )
    if not fallback.url:
        raise AddressError(
            "a fallback needs the URL of its server, such as http://192.168.1.20:8470"
        )
    return fallback


class RequestSender:
    """Sends requests; repeats them for ``reconnect`` seconds where they may be and the server was lost or ends."""

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
        """Send a request and wait for its answer; ServerError for a status other than 200."""
        if self.fallback is not None and request.may_fall_back and request.idempotent:
            return self._send_to_either(request, self.fallback)
        try:
            return self._send_once(request)
        except LOST as error:
            return self.send_again(request, error)

    def _send_to_either(self, request: Request, fallback: SecondSender) -> Answer:
        """Ask the first server, for its share of the time, and then the other one for the rest."""
        begin = time.monotonic()
        try:
            return fallback.mark_first(
                self._send_once(fallback.first_part(request, begin))
            )
        except PocketserveError as error:
            return fallback.send(request, begin, error)

    def send_again(self, request: Request, error: LostError) -> Answer:
        """Repeat a request whose server was lost, if it may be, until one is back or the time is over.

        After an answer, that is for inference alone: a proxy's may be from a server that is not ours.
        """
        deadline = min(time.monotonic() + self._reconnect, request.deadline)
        repeated = request.idempotent and (
            request.may_fall_back or isinstance(error, ConnectionLostError)
        )
        while repeated and (left := deadline - time.monotonic()) > 0:
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
        """Return the error, with what to do about it where it is about the token."""
        if (
            not isinstance(error, ServerError)
            or error.code != "UNAUTHORIZED"
            or error.advice
        ):
            return error
        return ServerError(error.status, error.code, error.message, self._token_advice)


def log_exchange(request: Request, answer: Answer, begin: float) -> None:
    """Log a request and its answer: neither contents nor parameters, which the query holds."""
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
    """Sends what the first server does not answer to another one. All of a call has ``seconds``."""

    def __init__(
        self, sender: RequestSender, url: str, first_url: str, seconds: float
    ) -> None:
        self.sender = sender
        self._url, self._first_url, self._seconds = url, first_url, seconds

    def first_part(self, request: Request, begin: float) -> Request:
        """Return the request with the deadline that it has at the first server."""
        return request._replace(
            deadline=begin + FIRST_SHARE * self._seconds_of(request)
        )

    def mark_first(self, answer: Answer) -> Answer:
        """Return an answer as one of the first server."""
        return answer._replace(server=self._first_url)

    def send(
        self,
        request: Request,
        begin: float,
        error: PocketserveError,
        until: float = math.inf,
    ) -> Answer:
        """Send a request that failed with an error at the first server; raises that error where it does not help.

        Args:
            until: monotonic time by which the caller waits no longer, though the call's own time is not over.
        """
        if not needs_other_server(error):
            raise error
        deadline = min(begin + self._seconds_of(request), until)
        try:
            answer = self.sender.send(
                request._replace(deadline=deadline, idempotent=False)
            )
        except PocketserveError as second:
            error.add_note(f"nor did the fallback {self._url} answer: {second}")
            raise error from second
        return answer._replace(server=self._url)

    def _seconds_of(self, request: Request) -> float:
        return self._seconds if request.timeout is None else request.timeout


class Call(Generic[T]):
    """A request that was sent without waiting for its answer.

    In asyncio it can be awaited; cancelling the task cancels the request.
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
        self._fallback = (
            sender.fallback if request.may_fall_back and request.idempotent else None
        )
        self._begin = time.monotonic()
        first = (
            request
            if self._fallback is None
            else self._fallback.first_part(request, self._begin)
        )
        self._deadline = first.deadline
        try:
            self._pending = sender.transport.start(first)
        except PocketserveError as error:
            if not isinstance(error, ConnectionLostError) and (
                self._fallback is None or not needs_other_server(error)
            ):
                raise sender.advised(error) from None
            self._pending = error

    def done(self) -> bool:
        """Return whether the answer, or a failure, is there; :meth:`result` may still look for a lost server."""
        return (
            self._outcome is not None
            or isinstance(self._pending, Exception)
            or self._pending.is_done()
        )

    def cancel(self) -> None:
        """Ask the server not to start on it. :meth:`result` then raises CANCELLED, or returns what was done already."""
        self._cancelled = True
        if not isinstance(self._pending, Exception):
            self._pending.cancel()

    def result(self, timeout: float | None = None) -> T:
        """Wait for the answer; may be called again, and then says the same. ServerError, ServerUnreachableError: none.

        Args:
            timeout: seconds, after which the request is given up; by default the client's own timeout. With a fallback
                they limit both servers together, as that one does.
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
        from pocketserve_client.aio.threads import (
            run_in_thread,
        )  # late: it imports asyncio

        future = run_in_thread(self.result)
        try:
            return await future
        finally:
            if future.cancelled():
                run_in_thread(self.cancel)

    def _answer(self, timeout: float | None) -> Answer:
        if self._fallback is None:
            return self._answer_of_first(timeout)
        now, seconds = time.monotonic(), math.inf if timeout is None else timeout
        left = max(LEAST_S, min(self._deadline - now, FIRST_SHARE * seconds))
        try:
            return self._fallback.mark_first(self._answer_of_first(left))
        except PocketserveError as error:
            if self._cancelled:
                raise
            return self._fallback.send(self._request, self._begin, error, now + seconds)

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
                raise  # the other server is asked, not this one looked for
            if self._cancelled:
                text = "the connection was lost after the request had been cancelled"
                raise ServerError(499, "CANCELLED", text) from None
            return self._sender.send_again(self._request, error)


def is_picture(answer: Answer) -> bool:
    """Return whether the answer is the picture that was asked for, not JSON."""
    return answer.content_type.startswith("image/")


def check_answer(answer: Answer) -> Answer:
    """Return the answer, if it is a success; ServerError if not, NotOurServerError for what else a server may say."""
    if answer.status == 200:
        # Ours are JSON, tensors behind JSON, or pictures. What came is parsed later, or, as of health, never.
        if (
            answer.json_length is None
            and answer.body
            and answer.body[0] not in b"{["
            and not is_picture(answer)
        ):
            raise NotOurServerError(FOREIGN)
        return answer
    try:
        document = (
            strict_json.loads_object(answer.body)
            if len(answer.body) <= MAX_ERROR_BYTES
            else {}
        )
    except ApiError:
        document = {}
    text = bytes(answer.body[:200]).decode("ascii", errors="replace").strip()
    message = (
        document.get("error")
        or f"status {answer.status}: {text or 'nothing'}; is this a pocketserve server?"
    )
    code = str(document.get("code", ""))
    raise _error_class(answer.status, code, document)(answer.status, code, str(message))


def _error_class(
    status: int, code: str, document: Mapping[str, Any]
) -> type[ServerError]:
    if code == "SHUTTING_DOWN":
        return ShuttingDownError
    is_gateway = not document and status in GATEWAY_STATUS
    return GatewayError if is_gateway else ServerError


class ModelSequence:
    """The steps of one sequence, made by :meth:`Client.sequence`. Use it as a context manager, or call :meth:`close`;
    one thread at a time. A step that fails once the model has begun ends the sequence: later ones are refused.
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
        """Send the tensors of the next step, as :meth:`Client.infer` does; inputs that hold state may be left out."""
        answer = self._client.infer(
            self._model, inputs, version=self._version, **self._step(options)
        )
        self._open = True
        return answer

    def predict(self, data: RawInput, **options: Any) -> Any:
        """Send the raw input of the next step, as :meth:`Client.predict` does."""
        answer = self._client.predict(
            self._model, data, version=self._version, **self._step(options)
        )
        self._open = True
        return answer

    def close(self) -> None:
        """End the sequence. The server forgets one that nobody ends some time after its last step."""
        if self._open:
            self._open = False
            end = {"sequence_id": self.id, "sequence_end": True}
            with contextlib.suppress(
                PocketserveError
            ):  # given up already, or with the server
                self._client.infer(
                    self._model, {}, version=self._version, parameters=end
                )

    def _step(self, options: dict[str, Any]) -> dict[str, Any]:
        parameters = {**(options.get("parameters") or {}), "sequence_id": self.id}
        if not self._open:
            parameters["sequence_start"] = True
        return {**options, "parameters": parameters}
