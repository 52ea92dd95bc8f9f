"""The head of condition pooling: a condition weighs the tokens of a sentence that was encoded alone.

    w_k = softmax_t( tau_k cos(Q_k e, K_k H_t) ),  w = sum_k softmax(M e)_k w_k,
    vector = sigmoid(G e) * sum_t w_t act(V H_t)

H_t: states of the sentence's tokens; e: mean state of the condition's. Without training: one head, K and Q the identity
on the last layer, V the identity, no gate. A sentence unlike those of training also has a share of its unconditional
vector (`raycase.heads.plain_part`).

Kin to pooling by multi-head attention (Lee et al., 2019, Set Transformer, section 3.2) with the condition as its seed,
and to CSR's router (Lin et al., 2024, eq. 1) behind a frozen encoder.

Shapes: B sentences, S tokens of the longest, C conditions of each, W of the states, H heads, K of a head, D vectors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor, nn

from raycase.heads.plain_part import Plain, PlainPart
from raycase.heads.top import ACTIVATIONS, Activation, HeadConfig, load_weights
from raycase.io.storage import locate

LEAST_TEMPERATURE = 1e-3
SAYS_HIDDEN, PEAK = 64, 10.0  # of `Says`: its hidden layer, and what a peak is divided by
WEIGHTS = "head.safetensors"  # in a model folder


@dataclass(frozen=True, kw_only=True)
class KeysValues:
    """What a head keeps of sentences: keys (B, H, S, K), their lengths (B, H, S), values (B, S, D), real (B, S), and
    their plain part or None."""

    keys: Tensor
    lengths: Tensor
    values: Tensor
    real: Tensor
    plain: Plain | None

    @classmethod
    def of(cls, keys_BHSK: Tensor, values_BSD: Tensor, real_BS: Tensor, plain: Plain | None = None) -> KeysValues:
        """With the lengths of the keys: dividing the products by them is cheaper than dividing the keys."""
        lengths_BHS = torch.linalg.vector_norm(keys_BHSK, dim=-1).clamp(min=1e-12)
        return cls(keys=keys_BHSK, lengths=lengths_BHS, values=values_BSD, real=real_BS, plain=plain)

    def take(self, index_B: Tensor) -> KeysValues:
        """The sentences of this index."""
        return KeysValues(
            keys=self.keys[index_B],
            lengths=self.lengths[index_B],
            values=self.values[index_B],
            real=self.real[index_B],
            plain=None if self.plain is None else self.plain.take(index_B),
        )


@dataclass(frozen=True, kw_only=True)
class ConditionQueries:
    """What a head keeps of conditions: queries (C, H, K) of length 1; mix (C, H); gate (C, D) or None."""

    queries: Tensor
    mix: Tensor
    gate: Tensor | None

    def cpu(self) -> ConditionQueries:
        """The same in the processor's memory."""
        gate = None if self.gate is None else self.gate.cpu()
        return ConditionQueries(queries=self.queries.cpu(), mix=self.mix.cpu(), gate=gate)

    def take(self, index: Tensor) -> ConditionQueries:
        """The conditions of this index, of any shape."""
        gate = None if self.gate is None else self.gate[index]
        return ConditionQueries(queries=self.queries[index], mix=self.mix[index], gate=gate)


