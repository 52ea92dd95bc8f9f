"""The rows of a source, checked: of a span as units, or whole columns, as conditions.

A unit is a table with `ROW`, `ID`, those of `TEXTS` (two for pairs of sentences), `CONDITIONS` (with a condition
column) and the kept columns with the prefix `KEEP`; one of several files has `FILE`, too, their URIs.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from math import inf
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.errors import RequestError, check_problems, is_words, normal_words
from raycase.io.inputs import FORMATS, find_input, peek, source_of
from raycase.io.json_values import not_json
from raycase.io.schema import CONDITION, ID, INT64, TEXT, TOKEN_COLUMNS, Columns, Reason, Rejection, check_once
from raycase.io.source import InputFile, Line, Source, Span, SpanRows, readable
from raycase.io.storage import locate
from raycase.io.text_files import Csv

ROW, FILE, SECOND, CONDITIONS, KEEP = "row", "file", "second", "conditions", "keep:"
CHUNKS = "chunks"  # of the text of a row
TEXTS = (TEXT, SECOND)
NAMED = (CONDITION, "label")  # columns of what is compared as `normal_words`


def read_span(
    source: Source, span: Span, columns: Columns, units: Sequence[tuple[int, int]]
) -> Iterator[tuple[pa.Table, list[Rejection]]]:
    """Rows and rejections of each unit, rows [start, end) of a span, in order; the span is fetched once.

    Its end is read before the last rows are given: a compressed file is checked there.
    """
    with source.reading():
        blocks = source.read(columns.names, span)
        held, read = SpanRows(), span.start
        for start, end in units:
            while read < end + (end == span.start + span.rows) and (block := next(blocks, None)) is not None:
                read += len(block)
                held = (held + block).within(start, inf)
            if read < end:
                raise ValueError(f"fewer rows than the {end} that were planned; it has changed since")
            unit, held = held.within(start, end), held.within(end, inf)
            rows, rejections = _line_rows(unit.lines, columns)  # lines that are no proper row become rejections
            if unit.table is not None:
                rows, broken = _table_rows(unit.table, unit.numbers, columns)
                rejections += broken
            yield _checked(span.file, columns, rows, rejections)


def check_rows(table: pa.Table, columns: Columns) -> tuple[pa.Table, list[Rejection]]:
    """The rows of a table as those of a unit, by the same rules."""
    return _checked(0, columns, *_table_rows(table, np.arange(len(table)), columns))


def read_files(
    uri: str, names: Sequence[str], flag: str, *, words: Sequence[str] = ()
) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """How a message names each file of an input, and its `read_columns`. Raises RequestError."""
    for file in find_input(uri, flag):
        yield f"{flag}: {file.uri}", read_columns(file, names, flag, words=words)


def read_columns(file: InputFile, names: Sequence[str], flag: str, words: Sequence[str] = ()) -> dict[str, list[Any]]:
    """Whole columns of a small file; those in `words` stripped, of conditions and labels in their normal form."""
    where = f"{flag}: {file.uri}"
    columns: dict[str, list[Any]] = {name: [] for name in names}
    source = source_of(file)
    with source.reading():
        for name in names if source.has_schema else ():
            check_once(name, source.schema.names, where)
        for block in source.read(names):
            for row, line in block.lines.items():
                if line.values is None:
                    raise RequestError(f"{where}, row {row}: {line.problem}: {line.detail}; fix the row")
                for name in names:
                    check_once(name, list(line.values), f"{where}, row {row}")
                    columns[name].append(line.values[name])
            if block.table is not None:
                for name in names:
                    columns[name] += block.table[name].to_pylist()
    for name in words:
        for row, value in enumerate(columns[name]):
            if not is_words(value):
                raise RequestError(
                    f"{where}, row {row}: expected words in {name!r}, got {value!r}; fix or remove the row"
                )
        columns[name] = [*map(normal_words if name in NAMED else str.strip, columns[name])]
    return columns


def read_conditions(values: Sequence[str], flag: str = "--conditions") -> list[str]:
    """The conditions of a job, or --labels: strings, or one file (.txt, or a table with one such column)."""
    name = flag.removeprefix("--").removesuffix("s")
    conditions: list[object] = list(values)
    file = conditions_file(values)
    if file is not None:
        if len(values) > 1:
            raise RequestError(
                f"{flag}: expected {name}s or one file of them, got {len(values)} values with {file} among them; put "
                "them into one file"
            )
        if file.lower().endswith(".txt"):
            with readable(locate(file)) as location:
                lines = re.split("[\r\n]", location.read().decode("utf-8-sig"))  # not at other white space
            conditions = [line for line in lines if line.strip()]
        else:
            conditions = []
            for found in find_input(file, flag):
                names = peek(found).names
                header = normal_words("".join(names)).lower().removesuffix("s")
                is_named = header == name or not isinstance(source_of(found), Csv)
                column = names[0] if len(names) == 1 and is_named else name
                advice = f"; if its first line is a {name} and no header, put the line {name} above it"
                check_once(column, names, f"{flag}: {found.uri}", advice)
                conditions += read_columns(found, [column], flag)[column]
        if not conditions:
            raise RequestError(f"{flag}: expected at least one {name} in {file}, got none")
    folder = next((each for each in map(str, values) if re.search(r"[/\\]|^\.+$", each) and os.path.isdir(each)), None)
    got = f"got the folder {folder}; name its file"
    check_problems({f"{flag}: expected {name}s or one file of them, {got}": file is None and folder})
    return distinct_words(conditions, flag)


def distinct_words(values: Iterable[object], flag: str, expected: str = "") -> list[str]:
    """Conditions or labels, with words and distinct, in their normal form; `expected`: how a message begins."""
    name = flag.removeprefix("--").removesuffix("s")
    found: dict[str, int] = {}
    for i, value in enumerate(values):
        if not is_words(value):
            raise RequestError(f"{expected or f'{flag}: expected words in every {name}'}, got {value!r} at index {i}")
        if (first := found.setdefault(normal := normal_words(str(value)), i)) != i:
            once = expected or f"{flag}: expected each {name} once"
            raise RequestError(f"{once}, got {normal!r} twice, at index {first} and {i}")
    return list(found)


def conditions_file(values: Sequence[str]) -> str | None:
    """The file among the values; None where they are conditions."""
    files = (".txt", *FORMATS)
    return next((value for value in values if isinstance(value, str) and value.lower().endswith(files)), None)


def check_no_file(flag: str, values: Sequence[str], advice: str = "") -> None:
    """Refuse the name of a file in place of words."""
    if (file := conditions_file(values)) and " " not in file:
        raise RequestError(f"{flag}: expected words, got the file {file}{advice}")


def _table_rows(table: pa.Table, rows: np.ndarray, columns: Columns) -> tuple[pa.Table, list[Rejection]]:
    """The rows of a unit under the names of this module; those with invalid UTF-8 are rejected."""
    arrays: dict[str, Any] = {ROW: pa.array(rows, pa.int64())}
    for own, (name, type_) in _own_columns(columns).items():
        column = table[name].combine_chunks()
        if own == CONDITIONS and not isinstance(column, (pa.ListArray, pa.LargeListArray)):
            column = pa.ListArray.from_arrays(np.arange(len(table) + 1, dtype=np.int32), column.cast(pa.string()))
        arrays[own] = column.cast(type_)
    unit = pa.table(arrays)
    if _is_utf8(unit):
        return unit, []
    broken: dict[int, tuple[Reason, str]] = {}
    for own in unit.column_names:
        why = Reason.INVALID_UTF8, f"column {own.removeprefix(KEEP)}"
        broken |= {i: why for i in range(len(unit)) if not _is_utf8(unit.select([own]).take([i]))}
    return without(unit, broken)


def _is_utf8(table: pa.Table) -> bool:
    """Whether all of its texts are, wherever they are nested."""
    try:
        table.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _own_columns(columns: Columns) -> dict[str, tuple[str, pa.DataType]]:
    """The columns of a unit: under the name of this module that of the input, and its type in the unit."""
    own = {of: (name, pa.string()) for of, name in zip(TEXTS, columns.texts, strict=False)}
    if columns.id is not None:
        own[ID] = columns.id, columns.id_type
    if columns.condition is not None:
        own[CONDITIONS] = columns.condition, pa.list_(pa.string())
    own |= {name: (name, pa.large_binary()) for name in columns.tokens}
    return own | {KEEP + name: (name, columns.types[name]) for name in columns.keep}


def _line_rows(lines: dict[int, Line], columns: Columns) -> tuple[pa.Table, list[Rejection]]:
    """Lines as a table of a unit, and as rejections."""
    rejections: list[Rejection] = []
    own_columns = _own_columns(columns)
    values: dict[str, list[Any]] = {own: [] for own in own_columns}
    numbers: list[int] = []
    for row, line in lines.items():
        reason, detail = line.problem, line.detail
        try:
            if line.values is not None:
                typed = [_typed(line.values.get(name), own, name, type_) for own, (name, type_) in own_columns.items()]
                numbers.append(row)
                for column, value in zip(values.values(), typed, strict=True):
                    column.append(value)
                continue
        except TypeError as error:
            reason, detail = Reason.WRONG_TYPE, str(error)
        except UnicodeEncodeError as error:
            reason, detail = Reason.INVALID_UTF8, str(error)
        rejections.append(Rejection(row=row, reason=reason, detail=detail, content=line.raw))
    arrays = {own: pa.array(values[own], type_) for own, (_, type_) in own_columns.items()}
    return pa.table({ROW: pa.array(numbers, pa.int64()), **arrays}), rejections


FITS: dict[pa.DataType, Callable[[Any], bool]] = {  # the types that JSONL holds
    pa.bool_(): lambda value: isinstance(value, bool),
    pa.int64(): lambda value: type(value) is int and value in INT64,
    pa.float64(): lambda value: type(value) is float or (FITS[pa.int64()](value) and float(value) == value),
    pa.string(): lambda value: isinstance(value, str),
}


def _typed(value: Any, own: str, name: str, type_: pa.DataType) -> Any:
    """A value of JSON in the type of its column, else TypeError; other than texts may become JSON text."""
    if own == CONDITIONS:
        return [_typed(each, TEXT, name, pa.string()) for each in (value if isinstance(value, list) else [value])]
    if value is None:
        return None
    if type_ == pa.string() and own not in TEXTS and not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, default=not_json)
    if not (type_ in FITS and FITS[type_](value)):
        wanted = "a string" if type_ == pa.string() else f"{type_} as in the first rows"
        raise TypeError(f"column {name}: expected {wanted}, got {value!r}")
    if isinstance(value, str):
        value.encode()
    return float(value) if type_ == pa.float64() else value  # pyarrow takes no integer beyond 2**53 for a float


def _checked(
    file: int, columns: Columns, rows: pa.Table, rejections: list[Rejection]
) -> tuple[pa.Table, list[Rejection]]:
    """Reject rows without text, id or condition; conditions get their normal form, ids of no column `file:row`."""
    if ID not in rows.column_names:
        rows = rows.append_column(ID, pa.array([f"{file}:{row}" for row in rows[ROW].to_pylist()], pa.string()))
    bad: dict[int, tuple[Reason, str]] = {}

    def reject(mask: Any, reason: Reason, detail: str = "") -> None:
        for i in np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False)):
            bad.setdefault(int(i), (reason, detail))

    several = len(columns.texts) > 1
    for name, column in zip(TEXTS, columns.texts, strict=False):
        text = rows[name].combine_chunks()
        detail = f"column {column}" if several else ""
        reject(text.is_null(), Reason.NULL_TEXT, detail)
        reject(pc.equal(pc.utf8_trim_whitespace(text), ""), Reason.EMPTY_TEXT, detail)
    reject(rows[ID].combine_chunks().is_null(), Reason.NULL_ID)
    if CONDITIONS not in rows.column_names:
        good, refused = without(rows, bad)
        return good, rejections + refused
    normal = cache(normal_words)
    found = [of_row and [each and normal(each) for each in of_row] for of_row in rows[CONDITIONS].to_pylist()]
    for i, conditions in enumerate(found):
        if problem := _condition_problem(conditions):
            bad.setdefault(i, (problem, ""))
    good, refused = without(rows, bad)
    column = pa.array([conditions for i, conditions in enumerate(found) if i not in bad], pa.list_(pa.string()))
    return good.set_column(good.column_names.index(CONDITIONS), CONDITIONS, column), rejections + refused


def without(rows: pa.Table, bad: Mapping[int, tuple[Reason, str]]) -> tuple[pa.Table, list[Rejection]]:
    """A unit's rows without some, and these as rejections; `bad`: reason and detail by the number of the row."""
    if not bad:
        return rows, []
    is_bad = np.isin(np.arange(len(rows)), [*bad])
    values = zip(*(map(_python_value, column) for column in rows.filter(is_bad).columns), strict=True)
    named = (dict(zip(rows.column_names, row, strict=True)) for row in values)
    return rows.filter(~is_bad), [_rejection(row, *bad[i]) for i, row in zip(sorted(bad), named, strict=True)]


