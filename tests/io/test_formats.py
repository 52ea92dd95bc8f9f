"""Rows of CSV and JSONL, plain and compressed: good and bad, and that no file gives fewer than it has."""

import csv
import io
import json
import random
from itertools import pairwise
from threading import Event
from traceback import walk_tb

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from input_files import all_of, columns_in, columns_of, compressed, flat, read, read_from, spans_of, the_file, write
from pyarrow.csv import CSVStreamingReader

from raycase.errors import RequestError
from raycase.io import text_files as room
from raycase.io.inputs import peek
from raycase.io.reader import ID, ROW, TEXT, read_columns
from raycase.io.schema import Reason
from raycase.job.plan import cut

ROWS = [{"id": i, "text": f"row {i}, é" + "x" * (i % 7)} for i in range(200)]
REFUSED = "expected a readable .* file, got: "


@pytest.fixture
def read_bytes(tmp_path):
    """What is read of these bytes in a file of this name: rows, rejected rows."""

    def read_as(name, content, **options):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return read(tmp_path / name, **options)[:2]

    return read_as


# ------------------------------------------------------------------------------------------------------------- CSV


def test_rows_keep_their_numbers_however_a_file_is_parsed_and_cut(tmp_path, monkeypatch):
    """Good, bad and blank lines in blocks of some bytes, read in units, each alone and all at once."""
    path = tmp_path / "x.csv"
    for seed in range(10):
        draw = random.Random(seed)
        lines, good, bad = ["\ufeff\n\r", '"id","text"'], {}, {}
        for _ in range(60):
            kind, number = draw.choice(["good", "lines", "bad", "blank"]), len(good) + len(bad)
            text = f"t\n{number}" if kind == "lines" else f"t{number}"
            lines.append({"bad": f"bad {number}", "blank": ""}.get(kind, f'{number},"{text}"'))
            if kind != "blank":
                (bad if kind == "bad" else good)[number] = lines[-1] if kind == "bad" else text
        path.write_text("\n".join(lines), newline="")
        monkeypatch.setattr(room, "BLOCK_BYTES", draw.choice([20, 40, 100, 1000, 2**20]))
        file, columns = the_file(path), columns_of(path)
        [span] = spans_of(file, columns, 7, 1)
        assert span.rows == len(good) + len(bad)
        units = [(start, min(start + 7, span.rows)) for start in range(0, span.rows, 7)]
        for parts in (units, units[2::3], [(0, span.rows)]):
            rows, rejected = flat(read_from(file, span, columns, parts))
            asked = {row for start, end in parts for row in range(start, end)}
            assert [(r[ROW], r[TEXT]) for r in rows] == [(n, text) for n, text in good.items() if n in asked]
            assert rejected == [(n, Reason.UNPARSED, line) for n, line in bad.items() if n in asked]


@pytest.mark.parametrize("count", [300, pytest.param(30_000, marks=pytest.mark.long)])
def test_random_files_in_small_blocks_are_read_as_by_pythons_csv_module(tmp_path, monkeypatch, count):
    pieces = ["a", "b,", '"', '""', "\r", "\n", "\r\n", "é", "😀", " ", "\\", ",", 'x\\"', "", "\\\\", "\u2028"]
    path = tmp_path / "x.csv"

    def field(draw, alone):
        text = "".join(draw.choices(pieces, k=draw.randrange(7)))
        quoted = set(text) & {*',"\r\n'} or (alone and not text) or draw.random() < 0.3
        return '"' + text.replace('"', '""') + '"' if quoted else text

    for seed in range(count):
        draw = random.Random(seed)
        names = ["text", "b", "c"][: draw.choice([1, 2, 3])]
        rows = [",".join(field(draw, len(names) == 1) for _ in names) for _ in range(draw.randrange(1, 40))]
        content = draw.choice(["\n", "\r\n"]).join([",".join(names), *rows, *draw.choice([[], [""]])])
        path.write_bytes((draw.choice(["", "\ufeff"]) + content).encode())
        monkeypatch.setattr(room, "BLOCK_BYTES", draw.choice([150, 200, 10**6]))
        wanted = zip(*list(csv.reader(io.StringIO(content, newline="")))[1:], strict=True)
        assert read_columns(the_file(path), names, "--train") == dict(zip(names, map(list, wanted), strict=True)), seed


