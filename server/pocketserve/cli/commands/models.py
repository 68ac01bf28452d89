"""``pocketserve models``: the models of a running server."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pocketserve.cli.connection import add_connection_options, open_client, reading_answers
from pocketserve.cli.output import print_json, print_table, printable
from pocketserve.cli.progress import Progress

if TYPE_CHECKING:
    from pocketserve_client import Client

READY = "READY"
MAX_LABELS = 4  # versions listed for one reason; further ones are counted


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser("models", help="list the models of a running server")
    add_connection_options(parser)
    parser.add_argument("--all", action="store_true", help="one line for each version, with the reason in full")
    parser.add_argument(
        "--check", action="store_true", help="load what was not loaded yet first: only that shows a damaged file"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, of all versions")
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
            rows = [[e["name"], e.get("version", ""), e["state"], e.get("reason", "")] for e in entries]
            print_table(["MODEL", "VERSION", "STATE", "NOTE"], rows)
        else:
            print("The models folder is empty. Put a model file into it and run this command again.")
    return 0


def _load_each(client: Client, entries: Sequence[Mapping[str, Any]]) -> None:
    """Make the server open every version that it would serve; it keeps the reason of what it cannot."""
    from pocketserve_client.errors import ConnectionLostError, NobodyListensError, PocketserveError

    progress, ready = Progress(), [entry for entry in entries if entry["state"] == READY]
    try:
        for number, entry in enumerate(ready):
            progress.show(f"loading {entry['name']}/{entry['version']}", number / len(ready))
            try:
                client.model_metadata(entry["name"], entry["version"])
            except (ConnectionLostError, NobodyListensError):
                raise  # each of the others would look for the server as long
            except PocketserveError:
                continue  # the next list tells it
    finally:
        progress.end()


def _print_models(entries: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each model, then the reasons of what cannot be served, each once."""
    models: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        models.setdefault(entry["name"], []).append(entry)
    rows, reasons = [], dict[str, list[str]]()
    for name, versions in models.items():
        ready = [entry["version"] for entry in versions if entry["state"] == READY]
        unavailable = [entry for entry in versions if entry["state"] != READY]
        more = f"{len(unavailable)} unavailable" if unavailable else ""
        rows.append([name, READY if ready else unavailable[0]["state"], ", ".join(ready), more])
        for entry in unavailable:
            version = entry.get("version", "")
            reason: str = entry.get("reason", "") or entry["state"].lower()
            reason = reason.removeprefix(f"failed to load {name!r} version {version!r}: ")
            reasons.setdefault(reason, []).append(f"{name}/{version}" if version else name)
    print_table(["MODEL", "STATE", "VERSIONS", ""], rows)
    if reasons:
        print("\nUnavailable (`pocketserve models --all` lists each version):")
    for reason, labels in reasons.items():
        more = f" and {len(labels) - MAX_LABELS} more" if len(labels) > MAX_LABELS else ""
        print(printable(f"  {', '.join(labels[:MAX_LABELS])}{more}: {reason}"))
