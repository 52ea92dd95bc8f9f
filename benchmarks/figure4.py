"""What labels are worth at each dimension: CASE's Figure 4, and projections that saw no label beside it.

    RAY_worker_niceness=0 .venv/bin/python benchmarks/figure4.py --output runs/figure4 --cache runs/cache

Trains g at 50 to 1,000 dimensions, three seeds each, as `raycase tune --grid figure4 -- case` does, into the folder
`sweep` of the output; a sweep that was begun there is resumed. Then PCA, whitening, random projections (as many seeds)
and truncation of the same vectors, fitted to the training pairs without their labels, at the same dimensions up to that
of the vectors; truncation to all of them is the vectors themselves. Prints a table of Spearman x 100 on all validation
pairs, and writes figure4.json and, where matplotlib is installed, figure4.png. These pairs chose the epoch of the
trained g, and nothing else.
"""

import argparse
import json
import statistics
from pathlib import Path

from turns import DATA, finish, has_matplotlib, png
from unlabelled import Method, Projection, fit_projection

from raycase.commands.place import AutoRunner
from raycase.io.storage import json_bytes
from raycase.ray import tune
from raycase.training.projector_job import ProjectorFlags, projector_correlations
from raycase.training.sweep import Sweep, by_cell
from raycase.training.vector_cache import VectorCache

TRAINED = "trained g"
STYLES = {  # Okabe and Ito's colors, distinct dashes and marks
    TRAINED: {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    Method.PCA: {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    Method.WHITENING: {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    Method.RANDOM: {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
    Method.TRUNCATION: {"color": "#E69F00", "linestyle": (0, (5, 1, 1, 1)), "marker": "v"},
}


def trained(job):
    """Run the sweep: Spearman of each seed by dimension."""
    tune.tune(job)
    return {of[0]["choices"]["dim"]: scores for scores, of in by_cell(job.read_trials())}


def unlabelled(job, dims, vectors):
    """Spearman of each seed by method and dimension."""
    training = job.training
    config = training.config()
    cached = {"cache": training.cache_location, "compute": training.compute}
    train, validation = (vectors.pair_vectors(rated, config, **cached) for rated in training.read_parts())
    nested = tuple(dim for dim in sorted(dims) if dim < train.dim)
    found = {}
    for method in Method:
        seeds = job.trial_seeds if method is Method.RANDOM else [training.seed]
        whole = Projection(method=method, dim=train.dim, nested=nested)
        figures = [
            projector_correlations(fit_projection(train.vectors, whole, seed=seed)[0], validation, nested)
            for seed in seeds
        ]
        names = {**{dim: f"spearman_{dim}" for dim in nested}, train.dim: "spearman"}
        found[method.value] = {dim: [figure[name] for figure in figures] for dim, name in names.items()}
    return found


def spread(scores):
    """The sample standard deviation over the seeds; 0 of one."""
    return statistics.stdev(scores) if len(scores) > 1 else 0.0


def table(curves):
    """A row a dimension, a column a curve, as Markdown."""
    lines = [["dimension", *curves], ["---"] * (1 + len(curves))]
    for dim in sorted({dim for curve in curves.values() for dim in curve}):
        scores = [curve.get(dim, []) for curve in curves.values()]
        cells = [f"{statistics.fmean(s):.2f}{f' ± {spread(s):.2f}' if len(s) > 1 else ''}" if s else "" for s in scores]
        lines.append([str(dim), *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


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
    axes.set_xlabel("dimension of the vectors")
    axes.set_ylabel("Spearman x 100, validation")
    axes.grid(axis="y", color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    return png(figure)


def main(args):
    """Measure and write the files."""
    folder = Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dims.json").write_text(json.dumps({"dim": args.dims}))
    training = ProjectorFlags(
        train=args.train,
        validation=args.validation,
        model=args.model,
        prompt=args.prompt,
        pooling=args.pooling,
        output=str(folder / "sweep"),
        cache=args.cache,
    )
    job = Sweep(grid=str(folder / "dims.json"), seeds=args.seeds, training=training)
    supervised = trained(job)
    curves = {TRAINED: supervised} | unlabelled(job, args.dims, VectorCache(AutoRunner()))
    input_dim = max(curves[Method.TRUNCATION])
    print(table(curves), flush=True)
    result = {"model": args.model, "input_dim": input_dim, "spearman": curves}
    (folder / "figure4.json").write_bytes(json_bytes(result))
    if has_matplotlib():
        (folder / "figure4.png").write_bytes(plot(curves, input_dim))
    best = {
        dim: max(statistics.fmean(curves[m][dim]) for m in Method) for dim in curves[Method.PCA] if dim in supervised
    }
    ratios = {
        f"{dim} dimensions, trained / best untrained": statistics.fmean(supervised[dim]) / best[dim] for dim in best
    }
    finish({"ratios": ratios} | result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="folder of sweep/, figure4.json and figure4.png")
    parser.add_argument("--cache", help="of `raycase tune`; default: `cache` in the output")
    parser.add_argument("--train", default=str(DATA / "csts" / "train.csv"), help="rated pairs")
    parser.add_argument("--validation", default=str(DATA / "csts" / "validation.csv"), help="rated pairs")
    parser.add_argument("--model", default="minilm", help="encoder")
    parser.add_argument("--prompt", help="of sentence and condition; default: the encoder's")
    parser.add_argument("--pooling", help="default: the encoder's")
    parser.add_argument("--dims", type=int, nargs="+", default=[50, *range(100, 1001, 100)], help="dimensions")
    parser.add_argument("--seeds", type=int, default=3, help="of each trained g, and of the random projections")
    main(parser.parse_args())
