"""The head of condition pooling: a condition weighs the tokens of a sentence that was encoded alone.

    w_k = softmax_t( tau_k cos(q_k(e), K_k H_t) ),  w = sum_k softmax(M e)_k w_k,
    vector = sigmoid(g(e)) * sum_t w_t act(V H_t)

H_t: states of the sentence's tokens; e: mean state of the condition's; q(e) = Q e + B gelu(A e), and so is g. Without
training: one head, K and q the identity on the last layer, V the identity, no gate. A sentence unlike those of training
also has a share of its unconditional vector (`UnconditionalPart`).

Kin to pooling by multi-head attention (Lee et al., 2019, Set Transformer, section 3.2) with the condition as its seed,
and to CSR's router (Lin et al., 2024, eq. 1) behind a frozen encoder.

Shapes: B sentences, S tokens of the longest, C conditions of each, N sentences or vectors of a fit, W of the states, H
heads, K of a head, P of f(s), D vectors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, fields
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.heads.linear import linear
from raycase.heads.projector import ACTIVATIONS, Share, Width
from raycase.names import Activation

WEIGHTS = "head.safetensors"  # in a model folder
LEAST_TEMPERATURE = 1e-3
LEAST_SCALE = 1e-3  # of `UnconditionalPart`: rounding to float16 stays below a tenth of it
MOST_RARE = 256  # directions of `UnconditionalPart`: more find no other sentences, and take room
STATED_HIDDEN, PEAK = 64, 10.0  # of `StatedHead`: its hidden layer, and what a peak is divided by


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Shape of a trained head. nested: smaller dimensions that were trained too."""

    states_dim: Width
    output_dim: Width = 512
    heads: Width = 8
    head_dim: Width = 64
    activation: Activation | None = None
    dropout: Share = 0.3
    gate: bool = True
    hidden: Width | None = None  # of the networks that add to the queries and to the gate
    temperature: float = 20.0  # tau_k at the start
    nested: tuple[int, ...] = ()
    stated: bool = False  # whether the head knows if a text states anything of a condition
    unconditional_dim: int | None = None  # of a layer's states, where the vectors have a share of f(s)
    unconditional_share: Share = 0.5
    unconditional_from: float = 1.4  # how unlike a sentence is where the share begins, 1 for a usual one
    unconditional_to: float = 2.0  # and where it is whole
    unconditional_vector_dim: int | None = None  # of f(s), if it is what is shared
    unconditional_alone_from: float = 3.2  # how unlike a sentence is where the share rises again
    unconditional_alone_to: float = 4.0  # and where the vector is that of f(s) alone

    def as_json(self) -> dict[str, Any]:
        """The fields by the names that they have in files."""
        given = asdict(self)
        if self.hidden is None:  # as before it was a choice: the hash of an index's model has these
            del given["hidden"]
        return {_on_disk(name): value for name, value in given.items()}

    @classmethod
    def of_json(cls, values: dict[str, Any]) -> dict[str, Any]:
        """What `as_json` gave, by the names of the fields."""
        names = {_on_disk(field.name): field.name for field in fields(cls)}
        return {names.get(name, name): value for name, value in values.items()}


def _on_disk(name: str) -> str:
    """The name of a field in files."""
    return name.replace("unconditional_", "plain_").replace("stated", "says")  # on disk


class Part(NamedTuple):
    """The unconditional part of each sentence: share (B,) and vector T p (B, D)."""

    share: Tensor
    vector: Tensor


class KeysValues(NamedTuple):
    """What a head keeps of sentences: keys (B, H, S, K), their lengths (B, H, S), values (B, S, D), real (B, S), and
    their unconditional part or None. To divide products by the lengths is cheaper than to divide the keys."""

    keys: Tensor
    lengths: Tensor
    values: Tensor
    real: Tensor
    part: Part | None

    @classmethod
    def of(cls, keys_BHSK: Tensor, values_BSD: Tensor, real_BS: Tensor, part: Part | None = None) -> KeysValues:
        """With the lengths of the keys."""
        lengths_BHS = torch.linalg.vector_norm(keys_BHSK, dim=-1).clamp(min=1e-12)
        return cls(keys_BHSK, lengths_BHS, values_BSD, real_BS, part)

    def float(self) -> KeysValues:
        """The same in 32 bits."""
        if self.keys.dtype == torch.float32:
            return self
        return KeysValues.of(self.keys.float(), self.values.float(), self.real, self.part)

    def take(self, index_B: Tensor) -> KeysValues:
        """The sentences of this index."""
        keys, lengths, values, real, part = self
        taken = None if part is None else Part(share=part.share[index_B], vector=part.vector[index_B])
        return KeysValues(keys[index_B], lengths[index_B], values[index_B], real[index_B], taken)


