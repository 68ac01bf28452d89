"""Low power: fewer cores, and no background work.

An idle server does not check the battery. A request does, a minute or more after the
last check, in the background (see docs/adr/0021-low-power.md).
"""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pocketserve_wire import ApiError, ErrorCode

if TYPE_CHECKING:
    from pocketserve.engine.device.battery import Battery, Reading

log = logging.getLogger(__name__)

ASKED, BATTERY, HEAT = REASONS = ("asked", "battery", "heat")
"""Why power is low: the setting demands it, the battery is low and not charged, the battery is hot."""

CHARGED_BY, COOLED_BY = 5.0, 3.0
"""Percent and °C beyond the limit at which a reason ends, so that it does not come and go."""

CHECK_INTERVAL_S, ASK_S, ASK_RARELY_S = 60.0, 300.0, 3600.0
"""Between two looks at files; between two calls of a program; at most, for one that fails again and again."""

STALE_S = 1800.0  # a reading that is older says nothing any more

RETRY_S = 60.0
END_S = 2.0


def reasons_for(
    reading: Reading, before: frozenset[str], low_battery: float, hot_battery: float
) -> frozenset[str]:
    """Return why power is low.

    Reasons persist until well beyond their limit. A limit of 0 is never reached.
    """
    lowest = low_battery + (CHARGED_BY if BATTERY in before else 0.0)
    hottest = hot_battery - (COOLED_BY if HEAT in before else 0.0)
    reasons = set()
    if (
        low_battery
        and reading.charge is not None
        and not reading.charging
        and reading.charge < lowest
    ):
        reasons.add(BATTERY)
    if hot_battery and reading.heat is not None and reading.heat >= hottest:
        reasons.add(HEAT)
    return frozenset(reasons)


class PowerWatch:
    """Tracks low power, and when to check again.

    Args:
        mode: ``auto`` looks at the battery, ``on`` and ``off`` do as they say.
        open_battery: finds the battery at the first look; None takes this device's.

    Attributes:
        reasons: why power is low; empty when it is not.
        reading: the last one; None before the first.
        on_change: called after a change, on whichever thread noticed it.
    """

    def __init__(
        self,
        mode: str = "off",
        low_battery: float = 0.0,
        hot_battery: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        open_battery: Callable[[], Battery] | None = None,
    ) -> None:
        self.reasons = frozenset([ASKED] if mode == "on" else [])
        self.reading: Reading | None = None
        self.on_change: Callable[[], None] = lambda: None
        self._limits = low_battery, hot_battery
        self._clock = clock
        self._open_battery = open_battery or _this_battery
        self._battery: Battery | None = None
        self._lock = threading.Lock()
        self._due = 0.0 if mode == "auto" else math.inf
        self._read_at = 0.0
        self._failures = 0
        self._asker: threading.Thread | None = None

    @property
    def low(self) -> bool:
        """Return whether power is low."""
        return bool(self.reasons)

    def due(self, now: float) -> bool:
        """Return whether it is time to look again."""
        return now >= self._due

    def look(self) -> None:
        """Check the battery if it is time.

        Slow programs run on a separate thread.
        """
        with self._lock:
            now = self._clock()
            if now < self._due:
                return
            self._due = now + CHECK_INTERVAL_S
            battery = self._battery = self._battery or self._open_battery()
            if battery.tells_nothing:
                self._due = math.inf  # a desktop: never again
                return
            reading = battery.read_files()
            if ask := battery.program is not None and None in (
                reading.charge,
                reading.heat,
            ):
                self._due = now + ASK_RARELY_S  # sooner, once it has answered
        if not ask:
            self._take(reading)
            return
        asker = threading.Thread(
            target=self._ask,
            args=(battery, reading),
            name="pocketserve-battery",
            daemon=True,
        )
        # Without a free thread, a later request tries again.
        with contextlib.suppress(RuntimeError):
            asker.start()
            self._asker = asker

    def _ask(self, battery: Battery, reading: Reading) -> None:
        answer = battery.ask_program()
        with self._lock:
            now = self._clock()
            if self._due == math.inf:
                return  # closed meanwhile
            self._failures = 0 if answer is not None else self._failures + 1
            self._due = now + min(ASK_S * 2**self._failures, ASK_RARELY_S)
            if (
                answer is None
                and reading.charge is None
                and now - self._read_at < STALE_S
            ):
                answer = self.reading  # the last reading
        self._take(answer or reading)

    def _take(self, reading: Reading) -> None:
        with self._lock:
            if reading is not self.reading:
                self._read_at, self.reading = self._clock(), reading
            before, self.reasons = (
                self.reasons,
                reasons_for(reading, self.reasons, *self._limits),
            )
            changed = self.reasons != before
        if changed:
            if self.low:
                log.info(
                    "low power (%s): fewer threads, and background requests are rejected",
                    self.describe(),
                )
            else:
                log.info("power is no longer low")
            self.on_change()

    def close(self) -> None:
        """Stop checking, and end a running program.

        Waits two seconds at most.
        """
        with self._lock:
            self._due = math.inf
            battery, asker = self._battery, self._asker
        if battery is not None:
            battery.give_up()
        if asker is not None:
            asker.join(END_S)

    def describe(self) -> str:
        """Return why power is low; empty if it is not."""
        words = {ASKED: "the setting low_power is on"}
        if self.reading is not None:
            words[BATTERY] = f"the battery is at {self.reading.charge or 0:.0f} %"
            words[HEAT] = f"the battery has {self.reading.heat or 0:.0f} °C"
        return " and ".join(
            words[reason] for reason in REASONS if reason in self.reasons
        )

    def refuse_background(self) -> None:
        """Raise LOW_POWER for background requests while power is low."""
        reason, now = self.describe(), self._clock()
        if not reason or (ASKED not in self.reasons and now - self._read_at > STALE_S):
            return
        wait_s = (
            RETRY_S if ASKED in self.reasons else min(max(1.0, self._due - now), ASK_S)
        )
        text = (
            "background requests (priority 6 and above) are rejected in low-power mode: "
            f"{reason}; try again later, use a priority from 1 to 5, "
            "or serve with --low-power off"
        )
        raise ApiError(ErrorCode.LOW_POWER, text, retry_after_s=wait_s)


def _this_battery() -> Battery:
    # late: only needed from the first model on
    from pocketserve.engine.device.battery import Battery

    return Battery()
