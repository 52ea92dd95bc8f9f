"""The two measures of DualCSE: entailment by a threshold (eq. 3), and which of two sentences is more implicit
(eqs. 4 and 5).

Shapes: N premises, H kinds of hypotheses, T distinct texts, D dimensions.
"""

from __future__ import annotations

import numpy as np

from raycase.data.rated import HYPOTHESES
from raycase.systems.dualcse import entailment, implicitness

ENTAILED_H = np.array([True, True, False, False])


def entailment_scores(explicit_TD: np.ndarray, implicit_TD: np.ndarray, text_index: np.ndarray) -> np.ndarray:
    """max(cos(r1, r2), cos(u1, r2)) of each premise and hypothesis (eq. 3): (N, H).

    `text_index`, (N, 1 + H), gives the rows of the premise and its hypotheses.
    """
    explicit_ND, implicit_ND = (vectors_TD[text_index[:, 0]] for vectors_TD in (explicit_TD, implicit_TD))
    hypotheses = [explicit_TD[index_N] for index_N in text_index[:, 1:].T]
    return np.stack([entailment(explicit_ND, implicit_ND, hypothesis_ND) for hypothesis_ND in hypotheses], axis=1)


def is_correct(scores_NH: np.ndarray, threshold: float | np.ndarray) -> np.ndarray:
    """Which pairs a threshold, or one for each premise (N, 1), classifies correctly as entailed or not: (N, H) bool."""
    return (scores_NH > threshold) == ENTAILED_H


def entailment_correct(scores_NH: np.ndarray, seed: int = 0) -> np.ndarray:
    """`is_correct` by thresholds that are tuned on the same premises, one half for the other: (N, H) bool."""
    return is_correct(scores_NH, half_thresholds(scores_NH, seed)[:, None])


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
    correct_NH = 100.0 * entailment_correct(entailment_scores(explicit_TD, others_TD, text_index))
    metrics = {"rte": float(correct_NH.mean())}
    metrics |= {f"rte_{kind}": float(v) for kind, v in zip(HYPOTHESES.values(), correct_NH.mean(0), strict=True)}
    if implicit_TD is not None:
        metrics["eis"] = 100 * float(more_implicit(implicitness(explicit_TD, implicit_TD), text_index).mean())
    return metrics
