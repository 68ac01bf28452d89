"""Parses label files: class names as text lines, CSV, JSON or a label map of TensorFlow.

Where a file states the index of each class, the index decides the order. Otherwise the order of the lines does.
"""

from __future__ import annotations

import ast
import codecs
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pocketserve.formats import DamagedFileError

MAX_LABELS: Final = 1 << 20
"""Lines or entries of all languages together."""

_LINE_ENDS = (
    b"\n",
    b"\r",
    b"\v",
    b"\f",
    b"\x1c",
    b"\x1d",
    b"\x1e",
    b"\xc2\x85",
    b"\xe2\x80\xa8",
    b"\xe2\x80\xa9",
)
"""Line ends of ``str.splitlines``, in UTF-8."""

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
"""The mark of UTF-32 comes before that of UTF-16, which it starts with."""

MAX_LITERAL: Final = 1 << 18
"""Characters of a text in Python's notation; reading one takes a hundred times its size."""

MIN_DIFFERENT: Final = 0.9
"""Share of names that must differ where their numbers may belong to them. ImageNet has
two names twice."""

COCO_LINES: Final = 20
COCO_SHARE: Final = 0.8
"""Share of its numbers that an index like COCO's uses: COCO names 80 of 90."""

MAX_NUMBERED_LINE = 1000  # characters of a line that may state an index
_INDEX = r"\d{1,7}"
# These are compiled on first use: few label files need them.
_INDEX_FIRST = rf"[\[(]?({_INDEX})(?:\s*[:,;=]\s*|(\s+[-–—]\s+)|[])]\s*|\.\s+|\.(?=\D)|(\s+))(\S.*)"
_QUOTED = r"""(["'])(.*)\1,?"""
_RANGE = rf"({_INDEX})\s+(?:[-–—]|to)\s+({_INDEX})\b"
_INDEX_LAST = rf"{_INDEX}$"
_YAML_KEYS = ("names:", "labels:", "classes:")
_SEPARATORS = " \t:,;="
_INDEX_HEADERS = (
    "index",
    "id",
    "classid",
    "classindex",
    "labelid",
    "labelindex",
    "class",
    "number",
)
_NAME_HEADERS = (
    *("displayname", "name", "classname", "labelname", "categoryname", "signname"),
    *("label", "labels", "class", "classes"),
)
"""Column names of CSV files as :func:`_plain_header` returns them."""

_JSON_LISTS = (
    *("labels", "classes", "class_names", "names", "categories"),
    *("id2label", "label2id"),
)
_JSON_NAMES = ("display_name", "name", "label", "class_name")
_JSON_NUMBERS = ("id", "index", "class_id", "class_index")

_MAP_ITEM = r"\bitem\s{0,20}:?\s{0,20}\{([^{}]{0,4000})"
_MAP_VALUE = r"""(?:(\d{1,7})|"([^"\n]{0,500})"|'([^'\n]{0,500})')"""
_MAP_FIELD = rf"\b(id|name|display_name)\s{{0,20}}:\s{{0,20}}{_MAP_VALUE}"


class LabelFile(NamedTuple):
    """A parsed label file.

    Attributes:
        names: class names by index; a class without a name has an empty one.
        note: a fault that didn't prevent reading, as the end of a sentence; empty if there is none.
        lines: the lines as names, if their numbers may be an index with gaps or belong
            to the names; empty otherwise.
    """

    names: list[str]
    note: str = ""
    lines: Sequence[str] = ()


def parse_labels(file_name: str, content: bytes) -> LabelFile:
    """Parse a label file by the ending of its name.

    Raises:
        DamagedFileError: the reason, as the end of a sentence.
    """
    text, note = decode_text(content)
    ending = file_name.rpartition(".")[2].casefold()
    if ending == "json":
        names = _of_json(text)
    elif ending == "pbtxt":
        names = _of_label_map(text)
    elif ending == "csv":
        names = _of_csv(text)
    else:
        return _of_text(text)._replace(note=note)
    return LabelFile(names, note)


def check_line_count(contents: Sequence[bytes]) -> None:
    """Bound the memory of the lines: an empty one has one byte in the file, and a hundred as a text in a list."""
    count = 0
    for content in contents:
        for end in _LINE_ENDS:
            count += content.count(end)
    if count > MAX_LABELS:
        raise DamagedFileError(
            f"the label files have more than {MAX_LABELS:,} lines in all languages together"
        )


