"""The driver or an actor is killed (SIGKILL) in the middle; nothing is lost and nothing is done twice."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import ROOT, read_output, sentences

from raycase.embed import embed
from raycase.output import output_at, verify


@pytest.fixture
def long_job(job, tmp_path, cluster):
    """Sixty units, so that a kill meets it in the middle."""
    pq.write_table(pa.table({"text": sentences(3000)}), tmp_path / "long.parquet")
    return replace(job, input=str(tmp_path / "long.parquet"), unit_rows=50)


def wait_for(what, seconds=90):
    """Poll until `what()` is true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.02)


def driver(job, cluster):
    """The job as a process of its own on the run's Ray."""
    flags = ["--input", job.input, "--output", job.output, "--conditions", *job.conditions, "--model", job.model]
    flags += ["--prompt", "concat-sc", "--pooling", "mean", "--compute", "float32", "--dtype", "float32"]
    flags += ["--unit-rows", "50", "--actors", "1:1"]
    environment = os.environ | {"RAY_ADDRESS": cluster.address_info["gcs_address"]}
    return subprocess.Popen([sys.executable, str(ROOT / "jobs" / "embed.py"), *flags], env=environment)


def test_a_killed_driver_is_started_again(long_job, cluster):
    folder = output_at(long_job.output).embeddings
    process = driver(long_job, cluster)
    wait_for(lambda: len(folder.list()) >= 5)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = {name: os.stat(f"{folder.path}/{name}").st_mtime_ns for name in folder.list()}
    assert 5 <= len(before) < 60 and not output_at(long_job.output).manifest.exists()
    result = embed(long_job)
    assert (result["rows_in"], result["rows_out"], result["pairs"]) == (3000, 3000, 6000)
    assert result["units_done"] <= 60 - len(before)
    assert all(os.stat(f"{folder.path}/{name}").st_mtime_ns == mtime for name, mtime in before.items())
    assert read_output(long_job.output)["id"].to_pylist() == [f"0:{i}" for i in range(3000) for _ in range(2)]
    verify(long_job.output)


def test_a_killed_actor_is_replaced(long_job, monkeypatch):
    """The job finishes by itself: its actor is killed after a few units."""
    from raycase.progress import Run

    pids = []
    add = Run.add

    def kill_once(self, stats):
        line = add(self, stats)
        pids.append(stats["encode_pid"])
        if len(pids) == 5:
            os.kill(pids[0], signal.SIGKILL)
        return line

    monkeypatch.setattr(Run, "add", kill_once)
    result = embed(long_job)
    assert len(set(pids)) == 2, "wanted a second actor after the kill"
    assert (result["rows_out"], result["units_done"]) == (3000, 60)
    verify(long_job.output)
