"""Columns and their types, in the first file and in every later one."""

import pyarrow as pa
import pytest
from input_files import columns_in, columns_of, read, read_from, spans_of, the_file, write

from raycase.errors import RequestError
from raycase.io.inputs import peek
from raycase.io.reader import KEEP
from raycase.io.schema import ID


@pytest.fixture
def captions(tmp_path):
    rows = [{"id": i, "text": f"text {i}", "about": "color", "stars": i / 2} for i in range(3)]
    return write(tmp_path / "captions.parquet", rows)


def test_the_id_column_is_taken_where_there_is_one_and_the_text_is_kept_unless_said_otherwise(captions, tmp_path):
    assert columns_of(captions).id == "id" and columns_of(captions, id="about").id == "about"
    assert columns_of(write(tmp_path / "x.jsonl", [{"text": "a"}])).id is None
    assert columns_of(captions).keep == ("text",) and columns_of(captions, keep=[]).keep == ()
    columns = columns_of(captions, keep=["stars", "id", "stars"])
    assert (columns.keep, columns.types["stars"]) == (("stars",), pa.float64())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"text": "no"}, "expected the column 'no', got id, text"),
        ({"keep": ["nothing"]}, "expected the column 'nothing', got id, text, about, stars"),
        ({"text": "stars"}, "expected strings in the column 'stars', got double"),
        ({"condition": "stars"}, "expected strings or lists of them in 'stars', got double"),
        ({"keep": ["embedding"]}, "--keep-columns: 'embedding' is a column of the output"),
    ],
)
def test_columns_that_cannot_serve_are_refused(captions, options, message):
    with pytest.raises(RequestError, match=message):
        columns_of(captions, **options)


@pytest.mark.parametrize(
    ("values", "wanted"), [([1, None], pa.int64()), ([1.5, 2.0], pa.string()), ([True, False], pa.string())]
)
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_ids_are_whole_numbers_or_text(tmp_path, values, wanted, ending):
    path = write(tmp_path / f"x.{ending}", [{"id": v, "text": "a"} for v in values])
    rows, rejected, columns = read(path)
    assert columns.id_type == wanted
    as_text = {1.5: "1.5", 2.0: "2.0" if ending == "jsonl" else "2", True: "true", False: "false"}
    kept = [v for v in values if v is not None]
    assert [r[ID] for r in rows] == [as_text[v] if wanted == pa.string() else v for v in kept]
    assert len(rejected) == values.count(None)


def test_without_an_id_column_a_row_is_its_place(tmp_path):
    file = the_file(write(tmp_path / "x.csv", [{"text": t} for t in "abc"]))
    columns = columns_in(file)
    (span,) = spans_of(file, columns, number=7)
    ((table, _),) = read_from(file, span, columns, [(1, 3)])
    assert table[ID].to_pylist() == ["7:1", "7:2"]


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
        ([{"id": 1, "text": 1, "stars": 1.0}], "expected strings in the column 'text', got int64"),
    ):
        file = the_file(write(tmp_path / "other.parquet", rows))
        with pytest.raises(RequestError, match=message):
            spans_of(file, columns)
    table = pa.table({"stars": pa.array([1, 2], pa.float32()), "text": ["a", "b"], "id": pa.array([1, 2], pa.int16())})
    file = the_file(write(tmp_path / "other.parquet", table))
    (span,) = spans_of(file, columns)
    ((rows, _),) = read_from(file, span, columns, [(0, 2)])
    assert (rows[ID].type, rows[KEEP + "stars"].type) == (pa.int64(), pa.float64())