class ConditionQueries(NamedTuple):
    """What a head keeps of conditions: queries (C, H, K) of length 1, mix (C, H), gate (C, D)."""

    queries: Tensor
    mix: Tensor
    gate: Tensor

    def to(self, target: str | torch.dtype) -> ConditionQueries:
        """The same on this device, or in this type."""
        return ConditionQueries(*(part.to(target) for part in self))

    def take(self, index: Tensor) -> ConditionQueries:
        """The conditions of this index, of any shape."""
        return ConditionQueries(*(part[index] for part in self))


class StatedHead(nn.Module):
    """Whether a text states anything of a condition, as log-odds: B gelu(A [u / |u|, q, p]).

    u: the first dimensions of the head's vector, q: the queries of all heads, p: for each head, how far the largest
    logit of a token stands above the mean. So stored tokens suffice, cut to any dimension.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        self.dim = min((config.output_dim, *config.nested))
        self.net = nn.Sequential(
            nn.Linear(self.dim + config.heads * (config.head_dim + 1), STATED_HIDDEN),
            nn.GELU(),
            nn.Linear(STATED_HIDDEN, 1),
        )

    def features(self, pooled: Tensor, queries: Tensor, peaks: Tensor) -> Tensor:
        """(..., D), (..., H, K), (..., H) -> (..., F)."""
        return torch.cat([F.normalize(pooled[..., : self.dim], dim=-1), queries.flatten(-2), peaks / PEAK], dim=-1)

    def forward(self, features: Tensor) -> Tensor:  # (..., F) -> (...)
        return self.net(features)[..., 0]


class Head(nn.Module, ABC):
    """Base of both heads; `read` sees the sentences alone, `ask` the conditions alone, `pool` brings them together."""

    output_dim: int
    stated: StatedHead | None
    tau: Tensor

    @abstractmethod
    def read(self, states_BSW: Tensor, real_BS: Tensor, unconditional_BP: Tensor | None = None) -> KeysValues:
        """Keys and values of the sentences' tokens; unconditional: f(s), which an unconditional part needs."""

    @abstractmethod
    def ask(self, states_CW: Tensor) -> ConditionQueries:
        """Queries of conditions by their mean states."""

    @property
    def temperatures(self) -> Tensor:
        """tau of each head: (H,)."""
        return self.tau.clamp(min=LEAST_TEMPERATURE)

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
        pooled_BCD = self.weights(tokens, questions) @ tokens.values * questions.gate
        return pooled_BCD if tokens.part is None else join_unconditional(pooled_BCD, *tokens.part)

    def stated_features(self, tokens: KeysValues, questions: ConditionQueries) -> Tensor:
        """What `StatedHead` sees of sentences, each under its conditions: (B, C, F)."""
        assert self.stated is not None
        logits_BHCS = self.logits(tokens, questions)
        real_B11S = tokens.real[:, None, None]
        means_BHC = logits_BHCS.masked_fill(~real_B11S, 0).sum(-1) / real_B11S.sum(-1)
        peaks_BCH = (logits_BHCS.amax(-1) - means_BHC).transpose(1, 2)
        pooled_BCD = self.pool(tokens._replace(part=None), questions)
        return self.stated.features(pooled_BCD, questions.queries, peaks_BCH)


class ZeroShotHead(Head):
    """w = softmax_t( tau cos(H_t, e) ), vector = sum_t w_t H_t, on the last layer, which stands last in the states."""

    def __init__(self, dim: int, temperature: float = 20.0) -> None:
        super().__init__()
        self.output_dim = dim
        self.stated = None
        self.tau = nn.Buffer(torch.tensor([temperature]), persistent=False)

    def read(self, states_BSW: Tensor, real_BS: Tensor, unconditional_BP: Tensor | None = None) -> KeysValues:
        last_BSD = states_BSW[..., -self.output_dim :]
        return KeysValues.of(last_BSD[:, None], last_BSD, real_BS)

    def ask(self, states_CW: Tensor) -> ConditionQueries:
        last_CD = states_CW[..., -self.output_dim :]
        queries_C1D = F.normalize(last_CD, dim=-1)[:, None]
        ones_CD = torch.ones_like(last_CD)
        return ConditionQueries(queries=queries_C1D, mix=ones_CD[:, :1], gate=ones_CD)


