"""Tokens of texts one after the other, without padding, pooled under one condition: fast enough to learn its state.

Shapes: N texts, T tokens of all, H heads, K of a head, D of the vectors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raycase.heads.condition_head import ConditionQueries, KeysValues, Part


@dataclass(frozen=True, kw_only=True)
class FlatTokens:
    """What a head keeps of N texts. keys: (T, H, K), of length 1, or less what those of a text share; values: (T, D);
    counts: (N,) of tokens."""

    keys: Tensor
    values: Tensor
    counts: np.ndarray
    part: Part

    @classmethod
    def of(cls, tokens: KeysValues) -> FlatTokens:
        """Of a batch of texts."""
        keys_THK = (tokens.keys / tokens.lengths.unsqueeze(-1)).transpose(1, 2)[tokens.real]
        counts, dim = tokens.real.sum(1), tokens.values.shape[-1]
        none = Part(share=keys_THK.new_zeros(len(counts)), vector=keys_THK.new_zeros(len(counts), dim))
        part = none if tokens.part is None else tokens.part
        return cls(keys=keys_THK, values=tokens.values[tokens.real], counts=counts.cpu().numpy(), part=part)

    @classmethod
    def joined(cls, parts: Sequence[FlatTokens]) -> FlatTokens:
        """Several batches as one."""
        return cls(
            keys=torch.cat([each.keys for each in parts]),
            values=torch.cat([each.values for each in parts]),
            counts=np.concatenate([each.counts for each in parts]),
            part=Part(*map(torch.cat, zip(*(each.part for each in parts), strict=True))),
        )

    def take(self, rows: np.ndarray) -> FlatTokens:
        """Some of the texts, in any order."""
        ends = np.cumsum(self.counts)
        tokens = [np.empty(0, np.int64), *(np.arange(ends[row] - self.counts[row], ends[row]) for row in rows)]
        at_T, at_N = (torch.from_numpy(each).to(self.keys.device) for each in (np.concatenate(tokens), rows))
        part = Part(share=self.part.share[at_N], vector=self.part.vector[at_N])
        return FlatTokens(keys=self.keys[at_T], values=self.values[at_T], counts=self.counts[rows], part=part)

    def vectors(self, questions: ConditionQueries, temperatures: Tensor) -> Tensor:
        """Unit vectors of the texts under one condition, as `Head.pool` gives them: (N, D)."""
        (queries_HK,), (mix_H,), (gate_D,) = questions
        device, count, dim = self.keys.device, len(self.counts), self.values.shape[1]
        text_T = torch.from_numpy(np.repeat(np.arange(count), self.counts)).to(device)
        first_N = torch.from_numpy(np.cumsum(self.counts) - self.counts).to(device)
        logits_TH = (self.keys * queries_HK).sum(-1) * temperatures
        most_NH = logits_TH.new_full((count, len(mix_H)), -torch.inf)
        most_NH = most_NH.scatter_reduce(0, text_T[:, None].expand_as(logits_TH), logits_TH.detach(), "amax")
        odds_TH = (logits_TH - most_NH[text_T]).exp()
        sums_NH = torch.zeros_like(most_NH).index_add(0, text_T, odds_TH)
        weights_T = (odds_TH / sums_NH[text_T]) @ mix_H
        every_T = torch.arange(len(text_T), device=device)
        pooled_ND = F.embedding_bag(every_T, self.values, first_N, mode="sum", per_sample_weights=weights_T)
        unit_ND, share_N1 = F.normalize(pooled_ND * gate_D[:dim], dim=-1), self.part.share[:, None]
        part_ND = share_N1.sqrt() * self.part.vector[:, :dim]
        return F.normalize((1 - share_N1).sqrt() * unit_ND + part_ND, dim=-1)  # as `join_unconditional`