def _python_value(value: Any) -> Any:
    """The value; of one that Python has not its bytes as text, or its type."""
    try:
        return value.as_py()
    except (OverflowError, ValueError, ImportError):  # a date beyond the year 9999, invalid UTF-8, an unknown zone
        is_text = isinstance(value, pa.StringScalar)
        return value.as_buffer().to_pybytes().decode("utf-8", "backslashreplace") if is_text else f"some {value.type}"


def _rejection(values: dict[str, Any], reason: Reason, detail: str) -> Rejection:
    """The rejection of a row of a unit's table, given as a dictionary."""
    others = (ROW, FILE, CHUNKS, *TOKEN_COLUMNS)
    content = {name.removeprefix(KEEP): value for name, value in values.items() if name not in others}
    id_ = values.get(ID)
    return Rejection(
        row=values[ROW],
        file=values.get(FILE, ""),
        reason=reason,
        detail=detail,
        id=None if id_ is None else str(id_),
        content=json.dumps(content, ensure_ascii=False, default=str),
    )


def _condition_problem(conditions: Sequence[str | None] | None) -> Reason | None:
    """The reason to reject a row with these conditions, in their normal form, or None."""
    several = [None] if conditions is None else conditions
    if None in several:
        return Reason.NULL_CONDITION
    if not all(several) or not several:
        return Reason.EMPTY_CONDITION
    return Reason.DUPLICATE_CONDITION if len({*several}) < len(several) else None
