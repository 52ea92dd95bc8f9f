"""CSFCube (Mysore et al., 2021): papers like another one in its background, its method or its result.

Experts graded a pool of candidates for each query (a paper and a facet) from 0 to 3; systems rank the pool. Measures
are those of the collection's own script (`eval_scripts/ranking_eval.py` of iesl/CSFCube): relevant is a grade of 2 or
more, NDCG takes the grades as they are and stops at a fifth of the pool, and R-precision is the precision down to the
last relevant one.

    python -m benchmarks.quality.csfcube --model minilm-conditional-v3 condition-pooling:minilm --data csfcube \\
        --output runs/csfcube

Shapes: P judged pairs of paper and facet, Q queries, N of a pool, best first.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.quality.reports import encoder_names, report_parser, write_report
from benchmarks.turns import finish
from raycase.encoder.chunks import Chunking
from raycase.evaluation.report import RankedSystem, rank_systems, ranked_values
from raycase.evaluation.tasks import Task
from raycase.io.reader import read_files
from raycase.io.vectors import l2_normalize

CHUNK = 64  # tokens
CONDITIONS = {"background": "the research problem", "method": "the proposed method", "result": "the main result"}
RELEVANT = 2  # the least grade
MEASURES = ("MAP", "NDCG at 20 %", "R-precision", "recall at 20")
PaperFacet = tuple[str, str]  # a paper's id and a facet


@dataclass(frozen=True, kw_only=True)
class Cube:
    """Title and abstract of the papers, and the judgements: for each query its pool of candidates with their grades."""

    uri: str
    papers: dict[str, str]
    pools: dict[PaperFacet, tuple[list[str], list[int]]]

    def pairs(self):
        """Every query and candidate with the facet that it is judged in -> its number, the P rows of vectors."""
        judged = [(paper, facet) for (query, facet), (pool, _) in self.pools.items() for paper in (query, *pool)]
        return {pair: i for i, pair in enumerate(dict.fromkeys(judged))}


@dataclass(frozen=True)
class Ranking:
    """A system: its name, the vectors it ranks by, and the scores of candidates for a query, all by their pairs."""

    name: str
    what: str
    score: Callable[[int, np.ndarray], np.ndarray]


def read_cube(data):
    """`corpus.jsonl` and `qrels_dev.csv` of a folder. Raises RequestError for a missing file."""
    root, papers, pools = data.rstrip("/"), {}, {}
    for _, columns in read_files(f"{root}/corpus.jsonl", ("id", "title", "sentences"), "--data"):
        for paper, title, sentences in zip(columns["id"], columns["title"], columns["sentences"], strict=True):
            papers[str(paper)] = f"{title} {' '.join(str(s['text']) for s in sentences)}"
    names = ("query_id", "facet", "candidate_id", "relevance")
    for _, columns in read_files(f"{root}/qrels_dev.csv", names, "--data", words=names):
        for query, facet, candidate, grade in zip(*columns.values(), strict=True):
            pool, grades = pools.setdefault((query, facet), ([], []))
            pool.append(candidate)
            grades.append(int(grade))
    return Cube(uri=data, papers=papers, pools=pools)


def measure(settings, cube, models):
    """Rank each query's pool by each encoder's unconditional vectors and by each model's conditional ones."""
    pairs = cube.pairs()
    under = [(cube.papers[paper], CONDITIONS[facet]) for paper, facet in pairs]
    unconditional, rankings = {}, []  # encoder -> (P, D)
    for model, encoder in zip(models, encoder_names(models), strict=True):
        if encoder not in unconditional:
            unconditional[encoder] = vectors_PD = embed_papers([text for text, _ in under], model)
            name = f"{encoder}: unconditional"
            rankings += [Ranking(name, "f(title and abstract)", cosine(vectors_PD)), chunked(under, vectors_PD, model)]
        conditional_PD = embed_papers(under, model, projected=True)
        both_PD = l2_normalize(np.hstack([unconditional[encoder], conditional_PD]))
        what = f"{model.config.formula} of title and abstract under the facet's condition"
        name = f"{model.name}: conditional"
        rankings += [
            Ranking(name, what, cosine(conditional_PD)),
            Ranking(f"{name} + unconditional", "half of each one's cosine", cosine(both_PD)),
            chunked(under, conditional_PD, model, conditional=True),
        ]
    facet_Q = np.array([facet for _, facet in cube.pools])
    groups = {"all": np.ones(len(facet_Q), bool)} | {f: facet_Q == f for f in CONDITIONS if f in facet_Q}
    systems = []
    for each in rankings:
        measures_QM = rank_pools(cube, pairs, each.score)
        values = {group: measures_QM[rows_Q] for group, rows_Q in groups.items()}
        systems.append(RankedSystem(name=each.name, what=each.what, values=values))
    judgements = sum(len(pool) for pool, _ in cube.pools.values())
    return rank_systems(
        settings,
        title="CSFCube: papers like another one in background, method or result, x 100",
        about=f"{len(facet_Q)} queries (a paper and a facet); each ranks its own pool of candidates, which experts "
        "graded. Means over queries, with 95 % intervals of the bootstrap over queries.",
        data={"queries": len(facet_Q), "judgements": judgements, "papers": len(cube.papers), "qrels": "qrels_dev.csv"},
        measures=MEASURES,
        systems=systems,
    )


