"""Read table rows (JSON, CSV or ``.npy``) as a model's input arrays."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

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
"""A number with a decimal comma, if the separator is not a comma."""

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
# Cells of a CSV document: two bytes on the wire become dozens in memory.
MAX_CELLS = MAX_JSON_CONTAINERS


@dataclass(frozen=True, eq=False)
class Rows:
    """Read rows of features.

    The formats are a row ``[5.1, 3.5]``, rows, an object of features, a list of such
    objects, or CSV: lines of numbers, with or without a header line.

    Attributes:
        spec: the only input, [rows, features], or the table that several inputs form.
        features: names in the model's order; empty if the manifest gives none.
        units: of the features, or empty.
        columns: the inputs of a model with one per feature, as of scikit-learn, or empty.
        minimum: usual lowest values; empty if unknown.
        maximum: usual highest values; empty if unknown.
    """

    spec: TensorSpec
    features: Sequence[str]
    units: Sequence[str] = ()
    columns: Sequence[TensorSpec] = ()
    minimum: Sequence[float] = ()
    maximum: Sequence[float] = ()

    def describe(self) -> str:
        """Describe formats and features in a sentence."""
        text = "a row of numbers, an object by feature name, a list of either, or lines of CSV"
        if not self.features:
            return text
        names = []
        for name, unit in zip_longest(self.features, self.units, fillvalue=""):
            names.append(f"{name} ({unit})" if unit else name)
        listed = ", ".join(names[:MAX_SHOWN])
        if len(names) > MAX_SHOWN:
            listed += f" and {len(names) - MAX_SHOWN} more"
        return f"{text}; the features are {listed}"

    def form_features(self) -> list[Feature]:
        """Return the named columns; empty without names."""
        features = []
        for position, name in enumerate(self.features):
            kind = "number"
            if self._datatype(position) == "BYTES":
                kind = "string"
            unit = ""
            if self.units:
                unit = self.units[position]
            low = None
            if self.minimum:
                low = self.minimum[position]
            high = None
            if self.maximum:
                high = self.maximum[position]
            features.append(Feature(name, unit, kind, low, high))
        return features

    def columns_of_row(self) -> list[dict[str, str]]:
        """Return ``{"name", "unit", "datatype"}`` of each feature.

        Empty if there are too many to write by hand.
        """
        width = len(self.features) or max(self.spec.shape[1], 0)
        if width > MAX_TYPED_COLUMNS:
            return []
        columns = []
        for position in range(width):
            column = {
                "name": self.features[position] if self.features else "",
                "unit": self.units[position] if self.units else "",
                "datatype": self._datatype(position),
            }
            columns.append(column)
        return columns

    def _datatype(self, position: int) -> str:
        return self._column(position).datatype

    def _column(self, position: int) -> TensorSpec:
        """Return the input that takes a column.

        A single input takes all of them.
        """
        if 0 <= position < len(self.columns):
            return self.columns[position]
        return self.spec

    def read(self, body: memoryview) -> tuple[dict[str, Array], int]:
        """Return the input arrays by name, and the number of rows."""
        if arrays.is_npy(body):
            inputs = self._split_array(arrays.read_npy(body))
        elif arrays.first_sign(body) in (b"[", b"{"):
            inputs = self._split_rows(self._of_json(strict_json.loads(body)))
        else:
            inputs = self._split_rows(self._of_csv(body))
        count = len(next(iter(inputs.values())))
        # A small body may have many rows, and each is answered with a label and scores.
        if count > MAX_ROWS:
            raise invalid_input(
                f"{count} rows are more than {MAX_ROWS}; send them in parts"
            )
        return inputs, count

    def _split_array(self, array: Array) -> dict[str, Array]:
        if not self.columns:
            return {self.spec.name: arrays.fit_array(array, self.spec)}
        table_spec = TensorSpec("row", datatype_of(array.dtype), self.spec.shape)
        table = arrays.fit_array(array, table_spec)
        inputs = {}
        for position, spec in enumerate(self.columns):
            column = table[:, position]
            if len(spec.shape) == 2:
                column = column[:, np.newaxis]
            inputs[spec.name] = arrays.fit_array(column, spec)
        return inputs

    def _split_rows(self, rows: list[Any]) -> dict[str, Array]:
        if not self.columns:
            return {self.spec.name: arrays.fit_values(rows, self.spec)}
        rows = self._as_lists(rows)
        inputs = {}
        for position, spec in enumerate(self.columns):
            values: list[Any] = [row[position] for row in rows]
            if len(spec.shape) == 2:
                values = [[value] for value in values]
            inputs[spec.name] = arrays.fit_values(values, spec)
        return inputs

    def _of_json(self, values: Any) -> list[Any]:
        if isinstance(values, dict):
            return [self._row(values, 0)]
        if any(isinstance(row, dict) for row in values):
            return [
                self._row(row, index) for index, row in enumerate_cancellable(values)
            ]
        self._check_widths(values)
        return list(values)

    def _as_lists(self, rows: list[Any]) -> list[Any]:
        """Return rows as lists, also for one flat list."""
        lists = [isinstance(row, list) for row in rows]
        if all(lists) and lists:
            return rows
        if any(lists):
            raise invalid_input(f"row {lists.index(False)} is not an array, others are")
        width = len(self.columns)
        return [rows[start : start + width] for start in range(0, len(rows), width)]

    def _of_csv(self, body: memoryview) -> list[Any]:
        """Return a CSV document's rows; gaps are NaN."""
        lines = _csv_lines(body)
        head = [cell.strip() for cell in lines[0]] if lines else []
        rows = []
        if any(cell in self.features for cell in head):
            for index, line in enumerate_cancellable(lines[1:]):
                rows.append(self._of_named_cells(head, line, index))
        else:
            for _, line in enumerate_cancellable(lines):
                rows.append([self._cell(i, cell) for i, cell in enumerate(line)])
        if not lines or any(value is None for row in rows for value in row):
            raise invalid_input(
                "this model takes numbers: send a JSON array of features, an object by "
                f"feature name, or lines of CSV{_advice(body)}"
            )
        self._check_widths(rows)
        return rows

    def _of_named_cells(
        self, head: list[str], line: list[str], index: int
    ) -> list[Any]:
        """Return a row of a CSV document whose first line has names."""
        if len(line) != len(head):
            raise invalid_input(
                f"row {index} has {plural(len(line), 'value')}; the line of names has {len(head)}"
            )
        columns = {name: column for column, name in enumerate(self.features)}
        values = {}
        for name, cell in zip(head, line, strict=True):
            values[name] = self._cell(columns.get(name, -1), cell)
        for name, value in values.items():
            if value is None:
                hint = _comma_hint(line)
                raise invalid_input(
                    f"row {index}: feature {name!r:.80} is not a number{hint}"
                )
        return self._row(values, index)

    def _cell(self, column: int, cell: str) -> int | float | str | None:
        """Convert a cell; None if it's no number.

        Text stays text. None stands for a number that can't be parsed.
        """
        text = cell.strip()
        if self._column(column).datatype == "BYTES":
            return text
        return _number(text)

    def _check_widths(self, rows: Sequence[Any]) -> None:
        """Reject rows of different lengths.

        Otherwise only the total would be checked, and values could move to the next row.
        """
        width = self.spec.shape[1]
        takes = f"the model takes {width}"
        if self.features:
            takes = f"{takes}: {', '.join(self.features)}"
        is_partial = width > 0 and len(rows) % width
        if is_partial and not any(isinstance(row, list) for row in rows):
            raise invalid_input(
                f"{plural(len(rows), 'value does', 'values do')} not make a whole row; {takes}"
            )
        for index, row in enumerate(rows):
            if not isinstance(row, list) or width < 0 or len(row) == width:
                continue
            # Twice the width: each number may have been split at a decimal comma.
            hint = ""
            if len(row) == 2 * width:
                hint = POINT
            raise invalid_input(
                f"row {index} has {plural(len(row), 'value')}; {takes}{hint}"
            )

    def _row(self, row: Any, index: int) -> list[Any]:
        """Return an object's values in the order of the features."""
        if not isinstance(row, dict):
            raise invalid_input(
                f"row {index} is {strict_json.json_type(row)}; all rows must be objects of features"
            )
        if not self.features:
            raise invalid_input(
                "this model's features have no names; send an array of numbers"
            )
        fault = self._name_fault(row)
        if fault:
            raise invalid_input(
                f"row {index}: {fault}; the model takes {', '.join(self.features)}"
            )
        for column, name in enumerate(self.features):
            self._refuse_comma(column, row[name], index)
        return [row[name] for name in self.features]

    def _refuse_comma(self, column: int, value: Any, index: int) -> None:
        """Reject a text with a decimal comma."""
        has_comma = isinstance(value, str) and _COMMA.fullmatch(value.strip())
        if has_comma and self._cell(column, value) is None:
            name = self.features[column]
            raise invalid_input(
                f"row {index}: feature {name!r} is a text, {value!r:.40}{POINT}"
            )

    def _name_fault(self, row: Mapping[str, Any]) -> str:
        for name in row:
            if name not in self.features:
                return f"unknown feature {name!r}"
        for name in self.features:
            if name not in row:
                return f"feature {name!r} is missing"
        return ""


