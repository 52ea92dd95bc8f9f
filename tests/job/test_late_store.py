"""A store that shows deletions and new names late: a job that overwrites another is whole."""

from dataclasses import replace

import fsspec
from helpers import embed_here, same_output
from s3_proxy import Proxy


def test_a_job_that_overwrites_another_is_whole(job, through, s3_server):
    fsspec.filesystem("s3").put(job.input, "corpus/late/in.parquet")
    there = replace(job, input="s3://corpus/late/in.parquet", output="s3://corpus/late/out", unit_rows=250)
    embed_here(there)
    other = replace(there, conditions=("color",), overwrite=True)
    with Proxy(s3_server, late=0.08) as proxy:
        through(proxy.url)
        embed_here(other)
        assert proxy.going
    through(s3_server)
    embed_here(replace(other, input=job.input, output=job.output))
    same_output(other.output, job.output)
