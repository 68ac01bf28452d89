"""The log on standard error: a record is a line, which commands no terminal and for which no request waits."""

from __future__ import annotations

import json
import logging
import os
import select
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, TextIO

from pocketserve.config import STATE_VARIABLE, Config, unknown_variables
from pocketserve.terminal.output import NARROW, printable, terminal_columns

CHUNK: Final = 1000
"""Characters. In UTF-8 they are fewer bytes than PIPE_BUF, which a pipe with any room takes without waiting."""

GAP: Final = "%d lines are missing here: nobody read standard error"


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes records, and leaves those out for which a reader that does not read has left no room; it counts them."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._left_out, self._is_cut = 0, False
        self._room = select.poll()
        try:
            self._room.register(stream.fileno(), select.POLLOUT)
            self._may_wait = True
        except OSError:  # no file: a text in memory, which always has room
            self._may_wait = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record's line, after the number of those that are missing before it."""
        try:
            text = f"{self.format(record)}\n"
            if self._left_out:
                gap = logging.makeLogRecord(
                    {"levelno": logging.WARNING, "levelname": "WARNING", "msg": GAP}
                )
                gap.args = (self._left_out,)
                text = "\n" * self._is_cut + f"{self.format(gap)}\n{text}"
            for start in range(0, len(text), CHUNK):
                if self._may_wait and not self._room.poll(0):
                    self._left_out, self._is_cut = (
                        self._left_out + 1,
                        self._is_cut or start > 0,
                    )
                    return
                self.stream.write(text[start : start + CHUNK])
                self.stream.flush()
            self._left_out, self._is_cut = 0, False
        except Exception:
            self.handleError(record)


class LogFormatter(logging.Formatter):
    """Writes each record so that nothing in it commands a terminal or looks like a record of its own.

    A record is a line; the lines of a traceback, and what an error says in several, are set off behind it.
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line, and a traceback's."""
        first, *more = (printable(line) for line in super().format(record).split("\n"))
        return (
            "\n    ".join([first, *more])
            if record.exc_info or record.stack_info
            else "\\n".join([first, *more])
        )


class JsonLogFormatter(logging.Formatter):
    """Writes each record as one JSON document: time, level and message, and the fields of a request's line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        fields: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if isinstance(record.args, Mapping):
            fields |= record.args
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _line_formatter() -> LogFormatter:
    """Return the formatter of lines; on a phone's terminal, the date would fill most of each."""
    is_narrow = terminal_columns(2) < NARROW
    return LogFormatter(
        "%(asctime)s %(levelname)s %(message)s", "%H:%M:%S" if is_narrow else None
    )


def prepare_process(config: Config) -> None:
    """Set up a serving process: its log, warnings about settings, and one variable."""
    # For what knows no settings, such as runtimes and the processes of trials: they look in the same folder.
    os.environ[STATE_VARIABLE] = str(config.state_dir.absolute())
    handler = (
        LogHandler(sys.stderr) if sys.stderr is not None else logging.NullHandler()
    )
    handler.setFormatter(
        JsonLogFormatter() if config.log_format == "json" else _line_formatter()
    )
    level = config.log_level.upper()
    # Other packages' debugging is not for those who use this one: Pillow tells each chunk of a picture.
    logging.basicConfig(level="INFO" if level == "DEBUG" else level, handlers=[handler])
    logging.getLogger("pocketserve").setLevel(level)
    logging.captureWarnings(True)  # models can warn, in any words
    for name, similar in unknown_variables().items():
        hint = (
            f"did you mean {' or '.join(similar)}?"
            if similar
            else "docs/configuration.md lists them"
        )
        logging.warning("%s is no setting and changes nothing; %s", name, hint)
    if not config.auth:
        logging.warning(
            "no token is asked for: every app on this device can use the server"
        )
