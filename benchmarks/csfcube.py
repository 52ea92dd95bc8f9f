"""CSFCube (Mysore et al., 2021): papers like another one in its background, its method or its result.

Experts graded a pool of candidates for each query (a paper and a facet) from 0 to 3; systems rank the pool. Measures
are those of the collection's own script (`eval_scripts/ranking_eval.py` of iesl/CSFCube): relevant is a grade of 2 or
more, NDCG takes the grades as they are and stops at a fifth of the pool, and R-precision is the precision down to the
last relevant one.

    .venv/bin/python benchmarks/csfcube.py --model minilm-conditional condition-pooling:minilm --data csfcube \\
        --output runs/csfcube
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from reports import encoder_names
from turns import finish

from raycase.commands.place import AutoRunner
from raycase.encoder.chunks import Chunking
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateFlags
from raycase.evaluation.models import Model
from raycase.evaluation.procedure import Task, evaluate
from raycase.evaluation.report import RankedSystem, rank_systems, render_ranked
from raycase.io.reader import read_files
from raycase.io.vectors import l2_normalize
from raycase.models.case import CaseConfig
from raycase.training.vector_cache import VectorCache

# The facets that experts judged, and the condition that stands for each.
CHUNK = 64  # tokens
CONDITIONS = {"background": "the research problem", "method": "the proposed method", "result": "the main result"}
RELEVANT = 2  # the least grade
MAP, NDCG, R_PRECISION, RECALL = "MAP", "NDCG at 20 %", "R-precision", "recall at 20"
MEASURES = (MAP, NDCG, R_PRECISION, RECALL)
ALL = "all"
PaperFacet = tuple[str, str]  # a paper's id and a facet
Score = Callable[[int, np.ndarray], np.ndarray]  # the query's pair, the candidates' pairs -> scores
NamedScore = tuple[str, str, Score]  # name, what it scores by, score


@dataclass(frozen=True, kw_only=True)
class Cube:
    """Title and abstract of the papers, and the judgements: for each query its pool of candidates with their grades."""

    uri: str
    papers: dict[str, str]
    pools: dict[PaperFacet, tuple[list[str], np.ndarray]]

    def pairs(self) -> dict[PaperFacet, int]:
        """Every query and candidate with the facet that it is judged in -> its number, the P rows of vectors."""
        judged = [(paper, facet) for (query, facet), (pool, _) in self.pools.items() for paper in (query, *pool)]
        return {pair: i for i, pair in enumerate(dict.fromkeys(judged))}


def measure(flags: EvaluateFlags, cube: Cube, models: Sequence[Model]) -> dict[str, Any]:
    """Rank each query's pool by each encoder's unconditional vectors and by each model's conditional ones."""
    pairs = cube.pairs()
    under = [(cube.papers[paper], CONDITIONS[facet]) for paper, facet in pairs]
    plain_vectors: dict[str, np.ndarray] = {}  # encoder -> (P, D)
    scorers: list[NamedScore] = []
    for model, encoder in zip(models, encoder_names([m.config for m in models]), strict=True):
        if encoder not in plain_vectors:
            plain_vectors[encoder] = embed_papers([text for text, _ in under], model)
            scorers.append((f"{encoder}: plain", "f(title and abstract)", _cosine(plain_vectors[encoder])))
            scorers.append(chunked_scorer(under, plain_vectors[encoder], model))
        scorers += conditional_scorers(under, plain_vectors[encoder], model)
    facet_Q = np.array([facet for _, facet in cube.pools])
    groups = {ALL: np.ones(len(facet_Q), bool)} | {f: facet_Q == f for f in CONDITIONS if f in facet_Q}
    systems = []
    for name, what, score in scorers:
        measures_QM = rank_pools(cube, pairs, score)
        values = {group: measures_QM[rows_Q] for group, rows_Q in groups.items()}
        systems.append(RankedSystem(name=name, what=what, values=values))
    return rank_systems(
        flags,
        title="CSFCube: papers like another one in background, method or result, x 100",
        about=(
            f"{len(facet_Q)} queries (a paper and a facet); each ranks its own pool of candidates, which experts "
            "graded. Means over queries, with 95 % intervals of the bootstrap over queries."
        ),
        data={
            "queries": len(facet_Q),
            "judgements": sum(len(pool) for pool, _ in cube.pools.values()),
            "papers": len(cube.papers),
            "qrels": "qrels_dev.csv",
        },
        measures=MEASURES,
        systems=systems,
    )


