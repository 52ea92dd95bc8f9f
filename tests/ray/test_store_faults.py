"""Object storage that fails: now and then, for a while, or for good. The job continues, or says early what is wrong."""

import subprocess
import time
from dataclasses import replace

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import embed_here, same_output, sentences, small_job
from s3_proxy import Proxy

from raycase.errors import RequestError, WorkError
from raycase.job.output import output_at
from raycase.job.verify import verify

FAULTS = ((500, "InternalError"), (503, "SlowDown"), "reset", "cut", "stall")


ROWS, UNITS = 300, 30  # of the job below


@pytest.fixture(scope="module")
def whole(tiny_model, s3_server, tmp_path_factory):
    """A finished job over three files here, which are on S3, too."""
    folder = tmp_path_factory.mktemp("whole")
    for part in range(3):
        table = pa.table({"text": sentences(ROWS // 3, seed=part)})
        pq.write_table(table, folder / f"part-{part}.parquet", row_group_size=20)
    fsspec.filesystem("s3").put(str(folder / "part-*.parquet"), "corpus/store-faults/in/")
    job = replace(small_job(folder, tiny_model), input=str(folder / "part-*.parquet"), unit_rows=10)
    assert embed_here(job)["units_done"] == UNITS
    return job


@pytest.fixture
def remote(whole, request):
    """The same job, in and out on S3, and the output that its own must equal."""
    output = f"s3://corpus/store-faults/{request.node.name}"
    return replace(whole, input="s3://corpus/store-faults/in/", output=output), whole.output


@pytest.mark.cluster
def test_one_request_in_twenty_fails_and_the_output_is_the_same(remote, through, s3_server):
    job, wanted = remote
    with Proxy(s3_server, failing=0.05, faults=FAULTS, seed=3) as proxy:
        through(proxy.url)
        assert embed_here(job)["rows_out"] == ROWS
    assert set(proxy.failed) == set(FAULTS), "expected every fault met"
    through(s3_server)
    same_output(job.output, wanted)


@pytest.mark.parametrize(
    ("fault", "flags", "wanted"),
    [
        ((400, "ExpiredToken"), {}, "--input: expected to list .*, got: on purpose"),
        ((403, "AccessDenied"), {}, "--input: expected to list .*, got: on purpose"),
        ((403, "AccessDenied"), {"input": "here"}, "--output: expected a readable folder at s3://.*: on purpose"),
    ],
)
def test_what_no_retry_helps_is_said_early_in_one_line(whole, remote, through, s3_server, fault, flags, wanted):
    job = replace(remote[0], **dict.fromkeys(flags, whole.input))
    with Proxy(s3_server, failing=1.0, faults=(fault,)) as proxy:
        through(proxy.url)
        began = time.monotonic()
        with pytest.raises(RequestError, match=wanted) as error:
            embed_here(job)
        assert time.monotonic() - began < 5 and "\n" not in str(error.value)


def test_a_full_disk_ends_the_job_in_one_line(job, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no right to mount a small disk here")
    try:
        (disk / "other").write_bytes(bytes(120_000))  # the vectors alone would fit beside it, their texts do not
        job = replace(job, output=str(disk / "out"))
        with pytest.raises(WorkError, match=r"writing input file 0, from row .*No space left on device") as error:
            embed_here(job)
        assert "\n" not in str(error.value)
        assert not output_at(job.output).manifest.exists()
        (disk / "other").unlink()
        assert embed_here(job)["units_resumed"] > 0
        with (disk / "other").open("wb", buffering=0) as rest, pytest.raises(OSError, match="No space"):
            while True:
                rest.write(bytes(4096))
        with pytest.raises(RequestError, match=r"--output: expected a place to write at .*No space left on device"):
            embed_here(replace(job, output=str(disk / "more")))
        verify(job.output)
    finally:
        subprocess.run(["umount", str(disk)], check=True)
