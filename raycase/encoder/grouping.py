"""Which prompts go through the encoder together, by its attention and its device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from raycase.encoder.attention import padded_length
from raycase.encoder.packing import Cut, Forest, Row, row_lengths, rows_without_padding, token_budget_batches
from raycase.encoder.throughput import Cost
from raycase.encoder.token_batch import TokenBatch

CHUNKED = 2.0  # assumed cost of attention in chunks, relative to that of a padded batch; not measured
Batch = tuple[np.ndarray, Row | None]  # prompts by index, and the row that holds them; None: to be padded


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """How prompts are put together.

    budget: tokens of a batch or row; causal: prompts share prefixes; in_rows: the encoder's attention takes rows;
    unpadded: it takes nothing else; filled: rows have few lengths; tree_tokens: prompts with so many tokens are sorted
    and searched for shared prefixes together; typed: the model takes types of tokens.
    """

    budget: int
    causal: bool
    in_rows: bool
    unpadded: bool
    filled: bool
    tree_tokens: int
    typed: bool
    cost: Cost

    def batches(self, batch: TokenBatch, prompts: np.ndarray) -> Iterator[Batch]:
        """Cut the prompts of this index into padded batches, or into rows. Raises ValueError for a budget below 1."""
        second = batch.second if self.typed else None
        if not self.in_rows or (self.causal and second is not None):  # trees hold no types
            yield from self._padded(batch, prompts)
            return
        lengths = row_lengths(self.budget) if self.filled else None
        part_of = np.cumsum(batch.lengths[prompts]) // self.tree_tokens
        for part in np.split(prompts, np.flatnonzero(np.diff(part_of)) + 1):
            sequences = batch.ids(part)
            if not self.causal:
                types = None if second is None else second[part]
                for row in rows_without_padding(sequences, self.budget, lengths, types):
                    yield part[row.sequences], row
                continue
            forest = Forest.of(sequences)
            cuts = forest.cuts(self.budget) if lengths is None else forest.cuts_filling(lengths)
            if self.unpadded or self._trees_cost_less(sequences.counts, cuts):
                for row in map(forest.lay, cuts):
                    yield part[row.sequences], row
            else:
                yield from self._padded(batch, part)

    def _padded(self, batch: TokenBatch, prompts: np.ndarray) -> Iterator[Batch]:
        for index in token_budget_batches(batch.lengths[prompts], self.budget):
            yield prompts[index], None

    def _trees_cost_less(self, lengths: np.ndarray, cuts: list[Cut]) -> bool:
        """Whether prefix trees are estimated to take fewer FLOPs than padded batches, attention included."""
        trees = sum(self.cost.flops(padded_length(cut.tokens), CHUNKED * cut.deepest) for cut in cuts)
        batches = (lengths[b] for b in token_budget_batches(lengths, self.budget))
        return trees < sum(self.cost.flops(len(b) * int(b.max()), int(b.max())) for b in batches)
