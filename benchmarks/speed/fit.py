"""How long a fit and a sweep take, beside the same work in one process without Ray.

    python -m benchmarks.speed.fit [--rounds 3] [--sweep FOLDER] [--cache FOLDER]

(a) `raycase train`, everything but embedding, which is cached before; (b) the same fit in one process without Ray;
(c) with --sweep, Table 7 with 3 seeds by `raycase tune`, and (d) the 18 fits of its first seed, one after the other
in one process;
(e) a fit of 4096 to 512 dimensions over random vectors, as a share of the machine's matrix-product rate.
(a) and (b) take turns; medians over the rounds. Run it with RAY_worker_niceness=0, and nothing beside it.
"""

import json
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.turns import DATA, RAYCASE, finish, median, parser_of, run

PAIRS_OF = {name: DATA / "csts" / f"{name}.csv" for name in ("train", "validation")}
FLAGS = ["--train", PAIRS_OF["train"], "--validation", PAIRS_OF["validation"]]
EPOCHS, PAIRS = 5, 11_342
PROMPT = "concat-sc"  # MiniLM's own


def alone(part, cache):
    """A part of this file as a process of its own."""
    return run("-m", "benchmarks.speed.fit", "--part", part, "--cache", cache)


def read_vectors(cache):
    """What the job put into its cache, read without Ray."""
    import numpy as np
    import pyarrow.dataset as ds

    from raycase.io.rated_pairs import read_rated
    from raycase.models.pairs import PairVectors

    parts = []
    for name, file in PAIRS_OF.items():
        rated = read_rated(str(file), f"--{name}")
        for folder in Path(cache).glob("*/vectors"):
            model = json.loads((folder / "job.json").read_text())["config"]["model"]
            table = ds.dataset(folder / "embeddings", format="parquet").to_table(columns=["embedding"])
            if len(table) == len(rated.distinct) and (model["encoder"]["prompt"], model["subtract"]) == (PROMPT, True):
                vectors = table["embedding"].combine_chunks().flatten().to_numpy().reshape(len(table), -1)
                parts.append(PairVectors(vectors=np.array(vectors), pair_index=rated.pair_index, ratings=rated.ratings))
    assert len(parts) == 2, "expected the cache of one pooling"
    return parts


def projector_job(**flags):
    from raycase.commands.train import ProjectorFlags

    return ProjectorFlags(train="", validation="", output="", **flags)


def states_of(flags, *data):
    from raycase.training.loop import fit

    training = flags.training()
    return fit(training.recipe, training.learner(training.recipe, *data))


def fit_here(cache):
    train, validation = read_vectors(cache)
    *_, state = states_of(projector_job(), train, validation)
    best = state.history[state.best_epoch - 1]
    return {"spearman": best["spearman"], "epochs": len(state.history)}


def sweep_here(cache):
    from raycase.commands.tune import TuneFlags, changed

    train, validation = read_vectors(cache)
    sweep = TuneFlags(grid="table7", training=projector_job(prompt="cond"))
    for cell in sweep.cells():
        job = changed(sweep.training, cell)
        for _ in states_of(job, train, validation):
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
    *_, state = states_of(projector_job(epochs=EPOCHS), train, validation)
    a, b = torch.randn(2048, 4096), torch.randn(4096, 2048)
    rates = []
    for _ in range(20):
        began = time.perf_counter()
        a @ b
        rates.append(2 * 2048 * 4096 * 2048 / (time.perf_counter() - began))
    operations = 2 * PAIRS * 4096 * 512 * 2 * 2  # forward, and the gradient of the weights; nothing goes further back
    seconds = median(line["seconds"] for line in state.history)
    return {"seconds": seconds, "gflops": operations / seconds / 1e9, "machine_gflops": median(rates) / 1e9}


PARTS = {"fit": fit_here, "sweep": sweep_here, "large": large_fit}


def main(rounds, sweep, cache):
    with tempfile.TemporaryDirectory() as scratch:
        cache = cache or f"{scratch}/cache"
        flags = [*FLAGS, "--cache", cache]
        first = run(*RAYCASE, "train", "case", *flags, "--output", f"{scratch}/first", "--epochs", 1)
        print(f"embedded in {first.line['embed_seconds']} s", file=sys.stderr)
        with_ray, here = [], []
        for turn in range(rounds):
            with_ray.append(run(*RAYCASE, "train", "case", *flags, "--ray", "--output", f"{scratch}/{turn}"))
            here.append(alone("fit", cache))
            print(f"{with_ray[-1].seconds:.1f} s with Ray, {here[-1].seconds:.1f} s without", file=sys.stderr)
        found = {
            "fit_seconds": median(done.seconds for done in with_ray),
            "plain_fit_seconds": median(done.seconds for done in here),
            "ray_costs_seconds": median(a.seconds - b.seconds for a, b in zip(with_ray, here, strict=True)),
            "spearman_with_ray": [done.line["validation"]["spearman"] for done in with_ray],
            "plain": [done.line for done in here],
        }
        if sweep:
            swept = run(*RAYCASE, "tune", "--grid", "table7", "--", "case", *flags, "--output", sweep)
            one_seed = alone("sweep", cache)
            found |= {
                "sweep_seconds": swept.seconds,
                "sweep_trials": swept.line["trials"],
                "sweep_fit_seconds": swept.line["fit_seconds"],
                "sweep_seconds_per_trial": swept.seconds / swept.line["trials"],
                "plain_seconds_per_trial": one_seed.seconds / one_seed.line["trials"],
            }
        large = found["large"] = alone("large", cache).line
    ratios = {
        "30 s over the fit": 30 / found["fit_seconds"],
        "15 s over what Ray costs": 15 / found["ray_costs_seconds"],
        "large fit over the matrix-product rate": large["gflops"] / large["machine_gflops"],
    }
    if sweep:
        ratios["480 s over the sweep"] = 480 / found["sweep_seconds"]
        ratios["plain over sweep, per trial"] = found["plain_seconds_per_trial"] / found["sweep_seconds_per_trial"]
    finish(ratios, **found)


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sweep", metavar="FOLDER", help="run Table 7 too, and leave its tables there")
    parser.add_argument("--cache", help="folder of embedded pairs, kept; default: a temporary one")
    parser.add_argument("--part", choices=PARTS)
    asked = parser.parse_args()
    if asked.part:
        print(json.dumps(PARTS[asked.part](asked.cache)))
    else:
        main(asked.rounds, asked.sweep, asked.cache)
