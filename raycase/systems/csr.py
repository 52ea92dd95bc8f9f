"""CSR, the condition-specified router (Lin et al., 2024, section 2): a condition weights the tokens of a sentence.

Claim: in the last layers the condition's [CLS] query asks the sentence's keys, and the attention's output is weighted
by the answer; so a tri-encoder, which reads each text once, comes near to a bi-encoder, without a parameter more.

    score = q_c K_s^T / sqrt(d_k),  w = softmax(score),  h = (1 + w) * h'        (eq. 1)

Everything before the first routed layer, and that layer's attention, is the same under every condition (appendix B):
it is computed once a sentence, the rest once a pair.

Shapes: B sentences, C conditions, P pairs, T tokens, D hidden size, H heads, K head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.encoder.engine import TextEncoder
from raycase.encoder.last_layer import BERT_LAYERS
from raycase.encoder.loading import load_encoder
from raycase.encoder.packing import token_budget_batches
from raycase.encoder.pooling import Compose, Pooling, compose, pool_mean
from raycase.encoder.prepared import Prepared
from raycase.encoder.prompts import Span
from raycase.encoder.rates import Work
from raycase.encoder.sources import load_config
from raycase.encoder.token_batch import TokenBatch
from raycase.errors import RequestError
from raycase.systems.fine_tuned_config import Tuned, begin
from raycase.systems.fine_tuned_module import Embedder
from raycase.systems.model_folder import load_extra, save_folder
from raycase.systems.pairs import (
    CONDITION,
    SENTENCE,
    Encoded,
    Memory,
    count_tokens,
    encoded,
    kept_pairs,
    prepare,
    prompt_sets,
    tokens_apart,
)


class Form(StrEnum):
    """What the encoder reads at once."""

    TRI = "tri"  # sentence and condition apart
    BI = "bi"  # "c: s"; w is what [CLS] pays attention to


class Router(StrEnum):
    """What asks what (tri form; tables 1 and 3)."""

    QUERY = "query"  # the condition's query, the sentence's keys
    HIDDEN = "hidden"  # hidden states on both sides
    HEAVY = "heavy"  # projections of hidden states of its own: 2 D^2 parameters
    RANDOM = "random"  # nothing: fixed random scores of the places, whatever the condition


class Asks(StrEnum):
    """Whose state asks for the condition."""

    CLS = "cls"
    WORDS = "words"  # ours, for encoders that are averaged, whose [CLS] knows little: words ask, and words are weighted


class Weight(StrEnum):
    """What the attention's output is multiplied by."""

    ADDED = "1+w"
    ONLY = "w"  # table 3
    EVEN = "Tw"  # ours: the same times the number of tokens that share it, so in tri form 1 on average


@dataclass(frozen=True, kw_only=True)
class CsrConfig(Tuned):
    """CSR without its weights."""

    SYSTEM: ClassVar[str] = "csr"
    CHOICES: ClassVar[dict[str, type[StrEnum]]] = {
        "form": Form,
        "router": Router,
        "asks": Asks,
        "weight": Weight,
        "compose": Compose,
    }

    form: Form = Form.TRI
    router: Router = Router.QUERY
    asks: Asks = Asks.CLS
    routed: int = 1  # T - t: how many of the last layers
    weight: Weight = Weight.ADDED
    compose: Compose | None = None  # with the condition's own vector, as a tri-encoder; the paper has none

    @property
    def has_extra(self) -> bool:
        """Whether there are weights besides the encoder's."""
        return self.router is Router.HEAVY

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return self.plain_dim * (2 if self.compose is Compose.CONCAT else 1)

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise each distinct sentence and condition, or in bi form each pair. Loads no weights."""
        if self.form is Form.TRI or conditions is None:
            return prepare(self.encoder, sentences, conditions, alone=[SENTENCE], bases=[CONDITION])
        [prompts] = prompt_sets(self.encoder)
        both = [prompts.pair, replace(prompts.pair, span=Span.SENTENCE)]
        return prepare(self.encoder, sentences, conditions, pairs=both)

    def count_tokens(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> np.ndarray:
        """Tokens of each pair's texts: (N,) int64; 0 for a pair that is refused."""
        if conditions is None:
            return count_tokens(self.encoder, sentences, conditions, [SENTENCE])
        [prompts] = prompt_sets(self.encoder)
        templates = [SENTENCE, CONDITION] if self.form is Form.TRI else [prompts.pair]
        return count_tokens(self.encoder, sentences, conditions, templates)

    def load(self, **options: Any) -> Csr:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""
        csr = Csr(self, load_encoder(self.encoder, **options | {"unpadded": False}))
        if csr.heavy is not None:
            load_extra(csr.heavy, self.local)
        return csr


