"""Numbers of rows as intervals: sets, what a checkpoint's files hold, what of an input is left."""

import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycase.errors import RequestError
from raycase.io.inputs import find_input
from raycase.io.row_ids import ROW_BITS, committed, holds, left_of, numbered, read_left, spans_of, union
from raycase.io.source import Span
from raycase.io.storage import locate

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=12)


def edges(pairs):
    starts = np.array([start for start, _ in pairs], np.int64)
    return union(starts, starts + np.array([length for _, length in pairs], np.int64))


@given(PAIRS, st.integers(0, 70), st.integers(1, 20))
def test_edges_are_the_set_of_their_numbers(pairs, start, length):
    wanted = {n for first, many in pairs for n in range(first, first + many)}
    found = edges(pairs)
    numbers = np.arange(-2, 100)
    assert {*numbers[holds(found, numbers)].tolist()} == wanted
    assert (np.diff(found) > 0).all(), "expected neighbours merged"
    span = {*range(start, start + length)}
    left = left_of(Span(file=0, start=start, rows=length, at=0, length=0, bytes=0), found)
    assert (left is None) == (span <= wanted)
    assert left is None or {n for n in span if holds(left, np.array([n]))[0]} == span & wanted


def write(folder, files, type_=None):
    for name, numbers in files.items():
        pq.write_table(pa.table({"row_id": pa.array(numbers, type_)}), folder / f"{name}.parquet", row_group_size=2)


@pytest.mark.parametrize("rows_per_id", [1, 2, None])
def test_what_is_committed_is_known_by_footers_or_read(tmp_path, rows_per_id):
    """Files with gaps, with rows of one number twice, empty, and pending ones."""
    files = {"a": range(5), "b": [9, 7, 8], "c": [20, 22, 23], "d": [], "e.pending": [40]}
    write(tmp_path, {name: np.repeat(np.array(ids, np.int64), rows_per_id or 3) for name, ids in files.items()})
    found = committed(pyarrow.fs.LocalFileSystem(), str(tmp_path), "row_id", rows_per_id)
    assert found.tolist() == [0, 5, 7, 10, 20, 21, 22, 24]
    assert not len(committed(pyarrow.fs.LocalFileSystem(), str(tmp_path / "none"), "row_id", 1))


@pytest.mark.parametrize(
    ("numbers", "type_", "said"),
    [
        ([0, None, 2], pa.int64(), "expected an id of each row in int64, got int64 with 1 nulls"),
        ([2**60 + 1, None], pa.int64(), "with 1 nulls"),
        ([5.5], pa.float64(), "got double"),
        (["5"], pa.string(), "got string"),
        ([2**63 + 5], pa.uint64(), "not in range"),
        ([0, 0, 1, 1], pa.int64(), "rows_per_id: expected the most rows of a number, got 1; pass None"),
    ],
)
def test_ids_that_would_hide_other_rows_are_refused(tmp_path, numbers, type_, said):
    """They were: a gap was filled by a null, and a float stood for an interval."""
    write(tmp_path, {"a": numbers}, type_)
    with pytest.raises(ValueError, match=said):
        committed(pyarrow.fs.LocalFileSystem(), str(tmp_path), "row_id", 1)


def test_small_and_unsigned_ids_are_taken(tmp_path):
    write(tmp_path, {"a": [5, 9]}, pa.int32())
    write(tmp_path, {"b": [6, 2**63 - 9]}, pa.uint64())
    found = committed(pyarrow.fs.LocalFileSystem(), str(tmp_path), "row_id", 1)
    assert found.tolist() == [5, 7, 9, 10, 2**63 - 9, 2**63 - 8]


def test_rows_that_are_left_and_files_that_keep_their_numbers(tmp_path):
    state, input = locate(str(tmp_path / "state")), tmp_path / "in"
    input.mkdir()
    for name in ("b", "d"):
        pq.write_table(pa.table({"text": [f"{name}{i}" for i in range(6)]}), input / f"{name}.parquet")
    files = numbered(find_input(str(input)), state)
    pq.write_table(pa.table({"text": ["a0"]}), input / "a.parquet")
    files = numbered(find_input(str(input)), state)
    assert [file.uri[-9:] for file in files] == ["b.parquet", "d.parquet", "a.parquet"]
    done = edges([(0, 6), ((1 << ROW_BITS) + 1, 3)])
    left = [(file, span, left_of(span, done)) for file, span in spans_of(files, ["text"])]
    assert [span.file for _, span, done in left if done is None] == [0]
    parts = [part for part in left if part[2] is not None]
    tables = read_left(parts, pa.schema({"text": pa.string(), "row_id": pa.int64()}))
    found = pa.concat_tables(tables).to_pydict()
    assert found["text"] == ["d0", "d4", "d5", "a0"] and found["row_id"][-1] == 2 << ROW_BITS
    pq.write_table(pa.table({"text": ["other"]}), input / "d.parquet")
    with pytest.raises(RequestError, match=r"d\.parquet as it was when the checkpoint .* began, got another or none"):
        numbered(find_input(str(input)), state)
