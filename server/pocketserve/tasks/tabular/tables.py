"""Rows of named numbers: JSON in several shapes, CSV lines and ``.npy`` files become a model's input arrays."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any

from pocketserve.messages import plural
from pocketserve.runtimes.base import ModelLoadError
from pocketserve.tasks import arrays
from pocketserve.tasks.base import NO_HINTS, Hints, Prepared, invalid_input
from pocketserve.tasks.cancellation import enumerate_cancellable
from pocketserve.tasks.form import Feature, Form
from pocketserve.tasks.model_facts import ModelFacts
from pocketserve.tensors import Array, TensorSpec, datatype_of
from pocketserve_wire import strict_json
from pocketserve_wire.limits import MAX_JSON_CONTAINERS

MAX_ROWS = 100_000
MAX_SHOWN = 50  # names of features in a description
MAX_TYPED_COLUMNS = 10_000
MAX_INSPECTED = 65_536  # bytes, for advice
POINT = "; numbers have a decimal point, 5.1 and not 5,1"
_COMMA = re.compile(r"[+-]?\d+,\d+")
_COMMA_IN_LINE = re.compile(
    r"(?:^|[;\t \"])[+-]?\d{1,20},\d{1,20}(?:$|[;\t \"\r])", re.MULTILINE
)
"""Such a number, where something else than a comma separates it from the next."""

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
MAX_CELLS = MAX_JSON_CONTAINERS  # cells of one CSV document: each costs dozens of bytes once split, for two on the wire


@dataclass(frozen=True, eq=False)
class Rows:
    """Reads a row ``[5.1, 3.5]``, rows, an object of features, a list of such objects, or CSV: lines of numbers, with
    or without a line of names in front.
    """

    spec: TensorSpec  # the only input, of shape [rows, features], or the table that several are together
    features: Sequence[
        str
    ]  # names in the model's order, and their ``units``; empty where the manifest gives none
    units: Sequence[str] = ()
    columns: Sequence[
        TensorSpec
    ] = ()  # inputs of a model with one for each feature, as of scikit-learn; else empty
    ranges: tuple[Sequence[float], Sequence[float]] = (
        (),
        (),
    )  # usual least and greatest values; empty if unknown

    def describe(self) -> str:
        """Return a sentence about formats and features."""
        text = "a row of numbers, an object by feature name, a list of either, or lines of CSV"
        if not self.features:
            return text
        pairs = zip_longest(self.features, self.units, fillvalue="")
        names = [f"{name} ({unit})" if unit else name for name, unit in pairs]
        more = f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else ""
        return f"{text}; the features are {', '.join(names[:MAX_SHOWN])}{more}"

    def form_features(self) -> list[Feature]:
        """Return the columns by their names; none where they have none."""
        facts = zip_longest(*self._columns(len(self.features)), *self.ranges)
        return [
            Feature(
                name,
                unit or "",
                "string" if datatype == "BYTES" else "number",
                low,
                high,
            )
            for name, unit, datatype, low, high in facts
        ]

    def columns_of_row(self) -> list[dict[str, str]]:
        """Return ``{"name", "unit", "datatype"}`` of each feature; empty where nobody would write them by hand."""
        width = len(self.features) or max(self.spec.shape[1], 0)
        if width > MAX_TYPED_COLUMNS:
            return []
        columns = zip_longest(*self._columns(width), fillvalue="")
        return [
            {"name": name, "unit": unit, "datatype": datatype}
            for name, unit, datatype in columns
        ]

    def _columns(
        self, width: int
    ) -> tuple[Sequence[str], Sequence[str], Sequence[str]]:
        """Return names, units and datatypes of that many columns; names and units may be missing."""
        return (
            self.features,
            self.units,
            [spec.datatype for spec in self.columns] or [self.spec.datatype] * width,
        )

    def read(self, body: memoryview) -> tuple[dict[str, Array], int]:
        """Return the input arrays by name, and the number of rows."""
        if arrays.is_npy(body):
            inputs = self._split_array(arrays.read_npy(body))
        elif arrays.first_sign(body) in (b"[", b"{"):
            inputs = self._split_rows(self._of_json(strict_json.loads(body)))
        else:
            inputs = self._split_rows(self._of_csv(body))
        count = len(next(iter(inputs.values())))
        if (
            count > MAX_ROWS
        ):  # each is answered with a label and scores, whatever few bytes it came in
            raise invalid_input(
                f"{count} rows are more than {MAX_ROWS}; send them in parts"
            )
        return inputs, count

    def _split_array(self, array: Array) -> dict[str, Array]:
        if not self.columns:
            return {self.spec.name: arrays.fit_array(array, self.spec)}
        table = arrays.fit_array(
            array, TensorSpec("row", datatype_of(array.dtype), self.spec.shape)
        )
        return {
            spec.name: arrays.fit_array(
                table[:, i : i + 1] if len(spec.shape) == 2 else table[:, i], spec
            )
            for i, spec in enumerate(self.columns)
        }

    def _split_rows(self, rows: list[Any]) -> dict[str, Array]:
        if not self.columns:
            return {self.spec.name: arrays.fit_values(rows, self.spec)}
        lists = [isinstance(row, list) for row in rows]
        if any(lists) and not all(lists):
            raise invalid_input(f"row {lists.index(False)} is no array, others are")
        if not any(lists):
            width = len(self.columns)
            rows = [rows[start : start + width] for start in range(0, len(rows), width)]
        return {
            spec.name: arrays.fit_values(
                [[row[i]] if len(spec.shape) == 2 else row[i] for row in rows], spec
            )
            for i, spec in enumerate(self.columns)
        }

    def _of_json(self, values: Any) -> list[Any]:
        if isinstance(values, dict):
            return [self._row(values, 0)]
        if any(isinstance(row, dict) for row in values):
            return [
                self._row(row, index) for index, row in enumerate_cancellable(values)
            ]
        self._check_widths(values)
        return list(values)

    def _of_csv(self, body: memoryview) -> list[Any]:
        """Return lines of numbers; gaps are NaN."""
        try:
            text = bytes(body).decode("utf-8-sig")
            # Commas and line ends in quotes count too.
            cells = text.count(",") + max(text.count("\n"), text.count("\r"))
            if cells > MAX_CELLS:
                raise invalid_input(
                    f"the CSV has {cells} cells, the limit is {MAX_CELLS}; send it in parts"
                )
            # A file object would hold four bytes for each character.
            reader = csv.reader(line[0] for line in _LINE.finditer(text))
            lines = list(
                islice(
                    (line for line in reader if any(cell.strip() for cell in line)),
                    MAX_ROWS + 1,
                )
            )
        except (UnicodeDecodeError, csv.Error):
            lines = []
        if len(lines) > MAX_ROWS:
            raise invalid_input(
                f"the CSV has more than {MAX_ROWS} lines; send it in parts"
            )
        head = [cell.strip() for cell in lines[0]] if lines else []
        if any(cell in self.features for cell in head):
            rows = [
                self._of_named_cells(head, line, index)
                for index, line in enumerate_cancellable(lines[1:])
            ]
        else:
            rows = [
                [self._cell(i, cell) for i, cell in enumerate(line)]
                for _, line in enumerate_cancellable(lines)
            ]
        if not lines or any(value is None for row in rows for value in row):
            raise invalid_input(
                "this model takes numbers: send a JSON array of features, an object by feature name, or lines of CSV"
                f"{_advice(body)}"
            )
        self._check_widths(rows)
        return rows

    def _of_named_cells(
        self, head: list[str], line: list[str], index: int
    ) -> list[Any]:
        if len(line) != len(head):
            raise invalid_input(
                f"row {index} has {plural(len(line), 'value')}; the line of names has {len(head)}"
            )
        columns = {name: column for column, name in enumerate(self.features)}
        values = {
            name: self._cell(columns.get(name, -1), cell)
            for name, cell in zip(head, line, strict=True)
        }
        unread = next((name for name, value in values.items() if value is None), None)
        if unread is not None:
            hint = POINT if any(_COMMA.fullmatch(cell.strip()) for cell in line) else ""
            raise invalid_input(
                f"row {index}: feature {unread!r:.80} is no number{hint}"
            )
        return self._row(values, index)

    def _cell(self, column: int, cell: str) -> int | float | str | None:
        """Return a cell of a feature that takes texts as it is, of any other as a number; None where it is none."""
        spec = self.columns[column] if 0 <= column < len(self.columns) else self.spec
        return cell.strip() if spec.datatype == "BYTES" else _number(cell.strip())

    def _check_widths(self, rows: Sequence[Any]) -> None:
        """Refuse rows of different lengths, which would shift into each other: else only the total is compared."""
        width = self.spec.shape[1]
        takes = f"the model takes {width}{': ' if self.features else ''}{', '.join(self.features)}"
        if (
            width > 0
            and len(rows) % width
            and not any(isinstance(row, list) for row in rows)
        ):
            raise invalid_input(
                f"{plural(len(rows), 'value does', 'values do')} not make a whole row; {takes}"
            )
        for index, row in enumerate(rows):
            if isinstance(row, list) and len(row) != width >= 0:
                hint = (
                    POINT if len(row) == 2 * width else ""
                )  # as if each number were two
                raise invalid_input(
                    f"row {index} has {plural(len(row), 'value')}; {takes}{hint}"
                )

    def _row(self, row: Any, index: int) -> list[Any]:
        """Return the values of an object in the order of the features."""
        if not isinstance(row, dict):
            raise invalid_input(
                f"row {index} is {strict_json.json_type(row)}; all rows must be objects of features"
            )
        if not self.features:
            raise invalid_input(
                "this model's features have no names; send an array of numbers"
            )
        faults = [
            f"unknown feature {name!r}" for name in row if name not in self.features
        ]
        faults += [
            f"feature {name!r} is missing" for name in self.features if name not in row
        ]
        if faults:
            raise invalid_input(
                f"row {index}: {faults[0]}; the model takes {', '.join(self.features)}"
            )
        for column, name in enumerate(self.features):
            value = row[name]
            if (
                isinstance(value, str)
                and _COMMA.fullmatch(value.strip())
                and self._cell(column, value) is None
            ):
                raise invalid_input(
                    f"row {index}: feature {name!r} is a text, {value!r:.40}{POINT}"
                )
        return [row[name] for name in self.features]


class TableTask:
    """A task on rows; ``answer_text`` describes the answer on model cards."""

    answer_text: str

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def structure(self) -> dict[str, Any]:
        """Return the columns of a row; their names are empty where the model has none."""
        return {"features": self._rows.columns_of_row()}

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        inputs, count = self._rows.read(body)
        return Prepared([inputs], count)

    def form(self) -> Form:
        """Return what the task takes."""
        return Form(("rows",), features=self._rows.form_features())

    def describe(self) -> dict[str, str]:
        return {
            "input": self._rows.describe(),
            "preprocessing": "none",
            "answer": self.answer_text,
            "content_type": "application/json",
            "example": "row.json",
        }


def rows_of(facts: ModelFacts, task: str) -> Rows:
    """Set up with the manifest's ``[features]``."""
    inputs, names = facts.sent_inputs, facts.manifest.feature_names
    are_columns = all(
        not s.open and s.shape[:1] in ((1,), (-1,)) and s.shape[1:] in ((), (1,))
        for s in inputs
    )
    columns = inputs if len(inputs) > 1 and are_columns else ()
    if not columns and (len(inputs) != 1 or len(inputs[0].shape) != 2):
        raise ModelLoadError(
            f"model.toml: task {task} needs one input of shape [rows, features], or one of shape [rows, 1] for each"
        )
    spec = inputs[0]
    if columns:
        by_name = {column.name: column for column in columns}
        if sorted(names) == sorted(by_name):
            columns = tuple(by_name[name] for name in names)
        names = names or tuple(by_name)
        datatypes = {column.datatype for column in columns}
        spec = TensorSpec(
            "row",
            datatypes.pop() if len(datatypes) == 1 else "FP64",
            (-1, len(columns)),
        )
    if names and spec.shape[1] not in (-1, len(names)):
        raise ModelLoadError(
            f"model.toml: features.names has {len(names)}, the model takes {spec.shape[1]}"
        )
    manifest = facts.manifest
    units, minimum, maximum = (
        manifest.feature_units,
        manifest.feature_minimum,
        manifest.feature_maximum,
    )
    for key, values in (("units", units), ("minimum", minimum), ("maximum", maximum)):
        if values and len(values) != len(names):
            raise ModelLoadError(
                f"model.toml: features.{key} has {len(values)}, features.names has {len(names)}"
            )
    if any(low > high for low, high in zip(minimum, maximum, strict=False)):
        raise ModelLoadError(
            "model.toml: features.minimum must not be above features.maximum"
        )
    return Rows(spec, names, units, columns, (minimum, maximum))


def _advice(body: memoryview) -> str:
    """Return the end of an error about a table that cannot be read: spreadsheets write what a country is used to."""
    text = bytes(body[:MAX_INSPECTED]).decode("utf-8", errors="replace")
    if _COMMA_IN_LINE.search(text):
        return POINT
    return (
        "; separate the numbers by commas, not by semicolons"
        if ";" in text.partition("\n")[0]
        else ""
    )


def _number(text: str) -> int | float | None:
    """Parse a number; return NaN for a gap, None for text and for ``1e400``, which Python takes for infinity."""
    if not text:
        return math.nan
    try:
        if text.lstrip("+-").isdecimal() and len(text) < 20:
            return int(text)
        value = float(text)
    except ValueError:
        return None
    if math.isinf(value):
        return (
            (strict_json.INFINITY if value > 0 else strict_json.MINUS_INFINITY)
            if "inf" in text.lower()
            else None
        )
    return (
        None if "_" in text else value
    )  # Python's own spelling of numbers, nobody else's
