"""Find and identify the code of a model."""

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
    """A piece of code that needs the owner's consent."""

    key: str
    """Its absolute path, or another identifier."""
    name: str
    digest: str
    effect: str
    """When it runs, for users."""
    path: Path | None
    """The file or folder; None for options, and for a library of the system."""


def code_of(entry: ModelEntry, version: VersionEntry) -> list[CodePart]:
    """Return the code that loading a version would run.

    With ``trust = true`` in its manifest that is the whole version.
    """
    parts: list[CodePart] = []
    code, options = version.format.code, version.options
    if code is Code.MODULES:
        effect = (
            f"runs when version {version.name} is loaded, with the modules beside it"
        )
        parts += _modules(version.path, effect)
    elif code is Code.FILE:
        effect = f"runs the code in it when version {version.name} is loaded"
        parts.append(_file(version.path, effect))
    elif options.get("trust") is True:
        parts.append(whole_version(version))
    parts += _delegate(version)
    task = task_file(entry, version)
    if task is not None:
        parts += _modules(task, "prepares inputs and answers, in the server")
    if parts:
        parts += _code_options(version)
    return _without_duplicates(parts)


def _delegate(version: VersionEntry) -> list[CodePart]:
    """Return the native library that a version loads, if any."""
    name = version.options.get("delegate")
    if not isinstance(name, str):
        return []
    path = find_library(name, version.path.resolve().parent)
    effect = f"is native code that version {version.name} loads"
    if path is None:
        effect += ", where the system finds it"
        return [CodePart(f"library:{name}", name, library_digest(name), effect, None)]
    if not path.exists():  # loading the version will report it
        return []
    return [_file(path, effect)]


def _code_options(version: VersionEntry) -> list[CodePart]:
    """Return the options that its code receives, as a part."""
    options = version.options
    values = {
        key: options[key] for key in version.format.code_options if key in options
    }
    if not values:
        return []
    text = json.dumps(values, sort_keys=True, default=str)
    return [
        CodePart(
            key=f"{key_of(version.path)}#{version.name}",
            name=f"[versions.{version.name}]",
            digest=hashlib.sha256(text.encode()).hexdigest(),
            effect=f"options for its code: {text}",
            path=None,
        )
    ]


def _without_duplicates(parts: list[CodePart]) -> list[CodePart]:
    """Keep the last part of each key."""
    by_key = {part.key: part for part in reversed(parts)}
    return list(by_key.values())[::-1]


def whole_version(version: VersionEntry) -> CodePart:
    """Return a whole version of a data format as code."""
    effect = f"may read and write files when version {version.name} is loaded or run"
    return CodePart(
        key_of(version.path),
        version.path.name,
        content_digest(version),
        effect,
        version.path,
    )


def _modules(main: Path, effect: str) -> Iterator[CodePart]:
    """Yield a Python file and the other code in its folder."""
    files = code_files(main.parent)
    if main in files:
        files.remove(main)
    if len(files) > MAX_MODULES:
        raise ModelLoadError(
            f"the folder of {main.name} holds {len(files)} files of code, more than "
            f"{MAX_MODULES}; move the model into a folder of its own"
        )
    yield _file(main, effect)
    for path in files:
        name = path.relative_to(main.parent).as_posix()
        yield _file(path, f"can be imported by {main.name}", name)


def _file(path: Path, effect: str, name: str = "") -> CodePart:
    digest = hashlib.sha256(read_regular(path)).hexdigest()
    return CodePart(key_of(path), name or path.name, digest, effect, path)
