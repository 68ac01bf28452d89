"""Pocketserve: serves machine-learning models on the phone itself."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from pocketserve_wire.version import __version__

if TYPE_CHECKING:
    from pocketserve.local.model import LocalModel

__all__ = ["__version__", "load"]


def load(
    model: str | Path,
    *,
    version: str | None = None,
    models_dir: str | Path | None = None,
    threads: int = 0,
) -> LocalModel:
    """Open a model in this process, without a server.

    Args:
        model: a model file, its folder, or the name of a model in ``models_dir``.
        version: the version that answers; by default the one of the file, else the model's default.
        models_dir: a models folder; by default the one that is served here, else the embedded models.
        threads: threads of one inference; 0 takes the fast cores.

    Raises:
        pocketserve.local.opening.ModelPathError: there is no such model.
    """
    # By name, as every module of this package imports the package itself.
    opened: LocalModel = import_module("pocketserve.local.model").open_for_program(
        model, version=version, models_dir=models_dir, threads=threads
    )
    return opened
