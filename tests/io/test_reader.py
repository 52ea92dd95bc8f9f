"""Rows of a span: every reason for a rejection, and files that cannot be read."""

import json
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from input_files import columns_in, columns_of, read, read_from, reasons, spans_of, the_file, write

from raycase.errors import RequestError
from raycase.io.inputs import peek
from raycase.io.reader import CONDITIONS, ROW, TEXT
from raycase.io.schema import ID, Reason


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_rows_without_text_are_rejected(tmp_path, ending):
    texts = ["good", "", "  \n\t", "\u3000", "good too"]
    rows = [{"id": i, "text": t} for i, t in zip("abcde", texts, strict=True)]
    path = write(tmp_path / f"x.{ending}", rows)
    empty = Reason.EMPTY_TEXT
    assert reasons(path) == {1: empty, 2: empty, 3: empty}
    rows, rejected, _ = read(path)
    assert [(r[ID], r[TEXT], r[ROW]) for r in rows] == [("a", "good", 0), ("e", "good too", 4)]
    assert json.loads(rejected[-1][2]) == {"id": "d", "text": "\u3000"}


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_nulls_are_rejected(tmp_path, ending):
    rows = [
        {"id": "a", "text": "good", "condition": "color"},
        {"id": "b", "text": None, "condition": "color"},
        {"id": None, "text": "good", "condition": "color"},
        {"id": "d", "text": "good", "condition": None},
        {"id": "e", "text": "good", "condition": " "},
    ]
    path = write(tmp_path / f"x.{ending}", rows)
    wanted = {1: Reason.NULL_TEXT, 2: Reason.NULL_ID, 3: Reason.NULL_CONDITION, 4: Reason.EMPTY_CONDITION}
    assert reasons(path, condition="condition") == wanted
    assert reasons(path) == {k: wanted[k] for k in (1, 2)}


@pytest.mark.parametrize("ending", ["jsonl", "parquet", "csv"])
def test_lists_of_conditions(tmp_path, ending):
    lists = [["a", "b"], ["a"], [], None, ["a", None], ["a", ""], ["a", "b", "a"]]
    if ending == "csv":  # one each
        lists = ["a", "", "b, of all"]
    path = write(tmp_path / f"x.{ending}", [{"id": i, "text": "t", "ask": c} for i, c in enumerate(lists)])
    rows, _, _ = read(path, condition="ask")
    assert [r[CONDITIONS] for r in rows] == ([["a"], ["b, of all"]] if ending == "csv" else [["a", "b"], ["a"]])
    null, empty, twice = Reason.NULL_CONDITION, Reason.EMPTY_CONDITION, Reason.DUPLICATE_CONDITION
    wanted = {1: empty} if ending == "csv" else {2: empty, 3: null, 4: null, 5: empty, 6: twice}
    assert reasons(path, condition="ask") == wanted


def test_invalid_utf8_in_csv_is_rejected_where_it_is_read(tmp_path):
    """In JSONL: `test_formats.py`, and half a pair `test_hostile.py`."""
    (tmp_path / "x.csv").write_bytes(b"id,text,other\n1,fine,\xff\nx,a\xffb,\n2,fine,\xff")
    rows, rejected, _ = read(tmp_path / "x.csv")
    assert [r[ROW] for r in rows] == [0, 2]
    ((row, reason, content),) = rejected
    assert (row, reason) == (1, Reason.INVALID_UTF8)
    content.encode()


def strings(*raw):
    """An Arrow array of strings with these bytes, valid or not."""
    return pa.array(raw, pa.binary()).view(pa.string())


@pytest.mark.parametrize("kind", ["string", "large_string"])
def test_invalid_utf8_in_parquet_is_rejected(tmp_path, kind):
    texts = strings(b"fine", b"bro\xffken", None, b"fine too")
    if kind == "large_string":
        texts = texts.cast(pa.binary()).cast(pa.large_binary()).view(pa.large_string())
    path = write(tmp_path / "x.parquet", pa.table({"id": [1, 2, 3, 4], "text": texts}))
    rows, rejected, _ = read(path)
    assert [(r[ROW], r[TEXT]) for r in rows] == [(0, "fine"), (3, "fine too")]
    assert [(row, reason) for row, reason, _ in rejected] == [(1, Reason.INVALID_UTF8), (2, Reason.NULL_TEXT)]
    assert json.loads(rejected[0][2])["text"] == "bro\\xffken"