class ConditionHead(Head):
    """The trained head. Queries and keys start as one orthogonal map, unless loaded: that takes a tenth of a second."""

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
        function = ACTIVATIONS[config.activation]() if config.activation else nn.Identity()
        self.values = nn.Sequential(nn.Linear(width, config.output_dim), function)
        self.mix = nn.Linear(width, config.heads)
        self.gate = nn.Linear(width, config.output_dim) if config.gate else None
        self.more_queries = _Added(width, config.hidden, inner) if config.hidden else None
        self.more_gate = _Added(width, config.hidden, config.output_dim) if config.hidden and config.gate else None
        self.tau = nn.Parameter(torch.full((config.heads,), config.temperature))
        self.dropout = nn.Dropout(config.dropout)
        self.stated = StatedHead(config) if config.stated else None
        self.unconditional = None if config.unconditional_dim is None else UnconditionalPart(config)
        self.register_load_state_dict_pre_hook(_by_present_names)

    @torch.no_grad()
    def start_from_states(self, last_dim: int) -> None:
        """Values begin as the last layer's states, turned, with one gate; the last head weighs all tokens alike."""
        weight, bias = self.values[0].parameters()
        nn.init.zeros_(weight)
        nn.init.zeros_(bias)
        nn.init.orthogonal_(weight[:, -last_dim:])
        if self.gate is not None:
            nn.init.zeros_(self.gate.weight)
            nn.init.ones_(self.gate.bias)
        self.tau[-1] = 0.0

    def read(self, states_BSW: Tensor, real_BS: Tensor, unconditional_BP: Tensor | None = None) -> KeysValues:
        part = None if self.unconditional is None else self.unconditional(states_BSW, real_BS, unconditional_BP)
        states_BSW = self.dropout(states_BSW)
        keys_BHSK = linear(states_BSW, self.keys.weight).unflatten(-1, (self.config.heads, -1)).transpose(1, 2)
        values_BSD = self.values[1](linear(states_BSW, *self.values[0].parameters()))
        return KeysValues.of(keys_BHSK, values_BSD, real_BS, part)

    def ask(self, states_CW: Tensor) -> ConditionQueries:
        states_CW = self.dropout(states_CW)
        queries_CI, gate_CD = self.queries(states_CW), states_CW.new_ones(len(states_CW), self.output_dim)
        if self.more_queries is not None:
            queries_CI = queries_CI + self.more_queries(states_CW)
        if self.gate is not None:
            more = 0 if self.more_gate is None else self.more_gate(states_CW)
            gate_CD = (self.gate(states_CW) + more).sigmoid()
        queries_CHK = F.normalize(queries_CI.unflatten(-1, (self.config.heads, -1)), dim=-1)
        return ConditionQueries(queries=queries_CHK, mix=self.mix(states_CW).softmax(-1), gate=gate_CD)


def _by_present_names(_: nn.Module, weights: dict[str, Tensor], *__: Any) -> None:
    """Weights that 0.2 saved, by the names of today's parts."""
    for part, before in (("stated", "says"), ("unconditional", "plain")):  # on disk
        for name in [name for name in weights if name.startswith(f"{before}.")]:
            weights[part + name.removeprefix(before)] = weights.pop(name)


class _Added(nn.Sequential):
    """What a small network adds to a linear map, nothing at first."""

    def __init__(self, width: int, hidden: int, output: int) -> None:
        last = nn.Linear(hidden, output)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)
        super().__init__(nn.Linear(width, hidden), nn.GELU(), last)


