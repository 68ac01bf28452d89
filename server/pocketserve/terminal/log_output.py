"""The log on standard error: escaped lines, written without blocking."""

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
from pocketserve.terminal.output import (
    INDENT,
    NARROW,
    printable,
    terminal_columns,
    wrap,
)

CHUNK: Final = 1000
"""Characters per write.

In UTF-8 they fit PIPE_BUF, which a pipe with any room accepts without blocking.
"""

GAP: Final = "%d lines are missing here, because nothing read standard error"


class LogHandler(logging.StreamHandler[TextIO]):
    """Writes records; drops and counts them while the reader doesn't read."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        self._left_out = 0
        self._is_cut = False
        self._room = select.poll()
        try:
            self._room.register(stream.fileno(), select.POLLOUT)
            self._may_wait = True
        except OSError:  # a stream in memory, which never blocks
            self._may_wait = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record's line, after a note about dropped ones."""
        try:
            text = f"{self.format(record)}\n"
            if self._left_out:
                text = f"{self._gap()}\n{text}"
                if self._is_cut:
                    text = f"\n{text}"
            self._write(text)
        except Exception:
            self.handleError(record)

    def _gap(self) -> str:
        """Format the note about dropped records."""
        gap = logging.makeLogRecord(
            {"levelno": logging.WARNING, "levelname": "WARNING", "msg": GAP}
        )
        gap.args = (self._left_out,)
        return self.format(gap)

    def _write(self, text: str) -> None:
        """Write a text in chunks; drop it if one would block."""
        for start in range(0, len(text), CHUNK):
            if self._may_wait and not self._room.poll(0):
                self._left_out += 1
                self._is_cut = self._is_cut or start > 0
                return
            self.stream.write(text[start : start + CHUNK])
            self.stream.flush()
        self._left_out = 0
        self._is_cut = False


class LogFormatter(logging.Formatter):
    """Formats a record as one line without terminal escapes.

    The lines of a traceback follow, indented, so that none looks like a record.
    """

    columns: int | None = None
    """Width at which a line is wrapped between words; None: it is not."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line, and its traceback's."""
        lines = list(map(printable, super().format(record).split("\n")))
        if record.exc_info or record.stack_info:
            return "\n    ".join(lines)
        line = "\\n".join(lines)
        if self.columns is None:
            return line
        return wrap(line, "", INDENT, self.columns)


class JsonLogFormatter(logging.Formatter):
    """Formats a record as one JSON object, with a request's fields."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's line."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if isinstance(record.args, Mapping):
            fields |= record.args
        if record.exc_info:
            fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _line_formatter() -> LogFormatter:
    """Return the formatter of lines; without the date, and wrapped, if narrow."""
    layout = "%(asctime)s %(levelname)s %(message)s"
    columns = terminal_columns(2)
    if columns >= NARROW:
        return LogFormatter(layout)
    formatter = LogFormatter(layout, "%H:%M:%S")
    formatter.columns = columns
    return formatter


def prepare_process(config: Config) -> None:
    """Set up a server process: its log and the state folder's variable.

    Warnings about the settings are logged.
    """
    # For code without access to the settings, such as runtimes and trial processes.
    os.environ[STATE_VARIABLE] = str(config.state_dir.absolute())
    handler: logging.Handler = logging.NullHandler()
    if sys.stderr is not None:
        handler = LogHandler(sys.stderr)
    is_json = config.log_format == "json"
    handler.setFormatter(JsonLogFormatter() if is_json else _line_formatter())
    level = config.log_level.upper()
    # Hide the debugging output of other packages: Pillow logs each chunk of a picture.
    logging.basicConfig(level="INFO" if level == "DEBUG" else level, handlers=[handler])
    logging.getLogger("pocketserve").setLevel(level)
    logging.captureWarnings(True)  # a model's warnings may contain any text
    _warn_about_settings(config)


def _warn_about_settings(config: Config) -> None:
    for name, similar in unknown_variables().items():
        hint = "docs/configuration.md lists them"
        if similar:
            hint = f"did you mean {' or '.join(similar)}?"
        logging.warning("%s is not a setting and changes nothing; %s", name, hint)
    if not config.auth:
        logging.warning(
            "no token is required: every app on this device can use the server"
        )
