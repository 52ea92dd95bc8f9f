"""A plan in this process: read ahead, written behind, and the errors of each step where the job sees them."""

from dataclasses import replace

import pytest
from helpers import read_output, run, sentences

from raycase.job import runner
from raycase.job.runner import Runner
from raycase.job.verify import verify


def test_what_the_write_step_raises_ends_the_job_and_the_next_run_resumes(job, monkeypatch):
    written = []

    def fails(unit, **place):
        if len(written) == 2:
            raise OSError("the disk is full")
        written.append(unit)
        return write(unit, **place)

    write = runner.write_encoded
    monkeypatch.setattr(runner, "write_encoded", fails)
    with pytest.raises(OSError, match="the disk is full"):
        run(job, Runner())
    monkeypatch.setattr(runner, "write_encoded", write)
    result = run(replace(job), Runner())
    assert (result["rows_out"], result["units_done"]) == (500, 3)
    assert read_output(job.output)["text"].to_pylist() == [s for s in sentences(500) for _ in job.conditions]
    verify(job.output)