@pytest.mark.parametrize(
    "texts",
    [
        ['a "quoted" word'],
        ['",', "x", '",'],
        ["\\", '\\"', '"'],
    ],
)
@pytest.mark.parametrize("size", [60, 10**6])
def test_quotes_escaped_by_backslashes_are_refused(tmp_path, monkeypatch, texts, size):
    """Though every row has as many fields as the header, or the quotes are even."""
    monkeypatch.setattr(room, "BLOCK_BYTES", size)
    with (tmp_path / "x.csv").open("w", newline="") as handle:
        how = {"doublequote": False, "escapechar": "\\", "quoting": csv.QUOTE_ALL, "lineterminator": "\n"}
        csv.writer(handle, **how).writerows([["text"], *([text] for text in texts)])
    with pytest.raises(
        RequestError, match=r"x\.csv: .*(a quote behind a backslash outside quoted fields, in '|odd number)"
    ):
        read_columns(the_file(tmp_path / "x.csv"), ["text"], "--train")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"id,text\n1,a\n2\xff\n", "CSV parse error: Row #2: Expected 2 columns, got 1"),
        (b"id,te\xff\n1,a\n", "'utf-8' codec can't decode"),
    ],
)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pyarrow, at a row that is no UTF-8
def test_a_file_whose_rows_are_not_certain_is_refused(read_bytes, content, said):
    with pytest.raises(RequestError, match=rf"x\.csv: {REFUSED}{said}"):
        read_bytes("x.csv", content, text="id")


def test_an_error_of_the_thread_that_reads_a_csv_file_does_not_hold_its_reader(monkeypatch):
    """The thread may be the last to hold the error. It would then end the reader, which waits for the thread."""
    begun = Event()

    class Late(room._Quotes):
        reads = 0

        def read(self, size=-1):
            self.reads += 1
            if self.reads == 4:
                begun.wait(60)
            return super().read(size)

    monkeypatch.setattr(room, "_Quotes", Late)
    monkeypatch.setattr(room, "BLOCK_BYTES", 8)
    stream = io.BufferedReader(io.BytesIO(b'1,a\n2,b\n3,c\n4,d\n5,e\n6,f\n7,\\"\n'))
    parts = room._csv_parts(stream, ["id", "text"], ["text"])
    next(parts)
    begun.set()
    with pytest.raises(ValueError, match="behind a backslash") as caught:
        list(parts)
    held = [value for frame, _ in walk_tb(caught.tb) for value in frame.f_locals.values()]
    assert stream in held and not [value for value in held if isinstance(value, CSVStreamingReader)]


def test_a_row_without_end_is_not_read_into_memory(read_bytes, monkeypatch):
    monkeypatch.setattr(room, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(room, "LINE_BYTES", 1000)
    with pytest.raises(RequestError, match="straddles two block boundaries"):
        read_bytes("x.csv", 'text\na\n"' + "x\n" * 5000 + '"\n')
    with pytest.raises(RequestError, match="a line of 1,000 bytes"):
        read_bytes("x.jsonl", '{"text": "a"}\n' + "x" * 2000)
    monkeypatch.setattr(room, "MOST_INVALID", 100)
    with pytest.raises(RequestError, match="CSV parse error"):
        read_bytes("x.csv", "id,text\n1,a\n" + "1\n" * 200)


# ----------------------------------------------------------------------------------------------------------- JSONL


@pytest.mark.parametrize(
    ("ids", "wanted"), [([1, 2], [1, 2]), ([1, 2**63], ["1", str(2**63)]), ([2.0, True], ["2.0", "true"])]
)
def test_rows_of_jsonl(read_bytes, ids, wanted):
    objects = [{"id": ids[0], "text": "a\nb"}, {"id": ids[1], "text": "ü"}]
    data = "\n".join(json.dumps(o, ensure_ascii=False) for o in objects)
    for whole in (data, data + "\n", data.replace("\n", "\r\n"), "\ufeff" + data, data.replace("\n", "\n  \t\r\n\n")):
        rows = read_bytes("x.jsonl", whole)[0]
        assert [(row[ID], row[TEXT]) for row in rows] == [(wanted[0], "a\nb"), (wanted[1], "ü")]


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        *((bad, Reason.UNPARSED) for bad in (b'{"text": "a"', b'{"a": 1} {"b": 2}', b"[1, 2]", b"null", b"[" * 10**5)),
        *((bad, Reason.INVALID_UTF8) for bad in (b'{"text": "\xff"}', b'{"text": "\xc3')),
    ],
)
def test_a_bad_line_of_jsonl_costs_itself_alone(read_bytes, bad, reason):
    rows, rejected = read_bytes("x.jsonl", b'{"text": "a"}\n' + bad + b'\n{"text": "b"}\n')
    assert [(row[ROW], row[TEXT]) for row in rows] == [(0, "a"), (2, "b")]
    assert rejected == [(1, reason, bad.decode("utf-8", "backslashreplace"))]


