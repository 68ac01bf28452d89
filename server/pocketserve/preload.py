"""Loads at start what the setting ``load`` names, while the server answers already."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from pocketserve.service import Service
from pocketserve_wire import ApiError


class PreloadError(Exception):
    """A model that was to be loaded at start cannot be; the text says which and why."""


class Preload:
    """The models of ``load``. Until they are there the server is alive but not ready; a request for one of them waits
    for that one alone.

    Args:
        ready: called when all of them are there, on a thread of its own if there are any.
        drain: ends the server when one cannot be loaded, behind the requests that it has accepted meanwhile.

    Attributes:
        fault: why the server was stopped; for whoever ran it to raise.
    """

    def __init__(
        self, service: Service, names: Sequence[str], ready: Callable[[], None], drain: Callable[[], None]
    ) -> None:
        self._service = service
        self._names = names
        self._ready = ready
        self._drain = drain
        self.fault: Exception | None = None

    def start(self) -> None:
        """Begin."""
        if not self._names:
            self._ready()
            return
        self._service.starting = True
        threading.Thread(target=self._run, name="pocketserve-preload", daemon=True).start()

    def _run(self) -> None:
        try:
            for name in self._names:
                self._load(name)
            self._service.starting = False
            self._ready()
        except Exception as error:
            if not self._service.draining:  # else it ends anyway, as it was asked to
                self.fault = error
                self._drain()

    def _load(self, name: str) -> None:
        try:
            self._service.load(name, rescan=False)
        except ApiError as error:
            raise PreloadError(f"--load {name}: {error.message}") from None