class Says(nn.Module):
    """Whether a text says anything of a condition, as log-odds: B gelu(A [u / |u|, q, p]).

    u: the first dimensions of the head's vector, q: the queries of all heads, p: for each head, how far the largest
    logit of a token stands above the mean. So stored tokens suffice, cut to any dimension.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.dim = min((config.output_dim, *config.nested))
        self.net = nn.Sequential(
            nn.Linear(self.dim + config.heads * (config.head_dim + 1), SAYS_HIDDEN),
            nn.GELU(),
            nn.Linear(SAYS_HIDDEN, 1),
        )

    def features(self, pooled: Tensor, queries: Tensor, peaks: Tensor) -> Tensor:
        """(..., D), (..., H, K), (..., H) -> (..., F)."""
        return torch.cat([F.normalize(pooled[..., : self.dim], dim=-1), queries.flatten(-2), peaks / PEAK], dim=-1)

    def forward(self, features: Tensor) -> Tensor:  # (..., F) -> (...)
        log_odds: Tensor = self.net(features)[..., 0]
        return log_odds


class Head(nn.Module, ABC):
    """Base of both heads; `read` sees the sentences alone, `ask` the conditions alone, `pool` brings them together."""

    output_dim: int
    says: Says | None

    @abstractmethod
    def read(self, states_BSW: Tensor, real_BS: Tensor, plain_BP: Tensor | None = None) -> KeysValues:
        """Keys and values of the sentences' tokens; plain: f(s), which a head that has a plain part needs."""

    @abstractmethod
    def ask(self, states_CW: Tensor) -> ConditionQueries:
        """Queries of conditions by their mean states."""

    @property
    @abstractmethod
    def temperatures(self) -> Tensor:
        """tau of each head: (H,)."""

    def logits(self, tokens: KeysValues, questions: ConditionQueries) -> Tensor:
        """Of each token under each condition: (B, H, C, S)."""
        logits_BHCS = questions.queries.transpose(1, 2) @ tokens.keys.transpose(2, 3)
        logits_BHCS = logits_BHCS * (self.temperatures[:, None] / tokens.lengths).unsqueeze(2)
        return logits_BHCS.masked_fill(~tokens.real[:, None, None], float("-inf"))

    def weights(self, tokens: KeysValues, questions: ConditionQueries) -> Tensor:
        """The weight of each token under each condition, which sum to 1 over the tokens: (B, C, S)."""
        logits_BHCS = self.logits(tokens, questions)
        return (logits_BHCS.softmax(-1) * questions.mix.transpose(1, 2).unsqueeze(-1)).sum(1)

    def pool(self, tokens: KeysValues, questions: ConditionQueries) -> Tensor:
        """Vectors of the sentences, each under its conditions: (B, C, D)."""
        pooled_BCD = self.weights(tokens, questions) @ tokens.values
        if questions.gate is not None:
            pooled_BCD = pooled_BCD * questions.gate
        return pooled_BCD if tokens.plain is None else tokens.plain.join(pooled_BCD)

    def says_features(self, tokens: KeysValues, questions: ConditionQueries) -> Tensor:
        """What `Says` sees of sentences, each under its conditions: (B, C, F)."""
        assert self.says is not None
        logits_BHCS = self.logits(tokens, questions)
        real_B11S = tokens.real[:, None, None]
        means_BHC = logits_BHCS.masked_fill(~real_B11S, 0).sum(-1) / real_B11S.sum(-1)
        peaks_BCH = (logits_BHCS.amax(-1) - means_BHC).transpose(1, 2)
        pooled_BCD = self.pool(replace(tokens, plain=None), questions)
        return self.says.features(pooled_BCD, questions.queries, peaks_BCH)

    def forward(self, states_BSW: Tensor, real_BS: Tensor, conditions_BW: Tensor) -> Tensor:
        """One condition for each sentence: (B, D)."""
        questions = self.ask(conditions_BW)
        each = torch.arange(len(conditions_BW), device=conditions_BW.device)[:, None]
        return self.pool(self.read(states_BSW, real_BS), questions.take(each))[:, 0]


class ZeroShotHead(Head):
    """w = softmax_t( tau cos(H_t, e) ), vector = sum_t w_t H_t, on the last layer, which stands last in the states."""

    def __init__(self, dim: int, temperature: float = 20.0) -> None:
        super().__init__()
        self.output_dim = dim
        self.says = None
        self.tau_H = nn.Buffer(torch.tensor([temperature]), persistent=False)

    @property
    def temperatures(self) -> Tensor:
        return self.tau_H

    def read(self, states_BSW: Tensor, real_BS: Tensor, plain_BP: Tensor | None = None) -> KeysValues:
        last_BSD = states_BSW[..., -self.output_dim :]
        return KeysValues.of(last_BSD[:, None], last_BSD, real_BS)

    def ask(self, states_CW: Tensor) -> ConditionQueries:
        last_CD = states_CW[..., -self.output_dim :]
        queries_C1D = F.normalize(last_CD, dim=-1)[:, None]
        return ConditionQueries(queries=queries_C1D, mix=last_CD.new_ones(len(last_CD), 1), gate=None)


