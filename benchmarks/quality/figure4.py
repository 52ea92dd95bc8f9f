"""What labels are worth at each dimension: CASE's Figure 4, and projections that saw no label beside it.

    RAY_worker_niceness=0 python -m benchmarks.quality.figure4 --output runs/figure4 --cache runs/cache

Trains g at 50 to 1,000 dimensions, three seeds each, as `raycase tune --grid figure4 -- case` does, into the folder
`sweep` of the output; a sweep that was begun there is resumed. Then PCA, whitening (Su et al., 2021), random
projections (as many seeds) and truncation of the same vectors, fitted to the training pairs without their labels, at
the same dimensions up to that of the vectors. Prints a table of Spearman x 100 on all validation pairs, and writes
figure4.json and, where matplotlib is installed, figure4.png. These pairs chose the epoch of the trained g alone.
"""

import json
import statistics
from pathlib import Path

import numpy as np

from benchmarks.turns import DATA, finish, has_matplotlib, parser_of, png
from raycase.commands.place import AutoRunner
from raycase.commands.train import ProjectorFlags
from raycase.commands.tune import TuneFlags, tune
from raycase.evaluation.metrics import nested_correlations
from raycase.evaluation.report import table
from raycase.io.storage import locate
from raycase.training.sweep import SweepResults, by_cell
from raycase.training.vector_cache import VectorCache

FLOOR = 1e-8  # of the largest variance: whitening magnifies no direction beyond it, which would be rounding alone
STYLES = {  # Okabe and Ito's colors, distinct dashes and marks
    "trained g": {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    "pca": {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    "whitening": {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    "random": {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
    "truncation": {"color": "#E69F00", "linestyle": (0, (5, 1, 1, 1)), "marker": "v"},
}


def projected(name, train_PD, vectors_ND, seed):
    """Vectors by a projection that saw no label, fitted to the training vectors; cut to the first K, by one to K."""
    if name == "truncation":
        return vectors_ND
    if name == "random":  # sums with Gaussian weights (Johnson and Lindenstrauss, 1984)
        return vectors_ND @ np.random.default_rng(seed).standard_normal([vectors_ND.shape[1]] * 2).T
    variances_D, axes_DD = np.linalg.eigh(np.cov(train_PD, rowvar=False, dtype=np.float64))
    found_ND = (vectors_ND - train_PD.mean(0, dtype=np.float64)) @ axes_DD[:, ::-1]
    variances_D = variances_D[::-1]
    return found_ND if name == "pca" else found_ND / np.sqrt(np.maximum(variances_D, FLOOR * variances_D[0]))


def curves_of(job, dims, vectors):
    """Spearman of each seed by way and dimension."""
    tune(job)
    trials = SweepResults(locate(str(job.training.folder))).read_trials()
    curves = {"trained g": {of[0]["choices"]["dim"]: scores for scores, of in by_cell(trials)}}
    training = job.training
    cached = {"cache": training.cache_location, "compute": training.compute}
    train, validation = (
        vectors.pair_vectors(rated, training.config(), **cached) for rated in training.training().read()
    )
    nested = [dim for dim in sorted(dims) if dim < train.dim]
    for name in [*STYLES][1:]:
        figures = []
        for seed in job.trial_seeds if name == "random" else [0]:
            found = projected(name, train.vectors, validation.vectors, seed)
            figures.append(nested_correlations(found, validation.pair_index, validation.ratings, nested))
        keys = {dim: f"spearman_{dim}" for dim in nested} | {train.dim: "spearman"}
        curves[name] = {dim: [figure[key] for figure in figures] for dim, key in keys.items()}
    return curves, train.dim


def spread(scores):
    """The sample standard deviation over the seeds; 0 of one."""
    return statistics.stdev(scores) if len(scores) > 1 else 0.0


def shown(scores):
    """A cell of the table."""
    mean = f"{statistics.fmean(scores):.2f}" if scores else ""
    return f"{mean} ± {spread(scores):.2f}" if len(scores) > 1 else mean


def plot(curves, input_dim):
    """Spearman against the dimension, a curve for each way to g, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 3.8), layout="constrained")
    axes = figure.subplots()
    for name, curve in curves.items():
        dims = sorted(curve)
        means, spreads = [statistics.fmean(curve[dim]) for dim in dims], [spread(curve[dim]) for dim in dims]
        axes.errorbar(dims, means, spreads, markersize=4, capsize=2, label=name, **STYLES[name])
    axes.axvline(input_dim, color="0.6", linewidth=0.8, label="dimension of the vectors before g")
    axes.set(xlabel="dimension of the vectors", ylabel="Spearman x 100, validation")
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return png(figure)


def main(args):
    """Measure and write the files."""
    folder = Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dims.json").write_text(json.dumps({"dim": args.dims}))
    where = {"output": str(folder / "sweep"), "cache": args.cache}
    training = ProjectorFlags(train=args.train, validation=args.validation, model=args.model, **where)
    job = TuneFlags(grid=str(folder / "dims.json"), seeds=args.seeds, training=training)
    curves, input_dim = curves_of(job, args.dims, VectorCache(AutoRunner()))
    dims = sorted({dim for curve in curves.values() for dim in curve})
    rows = [[str(dim), *(shown(curve.get(dim, [])) for curve in curves.values())] for dim in dims]
    print(table(["dimension", *curves], rows), flush=True)
    result = {"model": args.model, "input_dim": input_dim, "spearman": curves}
    locate(str(folder / "figure4.json")).put_json(result)
    if has_matplotlib():
        (folder / "figure4.png").write_bytes(plot(curves, input_dim))
    finish(**result)


if __name__ == "__main__":
    parser = parser_of(__doc__)
    parser.add_argument("--output", required=True, help="folder of sweep/, figure4.json and figure4.png")
    parser.add_argument("--cache", help="of `raycase tune`; default: `cache` in the output")
    parser.add_argument("--train", default=str(DATA / "csts" / "train.csv"), help="rated pairs")
    parser.add_argument("--validation", default=str(DATA / "csts" / "validation.csv"), help="rated pairs")
    parser.add_argument("--model", default="minilm", help="encoder")
    parser.add_argument("--dims", type=int, nargs="+", default=[50, *range(100, 1001, 100)], help="dimensions")
    parser.add_argument("--seeds", type=int, default=3, help="of each trained g, and of the random projections")
    main(parser.parse_args())
