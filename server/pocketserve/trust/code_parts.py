"""Finds the parts of a model that are code, and what identifies each."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pocketserve.repository.files import content_digest, key_of
from pocketserve.repository.scan import ModelEntry, VersionEntry
from pocketserve.repository.sidecar_files import code_files
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.runtimes.model_format import Code
from pocketserve.runtimes.tflite.delegates import find_library, library_digest
from pocketserve.tasks.model_facts import task_file
from pocketserve.trust.verified_files import read_regular

MAX_MODULES = 256


class CodePart(NamedTuple):
    """A part that an owner is asked about."""

    key: str  # its absolute path, or what else it is known by
    name: str
    digest: str
    effect: str  # when it runs, for people
    path: (
        Path | None
    )  # the file or folder; None for options, and for a library that the system's loader finds


def code_of(entry: ModelEntry, version: VersionEntry) -> list[CodePart]:
    """Return the code that loading a version would run; with ``trust = true`` in its manifest that is all of it."""
    parts: list[CodePart] = []
    code, options = version.format.code, version.options
    if code is Code.MODULES:
        parts += _modules(
            version.path,
            f"runs when version {version.name} is loaded, with the modules beside it",
        )
    elif code is Code.FILE:
        parts.append(
            _file(
                version.path,
                f"runs the code in it when version {version.name} is loaded",
            )
        )
    elif options.get("trust") is True:
        parts.append(whole_version(version))
    if isinstance(name := options.get("delegate"), str):
        path = find_library(name, version.path.resolve().parent)
        effect = f"is native code that version {version.name} loads"
        if path is None:
            effect += ", where the system finds it"
            parts.append(
                CodePart(f"library:{name}", name, library_digest(name), effect, None)
            )
        elif path.exists():
            parts.append(_file(path, effect))
    task = task_file(entry, version)
    if task is not None:
        parts += _modules(task, "prepares inputs and answers, in the server")
    if parts and (
        code_options := {
            key: options[key] for key in version.format.code_options if key in options
        }
    ):
        text = json.dumps(code_options, sort_keys=True, default=str)
        key, digest = (
            f"{key_of(version.path)}#{version.name}",
            hashlib.sha256(text.encode()).hexdigest(),
        )
        parts.append(
            CodePart(
                key,
                f"[versions.{version.name}]",
                digest,
                f"options for its code: {text}",
                None,
            )
        )
    return list({part.key: part for part in reversed(parts)}.values())[::-1]


def whole_version(version: VersionEntry) -> CodePart:
    """Return a version whose format is data as code: its framework would let it act."""
    effect = f"may read and write files when version {version.name} is loaded or run"
    return CodePart(
        key_of(version.path),
        version.path.name,
        content_digest(version),
        effect,
        version.path,
    )


def _modules(main: Path, effect: str) -> Iterator[CodePart]:
    """Yield a Python file, and the code in its folder, which it may import."""
    files = [path for path in code_files(main.parent) if path != main]
    if len(files) > MAX_MODULES:
        raise ModelLoadError(
            f"the folder of {main.name} holds {len(files)} files of code, more than {MAX_MODULES}; move the model into "
            "a folder of its own"
        )
    yield _file(main, effect)
    for path in files:
        yield _file(
            path,
            f"can be imported by {main.name}",
            path.relative_to(main.parent).as_posix(),
        )


def _file(path: Path, effect: str, name: str = "") -> CodePart:
    digest = hashlib.sha256(read_regular(path)).hexdigest()
    return CodePart(key_of(path), name or path.name, digest, effect, path)
