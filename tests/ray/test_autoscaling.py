"""From a cluster without any worker node: the job brings up what it needs, and it goes again."""

from dataclasses import replace

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clusters import Head, submit
from helpers import embed_here, flags_of, same_output, sentences, wait_for

from raycase.job.output import Output

pytestmark = pytest.mark.cluster
UNITS = 60
TYPES = {
    "cpu": {"resources": {"CPU": 2}, "max_workers": 2},
    "gpu": {"resources": {"CPU": 1, "GPU": 1}, "max_workers": 2},  # in name only: there is no CUDA
}


def test_a_submitted_job_brings_up_its_nodes(job, s3_server, tmp_path):
    pq.write_table(pa.table({"text": sentences(UNITS * 20)}), tmp_path / "long.parquet")
    fsspec.filesystem("s3").put(str(tmp_path / "long.parquet"), "corpus/scaled/long.parquet")
    input, output = "s3://corpus/scaled/long.parquet", "s3://corpus/scaled-out"
    flags = flags_of(replace(job, input=input, output=output, unit_rows=20, actors="2:2"))
    with Head(node_types=TYPES, idle_seconds=5) as head:
        assert head.nodes() == []
        submitted = submit(head, *flags, "--gpus-per-actor", "1")
        gpus = []  # nodes with one, at each look

        def ended():
            gpus.append(sum(bool(n.get("GPU")) for n in head.nodes()))
            return submitted.poll() is not None

        wait_for(ended, 240)
        assert submitted.returncode == 0, submitted.stdout.read()
        assert max(gpus) == 2
        wait_for(lambda: head.nodes() == [], 60)
    assert Output(output).manifest.read_json()["run"]["units_done"] == UNITS
    embed_here(replace(job, input=input, unit_rows=20))
    same_output(output, job.output)
