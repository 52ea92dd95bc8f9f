"""Object stores behind fsspec's interface: listings cut into parts, odd names, markers, credentials, regions."""

from types import SimpleNamespace

import boto3
import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from botocore.exceptions import ClientError
from s3_proxy import Proxy

from raycase.data.parquet import parquet_bytes
from raycase.data.storage import locate
from raycase.data.store_clients import bucket_region, open_store


@pytest.fixture
def folder(request, s3_server):
    """An empty folder on S3, and a way to put names into it as other tools do."""
    name = f"stores/{request.node.name}"

    def put(*keys):
        for key in keys:
            boto3.client("s3").put_object(Bucket="corpus", Key=f"{name}/{key}", Body=b"x" * (not key.endswith("/")))

    return SimpleNamespace(at=locate(f"s3://corpus/{name}"), put=put)


@pytest.fixture
def environment(monkeypatch, tmp_path):
    """S3's settings as a test wants them, with new connections."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name)
    open_store.cache_clear()
    yield monkeypatch
    open_store.cache_clear()


def test_a_long_listing_in_parts_has_every_name_once(folder):
    names = [f"ab-{file:05d}-{start}" for file in range(12) for start in range(3)]
    folder.put(*names, "Foreign", "ab-00005", "zz", "ab-00007-x/deeper", "ab-00007-x/z")
    cuts = [f"ab-{file:05d}" for file in range(12)]
    wanted = sorted([*names, "Foreign", "ab-00005", "zz"])
    for page in (1, 4, 1000):
        found = list(folder.at.fs.entries(folder.at.path, cuts, page=page))
        assert [name for name, _ in found] == wanted


def test_a_short_listing_is_not_cut(folder, s3_server, monkeypatch):
    folder.put(*(f"ab-{file:05d}" for file in range(12)))
    with Proxy(s3_server) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        open_store.cache_clear()
        list(folder.at.entries([f"ab-{file:05d}" for file in range(12)]))
        assert sum(proxy.asked.values()) == 1
    open_store.cache_clear()


def test_a_missing_folder_a_missing_file_and_a_missing_bucket(folder):
    missing = folder.at / "none"
    assert (missing.exists(), missing.list(), missing.fs.isdir(missing.path)) == (False, {}, False)
    missing.remove()
    with pytest.raises(FileNotFoundError, match="does not exist"):
        missing.read()
    with pytest.raises(FileNotFoundError, match="The specified bucket does not exist"):
        locate("s3://no-such-bucket/x").put(b"1")
    with pytest.raises(OSError, match="empty path segment"):
        locate("s3://corpus/a//b").read()
    folder.put("", "inner/", "inner/a", "b")  # markers of folders are no files
    assert folder.at.list() == {"b": 1} and (folder.at / "inner").list() == {"a": 1}
    assert folder.at.fs.isdir(folder.at.path) and folder.at.fs.isfile((folder.at / "b").path)


def test_a_folder_is_removed_and_what_only_begins_like_it_stays(folder):
    folder.put("a/1", "a/b/2", "ab/3", "a.txt")
    (folder.at / "a").remove()
    assert sorted(folder.at.fs.find(folder.at.path)) == [f"{folder.at.path}/{name}" for name in ("a.txt", "ab/3")]


@pytest.fixture(params=[(500, "InternalError"), "reset", "cut", "stall"], ids=["500", "reset", "cut", "stall"])
def failing(request, s3_server, monkeypatch):
    """One POST meets a fault: the first, or the second."""

    class OnceFailing(Proxy):
        nth = 1

        def draw(self, method, path):
            if method == "POST":
                self.nth -= 1
            self.failing = float(method == "POST" and self.nth == 0)
            return super().draw(method, path)

    monkeypatch.setattr("raycase.data.store_clients.TIMEOUT", 1.0)
    with OnceFailing(s3_server, faults=(request.param,)) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        open_store.cache_clear()
        yield proxy
        assert proxy.failed == {request.param: 1}
    open_store.cache_clear()


@pytest.mark.parametrize("nth", [1, 2], ids=["many", "one"])
def test_a_folder_is_removed_though_a_request_fails(folder, failing, nth):
    folder.put("a/1", "a/2")
    failing.nth = nth  # the folder's files are deleted by one request, then what has its own name
    (folder.at / "a").remove()
    assert (folder.at / "a").list() == {}


@pytest.mark.parametrize("nth", [1, 2], ids=["begin", "complete"])
def test_a_large_file_is_put_though_a_request_fails(folder, failing, nth, monkeypatch):
    monkeypatch.setattr("raycase.data.object_stores.WHOLE_BYTES", 2**20)
    content = bytes(range(256)) * 2**13
    failing.nth = nth
    (folder.at / "large").put(content)
    assert (folder.at / "large").read() == content


def test_files_are_read_in_parts_and_written_through_handles(folder):
    file = folder.at / "a.bin"
    with file.fs.open(file.path, "wb") as handle:
        handle.write(b"0123")
        handle.write(b"456789")
    with file.fs.open(file.path, "rb") as handle:
        assert (handle.seek(4), handle.read(3), handle.seek(-2, 2), handle.read()) == (4, b"456", 8, b"89")
    (folder.at / "p" / "1.parquet").put(parquet_bytes(pa.table({"n": [1, 2, 3]})))
    (folder.at / "p" / "2.parquet").put(parquet_bytes(pa.table({"n": [4]})))
    rows = ds.dataset((folder.at / "p").path, filesystem=folder.at.fs, format="parquet")
    assert rows.to_table()["n"].to_pylist() == [1, 2, 3, 4]


def test_credentials_and_region_come_from_a_profile(folder, environment, tmp_path):
    (tmp_path / "config").write_text(
        "[profile p]\nregion = eu-west-1\naws_access_key_id = a\naws_secret_access_key = b\n[profile q]\n"
    )
    environment.setenv("AWS_PROFILE", "p")
    (folder.at / "a").put(b"1")
    assert open_store("s3", "corpus").config["region"] == "eu-west-1"
    for profile, message in (
        ("q", "expected credentials of S3 .* got none"),
        ("r", r"profile \(r\) could not be found"),
    ):
        environment.setenv("AWS_PROFILE", profile)
        open_store.cache_clear()
        with pytest.raises(OSError, match=message):
            folder.at.list()


def test_a_bucket_says_its_region_even_to_those_it_refuses():
    answer = {"Error": {"Code": "403"}, "ResponseMetadata": {"HTTPHeaders": {"x-amz-bucket-region": "eu-north-1"}}}

    class Client:
        def head_bucket(self, Bucket):
            raise ClientError(answer, "HeadBucket")

    assert bucket_region(Client(), "corpus") == "eu-north-1"
    answer["ResponseMetadata"]["HTTPHeaders"] = {}
    assert bucket_region(Client(), "corpus") is None
