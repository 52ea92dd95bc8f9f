"""CSFCube (Mysore et al., 2021): papers like another one in its background, its method or its result.

Experts graded a pool of candidates for each query (a paper and a facet) from 0 to 3; systems rank the pool. Measures
are those of the collection's own script (`eval_scripts/ranking_eval.py` of iesl/CSFCube): relevant is a grade of 2 or
more, NDCG takes the grades as they are and stops at a fifth of the pool, and R-precision is the precision down to the
last relevant one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raycase.data.inputs import find_input
from raycase.data.rated import read_columns, texts
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob, check_request
from raycase.evaluation.metrics import average_precision, full_recall_precision, ndcg_at, recall_at
from raycase.evaluation.models import Model, before_g, encoder_names, find_models, is_case, setting
from raycase.evaluation.ranked import report
from raycase.search.topk import l2_normalize
from raycase.systems.contracts import VectorsOf
from raycase.systems.projector import project

# The facets that experts judged: the labels of sentences that belong to each, and the condition that stands for it.
FACETS = {"background": ("background", "objective", "other"), "method": ("method",), "result": ("result",)}
CONDITIONS = {"background": "the research problem", "method": "the proposed method", "result": "the main result"}
RELEVANT = 2  # the least grade
MAP, NDCG, R_PRECISION, RECALL = "MAP", "NDCG at 20 %", "R-precision", "recall at 20"
MEASURES = (MAP, NDCG, R_PRECISION, RECALL)
ALL = "all"
Pair = tuple[str, str]  # a paper's id and a facet
Score = Callable[[int, np.ndarray], np.ndarray]  # pair of the query, pairs of the candidates -> scores


@dataclass(frozen=True, kw_only=True)
class Paper:
    """Title and abstract, whose sentences have a label each."""

    title: str
    sentences: tuple[str, ...]
    labels: tuple[str, ...]

    @property
    def abstract(self) -> str:
        return " ".join(self.sentences)

    @property
    def text(self) -> str:
        return f"{self.title} {self.abstract}"

    def of(self, facet: str) -> list[str]:
        """The facet's own sentences; all, where there is none."""
        pairs = zip(self.sentences, self.labels, strict=True)
        return [s for s, label in pairs if label in FACETS[facet]] or list(self.sentences)

    def beside(self, facet: str) -> str:
        """The title and all sentences that are not the facet's."""
        own = set(self.of(facet))
        return " ".join([self.title, *(s for s in self.sentences if s not in own)])


@dataclass(frozen=True, kw_only=True)
class Cube:
    """The papers, and what was judged: for each query its pool of candidates with their grades."""

    papers: dict[str, Paper]
    pools: dict[Pair, tuple[list[str], np.ndarray]]

    def pairs(self) -> dict[Pair, int]:
        """Every paper that is a query or a candidate, with the facet that it is judged in; numbered."""
        found = [(paper, facet) for (query, facet), (pool, _) in self.pools.items() for paper in (query, *pool)]
        return {pair: i for i, pair in enumerate(dict.fromkeys(found))}


def evaluate(job: EvaluateJob, *, vectors_of: VectorsOf) -> dict[str, Any]:
    """Measure, write the report, and give what `metrics.json` holds. Raises RequestError and WorkError."""
    began = time.time()
    folder = check_request(job)
    cube = read_cube(job.data, job.qrels)
    models = find_models(job)
    pairs = cube.pairs()
    systems: list[dict[str, str]] = []
    values: dict[str, np.ndarray] = {}
    plain: dict[str, np.ndarray] = {}  # of each encoder, (P, D)

    def add(name: str, what: str, score: Score) -> None:
        systems.append({"name": name, "what": what})
        values[name] = measure(cube, pairs, score)

    for model, encoder in zip(models, encoder_names([m.config for m in models]), strict=True):
        if encoder not in plain:
            plain[encoder] = _add_plain(add, cube, pairs, model, encoder, job, vectors_of)
        asked = [(cube.papers[paper].abstract, CONDITIONS[facet]) for paper, facet in pairs]
        distinct, rows = _distinct(asked)
        vectors = vectors_of(distinct, model.config, name=job.data, cache=model.cache, compute=job.compute)
        if model.projector:
            vectors = project(model.projector, vectors)
        case_PD = l2_normalize(vectors)[rows]
        what = f"{model.config.formula} of the abstract under the facet's condition"
        add(f"{model.name}: {'CASE' if is_case(model.config) else 'conditional'}", what, _cosine(case_PD))
        both = l2_normalize(np.hstack([plain[encoder], case_PD]))
        add(
            f"{model.name}: plain + {'CASE' if is_case(model.config) else 'conditional'}",
            "half of each one's cosine",
            _cosine(both),
        )
    facet_Q = np.array([facet for _, facet in cube.pools])
    chosen = {ALL: np.ones(len(facet_Q), bool)} | {f: facet_Q == f for f in FACETS if f in facet_Q}
    by_group = {name: {g: 100 * found[rows_Q] for g, rows_Q in chosen.items()} for name, found in values.items()}
    return report(
        job,
        folder,
        began,
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
        groups=[{"name": name, "queries": int(rows_Q.sum())} for name, rows_Q in chosen.items()],
        systems=systems,
        values=by_group,
    )