def decode_text(content: bytes) -> tuple[str, str]:
    """Return the text, and a note if its encoding had to be guessed.

    Raises:
        DamagedFileError: the content is not text.
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if content.startswith(mark):
            try:
                return content.decode(encoding), ""
            except UnicodeDecodeError as error:
                raise DamagedFileError(
                    f"is not valid {encoding.upper()}: {error.reason}"
                ) from None
    if b"\0" in content:
        raise DamagedFileError("is not a text file; save it as text in UTF-8")
    try:
        return content.decode("utf-8"), ""
    except UnicodeDecodeError:
        pass
    try:
        return content.decode(
            "cp1252"
        ), "is not UTF-8 and is read as Windows-1252; save it as UTF-8"
    except UnicodeDecodeError:
        return content.decode(
            "latin-1"
        ), "is not UTF-8 and is read as Latin-1; save it as UTF-8"


class _NumberedLine(NamedTuple):
    """A line with a number beside its name.

    Attributes:
        may_skip: whether the numbers of such lines may have gaps.
        is_plain: whether only spaces separate them, so that the number may belong to
            the name, as in ``2 doors``.
    """

    number: int
    name: str
    may_skip: bool
    is_plain: bool


def _of_text(text: str) -> LabelFile:
    """Return names of a text file, which may hold a list or a map of JSON or Python as well.

    Raises:
        DamagedFileError: it holds a set of Python.
    """
    stripped = text.strip()
    if stripped[:1] + stripped[-1:] in ("[]", "{}", "()"):
        names = _of_literal(_literal(stripped))
        if names:
            return LabelFile(names)
    lines = text.splitlines()
    indexed = _of_commented_lines(lines)
    return _of_lines(_without_marks(lines)) if indexed is None else indexed


def _of_literal(value: Any) -> list[str]:
    """Return names of a value in JSON or Python's notation; empty if it has none.

    Raises:
        DamagedFileError: it is a set, or a map with one.
    """
    values = [value]
    if isinstance(value, dict):
        values.extend(value.get(key) for key in _JSON_LISTS)
    if any(isinstance(item, set) for item in values):
        raise DamagedFileError(
            "is a Python set, which has no order; write a list, ['a', 'b']"
        )
    try:
        return _of_value(value)
    except DamagedFileError:
        return []


def _of_commented_lines(lines: Sequence[str]) -> LabelFile | None:
    """Return names of lines between comments; None without comments.

    A name may begin with ``#``. So there must be an index, or YAML's ``names:``.
    """
    rest = [line for line in lines if not line.lstrip().startswith("#")]
    if len(rest) == len(lines):
        return None
    plain = _without_marks(rest)
    indexed = _of_index(plain)
    if indexed is not None or not _has_yaml_key(rest):
        return indexed
    return LabelFile(list(plain))


def _has_yaml_key(lines: Sequence[str]) -> bool:
    """Return whether the first filled line is YAML's ``names:`` or the like."""
    filled = [line.strip() for line in lines if line.strip()]
    return len(filled) > 1 and filled[0] in _YAML_KEYS


def _literal(text: str) -> Any:
    """Parse JSON, or else Python's notation; return None for anything else."""
    if text.count(",") > 2 * MAX_LABELS:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    if len(text) > MAX_LITERAL:
        return None
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError):
        return None


def _without_marks(lines: Sequence[str]) -> Sequence[str]:
    """Return lines without the quotes, commas or dashes that all of them have, and without YAML's ``names:``."""
    filled = _filled_lines(lines)
    if _has_yaml_key(lines):
        filled = filled[1:]
        lines = filled
    if len(filled) < 2:
        return lines
    if all(line.startswith("- ") for line in filled):
        return [line[2:].strip() for line in filled]
    unquoted = _unquoted(filled)
    if unquoted:
        return unquoted
    if all(line.endswith(",") for line in filled[:-1]):
        return [line.removesuffix(",").strip() for line in filled]
    return lines


def _filled_lines(lines: Sequence[str]) -> list[str]:
    """Return the lines that aren't blank, stripped."""
    stripped = [line.strip() for line in lines]
    return [line for line in stripped if line]


def _unquoted(lines: Sequence[str]) -> list[str]:
    """Return lines without quotes; empty unless all of them are quoted."""
    if not all(line.startswith(('"', "'")) for line in lines):
        return []
    names = []
    for line in lines:
        match = re.fullmatch(_QUOTED, line)
        if match is None:
            return []
        names.append(match[2])
    return names


