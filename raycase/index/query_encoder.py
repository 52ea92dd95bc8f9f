"""The encoder of an index's queries: the model that wrote the index's vectors.

Shapes: Q queries, C conditions, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from raycase.errors import RequestError
from raycase.heads.condition_head import ConditionQueries
from raycase.index.metadata import IndexMetadata
from raycase.io.storage import fingerprint
from raycase.io.vectors import l2_normalize
from raycase.models.contracts import EmbedderConfig
from raycase.models.registry import resolve_embedder


def resolve_query_encoder(metadata: IndexMetadata, model: str) -> EmbedderConfig:
    """The index's model by a name or folder, without its weights. Raises RequestError where it is another model."""
    try:
        config = resolve_embedder(model, **metadata.encoder_choices)
    except RequestError as error:
        raise RequestError(f"model: expected the index's model {model}, got: {error}") from error
    expected, got = fingerprint(metadata.model)[:8], fingerprint(config.describe())[:8]
    if expected != got:
        raise RequestError(
            f"model: expected the index's model, {metadata.name} ({expected}), got {model} ({got}); "
            f"pass its present folder, or embed and index again"
        )
    return config


def embed_queries(
    encoder: Any, sentences: Sequence[str], condition: str | None, *, model: str, named: str, phrases: bool = False
) -> np.ndarray:
    """Unit vectors of sentences under one condition (None: f(s)): (Q, D) float32. Raises RequestError, in which they
    are `named` so, for a text that the encoder refuses.

    phrases: the sentences are answers to the condition, which condition pooling embeds in a way of their own.
    """
    try:
        return l2_normalize((encoder.embed_phrases if phrases else encoder.embed)(sentences, condition))
    except ValueError as error:
        raise RequestError(f"{named}: expected a text that {model} can embed, got: {error}") from error


def ask(encoder: Any, conditions: Sequence[str], *, model: str, named: str) -> tuple[ConditionQueries, Tensor]:
    """What a head of condition pooling keeps of conditions, and its temperatures. Raises RequestError, in which they
    are `named` so, for a condition that the encoder refuses."""
    try:
        return encoder.questions(conditions), encoder.head.temperatures.detach()
    except ValueError as error:
        raise RequestError(f"{named}: expected conditions that {model} can embed, got: {error}") from error
