"""How much smaller vectors lose: CASE's Figure 4 for vectors that are cut, and the captions' measure beside it.

    RAY_worker_niceness=0 .venv/bin/python benchmarks/dimensions.py runs/nested --cache runs/cache --output runs/dims

For each model folder that was trained with --nested, at each nested dimension and the whole one: Spearman x 100 on the
validation pairs of C-STS, and the share of the first 10 neighbours of a caption that have what the condition asks for
(`raycase evaluate --task caption-attributes`), of each condition and their mean. Vectors are embedded once (those that
`raycase evaluate` keeps in the same cache are not embedded again) and cut here, which gives those of `embed --dim`.
Writes dimensions.json and, where matplotlib is installed, dimensions.png.
"""

import argparse
from pathlib import Path

import numpy as np
from turns import DATA, finish

from raycase.data.rated import read_rated
from raycase.data.storage import json_bytes
from raycase.encoder.cosines import pair_cosines
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.metrics import spearman
from raycase.evaluation.models import find_models
from raycase.evaluation.plots import STYLES, has_matplotlib, png
from raycase.evaluation.tasks.captions import (
    CAPTIONS,
    DEFAULT,
    find_attributes,
    nearest,
    neighbour_share,
    read_captions,
)
from raycase.placement import vectors

SPEARMAN, MEAN = "C-STS Spearman x 100", "mean share of neighbours, %"


def by_dimension(model, rated, captions, embed):
    """A row of figures for each dimension, the smallest first."""
    dims = (*model.config.nested, model.config.dim)
    pairs_PD = model.project(embed(rated.distinct, model.config, name=rated.uri, cache=model.cache))
    rows = [
        {"dim": dim, SPEARMAN: 100 * spearman(pair_cosines(pairs_PD[:, :dim], rated.pair_index), rated.ratings)}
        for dim in dims
    ]
    distinct = {text: i for i, text in enumerate(dict.fromkeys(captions.texts))}
    text_index_N = np.array([distinct[text] for text in captions.texts])
    attributes = find_attributes(captions, DEFAULT)
    for condition, attribute in attributes.items():
        asked = [(text, condition) for text in distinct]
        texts_TD = model.project(embed(asked, model.config, name=captions.uri, cache=model.cache))
        for row in rows:
            neighbours_QK = nearest(texts_TD[text_index_N, : row["dim"]], captions)
            row[condition] = 100 * float(neighbour_share(neighbours_QK, attribute).mean())
    for row in rows:
        row[MEAN] = float(np.mean([row[condition] for condition in attributes]))
    return rows


def table(name, rows):
    """The rows as Markdown."""
    names = list(rows[0])
    lines = [[f"{row[n]:.0f}" if n == "dim" else f"{row[n]:.1f}" for n in names] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in ([name, *names[1:]], ["---"] * len(names), *lines))


def plot(found):
    """Both figures against the dimension, a curve for each model, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 3.4), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes, measure in zip(panels, (SPEARMAN, MEAN), strict=True):
        for i, (name, rows) in enumerate(found.items()):
            axes.plot(
                [r["dim"] for r in rows], [r[measure] for r in rows], marker="o", **STYLES[i % len(STYLES)], label=name
            )
        axes.set_xscale("log", base=2)
        dims = sorted({row["dim"] for rows in found.values() for row in rows})
        axes.set_xticks(dims, map(str, dims))
        axes.set_xlabel("first dimensions of the vectors")
        axes.set_title(measure, fontsize=10, loc="left")
        axes.grid(axis="y", color="0.9", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].legend(frameon=False, fontsize=8)
    return png(figure)


def main(args, embed):
    """Measure each model and write the files."""
    rated, captions = read_rated(args.pairs, "--pairs"), read_captions(args.captions, args.limit)
    job = EvaluateJob(model=tuple(args.models), data=args.pairs, output=args.output, cache=args.cache)
    models = find_models(job)
    for model in models:
        if not getattr(model.config, "nested", ()):
            raise RequestError(f"expected models that were trained with --nested, got {model.config.model}")
    found = {}
    for model in models:
        found[model.name] = by_dimension(model, rated, captions, embed)
        print(table(model.name, found[model.name]), "\n", flush=True)
    folder = Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    result = {"pairs": len(rated), "captions": len(captions.texts), "models": found}
    (folder / "dimensions.json").write_bytes(json_bytes(result))
    if has_matplotlib():
        (folder / "dimensions.png").write_bytes(plot(found))
    ratios = {
        f"{name}, {measure}: {row['dim']} / {rows[-1]['dim']} dimensions": row[measure] / rows[-1][measure]
        for name, rows in found.items()
        for row in rows[:-1]
        for measure in (SPEARMAN, MEAN)
    }
    finish({"ratios": ratios} | result)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="model folders that were trained with --nested")
    parser.add_argument("--output", required=True, help="folder of dimensions.json and dimensions.png")
    parser.add_argument("--cache", help="of `raycase evaluate`; default: `cache` beside the first model")
    parser.add_argument("--pairs", default=str(DATA / "csts" / "validation.csv"), help="rated pairs")
    parser.add_argument("--captions", default=str(DATA / "flickr30k"), help="folder of captions.parquet")
    parser.add_argument("--limit", type=int, default=CAPTIONS, help="captions")
    args = parser.parse_args()
    main(args, vectors(None).vectors_of)