def _of_lines(lines: Sequence[str]) -> LabelFile:
    """Return names of lines, ordered by the index that all of them state, if they do."""
    indexed = _of_index(lines)
    return LabelFile(list(lines)) if indexed is None else indexed


def _of_index(lines: Sequence[str]) -> LabelFile | None:
    """Return names by the index that all lines state; None if they don't."""
    filled = _filled_lines(lines)
    if not all(_may_state_index(line) for line in filled):
        return None
    if any(_is_range(line) for line in filled):
        return None
    for split in (_split_index_first, _split_index_last):
        numbered = _split_all(filled, split)
        if numbered is None or not _is_index(numbered):
            continue
        names = by_index({line.number: line.name for line in numbered})
        is_plain = all(line.is_plain for line in numbered)
        if is_plain and not _is_gapless(numbered):
            return LabelFile(names, lines=lines)  # the numbers may be parts of names
        return LabelFile(names)
    return None


def _split_all(
    lines: Sequence[str], split: Callable[[str], _NumberedLine | None]
) -> list[_NumberedLine] | None:
    """Split lines into index and name; None if a line can't be split."""
    numbered = []
    for line in lines:
        split_line = split(line)
        if split_line is None:
            return None
        numbered.append(split_line)
    return numbered


def _may_state_index(line: str) -> bool:
    """Return whether a line has a digit and something else, its name."""
    return not line.isdecimal() and any(character.isdecimal() for character in line)


def _is_range(line: str) -> bool:
    """Return whether a line begins with a range such as ``3 - 9``."""
    match = re.match(_RANGE, line)
    return match is not None and int(match[1]) < int(match[2])


def _split_index_first(line: str) -> _NumberedLine | None:
    """Split ``0 red``, ``0: red``, ``0,red``, ``0. red`` or ``0 - red``."""
    if len(line) > MAX_NUMBERED_LINE:
        return None
    match = re.fullmatch(_INDEX_FIRST, line)
    if match is None:
        return None
    number, dash, spaces, name = match.groups()
    is_plain = spaces is not None and "\t" not in spaces
    return _NumberedLine(int(number), name, dash is None, is_plain)


def _split_index_last(line: str) -> _NumberedLine | None:
    """Split ``red 0``, ``red: 0`` or ``red,0``."""
    if len(line) > MAX_NUMBERED_LINE:
        return None
    match = re.search(_INDEX_LAST, line)
    if match is None:
        return None
    head = line[: match.start()]
    name = head.rstrip(_SEPARATORS)
    if not name or name == head:
        return None
    separator = head[len(name) :]
    is_plain = not separator.strip(" ")
    return _NumberedLine(int(match[0]), name, False, is_plain)


def _is_index(lines: Sequence[_NumberedLine]) -> bool:
    """Return whether numbers beside names are their index, not a part of them.

    ``2 doors, 4 doors`` and ``class 1, class 2`` are names: their numbers don't start at 0 or 1, or their words are
    the same. ``7 up, 1 apple`` are names too: an index in any order has no gaps. So are
    ``1 bed, 3 beds, 2 sofas``: only an index from 0 leaves no doubt about equal words.
    """
    numbers = [line.number for line in lines]
    count = len(numbers)
    if not numbers or min(numbers) > 1 or len(set(numbers)) < count:
        return False
    different = len({_stem(line.name) for line in lines})
    if different * 2 <= count:
        return False
    is_gapless = _is_gapless(lines)
    is_plain = all(line.is_plain for line in lines)
    is_sure = is_gapless and min(numbers) == 0
    if is_plain and not is_sure and different < MIN_DIFFERENT * count:
        return False
    if is_gapless:
        return True
    is_ascending = numbers == sorted(numbers)
    return (
        is_ascending
        and max(numbers) < 10 * count + 100
        and all(line.may_skip for line in lines)
    )


def _is_gapless(lines: Sequence[_NumberedLine]) -> bool:
    """Return whether different numbers from 0 or 1 leave none out."""
    numbers = [line.number for line in lines]
    return max(numbers) < len(numbers) + min(numbers)


def _stem(name: str) -> str:
    """Return a name without the ending of an English plural."""
    return name.casefold().removesuffix("s").removesuffix("e")


def by_index(numbered: Mapping[int, str]) -> list[str]:
    """Return names as a list, gaps empty.

    Raises:
        DamagedFileError: an index is negative or far above the number of names.
    """
    if not numbered:
        return []
    highest = max(numbered)
    if min(numbered) < 0 or highest >= min(MAX_LABELS, 10 * len(numbered) + 100):
        raise DamagedFileError(
            f"numbers its classes from {min(numbered)} to {highest}, with too many gaps"
        )
    return [numbered.get(index, "") for index in range(highest + 1)]


