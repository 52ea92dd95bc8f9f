"""From files to checked rows: finding, columns, spans, every reason for a rejection, and the list of conditions."""

import csv
import json
import os
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycase.data.inputs import find_input
from raycase.data.reader import (
    CONDITIONS,
    KEEP,
    ROW,
    TEXT,
    cut,
    find_columns,
    peek,
    plan_file,
    read_conditions,
    read_span,
)
from raycase.data.schema import ID, Reason
from raycase.errors import RequestError

OPTIONS = {"text": "text", "id": None, "condition": None, "keep": None}


def write(path, rows):
    """Write rows (dictionaries) in the format of the path's ending."""
    if path.suffix == ".parquet":
        pq.write_table(rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(rows), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    else:
        with path.open("w", newline="", encoding="utf-8") as handle:
            writer = csv.DictWriter(handle, rows[0].keys())
            writer.writeheader()
            writer.writerows(rows)
    return path


def the_file(path):
    (file,) = find_input(str(path))
    return file


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


# --------------------------------------------------------------------------------------------------------- finding


@pytest.fixture
def tree(tmp_path):
    for name in ("b.csv", "a.jsonl", "sub/c.parquet", ".hidden.csv", "_tmp/d.csv", "sub/_e.csv", "notes.txt", "F.CSV"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 3)
    return tmp_path


def found(uri):
    return [file.uri for file in find_input(str(uri))]


def test_a_folder_gives_its_files_sorted_without_the_hidden(tree):
    assert found(tree) == [str(tree / n) for n in ("a.jsonl", "b.csv", "sub/c.parquet")]
    assert found(f"{tree}/") == found(tree)
    (file, *_) = find_input(str(tree))
    assert file.size == 3
    assert file.ending == ".jsonl"


def test_a_file_is_found_by_its_name_even_a_hidden_one(tree):
    assert found(tree / "b.csv") == [str(tree / "b.csv")]
    assert found(tree / ".hidden.csv") == [str(tree / ".hidden.csv")]


def test_a_folder_in_a_hidden_folder_is_no_hidden_one(tree):
    assert found(tree / "_tmp") == [str(tree / "_tmp" / "d.csv")]
    assert found(tree / "_tmp" / "*.csv") == [str(tree / "_tmp" / "d.csv")]


def test_a_glob_gives_what_matches_without_the_hidden(tree):
    assert found(tree / "*.csv") == [str(tree / "b.csv")]
    assert found(tree / "**" / "*.parquet") == [str(tree / "sub" / "c.parquet")]
    assert found(tree / "sub" / "*") == [str(tree / "sub" / "c.parquet")]
    assert found(tree / "[ab].*") == [str(tree / n) for n in ("a.jsonl", "b.csv")]


@pytest.mark.parametrize("what", ["none", "none.csv", "none/*.csv"])
def test_nothing_to_read_is_refused(tree, what):
    with pytest.raises(RequestError, match=r"--input: expected \.parquet, \.csv, \.jsonl files at .*, got nothing"):
        find_input(str(tree / what))


def test_other_endings_are_refused_with_their_number(tree):
    with pytest.raises(RequestError, match=r"notes.txt, got 1 files with other endings"):
        find_input(str(tree / "notes.txt"))


def test_a_changed_file_has_another_mark(tree):
    before = the_file(tree / "b.csv").mark
    assert before == the_file(tree / "b.csv").mark
    os.utime(tree / "b.csv", (1, 1))
    assert the_file(tree / "b.csv").mark != before


def test_the_sample_is_known_by_its_content():
    file = the_file("package:raycase/sample/sentences.csv")
    assert file.uri == "package:raycase/sample/sentences.csv"
    assert len(file.mark) == 64
    assert len(read("package:raycase/sample/sentences.csv")[0]) > 10
    with pytest.raises(RequestError, match=r"--input: expected .* files at .*none.csv, got nothing"):
        find_input("package:raycase/sample/none.csv")


# --------------------------------------------------------------------------------------------------------- columns


@pytest.fixture
def captions(tmp_path):
    rows = [{"id": i, "text": f"text {i}", "about": "color", "score": i / 2} for i in range(3)]
    return write(tmp_path / "captions.parquet", rows)


def columns_of(path, **options):
    return find_columns(the_file(path), **OPTIONS | options)


def test_the_id_column_is_taken_where_there_is_one(captions, tmp_path):
    assert columns_of(captions).id == "id"
    assert columns_of(captions, id="about").id == "about"
    assert columns_of(write(tmp_path / "x.jsonl", [{"text": "a"}])).id is None


def test_the_text_is_kept_unless_said_otherwise(captions):
    assert columns_of(captions).keep == ("text",)
    assert columns_of(captions, keep=[]).keep == ()
    columns = columns_of(captions, keep=["score", "id", "score"])
    assert columns.keep == ("score",)
    assert columns.kept_fields == [pa.field("score", pa.float64())]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "txt"}, "expected the column 'txt', got id, text, about, score"),
        ({"id": "key"}, "expected the column 'key', got id, text"),
        ({"condition": "cond"}, "expected the column 'cond', got id, text"),
        ({"keep": ["nothing"]}, "expected the column 'nothing', got id, text"),
        ({"text": "score"}, "expected strings in the column 'score', got double"),
        ({"condition": "score"}, "expected strings or lists of them in 'score', got double"),
        ({"keep": ["embedding"]}, "--keep-columns: 'embedding' is a column of the output; rename it in the input"),
        ({"keep": ["condition"]}, "--keep-columns: 'condition' is a column of the output"),
        ({"keep": ["id"], "id": "about"}, "--keep-columns: 'id' is a column of the output"),
    ],
)
def test_columns_that_cannot_serve_are_refused(captions, options, message):
    with pytest.raises(RequestError, match=message):
        columns_of(captions, **options)


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (["a", "b"], pa.string()),
        ([1, None], pa.int64()),
        ([1.5, 2.0], pa.string()),
        ([True, False], pa.string()),
    ],
)
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_ids_are_whole_numbers_or_text(tmp_path, values, wanted, ending):
    path = write(tmp_path / f"x.{ending}", [{"id": v, "text": "a"} for v in values])
    rows, rejected, columns = read(path)
    assert columns.id_type == wanted
    as_text = {1.5: "1.5", 2.0: "2.0" if ending == "jsonl" else "2", True: "true", False: "false"}
    kept = [v for v in values if v is not None]
    assert [r[ID] for r in rows] == [as_text[v] if wanted == pa.string() and v not in ("a", "b") else v for v in kept]
    assert len(rejected) == values.count(None)


