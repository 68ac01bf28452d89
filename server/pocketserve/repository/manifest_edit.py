"""Changes of ``model.toml`` by a command: comments, order and everything else in it stay."""

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
from pocketserve.repository.triton_config import read_config
from pocketserve.state.json_store import replace_file

Document = MutableMapping[str, Any]


def edit_manifest(folder: Path, change: Callable[[Document], object]) -> None:
    """Change the manifest in a model's folder; one is made where there is none.

    The new text is checked as a server checks it and takes the file's place in one step, so that nobody reads half. It
    has to hold what the same change makes of plain tables: a text can be laid out so that tomlkit mixes up its tables.

    Args:
        change: changes a document in place, such as ``document["default_version"] = "onnx"``. It is called twice.

    Raises:
        ManifestError: the manifest is broken already, the change would break it, or it cannot be written.
    """
    path = folder / FILE_NAME
    try:
        import tomlkit  # late: a server edits nothing
    except ImportError:
        raise ManifestError(
            f"{FILE_NAME} is edited with tomlkit, which is missing; pip install tomlkit"
        ) from None
    if path.exists():
        read_manifest(path)
    try:
        before = (
            path.read_bytes().decode() if path.exists() else _carried_over(folder)
        )  # keeps CRs
        intended = tomllib.loads(before, parse_float=_number)
        change(intended)
        parse_manifest(intended)
        document = tomlkit.parse(before)
        after = _changed(document, change)
        if after is None or tomllib.loads(after, parse_float=_number) != intended:
            raise ManifestError(
                f"{path} is laid out in a way that no command can change; write [table] headers in it"
            )
        if before.count("\r\n") == before.count("\n") > 0:
            after = re.sub(
                r"(?<!\r)\n", "\r\n", after
            )  # tomlkit ends new lines without the CR
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        replace_file(
            Path(os.path.realpath(path)), after.encode(), mode, durable=True
        )  # of a link, its file changes
    except OSError as error:
        raise ManifestError(f"{path} cannot be written: {error.strerror}") from None


def _number(text: str) -> float:
    """Return a number of TOML. Each nan is the same object, since two of them are equal by that alone."""
    value = float(text)
    return math.nan if math.isnan(value) else value


def _carried_over(folder: Path) -> str:
    """Return what a new manifest begins with: what counts of a ``config.pbtxt``, which is not read any more then."""
    import tomlkit

    path = folder / TRITON_CONFIG
    if not path.exists():
        return ""
    config = read_config(path)
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
    return tomlkit.dumps(document) if document else ""


def _changed(document: Document, change: Callable[[Document], object]) -> str | None:
    """Return the text of a changed document; None where tomlkit cannot make it."""
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
    """Give each version of a model its table, so that one can be changed; nothing else changes by that."""
    if "default_version" not in document and entry.default_version:
        document["default_version"] = entry.default_version
    use_table_headers(document, "versions")
    if "versions" not in document:
        document["versions"] = {
            name: {"file": version.path.relative_to(entry.folder).as_posix()}
            for name, version in entry.versions.items()
        }


def use_table_headers(document: Document, name: str) -> None:
    """Lay a table of tables out with a ``[name.key]`` header for each, where dotted keys or inline tables stand for it.

    New tables can be added then. Comments at lines' ends stay. Plain data has no layout and is left as it is.
    """
    import tomlkit
    from tomlkit.items import InlineTable

    if not isinstance(document, tomlkit.TOMLDocument) or name not in document:
        return
    parts = [
        (key, item)
        for key, item in document.body
        if key is not None and key.key == name
    ]
    if not any(key.is_dotted() or isinstance(item, InlineTable) for key, item in parts):
        return
    tables = _headed(document[name])
    del document[name]
    document[name] = tables


def _headed(tables: Any) -> Any:
    """Return a table like another one, with a header, and so are those in it."""
    import tomlkit
    from tomlkit.items import Item

    comment = tables.trivia.comment if isinstance(tables, Item) else ""
    headed = tomlkit.table(is_super_table=False if comment else None)
    if comment:
        headed.comment(comment)
    for key, item in tables.items():
        headed[key] = _headed(item) if isinstance(item, dict) else item
    return headed
