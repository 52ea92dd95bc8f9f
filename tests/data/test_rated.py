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


# ---------------------------------------------------------------------------------------------------------- reading


def test_every_format_gives_the_same_pairs(file):
    rated = read_rated(write(file, ROWS), "--train")
    assert pairs(rated) == [tuple(row) for row in ROWS]
    assert rated.ratings.dtype == np.float32
    assert len(rated) == 4
    assert rated.uri == str(file)


def test_other_columns_and_another_order_change_nothing(file):
    names = ["label", "note", *NAMES[2::-1]]
    rows = [[label, "note", c, s2, s1] for s1, s2, c, label in ROWS]
    assert pairs(read_rated(write(file, rows, names), "--train")) == [tuple(row) for row in ROWS]


def test_outer_white_space_is_taken_off(file):
    rows = [["  a\t", "b \n", " c  d ", 1], ["e", "f", "g", 2]]
    assert pairs(read_rated(write(file, rows), "--train"))[0] == ("a", "b", "c  d", 1)


def test_numbers_written_as_text_are_numbers(file):
    rows = [["a", "b", "c", "3"], ["a", "b", "c", "1e0"], ["a", "b", "c", "-1.0"]]
    assert read_rated(write(file, rows), "--train").ratings.tolist() == [3, 1, -1]


def test_quoted_commas_quotes_and_line_ends(tmp_path):
    (tmp_path / "in.csv").write_bytes(
        b'sentence1,sentence2,condition,label\r\n"a, b","say ""hi""","two\nlines",2\r\n\r\nc,d,e,3\r\n'
    )
    rated = read_rated(str(tmp_path / "in.csv"), "--train")
    assert pairs(rated) == [("a, b", 'say "hi"', "two\nlines", 2), ("c", "d", "e", 3)]


def test_a_folder_is_read_file_by_file(tmp_path):
    write(tmp_path / "b.csv", ROWS[2:])
    write(tmp_path / "a.jsonl", ROWS[:1])
    write(tmp_path / "aa.parquet", ROWS[1:2])
    assert pairs(read_rated(str(tmp_path), "--train")) == [tuple(row) for row in ROWS]


# ----------------------------------------------------------------------------------------------- distinct and places


def test_each_sentence_under_a_condition_is_there_once(file):
    rated = read_rated(write(file, ROWS), "--train")
    assert len(rated.distinct) == len(set(rated.distinct)) == 6  # the last row turns the first one round
    assert rated.pair_index.shape == (4, 2)
    assert rated.pair_index.dtype == np.int64
    for (first, second), row in zip(rated.pair_index, ROWS, strict=True):
        assert rated.distinct[first] == (row[0], row[2])
        assert rated.distinct[second] == (row[1], row[2])
    assert sorted(set(rated.pair_index.flatten())) == list(range(6))


# ----------------------------------------------------------------------------------------------------------- hashes


def hashes(tmp_path, rows):
    rated = read_rated(write(tmp_path / "rated.jsonl", rows), "--train")
    return rated.sha256, rated.data_sha256


def test_equal_pairs_have_equal_hashes_in_every_format(file, tmp_path):
    rated = read_rated(write(file, ROWS), "--train")
    assert hashes(tmp_path, ROWS) == (rated.sha256, rated.data_sha256)


def test_ratings_are_learned_from_and_not_embedded(tmp_path):
    other = [[*ROWS[0][:3], 2], *ROWS[1:]]
    first, second = hashes(tmp_path, ROWS), hashes(tmp_path, other)
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_the_pairing_is_learned_from_and_not_embedded(tmp_path):
    rows = [["a", "c", "x", 1], ["b", "d", "x", 2]]
    first, second = (hashes(tmp_path, [*rows, ["a", partner, "x", 3]]) for partner in "cd")
    assert first[0] == second[0]
    assert first[1] != second[1]


@pytest.mark.parametrize(
    "other",
    [
        ["ab", "yb", "c", 1],  # end to end it reads as the first
        ["x", "y", "bc", 1],
        ["a", "x", "bc", 1],
        ["a", "y", "x", 1],
        ["y", "a", "bc", 1],
    ],
)
def test_every_text_and_its_limits_are_hashed(tmp_path, other):
    last = ["1", "2", "3", 2]
    assert hashes(tmp_path, [["a", "y", "bc", 1], last])[0] != hashes(tmp_path, [other, last])[0]


# --------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("missing", NAMES)
def test_a_missing_column(file, missing):
    kept = [i for i, name in enumerate(NAMES) if name != missing]
    found = refusal(write(file, [[row[i] for i in kept] for row in ROWS], [NAMES[i] for i in kept]))
    others = ", ".join(NAMES[i] for i in kept)
    place = ", row 0" if file.suffix == ".jsonl" else ""  # the others have one list of names
    assert found == f"--train: {file}{place}: expected the column {missing!r}, got {others}"


def test_a_column_missing_in_one_line_only(tmp_path):
    lines = [dict(zip(NAMES, row, strict=True)) for row in ROWS]
    del lines[2]["condition"]
    (tmp_path / "in.jsonl").write_text("\n".join(json.dumps(line) for line in lines))
    wanted = "in.jsonl, row 2: expected the column 'condition', got sentence1, sentence2, label"
    assert wanted in refusal(tmp_path / "in.jsonl")


