"""Models without a server, for commands: faults are theirs, and frameworks print nothing."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, TextIO

from pocketserve.local.opening import ModelPathError, is_model_path, open_model
from pocketserve.terminal.errors import CommandError
from pocketserve.terminal.output import error_stream, printable

if TYPE_CHECKING:
    from pocketserve.service import Service

# Where no log is set up, Python prints warnings: a load that failed, which the command itself tells as its error.
logging.getLogger("pocketserve.engine.lifecycle.loader").addHandler(
    logging.NullHandler()
)


@contextlib.contextmanager
def quiet_frameworks(options: argparse.Namespace) -> Iterator[None]:
    """Keep what frameworks themselves write to standard error away from it, unless ``--debug`` is given.

    TensorFlow Lite tells of its delegate with each model. They write to the descriptor; what Python writes arrives.
    """
    if options.debug or sys.stderr is None:
        yield
        return
    with ExitStack() as stack:
        descriptor = os.dup(2)
        own = stack.enter_context(
            open(descriptor, "w", buffering=1, errors="backslashreplace")
        )
        nowhere = stack.enter_context(open(os.devnull, "w"))
        if _writes_to_descriptor(sys.stderr):
            sys.stderr.flush()
            stack.enter_context(contextlib.redirect_stderr(error_stream(own)))
        stack.callback(os.dup2, descriptor, 2)
        os.dup2(nowhere.fileno(), 2)
        yield


def _writes_to_descriptor(stream: TextIO) -> bool:
    """Return whether a stream is the process's standard error itself, and not a text that is collected."""
    try:
        return stream.fileno() == 2
    except (OSError, ValueError, AttributeError):
        return False


def names_path(text: str) -> bool:
    """Return whether it can only be a path: it is one of a model, or no model's name could look like it."""
    return "/" in text or is_model_path(text)


def open_local(
    model: str, models_dir: str | None, *, threads: int = 0
) -> tuple[Service, str, str | None]:
    """Return a service for one model, and its names, see :func:`~pocketserve.local.opening.open_model`.

    ConfigError or CommandError: the folder cannot be used, or the path is none of a model.
    """
    try:
        return open_model(model, models_dir, threads=threads, note=_print_note)
    except ModelPathError as error:
        raise CommandError(str(error)) from None


def _print_note(text: str) -> None:
    print(f"pocketserve: {printable(text)}", file=sys.stderr)
