"""Entailment, and which sentence is more implicit (DualCSE, sections 4.2 and 4.3), on premises with their hypotheses.

Shapes: N premises, H kinds of hypotheses, T distinct texts, D dimensions.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from raycase.data.inferences import HYPOTHESES, read_inferences
from raycase.evaluation.entailment_metrics import entailment_correct, entailment_scores, implicitness, more_implicit
from raycase.evaluation.job import EvaluateJob, check_request
from raycase.evaluation.models import find_models
from raycase.evaluation.ranked import report
from raycase.systems.contracts import VectorsOf
from raycase.systems.registry import known_conditions

TITLES = {"rte": "Entailment by a threshold", "eis": "Which sentence is more implicit"}
ABOUT = {
    "rte": (
        "{pairs} pairs of a premise and a hypothesis: entailed if the cosine of what both say, or of what the premise "
        "implies and the hypothesis says, is above a threshold, which is tuned on one half of the premises and used on "
        "the other, both ways. Accuracy x 100 with 95 % intervals of the bootstrap over premises."
    ),
    "eis": (
        "{pairs} pairs of a premise and a hypothesis: the premise is taken to be more implicit, and told to be where "
        "its two vectors are further apart. Accuracy x 100 with 95 % intervals of the bootstrap over premises. "
        "`length` takes the longer one."
    ),
}


def evaluate(job: EvaluateJob, *, vectors_of: VectorsOf) -> dict[str, Any]:
    """Measure, write the report, and give what `metrics.json` holds. Raises RequestError and WorkError."""
    began = time.time()
    folder = check_request(job)
    inferences = read_inferences(job.data, "--data")
    models = find_models(job)
    texts, places = inferences.distinct, inferences.text_index
    right: dict[str, np.ndarray] = {}  # (N, H) of each system
    systems: list[dict[str, str]] = []
    for model in models:
        options: dict[str, Any] = {"name": inferences.uri, "cache": model.cache, "compute": job.compute}
        names = known_conditions(model.config)
        if names:
            explicit_TD, implicit_TD = np.split(
                vectors_of([(text, name) for name in names for text in texts], model.config, **options), len(names)
            )
        else:
            explicit_TD = implicit_TD = vectors_of(texts, model.config, **options)
        if job.task == "rte":
            right[model.name] = entailment_correct(entailment_scores(explicit_TD, implicit_TD, places), job.seed)
        else:
            right[model.name] = more_implicit(implicitness(explicit_TD, implicit_TD), places)
        formula = "f(s, explicit), f(s, implicit)" if names else "f(s)"
        systems.append({"name": model.name, "what": f"{model.config.label}: {formula}"})
    if job.task == "eis":
        right["length"] = more_implicit(np.array([len(text) for text in texts]), places)
        systems.append({"name": "length", "what": "the longer sentence"})
    groups = {"all": slice(None)} | {kind: slice(i, i + 1) for i, kind in enumerate(HYPOTHESES.values())}
    values = {  # of each premise, for its pairs share its vectors
        name: {group: 100.0 * found_NH[:, chosen].mean(1, keepdims=True) for group, chosen in groups.items()}
        for name, found_NH in right.items()
    }
    first = values[systems[0]["name"]]
    return report(
        job,
        folder,
        began,
        title=TITLES[job.task],
        about=ABOUT[job.task].format(pairs=f"{len(inferences) * len(HYPOTHESES):,}"),
        data={"premises": len(inferences), "sha256": inferences.data_sha256},
        measures=["accuracy"],
        groups=[{"name": group, "queries": len(found)} for group, found in first.items()],
        systems=systems,
        values=values,
    )
