"""Rated pairs: three formats, one reading; what is distinct, what is hashed, and every refusal in one line."""

import input_files
import numpy as np
import pyarrow as pa
import pytest

from raycase.errors import RequestError
from raycase.io.rated_pairs import read_rated

NAMES = ["sentence1", "sentence2", "condition", "label"]
ROWS = [
    ["A woman in a red dress", "Two people play", "color", 1],
    ["A dog,\na cat", 'He says "naïve 😀"', "number of animals", 4.5],
    ["A woman in a red dress", "Two people play", "number of people", -1],
    ["Two people play", "A woman in a red dress", "color", 5],
]


def write(path, rows, names=NAMES):
    """The rows in the format that the ending says; gives the file's name."""
    return str(input_files.write(path, [dict(zip(names, row, strict=True)) for row in rows], names))


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
    "another order": (["label", "note", *NAMES[2::-1]], [[y, "n", c, b, a] for a, b, c, y in ROWS], ROWS),
    "text": (NAMES, [["  a\t", "b \n", " c  d ", "2"], [*"abc", "-1.0"]], [["a", "b", "c d", 2], [*"abc", -1]]),
}


@pytest.mark.parametrize("case", SAME)
def test_every_format_gives_the_same_pairs(file, case):
    names, rows, wanted = SAME[case]
    rated = read_rated(write(file, rows, names), "--train")
    assert pairs(rated) == [tuple(row) for row in wanted]
    assert (rated.ratings.dtype, len(rated), rated.uri) == (np.float32, len(wanted), str(file))


def test_a_folder_is_read_file_by_file_and_rows_count_from_the_top_of_each(tmp_path):
    write(tmp_path / "b.csv", ROWS[2:])
    write(tmp_path / "a.jsonl", ROWS[:1])
    write(tmp_path / "aa.parquet", ROWS[1:2])
    assert pairs(read_rated(str(tmp_path / "*"), "--train")) == [tuple(row) for row in ROWS]
    write(tmp_path / "b.csv", [ROWS[0], ["", *ROWS[1][1:]]])
    assert "b.csv, row 1: expected words in 'sentence1'" in refusal(tmp_path / "*")


def hashes(path, rows):
    rated = read_rated(write(path, rows), "--train")
    return rated.sha256, rated.data_sha256


def test_texts_and_their_limits_are_embedded_and_ratings_are_learned_from(tmp_path):
    assert hashes(tmp_path / "a.jsonl", ROWS) == hashes(tmp_path / "a.parquet", ROWS)
    first, texts, rating = (
        hashes(tmp_path / "a.jsonl", [row, ["1", "2", "3", 2]])
        for row in (["a", "y", "bc", 1], ["ab", "y", "c", 1], ["a", "y", "bc", 3])
    )
    assert first[0] != texts[0] and first[0] == rating[0] and first[1] != rating[1]


def test_a_missing_column(file):
    missing = "sentence2"
    kept = [i for i, name in enumerate(NAMES) if name != missing]
    found = refusal(write(file, [[row[i] for i in kept] for row in ROWS], [NAMES[i] for i in kept]))
    place = ", row 0" if file.suffix == ".jsonl" else ""  # the others have one list of names
    assert found == f"--train: {file}{place}: expected the column {missing!r}, got {', '.join(NAMES[i] for i in kept)}"


@pytest.mark.parametrize(("column", "text"), [(3, "high"), (3, "-Infinity"), (1, "  ")])
def test_a_text_that_cannot_serve(file, column, text):
    rows = [[*row[:3], str(row[3])] for row in ROWS]
    rows[2][column] = text
    wanted = "a number as label" if column == 3 else f"words in {NAMES[column]!r}"
    assert refusal(write(file, rows)).startswith(f"--train: {file}, row 2: expected {wanted}, got {text!r}; fix ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "expected the column 'sentence1', got none"),
        ("sentence1,sentence1,condition,label\na,b,c,1\n", "expected the column 'sentence1' once, got"),
        (f"{','.join(NAMES)}\na,b,c,1\na,b,c\n", "row 1: line does not parse: expected 4 fields, got 3"),
    ],
)
def test_a_file_that_cannot_be_read(tmp_path, text, said):
    (tmp_path / "in.csv").write_text(text)
    assert f"{tmp_path / 'in.csv'}" in (found := refusal(tmp_path / "in.csv")) and said in found


def test_no_rows_and_one_distinct_label(file):
    if file.suffix == ".parquet":
        texts = pa.array([], pa.string())
        input_files.write(file, pa.table([texts, texts, texts, pa.array([], pa.float32())], names=NAMES))
    else:
        write(file, [])
    assert refusal(file) == f"--train: expected at least two distinct labels in {file}, got no rows"
    found = refusal(write(file, [[*row[:3], 3] for row in ROWS]))
    assert found == f"--train: expected at least two distinct labels in {file}, got only 3"
