"""Rows of named numbers: JSON in several shapes, CSV lines and ``.npy`` files become one array."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from typing import Any

from pocketserve.messages import plural
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks import arrays
from pocketserve.tasks.base import invalid_input
from pocketserve.tasks.cancellation import enumerate_cancellable
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tasks.tabular.columns import is_column, split_array, split_rows, table_of
from pocketserve.tensors import Array, TensorSpec
from pocketserve_wire import strict_json
from pocketserve_wire.limits import MAX_JSON_CONTAINERS

MAX_ROWS = 100_000
MAX_SHOWN = 50
MAX_LOOKED_AT = 65_536
POINT = "; numbers have a decimal point, 5.1 and not 5,1"
_COMMA = re.compile(r"[+-]?\d+,\d+")
_COMMA_IN_LINE = re.compile(r"(?:^|[;\t \"])[+-]?\d{1,20},\d{1,20}(?:$|[;\t \"\r])", re.MULTILINE)
"""Such a number, where something else than a comma separates it from the next."""

MAX_CELLS = MAX_JSON_CONTAINERS
"""Cells of one CSV document: each costs dozens of bytes once split, for two on the wire."""


class Rows:
    """Reads rows, for one input or for as many as there are features.

    Takes a row ``[5.1, 3.5]``, rows, an object of features, a list of such objects, and CSV: lines of numbers, with or
    without a line of names in front.

    Args:
        spec: the only input, of shape [rows, features], or the table that several are together.
        features: names in the model's order; empty where the manifest gives none.
        units: theirs, for people; empty where the manifest gives none.
        columns: the inputs of a model that has one for each feature, in their order; empty for all others.
    """

    def __init__(
        self,
        spec: TensorSpec,
        features: Sequence[str],
        units: Sequence[str] = (),
        columns: Sequence[TensorSpec] = (),
    ) -> None:
        self.spec = spec
        self._columns = columns
        self._features = features
        self._units = units

    def describe(self) -> str:
        """Return what is taken, and what the columns are."""
        text = "a row of numbers, an object by feature name, a list of either, or lines of CSV"
        if not self._features:
            return text
        columns = list(zip_longest(self._features, self._units, fillvalue=""))
        shown = [f"{name} ({unit})" if unit else name for name, unit in columns[:MAX_SHOWN]]
        more = f" and {len(columns) - MAX_SHOWN} more" if len(columns) > MAX_SHOWN else ""
        return f"{text}; the features are {', '.join(shown)}{more}"

    def read(self, body: memoryview) -> dict[str, Array]:
        """The input arrays by name.

        Raises:
            ApiError: INVALID_INPUT and others with what is wrong with which row.
        """
        found = self._read(body)
        rows = len(next(iter(found.values())))
        if rows > MAX_ROWS:  # each is answered with a label and scores, whatever few bytes it came in
            raise invalid_input(f"{rows} rows are more than {MAX_ROWS}; send them in parts")
        return found

    def _read(self, body: memoryview) -> dict[str, Array]:
        if arrays.is_npy(body):
            array = arrays.read_npy(body)
            if self._columns:
                return split_array(array, self._columns)
            return {self.spec.name: arrays.fit_array(array, self.spec)}
        first = bytes(body[:256]).lstrip(b" \t\r\n")[:1]
        if first in (b"[", b"{"):
            return self._of_rows(self._of_json(strict_json.loads(body)))
        rows = self._of_csv(body)
        if rows is None:
            raise invalid_input(
                "this model takes numbers: send a JSON array of features, an object by feature name, or lines of CSV"
                f"{_foreign_spelling(body)}"
            )
        self._check_widths(rows)
        return self._of_rows(rows)

    def _of_rows(self, rows: list[Any]) -> dict[str, Array]:
        if self._columns:
            return split_rows(rows, self._columns)
        return {self.spec.name: arrays.fit_values(rows, self.spec)}

    def _of_json(self, values: Any) -> list[Any]:
        if isinstance(values, dict):
            return [self._row(values, 0)]
        if any(isinstance(row, dict) for row in values):
            return [self._row(row, index) for index, row in enumerate_cancellable(values)]
        self._check_widths(values)
        return list(values)

    def _of_csv(self, body: memoryview) -> list[list[Any]] | None:
        """Lines of numbers; None for anything else. Gaps are NaN."""
        try:
            text = bytes(body).decode("utf-8-sig")
            _check_cells(text)
            filled = (line for line in csv.reader(_lines(text)) if any(cell.strip() for cell in line))
            lines = list(islice(filled, MAX_ROWS + 1))
        except (UnicodeDecodeError, csv.Error):
            return None
        if not lines:
            return None
        if len(lines) > MAX_ROWS:
            raise invalid_input(f"the CSV has more than {MAX_ROWS} lines; send it in parts")
        head = [cell.strip() for cell in lines[0]]
        if self._features and any(cell in self._features for cell in head):
            return [self._named(head, line, index) for index, line in enumerate_cancellable(lines[1:])]
        rows = [[self._cell(i, cell) for i, cell in enumerate(line)] for _, line in enumerate_cancellable(lines)]
        return None if any(value is None for row in rows for value in row) else rows

    def _named(self, head: list[str], line: list[str], index: int) -> list[Any]:
        if len(line) != len(head):
            raise invalid_input(f"row {index} has {plural(len(line), 'value')}; the line of names has {len(head)}")
        places = {name: place for place, name in enumerate(self._features)}
        found = {name: self._cell(places.get(name, -1), cell) for name, cell in zip(head, line, strict=True)}
        unread = next((name for name, value in found.items() if value is None), None)
        if unread is not None:
            hint = POINT if any(_COMMA.fullmatch(cell.strip()) for cell in line) else ""
            raise invalid_input(f"row {index}: feature {unread!r:.80} is no number{hint}")
        return self._row(found, index)

    def _is_text(self, place: int) -> bool:
        columns = self._columns
        return (columns[place] if 0 <= place < len(columns) else self.spec).datatype == "BYTES"

    def _cell(self, place: int, cell: str) -> int | float | str | None:
        """A cell of a feature that takes texts as it is, of any other as a number; None where it is none."""
        return cell.strip() if self._is_text(place) else _number(cell)

    def _check_widths(self, rows: Sequence[Any]) -> None:
        """Rows of different lengths would shift into each other: the wire only compares the total count."""
        width = self.spec.shape[1]
        takes = f"the model takes {width}{': ' if self._features else ''}{', '.join(self._features)}"
        if width > 0 and len(rows) % width and not any(isinstance(row, list) for row in rows):
            raise invalid_input(f"{plural(len(rows), 'value is', 'values are')} no whole row; {takes}")
        for index, row in enumerate(rows):
            if isinstance(row, list) and len(row) != width >= 0:
                hint = POINT if len(row) == 2 * width else ""  # as if each number were two
                raise invalid_input(f"row {index} has {plural(len(row), 'value')}; {takes}{hint}")

    def _row(self, row: Any, index: int) -> list[Any]:
        if not isinstance(row, dict):
            raise invalid_input(f"row {index} is {strict_json.json_type(row)}; all rows must be objects of features")
        if not self._features:
            raise invalid_input("this model's features have no names; send an array of numbers")
        unknown = [name for name in row if name not in self._features]
        missing = [name for name in self._features if name not in row]
        if unknown or missing:
            fault = f"unknown feature {unknown[0]!r}" if unknown else f"feature {missing[0]!r} is missing"
            raise invalid_input(f"row {index}: {fault}; the model takes {', '.join(self._features)}")
        numbers = [name for place, name in enumerate(self._features) if not self._is_text(place)]
        texts = {name: row[name] for name in numbers if isinstance(row[name], str)}
        comma = next((name for name, text in texts.items() if _COMMA.fullmatch(text.strip())), None)
        if comma is not None:
            raise invalid_input(f"row {index}: feature {comma!r} is a text, {row[comma]!r:.40}{POINT}")
        return [row[name] for name in self._features]


def rows_of(facts: ModelFacts, task: str) -> Rows:
    """Set up with the manifest's ``[features]``.

    Raises:
        ModelLoadError: the model's input is no table, or has another number of columns.
    """
    inputs, names = facts.asked, facts.manifest.feature_names
    columns = inputs if len(inputs) > 1 and all(map(is_column, inputs)) else ()
    if not columns and (len(inputs) != 1 or len(inputs[0].shape) != 2):
        raise ModelLoadError(
            f"model.toml: task {task} needs one input of shape [rows, features], or one of shape [rows, 1] for each"
        )
    own = [spec.name for spec in columns]
    if columns and sorted(names) == sorted(own):
        columns = tuple(columns[own.index(name)] for name in names)
    elif columns:
        names = names or tuple(own)
    spec = table_of(columns) if columns else inputs[0]
    width = spec.shape[1]
    if names and width not in (-1, len(names)):
        raise ModelLoadError(f"model.toml: features.names has {len(names)}, the model takes {width}")
    units = facts.manifest.feature_units
    if units and len(units) != len(names):
        raise ModelLoadError(f"model.toml: features.units has {len(units)}, features.names has {len(names)}")
    return Rows(spec, names, units, columns)


def _lines(text: str) -> Iterator[str]:
    """The lines with their ends. A file object would hold four bytes for each character."""
    start = 0
    while start < len(text):
        end = text.find("\n", start) + 1 or len(text)
        yield text[start:end]
        start = end


def _check_cells(text: str) -> None:
    """Count before splitting; commas and line ends in quotes count too."""
    cells = text.count(",") + max(text.count("\n"), text.count("\r"))
    if cells > MAX_CELLS:
        raise invalid_input(f"the CSV has {cells} cells, the limit is {MAX_CELLS}; send it in parts")


def _foreign_spelling(body: memoryview) -> str:
    """Return what a table that cannot be read may have been meant to be, for the error's end: spreadsheets write what
    is usual in a country.
    """
    text = bytes(body[:MAX_LOOKED_AT]).decode("utf-8", errors="replace")
    if _COMMA_IN_LINE.search(text):
        return POINT
    return "; separate the numbers by commas, not by semicolons" if ";" in text.partition("\n")[0] else ""


def _number(cell: str) -> int | float | None:
    text = cell.strip()
    if not text:
        return float("nan")
    try:
        if text.lstrip("+-").isdecimal() and len(text) < 20:
            return int(text)
        return None if "_" in text else _real(text)  # Python's own spelling of numbers, nobody else's
    except ValueError:
        return None


def _real(text: str) -> float | None:
    """A number; None for one such as ``1e400``, which Python takes for infinity."""
    value = float(text)
    if not math.isinf(value):
        return value
    return (strict_json.INFINITY if value > 0 else strict_json.MINUS_INFINITY) if "inf" in text.lower() else None
