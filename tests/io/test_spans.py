"""Spans cover a file, cut it into units, and read alone what the whole file gives."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from input_files import all_of, columns_in, columns_of, flat, read, read_from, spans_of, the_file, write

from raycase.io.reader import ROW, TEXT
from raycase.job.plan import cut


def texts(count, seed=0):
    """Texts with everything that makes a text file hard to cut."""
    random = np.random.default_rng(seed)
    letters = ["a", "é", "😀", '"', ",", "\n", "\r\n", "  ", "x" * 40]
    return ["t" + "".join(random.choice(letters, random.integers(0, 9))) for _ in range(count)]


def assert_spans_serve(path, *, unit_rows, span_bytes, **options):
    """The spans cover every row once, and each read alone gives what the whole file gives; -> spans."""
    file = the_file(path)
    columns = columns_in(file, **options)
    spans = spans_of(file, columns, unit_rows, span_bytes)
    for before, after in pairwise(spans):
        assert before.start + before.rows == after.start
        assert before.at + before.length == after.at
        assert before.rows >= unit_rows
    whole = flat(all_of(file, columns))
    assert spans[0].start == 0
    count = spans[-1].start + spans[-1].rows
    assert sorted([r[ROW] for r in whole[0]] + [row for row, _, _ in whole[1]]) == list(range(count))
    alone = []
    for span in reversed(spans):
        intervals = list(cut(span.start, span.rows, unit_rows))
        assert [a for a, _ in intervals] + [intervals[-1][1]] == [span.start] + [b for _, b in intervals]
        assert intervals[-1][1] == span.start + span.rows
        parts = list(read_from(file, span, columns, intervals))
        for (start, end), (table, rejections) in zip(intervals, parts, strict=True):
            assert all(start <= row < end for row in table[ROW].to_pylist() + [r.row for r in rejections])
            assert len(table) + len(rejections) == end - start
        for i, interval in enumerate(intervals):  # one interval of a span alone
            assert flat(read_from(file, span, columns, [interval])) == flat([parts[i]])
        alone = parts + alone
    assert flat(alone) == whole
    return spans


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(("unit_rows", "span_bytes"), [(1, 1), (7, 500), (50, 10**9)])
def test_spans_of_clean_files(tmp_path, ending, unit_rows, span_bytes):
    wanted = texts(60)
    path = write(tmp_path / f"x.{ending}", [{"id": i, "text": t} for i, t in enumerate(wanted)])
    if ending == "parquet":
        pq.write_table(pq.read_table(path), path, row_group_size=5)
    spans = assert_spans_serve(path, unit_rows=unit_rows, span_bytes=span_bytes)
    assert [r[TEXT] for r in read(path)[0]] == wanted
    assert len(spans) > 1 or unit_rows == 50 or ending == "csv"
    assert spans[-1].start + spans[-1].rows == 60


@pytest.mark.parametrize("seed", range(3))
def test_spans_of_broken_jsonl(tmp_path, seed):
    random = np.random.default_rng(seed)
    pieces = [b'{"id": "%d", "text": "a"}\n', b'{"id": "x", "text": " "}\n', b'{"text": "\xff"}\n']
    pieces += [b"{\n", b"\n", b"[]\n"]
    lines = [p % i if b"%d" in p else p for i, p in enumerate(random.choice(np.array(pieces, object), 40))]
    (tmp_path / "x.jsonl").write_bytes(b'{"id": "first", "text": "a"}\n' + b"".join(lines))
    for unit_rows in (1, 2, 5):
        assert_spans_serve(tmp_path / "x.jsonl", unit_rows=unit_rows, span_bytes=1)


@pytest.mark.parametrize(("row_group_size", "wanted"), [(3, [6] * 6 + [4]), (1000, [40])])
def test_parquet_is_cut_by_row_groups(tmp_path, row_group_size, wanted):
    pq.write_table(pa.table({"text": texts(40)}), tmp_path / "x.parquet", row_group_size=row_group_size)
    spans = assert_spans_serve(tmp_path / "x.parquet", unit_rows=4, span_bytes=1)
    assert [s.rows for s in spans] == wanted
    (whole,) = spans_of(the_file(tmp_path / "x.parquet"), columns_of(tmp_path / "x.parquet"))
    assert {b - a for a, b in cut(whole.start, whole.rows, 17)} == {20}, "expected units of nearly equal size"


def test_parquet_with_empty_row_groups(tmp_path):
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(tmp_path / "x.parquet", schema) as writer:
        for count in (0, 2, 0, 3, 0):
            writer.write_table(pa.table({"text": texts(count)}, schema=schema))
    spans = assert_spans_serve(tmp_path / "x.parquet", unit_rows=1, span_bytes=1)
    assert sum(s.rows for s in spans) == 5