@pytest.mark.parametrize("first", [True, False])
def test_a_name_twice_or_of_half_a_pair_costs_at_most_its_row(read_bytes, first):
    """A name that is not read costs nothing."""
    good = '{"text": "a", "n": 1}\n'
    bad = ['{"text": "b", "text": "c", "n": 1}', '{"text": "d", "n": 1, "n": 2}', '{"text": "e", "n": 1, "\\ud83d": 1}']
    bad += ['{"text": "f", "n": 1, "m": 1, "m": 2}', '{"text": "g", "n": {"m": 1, "m": 2}}']
    content = "\n".join([*bad, good] if first else [good * 1000, *bad])
    rows, rejected = read_bytes("x.jsonl", content, keep=["text", "n"])
    assert {row[TEXT] for row in rows} == {"a", "e", "f"}
    assert [(reason, json.loads(raw)["text"]) for _, reason, raw in rejected] == [
        (Reason.WRONG_TYPE, text) for text in "cdg"
    ]


# ------------------------------------------------------------------------------------------------------ compressed


@pytest.mark.parametrize(("name", "ending", "members"), [("jsonl", ".gz", 1), ("csv", ".zst", 30)])
def test_rows_ids_and_rejected_rows_are_those_of_the_file_that_is_not_compressed(tmp_path, name, members, ending):
    """With a BOM, CRLF, blank lines and broken rows; a member may end within a letter."""
    broken = {
        "jsonl": b'\xef\xbb\xbf{"text": "a"}\r\n\n{\n  \n{"text": "\xff"}\n{"text": ""}\n[]\n{"text": 1}',
        "csv": b'\xef\xbb\xbfid,text\r\n1,"a\r\n""b"""\r\n\r\n2\r\n1,c\r\n4,d e\r\n5,\xff\r\n,\n6,g\n\n\n',
    }
    plain, packed = tmp_path / f"a b.{name}", tmp_path / f"a b.{name.upper()}{ending}"
    for content in (broken[name], write(plain, ROWS).read_bytes()):
        plain.write_bytes(content)
        packed.write_bytes(compressed(content, ending, members))
        wanted = read(plain)
        assert wanted[0] and read(packed) == wanted
        assert peek(the_file(packed)) == peek(the_file(plain))
    of = [read_columns(the_file(path), ["id", "text"], "--train") for path in (packed, plain)]
    assert of[0] == of[1]