def csr(
    model: str,
    *,
    form: Form = Form.TRI,
    router: Router = Router.QUERY,
    asks: Asks = Asks.CLS,
    routed: int = 1,
    weight: Weight = Weight.ADDED,
    compose: Compose | None = None,
) -> CsrConfig:
    """Before training. Raises RequestError for choices that do not go together."""
    spec = begin(model, prompt="concat-cs:all", pooling=Pooling.MEAN)
    config = load_config(spec.source)
    if config.model_type not in BERT_LAYERS:
        raise RequestError(f"--model: expected an encoder like {', '.join(BERT_LAYERS)}, got {config.model_type}")
    layers = int(config.num_hidden_layers)
    if not 0 <= routed <= layers:
        raise RequestError(f"--routed: expected 0 to {layers} layers of {model}, got {routed}")
    if routed == 0 and form is Form.TRI and compose is None:
        raise RequestError("--routed 0: expected --compose, got none; without either, a condition changes nothing")
    if form is Form.BI and (router is not Router.QUERY or asks is not Asks.CLS or compose is not None):
        raise RequestError(
            "--form bi: expected no --router, no --asks and no --compose; its router is the attention of [CLS]"
        )
    return CsrConfig(
        model=model,
        encoder=replace(spec, separator=": ", subtract=False),
        form=form,
        router=router,
        asks=asks,
        routed=routed,
        weight=weight,
        compose=compose,
    )


class RoutedLayer(nn.Module):
    """A layer of a BERT-like encoder in two halves, between which its attention's output is weighted. Wraps the
    library's layer; unweighted, the halves together are that layer."""

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def attend(self, hidden_BTD: Tensor, keep_BT: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """The attention's output after its dense projection, and its queries and keys: (B, T, D) each."""
        attention, output = self.layer.attention.self, self.layer.attention.output
        query_BTD, key_BTD, value_BTD = (
            project(hidden_BTD) for project in (attention.query, attention.key, attention.value)
        )
        q_BHTK, k_BHTK, v_BHTK = (
            states.unflatten(-1, (-1, attention.attention_head_size)).transpose(1, 2)
            for states in (query_BTD, key_BTD, value_BTD)
        )
        mask = None if keep_BT is None else keep_BT[:, None, None, :]
        dropout = attention.dropout.p if self.training else 0.0
        heads_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=mask, dropout_p=dropout)
        attended_BTD = output.dropout(output.dense(heads_BHTK.transpose(1, 2).flatten(2)))
        return attended_BTD, query_BTD, key_BTD

    def rest(self, hidden_BTD: Tensor, attended_BTD: Tensor) -> Tensor:
        """Residual, norm and feed-forward: (B, T, D), (B, T, D) -> (B, T, D)."""
        attended_BTD = self.layer.attention.output.LayerNorm(attended_BTD + hidden_BTD)
        return self.layer.output(self.layer.intermediate(attended_BTD), attended_BTD)

    def plain(self, hidden_BTD: Tensor, keep_BT: Tensor | None) -> Tensor:
        """The library's layer."""
        return self.rest(hidden_BTD, self.attend(hidden_BTD, keep_BT)[0])


def words(real_BT: Tensor) -> Tensor:
    """Without the first token and the last, which are special: (B, T) -> (B, T)."""
    inner_BT = real_BT & F.pad(real_BT[:, 1:], (0, 1))
    inner_BT[:, 0] = False
    return inner_BT


def router_weights(ask_PD: Tensor, key_PTD: Tensor, among_PT: Tensor) -> Tensor:
    """w of eq. 1 over some of the tokens, none of them padding: (P, D), (P, T, D), (P, T) -> (P, T) fp32."""
    score_PT = (key_PTD @ ask_PD.unsqueeze(-1)).squeeze(-1).float() / math.sqrt(key_PTD.shape[-1])
    return score_PT.masked_fill(~among_PT, float("-inf")).softmax(-1)


