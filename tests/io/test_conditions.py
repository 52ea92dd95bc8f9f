"""The conditions of a job: strings or files, and every reason to refuse them."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycase.errors import RequestError
from raycase.io.reader import read_conditions


def test_conditions_as_strings():
    assert read_conditions(conditions := ["color of the dress", "number of people"]) == conditions
    assert read_conditions([" a\u2003 cafe\u0301\u00a0\n"]) == ["a caf\u00e9"]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("c.txt", "color\n\n  number of people \r\n"),
        ("C.TXT", "\ufeffcolor\rnumber of\u2028\x0cpeople"),
        ("c.csv", '\ufeffid,condition\r\n1,color\r\n2,"number of people"\r\n'),
        ("c.csv", "Conditions\ncolor\n\nnumber of people\n\n"),  # the only column; blank lines
        ("c.jsonl", '{"aspect": "color"}\n{"aspect": "number of people"}\n'),  # the only column has a name for certain
        ("c.jsonl", '{"id": 1, "condition": "color"}\n{"id": 2, "condition": "number of people"}\n'),
        ("c.parquet", ("id", "condition")),
        ("folder.parquet", ["color", "number of people"]),  # one in each file of it
    ],
)
def test_conditions_in_a_file(tmp_path, name, data):
    if isinstance(data, tuple):
        pq.write_table(pa.table({column: ["color", "number of people"] for column in data}), tmp_path / name)
    elif isinstance(data, list):
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
        (["color", "number", "color"], "expected each condition once, got 'color' twice"),
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
        (
            "c.csv",
            b"color\nsize\n",
            ".*expected the column 'condition', got color; if",
        ),
        ("c.csv", b"id,condition\n1,color\n2\n", ".*row 1: line does not parse: expected 2 fields, got 1"),
        (
            "c.jsonl",
            b'{"condition": "a", "condition": "b"}',
            "expected words in .*, got several values of the name 'condition' at index 0",
        ),
        ("c.txt", b"color\xff\n", None),
        ("c.parquet", b"no parquet", None),
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
