"""A roll-out: another version becomes the default one on a share of the phones, then on all or on none."""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pocketserve.cli import CommandError
from pocketserve.repository.manifest_edit import edit_manifest
from pocketserve.repository.toml_table import ManifestError
from pocketserve_simulate.fleet.asking import PhoneAnswers, ask_phone
from pocketserve_simulate.fleet.fleet import FleetPhone
from pocketserve_simulate.fleet.tables import share_text

LEAST_AGREEMENT: Final = 0.95  # with the answers of the version before, on each phone
MAX_REASONS: Final = 3  # that people are shown
COPY: Final = "models"  # in a phone's folder


@dataclass
class RollOut:
    """A roll-out of a version over phones that have been asked.

    Attributes:
        first: numbers of the phones that got it first.
        reasons: against going on, one sentence each; empty if it went on.
        results: answers of the phones that have the new version, or had it before they went back.
        is_restored: whether phones that went back answer as before; None if none had to.
    """

    version: str
    first: list[int] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    results: list[PhoneAnswers] = field(default_factory=list)
    is_restored: bool | None = None

    @property
    def went_on(self) -> bool:
        """True if all phones have the new version."""
        return not self.reasons

    def to_json(self) -> dict[str, Any]:
        """Return the decision with what led to it."""
        decision = "on" if self.went_on else "back"
        return {
            "version": self.version,
            "first_phones": self.first,
            "decision": decision,
            "reasons": self.reasons,
            "restored": self.is_restored,
        }


def copy_model(models: Path, model: str, folder: Path) -> Path:
    """Return a models folder of a phone's own with one model in it; its files are the same ones where possible."""
    copy = folder / COPY
    try:
        shutil.copytree(models / model, copy / model, copy_function=_link_or_copy)
    except OSError as error:
        raise CommandError(f"the model {model!r} cannot be copied: {error}") from None
    return copy


def _link_or_copy(source: str, target: str) -> None:
    """Link a file, which is never changed in place; another file system takes a copy.

    Of a symbolic link its file is taken: a manifest that is changed behind one would be the user's own.
    """
    with contextlib.suppress(OSError):
        os.link(os.path.realpath(source), target)
        return
    shutil.copy2(source, target)


def roll_out(
    before: Sequence[PhoneAnswers], model: str, inputs: Sequence[bytes], version: str, share: float, rate: float | None
) -> RollOut:
    """Give the version to the first phones, and then to all; or take it back from those that have it.

    It goes on while nothing fails that was answered before, at least 95 % of the answers stay the same on each phone,
    and each phone that held the rate still holds it.

    Args:
        before: the answers of all phones, by number; devices take turns, so that the first ones are of several.
        share: of the phones that get it first, rounded up.
    """
    result = RollOut(version)
    count = max(1, math.ceil(share * len(before) - 1e-9))
    result.first = [answers.phone.number for answers in before[:count]]
    for step in (before[:count], before[count:]):
        for old in step:
            set_default(old.phone, model, version)
            new = ask_phone(old.phone, model, inputs, version)
            result.results.append(new)
            result.reasons += objections(old, new, rate)
        if result.reasons:
            result.is_restored = _go_back(before[: len(result.results)], model, inputs)
            break
    return result


def objections(old: PhoneAnswers, new: PhoneAnswers, rate: float | None) -> list[str]:
    """Return what speaks against a new version on one phone."""
    name, reasons = f"phone {new.phone.number}", []
    if len(new.failures) > len(old.failures):
        failure = new.failures[0]
        reasons.append(f"{name}: {len(new.failures)} of {len(new.answers)} fail: {failure.code} {failure.text}")
    agreement = new.agreement(old.answers)
    if agreement is not None and agreement < LEAST_AGREEMENT:
        reasons.append(f"{name}: {share_text(agreement)} of the answers are as before")
    if rate is not None and not new.failures and old.holds(rate) and not new.holds(rate):
        reasons.append(f"{name}: it does not hold {rate:g}/s any more")
    return reasons


def _go_back(before: Sequence[PhoneAnswers], model: str, inputs: Sequence[bytes]) -> bool:
    """Make the old version the default one again; returns whether all answer as before."""
    is_restored = True
    for old in before:
        version = next(iter(old.versions), "")
        set_default(old.phone, model, version)
        again = ask_phone(old.phone, model, inputs, version)
        is_restored &= len(again.failures) <= len(old.failures) and again.agreement(old.answers) in (None, 1.0)
    return is_restored


def set_default(phone: FleetPhone, model: str, version: str) -> None:
    """Make a version the default one in a phone's own models folder; its server takes that up by itself."""

    def change(document: Any) -> None:
        document["default_version"] = version

    try:
        edit_manifest(phone.folder / COPY / model, change)
    except ManifestError as error:
        raise CommandError(f"phone {phone.number}: {error}") from None


def roll_out_lines(facts: Mapping[str, Any], phones: int) -> list[str]:
    """Return what came of a roll-out, in sentences, from its JSON."""
    share = f"{len(facts['first_phones'])} of {phones} phones"
    if facts["decision"] == "on":
        return [f"{facts['version']} went to {share}, then to all"]
    back = "answer as before" if facts["restored"] else "do NOT answer as before"
    return [f"{facts['version']} went back; the phones {back}", *facts["reasons"][:MAX_REASONS]]
