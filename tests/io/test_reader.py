"""Rows of a span: every reason for a rejection, and files that cannot be read; conditions as strings or files."""

import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from input_files import columns_in, columns_of, read, read_from, reasons, spans_of, the_file, write

from raycase.errors import RequestError
from raycase.io.inputs import peek
from raycase.io.reader import CONDITIONS, ROW, TEXT, read_conditions
from raycase.io.schema import ID, Reason


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_rows_without_text_or_id_are_rejected(tmp_path, ending):
    texts = ["good", "", "  \n\t", "\u3000", "good too"]
    rows = [{"id": i, "text": t} for i, t in zip("abcde", texts, strict=True)]
    nulls = {} if ending == "csv" else {5: Reason.NULL_TEXT, 6: Reason.NULL_ID}
    rows += [{"id": "f", "text": None}, {"id": None, "text": "good"}] if nulls else []
    path = write(tmp_path / f"x.{ending}", rows)
    assert reasons(path) == dict.fromkeys((1, 2, 3), Reason.EMPTY_TEXT) | nulls
    rows, rejected, _ = read(path)
    assert [(r[ID], r[TEXT], r[ROW]) for r in rows] == [("a", "good", 0), ("e", "good too", 4)]
    assert json.loads(rejected[2][2]) == {"id": "d", "text": "\u3000"}


NULL, EMPTY, TWICE = Reason.NULL_CONDITION, Reason.EMPTY_CONDITION, Reason.DUPLICATE_CONDITION
LISTS = [["a", "b"], ["a"], [], None, ["a", None], ["a", ""], ["a", "b", "a"]]


@pytest.mark.parametrize(
    ("ending", "given", "wanted"),
    [
        *((ending, LISTS, {2: EMPTY, 3: NULL, 4: NULL, 5: EMPTY, 6: TWICE}) for ending in ("jsonl", "parquet")),
        ("parquet", ["a", "b", None, " "], {2: NULL, 3: EMPTY}),
        ("csv", ["a", "", "b, of all"], {1: EMPTY}),
    ],
)
def test_conditions_of_each_row(tmp_path, ending, given, wanted):
    path = write(tmp_path / f"x.{ending}", [{"id": i, "text": "t", "ask": c} for i, c in enumerate(given)])
    good = [[c] if isinstance(c, str) else c for i, c in enumerate(given) if i not in wanted]
    assert [r[CONDITIONS] for r in read(path, condition="ask")[0]] == good
    assert reasons(path, condition="ask") == wanted


def test_invalid_utf8_in_csv_is_rejected_where_it_is_read(tmp_path):
    """In JSONL: `test_formats.py`, and half a pair `test_hostile.py`."""
    (tmp_path / "x.csv").write_bytes(b"id,text,other\n1,fine,\xff\nx,a\xffb,\n2,fine,\xff")
    rows, rejected, _ = read(tmp_path / "x.csv")
    assert [r[ROW] for r in rows] == [0, 2]
    ((row, reason, content),) = rejected
    assert (row, reason) == (1, Reason.INVALID_UTF8)
    content.encode()


