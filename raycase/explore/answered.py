"""Labels learned from a few answers: logistic regression on vectors under a condition, and the probabilities of its
labels.

The label's own vector is one more example of it, which counts as two answers. What the model gives is sharpened, and
mixed with the cosines of the labels, as answers that it did not learn from by cross-validation ask for: temperature
scaling (Guo et al., 2017, arXiv:1706.04599) with a second number. "None of the labels" is a class like any other.

Shapes: N answers, B rows of a block, L labels, K classes (the labels, then none where somebody answered so), D
dimensions under a condition, J of these and of the unconditional vector, or of the first alone.
"""

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax, softmax

from raycase.errors import needs_package
from raycase.io.vectors import l2_normalize

LEAST, LEAST_OF_EACH = 10, 2  # answers, and of each label, without which no probability is given
PARTS = 5  # of cross-validation
PRIOR = 2.0  # answers that a label's own vector counts as
LOOSENESS = 10.0  # C of scikit-learn
UNCHECKED = np.array([1.0, 2.0])  # how scores and cosines are mixed where answers are too few to find it


@dataclass(frozen=True, kw_only=True)
class LearnedLabels:
    """What was learned. mix: (2,), of scores and cosines; unsure: why its probabilities mean nothing, or None."""

    vectors: np.ndarray  # (K, J) of the labels, less their middle where there is one; for none their mean
    middle: np.ndarray  # (J,) of the answers, or 0, which cosines with labels are taken from
    dim: int  # D
    classifier: Any
    mix: np.ndarray
    unsure: str | None

    def probabilities(self, vectors_BJ: np.ndarray) -> np.ndarray:
        """Of each class: (B, K)."""
        scores_BK = self.classifier.predict_log_proba(l2_normalize(vectors_BJ[:, : self.dim]))
        cosines_BK = l2_normalize(vectors_BJ - self.middle) @ self.vectors.T
        return softmax(self.mix[0] * scores_BK + self.mix[1] * cosines_BK, axis=1)


def learn(vectors_NJ: np.ndarray, class_N: np.ndarray, labels_LJ: np.ndarray, dim: int) -> LearnedLabels:
    """Learn from the classes of unit vectors, of whose numbers the first `dim` are under the condition; class L: none
    of the labels."""
    vectors_ND, labels_LD = (l2_normalize(of[:, :dim]) for of in (vectors_NJ, labels_LJ))
    classes = len(labels_LD) + bool((class_N == len(labels_LD)).any())
    of_each_K = np.bincount(class_N, minlength=classes)
    mix, why, middle_J = UNCHECKED, None, np.zeros(labels_LJ.shape[1], np.float32)
    if len(class_N) >= LEAST:
        middle_J, labels_LJ = vectors_NJ.mean(0), l2_normalize(labels_LJ - labels_LJ.mean(0))
    labels_KJ = np.concatenate([labels_LJ, labels_LJ.mean(0, keepdims=True)])[:classes]
    if (few := LEAST - len(class_N)) > 0:
        why = f"{len(class_N)} answers are too few to check them; it takes {few} more"
    elif lacking := np.maximum(LEAST_OF_EACH - of_each_K, 0).sum():
        why = f"some labels have fewer than {LEAST_OF_EACH} answers; it takes {lacking} more"
    else:
        mix = best_mix(vectors_ND, class_N, labels_LD, l2_normalize(vectors_NJ - middle_J) @ labels_KJ.T)
    classifier = fit(vectors_ND, class_N, labels_LD, classes)
    return LearnedLabels(vectors=labels_KJ, middle=middle_J, dim=dim, classifier=classifier, mix=mix, unsure=why)


def fit(vectors_ND: np.ndarray, class_N: np.ndarray, labels_LD: np.ndarray, classes: int) -> Any:
    """Logistic regression on the answers and one more example of each class, for none the mean of all answers."""
    with needs_package("scikit-learn", "facets", "to learn from answers"):
        from sklearn.linear_model import LogisticRegression
    none_KD = l2_normalize(vectors_ND.sum(0, keepdims=True)) if classes > len(labels_LD) else vectors_ND[:0]
    more_KD = np.concatenate([labels_LD, none_KD])
    weights = np.repeat([1.0, PRIOR], [len(vectors_ND), classes])
    every, class_of = np.concatenate([vectors_ND, more_KD]), np.append(class_N, np.arange(classes))
    return LogisticRegression(C=LOOSENESS, max_iter=1000).fit(every, class_of, sample_weight=weights)


def best_mix(vectors_ND: np.ndarray, class_N: np.ndarray, labels_LD: np.ndarray, cosines_NK: np.ndarray) -> np.ndarray:
    """`LearnedLabels.mix` by which answers that were left out are most likely."""
    from sklearn.model_selection import StratifiedKFold

    parts = StratifiedKFold(min(PARTS, np.bincount(class_N).max()), shuffle=True, random_state=0)
    scores_NK, rows_N = np.empty_like(cosines_NK), np.arange(len(class_N))
    with warnings.catch_warnings(action="ignore", category=UserWarning):  # labels with fewer answers than parts
        cuts = [*parts.split(vectors_ND, class_N)]
    for kept, left in cuts:
        classifier = fit(vectors_ND[kept], class_N[kept], labels_LD, cosines_NK.shape[1])
        scores_NK[left] = classifier.predict_log_proba(vectors_ND[left])

    def loss(mix: np.ndarray) -> float:
        logits_NK = mix[0] * scores_NK + mix[1] * cosines_NK
        return float(-log_softmax(logits_NK, axis=1)[rows_N, class_N].mean())

    return np.asarray(minimize(loss, UNCHECKED, bounds=((0, 10), (0, 30)), method="L-BFGS-B").x)
