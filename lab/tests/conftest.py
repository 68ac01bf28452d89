"""Share the fixtures of the server's tests with the lab's."""

from __future__ import annotations

from conftest import (
    asset_server,
    assets,
    models_copy,
    new_server,
    server,
)

__all__ = ["asset_server", "assets", "models_copy", "new_server", "server"]
