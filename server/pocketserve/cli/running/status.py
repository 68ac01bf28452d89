"""``pocketserve status``: what the running server holds and does."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Mapping
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
        "status", help="show what the running server holds and does"
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
    """Print it once, or again and again."""
    url = options.url or os.environ.get("POCKETSERVE_URL")
    if url is None:
        server = find_server(None)
        url = options.url = (
            f"http://{server.http if server is not None else Address(LOOPBACK, HTTP_PORT)}"
        )
    with open_client(options) as client:
        try:
            while True:
                with reading_answers():
                    status = read_server(client, url)
                    if options.watch and sys.stdout.isatty():
                        print_control(CLEAR_SCREEN)
                    (print_json if options.json else _print)(status)
                if not options.watch:
                    return 0
                sys.stdout.flush()
                time.sleep(EVERY_S)
        except KeyboardInterrupt:
            if options.watch:
                return 0
            raise


def read_server(client: Client, url: str) -> dict[str, Any]:
    """Return what the server tells of itself, and what is known of its process where that is one of this user."""
    metadata, versions = client.server_metadata(), client.statistics()
    run = find_server(url)
    memory = memory_of(run.pid) if run is not None else None
    rows = [
        {
            "name": entry["name"],
            "version": entry["version"],
            "memory_bytes": sum(usage["byte_size"] for usage in entry["memory_usage"]),
            "answered": entry["inference_stats"]["success"]["count"],
            "failed": entry["inference_stats"]["fail"]["count"],
        }
        for entry in versions
    ]
    return {
        "version": metadata["version"],
        "address": f"http://{run.http}" if run is not None else url,
        "pid": run.pid if run is not None else None,
        "models_dir": run.models_dir if run is not None else None,
        "uptime_s": max(0.0, time.time() - run.started) if run is not None else None,
        "memory_bytes": memory["resident"] if memory else None,
        "low_power": metadata.get("low_power"),
        "answered": sum(row["answered"] for row in rows),
        "failed": sum(row["failed"] for row in rows),
        "loaded": [row for row in rows if row["memory_bytes"]],
    }


def _print(status: Mapping[str, Any]) -> None:
    print_facts(
        [
            ("server", f"pocketserve {status['version']}"),
            ("address", status["address"]),
            ("process", str(status["pid"] or "")),
            ("folder", status["models_dir"] or ""),
            (
                "up for",
                _duration(status["uptime_s"]) if status["uptime_s"] is not None else "",
            ),
            (
                "memory",
                human_bytes(status["memory_bytes"]) if status["memory_bytes"] else "",
            ),
            (
                "requests",
                f"{status['answered']:,} answered, {status['failed']:,} refused or failed",
            ),
            ("power", f"low: {status['low_power']}" if status["low_power"] else "full"),
        ]
    )
    if not status["loaded"]:
        print_text("No model is loaded; the first request loads one.")
        return
    columns = ("answered", "failed")
    rows = [
        [
            row["name"],
            row["version"],
            human_bytes(row["memory_bytes"]),
            *(f"{row[key]:,}" for key in columns),
        ]
        for row in status["loaded"]
    ]
    print()
    print_table(
        ["LOADED", "VERSION", "MEMORY", *map(str.upper, columns)],
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
    return (
        f"{hour} h {minute} min"
        if hour
        else f"{minute} min {second} s"
        if minute
        else f"{second} s"
    )
