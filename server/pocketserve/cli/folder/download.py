"""Bounded and resumable download of one file."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from email.message import Message
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from pocketserve.cli.fetch import (
    FETCH_ERRORS,
    bounded_session,
    innermost_reason,
    open_address,
)
from pocketserve.cli.folder.models_folder import room
from pocketserve.system import LOOPBACK_HOSTS
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import human_bytes
from pocketserve_client.bounded import ExchangeLimits
from pocketserve_client.errors import NotOurServerError, ServerUnreachableError

if TYPE_CHECKING:
    from requests import Response

    from pocketserve.terminal.progress import Progress

PIECE_BYTES = 64 << 10
PIECE_S = 30.0  # for a response's headers, and for each piece: 2 kB/s at least
MAX_CUTS = 20  # broken connections until a download fails
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})")

HeadersFor = Callable[[str], Mapping[str, str]]
"""Returns the headers to send to an address."""


def no_headers(url: str) -> Mapping[str, str]:
    """Return no headers."""
    return {}


class DownloadCut(CommandError):
    """An interrupted download, which the same call may resume."""


class Remote(NamedTuple):
    """A file as its server describes it."""

    name: str  # from a header or the address, without folders
    size: int | None
    etag: str = ""  # only a strong one


@dataclass(frozen=True)
class Download:
    """A file to download, its bounds and checks.

    Attributes:
        target: the file to write; notes on a partial download have ``.json`` appended.
        check: raises to reject a name or size before the first byte is written.
        max_bytes: the size limit; None means the room on the disk.
        title: of the progress, if the file's name is not clear enough.
        headers: returns additional headers for an address.
        refusal: returns an error message for a response that is not the file, or None
            for the default.
    """

    url: str
    target: Path
    check: Callable[[Remote], None]
    max_bytes: int | None = None
    title: str = ""
    headers: HeadersFor = no_headers
    refusal: Callable[[Response], str | None] | None = None

    @property
    def note(self) -> Path:
        """Return the file that describes a partial download."""
        return self.target.with_name(f"{self.target.name}.json")

    @property
    def size(self) -> int:
        """Return the bytes that were downloaded so far."""
        if self.target.exists():
            return self.target.stat().st_size
        return 0

    def limit(self, remote: Remote) -> int:
        """Return the greatest size that is accepted."""
        if remote.size is not None:
            return remote.size
        if self.max_bytes is not None:
            return self.max_bytes
        return room(self.target.parent)


def check_address(url: str) -> None:
    """Reject addresses other than HTTPS and this device.

    Raises:
        CommandError: with the reason.
    """
    try:
        parts = urlsplit(url)
        is_loopback = parts.hostname in LOOPBACK_HOSTS and parts.port != 0
    except ValueError:
        raise CommandError(f"{url[:200]!r} is not an address") from None
    is_safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback)
    if not parts.hostname or not is_safe:
        raise CommandError(
            f"{shown_address(url)} is not an https:// address, so others could change "
            "the file"
        )


def shown_address(url: str) -> str:
    """Return an address without possible secrets: user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def download(job: Download, progress: Progress) -> Remote:
    """Fetch a file, resuming an earlier download if possible.

    Raises:
        DownloadCut: it was interrupted, and the same call may resume it.
        CommandError: it can't be fetched.
    """
    address = shown_address(job.url)
    cuts = 0
    while True:
        before = job.size
        try:
            return _fetch(job, progress)
        except NotOurServerError:
            raise CommandError(
                f"{address} cannot be fetched: its headers are too long"
            ) from None
        except ServerUnreachableError as error:
            raise CommandError(str(error).replace(job.url, address)) from None
        except FETCH_ERRORS as error:
            cuts += 1
            size = job.size
            reason = f"{address} cannot be fetched: {innermost_reason(error)}"
            if not size or _read_note(job.note, job.url) is None:
                raise DownloadCut(reason) from None
            is_full = getattr(error, "errno", None) in FULL
            if size <= before or cuts == MAX_CUTS or is_full:
                raise DownloadCut(
                    f"{reason}; {human_bytes(size)} are kept, "
                    "and the same command resumes the download"
                ) from None


