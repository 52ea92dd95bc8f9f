"""Rated pairs: three formats, one reading; what is distinct, what is hashed, and every refusal in one line."""

import csv
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycase.data.rated import read_rated
from raycase.errors import RequestError

NAMES = ["sentence1", "sentence2", "condition", "label"]
ROWS = [
    ["A woman in a red dress", "Two people play", "color", 1],
    ["A dog, a cat", 'He says "naïve 😀"', "number\nof animals", 4.5],
    ["A woman in a red dress", "Two people play", "number of people", -1],
    ["Two people play", "A woman in a red dress", "color", 5],
]


def write(path, rows, names=NAMES):
    """The rows in the format that the ending says."""
    columns = {name: [row[i] for row in rows] for i, name in enumerate(names)}
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
    elif path.suffix == ".jsonl":
        lines = [json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows]
        path.write_text("".join(lines), encoding="utf-8")
    else:
        with path.open("w", encoding="utf-8", newline="") as handle:
            csv.writer(handle).writerows([names, *rows])
    return str(path)


def pairs(rated):
    return list(zip(rated.sentences1, rated.sentences2, rated.conditions, rated.ratings.tolist(), strict=True))


def refusal(path, flag="--train"):
    """The one line with which a file is refused."""
    with pytest.raises(RequestError) as caught:
        read_rated(str(path), flag)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(params=[".csv", ".jsonl", ".parquet"])
def file(request, tmp_path):
    """Where a file of each format is to be written."""
    return tmp_path / f"rated{request.param}"


# name of the columns, rows as they are written -> the pairs that are read
SAME = {
    "as they are": (NAMES, ROWS, ROWS),
    "other columns, another order": (
        ["label", "note", *NAMES[2::-1]],
        [[y, "n", c, b, a] for a, b, c, y in ROWS],
        ROWS,
    ),
    "outer white space": (
        NAMES,
        [["  a\t", "b \n", " c  d ", 1], ["e", "f", "g", 2]],
        [["a", "b", "c  d", 1], [*"efg", 2]],
    ),
    "numbers as text": (NAMES, [[*"abc", "3"], [*"abc", "1e0"], [*"abc", "-1.0"]], [[*"abc", y] for y in (3, 1, -1)]),
}


@pytest.mark.parametrize("case", SAME)
def test_every_format_gives_the_same_pairs(file, case):
    names, rows, wanted = SAME[case]
    rated = read_rated(write(file, rows, names), "--train")
    assert pairs(rated) == [tuple(row) for row in wanted]
    assert (rated.ratings.dtype, len(rated), rated.uri) == (np.float32, len(wanted), str(file))


def test_quoted_commas_quotes_and_line_ends(tmp_path):
    (tmp_path / "in.csv").write_bytes(
        b'sentence1,sentence2,condition,label\r\n"a, b","say ""hi""","two\nlines",2\r\n\r\nc,d,e,3\r\n'
    )
    rated = read_rated(str(tmp_path / "in.csv"), "--train")
    assert pairs(rated) == [("a, b", 'say "hi"', "two\nlines", 2), ("c", "d", "e", 3)]


def test_a_folder_is_read_file_by_file_and_rows_count_from_the_top_of_each(tmp_path):
    write(tmp_path / "b.csv", ROWS[2:])
    write(tmp_path / "a.jsonl", ROWS[:1])
    write(tmp_path / "aa.parquet", ROWS[1:2])
    assert pairs(read_rated(str(tmp_path / "*"), "--train")) == [tuple(row) for row in ROWS]
    write(tmp_path / "b.csv", [ROWS[0], ["", *ROWS[1][1:]]])
    assert "b.csv, row 1: expected words in 'sentence1'" in refusal(tmp_path / "*")


def test_each_sentence_under_a_condition_is_there_once(file):
    rated = read_rated(write(file, ROWS), "--train")
    assert len(rated.distinct) == len(set(rated.distinct)) == 6  # the last row turns the first one round
    assert rated.pair_index.shape == (4, 2)
    for (first, second), row in zip(rated.pair_index, ROWS, strict=True):
        assert rated.distinct[first] == (row[0], row[2])
        assert rated.distinct[second] == (row[1], row[2])


def hashes(path, rows):
    rated = read_rated(write(path, rows), "--train")
    return rated.sha256, rated.data_sha256


def test_equal_pairs_have_equal_hashes_in_every_format(file, tmp_path):
    assert hashes(tmp_path / "other.jsonl", ROWS) == hashes(file, ROWS)


@pytest.mark.parametrize("change", [["a", "c", "x", 2], ["a", "d", "x", 3]])
def test_ratings_and_pairing_are_learned_from_and_not_embedded(tmp_path, change):
    rows = [["a", "c", "x", 1], ["b", "d", "x", 2]]
    first, second = (hashes(tmp_path / "a.csv", [*rows, row]) for row in (["a", "c", "x", 3], change))
    assert first[0] == second[0] and first[1] != second[1]


