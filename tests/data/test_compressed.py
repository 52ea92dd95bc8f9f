"""Compressed files give what they hold, row for row, and one that is cut off or damaged gives an error, never less."""

import io

import numpy as np
import pyarrow as pa
import pytest
from input_files import columns_of, compressed, flat, read, spans_of, the_file, write

from raycase.data.columns import peek
from raycase.data.compressed import decompressed
from raycase.data.rated import read_columns
from raycase.data.reader import ID, TEXT, read_span
from raycase.data.spans import plan_file
from raycase.errors import RequestError

ROWS = [{"id": i, "text": f"row {i}, é" + "x" * (i % 7)} for i in range(200)]
BROKEN = {
    "jsonl": b'\xef\xbb\xbf{"text": "a"}\r\n\n{\n{"text": 1}\r\n   \n{"text": "\xff"}\n{"text": ""}\n[]\n{"text": "b"}',
    "csv": b'\xef\xbb\xbfid,text\r\n1,"a\r\n""b"""\r\n\r\n2\r\n1,c\r\n4,d" e\r\n5,\xff\r\n,\n6,g\n\n\n',
}
# Of `zstd --check`: Arrow writes no checksums.
CHECKED = bytes.fromhex("28b52ffd0458c90000746578740a6f6e6520726f770a616e6f7468657220726f770a1aafe348")


