"""Which files an input has, and when they are the same."""

import os
import uuid

import boto3
import pytest
from input_files import read, the_file

from raycase.errors import RequestError
from raycase.io.inputs import find_input, list_input
from raycase.io.source import ending_of
from raycase.io.storage import locate, mark


@pytest.fixture
def tree(tmp_path):
    for name in ("b.csv", "a.jsonl", "sub/c.parquet", ".hidden.csv", "_tmp/d.csv", "sub/_e.csv", "notes.txt", "F.CSV"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * 3)
    return tmp_path


@pytest.mark.parametrize(
    ("place", "names"),
    [
        ("**", ["F.CSV", "a.jsonl", "b.csv", "sub/c.parquet"]),  # sorted, without the hidden
        ("sub/", ["sub/c.parquet"]),
        (".hidden.csv", [".hidden.csv"]),
        ("[ab].*", ["a.jsonl", "b.csv"]),
    ],
)
def test_a_file_a_folder_or_a_glob_gives_its_files(tree, place, names):
    files = find_input(f"{tree}/{place}")
    assert [file.uri for file in files] == [str(tree / name) for name in names]
    assert {(file.size, ending_of(file.uri)) for file in files} <= {(3, ".csv"), (3, ".jsonl"), (3, ".parquet")}


def test_a_file_of_the_hub_is_marked_by_its_content():
    listed = {"name": "datasets/u/d/a.parquet", "size": 7, "type": "file", "blob_id": "4f2c", "xet_hash": "9a"}
    assert mark(listed) == "4f2c" and mark(listed | {"blob_id": None}) == "9a"


def test_the_sample_is_known_by_its_content():
    file = the_file("package:raycase/sample/sentences.csv")
    assert file.uri == "package:raycase/sample/sentences.csv"
    assert len(file.mark) == 64
    assert len(read("package:raycase/sample/sentences.csv")[0]) > 10
    with pytest.raises(RequestError, match=r"--input: expected .* files at .*none.csv, got nothing"):
        find_input("package:raycase/sample/none.csv")


@pytest.mark.parametrize("store", ["disk", "s3"])
def test_what_is_left_out_is_named_but_what_is_hidden(store, tmp_path, s3_server, capsys):
    root = str(tmp_path) if store == "disk" else f"s3://corpus/inputs/{uuid.uuid4().hex}"
    for name in ("B.JSONL", "a.jsonl", "c.jsonl.bz2", "d.gz", "e/F.Parquet", "e/notes", ".x.csv", "_tmp/y.csv"):
        (locate(root) / name).put(b"x" * 3)

    if store == "s3":  # an empty object that stands for a folder
        boto3.client("s3").put_object(Bucket="corpus", Key=f"{root.removeprefix('s3://corpus/')}/e/", Body=b"")

    def listed(place=""):
        listing = list_input(root + place)
        return [f.uri.removeprefix(root + "/") for f in listing.files], listing.left_out

    assert listed() == (["B.JSONL", "a.jsonl", "e/F.Parquet"], ["c.jsonl.bz2", "d.gz", "e/notes"])
    folders = [] if store == "disk" else ["e"]
    assert listed("/*") == (["B.JSONL", "a.jsonl"], ["c.jsonl.bz2", "d.gz", *folders])
    assert listed("/**/*.[pP]*") == (["e/F.Parquet"], [])
    assert {ending_of(f.uri) for f in find_input(root + "/**/*")} == {".jsonl", ".parquet"}
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("--input: skipped 3 in ")
    assert "2, d.gz, e/notes; only .parquet, .csv, .jsonl files are read, texts also as .gz and .zst" in line


def test_one_file_under_two_endings_is_refused(tmp_path):
    """A file is often compressed beside itself, or kept in a second format: its rows would be there twice."""
    for name in ("a.csv", "b/a.csv", "c.csv.gz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert len(find_input(str(tmp_path))) == 3
    for name in ("a.csv.gz", "a.parquet", "c.csv"):
        (tmp_path / name).touch()
        with pytest.raises(RequestError, match=r"--queries: expected each row once, got .* and .*; move one away"):
            find_input(str(tmp_path / "**"), "--queries")
        assert find_input(str(tmp_path / "b")) and find_input(str(tmp_path / "[ac].csv"))
        (tmp_path / name).unlink()


def test_many_that_are_left_out_are_one_short_line(tmp_path, capsys):
    for i in range(20):
        (tmp_path / f"{i:02d}\x1b[31m\n.txt").touch()
    (tmp_path / "a.csv").touch()
    find_input(str(tmp_path), "--queries")
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"--queries: skipped 20 in {tmp_path}: 00\\x1b[31m .txt, ") and "and 15 more" in line


def test_links_are_followed_and_a_file_counts_once(tmp_path):
    """As the cache of Hugging Face: names that lead to blobs without an ending."""
    folder, outside = tmp_path / "in", tmp_path / "outside"
    for place in (folder / "blobs", folder / "snapshots" / "main", outside / "deep", folder / "_hidden"):
        place.mkdir(parents=True)
    for file in (folder / "blobs" / "1f", folder / "own.csv", outside / "o.csv", outside / "deep" / "p.jsonl"):
        file.write_bytes(b"xyz")
    (folder / "_hidden" / "h.csv").touch()
    (folder / "snapshots" / "main" / "a.csv").symlink_to("../../blobs/1f")
    (folder / "more").symlink_to(outside)
    (folder / "seen").symlink_to("_hidden")
    (folder / ".not_seen").symlink_to(outside)
    (folder / "snapshots" / "circle").symlink_to("..")
    (folder / "snapshots" / "main" / "b.csv").symlink_to("../../blobs/1f")  # equal files of a data set are one blob
    (folder / "gone.csv").symlink_to("nothing")
    os.mkfifo(folder / "pipe.csv")  # whoever opens it waits for ever
    listing = list_input(str(folder))
    there = ["more/deep/p.jsonl", "more/o.csv", "own.csv", "seen/h.csv", "snapshots/main/a.csv", "snapshots/main/b.csv"]
    assert [os.path.relpath(f.uri, folder) for f in listing.files] == there
    assert listing.left_out == ["blobs/1f", "gone.csv", "pipe.csv"]
    (file,) = (f for f in listing.files if f.uri.endswith("a.csv"))
    assert (file.size, file.mark) == (3, str((folder / "blobs" / "1f").stat().st_mtime))
    with pytest.raises(RequestError, match=r"files at .*gone\.csv, got nothing"):
        find_input(str(folder / "gone.csv"))
