"""Change ``model.toml`` from commands, preserving comments and order."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

from pocketserve.repository.manifest import FILE_NAME, parse_manifest, read_manifest
from pocketserve.repository.scan import TRITON_CONFIG, ModelEntry
from pocketserve.repository.toml_table import ManifestError
from pocketserve.repository.triton_config import TritonConfig, read_config
from pocketserve.state.json_store import replace_file

Document = MutableMapping[str, Any]


def edit_manifest(folder: Path, change: Callable[[Document], object]) -> None:
    """Change the manifest in a model's folder, or create it.

    The new text is checked as a server does, and replaces the file atomically. It must
    equal the result of the same change on plain tables, because tomlkit mixes up tables
    in some layouts.

    Args:
        change: modifies a document, such as ``document["default_version"] = "onnx"``.
            It is called twice.

    Raises:
        ManifestError: the manifest is invalid before or after the change, or cannot be
            written.
    """
    path = folder / FILE_NAME
    try:
        import tomlkit  # late, because a server edits nothing
    except ImportError:
        raise ManifestError(
            f"{FILE_NAME} is edited with tomlkit, which is missing; pip install tomlkit"
        ) from None
    if path.exists():
        read_manifest(path)
    try:
        before = _current_text(path)
        intended = tomllib.loads(before, parse_float=_number)
        change(intended)
        parse_manifest(intended)
        after = _changed(tomlkit.parse(before), change)
        if after is None or tomllib.loads(after, parse_float=_number) != intended:
            raise ManifestError(
                f"{path} has a layout that no command can change; "
                "write [table] headers in it"
            )
        if before.count("\r\n") == before.count("\n") > 0:
            # tomlkit ends new lines with a plain LF.
            after = re.sub(r"(?<!\r)\n", "\r\n", after)
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        target = Path(os.path.realpath(path))  # a link stays a link
        replace_file(target, after.encode(), mode, durable=True)
    except OSError as error:
        raise ManifestError(f"{path} cannot be written: {error.strerror}") from None


def _current_text(path: Path) -> str:
    if path.exists():
        return path.read_bytes().decode()  # read_text() would convert CRLF
    return _carried_over(path.parent)


def _number(text: str) -> float:
    """Parse a float. All NaNs are one object, so that they are equal."""
    value = float(text)
    if math.isnan(value):
        return math.nan
    return value


def _carried_over(folder: Path) -> str:
    """Return a new manifest's text, from a ``config.pbtxt``."""
    import tomlkit

    path = folder / TRITON_CONFIG
    if not path.exists():
        return ""
    document = _settings_of(read_config(path))
    if document:
        return tomlkit.dumps(document)
    return ""


def _settings_of(config: TritonConfig) -> dict[str, object]:
    document: dict[str, object] = {}
    if config.policy.specific:
        document["default_version"] = max(config.policy.specific, key=int)
    if config.labels is not None:
        document["labels"] = config.labels
    if config.queue_limit is not None:
        document["queue_limit"] = config.queue_limit
    if config.max_batch == 0:
        document["batching"] = False
    elif config.max_batch is not None:
        document["max_batch"] = config.max_batch
    if config.feedback:
        document["state"] = {"feedback": dict(config.feedback)}
    return document


def _changed(document: Document, change: Callable[[Document], object]) -> str | None:
    """Return the text of a changed document; None if tomlkit fails."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        change(document)
        after = tomlkit.dumps(document)
        tomllib.loads(after)
    except (TOMLKitError, ValueError):
        return None
    return after


def declare_versions(document: Document, entry: ModelEntry) -> None:
    """Add a table for each version of a model."""
    if "default_version" not in document and entry.default_version:
        document["default_version"] = entry.default_version
    use_table_headers(document, "versions")
    if "versions" not in document:
        files = {}
        for name, version in entry.versions.items():
            file = version.path.relative_to(entry.folder).as_posix()
            files[name] = {"file": file}
        document["versions"] = files


def use_table_headers(document: Document, name: str) -> None:
    """Convert a table of tables to ``[name.key]`` headers.

    Comments at line ends are preserved. Plain dicts are left unchanged.
    """
    import tomlkit
    from tomlkit.items import InlineTable

    if not isinstance(document, tomlkit.TOMLDocument) or name not in document:
        return
    parts = []
    for key, item in document.body:
        if key is not None and key.key == name:
            parts.append(key.is_dotted() or isinstance(item, InlineTable))
    if not any(parts):
        return
    tables = _headed(document[name])
    del document[name]
    document[name] = tables


def _headed(tables: Any) -> Any:
    """Return an equal table with headers."""
    import tomlkit
    from tomlkit.items import Item

    comment = ""
    if isinstance(tables, Item):
        comment = tables.trivia.comment
    headed = tomlkit.table(is_super_table=False if comment else None)
    if comment:
        headed.comment(comment)
    for key, item in tables.items():
        headed[key] = _headed(item) if isinstance(item, dict) else item
    return headed
