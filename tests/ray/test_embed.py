"""The embedding job on Ray: the same vectors as without it, on local disk and on S3, submitted or not."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from helpers import (
    NO_AGENT,
    ROOT,
    cosines,
    embed_here,
    embed_on_ray,
    read_output,
    run,
    same_output,
    sentences,
    small_job,
    vectors,
    wait_for,
)

import raycase
from raycase.commands.embed import check_embed
from raycase.errors import RequestError
from raycase.job.output import Output
from raycase.job.sample import dry_run
from raycase.job.verify import verify
from raycase.ray import runner
from raycase.ray.runner import RayRunner


@pytest.fixture(scope="module")
def finished(cluster, s3_server, tiny_model, tmp_path_factory):
    """A job of two actors from S3 to S3, 500 good rows and 100 rejected ones: the job, what it returned and the units
    as they came; `local` is the job over the good rows alone, executed in this process."""
    folder = tmp_path_factory.mktemp("finished")
    local = small_job(folder, tiny_model)
    embed_here(local)
    pq.write_table(pa.table({"id": range(500, 600), "text": pa.nulls(100, pa.string())}), folder / "rejected.parquet")
    s3 = fsspec.filesystem("s3")
    s3.put(local.input, "corpus/in/part-0.parquet")
    s3.put(str(folder / "rejected.parquet"), "corpus/in/part-1.parquet")
    job = replace(local, input="s3://corpus/in/", output="s3://corpus/out", actors="2:2", unit_rows=20, max_rejected=1)
    with pytest.MonkeyPatch.context() as patch:  # of 30 units, so both actors work through many spans of the plan
        patch.setattr(runner, "AHEAD_UNITS", 4)
        patch.setattr(runner, "AHEAD_UNITS_AN_ACTOR", 2)
        result = run(job, RayRunner())
    return SimpleNamespace(job=job, result=result, local=local)


def test_on_ray_and_s3_it_is_the_output_of_one_process_and_disk(finished):
    same_output(finished.job.output, finished.local.output)
    counts = {"rows_in": 600, "rows_out": 500, "rows_rejected": 100, "pairs": 1000, "distinct_pairs": 1000}
    assert counts.items() <= finished.result.items()


def test_units_of_rejected_rows_leave_empty_files_and_one_process_resumes_all_units(finished):
    empty = [name for name in Output(finished.job.output).units.list() if name.endswith("-0-20.parquet")]
    assert len(empty) == 5
    result = finished.result
    assert (result["units_done"], result["units_resumed"]) == (30, 0)
    again = embed_here(finished.job)
    assert (again["units_done"], again["units_resumed"], again["tokens"]) == (0, 30, 0)


def test_dry_run_estimates_the_work_on_a_worker_and_writes_nothing(finished, tmp_path):
    estimate = dry_run(check_embed(replace(finished.local, output=str(tmp_path / "out"))), RayRunner())
    assert {"units": 5, "rows": 500, "pairs": 1000}.items() <= estimate.items()
    assert estimate["measured_on"].startswith("a worker with ")
    assert not (tmp_path / "out").exists()
    size = sum(Output(finished.local.output).units.list().values())
    assert abs(estimate["tokens"] / finished.result["tokens"] - 1) < 0.1
    assert 0.5 < estimate["output_bytes"] / size < 1.5
    assert dry_run(check_embed(finished.local), RayRunner())["units"] == 0


@pytest.mark.long
def test_a_unit_of_300_megabytes_stays_one_unit(job, cluster, tmp_path):
    payload = "x" * 300_000
    table = pa.table({"text": sentences(1000), "payload": [payload + str(i) for i in range(1000)]})
    pq.write_table(table, tmp_path / "large.parquet")
    job = replace(job, input=str(tmp_path / "large.parquet"), keep_columns=("payload",), unit_rows=1000)
    job = replace(job, conditions=("color",))
    assert embed_on_ray(job)["units_done"] == 1
    [file] = Output(job.output).units.list()
    table = pq.read_table(f"{job.output}/embeddings/{file}")
    assert len(table) == 1000 and pc.sum(pc.utf8_length(table["payload"])).as_py() > 300_000_000


@pytest.mark.cluster
def test_the_sample_submitted_as_a_ray_job_is_that_of_the_plain_path(cluster, tmp_path):
    """`ray job submit` of the working directory, through the job server's real HTTP; no flags: the sample, MiniLM."""
    home = {"HOME": str(tmp_path), "RAY_AUTH_TOKEN_PATH": os.path.expanduser("~/.ray/auth_token")}
    command = [os.path.join(os.path.dirname(sys.executable), "ray"), "job", "submit", "--working-dir", str(ROOT)]
    command += ["--address", f"http://{cluster.dashboard_url}", "--runtime-env-json", json.dumps({"env_vars": home})]
    command += ["--", "python", "jobs/embed.py"]

    def submitted():
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        return None if NO_AGENT in done.stderr else done

    done = wait_for(submitted, 240)
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = [line for line in done.stdout.splitlines() if line.startswith("{")]
    result = json.loads(line)
    assert (result["rows_in"], result["pairs"]) == (300, 2400)
    assert result["output"] == str(tmp_path / "raycase" / "out")
    assert verify(result["output"])["rows_out"] == 300

    table = read_output(result["output"])
    assert table.schema.field("embedding").type == pa.list_(pa.field("item", pa.float16(), nullable=False), 512)
    some = table.take(np.arange(0, 2400, 61))
    expected = raycase.load().embed(some["text"].to_pylist(), some["condition"].to_pylist())
    assert cosines(vectors(some), expected).min() > 0.999


@pytest.mark.cluster
def test_what_fails_on_a_worker_is_said_in_one_line(job, cluster, tmp_path, capfd):
    path = tmp_path / "in.parquet"
    data = bytearray(path.read_bytes())
    data[100:3000] = bytes(2900)
    path.write_bytes(data)
    with pytest.raises(RequestError, match=r"in\.parquet: expected a readable parquet file, got: .*orrupt") as error:
        embed_on_ray(job)
    assert "\n" not in str(error.value)
    assert "Traceback" not in capfd.readouterr().err
