"""The atomic put, names of units, and the listing that is the checkpoint."""

import os
import re

import pytest

from raycase.errors import RequestError
from raycase.io.storage import fingerprint, locate


@pytest.fixture(params=["local", "file", "memory"])
def folder(request, tmp_path):
    """A folder on a local disk, by path and by URI, and on an object store's stand-in."""
    if request.param == "memory":
        yield locate(f"memory://{tmp_path.name}")
        locate(f"memory://{tmp_path.name}").remove()
    else:
        yield locate(str(tmp_path / "out") if request.param == "local" else f"file://{tmp_path}/out")


def test_what_is_put_is_read(folder):
    file = folder / "embeddings" / "a.bin"
    assert not file.exists()
    for data in (b"first", b"second!"):  # a listing is never from a cache
        file.put(data)
        assert file.exists() and file.read() == data and file.name == "a.bin"
        assert (folder / "embeddings").list() == {"a.bin": len(data)}


def test_json_is_read_as_it_was_put(folder):
    value = {"b": [1, 2.5, None], "a": "naïve 😀"}
    (folder / "job.json").put_json(value)
    assert (folder / "job.json").read_json() == value
    assert "naïve 😀".encode() in (folder / "job.json").read()
    (folder / "job.json").put(b'{"a": ')
    with pytest.raises(RequestError, match=r"job\.json: expected JSON, got: "):
        (folder / "job.json").read_json()


@pytest.mark.parametrize("broken", ["replace", "fsync"])
@pytest.mark.parametrize("before", [None, b"before"])
def test_a_put_that_fails_leaves_the_folder_as_it_was(tmp_path, monkeypatch, broken, before):
    file = locate(str(tmp_path / "a.bin"))
    if before:
        file.put(before)
    listing = sorted(os.listdir(tmp_path))

    def fail(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(OSError, match="no space left"):
        file.put(b"after")
    assert sorted(os.listdir(tmp_path)) == listing
    assert before is None or file.read() == before


def test_until_it_is_whole_a_file_is_not_listed(tmp_path, monkeypatch):
    """Whoever lists the folder while a file is being written sees nothing of it."""
    seen = []
    replace = os.replace

    def listing_first(source, target):
        seen.append((locate(str(tmp_path)).list(), os.listdir(tmp_path)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", listing_first)
    locate(str(tmp_path / "a.bin")).put(b"data")
    ((listed, there),) = seen
    assert (listed, len(there)) == ({}, 1)
    assert locate(str(tmp_path)).list() == {"a.bin": 4}


def test_a_listing_has_files_only_and_none_that_is_hidden(folder):
    for name in ("a.bin", ".a.bin.0123", ".crc"):
        (folder / name).put(b"12")
    (folder / "inner" / "b.bin").put(b"1")
    assert folder.list() == {"a.bin": 2}
    assert (folder / "none").list() == {}


def test_local_places_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for uri in ("x/y", "x/y/", "~/x/y", f"file://{tmp_path}/x/y"):
        found = locate(uri)
        assert (found.uri, found.is_local) == (str(tmp_path / "x" / "y"), True)


CREDENTIALS, NO_PLACE = "expected a URI without credentials", "expected a bucket or a path in it, got none"
NO_STORE = "expected a local path or a URI that"


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("s3://key:half/secret@bucket/x", CREDENTIALS),  # which would be kept in job.json and in rejected rows
        ("https://host/x.csv?token=secret", CREDENTIALS),
        ("abfs://secret@account/x", CREDENTIALS),
        ("simplecache::s3://secret@bucket/x", CREDENTIALS),
        ("s3:///x", NO_PLACE),
        ("file://", NO_PLACE),  # not the current folder
        ("foo://host/x", NO_STORE),
    ],
)
def test_a_uri_with_credentials_or_without_a_place_or_a_store_is_refused(uri, said):
    with pytest.raises(RequestError, match=said) as caught:
        locate(uri)
    assert "secret" not in str(caught.value)


def test_a_store_has_one_name():
    """URIs are kept in job.json; a job begun under one name of a store resumes under another."""
    assert locate("s3a://bucket/x").uri == "s3://bucket/x"


def test_the_fingerprint_is_that_of_the_value_not_of_its_order():
    one = fingerprint({"a": 1, "b": {"c": [1, 2], "d": None}})
    assert one == fingerprint({"b": {"d": None, "c": [1, 2]}, "a": 1})
    assert re.fullmatch("[0-9a-f]{64}", one)
    others = [{"a": 1, "b": {"c": [2, 1], "d": None}}, {"a": "1", "b": {"c": [1, 2], "d": None}}, {"a": 1}]
    assert len({one, *map(fingerprint, others)}) == 4