def _of_csv(text: str) -> list[str]:
    """Return names of a CSV file, with or without a line of column names."""
    rows = _csv_rows(text)
    if not rows:
        return []
    head = [_plain_header(cell) for cell in rows[0]]
    name_column = _first_of(_NAME_HEADERS, head)
    if name_column is None:
        return _of_headless_csv(rows)
    names = [_cell(row, name_column) for row in rows[1:]]
    index_column = _first_of(_INDEX_HEADERS, head)
    if index_column is None or index_column == name_column:
        return names
    numbered: dict[int, str] = {}
    for row, name in zip(rows[1:], names, strict=True):
        number = _cell(row, index_column)
        if not re.fullmatch(r"\d{1,7}", number) or int(number) in numbered:
            return names
        numbered[int(number)] = name
    return by_index(numbered)


def _csv_rows(text: str) -> list[list[str]]:
    """Return the rows of a CSV file that have a filled cell."""
    import csv  # late: few models have such a file

    rows = []
    try:
        for row in csv.reader(text.splitlines(), delimiter=_delimiter(text)):
            if any(cell.strip() for cell in row):
                rows.append(row)
    except csv.Error as error:
        raise DamagedFileError(f"is not valid CSV: {error}") from None
    return rows


def _of_headless_csv(rows: list[list[str]]) -> list[str]:
    """Return names from the first and last cells of rows."""
    if _has_unknown_header(rows):
        rows = rows[1:]
    lines = []
    for row in rows:
        line = row[0]
        if len(row) > 1:
            # A tab, since a space may be part of a name.
            line = f"{row[0]}\t{row[-1]}"
        lines.append(line)
    return [name.replace("\t", " ") for name in _of_lines(lines).names]


def _cell(row: Sequence[str], column: int) -> str:
    """Return a row's cell; empty if the row is shorter."""
    if column >= len(row):
        return ""
    return row[column].strip()


def _delimiter(text: str) -> str:
    """Return what separates the cells: spreadsheets of some languages write semicolons."""
    first = text.lstrip().partition("\n")[0]
    for delimiter in (",", ";", "\t"):
        if delimiter in first:
            return delimiter
    return ","


def _plain_header(cell: str) -> str:
    """Return a column name without case, spaces and underscores."""
    return re.sub(r"[\s_]", "", cell).casefold()


def _has_unknown_header(rows: Sequence[Sequence[str]]) -> bool:
    """Return whether the first or last cells are numbers in all rows except the first."""
    if len(rows) < 2 or min(len(row) for row in rows) < 2:
        return False
    for column in (0, -1):
        are_numeric = [
            re.fullmatch(_INDEX, row[column].strip()) is not None for row in rows
        ]
        if not are_numeric[0] and all(are_numeric[1:]):
            return True
    return False


def _first_of(choices: Sequence[str], head: Sequence[str]) -> int | None:
    for choice in choices:
        if choice in head:
            return head.index(choice)
    return None


def _of_json(text: str) -> list[str]:
    """Return names of a JSON list or object."""
    if text.count(",") > 2 * MAX_LABELS:
        raise DamagedFileError(f"has more than {MAX_LABELS:,} names")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DamagedFileError(f"is not valid JSON: {str(error)[:200]}") from None
    return _of_value(content)


def _of_value(content: Any) -> list[str]:
    """Return names of a list or a map."""
    if isinstance(content, dict):
        for key in _JSON_LISTS:
            if isinstance(content.get(key), list | tuple | dict):
                content = content[key]
                break
    is_list = isinstance(content, list | tuple)
    names = _of_json_list(content) if is_list else _of_json_map(content)
    if names is None:
        raise DamagedFileError('must be a list of names, {"0": "name"} or {"name": 0}')
    return names


def _of_json_list(items: Sequence[Any]) -> list[str] | None:
    """Return names of a list of texts, or of objects with a name and perhaps an index."""
    if all(isinstance(item, str) for item in items):
        return list(items)
    if all(_is_pair(item) for item in items):
        return _of_json_map({str(number): name for number, name in items})
    if not all(isinstance(item, dict) for item in items):
        return None
    numbered: dict[int, str] = {}
    for position, item in enumerate(items):
        name = _first_value(item, _JSON_NAMES, str)
        if name is None:
            return None
        index = _first_value(item, _JSON_NUMBERS, int)
        if index is None:
            index = position
        numbered[index] = name
    if len(numbered) != len(items):
        return None
    return by_index(numbered)