@pytest.mark.parametrize("of", [(pa.binary(), pa.string()), (pa.large_binary(), pa.large_string())])
def test_invalid_utf8_in_parquet_is_rejected(tmp_path, of):
    texts = pa.array([b"fine", b"bro\xffken", None, b"fine too"], of[0]).view(of[1])
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
    for content in (b"no parquet", data[: len(data) // 2]):
        (tmp_path / "a.parquet").write_bytes(content)
        for step in (peek, lambda file: spans_of(file, good)):
            with pytest.raises(RequestError, match=r"a\.parquet: expected a readable parquet file, got: "):
                step(the_file(tmp_path / "a.parquet"))


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
    path.unlink()
    with pytest.raises(RequestError, match=rf"x\.{ending}: expected a readable {ending} file, got: "):
        list(read_from(file, span, columns, [(0, 10)]))


TEXT_FORMS = {
    "decimal128": (pa.array([Decimal("1.50"), Decimal(-2)], pa.decimal128(9, 2)), ["1.50", "-2.00"]),
    "timestamp": (pa.array([0, 1], pa.timestamp("ms")), ["1970-01-01 00:00:00.000", "1970-01-01 00:00:00.001"]),
    "uint64": (pa.array([0, 2**64 - 1], pa.uint64()), [0, 2**64 - 1]),
    "int32 by a dictionary": (pa.array([7, -8], pa.int32()).dictionary_encode(), [7, -8]),
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


# ----------------------------------------------------------------------------------------------------------- conditions


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("C.TXT", "\ufeffcolor\rnumber of\u2028\x0cpeople"),
        ("c.csv", '\ufeffid,condition\r\n1,color\r\n2,"number of people"\r\n'),
        ("c.csv", "Conditions\ncolor\n\nnumber of people\n\n"),  # the only column; blank lines
        ("c.jsonl", '{"aspect": "color"}\n{"aspect": "number of people"}\n'),  # the only column has a name for certain
        ("folder.parquet", ["color", "number of people"]),  # one in each file of it
    ],
)
def test_conditions_in_a_file(tmp_path, name, data):
    if isinstance(data, list):
        (tmp_path / name).mkdir()
        for part in data:
            pq.write_table(pa.table({"condition": [part]}), tmp_path / name / f"{part}.parquet")
    else:
        (tmp_path / name).write_bytes(data.encode())
    assert read_conditions([str(tmp_path / name)]) == ["color", "number of people"]


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        (["color", " "], "expected words in every condition, got ' ' at index 1"),
        (["\udcff"], r"expected words in every condition, got '\\udcff' at index 0"),
        (["an ox", "a", " an\u00a0\n ox"], "expected each condition once, got 'an ox' twice, at index 0 and 2"),
        (["caf\u00e9", "cafe\u0301"], "expected each condition once, got 'caf\u00e9' twice"),
        (["a.txt", "b.txt"], "expected conditions or one file of them, got 2 values with"),
        ({"condition": ["color", None]}, "expected words in every condition"),
    ],
)
def test_empty_and_repeated_conditions_are_refused(conditions, message, tmp_path):
    if isinstance(conditions, dict):
        pq.write_table(pa.table(conditions), tmp_path / "c.parquet")
        conditions = [str(tmp_path / "c.parquet")]
    with pytest.raises(RequestError, match=f"--conditions: {message}"):
        read_conditions(conditions)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("c.txt", b"\n \n", "expected at least one condition in .*, got none"),
        ("c.csv", b'condition\ncolor\n"number\nsize\n', None),
        ("c.csv", b"a,b\n1,2\n", ".*expected the column 'condition', got a, b"),
        ("c.csv", b"id,condition\n1,color\n2\n", ".*row 1: line does not parse: expected 2 fields, got 1"),
        ("c.jsonl", b'{"condition": "a", "condition": "b"}', "expected words in .*, got several values of the name"),
        ("c.txt", b"color\xff\n", None),
    ],
)
def test_files_without_conditions_are_refused(tmp_path, name, data, message):
    (tmp_path / name).write_bytes(data)
    said = f"--conditions: {message}" if message else f"{name}: expected a readable {name[2:]} file, got: "
    with pytest.raises(RequestError, match=said):
        read_conditions([str(tmp_path / name)])


@pytest.mark.parametrize(("flag", "header"), [("--labels", "label"), ("--conditions", "condition")])
def test_the_first_line_of_a_csv_file_is_a_header_where_it_says_so(tmp_path, flag, header):
    (tmp_path / "c.csv").write_text("beach\nstreet\n")
    with pytest.raises(
        RequestError, match=f"{flag}: .*: expected the column '{header}', got beach; if .* put the line {header} above"
    ):
        read_conditions([str(tmp_path / "c.csv")], flag)
    (tmp_path / "c.csv").write_text(f"{header}s\nbeach\nstreet\n")
    assert read_conditions([str(tmp_path / "c.csv")], flag) == ["beach", "street"]
