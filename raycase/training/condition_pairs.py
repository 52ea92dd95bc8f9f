"""Rated pairs for condition pooling: their states were stored, or come from an encoder that is trained with the head.

Shapes: N rated pairs, S sentences and C conditions (distinct), B of a batch, T tokens of its longest, W of the states,
P of f(s).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Self

import numpy as np
import torch
from torch import Tensor

from raycase.encoder.packing import token_budget_batches
from raycase.encoder.token_batch import TokenBatch
from raycase.encoder.token_states import StateReader, TokenStates
from raycase.io.rated import RatedPairs
from raycase.io.stored_tokens import StoredStates
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.pairs import RatedTexts

SAYS = -1
TOKENS_AT_ONCE = 4096  # tokens, padding included, that go through the head together
# which sentences (B,), their states (B, T, W), which tokens are real (B, T), f(s) (B, P)
SentencePart = tuple[np.ndarray, Tensor, Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class PairIndex:
    """Rated pairs as indices of distinct sentences and distinct conditions. The arrays may be read-only."""

    sentence_index: np.ndarray  # (N, 2)
    condition_index: np.ndarray  # (N,)
    groups: np.ndarray  # (N,) equal for pairs of the same two sentences, which share a batch
    ratings: np.ndarray  # (N,) float32; -1 where the condition does not apply
    # (N,) the epoch that trains on a pair drawn from labels, rated in [0, 1]; 0: rated, trained on in every epoch;
    # SAYS: a text twice, rated 1 if it says something of the condition, else 0
    epochs: np.ndarray

    @property
    def rated(self) -> np.ndarray:
        """The rows of the pairs that were rated: (R,)."""
        return np.flatnonzero(self.epochs == 0)

    def take(self, rows: np.ndarray) -> Self:
        """These pairs."""
        return replace(self, **{f.name: getattr(self, f.name)[rows] for f in fields(PairIndex)})

    def then(self, others: PairIndex) -> Self:
        """These pairs, then others of the same sentences and conditions."""
        columns = {f.name: np.concatenate([getattr(self, f.name), getattr(others, f.name)]) for f in fields(PairIndex)}
        return replace(self, **columns)


class ReadPairs(PairIndex, ABC):
    """Rated pairs with their states."""

    @abstractmethod
    def means(self, conditions: np.ndarray) -> Tensor:
        """Mean states of these conditions: (C, W)."""

    @abstractmethod
    def states(self, sentences: np.ndarray) -> Iterator[SentencePart]:
        """States of these sentences and f of them, those of similar length together."""


@dataclass(frozen=True, kw_only=True)
class PairStates(ReadPairs):
    """Rated pairs with stored states."""

    sentences: StoredStates  # S
    plain: np.ndarray  # (S, P) float32, f(s)
    conditions: np.ndarray  # (C, W) float32, mean states

    @property
    def dim(self) -> int:
        """Numbers of a state, W."""
        return self.conditions.shape[1]

    def means(self, conditions: np.ndarray) -> Tensor:
        return torch.from_numpy(self.conditions[conditions])

    def states(self, sentences: np.ndarray) -> Iterator[SentencePart]:
        for members in token_budget_batches(self.sentences.counts[sentences], TOKENS_AT_ONCE):
            states_BTW, real_BT = self.sentences.padded(sentences[members])
            plain_BP = self.plain[sentences[members]]
            yield members, torch.from_numpy(states_BTW), torch.from_numpy(real_BT), torch.from_numpy(plain_BP)


@dataclass(frozen=True, kw_only=True)
class PairTokens(ReadPairs):
    """Rated pairs, tokenised. Their states come from an encoder, with a gradient where its weights have one."""

    sentences: TokenBatch  # S
    conditions: TokenBatch  # C
    reader: StateReader | None = None  # of the encoder, once there is one
    compute: torch.dtype = torch.float32  # of the encoder's matrix products

    @classmethod
    def of(cls, config: ConditionPoolingConfig, rated: RatedPairs) -> PairTokens:
        """Tokenise rated pairs. Raises RequestError for a text that cannot be encoded."""
        prepared = RatedTexts.of(config, rated).prepared
        index_N2 = prepared.rows[rated.pair_index]
        return cls(
            sentences=prepared.alone[0],
            conditions=prepared.bases[0],
            sentence_index=prepared.sentence[index_N2],
            condition_index=prepared.condition[index_N2[:, 0]],
            groups=rated.groups,
            ratings=rated.ratings,
            epochs=rated.epochs,
        )

    def numbered_as(self, pairs: PairIndex) -> PairTokens:
        """These rated pairs, with sentences and conditions numbered as in `pairs`, which are the same ones."""
        return replace(
            self,
            **{f.name: getattr(pairs, f.name) for f in fields(PairIndex)},
            sentences=self.sentences.take(_places(pairs.sentence_index, self.sentence_index)),
            conditions=self.conditions.take(_places(pairs.condition_index, self.condition_index)),
        )

    def means(self, conditions: np.ndarray) -> Tensor:
        parts = list(self._read(self.conditions.take(conditions)))
        order = np.argsort(np.concatenate([members for members, _ in parts]))
        return torch.cat([states.mean for _, states in parts])[torch.from_numpy(order)]

    def states(self, sentences: np.ndarray) -> Iterator[SentencePart]:
        for members, states in self._read(self.sentences.take(sentences)):
            yield members, states.states, states.real, states.plain

    def _read(self, batch: TokenBatch) -> Iterator[tuple[np.ndarray, TokenStates]]:
        assert self.reader is not None
        encoder = self.reader.encoder
        for members in token_budget_batches(batch.lengths, encoder.batch_tokens):
            with torch.autocast(encoder.model.device.type, torch.bfloat16, enabled=self.compute is torch.bfloat16):
                states, _ = self.reader.padded(batch, members)
            yield members, states


def _places(numbers: np.ndarray, others: np.ndarray) -> np.ndarray:
    """For each number, the one that stands in its place in `others`."""
    _, first = np.unique(numbers, return_index=True)
    return others.reshape(-1)[first]
