"""Which files an input has, and when they are the same."""

import os

import pytest
from input_files import read, the_file

from raycase.data.inputs import find_input
from raycase.errors import RequestError


@pytest.fixture
def tree(tmp_path):
    for name in ("b.csv", "a.jsonl", "sub/c.parquet", ".hidden.csv", "_tmp/d.csv", "sub/_e.csv", "notes.txt", "F.CSV"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 3)
    return tmp_path


def found(uri):
    return [file.uri for file in find_input(str(uri))]


def test_a_folder_gives_its_files_sorted_without_the_hidden(tree):
    assert found(tree) == [str(tree / n) for n in ("a.jsonl", "b.csv", "sub/c.parquet")]
    assert found(f"{tree}/") == found(tree)
    (file, *_) = find_input(str(tree))
    assert file.size == 3
    assert file.ending == ".jsonl"


def test_a_file_is_found_by_its_name_even_a_hidden_one(tree):
    assert found(tree / "b.csv") == [str(tree / "b.csv")]
    assert found(tree / ".hidden.csv") == [str(tree / ".hidden.csv")]


def test_a_folder_in_a_hidden_folder_is_no_hidden_one(tree):
    assert found(tree / "_tmp") == [str(tree / "_tmp" / "d.csv")]
    assert found(tree / "_tmp" / "*.csv") == [str(tree / "_tmp" / "d.csv")]


def test_a_glob_gives_what_matches_without_the_hidden(tree):
    assert found(tree / "*.csv") == [str(tree / "b.csv")]
    assert found(tree / "**" / "*.parquet") == [str(tree / "sub" / "c.parquet")]
    assert found(tree / "sub" / "*") == [str(tree / "sub" / "c.parquet")]
    assert found(tree / "[ab].*") == [str(tree / n) for n in ("a.jsonl", "b.csv")]


@pytest.mark.parametrize("what", ["none", "none.csv", "none/*.csv"])
def test_nothing_to_read_is_refused(tree, what):
    with pytest.raises(RequestError, match=r"--input: expected \.parquet, \.csv, \.jsonl files at .*, got nothing"):
        find_input(str(tree / what))


def test_other_endings_are_refused_with_their_number(tree):
    with pytest.raises(RequestError, match=r"notes.txt, got 1 files with other endings"):
        find_input(str(tree / "notes.txt"))


def test_a_changed_file_has_another_mark(tree):
    before = the_file(tree / "b.csv").mark
    assert before == the_file(tree / "b.csv").mark
    os.utime(tree / "b.csv", (1, 1))
    assert the_file(tree / "b.csv").mark != before


def test_the_sample_is_known_by_its_content():
    file = the_file("package:raycase/sample/sentences.csv")
    assert file.uri == "package:raycase/sample/sentences.csv"
    assert len(file.mark) == 64
    assert len(read("package:raycase/sample/sentences.csv")[0]) > 10
    with pytest.raises(RequestError, match=r"--input: expected .* files at .*none.csv, got nothing"):
        find_input("package:raycase/sample/none.csv")
