"""Models without a server, for commands."""

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

# Without a configured log, Python would print the warning of a failed load, which the
# command reports as its own error.
logging.getLogger("pocketserve.engine.lifecycle.loader").addHandler(
    logging.NullHandler()
)


@contextlib.contextmanager
def quiet_frameworks(options: argparse.Namespace) -> Iterator[None]:
    """Discard the frameworks' output on standard error, except with ``--debug``.

    TensorFlow Lite, for one, prints a line about its delegate for each model. Native
    code writes to the descriptor; the output of Python code is kept.
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
    """Return whether a stream is the process's own standard error."""
    try:
        return stream.fileno() == 2
    except (OSError, ValueError, AttributeError):
        return False


def names_path(text: str) -> bool:
    """Return whether a text is a path rather than the name of a model."""
    return "/" in text or is_model_path(text)


def open_local(
    model: str, models_dir: str | None, *, threads: int = 0
) -> tuple[Service, str, str | None]:
    """Call :func:`~pocketserve.local.opening.open_model` for a command.

    Raises:
        ConfigError, CommandError: the folder cannot be used, or there is no model at the
            path.
    """
    try:
        return open_model(model, models_dir, threads=threads, note=_print_note)
    except ModelPathError as error:
        raise CommandError(str(error)) from None


def _print_note(text: str) -> None:
    print(f"pocketserve: {printable(text)}", file=sys.stderr)
