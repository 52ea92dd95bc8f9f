"""A corpus embedded under conditions, as a job: run it again after a kill, and it does what is missing.

    python pipeline.py --input corpus/ --output vectors/ --conditions "number of people" "place where it happens"

On GPUs change two numbers: --actors 8 --gpus-per-actor 1. The input is Parquet or Lance with the columns id and text;
the output, vectors and checkpoint, is a folder that all nodes see, or one on object storage.
"""

import argparse

import ray

import raycase
from raycase.ray.checkpoint import RowCheckpoint, read_rows

IO = {"num_cpus": 0.25}  # of a task that reads or writes: on two cores these go on beside the actor


def preprocess(row):
    """A row of the input with its text in the column `text`; other columns go on, `row_id` among them."""
    return row | {"text": " ".join(row["text"].split())}


def postprocess(row):
    """The columns to write. `row_id` has to be one; a row without a vector has the reason in `rejected`."""
    return {name: row[name] for name in ("row_id", "id", "text", "condition", "embedding", "rejected")}


def run(source, output, conditions, actors=1, gpus_per_actor=0, batch_size=1024):
    """Embed the rows that the output lacks."""
    checkpoint = RowCheckpoint(f"{output}/checkpoint", rows_per_id=len(conditions))
    config = raycase.ProcessorConfig(
        conditions=conditions,
        concurrency=(1, actors),
        num_gpus=gpus_per_actor,
        num_cpus=0.5,
        batch_size=batch_size,
    )
    processor = raycase.build_processor(config, preprocess=preprocess, postprocess=postprocess)
    rows = read_rows(source, ["id", "text"], checkpoint, **IO)
    processor(rows).write_parquet(f"{output}/vectors", ray_remote_args=IO)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True)
    parser.add_argument("--output", required=True)
    parser.add_argument("--conditions", nargs="+", required=True)
    parser.add_argument("--actors", type=int, default=1)
    parser.add_argument("--gpus-per-actor", type=float, default=0)
    parser.add_argument("--batch-size", type=int, default=1024, help="rows; as many go into a file of the output")
    flags = parser.parse_args()
    ray.init()  # the cluster of RAY_ADDRESS, or of `ray job submit`; without one, a Ray of its own
    run(flags.input, flags.output, flags.conditions, flags.actors, flags.gpus_per_actor, flags.batch_size)
