"""S3 by s3fs: whole puts, requests that are made again, listings that are fresh, and errors of one line."""

import boto3
import pytest
from s3_proxy import FAULTS, Proxy

from raycase.io import s3
from raycase.io.storage import locate


@pytest.fixture
def folder(request, s3_server):
    return locate(f"s3://corpus/s3/{request.node.name}")


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_request_that_fails_is_made_again(folder, through, s3_server, fault):
    with Proxy(s3_server, failing=0.2, faults=(fault,), seed=1) as proxy:
        through(proxy.url)
        there = locate(folder.uri)
        for name in ("a", "b"):
            (there / name).put(b"1234")
        assert there.list() == {"a": 4, "b": 4} and (there / "a").read(1, 3) == b"23"
        there.remove()
        assert not there.exists()
    assert proxy.failed[fault]


def test_a_put_that_fails_leaves_no_object(folder, through, s3_server, monkeypatch):
    monkeypatch.setattr(s3, "ATTEMPTS", 2)
    with Proxy(s3_server, failing=1.0, faults=((500, "InternalError"),)) as proxy:
        through(proxy.url)
        with pytest.raises(OSError, match="on purpose"):
            (locate(folder.uri) / "a").put(b"1")
    through("http://127.0.0.1:9")
    with pytest.raises(OSError, match="Could not connect to the endpoint"):
        locate(folder.uri).list()
    through(s3_server)
    assert locate(folder.uri).list() == {}


def test_a_listing_is_never_from_a_cache(folder):
    client = boto3.client("s3")
    for count in (1, 2, 3):
        client.put_object(Bucket="corpus", Key=f"{folder.path.partition('/')[2]}/{count}", Body=b"x")
        assert len(folder.list()) == len(folder.fs.find(folder.path)) == count and (folder / f"{count}").exists()


def test_a_folder_is_removed_and_what_only_begins_like_it_stays(folder):
    for name in ("a/1", "a/b/[2]*", "a[1]*/3", "ab/3", "a.txt"):
        (folder / name).put(b"x")
    boto3.client("s3").put_object(Bucket="corpus", Key=f"{folder.path.partition('/')[2]}/a/", Body=b"")  # its marker
    assert (folder / "a").list() == {"1": 1}
    for name in ("a", "a[1]*", "none"):
        (folder / name).remove()
    assert [name.removeprefix(folder.path) for name in folder.fs.find(folder.path)] == ["/a.txt", "/ab/3"]


def test_a_bucket_that_is_not_there_and_missing_credentials_are_one_line(through, s3_server, monkeypatch):
    with pytest.raises(FileNotFoundError, match="The specified bucket does not exist"):
        locate("s3://no-such-bucket/x").put(b"1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    through(s3_server)
    with pytest.raises(OSError, match="Unable to locate credentials"):
        locate("s3://corpus/x").list()
