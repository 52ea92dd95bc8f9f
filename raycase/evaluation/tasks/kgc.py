"""Knowledge graph completion (CSR, section 3.2): the head under its relation, against every entity as the tail.

Shapes: E entities, Q queries (each triple both ways), D dimensions.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from raycase.data.graph import Known, read_graph
from raycase.errors import RequestError
from raycase.evaluation.graph_metrics import MEASURES, filtered_ranks, rank_measures
from raycase.evaluation.job import EvaluateJob, check_request
from raycase.evaluation.models import find_models
from raycase.evaluation.ranked import report
from raycase.systems.contracts import VectorsOf
from raycase.systems.projector import project


def evaluate(job: EvaluateJob, *, vectors_of: VectorsOf) -> dict[str, Any]:
    """Measure, write the report, and give what `metrics.json` holds. Raises RequestError and WorkError."""
    began = time.time()
    folder = check_request(job)
    data = job.data.rstrip("/")
    graph = read_graph(data, "--data")
    train, asked = (graph.triples(f"{data}/{part}.tsv", "--data") for part in ("train", "validation"))
    known = Known.of(train, asked)
    models = find_models(job)
    heads, relations, tails = asked.rows.T
    pairs = [(graph.entities[h], graph.relations[r]) for h, r in zip(heads.tolist(), relations.tolist(), strict=True)]
    place_of = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
    rows_Q = np.array([place_of[pair] for pair in pairs])
    texts = {text: i for i, text in enumerate(dict.fromkeys(graph.entities))}
    entities_E = np.array([texts[text] for text in graph.entities])
    both = np.arange(len(asked)) < len(asked) // 2
    groups = {"both ways": np.ones(len(asked), bool), "tail": both, "head": ~both}
    systems: list[dict[str, str]] = []
    values: dict[str, dict[str, np.ndarray]] = {}
    for model in models:
        options: dict[str, Any] = {"name": data, "cache": model.cache, "compute": job.compute}
        entities_ED = vectors_of(list(texts), model.config, **options)[entities_E]
        queries_QD = vectors_of(list(place_of), model.config, **options)
        if model.projector:
            queries_QD = project(model.projector, queries_QD)
        if queries_QD.shape[1] != entities_ED.shape[1]:
            raise RequestError(
                f"--model: expected vectors of one dimension with and without condition, got {model.name} with "
                f"{queries_QD.shape[1]} and {entities_ED.shape[1]}"
            )
        ranks_Q = filtered_ranks(queries_QD[rows_Q], entities_ED, tails, asked.queries, known)
        found = rank_measures(ranks_Q)
        systems.append({"name": model.name, "what": f"{model.config.label}: {model.config.formula} against f(tail)"})
        values[model.name] = {name: found[chosen] for name, chosen in groups.items()}
    return report(
        job,
        folder,
        began,
        title="Knowledge graph completion: the true entity among all, x 100",
        about=(
            f"{len(asked) // 2:,} triples, each asked for its tail and for its head, against {len(graph.entities):,} "
            "entities; other answers known from train or validation are left out. Means over queries, with 95 % "
            "intervals of the bootstrap over queries."
        ),
        data={"entities": len(graph.entities), "train": len(train) // 2, "validation": len(asked) // 2},
        measures=MEASURES,
        groups=[{"name": name, "queries": int(chosen.sum())} for name, chosen in groups.items()],
        systems=systems,
        values=values,
    )
