"""How rows reach the workers of Ray Train: all by `ray.put`, as raycase gives them, or in shards of Ray Data.

    python -m benchmarks.speed.train_shards --pairs 100000

Two workers train a linear projector on pairs of random vectors; each way in a Ray of its own. streamed: shards that are
read from Parquet in each epoch; materialized: shards of blocks in the object store. Prints a JSON object for each way.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data
import ray.train.torch
import torch

WAYS = ("put", "streamed", "materialized")
DIM, BATCH, EPOCHS, WORKERS, BUFFER = 384, 512, 3, 2, 10_000
NAMES = ("left", "right", "rating")


def batches_of_put(rows, rank, epoch):
    """This worker's half of each batch: rows of arrays that lie in the object store."""
    order = np.random.default_rng([0, epoch]).permutation(len(rows[0]))
    for batch in np.split(order, range(BATCH, len(order), BATCH)):
        mine = np.array_split(batch, WORKERS)[rank]
        yield [torch.from_numpy(part[mine]) for part in rows]


def batches_of_shard(shard):
    """As many rows, shuffled within a buffer: Ray Data has no row by its number."""
    for batch in shard.iter_torch_batches(batch_size=BATCH // WORKERS, local_shuffle_buffer_size=BUFFER):
        yield [batch[name] for name in NAMES]


def work(config):
    """Train, and write when the first batch came, the seconds of the last epoch, and the memory of this process."""
    torch.set_num_threads(1)
    began, rank = time.time(), ray.train.get_context().get_world_rank()
    rows = ray.get(config["rows"]) if config["rows"] else None
    shard = None if rows else ray.train.get_dataset_shard("train")
    module = ray.train.torch.prepare_model(torch.nn.Linear(DIM, 256))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    first, most = None, 0
    for epoch in range(EPOCHS):
        start = time.time()
        for step, (left, right, rating) in enumerate(
            batches_of_shard(shard) if shard else batches_of_put(rows, rank, epoch)
        ):
            first = first or time.time()
            optimizer.zero_grad()
            cosines = torch.nn.functional.cosine_similarity(module(left), module(right))
            (cosines - rating).square().mean().backward()
            optimizer.step()
            if step % 50 == 0:
                most = max(most, psutil.Process().memory_full_info().uss)
        seconds = time.time() - start
    figures = {"first_batch_s": first - began, "first_batch_after_fit_s": first - config["fit"], "epoch_s": seconds}
    if rank == 0:
        Path(config["file"]).write_text(json.dumps(figures | {"own_mib_of_a_worker": most >> 20, "steps": step + 1}))


def measure(way, pairs):
    """One way in this process."""
    ray.init("local", num_cpus=4, object_store_memory=3 * 2**30, include_dashboard=False, log_to_driver=False)
    most, ended = [0], threading.Event()

    def watch():
        from ray._private.internal_api import get_memory_info_reply, get_state_from_address

        state = get_state_from_address(ray.get_runtime_context().gcs_address)
        while not ended.wait(0.2):
            most[0] = max(most[0], get_memory_info_reply(state).store_stats.object_store_bytes_used)

    random = np.random.default_rng(0)
    left, right = (random.standard_normal((pairs, DIM), dtype=np.float32) for _ in range(2))
    ratings = random.random(pairs, dtype=np.float32)
    watcher = threading.Thread(target=watch)
    watcher.start()
    with tempfile.TemporaryDirectory() as folder:
        began, given, datasets = time.time(), None, {}
        if way == "put":
            given = ray.put([left, right, ratings])
        else:
            columns = [pa.FixedShapeTensorArray.from_numpy_ndarray(each) for each in (left, right)]
            pq.write_table(
                pa.table([*columns, ratings], names=NAMES), Path(folder) / "rows.parquet", row_group_size=5000
            )
            began = time.time()  # the file is there, as a table of a user is
            read = ray.data.read_parquet(f"{folder}/rows.parquet", override_num_blocks=pairs // 5000)
            datasets["train"] = read.materialize() if way == "materialized" else read
        del left, right
        ready = time.time() - began
        trainer = ray.train.torch.TorchTrainer(
            work,
            train_loop_config={"rows": given, "fit": time.time(), "file": f"{folder}/figures.json"},
            scaling_config=ray.train.ScalingConfig(num_workers=WORKERS, resources_per_worker={"CPU": 1}),
            run_config=ray.train.RunConfig(storage_path=folder, name="run"),
            datasets=datasets,
        )
        trainer.fit()
        figures = json.loads(Path(f"{folder}/figures.json").read_text())
    ended.set()
    watcher.join()
    ray.shutdown()
    return {"way": way, "pairs": pairs, "before_fit_s": ready} | figures | {"object_store_mib": most[0] >> 20}


def main():
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--pairs", type=int, default=100_000)
    arguments.add_argument("--way", choices=WAYS, help="one alone; default: each in a process")
    asked = arguments.parse_args()
    if asked.way:
        print(json.dumps(measure(asked.way, asked.pairs)), flush=True)
        return
    for way in WAYS:
        words = [sys.executable, "-m", "benchmarks.speed.train_shards", "--pairs", str(asked.pairs), "--way", way]
        subprocess.run(words, check=True)


if __name__ == "__main__":
    main()
