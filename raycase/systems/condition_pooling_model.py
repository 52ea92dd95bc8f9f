"""The loaded condition pooling: a sentence's states and a condition's meet in a head above the encoder.

Shapes: S sentences, C conditions of each, K pairs, W of the states, D vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch

from raycase.data.storage import locate
from raycase.data.stored_states import StoredStates
from raycase.data.stored_words import StoredWords
from raycase.encoder.engine import TextEncoder
from raycase.encoder.prepared import Prepared
from raycase.encoder.throughput import Work
from raycase.encoder.token_states import StateReader, TokenStates, layer_numbers
from raycase.encoder.transfers import Collector, send
from raycase.systems.condition_head import Head, Questions, Words
from raycase.systems.embeds import Embeds
from raycase.systems.pairs import Encoded, Memory, accepted_pairs, encoded
from raycase.systems.word_codes import WordCodes
from raycase.systems.word_weights import WeighsWords

if TYPE_CHECKING:
    from raycase.systems.condition_pooling import ConditionPoolingConfig

TOKENS_AT_ONCE, CONDITIONS_AT_ONCE = 2**16, 64  # of a batch, and of each of its sentences; both bound the memory
UsePairs = Callable[[np.ndarray, np.ndarray, Words, Questions], None]  # see `_pair_up`


class ConditionPooling(Embeds, WeighsWords):
    """Loaded condition pooling, an `Encoder`: (sentence, condition) -> vector."""

    def __init__(self, *, config: ConditionPoolingConfig, encoder: TextEncoder, head: Head) -> None:
        encoder.batch_tokens = min(encoder.batch_tokens, TOKENS_AT_ONCE)
        self.config = config
        self.encoder = encoder
        self.head = head
        self.reader = StateReader(encoder, layer_numbers(config.encoder, config.layers))
        self.memory = Memory(config.states_dim)
        self.output = torch.float32

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return self.config.dim

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        """Vectors of tokenised pairs, counts, and the reason of each refused pair."""
        pair_index = accepted_pairs(prepared)
        if self.config.keep is not None:
            return self._keep_states(prepared, pair_index)
        if self.config.basis is not None:
            return self._keep_words(prepared, pair_index)
        if prepared.conditions is None:
            plain = prepared.alone[0].take(prepared.sentence[pair_index])
            vectors_KD, work = self.encoder.encode(replace(plain, start=plain.start[:, :1], end=plain.end[:, :1]))
        else:
            vectors_KD, work = self._pool(prepared, pair_index)
        return encoded(prepared, pair_index, vectors_KD, work)

    def round_to(self, dtype: str) -> None:
        """Let `encode_prepared` give conditional vectors of this type, rounded where they are computed."""
        self.output = getattr(torch, dtype)

    def _pool(self, prepared: Prepared, pair_index: np.ndarray) -> tuple[np.ndarray, Work]:
        """Vectors of these pairs, (K, D)."""
        device = self.encoder.model.device
        collector = Collector(len(pair_index), like=torch.empty(0, self.dim, dtype=self.output, device=device))

        def pool(pairs_BC: np.ndarray, there_BC: np.ndarray, words: Words, questions: Questions) -> None:
            pooled_PD = self.head.pool(words, questions)[..., : self.dim].to(self.output).flatten(0, 1)
            collector.add(pairs_BC.ravel(), pooled_PD, None if there_BC.all() else there_BC.ravel())

        work = self._pair_up(prepared, pair_index, pool)
        return collector.result(), work

    def _pair_up(self, prepared: Prepared, pair_index: np.ndarray, use: UsePairs) -> Work:
        """Call `use` with pairs of these, (B, C), which of them there are, and what the head keeps of both texts: each
        sentence and each new condition goes through the encoder once."""
        distinct, condition_K = np.unique(prepared.condition[pair_index], return_inverse=True)
        states_CW, work = self.memory.of(prepared, distinct, lambda new: self._mean_states(prepared, new))
        device = self.encoder.model.device
        with torch.inference_mode():
            questions = self.head.ask(torch.from_numpy(states_CW).to(device))
        sentences, sentence_K = np.unique(prepared.sentence[pair_index], return_inverse=True)
        order = np.argsort(sentence_K, kind="stable")  # pairs by sentence
        first_S = np.searchsorted(sentence_K[order], np.arange(len(sentences) + 1))
        on_device = send(device, first_S, condition_K[order])  # with them, nothing is sent once the encoder has begun

        def meet(rows: np.ndarray, states: TokenStates) -> None:
            words = self.head.read(states.states, states.real, states.plain)
            most = int(np.diff(first_S)[rows].max(initial=0))
            first_B1 = on_device[0][states.index.long(), None]
            for start in range(0, most, CONDITIONS_AT_ONCE):
                stop = min(most, start + CONDITIONS_AT_ONCE)
                place_BC = first_S[rows][:, None] + np.arange(start, stop)
                there_BC = place_BC < first_S[rows + 1][:, None]
                pairs_BC = order[np.where(there_BC, place_BC, 0)]
                asked_BC = first_B1 + torch.arange(start, stop, device=device)  # of those not there, another's
                condition_BC = on_device[1][asked_BC.clamp(max=len(order) - 1)]
                use(pairs_BC, there_BC, words, questions.take(condition_BC.long()))

        return work + self.reader.read(prepared.alone[0].take(sentences), meet)

    def _mean_states(self, prepared: Prepared, conditions: np.ndarray) -> tuple[np.ndarray, Work]:
        """e of the conditions with these indices: (C, W)."""
        empty_0W = torch.empty(0, self.config.states_dim, device=self.encoder.model.device)
        collector = Collector(len(conditions), like=empty_0W)
        batch = prepared.bases[0].take(conditions)
        work = self.reader.read(batch, lambda rows, states: collector.add(rows, states.mean))
        return collector.result(), work

    def _keep_states(self, prepared: Prepared, pair_index: np.ndarray) -> Encoded:
        """f(s) and the states of each text."""
        vectors_KD = np.empty((len(pair_index), self.encoder.dim), dtype=np.float32)
        width = self.config.states_dim
        kept = [np.empty((0, width), np.float16)] * len(prepared.sentence)

        def keep(rows: np.ndarray, states: TokenStates) -> None:
            vectors_KD[rows] = states.plain.cpu().numpy()
            states_BSW, real_BS = states.states.cpu().numpy(), states.real.cpu().numpy()
            for row, states_SW, real_S in zip(rows.tolist(), states_BSW, real_BS, strict=True):
                kept[pair_index[row]] = StoredStates.of([states_SW[real_S]], width).flat

        batch = prepared.alone[0].take(prepared.sentence[pair_index])
        work = self.reader.read(batch, keep)
        result = encoded(prepared, pair_index, vectors_KD, work)
        return replace(result, kept=StoredStates.of(kept, width).take(prepared.rows))

    def _keep_words(self, prepared: Prepared, pair_index: np.ndarray) -> Encoded:
        """f(s) and the stored words of each text."""
        vectors_KD = np.empty((len(pair_index), self.encoder.dim), dtype=np.float32)
        coded: list[StoredWords] = []
        texts: list[np.ndarray] = []

        def keep(rows: np.ndarray, states: TokenStates) -> None:
            vectors_KD[rows] = states.plain.cpu().numpy()
            coded.append(self.codes.code(self.head.read(states.states, states.real, states.plain)))
            texts.append(pair_index[rows])

        work = self.reader.read(prepared.alone[0].take(prepared.sentence[pair_index]), keep)
        result = encoded(prepared, pair_index, vectors_KD, work)
        nothing = np.setdiff1d(np.arange(len(prepared.sentence)), pair_index)  # refused texts have no words
        kept = StoredWords.concat([*coded, StoredWords.empty(self.codes.form, len(nothing))])
        kept = kept.take(np.argsort(np.concatenate([*texts, nothing]), kind="stable"))
        return replace(result, kept=kept.take(prepared.rows))

    @cached_property
    def codes(self) -> WordCodes:
        """The basis of stored words."""
        assert self.config.basis is not None
        return WordCodes.from_bytes(locate(self.config.basis).read(), self.config.basis)

    @torch.inference_mode()
    def words(self, sentences: Sequence[str]) -> list[Words]:
        """What the head keeps of sentences, batch after batch; those that cannot be encoded are left out."""
        prepared, found = self.config.prepare(sentences, None), []

        def keep(rows: np.ndarray, states: TokenStates) -> None:
            found.append(self.head.read(states.states, states.real, states.plain))

        self.reader.read(prepared.alone[0].take(prepared.sentence[accepted_pairs(prepared)]), keep)
        return found

    @torch.inference_mode()
    def questions(self, conditions: Sequence[str]) -> Questions:
        """What the head keeps of conditions. Raises ValueError for one that cannot be encoded."""
        prepared = self.config.prepare(["a"] * len(conditions), conditions)
        _check_accepted(prepared, conditions)
        states_CW, _ = self.memory.of(
            prepared, prepared.condition[prepared.rows], lambda new: self._mean_states(prepared, new)
        )
        return self.head.ask(torch.from_numpy(states_CW).to(self.encoder.model.device))

    @torch.inference_mode()
    def embed_phrases(self, phrases: Sequence[str], condition: str) -> np.ndarray:
        """Vectors of phrases that are answers to a condition, such as "heavy rain" to "weather": (N, D) float32.

        All of a phrase's words weigh the same; the condition only gates its values. Raises ValueError for a text that
        cannot be encoded.
        """
        gate = self.questions([condition]).gate
        prepared = self.config.prepare(phrases, None)
        _check_accepted(prepared, phrases)
        vectors_PD = np.empty((len(prepared.sentence), self.dim), dtype=np.float32)
        pair_index = accepted_pairs(prepared)

        def average(rows: np.ndarray, states: TokenStates) -> None:
            words = self.head.read(states.states, states.real, states.plain)
            real_BS1 = words.real.unsqueeze(-1)
            mean_BD = words.values.masked_fill(~real_BS1, 0).sum(1) / real_BS1.sum(1)
            gated_BD = mean_BD if gate is None else mean_BD * gate
            vectors_PD[pair_index[rows]] = gated_BD[:, : self.dim].cpu().numpy()

        self.reader.read(prepared.alone[0].take(prepared.sentence[pair_index]), average)
        return vectors_PD[prepared.rows]

    def token_weights(self, prepared: Prepared) -> list[np.ndarray]:
        """The weight of each text token of each distinct pair: M of (T,); see `WeighsWords`. Raises ValueError without
        conditions."""
        if prepared.conditions is None:
            raise ValueError("expected conditions, got none: without one, condition pooling weighs no words")
        pair_index = accepted_pairs(prepared)
        found = [np.empty(0, np.float32)] * len(prepared.condition)

        def weigh(pairs_BC: np.ndarray, there_BC: np.ndarray, words: Words, questions: Questions) -> None:
            weights_BCS = self.head.weights(words, questions).float().cpu().numpy()
            real_BS = words.real.cpu().numpy()
            for row, column in np.argwhere(there_BC).tolist():
                found[pair_index[pairs_BC[row, column]]] = weights_BCS[row, column, real_BS[row]]

        self._pair_up(prepared, pair_index, weigh)
        return found

    def compile(self) -> None:
        """Compile the encoder's layers."""
        self.encoder.compile()

    def matrix_product_rate(self) -> float:
        """FLOP/s of a plain matrix product on this device, in the encoder's type; measured at each call."""
        return self.encoder.matrix_product_rate()


def _check_accepted(prepared: Prepared, texts: Sequence[str]) -> None:
    """Raise ValueError for the first of the texts that cannot be encoded."""
    for row, pair in enumerate(prepared.rows.tolist()):
        if prepared.reasons[pair] is not None:
            raise ValueError(f"{prepared.reasons[pair]}: {texts[row][:80]!r}")
