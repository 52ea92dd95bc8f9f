"""Columns and their types, in the first file and in every later one; kept ones of every type and name."""

import datetime
import json
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import embed_here, read_output
from input_files import columns_of, read, read_from, spans_of, the_file, write
from storing import indexed

from raycase.commands.embed import EmbedFlags
from raycase.errors import RequestError
from raycase.index.index import Index
from raycase.io.inputs import peek
from raycase.io.reader import KEEP
from raycase.io.schema import ID
from raycase.job.verify import verify
from raycase.papers.baselines.model import bi_encoder


@pytest.fixture
def captions(tmp_path):
    rows = [{"id": i, "text": f"text {i}", "about": "color", "stars": i / 2} for i in range(3)]
    return write(tmp_path / "captions.parquet", rows)


def test_the_id_column_is_taken_where_there_is_one_and_the_text_is_kept_unless_said_otherwise(captions, tmp_path):
    assert columns_of(captions).id == "id" and columns_of(captions, id="about").id == "about"
    assert columns_of(write(tmp_path / "x.jsonl", [{"text": "a"}])).id is None
    assert columns_of(captions).keep == ("text",)
    columns = columns_of(captions, keep=["stars", "id", "stars"])
    assert (columns.keep, columns.types["stars"]) == (("stars",), pa.float64())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": ["nothing"]}, "expected the column 'nothing', got id, text, about, stars"),
        ({"text": "stars"}, "expected strings in the column 'stars', got double"),
        ({"condition": "stars"}, "expected strings or lists of them in 'stars', got double"),
    ],
)
def test_columns_that_cannot_serve_are_refused(captions, options, message):
    with pytest.raises(RequestError, match=message):
        columns_of(captions, **options)


@pytest.mark.parametrize(("apart", "named"), [(";", "';'"), ("\t", "tabs"), ("|", r"'\|'")])
def test_columns_that_other_marks_than_commas_part_are_named(tmp_path, apart, named):
    (tmp_path / "x.csv").write_text(f"id{apart}text\n7{apart}a dog, a cat\n")
    with pytest.raises(RequestError, match=f"which is one column: {named} part its names, .*; write it with commas$"):
        columns_of(tmp_path / "x.csv")
    (tmp_path / "x.csv").write_text(f"id,a{apart}b\n7,a dog\n")
    with pytest.raises(RequestError, match=r"; --text-column names another$"):
        columns_of(tmp_path / "x.csv")


def test_jsonl_types_come_from_the_first_rows(tmp_path):
    rows = [
        {"text": "a", "n": 1, "x": 1, "b": True, "mixed": 1, "nested": {"k": 1}, "null": None},
        {"text": "b", "n": 2, "x": 2.5, "b": None, "mixed": "two", "nested": [1]},
    ]
    schema = peek(the_file(write(tmp_path / "x.jsonl", rows)))
    types = {"text": pa.string(), "n": pa.int64(), "x": pa.float64(), "b": pa.bool_()}
    assert {f.name: f.type for f in schema} == types | dict.fromkeys(("mixed", "nested", "null"), pa.string())
    found, rejected, _ = read(tmp_path / "x.jsonl", keep=["x", "b", "mixed", "nested", "null"])
    assert not rejected
    kept = [{k.removeprefix(KEEP): v for k, v in row.items() if k.startswith(KEEP)} for row in found]
    assert kept == [
        {"x": 1.0, "b": True, "mixed": "1", "nested": '{"k": 1}', "null": None},
        {"x": 2.5, "b": None, "mixed": "two", "nested": "[1]", "null": None},
    ]


def test_a_later_file_must_have_the_columns_of_the_first(captions, tmp_path):
    columns = columns_of(captions, keep=["stars"])
    for rows, message in (
        ([{"id": 1, "text": "a"}], "other.parquet: expected the column 'stars', got id, text"),
        ([{"id": 1, "text": "a", "stars": "x"}], "expected double in the column 'stars' as in the first file, got str"),
        ([{"id": "1", "text": "a", "stars": 1.0}], "expected int64 in the column 'id' as in the first file, got str"),
    ):
        file = the_file(write(tmp_path / "other.parquet", rows))
        with pytest.raises(RequestError, match=message):
            spans_of(file, columns)
    table = pa.table({"stars": pa.array([1, 2], pa.float32()), "text": ["a", "b"], "id": pa.array([1, 2], pa.int16())})
    file = the_file(write(tmp_path / "other.parquet", table))
    (span,) = spans_of(file, columns)
    ((rows, _),) = read_from(file, span, columns, [(0, 2)])
    assert (rows[ID].type, rows[KEEP + "stars"].type) == (pa.int64(), pa.float64())


# --------------------------------------------------------------------------------------------------------- kept columns


NOON = datetime.datetime(2024, 2, 29, 12, 34, 56, 789012)
STRUCT = pa.struct([("x", pa.int8()), ("y", pa.string())])

