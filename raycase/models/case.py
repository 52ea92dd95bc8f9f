"""CASE (Zhang, Zhou and Bollegala, 2025): condition-aware sentence embeddings.

Claim: encode the condition given the sentence, subtract the condition's base vector, project with a small learned
network; CASE(s, c) = g(f(c; I(s)) - f(c; I())) (eq. 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from raycase.encoder.choices import find_encoder
from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prepared import Prepared
from raycase.encoder.prompts import OwnPrompt, PromptSet, Template
from raycase.encoder.table import read_spec
from raycase.encoder.token_batch import TokenBatch, Work
from raycase.encoder.transfers import Finish
from raycase.errors import RequestError
from raycase.heads.projector import (
    WEIGHTS,
    Projector,
    ProjectorConfig,
    load_projector,
    recorded_settings,
    save_projector,
)
from raycase.io.json_values import from_json
from raycase.io.storage import locate
from raycase.models.contracts import EmbedderConfig
from raycase.models.embeds import RoundsVectors
from raycase.models.model_card import case_card
from raycase.models.model_folder import MODEL_FILE, write_folder
from raycase.models.pairs import (
    ConditionCache,
    Encoded,
    accepted_pairs,
    by_pattern,
    encoded,
    prepare,
    prompt_sets,
)

ROWS_AT_ONCE = 1024  # vectors of several prompts that are subtracted from and projected together


@dataclass(frozen=True, kw_only=True)
class CaseConfig(EmbedderConfig):
    """A CASE system without its weights: the encoder's entry with all choices applied, and g, if any.

    Raises RequestError for a subtraction without a base.
    """

    SYSTEM: ClassVar[str] = "case"
    WEIGHTS: ClassVar[str] = WEIGHTS

    subtract: bool
    projector: ProjectorConfig | None = None

    def __post_init__(self) -> None:
        own = self.encoder.own if self.encoder.reads_own else None
        if self.subtract and own and own.base_template is None:
            raise RequestError("--subtract: expected a base_template in the file of --prompt, got a template alone")

    @classmethod
    def read(cls, folder: str, values: dict[str, Any]) -> CaseConfig:
        encoder = read_spec(values["encoder"])
        saved = {"subtract": values["subtract"], "projector": values.get("projector")}
        return from_json(cls, saved, model=folder, encoder=encoder, folder=folder)

    @property
    def top(self) -> ProjectorConfig | None:
        return self.projector

    @property
    def views_dim(self) -> int:
        """Dimension of all views side by side: the input of g."""
        return self.plain_dim * len(self.prompts)

    dim_below = views_dim

    @property
    def views_apart(self) -> list[CaseConfig]:
        views = self.encoder.prompt.split("+")
        whole = replace(self, projector=None, cut=None, folder=None)
        return [replace(whole, encoder=replace(self.encoder, prompt=v)) for v in views]

    @property
    def formula(self) -> str:
        argument = "f - base" if self.subtract else "f"
        return f"g({argument})" if self.projector else argument

    @property
    def fixed(self) -> dict[str, Any]:
        return self.encoder.chosen | {"subtract": self.subtract}

    @property
    def label(self) -> str:
        return f"{self.model} {self.encoder.prompt} {self.encoder.pooling[0]}{' - c' if self.subtract else ''}"

    def describe(self) -> dict[str, Any]:
        description = super().describe() | {"subtract": self.subtract}
        if self.projector and (weights := self.own_weights()):
            description["projector"] = recorded_settings(self.projector) | {"weights": weights}
        return description

    @cached_property
    def prompts(self) -> list[PromptSet]:
        """The templates of each view."""
        return prompt_sets(self.encoder)

    def templates(self, conditional: bool) -> list[Template]:
        """The template of each view; without conditions one template, the sentence alone."""
        return [prompts.pair for prompts in self.prompts] if conditional else [self.prompts[0].plain]

    @property
    def bases(self) -> list[Template]:
        """The template of each view's base; none where nothing is subtracted."""
        return [prompts.base for prompts in self.prompts if prompts.base] if self.subtract else []

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        templates = self.templates(conditions is not None)
        return prepare(self.encoder, sentences, conditions, pairs=templates, bases=self.bases)

    def load(self, **options: Any) -> Case:
        encoder = load_encoder(self.encoder, **options)
        projector = load_projector(self.projector, self.local) if self.projector and self.local else None
        return Case(config=self, encoder=encoder, projector=projector)


