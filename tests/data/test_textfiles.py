"""Records of CSV and JSONL, good and bad, and that no byte of a file is lost between them."""

import csv
import io
import json

import numpy as np
import pytest

from raycase.data import textfiles
from raycase.data.schema import Reason
from raycase.data.textfiles import buffered, csv_header, csv_lines, jsonl_lines

HEADER = ("id", "text")


def of_csv(data, header=HEADER, **options):
    data = data.encode() if isinstance(data, str) else data
    lines = list(csv_lines(io.BytesIO(data), header, **options))
    assert b"".join(line.raw for line in lines) == data
    return lines


def of_jsonl(data):
    data = data.encode() if isinstance(data, str) else data
    lines = list(jsonl_lines(io.BytesIO(data)))
    assert b"".join(line.raw for line in lines) == data
    return lines


def values(lines):
    return [line.values and tuple(line.values.values()) for line in lines]


def problems(lines):
    return [line.problem for line in lines]


# ------------------------------------------------------------------------------------------------------------- CSV


@pytest.mark.parametrize(
    ("data", "wanted"),
    [
        ("1,a\n2,b\n", [("1", "a"), ("2", "b")]),
        ("1,a\n2,b", [("1", "a"), ("2", "b")]),
        ("1,a\r\n2,b\r\n", [("1", "a"), ("2", "b")]),
        ('1,"a,b"\n2,"c\nd"\n', [("1", "a,b"), ("2", "c\nd")]),
        ('1,"a\r\n\r\nb"\r\n2,c\r\n', [("1", "a\r\n\r\nb"), ("2", "c")]),
        ('1,"say ""hi"""\n', [("1", 'say "hi"')]),
        ('1,say "hi" now\n2,b\n', [("1", 'say "hi" now'), ("2", "b")]),
        ("1,\n,b\n", [("1", ""), ("", "b")]),
        ("1,naïve 😀\n", [("1", "naïve 😀")]),
        ("1,  spaces kept \n", [("1", "  spaces kept ")]),
        ("", []),
    ],
)
def test_rows_of_csv(data, wanted):
    assert values(of_csv(data)) == wanted


def test_blank_lines_of_csv_are_no_rows():
    lines = of_csv("\n1,a\n\r\n\n2,b\n\n")
    assert [line.is_row for line in lines] == [False, True, False, False, True, False]
    assert all(line.problem is None for line in lines)


@pytest.mark.parametrize(
    "first",
    [
        '1,"open',  # an unclosed quote
        '1,"a" b',  # a quote that ends before its field
        '1,"a"b"',
        "1",  # too few fields
        "1,a,b",  # too many
        '1,"a","b"',
        "1,a\rb",  # a line ends within
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_bad_line_of_csv_costs_itself_alone(first, end):
    data = end.join(["0,before", first, "2,next", '3,"quoted, too"', ""])
    lines = of_csv(data)
    assert values(lines) == [("0", "before"), None, ("2", "next"), ("3", "quoted, too")]
    assert problems(lines) == [None, Reason.UNPARSED, None, None]
    assert lines[1].raw.decode() == first + end
    assert lines[1].detail


def test_the_number_of_fields_is_said():
    assert of_csv("1,a,b\n")[0].detail == "expected 2 fields, got 3"


def test_an_unclosed_quote_before_quoted_rows():
    """The next quote closes it; what follows it does not fit."""
    lines = of_csv('1,"open\n2,"closed, and\n3,more"\n4,d\n')
    assert values(lines) == [None, ("2", "closed, and\n3,more"), ("4", "d")]


def test_an_unclosed_quote_is_given_up_after_the_limit(request):
    before = csv.field_size_limit()  # it is the process's
    request.addfinalizer(lambda: csv.field_size_limit(before))
    rows = [f"{i},{'x' * 30}" for i in range(200)]
    lines = of_csv("\n".join(['a,"open', *rows, 'b,"closed"', ""]), field_limit=1000)
    assert problems(lines) == [Reason.UNPARSED] + [None] * 201
    assert "limit" in lines[0].detail


def test_a_field_up_to_the_limit_is_read_whole():
    text = "x" * (textfiles.CSV_FIELD_LIMIT - 1)
    assert values(of_csv(f"1,{text}\n2,b\n")) == [("1", text), ("2", "b")]


def test_invalid_utf8_of_csv_is_kept_for_who_reads_the_column():
    lines = of_csv(b"1,a\xff\n2,b\n")
    assert values(lines) == [("1", "a\udcff"), ("2", "b")]


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"id,text\n1,a\n", ("id", "text")),
        (b"\xef\xbb\xbfid,text\r\n1,a\r\n", ("id", "text")),
        (b'"id","the text, all"\n', ("id", "the text, all")),
        ("id,naïve".encode(), ("id", "naïve")),
        (b"", ()),
    ],
)
def test_header(data, names):
    assert csv_header(io.BytesIO(data)) == names