@pytest.mark.parametrize(
    ("id_type", "wanted"), [(pa.int32(), pa.int64()), (pa.uint64(), pa.uint64()), (pa.large_string(), pa.string())]
)
def test_parquets_id_types(tmp_path, id_type, wanted):
    table = pa.table({"id": pa.array([1, 2]).cast(id_type), "text": ["a", "b"]})
    rows, _, columns = read(write(tmp_path / "x.parquet", table))
    assert columns.id_type == wanted
    assert [r[ID] for r in rows] == (["1", "2"] if wanted == pa.string() else [1, 2])


def test_without_an_id_column_a_row_is_its_place(tmp_path):
    file = the_file(write(tmp_path / "x.csv", [{"text": t} for t in "abc"]))
    columns = find_columns(file, **OPTIONS)
    (span,) = plan_file(7, file, columns, unit_rows=10, span_bytes=10)
    ((table, _),) = read_span(file, span, columns, [(1, 3)])
    assert table[ID].to_pylist() == ["7:1", "7:2"]


def test_jsonl_types_come_from_the_first_rows(tmp_path):
    rows = [
        {"text": "a", "n": 1, "x": 1, "b": True, "mixed": 1, "nested": {"k": 1}, "null": None},
        {"text": "b", "n": 2, "x": 2.5, "b": None, "mixed": "two", "nested": [1]},
    ]
    schema = peek(the_file(write(tmp_path / "x.jsonl", rows)))
    assert {f.name: f.type for f in schema} == {
        "text": pa.string(),
        "n": pa.int64(),
        "x": pa.float64(),
        "b": pa.bool_(),
        "mixed": pa.string(),
        "nested": pa.string(),
        "null": pa.string(),
    }
    found, rejected, _ = read(tmp_path / "x.jsonl", keep=["x", "b", "mixed", "nested", "null"])
    assert not rejected
    kept = [{k.removeprefix(KEEP): v for k, v in row.items() if k.startswith(KEEP)} for row in found]
    assert kept == [
        {"x": 1.0, "b": True, "mixed": "1", "nested": '{"k": 1}', "null": None},
        {"x": 2.5, "b": None, "mixed": "two", "nested": "[1]", "null": None},
    ]


