"""Pooling stored tokens under conditions, without the encoder: exactly, and by sketches, which find the rows that a
search then pools exactly (`raycase.tokens.sketch`).

Under a condition each centroid of a sketch has a logit of each head and a value, so a row is pooled from two small
tables. To find candidates by centroids, and then score them by their tokens, is the way of PLAID (Santhanam et al.,
2022, section 4); the scores are ours.

Shapes: N texts, S tokens of each in a group of equal length, T tokens of all, C conditions, H heads, M components, L
levels, E centroids of a level, D dimensions, A axes, P texts with a unconditional part.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.heads.condition_head import ConditionQueries, Part, StatedHead, join_unconditional
from raycase.heads.flat_tokens import FlatTokens
from raycase.heads.linear import linear
from raycase.io.ragged import Ragged
from raycase.tokens.basis import TokenBasis
from raycase.tokens.sketch import TokenSketch
from raycase.tokens.stored import StoredTokens

TOKENS_AT_ONCE = 2**10  # of a group that are pooled at a time: their components stay near the processor
SKETCHED_AT_ONCE = 2**14
AXES = 64  # of the vectors that are compared; 48 find slightly less, 128 hardly more
AXES_ROWS, AXES_ROUNDS = 512, 4  # by which they are chosen, and rounds of subspace iteration
MOST_LOGIT = 80  # whose exponential, and that of its negative, float32 holds


@dataclass(frozen=True, kw_only=True)
class UnpackedTokens:
    """Stored tokens of N texts, shortest first; of those that have one, the unconditional part."""

    codes: Tensor  # (T, M) int8, or sketches (T, L) uint8
    counts: np.ndarray  # (N,) of tokens
    order: np.ndarray  # (N,) which text each one is
    with_part: Tensor  # (P,) places in this order
    shares: Tensor  # (P,)
    vectors: Tensor  # (P, D)

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.vectors.nbytes + self.counts.nbytes + self.order.nbytes

    def groups(self, tokens: int) -> Iterator[tuple[slice, Tensor]]:
        """Texts of equal length, about so many tokens: where they stand, and their codes, (N, S, M)."""
        start = token = 0
        while start < len(self.counts):
            length = int(self.counts[start])
            stop = int(np.searchsorted(self.counts, length, "right"))
            stop = min(stop, start + max(1, tokens // length))
            end = token + (stop - start) * length
            yield slice(start, stop), self.codes[token:end].view(stop - start, length, -1)
            start, token = stop, end

    def sample(self, step: int) -> UnpackedTokens:
        """Every so many of the texts."""
        of_sample = self.with_part % step == 0
        codes = Ragged.by_counts(self.codes.numpy(), self.counts).take(np.arange(0, len(self.counts), step))
        return UnpackedTokens(
            codes=torch.from_numpy(codes.flat),
            counts=codes.counts,
            order=self.order[::step],
            with_part=self.with_part[of_sample] // step,
            shares=self.shares[of_sample],
            vectors=self.vectors[of_sample],
        )


def unpack_tokens(tokens: StoredTokens, codes: TokenBasis | None) -> UnpackedTokens:
    """Stored tokens, or sketches of them (None), ready to be pooled."""
    counts = tokens.codes.counts
    order = np.argsort(counts, stable=True)
    flat = tokens.codes.take(order).flat
    if codes is not None:
        packed, flat = flat, np.empty((len(flat), len(codes.bits)), np.int8)
        for start in range(0, len(packed), TOKENS_AT_ONCE):
            flat[start : start + TOKENS_AT_ONCE] = codes.quantizer.unpack(packed[start : start + TOKENS_AT_ONCE])
    with_part, shares, vectors = tokens.shares()
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    return UnpackedTokens(
        codes=torch.from_numpy(flat),
        counts=counts[order],
        order=order,
        with_part=torch.from_numpy(place[with_part]),
        shares=torch.from_numpy(shares),
        vectors=torch.from_numpy(vectors),
    )


class TokenPooler:
    """Pools tokens under some conditions. What it holds is a few small matrices, which any process can be given."""

    def __init__(self, codes: TokenBasis, questions: ConditionQueries, temperatures: Tensor) -> None:
        questions, temperatures = questions.to("cpu"), temperatures.to("cpu")  # where the tokens are
        queries_CHK = questions.queries.float() * temperatures[:, None]
        asked_CHM = torch.einsum("chk,mhk->chm", queries_CHK, codes.keys) * codes.steps
        self.asked = asked_CHM.flatten(0, 1)
        self.mix, self.queries = questions.mix.float(), questions.queries
        values_DM = (codes.values * codes.steps[:, None]).T.contiguous()
        mean_D = codes.mean + 0.5 * values_DM.sum(1)  # a code stands for the middle of its step
        gates_CD = questions.gate[:, : len(mean_D)]
        self.back = [(gate_D * mean_D, gate_D[:, None] * values_DM) for gate_D in gates_CD]

    def pool(self, tokens: UnpackedTokens) -> Tensor:
        """Vectors of the texts, in the order of `tokens`, under each condition: (N, C, D), not normalised."""
        return _with_part(self._pool(tokens), tokens, tokens.vectors)

    @torch.no_grad()
    def stated(self, tokens: UnpackedTokens, head: StatedHead) -> Tensor:
        """The probability that each text, in the order of `tokens`, states something of each condition: (N, C)."""
        peaks_NCH = self.asked.new_empty(len(tokens.counts), *self.mix.shape)
        pooled_NCD = self._pool(tokens, peaks_NCH)
        queries_NCHK = self.queries.expand(len(pooled_NCD), -1, -1, -1)
        return head(head.features(pooled_NCD, queries_NCHK, peaks_NCH)).sigmoid()

    def heaviest(self, tokens: UnpackedTokens) -> Tensor:
        """The weight of the heaviest token of each text, in the order of `tokens`, under each condition: (N, C)."""
        heaviest_NC = self.asked.new_empty(len(tokens.counts), len(self.mix))
        self._pool(tokens, heaviest_NC=heaviest_NC)
        return heaviest_NC

    @torch.no_grad()
    def _pool(
        self, tokens: UnpackedTokens, peaks_NCH: Tensor | None = None, heaviest_NC: Tensor | None = None
    ) -> Tensor:
        """Vectors without the unconditional part, (N, C, D); into `peaks`, how far a logit is above the mean, and into
        `heaviest`, the largest weight."""
        count, (conditions, heads) = len(tokens.counts), self.mix.shape
        components = self.asked.shape[1]
        pooled_NCM = self.asked.new_empty(count, conditions, components)
        room = self.asked.new_empty(max(TOKENS_AT_ONCE, int(tokens.counts.max(initial=0))), components)
        for where, codes_NSM in tokens.groups(TOKENS_AT_ONCE):
            tokens_NSM = room[: codes_NSM.shape[0] * codes_NSM.shape[1]].view(codes_NSM.shape).copy_(codes_NSM)
            logits_CHNS = (self.asked @ tokens_NSM.flatten(0, 1).T).view(conditions, heads, *codes_NSM.shape[:2])
            if peaks_NCH is not None:
                peaks_NCH[where] = (logits_CHNS.amax(-1) - logits_CHNS.mean(-1)).permute(2, 0, 1)
            weights_CNS = (logits_CHNS.softmax(-1) * self.mix[..., None, None]).sum(1)
            if heaviest_NC is not None:
                heaviest_NC[where] = weights_CNS.amax(-1).T
            torch.bmm(weights_CNS.transpose(0, 1), tokens_NSM, out=pooled_NCM[where])
        pooled_NCD = self.asked.new_empty(count, conditions, len(self.back[0][0]))
        for condition, (base_D, back_DM) in enumerate(self.back):
            pooled_NCD[:, condition] = linear(pooled_NCM[:, condition], back_DM, base_D)
        return pooled_NCD


def _with_part(pooled_NCD: Tensor, tokens: UnpackedTokens, vectors_PD: Tensor) -> Tensor:
    """Only the texts that have a unconditional part change, to these vectors of it."""
    if len(tokens.with_part):
        pooled_NCD[tokens.with_part] = join_unconditional(pooled_NCD[tokens.with_part], tokens.shares, vectors_PD)
    return pooled_NCD


def flat_tokens(tokens: UnpackedTokens, codes: TokenBasis) -> FlatTokens:
    """What a head keeps of the texts by their coded tokens, in the order of `tokens`: up to rounding, and to what all
    keys of a text share, which no softmax over them sees."""
    inner_TM, count = (tokens.codes.float() + 0.5) * codes.steps, len(tokens.counts)
    part = Part(share=torch.zeros(count), vector=torch.zeros(count, codes.form.dim))
    part.share[tokens.with_part], part.vector[tokens.with_part] = tokens.shares, tokens.vectors
    return FlatTokens(
        keys=torch.einsum("tm,mhk->thk", inner_TM, codes.keys),
        values=inner_TM @ codes.values + codes.mean,
        counts=tokens.counts,
        part=part,
    )


# ------------------------------------------------------------------------------------------------------------ sketches


def principal_axes(vectors_ND: Tensor) -> Tensor:
    """Axes with nearly the most of a sample's second moment, which keep nearly all of cosines: (N, D) -> (D, A)."""
    unit_ND = F.normalize(vectors_ND, dim=-1)
    axes_DA = torch.randn(unit_ND.shape[1], AXES, generator=torch.Generator().manual_seed(0))
    for _ in range(AXES_ROUNDS):
        axes_DA = torch.linalg.qr(unit_ND.T @ (unit_ND @ axes_DA)).Q
    return axes_DA.contiguous()


