"""CSFCube (Mysore et al., 2021): papers like another one in its background, its method or its result.

Experts graded a pool of candidates for each query (a paper and a facet) from 0 to 3; systems rank the pool. Measures
are those of the collection's own script (`eval_scripts/ranking_eval.py` of iesl/CSFCube): relevant is a grade of 2 or
more, NDCG takes the grades as they are and stops at a fifth of the pool, and R-precision is the precision down to the
last relevant one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raycase.data.inputs import find_input
from raycase.data.rated import read_columns, texts
from raycase.data.vectors import l2_normalize
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.models import Model, encoder_names, is_case
from raycase.evaluation.procedure import EmbedPairs
from raycase.evaluation.ranking import average_precision, full_recall_precision, ndcg_at, recall_at
from raycase.evaluation.report import RankedSystem, rank_systems

# The facets that experts judged, and the condition that stands for each.
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


def read(job: EvaluateJob) -> Cube:
    """Read the papers and the judgements. Raises RequestError."""
    return read_cube(job.data, job.qrels)


def measure(job: EvaluateJob, cube: Cube, models: Sequence[Model], embed: EmbedPairs) -> dict[str, Any]:
    """Rank each query's pool by each encoder's plain vectors and by each model's conditional ones."""
    pairs = cube.pairs()
    under = [(cube.papers[paper], CONDITIONS[facet]) for paper, facet in pairs]
    plain_vectors: dict[str, np.ndarray] = {}  # encoder -> (P, D)
    scorers: list[NamedScore] = []
    for model, encoder in zip(models, encoder_names([m.config for m in models]), strict=True):
        if encoder not in plain_vectors:
            plain_vectors[encoder] = embed_papers([text for text, _ in under], model, embed)
            scorers.append((f"{encoder}: plain", "f(title and abstract)", _cosine(plain_vectors[encoder])))
        scorers += conditional_scorers(under, plain_vectors[encoder], model, embed)
    facet_Q = np.array([facet for _, facet in cube.pools])
    groups = {ALL: np.ones(len(facet_Q), bool)} | {f: facet_Q == f for f in CONDITIONS if f in facet_Q}
    systems = []
    for name, what, score in scorers:
        measures_QM = rank_pools(cube, pairs, score)
        values = {group: 100 * measures_QM[rows_Q] for group, rows_Q in groups.items()}
        systems.append(RankedSystem(name=name, what=what, values=values))
    return rank_systems(
        job,
        title="CSFCube: papers like another one in background, method or result, x 100",
        about=(
            f"{len(facet_Q)} queries (a paper and a facet); each ranks its own pool of candidates, which experts "
            "graded. Means over queries, with 95 % intervals of the bootstrap over queries."
        ),
        data={
            "queries": len(facet_Q),
            "judgements": sum(len(pool) for pool, _ in cube.pools.values()),
            "papers": len(cube.papers),
            "qrels": job.qrels or "qrels_dev.csv",
        },
        measures=MEASURES,
        groups=[{"name": name, "queries": int(rows_Q.sum())} for name, rows_Q in groups.items()],
        systems=systems,
    )


# ---------------------------------------------------------------------------------------------------------- systems


def embed_papers(
    texts: Sequence[str] | Sequence[tuple[str, str]], model: Model, embed: EmbedPairs, *, projected: bool = False
) -> np.ndarray:
    """Unit vectors of texts or of (text, condition), which may repeat: (P, D)."""
    row_of: dict[Any, int] = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    vectors = embed(list(row_of), model)
    return l2_normalize(model.project(vectors) if projected else vectors)[[row_of[text] for text in texts]]


def conditional_scorers(
    under: Sequence[tuple[str, str]], plain_PD: np.ndarray, model: Model, embed: EmbedPairs
) -> list[NamedScore]:
    """A model's vectors of title and abstract under the facet's condition, alone and beside the plain vectors, which
    are of the same text."""
    label = "CASE" if is_case(model.config) else "conditional"
    what = f"{model.config.formula} of title and abstract under the facet's condition"
    conditional_PD = embed_papers(under, model, embed, projected=True)
    both_PD = l2_normalize(np.hstack([plain_PD, conditional_PD]))
    return [
        (f"{model.name}: {label}", what, _cosine(conditional_PD)),
        (f"{model.name}: plain + {label}", "half of each one's cosine", _cosine(both_PD)),
    ]


def _cosine(unit_PD: np.ndarray) -> Score:
    return lambda query, pool: unit_PD[pool] @ unit_PD[query]


# --------------------------------------------------------------------------------------------------------- measures


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


def read_cube(folder: str, qrels: str | None = None) -> Cube:
    """Read `corpus.jsonl` and the judgements of a folder.

    Raises RequestError for a missing file, a broken row, and a judgement that does not fit the papers.
    """
    root = folder.rstrip("/")
    papers = _read_papers(f"{root}/corpus.jsonl")
    return Cube(uri=folder, papers=papers, pools=_read_pools(qrels or f"{root}/qrels_dev.csv", papers))


def _read_papers(uri: str) -> dict[str, str]:
    """Title and abstract by id."""
    papers: dict[str, str] = {}
    for file in find_input(uri, "--data"):
        columns = read_columns(file, ("id", "title", "sentences"), "--data")
        lines = zip(columns["id"], columns["title"], columns["sentences"], strict=True)
        for row, (paper, title, sentences) in enumerate(lines):
            try:
                abstract = " ".join(str(s["text"]) for s in sentences)  # type: ignore[attr-defined]
            except (TypeError, KeyError) as error:
                expected = f"--data: {file.uri}, row {row}: expected a list of {{text}} as sentences"
                raise RequestError(f"{expected}, got {sentences!r:.80}") from error
            if str(paper) in papers:
                raise RequestError(f"--data: {file.uri}, row {row}: expected each paper once, got {paper} twice")
            papers[str(paper)] = f"{title} {abstract}"
    return papers


def _read_pools(uri: str, papers: dict[str, str]) -> dict[PaperFacet, tuple[list[str], np.ndarray]]:
    """The candidates of each query and their grades."""
    pools: dict[PaperFacet, tuple[list[str], list[int]]] = {}
    for file in find_input(uri, "--qrels"):
        columns = read_columns(file, ("query_id", "facet", "candidate_id", "relevance"), "--qrels")
        lines = zip(*(texts(columns[name], f"--qrels: {file.uri}", name) for name in columns), strict=True)
        for row, (query, facet, candidate, grade) in enumerate(lines):
            for paper in (query, candidate):
                if paper not in papers:
                    raise RequestError(f"--qrels: {file.uri}, row {row}: expected a paper of the corpus, got {paper!r}")
            if facet not in CONDITIONS or grade not in ("0", "1", "2", "3"):
                raise RequestError(
                    f"--qrels: {file.uri}, row {row}: expected a facet of {', '.join(CONDITIONS)} and a grade 0 to 3, "
                    f"got {facet!r} and {grade!r}"
                )
            pool, grades = pools.setdefault((query, facet), ([], []))
            pool.append(candidate)
            grades.append(int(grade))
    if not pools:
        raise RequestError(f"--qrels: expected judgements in {uri}, got none")
    for (query, facet), (pool, _) in pools.items():
        candidate, times = Counter(pool).most_common(1)[0]
        if times > 1:
            raise RequestError(
                f"--qrels: expected each candidate once, got {candidate} {times} times for {query}, {facet}"
            )
    return {pair: (pool, np.array(grades)) for pair, (pool, grades) in pools.items()}
