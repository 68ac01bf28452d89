"""Triton's ``version_policy``: the numbered versions that are available."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class VersionPolicy(NamedTuple):
    """The available versions of a model; all by default.

    Attributes:
        latest: number of highest versions; 0 means no limit.
        specific: the available versions; None means no limit.
        source: the file with the policy, for users.
    """

    latest: int = 0
    specific: tuple[str, ...] | None = None
    source: str = ""

    def choose(
        self, candidates: Sequence[str]
    ) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return unavailable versions with their reason, and candidates for the
        default.

        A version that a newer one has displaced from the latest remains a candidate
        until the newer one is loadable.

        Args:
            candidates: numbered versions, the highest first; others are unaffected.
        """
        numbers = [name for name in candidates if name.isdecimal()]
        if not numbers:
            return {}, tuple(candidates)
        if self.specific is not None:
            specific = _as_text(self.specific)
            text = f"{self.source}: version_policy offers {specific} only"
            available = []
            withheld = []
            for name in numbers:
                if name in self.specific:
                    available.append(name)
                else:
                    withheld.append(name)
            return dict.fromkeys(withheld, text), tuple(available)
        if self.latest:
            text = f"{self.source}: version_policy offers the latest {self.latest} only"
            return dict.fromkeys(numbers[self.latest :], text), tuple(numbers)
        return {}, tuple(numbers)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form of Triton's ``ModelVersionPolicy``."""
        if self.specific is not None:
            return {"specific": {"versions": list(map(int, self.specific))}}
        if self.latest:
            return {"latest": {"num_versions": self.latest}}
        return {"all": {}}


def _as_text(versions: Sequence[str]) -> str:
    noun = "versions"
    if len(versions) == 1:
        noun = "version"
    if versions:
        return f"{noun} {', '.join(versions)}"
    return "no version"
