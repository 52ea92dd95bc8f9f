"""The systems that the papers compare with: C-STS's three encoders (Deshpande et al., 2023), and low-rank adapters.

Shapes: N pairs, M distinct pairs, K of them not refused, S sentences, C conditions, D dimensions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.token_batch import Prepared, TokenBatch, Work
from raycase.errors import RequestError, at_least, check_ranges, needs_package
from raycase.models.configs import EmbedderConfig, PromptEncoderConfig, ScorerConfig
from raycase.models.fine_tuned import (
    FineTunedEmbedder,
    PromptEncoder,
    Scorer,
    starting_encoder,
    training_options,
    with_dropout,
)
from raycase.models.model_folder import read_elsewhere
from raycase.models.pairs import SENTENCE, Encoded, accepted_pairs, encoded, tokens_of_pairs
from raycase.papers.baselines import Compose

MOST_RANK = 2**16


def bi_encoder(model: str, **text: Any) -> PromptEncoderConfig:
    """Before training, by prompt, own and pooling. The default reads "c: s" and pools every token."""
    default = None if text.get("own") else "concat-cs:all"
    spec = starting_encoder(model, **text | {"prompt": text.get("prompt") or default})
    return PromptEncoderConfig(name=model, encoder=replace(spec, separator=": "))


# ------------------------------------------------------------------------------------------------------- tri-encoder


def compose(sentence_ND: Tensor, condition_ND: Tensor, how: Compose) -> Tensor:
    """(N, D), (N, D) -> (N, D), or (N, 2 D) side by side."""
    return sentence_ND * condition_ND if how is Compose.HADAMARD else torch.cat([sentence_ND, condition_ND], dim=1)


class TriEncoder(FineTunedEmbedder):
    """compose(f(s), f(c))."""

    def forward(self, prepared: Prepared) -> Tensor:
        sentence_N, condition_N = (
            torch.from_numpy(index[prepared.rows]) for index in (prepared.sentence, prepared.condition)
        )
        alone = prepared.of_sentences[0], prepared.of_conditions[0]
        sentences_SD, conditions_CD = map(self.encoder.pooled, alone)
        return compose(sentences_SD[sentence_N], conditions_CD[condition_N], self.config.compose)

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        pair_index = accepted_pairs(prepared)
        vectors_KD, work = self._encode(prepared.of_sentences[0], prepared.sentence[pair_index])
        if prepared.conditions is not None:
            conditions_KD, more = self._encode(prepared.of_conditions[0], prepared.condition[pair_index])
            vectors_KD, work = compose(vectors_KD, conditions_KD, self.config.compose), work + more
        work = replace(work, tokens=int(tokens_of_pairs(prepared, pair_index).sum()))
        return encoded(prepared, pair_index, vectors_KD.numpy(), work)

    def _encode(self, texts: TokenBatch, index_K: np.ndarray) -> tuple[Tensor, Work]:
        """The vector of each pair's text, (K, D), of which each is encoded once; and the work."""
        distinct, row_K = np.unique(index_K, return_inverse=True)
        vectors_D, work = self.encoder.encode(texts.take(distinct))
        return torch.from_numpy(vectors_D[row_K]), work


@dataclass(frozen=True, kw_only=True)
class TriEncoderConfig(EmbedderConfig):
    """compose(f(s), f(c)), without weights."""

    SYSTEM = "tri-encoder"
    LOADED = TriEncoder

    compose: Compose = Compose.HADAMARD

    @classmethod
    def untrained(
        cls, model: str, pooling: Pooling | None = None, compose: Compose = Compose.HADAMARD
    ) -> TriEncoderConfig:
        """The system before training."""
        return cls(name=model, encoder=starting_encoder(model, prompt="concat-cs", pooling=pooling), compose=compose)

    @property
    def whole_dim(self) -> int:
        return self.unconditional_dim * (2 if self.compose is Compose.CONCAT else 1)

    @property
    def text_of_pair(self) -> str | None:
        return SENTENCE.pattern if read_elsewhere(self.encoder) else None


# ----------------------------------------------------------------------------------------------------- cross-encoder


