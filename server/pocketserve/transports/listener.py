"""Sockets to listen on."""

from __future__ import annotations

import errno
import logging
import resource
import socket
import time
from typing import Final

LOOK_EVERY_S: Final = 0.1  # pause between tries to bind a port
RESERVED: Final = 64  # open files for all but lasting connections: models, trials, listeners, short connections
BACKLOG: Final = 512  # connections that wait to be accepted: a burst of one program; the system may hold fewer

log = logging.getLogger(__name__)


class PortTakenError(Exception):
    """The port is not available.

    The text says which one, and the way out. ``busy_port`` is set if another program
    has it.
    """

    def __init__(self, text: str, busy_port: int | None = None) -> None:
        super().__init__(text)
        self.busy_port = busy_port


def listen(host: str, port: int, option: str, wait: float = 0.0) -> socket.socket:
    """Return a non-blocking listening TCP socket.

    Raises PortTakenError if the address cannot be bound.

    Args:
        port: 0 takes any free one.
        option: the command-line option for another port, for the error.
        wait: seconds to wait for a port that another program uses.
    """
    deadline = time.monotonic() + wait
    warned = False
    while True:
        try:
            return _bound(host, port)
        except OSError as error:
            in_use = error.errno == errno.EADDRINUSE
            if not in_use or time.monotonic() >= deadline:
                busy_port = port if in_use else None
                raise PortTakenError(
                    f"cannot listen on {host}:{port}: {error.strerror}; "
                    f"stop what uses it or choose another with {option}",
                    busy_port,
                ) from None
        if not warned:
            log.warning(
                "another program has %s:%d; waiting for it for %g s", host, port, wait
            )
            warned = True
        time.sleep(min(LOOK_EVERY_S, max(0.0, deadline - time.monotonic())))


def affordable(maximum: int, share: float, setting: str) -> int:
    """Return the connections allowed by the limit on open files.

    At most ``maximum``.

    Args:
        share: of the remaining files, the part for this transport.
        setting: where the maximum comes from, for the log.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return maximum
    allowed = max(1, min(maximum, int((limit - RESERVED) * share)))
    if allowed < maximum:
        text = (
            "%s is %d, not %d, since this process may open only %d "
            "files; `ulimit -n 1024` before the start allows more"
        )
        log.warning(text, setting, allowed, maximum, limit)
    return allowed


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        # Listen at once: with SO_REUSEADDR another app could listen on a port that is
        # only bound.
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    listener.setblocking(False)
    return listener