def embed_papers(texts, model, *, projected=False):
    """Unit vectors of texts or of (text, condition), which may repeat: (P, D)."""
    row_of = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    vectors = model.embed(list(row_of))
    return l2_normalize(model.project(vectors) if projected else vectors)[[row_of[text] for text in texts]]


def cosine(unit_PD):
    """Scores by these vectors."""
    return lambda query, pool: unit_PD[pool] @ unit_PD[query]


def chunked(under, whole_PD, model, *, conditional=False):
    """As `search --per document`: the query's whole text with the best chunk of each candidate."""
    cut = Chunking(tokens=CHUNK).cut
    chunks = [[text[start:end] for start, end in cut(model.config.encoder, text)] for text, _ in under]
    of_pairs = [(chunk, condition) for of_text, (_, condition) in zip(chunks, under, strict=True) for chunk in of_text]
    asked = of_pairs if conditional else [chunk for chunk, _ in of_pairs]
    vectors = np.split(embed_papers(asked, model, projected=conditional), np.cumsum([*map(len, chunks)])[:-1])
    what = f"the query's vector of title and abstract with the best of the candidate's chunks of {CHUNK} tokens"

    def score(query, pool):
        return np.array([(vectors[paper] @ whole_PD[query]).max() for paper in pool])

    return Ranking(f"{model.name}: {'conditional, ' * conditional}best chunk", what, score)


def average_precision(relevant_N):
    """Mean over the relevant items of the precision down to each; 0 without relevant items."""
    ranks = np.flatnonzero(relevant_N) + 1
    return float(np.mean(np.arange(1, len(ranks) + 1) / ranks)) if len(ranks) else 0.0


def full_recall_precision(relevant_N):
    """Precision of a ranking down to its last relevant item; 0 without relevant items.

    CSFCube's script calls it R-precision, which elsewhere is the precision of the first R of R relevant items.
    """
    ranks = np.flatnonzero(relevant_N) + 1
    return float(len(ranks) / ranks[-1]) if len(ranks) else 0.0


def ndcg_at(grades_N, k):
    """Discounted gain of the first k of a ranking over that of the ideal ranking; 0 if no grade is above 0.

    Gains are the grades themselves; the discount of rank i is log2(i), 1 for the first (Jarvelin and Kekalainen, 2002).
    """
    discounts = np.concatenate([[1.0], np.log2(np.arange(2, max(2, len(grades_N)) + 1))])[: len(grades_N)]
    best = (np.sort(grades_N)[::-1] / discounts)[:k].sum()
    return float((grades_N / discounts)[:k].sum() / best) if best > 0 else 0.0


def rank_pools(cube, pairs, score):
    """`MEASURES` of each query: (Q, 4). Equal scores keep the order of the file."""
    rows = []
    for (query, facet), (pool, grades) in cube.pools.items():
        scores = score(pairs[query, facet], np.array([pairs[candidate, facet] for candidate in pool]))
        ranked = np.array(grades)[np.argsort(-scores, kind="stable")]
        relevant = ranked >= RELEVANT
        recall = relevant[:20].sum() / max(1, relevant.sum())
        ndcg = ndcg_at(ranked, int(0.2 * len(ranked)))
        rows.append([average_precision(relevant), ndcg, full_recall_precision(relevant), recall])
    return np.array(rows)


if __name__ == "__main__":
    arguments = report_parser(__doc__, "folder of corpus.jsonl and qrels_dev.csv").parse_args()
    metrics = write_report(arguments, Task(read=read_cube, measure=measure), task="csfcube")
    finish(systems=ranked_values(metrics), output=arguments.output)