def resolve(
    model: str,
    *,
    prompt: str | None = None,
    pooling: Pooling | None = None,
    own: OwnPrompt | None = None,
    subtract: bool | None = None,
) -> CaseConfig:
    """Zero-shot CASE on an encoder of the table, a Hugging Face id or a local folder. Raises RequestError."""
    spec = find_encoder(model, prompt=prompt, pooling=pooling, own=own)
    return CaseConfig(model=model, encoder=spec, subtract=spec.subtract if subtract is None else subtract)


class Case(RoundsVectors):
    """A loaded CASE system: (sentence, condition) -> vector."""

    def __init__(self, *, config: CaseConfig, encoder: TextEncoder, projector: Projector | None = None) -> None:
        self.config = config
        self.encoder = encoder
        self.projector = None if projector is None else projector.to(encoder.model.device)
        self.memory = ConditionCache(config.views_dim)

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        groups = by_pattern(self.config.templates(prepared.conditions is not None))
        pair_index = accepted_pairs(prepared)
        batches = [batch.take(pair_index) for batch in prepared.pairs]
        finish, work = self._eq1(prepared, pair_index)
        if len(groups) == 1:
            vectors_KD, new_work = self.encoder.encode(batches[0], finish)
        else:
            views_KD, new_work = self._views(groups, batches)
            vectors_KD = _finish_slices(finish, views_KD, self.encoder.model.device)
        return encoded(prepared, pair_index, vectors_KD, new_work + work)

    def _eq1(self, prepared: Prepared, pair_index: np.ndarray) -> tuple[Finish, Work]:
        """What eq. 1 does to the views of these pairs (their prompts: `encoder.prompts`), and the work of new bases."""
        device, work = self.encoder.model.device, Work()
        g = None if prepared.conditions is None else self.projector
        bases_CD = condition_K = None
        if prepared.conditions is not None and self.config.subtract:
            groups = by_pattern(self.config.bases)  # f(c; I()), all views side by side
            *bases, work = self.memory.of(
                prepared, pair_index, lambda new: self._views(groups, [batch.take(new) for batch in prepared.bases])
            )
            bases_CD, condition_K = (torch.from_numpy(array).to(device) for array in bases)

        def eq1(index_B: Tensor, views_BD: Tensor) -> Tensor:
            if bases_CD is not None and condition_K is not None:
                views_BD = views_BD - bases_CD[condition_K[index_B]]
            if g is not None:
                views_BD = g(views_BD)[:, : self.dim]
            return views_BD.to(self.output)

        return eq1, work

    def _views(self, groups: list[list[int]], batches: Sequence[TokenBatch]) -> tuple[np.ndarray, Work]:
        """The vectors of all views side by side, in the order of the views."""
        if len(groups) == 1:
            return self.encoder.encode(batches[0])
        dim = self.encoder.dim
        vectors = np.empty((len(batches[0]), dim * sum(map(len, groups))), dtype=np.float32)
        work = Work()
        for views, batch in zip(groups, batches, strict=True):
            of_group, new_work = self.encoder.encode(batch)
            for i, view in enumerate(views):  # slices: a list of columns takes fifty times as long
                vectors[:, view * dim : (view + 1) * dim] = of_group[:, i * dim : (i + 1) * dim]
            work += new_work
        return vectors, work


@torch.inference_mode()
def _finish_slices(finish: Finish, views_KD: np.ndarray, device: torch.device) -> np.ndarray:
    """`finish` of vectors that are on this machine, some rows at a time."""
    index_K = np.arange(len(views_KD))
    parts: list[Tensor] = []
    for start in range(0, max(1, len(views_KD)), ROWS_AT_ONCE):
        some = slice(start, start + ROWS_AT_ONCE)
        part = finish(torch.from_numpy(index_K[some]).to(device), torch.from_numpy(views_KD[some]).to(device))
        parts.append(part.cpu())
    return torch.cat(parts).numpy()


def save(folder: Path, config: CaseConfig, projector: Projector | None) -> None:
    """Write `raycase.json` (last) and g's weights; needs no loaded encoder."""
    folder.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {
        "system": config.SYSTEM,
        "encoder": config.encoder.as_json(),
        "subtract": config.subtract,
        "projector": save_projector(projector, folder) if projector else None,
    }
    locate(str(folder / MODEL_FILE)).put_json(values)


def write_case_folder(folder: Path, config: CaseConfig, projector: Projector, metrics: dict[str, Any]) -> None:
    """Write the model folder of a CASE system with g."""
    card = case_card(folder.name, config, projector, metrics)
    write_folder(folder, metrics, card, lambda folder: save(folder, config, projector))
