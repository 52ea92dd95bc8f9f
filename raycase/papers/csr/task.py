"""Knowledge graph completion (CSR, section 3.2): the head under its relation, against every entity as the tail.

Shapes: E entities, R relations (each also inverted), N triples, Q queries (each triple in both directions), D
dimensions.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.models import Model
from raycase.evaluation.procedure import Task
from raycase.evaluation.report import RankedSystem, rank_systems
from raycase.io.columns import check_once
from raycase.io.rated import texts_sha256
from raycase.io.source import read_text

MEASURES = ("mrr", "hits@1", "hits@3", "hits@10")
INVERSE = "inverse "  # prefix of a relation's text from tail to head (SimKGC)


@dataclass(frozen=True, kw_only=True)
class Graph:
    """Texts of the entities ("name: definition"), and of the R relations followed by their R inverses."""

    entities: list[str]
    relations: list[str]
    entity_ids: list[str]
    relation_ids: list[str]

    def triples(self, uri: str, flag: str) -> Triples:
        """Read lines of head, relation and tail, and add the inverse of each.

        Raises RequestError, with the line, for an unknown entity or relation, and for a file without triples.
        """
        entity = {name: i for i, name in enumerate(self.entity_ids)}
        relation = {name: i for i, name in enumerate(self.relation_ids)}
        rows = []
        for line, values in _lines(uri, flag, 3):
            head, between, tail = values
            for name, known in ((head, entity), (between, relation), (tail, entity)):
                if name not in known:
                    raise RequestError(f"{flag}: {uri}, line {line}: expected what the graph has, got {name!r}")
            rows.append((entity[head], relation[between], entity[tail]))
        if not rows:
            raise RequestError(f"{flag}: expected triples in {uri}, got none")
        forward = np.array(rows, dtype=np.int64)
        inverse = np.stack([forward[:, 2], forward[:, 1] + len(relation), forward[:, 0]], axis=1)
        return Triples(uri=uri, rows=np.concatenate([forward, inverse]), graph=self)

    @cached_property
    def sha256(self) -> str:
        """Hash of the texts."""
        return texts_sha256([self.entities, self.relations])


@dataclass(frozen=True, kw_only=True)
class Triples:
    """N triples and their inverses: rows (2 N, 3) of head, relation, tail; the last N are the inverses."""

    uri: str
    rows: np.ndarray
    graph: Graph

    def __len__(self) -> int:
        return len(self.rows) // 2

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The texts of each row's head and relation: 2 N."""
        entities, relations = self.graph.entities, self.graph.relations
        return [(entities[head], relations[between]) for head, between, _ in self.rows.tolist()]

    @cached_property
    def queries(self) -> np.ndarray:
        """The number of each row's query (head, relation): (2 N,)."""
        return self.rows[:, 1] * len(self.graph.entities) + self.rows[:, 0]

    @cached_property
    def data_sha256(self) -> str:
        """Hash of triples and texts."""
        return hashlib.sha256(self.rows.tobytes() + self.graph.sha256.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Known:
    """The known tails of each query (head, relation)."""

    entities: int
    pairs: np.ndarray  # sorted numbers of (head, relation, tail)

    @classmethod
    def of(cls, *triples: Triples) -> Known:
        """The tails known from all these triples."""
        entities = len(triples[0].graph.entities)
        numbers = np.concatenate([t.queries * entities + t.rows[:, 2] for t in triples])
        return cls(entities=entities, pairs=np.unique(numbers))

    def has(self, queries: np.ndarray, tails: np.ndarray) -> np.ndarray:
        """Whether a tail is known for a query, elementwise with broadcasting: bool."""
        numbers = queries * self.entities + tails
        index = np.searchsorted(self.pairs, numbers).clip(max=len(self.pairs) - 1)
        return np.asarray(self.pairs[index] == numbers)

    def tails(self, query: int) -> np.ndarray:
        """All known tails of a query."""
        first, stop = np.searchsorted(self.pairs, [query * self.entities, (query + 1) * self.entities])
        return np.asarray(self.pairs[first:stop] - query * self.entities)


def read_graph(folder: Path | str, flag: str) -> Graph:
    """Read `entities.tsv` (header; id, name, ..., definition) and `relations.tsv` (id, text) of a folder.

    Raises RequestError for a missing file or column, a repeated id, and a graph without entities or relations.
    """
    names = [f"{folder}/{name}" for name in ("entities.tsv", "relations.tsv")]
    _, header = next(_lines(names[0], flag, None), (0, []))
    for name in ("id", "name", "definition"):
        check_once(name, header, f"{flag}: {names[0]}")
    rows = [dict(zip(header, values, strict=True)) for line, values in _lines(names[0], flag, len(header)) if line > 1]
    relations = [values for _, values in _lines(names[1], flag, 2) if values != ["id", "text"]]
    if not rows or not relations:
        raise RequestError(f"{flag}: expected entities and relations in {folder}, got {len(rows)} and {len(relations)}")
    for what, ids in (("entity", [r["id"] for r in rows]), ("relation", [i for i, _ in relations])):
        if len(set(ids)) < len(ids):
            twice = Counter(ids).most_common(1)[0][0]
            raise RequestError(f"{flag}: {folder}: expected each {what} once, got {twice!r} twice")
    texts = [text for _, text in relations]
    return Graph(
        entities=[f"{r['name']}: {r['definition']}" if r["definition"].strip() else r["name"] for r in rows],
        relations=[*texts, *(INVERSE + text for text in texts)],
        entity_ids=[r["id"] for r in rows],
        relation_ids=[i for i, _ in relations],
    )


def _lines(uri: str, flag: str, count: int | None) -> Iterator[tuple[int, list[str]]]:
    """Number, from 1, and tab-separated values of each line. Raises RequestError for a wrong number of values."""
    text = read_text(uri)
    lines = text.removesuffix("\n").split("\n") if text else []
    for number, line in enumerate(lines, start=1):
        values = [value.strip() for value in line.split("\t")]
        if count is not None and len(values) != count:
            raise RequestError(f"{flag}: {uri}, line {number}: expected {count} values between tabs, got {len(values)}")
        yield number, values


def filtered_ranks(
    queries_QD: np.ndarray, entities_ED: np.ndarray, triples: Triples, known: Known, *, block: int = 256
) -> np.ndarray:
    """The rank of each query's true tail among all entities by cosine, other known tails left out: (Q,) float64.

    Ranks start at 1; among equal scores the true tail is ranked in the middle. `block` queries are scored at a time.
    """
    entities = torch.nn.functional.normalize(torch.from_numpy(np.ascontiguousarray(entities_ED)).float(), dim=1)
    ranks, tails_Q = np.empty(len(queries_QD)), triples.rows[:, 2]
    for start in range(0, len(queries_QD), block):
        rows = slice(start, start + block)
        queries = torch.nn.functional.normalize(torch.from_numpy(queries_QD[rows]).float(), dim=1)
        scores_qE = (queries @ entities.T).numpy()
        for i, (tail, number) in enumerate(zip(tails_Q[rows].tolist(), triples.queries[rows].tolist(), strict=True)):
            true = scores_qE[i, tail]
            scores_qE[i, known.tails(number)] = -np.inf
            scores_qE[i, tail] = -np.inf
            ranks[start + i] = 1 + (~(scores_qE[i] <= true)).sum() + (scores_qE[i] == true).sum() / 2  # NaN: last
    return ranks


def rank_measures(ranks_Q: np.ndarray) -> np.ndarray:
    """`MEASURES` of each query: the reciprocal rank, and whether it is at most 1, 3 and 10: (Q, 4)."""
    return np.stack([1 / ranks_Q, *(ranks_Q <= k for k in (1, 3, 10))], axis=1)


def read(job: EvaluateJob) -> dict[str, Triples]:
    """Read the parts of the graph: the last one is queried, the others only known to be true. Raises RequestError."""
    folder = job.data.rstrip("/")
    graph = read_graph(folder, "--data")
    names = ["train", "validation", *(["test"] if job.split == "test" else [])]
    return {name: graph.triples(f"{folder}/{name}.tsv", "--data") for name in names}


def measure(job: EvaluateJob, parts: dict[str, Triples], models: Sequence[Model]) -> dict[str, Any]:
    """Rank all entities for each query of each model."""
    queried, known = list(parts.values())[-1], Known.of(*parts.values())
    pairs, entities = queried.pairs, queried.graph.entities
    pair_rows = {pair: row for row, pair in enumerate(dict.fromkeys(pairs))}
    text_rows = {text: row for row, text in enumerate(dict.fromkeys(entities))}
    pair_index_Q = np.array([pair_rows[pair] for pair in pairs])
    text_index_E = np.array([text_rows[text] for text in entities])
    is_tail_Q = np.arange(len(pairs)) < len(queried)
    groups = {"both ways": np.ones(len(pairs), bool), "tail": is_tail_Q, "head": ~is_tail_Q}
    systems = []
    for model in models:
        entities_ED = model.embed(list(text_rows))[text_index_E]
        queries_QD = model.project(model.embed(list(pair_rows)))
        if queries_QD.shape[1] != entities_ED.shape[1]:
            raise RequestError(
                f"--model: expected vectors of one dimension with and without condition, got {model.name} with "
                f"{queries_QD.shape[1]} and {entities_ED.shape[1]}"
            )
        measures_QM = rank_measures(filtered_ranks(queries_QD[pair_index_Q], entities_ED, queried, known))
        what = f"{model.config.label}: {model.config.formula} against f(tail)"
        values = {name: measures_QM[group_Q] for name, group_Q in groups.items()}
        systems.append(RankedSystem(name=model.name, what=what, values=values))
    return rank_systems(
        job,
        title="Knowledge graph completion: the true entity among all, x 100",
        about=(
            f"{len(queried):,} triples of {list(parts)[-1]}, each asked for its tail and for its head, against "
            f"{len(entities):,} entities; other answers known from {' or '.join(parts)} are left out. Means "
            "over queries, with 95 % intervals of the bootstrap over queries."
        ),
        data={"entities": len(entities)} | {name: len(part) for name, part in parts.items()},
        measures=MEASURES,
        systems=systems,
    )


TASKS = {"kgc": Task(read=read, measure=measure, folder=True)}
