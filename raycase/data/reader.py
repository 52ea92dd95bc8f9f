"""From input files to units of checked rows: Parquet by row groups, CSV and JSONL by byte ranges found once.

A unit is read as an Arrow table with the columns `ROW`, `ID`, `TEXT`, `CONDITIONS` (with a condition column) and the
kept columns under their own names with the prefix `KEEP`; rows that cannot be embedded become rejections.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raycase.data.inputs import InputFile, readable
from raycase.data.schema import CONDITION, EMBEDDING, ID, Reason, Rejection
from raycase.data.storage import STORE_ERRORS, Location, locate
from raycase.data.textfiles import Line, buffered, csv_header, csv_lines, jsonl_lines
from raycase.errors import RequestError, first_line

ROW, TEXT, CONDITIONS, KEEP = "row", "text", "conditions", "keep:"
FOOTER_BYTES = 2**16
PEEK_ROWS = 1000  # JSONL has no schema: types come from this many rows


@dataclass(frozen=True, kw_only=True)
class Span:
    """Consecutive rows [start, start + rows) of a file, fetched once.

    `at` and `length` are row groups for Parquet and bytes for CSV and JSONL.
    """

    file: int
    start: int
    rows: int
    at: int
    length: int
    bytes: int  # about how much there is to fetch
    header: tuple[str, ...] = ()  # CSV


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which columns are read; `types` holds the Arrow types of the id and the kept columns."""

    text: str
    id: str | None
    condition: str | None
    keep: tuple[str, ...]
    types: dict[str, pa.DataType]

    @property
    def names(self) -> list[str]:
        return list(dict.fromkeys(n for n in (self.id, self.text, self.condition, *self.keep) if n is not None))

    @property
    def id_type(self) -> pa.DataType:
        return pa.string() if self.id is None else self.types[self.id]

    @property
    def kept_fields(self) -> list[pa.Field]:
        return [pa.field(name, self.types[name]) for name in self.keep]


# --------------------------------------------------------------------------------------------------------- columns


def find_columns(
    file: InputFile, *, text: str, id: str | None, condition: str | None, keep: Sequence[str] | None
) -> Columns:
    """Resolve the columns asked for against the first file; `id` None takes the column `id` if there is one.

    Raises RequestError for a missing column, a text that is no string, and a kept column named like one of the output.
    """
    schema = peek(file)
    if id is None and ID in schema.names:
        id = ID
    kept = tuple(dict.fromkeys((text,) if keep is None else keep))
    for name in kept:
        if (name in (CONDITION, EMBEDDING) and name != condition) or (name == ID and id != ID):
            raise RequestError(f"--keep-columns: {name!r} is a column of the output; rename it in the input")
    kept = tuple(name for name in kept if name not in (ID, CONDITION))
    columns = Columns(text=text, id=id, condition=condition, keep=kept, types={})
    check_columns(schema, columns, file)
    types = {name: _kept_type(schema.field(name).type) for name in columns.names}
    types[text] = pa.string()
    if id is not None and not pa.types.is_integer(types[id]):
        types[id] = pa.string()
    return replace(columns, types=types)


def check_columns(schema: pa.Schema, columns: Columns, file: InputFile) -> None:
    """Raise RequestError where a file lacks a column, or has it in a type that cannot serve."""
    for name in columns.names:
        if name not in schema.names:
            raise RequestError(f"{file.uri}: expected the column {name!r}, got {', '.join(schema.names) or 'none'}")
    found = _plain_type(schema.field(columns.text).type)
    if not (pa.types.is_string(found) or pa.types.is_null(found)):
        raise RequestError(f"{file.uri}: expected strings in the column {columns.text!r}, got {found}")
    if columns.condition is not None:
        found = _plain_type(schema.field(columns.condition).type)
        inner = found.value_type if pa.types.is_list(found) else found
        if not (pa.types.is_string(inner) or pa.types.is_null(inner)):
            raise RequestError(f"{file.uri}: expected strings or lists of them in {columns.condition!r}, got {found}")
    if columns.id is not None:
        found = _plain_type(schema.field(columns.id).type)
        if pa.types.is_nested(found) or pa.types.is_binary(found):
            raise RequestError(f"{file.uri}: expected numbers or strings in the column {columns.id!r}, got {found}")
    for name, wanted in columns.types.items():
        found = schema.field(name).type
        as_text = name == columns.id and wanted == pa.string()
        if not (as_text or pa.types.is_null(found) or _kept_type(found) == wanted):
            raise RequestError(
                f"{file.uri}: expected {wanted} in the column {name!r} as in the first file, got {found}"
            )


