"""Sockets to listen on."""

from __future__ import annotations

import socket


class PortTakenError(Exception):
    """The port cannot be had; the text says which and what to do."""


def bind(host: str, port: int, option: str) -> socket.socket:
    """A bound TCP socket that does not block and does not listen yet.

    Args:
        port: 0 takes any free one.
        option: the command-line option that chooses another, for the error.

    Raises:
        PortTakenError: the address cannot be bound.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PortTakenError(
            f"cannot listen on {host}:{port}: {error.strerror}; stop what uses it or choose another with {option}"
        ) from None
    listener.setblocking(False)
    return listener
