"""waitress's parser, stricter about ambiguous and unauthenticated requests.

An unauthenticated client gets one response per connection. Its body may have
:data:`MAX_UNAUTHENTICATED_BODY` at most, and nothing after its request is parsed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from waitress.parser import HTTPRequestParser, ParsingError
from waitress.utilities import BadRequest, Error

from pocketserve.transports.http.body import InPlaceData, ReceivedBody
from pocketserve_wire import ApiError

if TYPE_CHECKING:
    from pocketserve.transports.http.chunked import ChunkedBody

MAX_UNAUTHENTICATED_BODY: Final = 4096
"""Bytes of a body without the token: seven times a pairing message."""

TLS_HANDSHAKE: Final = b"\x16"
"""The first byte of every TLS connection (RFC 8446, section 5.1)."""

_TRANSFER_ENCODING = rb"(?im)^transfer-encoding:(.*)$"


class VersionNotSupported(Error):  # type: ignore[misc]  # waitress has no types
    """An unsupported version of HTTP."""

    code = 505
    reason = "HTTP Version Not Supported"


class HttpParser(HTTPRequestParser):  # type: ignore[misc]
    """A request.

    Attributes:
        trusted: its header has a valid token.
        owner: the token's owner, see :meth:`Guard.identify`; None without one.
        refusal: why the request was rejected before its body.
    """

    trusted = False
    owner: str | None = None
    refusal: ApiError | None = None
    error: Error | None
    body_rcv: ReceivedBody | ChunkedBody | None
    completed: bool
    empty: bool
    _fault: Error | None = None

    def received(self, data: bytes | InPlaceData) -> int:
        """Consume bytes; return how many are done with."""
        if self.body_rcv is None and not self.header_plus and data[:1] == TLS_HANDSHAKE:  # type: ignore[index]
            self.error, self.completed = (
                BadRequest("this port speaks HTTP without TLS; use http://"),
                True,
            )
            return len(data)
        consumed: int = super().received(data)
        if self.empty:
            self.error, self.empty = BadRequest("the request line is missing"), False
        if self.error is not None:
            self.error = self._fault or self.error
            # waitress would request the body of a rejected request.
            self.expect_continue = False
        last = self.completed and (self.error is not None or not self.trusted)
        return len(data) if last else consumed

    def parse_header(self, header_plus: bytes) -> None:
        """Parse the header, and choose how to receive the body."""
        try:
            super().parse_header(header_plus)
        except ValueError:
            # waitress does not catch it from urlsplit("http://[") or int("9" * 5000).
            raise ParsingError(
                "the request line or the Content-Length is invalid"
            ) from None
        self._refuse_doubtful(header_plus)
        if "," in self.headers.get("CONNECTION", ""):
            self._read_connection()
        if self.proxy_scheme or self.proxy_netloc:
            # RFC 9112, section 3.2.2: the request line takes precedence.
            self.headers["HOST"] = self.proxy_netloc
        guard = self.adj.guard
        self.owner = guard.identify(self.headers.get("AUTHORIZATION"))
        self.trusted = self.owner is not None
        if not self.trusted:
            self._restrict(guard.unauthorized())
        if self.chunked:
            # Imported late: apps know the length of their bodies.
            from pocketserve.transports.http.chunked import ChunkedBody

            self.body_rcv = ChunkedBody(self.adj.max_request_body_size)
        elif 0 < self.content_length < self.adj.max_request_body_size:
            json_length = 0
            if "INFERENCE_HEADER_CONTENT_LENGTH" in self.headers:
                json_length = self._json_length()
            self.body_rcv = ReceivedBody(self.content_length, json_length)
        if self.body_rcv is None:
            self.expect_continue = False  # there is nothing to go on with

    def _refuse_doubtful(self, header_plus: bytes) -> None:
        """Reject a header that two servers could read differently.

        See RFC 9112, sections 2.3, 5.2, 6.1 and 6.3.
        """
        if self.version not in ("", "1.0", "1.1"):
            self._fault = VersionNotSupported(f"HTTP/{self.version}; use HTTP/1.1")
            raise ParsingError("refused")
        if b"\r\n " in header_plus or b"\r\n\t" in header_plus:
            raise ParsingError("a header's value continues on another line")
        if "TRANSFER_ENCODING" in self.headers:
            raise ParsingError("Transfer-Encoding needs HTTP/1.1")
        if self.chunked:
            values = re.findall(_TRANSFER_ENCODING, header_plus)
            codings = b",".join(values).split(b",")
            if "CONTENT_LENGTH" in self.headers or len(codings) != 1:
                raise ParsingError(
                    "Content-Length beside Transfer-Encoding, or two transfer codings"
                )

    def _read_connection(self) -> None:
        """Reduce a ``Connection`` list to the option that waitress looks for."""
        connection = self.headers["CONNECTION"]
        options = {option.strip(" \t") for option in connection.lower().split(",")}
        if len(options) > 1:
            self.headers["CONNECTION"] = next(
                (option for option in ("close", "keep-alive") if option in options), ""
            )

    def _restrict(self, error: ApiError) -> None:
        """Restrict an unauthenticated client to one small request per connection."""
        self.headers["CONNECTION"] = "close"
        if not self.chunked and self.content_length <= MAX_UNAUTHENTICATED_BODY:
            return
        self.refusal = error
        try:
            self.adj.guard.check_source(
                self.headers.get("HOST"), self.headers.get("ORIGIN")
            )
        except ApiError as foreign:
            self.refusal = foreign
        raise ParsingError("refused")

    def _json_length(self) -> int:
        """Return the JSON length in the header, unchecked.

        It is only used to align the memory.
        """
        text = self.headers["INFERENCE_HEADER_CONTENT_LENGTH"]
        return int(text) if text.isdecimal() and len(text) < 20 else 0
