"""Download of one file within bounds: redirects, length, time; what was cut goes on where it ended."""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
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
PIECE_S = 30.0  # for each piece, and for an answer's beginning: 2 kB/s at least
MAX_CUTS = 20  # a connection that is cut again and again is given up
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})")

Headers = Callable[[str], Mapping[str, str]]


class DownloadCut(CommandError):
    """A download that ended before its time; what came of it may be gone on with."""


class Remote(NamedTuple):
    """A file as its server describes it."""

    name: str  # as its header or its address calls it; nothing of a path
    size: int | None
    etag: str = ""  # empty unless it is a strong one


def check_address(url: str) -> None:
    """Refuse addresses but those of HTTPS, and of this device.

    Raises:
        CommandError: with the reason.
    """
    try:
        parts = urlsplit(url)
        is_loopback = parts.hostname in LOOPBACK_HOSTS and parts.port != 0
    except ValueError:
        raise CommandError(f"{url[:200]!r} is no address") from None
    if not parts.hostname or not (
        parts.scheme == "https" or (parts.scheme == "http" and is_loopback)
    ):
        raise CommandError(
            f"{shown_address(url)} is no address with https://, over which nobody can change the file"
        )


def shown_address(url: str) -> str:
    """Return an address without what may be a secret: user, password and query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def download(
    url: str,
    target: Path,
    progress: Progress,
    check: Callable[[Remote], None],
    *,
    max_bytes: int | None = None,
    title: str = "",
    headers: Headers = lambda url: {},
    refusal: Callable[[Response], str | None] = lambda response: None,
) -> Remote:
    """Fetch a file, or the rest of it where an earlier call was cut.

    Args:
        target: the file to write; its name with ``.json`` behind says what it is a part of.
        check: refuses, before the first byte is written, a name or size by an error.
        max_bytes: what it may have; None leaves it to the room on the disk.
        title: of the progress, where the file's name says too little.
        headers: returns what else to send to an address.
        refusal: returns a sentence for an answer that is not the file; None leaves it to this function.

    Raises:
        DownloadCut: the same call may go on with it.
        CommandError: it cannot be had.
    """
    cuts = 0
    while True:
        before = target.stat().st_size if target.exists() else 0
        try:
            return _fetch(
                url, target, progress, check, max_bytes, title, headers, refusal
            )
        except NotOurServerError:
            raise CommandError(
                f"{shown_address(url)} cannot be fetched: its headers have no end"
            ) from None
        except ServerUnreachableError as error:
            raise CommandError(str(error).replace(url, shown_address(url))) from None
        except FETCH_ERRORS as error:
            size, cuts = (target.stat().st_size if target.exists() else 0), cuts + 1
            reason = (
                f"{shown_address(url)} cannot be fetched: {innermost_reason(error)}"
            )
            if not size or _read_note(_note_of(target), url) is None:
                raise DownloadCut(reason) from None
            if (
                size <= before
                or cuts == MAX_CUTS
                or getattr(error, "errno", None) in FULL
            ):
                rest = f"{human_bytes(size)} are kept, and the same command goes on with them"
                raise DownloadCut(f"{reason}; {rest}") from None


def _fetch(
    url: str,
    target: Path,
    progress: Progress,
    check: Callable[[Remote], None],
    max_bytes: int | None,
    title: str,
    headers: Headers,
    refusal: Callable[[Response], str | None],
) -> Remote:
    """Fetch what is missing over one connection; one of ``FETCH_ERRORS`` where it is cut."""
    note = _note_of(target)
    earlier = _read_note(note, url)
    start = target.stat().st_size if earlier is not None and target.exists() else 0

    def sent(address: str) -> Mapping[str, str]:
        check_address(address)
        part = (
            {"Range": f"bytes={start}-", "If-Range": earlier.etag}
            if earlier is not None and start
            else {}
        )
        return {**headers(address), **part}

    exchange = ExchangeLimits()
    exchange.begin(PIECE_S, PIECE_BYTES)
    with (
        bounded_session(exchange) as session,
        open_address(session, url, PIECE_S, sent) as response,
    ):
        if (
            response.status_code == 416
            and earlier is not None
            and earlier.size == start
        ):
            return earlier  # it was whole already
        if (sentence := refusal(response)) is not None:
            raise CommandError(sentence)
        remote, begins_at = _remote(response, url, earlier)
        if response.status_code not in (200, 206) or begins_at not in (0, start):
            target.unlink(
                missing_ok=True
            )  # whatever it is, no second try goes on with it
            raise CommandError(
                f"{shown_address(url)} cannot be fetched: it answers {response.status_code}"
            )
        check(remote)
        note.write_text(json.dumps({"url": url, **remote._asdict()}), encoding="utf-8")
        limit = (
            remote.size
            if remote.size is not None
            else room(target.parent)
            if max_bytes is None
            else max_bytes
        )
        title = title or f"fetching {remote.name}" + (
            f" ({human_bytes(remote.size)})" if remote.size else ""
        )
        with target.open("r+b" if begins_at else "wb") as file:
            file.seek(begins_at)
            count = begins_at
            progress.show(title, count / max(1, limit))
            for piece in response.raw.stream(PIECE_BYTES, decode_content=False):
                exchange.begin(PIECE_S, PIECE_BYTES)
                count += len(piece)
                if count > limit:
                    raise CommandError(
                        f"{remote.name} has more than {human_bytes(limit)}; nothing of it is kept"
                    )
                file.write(piece)
                progress.show(title, count / max(1, limit))
    if remote.size is not None and count < remote.size:
        raise OSError(0, "the connection was cut")
    return remote


def _remote(response: Response, url: str, earlier: Remote | None) -> tuple[Remote, int]:
    """Return what an answer says of the file, and which byte its body begins with."""
    headers = response.headers
    if headers.get("Content-Encoding", "identity") != "identity":
        raise CommandError(
            f"{shown_address(url)} cannot be fetched: it is sent packed, which was not asked for"
        )
    length, begins_at = headers.get("Content-Length", ""), 0
    size = int(length) if re.fullmatch(r"\d{1,18}", length) else None
    etag = headers.get("ETag", "")
    etag = (
        etag if re.fullmatch(r'"[\x21\x23-\x7e]{1,256}"', etag) else ""
    )  # a weak one does not promise the same bytes
    if response.status_code == 206:
        part = _RANGE.fullmatch(headers.get("Content-Range", ""))
        if part is None or earlier is None or (etag and etag != earlier.etag):
            raise CommandError(
                f"{shown_address(url)} cannot be fetched: it answers with a part that was not asked for"
            )
        begins_at, size, etag = int(part[1]), int(part[2]), earlier.etag
    return Remote(
        _file_name(headers.get("Content-Disposition", ""), url), size, etag
    ), begins_at


def _file_name(disposition: str, url: str) -> str:
    """Return the last part of the name in a header, or of the address's path."""
    message = Message()
    message["Content-Disposition"] = (
        disposition[:1000].replace("\r", " ").replace("\n", " ")
    )
    name = message.get_filename() if disposition else None
    return (
        PurePosixPath((name or unquote(urlsplit(url).path)).replace("\\", "/")).name[
            :255
        ]
        or "model"
    )


def _note_of(target: Path) -> Path:
    return target.with_name(f"{target.name}.json")


def _read_note(note: Path, url: str) -> Remote | None:
    """Return what is known of the file that was begun; None where it cannot be gone on with."""
    with suppress(OSError, ValueError, TypeError, AttributeError):
        content: Any = json.loads(note.read_text(encoding="utf-8"))
        if content["url"] == url and content["etag"]:
            return Remote(str(content["name"]), content["size"], str(content["etag"]))
    with suppress(OSError):
        os.unlink(note)
    return None
