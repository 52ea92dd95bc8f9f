"""Entailment, and which sentence is more implicit (DualCSE, sections 4.2 and 4.3), on premises with their hypotheses.

Shapes: N premises, H kinds of hypotheses, T distinct texts, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from raycase.data.inferences import HYPOTHESES, Inferences, read_inferences
from raycase.evaluation.entailment_metrics import entailment_correct, entailment_scores, implicitness, more_implicit
from raycase.evaluation.job import EvaluateJob
from raycase.evaluation.models import Model
from raycase.evaluation.procedure import Embed, Measured
from raycase.evaluation.ranked import RankedSystem, rank_systems

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


def read(job: EvaluateJob) -> Inferences:
    """Read the premises with their hypotheses. Raises RequestError."""
    return read_inferences(job.data, "--data")


def measure(job: EvaluateJob, inferences: Inferences, models: Sequence[Model], embed: Embed) -> Measured:
    """Accuracy of each model over all pairs and by kind of hypothesis; for eis also of the sentences' length."""
    texts, text_index = inferences.distinct, inferences.text_index
    systems = []
    for model in models:
        conditions = model.config.known_conditions
        if conditions:
            pairs = [(text, condition) for condition in conditions for text in texts]
            explicit_TD, implicit_TD = np.split(embed(pairs, model), len(conditions))
        else:
            explicit_TD = implicit_TD = embed(texts, model)
        if job.task == "rte":
            correct_NH = entailment_correct(entailment_scores(explicit_TD, implicit_TD, text_index), job.seed)
        else:
            correct_NH = more_implicit(implicitness(explicit_TD, implicit_TD), text_index)
        formula = "f(s, explicit), f(s, implicit)" if conditions else "f(s)"
        systems.append(_system(model.name, f"{model.config.label}: {formula}", correct_NH))
    if job.task == "eis":
        length_T = np.array([len(text) for text in texts])
        systems.append(_system("length", "the longer sentence", more_implicit(length_T, text_index)))
    return rank_systems(
        job,
        title=TITLES[job.task],
        about=ABOUT[job.task].format(pairs=f"{len(inferences) * len(HYPOTHESES):,}"),
        data={"premises": len(inferences), "sha256": inferences.data_sha256},
        measures=["accuracy"],
        groups=[{"name": group, "queries": len(inferences)} for group in systems[0].values],
        systems=systems,
    )


def _system(name: str, what: str, correct_NH: np.ndarray) -> RankedSystem:
    """The accuracy of each premise, over all its pairs and by kind: a premise's pairs share its vectors, so the
    bootstrap draws premises."""
    kinds = {"all": slice(None)} | {kind: slice(i, i + 1) for i, kind in enumerate(HYPOTHESES.values())}
    values = {kind: 100.0 * correct_NH[:, columns].mean(1, keepdims=True) for kind, columns in kinds.items()}
    return RankedSystem(name=name, what=what, values=values)
