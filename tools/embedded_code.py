"""Write the hashes of the embedded models' code, which is trusted.

Run it after the recipes have recreated ``model.py`` or ``.pt2`` files:
``python tools/embedded_code.py``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "server"), str(ROOT / "client")]

from pocketserve.config import embedded_models_dir  # noqa: E402
from pocketserve.repository.scan import scan  # noqa: E402
from pocketserve.trust.code_parts import code_of  # noqa: E402
from pocketserve.trust.store import EMBEDDED  # noqa: E402

EMBEDDED_MODELS = ("diabetes", "digits", "numbers", "petals")


def hashes() -> dict[str, str]:
    """Return the SHA-256 of each piece of code by ``MODEL/FILE``."""
    models = scan(embedded_models_dir())
    entries = [models[name] for name in EMBEDDED_MODELS]
    parts = [
        (entry.name, part)
        for entry in entries
        for one in entry.versions.values()
        for part in code_of(entry, one)
    ]
    return {f"{name}/{part.name}": part.digest for name, part in parts}


if __name__ == "__main__":
    EMBEDDED.write_text(json.dumps(hashes(), indent=2) + "\n")