class CrossEncoder(Scorer):
    """[CLS] through dropout and one linear layer: a score."""

    def __init__(self, config: CrossEncoderConfig, encoder: TextEncoder) -> None:
        super().__init__(config, encoder)
        self.head = nn.Linear(encoder.dim, 1, device=encoder.model.device)
        self.dropout = nn.Dropout(getattr(encoder.model.config, "hidden_dropout_prob", 0.0))

    def forward(self, batch: TokenBatch) -> Tensor:
        """Scores with a gradient: (N,)."""
        return self.above(self.dropout(self.encoder.pooled(batch)))[:, 0]


@dataclass(frozen=True, kw_only=True)
class CrossEncoderConfig(ScorerConfig):
    """A score of "[CLS] s1 [SEP] s2 [SEP] c [SEP]", or what the encoder's tokenizer makes of the three texts."""

    SYSTEM = "cross-encoder"
    LOADED = CrossEncoder


def cross_encoder(model: str) -> CrossEncoderConfig:
    """The system before training."""
    spec = starting_encoder(model, prompt="concat-cs", cls=True)
    return CrossEncoderConfig(name=model, encoder=replace(spec, pooling=(Pooling.CLS,)))


# -------------------------------------------------------------------------------------------------------------- LoRA


def _import_peft() -> Any:
    """The package peft, which makes adapters."""
    with needs_package("peft", "lora", "for LoRA"):
        import peft
    return peft


def attention_maps(model: nn.Module) -> list[str]:
    """The linear maps in the attention of a model, its projections, by their names from the layer on."""
    attention = tuple(f"{name}." for name, part in model.named_modules() if "Attention" in type(part).__name__)
    maps = (name for name, part in model.named_modules() if isinstance(part, nn.Linear) and name.startswith(attention))
    return sorted({re.split(r"\.\d+\.", name)[-1] for name in maps})


@dataclass(frozen=True, kw_only=True)
class LoraConfig(PromptEncoderConfig):
    """A prompted encoder, fine-tuned with adapters."""

    SYSTEM = "lora"

    rank: int
    alpha: float
    adapter_dropout: float = 0.05

    def trainable(self, dropout: float | None = None, compute: torch.dtype = torch.float32) -> AdaptedEncoder:
        """The system with trainable adapters beside the frozen encoder; dropout: of that, not of the adapters."""
        peft = _import_peft()
        adapted: list[Any] = []

        def adapt(model: Any) -> None:
            with_dropout(model, dropout)
            if not (maps := attention_maps(model)):
                raise RequestError(f"--model: expected linear layers in the attention of {self.name}, got none")
            settings = peft.LoraConfig(
                r=self.rank, lora_alpha=self.alpha, lora_dropout=self.adapter_dropout, target_modules=maps, bias="none"
            )
            adapted.append(peft.get_peft_model(model, settings))  # changes the model in place

        encoder = load_encoder(self.encoder, adapt=adapt, **training_options() | {"dtype": compute})
        return AdaptedEncoder(self, encoder, adapted[0])


def lora(model: str, *, rank: int = 32, alpha: float = 32.0, **text: Any) -> LoraConfig:
    """Before training, by prompt, own and pooling."""
    _import_peft()
    config = LoraConfig(name=model, encoder=starting_encoder(model, **text), rank=rank, alpha=alpha)
    check_ranges(config, at_least(1, config, "rank", most=MOST_RANK) | {"alpha": (config.alpha > 0, "above 0")})
    return config


class AdaptedEncoder(PromptEncoder):
    """The encoder with adapters beside its projections, h = W x + (alpha / rank) B A x; B is 0 at first."""

    def __init__(self, config: LoraConfig, encoder: TextEncoder, adapters: Any) -> None:
        super().__init__(config, encoder)
        self._adapters = (adapters,)  # in a tuple, or the module would list the encoder's weights twice

    def whole(self) -> Any:
        """The library's model, with the adapters merged into its weights."""
        super().whole()
        [adapters] = self._adapters
        return adapters.merge_and_unload()


SYSTEMS = {config.SYSTEM: config for config in (PromptEncoderConfig, TriEncoderConfig, CrossEncoderConfig, LoraConfig)}
