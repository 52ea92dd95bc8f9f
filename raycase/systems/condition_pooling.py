"""Condition pooling, our own: each sentence is encoded once, and a condition weighs its words.

Claim: S sentences under C conditions take S + C passes of the encoder, since sentence and condition meet only in a head
above it (`raycase.systems.condition_head`). Without training, a word's weight is its similarity to the condition.

Shapes: N pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raycase.data.fetch import MODEL_FILE
from raycase.data.storage import locate
from raycase.encoder.loading import save_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.table import HERE
from raycase.encoder.token_states import layer_numbers
from raycase.systems.condition_head import ConditionHead, save_head
from raycase.systems.condition_pooling_model import ZERO_SHOT_DEPTHS, ConditionPoolingConfig
from raycase.systems.fine_tuned_config import starting_encoder
from raycase.systems.model_folder import write_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def condition_pooling(
    model: str,
    *,
    layers: Sequence[float] = ZERO_SHOT_DEPTHS,
    pooling: Pooling | None = None,
    latent: bool = True,
) -> ConditionPoolingConfig:
    """Condition pooling without training on an encoder of the table or a local folder.

    latent: latent attention is allowed; it cannot be saved with the encoder. Raises RequestError.
    """
    spec = starting_encoder(model, pooling=pooling, latent=latent, prompted=False)
    layer_numbers(spec, layers)
    return ConditionPoolingConfig(model=model, encoder=spec, layers=tuple(layers))


def write_head_folder(
    folder: Path,
    config: ConditionPoolingConfig,
    head: ConditionHead,
    metrics: dict[str, Any],
    card: str,
    *,
    encoder: PreTrainedModel | None = None,
) -> None:
    """Write the model folder of a trained head, its weights in float16; encoder: if it was trained along."""

    def save(folder: Path) -> None:
        save_head(head, folder)
        spec = config.encoder
        if encoder is not None:
            save_encoder(encoder, spec, folder / "encoder")
            spec = replace(spec, source=f"{HERE}encoder", adapter=None)
        values = {
            "system": config.SYSTEM,
            "encoder": spec.as_json(),
            "layers": list(config.layers),
            "whole_condition": config.whole_condition,
            "head": asdict(head.config),
        }
        locate(str(folder / MODEL_FILE)).put_json(values)

    folder.mkdir(parents=True, exist_ok=True)
    write_folder(folder, metrics, card, save)
