"""Options, limits and errors that ``convert`` and ``compress`` share."""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.local import open_local
from pocketserve.terminal.options import add_folder_option
from pocketserve.terminal.output import printable
from pocketserve.terminal.progress import Progress

if TYPE_CHECKING:
    from pocketserve.config import Config
    from pocketserve.repository.scan import ModelEntry
    from pocketserve_lab.convert.converter import ConversionError
    from pocketserve_lab.convert.process import ProcessLimits

MAX_TIMEOUT_S = 86_400.0


def add_common_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that both commands have."""
    parser.add_argument(
        "--name",
        metavar="NAME",
        help="the new version's name [after its converter or recipe]",
    )
    add_folder_option(parser)
    parser.add_argument(
        "--timeout",
        type=float,
        default=1800.0,
        metavar="S",
        help="seconds for each tool [1800]",
    )
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="memory limit of a tool [nearly all free memory]",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def process_limits(options: argparse.Namespace) -> ProcessLimits:
    """Return the limits of each tool.

    Raises:
        CommandError: an option is out of range.
    """
    from pocketserve.config import parse_bytes
    from pocketserve_lab.convert.process import ProcessLimits

    if not 0 < options.timeout <= MAX_TIMEOUT_S:
        raise CommandError(f"--timeout must be above 0 and at most {MAX_TIMEOUT_S:g} s")
    try:
        memory = parse_bytes(options.memory) if options.memory else 0
    except ValueError:
        raise CommandError(
            f"--memory must be a size such as 4G, not {options.memory!r}"
        ) from None
    return ProcessLimits(options.timeout, memory)


def model_of(options: argparse.Namespace) -> SelectedModel:
    """Return the model that the options name.

    Raises:
        CommandError, ApiError: there is no such model or version.
    """
    from pocketserve.repository.scan import locate
    from pocketserve.state.permissions import secure

    service, name, version = open_local(options.model, options.models_dir)
    try:
        entry, config = service.entry(name), service.config
        version = options.model_version or version
        if version is not None:
            version = service.repository.version(entry, version).name
        if not entry.versions:
            raise CommandError(f"{name} cannot be converted: {entry.problem}")
    finally:
        service.close()
    secure(config.state_dir)
    models_dir, _ = locate(config.models_dir)
    return SelectedModel(
        entry, version, dataclasses.replace(config, models_dir=models_dir)
    )


class SelectedModel(NamedTuple):
    """A model, the chosen version, if any, and the settings."""

    entry: ModelEntry
    version: str | None
    config: Config


def noting(progress: Progress) -> Callable[[str], None]:
    """Return a function that prints a sentence below the progress."""

    def note(text: str) -> None:
        progress.end()
        print(f"pocketserve: {printable(text)}", file=sys.stderr, flush=True)

    return note


@contextmanager
def conversion_errors(options: argparse.Namespace) -> Iterator[None]:
    """Convert a refusal to the command's error.

    ``--debug`` also prints the tool's output.
    """
    from pocketserve_lab.convert.converter import ConversionError

    try:
        yield
    except ConversionError as error:
        if options.debug and error.detail:
            print(printable(error.detail), file=sys.stderr)
        raise CommandError(refusal_sentence(error)) from None


def refusal_sentence(error: ConversionError) -> str:
    """Return an error's message with the nearest alternative."""
    if error.nearest:
        return f"{error.message}; try {error.nearest}"
    return error.message