def _comma_hint(cells: Sequence[str]) -> str:
    """Return the advice on decimal commas if a cell has one, else ""."""
    for cell in cells:
        if _COMMA.fullmatch(cell.strip()):
            return POINT
    return ""


def _csv_lines(body: memoryview) -> list[list[str]]:
    """Return a CSV document's lines; none if it's invalid."""
    try:
        text = bytes(body).decode("utf-8-sig")
        # Commas and line ends in quotes count too.
        cells = text.count(",") + max(text.count("\n"), text.count("\r"))
        if cells > MAX_CELLS:
            raise invalid_input(
                f"the CSV has {cells} cells, the limit is {MAX_CELLS}; send it in parts"
            )
        lines = []
        # A file object would need four bytes per character.
        for line in csv.reader(match[0] for match in _LINE.finditer(text)):
            if any(cell.strip() for cell in line):
                lines.append(line)
            if len(lines) > MAX_ROWS:
                raise invalid_input(
                    f"the CSV has more than {MAX_ROWS} lines; send it in parts"
                )
    except (UnicodeDecodeError, csv.Error):
        return []
    return lines


class TableTask:
    """A task on rows.

    Attributes:
        answer_text: describes the answer on model cards.
    """

    answer_text: str

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def structure(self) -> dict[str, Any]:
        """Return the columns of a row.

        Names are empty if unknown.
        """
        return {"features": self._rows.columns_of_row()}

    def prepare(self, body: memoryview, hints: Hints = NO_HINTS) -> Prepared:
        inputs, count = self._rows.read(body)
        return Prepared([inputs], count)

    def form(self) -> Form:
        """Return the task's inputs."""
        return Form(("rows",), features=self._rows.form_features())

    def describe(self) -> dict[str, str]:
        return {
            "input": self._rows.describe(),
            "preprocessing": "none",
            "answer": self.answer_text,
            "content_type": "application/json",
            "example": "row.json",
        }