def _kept_type(found: pa.DataType) -> pa.DataType:
    """The type that a column is written in: one for all integers, one for all floats, so that files agree."""
    found = _plain_type(found)
    if pa.types.is_integer(found) and not pa.types.is_uint64(found):
        return pa.int64()
    if pa.types.is_floating(found):
        return pa.float64()
    return pa.string() if pa.types.is_null(found) else found


def _plain_type(found: pa.DataType) -> pa.DataType:
    """Dictionary, large and view types as what they hold."""
    if pa.types.is_dictionary(found):
        return _plain_type(found.value_type)
    if pa.types.is_large_string(found) or pa.types.is_string_view(found):
        return pa.string()
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        return pa.list_(_plain_type(found.value_type))
    return found


def peek(file: InputFile) -> pa.Schema:
    """The columns of a file and their types: Parquet's own, strings for CSV, the first rows' for JSONL."""
    if file.ending == ".parquet":
        return _footer(file).schema.to_arrow_schema()
    with readable(file) as source, source.fs.open(source.path, "rb") as handle:
        if file.ending == ".csv":
            return pa.schema([(name, pa.string()) for name in csv_header(buffered(handle))])
        values: dict[str, set[type]] = {}
        for line, _ in zip(jsonl_lines(buffered(handle)), range(PEEK_ROWS), strict=False):
            for name, value in (line.values or {}).items():
                values.setdefault(name, set()).add(type(value))
        return pa.schema([(name, _json_type(kinds - {type(None)})) for name, kinds in values.items()])


def _json_type(kinds: set[type]) -> pa.DataType:
    """Arrow type for the Python types seen; anything mixed or nested is kept as JSON text."""
    if kinds == {bool}:
        return pa.bool_()
    if kinds == {int}:
        return pa.int64()
    if kinds and kinds <= {int, float}:
        return pa.float64()
    return pa.string()


# -------------------------------------------------------------------------------------------------------- planning


def plan_file(index: int, file: InputFile, columns: Columns, *, unit_rows: int, span_bytes: int) -> Iterator[Span]:
    """Cut a file into spans of at least `unit_rows` rows, the last one excepted. Reads CSV and JSONL once, and only
    as far as it is asked for spans.

    Raises RequestError for a file that cannot be read or lacks a column.
    """
    if file.ending == ".parquet":
        metadata = _footer(file)
        check_columns(metadata.schema.to_arrow_schema(), columns, file)
        yield from _parquet_spans(index, metadata, unit_rows)
        return
    with readable(file) as source, source.fs.open(source.path, "rb") as handle:
        stream = buffered(handle)
        header: tuple[str, ...] = ()
        at = 0
        if file.ending == ".csv":
            header = csv_header(stream)
            check_columns(pa.schema([(name, pa.string()) for name in header]), columns, file)
            at = stream.tell()
        rows = start = length = 0
        for line in _lines(file, stream, header):
            length += len(line.raw)
            rows += line.is_row
            if line.is_row and rows % unit_rows == 0 and length >= span_bytes:
                yield Span(file=index, start=start, rows=rows, at=at, length=length, bytes=length, header=header)
                start, at, rows, length = start + rows, at + length, 0, 0
        if rows:
            yield Span(file=index, start=start, rows=rows, at=at, length=length, bytes=length, header=header)


def _footer(file: InputFile) -> pq.FileMetaData:
    """What stands at the end of a Parquet file: read in one request, two where it is long."""
    with readable(file) as source:

        def end(count: int) -> bytes:
            return bytes(source.fs.cat_file(source.path, start=max(0, file.size - count), end=file.size))

        tail = end(FOOTER_BYTES)
        length = int.from_bytes(tail[-8:-4], "little") + 8
        return pq.read_metadata(pa.BufferReader(tail if length <= len(tail) else end(length)))


