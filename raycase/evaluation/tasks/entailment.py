"""Entailment, and which sentence is more implicit (DualCSE, sections 4.2 and 4.3), on premises with their hypotheses or
on pairs of an implicit and an explicit sentence.

Shapes: N premises, H kinds of hypotheses, T distinct texts, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raycase.data.rated import HYPOTHESES, Inferences, read_implicit, read_inferences
from raycase.errors import RequestError
from raycase.evaluation.entailment_metrics import (
    best_threshold,
    entailment_scores,
    half_thresholds,
    is_correct,
    more_implicit,
)
from raycase.evaluation.job import SAVED, EvaluateJob
from raycase.evaluation.models import Model, training_metrics
from raycase.evaluation.procedure import EmbedPairs
from raycase.evaluation.report import RankedSystem, rank_systems
from raycase.systems.dualcse import implicitness

TITLES = {"rte": "Entailment by a threshold", "eis": "Which sentence is more implicit"}
ACCURACY = "Accuracy x 100 with 95 % intervals of the bootstrap over {}."
RTE = (
    "{pairs:,} pairs of a premise and a hypothesis: entailed if the cosine of what both say, or of what the premise "
    "implies and the hypothesis says, is above a threshold, which is {tuned}. "
)
EIS_PREMISES = (
    "{pairs:,} pairs of a premise and a hypothesis: the premise is taken to be more implicit, and told to be where its "
    "two vectors are further apart. "
)
EIS_PAIRS = (
    "{pairs:,} pairs of an implicit and an explicit sentence, told apart by how far apart their two vectors are. "
)
LENGTH = " `length` takes the longer one."


@dataclass(frozen=True, kw_only=True)
class EntailmentData:
    """What is measured on, and the premises of `--threshold-from`."""

    tested: Inferences
    tuned: Inferences | None

    @property
    def uri(self) -> str:
        return self.tested.uri


def read(job: EvaluateJob) -> EntailmentData:
    """Read `--data` and `--threshold-from`. Raises RequestError, also for a premise that is in both."""
    if job.task == "eis":
        return EntailmentData(tested=read_implicit(job.data, "--data"), tuned=None)
    tested, tuned = read_inferences(job.data, "--data"), None
    if job.threshold_from is not None and job.threshold_from != SAVED:
        tuned = read_inferences(job.threshold_from, "--threshold-from")
        shared = set(tuned.columns["premise"]) & set(tested.columns["premise"])
        if shared:
            raise RequestError(
                f"--threshold-from: expected no premise of --data, got {len(shared):,}, one of them "
                f"{min(shared)[:80]!r}"
            )
    return EntailmentData(tested=tested, tuned=tuned)


def measure(job: EvaluateJob, data: EntailmentData, models: Sequence[Model], embed: EmbedPairs) -> dict[str, Any]:
    """Accuracy of each model over all pairs and by kind of hypothesis; for eis also of the sentences' length."""
    inferences = data.tested
    of_pairs = "premise" not in inferences.columns
    pairs, rows = inferences.text_index[:, 1:].size, "pairs" if of_pairs else "premises"
    systems, thresholds = [], {}
    if job.task == "rte":
        for model in models:
            system, thresholds[model.name] = _entailment(job, data, model, embed)
            systems.append(system)
        about = RTE.format(pairs=pairs, tuned=_tuned(job, data.tuned)) + ACCURACY.format(rows)
    else:
        systems = [_implicitness(inferences, model, embed) for model in models]
        length_T = np.array([len(text) for text in inferences.distinct])
        length_NH = more_implicit(length_T, inferences.text_index)
        systems.append(_system("length", "the longer sentence", length_NH))
        about = (EIS_PAIRS if of_pairs else EIS_PREMISES).format(pairs=pairs) + ACCURACY.format(rows) + LENGTH
    described: dict[str, Any] = {rows: len(inferences), "sha256": inferences.data_sha256}
    if data.tuned is not None:
        described["threshold_from"] = {
            "file": Path(data.tuned.uri).name,
            "premises": len(data.tuned),
            "sha256": data.tuned.data_sha256,
        }
    metrics = rank_systems(
        job,
        title=TITLES[job.task],
        about=about,
        data=described,
        measures=["accuracy"],
        groups=[{"name": group, "queries": len(inferences)} for group in systems[0].values],
        systems=systems,
    )
    return metrics | {"thresholds": thresholds} if thresholds else metrics


