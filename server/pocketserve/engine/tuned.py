"""What ``bench --tune`` found for a version on this device, and what it may replace."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pocketserve_wire.records import dataclass

if TYPE_CHECKING:
    from pocketserve.repository.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Tuned:
    """Measured settings of one version.

    Attributes:
        threads, max_batch: what did best; None where nothing was found that beats the default.
        forced: they also replace what the manifest or the server's settings name.
        runtime: the framework with its version that they were measured with; empty where nothing was measured.
        said: the gain in words.
    """

    threads: int | None = None
    max_batch: int | None = None
    forced: bool = False
    runtime: str = ""
    said: str = ""


NOT_TUNED = Tuned()


@dataclass(frozen=True, slots=True)
class Threads:
    """What one run may use, before a model has its say.

    Attributes:
        usual: threads where nothing else decides.
        most: the cores that the process may use now; a tuned number never goes beyond, since Android takes cores away.
        fixed: whether the settings name the number.
        low_power: whether only half of what would be used otherwise is.
    """

    usual: int
    most: int
    fixed: bool = False
    low_power: bool = False


def threads_for(threads: Threads, manifest: Manifest, tuned: Tuned) -> int:
    """Threads of one run: what is named expressly stays, unless the tuning was forced."""
    named = manifest.threads is not None or threads.fixed
    wanted = manifest.threads or threads.usual
    if tuned.threads is not None and (tuned.forced or not named):
        wanted = min(tuned.threads, threads.most)
    return max(1, wanted // 2) if threads.low_power else wanted


def rows_for(usual: int, fixed: bool, manifest: Manifest, tuned: Tuned) -> int:
    """Rows of a batch at most, by the same rule; 1 makes no batches.

    Args:
        usual, fixed: the server's setting, and whether it is another than its default.
    """
    named = manifest.max_batch is not None or fixed
    if tuned.max_batch is not None and (tuned.forced or not named):
        return tuned.max_batch
    return manifest.max_batch or usual
