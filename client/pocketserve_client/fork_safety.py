"""Clients in a forked process: two processes on one connection would get each other's answers."""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forked(Protocol):
    """What holds connections."""

    def reset_after_fork(self) -> None:
        """In the new process, where no other thread runs: forget connections and locks; the server hears nothing."""
        ...


_watched: weakref.WeakSet[Forked] = weakref.WeakSet()


def watch(holder: Forked) -> None:
    """Let ``reset_after_fork`` be called in processes that are forked from this one."""
    _watched.add(holder)


def _start_all_anew() -> None:
    for holder in list(_watched):
        holder.reset_after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_all_anew)