@pytest.mark.parametrize(("name", "ending"), [("jsonl", ".gz"), ("csv", ".zst")])
def test_a_file_that_is_cut_off_anywhere_is_refused(tmp_path, name, ending):
    content = write(tmp_path / f"x.{name}", ROWS[:8]).read_bytes()
    first, whole = compressed(content[: len(content) // 2], ending), compressed(content, ending, 2)
    columns = columns_of(tmp_path / f"x.{name}")
    (tmp_path / f"x.{name}").unlink()
    path = tmp_path / f"x.{name}{ending}"

    def rows():
        return sum(span.rows for span in spans_of(the_file(path), columns))

    path.write_bytes(whole)
    assert rows() == 8
    [span] = spans_of(the_file(path), columns)
    cut = [whole[:end] for end in range(len(whole)) if end != len(first)]  # where a member ends nobody knows of another
    for broken in (*cut, whole + b"\0", whole + b"\0" * 99, whole + b"more"):
        path.write_bytes(broken)
        with pytest.raises(RequestError, match=rf"x\.{name}\{ending}: {REFUSED}"):
            rows()
        with pytest.raises(RequestError):
            list(read_from(the_file(path), span, columns, [(0, 1), (1, 8)]))


# ---------------------------------------------------------------------------------------------------------------- spans


def texts(count, seed=0):
    """Texts with everything that makes a text file hard to cut."""
    random = np.random.default_rng(seed)
    letters = ["a", "é", "😀", '"', ",", "\n", "\r\n", "  ", "x" * 40]
    return ["t" + "".join(random.choice(letters, random.integers(0, 9))) for _ in range(count)]


def assert_spans_serve(path, *, unit_rows, span_bytes, **options):
    """The spans cover every row once, and each read alone gives what the whole file gives; -> spans."""
    file = the_file(path)
    columns = columns_in(file, **options)
    spans = spans_of(file, columns, unit_rows, span_bytes)
    for before, after in pairwise(spans):
        assert before.start + before.rows == after.start
        assert before.at + before.length == after.at
        assert before.rows >= unit_rows
    whole = flat(all_of(file, columns))
    assert spans[0].start == 0
    count = spans[-1].start + spans[-1].rows
    assert sorted([r[ROW] for r in whole[0]] + [row for row, _, _ in whole[1]]) == list(range(count))
    alone = []
    for span in reversed(spans):
        intervals = list(cut(span.start, span.rows, unit_rows))
        assert [a for a, _ in intervals] + [intervals[-1][1]] == [span.start] + [b for _, b in intervals]
        assert intervals[-1][1] == span.start + span.rows
        parts = list(read_from(file, span, columns, intervals))
        for (start, end), (table, rejections) in zip(intervals, parts, strict=True):
            assert all(start <= row < end for row in table[ROW].to_pylist() + [r.row for r in rejections])
            assert len(table) + len(rejections) == end - start
        for i, interval in enumerate(intervals):  # one interval of a span alone
            assert flat(read_from(file, span, columns, [interval])) == flat([parts[i]])
        alone = parts + alone
    assert flat(alone) == whole
    return spans


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize(("unit_rows", "span_bytes"), [(1, 1), (7, 500), (50, 10**9)])
def test_spans_of_clean_files(tmp_path, ending, unit_rows, span_bytes):
    wanted = texts(60)
    path = write(tmp_path / f"x.{ending}", [{"id": i, "text": t} for i, t in enumerate(wanted)])
    if ending == "parquet":
        pq.write_table(pq.read_table(path), path, row_group_size=5)
    spans = assert_spans_serve(path, unit_rows=unit_rows, span_bytes=span_bytes)
    assert [r[TEXT] for r in read(path)[0]] == wanted
    assert len(spans) > 1 or unit_rows == 50 or ending == "csv"
    assert spans[-1].start + spans[-1].rows == 60


@pytest.mark.parametrize("seed", range(3))
def test_spans_of_broken_jsonl(tmp_path, seed):
    random = np.random.default_rng(seed)
    pieces = [b'{"id": "%d", "text": "a"}\n', b'{"id": "x", "text": " "}\n', b'{"text": "\xff"}\n']
    pieces += [b"{\n", b"\n", b"[]\n"]
    lines = [p % i if b"%d" in p else p for i, p in enumerate(random.choice(np.array(pieces, object), 40))]
    (tmp_path / "x.jsonl").write_bytes(b'{"id": "first", "text": "a"}\n' + b"".join(lines))
    for unit_rows in (1, 2, 5):
        assert_spans_serve(tmp_path / "x.jsonl", unit_rows=unit_rows, span_bytes=1)


@pytest.mark.parametrize(("row_group_size", "wanted"), [(3, [6] * 6 + [4]), (1000, [40])])
def test_parquet_is_cut_by_row_groups(tmp_path, row_group_size, wanted):
    pq.write_table(pa.table({"text": texts(40)}), tmp_path / "x.parquet", row_group_size=row_group_size)
    spans = assert_spans_serve(tmp_path / "x.parquet", unit_rows=4, span_bytes=1)
    assert [s.rows for s in spans] == wanted
    (whole,) = spans_of(the_file(tmp_path / "x.parquet"), columns_of(tmp_path / "x.parquet"))
    assert {b - a for a, b in cut(whole.start, whole.rows, 17)} == {20}, "expected units of nearly equal size"
