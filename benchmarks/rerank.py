"""CSFCube: what re-ranking the first answers gains, and what it takes.

    RAY_worker_niceness=0 .venv/bin/python benchmarks/rerank.py --model runs/mixsp runs/cross --cache runs/cache

A query's pool is ranked by MiniLM's plain vectors of title and abstract; then each model, which reads query and
candidate together, scores the first of them again: the facet's own sentences, or title and abstract (and the facet's
condition, where it reads one). Those below keep their order. 24 dev queries, 95 % intervals of the paired bootstrap.
"""

import argparse
import time
from pathlib import Path

import numpy as np
from turns import DATA, finish

import raycase
from raycase.csfcube import CONDITIONS, MAP, MEASURES, NDCG, measure, read_cube
from raycase.evaluation import EvaluateJob, find_models
from raycase.provenance import machine
from raycase.ranked import against, figure
from raycase.systems import known_conditions
from raycase.topk import unit
from raycase.vectors import plain_vectors

DEPTHS = (10, 20, 50)
BOOTSTRAP = {"resamples": 10_000, "seed": 0}


def scored_again(first, scores, depth):
    """The first `depth` by their new scores, the others below them as they were; equal ones too."""
    order = np.argsort(-first, kind="stable")
    again = order[:depth][np.argsort(-scores[:depth], kind="stable")]
    ranked = np.empty(len(first))
    ranked[np.concatenate([again, order[depth:]])] = -np.arange(len(first))
    return ranked


def main(folders, cache):
    data = str(DATA / "csfcube")
    cube = read_cube(data)
    pairs = cube.pairs()
    papers = [(cube.papers[paper], facet) for paper, facet in pairs]
    texts = {
        "the facet's sentences": [" ".join(paper.of(facet)) for paper, facet in papers],
        "title and abstract": [paper.text for paper, _ in papers],
    }
    [encoder] = find_models(EvaluateJob(task="csfcube", model=("minilm",), data=data, output="unused", cache=cache))
    distinct = list(dict.fromkeys(texts["title and abstract"]))
    began = time.perf_counter()
    vectors = unit(plain_vectors(distinct, encoder.config, name=data, cache=encoder.cache))
    seconds = time.perf_counter() - began
    row_of = {text: row for row, text in enumerate(distinct)}
    plain_PD = vectors[[row_of[text] for text in texts["title and abstract"]]]

    def plain(query, pool):
        return plain_PD[pool] @ plain_PD[query]

    base = 100 * measure(cube, pairs, plain)
    queries = len(base)
    print(f"{machine()}; {queries} queries; vectors of {len(distinct):,} papers: {seconds:.1f} s (0 s: from the cache)")
    print(f"{'':<44}{'first':>6}{'MAP':>8}{'gain':>24}{NDCG:>14}{'gain':>24}{'s a query':>12}")
    print(f"{'plain':<50}{base[:, 0].mean():>8.1f}{'':>24}{base[:, 1].mean():>14.1f}")
    lines, ratios = [], {}
    for folder in folders:
        model = raycase.load(folder)
        reads = known_conditions(model.config) is None
        for view, text in texts.items():
            spent, found = [], {}

            def scores_of(query, pool, text=text, spent=spent, found=found, model=model, reads=reads):
                if query not in found:
                    chosen = pool[np.argsort(-plain(query, pool), kind="stable")[: max(DEPTHS)]]
                    under = [CONDITIONS[papers[query][1]]] * len(chosen) if reads else None
                    began = time.perf_counter()
                    scores = model.score([text[query]] * len(chosen), [text[c] for c in chosen], under)
                    spent.append((time.perf_counter() - began) / len(chosen))
                    found[query] = scores
                return found[query]

            for depth in DEPTHS:
                values = 100 * measure(
                    cube, pairs, lambda q, pool, d=depth: scored_again(plain(q, pool), scores_of(q, pool), d)
                )
                line = {"model": Path(folder).name, "reads": view, "first": depth}
                line["seconds_a_query"] = float(np.mean(spent)) * depth
                for i, name in enumerate(MEASURES):
                    line[name] = figure(values[:, i], **BOOTSTRAP)
                    line[name]["gain"] = against(values[:, i], base[:, i], **BOOTSTRAP)
                    if name in (MAP, NDCG):
                        ratios[f"{line['model']}, {view}, first {depth}: {name}"] = (
                            line[name]["value"] / base[:, i].mean()
                        )
                lines.append(line)
                show(line)
    plain_figures = {name: figure(base[:, i], **BOOTSTRAP) for i, name in enumerate(MEASURES)}
    finish({"ratios": ratios, "queries": queries, "plain": plain_figures, "embed_seconds": seconds, "lines": lines})


def show(line):
    cells = ""
    for name, width in ((MAP, 8), (NDCG, 14)):
        gain = line[name]["gain"]
        cells += f"{line[name]['value']:>{width}.1f}"
        cells += f"{gain['difference']:>+10.1f} [{gain['low']:>+5.1f}, {gain['high']:>+5.1f}]"
    print(
        f"{line['model']:<20}{line['reads']:<24}{line['first']:>6}{cells}{line['seconds_a_query']:>12.2f}", flush=True
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", required=True, help="folders of models that score pairs")
    parser.add_argument("--cache", required=True, help="where jobs/evaluate.py puts its vectors")
    arguments = parser.parse_args()
    main(arguments.model, arguments.cache)
