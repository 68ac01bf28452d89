"""``pocketserve simulate --fleet``: options, the steps of a run, and its exit code."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pocketserve.cli import CommandError
from pocketserve.cli.output import print_json, print_table, print_text
from pocketserve.config import embedded_models_dir
from pocketserve.messages import did_you_mean, plural
from pocketserve_simulate.fleet.addresses import MAX_PHONES
from pocketserve_simulate.fleet.asking import PhoneAnswers, ask_phone, inputs_for
from pocketserve_simulate.fleet.events import Timeline, events_table, is_kept, parse_timeline, play, record_json
from pocketserve_simulate.fleet.fleet import Fleet
from pocketserve_simulate.fleet.roll_out import copy_model, roll_out, roll_out_lines
from pocketserve_simulate.fleet.tables import failure_lines, phones_json, profile_table, profiles_json, reference_of
from pocketserve_simulate.phone.device import DEVICES, PhoneModel
from pocketserve_simulate.phone.events import EventError


def run_fleet(options: argparse.Namespace, command: Sequence[str]) -> int:
    """Start a fleet, ask it, roll a version out, let events happen to it, print what came of that, and end it.

    Returns:
        0 if every phone answered everything alike and holds the rate, the roll-out went on, and each client was served
        again behind each event; else 1.
    """
    models = _devices(options.fleet, options.profiles)
    folder, arguments = _parse_serve(command)
    timeline = _timeline(options)
    inputs = inputs_for(options.ask, options.inputs, folder / options.ask)

    def serve(phone: Path) -> list[str]:
        served = copy_model(folder, options.ask, phone) if options.roll_out else folder
        return [str(served), *arguments]

    with tempfile.TemporaryDirectory(prefix="pocketserve-fleet-", ignore_cleanup_errors=True) as scratch:
        begin = time.monotonic()
        with Fleet(models, Path(scratch), serve) as fleet:
            seconds = time.monotonic() - begin
            first, last = fleet.phones[0].host, fleet.phones[-1].host
            _say(f"{plural(len(fleet.phones), 'phone')} ready at {first} to {last} after {seconds:.1f} s")
            document = {"phones": len(fleet.phones), "start_seconds": seconds, "model": options.ask}
            document |= _run_steps(options, inputs, fleet, timeline)
    return _show(options, document)


def _run_steps(
    options: argparse.Namespace, inputs: Sequence[bytes], fleet: Fleet, timeline: Timeline
) -> dict[str, Any]:
    """Ask, roll out and disturb, as the options say; returns all that came of it."""
    results = [ask_phone(phone, options.ask, inputs) for phone in fleet.phones]
    reference = reference_of(results)
    document: dict[str, Any] = {
        "inputs": len(inputs),
        "kept": all(_is_good(result, reference, options.rate) for result in results),
        "profiles": profiles_json(results, reference, options.rate),
        "answers": phones_json(results, reference),
        "failures": failure_lines(results),
    }
    if not all(result.versions for result in results):
        return document  # a phone that answers nothing has nothing to be compared with
    if options.roll_out:
        rolled = roll_out(results, options.ask, inputs, options.roll_out, options.share, options.rate)
        document["roll_out"] = rolled.to_json() | {
            "profiles": profiles_json(rolled.results, reference, options.rate),
            "answers": phones_json(rolled.results, reference),
        }
        document["kept"] &= rolled.went_on
        results = rolled.results if rolled.went_on else results
    if timeline:
        records = play(results, timeline, options.ask, options.rate, _say)
        document["events"] = [record_json(record) for record in records]
        document["kept"] &= all(map(is_kept, records))
    return document


def _say(text: str) -> None:
    print_text(text, stream=sys.stderr)


def _timeline(options: argparse.Namespace) -> Timeline:
    try:
        return parse_timeline(options.events, options.fleet)
    except EventError as error:
        raise CommandError(str(error)) from None


def _is_good(result: PhoneAnswers, reference: Sequence[Any], rate: float | None) -> bool:
    is_same = not result.failures and result.agreement(reference) == 1.0
    return is_same and (rate is None or result.holds(rate))


def _show(options: argparse.Namespace, document: dict[str, Any]) -> int:
    if options.json:
        print_json(document)
        return 0 if document["kept"] else 1
    print_table(*profile_table(document["profiles"], options.rate))
    for line in document["failures"]:
        print_text(line, "  ")
    if "roll_out" in document:
        print()
        for line in roll_out_lines(document["roll_out"], document["phones"]):
            print_text(line, "  ")
        print_table(*profile_table(document["roll_out"]["profiles"], options.rate))
    if "events" in document:
        print()
        print_table(*events_table(document["events"]))
        for facts in document["events"]:
            for text in facts["broken"]:
                print_text(f"phone {facts['phone']}: {text}", "  ")
    return 0 if document["kept"] else 1


def _devices(count: int, names: str) -> list[PhoneModel]:
    """Return the device of each phone: those that are named, in turn."""
    if not 1 <= count <= MAX_PHONES:
        raise CommandError(f"--fleet takes 1 to {MAX_PHONES} phones")
    profiles = [name.strip() for name in names.split(",") if name.strip()] or list(DEVICES)
    for name in profiles:
        if name not in DEVICES:
            raise CommandError(
                f"there is no device {name!r}; there are {', '.join(DEVICES)}{did_you_mean(name, DEVICES)}"
            )
    return [DEVICES[name] for name in itertools.islice(itertools.cycle(profiles), count)]


def _parse_serve(command: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the models folder, and the further arguments of ``serve``; by default the embedded models."""
    if command and command[0] != "serve":
        raise CommandError("a fleet runs servers: simulate --fleet 3 --ask MODEL -- serve FOLDER")
    words = command[1:2] if command[1:2] and not command[1].startswith("-") else []
    folder = Path(words[0]) if words else embedded_models_dir()
    if not folder.is_dir():
        raise CommandError(f"the models folder {str(folder)!r} is not there")
    return folder, list(command[1 + len(words) :])