KEPT = {
    "dictionary": pa.array(["a", None, "b"]).dictionary_encode(),
    "decimal128": pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(38, 10)),
    "timestamp with a zone": pa.array([NOON, None, NOON], pa.timestamp("us", "Europe/Zurich")),
    "list of structs": pa.array([[{"x": 1, "y": "a"}, None], None, []], pa.list_(STRUCT)),
    "list of fixed size": pa.array([[1, None], None, [5, 6]], pa.list_(pa.float32(), 2)),
    "uint64": pa.array([0, None, 2**64 - 1], pa.uint64()),
    "int64": pa.array([-(2**63), None, 2**63 - 1], pa.int64()),
    "bool": pa.array([True, None, False]),
    "null": pa.nulls(3),
    "string": pa.array(["", None, "é\0\n"]),
    "view of bytes": pa.array([b"abc", None, b""], pa.binary_view()),
    "struct of views": pa.array([{"x": ["a"]}, None, {"x": None}], pa.struct([("x", pa.list_(pa.string_view()))])),
    "binary of fixed size": pa.array([b"abc", None, b"def"], pa.binary(3)),
}


def test_what_comes_back_from_an_index_is_what_went_in(tmp_path, tiny_model):
    bi_encoder(str(tiny_model)).trainable().save(tmp_path / "bi")
    table = pa.table({"id": [1, 2, 3], "text": ["a red dog", "a blue cat", "a man"], "Year": [1, 2, 3]} | KEPT)
    names = [*KEPT, "Year", "year", 'a "b"', "a\nb", " "]
    for name in names[-4:]:
        table = table.append_column(name, pa.array([f"{name}{i}" for i in range(3)]))
    pq.write_table(table, tmp_path / "in.parquet")
    wanted = pq.read_table(tmp_path / "in.parquet").select(names).to_pylist()
    files = {"input": str(tmp_path / "in.parquet"), "output": str(tmp_path / "out"), "model": str(tmp_path / "bi")}
    job = EmbedFlags(**files, conditions=("color",), keep_columns=tuple(names), unit_rows=2)
    assert embed_here(job)["rows_out"] == 3
    assert read_output(job.output).select(names).to_pylist() == wanted
    verify(job.output)
    found = Index.open(indexed(tmp_path / "i.lance", job.output)).search("a red dog", "color", 3).sort_by("id")
    assert found.select(names).to_pylist() == wanted


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, "a dot, a backtick or a NUL") for name in ("a`b", "", "a.b", "a\0b")),
        *((name, "for themselves") for name in ("_rowid", "_distance", "vector", "plain", "word_codes", "rank")),
    ],
)
def test_a_name_that_an_index_cannot_have_is_refused(tmp_path, name, words):
    path = write(tmp_path / "x.parquet", pa.table({"text": ["a"], name: ["b"]}))
    with pytest.raises(RequestError, match=words) as error:
        columns_of(path, keep=["text", name])
    assert str(error.value).startswith("--keep-columns: ") and len(str(error.value)) < 600
    assert columns_of(path, keep=["text"]).keep == ("text",)


OFFSETS = pa.py_buffer(np.array([0, 1, 2, 3], np.int32))
BROKEN = pa.Array.from_buffers(pa.string(), 3, [None, OFFSETS, pa.py_buffer(b"a\xffb")])
LISTS = pa.array([0, 1, 2, 3], pa.int32())
ODD_TIMES = [(2**62, pa.timestamp("us")), (1, pa.timestamp("us", "Mars/Base"))]


@pytest.mark.parametrize(
    ("text", "column", "rejected"),
    [
        *(("", pa.array([value, 1, 2], kind), 1) for value, kind in ODD_TIMES),
        ("a", pa.ListArray.from_arrays(LISTS, pa.ListArray.from_arrays(LISTS, BROKEN)), 2),
    ],
)
def test_a_value_that_python_has_not_rejects_its_row_at_most(tmp_path, text, column, rejected):
    """One row is without text, or has no UTF-8; it is kept with its reason, and the others are read."""
    path = write(tmp_path / "x.parquet", pa.table({"id": [1, 2, 3], "text": [text, "b", "c"], "v": column}))
    columns = columns_of(path, keep=["v"])
    [span] = spans_of(the_file(path), columns)
    [(rows, rejections)] = read_from(the_file(path), span, columns, [(0, 3)])
    assert rows["id"].to_pylist() == [i for i in (1, 2, 3) if i != rejected]
    assert [r.id for r in rejections] == [str(rejected)]
    assert json.loads(rejections[0].content)["id"] == rejected
    others = [i for i in range(3) if i + 1 != rejected]
    assert rows[KEEP + "v"].combine_chunks().equals(column.take(pa.array(others)).cast(columns.types["v"]))
