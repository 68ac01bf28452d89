"""The HTTP transport of the client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import requests

from pocketserve_client.errors import ServerUnreachableError


@dataclass(frozen=True, slots=True)
class Answer:
    """A response as it came: status, body, and the length of its JSON part when tensors follow it."""

    status: int
    body: bytes
    json_length: int | None


class HttpTransport:
    """Sends requests over one kept-alive connection pool. May be used from several threads.

    Args:
        url: the server's address, such as ``http://127.0.0.1:8470``.
        token: sent with every request; None sends none.
        timeout: seconds for connecting, and for each wait for bytes.
    """

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        self._url = url.rstrip("/")
        self._timeout = timeout
        self._session = requests.Session()
        # A loopback server is never behind a proxy, whatever the environment says; and no .netrc entry may take
        # the place of the token.
        self._session.trust_env = False
        self._session.headers["Accept-Encoding"] = "identity"
        if token is not None:
            self._session.headers["Authorization"] = f"Bearer {token}"

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request and read its whole answer.

        Raises:
            ServerUnreachableError: no answer came.
        """
        try:
            response = self._session.request(
                method,
                self._url + path,
                data=body,
                headers=dict(headers or {}),
                params=dict(query or {}),
                timeout=self._timeout,
                allow_redirects=False,
            )
        except requests.Timeout:
            raise ServerUnreachableError(f"{self._url} did not answer within {self._timeout:g} s") from None
        except requests.RequestException as error:
            raise ServerUnreachableError(
                f"{self._url} cannot be reached ({_cause(error)}); is the server running? start it with: "
                "pocketserve serve"
            ) from None
        length = response.headers.get("Inference-Header-Content-Length", "")
        return Answer(response.status_code, response.content, int(length) if length.isdecimal() else None)

    def close(self) -> None:
        """Close all connections."""
        self._session.close()


def _cause(error: BaseException) -> str:
    """The innermost reason: requests wraps the operating system's error several times."""
    seen: BaseException = error
    while True:
        candidates = (getattr(seen, "reason", None), *seen.args[:1], seen.__cause__)
        inner = next((item for item in candidates if isinstance(item, BaseException)), None)
        if inner is None:
            break
        seen = inner
    return str(getattr(seen, "strerror", None) or seen)
