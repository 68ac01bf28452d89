"""``pocketserve doctor``: what this device can do, and what to mend."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from pocketserve.doctor.checkup import examine
from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, Level
from pocketserve.doctor.settings import read_settings
from pocketserve.terminal.output import (
    print_json,
    print_text,
    printable,
    terminal_columns,
)
from pocketserve.terminal.progress import Progress

WIDE = 72  # columns from which sentences stand beside their subjects
KEYS = ("subject", "level", "sentence", "fix")


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="find out what this device can do, and what is wrong",
        description="Looks at Python, packages, runtimes, models, ports, memory, cores and what Android does to "
        "them. Ends with 1 if there is a problem. Nothing is changed, and the internet is not used.",
    )
    parser.add_argument(
        "models_dir",
        nargs="?",
        metavar="MODELS_DIR",
        help="the models folder to look at [a running server's]",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help="where a server should run [POCKETSERVE_URL, else this machine]",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(options: argparse.Namespace) -> int:
    """Look and print; fails if there is a problem."""
    device = Device()
    with Progress().waiting("looking; an import may take ten seconds"):
        findings = examine(
            device, read_settings(device, options.models_dir, options.url)
        )
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    if options.json:
        print_json(
            {
                "ok": not problems,
                "findings": [
                    {key: getattr(finding, key) for key in KEYS} for finding in findings
                ],
            }
        )
    else:
        _print(findings)
        warnings = sum(finding.level is Level.WARNING for finding in findings)
        counts = (
            f"{n or 'no'} {word}{'s' * (n != 1)}"
            for n, word in ((problems, "problem"), (warnings, "warning"))
        )
        print("\n" + ", ".join(counts))
    return 1 if problems else 0


def _print(findings: Sequence[Finding]) -> None:
    marks = {Level.OK: "ok", Level.WARNING: "WARNING", Level.PROBLEM: "PROBLEM"}
    widest = max((len(finding.subject) for finding in findings), default=0) + 11
    indent = " " * (widest if terminal_columns() >= WIDE else 2)
    for finding in findings:
        mark = marks[finding.level]
        print_text(
            f"{mark:9}{finding.subject}".ljust(widest) + printable(finding.sentence),
            indent,
            mark=mark,
        )
        if finding.fix:
            print_text(f"{indent}-> {printable(finding.fix)}", f"{indent}   ")