# ---------------------------------------------------------------------------------------------------------- systems


def embed_papers(
    texts: Sequence[str] | Sequence[tuple[str, str]], model: Model, *, projected: bool = False
) -> np.ndarray:
    """Unit vectors of texts or of (text, condition), which may repeat: (P, D)."""
    row_of: dict[Any, int] = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    vectors = model.embed(list(row_of))
    return l2_normalize(model.project(vectors) if projected else vectors)[[row_of[text] for text in texts]]


def conditional_scorers(under: Sequence[tuple[str, str]], plain_PD: np.ndarray, model: Model) -> list[NamedScore]:
    """A model's vectors of title and abstract under the facet's condition, alone and beside unconditional ones of that
    text."""
    label = "CASE" if isinstance(model.config, CaseConfig) else "conditional"
    what = f"{model.config.formula} of title and abstract under the facet's condition"
    conditional_PD = embed_papers(under, model, projected=True)
    both_PD = l2_normalize(np.hstack([plain_PD, conditional_PD]))
    return [
        (f"{model.name}: {label}", what, _cosine(conditional_PD)),
        (f"{model.name}: plain + {label}", "half of each one's cosine", _cosine(both_PD)),
        chunked_scorer(under, conditional_PD, model, conditional=True),
    ]


def chunked_scorer(
    under: Sequence[tuple[str, str]], whole_PD: np.ndarray, model: Model, *, conditional: bool = False
) -> NamedScore:
    """As `search --per document`: the query's whole text with the best chunk of each candidate."""
    cut = Chunking(tokens=CHUNK).cut
    chunks = [[text[start:end] for start, end in cut(model.config.encoder, text)] for text, _ in under]
    of_pairs = [(chunk, condition) for of_text, (_, condition) in zip(chunks, under, strict=True) for chunk in of_text]
    asked = of_pairs if conditional else [chunk for chunk, _ in of_pairs]
    vectors = np.split(embed_papers(asked, model, projected=conditional), np.cumsum([*map(len, chunks)])[:-1])
    what = f"the query's vector of title and abstract with the best of the candidate's chunks of {CHUNK} tokens"
    name = f"{model.name}: {'conditional, ' * conditional}best chunk"

    def score(query: int, pool: np.ndarray) -> np.ndarray:
        return np.array([(vectors[paper] @ whole_PD[query]).max() for paper in pool])

    return name, what, score


def _cosine(unit_PD: np.ndarray) -> Score:
    return lambda query, pool: unit_PD[pool] @ unit_PD[query]


# --------------------------------------------------------------------------------------------------------- measures


def average_precision(relevant_N: np.ndarray) -> float:
    """Mean over the relevant items of the precision down to each: (N,) bool, best first; 0 without relevant items."""
    ranks = np.flatnonzero(relevant_N) + 1
    return float(np.mean(np.arange(1, len(ranks) + 1) / ranks)) if len(ranks) else 0.0


def full_recall_precision(relevant_N: np.ndarray) -> float:
    """Precision of a ranking down to its last relevant item: (N,) bool, best first; 0 without relevant items.

    CSFCube's script calls it R-precision, which elsewhere is the precision of the first R of R relevant items.
    """
    ranks = np.flatnonzero(relevant_N) + 1
    return float(len(ranks) / ranks[-1]) if len(ranks) else 0.0


def recall_at(relevant_N: np.ndarray, k: int) -> float:
    """Share of the relevant items that are among the first k: (N,) bool, best first; 0 without relevant items."""
    count = int(relevant_N.sum())
    return float(relevant_N[:k].sum() / count) if count else 0.0


