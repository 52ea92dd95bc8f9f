"""Records of CSV and JSONL, good and bad, and that no byte of a file is lost between them."""

import csv
import io
import json

import numpy as np
import pytest

from raycase.data.schema import Reason
from raycase.data.textfiles import buffered, csv_header, csv_lines, jsonl_lines

HEADER = ("id", "text")


def of_csv(data, header=HEADER):
    data = data.encode() if isinstance(data, str) else data
    lines = list(csv_lines(io.BytesIO(data), header))
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
        (b"1,a\xff\n", [("1", "a\udcff")]),  # for who reads the column
        ("\n1,a\n\r\n\n2,b\n\n", [None, ("1", "a"), None, None, ("2", "b"), None]),  # blank lines are no rows
        ("", []),
    ],
)
def test_rows_of_csv(data, wanted):
    lines = of_csv(data)
    assert values(lines) == wanted
    assert [line.is_row for line in lines] == [row is not None for row in wanted]


@pytest.mark.parametrize(
    "bad",
    [
        '1,"a" b',  # a quote that ends before its field
        '1,"a"b"',
        "1",  # too few fields
        "1,a,b",  # too many
        '1,"a","b"',
        "1,a\rb",  # a line ends within
        *('"1\n2"', '1,a,"b\n\nc"', '1,"a\nb",c'),  # with all its lines
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_bad_record_of_csv_costs_itself_alone(bad, end):
    lines = of_csv(end.join(["0,before", bad, "2,next", '3,"quoted, too"', ""]))
    assert values(lines) == [("0", "before"), None, ("2", "next"), ("3", "quoted, too")]
    assert problems(lines) == [None, Reason.UNPARSED, None, None]
    assert lines[1].raw.decode() == bad + end and lines[1].detail
    assert problems(of_csv(f'1,a{end}2,"open')) == problems(of_csv(f'1,a{end}2,"open{end}')) == [None, Reason.UNPARSED]


@pytest.mark.parametrize(
    "broken",
    [
        '1,"open\n2,next\n3,"quoted, too"\n',  # an unclosed quote: three rows, or one whose text has a quote too many
        '1,"open\n2,next\n',
        '1,"he said "no",\n then, "yes"\nand, more"\n2,next\n',
        '1,"a\nb" c\n2,next\n',
        '1,"a 5" disk, and\na mouse, too"\n2,next\n',
        '1,"a "disk"\na mouse, too",\n2,next\n',
        '1,"a" b,"open\n2,next\n',  # the line is no record, and leaves a quote open
        '1,"a" b,"c\rd\n2,next\n',
        '1,a\rb,"c\n2,next\n',
    ],
)
def test_a_record_whose_end_nobody_knows_ends_the_file_at_its_byte(broken):
    """Never rows made of the lines of a text, nor a text made of rows."""
    before = "0,bef\xf6re\n".encode()
    lines = csv_lines(io.BytesIO(before + broken.encode()), HEADER)
    assert values([next(lines)]) == [("0", "bef\xf6re")]
    with pytest.raises(ValueError, match=f"^at byte {len(before)} a record whose end is not certain"):
        list(lines)


def test_a_text_of_thousands_of_lines_is_one_row():
    text = "".join(f"line {i}, of many\n" * 6 + "\n\r\n" for i in range(20_000))
    assert len(text) > 2 * 2**20
    buffer = io.StringIO(newline="")
    csv.writer(buffer).writerows([("1", text), ("2", "b"), ("3", text)])
    assert values(of_csv(buffer.getvalue())) == [("1", text), ("2", "b"), ("3", text)]


@pytest.mark.parametrize("data", [b"1,a\n" + b"x" * 2000, b'1,a\n2,"' + b"x\n" * 1000, b'1,a\n2,"' + b"x" * 2000])
def test_a_row_without_end_is_not_read_into_memory(data):
    stream = io.BytesIO(data)
    with pytest.raises(ValueError, match="at byte 4 a row of 1,000 bytes"):
        list(csv_lines(stream, HEADER, record_bytes=1000))
    assert stream.tell() < 1100
    with pytest.raises(ValueError, match="at byte 3 a row of 1,000 bytes"):
        list(jsonl_lines(io.BytesIO(b"{}\n" + b"x" * 2000), record_bytes=1000))


@pytest.mark.parametrize(
    ("data", "names"),
    [
        (b"id,text\n1,a\n", ("id", "text")),
        (b"\xef\xbb\xbfid,text\r\n1,a\r\n", ("id", "text")),
        (b'"id","the text, all"\n', ("id", "the text, all")),
        ("id,naïve".encode(), ("id", "naïve")),
        (b'\xef\xbb\xbf"id","the text,\nall"\r\n1,a\n', ("id", "the text,\nall")),
        (b'id,"a\r\n\r\n ""b"""\n1,a\n', ("id", 'a\r\n\r\n "b"')),
        (b'id,a "b" c\n', ("id", 'a "b" c')),
        (b"", ()),
    ],
)
def test_header(data, names):
    stream = buffered(io.BytesIO(data))
    assert csv_header(stream) == names
    assert stream.read() in (b"", b"1,a\n", b"1,a\r\n")


@pytest.mark.parametrize("data", [b'"id,text\n1,a\n', b'id,"a\nb" c\n1,a\n', b"id,\xff\n", b"id,text,id\n"])
def test_column_names_that_cannot_be_read_are_refused(data):
    with pytest.raises(ValueError):
        csv_header(buffered(io.BytesIO(data)))


@pytest.mark.parametrize("seed", range(30))
def test_no_byte_of_a_broken_csv_is_lost(seed):
    """Up to the record whose end nobody knows, if there is one."""
    random = np.random.default_rng(seed)
    data = bytes(random.choice(list(b'aaaaaaaaabbbbbbb",\n\r\xff'), 300).tolist()) + b"\n" + b"1,clean\n" * 3
    lines, uncertain = [], None
    try:
        lines.extend(csv_lines(io.BytesIO(data), HEADER))
    except ValueError as error:
        uncertain = int(str(error).split()[2])
    raw = b"".join(line.raw for line in lines)
    assert data.startswith(raw)
    if uncertain is None:
        assert raw == data
        assert values(lines)[-3:] == [("1", "clean")] * 3
    else:
        assert len(raw) >= uncertain


def test_rows_of_jsonl():
    objects = [{"id": 1, "text": "a\nb"}, {}, {"text": None, "x": [1, {"y": "ü"}]}]
    data = "\n".join(json.dumps(o, ensure_ascii=False) for o in objects)
    for whole in (data, data + "\n", data.replace("\n", "\r\n"), "\ufeff" + data, data.replace("\n", "\n  \t\r\n\n")):
        assert [line.values for line in of_jsonl(whole) if line.is_row] == objects


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


def test_a_quote_within_a_later_field_ends_nothing():
    data = b'text\n"a" b\n' + b"c\n" * 50 + b'5" pipe\n'
    stream = buffered(io.BytesIO(data))
    found = [line for line in csv_lines(stream, csv_header(stream)) if line.is_row]
    assert [line.problem is None for line in found] == [False, *[True] * 51]
