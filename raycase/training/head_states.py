"""What condition pooling's head is trained on: the stored states of texts and conditions, and rated pairs of them; and
vectors by a head.

Shapes: S sentences and C conditions (distinct), K texts, each under a condition, N pairs, B of a batch, T tokens of its
longest, W of the states, P of f(s), D vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raycase.encoder.packing import token_budget_batches
from raycase.evaluation.metrics import nested_correlations
from raycase.heads.condition_head import ConditionQueries, Head, KeysValues
from raycase.io.rated_pairs import RatedPairs
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.pairs import Indexed, distinct
from raycase.tokens.stored import StoredStates
from raycase.training.vector_cache import VectorCache

TOKENS_AT_ONCE = 4096  # tokens, padding included, that go through the head together
EVALUATED_AT_ONCE = 2048  # texts, each under a condition
# which sentences (B,), their states (B, T, W), which tokens are real (B, T), f(s) (B, P)
SentencePart = tuple[np.ndarray, Tensor, Tensor, Tensor]
Under = tuple[np.ndarray, np.ndarray]  # K texts, each under a condition: their sentences and conditions, (K,) each


@dataclass(frozen=True, kw_only=True)
class States:
    """Stored states of sentences and of conditions. The arrays may be read-only."""

    sentences: StoredStates  # S
    unconditional: np.ndarray  # (S, P) float32, f(s)
    conditions: np.ndarray  # (C, W) float32, mean states

    @classmethod
    def of(
        cls,
        sentences: Sequence[str],
        conditions: Sequence[str],
        config: ConditionPoolingConfig,
        vectors: VectorCache,
        *,
        name: str,
        **cached: Any,
    ) -> States:
        """Those of distinct texts. name: of the data, for messages; cached: as `VectorCache.states_of` takes it."""
        states, unconditional = vectors.states_of(sentences, config, name=name, **cached)
        asked, _ = vectors.states_of(conditions, config, name=f"conditions of {name}", **cached)
        return cls(sentences=states, unconditional=unconditional, conditions=asked.means)

    @property
    def dim(self) -> int:
        """Numbers of a state, W."""
        return self.conditions.shape[1]

    def parts(self, sentences: np.ndarray) -> Iterator[SentencePart]:
        """States of these sentences and f of them, those of similar length together."""
        for members in token_budget_batches(self.sentences.counts[sentences], TOKENS_AT_ONCE):
            states_BTW, real_BT = self.sentences.padded(sentences[members])
            unconditional_BP = self.unconditional[sentences[members]]
            yield members, torch.from_numpy(states_BTW), torch.from_numpy(real_BT), torch.from_numpy(unconditional_BP)


@dataclass(frozen=True, kw_only=True)
class PairStates:
    """N rated pairs, as indices of the sentences and conditions of `States`."""

    states: States
    sentence_index: np.ndarray  # (N, 2)
    condition_index: np.ndarray  # (N,)
    groups: np.ndarray  # (N,) equal for pairs of the same two sentences, which share a batch
    ratings: np.ndarray  # (N,) float32; -1 where the condition does not apply

    def __len__(self) -> int:
        return len(self.ratings)

    @classmethod
    def of(cls, rated: RatedPairs, config: ConditionPoolingConfig, vectors: VectorCache, **cached: Any) -> PairStates:
        """Pairs with the states of their texts alone."""
        sentences, conditions = Indexed.of([*rated.sentences1, *rated.sentences2]), Indexed.of(rated.conditions)
        states = States.of(sentences.values, conditions.values, config, vectors, name=rated.uri, **cached)
        return cls.indexed(rated, states, sentences.codes, conditions.codes)

    @classmethod
    def indexed(cls, rated: RatedPairs, states: States, both_2N: np.ndarray, condition_N: np.ndarray) -> PairStates:
        """Pairs whose first sentences, then second ones, and conditions stand at these places."""
        index = {"sentence_index": both_2N.reshape(2, -1).T, "condition_index": condition_N}
        return cls(states=states, **index, groups=rated.groups, ratings=rated.ratings)

    def under(self, rows: np.ndarray | slice = slice(None)) -> Under:
        """The first sentences of these pairs, then the second ones, each under its condition: K = 2 N."""
        return self.sentence_index[rows].T.reshape(-1), np.tile(self.condition_index[rows], 2)


def head_vectors(
    head: Head,
    states: States,
    under: Under,
    compute: Callable[[KeysValues, ConditionQueries], Tensor] | None = None,
    *,
    bf16: bool = False,
) -> Tensor:
    """Vectors of texts, each under a condition: (K, D); or what `compute` makes of them in place of `head.pool`.

    Each distinct sentence, condition and both together go through the head once: batches are of a few texts.
    bf16: keys, values and queries are computed in bfloat16."""
    device = head.temperatures.device
    faster = torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16)
    sentences, sentence_K = np.unique(under[0], return_inverse=True)
    conditions, condition_K = np.unique(under[1], return_inverse=True)
    with faster:
        questions = head.ask(torch.from_numpy(states.conditions[conditions]).to(device)).to(torch.float32)
    both_U, both_K = distinct(sentence_K * len(conditions) + condition_K)
    sentence_U, condition_U = np.divmod(both_U, len(conditions))
    vectors, order = [], []
    for members, *part in states.parts(sentences):
        with faster:
            tokens = head.read(*(tensor.to(device) for tensor in part)).float()
        place = np.full(len(sentences), -1)
        place[members] = np.arange(len(members))
        there = np.flatnonzero(place[sentence_U] >= 0)
        asked = questions.take(torch.from_numpy(condition_U[there])[:, None].to(device))
        read = tokens.take(torch.from_numpy(place[sentence_U[there]]).to(device))
        vectors.append((compute or head.pool)(read, asked)[:, 0])
        order.append(there)
    return torch.cat(vectors)[torch.from_numpy(np.argsort(np.concatenate(order))[both_K]).to(device)]


@torch.inference_mode()
def all_vectors(head: Head, states: States, under: Under, compute: Any = None) -> Tensor:
    """`head_vectors` of any number of texts, part by part, in the processor's memory."""
    count = len(under[0])
    parts = [slice(start, start + EVALUATED_AT_ONCE) for start in range(0, count, EVALUATED_AT_ONCE)]
    found = [head_vectors(head, states, (under[0][part], under[1][part]), compute).cpu() for part in parts]
    return torch.cat(found)


def head_correlations(head: Head, pairs: PairStates, nested: Sequence[int] = ()) -> dict[str, float]:
    """The `nested_correlations` of the head's vectors of rated pairs."""
    vectors = all_vectors(head, pairs.states, pairs.under()).float().numpy()
    index = np.arange(len(vectors)).reshape(2, -1).T
    return nested_correlations(vectors, index, pairs.ratings, nested)
