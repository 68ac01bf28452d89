"""``pocketserve stop``: ends a server of this user."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pocketserve.config import load_config
from pocketserve.system import LOOPBACK_HOSTS
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import print_text, printable
from pocketserve.terminal.progress import Progress

if TYPE_CHECKING:
    from pocketserve_wire.files.run_file import Run

DEADLINE_S = 70.0  # a server's drain time is at most 60 s
CHECK_EVERY_S = 0.05


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "stop",
        help="stop the running server",
        description="Ends a server of this user with SIGTERM: "
        "requests in progress may finish. Fails if none runs.",
    )
    parser.add_argument(
        "--url", metavar="URL", help="which one, if several run [POCKETSERVE_URL]"
    )
    return parser


def run(options: argparse.Namespace) -> int:
    """Ask the server to end, and wait until it has."""
    url = options.url or os.environ.get("POCKETSERVE_URL")
    server = find_server(url)
    if server is None:
        at = ""
        if url:
            at = f" at {url}"
        raise CommandError(
            f"no server with the state folder {load_config({}).state_dir} runs{at}; "
            "start one by `pocketserve serve`, "
            "or name another folder by POCKETSERVE_STATE_DIR"
        )
    with contextlib.suppress(ProcessLookupError):
        os.kill(server.pid, signal.SIGTERM)
    _wait_for_end(server.pid)
    sentence = f"The server at http://{server.http} (process {server.pid}) has ended."
    print_text(printable(sentence))
    return 0


def _wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    with Progress().waiting("waiting for requests in progress"):
        while not _has_ended(pid):
            if time.monotonic() > deadline:
                raise CommandError(
                    f"process {pid} still runs after {DEADLINE_S:g} s; "
                    f"kill -9 {pid} ends it"
                )
            time.sleep(CHECK_EVERY_S)


def find_server(url: str | None) -> Run | None:
    """Return the only running server, or the addressed one.

    Raises:
        CommandError: several run.
    """
    from pocketserve.state.run_lock import running_servers  # late: --help needs no lock

    servers = running_servers(load_config({}).state_dir)
    if url is not None:
        try:
            host, port = urlsplit(url).hostname, urlsplit(url).port
        except ValueError:
            return None
        servers = [
            run for run in servers if host in LOOPBACK_HOSTS and port in run.ports
        ]
    if len(servers) > 1:
        listed = ", ".join(f"http://{run.http}" for run in servers)
        raise CommandError(f"{len(servers)} servers run: {listed}; name one with --url")
    if servers:
        return servers[0]
    return None


def _has_ended(pid: int) -> bool:
    """Return whether a process has ended; a zombie has."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        state = stat.rpartition(")")[2].split()[0]
    except ProcessLookupError:
        return True
    except (OSError, IndexError):
        # There is no /proc, or it is just ending: the next check tells.
        return False
    return state == "Z"
