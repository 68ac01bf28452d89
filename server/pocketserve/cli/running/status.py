"""``pocketserve status``: shows the running server's state."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pocketserve.child.memory import memory_of
from pocketserve.cli.running.stop import find_server
from pocketserve.terminal.connection import (
    add_connection_options,
    open_client,
    reading_answers,
)
from pocketserve.terminal.output import (
    human_bytes,
    print_control,
    print_facts,
    print_json,
    print_table,
    print_text,
)
from pocketserve_wire.addresses import HTTP_PORT, LOOPBACK, Address

if TYPE_CHECKING:
    from pocketserve_client import Client

EVERY_S = 2.0
CLEAR_SCREEN = "\033[H\033[2J"


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "status", help="show the running server's memory, models and requests"
    )
    add_connection_options(parser)
    parser.add_argument(
        "--watch",
        action="store_true",
        help=f"show it every {EVERY_S:g} seconds, until Ctrl-C",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the status once, or repeatedly."""
    url = options.url or os.environ.get("POCKETSERVE_URL")
    if url is None:
        server = find_server(None)
        address = Address(LOOPBACK, HTTP_PORT) if server is None else server.http
        url = options.url = f"http://{address}"
    with open_client(options) as client:
        try:
            while True:
                _show(client, url, options)
                if not options.watch:
                    return 0
                sys.stdout.flush()
                time.sleep(EVERY_S)
        except KeyboardInterrupt:
            if options.watch:
                return 0
            raise


def _show(client: Client, url: str, options: argparse.Namespace) -> None:
    with reading_answers():
        status = read_server(client, url)
        if options.watch and sys.stdout.isatty():
            print_control(CLEAR_SCREEN)
        if options.json:
            print_json(status)
        else:
            _print(status)


def read_server(client: Client, url: str) -> dict[str, Any]:
    """Return figures of the server and its local process."""
    metadata = client.server_metadata()
    versions = client.statistics()
    rows = [_version_figures(entry) for entry in versions]
    return {
        "version": metadata["version"],
        **_process_figures(url),
        "low_power": metadata.get("low_power"),
        "answered": sum(row["answered"] for row in rows),
        "failed": sum(row["failed"] for row in rows),
        "loaded": [row for row in rows if row["memory_bytes"]],
    }


def _process_figures(url: str) -> dict[str, Any]:
    """Return figures of a process of this user; None for those of other servers."""
    run = find_server(url)
    figures = dict.fromkeys(
        ("address", "pid", "models_dir", "uptime_s", "memory_bytes")
    )
    if run is None:
        return {**figures, "address": url}
    memory = memory_of(run.pid)
    return {
        "address": f"http://{run.http}",
        "pid": run.pid,
        "models_dir": run.models_dir,
        "uptime_s": max(0.0, time.time() - run.started),
        "memory_bytes": memory["resident"] if memory else None,
    }


def _version_figures(entry: Mapping[str, Any]) -> dict[str, Any]:
    statistics = entry["inference_stats"]
    return {
        "name": entry["name"],
        "version": entry["version"],
        "memory_bytes": sum(usage["byte_size"] for usage in entry["memory_usage"]),
        "answered": statistics["success"]["count"],
        "failed": statistics["fail"]["count"],
    }


def _print(status: Mapping[str, Any]) -> None:
    uptime = status["uptime_s"]
    memory = status["memory_bytes"]
    low_power = status["low_power"]
    answered = f"{status['answered']:,}"
    failed = f"{status['failed']:,}"
    facts = [
        ("server", f"pocketserve {status['version']}"),
        ("address", status["address"]),
        ("process", str(status["pid"] or "")),
        ("folder", status["models_dir"] or ""),
        ("up for", "" if uptime is None else _duration(uptime)),
        ("memory", human_bytes(memory) if memory else ""),
        ("requests", f"{answered} answered, {failed} rejected or failed"),
        ("power", f"low: {low_power}" if low_power else "full"),
    ]
    print_facts(facts)
    if status["loaded"]:
        _print_loaded(status["loaded"])
    else:
        print_text("No model is loaded; the first request loads one.")


def _print_loaded(versions: Sequence[Mapping[str, Any]]) -> None:
    rows = []
    for row in versions:
        memory = human_bytes(row["memory_bytes"])
        answered = f"{row['answered']:,}"
        failed = f"{row['failed']:,}"
        rows.append([row["name"], row["version"], memory, answered, failed])
    print()
    print_table(
        ["LOADED", "VERSION", "MEMORY", "ANSWERED", "FAILED"],
        rows,
        spare=("FAILED", "MEMORY"),
    )


def _duration(seconds: float) -> str:
    """Return a time in its two largest units, such as ``3 h 12 min``."""
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days} d {hour} h"
    if hour:
        return f"{hour} h {minute} min"
    if minute:
        return f"{minute} min {second} s"
    return f"{second} s"
