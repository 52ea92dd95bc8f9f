"""Entailment by a threshold (DualCSE, eq. 3), and which sentence is more implicit (eqs. 4 and 5): on premises with
hypotheses (INLI, Havaldar et al., 2025), or on pairs of an implicit and an explicit sentence (Wang et al., 2025).

Shapes: N premises or pairs, H kinds of hypotheses, T distinct texts, D dimensions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from raycase.errors import RequestError
from raycase.evaluation.job import SAVED, EvaluateJob
from raycase.evaluation.models import Model, training_metrics, vectors
from raycase.evaluation.procedure import Task
from raycase.evaluation.report import RankedSystem, rank_systems
from raycase.io.inputs import find_input, peek
from raycase.io.rated import texts_sha256
from raycase.io.reader import read_files
from raycase.papers.dualcse.model import entailment, implicitness

HYPOTHESES = {  # column -> name of the kind
    "explicit_entailment": "explicit",
    "implied_entailment": "implied",
    "neutral": "neutral",
    "contradiction": "contradiction",
}
KINDS = ("premise", *HYPOTHESES)
IMPLICIT_PAIR = ("implicit", "explicit")
ENTAILED_H = np.array([True, True, False, False])


# ------------------------------------------------------------------------------------------------------------- the data


@dataclass(frozen=True, kw_only=True)
class Inferences:
    """N premises, each with a hypothesis of every kind; or N implicit sentences, each with an explicit one."""

    uri: str
    columns: dict[str, list[str]]  # of KINDS or IMPLICIT_PAIR, the latter with one kind of hypothesis
    tuned: Inferences | None = None  # what the threshold is tuned on, if it is another file

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @cached_property
    def distinct(self) -> list[str]:
        """The T distinct texts."""
        return list(dict.fromkeys(text for column in self.columns.values() for text in column))

    @cached_property
    def text_index(self) -> np.ndarray:
        """(N, 1 + H) int64: index in `distinct` of each premise and of its hypotheses."""
        number = {text: i for i, text in enumerate(self.distinct)}
        return np.array([[number[text] for text in column] for column in self.columns.values()], dtype=np.int64).T

    @cached_property
    def data_sha256(self) -> str:
        """Hash of the training data: texts and their grouping."""
        texts_hash = texts_sha256((text,) for text in self.distinct)
        return hashlib.sha256(texts_hash.encode() + self.text_index.tobytes()).hexdigest()


def read_inferences(uri: str, flag: str, kinds: Sequence[str] = KINDS) -> Inferences:
    """Read every row of a .csv, .jsonl or .parquet file (or a folder of them); `kinds`: KINDS or IMPLICIT_PAIR.

    Raises RequestError, with file and row, for a missing column or an empty text, and for fewer than two rows.
    """
    columns: dict[str, list[str]] = {kind: [] for kind in kinds}
    for _, values in read_files(uri, kinds, flag, words=kinds):
        for kind in kinds:
            columns[kind] += values[kind]
    inferences = Inferences(uri=uri, columns=columns)
    if len(inferences) < 2:
        rows = "premises" if kinds is KINDS else "pairs"
        raise RequestError(f"{flag}: expected at least two {rows} in {uri}, got {len(inferences)}")
    return inferences


def check_apart(these: Inferences, others: Inferences, expected: str) -> None:
    """Raise RequestError for a premise that is in both."""
    if shared := set(these.columns["premise"]) & set(others.columns["premise"]):
        raise RequestError(f"{expected}, got {len(shared):,}, one of them {min(shared)[:80]!r}")


def read_implicit(uri: str, flag: str) -> Inferences:
    """Read pairs of an implicit and an explicit sentence where the first file has a column of each, else premises.

    Raises RequestError as `read_inferences` does.
    """
    names = peek(find_input(uri, flag)[0]).names
    return read_inferences(uri, flag, KINDS if set(IMPLICIT_PAIR).isdisjoint(names) else IMPLICIT_PAIR)


# --------------------------------------------------------------------------------------------------------- the measures


def entailment_scores(explicit_TD: np.ndarray, implicit_TD: np.ndarray, text_index: np.ndarray) -> np.ndarray:
    """max(cos(r1, r2), cos(u1, r2)) of each premise and hypothesis (eq. 3): (N, H).

    `text_index`, (N, 1 + H), gives the rows of the premise and its hypotheses.
    """
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
    """The gamma of eq. 3 that classifies most pairs correctly: midway between two scores, the lowest of equally good
    ones."""
    order = np.argsort(scores_NH.reshape(-1), kind="stable")
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


def accuracies(explicit_TD: np.ndarray, implicit_TD: np.ndarray | None, text_index: np.ndarray) -> dict[str, float]:
    """`rte`, over all and by kind of hypothesis, and with two vectors a sentence `eis`: accuracies x 100.

    A model with one vector a sentence (`implicit_TD` is None) has it in eq. 3's place of both.
    """
    others_TD = explicit_TD if implicit_TD is None else implicit_TD
    scores_NH = entailment_scores(explicit_TD, others_TD, text_index)
    correct_NH = 100.0 * is_correct(scores_NH, half_thresholds(scores_NH))
    metrics = {"rte": float(correct_NH.mean())}
    metrics |= {f"rte_{kind}": float(v) for kind, v in zip(HYPOTHESES.values(), correct_NH.mean(0), strict=True)}
    if implicit_TD is not None:
        metrics["eis"] = 100 * float(more_implicit(implicitness(explicit_TD, implicit_TD), text_index).mean())
    return metrics


# ------------------------------------------------------------------------------------------------------------ the tasks

ACCURACY = "Accuracy x 100 with 95 % intervals of the bootstrap over {}."


def read(job: EvaluateJob) -> Inferences:
    """Read `--data` and `--threshold-from`. Raises RequestError, also for a premise that is in both."""
    tested = read_inferences(job.data, "--data")
    if job.threshold_from is None or job.threshold_from == SAVED:
        return tested
    tuned = read_inferences(job.threshold_from, "--threshold-from")
    check_apart(tuned, tested, "--threshold-from: expected no premise of --data")
    return replace(tested, tuned=tuned)


def measure_entailment(job: EvaluateJob, tested: Inferences, models: Sequence[Model]) -> dict[str, Any]:
    """Accuracy of each model by eq. 3, over all pairs and by kind of hypothesis, and its thresholds."""
    tuned, systems, thresholds = tested.tuned, [], {}
    data: dict[str, Any] = {"premises": len(tested), "sha256": tested.data_sha256}
    told = "tuned on one half of the premises and used on the other, both ways"
    if tuned is not None:
        file = Path(tuned.uri).name
        told = f"tuned on the {len(tuned):,} premises of {file}"
        data["threshold_from"] = {"file": file, "premises": len(tuned), "sha256": tuned.data_sha256}
    elif job.threshold_from == SAVED:
        told = "the one that was tuned in training on the validation premises, and saved with the model"
    for model in models:
        scores_NH, seen = _scores(tested, model), ""
        if tuned is not None:
            threshold_N = np.full(len(tested), best_threshold(_scores(tuned, model)))
        elif job.threshold_from == SAVED:
            threshold, sha256 = _trained(model)
            threshold_N = np.full(len(tested), threshold)
            seen = ", tuned on these very premises" if sha256 == tested.data_sha256 else ""
        else:
            threshold_N = half_thresholds(scores_NH, job.seed)
        thresholds[model.name] = np.unique(threshold_N).tolist()
        above = " or ".join(f"{threshold:.4f}" for threshold in thresholds[model.name])
        what = f"{_what(model)}; entailed above {above}{seen}"
        systems.append(_system(model.name, what, is_correct(scores_NH, threshold_N)))
    about = (
        f"{4 * len(tested):,} pairs of a premise and a hypothesis: entailed if the cosine of what both say, or of what "
        f"the premise implies and the hypothesis says, is above a threshold, which is {told}. "
    )
    about += ACCURACY.format("premises")
    title = "Entailment by a threshold"
    metrics = rank_systems(job, title=title, about=about, data=data, measures=["accuracy"], systems=systems)
    return metrics | {"thresholds": thresholds}


def measure_implicitness(job: EvaluateJob, tested: Inferences, models: Sequence[Model]) -> dict[str, Any]:
    """Accuracy of each model by eq. 5, and of the sentences' length."""
    values = {(m.name, _what(m)): implicitness(*_vectors(tested, m)) for m in models}
    values["length", "the longer sentence"] = np.array([len(text) for text in tested.distinct])
    systems = [_system(*named, more_implicit(value_T, tested.text_index)) for named, value_T in values.items()]
    rows = "premises" if "premise" in tested.columns else "pairs"
    kind = {
        "premises": "a premise and a hypothesis: the premise is taken to be more implicit, and told to be where its "
        "two vectors are further apart",
        "pairs": "an implicit and an explicit sentence, told apart by how far apart their two vectors are",
    }[rows]
    about = f"{tested.text_index[:, 1:].size:,} pairs of {kind}. {ACCURACY.format(rows)} `length` takes the longer one."
    data = {rows: len(tested), "sha256": tested.data_sha256}
    title = "Which sentence is more implicit"
    return rank_systems(job, title=title, about=about, data=data, measures=["accuracy"], systems=systems)


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


