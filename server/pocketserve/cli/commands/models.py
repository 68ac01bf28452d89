"""``pocketserve models``: what a server serves."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pocketserve.cli.connection import add_connection_options, connect, reading_answers
from pocketserve.cli.output import print_json, print_table, printable
from pocketserve.cli.progress import Progress

if TYPE_CHECKING:
    from pocketserve_client import Client

READY = "READY"
SHOWN = 4
"""Versions that are named for one reason; the others are counted."""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The command's options."""
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
    with connect(options) as client, reading_answers():
        entries = client.index()
        if options.check:
            _load_each(client, entries)
            entries = client.index()
    with reading_answers():
        _print(options, entries)
    return 0


def _print(options: argparse.Namespace, entries: Sequence[Mapping[str, Any]]) -> None:
    if options.json:
        print_json(entries)
    elif entries and not options.all:
        _print_models(entries)
    elif entries:
        rows = [[entry["name"], entry.get("version", ""), entry["state"], entry.get("reason", "")] for entry in entries]
        print_table(["MODEL", "VERSION", "STATE", "NOTE"], rows)
    else:
        print("The models folder is empty. Put a model file into it and run this command again.")


def _load_each(client: Client, entries: Sequence[Mapping[str, Any]]) -> None:
    """Let the server open every version that it would serve; it keeps the reason of what it cannot.

    They go again as after any use: when their time is over, or for the memory budget.
    """
    from pocketserve_client.errors import ConnectionLostError, NobodyListensError, PocketserveError

    progress, ready = Progress(), [entry for entry in entries if entry["state"] == READY]
    try:
        for done, entry in enumerate(ready):
            progress.show(f"loading {entry['name']}/{entry['version']}", done / len(ready))
            try:
                client.model_metadata(entry["name"], entry["version"])
            except (ConnectionLostError, NobodyListensError):
                raise  # each of the others would look for the server as long
            except PocketserveError:
                continue  # the next list tells it
    finally:
        progress.end()


def _print_models(entries: Sequence[Mapping[str, Any]]) -> None:
    """A line for each model, then the reasons of what cannot be served, each once."""
    models: dict[str, list[Mapping[str, Any]]] = {}
    for entry in entries:
        models.setdefault(entry["name"], []).append(entry)
    rows, reasons = [], dict[str, list[str]]()
    for name, versions in models.items():
        ready = [one["version"] for one in versions if one["state"] == READY]
        others = [one for one in versions if one["state"] != READY]
        more = f"{len(others)} unavailable" if others else ""
        rows.append([name, READY if ready else others[0]["state"], ", ".join(ready), more])
        for one in others:
            label = f"{name}/{one['version']}" if one.get("version") else name
            reasons.setdefault(_reason(one), []).append(label)
    print_table(["MODEL", "STATE", "VERSIONS", ""], rows)
    if reasons:
        print("\nUnavailable (`pocketserve models --all` lists each version):")
    for reason, labels in reasons.items():
        more = f" and {len(labels) - SHOWN} more" if len(labels) > SHOWN else ""
        print(printable(f"  {', '.join(labels[:SHOWN])}{more}: {reason}"))


def _reason(entry: Mapping[str, Any]) -> str:
    """Return why a version cannot be served, without its name, which stands before it."""
    begin = f"failed to load {entry['name']!r} version {entry.get('version', '')!r}: "
    reason: str = entry.get("reason", "") or entry["state"].lower()
    return reason.removeprefix(begin)
