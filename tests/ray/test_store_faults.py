"""A store that cannot be used, or is full: the job says early what is wrong. What fails now and then: `chaos.py`."""

import subprocess
import time
from dataclasses import replace

import pytest
from helpers import embed_here
from s3_proxy import Proxy

from raycase.errors import RequestError, WorkError
from raycase.job.output import output_at
from raycase.job.verify import verify


@pytest.mark.parametrize(
    ("fault", "flags", "wanted"),
    [
        ((400, "ExpiredToken"), {}, "--input: expected to list .*, got: on purpose"),
        ((403, "AccessDenied"), {}, "--input: expected to list .*, got: on purpose"),
        ((403, "AccessDenied"), {"input": "here"}, "--output: expected a readable folder at s3://.*: on purpose"),
    ],
)
def test_what_no_retry_helps_is_said_early_in_one_line(job, through, s3_server, fault, flags, wanted):
    there = {"input": "s3://corpus/store-faults/in/", "output": "s3://corpus/store-faults/out"}
    job = replace(job, **there | dict.fromkeys(flags, job.input))
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