def _tuned(job: EvaluateJob, tuned: Inferences | None) -> str:
    """Where the threshold of rte comes from, in words."""
    if tuned is not None:
        return f"tuned on the {len(tuned):,} premises of {Path(tuned.uri).name}"
    if job.threshold_from == SAVED:
        return "the one that was tuned in training on the validation premises, and saved with the model"
    return "tuned on one half of the premises and used on the other, both ways"


def _entailment(
    job: EvaluateJob, data: EntailmentData, model: Model, embed: EmbedPairs
) -> tuple[RankedSystem, list[float]]:
    """The accuracy of a model by eq. 3, and its thresholds: one, or one for each half."""
    scores_NH = _scores(data.tested, model, embed)
    seen = ""
    if data.tuned is not None:
        threshold_N = np.full(len(scores_NH), best_threshold(_scores(data.tuned, model, embed)))
    elif job.threshold_from == SAVED:
        threshold, sha256 = _trained(model)
        threshold_N = np.full(len(scores_NH), threshold)
        if sha256 == data.tested.data_sha256:
            seen = ", tuned on these very premises"
    else:
        threshold_N = half_thresholds(scores_NH, job.seed)
    thresholds = np.unique(threshold_N).tolist()
    above = f"; entailed above {' or '.join(f'{threshold:.4f}' for threshold in thresholds)}{seen}"
    return _system(model.name, _what(model) + above, is_correct(scores_NH, threshold_N[:, None])), thresholds


def _trained(model: Model) -> tuple[float, str]:
    """The threshold of a model's training, and the hash of what it was tuned on. Raises RequestError without them."""
    try:
        trained = training_metrics(model.config)
        return float(trained["validation"]["threshold"]), trained["data"]["validation"]["sha256"]
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(
            f"--threshold-from: expected models with the threshold of their training (dualcse, simcse), got "
            f"{model.name}; pass a file of premises"
        ) from error


def _implicitness(inferences: Inferences, model: Model, embed: EmbedPairs) -> RankedSystem:
    """The accuracy of a model with two vectors a sentence by eq. 5."""
    explicit_TD, implicit_TD = _vectors(inferences, model, embed)
    correct_NH = more_implicit(implicitness(explicit_TD, implicit_TD), inferences.text_index)
    return _system(model.name, _what(model), correct_NH)


def _scores(inferences: Inferences, model: Model, embed: EmbedPairs) -> np.ndarray:
    """Eq. 3's cosines: (N, H)."""
    return entailment_scores(*_vectors(inferences, model, embed), inferences.text_index)


def _vectors(inferences: Inferences, model: Model, embed: EmbedPairs) -> tuple[np.ndarray, np.ndarray]:
    """The explicit and the implicit vectors of the distinct texts, (T, D) each; other models have one for both."""
    texts, conditions = inferences.distinct, model.config.known_conditions
    if not conditions:
        vectors_TD = embed(texts, model)
        return vectors_TD, vectors_TD
    vectors = embed([(text, condition) for condition in conditions for text in texts], model)
    explicit_TD, implicit_TD = np.split(vectors, len(conditions))
    return explicit_TD, implicit_TD


def _what(model: Model) -> str:
    """The model's vectors, for people."""
    return f"{model.config.label}: {'f(s, explicit), f(s, implicit)' if model.config.known_conditions else 'f(s)'}"


def _system(name: str, what: str, correct_NH: np.ndarray) -> RankedSystem:
    """The accuracy of each premise, over all its pairs and by kind: a premise's pairs share its vectors, so the
    bootstrap draws premises."""
    kinds: dict[str, slice] = {"all": slice(None)}
    if correct_NH.shape[1] > 1:
        kinds |= {kind: slice(i, i + 1) for i, kind in enumerate(HYPOTHESES.values())}
    values = {kind: 100.0 * correct_NH[:, columns].mean(1, keepdims=True) for kind, columns in kinds.items()}
    return RankedSystem(name=name, what=what, values=values)
