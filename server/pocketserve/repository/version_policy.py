"""Triton's ``version_policy``: which numbered versions are available."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class VersionPolicy(NamedTuple):
    """The versions of a model that are offered; all by default.

    Attributes:
        latest: only so many of the highest numbers; 0 sets no limit.
        specific: only these; None sets no limit.
        source: the file that says so, for people.
    """

    latest: int = 0
    specific: tuple[str, ...] | None = None
    source: str = ""

    def choose(
        self, candidates: Sequence[str]
    ) -> tuple[dict[str, str], tuple[str, ...]]:
        """Return the versions that are withheld, with the reason, and those that may answer by default.

        A version that a newer one has pushed out of the latest may still do so, until a newer one can be loaded.

        Args:
            candidates: numbered versions, the highest first; others are left as they are.
        """
        numbers = [name for name in candidates if name.isdecimal()]
        if not numbers:
            return {}, tuple(candidates)
        if self.specific is not None:
            available = [name for name in numbers if name in self.specific]
            text = (
                f"{self.source}: version_policy offers {_as_text(self.specific)} only"
            )
            return {name: text for name in numbers if name not in available}, tuple(
                available
            )
        if self.latest:
            text = f"{self.source}: version_policy offers the latest {self.latest} only"
            return dict.fromkeys(numbers[self.latest :], text), tuple(numbers)
        return {}, tuple(numbers)

    def to_json(self) -> dict[str, Any]:
        """Return it in the JSON form of Triton's ``ModelVersionPolicy``."""
        if self.specific is not None:
            return {
                "specific": {"versions": [int(version) for version in self.specific]}
            }
        return {"latest": {"num_versions": self.latest}} if self.latest else {"all": {}}


def _as_text(versions: Sequence[str]) -> str:
    noun = "version" if len(versions) == 1 else "versions"
    return f"{noun} {', '.join(versions)}" if versions else "no version"