def test_a_later_file_must_have_the_columns_of_the_first(captions, tmp_path):
    columns = columns_of(captions, keep=["score"])
    for rows, message in (
        ([{"id": 1, "text": "a"}], "other.parquet: expected the column 'score', got id, text"),
        ([{"id": 1, "text": "a", "score": "x"}], "expected double in the column 'score' as in the first file, got str"),
        ([{"id": "1", "text": "a", "score": 1.0}], "expected int64 in the column 'id' as in the first file, got str"),
        ([{"id": 1, "text": 1, "score": 1.0}], "expected strings in the column 'text', got int64"),
    ):
        file = the_file(write(tmp_path / "other.parquet", rows))
        with pytest.raises(RequestError, match=message):
            spans_of(file, columns)
    table = pa.table({"score": pa.array([1, 2], pa.float32()), "text": ["a", "b"], "id": pa.array([1, 2], pa.int16())})
    file = the_file(write(tmp_path / "other.parquet", table))
    (span,) = spans_of(file, columns)
    ((rows, _),) = read_span(file, span, columns, [(0, 2)])
    assert (rows[ID].type, rows[KEEP + "score"].type) == (pa.int64(), pa.float64())


# --------------------------------------------------------------------------------------------------------- reasons


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_rows_without_text_or_with_the_same_id_are_rejected(tmp_path, ending):
    texts = ["good", "", "  \n\t", "\u3000", "good too", "again"]
    rows = [{"id": i, "text": t} for i, t in zip(["a", "b", "c", "d", "e", "a"], texts, strict=True)]
    path = write(tmp_path / f"x.{ending}", rows)
    empty = Reason.EMPTY_TEXT
    assert reasons(path) == {1: empty, 2: empty, 3: empty, 5: Reason.DUPLICATE_ID}
    rows, rejected, _ = read(path)
    assert [(r[ID], r[TEXT], r[ROW]) for r in rows] == [("a", "good", 0), ("e", "good too", 4)]
    assert json.loads(rejected[-1][2]) == {"id": "a", "text": "again"} | {"text": "again"}


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


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_lists_of_conditions(tmp_path, ending):
    lists = [["a", "b"], ["a"], [], None, ["a", None], ["a", ""], ["a", "b", "a"]]
    path = write(tmp_path / f"x.{ending}", [{"id": i, "text": "t", "ask": c} for i, c in enumerate(lists)])
    rows, _, _ = read(path, condition="ask")
    assert [r[CONDITIONS] for r in rows] == [["a", "b"], ["a"]]
    assert reasons(path, condition="ask") == {
        2: Reason.EMPTY_CONDITION,
        3: Reason.NULL_CONDITION,
        4: Reason.NULL_CONDITION,
        5: Reason.EMPTY_CONDITION,
        6: Reason.DUPLICATE_CONDITION,
    }