def cls_attention(query_BTD: Tensor, key_BTD: Tensor, real_BT: Tensor, head_size: int) -> Tensor:
    """What [CLS] pays attention to, averaged over heads: (B, T, D), (B, T, D), (B, T) -> (B, T) fp32."""
    q_BHK, k_BTHK = (t.unflatten(-1, (-1, head_size)) for t in (query_BTD[:, 0], key_BTD))
    score_BHT = torch.einsum("bhk,bthk->bht", q_BHK, k_BTHK).float() / math.sqrt(head_size)
    return score_BHT.masked_fill(~real_BT[:, None], float("-inf")).softmax(-1).mean(1)


class Csr(Embedder):
    """A loaded CSR system. It is an `Encoder`."""

    def __init__(self, config: CsrConfig, encoder: TextEncoder) -> None:
        assert encoder.last_layer is not None, "BERT-like encoders have it"
        layers = [*encoder.model.encoder.layer, encoder.last_layer.layer]
        encoder.last_layer = None
        first = len(layers) - config.routed
        encoder.model.encoder.layer = nn.ModuleList(layers[:first])
        super().__init__(config, encoder)
        self.routed = nn.ModuleList(RoutedLayer(layer) for layer in layers[first:]).train(encoder.model.training)
        self.heavy = None
        width, device = encoder.dim, encoder.model.device
        if config.router is Router.HEAVY:
            self.heavy = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(2))
            self.heavy.to(device, encoder.model.dtype)
        scores_T = torch.randn(config.encoder.max_tokens, generator=torch.Generator().manual_seed(0))
        self.random_T = nn.Buffer(scores_T.to(device), persistent=False)
        self._memory = Memory(2 * width)

    @property
    def layers(self) -> list[RoutedLayer]:
        """The routed ones, first to last."""
        return list(self.routed)  # type: ignore[arg-type]

    # ------------------------------------------------------------------------------------------------------ training

    def forward(self, prepared: Prepared) -> Tensor:
        """Vectors with a gradient, of pairs none of which is refused: (N, dim)."""
        every = np.arange(len(prepared.condition))
        if prepared.conditions is None:
            parts = list(self._plain(prepared, every))
        elif self.config.form is Form.BI:
            parts = list(self._bi(prepared, every))
        else:
            parts = list(self._routed_pairs(prepared, every, self._about(prepared.bases[0]), prepared.condition))
        order = np.argsort(np.concatenate([pairs for pairs, _ in parts]))
        return torch.cat([vectors for _, vectors in parts])[torch.from_numpy(order[prepared.rows])]

    # ----------------------------------------------------------------------------------------------------- embedding

    def forget(self) -> None:
        """Drop what is remembered of conditions; for weights that have changed."""
        self._memory.vectors.clear()

    @torch.inference_mode()
    def encode_prepared(self, prepared: Prepared) -> Encoded:
        """The same without, with counts, and a reason for each pair that has no vector."""
        kept = kept_pairs(prepared)
        dim = self.dim if prepared.conditions is not None else self.encoder.dim
        vectors_MD = np.empty((len(prepared.condition), dim), dtype=np.float32)
        work = self._work(prepared, kept)
        found: Iterator[tuple[np.ndarray, Tensor]] = iter(())
        if prepared.conditions is None:
            found = self._plain(prepared, kept)
        elif self.config.form is Form.BI:
            found = self._bi(prepared, kept)
        elif len(kept):
            which, places = np.unique(prepared.condition[kept], return_inverse=True)
            about, some = self._memory.of(prepared, which, lambda new: self._remembered(prepared.bases[0].take(new)))
            work += some
            about_CD = torch.from_numpy(about).to(self.encoder.model.device, self.encoder.model.dtype)
            found = self._routed_pairs(prepared, kept, about_CD, places)
        for pairs, vectors in found:
            vectors_MD[pairs] = vectors.float().cpu().numpy()
        return encoded(prepared, kept, vectors_MD[kept], work)

    def _remembered(self, batch: TokenBatch) -> tuple[np.ndarray, Work]:
        tokens = int(batch.lengths.sum())
        work = Work(processed=tokens, computed=tokens, flops=2.0 * self.encoder.weights * tokens)
        return self._about(batch).float().cpu().numpy(), work

    def _work(self, prepared: Prepared, kept: np.ndarray) -> Work:
        """Tokens, and FLOPs of the matrix products: each sentence's in the first layers, each pair's in the others."""
        tokens = tokens_apart(prepared, kept)
        if prepared.pairs:
            return Work(tokens=tokens, processed=tokens, computed=tokens, flops=2.0 * self.encoder.weights * tokens)
        lengths = prepared.alone[0].lengths
        once = int(lengths[np.unique(prepared.sentence[kept])].sum())
        every = int(lengths[prepared.sentence[kept]].sum())
        halves = [layer.layer for layer in self.layers]
        a_pair = sum(p.numel() for half in halves for p in half.parameters() if p.ndim == 2)
        a_pair -= sum(p.numel() for half in halves[:1] for p in half.attention.parameters() if p.ndim == 2)
        flops = 2.0 * ((self.encoder.weights - a_pair) * once + a_pair * every)
        return Work(tokens=tokens, processed=once, computed=once, flops=flops)

    # ------------------------------------------------------------------------------------------------- the two forms

    def _about(self, conditions: TokenBatch) -> Tensor:
        """What is known of each condition: what it asks, and for `compose` its own vector: (C, D) or (C, 2 D)."""
        parts = []
        for rows in token_budget_batches(conditions.lengths, self.encoder.batch_tokens):
            hidden_BTD, real_BT, keep_BT = self.encoder.states(conditions, rows)
            about: list[Tensor] = []
            for place, layer in enumerate(self.layers):
                if place == len(self.routed) - 1:
                    about.append(self._ask(layer, self._asking(hidden_BTD, real_BT)))
                    if self.config.compose is None:
                        break
                hidden_BTD = layer.plain(hidden_BTD, keep_BT)
            if self.config.compose is not None:
                about.append(pool_mean(hidden_BTD, real_BT).to(hidden_BTD.dtype))
            parts.append((rows, torch.cat(about, dim=1)))
        order = np.argsort(np.concatenate([rows for rows, _ in parts]))
        return torch.cat([about for _, about in parts])[torch.from_numpy(order)]

    def _asking(self, hidden_BTD: Tensor, real_BT: Tensor) -> Tensor:
        """The condition's state before the last layer: (B, T, D), (B, T) -> (B, D)."""
        if self.config.asks is Asks.CLS:
            return hidden_BTD[:, 0]
        return pool_mean(hidden_BTD, words(real_BT)).to(hidden_BTD.dtype)

    def _ask(self, layer: RoutedLayer, state_BD: Tensor) -> Tensor:
        """What a condition's state asks: (B, D). The query of a mean is the mean of the queries."""
        match self.config.router:
            case Router.HIDDEN:
                return state_BD
            case Router.HEAVY:
                assert self.heavy is not None
                return self.heavy[0](state_BD)
        return layer.layer.attention.self.query(state_BD)

    def _routed_pairs(
        self, prepared: Prepared, pairs: np.ndarray, about_CD: Tensor, condition: np.ndarray
    ) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Pairs and their vectors, a batch of sentences after the other; `condition`: place of each pair's in `about`.

        A sentence goes through the first layers, and the attention of the first routed one, once.
        """
        alone, budget = prepared.alone[0], self.encoder.batch_tokens
        order = np.argsort(prepared.sentence[pairs], kind="stable")
        which, starts, counts = np.unique(prepared.sentence[pairs][order], return_index=True, return_counts=True)
        for batch in token_budget_batches(alone.lengths[which], budget):
            hidden_BTD, real_BT, keep_BT = self.encoder.states(alone, which[batch])
            attended_BTD, keys_BTD = hidden_BTD, hidden_BTD
            if self.routed:
                attended_BTD, _, keys_BTD = self.layers[0].attend(hidden_BTD, keep_BT)
            members = np.concatenate([order[starts[b] : starts[b] + counts[b]] for b in batch])
            place = np.repeat(np.arange(len(batch)), counts[batch])
            for start in range(0, len(members), max(1, budget // hidden_BTD.shape[1])):
                some = slice(start, start + max(1, budget // hidden_BTD.shape[1]))
                s = torch.from_numpy(place[some]).to(hidden_BTD.device)
                c = torch.from_numpy(condition[members[some]]).to(hidden_BTD.device)
                once = (
                    hidden_BTD[s],
                    attended_BTD[s],
                    keys_BTD[s],
                    real_BT[s],
                    None if keep_BT is None else keep_BT[s],
                )
                yield pairs[members[some]], self._pair(about_CD[c], *once)

    def _pair(
        self,
        about_PD: Tensor,
        hidden_PTD: Tensor,
        attended_PTD: Tensor,
        keys_PTD: Tensor,
        real_PT: Tensor,
        keep_PT: Tensor | None,
    ) -> Tensor:
        """What is computed for each pair: (P, dim)."""
        width = hidden_PTD.shape[-1]
        among_PT = words(real_PT) if self.config.asks is Asks.WORDS else real_PT
        for place, layer in enumerate(self.layers):
            if place:
                attended_PTD, _, keys_PTD = layer.attend(hidden_PTD, keep_PT)
            w_PT = self._weights(about_PD[:, :width], hidden_PTD, keys_PTD, among_PT)
            hidden_PTD = layer.rest(hidden_PTD, self._weighted(attended_PTD, w_PT, among_PT))
        vectors_PD = pool_mean(hidden_PTD, real_PT)
        if self.config.compose is None:
            return vectors_PD
        return compose(vectors_PD, about_PD[:, -width:].float(), self.config.compose)

    def _weights(self, ask_PD: Tensor, hidden_PTD: Tensor, keys_PTD: Tensor, among_PT: Tensor) -> Tensor:
        match self.config.router:
            case Router.HIDDEN:
                keys_PTD = hidden_PTD
            case Router.HEAVY:
                assert self.heavy is not None
                keys_PTD = self.heavy[1](hidden_PTD)
            case Router.RANDOM:
                scores_PT = self.random_T[: among_PT.shape[1]].expand(among_PT.shape)
                return scores_PT.masked_fill(~among_PT, float("-inf")).softmax(-1)
        return router_weights(ask_PD, keys_PTD, among_PT)

    def _weighted(self, attended_PTD: Tensor, w_PT: Tensor, among_PT: Tensor) -> Tensor:
        """h of eq. 1."""
        match self.config.weight:
            case Weight.ADDED:
                factor_PT = 1 + w_PT
            case Weight.ONLY:
                factor_PT = w_PT
            case Weight.EVEN:
                factor_PT = w_PT * among_PT.sum(1, keepdim=True)
        return attended_PTD * factor_PT.unsqueeze(-1).to(attended_PTD.dtype)

    def _bi(self, prepared: Prepared, pairs: np.ndarray) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Sentence and condition as one text; tokens that are not the sentence's have w = 0."""
        batch = prepared.pairs[0]
        for some in token_budget_batches(batch.lengths[pairs], self.encoder.batch_tokens):
            rows = pairs[some]
            hidden_BTD, real_BT, keep_BT = self.encoder.states(batch, rows)
            start_B1, end_B1 = (torch.from_numpy(a[rows, 1:2]).to(hidden_BTD.device) for a in (batch.start, batch.end))
            place_T = torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device)
            sentence_BT = (place_T >= start_B1) & (place_T < end_B1)
            for layer in self.layers:
                attended_BTD, query_BTD, key_BTD = layer.attend(hidden_BTD, keep_BT)
                head_size = layer.layer.attention.self.attention_head_size
                w_BT = cls_attention(query_BTD, key_BTD, real_BT, head_size) * sentence_BT
                hidden_BTD = layer.rest(hidden_BTD, self._weighted(attended_BTD, w_BT, real_BT))
            yield rows, pool_mean(hidden_BTD, real_BT)

    def _plain(self, prepared: Prepared, pairs: np.ndarray) -> Iterator[tuple[np.ndarray, Tensor]]:
        """f(s): the layers as the library has them."""
        alone, sentence = prepared.alone[0], prepared.sentence[pairs]
        for some in token_budget_batches(alone.lengths[sentence], self.encoder.batch_tokens):
            hidden_BTD, real_BT, keep_BT = self.encoder.states(alone, sentence[some])
            for layer in self.layers:
                hidden_BTD = layer.plain(hidden_BTD, keep_BT)
            yield pairs[some], pool_mean(hidden_BTD, real_BT)

    def whole(self) -> Any:
        """The library's model with its layers put back, as `save` writes it."""
        self.encoder.model.encoder.layer.extend(layer.layer for layer in self.layers)
        return super().whole()

    def save(self, folder: Path) -> None:
        """Write everything that `raycase.load(folder)` needs; this one is not to be used any more."""
        save_folder(self.config, folder, self.whole(), extra=self.heavy)
