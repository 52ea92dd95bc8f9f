"""Files of any store: the atomic put, the listing that is the checkpoint; S3 with requests that fail."""

import os
import re

import boto3
import pytest
from s3_proxy import FAULTS, Proxy

from raycase.errors import RequestError
from raycase.io import s3
from raycase.io.storage import fingerprint, locate


@pytest.fixture(params=["local", "memory"])
def folder(request, tmp_path):
    """A folder on a local disk, and on an object store's stand-in."""
    place = locate(f"memory://{tmp_path.name}" if request.param == "memory" else str(tmp_path / "out"))
    yield place
    place.remove()


def test_what_is_put_is_read_and_listed_but_what_is_hidden(folder):
    file = folder / "a.bin"
    assert not file.exists() and folder.list() == {}
    for name in ("inner/b.bin", ".a.bin.0123", ".crc"):
        (folder / name).put(b"1")
    for data in (b"first", b"second!"):  # a listing is never from a cache
        file.put(data)
        assert file.exists() and file.read() == data and file.name == "a.bin"
        assert folder.list() == {"a.bin": len(data)}


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
    listing, seen = sorted(os.listdir(tmp_path)), []

    def fail(*_):
        seen.append(locate(str(tmp_path)).list())  # what others see of it while it is written
        raise OSError("no space left")

    monkeypatch.setattr(os, broken, fail)
    with pytest.raises(OSError, match="no space left"):
        file.put(b"after")
    assert sorted(os.listdir(tmp_path)) == listing and [[*each] for each in seen] == [listing]
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


def test_a_place_has_one_name(tmp_path, monkeypatch):
    """It is kept in job.json; a job begun under one name resumes under another."""
    assert locate("s3a://bucket/x").uri == "s3://bucket/x"
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
        ("simplecache::s3://secret@bucket/x", CREDENTIALS),
        ("file://", NO_PLACE),  # not the current folder
        ("foo://host/x", NO_STORE),
    ],
)
def test_a_uri_with_credentials_or_without_a_place_or_a_store_is_refused(uri, said):
    with pytest.raises(RequestError, match=said) as caught:
        locate(uri)
    assert "secret" not in str(caught.value)


def test_the_fingerprint_is_that_of_the_value_not_of_its_order():
    one = fingerprint({"a": 1, "b": {"c": [1, 2], "d": None}})
    assert one == fingerprint({"b": {"d": None, "c": [1, 2]}, "a": 1})
    assert re.fullmatch("[0-9a-f]{64}", one)
    assert fingerprint({"a": "1", "b": {"c": [1, 2], "d": None}}) != one != fingerprint({"a": 1})


# ------------------------------------------------------------------------------------------------------------------- S3


@pytest.fixture
def prefix(request, s3_server):
    return locate(f"s3://corpus/s3/{request.node.name}")


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_request_that_fails_is_made_again(prefix, through, s3_server, fault):
    with Proxy(s3_server, failing=0.2, faults=(fault,), seed=1) as proxy:
        through(proxy.url)
        there = locate(prefix.uri)
        for name in ("a", "b"):
            (there / name).put(b"1234")
        assert there.list() == {"a": 4, "b": 4} and (there / "a").read(1, 3) == b"23"
        there.remove()
        assert not there.exists()
    assert proxy.failed[fault]


def test_a_put_that_fails_leaves_no_object(prefix, through, s3_server, monkeypatch):
    monkeypatch.setattr(s3, "ATTEMPTS", 2)
    with Proxy(s3_server, failing=1.0, faults=((500, "InternalError"),)) as proxy:
        through(proxy.url)
        with pytest.raises(OSError, match="on purpose"):
            (locate(prefix.uri) / "a").put(b"1")
    through("http://127.0.0.1:9")
    with pytest.raises(OSError, match="Could not connect to the endpoint"):
        locate(prefix.uri).list()
    through(s3_server)
    assert locate(prefix.uri).list() == {}


def test_a_listing_is_never_from_a_cache(prefix):
    client = boto3.client("s3")
    for count in (1, 2, 3):
        client.put_object(Bucket="corpus", Key=f"{prefix.path.partition('/')[2]}/{count}", Body=b"x")
        assert len(prefix.list()) == len(prefix.fs.find(prefix.path)) == count and (prefix / f"{count}").exists()


def test_a_folder_is_removed_and_what_only_begins_like_it_stays(prefix):
    for name in ("a/1", "a/b/[2]*", "a[1]*/3", "ab/3", "a.txt"):
        (prefix / name).put(b"x")
    boto3.client("s3").put_object(Bucket="corpus", Key=f"{prefix.path.partition('/')[2]}/a/", Body=b"")  # its marker
    assert (prefix / "a").list() == {"1": 1}
    for name in ("a", "a[1]*", "none"):
        (prefix / name).remove()
    assert [name.removeprefix(prefix.path) for name in prefix.fs.find(prefix.path)] == ["/a.txt", "/ab/3"]


def test_a_bucket_that_is_not_there_and_missing_credentials_are_one_line(through, s3_server, monkeypatch):
    with pytest.raises(FileNotFoundError, match="The specified bucket does not exist"):
        locate("s3://no-such-bucket/x").put(b"1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    through(s3_server)
    with pytest.raises(OSError, match="Unable to locate credentials"):
        locate("s3://corpus/x").list()
