"""Fine-tuned systems: with their weights, as PyTorch modules, and their configurations, which load none: the encoder,
the choices, how texts become tokens.

Shapes: N pairs, M distinct ones, K of them not refused, D dimensions.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from raycase.encoder.choices import find_encoder, find_unprompted
from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import best_device, is_causal, load_encoder, save_encoder, whole_model, without_weights
from raycase.encoder.pooling import LATENT_POOLINGS, Pooling
from raycase.encoder.prepared import Prepared
from raycase.encoder.prompts import OwnPrompt, Template, TokenSpan
from raycase.encoder.published import WRITTEN_MODES, write_modules
from raycase.encoder.sources import library_config, load_tokenizer, published_tokenizer
from raycase.encoder.table import ENCODERS, HERE, EncoderSpec
from raycase.encoder.token_batch import TokenBatch, Work
from raycase.errors import RequestError
from raycase.heads.top import load_weights
from raycase.io.fetch import INSIDE, MODEL_FILE, is_encoder_too, is_trained
from raycase.io.rated import RatedPairs
from raycase.io.storage import locate
from raycase.io.vectors import pair_cosines
from raycase.models.contracts import EmbedderConfig, SystemConfig, check_conditions
from raycase.models.embeds import Embeds, Loaded
from raycase.models.model_folder import ENCODER, EXTRA, move_to_root, remove_model
from raycase.models.pairs import (
    CONDITION,
    SENTENCE,
    ConditionCache,
    Encoded,
    RatedTexts,
    accepted_pairs,
    check_accepted,
    encoded,
    prepare,
    prompt_sets,
)

if TYPE_CHECKING:
    from transformers import PreTrainedModel


TRAIN_TOKENS = {"cpu": 512, "cuda": 16384}  # of a padded sub-batch; smaller ones hold less padding
NO_CHOICES = ("model", "encoder", "folder", "cut")  # fields of every system


class FineTuned(Loaded, nn.Module):
    """A fine-tuned system with its weights."""

    def __init__(self, config: Any, encoder: TextEncoder) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        self.parts = encoder.parts()

    @property
    def extra(self) -> nn.Module | None:
        """What is saved beside the encoder."""
        return None

    def whole(self) -> PreTrainedModel:
        """The library's model with all its layers. The system cannot be used afterwards."""
        return whole_model(self.encoder)

    def save(self, folder: Path) -> None:
        """Write the model folder; `raycase.load(folder)` reads it. The system cannot be used afterwards."""
        self.config.save(folder, self.whole(), self.extra)


class Embedder(Embeds, FineTuned):
    """Base of the systems that embed; each defines `forward` and `encode_prepared`."""

    def __init__(self, config: Any, encoder: TextEncoder) -> None:
        super().__init__(config, encoder)
        self.memory = ConditionCache(encoder.dim)  # for the vectors of conditions, where they are encoded apart

    @abstractmethod
    def forward(self, prepared: Prepared) -> Tensor:
        """Vectors with a gradient, of pairs none of which is refused: (N, dim)."""

    def forget(self) -> None:
        """Drop remembered vectors; needed after the weights changed."""
        self.memory.vectors.clear()


class PromptEncoder(Embedder):
    """An encoder over one prompt for each pair: (sentence, condition) -> pooled vector."""

    def forward(self, prepared: Prepared) -> Tensor:
        return self.encoder.pooled(prepared.pairs[0])[torch.from_numpy(prepared.rows)]

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        pair_index = accepted_pairs(prepared)
        vectors_KD, work = self.encoder.encode(prepared.pairs[0].take(pair_index))
        return encoded(prepared, pair_index, vectors_KD, work)


