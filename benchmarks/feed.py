"""How many encoders can one driver feed? Jobs on a local Ray whose encoders sleep instead of encoding, with packs of
one unit and of several, in turns.

    RAY_worker_niceness=0 python benchmarks/feed.py [--encoders 4] [--sleep 0.04] [--units 2000] [--rounds 3]

Four encoders that take 0.04 s for a unit ask for as many units a second, 100, as 1,000 of 10 s. The rate
is from the first finished unit to the last; reading, tokenising and writing are real and share the machine.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raycase.corpus.request import EmbedJob
from raycase.corpus.run import run
from raycase.data.provenance import commit, machine
from raycase.distributed.embed import prepare_ray
from raycase.encoder.throughput import Work
from raycase.systems.pairs import accepted_pairs, encoded
from raycase.systems.registry import resolve_embedder

ROWS = 8  # of a unit


class Sleeping:
    """A system's configuration whose encoder sleeps."""

    def __init__(self, inner, seconds):
        self.inner, self.seconds = inner, seconds

    def __getattr__(self, name):
        if name.startswith("__") or name in ("inner", "seconds"):  # asked for while it is unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def load(self, **_):
        return SleepingEncoder(self.inner.dim, self.seconds)


class SleepingEncoder:
    """Vectors of ones, after a while."""

    def __init__(self, dim, seconds):
        self.dim, self.seconds = dim, seconds

    def encode_prepared(self, prepared):
        time.sleep(self.seconds)
        pairs = accepted_pairs(prepared)
        return encoded(prepared, pairs, np.ones((len(pairs), self.dim), np.float32), Work())

    def matrix_product_rate(self):
        return 1.0


def measure(folder, options, size):
    """Units a second, and the driver's processor seconds a unit."""
    job = EmbedJob(
        input=str(folder / "in.parquet"),
        output=str(folder / f"out-{time.time_ns()}"),
        conditions=("color",),
        model="minilm",
        unit_rows=ROWS,
        actors=f"{options.encoders}:{options.encoders}",
        compile="off",
    )
    ends, cpu = [], []

    def prepare(request, plan):
        execute = prepare_ray(request, plan, size=size, ahead=16 * options.encoders)

        def timed(*arguments):
            for unit in execute(*arguments):
                ends.append(time.perf_counter())
                cpu.append(time.process_time())
                yield unit

        return timed

    model = Sleeping(resolve_embedder("minilm"), options.sleep)
    assert run(job, model=model, prepare=prepare)["rows_out"] == ROWS * options.units
    return (len(ends) - 1) / (ends[-1] - ends[0]), (cpu[-1] - cpu[0]) / (len(ends) - 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--encoders", type=int, default=4)
    parser.add_argument("--sleep", type=float, default=0.04, help="seconds a unit")
    parser.add_argument("--units", type=int, default=2000)
    parser.add_argument("--packs", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    import sys

    import ray
    from ray import cloudpickle

    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # the workers do not find this script
    ray.init(num_cpus=4 * options.encoders, include_dashboard=False, log_to_driver=False)
    rates = {size: [] for size in options.packs}
    with tempfile.TemporaryDirectory() as folder:
        texts = [f"a dog in the park {i}" for i in range(ROWS * options.units)]
        pq.write_table(pa.table({"text": texts}), Path(folder) / "in.parquet", row_group_size=16 * ROWS)
        for _ in range(options.rounds):
            for size in options.packs:
                rates[size].append(measure(Path(folder), options, size))
                print(
                    f"packs of {size}: {rates[size][-1][0]:.1f} units/s, {1e3 * rates[size][-1][1]:.1f} ms",
                    file=sys.stderr,
                )
    medians = {
        size: {
            "units_per_second": round(statistics.median(rate for rate, _ in found), 1),
            "driver_ms": round(1e3 * statistics.median(seconds for _, seconds in found), 1),
        }
        for size, found in rates.items()
    }
    print(json.dumps({"packs": medians, **vars(options), "commit": commit(), "machine": machine()}))


if __name__ == "__main__":
    main()
