"""Knowledge graph completion (CSR, section 3.2): the head under its relation, against every entity as the tail.

Shapes: E entities, Q queries (each triple in both directions), D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raycase.data.graph import Graph, Known, Triples, read_graph
from raycase.errors import RequestError
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.models import Model
from raycase.evaluation.procedure import EmbedPairs
from raycase.evaluation.ranking import MEASURES, filtered_ranks, rank_measures
from raycase.evaluation.report import RankedSystem, rank_systems


@dataclass(frozen=True, kw_only=True)
class KgcData:
    """A graph and its triples: those of the last part are queried, the others only known to be true."""

    uri: str
    graph: Graph
    parts: dict[str, Triples]  # train, validation and, where it is asked for, test

    @property
    def queried(self) -> Triples:
        """The triples that are queried."""
        return self.parts[list(self.parts)[-1]]


def read(job: EvaluateJob) -> KgcData:
    """Read the folder of the graph. Raises RequestError."""
    folder = job.data.rstrip("/")
    graph = read_graph(folder, "--data")
    names = ["train", "validation", *(["test"] if job.split == "test" else [])]
    parts = {name: graph.triples(f"{folder}/{name}.tsv", "--data") for name in names}
    return KgcData(uri=folder, graph=graph, parts=parts)


def measure(job: EvaluateJob, data: KgcData, models: Sequence[Model], embed: EmbedPairs) -> dict[str, Any]:
    """Rank all entities for each query of each model."""
    graph, queries = data.graph, data.queried
    known = Known.of(*data.parts.values())
    heads, relations, tails = queries.rows.T
    pairs = [(graph.entities[h], graph.relations[r]) for h, r in zip(heads.tolist(), relations.tolist(), strict=True)]
    pair_rows = {pair: row for row, pair in enumerate(dict.fromkeys(pairs))}
    text_rows = {text: row for row, text in enumerate(dict.fromkeys(graph.entities))}
    pair_index_Q = np.array([pair_rows[pair] for pair in pairs])
    text_index_E = np.array([text_rows[text] for text in graph.entities])
    triples = len(queries) // 2
    is_tail_Q = np.arange(len(queries)) < triples
    groups = {"both ways": np.ones(len(queries), bool), "tail": is_tail_Q, "head": ~is_tail_Q}
    systems = []
    for model in models:
        entities_ED = embed(list(text_rows), model)[text_index_E]
        queries_QD = model.project(embed(list(pair_rows), model))
        if queries_QD.shape[1] != entities_ED.shape[1]:
            raise RequestError(
                f"--model: expected vectors of one dimension with and without condition, got {model.name} with "
                f"{queries_QD.shape[1]} and {entities_ED.shape[1]}"
            )
        measures_QM = rank_measures(
            filtered_ranks(queries_QD[pair_index_Q], entities_ED, tails, queries.queries, known)
        )
        what = f"{model.config.label}: {model.config.formula} against f(tail)"
        values = {name: measures_QM[group_Q] for name, group_Q in groups.items()}
        systems.append(RankedSystem(name=model.name, what=what, values=values))
    return rank_systems(
        job,
        title="Knowledge graph completion: the true entity among all, x 100",
        about=(
            f"{triples:,} triples of {list(data.parts)[-1]}, each asked for its tail and for its head, against "
            f"{len(graph.entities):,} entities; other answers known from {' or '.join(data.parts)} are left out. Means "
            "over queries, with 95 % intervals of the bootstrap over queries."
        ),
        data={"entities": len(graph.entities)} | {name: len(part) // 2 for name, part in data.parts.items()},
        measures=MEASURES,
        groups=[{"name": name, "queries": int(group_Q.sum())} for name, group_Q in groups.items()],
        systems=systems,
    )