def _in_order(
    columns: Sequence[TensorSpec], names: Sequence[str]
) -> Sequence[TensorSpec]:
    """Sort inputs by the features with their names.

    Other inputs keep their order.
    """
    by_name = {column.name: column for column in columns}
    if sorted(names) != sorted(by_name):
        return columns
    return [by_name[name] for name in names]


def rows_of(facts: ModelFacts, task: str) -> Rows:
    """Return a model's table, described by the manifest's ``[features]``."""
    manifest = facts.manifest
    names = manifest.feature_names
    columns = _column_inputs(facts, task)
    spec = facts.sent_inputs[0]
    if columns:
        columns = _in_order(columns, names)
        names = names or tuple(dict.fromkeys(column.name for column in columns))
        spec = _joined(columns)
    if names and spec.shape[1] not in (-1, len(names)):
        raise ModelLoadError(
            f"model.toml: features.names has {len(names)}, the model takes {spec.shape[1]}"
        )
    rows = Rows(
        spec,
        names,
        manifest.feature_units,
        columns,
        manifest.feature_minimum,
        manifest.feature_maximum,
    )
    _check_features(rows)
    return rows


def _column_inputs(facts: ModelFacts, task: str) -> Sequence[TensorSpec]:
    """Return the inputs if each is a column; empty if there is one table."""
    inputs = facts.sent_inputs
    if len(inputs) > 1 and all(_is_column(spec) for spec in inputs):
        return inputs
    if len(inputs) != 1 or len(inputs[0].shape) != 2:
        raise ModelLoadError(
            f"model.toml: task {task} needs one input of shape [rows, features], or one of shape [rows, 1] for each"
        )
    return ()


def _is_column(spec: TensorSpec) -> bool:
    """Return whether an input has one feature of all rows."""
    if spec.open or spec.shape[:1] not in ((1,), (-1,)):
        return False
    return spec.shape[1:] in ((), (1,))


def _joined(columns: Sequence[TensorSpec]) -> TensorSpec:
    """Return the table that several inputs form."""
    datatypes = {column.datatype for column in columns}
    datatype = "FP64"
    if len(datatypes) == 1:
        datatype = datatypes.pop()
    return TensorSpec("row", datatype, (-1, len(columns)))


def _check_features(rows: Rows) -> None:
    described = {
        "units": rows.units,
        "minimum": rows.minimum,
        "maximum": rows.maximum,
    }
    for key, values in described.items():
        if values and len(values) != len(rows.features):
            raise ModelLoadError(
                f"model.toml: features.{key} has {len(values)}, features.names has {len(rows.features)}"
            )
    for low, high in zip(rows.minimum, rows.maximum, strict=False):
        if low > high:
            raise ModelLoadError(
                "model.toml: features.minimum must not be above features.maximum"
            )


def _advice(body: memoryview) -> str:
    """Return a hint about decimal commas or semicolons, which some spreadsheets write."""
    text = bytes(body[:MAX_INSPECTED]).decode("utf-8", errors="replace")
    if _COMMA_IN_LINE.search(text):
        return POINT
    if ";" in text.partition("\n")[0]:
        return "; separate the numbers by commas, not by semicolons"
    return ""


def _number(text: str) -> int | float | None:
    """Parse a number; an empty cell is NaN.

    Return None if it isn't a number. Python parses ``1e400`` as infinity and accepts ``1_000``: both are rejected.
    """
    if not text:
        return math.nan
    try:
        if text.lstrip("+-").isdecimal() and len(text) < 20:
            return int(text)
        value = float(text)
    except ValueError:
        return None
    if "_" in text:
        return None
    if not math.isinf(value):
        return value
    if "inf" not in text.lower():
        return None
    if value > 0:
        return strict_json.INFINITY
    return strict_json.MINUS_INFINITY
