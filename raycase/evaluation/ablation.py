"""The ablation of CASE, appendix D: an encoder zero-shot under every pooling and prompt, with and without its base."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from raycase.data.rated import RatedPairs
from raycase.encoder.cosines import pair_cosines
from raycase.encoder.pooling import OVER_A_SPAN
from raycase.encoder.prompts import PromptStyle, TokenSpan
from raycase.evaluation.models import LABELS, encoder_name, setting
from raycase.evaluation.published import SPEARMAN
from raycase.evaluation.scores import points
from raycase.systems.case import CaseConfig

VectorsBy = Callable[[Any], np.ndarray]  # a system's configuration -> its vectors of the rated pairs, (P, D)
PUBLISHED = (PromptStyle.SENT, PromptStyle.COND, PromptStyle.CONCAT_SC, PromptStyle.CONCAT_CS)


def ablation(config: CaseConfig, rated: RatedPairs, vectors_by: VectorsBy) -> dict[str, Any]:
    """Table 10 for one encoder, beside the paper's figures where it has them."""
    published = SPEARMAN.get(encoder_name(config), {})
    rows = []
    for variant in ablation_configs(config):
        pooling = variant.encoder.pooling[0]
        values = points(pair_cosines(vectors_by(variant), rated.pair_index), rated.ratings)
        rows.append(
            {
                "pooling": str(pooling),
                "span": str(variant.prompts[0].pair.span) if pooling in OVER_A_SPAN else None,
                "setting": setting(variant),
                "spearman": values["spearman"],
                "spearman_rated": values["spearman_rated"],
                "published": published.get(pooling, {}).get(setting(variant)),
            }
        )
    return {"encoder": encoder_name(config), "rows": rows}


def ablation_configs(config: CaseConfig) -> list[CaseConfig]:
    """The zero-shot systems of Table 10.

    If the encoder pools its concatenations over the condition, they are also pooled over the whole text.
    """
    row = config.encoder
    configs = []
    for pooling in row.pooling:
        poolings = (pooling, *(p for p in row.pooling if p is not pooling))
        prompts = [str(style) for style in LABELS if style in PUBLISHED or pooling in OVER_A_SPAN]
        if row.span is TokenSpan.CONDITION and pooling in OVER_A_SPAN:
            prompts += [f"{style}:{TokenSpan.ALL}" for style in (PromptStyle.CONCAT_SC, PromptStyle.CONCAT_CS)]
        for prompt in prompts:
            encoder = replace(row, prompt=prompt, pooling=poolings)
            configs += [
                replace(config, encoder=encoder, subtract=subtract, projector=None, folder=None)
                for subtract in (True, False)
            ]
    return configs
