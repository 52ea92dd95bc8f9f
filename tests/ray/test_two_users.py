"""Two users' work on one cluster of two CPUs, which has no room for all that each asks for: neither keeps the other
from its end."""

import subprocess
import sys
from dataclasses import replace

import pyarrow.parquet as pq
import pytest
from clusters import Head
from helpers import ROOT, embed_here, flags_of, same_output, wait_for

pytestmark = pytest.mark.cluster
EMBED = [sys.executable, "-m", "raycase", "embed"]
PIPELINE = [sys.executable, str(ROOT / "tests" / "piped.py")]


@pytest.fixture(scope="module")
def head():
    with Head() as head:
        head.add_node(cpus=2)
        wait_for(head.nodes)
        yield head


def together(head, folder, *commands):
    """Begin the commands at once, and wait for each."""
    running = []
    for number, words in enumerate(commands):
        with open(folder / f"{number}.log", "w") as log:
            options = {"stdout": log, "stderr": log, "env": head.environment, "cwd": folder}
            running.append(subprocess.Popen([*map(str, words)], **options))
    try:
        for number, process in enumerate(running):
            assert process.wait(300) == 0, (folder / f"{number}.log").read_text()[-3000:]
    finally:
        for process in running:
            process.kill()


def test_two_jobs_that_take_what_there_is(head, job, tmp_path):
    jobs = [replace(job, output=str(tmp_path / name), unit_rows=20, actors="1:8") for name in ("a", "b")]
    together(head, tmp_path, *([*EMBED, *flags_of(each)] for each in jobs))
    embed_here(replace(job, unit_rows=20))
    for each in jobs:
        same_output(each.output, job.output)


def test_a_job_beside_a_pipeline_of_ray_data(head, job, tmp_path):
    there = replace(job, output=str(tmp_path / "a"), unit_rows=20, actors="1:8")
    pipeline = [*PIPELINE, job.input, tmp_path / "piped", job.model]
    together(head, tmp_path, [*EMBED, *flags_of(there)], pipeline)
    embed_here(replace(job, unit_rows=20))
    same_output(there.output, job.output)
    assert sorted(pq.read_table(tmp_path / "piped" / "out")["row_id"].to_pylist()) == sorted([*range(500)] * 2)
