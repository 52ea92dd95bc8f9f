"""Input files for tests: rows written in every format, and a file read back as one unit."""

import csv
import json
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq

from raycase.data.columns import find_columns
from raycase.data.inputs import find_input
from raycase.data.reader import read_span
from raycase.data.spans import plan_file
from raycase.data.texts import CODECS

OPTIONS = {"text": "text", "id": None, "condition": None, "keep": None}


def write(path, rows):
    """Write rows (dictionaries) in the format of the path's ending."""
    if path.suffix in CODECS:
        plain = write(path.with_suffix(""), rows)
        path.write_bytes(compressed(plain.read_bytes(), path.suffix))
        plain.unlink()
    elif path.suffix == ".parquet":
        pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, rows[0].keys())
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


def columns_of(path, **options):
    return find_columns(the_file(path), **OPTIONS | options)


def spans_of(file, columns, unit_rows=10**9, span_bytes=10**12):
    return list(plan_file(0, file, columns, unit_rows=unit_rows, span_bytes=span_bytes))


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
    columns = find_columns(file, **OPTIONS | options)
    spans = spans_of(file, columns)
    parts = [part for span in spans for part in read_span(file, span, columns, [(span.start, span.start + span.rows)])]
    return *flat(parts), columns


def reasons(path, **options):
    return {row: reason for row, reason, _ in read(path, **options)[1]}