@pytest.mark.parametrize("ending", [".gz", ".zst"])
@pytest.mark.parametrize("members", [1, 2, 30])
@pytest.mark.parametrize("name", ["jsonl", "csv"])
def test_rows_ids_and_rejected_rows_are_those_of_the_file_that_is_not_compressed(tmp_path, name, members, ending):
    """With a BOM, CRLF, blank lines and broken rows; a member may end within a letter."""
    plain, packed = tmp_path / f"a b.{name}", tmp_path / f"a b.{name.upper()}{ending}"
    for content in (BROKEN[name], write(plain, ROWS).read_bytes()):
        plain.write_bytes(content)
        packed.write_bytes(compressed(content, ending, members))
        wanted, found = read(plain), read(packed)
        assert wanted[0] and found == wanted
        assert peek(the_file(packed)) == peek(the_file(plain))
    assert read_columns(the_file(packed), ["id", "text"], "--train") == read_columns(
        the_file(plain), ["id", "text"], "--train"
    )


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_file_that_is_cut_off_anywhere_is_refused_with_the_byte(tmp_path, ending):
    content = write(tmp_path / "x.jsonl", ROWS[:8]).read_bytes()
    (tmp_path / "x.jsonl").unlink()
    first, whole = compressed(content[: len(content) // 2], ending), compressed(content, ending, 2)
    assert len(read_after(tmp_path, ending, whole)) == 8
    for end in range(len(whole)):
        if end != len(first):  # where a whole member ends, nobody can know of another
            with pytest.raises(RequestError, match=rf"x\.jsonl\{ending}: .*(no bytes|at byte {end} or up to 65,536)"):
                read_after(tmp_path, ending, whole[:end])
    for after in (b"\0", b"\0" * 99, b"more"):
        with pytest.raises(RequestError, match=r"at byte \d+ or up to"):
            read_after(tmp_path, ending, whole + after)


def read_after(tmp_path, ending, content):
    """The texts of a file with these bytes."""
    (tmp_path / f"x.jsonl{ending}").write_bytes(content)
    return [row[TEXT] for row in read(tmp_path / f"x.jsonl{ending}", id=None)[0]]


@pytest.mark.parametrize(
    ("name", "content"), [("x.csv.gz", compressed(b"text\none row\n", ".gz")), ("x.csv.zst", CHECKED)]
)
def test_a_byte_that_is_another_is_noticed_where_it_changes_the_text(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    wanted, refused = read(tmp_path / name)[0], 0
    for place in range(8 * len(content)):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        (tmp_path / name).write_bytes(changed)
        try:
            assert read(tmp_path / name)[0] == wanted
        except RequestError as error:
            assert name in str(error) and "at byte" in str(error)
            refused += 1
    assert refused > 6 * len(content)


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_member_with_nothing_in_it_is_passed(tmp_path, ending):
    nothing, rows = compressed(b"", ending), compressed(b'{"text": "a"}\n', ending)
    assert read_after(tmp_path, ending, nothing + rows + nothing + rows + nothing) == ["a", "a"]
    (tmp_path / f"x.jsonl{ending}").write_bytes(nothing)
    file = the_file(tmp_path / f"x.jsonl{ending}")
    assert peek(file).names == [] and list(plan_file(0, file, None, unit_rows=1, span_bytes=1)) == []


def test_a_frame_of_zstd_that_is_to_be_skipped_is_skipped(tmp_path):
    skipped = b"\x53\x2a\x4d\x18\x04\0\0\0abcd"
    rows = compressed(b'{"text": "a"}\n', ".zst")
    assert read_after(tmp_path, ".zst", skipped + rows + skipped + rows) == ["a", "a"]


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("x.jsonl", compressed(b'{"text": "a"}\n', ".gz"), "a gzip file; let its name end with .gz"),
        ("x.csv", compressed(b"text\na\n", ".zst"), "a zstd file; let its name end with .zst"),
        ("x.jsonl.gz", b'{"text": "a"}\n', "at byte 0 b'{\"te', with which no gzip file begins"),
        ("x.csv.zst", compressed(b"text\na\n", ".gz"), "with which no zstd file begins"),
        ("x.csv.gz", b"", "no bytes, where a gzip file has some"),
    ],
)
def test_a_file_that_is_not_what_its_name_says_is_refused(tmp_path, name, content, why):
    (tmp_path / name).write_bytes(content)
    file = the_file(tmp_path / name)
    for ask in (peek, lambda file: list(plan_file(0, file, None, unit_rows=1, span_bytes=1))):
        with pytest.raises(RequestError) as raised:
            ask(file)
        assert f"{name}: expected a readable {name[2:]} file, got: " in str(raised.value) and why in str(raised.value)


# --------------------------------------------------------------------------------------------------------- one span


def test_a_file_is_one_span_and_any_of_its_units_is_read_alone(tmp_path):
    path = write(tmp_path / "x.jsonl.gz", ROWS)
    file, columns = the_file(path), columns_of(path)
    (span,) = spans_of(file, columns, unit_rows=10, span_bytes=1)
    assert (span.start, span.rows) == (0, 200)
    for units in ([(0, 10), (50, 60), (190, 200)], [(3, 4)], [(199, 200)]):
        found = [table[ID].to_pylist() for table, _ in read_span(file, span, columns, units)]
        assert found == [list(range(*unit)) for unit in units]


def test_a_limit_ends_the_span_and_what_follows_is_not_looked_at(tmp_path):
    content = write(tmp_path / "x.jsonl", ROWS).read_bytes() + b"no row" * 10**6
    columns = columns_of(tmp_path / "x.jsonl")
    (tmp_path / "x.jsonl.gz").write_bytes(compressed(content, ".gz")[:-9])
    (tmp_path / "x.jsonl").unlink()
    file = the_file(tmp_path / "x.jsonl.gz")
    (span,) = plan_file(0, file, columns, unit_rows=10, span_bytes=1, most_rows=25)
    assert span.rows == 25
    rows, rejected = flat(read_span(file, span, columns, [(20, 25)]))
    assert [row[ID] for row in rows] == list(range(20, 25)) and not rejected
    with pytest.raises(RequestError, match="at byte"):
        spans_of(file, columns)


@pytest.mark.parametrize("change", [lambda c: c[:-3], lambda c: c[:-6] + b"\0\0" + c[-4:], lambda c: c[: len(c) // 2]])
def test_a_file_that_is_damaged_after_it_was_planned_gives_no_last_unit(tmp_path, change):
    """Its checksum stands at its end, behind the last row."""
    path = write(tmp_path / "x.jsonl.gz", ROWS)
    file, columns = the_file(path), columns_of(path)
    (span,) = spans_of(file, columns)
    path.write_bytes(change(path.read_bytes()))
    units = read_span(file, span, columns, [(0, 1), (1, 200)])
    with pytest.raises(RequestError, match=r"x\.jsonl\.gz: .*at byte"):
        list(units)


def test_a_file_with_fewer_rows_than_planned_is_refused(tmp_path):
    path = write(tmp_path / "x.csv.zst", ROWS)
    file, columns = the_file(path), columns_of(path)
    (span,) = spans_of(file, columns)
    write(path, ROWS[:-1])
    with pytest.raises(RequestError, match="fewer rows than the 200 that were planned"):
        list(read_span(file, span, columns, [(0, 200)]))


# ------------------------------------------------------------------------------------------------------------ bombs


def test_only_what_is_asked_for_is_decompressed():
    content = np.random.default_rng(0).bytes(4 * 10**6)
    packed = io.BufferedReader(io.BytesIO(pa.compress(content, "gzip", asbytes=True)), 100)
    stream = decompressed(packed, "gzip")
    assert stream.read(1000) == content[:1000]
    assert packed.tell() < 2**20 + 2**17


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_what_holds_too_many_times_its_size_is_refused(codec):
    content = b'{"text": "a"}\n' * 10**6
    packed = pa.compress(content, codec, asbytes=True)

    def stream(**limits):
        return decompressed(io.BufferedReader(io.BytesIO(packed)), codec, **limits)

    assert stream().read() == content
    assert stream(free_bytes=1000, most_ratio=len(content) // len(packed) + 10**4).read() == content
    with pytest.raises(ValueError, match=r"at byte .* more than 50 times as many bytes come out as went in; if"):
        stream(free_bytes=10**6, most_ratio=50).read()