def test_conditions_of_csv(tmp_path):
    path = write(tmp_path / "x.csv", [{"text": "t", "condition": c} for c in ("color", "", "number, of all")])
    rows, _, _ = read(path, condition="condition")
    assert [r[CONDITIONS] for r in rows] == [["color"], ["number, of all"]]
    assert reasons(path, condition="condition") == {1: Reason.EMPTY_CONDITION}


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_lines_that_do_not_parse_are_rejected_with_what_they_are(tmp_path, ending):
    bad = "a,b,c,d" if ending == "csv" else '{"id": "x", '
    good = "1,fine" if ending == "csv" else '{"id": "1", "text": "fine"}'
    head = "id,text\n" if ending == "csv" else ""
    (tmp_path / f"x.{ending}").write_text(f"{head}{bad}\n{good}\n")
    rows, rejected, _ = read(tmp_path / f"x.{ending}")
    assert [(r[ROW], r[TEXT]) for r in rows] == [(1, "fine")]
    assert rejected == [(0, Reason.UNPARSED, bad)]


@pytest.mark.parametrize(
    ("ending", "line"),
    [
        ("csv", b"x,a\xffb"),
        ("csv", b"\xc3,ab"),
        ("jsonl", b'{"id": "x", "text": "a\xff"}'),
        ("jsonl", b'{"id": "x", "text": "a\\ud800"}'),
        ("jsonl", b'{"id": "\\udfff", "text": "a"}'),
        ("jsonl", b'{"id": "x", "text": "a\xed\xa0\x80"}'),
    ],
)
def test_invalid_utf8_is_rejected(tmp_path, ending, line):
    head, good = (b"id,text\n", b"1,fine") if ending == "csv" else (b"", b'{"id": "1", "text": "fine"}')
    (tmp_path / f"x.{ending}").write_bytes(head + good + b"\n" + line + b"\n" + good.replace(b"1", b"2"))
    rows, rejected, _ = read(tmp_path / f"x.{ending}")
    assert [r[ROW] for r in rows] == [0, 2]
    ((row, reason, content),) = rejected
    assert (row, reason) == (1, Reason.INVALID_UTF8)
    content.encode()


def test_invalid_utf8_in_a_column_that_is_not_read_is_no_matter(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"id,text,other\n1,fine,\xff\n")
    assert read(tmp_path / "x.csv")[1] == []


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
    found = reasons(path, condition="ask", keep=["n"])
    assert found == {1000 + i: Reason.WRONG_TYPE for i in range(len(bad))}
    assert len(read(path, condition="ask", keep=["n"])[0]) == 1001


def test_a_wrong_type_says_what_was_wanted_and_found(tmp_path):
    path = write(tmp_path / "x.jsonl", [*({"id": i, "text": "a"} for i in range(1000)), {"id": 1.5, "text": "a"}])
    file = the_file(path)
    columns = find_columns(file, **OPTIONS)
    (span,) = spans_of(file, columns)
    ((_, (rejection,)),) = read_span(file, span, columns, [(0, 1001)])
    assert rejection.detail == "column id: expected int64 as in the first rows, got 1.5"


# ------------------------------------------------------------------------------------------------ spans of a file


def texts(count, seed=0):
    """Texts with everything that makes a text file hard to cut."""
    random = np.random.default_rng(seed)
    letters = ["a", "é", "😀", '"', ",", "\n", "\r\n", "  ", "x" * 40]
    return ["t" + "".join(random.choice(letters, random.integers(0, 9))) for _ in range(count)]


