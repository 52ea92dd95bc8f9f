"""`raycase index` by many: two workers of one thread against one worker of one thread, and today's single process.

    RAY_worker_niceness=0 .venv/bin/python benchmarks/index_many.py --embeddings runs/captions [runs/words ...]

For each output of `raycase embed` and each kind: seconds of a whole build from scratch, in turns. Ray runs and its
workers have imported what they need before the first turn: their start is a figure of its own. A worker is a process
with one thread (PyTorch, Arrow, Lance), and one has the same tasks as two; the single process has both cores. Recall
is that of 200 of the index's own vectors with noise, k = 10, against exact search, by score; the exact answers of an
index by many must be the single process's.
"""

import argparse
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from turns import finish, median

from raycase.corpus.written import open_written
from raycase.data.schema import CONDITION
from raycase.data.vectors import l2_normalize
from raycase.distributed.tasks import open_tasks
from raycase.search.approximate import Options
from raycase.search.build import IndexJob, build
from raycase.search.index import Index
from raycase.search.lance_files import vectors_of

QUERIES, K = 200, 10
WORKERS = 2
CONTENDERS = {"process": 0, "one worker": 1, "two workers": WORKERS}


def built(output, folder, kind, workers):
    """Seconds of a build."""
    job = IndexJob(embeddings=(output,), output=str(folder), kind=kind, overwrite=True, workers=WORKERS)
    many = partial(open_tasks, stall_timeout=job.stall_timeout, most=workers) if workers else None
    began = time.perf_counter()
    build(job, many)
    return time.perf_counter() - began


def measured(folder):
    """Recall, milliseconds of a query, and the answers."""
    opened = Index.open(str(folder))
    condition = next(iter(opened.metadata.conditions), None)
    column = "plain" if condition is None else "vector"
    rows = opened.dataset.to_table(columns=[CONDITION, column], limit=5000)
    rng = np.random.default_rng(0)
    vectors = vectors_of(rows[column]).numpy()[rng.choice(len(rows), QUERIES, replace=False)]
    queries = l2_normalize(vectors + rng.normal(0, 0.3 / vectors.shape[1] ** 0.5, vectors.shape).astype(np.float32))
    exact, offsets = opened.nearest(queries, condition, K, options=Options(exact=True))
    seconds, found = [], []
    for query in queries:
        began = time.perf_counter()
        found.append(opened.nearest(query[None], condition, K)[0][0])
        seconds.append(time.perf_counter() - began)
    recall = float((np.stack(found) >= exact[:, -1:] - 1e-5).mean())
    return recall, 1000 * median(seconds), (np.round(exact, 4).tolist(), offsets.tolist())


def started(output, folder):
    """Seconds until Ray and its workers are ready: those of a build of the smallest part, by two workers."""
    began = time.perf_counter()
    built(output, folder, "exact", 2)
    return time.perf_counter() - began


def main(outputs, kinds, rounds, scratch):
    figures, ratios = {}, {}
    with tempfile.TemporaryDirectory(dir=scratch) as home:
        first = started(outputs[0], Path(home) / "first")
        print(f"Ray, its workers and one exact build: {first:.1f} s", file=sys.stderr)
        for output in outputs:
            written = open_written(output, "--embeddings")
            rows = sum(unit.rows_out for unit in written.units)
            for kind in kinds:
                turns = {name: [] for name in CONTENDERS}
                for turn in range(rounds):
                    for name, workers in CONTENDERS.items():
                        turns[name].append(built(output, Path(home) / name.replace(" ", "-"), kind, workers))
                    said = {name: round(seconds[-1], 1) for name, seconds in turns.items()}
                    print(
                        f"{Path(output).name}, {kind}, round {turn + 1}: {said}, load {os.getloadavg()}",
                        file=sys.stderr,
                    )
                found = {name: measured(Path(home) / name.replace(" ", "-")) for name in ("process", "two workers")}
                key = f"{Path(output).name} {kind}"
                figures[key] = {name: median(seconds) for name, seconds in turns.items()} | {
                    "rows": rows,
                    "recall": {name: values[0] for name, values in found.items()},
                    "query_ms": {name: values[1] for name, values in found.items()},
                    "same exact answers": found["process"][2] == found["two workers"][2],
                }
                ratios[f"{key}: one worker over two"] = median(
                    [one / two for one, two in zip(turns["one worker"], turns["two workers"], strict=True)]
                )
                ratios[f"{key}: process over two workers"] = figures[key]["process"] / figures[key]["two workers"]
                print(key, figures[key])
    finish({"ratios": ratios, "figures": figures, "first_build_seconds": first, "rounds": rounds})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--embeddings", nargs="+", required=True, help="outputs of `raycase embed`")
    parser.add_argument("--kinds", nargs="+", default=["exact", "hnsw", "ivf-pq"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scratch", help="folder for the indexes; default: the system's")
    asked = parser.parse_args()
    main(asked.embeddings, asked.kinds, asked.rounds, asked.scratch)
