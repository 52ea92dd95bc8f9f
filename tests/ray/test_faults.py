"""A job is stopped in the middle, an encoder killed; nothing is lost and nothing is done twice."""

import contextlib
import os
import shlex
import signal
import sys
import time
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import (
    NO_AGENT,
    ROOT,
    embed_on_ray,
    flags_of,
    read_output,
    read_rejected,
    sentences,
    stopped,
    unit_times,
    wait_for,
)
from ray import cloudpickle
from ray.job_submission import JobStatus, JobSubmissionClient

from raycase.commands.embed import check_embed
from raycase.errors import WorkError
from raycase.job.output import Output
from raycase.job.verify import verify
from raycase.models.case import Case, CaseConfig

pytestmark = pytest.mark.cluster


@pytest.fixture
def long_job(job, tmp_path, cluster):
    """Sixty units, so that a kill meets it in the middle."""
    pq.write_table(pa.table({"text": sentences(3000)}), tmp_path / "long.parquet")
    return replace(job, input=str(tmp_path / "long.parquet"), unit_rows=50)


def test_a_job_that_was_stopped_in_one_process_goes_on_on_ray(long_job):
    """The other way round: `test_embed.py`. A driver on Ray that is killed: `chaos.py`."""
    stopped(long_job, 5)
    resumed(long_job)


def resumed(job):
    """Assert that an unfinished job goes on on Ray with what is there."""
    before = unit_times(job)
    assert 5 <= len(before) < 60 and not Output(job.output).manifest.exists()
    result = embed_on_ray(job)
    assert (result["rows_in"], result["rows_out"], result["pairs"]) == (3000, 3000, 6000)
    assert result["units_done"] == 60 - len(before)
    assert before.items() < unit_times(job).items()
    assert read_output(job.output)["id"].to_pylist() == [f"0:{i}" for i in range(3000) for _ in range(2)]
    verify(job.output)


def test_a_unit_that_kills_its_encoder_is_rejected_and_the_job_goes_on(job, tmp_path, cluster, capsys):
    texts = sentences(12)
    texts[6] = "a poison dog"
    pq.write_table(pa.table({"text": texts}), tmp_path / "in.parquet")
    job = replace(job, unit_rows=4, max_rejected=1, stall_timeout=5)
    result = embed_on_ray(job, model=killed(job))
    assert (result["rows_out"], result["rows_rejected"]) == (8, 4)
    found = [(r["row"], r["reason"], r["id"]) for r in read_rejected(job.output)]
    assert found == [(row, "killed the encoder", f"0:{row}") for row in range(4, 8)]
    verify(job.output)
    assert "-00000-000000000004-0-4.parquet, which killed the encoder 3 times" in capsys.readouterr().err


def test_an_encoder_that_every_unit_kills_ends_the_job(job, tmp_path, cluster):
    pq.write_table(pa.table({"text": [f"poison {i}" for i in range(4)]}), tmp_path / "in.parquet")
    with pytest.raises(WorkError, match="killed 3 times and encoded no unit: expected enough memory"):
        embed_on_ray(replace(job, unit_rows=4), model=killed(job))


class KilledCaseConfig(CaseConfig):
    """The configuration of `KilledCase`."""

    def load(self, **options):
        case = super().load(**options)
        return KilledCase(config=case.config, encoder=case.encoder)


class KilledCase(Case):
    """Its process is killed by the word "poison", as by the kernel when memory runs out."""

    def encode_prepared(self, prepared):
        encoded = super().encode_prepared(prepared)
        if not np.isfinite(encoded.vectors).all():
            os.kill(os.getpid(), signal.SIGKILL)
        return encoded


def killed(job):
    """The job's model, which dies of "poison"."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers do not find the module
    model = check_embed(job).encoding.model
    return KilledCaseConfig(**{field.name: getattr(model, field.name) for field in fields(model)})


def test_ray_job_stop_drops_what_is_in_hand_and_says_how_to_go_on(long_job, cluster):
    folder = Output(long_job.output).units
    client = JobSubmissionClient(f"http://{cluster.dashboard_url}")
    command = shlex.join(["python", "jobs/embed.py", *flags_of(long_job)])

    def submitted():
        try:
            return client.submit_job(entrypoint=command, runtime_env={"working_dir": str(ROOT)})
        except RuntimeError as error:
            assert NO_AGENT in str(error), error

    job = wait_for(submitted, 240)
    wait_for(lambda: len(folder.list()) >= 5)
    drivers = drivers_of(long_job)
    assert drivers
    client.stop_job(job)
    wait_for(lambda: "error: stopped" in client.get_job_logs(job))
    began = time.monotonic()
    wait_for(lambda: not drivers_of(long_job))
    assert time.monotonic() - began < 2, "expected the driver gone, before it is killed 3 s after the signal"
    wait_for(lambda: client.get_job_status(job) == JobStatus.STOPPED)
    said = client.get_job_logs(job).splitlines()
    assert said[-1] == f"error: stopped; to resume: ray job submit --working-dir . -- {command}"
    assert not any("Traceback" in line for line in said)
    resumed(long_job)
    assert not [name for name in os.listdir(folder.path) if name.startswith(".")], "expected no half-written file left"


def drivers_of(job):
    """Processes that run this very job."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_text().split("\0")
            if job.output in words and words[1].endswith("embed.py"):
                found.append(process.name)
    return found
