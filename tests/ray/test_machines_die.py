"""A machine, an encoder and the driver are killed at random moments; the output is that of an undisturbed run."""

import random
from dataclasses import replace

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from clusters import Head
from counted import counted
from disturbed import Disturbed
from helpers import embed_here, flags_of, same_output, sentences, wait_for

from raycase.job.output import output_at

pytestmark = pytest.mark.cluster
UNITS, ROWS, NODES = 60, 100, 2


def test_the_output_is_that_of_an_undisturbed_run(job, s3_server, tmp_path):
    chance = random.Random(0)
    pq.write_table(pa.table({"text": sentences(UNITS * ROWS)}), tmp_path / "long.parquet")
    input, output = "s3://corpus/die/long.parquet", "s3://corpus/die-out"
    fsspec.filesystem("s3").put(str(tmp_path / "long.parquet"), input)
    flags = flags_of(replace(job, input=input, output=output, unit_rows=ROWS, actors=f"{NODES}:{NODES}"))
    kinds = chance.sample(("machine", "actor", "driver"), 3)
    moments = sorted(chance.sample(range(5, UNITS - 20), len(kinds)))  # units begun by then
    in_flight = []
    with Head() as head:
        run = Disturbed(head, flags, output_at(output), tmp_path, machines=NODES)
        try:
            for kind, moment in zip(kinds, moments, strict=True):
                wait_for(lambda moment=moment: run.began() >= moment, 240)
                wait_for(lambda kind=kind: kind == "actor" or run.written() >= 5, 240)  # something to resume from
                in_flight.append(run.kill(kind, chance))
            wait_for(lambda: run.driver.poll() is not None, 240)
        finally:
            run.driver.kill()
        assert run.driver.wait() == 0, (tmp_path / "driver.log").read_text()[-3000:]

    assert embed_here(replace(job, input=input, unit_rows=ROWS))["rows_out"] == UNITS * ROWS
    same_output(output, job.output)

    # Units are computed again where they were in flight: begun by an encoder and not yet written. A driver takes all of
    # these with it, a machine at most those; an actor only the one that it is at, for what it has done lies elsewhere.
    began = counted(tmp_path)
    assert len(set(began)) == UNITS
    again, bound = len(began) - UNITS, sum(1 if k == "actor" else n for k, n in zip(kinds, in_flight, strict=True))
    assert again <= bound
