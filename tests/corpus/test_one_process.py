"""A plan in this process: read ahead, written behind, and the errors of each step where the job sees them."""

from dataclasses import replace

import pytest
from helpers import read_output, sentences, wait_for

from raycase.corpus import one_process
from raycase.corpus.one_process import execute_here, read_ahead
from raycase.corpus.run import run
from raycase.corpus.verify import verify


def test_items_are_drawn_ahead_and_stay_in_order():
    drawn = []

    def items():
        for i in range(6):
            drawn.append(i)
            yield i

    ahead = read_ahead(items(), 2)
    assert next(ahead) == 0
    wait_for(lambda: drawn == [0, 1, 2])
    assert list(ahead) == [1, 2, 3, 4, 5] == drawn[1:]
    assert list(read_ahead(iter(()), 2)) == []


def test_what_the_write_step_raises_ends_the_job_and_the_next_run_resumes(job, monkeypatch):
    written = []

    def fails(unit, **place):
        if len(written) == 2:
            raise OSError("the disk is full")
        written.append(unit)
        return write(unit, **place)

    write = one_process.write_encoded
    monkeypatch.setattr(one_process, "write_encoded", fails)
    with pytest.raises(OSError, match="the disk is full"):
        run(job, prepare=lambda *_: execute_here)
    monkeypatch.setattr(one_process, "write_encoded", write)
    result = run(replace(job), prepare=lambda *_: execute_here)
    assert (result["rows_out"], result["units_done"]) == (500, 3)
    assert read_output(job.output)["text"].to_pylist() == [s for s in sentences(500) for _ in job.conditions]
    verify(job.output)