# ---------------------------------------------------------------------------------------------------------- systems


def _add_plain(
    add: Callable[[str, str, Score], None],
    cube: Cube,
    pairs: dict[Pair, int],
    model: Model,
    encoder: str,
    job: EvaluateJob,
    vectors_of: VectorsOf,
) -> np.ndarray:
    """The systems of an encoder on a paper's own sentences; gives the plain vectors, (P, D), unit."""

    def embedded(wanted: Sequence[str]) -> np.ndarray:
        distinct, rows = _distinct(wanted)
        return l2_normalize(vectors_of(distinct, model.config, name=job.data, cache=model.cache, compute=job.compute))[
            rows
        ]

    papers = [(cube.papers[paper], facet) for paper, facet in pairs]
    plain_PD = embedded([paper.text for paper, _ in papers])
    facet_PD = {facet: embedded([" ".join(paper.of(facet)) for paper, _ in papers]) for facet in FACETS}
    own_PD = _choose(facet_PD, [facet for _, facet in papers])
    titled_PD = embedded([" ".join([paper.title, *paper.of(facet)]) for paper, facet in papers])
    in_context = before_g(model.config, subtract=False)
    distinct, rows = _distinct(fitting([(paper.beside(facet), paper.of(facet)) for paper, facet in papers], in_context))
    context_PD = l2_normalize(
        vectors_of(distinct, in_context, name=job.data, cache=model.cache, compute=job.compute)[rows]
    )
    names = list(FACETS)
    other_PD = _choose(facet_PD, [names[names.index(facet) - 1] for _, facet in papers])
    every_PD = l2_normalize(np.sum(list(facet_PD.values()), axis=0))
    for name, what, vectors in (
        ("plain", "f(title and abstract)", plain_PD),
        ("facet", "f(the facet's own sentences)", own_PD),
        ("plain + facet", "sum of both unit vectors", plain_PD + own_PD),
        ("title and facet", "f(title and the facet's own sentences), one text", titled_PD),
        (
            "facet in context",
            f"{setting(in_context)}: s the rest of the paper, c the facet's own sentences",
            context_PD,
        ),
        ("title and facet + facet in context", "sum of both unit vectors", titled_PD + context_PD),
        ("control: plain + another facet", "the sentences of a facet that is not asked for", plain_PD + other_PD),
        ("control: plain + all facets", "no condition: the mean of the three facets' vectors", plain_PD + every_PD),
    ):
        add(f"{encoder}: {name}", what, _cosine(l2_normalize(vectors)))
    sentence_SD = embedded([sentence for paper, facet in papers for sentence in paper.of(facet)])
    best = best_match(np.split(sentence_SD, np.cumsum([len(paper.of(facet)) for paper, facet in papers])[:-1]))
    plain = _cosine(plain_PD)
    what = "mean over the query's facet sentences of the largest cosine to one of the candidate's"
    add(f"{encoder}: best sentences", what, best)
    add(f"{encoder}: plain + best sentences", "half of each", lambda q, pool: plain(q, pool) + best(q, pool))
    return plain_PD


