"""What the steps hand to each other is one Arrow row, and comes back as it was."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from raycase.corpus.records import EncodedUnit, EncodeStats, ReadTask, ReadUnit, WrittenUnit, naming
from raycase.corpus.unit_files import UnitLine
from raycase.data.inputs import InputFile
from raycase.data.schema import Reason, Rejection, rejected_table
from raycase.data.spans import Span
from raycase.encoder.prepared import Prepared
from raycase.encoder.throughput import Work
from raycase.errors import RequestError, WorkError

FILES = [InputFile(uri=f"/in/{name}.csv", size=9, mark="1") for name in "ab"]
REJECTED = rejected_table("/in/a.csv", [Rejection(row=3, reason=Reason.EMPTY_TEXT, content="{}")])
ROWS = pa.table({"row": [1, 2], "text": ["a dog", "ein Hünd\n"]})
NONE = np.empty(0, dtype=np.int64)
PREPARED = Prepared(rows=NONE, conditions=["color"], sentence=NONE, condition=NONE, pairs=[], alone=[], bases=[])
WORK = Work(tokens=7, processed=5, computed=6, flops=1.5)
STATS = EncodeStats(work=WORK, began=1.0, seconds=2.0, rate=3.0, host="node", read_pid=1, encode_pid=2)
COUNTS = {"rows_out": 2, "rows_rejected": 1, "rows_truncated": 0, "pairs": 4, "distinct_pairs": 3, "bytes": 100}
LINE = UnitLine(name="unit", file=1, start=5, **COUNTS, sha256="aa", rejected_sha256=None, reasons={"empty text": 1})


def test_a_task_names_its_files_spans_and_units():
    spans = [Span(file=f, start=0, rows=9, at=1, length=2, bytes=3) for f in (1, 0)]
    task = ReadTask.of(FILES, [(spans[0], [(0, 4), (4, 9)]), (spans[1], [(2, 3)])])
    assert [part.files[0].uri for part in task.spans] == ["/in/b.csv", "/in/a.csv"]
    row = task.to_arrow()
    assert len(row) == 1 and ReadTask.from_arrow(row) == task


@pytest.mark.parametrize("rows", [ROWS, ROWS.slice(0, 0)])
def test_a_unit_is_one_row_whatever_its_size(rows):
    read = ReadUnit(
        uri="/in/a.csv", file=0, start=5, rows_in=3, rows=rows, rejected=REJECTED, prepared=PREPARED, read_pid=1
    )
    row = read.to_arrow()
    again = ReadUnit.from_arrow(row)
    assert len(row) == 1 and replace(again, prepared=PREPARED) == read
    assert again.prepared.to_bytes() == PREPARED.to_bytes()
    counts = {"rows_in": 3, "distinct_pairs": 2, "rows_truncated": 1}
    encoded = EncodedUnit(file=0, start=5, **counts, table=rows, rejected=REJECTED, stats=STATS)
    row = encoded.to_arrow()
    assert len(row) == 1 and EncodedUnit.from_arrow(row) == encoded


@pytest.mark.parametrize("reasons", [{}, {"empty text": 1, "null id": 2}])
def test_a_written_unit_has_its_line_of_the_manifest(reasons):
    written = WrittenUnit(line=replace(LINE, reasons=reasons), stats=STATS, ended=4.0, write_pid=3)
    other = WrittenUnit(line=LINE, stats=STATS, ended=5.0, write_pid=3)
    rows = pa.concat_tables([written.to_arrow(), other.to_arrow()])
    assert WrittenUnit.from_arrow(rows.slice(0, 1)) == written
    assert WrittenUnit.from_arrow(rows.slice(1, 1)) == other


def test_an_error_names_the_unit_it_met():
    words = r"^reading rows 1 to 2: KeyError: 'x'; run the same command again to resume$"
    with pytest.raises(WorkError, match=words), naming("reading rows 1 to 2"):
        raise KeyError("x")
    for error in (RequestError("a"), WorkError("b")):
        with pytest.raises(type(error), match=f"^{error}$"), naming("reading"):
            raise error