def _parquet_spans(index: int, metadata: pq.FileMetaData, unit_rows: int) -> Iterator[Span]:
    start = rows = at = size = 0
    for group in range(metadata.num_row_groups):
        rows += metadata.row_group(group).num_rows
        size += metadata.row_group(group).total_byte_size
        if rows >= unit_rows or (rows and group == metadata.num_row_groups - 1):
            yield Span(file=index, start=start, rows=rows, at=at, length=group + 1 - at, bytes=size)
            start, at, rows, size = start + rows, group + 1, 0, 0


def cut(span: Span, unit_rows: int) -> Iterator[tuple[int, int]]:
    """Row intervals [start, end) of a span's units, of nearly equal size."""
    units = max(1, round(span.rows / unit_rows))
    edges = [span.start + span.rows * i // units for i in range(units + 1)]
    return pairwise(edges)


# --------------------------------------------------------------------------------------------------------- reading


def read_span(
    file: InputFile, span: Span, columns: Columns, wanted: Sequence[tuple[int, int]]
) -> Iterator[tuple[pa.Table, list[Rejection]]]:
    """Rows and rejections of each wanted interval [start, end) of a span, in order; the span is fetched once.

    Raises RequestError for a file that has become unreadable.
    """
    with readable(file) as source:
        if file.ending == ".parquet":
            with source.fs.open(source.path, "rb") as handle:
                groups = list(range(span.at, span.at + span.length))
                parquet = pq.ParquetFile(handle, page_checksum_verification=True)
                table = parquet.read_row_groups(groups, columns=columns.names)
            if len(table) < span.rows:
                raise ValueError(f"{len(table)} rows where {span.rows} were planned; it has changed since")
            for start, end in wanted:
                rows = _parquet_rows(table.slice(start - span.start, end - start), start, columns)
                yield _checked(span.file, *rows)
            return
        data = io.BytesIO(source.fs.cat_file(source.path, start=span.at, end=span.at + span.length))
        lines = (line for line in _lines(file, data, span.header) if line.is_row)
        row = span.start
        for start, end in wanted:
            found = list(islice(lines, start - row, end - row))
            if len(found) < end - start:
                raise ValueError(f"fewer rows than the {end} that were planned; it has changed since")
            yield _checked(span.file, *_text_rows(found, start, columns))
            row = end


def _parquet_rows(table: pa.Table, start: int, columns: Columns) -> tuple[pa.Table, list[Rejection]]:
    """One unit's rows under the names of this module; rows with invalid UTF-8 become rejections."""
    place_ = pa.array(np.arange(start, start + len(table)), pa.int64())
    broken = _invalid_utf8(table)
    rejections = []
    if broken:
        for i, name in sorted(broken.items()):
            values = {n: _decoded(_as_bytes(table[n].slice(i, 1)).to_pylist()[0]) for n in table.column_names}
            id_ = None if columns.id is None or values[columns.id] is None else str(values[columns.id])
            content = json.dumps(values, ensure_ascii=False, default=str)
            rejection_ = Rejection(
                row=start + i, reason=Reason.INVALID_UTF8, detail=f"column {name}", id=id_, content=content
            )
            rejections.append(rejection_)
        good = pa.array([i for i in range(len(table)) if i not in broken], pa.int64())
        table, place_ = table.take(good), place_.take(good)
    arrays = {ROW: place_, TEXT: table[columns.text].cast(pa.string())}
    if columns.id is not None:
        arrays[ID] = table[columns.id].cast(columns.id_type)
    if columns.condition is not None:
        conditions = table[columns.condition]
        if not pa.types.is_list(_plain_type(conditions.type)):
            values = conditions.cast(pa.string()).to_pylist()
            arrays[CONDITIONS] = pa.array([[v] for v in values], pa.list_(pa.string()))
        else:
            arrays[CONDITIONS] = conditions.cast(pa.list_(pa.string()))
    for name in columns.keep:
        arrays[KEEP + name] = table[name].cast(columns.types[name])
    return pa.table(arrays), rejections


def _invalid_utf8(table: pa.Table) -> dict[int, str]:
    """Rows that hold invalid UTF-8, with the column. Parquet promises UTF-8 and does not check it."""
    broken: dict[int, str] = {}
    for name in table.column_names:
        column = table[name].combine_chunks()
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            for i, raw in enumerate(_as_bytes(column).to_pylist()):
                if any(_undecodable(r) for r in (raw if isinstance(raw, list) else [raw])):
                    broken[i] = name
    return broken


def _as_bytes(column: Any) -> Any:
    """Strings, or lists of them, as bytes; other types as they are."""
    kind = _plain_type(column.type)
    if pa.types.is_string(kind):
        return column.cast(pa.large_binary())
    if pa.types.is_list(kind) and pa.types.is_string(kind.value_type):
        return column.cast(pa.list_(pa.large_binary()))
    return column


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(v) for v in value]
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value


