"""Keeps the owner's consents to code: SHA-256 hashes in the state folder, outside of every models folder."""

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
    """The owner's consent to one part of a model: its SHA-256, names for people, and when, in seconds since 1970."""

    digest: str
    model: str
    name: str
    given: float
    version: int = HASH_VERSION  # of the hash


class TrustStore:
    """Consents by what they are about. Only ``pocketserve trust`` adds any: no request over the network can."""

    def __init__(self, state_dir: Path) -> None:
        self._path = state_dir / FILE_NAME
        self._store = JsonStore(self._path, _parse)

    def check(self, entry: ModelEntry, version: VersionEntry) -> frozenset[str]:
        """Return the hashes of the code that may run with a version.

        Raise ModelLoadError for code that is not trusted, changed since, or could have been written by others.
        """
        parts: list[CodePart] = []
        if may_hold_code(entry, version):
            from pocketserve.trust.code_parts import (
                code_of,
            )  # late: most models hold none

            parts = code_of(entry, version)
        embedded = set(embedded_code().values())
        foreign = [part for part in parts if part.digest not in embedded]
        consents = self._store.entries()
        for part in foreign:
            consent = consents.get(part.key)
            if consent is None or consent.digest != part.digest:
                reason = (
                    "is code that is not trusted"
                    if consent is None
                    else "changed since it was trusted"
                )
                raise ModelLoadError(
                    not_trusted(_folder(entry, version), f"{part.name} {reason}")
                )
        check_writers(part.path for part in foreign)
        trusted = {part.digest for part in parts}
        consent = consents.get(key_of(version.path))
        if (
            consent is not None
            and consent.digest not in trusted
            and content_digest(version) == consent.digest
        ):
            check_writers([version.path])
            trusted.add(consent.digest)
        return frozenset(trusted)

    def known_reason(self, entry: ModelEntry, version: VersionEntry) -> str | None:
        """Return why code would not run, as far as that shows without reading it; else None."""
        if (
            not may_hold_code(entry, version)
            or f"{entry.name}/{version.path.name}" in embedded_code()
        ):
            return None
        consents = self._store.entries()
        paths = [version.path, _task_file(entry, version)]
        if (
            any(path is not None and key_of(path) in consents for path in paths)
            or "delegate" in version.options
        ):
            return None
        return not_trusted(_folder(entry, version), "it holds code that is not trusted")

    def consents(self) -> Mapping[str, Consent]:
        """Return all consents by key."""
        return self._store.entries()

    def add(self, model: str, parts: Iterable[CodePart]) -> None:
        """Keep the owner's consent; raise OSError if the state folder cannot be written."""
        self._store.change(
            {
                part.key: Consent(part.digest, model, part.name, time.time())
                for part in parts
            }
        )

    def remove(self, keys: Collection[str]) -> None:
        """Take consent back; raise OSError if the state folder cannot be written."""
        self._store.change({}, keys)

    def consents_to(self, entry: ModelEntry) -> Mapping[str, Consent]:
        """Return the consents to what lies in a model's folder, by key."""
        folder = os.path.join(key_of(entry.folder), "")
        return {
            key: consent
            for key, consent in self._store.entries().items()
            if key.startswith(folder)
        }


@functools.cache
def embedded_code() -> Mapping[str, str]:
    """Return the hashes of the code in the embedded models by ``MODEL/FILE``: it is part of this package."""
    hashes: dict[str, str] = json.loads(EMBEDDED.read_text(encoding="utf-8"))
    return hashes


def may_hold_code(entry: ModelEntry, version: VersionEntry) -> bool:
    """Return whether :func:`pocketserve.trust.code_parts.code_of` may find code in a version; no file is read."""
    return (
        version.format.code is not Code.NONE
        or version.options.get("trust") is True
        or isinstance(version.options.get("delegate"), str)
        or _task_file(entry, version) is not None
    )


def _task_file(entry: ModelEntry, version: VersionEntry) -> Path | None:
    from pocketserve.tasks.model_facts import (
        task_file,
    )  # late: a server that has loaded no model does not hold it

    return task_file(entry, version)


def check_writers(paths: Iterable[Path | None]) -> None:
    """Raise ModelLoadError for code that somebody else could have written, or that lies below such a folder."""
    fault = foreign_writer(*(path for path in paths if path is not None))
    if fault is not None:
        raise ModelLoadError(f"its code is not run: {fault}")


def _folder(entry: ModelEntry, version: VersionEntry) -> Path:
    """Return the argument for the command: the model's own folder, or its file among others."""
    return entry.folder if entry.folder.name == entry.name else version.path


def _parse(value: Any) -> Consent:
    digest, given_at = value["digest"], value.get("given")
    if not isinstance(digest, str) or value.get("version") != HASH_VERSION:
        raise TypeError("a damaged consent, or an old one")
    seconds = float(given_at) if isinstance(given_at, int | float) else 0.0
    return Consent(
        digest, str(value.get("model", "")), str(value.get("name", "")), seconds
    )
