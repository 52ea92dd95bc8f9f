"""Low-rank adaptation of the encoder (Hu et al., 2022), the baseline of CASE, section 4.4.

Claim: adapters of rank 32 on the attention's projections, trained with Pearson's correlation over the cosines of a
batch, beat a frozen encoder, but take hours to train where CASE's projector takes seconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import load_encoder, without_weights
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import OwnPrompt
from raycase.encoder.sources import load_config
from raycase.errors import RequestError
from raycase.systems.fine_tuned_config import PromptEncoderConfig, starting_encoder
from raycase.systems.fine_tuned_module import PromptEncoder, training_options, with_dropout

MOST_RANK = 2**16


def _import_peft() -> Any:
    """The package peft, which makes adapters. Raises RequestError where it is not installed."""
    try:
        import peft
    except ImportError as error:
        raise RequestError("LoRA: expected the package peft, got none; pip install 'raycase[lora]'") from error
    return peft


def attention_maps(model: nn.Module) -> list[str]:
    """The linear maps in the attention of a model, its projections, by their names from the layer on."""
    attention = tuple(f"{name}." for name, part in model.named_modules() if "Attention" in type(part).__name__)
    maps = (name for name, part in model.named_modules() if isinstance(part, nn.Linear) and name.startswith(attention))
    return sorted({re.split(r"\.\d+\.", name)[-1] for name in maps})


@dataclass(frozen=True, kw_only=True)
class LoraConfig(PromptEncoderConfig):
    """A prompted encoder, fine-tuned with adapters."""

    SYSTEM: ClassVar[str] = "lora"

    rank: int = 32
    alpha: float = 32.0
    adapter_dropout: float = 0.05

    def trainable(self, dropout: float | None = None, compute: torch.dtype = torch.float32) -> AdaptedEncoder:
        """The system with trainable adapters beside the frozen encoder, whose weights are in the format `compute`.

        dropout: of the encoder; the adapters use `adapter_dropout`.
        """
        peft = _import_peft()
        adapted: list[Any] = []

        def adapt(model: Any) -> None:
            with_dropout(model, dropout)
            settings = peft.LoraConfig(
                r=self.rank,
                lora_alpha=self.alpha,
                lora_dropout=self.adapter_dropout,
                target_modules=attention_maps(model),
                bias="none",
            )
            adapted.append(peft.get_peft_model(model, settings))  # changes the model in place

        encoder = load_encoder(self.encoder, adapt=adapt, **training_options() | {"dtype": compute})
        return AdaptedEncoder(self, encoder, adapted[0])


def lora(
    model: str,
    *,
    prompt: str | None = None,
    pooling: Pooling | None = None,
    own: OwnPrompt | None = None,
    **choices: Any,
) -> LoraConfig:
    """The system before training; choices: the other fields of `LoraConfig`. Raises RequestError."""
    _import_peft()
    spec = starting_encoder(model, prompt=prompt, pooling=pooling, own=own)
    encoder = load_config(spec.source)
    if not attention_maps(without_weights(encoder)):
        raise RequestError(
            f"--model: expected an encoder with linear layers in its attention, got a {encoder.model_type}, without"
        )
    config = LoraConfig(model=model, encoder=replace(spec, subtract=False), **choices)
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
        """Write the encoder, with the adapters merged into its weights, and `raycase.json`."""
        self.whole()
        [adapters] = self._adapters
        self.config.save(folder, adapters.merge_and_unload())
