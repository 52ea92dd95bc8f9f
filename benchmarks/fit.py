"""How long a fit and a sweep take, beside the same work in one plain process.

    .venv/bin/python benchmarks/fit.py [--rounds 3] [--sweep FOLDER] [--cache FOLDER]

(a) jobs/train.py, everything but embedding, which is cached before; (b) the same fit in one process without Ray;
(c) with --sweep, Table 7 with 3 seeds by jobs/tune.py, and (d) the 18 fits of its first seed, one after the other in
one plain process;
(e) a fit of 4096 to 512 dimensions over random vectors, as a share of the machine's matrix-product rate.
(a) and (b) take turns; medians over the rounds. Run it with RAY_worker_niceness=0, and nothing beside it.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parent.parent
DATA = Path(os.environ.get("RAYCASE_DATA", ROOT.parent / "shared" / "data")) / "csts"
FLAGS = ["--train", DATA / "train.csv", "--validation", DATA / "validation.csv"]
EPOCHS, PAIRS = 5, 11_342
PROMPT = "concat-sc"  # MiniLM's own


def job(script, *arguments):
    """Run a job; its last line, and the seconds it took as a process."""
    began = time.perf_counter()
    command = [sys.executable, str(ROOT / "jobs" / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1]), time.perf_counter() - began


def alone(part, cache):
    """Run a part of this file as a process of its own."""
    began = time.perf_counter()
    done = subprocess.run([sys.executable, __file__, "--part", part, "--cache", cache], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1]), time.perf_counter() - began


def read_vectors(cache):
    """What the job put into its cache, read without Ray."""
    import numpy as np
    import pyarrow.dataset as ds

    from raycase.io.rated_pairs import read_rated
    from raycase.models.pairs import PairVectors

    parts = []
    for name in ("train", "validation"):
        rated = read_rated(str(DATA / f"{name}.csv"), f"--{name}")
        for folder in Path(cache).glob("*/vectors"):
            model = json.loads((folder / "job.json").read_text())["config"]["model"]
            table = ds.dataset(folder / "embeddings", format="parquet").to_table(columns=["embedding"])
            if len(table) == len(rated.distinct) and (model["encoder"]["prompt"], model["subtract"]) == (PROMPT, True):
                vectors = table["embedding"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
                parts.append(PairVectors(vectors=np.array(vectors), pair_index=rated.pair_index, ratings=rated.ratings))
    assert len(parts) == 2, "expected the cache of one pooling"
    return parts


def projector_job(**flags):
    from raycase.training.projector_job import ProjectorFlags

    return ProjectorFlags(train="", validation="", output="", **flags)


def plain_fit(cache):
    from raycase.heads.layers import save_weights
    from raycase.heads.projector import WEIGHTS
    from raycase.training.projector_job import best_projector

    train, validation = read_vectors(cache)
    *_, state = projector_job().fit_epochs(None, train, validation)
    with tempfile.TemporaryDirectory() as folder:
        save_weights(best_projector(state, projector_job().projector(train.dim)), Path(folder) / WEIGHTS)
    best = state.history[state.best_epoch - 1]
    return {"spearman": best["spearman"], "epochs": len(state.history)}


def plain_sweep(cache):
    from raycase.training.sweep import Sweep, changed

    train, validation = read_vectors(cache)
    sweep = Sweep(grid="table7", training=projector_job(prompt="cond"))
    for cell in sweep.cells():
        job = changed(sweep.training, cell)
        for _ in job.fit_epochs(None, train, validation):
            pass
    return {"trials": len(sweep.cells())}


def large_fit(_):
    """Seconds of an epoch from 4096 to 512 dimensions, and of the same products as one large one."""
    import numpy as np
    import torch

    from raycase.models.pairs import PairVectors

    random = np.random.default_rng(0)
    vectors = random.standard_normal((2 * PAIRS, 4096), dtype=np.float32)
    pair_index = np.arange(2 * PAIRS).reshape(-1, 2)
    train = PairVectors(vectors=vectors, pair_index=pair_index, ratings=random.integers(1, 6, PAIRS).astype(np.float32))
    validation = PairVectors(vectors=vectors[:256], pair_index=pair_index[:128], ratings=train.ratings[:128])
    *_, state = projector_job(epochs=EPOCHS).fit_epochs(None, train, validation)
    a, b = torch.randn(2048, 4096), torch.randn(4096, 2048)
    rates = []
    for _ in range(20):
        began = time.perf_counter()
        a @ b
        rates.append(2 * 2048 * 4096 * 2048 / (time.perf_counter() - began))
    operations = 2 * PAIRS * 4096 * 512 * 2 * 2  # forward, and the gradient of the weights; nothing goes further back
    seconds = statistics.median(line["seconds"] for line in state.history)
    return {"seconds": seconds, "gflops": operations / seconds / 1e9, "machine_gflops": statistics.median(rates) / 1e9}


PARTS = {"fit": plain_fit, "sweep": plain_sweep, "large": large_fit}


def main(rounds, sweep, cache):
    from raycase.io.provenance import commit, machine

    with tempfile.TemporaryDirectory() as scratch:
        cache = cache or f"{scratch}/cache"
        flags = [*FLAGS, "--cache", cache]
        first, _ = job("train.py", "case", *flags, "--output", f"{scratch}/first", "--epochs", 1)
        print(f"embedded in {first['embed_seconds']} s", file=sys.stderr)
        with_ray, plain, scores = [], [], []
        for turn in range(rounds):
            result, seconds = job("train.py", "case", *flags, "--ray", "--output", f"{scratch}/{turn}")
            with_ray.append(seconds)
            other, seconds = alone("fit", cache)
            plain.append(seconds)
            scores.append((result["validation"]["spearman"], other["spearman"], result["epochs"], other["epochs"]))
            print(f"round {turn + 1}: {with_ray[-1]:.1f} s with Ray, {plain[-1]:.1f} s without", file=sys.stderr)
        found = {
            "fit_seconds": statistics.median(with_ray),
            "plain_fit_seconds": statistics.median(plain),
            "ray_costs_seconds": statistics.median(a - b for a, b in zip(with_ray, plain, strict=True)),
            "spearman_with_ray_and_plain_and_epochs": scores,
        }
        if sweep:
            result, seconds = job("tune.py", "--grid", "table7", "--", "case", *flags, "--output", sweep)
            found |= {
                "sweep_seconds": seconds,
                "sweep_trials": result["trials"],
                "sweep_fit_seconds": result["fit_seconds"],
            }
            one_seed, seconds = alone("sweep", cache)
            found["plain_seconds_per_trial"] = seconds / one_seed["trials"]
            found["sweep_seconds_per_trial"] = found["sweep_seconds"] / result["trials"]
        found["large"], _ = alone("large", cache)
    ratios = {
        "30 s over the fit": 30 / found["fit_seconds"],
        "15 s over what Ray costs": 15 / found["ray_costs_seconds"],
        "large fit over the matrix-product rate": found["large"]["gflops"] / found["large"]["machine_gflops"],
    }
    if sweep:
        ratios["480 s over the sweep"] = 480 / found["sweep_seconds"]
        ratios["plain over sweep, per trial"] = found["plain_seconds_per_trial"] / found["sweep_seconds_per_trial"]
    made = {"machine": machine(), "commit": commit(), "date": datetime.now(UTC).isoformat(timespec="seconds")}
    print(json.dumps({"ratios": ratios} | found | made))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sweep", metavar="FOLDER", help="run Table 7 too, and leave its tables there")
    parser.add_argument("--cache", help="folder of embedded pairs, kept; default: a temporary one")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        print(json.dumps(PARTS[asked.part](asked.cache)))
    else:
        main(asked.rounds, asked.sweep, asked.cache)
