"""Other work on the cores that are measured on."""

from __future__ import annotations

import os

from pocketserve.messages import plural


def load_now() -> float | None:
    """Return how many processes wanted a core in the last minute, on average; None where the system does not tell."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def load_warning(load: float | None) -> str:
    """Return a warning where other work wants the cores that are measured on; empty otherwise."""
    cores = os.cpu_count() or 1
    if load is None or load < cores:  # Android counts waiting drivers as well
        return ""
    return (
        f"The load was {load:.1f} on {plural(cores, 'core')}: what is measured beside other work holds beside it "
        "only. If something else runs, stop it and measure again.\n\n"
    )
