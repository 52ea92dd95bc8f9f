"""Input files for tests: rows written in every format, and a file read back as one unit."""

import csv
import json
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from raycase.io.inputs import find_input, peek, source_of
from raycase.io.reader import read_span
from raycase.io.schema import find_columns
from raycase.io.source import CODECS

OPTIONS = {"text": "text", "id": None, "condition": None, "keep": None}


def write(path, rows, names=None):
    """Write rows (dictionaries) in the format of the path's ending; gives the path."""
    if path.suffix in CODECS:
        plain = write(path.with_suffix(""), rows, names)
        path.write_bytes(compressed(plain.read_bytes(), path.suffix))
        plain.unlink()
    elif path.suffix == ".parquet":
        pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, names or rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    return path


def compressed(data, ending, members=1):
    """Bytes as gzip or zstd, in so many members or frames."""
    cuts = [len(data) * i // members for i in range(members + 1)]
    return b"".join(pa.compress(data[a:b], CODECS[ending], asbytes=True) for a, b in pairwise(cuts))


def the_file(path):
    (file,) = find_input(str(path))
    return file


def columns_in(file, **options):
    return find_columns(peek(file), file.uri, **OPTIONS | options)


def columns_of(path, **options):
    return columns_in(the_file(path), **options)


def spans_of(file, columns, unit_rows=10**9, span_bytes=10**12, number=0):
    source = source_of(file, number)
    with source.reading():
        return list(source.splits(columns, unit_rows=unit_rows, span_bytes=span_bytes))


def read_from(file, span, columns, intervals):
    return read_span(source_of(file), span, columns, intervals)


def flat(parts):
    """Rows (dictionaries) and rejections (row, reason, content) of some parts, in order."""
    rows, rejected = [], []
    for table, rejections in parts:
        rows += table.to_pylist()
        rejected += [(r.row, r.reason, r.content) for r in rejections]
    return rows, sorted(rejected)


def read(path, **options):
    """Every row and rejection of a file read as one unit; and the columns."""
    file = the_file(path)
    columns = columns_in(file, **options)
    return *flat(all_of(file, columns)), columns


def all_of(file, columns):
    for span in spans_of(file, columns):
        yield from read_from(file, span, columns, [(span.start, span.start + span.rows)])


def reasons(path, **options):
    return {row: reason for row, reason, _ in read(path, **options)[1]}