@pytest.mark.parametrize("label", ["", " ", "high", "nan", "inf", "-Infinity", "3,5"])
def test_a_text_that_is_no_number(file, label):
    rows = [[*row[:3], str(row[3])] for row in ROWS]
    rows[2][3] = label
    wanted = f"--train: {file}, row 2: expected a number as label, got {label!r}; fix the row"
    assert refusal(write(file, rows)) == wanted


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("true", "True"),
        ("null", "None"),
        ("[3]", "[3]"),
        ("NaN", "nan"),
        ("Infinity", "inf"),
        ("1e999", "inf"),
        ("1" + "0" * 400, "1000"),
    ],
)
def test_a_value_that_is_no_number(tmp_path, label, found):
    lines = [json.dumps(dict(zip(NAMES, row, strict=True))) for row in ROWS]
    lines[1] = lines[1].replace("4.5", label)
    (tmp_path / "in.jsonl").write_text("\n".join(lines))
    assert f"in.jsonl, row 1: expected a number as label, got {found}" in refusal(tmp_path / "in.jsonl")


@pytest.mark.parametrize("labels", [[False, True], [1.0, None]])
def test_a_label_of_parquet_that_is_no_number(tmp_path, labels):
    found = refusal(write(tmp_path / "in.parquet", [["a", "b", "c", label] for label in labels]))
    row = labels.index(None) if None in labels else 0
    assert found.endswith(f"in.parquet, row {row}: expected a number as label, got {labels[row]}; fix the row")


@pytest.mark.parametrize("column", [0, 1, 2])
@pytest.mark.parametrize("text", ["", "  "])
def test_an_empty_text(file, column, text):
    rows = [list(row) for row in ROWS]
    rows[3][column] = text
    wanted = f"--train: {file}, row 3: expected words in {NAMES[column]!r}, got {text!r}; fix or remove the row"
    assert refusal(write(file, rows)) == wanted


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_a_null(tmp_path, ending, column):
    rows = [list(row) for row in ROWS]
    rows[1][column] = None
    found = refusal(write(tmp_path / f"in.{ending}", rows))
    assert found.endswith(f"in.{ending}, row 1: expected words in {NAMES[column]!r}, got None; fix or remove the row")


def test_a_text_that_is_a_number(tmp_path):
    rows = [[*ROWS[0][:2], 7, 1], *ROWS[1:]]
    found = refusal(write(tmp_path / "in.jsonl", rows))
    assert found.endswith("in.jsonl, row 0: expected words in 'condition', got 7; fix or remove the row")


def test_the_row_counts_from_the_top_of_its_file(tmp_path):
    write(tmp_path / "a.csv", ROWS)
    write(tmp_path / "b.csv", [ROWS[0], ["", *ROWS[1][1:]]])
    assert "b.csv, row 1: expected words in 'sentence1'" in refusal(tmp_path)


def test_text_that_is_not_utf8(tmp_path):
    (tmp_path / "in.csv").write_bytes(b"sentence1,sentence2,condition,label\na,b,c,1\na\xff,b,c,2\n")
    assert "in.csv, row 1: expected UTF-8 in 'sentence1', got: " in refusal(tmp_path / "in.csv")


def test_no_rows(file):
    if file.suffix == ".parquet":
        texts = pa.array([], pa.string())
        pq.write_table(pa.table([texts, texts, texts, pa.array([], pa.float32())], names=NAMES), file)
    else:
        write(file, [])
    assert refusal(file) == f"--train: expected rated pairs in {file}, got no rows"


def test_one_distinct_label(file):
    rows = [[*row[:3], 3] for row in ROWS]
    assert refusal(write(file, rows)) == f"--train: expected at least two distinct labels in {file}, got only 3"


@pytest.mark.parametrize("flag", ["--train", "--validation"])
def test_a_file_that_is_not_there(tmp_path, flag):
    found = refusal(tmp_path / "nothing.csv", flag)
    assert found.startswith(f"{flag}: expected ")
    assert f"{tmp_path / 'nothing.csv'}, got nothing" in found


def test_a_row_with_too_few_or_too_many_fields(tmp_path):
    for fields, row in ((3, "a,b,c"), (5, "a,b,c,1,2")):
        (tmp_path / "in.csv").write_text(f"{','.join(NAMES)}\na,b,c,1\n{row}\n")
        found = refusal(tmp_path / "in.csv")
        assert found == (
            f"--train: {tmp_path / 'in.csv'}, row 1: line does not parse: expected 4 fields, got {fields}; fix the row"
        )


def test_an_empty_file_and_a_broken_line(tmp_path):
    (tmp_path / "in.csv").write_text("")
    assert refusal(tmp_path / "in.csv").endswith("expected the column 'sentence1', got none")
    (tmp_path / "in.jsonl").write_text(json.dumps(dict(zip(NAMES, ROWS[0], strict=True))) + "\n{no\n")
    assert "in.jsonl, row 1: line does not parse" in refusal(tmp_path / "in.jsonl")
    (tmp_path / "in.parquet").write_bytes(b"no parquet")
    assert "in.parquet: expected a readable parquet file, got: " in refusal(tmp_path / "in.parquet")


def test_a_column_name_twice(tmp_path):
    (tmp_path / "in.csv").write_text("sentence1,sentence1,condition,label\na,b,c,1\n")
    assert "in.csv: expected a readable csv file, got: a column name twice" in refusal(tmp_path / "in.csv")
