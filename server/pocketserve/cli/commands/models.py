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
MAX_LABELS = 4  # versions listed for one reason; further ones are counted
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
        help="load what was not loaded yet first: only that shows a damaged file",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON, of all versions"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Print every model with what can be asked, and what keeps the other versions from being served."""
    with open_client(options) as client, reading_answers():
        entries = client.index()
        if options.check:
            _load_each(client, entries)
            entries = client.index()
    with reading_answers():
        if options.json:
            print_json(entries)
        elif entries and not options.all:
            _print_models(entries)
        elif entries:
            rows = [
                [e["name"], e.get("version", ""), e["state"], e.get("reason", "")]
                for e in entries
            ]
            print_table(["MODEL", "VERSION", "STATE", "NOTE"], rows)
        else:
            print(
                "The models folder is empty. Put a model file into it and run this command again."
            )
    return 0


def _load_each(client: Client, entries: Sequence[Mapping[str, Any]]) -> None:
    """Make the server open every version that it would serve; it keeps the reason of what it cannot."""
    from pocketserve_client.errors import (
        ConnectionLostError,
        NobodyListensError,
        PocketserveError,
    )

    progress, ready = (
        Progress(lines=True),
        [entry for entry in entries if entry["state"] == READY],
    )
    try:
        for number, entry in enumerate(ready):
            title, share = (
                f"loading {entry['name']}/{entry['version']}",
                number / len(ready),
            )
            progress.show(title, share)
            try:
                with progress.waiting(title, share):
                    client.model_metadata(entry["name"], entry["version"])
            except (ConnectionLostError, NobodyListensError):
                raise  # each of the others would look for the server as long
            except PocketserveError:
                continue  # the next list tells it
    finally:
        progress.end()


def _print_models(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each model, then one for each missing framework and each other reason."""
    models: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        models.setdefault(entry["name"], []).append(entry)
    print_table(
        HEADER, [_row(name, versions) for name, versions in models.items()], spare=SPARE
    )
    frameworks, reasons = Counter[str](), dict[str, list[str]]()
    for entry in entries:
        if entry["state"] != READY:
            name, version = entry["name"], entry.get("version", "")
            reason: str = entry.get("reason", "") or entry["state"].lower()
            reason = reason.removeprefix(
                f"failed to load {name!r} version {version!r}: "
            )
            if command := missing_command(reason):
                frameworks[command] += 1
            else:
                reasons.setdefault(reason, []).append(
                    f"{name}/{version}" if version else name
                )
    if frameworks:
        print_text(
            "\nVersions that wait for a framework (`pocketserve models --all` lists each):"
        )
    for command, count in frameworks.items():
        print_text(printable(f"{count:4}  {command}"), indent=" " * 6)
    if reasons:
        print_text("\nUnavailable (`pocketserve models --all` lists each):")
    for reason, labels in reasons.items():
        more = (
            f" and {len(labels) - MAX_LABELS} more" if len(labels) > MAX_LABELS else ""
        )
        print_text(
            printable(f"  {', '.join(labels[:MAX_LABELS])}{more}: {reason}"),
            indent=" " * 4,
        )
    print_kept(entries)


def print_kept(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print a sentence for each model whose newest files do not answer yet, or cannot be served."""
    reasons = {
        (entry["name"], entry.get("reason", ""))
        for entry in entries
        if entry["state"] == READY
    }
    for name, reason in sorted(reasons):
        if reason.startswith(SERVES_ON):
            mark = "note" if reason == f"{SERVES_ON}{LOADS_ANEW}" else "WARNING"
            print_text(printable(f"{mark}: {name} {reason}"), mark=mark, indent=" " * 4)
    for entry in entries:
        reason = entry.get("reason", "")
        if reason.startswith(PENDING):
            text = printable(
                f"note: {entry['name']} version {entry['version']} is {reason}"
            )
            print_text(text, mark="note", indent=" " * 4)


def _row(name: str, versions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what a model's line says: of its default version, where that can be asked, else of the first that can."""
    ready = [entry for entry in versions if entry["state"] == READY]
    first = next((entry for entry in versions if entry.get("default")), versions[0])
    first = first if first in ready or not ready else ready[0]
    state = (
        "loaded"
        if any(entry.get("loaded") for entry in ready)
        else first["state"].lower()
    )
    count = (
        f"{len(ready)} of {len(versions)}"
        if len(ready) < len(versions)
        else str(len(ready))
    )
    size = human_bytes(first["file_bytes"]) if "file_bytes" in first else "-"
    return [
        name,
        first.get("version") or "-",
        count,
        state,
        size,
        first.get("task") or "-",
    ]