def ndcg_at(grades_N: np.ndarray, k: int) -> float:
    """Discounted gain of the first k of a ranking over that of the ideal ranking: (N,) grades in ranked order.

    Gains are the grades themselves; the discount of rank i is log2(i), 1 for the first (Jarvelin and Kekalainen,
    2002). 0 if no grade is above 0.
    """
    discounts = np.concatenate([[1.0], np.log2(np.arange(2, max(2, len(grades_N)) + 1))])[: len(grades_N)]
    best = (np.sort(grades_N)[::-1] / discounts)[:k].sum()
    return float((grades_N / discounts)[:k].sum() / best) if best > 0 else 0.0


def rank_pools(cube: Cube, pairs: dict[PaperFacet, int], score: Score) -> np.ndarray:
    """`MEASURES` of each query: (Q, 4). Equal scores keep the order of the file."""
    rows = []
    for (query, facet), (pool, grades) in cube.pools.items():
        scores = score(pairs[query, facet], np.array([pairs[candidate, facet] for candidate in pool]))
        ranked = grades[np.argsort(-scores, kind="stable")]
        relevant = ranked >= RELEVANT
        rows.append(
            [
                average_precision(relevant),
                ndcg_at(ranked, int(0.2 * len(ranked))),
                full_recall_precision(relevant),
                recall_at(relevant, 20),
            ]
        )
    return np.array(rows)


# ------------------------------------------------------------------------------------------------------------- data


def read_cube(folder: str) -> Cube:
    """Read `corpus.jsonl` and `qrels_dev.csv` of a folder. Raises RequestError for a missing file, and for a judgement
    that does not fit the papers."""
    root = folder.rstrip("/")
    papers = _read_papers(f"{root}/corpus.jsonl")
    return Cube(uri=folder, papers=papers, pools=_read_pools(f"{root}/qrels_dev.csv", papers))


def _read_papers(uri: str) -> dict[str, str]:
    """Title and abstract by id."""
    papers: dict[str, str] = {}
    for _, columns in read_files(uri, ("id", "title", "sentences"), "--data"):
        for paper, title, sentences in zip(columns["id"], columns["title"], columns["sentences"], strict=True):
            papers[str(paper)] = f"{title} {' '.join(str(s['text']) for s in sentences)}"
    return papers


def _read_pools(uri: str, papers: dict[str, str]) -> dict[PaperFacet, tuple[list[str], np.ndarray]]:
    """The candidates of each query and their grades."""
    pools: dict[PaperFacet, tuple[list[str], list[int]]] = {}
    names = ("query_id", "facet", "candidate_id", "relevance")
    for where, columns in read_files(uri, names, "--data", words=names):
        for row, (query, facet, candidate, grade) in enumerate(zip(*columns.values(), strict=True)):
            pool, grades = pools.setdefault((query, facet), ([], []))
            if not {query, candidate} <= papers.keys() or facet not in CONDITIONS or candidate in pool:
                raise RequestError(
                    f"{where}, row {row}: expected papers of the corpus, a facet of "
                    f"{', '.join(CONDITIONS)}, and each candidate once, got {query}, {facet}, {candidate}"
                )
            pool.append(candidate)
            grades.append(int(grade))
    return {pair: (pool, np.array(grades)) for pair, (pool, grades) in pools.items()}


TASK = Task(read=lambda job: read_cube(job.data), measure=measure)


def main(arguments: argparse.Namespace) -> None:
    """Evaluate the models and write the report."""
    job = EvaluateFlags(
        task="csfcube",  # type: ignore[arg-type]
        model=tuple(arguments.model),
        data=arguments.data,
        output=arguments.output,
        resamples=arguments.resamples,
        compute=arguments.compute,
    )
    metrics = evaluate(job, vectors_of=VectorCache(AutoRunner()).vectors_of, task=TASK)
    print(render_ranked(metrics))
    figures = {system["name"]: system["figures"][ALL] for system in metrics["systems"]}
    finish({"ratios": {}, "systems": figures})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", required=True)
    parser.add_argument("--data", required=True, help="folder of corpus.jsonl and qrels_dev.csv")
    parser.add_argument("--output", required=True, help="folder of the report")
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--compute", choices=("float32", "bfloat16"))
    main(parser.parse_args())
