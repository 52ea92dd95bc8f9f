"""A driver for tests: theirs, ours, theirs, in Ray Data with a checkpoint. python piped.py INPUT FOLDER MODEL [ids
CONDITION...]

ids: by numbers that the input has, in the column `id`, in place of `read_rows`.
"""

import sys
import time

import ray
from ray.data import DataContext

import raycase
from raycase.ray.checkpoint import RowCheckpoint, read_rows

SMALL = {"num_cpus": 0.25}  # beside an encoder, and Ray's filter, which takes a CPU


def upper(row):
    return row | {"text": row["text"].upper()}


def slow(table):
    time.sleep(0.3)
    return table


def run(source, folder, model, ids="", *conditions):
    options = {"prompt": "concat-sc", "pooling": "mean"}
    conditions = conditions or ["color", "animal"]
    config = raycase.ProcessorConfig(model=model, options=options, conditions=conditions, batch_size=50, num_cpus=0.5)
    process = raycase.build_processor(config)
    if ids:
        state = RowCheckpoint(f"{folder}/state", id_column="id", rows_per_id=len(conditions))
        DataContext.get_current().checkpoint_config = state
        rows = ray.data.read_parquet(source, **SMALL)
    else:
        rows = read_rows(source, ["text"], RowCheckpoint(f"{folder}/state", rows_per_id=2), **SMALL)
    rows = process(rows.map(upper, **SMALL)).map_batches(slow, batch_format="pyarrow", batch_size=None, **SMALL)
    rows.write_parquet(f"{folder}/out", ray_remote_args=SMALL)


if __name__ == "__main__":
    ray.init("auto")
    run(*sys.argv[1:])
