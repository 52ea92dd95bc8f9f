"""Teaching a condition: labelled texts, its answers, move its mean state e, and the head computes all else from e.

    loss = -mean_i mean_{p in P_i} log( exp(cos(i, p) / T) / sum_{j != i} exp(cos(i, j) / T) ) + L2 / N |delta|^2

P_i: the other answers with the label of i (Khosla et al., 2020, Supervised contrastive learning, eq. 2). delta: what is
added to e, in units of the spread of the states of typical conditions.

Shapes: N answers, H of them held out, L labels, W of the state, D and P of vectors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.errors import RequestError, normal_words
from raycase.heads.condition_head import Head
from raycase.heads.flat_tokens import FlatTokens
from raycase.models.taught import Compared, Figures

RATE, STEPS, TEMPERATURE, L2 = 0.05, 40, 0.1, 0.03
FOLDS, NEAREST = 5, 10
LEAST_ERRORS = 1.5  # standard errors by which the share must grow
MOST_TOKENS = 2**15  # of the answers that are learnt from
SAME = 0.9999  # cosine above which unconditional vectors are of one text


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """What the head keeps of N answers, f(s) of each, (N, P), and their labels as numbers, (N,)."""

    head: Head
    tokens: FlatTokens
    unconditional: Tensor
    label: Tensor

    def take(self, rows: np.ndarray) -> Lesson:
        """Some of the answers."""
        at = torch.from_numpy(rows).to(self.label.device)
        return replace(self, tokens=self.tokens.take(rows), unconditional=self.unconditional[at], label=self.label[at])

    def _dealt(self, parts: int) -> np.ndarray:
        """A number below `parts` for each answer, of each label evenly: (N,)."""
        label_N, dealt_N = self.label.cpu().numpy(), np.empty(len(self.label), np.int64)
        order_N = np.random.default_rng(0).permutation(len(label_N))
        dealt_N[order_N[np.argsort(label_N[order_N], kind="stable")]] = np.arange(len(label_N)) % parts
        return dealt_N

    def vectors(self, state_W: Tensor) -> Tensor:
        """Unit vectors of the answers under the condition with this state: (N, D)."""
        return self.tokens.vectors(self.head.ask(state_W[None]), self.head.temperatures)

    @torch.enable_grad()
    def learn(self, state_W: Tensor, spread_W: Tensor) -> Tensor:
        """The state after the answers: (W,)."""
        same_NN = (self.label[:, None] == self.label).fill_diagonal_(False)
        others_N = same_NN.sum(1)
        if not others_N.any():
            return state_W
        itself_NN = torch.eye(len(same_NN), dtype=torch.bool, device=same_NN.device)
        delta_W = torch.zeros_like(state_W, requires_grad=True)
        adam = torch.optim.Adam([delta_W], lr=RATE)
        for _ in range(STEPS):
            unit_ND = self.vectors(state_W + delta_W * spread_W)
            log_NN = (unit_ND @ unit_ND.T / TEMPERATURE).masked_fill(itself_NN, -torch.inf).log_softmax(1)
            of_same_N = log_NN.masked_fill(~same_NN, 0).sum(1) / others_N.clamp(min=1)
            loss = L2 / len(same_NN) * delta_W.square().sum() - of_same_N[others_N > 0].mean()
            adam.zero_grad()
            loss.backward(inputs=[delta_W])
            adam.step()
        return (state_W + delta_W * spread_W).detach()

    @torch.no_grad()
    def cross_validate(self, state_W: Tensor, spread_W: Tensor) -> tuple[bool, Compared]:
        """What the answers show that were held out, and whether it is a gain."""
        fold_N, label_N = self._dealt(FOLDS), self.label.cpu().numpy()
        found = np.zeros((len(Compared._fields), 2, len(label_N)))  # shares and guessed labels
        for held_N in (fold_N == fold for fold in range(min(FOLDS, len(label_N)))):
            taught_W = self.take(np.flatnonzero(~held_N)).learn(state_W, spread_W)
            for place, vectors_ND in enumerate((self.unconditional, self.vectors(state_W), self.vectors(taught_W))):
                found[place][:, held_N] = _judged(F.normalize(vectors_ND, dim=-1).cpu().numpy(), label_N, held_N)
        shares, several_N = found[:, 0], np.bincount(label_N)[label_N] > 1
        scores = [(share_N[several_N].mean(), _macro_f1(label_N, guess_N)) for share_N, guess_N in found]
        figures = Compared(*(Figures(*(round(100 * float(score), 1) for score in both)) for both in scores))
        more_N = shares[2, several_N] - shares[1, several_N]
        return is_gain(more_N) and figures.taught.f1 >= figures.named.f1, figures

    def taught(self, state_W: Tensor, spread_W: Tensor) -> tuple[Tensor, bool, Compared]:
        """The state after the answers, or the one before where cross-validation shows no gain; whether; the figures."""
        parts, threads = -(-int(self.tokens.counts.sum()) // MOST_TOKENS), torch.get_num_threads()
        lesson = self if parts == 1 else self.take(np.flatnonzero(self._dealt(parts) == 0))  # what is not too much
        torch.set_num_threads(1)  # on a busy machine several wait for each other, product after product
        try:
            gained, figures = lesson.cross_validate(state_W, spread_W)
            return (lesson.learn(state_W, spread_W) if gained else state_W), gained, figures
        finally:
            torch.set_num_threads(threads)


def is_gain(more_N: np.ndarray) -> bool:
    """Whether by so much larger shares are more than chance: few answers often show a gain where there is none."""
    mean, error = more_N.mean(), more_N.std() / np.sqrt(max(1, len(more_N) - 1))
    return bool(mean > 0 and mean >= LEAST_ERRORS * error)


def stated_labels(labels: Iterable[str | None]) -> tuple[np.ndarray, np.ndarray]:
    """The places of the labels, and their numbers, without those of nothing. Raises RequestError."""
    normal = []
    for place, label in enumerate(labels):
        if not (label is None or isinstance(label, str)):
            raise RequestError(f"labels[{place}]: expected a string or None, got {label!r:.80}")
        normal.append(normal_words(label or ""))
    rows = np.array([i for i, label in enumerate(normal) if label], np.int64)
    names, numbers = np.unique([normal[i] for i in rows], return_inverse=True)
    if (several := int((np.bincount(numbers, minlength=1) > 1).sum())) < 2:
        got = f"{several} of {len(names)} labels" if len(names) else "none"
        raise RequestError(f"labels: expected two labels with two texts each, or more of both, got {got}; add answers")
    return rows, numbers


def distinct(unconditional_NP: Tensor, label_N: np.ndarray) -> np.ndarray:
    """The places of N answers without those of a text that has the same label before them: else a text that is held out
    would be learned from, too."""
    unit_NP, new = F.normalize(unconditional_NP.float(), dim=-1), []
    label, place = torch.from_numpy(label_N), torch.arange(len(label_N))
    for at in place.split(1024):
        is_same = (unit_NP[at] @ unit_NP.T > SAME).cpu() & (label[at, None] == label) & (place < at[:, None])
        new.append(at[~is_same.any(1)])
    return torch.cat(new).numpy()


def _judged(unit_ND: np.ndarray, label_N: np.ndarray, held_N: np.ndarray) -> np.ndarray:
    """Of each answer that was held out the share of the nearest others with its label, 0 where there are no others, and
    the label of the others whose mean is nearest: (2, H)."""
    cosines_HN, own_H = unit_ND[held_N] @ unit_ND.T, label_N[held_N]
    cosines_HN[np.arange(len(own_H)), np.flatnonzero(held_N)] = -np.inf
    looked_at_H = np.minimum(NEAREST, np.bincount(label_N)[own_H] - 1)
    is_same_HN = label_N[np.argsort(-cosines_HN, axis=1, kind="stable")] == own_H[:, None]
    hits_H = (is_same_HN & (np.arange(len(label_N)) < looked_at_H[:, None])).sum(1)
    sums_LD = (np.arange(label_N.max() + 1)[:, None] == np.where(held_N, -1, label_N)) @ unit_ND
    lengths_L = np.linalg.norm(sums_LD, axis=1)
    to_means_HL = np.where(lengths_L > 0, unit_ND[held_N] @ sums_LD.T / np.maximum(lengths_L, 1e-12), -np.inf)
    return np.stack([hits_H / np.maximum(looked_at_H, 1), to_means_HL.argmax(1)])


def _macro_f1(label_N: np.ndarray, guess_N: np.ndarray) -> float:
    """F1 of each label that several answers have, and their mean."""
    of_L, right_L, guessed_L = (
        np.bincount(each, minlength=label_N.max() + 1)
        for each in (label_N, label_N[label_N == guess_N], guess_N.astype(np.int64))
    )
    return float((2 * right_L / (of_L + guessed_L).clip(1))[of_L > 1].mean())
