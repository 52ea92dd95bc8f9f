"""The two measures of DualCSE: entailment by a threshold (eq. 3), and which of two sentences is more implicit
(eqs. 4 and 5).

Shapes: N premises, H kinds of hypotheses, T distinct texts, D dimensions.
"""

from __future__ import annotations

import numpy as np

from raycase.data.inferences import HYPOTHESES
from raycase.encoder.cosines import cosines

ENTAILED_H = np.array([True, True, False, False])


def entailment_scores(explicit_TD: np.ndarray, implicit_TD: np.ndarray, places_N: np.ndarray) -> np.ndarray:
    """max(cos(r1, r2), cos(u1, r2)) of each premise and hypothesis (eq. 3): (N, H). `places_N`: (N, 1 + H)."""
    premises = [vectors_TD[places_N[:, 0]] for vectors_TD in (explicit_TD, implicit_TD)]
    hypotheses = [explicit_TD[places] for places in places_N[:, 1:].T]
    return np.stack([np.maximum(*(cosines(p, h) for p in premises)) for h in hypotheses], axis=1)


def entailment_right(scores_NH: np.ndarray, seed: int = 0) -> np.ndarray:
    """Which pairs a threshold tells right, entailed or not, tuned on the other half of the premises: (N, H) bool."""
    first = np.random.default_rng(seed).permutation(len(scores_NH)) % 2 == 0
    right = np.empty(scores_NH.shape, dtype=bool)
    for tuned, told in ((first, ~first), (~first, first)):
        right[told] = (scores_NH[told] > best_threshold(scores_NH[tuned])) == ENTAILED_H
    return right


def best_threshold(scores_NH: np.ndarray) -> float:
    """The gamma of eq. 3 by which most pairs are told right; halfway between two scores, the lowest of equals."""
    order = np.argsort(scores_NH.reshape(-1), kind="stable")
    scores = scores_NH.reshape(-1)[order]
    entailed = np.broadcast_to(ENTAILED_H, scores_NH.shape).reshape(-1)[order]
    # with the threshold above the first i scores: those told right below it, and above it
    right = np.concatenate([[0], np.cumsum(~entailed)]) + np.concatenate([np.cumsum(entailed[::-1])[::-1], [0]])
    between = np.concatenate([[True], np.diff(scores) > 0, [True]])  # equal scores are not told apart
    best = int(np.argmax(np.where(between, right, -1)))
    around = np.concatenate([[scores[0] - 1], scores, [scores[-1] + 1]])
    return float((around[best] + around[best + 1]) / 2)


def implicitness(explicit_TD: np.ndarray, implicit_TD: np.ndarray) -> np.ndarray:
    """1 - cos(r, u) (eq. 4): (T,)."""
    return 1 - cosines(explicit_TD, implicit_TD)


def more_implicit(values_T: np.ndarray, places_N: np.ndarray) -> np.ndarray:
    """Whether a premise is more implicit than each hypothesis (eq. 5): (N, H) float; a tie is half right."""
    premises_N1, hypotheses_NH = values_T[places_N[:, :1]], values_T[places_N[:, 1:]]
    return (premises_N1 > hypotheses_NH) + 0.5 * (premises_N1 == hypotheses_NH)


def told_right(
    explicit_TD: np.ndarray, implicit_TD: np.ndarray | None, places_N: np.ndarray
) -> tuple[np.ndarray, np.ndarray | None]:
    """`entailment_right` of eq. 3's scores (of the one vector, where there is one), and where there are two vectors
    `more_implicit`: (N, H) each."""
    if implicit_TD is None:
        return entailment_right(entailment_scores(explicit_TD, explicit_TD, places_N)), None
    entailed_NH = entailment_right(entailment_scores(explicit_TD, implicit_TD, places_N))
    return entailed_NH, more_implicit(implicitness(explicit_TD, implicit_TD), places_N)


def measures(explicit_TD: np.ndarray, implicit_TD: np.ndarray | None, places_N: np.ndarray) -> dict[str, float]:
    """`rte`, also by kind of hypothesis, and where there are two vectors `eis`: accuracies x 100."""
    entailed_NH, implicit_NH = told_right(explicit_TD, implicit_TD, places_N)
    right_NH = 100.0 * entailed_NH
    found = {"rte": float(right_NH.mean())}
    found |= {f"rte_{kind}": float(v) for kind, v in zip(HYPOTHESES.values(), right_NH.mean(0), strict=True)}
    if implicit_NH is not None:
        found["eis"] = 100 * float(implicit_NH.mean())
    return found