def _is_pair(item: object) -> bool:
    """Return whether an item of a list is an index and a name."""
    return (
        isinstance(item, list | tuple)
        and len(item) == 2
        and type(item[0]) is int
        and isinstance(item[1], str)
    )


def _first_value(item: Mapping[str, Any], keys: Sequence[str], kind: type) -> Any:
    for key in keys:
        if type(item.get(key)) is kind:
            return item[key]
    return None


def _of_json_map(content: Any) -> list[str] | None:
    """Return names of a map from index to name, or from name to index."""
    if not isinstance(content, dict):
        return None
    numbered: dict[int, str] = {}
    for key, value in content.items():
        entry = _map_entry(
            str(key), value
        )  # Python's notation may have numbers as keys
        if entry is None:
            return None
        index, name = entry
        if index in numbered:
            raise DamagedFileError(f"gives the index {index} to two names")
        numbered[index] = name
    return by_index(numbered)


def _map_entry(key: str, value: Any) -> tuple[int, str] | None:
    """Return index and name of an entry; None if it has no index."""
    if isinstance(value, dict):
        value = _first_value(value, _JSON_NAMES, str)
    if isinstance(value, list) and value and isinstance(value[-1], str):
        value = value[-1]  # Keras writes [WordNet number, name]
    if _is_number_text(key) and isinstance(value, str):
        return int(key), value
    if type(value) is int or _is_number_text(value):
        return int(value), key
    return None


def _is_number_text(value: Any) -> bool:
    """Return whether a value is a text of digits."""
    return isinstance(value, str) and re.fullmatch(r"\d{1,7}", value) is not None


def _of_label_map(text: str) -> list[str]:
    """Return names of a label map of TensorFlow's object detection: ``item { id: 1 name: 'cat' }``."""
    numbered: dict[int, str] = {}
    for item in re.finditer(_MAP_ITEM, _without_comments(text)):
        fields: dict[str, str] = {}
        for key, number, double, single in re.findall(_MAP_FIELD, item[1]):
            fields[key] = number or double or single
        name = fields.get("display_name") or fields.get("name")
        if name is None or not fields.get("id", "").isdecimal():
            raise DamagedFileError("has an item without id or name")
        numbered[int(fields["id"])] = name
    if not numbered:
        raise DamagedFileError("has no item { id: 1 name: '...' }")
    return by_index(numbered)


def _without_comments(text: str) -> str:
    """Return a text without lines that begin with ``#``."""
    lines = []
    for line in text.splitlines():
        if line.lstrip().startswith("#"):
            line = line.partition("#")[0]
        lines.append(line)
    return "\n".join(lines)


def names_or_lines(file: LabelFile, classes: int) -> Sequence[str]:
    """Return names by index, or the lines if their index has gaps and fits nothing.

    ``1 euro, 2 pounds, 5 yen`` are three names, or an index of five or six classes.
    Many lines with few gaps are an index, such as that of COCO.

    Args:
        classes: as for :func:`fit_to_classes`.
    """
    names = file.names
    if not file.lines:
        return names
    sizes = [len(names)]
    if not names[0]:
        sizes.append(len(names) - 1)
    filled = sum(1 for name in names if name)
    is_like_coco = filled >= COCO_LINES and filled >= COCO_SHARE * sizes[-1]
    count = 2 if classes == 1 else classes
    return names if is_like_coco or count in sizes else file.lines


def fit_to_classes(names: Sequence[str], classes: int) -> Sequence[str]:
    """Return names that match a number of classes, if blank lines or numbers from 1 are the only difference.

    Args:
        classes: the number of scores; 1 stands for one score of two classes, 0 or less for an unknown number.
    """
    count = classes
    if classes == 1:
        count = 2
    if count < 1 or len(names) == count:
        return names
    for candidate in _label_candidates(names):
        if len(candidate) == count:
            return candidate
    return names


def _label_candidates(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield names without blank lines and without comments."""
    trimmed = list(names)
    while trimmed and not trimmed[-1].strip():
        trimmed.pop()
    yield trimmed
    if trimmed and not trimmed[0].strip():
        yield trimmed[1:]
    filled = [name for name in trimmed if name.strip()]
    if len(filled) == 1:
        filled = [name.strip() for name in filled[0].split(",")]
    yield filled
    yield [name for name in filled if not name.lstrip().startswith("#")]
