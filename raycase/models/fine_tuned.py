"""Fine-tuned systems as PyTorch modules, what training needs of them, and the encoders that it starts from.

Shapes: N pairs, K of them not refused or figures of each, D dimensions.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raycase.encoder.choices import find_encoder, find_unprompted
from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import best_device, whole_model
from raycase.encoder.model_files import INSIDE, MODEL_FILE, is_trained
from raycase.encoder.pooling import LATENT_POOLINGS, Pooling
from raycase.encoder.sources import load_tokenizer
from raycase.encoder.table import ENCODERS, EncoderSpec
from raycase.encoder.token_batch import Prepared, TokenBatch, Work
from raycase.errors import RequestError, check_problems
from raycase.io.vectors import pair_cosines
from raycase.models.embedder import Embedder, LoadedSystem
from raycase.models.model_folder import CONFIG, write_fine_tuned
from raycase.models.pairs import Encoded, RatedTexts, accepted_pairs, check_accepted, encoded

PAIRS_AT_ONCE = 4096  # that a head scores together
TRAIN_TOKENS = {"cpu": 512, "cuda": 16384}  # of a padded sub-batch; smaller ones hold less padding


class FineTuned(LoadedSystem, nn.Module):
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

    def whole(self) -> Any:
        """The library's model with all its layers. The system cannot be used afterwards."""
        return whole_model(self.encoder)

    def save(self, folder: Path) -> None:
        """Write the model into its new folder. The system cannot be used afterwards."""
        write_fine_tuned(folder, self.config, self.whole(), self.extra)


class FineTunedEmbedder(Embedder, FineTuned):
    """Base of the systems that embed; each defines `forward` and `encode_prepared`."""

    @abstractmethod
    def forward(self, prepared: Prepared) -> Tensor:
        """Vectors with a gradient, of pairs none of which is refused: (N, dim)."""


class PromptEncoder(FineTunedEmbedder):
    """An encoder over one prompt for each pair: (sentence, condition) -> pooled vector."""

    def forward(self, prepared: Prepared) -> Tensor:
        return self.encoder.pooled(prepared.of_pairs[0])[torch.from_numpy(prepared.rows)]

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        pair_index = accepted_pairs(prepared)
        vectors_KD, work = self.encoder.encode(prepared.of_pairs[0].take(pair_index))
        return encoded(prepared, pair_index, vectors_KD, work)


class Scorer(FineTuned):
    """Base of the systems that score pairs; each defines `head`."""

    head: nn.Module  # above the encoder

    @property
    def extra(self) -> nn.Module:
        return self.head

    def above(self, pooled_NV: Tensor) -> Tensor:
        """What the head gives of pooled vectors, in 32 bits: with 16, many scores would be equal."""
        with torch.autocast(pooled_NV.device.type, enabled=False):
            return self.head(pooled_NV)

    def forward(self, batch: TokenBatch) -> Tensor:
        """What the head gives of pairs, none refused, with a gradient."""
        return self.above(self.encoder.pooled(batch))

    @torch.inference_mode()
    def figures(self, batch: TokenBatch) -> tuple[np.ndarray, Work]:
        """The `config.figure_names` of pairs, none refused, without a gradient: (N, K) float32; and the work."""
        pooled_NV, work = self.encoder.encode(batch)
        parts = (part.to(self.encoder.model.device) for part in torch.from_numpy(pooled_NV).split(PAIRS_AT_ONCE))
        return torch.cat([self.figures_of(self.above(part_NV).cpu()) for part_NV in parts]).numpy(), work

    def figures_of(self, outputs_N: Tensor) -> Tensor:
        """The figures of what the head gives: (N, K). Here they are that."""
        return outputs_N

    def scores(self, batch: TokenBatch) -> np.ndarray:
        """Scores without a gradient, of pairs none of which is refused: (N,) float32."""
        return self.figures(batch)[0][:, 0]

    def score(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> np.ndarray:
        """Similarity of each pair, under its condition where the system accepts one: N, N, N -> (N,) float32.

        Raises ValueError for lists of different length and for a text that cannot be encoded.
        """
        batch = self.config.tokenize_pairs(sentences1, sentences2, conditions)
        check_accepted(batch.reasons, sentences1, sentences2, conditions=conditions)
        return self.scores(batch)


# ---------------------------------------------------------------------------------------------------------- training


def training_options() -> dict[str, Any]:
    """Options of `load_encoder` for training: 32-bit weights, smaller batches."""
    tokens = TRAIN_TOKENS.get(best_device(), TRAIN_TOKENS["cpu"])
    return {"by_library": True, "dtype": torch.float32, "batch_tokens": tokens}


def with_dropout(module: nn.Module, dropout: float | None) -> nn.Module:
    """The same module with every dropout layer set to `dropout`; None: unchanged."""
    for part in module.modules():
        if isinstance(part, nn.Dropout) and dropout is not None:
            part.p = dropout
    return module


class PairCosine(nn.Module):
    """The cosine of two sentences' vectors under a condition, by a system that embeds."""

    def __init__(self, system: FineTunedEmbedder) -> None:
        super().__init__()
        self.system = system

    def forward(self, prepared: Prepared) -> Tensor:
        """Cosines with a gradient, of what `RatedTexts.take` returned: 2 N -> (N,)."""
        return F.cosine_similarity(*self.system(prepared).float().chunk(2))

    def scores(self, texts: RatedTexts) -> np.ndarray:
        """Cosines of every rated pair, without a gradient: (N,)."""
        return pair_cosines(self.system.encode_prepared(texts.prepared).vectors, texts.pair_index)


def pair_scores(system: Any) -> nn.Module:
    """What training on rated pairs fits, rows of `rated` -> scores: a `Scorer` itself, or an embedder's cosines."""
    return PairCosine(system) if isinstance(system, FineTunedEmbedder) else system


def starting_encoder(
    model: str, *, latent: bool = False, cls: bool = False, prompted: bool = True, **choices: Any
) -> EncoderSpec:
    """The encoder that training starts from, by the choices of `find_encoder`.

    cls: the first token, [CLS], must see the whole text. latent: latent attention, which cannot be saved, is allowed.
    prompted: sentence and condition meet in a prompt, and no base is subtracted; else each is encoded by itself.
    """
    is_both = all((Path(model) / name).is_file() for name in (MODEL_FILE, CONFIG))  # others read its encoder, too
    if is_trained(model) and not is_both:
        inside = INSIDE.get(model) or str(Path(model) / "encoder")
        raise RequestError(
            f"--model: expected an encoder to fine-tune, got the trained model {model}"
            + (f"; its encoder is {inside}" if model in INSIDE or Path(inside).is_dir() else "")
        )
    own = choices.get("own")
    if (own or choices.get("prompt") is not None) and not (own and own.pool) and model not in ENCODERS:
        choices["pooling"] = choices.get("pooling") or Pooling.MEAN
    spec = (find_encoder if prompted else find_unprompted)(model, **choices)
    sees_part = cls and (spec.causal or not load_tokenizer(spec).special_tokens[0])
    has_latent = spec.pooling[0] in LATENT_POOLINGS and not latent
    problems = {
        f"--prompt: expected one view to fine-tune, got {spec.prompt}": "+" in spec.prompt,
        f"--model: expected an encoder without latent attention to fine-tune, got {model}": has_latent,
        f"--model: expected an encoder whose first token, [CLS], sees the whole text, got {model}": sees_part,
    }
    check_problems(problems)
    return replace(spec, subtract=False) if prompted else spec
