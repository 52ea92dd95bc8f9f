"""CSFCube: what re-ranking the first answers gains, and what it takes.

    RAY_worker_niceness=0 .venv/bin/python benchmarks/rerank.py runs/mixsp runs/cross-encoder

Each query's pool is ranked by MiniLM's plain vectors of title and abstract; a model that reads query and candidate
together then scores the first of them again, by title and abstract or by the facet's own sentences (under the facet's
condition, where it reads one); the others stay below as they were. 95 % intervals of the paired bootstrap over queries.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from turns import DATA, finish

import raycase
from raycase.evaluation.ranked import mean_difference, mean_interval
from raycase.evaluation.tasks.csfcube import CONDITIONS, MAP, MEASURES, NDCG, rank_pools, read_cube
from raycase.search.topk import l2_normalize

DEPTHS = (10, 20, 50)
BOOTSTRAP = {"resamples": 10_000, "seed": 0}


def first_scores(cube):
    """Each query's cosines to its pool, and the seconds that embedding the papers took."""
    papers = list(dict.fromkeys(paper for paper, _ in cube.pairs()))
    model = raycase.load("minilm")
    began = time.perf_counter()
    vectors = model.embed([cube.papers[paper].text for paper in papers], None)
    seconds = time.perf_counter() - began
    of = dict(zip(papers, l2_normalize(vectors), strict=True))
    return {key: np.stack([of[p] for p in pool]) @ of[key[0]] for key, (pool, _) in cube.pools.items()}, seconds


def scored_again(model, cube, first, text):
    """Each query's new scores of the first answers, best first as they were, and the seconds of a pair."""
    reads = model.config.known_conditions is None
    found, pairs, began = {}, 0, time.perf_counter()
    for (query, facet), (pool, _) in cube.pools.items():
        top = np.argsort(-first[query, facet], kind="stable")[: max(DEPTHS)]
        candidates = [text(cube.papers[pool[i]], facet) for i in top]
        under = [CONDITIONS[facet]] * len(top) if reads else None
        found[query, facet] = model.score([text(cube.papers[query], facet)] * len(top), candidates, under)
        pairs += len(top)
    return found, (time.perf_counter() - began) / pairs


def merged(first, again, depth):
    """Scores by which the first `depth` stand in the order of the new scores, the others below them as they were."""
    order = np.argsort(-first, kind="stable")
    order[:depth] = order[:depth][np.argsort(-again[:depth], kind="stable")]
    scores = np.empty(len(first))
    scores[order] = -np.arange(len(first))
    return scores


def measured(cube, scores):
    """Each measure of each query x 100, of scores by query."""
    pairs = cube.pairs()
    key_of = {i: key for key, i in pairs.items()}
    return 100 * rank_pools(cube, pairs, lambda query, _: scores[key_of[query]])


def main(folders):
    cube = read_cube(str(DATA / "csfcube"))
    first, embed_seconds = first_scores(cube)
    base = measured(cube, first)
    print(f"plain: MAP {base[:, 0].mean():.1f}, NDCG {base[:, 1].mean():.1f}; {len(base)} queries")
    texts = {
        "title and abstract": lambda paper, _: paper.text,
        "the facet's sentences": lambda paper, facet: " ".join(paper.of(facet)),
    }
    lines = []
    for folder in folders:
        model = raycase.load(folder)
        for view, text in texts.items():
            again, seconds = scored_again(model, cube, first, text)
            for depth in DEPTHS:
                values = measured(cube, {key: merged(first[key], again[key], depth) for key in first})
                line = {"model": Path(folder).name, "reads": view, "first": depth, "seconds": seconds * depth}
                for i, name in enumerate(MEASURES):
                    line[name] = mean_interval(values[:, i], **BOOTSTRAP)
                    line[name]["gain"] = mean_difference(values[:, i], base[:, i], **BOOTSTRAP)
                lines.append(line)
                print(row(line), flush=True)
    plain = {name: mean_interval(base[:, i], **BOOTSTRAP) for i, name in enumerate(MEASURES)}
    ratios = {
        f"{line['model']}, {line['reads']}, first {line['first']}: {name}": line[name]["value"] / plain[name]["value"]
        for line in lines
        for name in (MAP, NDCG)
    }
    finish({"ratios": ratios, "plain": plain, "embed_seconds": embed_seconds, "lines": lines})


def row(line):
    """One row of the table."""
    cells = [line["model"], line["reads"], str(line["first"])]
    for name in (MAP, NDCG):
        gain = line[name]["gain"]
        cells += [f"{line[name]['value']:.1f}", f"{gain['difference']:+.1f} [{gain['low']:+.1f}, {gain['high']:+.1f}]"]
    return " | ".join([*cells, f"{line['seconds']:.2f} s a query"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="folders of models that score pairs")
    main(parser.parse_args().models)