def _fetch(job: Download, progress: Progress) -> Remote:
    """Fetch the missing bytes over one connection.

    Raises:
        FETCH_ERRORS: the connection was cut.
    """
    earlier = _read_note(job.note, job.url)
    start = 0
    if earlier is not None:
        start = job.size

    def headers(address: str) -> Mapping[str, str]:
        check_address(address)
        sent = dict(job.headers(address))
        if earlier is not None and start:
            sent["Range"] = f"bytes={start}-"
            sent["If-Range"] = earlier.etag
        return sent

    exchange = ExchangeLimits()
    exchange.begin(PIECE_S, PIECE_BYTES)
    with (
        bounded_session(exchange) as session,
        open_address(session, job.url, PIECE_S, headers) as response,
    ):
        is_past_end = response.status_code == 416
        if is_past_end and earlier is not None and earlier.size == start:
            return earlier  # it was complete already
        body = _check_response(job, response, earlier, start)
        count = _write_body(job, response, body, exchange, progress)
    if body.file.size is not None and count < body.file.size:
        raise OSError(0, "the connection was cut")
    return body.file


def _check_response(
    job: Download, response: Response, earlier: Remote | None, start: int
) -> _ResponseBody:
    """Return the accepted body of a response, and record its file for a retry."""
    sentence = None
    if job.refusal is not None:
        sentence = job.refusal(response)
    if sentence is not None:
        raise CommandError(sentence)
    body = _describe_body(response, job.url, earlier)
    if response.status_code not in (200, 206) or body.start not in (0, start):
        job.target.unlink(missing_ok=True)  # a retry must not resume it
        raise CommandError(
            f"{shown_address(job.url)} cannot be fetched: "
            f"the server answers {response.status_code}"
        )
    job.check(body.file)
    note = {"url": job.url, **body.file._asdict()}
    job.note.write_text(json.dumps(note), encoding="utf-8")
    return body


def _write_body(
    job: Download,
    response: Response,
    body: _ResponseBody,
    exchange: ExchangeLimits,
    progress: Progress,
) -> int:
    """Append a body to the target; return the target's size."""
    limit = job.limit(body.file)
    title = job.title or _default_title(body.file)
    count = body.start
    with job.target.open("r+b" if body.start else "wb") as file:
        file.seek(body.start)
        progress.show(title, count / max(1, limit))
        for piece in response.raw.stream(PIECE_BYTES, decode_content=False):
            exchange.begin(PIECE_S, PIECE_BYTES)
            count += len(piece)
            if count > limit:
                raise CommandError(
                    f"{body.file.name} has more than {human_bytes(limit)}; "
                    "nothing of it is kept"
                )
            file.write(piece)
            progress.show(title, count / max(1, limit))
    return count


def _default_title(file: Remote) -> str:
    if not file.size:
        return f"fetching {file.name}"
    return f"fetching {file.name} ({human_bytes(file.size)})"


class _ResponseBody(NamedTuple):
    """A response's file, and the offset of its body."""

    file: Remote
    start: int


def _describe_body(
    response: Response, url: str, earlier: Remote | None
) -> _ResponseBody:
    headers = response.headers
    if headers.get("Content-Encoding", "identity") != "identity":
        raise CommandError(
            f"{shown_address(url)} cannot be fetched: "
            "the server compresses it, which was not requested"
        )
    name = _file_name(headers.get("Content-Disposition", ""), url)
    etag = headers.get("ETag", "")
    if not re.fullmatch(r'"[\x21\x23-\x7e]{1,256}"', etag):
        etag = ""  # a weak one doesn't guarantee equal bytes
    if response.status_code == 206:
        return _describe_part(response, url, earlier, Remote(name, None, etag))
    length = headers.get("Content-Length", "")
    size = None
    if re.fullmatch(r"\d{1,18}", length):
        size = int(length)
    return _ResponseBody(Remote(name, size, etag), 0)


def _describe_part(
    response: Response, url: str, earlier: Remote | None, file: Remote
) -> _ResponseBody:
    part = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
    is_same = earlier is not None and file.etag in ("", earlier.etag)
    if part is None or earlier is None or not is_same:
        raise CommandError(
            f"{shown_address(url)} cannot be fetched: "
            "the server sends a part that was not requested"
        )
    start = int(part[1])
    size = int(part[2])
    return _ResponseBody(Remote(file.name, size, earlier.etag), start)


def _file_name(disposition: str, url: str) -> str:
    """Return a file's name from a header or the address."""
    message = Message()
    one_line = disposition[:1000].replace("\r", " ").replace("\n", " ")
    message["Content-Disposition"] = one_line
    name = None
    if disposition:
        name = message.get_filename()
    path = name or unquote(urlsplit(url).path)
    return PurePosixPath(path.replace("\\", "/")).name[:255] or "model"


def _read_note(note: Path, url: str) -> Remote | None:
    """Return the description of a partial download, if resumable."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        content: Any = json.loads(note.read_text(encoding="utf-8"))
        if content["url"] == url and content["etag"]:
            return Remote(str(content["name"]), content["size"], str(content["etag"]))
    with suppress(OSError):
        os.unlink(note)
    return None