class SketchPooler:
    """Pools sketches under one condition, to vectors along some axes (D, A); at first along all of their dimensions."""

    def __init__(
        self, sketch: TokenSketch, codes: TokenBasis, questions: ConditionQueries, temperatures: Tensor
    ) -> None:
        exact = TokenPooler(codes, questions, temperatures)
        centroids_LEM = torch.from_numpy(sketch.centroids)
        levels, centroids, components = centroids_LEM.shape
        codes_LEM = centroids_LEM / codes.steps[:components]
        self.base, values_DM = exact.back[0]
        self.mix = exact.mix[0]
        self.values = (codes_LEM @ values_DM.T[:components]).flatten(0, 1)
        logits_LEH = codes_LEM @ exact.asked.T[:components]
        low_L1H, high_L1H = logits_LEH.amin(1, keepdim=True), logits_LEH.amax(1, keepdim=True)
        self.logits = (logits_LEH - (low_L1H + high_L1H) / 2).flatten(0, 1)  # what all tokens share does not count
        self.is_bounded = bool(((high_L1H - low_L1H).sum(0) / 2 <= MOST_LOGIT).all())
        self.first_row = torch.arange(levels, dtype=torch.int32) * centroids
        self.axes = torch.eye(len(self.base))

    def along(self, axes: Tensor) -> SketchPooler:
        """The same along these axes."""
        other = copy.copy(self)
        other.values, other.base, other.axes = self.values @ axes, self.base @ axes, axes
        return other

    @torch.no_grad()
    def pool(self, tokens: UnpackedTokens) -> Tensor:
        """Vectors of the rows, in the order of `tokens`, along the axes: (N, A), not normalised."""
        pooled_NA = torch.empty(len(tokens.counts), len(self.base))
        for where, sketch_NSL in tokens.groups(SKETCHED_AT_ONCE):
            count, length, levels = sketch_NSL.shape
            rows_NSL = sketch_NSL.int() + self.first_row
            logits_NSH = F.embedding_bag(rows_NSL.flatten(0, 1), self.logits, mode="sum").view(count, length, -1)
            if self.is_bounded:  # a softmax that need not look for the largest logit takes half the time
                odds_NSH = logits_NSH.exp_()
                weights_NS = (odds_NSH @ (self.mix / odds_NSH.sum(1))[..., None])[..., 0]
            else:
                weights_NS = logits_NSH.softmax(1) @ self.mix
            weighed_NA = F.embedding_bag(
                rows_NSL.flatten(1), self.values, per_sample_weights=weights_NS.repeat_interleave(levels, 1), mode="sum"
            )
            torch.add(weighed_NA, self.base, out=pooled_NA[where])
        return _with_part(pooled_NA[:, None], tokens, tokens.vectors @ self.axes)[:, 0]
