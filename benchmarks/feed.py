"""How many encoders can one driver feed? Empty units through the pipeline of `raycase embed`; its encoders sleep.

    python benchmarks/feed.py [--encoders 4] [--sleep 0.01] [--units 4000] [--packs 1 8] [--rounds 3]

The driver, its stages, the count of units in flight and the packs are the job's own. Reading, encoding and writing are
replaced: nothing is read or written, and an encoder sleeps instead. So what is measured is how many units a second
the driver feeds and takes back, over the later half of the units, when all processes run.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raycase.corpus.encode_step import EncodeUnits
from raycase.corpus.job_record import Job, Sharing
from raycase.corpus.listing import finished
from raycase.corpus.plan import make_plan
from raycase.corpus.records import EncodedUnit, EncodeStats, ReadTask, ReadUnit, WrittenUnit, pack, unpack
from raycase.corpus.request import EmbedJob, check
from raycase.corpus.unit_files import UnitLine
from raycase.data.provenance import commit, machine
from raycase.data.schema import rejected_table
from raycase.distributed import pipeline
from raycase.distributed.encoders import EncodeInPool
from raycase.distributed.packs import packed
from raycase.distributed.resources import ActorPool
from raycase.encoder.prepared import Prepared
from raycase.encoder.throughput import Work

ROWS = 8  # of a unit
NONE = np.zeros(0, np.int64)


def read_nothing(task, *, size, **_):
    """The read step without reading."""

    def units():
        for part in ReadTask.from_arrow(task).spans:
            for start, end in part.units:
                unit = ReadUnit(
                    uri=part.files[0].uri,
                    file=part.span.file,
                    start=start,
                    rows_in=end - start,
                    rows=pa.table({"id": [str(start)]}),
                    rejected=rejected_table(part.files[0].uri, []),
                    prepared=Prepared(
                        rows=NONE, conditions=None, sentence=NONE, condition=NONE, pairs=[], alone=[], bases=[]
                    ),
                    read_pid=os.getpid(),
                )
                yield unit.to_arrow()

    return packed(units(), size)


class Sleep(EncodeUnits):
    """The encode step, asleep."""

    def __init__(self, config, **_):
        self.seconds = config

    def __call__(self, row):
        unit, began = ReadUnit.from_arrow(row), time.time()
        time.sleep(self.seconds)
        stats = {"work": Work(), "began": began, "seconds": self.seconds, "rate": 1.0, "host": "here"}
        encoded = EncodedUnit(
            file=unit.file,
            start=unit.start,
            rows_in=unit.rows_in,
            table=unit.rows,
            rejected=unit.rejected,
            distinct_pairs=unit.rows_in,
            rows_truncated=0,
            stats=EncodeStats(read_pid=unit.read_pid, encode_pid=os.getpid(), **stats),
        )
        return encoded.to_arrow()


class SleepInPool(EncodeInPool, Sleep):
    """The pool's encoder around it."""


def write_nothing(row, **_):
    """The write step without writing."""
    return pack([written(EncodedUnit.from_arrow(unit)) for unit in unpack(row)])


def written(unit):
    """The record of a unit."""
    counts = {"rows_out": unit.rows_in, "rows_rejected": 0, "rows_truncated": 0, "pairs": unit.rows_in}
    line = UnitLine(
        name=f"{unit.file}-{unit.start}",
        file=unit.file,
        start=unit.start,
        distinct_pairs=unit.rows_in,
        bytes=0,
        sha256="0" * 64,
        rejected_sha256=None,
        reasons={},
        **counts,
    )
    return WrittenUnit(line=line, stats=unit.stats, ended=time.time(), write_pid=os.getpid()).to_arrow()


def measure(folder, options, size):
    """Units a second, and the driver's processor milliseconds a unit, over the later half."""
    import torch  # noqa: F401 (of the request's check, before the clock runs)

    job = EmbedJob(
        input=str(folder / "in.parquet"),
        output=str(folder / "out"),
        conditions=("color",),
        model="minilm",
        unit_rows=ROWS,
    )
    request = check(job)
    opened = Job(config=request.config, files=request.files, sharing=Sharing(rows=ROWS))
    plan = make_plan(request, opened.files, finished((), opened.print8)[0], opened.sharing)
    pool = ActorPool(least=options.encoders, most=options.encoders, cpus=0.5, gpus=0, threads=1)
    ends, cpu = [], []
    for unit in pipeline.execute_on_ray(
        request, opened, plan, pool=pool, size=size, ahead=16 * options.encoders * size
    ):
        assert unit.line.rows_out == ROWS
        ends.append(time.perf_counter())
        cpu.append(time.process_time())
    assert len(ends) == options.units
    half = options.units // 2
    return (options.units - half) / (ends[-1] - ends[half - 1]), 1e3 * (cpu[-1] - cpu[half - 1]) / (
        options.units - half
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoders", type=int, default=4)
    parser.add_argument("--sleep", type=float, default=0.01, help="seconds a unit")
    parser.add_argument("--units", type=int, default=4000)
    parser.add_argument("--packs", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    import ray
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers do not find this script
    pipeline.read_packs, pipeline.write_packs, pipeline.EncodeInPool = read_nothing, write_nothing, SleepInPool
    pipeline.Sealed = lambda _: options.sleep  # in place of the model
    ray.init(num_cpus=4 * options.encoders, include_dashboard=False, log_to_driver=False)
    rates = {size: [] for size in options.packs}
    with tempfile.TemporaryDirectory() as folder:
        texts = [f"a dog in the park {i}" for i in range(ROWS * options.units)]
        pq.write_table(pa.table({"text": texts}), Path(folder) / "in.parquet", row_group_size=16 * ROWS)
        for _ in range(options.rounds):
            for size in options.packs:
                rates[size].append(measure(Path(folder), options, size))
                rate, milliseconds = rates[size][-1]
                print(f"packs of {size}: {rate:.1f} units/s, driver {milliseconds:.1f} ms a unit", file=sys.stderr)
    medians = {
        size: {
            "units_per_second": round(statistics.median(rate for rate, _ in found), 1),
            "driver_ms": round(statistics.median(milliseconds for _, milliseconds in found), 2),
        }
        for size, found in rates.items()
    }
    print(json.dumps({"packs": medians, **vars(options), "commit": commit(), "machine": machine()}))


if __name__ == "__main__":
    main()
