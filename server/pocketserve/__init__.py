"""Pocketserve: serves machine-learning models on the phone itself."""

from pocketserve_wire.version import __version__

__all__ = ["__version__"]
