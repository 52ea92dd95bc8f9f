"""Resume a pipeline of Ray Data from a checkpoint: intervals of row numbers, beside Ray's own one id a row.

    python -m benchmarks.speed.checkpoint [--rows 100000000 1000000000 10000000000] [--id-rows 100000000]

A checkpoint is made up as Ray writes it, a file for each unit of 100,000 rows, of which 1 % are missing at random; its
ids are delta-encoded, to fit on a disk. Each way runs in a process of its own. It loads the checkpoint, plans what each
unit has left, and filters ten million ids. by_intervals: by footers; by_reading: every id is read, as where several
rows have one; by_ids: Ray's `IdColumnCheckpointManager`.
"""

import json
import sys
import tempfile
import time

from benchmarks.turns import finish, parser_of, run

UNIT_ROWS, UNITS_A_FILE, MISSING = 100_000, 20, 0.01
FILTERED = 10_000_000


def starts(rows):
    """The first number of each unit, and which are there."""
    import numpy as np

    from raycase.io.row_ids import ROW_BITS

    file_U, unit_U = np.divmod(np.arange(rows // UNIT_ROWS), UNITS_A_FILE)
    return (file_U << ROW_BITS) + unit_U * UNIT_ROWS, np.random.default_rng(0).random(len(file_U)) >= MISSING


def make(folder, rows):
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    first_U, there_U = starts(rows)
    ids, delta = np.arange(UNIT_ROWS), {"use_dictionary": False, "column_encoding": "DELTA_BINARY_PACKED"}
    for number, first in enumerate(first_U[there_U].tolist()):
        pq.write_table(pa.table({"row_id": ids + first}), f"{folder}/{number:06d}_000000.parquet", **delta)


def by_intervals(folder, rows, rows_per_id=1):
    import numpy as np
    import pyarrow.fs

    from raycase.io.row_ids import ROW_BITS, committed, holds, left_of
    from raycase.io.source import Span

    done, seconds = timed(lambda: committed(pyarrow.fs.LocalFileSystem(), folder, "row_id", rows_per_id))
    first_U, there_U = starts(rows)
    mask, at = (1 << ROW_BITS) - 1, {"rows": UNIT_ROWS, "at": 0, "length": 0, "bytes": 0}
    spans = [Span(file=first >> ROW_BITS, start=first & mask, **at) for first in first_U.tolist()]
    kept, plan = timed(lambda: [left_of(span, done) is not None for span in spans])
    left = first_U[np.array(kept)].tolist()
    assert left == first_U[~there_U].tolist()
    _, filtering = timed(lambda: holds(done, some_ids(first_U)))
    return {
        "load_s": seconds,
        "plan_s": plan,
        "filter_s": filtering,
        "bytes": done.nbytes,
        "intervals": len(done) // 2,
    }


def by_reading(folder, rows):
    return by_intervals(folder, rows, rows_per_id=None)


def by_ids(folder, rows):
    import numpy as np
    import ray
    from ray.data import DataContext
    from ray.data.checkpoint import CheckpointConfig, IdColumnCheckpointManager

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    context = DataContext.get_current()
    context.enable_progress_bars = False
    manager = IdColumnCheckpointManager(CheckpointConfig("row_id", folder), context)
    (ref, size), seconds = timed(manager.load_checkpoint)
    ids, some = ray.get(ref), some_ids(starts(rows)[0])
    _, filtering = timed(lambda: ids[np.minimum(np.searchsorted(ids, some), len(ids) - 1)] == some)
    ray.shutdown()
    return {"load_s": seconds, "filter_s": filtering, "bytes": size}


def some_ids(first_U):
    import numpy as np

    return np.sort(np.random.default_rng(1).choice(first_U, FILTERED) + np.arange(FILTERED) % UNIT_ROWS)


def timed(work):
    began = time.perf_counter()
    return work(), round(time.perf_counter() - began, 2)


def main():
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10**8, 10**9, 10**10])
    parser.add_argument("--id-rows", type=int, nargs="*", default=[10**8])
    parser.add_argument("--one", nargs=3, metavar=("WAY", "FOLDER", "ROWS"), help="in this process")
    flags = parser.parse_args()
    if flags.one:
        way, folder, rows = flags.one
        print(f"\n{json.dumps(globals()[way](folder, int(rows)))}")
        return
    found = {}
    for rows in flags.rows:
        with tempfile.TemporaryDirectory(prefix="checkpoint") as folder:
            make(folder, rows)
            for way in ("by_intervals", *["by_reading", "by_ids"] * (rows in flags.id_rows)):
                done = run("-m", "benchmarks.speed.checkpoint", "--one", way, folder, rows)
                found[f"{rows:.0e} {way}"] = done.line | {"process_mib": done.usage.ru_maxrss // 1024}
                print(f"{rows:.0e} {way}", found[f"{rows:.0e} {way}"], file=sys.stderr)
    finish(**found)


if __name__ == "__main__":
    main()