def assert_spans_serve(path, *, unit_rows, span_bytes, **options):
    """The spans cover every row once, and each read alone gives what the whole file gives; -> spans."""
    file = the_file(path)
    columns = find_columns(file, **OPTIONS | options)
    spans = spans_of(file, columns, unit_rows, span_bytes)
    for before, after in pairwise(spans):
        assert before.start + before.rows == after.start
        assert before.at + before.length == after.at
        assert before.rows >= unit_rows
    whole = flat(
        part
        for span in spans_of(file, columns)
        for part in read_span(file, span, columns, [(span.start, span.start + span.rows)])
    )
    assert spans[0].start == 0
    count = spans[-1].start + spans[-1].rows
    assert sorted([r[ROW] for r in whole[0]] + [row for row, _, _ in whole[1]]) == list(range(count))
    alone = []
    for span in reversed(spans):
        intervals = list(cut(span, unit_rows))
        assert [a for a, _ in intervals] + [intervals[-1][1]] == [span.start] + [b for _, b in intervals]
        assert intervals[-1][1] == span.start + span.rows
        parts = list(read_span(file, span, columns, intervals))
        for (start, end), (table, rejections) in zip(intervals, parts, strict=True):
            assert all(start <= row < end for row in table[ROW].to_pylist() + [r.row for r in rejections])
            assert len(table) + len(rejections) == end - start
        for i, interval in enumerate(intervals):  # one interval of a span alone
            assert flat(read_span(file, span, columns, [interval])) == flat([parts[i]])
        alone = parts + alone
    assert flat(alone) == whole
    return spans


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(("unit_rows", "span_bytes"), [(1, 1), (3, 1), (7, 500), (50, 10**9)])
def test_spans_of_clean_files(tmp_path, ending, unit_rows, span_bytes):
    wanted = texts(60)
    path = write(tmp_path / f"x.{ending}", [{"id": i, "text": t} for i, t in enumerate(wanted)])
    if ending == "parquet":
        pq.write_table(pq.read_table(path), path, row_group_size=5)
    spans = assert_spans_serve(path, unit_rows=unit_rows, span_bytes=span_bytes)
    assert [r[TEXT] for r in read(path)[0]] == wanted
    assert len(spans) > 1 or unit_rows == 50
    assert spans[-1].start + spans[-1].rows == 60


@pytest.mark.parametrize(
    ("ending", "tail"),
    [(ending, tail) for ending in ("csv", "jsonl") for tail in ("", "\n", "\n\n\r\n", "\r\n")] + [("jsonl", "\n  ")],
)
def test_files_with_and_without_a_last_line_end(tmp_path, ending, tail):
    head, lines = ("text\n", ["a", "b", "c"]) if ending == "csv" else ("", [f'{{"text": "{c}"}}' for c in "abc"])
    (tmp_path / f"x.{ending}").write_text(head + "\n\n".join(lines) + tail, newline="")
    spans = assert_spans_serve(tmp_path / f"x.{ending}", unit_rows=1, span_bytes=1)
    assert [s.rows for s in spans] == [1, 1, 1]


def test_a_csv_with_byte_order_mark_and_crlf(tmp_path):
    (tmp_path / "x.csv").write_bytes("\ufeffid,text\r\n1,a\r\n2,b\r\n".encode())
    assert_spans_serve(tmp_path / "x.csv", unit_rows=1, span_bytes=1)
    assert [(r[ID], r[TEXT]) for r in read(tmp_path / "x.csv")[0]] == [("1", "a"), ("2", "b")]


@pytest.mark.parametrize("seed", range(40))
def test_spans_of_broken_csv(tmp_path, seed):
    """Lines with stray quotes near the ends of spans: a span read alone must fall into the same records."""
    random = np.random.default_rng(seed)
    pieces = ["1,a\n", '2,"b"\n', '3,"c\n', 'd"\n', '4,"e" f\n', '"\n', "\n", "5\n", '6,"g\nh"\n', "7,\xff\n", ',"",\n']
    data = "key,text\n" + "".join(random.choice(pieces, 40))
    (tmp_path / "x.csv").write_bytes(data.encode("latin-1"))
    for unit_rows in (1, 2, 5):
        assert_spans_serve(tmp_path / "x.csv", unit_rows=unit_rows, span_bytes=1)


@pytest.mark.parametrize("seed", range(10))
def test_spans_of_broken_jsonl(tmp_path, seed):
    random = np.random.default_rng(seed)
    pieces = [
        b'{"id": "%d", "text": "a"}\n',
        b"{\n",
        b"\n",
        b'{"text": "\xff"}\n',
        b"[]\n",
        b'{"id": "x", "text": " "}\n',
    ]
    lines = [p % i if b"%d" in p else p for i, p in enumerate(random.choice(np.array(pieces, object), 40))]
    (tmp_path / "x.jsonl").write_bytes(b'{"id": "first", "text": "a"}\n' + b"".join(lines))
    for unit_rows in (1, 2, 5):
        assert_spans_serve(tmp_path / "x.jsonl", unit_rows=unit_rows, span_bytes=1)


