"""Clients in a forked process: two processes on one connection would get each other's answers."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class ConnectionHolder(Protocol):
    """An object that holds connections and locks."""

    def reset_after_fork(self) -> None:
        """Forget connections and locks, in the new process, where no other thread runs; the server hears nothing."""


_holders: weakref.WeakSet[ConnectionHolder] = weakref.WeakSet()


def watch(holder: ConnectionHolder) -> None:
    """Call ``reset_after_fork`` in processes that are forked from this one."""
    _holders.add(holder)


def _reset_all() -> None:
    for holder in list(_holders):
        holder.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_all)
