"""CASE (Zhang, Zhou and Bollegala, 2025): CASE(s, c) = g(f(c; I(s)) - f(c; I())) (eq. 1), the encoder's vector of the
condition given the sentence, less the condition's base, projected by a small learned network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from raycase.encoder.choices import find_encoder
from raycase.encoder.engine import Finish, TextEncoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.prompts import PromptSet
from raycase.encoder.token_batch import Prepared, TokenBatch, Work
from raycase.errors import RequestError
from raycase.heads.projector import WEIGHTS, Projector, ProjectorConfig, load_weights
from raycase.models.configs import EmbedderConfig
from raycase.models.embedder import Embedder
from raycase.models.pairs import SENTENCE, ConditionCache, Encoded, accepted_pairs, encoded, prepare, prompt_sets

ROWS_AT_ONCE = 1024  # vectors of several prompts that are subtracted from and projected together


@dataclass(frozen=True, kw_only=True)
class CaseConfig(EmbedderConfig):
    """A CASE system without its weights: the encoder's entry with all choices applied, and g, if any."""

    SYSTEM = "case"
    WEIGHTS: ClassVar[str] = WEIGHTS

    subtract: bool
    projector: ProjectorConfig | None = None

    def __post_init__(self) -> None:
        own = self.encoder.own if self.encoder.reads_own else None
        if self.subtract and own and own.base_template is None:
            raise RequestError("--subtract: expected a base_template in the file of --prompt, got a template alone")

    @property
    def views_dim(self) -> int:
        """Dimension of all views side by side: the input of g."""
        return self.unconditional_dim * len(self.prompts)

    @property
    def whole_dim(self) -> int:
        return self.projector.output_dim if self.projector else self.views_dim

    @property
    def nested(self) -> tuple[int, ...]:
        return self.projector.nested if self.projector else ()

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
        return f"{self.name} {self.encoder.prompt} {self.encoder.pooling[0]}{' - c' if self.subtract else ''}"

    @cached_property
    def prompts(self) -> list[PromptSet]:
        """The templates of each view."""
        return prompt_sets(self.encoder)

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Of each view its prompt, and its base if that is subtracted; without conditions the sentence alone."""
        if conditions is None:
            return prepare(self.encoder, sentences, None, of_pairs=[SENTENCE])
        pairs = [prompts.pair for prompts in self.prompts]
        bases = [prompts.base for prompts in self.prompts if prompts.base] if self.subtract else []
        return prepare(self.encoder, sentences, conditions, of_pairs=pairs, of_conditions=bases)

    def load(self, **options: Any) -> Case:
        return Case(config=self, encoder=load_encoder(self.encoder, **options), projector=self.load_projector())

    def load_projector(self) -> Projector | None:
        """g with its weights, in evaluation mode."""
        if not (self.projector and self.local):
            return None
        projector = Projector(self.projector)
        load_weights(projector, self.local / WEIGHTS, f"weights of {self.projector}")
        return projector.eval()


def resolve(model: str, *, subtract: bool | None = None, **choices: Any) -> CaseConfig:
    """Zero-shot CASE on an encoder, by the choices of `find_encoder`."""
    spec = find_encoder(model, **choices)
    return CaseConfig(name=model, encoder=spec, subtract=spec.subtract if subtract is None else subtract)


class Case(Embedder):
    """A loaded CASE system: (sentence, condition) -> vector."""

    def __init__(self, *, config: CaseConfig, encoder: TextEncoder, projector: Projector | None = None) -> None:
        self.config = config
        self.encoder = encoder
        self.projector = None if projector is None else projector.to(encoder.model.device)
        self.memory = ConditionCache(config.views_dim)

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        pair_index = accepted_pairs(prepared)
        batches = [batch.take(pair_index) for batch in prepared.of_pairs]
        finish, work = self._eq1(prepared, pair_index)
        if len(batches) == 1:
            vectors_KD, new_work = self.encoder.encode(batches[0], finish)
        else:
            views_KD, new_work = self._views(*batches)
            with torch.inference_mode():
                device, parts = self.encoder.model.device, []
                for rows in np.array_split(np.arange(len(views_KD)), 1 + len(views_KD) // ROWS_AT_ONCE):
                    parts.append(finish(torch.from_numpy(rows).to(device), torch.from_numpy(views_KD[rows]).to(device)))
                vectors_KD = torch.cat([part.cpu() for part in parts]).numpy()
        return encoded(prepared, pair_index, vectors_KD, new_work + work)

    def _eq1(self, prepared: Prepared, pair_index: np.ndarray) -> tuple[Finish, Work]:
        """What eq. 1 does to the views of these pairs (their prompts: `encoder.prompts`), and the work of new bases."""
        device, work = self.encoder.model.device, Work()
        g = None if prepared.conditions is None else self.projector
        bases_CD = condition_K = None
        if prepared.conditions is not None and self.config.subtract:
            *bases, work = self.memory.of(prepared, pair_index, self._views)  # f(c; I()), all views side by side
            bases_CD, condition_K = (torch.from_numpy(array).to(device) for array in bases)

        def eq1(index_B: Tensor, views_BD: Tensor) -> Tensor:
            if bases_CD is not None and condition_K is not None:
                views_BD = views_BD - bases_CD[condition_K[index_B]]
            if g is not None:
                views_BD = g(views_BD)[:, : self.dim]
            return self.rounded(views_BD)

        return eq1, work

    def _views(self, *batches: TokenBatch) -> tuple[np.ndarray, Work]:
        """The vectors of all views side by side."""
        vectors, works = zip(*map(self.encoder.encode, batches), strict=True)
        return np.concatenate(vectors, axis=1), sum(works, Work())
