"""Give the owner's consent to code of the tests."""

from __future__ import annotations

import hashlib
from pathlib import Path

from places import STATE
from pocketserve.repository.scan import scan
from pocketserve.runtimes.tflite.delegates import library_digest
from pocketserve.trust.code_parts import code_of
from pocketserve.trust.store import TrustStore


def trusted(*code: Path | str) -> frozenset[str]:
    """Return a source's trusted code: files, or libraries that the loader finds."""
    return frozenset(
        hashlib.sha256(one.read_bytes()).hexdigest()
        if isinstance(one, Path)
        else library_digest(one)
        for one in code
    )


def trust_all(models: Path, state_dir: Path = STATE) -> Path:
    """Trust all code in a folder, like ``pocketserve trust --yes``; return the folder."""
    for name in scan(models):
        trust_one(models, name, state_dir)
    return models


def trust_one(models: Path, name: str, state_dir: Path = STATE) -> None:
    """Trust the code of one model in a folder."""
    entry = scan(models)[name]
    parts = [
        part for version in entry.versions.values() for part in code_of(entry, version)
    ]
    TrustStore(state_dir).add(name, parts)
