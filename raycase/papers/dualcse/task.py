"""Premises with hypotheses (INLI, Havaldar et al., 2025): entailment by a threshold (DualCSE, eq. 3), which of two
sentences is more implicit (eqs. 4 and 5), and fine-tuning by them: two vectors a sentence, or SimCSE's one.

Shapes: N premises, H hypotheses of each, T distinct texts, B premises of a batch, K texts of each, D dimensions.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.encoder.token_batch import Prepared
from raycase.errors import RequestError
from raycase.evaluation.models import Model, vectors
from raycase.evaluation.report import RankedSystem, Settings, rank_systems
from raycase.evaluation.tasks import Task
from raycase.io.rated_pairs import texts_sha256
from raycase.io.reader import read_files
from raycase.models.pairs import Indexed, check_accepted
from raycase.papers.dualcse.model import entailment, implicitness
from raycase.training.fine_tune import FineTuning, autocast
from raycase.training.loop import computed_rows, epoch_batches, gather
from raycase.training.recipe import Recipe

HYPOTHESES = {  # column -> name of such hypotheses
    "explicit_entailment": "explicit",
    "implied_entailment": "implied",
    "neutral": "neutral",
    "contradiction": "contradiction",
}
COLUMNS = ("premise", *HYPOTHESES)
ENTAILED_H = np.array([True, True, False, False])
TRAINED = [0, 1, 2, 4]  # columns of `Inferences.text_index`: all but the neutral sentence


# ------------------------------------------------------------------------------------------------------------- the data


@dataclass(frozen=True, kw_only=True)
class Inferences:
    """N premises, each with a hypothesis of each column."""

    uri: str
    columns: dict[str, list[str]]  # of COLUMNS

    def __len__(self) -> int:
        return len(self.columns["premise"])

    @cached_property
    def texts(self) -> Indexed:
        """Every text: all premises, then all hypotheses of each column; its values are the T distinct ones."""
        return Indexed.of([text for column in self.columns.values() for text in column])

    @property
    def text_index(self) -> np.ndarray:
        """(N, 1 + H) int64: index among the distinct texts of each premise and of its hypotheses."""
        return self.texts.codes.reshape(len(COLUMNS), -1).T

    @cached_property
    def data_sha256(self) -> str:
        """Hash of the training data: texts and their grouping."""
        texts_hash = texts_sha256((text,) for text in self.texts.values)
        return hashlib.sha256(texts_hash.encode() + self.text_index.tobytes()).hexdigest()


def read_inferences(uri: str, flag: str) -> Inferences:
    """Every row of a .csv, .jsonl or .parquet file (or a folder of them)."""
    columns: dict[str, list[str]] = {name: [] for name in COLUMNS}
    for _, values in read_files(uri, COLUMNS, flag, words=COLUMNS):
        for name in COLUMNS:
            columns[name] += values[name]
    inferences = Inferences(uri=uri, columns=columns)
    if len(inferences) < 2:
        raise RequestError(f"{flag}: expected at least two premises in {uri}, got {len(inferences)}")
    return inferences


def check_apart(these: Inferences, others: Inferences, expected: str) -> None:
    """Refuse a premise that is in both."""
    if shared := set(these.columns["premise"]) & set(others.columns["premise"]):
        raise RequestError(f"{expected}, got {len(shared):,}, one of them {min(shared)[:80]!r}")


# --------------------------------------------------------------------------------------------------------- the measures


def entailment_scores(explicit_TD: np.ndarray, implicit_TD: np.ndarray, text_index: np.ndarray) -> np.ndarray:
    """Eq. 3 of each premise and hypothesis: (N, H); text_index: the rows of the premise and of those, (N, 1 + H)."""
    explicit_ND, implicit_ND = (vectors_TD[text_index[:, 0]] for vectors_TD in (explicit_TD, implicit_TD))
    hypotheses = [explicit_TD[index_N] for index_N in text_index[:, 1:].T]
    return np.stack([entailment(explicit_ND, implicit_ND, hypothesis_ND) for hypothesis_ND in hypotheses], axis=1)


def is_correct(scores_NH: np.ndarray, threshold_N: np.ndarray) -> np.ndarray:
    """Which pairs the thresholds of their premises classify correctly as entailed or not: (N, H) bool."""
    return (scores_NH > threshold_N[:, None]) == ENTAILED_H


def half_thresholds(scores_NH: np.ndarray, seed: int = 0) -> np.ndarray:
    """The threshold for each premise, tuned on the half of the premises in which it is not: (N,)."""
    first_N = np.random.default_rng(seed).permutation(len(scores_NH)) % 2 == 0
    return np.where(first_N, best_threshold(scores_NH[~first_N]), best_threshold(scores_NH[first_N]))


def best_threshold(scores_NH: np.ndarray) -> float:
    """The gamma of eq. 3 that classifies most pairs correctly, midway between scores; the lowest of equally good."""
    order = np.argsort(scores_NH.reshape(-1), stable=True)
    scores = scores_NH.reshape(-1)[order]
    entailed = np.broadcast_to(ENTAILED_H, scores_NH.shape).reshape(-1)[order]
    # with the threshold above the first i scores: correct pairs below it, and above it
    correct = np.concatenate([[0], np.cumsum(~entailed)]) + np.concatenate([np.cumsum(entailed[::-1])[::-1], [0]])
    between = np.concatenate([[True], np.diff(scores) > 0, [True]])  # no threshold separates equal scores
    best = int(np.argmax(np.where(between, correct, -1)))
    padded = np.concatenate([[scores[0] - 1], scores, [scores[-1] + 1]])
    return float((padded[best] + padded[best + 1]) / 2)


def more_implicit(values_T: np.ndarray, text_index: np.ndarray) -> np.ndarray:
    """Whether the first text of a row is more implicit than each other one (eq. 5): (N, H) float; a tie counts half."""
    premises_N1, hypotheses_NH = values_T[text_index[:, :1]], values_T[text_index[:, 1:]]
    return (premises_N1 > hypotheses_NH) + 0.5 * (premises_N1 == hypotheses_NH)


def accuracies(vectors: Sequence[np.ndarray], text_index: np.ndarray) -> dict[str, float]:
    """Accuracies x 100: `rte`, over all and by column, with two vectors a sentence `eis`; and the best threshold.

    vectors: explicit and implicit ones, (T, D) each; or one for each sentence, which has eq. 3's place of both.
    """
    explicit_TD, implicit_TD = vectors[0], vectors[-1]
    scores_NH = entailment_scores(explicit_TD, implicit_TD, text_index)
    correct_NH = 100.0 * is_correct(scores_NH, half_thresholds(scores_NH))
    metrics = {"rte": float(correct_NH.mean())}
    metrics |= {f"rte_{name}": float(v) for name, v in zip(HYPOTHESES.values(), correct_NH.mean(0), strict=True)}
    if len(vectors) == 2:
        metrics["eis"] = 100 * float(more_implicit(implicitness(explicit_TD, implicit_TD), text_index).mean())
    return metrics | {"threshold": best_threshold(scores_NH)}


# ---------------------------------------------------------------------------------------------------------- fine-tuning


@dataclass(frozen=True, kw_only=True)
class InferenceTexts:
    """Inferences, tokenised under each of C conditions: 2, or 1 for a system without. places: (C, N, 5), the row of
    `prepared` of each premise and its hypotheses."""

    prepared: Prepared
    places: np.ndarray

    @classmethod
    def of(cls, config: Any, inferences: Inferences) -> InferenceTexts:
        """Tokenise inferences."""
        names, distinct = config.known_conditions, inferences.texts.values
        count = max(1, len(names))
        texts = [*distinct] * count
        conditions = [name for name in names for _ in distinct] if names else None
        prepared = config.prepare(texts, conditions)
        check_accepted(prepared.refused, texts, conditions=conditions, source=inferences.uri)
        first_C11 = len(distinct) * np.arange(count)[:, None, None]
        return cls(prepared=prepared, places=first_C11 + inferences.text_index)


def dual_loss(explicit_4BD: Tensor, implicit_4BD: Tensor | None = None, temperature: float = 0.05) -> Tensor:
    """DualCSE's loss (Oda et al., 2025, eq. 2, in README.md), the mean over the batch. r and u: the vectors of
    premises, explicit and implied entailments and contradictions.

    The denominators between r and u are those of appendix F: as printed in eq. 2, nothing pulls r_i and u_i together.
    Without u, premises have r in its place and the terms between r and u are left out: SimCSE's supervised loss (Gao et
    al., 2021), with two positives.
    """
    premise, explicit, implied, contradiction = r = F.normalize(explicit_4BD, dim=-1)
    if implicit_4BD is None:
        terms = [(premise, [positive, contradiction]) for positive in (explicit, implied)]
    else:
        u = F.normalize(implicit_4BD, dim=-1)
        terms = [(premise, [explicit, contradiction, u[0]]), (u[0], [implied, contradiction, premise])]
        terms += [(r[of], [u[of]]) for of in (1, 2, 3)]
    return torch.stack([info_nce(*part, temperature) for part in terms]).sum()


def info_nce(anchors_BD: Tensor, candidates: list[Tensor], temperature: float) -> Tensor:
    """InfoNCE: the positive of anchor i is row i of the first candidates, its negatives are all other candidates."""
    scores = anchors_BD @ torch.cat(candidates).T / temperature
    return F.cross_entropy(scores, torch.arange(len(anchors_BD), device=scores.device))


@dataclass(frozen=True, kw_only=True)
class InferenceTuning(FineTuning):
    """An encoder that is fine-tuned on premises with explicit and implied entailments (INLI)."""

    def read(self) -> tuple[Inferences, Inferences]:
        train, validation = (read_inferences(getattr(self, name), f"--{name}") for name in ("train", "validation"))
        check_apart(validation, train, "--validation: expected premises that are not in --train")
        return train, validation

    def data(self, shared: Sequence[Inferences]) -> tuple[InferenceTexts, InferenceTexts]:
        train, validation = (InferenceTexts.of(self.config, inferences) for inferences in shared)
        return train, validation

    def batches(self, recipe: Recipe, train: InferenceTexts, epoch: int) -> list[np.ndarray]:
        return epoch_batches(train.places.shape[1], recipe.batch_size, recipe.seed, epoch)

    def batch_loss(self, train: InferenceTexts, module: nn.Module, batch: np.ndarray) -> Tensor:
        rows_b, count = computed_rows(batch)
        place_CKb = train.places[:, rows_b][..., TRAINED].transpose(0, 2, 1)
        with autocast(module, self.dtype):
            vectors_VD = module(train.prepared.take(place_CKb.reshape(-1))).float()
        vectors_bKD = vectors_VD.unflatten(0, (-1, len(rows_b))).transpose(0, 1)[:count]
        return dual_loss(*gather(vectors_bKD, len(batch)).transpose(0, 1).split(len(TRAINED)))

    def evaluate(self, validation: InferenceTexts, module: Any) -> dict[str, float]:
        """`accuracies` of its vectors."""
        vectors = module.encode_prepared(validation.prepared).vectors
        metrics = accuracies(np.split(vectors, len(validation.places)), validation.places[0])
        # vectors that are not finite would count as no entailments
        return metrics if np.isfinite(vectors).all() else dict.fromkeys(metrics, math.nan)


# ------------------------------------------------------------------------------------------------------------- the task


def read_both(data: str, threshold_from: str | None = None) -> tuple[Inferences, Inferences | None]:
    """The premises that are tested, and those on which the threshold is tuned."""
    tested = read_inferences(data, "--data")
    if threshold_from is None:
        return tested, None
    tuned = read_inferences(threshold_from, "--threshold-from")
    check_apart(tuned, tested, "--threshold-from: expected no premise of --data")
    return tested, tuned


def measure_entailment(
    settings: Settings, read: tuple[Inferences, Inferences | None], models: Sequence[Model]
) -> dict[str, Any]:
    """Accuracy of each model by eq. 3, over all pairs and by column of hypotheses, and its thresholds."""
    (tested, tuned), systems, thresholds = read, [], {}
    data: dict[str, Any] = {"premises": len(tested), "sha256": tested.data_sha256}
    manner = "tuned on one half of the premises and used on the other, both ways"
    if tuned is not None:
        file = Path(tuned.uri).name
        manner = f"tuned on the {len(tuned):,} premises of {file}"
        data["threshold_from"] = {"file": file, "premises": len(tuned), "sha256": tuned.data_sha256}
    for model in models:
        scores_NH = _scores(tested, model)
        if tuned is not None:
            threshold_N = np.full(len(tested), best_threshold(_scores(tuned, model)))
        else:
            threshold_N = half_thresholds(scores_NH, settings.seed)
        thresholds[model.name] = np.unique(threshold_N).tolist()
        above = " or ".join(f"{threshold:.4f}" for threshold in thresholds[model.name])
        of = "f(s, explicit), f(s, implicit)" if model.config.known_conditions else "f(s)"
        correct_NH = is_correct(scores_NH, threshold_N)
        # a premise's pairs share its vectors, so that the bootstrap draws premises
        values = {"all": correct_NH.mean(1, keepdims=True)}
        values |= {name: correct_NH[:, [i]].astype(float) for i, name in enumerate(HYPOTHESES.values())}
        what = f"{model.config.label}: {of}; entailed above {above}"
        systems.append(RankedSystem(name=model.name, what=what, values=values))
    about = (
        f"{4 * len(tested):,} pairs of a premise and a hypothesis: entailed if the cosine of what both say, or of what "
        f"the premise implies and the hypothesis states, is above a threshold, which is {manner}. Accuracy x 100 "
        "with 95 % intervals of the bootstrap over premises."
    )
    title = "Entailment by a threshold"
    metrics = rank_systems(settings, title=title, about=about, data=data, measures=["accuracy"], systems=systems)
    return metrics | {"thresholds": thresholds}


def _scores(inferences: Inferences, model: Model) -> np.ndarray:
    """Eq. 3's cosines: (N, H). A model with one vector a sentence has it in the place of both."""
    texts, conditions = inferences.texts.values, model.config.known_conditions
    if not conditions:
        explicit_TD = implicit_TD = model.embed(texts)
    else:
        both = model.embed([(text, condition) for condition in conditions for text in texts])
        explicit_TD, implicit_TD = np.split(both, 2)
    return entailment_scores(explicit_TD, implicit_TD, inferences.text_index)


TASKS = {"rte": Task(read=read_both, measure=measure_entailment, expected=vectors)}
