"""The main job on Ray: the same vectors as without it, on local disk and on S3, submitted or not."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from urllib.request import urlopen

import fsspec
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import ray
import torch
from helpers import ROOT, cosines, in_process, read_output, run_job, sentences, vectors, wait_for

import raycase
from raycase.corpus import plan as plan_module
from raycase.corpus.output import output_at
from raycase.corpus.request import EmbedJob
from raycase.corpus.verify import verify
from raycase.distributed import embed as embed_module
from raycase.distributed.embed import embed
from raycase.distributed.estimate import dry_run
from raycase.errors import RequestError

CONDITIONS = ("color", "number of people")


WATCHED = ("rows", "units", "units_left", "sharing", "tokens")


def test_distributed_equals_plain(job, cluster, tiny_model, tmp_path):
    result = embed(replace(job, actors="2:2"))
    table = read_output(job.output)
    plain = raycase.load(str(tiny_model), prompt="concat-sc", pooling="mean", dtype=torch.float32)
    expected = plain.embed(table["text"].to_pylist(), table["condition"].to_pylist())
    assert cosines(vectors(table), expected).min() > 0.9999
    assert table["id"].to_pylist() == [i for i in range(500) for _ in CONDITIONS]
    assert table["condition"].to_pylist() == list(CONDITIONS) * 500
    counts = {"rows_in": 500, "rows_out": 500, "rows_rejected": 0, "pairs": 1000, "units_done": 5, "units_resumed": 0}
    assert counts.items() <= result.items()
    verify(job.output)
    wanted = {"rows": 500, "units": 5, "units_left": 0, "sharing": 1, "tokens": result["tokens"]}
    end = time.monotonic() + 30
    while (found := metrics(json.loads((tmp_path / "out" / "job.json").read_text())["fingerprint"][:8])) != wanted:
        assert time.monotonic() < end, f"expected Ray's metrics to say {wanted}, got {found}"
        time.sleep(0.2)


def metrics(job):
    """Ours of a job, as Prometheus reads them from the node."""
    port = ray.nodes()[0]["MetricsExportPort"]
    with urlopen(f"http://127.0.0.1:{port}/metrics") as page:
        lines = [line for line in page.read().decode().splitlines() if line.startswith("ray_raycase_") and job in line]
    values = {line.split("{")[0].removeprefix("ray_raycase_"): float(line.rsplit(" ", 1)[1]) for line in lines}
    return {n.removesuffix("_total"): v for n, v in values.items() if n.removesuffix("_total") in WATCHED}


def test_distributed_equals_plain_with_the_default_model(cluster, tmp_path):
    texts = ["Two girls in red dresses play soccer.", "A man walks his dog.", "The battery of this phone dies fast."]
    pd.DataFrame({"text": texts}).to_csv(tmp_path / "in.csv", index=False)
    job = EmbedJob(input=str(tmp_path / "in.csv"), output=str(tmp_path / "out"), conditions=CONDITIONS)
    embed(job)
    table = read_output(job.output)
    expected = raycase.load("minilm").embed(table["text"].to_pylist(), table["condition"].to_pylist())
    assert cosines(vectors(table), expected).min() > 0.999
    assert table["id"].to_pylist() == [f"0:{row}" for row in range(3) for _ in CONDITIONS]
    assert table.schema.field("embedding").type == pa.list_(pa.field("item", pa.float16(), nullable=False), 384)


def test_s3_equals_local(job, cluster, s3_server):
    embed(job, execute=in_process)
    s3 = fsspec.filesystem("s3")
    s3.put(job.input, "corpus/in/part-0.parquet")
    remote = replace(job, input="s3://corpus/in/", output="s3://corpus/out")
    assert embed(remote)["units_done"] == 5
    found, wanted = read_output(remote.output), read_output(job.output)
    assert found.drop_columns(["embedding"]).equals(wanted.drop_columns(["embedding"]))
    assert cosines(vectors(found), vectors(wanted)).min() > 0.9999
    assert verify(remote.output)["rows_out"] == 500
    again = embed(remote)
    assert (again["units_done"], again["units_resumed"], again["tokens"]) == (0, 5, 0)


def test_a_unit_of_rejected_rows_leaves_an_empty_file(job, cluster, tmp_path):
    pq.write_table(pa.table({"text": pa.array(["a dog"] * 100 + [None] * 100)}), tmp_path / "half.parquet")
    job = replace(job, input=str(tmp_path / "half.parquet"), max_rejected=1)
    result = embed(job)
    assert (result["rows_out"], result["rows_rejected"], result["units_done"]) == (100, 100, 2)
    assert embed(job)["units_resumed"] == 2
    verify(job.output)


@pytest.mark.long
def test_a_unit_of_300_megabytes_stays_one_unit(job, cluster, tmp_path):
    payload = "x" * 300_000
    table = pa.table({"text": sentences(1000), "payload": [payload + str(i) for i in range(1000)]})
    pq.write_table(table, tmp_path / "large.parquet")
    job = replace(job, input=str(tmp_path / "large.parquet"), keep_columns=("payload",), unit_rows=1000)
    job = replace(job, conditions=("color",))
    assert embed(job)["units_done"] == 1
    [file] = output_at(job.output).embeddings.list()
    table = pq.read_table(f"{job.output}/embeddings/{file}")
    assert len(table) == 1000 and pc.sum(pc.utf8_length(table["payload"])).as_py() > 300_000_000


def test_stages_run_in_processes_of_their_own(job, cluster, monkeypatch):
    from raycase.corpus.progress import Run

    seen = []
    add = Run.add
    monkeypatch.setattr(Run, "add", lambda self, unit: (seen.append(unit), add(self, unit))[1])
    monkeypatch.setattr(embed_module, "HANDED_UNITS", 4)
    monkeypatch.setattr(embed_module, "HANDED_AN_ACTOR", 2)
    monkeypatch.setattr(plan_module, "TASK_UNITS", 1)
    embed(replace(job, actors="2:2", unit_rows=20))  # 25 units in pieces of four: the actors outlive each
    read_pids, encode_pids = {unit.stats.read_pid for unit in seen}, {unit.stats.encode_pid for unit in seen}
    write_pids = {unit.write_pid for unit in seen}
    assert len(encode_pids) == 2, "expected the units spread over both actors"
    assert not (read_pids & encode_pids or encode_pids & write_pids or os.getpid() in read_pids | encode_pids)


def test_dry_run_says_how_much_work_it_is_and_writes_nothing(job, cluster, tmp_path):
    estimate = dry_run(job)
    assert {"units": 5, "rows": 500, "pairs": 1000, "distinct_pairs": 1000}.items() <= estimate.items()
    assert not (tmp_path / "out").exists()
    result = embed(job)
    size = sum(output_at(job.output).embeddings.list().values())
    assert abs(estimate["tokens"] / result["tokens"] - 1) < 0.1
    assert 0.5 < estimate["output_bytes"] / size < 1.5
    assert dry_run(job)["units"] == 0


def test_the_sample_is_done_when_run_again(cluster, tmp_path):
    environment = os.environ | {"RAY_ADDRESS": cluster.address_info["gcs_address"], "HOME": str(tmp_path)}
    environment["RAY_AUTH_TOKEN_PATH"] = os.path.expanduser("~/.ray/auth_token")
    first = run_job(env=environment, cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    result = json.loads(first.stdout.splitlines()[-1])
    assert result["rows_in"] == 300 and result["pairs"] == 2400
    assert result["output"] == str(tmp_path / "raycase" / "out")
    second = json.loads(run_job(env=environment, cwd=tmp_path).stdout.splitlines()[-1])
    assert (second["units_done"], second["tokens"]) == (0, 0)


def test_submitted_as_a_ray_job(job, cluster, tmp_path, tiny_model):
    """`ray job submit` of the working directory, through the job server's real HTTP."""
    submit = [
        os.path.join(os.path.dirname(sys.executable), "ray"),
        "job",
        "submit",
        "--address",
        f"http://{cluster.dashboard_url}",
        "--working-dir",
        str(ROOT),
        "--",
    ]
    flags = ["--input", job.input, "--conditions", *CONDITIONS, "--model", str(tiny_model), "--prompt", "concat-sc"]
    flags += ["--pooling", "mean", "--unit-rows", "100"]
    command = [*submit, "python", "jobs/embed.py", *flags, "--output"]

    def submitted():  # a cluster that has just started has no agent yet that takes jobs
        found = subprocess.run([*command, job.output], capture_output=True, text=True, timeout=120)
        return None if "No available agent" in found.stderr else found

    done = wait_for(submitted)
    assert done.returncode == 0, done.stdout + done.stderr
    assert verify(job.output)["rows_out"] == 500


def test_what_fails_on_a_worker_is_said_in_one_line(job, cluster, tmp_path, capfd):
    path = tmp_path / "in.parquet"
    data = bytearray(path.read_bytes())
    data[100:3000] = bytes(2900)
    path.write_bytes(data)
    with pytest.raises(RequestError, match=r"in\.parquet: expected a readable parquet file, got: .*orrupt") as error:
        embed(job)
    assert "\n" not in str(error.value)
    assert "Traceback" not in capfd.readouterr().err
