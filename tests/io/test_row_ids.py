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
from raycase.io.row_ids import ROW_BITS, Intervals, committed, numbered, rows_left
from raycase.io.storage import locate

PAIRS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 9)), max_size=12)


def intervals(pairs):
    starts = np.array([start for start, _ in pairs], np.int64)
    return Intervals.union(starts, starts + np.array([length for _, length in pairs], np.int64))


@given(PAIRS, st.integers(0, 70), st.integers(0, 20))
def test_intervals_are_the_set_of_their_numbers(pairs, start, length):
    wanted = {n for first, many in pairs for n in range(first, first + many)}
    found = intervals(pairs)
    numbers = np.arange(-2, 100)
    assert {*numbers[found.holds(numbers)].tolist()} == wanted
    assert (found.starts[1:] > found.ends[:-1]).all(), "expected neighbours merged"
    gaps = found.gaps(start, start + length)
    assert {*numbers[gaps.holds(numbers)].tolist()} == {*range(start, start + length)} - wanted


@pytest.mark.parametrize("rows_per_id", [1, 2, None])
def test_what_is_committed_is_known_by_footers_or_read(tmp_path, rows_per_id):
    """Files with gaps, with rows of one number twice, empty, and pending ones."""
    repeats = rows_per_id or 3
    files = {"a": range(5), "b": [9, 7, 8], "c": [20, 22, 23], "d": [], "e.pending": [40]}
    for name, numbers in files.items():
        column = pa.array(np.repeat(np.array(numbers, np.int64), repeats))
        pq.write_table(pa.table({"row_id": column}), tmp_path / f"{name}.parquet", row_group_size=2)
    found = committed(pyarrow.fs.LocalFileSystem(), str(tmp_path), "row_id", rows_per_id)
    assert (found.starts.tolist(), found.ends.tolist()) == ([0, 7, 20, 22], [5, 10, 21, 24])
    assert not committed(pyarrow.fs.LocalFileSystem(), str(tmp_path / "none"), "row_id", 1).nbytes


def test_rows_that_are_left_and_files_that_keep_their_numbers(tmp_path):
    state, input = locate(str(tmp_path / "state")), tmp_path / "in"
    input.mkdir()
    for name in ("b", "d"):
        pq.write_table(pa.table({"text": [f"{name}{i}" for i in range(6)]}), input / f"{name}.parquet")
    files = numbered(find_input(str(input)), state)
    pq.write_table(pa.table({"text": ["a0"]}), input / "a.parquet")
    files = numbered(find_input(str(input)), state)
    assert [file.uri[-9:] for file in files] == ["b.parquet", "d.parquet", "a.parquet"]
    done = intervals([(0, 6), ((1 << ROW_BITS) + 1, 3)])
    tables = [table for part in rows_left(files, ["text"], done) for table in part.read(["text"], "row_id")]
    found = pa.concat_tables(tables).to_pydict()
    assert found["text"] == ["d0", "d4", "d5", "a0"] and found["row_id"][-1] == 2 << ROW_BITS
    pq.write_table(pa.table({"text": ["other"]}), input / "d.parquet")
    with pytest.raises(RequestError, match=r"d\.parquet as it was when the checkpoint .* began, got another or none"):
        numbered(find_input(str(input)), state)
