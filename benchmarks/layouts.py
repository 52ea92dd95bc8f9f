"""Ways to lay out the maps of `raycase explore`: how far they can be trusted, how far points move, and what they cost.

    raycase embed --input captions.parquet --limit 5000 --any-condition --output words/
    raycase index --embeddings words/ --output captions.lance
    python benchmarks/layouts.py --index captions.lance --conditions "the animal" "the activity" "the place"

Trustworthiness (Venna and Kaski, 2001; scikit-learn's) says whether the 15 nearest of a row on the map are near by
cosine, too; continuity, which is that of the other direction, whether its nearest by cosine are near on the map. Moved:
the mean way of a point from the map before, in half widths of the map. Seconds are those of the processor,
without what numba compiles. PaCMAP is not installed by raycase: pip install pacmap.
"""

import argparse
import time
from functools import partial

import numpy as np
from sklearn.manifold import trustworthiness
from turns import finish

from raycase.explore.map_rows import choose_rows
from raycase.explore.positions import NEIGHBOURS, fitted, import_umap, nearest_rows, place, principal_axes
from raycase.search.index import Index


def chained(vectors, before, seed):
    """As `raycase explore` does."""
    cosines, rows = nearest_rows(vectors, NEIGHBOURS - 1)
    return place(vectors, cosines, rows, principal_axes(vectors, seed) if before is None else before, seed)


def quicker(vectors, before, seed, epochs=200):
    """In fewer epochs; UMAP's default is 500 up to 10,000 rows, and 200 above."""
    cosines, rows = nearest_rows(vectors, NEIGHBOURS - 1)
    start = principal_axes(vectors, seed) if before is None else before
    return place(vectors, cosines, rows, start, seed, epochs=epochs)


def unchained(vectors, before, seed):
    """Each map by itself, turned to lie as the one before."""
    return chained(vectors, None, seed)


def umap_alone(vectors, before, seed):
    """umap-learn's defaults: a spectral start, its own neighbours."""
    return fitted(import_umap().UMAP(metric="cosine", random_state=seed, n_jobs=1).fit_transform(vectors))


def pacmap(vectors, before, seed):
    """PaCMAP (Wang et al., 2021), from the map before."""
    import pacmap

    reducer = pacmap.PaCMAP(n_components=2, n_neighbors=10, random_state=seed)
    return fitted(reducer.fit_transform(vectors, init="pca" if before is None else before.astype(np.float32)))


def axes(vectors, before, seed):
    """The two axes of largest variance."""
    return fitted(principal_axes(vectors, seed))


LAYOUTS = {
    "UMAP, from the map before": chained,
    "UMAP, from the first map": chained,
    "UMAP, from the first map, 200 epochs": quicker,
    "UMAP, from the first map, 100 epochs": partial(quicker, epochs=100),
    "UMAP, each by itself": unchained,
    "umap-learn's defaults": umap_alone,
    "PaCMAP, from the map before": pacmap,
    "PCA": axes,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--index", required=True)
    parser.add_argument("--conditions", nargs="+", required=True)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    index = Index.open(args.index)
    conditions = [None, *args.conditions]
    rows = choose_rows(index, conditions, text=None, most=args.rows, seed=args.seed)
    vectors = [index.vectors_at(condition, rows.under(index, condition)) for condition in conditions]
    print(f"{len(vectors[0]):,} rows, means over {len(vectors)} maps\n")
    print("| | trustworthiness | continuity | moved | seconds a map |\n|---|---|---|---|---|")
    trusted = {}
    for name, layout in LAYOUTS.items():
        layout(vectors[0][:4200], None, args.seed)  # compiles
        near, kept, moved, seconds, before, first = [], [], [], [], None, None
        for each in vectors:
            began = time.process_time()
            positions = layout(each, first if "first" in name else before, args.seed)
            seconds.append(time.process_time() - began)
            distances = 1 - each @ each.T
            apart = np.linalg.norm(positions[:, None] - positions[None], axis=2)
            near.append(trustworthiness(np.maximum(distances, 0), positions, n_neighbors=15, metric="precomputed"))
            kept.append(trustworthiness(apart, each, n_neighbors=15, metric="precomputed"))
            if before is not None:
                moved.append(np.linalg.norm(positions - before, axis=1).mean())
            before, first = positions, positions if first is None else first
        trusted[name] = float(np.mean(near))
        print(f"| {name} | {np.mean(near):.3f} | {np.mean(kept):.3f} | {np.mean(moved):.2f} | {np.mean(seconds):.1f} |")
    ours, *others = trusted.values()
    ratios = {name: ours / other for name, other in zip([*trusted][1:], others, strict=True)}
    finish({"rows": len(vectors[0]), "maps": len(vectors), "ratios": ratios})


if __name__ == "__main__":
    main()
