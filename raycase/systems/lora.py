"""Low-rank adaptation of the encoder (Hu et al., 2022), the baseline of CASE, section 4.4.

Claim: adapters of rank 32 on the attention's projections, trained with Pearson's correlation over the cosines of a
batch, beat a frozen encoder, but take hours to train where CASE's projector takes seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch

from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import import_peft, load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import OwnPrompt
from raycase.encoder.sources import load_config
from raycase.errors import RequestError
from raycase.systems.fine_tuned_config import PromptEncoderConfig, starting_encoder
from raycase.systems.fine_tuned_module import PromptEncoder, training_options, with_dropout

BERT_TARGETS = r".*\.attention\.(self\.(query|key|value)|output\.dense)"  # not the feed-forward's output.dense
DECODER_TARGETS = r".*\.(q_proj|k_proj|v_proj|o_proj)"
MOST_RANK = 2**16
TARGETS = dict.fromkeys(("bert", "roberta", "xlm-roberta"), BERT_TARGETS)
TARGETS |= dict.fromkeys(("llama", "mistral", "qwen2", "qwen3"), DECODER_TARGETS)


@dataclass(frozen=True, kw_only=True)
class LoraConfig(PromptEncoderConfig):
    """A prompted encoder, fine-tuned with adapters."""

    SYSTEM: ClassVar[str] = "lora"

    rank: int = 32
    alpha: float = 32.0
    adapter_dropout: float = 0.05
    merged: bool = True  # save the adapters merged into the encoder's weights, or as separate files

    @property
    def text_of_pair(self) -> str | None:
        return super().text_of_pair if self.merged else None  # adapters are no encoder

    def trainable(self, dropout: float | None = None, compute: torch.dtype = torch.float32) -> AdaptedEncoder:
        """The system with trainable adapters beside the frozen encoder, whose weights are in the format `compute`.

        dropout: of the encoder; the adapters use `adapter_dropout`.
        """
        peft = import_peft()
        adapted: list[Any] = []

        def adapt(model: Any) -> None:
            with_dropout(model, dropout)
            settings = peft.LoraConfig(
                r=self.rank,
                lora_alpha=self.alpha,
                lora_dropout=self.adapter_dropout,
                target_modules=TARGETS[model.config.model_type],
                bias="none",
            )
            adapted.append(peft.get_peft_model(model, settings))  # changes the model in place

        encoder = load_encoder(self.encoder, adapt=adapt, **training_options() | {"dtype": compute})
        if encoder.latent is not None:
            encoder.latent.requires_grad_(False)
        return AdaptedEncoder(self, encoder, adapted[0])


def lora(
    model: str,
    *,
    prompt: str | None = None,
    pooling: Pooling | None = None,
    own: OwnPrompt | None = None,
    merged: bool = True,
    **choices: Any,
) -> LoraConfig:
    """The system before training; choices: the other fields of `LoraConfig`. Raises RequestError."""
    import_peft()
    spec = starting_encoder(model, prompt=prompt, pooling=pooling, own=own, latent=not merged)
    kind = load_config(spec.source).model_type
    if kind not in TARGETS:
        raise RequestError(f"--model: expected an encoder like {', '.join(TARGETS)}, got {kind}")
    config = LoraConfig(model=model, encoder=replace(spec, subtract=False), merged=merged, **choices)
    if not 1 <= config.rank <= MOST_RANK or not config.alpha > 0 or not 0 <= config.adapter_dropout < 1:
        raise RequestError(
            f"expected --rank from 1 to {MOST_RANK:,}, --alpha above 0 and --adapter-dropout in [0, 1), got "
            f"{config.rank}, {config.alpha:g} and {config.adapter_dropout:g}"
        )
    return config


class AdaptedEncoder(PromptEncoder):
    """The encoder with adapters beside its projections, h = W x + (alpha / rank) B A x; B is 0 at first."""

    def __init__(self, config: LoraConfig, encoder: TextEncoder, adapters: Any) -> None:
        super().__init__(config, encoder)
        self._adapters = (adapters,)  # in a tuple, or the module would list the encoder's weights twice

    def save(self, folder: Path) -> None:
        """Write the adapters, alone or merged into the encoder, and `raycase.json`."""
        model = self.whole()
        [adapters] = self._adapters
        if self.config.merged:
            self.config.save(folder, adapters.merge_and_unload())
        else:
            assert adapters.get_base_model() is model
            self.config.save(folder, adapters=adapters)
