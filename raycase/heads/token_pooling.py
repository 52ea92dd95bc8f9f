"""Pooling stored tokens under conditions: the vectors of `raycase.heads.condition_head`, without the encoder.

Shapes: N texts, S tokens of each in a group of equal length, T tokens of all, C conditions, H heads, M components,
D dimensions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raycase.errors import RequestError
from raycase.heads.condition_head import ConditionQueries, Says
from raycase.heads.token_codes import TokenCodes
from raycase.io.stored_tokens import Ragged, StoredTokens

MOST_PRODUCT = 1e30  # of a code and its factor: sums of them are finite
TOKENS_AT_ONCE = 2**10  # of a group that are pooled at a time: their components stay near the processor


@dataclass(frozen=True, kw_only=True)
class UnpackedTokens:
    """Stored tokens of N texts, shortest first: codes (T, M) int8, or sketches (T, L) uint8; counts (N,) of tokens;
    order (N,): which text each one is.

    with_part (P,): those with a plain part, by their place in this order; its shares (P,) and vectors (P, D).
    """

    codes: Tensor
    counts: np.ndarray
    order: np.ndarray
    with_part: Tensor
    shares: Tensor
    vectors: Tensor

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


def unpack_tokens(tokens: StoredTokens, codes: TokenCodes | None) -> UnpackedTokens:
    """Stored tokens, or sketches of them (None), ready to be pooled."""
    counts = tokens.codes.counts
    order = np.argsort(counts, kind="stable")
    flat = tokens.codes.take(order).flat
    if codes is not None:
        packed, flat = flat, np.empty((len(flat), len(codes.bits)), np.int8)
        for start in range(0, len(packed), TOKENS_AT_ONCE):
            flat[start : start + TOKENS_AT_ONCE] = codes.unpack(packed[start : start + TOKENS_AT_ONCE])
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

    def __init__(
        self, codes: TokenCodes, questions: ConditionQueries, temperatures: Tensor, dtype: torch.dtype = torch.float32
    ) -> None:
        questions, temperatures = questions.cpu(), temperatures.cpu()  # the encoder may be on a GPU, the tokens are not
        queries_CHK = questions.queries.to(dtype) * temperatures[:, None]
        asked_CHM = torch.einsum("chk,mhk->chm", queries_CHK, codes.keys.to(dtype)) * codes.steps
        self.asked = asked_CHM.flatten(0, 1)
        self.mix, self.queries = questions.mix.to(dtype), questions.queries
        values_MD = codes.values.to(dtype) * codes.steps[:, None]
        mean_D = codes.mean + 0.5 * values_MD.sum(0)  # a code stands for the middle of its step
        dim = len(mean_D)
        gates_CD = torch.ones(len(self.mix), dim) if questions.gate is None else questions.gate[:, :dim]
        self.back = [(gate_D * mean_D, gate_D * values_MD) for gate_D in gates_CD]
        check_products(self.asked, *(product for pair in self.back for product in pair))

    def pool(self, tokens: UnpackedTokens) -> Tensor:
        """Vectors of the texts, in the order of `tokens`, under each condition: (N, C, D), not normalised."""
        return join_plain_part(self._pool(tokens), tokens, tokens.vectors)

    @torch.no_grad()
    def states(self, tokens: UnpackedTokens, says: Says) -> Tensor:
        """The probability that each text, in the order of `tokens`, says something of each condition: (N, C)."""
        peaks_NCH = self.asked.new_empty(len(tokens.counts), *self.mix.shape)
        pooled_NCD = self._pool(tokens, peaks_NCH)
        queries_NCHK = self.queries.expand(len(pooled_NCD), -1, -1, -1)
        return says(says.features(pooled_NCD, queries_NCHK, peaks_NCH)).sigmoid()

    @torch.no_grad()
    def _pool(self, tokens: UnpackedTokens, peaks_NCH: Tensor | None = None) -> Tensor:
        """Vectors without the plain part, (N, C, D); into `peaks`, how far a token's logit is above the mean."""
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
            torch.bmm(weights_CNS.transpose(0, 1), tokens_NSM, out=pooled_NCM[where])
        return torch.stack([torch.addmm(b, pooled_NCM[:, c], v) for c, (b, v) in enumerate(self.back)], dim=1)


def check_products(*products: Tensor) -> None:
    """Raise RequestError for factors of tokens that are so large that what is pooled would not be finite."""
    if not all((product.abs() < MOST_PRODUCT).all() for product in products):
        raise RequestError(
            "expected stored tokens of a basis and a head with usual numbers, got some that are not finite"
        )


def join_plain_part(pooled_NCD: Tensor, tokens: UnpackedTokens, vectors_PD: Tensor) -> Tensor:
    """See `raycase.heads.plain_part`; only the texts that have one change, to vectors (P, D)."""
    if len(tokens.with_part):
        own_PCD = pooled_NCD[tokens.with_part]
        lengths_PC1 = torch.linalg.vector_norm(own_PCD, dim=-1, keepdim=True)
        shares_P11 = tokens.shares[:, None, None]
        part_PCD = lengths_PC1 * (shares_P11.sqrt() * vectors_PD[:, None])
        pooled_NCD[tokens.with_part] = (1 - shares_P11).sqrt() * own_PCD + part_PCD
    return pooled_NCD