@pytest.mark.parametrize(("row_group_size", "wanted"), [(1, [4] * 10), (3, [6] * 6 + [4]), (1000, [40]), (4, [4] * 10)])
def test_parquet_is_cut_by_row_groups(tmp_path, row_group_size, wanted):
    pq.write_table(pa.table({"text": texts(40)}), tmp_path / "x.parquet", row_group_size=row_group_size)
    spans = assert_spans_serve(tmp_path / "x.parquet", unit_rows=4, span_bytes=1)
    assert [s.rows for s in spans] == wanted


def test_parquet_with_empty_row_groups(tmp_path):
    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(tmp_path / "x.parquet", schema) as writer:
        for count in (0, 2, 0, 3, 0):
            writer.write_table(pa.table({"text": texts(count)}, schema=schema))
    spans = assert_spans_serve(tmp_path / "x.parquet", unit_rows=1, span_bytes=1)
    assert sum(s.rows for s in spans) == 5


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_file_without_rows_has_no_span(tmp_path, ending):
    path = tmp_path / f"x.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    else:
        path.write_text("text\n\n" if ending == "csv" else "\n\n")
    columns = columns_of(write(tmp_path / f"first.{ending}", [{"text": "a"}]))
    assert spans_of(the_file(path), columns) == []


@pytest.mark.parametrize(("rows", "unit_rows", "sizes"), [(10, 4, {5}), (10, 100, {10}), (1000, 300, {333, 334})])
def test_units_of_a_span_are_of_nearly_equal_size(tmp_path, rows, unit_rows, sizes):
    file = the_file(write(tmp_path / "x.csv", [{"text": "a"}] * rows))
    (span,) = spans_of(file, find_columns(file, **OPTIONS))
    assert {b - a for a, b in cut(span, unit_rows)} == sizes


@pytest.mark.parametrize("kind", [pa.large_string(), pa.dictionary(pa.int32(), pa.string()), pa.string_view()])
def test_parquets_other_kinds_of_text(tmp_path, kind):
    plain = pa.table({"id": ["x", "y"], "text": ["a", "b"], "ask": ["c", "c"]})
    table = pa.table({name: plain[name].combine_chunks().cast(kind) for name in plain.column_names})
    path = write(tmp_path / "x.parquet", table)
    rows, rejected, columns = read(path, condition="ask", keep=["text", "ask"])
    assert not rejected
    assert [(r[ID], r[TEXT], r[CONDITIONS], r[KEEP + "ask"]) for r in rows] == [
        ("x", "a", ["c"], "c"),
        ("y", "b", ["c"], "c"),
    ]
    assert set(columns.types.values()) == {pa.string()}


def test_large_lists_of_conditions(tmp_path):
    ask = pa.array([["a", "b"], ["c"]], pa.large_list(pa.large_string()))
    path = write(tmp_path / "x.parquet", pa.table({"text": ["x", "y"], "ask": ask}))
    assert [r[CONDITIONS] for r in read(path, condition="ask")[0]] == [["a", "b"], ["c"]]


def test_a_text_column_of_nulls_alone(tmp_path):
    path = write(tmp_path / "x.parquet", pa.table({"text": pa.nulls(2)}))
    assert reasons(path) == {0: Reason.NULL_TEXT, 1: Reason.NULL_TEXT}


