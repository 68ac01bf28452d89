"""Persist which models were unloaded, in case of a kill.

An unloaded model must not be served until it is loaded again. Android kills servers,
supervisors restart them, and that must not bring the model back. A clean stop clears
the record: a server that is started on purpose serves every model.
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
    """The models that a server was told not to serve.

    If the file cannot be written, the record is lost when the server is killed.

    Args:
        models_dir: the models folder; names of another folder are ignored.
        port: the HTTP port, which identifies this server. Nothing is recorded for port
            0, because the port then changes with each start.
    """

    def __init__(self, state_dir: Path, models_dir: Path, port: int) -> None:
        self._path = state_dir / FOLDER / f"{port}.json" if port else None
        self._models = str(models_dir.absolute())
        self._lock = threading.Lock()
        self.names = self._read()
        """Unloaded models, initially those of a killed server."""

    def add(self, name: str) -> None:
        """Record durably that a model was unloaded."""
        with self._lock:
            self._write(self.names | {name})

    def discard(self, name: str) -> None:
        """Record that a model was loaded again."""
        with self._lock:
            self._write(self.names - {name})

    def close(self) -> None:
        """Clear the record and stop recording, on a clean stop."""
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
        document = {"models_dir": self._models, "names": sorted(names)}
        try:
            make_private_folder(self._path.parent)
            replace_json(self._path, document)
        except OSError as error:
            log.warning(
                "the list of unloaded models will be lost if the server is killed: %s",
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