class UnconditionalPart(nn.Module):
    """What a vector keeps of f(s), where a sentence is unlike those that trained the head.

        m = the mean state of the sentence's tokens, each layer's of length 1;  p = f(s) / |f(s)|
        r = |N (m - mu)| / sigma,  a = share * rise(r; from, to) + (1 - share) * rise(r; alone_from, alone_to)
        rise(r; x, y) = clamp((r - x) / (y - x), 0, 1)
        vector = sqrt(1 - a) u + sqrt(a) |u| T p

    u: the head's vector. N: directions in which m of the training sentences varies least, around their mean mu; a
    sentence that goes far along them is unlike all of them (the residual of the principal subspace, as in ViM, Wang et
    al., 2022). sigma: the root mean square over validation sentences. T turns p into the directions in which u is
    shortest, so that the two parts hardly disturb each other and cosines add up, for equal a to about
    (1 - a) cos(u, u') + a cos(p, p'). Where a is 1, cosines are those of f(s). Where p has more numbers than D, it is
    projected onto its first D principal directions. `fit` finds N, mu, sigma and T.
    """

    def __init__(self, config: HeadConfig) -> None:
        super().__init__()
        assert config.unconditional_dim is not None and config.unconditional_vector_dim is not None
        self.config = config
        self.unconditional_dim = config.unconditional_dim
        width = config.states_dim
        self.center = nn.Buffer(torch.zeros(width))
        self.rare = nn.Buffer(torch.zeros(min(width // 3, MOST_RARE), width))
        self.scale = nn.Buffer(torch.ones(()))
        self.turn = nn.Buffer(torch.zeros(config.output_dim, config.unconditional_vector_dim))

    def means(self, states_BSW: Tensor, real_BS: Tensor) -> Tensor:
        """m of each sentence: (B, W)."""
        real_BS1 = real_BS.unsqueeze(-1)
        mean_BW = states_BSW.masked_fill(~real_BS1, 0.0).sum(1) / real_BS1.sum(1)
        return F.normalize(mean_BW.unflatten(-1, (-1, self.unconditional_dim)), dim=-1).flatten(-2)

    def unfamiliar(self, means_BW: Tensor) -> Tensor:
        """r of each sentence: (B,)."""
        return torch.linalg.vector_norm((means_BW - self.center) @ self.rare.T, dim=-1) / self.scale

    def forward(self, states_BSW: Tensor, real_BS: Tensor, unconditional_BP: Tensor) -> Part:
        """The part of each sentence; unconditional: f(s)."""
        config, unfamiliar_B = self.config, self.unfamiliar(self.means(states_BSW, real_BS))

        def rise(low: float, high: float) -> Tensor:
            return ((unfamiliar_B - low) / (high - low)).clamp(0, 1)

        share = config.unconditional_share
        alone_B = rise(config.unconditional_alone_from, config.unconditional_alone_to)
        share_B = share * rise(config.unconditional_from, config.unconditional_to) + (1 - share) * alone_B
        return Part(share=share_B, vector=F.normalize(unconditional_BP, dim=-1) @ self.turn.T)

    def fit(self, train_NW: Tensor, unconditional_NP: Tensor, validation_NW: Tensor, vectors_ND: Tensor) -> None:
        """Find N, mu, sigma and T by m and f(s) of training sentences, m of validation, and the head's vectors."""
        self.center.copy_(train_NW.mean(0))
        self.rare.copy_(_axes(train_NW - self.center)[:, : len(self.rare)].T)
        lengths_N = torch.linalg.vector_norm((validation_NW - self.center) @ self.rare.T, dim=-1)
        self.scale.copy_(lengths_N.square().mean().sqrt().clamp(min=LEAST_SCALE))
        dim, unconditional_dim = self.turn.shape
        turn_DK = _axes(F.normalize(vectors_ND, dim=-1))[:, :unconditional_dim]
        if unconditional_dim > dim:
            turn_DK = turn_DK @ _axes(F.normalize(unconditional_NP, dim=-1)).flip(1)[:, :dim].T
        self.turn.copy_(turn_DK)


def join_unconditional(vectors_BCD: Tensor, share_B: Tensor, unconditional_BD: Tensor) -> Tensor:
    """Vectors with their unconditional part, in place: these are the largest tensors of a batch."""
    lengths_BC1 = torch.linalg.vector_norm(vectors_BCD, dim=-1, keepdim=True)
    share_B11 = share_B[:, None, None]
    return vectors_BCD.mul_((1 - share_B11).sqrt()).addcmul_(lengths_BC1, share_B11.sqrt() * unconditional_BD[:, None])


def _axes(rows_NK: Tensor) -> Tensor:
    """Orthogonal directions of length 1, first those along which these rows are shortest: (K, K)."""
    rows_NK = rows_NK.double()
    return torch.linalg.eigh(rows_NK.T @ rows_NK).eigenvectors.to(torch.float32)