class ConditionHead(Head):
    """The trained head. Queries and keys start as one orthogonal map, so that cosines begin as those of the states:
    not where weights are loaded, for that map takes a tenth of a second."""

    def __init__(self, config: HeadConfig, *, loaded: bool = False) -> None:
        super().__init__()
        self.config = config
        self.output_dim = config.output_dim
        width, inner = config.states_dim, config.heads * config.head_dim
        self.keys = nn.Linear(width, inner, bias=False)
        self.queries = nn.Linear(width, inner, bias=False)
        if not loaded:
            nn.init.orthogonal_(self.keys.weight)
        self.queries.weight.data.copy_(self.keys.weight.data)
        function = ACTIVATIONS[Activation(config.activation)]() if config.activation else nn.Identity()
        self.values = nn.Sequential(nn.Linear(width, config.output_dim), function)
        self.mix = nn.Linear(width, config.heads)
        self.gate = nn.Linear(width, config.output_dim) if config.gate else None
        self.tau = nn.Parameter(torch.full((config.heads,), config.temperature))
        self.dropout = nn.Dropout(config.dropout)
        self.says = Says(config) if config.says else None
        self.plain = None if config.plain_dim is None else PlainPart(config)

    @torch.no_grad()
    def start_from_states(self, last_dim: int) -> None:
        """Values begin training as the states of the last layer, of this dimension, turned, with one gate for all
        conditions; the last head weighs all tokens alike, and stays so: its share is that of the plain mean."""
        weight, bias = self.values[0].parameters()
        nn.init.zeros_(weight)
        nn.init.zeros_(bias)
        nn.init.orthogonal_(weight[:, -last_dim:])
        if self.gate is not None:
            nn.init.zeros_(self.gate.weight)
            nn.init.ones_(self.gate.bias)
        self.tau[-1] = 0.0

    @property
    def temperatures(self) -> Tensor:
        return self.tau.clamp(min=LEAST_TEMPERATURE)

    def _heads(self, projected: Tensor) -> Tensor:  # (..., H * K) -> (..., H, K)
        return projected.unflatten(-1, (self.config.heads, self.config.head_dim))

    def read(self, states_BSW: Tensor, real_BS: Tensor, plain_BP: Tensor | None = None) -> KeysValues:
        plain = None if self.plain is None else self.plain(states_BSW, real_BS, plain_BP)
        states_BSW = self.dropout(states_BSW)
        return KeysValues.of(
            self._heads(self.keys(states_BSW)).transpose(1, 2), self.values(states_BSW), real_BS, plain
        )

    def ask(self, states_CW: Tensor) -> ConditionQueries:
        states_CW = self.dropout(states_CW)
        return ConditionQueries(
            queries=F.normalize(self._heads(self.queries(states_CW)), dim=-1),
            mix=self.mix(states_CW).softmax(-1),
            gate=None if self.gate is None else self.gate(states_CW).sigmoid(),
        )


def load_head(config: HeadConfig, folder: Path) -> ConditionHead:
    """Read the head of a model folder, in float32. Raises RequestError for weights that do not fit."""
    head = ConditionHead(config, loaded=True)
    load_weights(head, folder / WEIGHTS, f"weights of {config}")
    return head


def save_head(head: ConditionHead, folder: Path) -> None:
    """Write the head into a model folder, in float16."""
    weights = {name: tensor.detach().cpu().half().contiguous() for name, tensor in head.state_dict().items()}
    locate(str(folder / WEIGHTS)).put(save(weights))
