"""CSR, the condition-specified router (Lin et al., 2024, section 2): a condition weights the tokens of a sentence.

Eq. 1 is in README.md. What is before the first routed layer, and that layer's attention, is the same under every
condition (appendix B): it is computed once a sentence, the rest once a pair.

Shapes: N pairs, M distinct ones, B texts of a batch, P pairs of a batch, C conditions, T tokens, D hidden size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.encoder.bert import LIKE_BERT, LayerInParts, attention_parts, rest
from raycase.encoder.engine import Collector, TextEncoder, send
from raycase.encoder.loading import load_encoder
from raycase.encoder.packing import token_budget_batches
from raycase.encoder.pooling import Pooling, pool_mean
from raycase.encoder.sources import load_config
from raycase.encoder.table import ENCODERS
from raycase.encoder.token_batch import Prepared, TokenBatch, Work
from raycase.errors import RequestError, check_ranges
from raycase.models.configs import EmbedderConfig
from raycase.models.fine_tuned import FineTunedEmbedder, starting_encoder
from raycase.models.pairs import Encoded, accepted_pairs, encoded, tokens_of_pairs
from raycase.papers.csr import Asks, Router

PairBatch = tuple[np.ndarray, Tensor, Any]  # which pairs (P,), their vectors (P, D), w (P, T)


def words(real_BT: Tensor) -> Tensor:
    """Mask without the first and the last token, which are special: (B, T) -> (B, T)."""
    inner_BT = real_BT & F.pad(real_BT[:, 1:], (0, 1))
    inner_BT[:, 0] = False
    return inner_BT


class Csr(FineTunedEmbedder):
    """A loaded CSR system: (sentence, condition) -> vector."""

    def __init__(self, config: CsrConfig, encoder: TextEncoder) -> None:
        stack = encoder.model.encoder
        layers = [*stack.layer, *([encoder.last_layer.layer] if encoder.last_layer else [])]
        encoder.last_layer = None
        first = len(layers) - config.routed
        stack.layer = nn.ModuleList(layers[:first])
        super().__init__(config, encoder)
        # the attention's output of each is weighted
        self.routed: Any = nn.ModuleList(LayerInParts(layer, encoder.model) for layer in layers[first:])
        self.routed.train(encoder.model.training)

    def forward(self, prepared: Prepared) -> Tensor:
        pair_index = np.arange(len(prepared.condition))
        index, vectors, _ = zip(*self._routed(prepared, pair_index), strict=True)
        return torch.cat(vectors)[torch.from_numpy(np.argsort(np.concatenate(index))[prepared.rows])]

    @torch.inference_mode()
    def encode_prepared(self, prepared: Prepared) -> Encoded:
        pair_index = accepted_pairs(prepared)
        collector = Collector(len(prepared.condition), like=torch.empty(0, self.dim, device=self.encoder.model.device))
        batches = self._unconditional if prepared.conditions is None else self._routed
        for index, vectors, _ in batches(prepared, pair_index):
            collector.add(index, vectors.float())
        texts = [(prepared.of_sentences, prepared.sentence), (prepared.of_conditions, prepared.condition)]
        processed = sum(int(b.lengths[np.unique(index[pair_index])].sum()) for batches, index in texts for b in batches)
        work = Work(tokens=int(tokens_of_pairs(prepared, pair_index).sum()), processed=processed, computed=processed)
        return encoded(prepared, pair_index, collector.result()[pair_index], work)

    @torch.inference_mode()
    def token_weights(self, prepared: Prepared) -> list[np.ndarray]:
        """The mean of w over the routed layers, as shares of what the text's tokens have together: M of (T,)."""
        pair_index = accepted_pairs(prepared)
        found = [np.empty(0, np.float32)] * len(prepared.condition)
        lengths = prepared.of_sentences[0].lengths[prepared.sentence]
        for rows, _, w_PT in self._routed(prepared, pair_index):
            for row, w_T in zip(rows.tolist(), w_PT.float().cpu().numpy(), strict=True):
                of_text = w_T[1 : lengths[row] - 1]  # the first and the last token are special
                found[row] = of_text / of_text.sum() if of_text.any() else np.full_like(of_text, 1 / len(of_text))
        return found

    def _states(self, texts: TokenBatch, rows: np.ndarray, layers: Any) -> tuple[Tensor, Tensor]:
        """States of a batch of texts behind these routed layers, none of them weighted, and which tokens are real."""
        hidden_BTD, real_BT, keep_BT, _ = self.encoder.states(texts, rows)
        for layer in layers:
            hidden_BTD = rest(layer.layer, hidden_BTD, layer.attend(hidden_BTD, keep_BT)[0])
        return hidden_BTD, real_BT

    def condition_vectors(self, conditions: TokenBatch) -> Tensor:
        """Each condition's router query, q_c of eq. 1, of its state before the last layer: (C, D)."""
        batches = []
        for rows in token_budget_batches(conditions.lengths, self.encoder.batch_tokens):
            hidden_BTD, real_BT = self._states(conditions, rows, self.routed[:-1])
            if self.config.asks is Asks.CLS:
                state_BD = hidden_BTD[:, 0]
            else:  # the query of a mean is the mean of the queries
                state_BD = pool_mean(hidden_BTD, words(real_BT)).to(hidden_BTD.dtype)
            if self.config.router is not Router.HIDDEN:
                query, *_ = attention_parts(self.routed[-1].layer)[2]
                state_BD = query(state_BD)
            batches.append((rows, state_BD))
        order = np.argsort(np.concatenate([rows for rows, _ in batches]))
        return torch.cat([vectors for _, vectors in batches])[torch.from_numpy(order)]

    def _routed(self, prepared: Prepared, pair_index: np.ndarray) -> Iterator[PairBatch]:
        """Batches of pairs with their vectors and w; each sentence passes what is the same for all its pairs once."""
        if not len(pair_index):
            return
        alone, budget = prepared.of_sentences[0], self.encoder.batch_tokens
        conditions, condition_index = np.unique(prepared.condition[pair_index], return_inverse=True)
        condition_CD = self.condition_vectors(prepared.of_conditions[0].take(conditions))
        order = np.argsort(prepared.sentence[pair_index], stable=True)
        distinct, starts, counts = np.unique(
            prepared.sentence[pair_index][order], return_index=True, return_counts=True
        )
        for batch in token_budget_batches(alone.lengths[distinct], budget):
            hidden_BTD, real_BT, keep_BT, _ = self.encoder.states(alone, distinct[batch])
            attended_BTD, keys_BTD = self.routed[0].attend(hidden_BTD, keep_BT)
            pairs_of_batch = np.concatenate([order[starts[b] : starts[b] + counts[b]] for b in batch])
            sentence_of_pair = np.repeat(np.arange(len(batch)), counts[batch])
            size = max(1, budget // hidden_BTD.shape[1])
            for start in range(0, len(pairs_of_batch), size):
                pairs = pairs_of_batch[start : start + size]
                both = send(hidden_BTD.device, sentence_of_pair[start : start + size], condition_index[pairs])
                s, c = (index_P.long() for index_P in both)
                keep_PT = None if keep_BT is None else keep_BT[s]
                states = hidden_BTD[s], attended_BTD[s], keys_BTD[s], real_BT[s], keep_PT
                yield pair_index[pairs], *self.pair_vectors(condition_CD[c], *states)

    def pair_vectors(
        self,
        condition_PD: Tensor,
        hidden_PTD: Tensor,
        attended_PTD: Tensor,
        keys_PTD: Tensor,
        real_PT: Tensor,
        keep_PT: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """What is computed for each pair, by eq. 1: its vector, (P, D), and the mean of w over the layers, (P, T)."""
        mean_PT = torch.zeros(real_PT.shape, device=real_PT.device)
        among_PT = words(real_PT) if self.config.asks is Asks.WORDS else real_PT  # w sums to 1 over these
        for number, layer in enumerate(self.routed):
            if number:
                attended_PTD, keys_PTD = layer.attend(hidden_PTD, keep_PT)
            keys_PTD = hidden_PTD if self.config.router is Router.HIDDEN else keys_PTD
            score_PT = (keys_PTD @ condition_PD.unsqueeze(-1)).squeeze(-1).float() / math.sqrt(keys_PTD.shape[-1])
            w_PT = score_PT.masked_fill(~among_PT, float("-inf")).softmax(-1)
            mean_PT = mean_PT + w_PT.detach() / len(self.routed)
            factor_PT = 1 + w_PT if self.config.asks is Asks.CLS else w_PT * among_PT.sum(1, keepdim=True)
            weighted_PTD = attended_PTD * factor_PT.unsqueeze(-1).to(attended_PTD.dtype)
            hidden_PTD = rest(layer.layer, hidden_PTD, weighted_PTD)
        return pool_mean(hidden_PTD, real_PT), mean_PT

    def _unconditional(self, prepared: Prepared, pair_index: np.ndarray) -> Iterator[PairBatch]:
        """f(s), without w."""
        texts, text_K = prepared.of_sentences[0], prepared.sentence[pair_index]
        for batch in token_budget_batches(texts.lengths[text_K], self.encoder.batch_tokens):
            yield pair_index[batch], pool_mean(*self._states(texts, text_K[batch], self.routed)), None

    def whole(self) -> Any:
        """The library's model with its layers put back. The system cannot be used afterwards."""
        self.encoder.model.encoder.layer.extend(layer.layer for layer in self.routed)
        return super().whole()


@dataclass(frozen=True, kw_only=True)
class CsrConfig(EmbedderConfig):
    """A CSR system without its weights."""

    SYSTEM = "csr"
    weighs_words = True

    router: Router = Router.QUERY
    asks: Asks = Asks.CLS
    routed: int = 1  # T - t: number of last layers with a router

    @classmethod
    def untrained(cls, model: str, pooling: Pooling | None) -> CsrConfig:
        """CSR without training (Table 4), with the router that training takes by default; it pools by the mean."""
        return csr(model, **default_router(model))

    def load(self, **options: Any) -> Csr:
        return Csr(self, load_encoder(self.encoder, **options | {"by_library": True}))  # its layers are taken apart


PAPERS_ROUTER = {"router": Router.QUERY, "asks": Asks.CLS, "routed": 1}
# Products of queries and keys have the size that the softmax was trained for. Those of hidden states teach MiniLM more
# (`results/fine_tuning.md`); MPNet's are too small to tell conditions apart (`results/mpnet.md`).
FOR_AVERAGED = {"router": Router.QUERY, "asks": Asks.WORDS, "routed": 3}
FOR_MINILM = FOR_AVERAGED | {"router": Router.HIDDEN}


def csr(model: str, **choices: Any) -> CsrConfig:
    """The system before training; choices: the fields of `CsrConfig`."""
    spec = starting_encoder(model, prompt="concat-cs:all", pooling=Pooling.MEAN)
    encoder = load_config(spec.source)
    if encoder.model_type not in LIKE_BERT:
        raise RequestError(f"--model: expected an encoder like {', '.join(LIKE_BERT)}, got {encoder.model_type}")
    layers = int(encoder.num_hidden_layers)
    config = CsrConfig(name=model, encoder=spec, **choices)
    check_ranges(config, {"routed": (1 <= config.routed <= layers, f"1 to {layers} layers of {model}")})
    return config


def default_router(model: str) -> dict[str, Any]:
    """The paper's router; for an encoder that was published as averaged, one that sees the condition."""
    spec = starting_encoder(model, prompted=False)
    was_published = model in ENCODERS or spec.published is not None
    averaged = was_published and spec.pooling[0] in (Pooling.MEAN, Pooling.MEAN_ALL)
    return dict(PAPERS_ROUTER if not averaged else FOR_MINILM if model == "minilm" else FOR_AVERAGED)


SYSTEMS = {"csr": CsrConfig}