@pytest.mark.parametrize(
    "other",
    [
        ["ab", "yb", "c", 1],  # end to end it reads as the first
        *(["x", "y", "bc", 1], ["a", "x", "bc", 1], ["a", "y", "x", 1], ["y", "a", "bc", 1]),
    ],
)
def test_every_text_and_its_limits_are_hashed(tmp_path, other):
    last = ["1", "2", "3", 2]
    first, second = (hashes(tmp_path / "a.jsonl", [row, last]) for row in (["a", "y", "bc", 1], other))
    assert first[0] != second[0]


@pytest.mark.parametrize("missing", NAMES)
def test_a_missing_column(file, missing):
    kept = [i for i, name in enumerate(NAMES) if name != missing]
    found = refusal(write(file, [[row[i] for i in kept] for row in ROWS], [NAMES[i] for i in kept]))
    place = ", row 0" if file.suffix == ".jsonl" else ""  # the others have one list of names
    assert found == f"--train: {file}{place}: expected the column {missing!r}, got {', '.join(NAMES[i] for i in kept)}"


@pytest.mark.parametrize(
    ("column", "text"),
    [(3, text) for text in ("", " ", "high", "nan", "inf", "-Infinity", "3,5")] + [(0, ""), (1, "  "), (2, "")],
)
def test_a_text_that_cannot_serve(file, column, text):
    rows = [[*row[:3], str(row[3])] for row in ROWS]
    rows[2][column] = text
    wanted = "a number as label" if column == 3 else f"words in {NAMES[column]!r}"
    assert refusal(write(file, rows)).startswith(f"--train: {file}, row 2: expected {wanted}, got {text!r}; fix ")


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("column", range(4))
def test_a_null(tmp_path, ending, column):
    rows = [list(row) for row in ROWS]
    rows[1][column] = None
    wanted = "a number as label" if column == 3 else f"words in {NAMES[column]!r}"
    assert f"in.{ending}, row 1: expected {wanted}, got None; " in refusal(write(tmp_path / f"in.{ending}", rows))


@pytest.mark.parametrize(
    ("label", "found"),
    [("true", "True"), ("[3]", "[3]"), ("NaN", "nan"), ("1e999", "inf"), ("1" + "0" * 400, "1000")],
)
def test_a_value_of_jsonl_that_is_no_number(tmp_path, label, found):
    text = "\n".join(json.dumps(dict(zip(NAMES, row, strict=True))) for row in ROWS)
    (tmp_path / "in.jsonl").write_text(text.replace("4.5", label))
    assert f"in.jsonl, row 1: expected a number as label, got {found}" in refusal(tmp_path / "in.jsonl")


def test_values_of_another_type(tmp_path):
    found = refusal(write(tmp_path / "in.parquet", [[*"abc", False], [*"abc", True]]))
    assert "in.parquet, row 0: expected a number as label, got False; " in found
    found = refusal(write(tmp_path / "in.jsonl", [[*ROWS[0][:2], 7, 1], *ROWS[1:]]))
    assert "in.jsonl, row 0: expected words in 'condition', got 7; " in found


HEADER, LINE = ",".join(NAMES), json.dumps(dict(zip(NAMES, ROWS[0], strict=True)))


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("in.csv", b"", "expected the column 'sentence1', got none"),
        ("in.csv", f"{HEADER}\na,b,c,1\na\xff,b,c,2\n".encode("latin-1"), "got: 'utf-8' codec can't decode byte 0xff"),
        ("in.csv", f"{HEADER}\na,b,c,1\na,b,c\n".encode(), "row 1: line does not parse: expected 4 fields, got 3"),
        ("in.csv", f"{HEADER}\na,b,c,1\na,b,c,1,2\n".encode(), "row 1: line does not parse: expected 4 fields, got 5"),
        ("in.csv", b"sentence1,sentence1,condition,label\na,b,c,1\n", "expected the column 'sentence1' once, got"),
        ("in.jsonl", f"{LINE}\n{{no\n".encode(), "row 1: line does not parse"),
        ("in.jsonl", f'{LINE}\n{{"sentence1": "a"}}'.encode(), "row 1: expected the column 'sentence2', got sentence1"),
        ("in.parquet", b"no parquet", "expected a readable parquet file, got: "),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path, name, data, said):
    (tmp_path / name).write_bytes(data)
    assert f"{tmp_path / name}" in (found := refusal(tmp_path / name)) and said in found


def test_no_rows_and_one_distinct_label(file):
    if file.suffix == ".parquet":
        texts = pa.array([], pa.string())
        pq.write_table(pa.table([texts, texts, texts, pa.array([], pa.float32())], names=NAMES), file)
    else:
        write(file, [])
    assert refusal(file) == f"--train: expected rated pairs in {file}, got no rows"
    found = refusal(write(file, [[*row[:3], 3] for row in ROWS]))
    assert found == f"--train: expected at least two distinct labels in {file}, got only 3"


@pytest.mark.parametrize("flag", ["--train", "--validation"])
def test_a_file_that_is_not_there(tmp_path, flag):
    found = refusal(tmp_path / "nothing.csv", flag)
    assert found.startswith(f"{flag}: expected ") and f"{tmp_path / 'nothing.csv'}, got nothing" in found