# ------------------------------------------------------------------------------------------------------ bad files


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
        RequestError, match=r"x\.csv: expected (the column 'text', got none|a readable csv file, got: )"
    ):
        columns_of(tmp_path / "x.csv")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_file_that_shrank_since_planning_is_refused(tmp_path, ending):
    path = write(tmp_path / f"x.{ending}", [{"id": i, "text": "a"} for i in range(10)])
    file = the_file(path)
    columns = find_columns(file, **OPTIONS)
    (span,) = spans_of(file, columns)
    write(path, [{"id": i, "text": "a"} for i in range(4)])
    for wanted in ([(0, 5), (5, 10)], [(5, 10)]):
        with pytest.raises(RequestError, match=f"x.{ending}: "):
            list(read_span(file, span, columns, wanted))
    if ending == "parquet":
        pq.write_table(pq.read_table(path), path, row_group_size=1)
        with pytest.raises(RequestError, match=r"x.parquet: "):
            list(read_span(file, replace(span, at=3, length=3), columns, [(0, 10)]))
    path.unlink()
    with pytest.raises(RequestError, match=rf"x\.{ending}: expected a readable {ending} file, got: "):
        list(read_span(file, span, columns, [(0, 10)]))


# ------------------------------------------------------------------------------------------------------ conditions


def test_conditions_as_strings():
    assert read_conditions(["color of the dress", "number of people"]) == ["color of the dress", "number of people"]
    assert read_conditions(["color"]) == ["color"]
    assert read_conditions([]) == []


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("c.txt", "color\n\n  number of people \r\n"),
        ("c.txt", "\ufeffcolor\nnumber of people"),
        ("c.csv", "condition\ncolor\nnumber of people\n"),
        ("c.csv", '\ufeffid,condition\r\n1,color\r\n2,"number of people"\r\n'),
        ("c.csv", "aspect\ncolor\n\nnumber of people\n\n"),  # the only column; blank lines
    ],
)
def test_conditions_in_a_text_file(tmp_path, name, data):
    (tmp_path / name).write_bytes(data.encode())
    assert read_conditions([str(tmp_path / name)]) == ["color", "number of people"]


@pytest.mark.parametrize("columns", [("condition",), ("id", "condition"), ("aspect",)])
def test_conditions_in_parquet(tmp_path, columns):
    pq.write_table(pa.table({name: ["color", "number"] for name in columns}), tmp_path / "c.parquet")
    assert read_conditions([str(tmp_path / "c.parquet")]) == ["color", "number"]


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        (["color", " "], "expected words in every condition, got ' ' at place 1"),
        ([""], "expected words in every condition, got '' at place 0"),
        (["color", "number", "color"], "expected each condition once, got 'color' twice"),
    ],
)
def test_empty_and_repeated_conditions_are_refused(conditions, message):
    with pytest.raises(RequestError, match=f"--conditions: {message}"):
        read_conditions(conditions)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("c.txt", b"\n \n", "expected at least one condition in .*, got none"),
        ("c.csv", b"", "expected a column 'condition' in .*, got none"),
        ("c.csv", b"condition\n" + b"x" * 2_000_000, "expected a readable file at .*, got: field larger"),
        ("c.csv", b"condition\n", "expected at least one condition in .*, got none"),
        ("c.csv", b"a,b\n1,2\n", "expected a column 'condition' in .*, got a, b"),
        ("c.csv", b"id,condition\n1,color\n2\n", "expected a readable file at .*, got: "),
        ("c.csv", b"condition\ncolor\ncolor\n", "expected each condition once, got 'color' twice"),
        ("c.txt", b"color\xff\n", "expected a readable file at .*, got: "),
        ("c.parquet", b"no parquet", "expected a readable file at .*, got: "),
        ("c.txt", None, "expected a readable file at .*, got: "),
    ],
)
def test_files_without_conditions_are_refused(tmp_path, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    with pytest.raises(RequestError, match=f"--conditions: {message}"):
        read_conditions([str(tmp_path / name)])


@pytest.mark.parametrize("values", [[1, 2], ["color", None], [], [["color"]]])
def test_conditions_that_are_no_words_are_refused(tmp_path, values):
    pq.write_table(pa.table({"condition": values}), tmp_path / "c.parquet")
    with pytest.raises(RequestError, match=r"--conditions: expected (words in every condition|at least one condition)"):
        read_conditions([str(tmp_path / "c.parquet")])
