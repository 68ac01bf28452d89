"""Remembers which models were unloaded on request, for the case that the server is killed.

An unload is acknowledged with the words that the model is not served until it is loaded again. Android kills servers,
supervisors start them again, and that must not bring the model back. A clean end forgets: who starts a server on
purpose finds every model served, as always.
"""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from pathlib import Path
from typing import Final

from pocketserve.state.json_store import replace_json
from pocketserve.state.permissions import make_private_folder
from pocketserve_wire.files.plain_file import read_plain

FOLDER: Final = "unloaded"
MAX_FILE_BYTES: Final = 1 << 20

log = logging.getLogger(__name__)


class UnloadedModels:
    """The models that a server was told not to serve. A file that cannot be written costs the memory, not the service.

    Args:
        models_dir: the folder of the models; names from another folder do not count.
        port: the port for HTTP, which tells this server from others. Nothing is remembered for port 0, with which a
            server is another one each time.
    """

    def __init__(self, state_dir: Path, models_dir: Path, port: int) -> None:
        self._path = state_dir / FOLDER / f"{port}.json" if port else None
        self._models = str(models_dir.absolute())
        self._lock = threading.Lock()
        self.names = (
            self._read()
        )  # those that were unloaded when a server here was killed

    def add(self, name: str) -> None:
        """Note that a model was unloaded. Returns once that is on file."""
        with self._lock:
            self._write(self.names | {name})

    def discard(self, name: str) -> None:
        """Note that a model was loaded again."""
        with self._lock:
            self._write(self.names - {name})

    def close(self) -> None:
        """Forget, and remember nothing more: the server ends as it was asked to."""
        with self._lock:
            path, self._path = self._path, None
            if path is not None:
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def _write(self, names: frozenset[str]) -> None:
        if names == self.names:
            return
        self.names = names
        if self._path is None:
            return
        try:
            make_private_folder(self._path.parent)
            replace_json(
                self._path, {"models_dir": self._models, "names": sorted(names)}
            )
        except OSError as error:
            log.warning(
                "which models are unloaded will be forgotten if the server is killed: %s",
                error.strerror,
            )

    def _read(self) -> frozenset[str]:
        if self._path is None:
            return frozenset()
        try:
            document = json.loads(read_plain(self._path, MAX_FILE_BYTES))
            names = document["names"] if document["models_dir"] == self._models else []
            return frozenset(name for name in names if isinstance(name, str))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return frozenset()