def _undecodable(raw: Any) -> bool:
    if not isinstance(raw, bytes):
        return False
    try:
        raw.decode()
    except UnicodeDecodeError:
        return True
    return False


def _lines(file: InputFile, stream: BinaryIO, header: tuple[str, ...]) -> Iterator[Line]:
    return csv_lines(stream, header) if file.ending == ".csv" else jsonl_lines(stream)


def _text_rows(lines: Sequence[Line], start: int, columns: Columns) -> tuple[pa.Table, list[Rejection]]:
    """One unit's lines as a table of this module's names, and rejections for those that have no place in it."""
    rejections: list[Rejection] = []
    kinds = {ROW: pa.int64(), TEXT: pa.string()}
    if columns.id is not None:
        kinds[ID] = columns.id_type
    if columns.condition is not None:
        kinds[CONDITIONS] = pa.list_(pa.string())
    kinds |= {KEEP + name: columns.types[name] for name in columns.keep}
    values: dict[str, list[Any]] = {name: [] for name in kinds}
    for row, line in enumerate(lines, start):
        content = line.raw.decode("utf-8", "backslashreplace").rstrip("\r\n")
        if line.values is None:
            assert line.problem is not None
            rejections.append(Rejection(row=row, reason=line.problem, detail=line.detail, content=content))
            continue
        try:
            typed = _typed_row(line.values, columns) | {ROW: row}
        except UnicodeEncodeError as error:
            detail = f"character {error.start}: {error.reason}"
            rejections.append(Rejection(row=row, reason=Reason.INVALID_UTF8, detail=detail, content=content))
        except TypeError as error:
            rejections.append(Rejection(row=row, reason=Reason.WRONG_TYPE, detail=str(error), content=content))
        else:
            for name, value in typed.items():
                values[name].append(value)
    return pa.table({name: pa.array(values[name], kind) for name, kind in kinds.items()}), rejections


def _typed_row(values: dict[str, Any], columns: Columns) -> dict[str, Any]:
    """A row as its columns want it. Raises TypeError, and UnicodeEncodeError for what UTF-8 cannot hold."""
    row: dict[str, Any] = {TEXT: _text(values.get(columns.text), columns.text)}
    if columns.id is not None:
        row[ID] = _scalar(values.get(columns.id), columns.id, columns.id_type)
    if columns.condition is not None:
        found = values.get(columns.condition)
        row[CONDITIONS] = [_text(c, columns.condition) for c in (found if isinstance(found, list) else [found])]
    return row | {KEEP + name: _scalar(values.get(name), name, columns.types[name]) for name in columns.keep}


def _scalar(value: Any, name: str, wanted: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_string(wanted):
        return _text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), name)
    number = isinstance(value, int) and not isinstance(value, bool)
    fits = {
        pa.bool_(): isinstance(value, bool),
        pa.int64(): number and -(2**63) <= value < 2**63,
        pa.float64(): number or isinstance(value, float),
    }
    if not fits.get(wanted):  # CSV and JSONL hold no other types
        raise TypeError(f"column {name}: expected {wanted} as in the first rows, got {value!r}")
    return value


