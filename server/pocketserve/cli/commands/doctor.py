"""``pocketserve doctor``: finds problems of this device."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from pocketserve.doctor.checkup import examine
from pocketserve.doctor.device import Device
from pocketserve.doctor.finding import Finding, Level
from pocketserve.doctor.settings import read_settings
from pocketserve.messages import plural
from pocketserve.terminal.output import (
    print_json,
    print_text,
    printable,
    terminal_columns,
)
from pocketserve.terminal.progress import Progress

WIDE = 72  # columns; on narrower terminals sentences begin below their subjects
KEYS = ("subject", "level", "sentence", "fix")


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """Add the command's options."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="check this device and its models, and find problems",
        description="Checks Python, packages, runtimes, models, ports, memory, cores "
        "and Android's restrictions. Ends with 1 if there is a problem. Nothing is "
        "changed, and the internet is not used.",
    )
    parser.add_argument(
        "models_dir",
        nargs="?",
        metavar="MODELS_DIR",
        help="the models folder to check [a running server's]",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help="where a server should run [POCKETSERVE_URL, else this machine]",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def run(options: argparse.Namespace) -> int:
    """Print the findings; fail if there is a problem."""
    device = Device()
    with Progress().waiting("checking; an import may take ten seconds"):
        settings = read_settings(device, options.models_dir, options.url)
        findings = examine(device, settings)
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    if options.json:
        documents = [_document(finding) for finding in findings]
        print_json({"ok": not problems, "findings": documents})
    else:
        _print(findings)
        warnings = sum(finding.level is Level.WARNING for finding in findings)
        print(f"\n{_count(problems, 'problem')}, {_count(warnings, 'warning')}")
    if problems:
        return 1
    return 0


def _document(finding: Finding) -> dict[str, Any]:
    return {key: getattr(finding, key) for key in KEYS}


def _count(number: int, noun: str) -> str:
    if number:
        return plural(number, noun)
    return f"no {noun}s"


def _print(findings: Sequence[Finding]) -> None:
    marks = {Level.OK: "ok", Level.WARNING: "WARNING", Level.PROBLEM: "PROBLEM"}
    widest = max((len(finding.subject) for finding in findings), default=0) + 11
    indent = " " * (widest if terminal_columns() >= WIDE else 2)
    for finding in findings:
        mark = marks[finding.level]
        title = f"{mark:9}{finding.subject}".ljust(widest)
        print_text(f"{title}{printable(finding.sentence)}", indent, mark=mark)
        if finding.fix:
            print_text(f"{indent}-> {printable(finding.fix)}", f"{indent}   ")
