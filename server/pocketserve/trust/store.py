"""Store the owner's consent to code in the state folder."""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pocketserve.repository.files import HASH_VERSION, content_digest, key_of
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.model_format import Code
from pocketserve.state.json_store import JsonStore
from pocketserve.state.permissions import foreign_writer
from pocketserve.trust.verified_files import not_trusted

if TYPE_CHECKING:
    from pocketserve.trust.code_parts import CodePart

FILE_NAME = "trusted.json"
EMBEDDED = Path(__file__).with_name("embedded.json")


class Consent(NamedTuple):
    """The owner's consent to one part of a model."""

    digest: str
    """SHA-256 of the part."""
    model: str
    name: str
    given: float
    """Seconds since 1970."""
    version: int = HASH_VERSION
    """Version of the hash."""


class TrustStore:
    """Consents by key, which only ``pocketserve trust`` adds."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE_NAME
        self._store = JsonStore(self._path, _parse)

    def check(self, entry: ModelEntry, version: VersionEntry) -> frozenset[str]:
        """Return the hashes of a version's trusted code.

        Raises:
            ModelLoadError: code is not trusted, was changed, or is writable by others.
        """
        parts: list[CodePart] = []
        if may_hold_code(entry, version):
            # Imported late, because most models contain no code.
            from pocketserve.trust.code_parts import code_of

            parts = code_of(entry, version)
        embedded = set(embedded_code().values())
        foreign = [part for part in parts if part.digest not in embedded]
        consents = self._store.entries()
        for part in foreign:
            _check_consent(entry, version, part, consents.get(part.key))
        check_writers(part.path for part in foreign)
        trusted = {part.digest for part in parts}
        consent = consents.get(key_of(version.path))
        if consent is None or consent.digest in trusted:
            return frozenset(trusted)
        if content_digest(version) == consent.digest:
            check_writers([version.path])
            trusted.add(consent.digest)
        return frozenset(trusted)

    def known_reason(self, entry: ModelEntry, version: VersionEntry) -> str | None:
        """Return why a version's code would not run, or None."""
        if not may_hold_code(entry, version):
            return None
        if f"{entry.name}/{version.path.name}" in embedded_code():
            return None
        if "delegate" in version.options:
            return None
        consents = self._store.entries()
        for path in (version.path, _task_file(entry, version)):
            if path is not None and key_of(path) in consents:
                return None
        return not_trusted(
            _folder(entry, version), "it contains code that is not trusted"
        )

    def consents(self) -> Mapping[str, Consent]:
        """Return all consents by key."""
        return self._store.entries()

    def add(self, model: str, parts: Iterable[CodePart]) -> None:
        """Store consent; OSError if the folder is not writable."""
        now = time.time()
        consents = {}
        for part in parts:
            consents[part.key] = Consent(part.digest, model, part.name, now)
        self._store.change(consents)

    def remove(self, keys: Collection[str]) -> None:
        """Remove consents; OSError if the state folder is not writable."""
        self._store.change({}, keys)

    def consents_to(self, entry: ModelEntry) -> Mapping[str, Consent]:
        """Return the consents to files in a model's folder."""
        folder = os.path.join(key_of(entry.folder), "")
        matching = {}
        for key, consent in self._store.entries().items():
            if key.startswith(folder):
                matching[key] = consent
        return matching


def _check_consent(
    entry: ModelEntry, version: VersionEntry, part: CodePart, consent: Consent | None
) -> None:
    """Raise ModelLoadError unless the owner trusts a part."""
    if consent is None:
        reason = "is code that is not trusted"
    elif consent.digest != part.digest:
        reason = "changed since it was trusted"
    else:
        return
    folder = _folder(entry, version)
    raise ModelLoadError(not_trusted(folder, f"{part.name} {reason}"))


@functools.cache
def embedded_code() -> Mapping[str, str]:
    """Return the hashes of the embedded models' code by ``MODEL/FILE``."""
    hashes: dict[str, str] = json.loads(EMBEDDED.read_text(encoding="utf-8"))
    return hashes


def may_hold_code(entry: ModelEntry, version: VersionEntry) -> bool:
    """Return whether a version may contain code; no file is read.

    :func:`pocketserve.trust.code_parts.code_of` then finds it.
    """
    if version.format.code is not Code.NONE or version.options.get("trust") is True:
        return True
    if isinstance(version.options.get("delegate"), str):
        return True
    return _task_file(entry, version) is not None


def _task_file(entry: ModelEntry, version: VersionEntry) -> Path | None:
    # Imported late, because a server without a loaded model doesn't need it.
    from pocketserve.tasks.model_facts import task_file

    return task_file(entry, version)


def check_writers(paths: Iterable[Path | None]) -> None:
    """Raise ModelLoadError for code that other users can replace."""
    fault = foreign_writer(*(path for path in paths if path is not None))
    if fault is not None:
        raise ModelLoadError(f"its code is not run: {fault}")


def _folder(entry: ModelEntry, version: VersionEntry) -> Path:
    """Return the command's argument: a folder or single file."""
    return entry.folder if entry.folder.name == entry.name else version.path


def _parse(value: Any) -> Consent:
    digest = value["digest"]
    if not isinstance(digest, str) or value.get("version") != HASH_VERSION:
        raise TypeError("a damaged or old consent")
    seconds = value.get("given")
    return Consent(
        digest=digest,
        model=str(value.get("model", "")),
        name=str(value.get("name", "")),
        given=float(seconds) if isinstance(seconds, int | float) else 0.0,
    )
