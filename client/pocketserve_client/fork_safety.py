"""Reset clients in forked processes, which must not share a connection."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ConnectionHolder(Protocol):
    """An object with connections and locks."""

    def reset_after_fork(self) -> None:
        """Drop connections and locks in the new process, unnoticed by the server."""


_holders: weakref.WeakSet[ConnectionHolder] = weakref.WeakSet()


def watch(holder: ConnectionHolder) -> None:
    """Call ``reset_after_fork`` in processes forked from this one."""
    _holders.add(holder)


def _reset_all() -> None:
    for holder in list(_holders):
        holder.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