def _scores(inferences: Inferences, model: Model) -> np.ndarray:
    """Eq. 3's cosines: (N, H)."""
    return entailment_scores(*_vectors(inferences, model), inferences.text_index)


def _vectors(inferences: Inferences, model: Model) -> tuple[np.ndarray, np.ndarray]:
    """The explicit and the implicit vectors of the distinct texts, (T, D) each; other models have one for both."""
    texts, conditions = inferences.distinct, model.config.known_conditions
    if not conditions:
        vectors_TD = model.embed(texts)
        return vectors_TD, vectors_TD
    both = model.embed([(text, condition) for condition in conditions for text in texts])
    explicit_TD, implicit_TD = np.split(both, len(conditions))
    return explicit_TD, implicit_TD


def _what(model: Model) -> str:
    """The model's vectors, for people."""
    return f"{model.config.label}: {'f(s, explicit), f(s, implicit)' if model.config.known_conditions else 'f(s)'}"


def _system(name: str, what: str, correct_NH: np.ndarray) -> RankedSystem:
    """The share of each premise's pairs that is right, over all and by kind: they share its vectors, so the bootstrap
    draws premises."""
    kinds: dict[str, slice] = {"all": slice(None)}
    if correct_NH.shape[1] > 1:
        kinds |= {kind: slice(i, i + 1) for i, kind in enumerate(HYPOTHESES.values())}
    values = {kind: correct_NH[:, columns].mean(1, keepdims=True) for kind, columns in kinds.items()}
    return RankedSystem(name=name, what=what, values=values)


TASKS = {
    "rte": Task(read=read, measure=measure_entailment, expected=vectors),
    "eis": Task(
        read=lambda job: read_implicit(job.data, "--data"),
        measure=measure_implicitness,
        expected=lambda config: None if config.known_conditions else "models with two vectors a sentence (dualcse)",
    ),
}