def _text(value: Any, name: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError(f"column {name}: expected a string, got {value!r}")
    if value is not None:
        value.encode()
    return value


def _checked(file: int, rows: pa.Table, rejections: list[Rejection]) -> tuple[pa.Table, list[Rejection]]:
    """Take out the rows without text, id or condition, and all but the first of those with the same id.

    Without an id column a row's id is its place, `file:row`.
    """
    if ID not in rows.column_names:
        rows = rows.append_column(ID, pa.array([f"{file}:{row}" for row in rows[ROW].to_pylist()], pa.string()))
    bad: dict[int, tuple[Reason, str]] = {}

    def mark(mask: Any, reason: Reason) -> None:
        for i in np.flatnonzero(pc.fill_null(mask, False).to_numpy(zero_copy_only=False)):
            bad.setdefault(int(i), (reason, ""))

    text = rows[TEXT].combine_chunks()
    mark(text.is_null(), Reason.NULL_TEXT)
    mark(pc.equal(pc.utf8_trim_whitespace(text), ""), Reason.EMPTY_TEXT)
    mark(rows[ID].combine_chunks().is_null(), Reason.NULL_ID)
    if CONDITIONS in rows.column_names:
        for i, conditions in enumerate(rows[CONDITIONS].to_pylist()):
            if problem := _condition_problem(conditions):
                bad.setdefault(i, (problem, ""))
    seen: dict[Any, int] = {}
    for i, id_ in enumerate(rows[ID].to_pylist()):
        if i not in bad and (first := seen.setdefault(id_, i)) != i:
            bad[i] = (Reason.DUPLICATE_ID, f"first at row {rows[ROW][first].as_py()}")
    if not bad:
        return rows, rejections
    for i, values in zip(sorted(bad), rows.take(sorted(bad)).to_pylist(), strict=True):
        rejections.append(rejection(values, *bad[i]))
    good = pa.array([i for i in range(len(rows)) if i not in bad], pa.int64())
    return rows.take(good), rejections


def rejection(values: dict[str, Any], reason: Reason, detail: str = "") -> Rejection:
    """Reject a row of a unit's table, given as a dictionary."""
    content = {name.removeprefix(KEEP): value for name, value in values.items() if name != ROW}
    id_ = values.get(ID)
    return Rejection(
        row=values[ROW],
        reason=reason,
        detail=detail,
        id=None if id_ is None else str(id_),
        content=json.dumps(content, ensure_ascii=False, default=str),
    )


def _condition_problem(conditions: Iterable[str | None] | None) -> Reason | None:
    values = list(conditions) if conditions is not None else [None]
    if any(c is None for c in values):
        return Reason.NULL_CONDITION
    if not values or any(not c.strip() for c in values if c is not None):
        return Reason.EMPTY_CONDITION
    if len({c.strip() for c in values if c is not None}) < len(values):
        return Reason.DUPLICATE_CONDITION
    return None


def read_conditions(values: Sequence[str]) -> list[str]:
    """The conditions of a job: strings, or one file (`.txt`, one a line; `.parquet` or `.csv`, column `condition`).

    Raises RequestError for an empty or repeated condition, and a file that is missing or has none.
    """
    conditions = list(values)
    if len(values) == 1 and values[0].endswith((".txt", ".parquet", ".csv")):
        conditions = _conditions_in(locate(values[0]))
        if not conditions:
            raise RequestError(f"--conditions: expected at least one condition in {values[0]}, got none")
    seen: dict[str, int] = {}
    for i, condition in enumerate(conditions):
        if not isinstance(condition, str) or not condition.strip():
            raise RequestError(f"--conditions: expected words in every condition, got {condition!r} at place {i}")
        if condition.strip() in seen:
            raise RequestError(f"--conditions: expected each condition once, got {condition!r} twice")
        seen[condition.strip()] = i
    return list(seen)


def _conditions_in(source: Location) -> list[str]:
    try:
        data = source.read()
        if source.path.endswith(".txt"):
            return [line.strip() for line in data.decode("utf-8-sig").splitlines() if line.strip()]
        if source.path.endswith(".csv"):
            rows = [row for row in csv.reader(io.StringIO(data.decode("utf-8-sig"), newline="")) if row]
            columns = dict.fromkeys(rows[0] if rows else (), ())
            if rows[1:]:
                columns = dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True))
        else:
            columns = pq.read_table(io.BytesIO(data)).to_pydict()
    except (*STORE_ERRORS, ValueError, csv.Error, pa.ArrowException) as error:
        raise RequestError(
            f"--conditions: expected a readable file at {source.uri}, got: {first_line(error)}"
        ) from error
    name = CONDITION if CONDITION in columns or len(columns) != 1 else next(iter(columns))
    if name not in columns:
        found = ", ".join(columns) or "none"
        raise RequestError(f"--conditions: expected a column {CONDITION!r} in {source.uri}, got {found}")
    return list(columns[name])
