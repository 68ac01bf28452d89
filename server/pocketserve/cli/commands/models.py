"""``pocketserve models``: the models of a running server."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pocketserve.doctor.missing_framework import missing_command
from pocketserve.messages import LOADS_ANEW, PENDING, SERVES_ON
from pocketserve.terminal.connection import (
    add_connection_options,
    open_client,
    reading_answers,
)
from pocketserve.terminal.output import (
    human_bytes,
    print_json,
    print_table,
    print_text,
    printable,
)
from pocketserve.terminal.progress import Progress

if TYPE_CHECKING:
    from pocketserve_client import Client

READY = "READY"
MAX_LABELS = 4  # versions listed for one reason; others are only counted
HEADER = ("MODEL", "DEFAULT", "VERSIONS", "STATE", "SIZE", "TASK")
SPARE = ("TASK", "VERSIONS", "SIZE", "DEFAULT")


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "models", help="list the models of a running server"
    )
    add_connection_options(parser)
    parser.add_argument(
        "--all",
        action="store_true",
        help="one line for each version, with the reason in full",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="load all versions first, which shows damaged files",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, of all versions"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Print every model, and why some versions can't be served."""
    with open_client(options) as client, reading_answers():
        entries = client.index()
        if options.check:
            _load_each(client, entries)
            entries = client.index()
    with reading_answers():
        if options.json:
            print_json(entries)
        elif not entries:
            print(
                "The models folder is empty. "
                "Put a model file into it and run this command again."
            )
        elif options.all:
            _print_versions(entries)
        else:
            _print_models(entries)
    return 0


def _print_versions(entries: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for entry in entries:
        row = [
            entry["name"],
            entry.get("version", ""),
            entry["state"],
            entry.get("reason", ""),
        ]
        rows.append(row)
    print_table(["MODEL", "VERSION", "STATE", "NOTE"], rows)


def _load_each(client: Client, entries: Sequence[Mapping[str, Any]]) -> None:
    """Load each ready version, so that the server records faults."""
    from pocketserve_client.errors import (
        ConnectionLostError,
        NobodyListensError,
        PocketserveError,
    )

    progress = Progress(lines=True)
    ready = [entry for entry in entries if entry["state"] == READY]
    try:
        for number, entry in enumerate(ready):
            title = f"loading {entry['name']}/{entry['version']}"
            share = number / len(ready)
            progress.show(title, share)
            try:
                with progress.waiting(title, share):
                    client.model_metadata(entry["name"], entry["version"])
            except (ConnectionLostError, NobodyListensError):
                raise  # each further request would wait for the server as long
            except PocketserveError:
                continue  # the next index has the reason
    finally:
        progress.end()


def _print_models(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each model, missing framework and other reason."""
    models: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        models.setdefault(entry["name"], []).append(entry)
    rows = [_row(name, versions) for name, versions in models.items()]
    print_table(HEADER, rows, spare=SPARE)
    _print_reasons([entry for entry in entries if entry["state"] != READY])
    print_kept(entries)


def _print_reasons(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print why versions can't be served, the missing frameworks first."""
    frameworks = Counter[str]()
    reasons: dict[str, list[str]] = {}
    for entry in entries:
        reason = _reason(entry)
        command = missing_command(reason)
        if command:
            frameworks[command] += 1
        else:
            reasons.setdefault(reason, []).append(_version_label(entry))
    _print_missing_frameworks(frameworks)
    _print_unavailable(reasons)


def _reason(entry: Mapping[str, Any]) -> str:
    """Return why a version can't be served."""
    name = entry["name"]
    version = entry.get("version", "")
    reason: str = entry.get("reason", "") or entry["state"].lower()
    return reason.removeprefix(f"failed to load {name!r} version {version!r}: ")


def _version_label(entry: Mapping[str, Any]) -> str:
    name: str = entry["name"]
    version = entry.get("version", "")
    if version:
        return f"{name}/{version}"
    return name


def _print_missing_frameworks(frameworks: Mapping[str, int]) -> None:
    if frameworks:
        print_text(
            "\nVersions that wait for a framework "
            "(`pocketserve models --all` lists each):"
        )
    for command, count in frameworks.items():
        print_text(printable(f"{count:4}  {command}"), indent=" " * 6)


def _print_unavailable(reasons: Mapping[str, list[str]]) -> None:
    if reasons:
        print_text("\nUnavailable (`pocketserve models --all` lists each):")
    for reason, labels in reasons.items():
        listed = ", ".join(labels[:MAX_LABELS])
        if len(labels) > MAX_LABELS:
            listed += f" and {len(labels) - MAX_LABELS} more"
        print_text(printable(f"  {listed}: {reason}"), indent=" " * 4)


def print_kept(entries: Sequence[Mapping[str, Any]]) -> None:
    """Report models whose newest files aren't served yet."""
    ready = set()
    for entry in entries:
        if entry["state"] == READY:
            ready.add((entry["name"], entry.get("reason", "")))
    for name, reason in sorted(ready):
        if reason == f"{SERVES_ON}{LOADS_ANEW}":
            _print_note("note", f"{name} {reason}")
        elif reason.startswith(SERVES_ON):
            _print_note("WARNING", f"{name} {reason}")
    for entry in entries:
        reason = entry.get("reason", "")
        if reason.startswith(PENDING):
            name = entry["name"]
            version = entry["version"]
            _print_note("note", f"{name} version {version} is {reason}")


def _print_note(mark: str, text: str) -> None:
    print_text(printable(f"{mark}: {text}"), mark=mark, indent=" " * 4)


def _row(name: str, versions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a model's row, about the version that answers."""
    ready = []
    is_loaded = False
    for version in versions:
        if version["state"] == READY:
            ready.append(version)
            is_loaded = is_loaded or version.get("loaded", False)
    entry = _default_entry(versions)
    if ready and entry not in ready:
        entry = ready[0]
    count = str(len(ready))
    if len(ready) < len(versions):
        count = f"{len(ready)} of {len(versions)}"
    size = "-"
    if "file_bytes" in entry:
        size = human_bytes(entry["file_bytes"])
    return [
        name,
        entry.get("version") or "-",
        count,
        "loaded" if is_loaded else entry["state"].lower(),
        size,
        entry.get("task") or "-",
    ]


def _default_entry(versions: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    for entry in versions:
        if entry.get("default"):
            return entry
    return versions[0]