class Scorer(FineTuned):
    """Base of the systems that score pairs; each defines `head`, `forward` and `figures`."""

    head: nn.Module  # above the encoder

    @property
    def extra(self) -> nn.Module:
        return self.head

    @abstractmethod
    def figures(self, batch: TokenBatch) -> tuple[np.ndarray, Work]:
        """The score of each pair and what the system says beside it, in the order of `config.figure_names`, without a
        gradient, of pairs none of which is refused: (N, K) float32; and the encoder's work."""

    def scores(self, batch: TokenBatch) -> np.ndarray:
        """Scores without a gradient, of pairs none of which is refused: (N,) float32."""
        return self.figures(batch)[0][:, 0]

    def score(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> np.ndarray:
        """Similarity of each pair, under its condition where the system accepts one: N, N, N -> (N,) float32.

        Raises ValueError for lists of different length and for a text that cannot be encoded.
        """
        batch = self.config.tokens(sentences1, sentences2, conditions)
        check_accepted(batch.reasons, sentences1, sentences2, conditions=conditions)
        return self.scores(batch)


# ---------------------------------------------------------------------------------------------------------- training


def training_options() -> dict[str, Any]:
    """Options of `load_encoder` for training: 32-bit weights, padded batches."""
    tokens = TRAIN_TOKENS.get(best_device(), TRAIN_TOKENS["cpu"])
    return {"trained": True, "dtype": torch.float32, "unpadded": False, "batch_tokens": tokens}


def with_dropout(module: nn.Module, dropout: float | None) -> nn.Module:
    """The same module with every dropout layer set to `dropout`; None: unchanged."""
    for part in module.modules():
        if isinstance(part, nn.Dropout) and dropout is not None:
            part.p = dropout
    return module


class PairCosine(nn.Module):
    """The cosine of two sentences' vectors under a condition, by a system that embeds."""

    def __init__(self, system: Embedder) -> None:
        super().__init__()
        self.system = system

    def forward(self, prepared: Prepared) -> Tensor:
        """Cosines with a gradient, of what `RatedTexts.take` returned: 2 N -> (N,)."""
        return F.cosine_similarity(*self.system(prepared).float().chunk(2))

    def scores(self, texts: RatedTexts) -> np.ndarray:
        """Cosines of every rated pair, without a gradient: (N,)."""
        self.system.forget()
        return pair_cosines(self.system.encode_prepared(texts.prepared).vectors, texts.pair_index)


def pair_scores(system: Any) -> nn.Module:
    """What training on rated pairs fits, rows of `rated` -> scores: a `Scorer` itself, an `Embedder`'s cosines."""
    return PairCosine(system) if isinstance(system, Embedder) else system


# ------------------------------------------------------------------------------------------------ the configurations


@dataclass(frozen=True, kw_only=True)
class FineTunedConfig(SystemConfig):
    """A fine-tuned system without its weights; before training, with the encoder it starts from."""

    WEIGHTS: ClassVar[str] = EXTRA

    @property
    def choices(self) -> dict[str, Any]:
        """The fields that only this system has."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in NO_CHOICES}

    @property
    def label(self) -> str:
        return " ".join([self.SYSTEM, *(f"{name} {value}" for name, value in self.choices.items())])

    @property
    def formula(self) -> str:
        return "f(s, c)"

    @property
    def text_of_pair(self) -> str | None:
        """The pattern of the text whose vector in sentence-transformers is that of a pair; None where there is none."""
        return None

    def describe(self) -> dict[str, Any]:
        extra = self.own_weights() if self.local and (self.local / EXTRA).is_file() else None
        return super().describe() | self.choices | ({"extra": extra} if extra else {})

    def trainable(self, dropout: float | None = None, compute: torch.dtype = torch.float32) -> Any:
        """The system with weights to train, in 32 bits; frozen weights are in `compute`.

        dropout: of every dropout layer; None: as in the encoder.
        """
        return with_dropout(self.load(**training_options()), dropout)

    def rated(self, rated: RatedPairs) -> Any:
        """Rated pairs, tokenised for training. Raises RequestError for a text that cannot be encoded."""
        return RatedTexts.of(self, rated)

    def save(self, folder: Path, model: PreTrainedModel, extra: nn.Module | None = None) -> None:
        """Write the encoder, extra weights and, last, `raycase.json`. An encoder by which others read the vectors is
        written beside that file, where they look."""
        folder.mkdir(parents=True, exist_ok=True)
        remove_model(folder)
        save_encoder(model, self.encoder, folder / ENCODER)
        source = f"{HERE}{ENCODER}"
        if self.text_of_pair is not None:
            assert extra is None, "vLLM would read its weights as the encoder's"
            write_modules(folder / ENCODER, self.encoder, model.config)
            move_to_root(folder)
            source = HERE
        if extra is not None:
            weights = {name: t.detach().cpu().contiguous() for name, t in extra.state_dict().items()}
            locate(str(folder / EXTRA)).put(to_safetensors(weights))
        row = replace(self.encoder, source=source).as_json()
        locate(str(folder / MODEL_FILE)).put_json({"system": self.SYSTEM, "encoder": row, **self.choices})

    def load_extra(self, module: nn.Module) -> None:
        """Load the extra weights of a saved model; does nothing before training. Raises RequestError."""
        if self.local is not None:
            # an encoder among them may have a word that is not finite: rows with it are rejected
            load_weights(module, self.local / EXTRA, "the weights beside the encoder's", finite=False)


@dataclass(frozen=True, kw_only=True)
class PromptEncoderConfig(FineTunedConfig, EmbedderConfig):
    """A system whose vectors are those of one prompt for each pair (`PromptEncoder`)."""

    @property
    def fixed(self) -> dict[str, Any]:
        return self.encoder.chosen | {"subtract": False}

    def _template(self, conditions: Sequence[str] | None) -> Template:
        check_conditions(self, conditions)
        [prompts] = prompt_sets(self.encoder)
        return prompts.plain if conditions is None else prompts.pair

    @property
    def text_of_pair(self) -> str | None:
        [prompts] = prompt_sets(self.encoder)
        template = prompts.plain if self.known_conditions == () else prompts.pair
        _, _, behind = template.pattern.partition("{sentence}")
        whole = template.span is TokenSpan.ALL and not behind  # it would be cut off with the end of a long sentence
        return template.pattern if whole and read_elsewhere(self.encoder) else None

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        return prepare(self.encoder, sentences, conditions, pairs=[self._template(conditions)])

    def load(self, **options: Any) -> PromptEncoder:
        return PromptEncoder(self, load_encoder(self.encoder, **options))


@dataclass(frozen=True, kw_only=True)
class SentenceEncoderConfig(PromptEncoderConfig):
    """f(s): the sentence alone."""

    SYSTEM: ClassVar[str] = "sentence-encoder"
    known_conditions: ClassVar[tuple[str, ...] | None] = ()

    @property
    def formula(self) -> str:
        return "f(s)"


def sentence_encoder(model: str, *, pooling: Pooling | None = None) -> SentenceEncoderConfig:
    """Before training. Raises RequestError."""
    spec = starting_encoder(model, prompt="concat-cs:all", pooling=pooling)
    return SentenceEncoderConfig(model=model, encoder=replace(spec, subtract=False))


@dataclass(frozen=True, kw_only=True)
class ApartConfig(FineTunedConfig, EmbedderConfig):
    """A system that encodes sentence and condition apart."""

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        return prepare(self.encoder, sentences, conditions, alone=[SENTENCE], bases=[CONDITION])


@dataclass(frozen=True, kw_only=True)
class ScorerConfig(FineTunedConfig):
    """A fine-tuned system that scores pairs of sentences (`Scorer`) and produces no embeddings."""

    TEXTS_OF_PAIR: ClassVar[int] = 1

    @abstractmethod
    def tokens(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> TokenBatch:
        """Tokenise each distinct text and concatenate those of each pair; long sentences lose their ends. Loads no
        weights. Raises ValueError for lists of different length."""

    def prepare_pairs(
        self, firsts: Sequence[str], seconds: Sequence[str], conditions: Sequence[str] | None
    ) -> Prepared:
        pairs = list(zip(firsts, seconds, conditions or [""] * len(firsts), strict=True))
        index_of = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
        firsts, seconds, under = ([pair[side] for pair in index_of] for side in range(3))
        none_M = np.zeros(len(index_of), dtype=np.int64)
        return Prepared(
            rows=np.array([index_of[pair] for pair in pairs], dtype=np.int64),
            conditions=None,
            sentence=none_M,
            condition=none_M,
            pairs=[self.tokens(firsts, seconds, None if conditions is None else under)],
            alone=[],
            bases=[],
        )

    def rated(self, rated: RatedPairs) -> TokenBatch:
        batch = self.tokens(rated.sentences1, rated.sentences2, rated.conditions)
        sentences = rated.sentences1, rated.sentences2
        check_accepted(batch.reasons, *sentences, conditions=rated.conditions, source=rated.uri)
        return batch


def read_elsewhere(spec: EncoderSpec) -> bool:
    """Whether sentence-transformers gives a text the vector of a row, and has a token to pad its batches with: not
    behind an end token of our own, nor from a decoder that is read both ways."""
    alike = not spec.published and not spec.end_token and spec.pooling[0] in WRITTEN_MODES
    return (
        alike
        and spec.causal == is_causal(without_weights(library_config(spec.source)))
        and published_tokenizer(spec.source).pad_token is not None
    )


def starting_encoder(
    model: str,
    *,
    prompt: str | None = None,
    pooling: Pooling | None = None,
    own: OwnPrompt | None = None,
    latent: bool = False,
    cls: bool = False,
    prompted: bool = True,
) -> EncoderSpec:
    """The encoder that training starts from.

    cls: the first token, [CLS], must see the whole text. latent: latent attention is allowed; it cannot be saved with
    the encoder. prompted: sentence and condition meet in a prompt, else each is encoded by itself. Raises RequestError
    for an encoder that cannot be trained or saved.
    """
    if is_trained(model) and not is_encoder_too(model):
        inside = INSIDE.get(model) or str(Path(model) / "encoder")
        raise RequestError(
            f"--model: expected an encoder to fine-tune, got the trained model {model}"
            + (f"; its encoder is {inside}" if model in INSIDE or Path(inside).is_dir() else "")
        )
    if (own or prompt is not None) and not (own and own.pool) and model not in ENCODERS:
        pooling = pooling or Pooling.MEAN
    spec = (
        find_encoder(model, prompt=prompt, pooling=pooling, own=own)
        if prompted
        else find_unprompted(model, pooling=pooling)
    )
    if "+" in spec.prompt:
        raise RequestError(f"--prompt: expected one view to fine-tune, got {spec.prompt}")
    if spec.pooling[0] in LATENT_POOLINGS and not latent:
        raise RequestError(f"--model: expected an encoder without latent attention to fine-tune, got {model}")
    if cls and (spec.causal or not load_tokenizer(spec).special_tokens[0]):
        raise RequestError(f"--model: expected an encoder whose first token, [CLS], sees the whole text, got {model}")
    return spec