def fitting(pairs: Sequence[tuple[str, list[str]]], config: Any) -> list[tuple[str, str]]:
    """(the rest, the facet's own sentences as one text); the last of these are left out until they fit the encoder."""
    joined = [(rest, " ".join(own)) for rest, own in pairs]
    for row in np.flatnonzero(config.count_tokens(*zip(*joined, strict=True)) == 0).tolist():
        rest, own = pairs[row]
        while len(own) > 1 and not config.count_tokens([rest], [" ".join(own)])[0]:
            own = own[:-1]
        joined[row] = rest, " ".join(own)
    return joined


def _choose(of_facet_PD: dict[str, np.ndarray], facets: Sequence[str]) -> np.ndarray:
    """Of each pair the vector of one facet: (P, D)."""
    return np.stack([of_facet_PD[facet][row] for row, facet in enumerate(facets)])


def _distinct(values: Sequence[Any]) -> tuple[list[Any], np.ndarray]:
    """The distinct values, and the place of each value among them."""
    number = {value: i for i, value in enumerate(dict.fromkeys(values))}
    return list(number), np.array([number[value] for value in values])


def _cosine(unit_PD: np.ndarray) -> Score:
    return lambda query, pool: unit_PD[pool] @ unit_PD[query]


def best_match(sentences: Sequence[np.ndarray]) -> Score:
    """Mean over the query's sentences of the largest cosine to one of the candidate's; P times (S, D), unit."""
    return lambda query, pool: np.array([(sentences[query] @ sentences[c].T).max(axis=1).mean() for c in pool])


# --------------------------------------------------------------------------------------------------------- measures


def measure(cube: Cube, pairs: dict[Pair, int], score: Score) -> np.ndarray:
    """Each of `MEASURES` for each query: (Q, 4). Equal scores keep the order of the file."""
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
    """`corpus.jsonl` and the judgements of a folder. Raises RequestError for what is missing or does not fit."""
    root = folder.rstrip("/")
    papers: dict[str, Paper] = {}
    for file in find_input(f"{root}/corpus.jsonl", "--data"):
        found = read_columns(file, ("id", "title", "sentences"), "--data")
        lines = zip(found["id"], found["title"], found["sentences"], strict=True)
        for row, (paper, title, sentences) in enumerate(lines):
            try:
                pairs = [(str(s["text"]), str(s["facet"])) for s in sentences]  # type: ignore[attr-defined]
                texts_of, labels = zip(*pairs, strict=True)
            except (TypeError, KeyError, ValueError) as error:
                said = f"--data: {file.uri}, row {row}: expected a list of {{text, facet}} as sentences"
                raise RequestError(f"{said}, got {sentences!r:.80}") from error
            if str(paper) in papers:
                raise RequestError(f"--data: {file.uri}, row {row}: expected each paper once, got {paper} twice")
            papers[str(paper)] = Paper(title=str(title), sentences=texts_of, labels=labels)
    pools: dict[Pair, tuple[list[str], list[int]]] = {}
    for file in find_input(qrels or f"{root}/qrels_dev.csv", "--qrels"):
        found = read_columns(file, ("query_id", "facet", "candidate_id", "relevance"), "--qrels")
        judged = zip(*(texts(found[name], f"--qrels: {file.uri}", name) for name in found), strict=True)
        for row, (query, facet, candidate, grade) in enumerate(judged):
            for paper in (query, candidate):
                if paper not in papers:
                    raise RequestError(f"--qrels: {file.uri}, row {row}: expected a paper of the corpus, got {paper!r}")
            if facet not in FACETS or grade not in ("0", "1", "2", "3"):
                raise RequestError(
                    f"--qrels: {file.uri}, row {row}: expected a facet of {', '.join(FACETS)} and a grade from 0 to 3, "
                    f"got {facet!r} and {grade!r}"
                )
            pool, grades = pools.setdefault((query, facet), ([], []))
            pool.append(candidate)
            grades.append(int(grade))
    if not pools:
        raise RequestError(f"--qrels: expected judgements in {qrels or root}, got none")
    for (query, facet), (pool, _) in pools.items():
        twice, times = Counter(pool).most_common(1)[0]
        if times > 1:
            raise RequestError(f"--qrels: expected each candidate once, got {twice} {times} times for {query}, {facet}")
    return Cube(papers=papers, pools={pair: (pool, np.array(grades)) for pair, (pool, grades) in pools.items()})