def test_a_column_name_twice_is_refused():
    with pytest.raises(ValueError, match="a column name twice in the first line: id, text, id"):
        csv_header(io.BytesIO(b"id,text,id\n"))


@pytest.mark.parametrize("seed", range(30))
def test_what_pythons_writer_writes_is_read_back(seed):
    random = np.random.default_rng(seed)
    rows = [tuple("".join(random.choice(list('ab",\n\r é'), 6)) for _ in range(2)) for _ in range(20)]
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows(rows)
    assert values(of_csv(buffer.getvalue())) == rows


@pytest.mark.parametrize("seed", range(30))
def test_no_byte_of_a_broken_csv_is_lost(seed):
    """`of_csv` asserts it; and clean lines after the noise are always rows."""
    random = np.random.default_rng(seed)
    noise = bytes(random.choice(list(b'ab",\n\r\xff'), 300))
    lines = of_csv(noise + b"\n" + b"1,clean\n" * 3)
    assert values(lines)[-1] == ("1", "clean")


# ----------------------------------------------------------------------------------------------------------- JSONL


def test_rows_of_jsonl():
    objects = [{"id": 1, "text": "a\nb"}, {}, {"text": None, "x": [1, {"y": "ü"}]}]
    data = "\n".join(json.dumps(o, ensure_ascii=False) for o in objects)
    for whole in (data, data + "\n", data.replace("\n", "\r\n"), "\ufeff" + data):
        assert [line.values for line in of_jsonl(whole)] == objects


def test_blank_lines_of_jsonl_are_no_rows():
    assert [line.is_row for line in of_jsonl("\n{}\n  \t\r\n{}\n\n")] == [False, True, False, True, False]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (b'{"text": "a"', Reason.UNPARSED),
        (b"{'text': 1}", Reason.UNPARSED),
        (b'{"a": 1} {"b": 2}', Reason.UNPARSED),
        (b"[1, 2]", Reason.UNPARSED),
        (b'"text"', Reason.UNPARSED),
        (b"null", Reason.UNPARSED),
        (b"[" * 100_000, Reason.UNPARSED),
        (b'{"text": "\xff"}', Reason.INVALID_UTF8),
        (b'{"text": "\xc3', Reason.INVALID_UTF8),
    ],
)
def test_a_bad_line_of_jsonl_costs_itself_alone(bad, reason):
    lines = of_jsonl(b'{"a": 1}\n' + bad + b'\n{"b": 2}\n')
    assert problems(lines) == [None, reason, None]
    assert [line.values for line in lines] == [{"a": 1}, None, {"b": 2}]
    assert lines[1].detail


def test_what_is_no_object_is_named():
    assert of_jsonl("[]")[0].detail == "expected an object, got list"


def test_lines_of_a_file_opened_by_fsspec(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    (tmp_path / "a.jsonl").write_bytes(b'{"a": 1}\n' * 1000)
    with fsspec.open(f"file://{tmp_path}/a.jsonl", "rb") as handle:
        assert len(list(jsonl_lines(buffered(handle)))) == 1000