def test_rows_of_another_type_are_rejected(tmp_path):
    """The first thousand rows say the types."""
    rows = [{"id": i, "text": "a", "n": 1, "ask": "color"} for i in range(1000)]
    bad = [
        {"id": "x", "text": "a", "n": 1, "ask": "color"},
        {"id": True, "text": "a", "n": 1, "ask": "color"},
        {"id": 2**63, "text": "a", "n": 1, "ask": "color"},
        {"id": 1001, "text": ["a"], "n": 1, "ask": "color"},
        {"id": 1002, "text": "a", "n": 1.5, "ask": "color"},
        {"id": 1003, "text": "a", "n": 1, "ask": 7},
        {"id": 1004, "text": "a", "n": 1, "ask": ["color", 7]},
    ]
    path = write(tmp_path / "x.jsonl", [*rows, *bad, {"id": 1005, "text": "a", "ask": "color"}])
    good, _, columns = read(path, condition="ask", keep=["n"])
    assert len(good) == 1001
    [span] = spans_of(the_file(path), columns)
    [(_, rejections)] = read_from(the_file(path), span, columns, [(0, span.rows)])
    assert {r.row: r.reason for r in rejections} == {1000 + i: Reason.WRONG_TYPE for i in range(len(bad))}
    assert rejections[0].detail == "column id: expected int64 as in the first rows, got 'x'"


def test_broken_files_are_refused_by_name(tmp_path):
    good = columns_of(write(tmp_path / "good.parquet", [{"text": "a"}]))
    data = (tmp_path / "good.parquet").read_bytes()
    for name, content in (("a.parquet", b"no parquet"), ("b.parquet", data[: len(data) // 2]), ("c.parquet", b"")):
        (tmp_path / name).write_bytes(content)
        for step in (lambda file: peek(file), lambda file: spans_of(file, good)):
            with pytest.raises(RequestError, match=f"{name}: expected a readable parquet file, got: "):
                step(the_file(tmp_path / name))


@pytest.mark.parametrize("content", [b"", b"\xff,text\n", b"text,text\n", b"id\rtext\r1\ra\r"])
def test_a_csv_without_a_proper_first_line_is_refused(tmp_path, content):
    (tmp_path / "x.csv").write_bytes(content)
    with pytest.raises(
        RequestError, match=r"x\.csv: expected (the column 'text'( once)?, got |a readable csv file, got: )"
    ):
        columns_of(tmp_path / "x.csv")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_file_that_shrank_since_planning_is_refused(tmp_path, ending):
    path = write(tmp_path / f"x.{ending}", [{"id": i, "text": "a"} for i in range(10)])
    file = the_file(path)
    columns = columns_in(file)
    (span,) = spans_of(file, columns)
    write(path, [{"id": i, "text": "a"} for i in range(4)])
    for wanted in ([(0, 5), (5, 10)], [(5, 10)]):
        with pytest.raises(RequestError, match=f"x.{ending}: "):
            list(read_from(file, span, columns, wanted))
    if ending == "parquet":
        pq.write_table(pq.read_table(path), path, row_group_size=1)
        with pytest.raises(RequestError, match=r"x.parquet: "):
            list(read_from(file, replace(span, at=3, length=3), columns, [(0, 10)]))
    path.unlink()
    with pytest.raises(RequestError, match=rf"x\.{ending}: expected a readable {ending} file, got: "):
        list(read_from(file, span, columns, [(0, 10)]))


TEXT_FORMS = {
    "decimal128": (pa.array([Decimal("1.50"), Decimal(-2)], pa.decimal128(9, 2)), ["1.50", "-2.00"]),
    "date": (pa.array([0, 1], pa.int32()).cast(pa.date32()), ["1970-01-01", "1970-01-02"]),
    "timestamp": (pa.array([0, 1], pa.timestamp("ms")), ["1970-01-01 00:00:00.000", "1970-01-01 00:00:00.001"]),
    "uint64": (pa.array([0, 2**64 - 1], pa.uint64()), [0, 2**64 - 1]),
    "int32 by a dictionary": (pa.array([7, -8], pa.int32()).dictionary_encode(), [7, -8]),
    "bool": (pa.array([True, False]), ["true", "false"]),
    "float32": (pa.array([0.1, 1e30], pa.float32()), ["0.1", "1e+30"]),
}


@pytest.mark.parametrize("kind", TEXT_FORMS)
def test_ids_of_every_type_with_one_text_form_are_taken_in_it(tmp_path, kind):
    ids, wanted = TEXT_FORMS[kind]
    rows, rejected, columns = read(write(tmp_path / "x.parquet", pa.table({"id": ids, "text": ["x", "y"]})))
    assert [row[ID] for row in rows] == wanted
    assert rejected == []
    assert columns.id_type == (pa.uint64() if kind == "uint64" else pa.int64() if "int" in kind else pa.string())


@pytest.mark.parametrize(
    "ids", [pa.array([{"a": 1}]), pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16)], pa.binary(16)))]
)
def test_ids_without_a_text_form_are_refused_before_any_row_is_read(tmp_path, ids):
    path = write(tmp_path / "x.parquet", pa.table({"id": ids, "text": ["a"]}))
    with pytest.raises(RequestError, match=r"x\.parquet: expected numbers or strings in 'id', got .*; write it"):
        columns_of(path)
