"""What ``pocketserve simulate --scenario`` does: run it, print its tables, keep its report."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from pocketserve.cli.output import print_json, print_table
from pocketserve.config import embedded_models_dir
from pocketserve_simulate.report import tables, to_json, write_report
from pocketserve_simulate.scenarios.record import Record
from pocketserve_simulate.scenarios.run import Simulation
from pocketserve_simulate.scenarios.scenario import read_scenario
from pocketserve_simulate.scenarios.verdict import headline


def run_scenario(options: argparse.Namespace) -> int:
    """Run a scenario.

    Args:
        options: ``scenario`` (a shipped one's name, or a path), ``report`` (a folder, or None) and ``json``.

    Returns:
        0 if every promise was kept, else 1.

    Raises:
        ScenarioError: it cannot be run.
    """
    scenario = read_scenario(options.scenario)
    with tempfile.TemporaryDirectory(prefix="pocketserve-") as folder:
        simulation = Simulation(scenario, embedded_models_dir(), Path(folder), _say)
        record = simulation.run()
        written = write_report(record, Path(options.report), simulation.log) if options.report else []
    document = to_json(record)
    if options.json:
        print_json(document)
    else:
        _print(record)
        for path in written:
            print(f"wrote {path}")
    return 0 if document["kept"] else 1


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _print(record: Record) -> None:
    print(headline(record))
    for header, rows in tables(record):
        print()
        if rows:
            print_table(header, rows)
