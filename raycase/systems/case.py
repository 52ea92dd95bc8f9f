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

from raycase.data.fetch import local_folder
from raycase.data.json_values import from_json
from raycase.data.storage import locate, sha256_of_file
from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prepared import Prepared
from raycase.encoder.prompts import OwnPrompt, PromptSet, Template
from raycase.encoder.sources import described, find_encoder, load_config, weights_identity
from raycase.encoder.table import EncoderSpec, read_spec
from raycase.encoder.throughput import Work
from raycase.encoder.token_batch import TokenBatch
from raycase.encoder.transfers import Finish
from raycase.errors import RequestError
from raycase.systems.embeds import Embeds
from raycase.systems.model_card import case_card
from raycase.systems.model_folder import MODEL_FILE, write_folder
from raycase.systems.pairs import (
    Encoded,
    Memory,
    accepted_pairs,
    by_pattern,
    count_tokens,
    encoded,
    prepare,
    prompt_sets,
)
from raycase.systems.projector import WEIGHTS, Projector, ProjectorConfig, load_projector, save_projector, settings_of

SYSTEM = "case"
ROWS_AT_ONCE = 1024  # vectors of several prompts that are subtracted from and projected together


@dataclass(frozen=True, kw_only=True)
class CaseConfig:
    """A CASE system without its weights: the encoder's entry with all choices applied, and g, if any.

    cut: only the first so many dimensions of g, one of its nested ones. Raises RequestError for a subtraction without a
    base.
    """

    model: str
    encoder: EncoderSpec
    subtract: bool
    projector: ProjectorConfig | None = None
    cut: int | None = None
    folder: str | None = None  # or URI
    known_conditions: ClassVar[None] = None  # any

    def __post_init__(self) -> None:
        own = self.encoder.own if self.encoder.reads_own else None
        if self.subtract and own and own.base_template is None:
            raise RequestError("--subtract: expected a base_template in the file of --prompt, got a template alone")

    @cached_property
    def plain_dim(self) -> int:
        """Dimension of f(s)."""
        return int(load_config(self.encoder.source).hidden_size)

    @property
    def local(self) -> Path | None:
        """The model folder on this machine; fetched if it is on object storage."""
        return local_folder(self.folder, WEIGHTS)

    @property
    def views_dim(self) -> int:
        """Dimension of all views side by side: the input of g."""
        return self.plain_dim * len(self.prompts)

    @property
    def whole_dim(self) -> int:
        """Dimension of CASE(s, c) before the cut: the output of g, if any, else `views_dim`."""
        return self.projector.output_dim if self.projector else self.views_dim

    @property
    def dim(self) -> int:
        """Dimension of CASE(s, c)."""
        return self.cut or self.whole_dim

    @property
    def nested(self) -> tuple[int, ...]:
        """Dimensions to which the vectors may be cut."""
        return self.projector.nested if self.projector else ()

    @property
    def views_apart(self) -> list[CaseConfig]:
        """Each view as a separate system, without g."""
        views = self.encoder.prompt.split("+")
        whole = replace(self, projector=None, cut=None, folder=None)
        return [replace(whole, encoder=replace(self.encoder, prompt=v)) for v in views]

    @property
    def formula(self) -> str:
        """The vectors, as a formula in the notation of eq. 1."""
        argument = "f - base" if self.subtract else "f"
        return f"g({argument})" if self.projector else argument

    @property
    def fixed(self) -> dict[str, Any]:
        """Choices that no flag may contradict after training."""
        return self.encoder.chosen | {"subtract": self.subtract}

    @property
    def label(self) -> str:
        """For display: the encoder, the views, the pooling, and whether the base is subtracted."""
        return f"{self.model} {self.encoder.prompt} {self.encoder.pooling[0]}{' - c' if self.subtract else ''}"

    def describe(self) -> dict[str, Any]:
        """Everything that determines the vectors, weights by hash or revision. Equal descriptions, equal vectors."""
        description: dict[str, Any] = {
            "system": SYSTEM,
            "encoder": described(self.encoder),
            "weights": weights_identity(self.encoder.source, self.encoder.adapter),
            "subtract": self.subtract,
            "dim": self.whole_dim,
        }
        if self.projector and self.local:
            weights = f"sha256:{sha256_of_file(self.local / WEIGHTS)}"
            description["projector"] = settings_of(self.projector) | {"weights": weights}
        return description | ({"cut": self.cut} if self.cut else {})

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
        """Tokenise the distinct pairs and conditions for all views. Loads only the tokenizer.

        Raises ValueError for lists of different length.
        """
        return prepare(
            self.encoder,
            sentences,
            conditions,
            pairs=self.templates(conditions is not None),
            bases=self.bases,
        )

    def count_tokens(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> np.ndarray:
        """Tokens of each pair's prompts, truncated to the encoder's length: (N,) int64; 0 for a refused pair."""
        return count_tokens(self.encoder, sentences, conditions, self.templates(conditions is not None))

    def load(self, **options: Any) -> Case:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""
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


def resolve_folder(folder: str, values: dict[str, Any]) -> CaseConfig:
    """The system that `Case.save` wrote into `folder` (or URI); `values` is its `raycase.json`."""
    encoder = read_spec(values["encoder"])
    saved = {"subtract": values["subtract"], "projector": values.get("projector")}
    config = from_json(CaseConfig, saved, model=folder, encoder=encoder, folder=folder)
    if config.projector and config.projector.input_dim != config.views_dim:
        raise RequestError(
            f"{folder}: expected a projector for the {config.views_dim} dimensions of {config.encoder.source} "
            f"({config.encoder.prompt}), got one for {config.projector.input_dim}"
        )
    return config


class Case(Embeds):
    """A loaded CASE system: (sentence, condition) -> vector. It is an `Encoder` and runs without Ray."""

    def __init__(self, *, config: CaseConfig, encoder: TextEncoder, projector: Projector | None = None) -> None:
        self.config = config
        self.encoder = encoder
        self.prompts = config.prompts
        self.projector = None if projector is None else projector.to(encoder.model.device)
        self.memory = Memory(config.views_dim)
        self.output = torch.float32

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return self.config.dim

    def round_to(self, dtype: str) -> None:
        """Let `encode_prepared` give vectors of this type, rounded where they are computed."""
        self.output = getattr(torch, dtype)

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        """Vectors of tokenised pairs, counts, and the reason of each refused pair."""
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
        """What eq. 1 does to the views of these pairs, on the encoder's device, and the work of new bases."""
        device, work = self.encoder.model.device, Work()
        g = None if prepared.conditions is None else self.projector
        bases_CD = condition_K = None
        if prepared.conditions is not None and self.config.subtract and len(pair_index):
            distinct, condition_index = np.unique(prepared.condition[pair_index], return_inverse=True)
            bases, work = self.memory.of(prepared, distinct, lambda new: self._embed_bases(prepared, new))
            bases_CD, condition_K = (torch.from_numpy(a).to(device) for a in (bases, condition_index))

        def eq1(index_B: Tensor, views_BD: Tensor) -> Tensor:
            if bases_CD is not None and condition_K is not None:
                views_BD = views_BD - bases_CD[condition_K[index_B]]
            if g is not None:
                views_BD = g(views_BD)[:, : self.dim]
            return views_BD.to(self.output)

        return eq1, work

    def _embed_bases(self, prepared: Prepared, conditions: np.ndarray) -> tuple[np.ndarray, Work]:
        """f(c; I()) of the conditions with these indices, all views side by side."""
        groups = by_pattern(self.config.bases)
        return self._views(groups, [batch.take(conditions) for batch in prepared.bases])

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

    def compile(self) -> None:
        """Compile the encoder's layers."""
        self.encoder.compile()

    def matrix_product_rate(self) -> float:
        """FLOP/s of a plain matrix product on this device, in the encoder's type; measured at each call."""
        return self.encoder.matrix_product_rate()

    def save(self, folder: Path) -> None:
        """Write `raycase.json` and g's weights; `raycase.load(folder)` reads them back."""
        save(folder, self.config, self.projector)


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
        "system": SYSTEM,
        "encoder": config.encoder.as_json(),
        "subtract": config.subtract,
        "projector": save_projector(projector, folder) if projector else None,
    }
    locate(str(folder / MODEL_FILE)).put_json(values)


def write_model_folder(
    folder: Path,
    config: CaseConfig,
    projector: Projector,
    metrics: dict[str, Any],
) -> None:
    """Write the model folder of a CASE system with g."""
    text = case_card(folder.name, config, projector, metrics)
    write_folder(folder, metrics, text, lambda folder: save(folder, config, projector))
