"""CASE (Zhang, Zhou and Bollegala, 2025): condition-aware sentence embeddings.

Claim: encode the condition given the sentence, take away the condition's own vector, project with a small learned
network; CASE(s, c) = g(f(c; I(s)) - f(c; I())) (eq. 1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from raycase.encoders import (
    EncoderSpec,
    PromptTokenizer,
    TextEncoder,
    Tokens,
    find_encoder,
    load_config,
    load_encoder,
    load_tokenizer,
    weights_identity,
)
from raycase.pooling import Pooling
from raycase.projector import WEIGHTS, Projector, ProjectorConfig, load_projector, save_projector
from raycase.prompts import PromptSet, Span, Template, parse_views, prompt_set
from raycase.schema import Encoded, RequestError
from raycase.storage import place, sha256_of_file

SYSTEM = "case"
BASE_MEMORY_BYTES = 256 * 2**20  # how much of f(c; I()) is remembered; an encoder that meets more begins anew


@dataclass(frozen=True, kw_only=True)
class CaseConfig:
    """A CASE system without its weights: the encoder's row with all choices applied, and g if there is one."""

    model: str
    encoder: EncoderSpec
    subtract: bool
    projector: ProjectorConfig | None = None
    folder: Path | None = None

    @cached_property
    def plain_dim(self) -> int:
        """Dimension of f(s)."""
        return int(load_config(self.encoder.source).hidden_size)

    @property
    def views_dim(self) -> int:
        """Dimension of the views side by side, which is what g takes."""
        return self.plain_dim * len(self.prompts)

    @property
    def dim(self) -> int:
        """Dimension of CASE(s, c): g's if there is one, else that of the views."""
        return self.projector.output_dim if self.projector else self.views_dim

    @property
    def views_apart(self) -> list[CaseConfig]:
        """Each view as a system of its own, without g."""
        views = self.encoder.prompt.split("+")
        return [replace(self, encoder=replace(self.encoder, prompt=v), projector=None, folder=None) for v in views]

    @property
    def label(self) -> str:
        """For people: the encoder, the views, the pooling, and what is taken away."""
        return f"{self.model} {self.encoder.prompt} {self.encoder.pooling[0]}{' - c' if self.subtract else ''}"

    def describe(self) -> dict[str, Any]:
        """Everything that decides the vectors, weights by hash or revision; equal means the same vectors."""
        described: dict[str, Any] = {
            "system": SYSTEM,
            "encoder": {k: v for k, v in asdict(self.encoder).items() if k != "source"},  # a folder may move
            "weights": weights_identity(self.encoder.source),
            "subtract": self.subtract,
            "dim": self.dim,
        }
        if self.projector and self.folder:
            weights = f"sha256:{sha256_of_file(self.folder / WEIGHTS)}"
            described["projector"] = asdict(self.projector) | {"weights": weights}
        return described

    @cached_property
    def prompts(self) -> list[PromptSet]:
        """The templates of each view."""
        row = self.encoder
        return [
            prompt_set(style, template=row.template, separator=row.separator, span=span or row.span)
            for style, span in parse_views(row.prompt)
        ]

    def templates(self, conditional: bool) -> list[Template]:
        """Of each view; without conditions there is but one, the sentence alone."""
        return [prompts.pair for prompts in self.prompts] if conditional else [self.prompts[0].plain]

    def count_tokens(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> np.ndarray:
        """Tokens of each pair's prompts, cut to the encoder's length: (N,) int64; 0 for a pair that is refused.

        Loads the tokenizer alone.
        """
        pairs = list(zip(sentences, conditions or [""] * len(sentences), strict=True))
        views = [
            np.array([len(t.ids) for t in self._tokenizer([template.render(s, c) for s, c in pairs])], dtype=np.int64)
            for template in self.templates(conditions is not None)
        ]
        return np.where(np.all(views, axis=0), np.sum(views, axis=0), 0)

    @cached_property
    def _tokenizer(self) -> PromptTokenizer:
        return load_tokenizer(self.encoder)

    def load(self, **options: Any) -> Case:
        """Load the weights; `options` are those of `raycase.encoders.load_encoder` (device, dtype, batch_tokens)."""
        encoder = load_encoder(self.encoder, **options)
        projector = load_projector(self.projector, self.folder) if self.projector and self.folder else None
        return Case(config=self, encoder=encoder, projector=projector)


def resolve(
    model: str, *, prompt: str | None = None, pooling: Pooling | None = None, subtract: bool | None = None
) -> CaseConfig:
    """Zero-shot CASE on an encoder of the table, a Hugging Face id or a local folder. Raises RequestError."""
    spec = find_encoder(model, prompt=prompt, pooling=pooling)
    return CaseConfig(model=model, encoder=spec, subtract=spec.subtract if subtract is None else subtract)


def resolve_folder(folder: Path, values: dict[str, Any]) -> CaseConfig:
    """The system that `Case.save` wrote into `folder`; `values` is its `raycase.json`."""
    row = dict(values["encoder"])
    try:
        parse_views(row["prompt"])
    except RequestError as error:
        raise ValueError(str(error)) from error
    row |= {
        "span": Span(row["span"]),
        "pooling": tuple(Pooling(p) for p in row["pooling"]),
    }
    config = CaseConfig(
        model=str(folder),
        encoder=EncoderSpec(**row),
        subtract=values["subtract"],
        projector=ProjectorConfig(**values["projector"]) if values.get("projector") else None,
        folder=folder,
    )
    if config.projector and config.projector.input_dim != config.views_dim:
        raise RequestError(
            f"{folder}: wanted a projector for the {config.views_dim} dimensions of {config.encoder.source} "
            f"({config.encoder.prompt}), found one for {config.projector.input_dim}"
        )
    return config


class Case:
    """A loaded CASE system: (sentence, condition) -> vector. It is an `Encoder` and runs without Ray."""

    def __init__(self, *, config: CaseConfig, encoder: TextEncoder, projector: Projector | None = None) -> None:
        self.config = config
        self.encoder = encoder
        self.projector = projector
        self.prompts = config.prompts
        self._base: dict[str, np.ndarray] = {}

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return self.config.dim

    def embed(self, sentences: Sequence[str], conditions: Sequence[str] | str | None) -> np.ndarray:
        """CASE(s, c) of each pair, or f(s) where `conditions` is None: N, N -> (N, dim) float32, not normalised.

        One condition as a string serves every sentence. A sentence above the encoder's length loses its end.
        Raises ValueError for lists of different length and for a pair that cannot be embedded.
        """
        if isinstance(sentences, str):
            raise ValueError("sentences: wanted a list of strings, found one string")
        if isinstance(conditions, str):
            conditions = [conditions] * len(sentences)
        encoded = self.encode(sentences, conditions)
        for row, reason in enumerate(encoded.refused):
            if reason is not None:
                raise ValueError(f"pair {row}: {reason}: {sentences[row]!r} under {conditions and conditions[row]!r}")
        return encoded.vectors

    def encode(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Encoded:
        """The same with counts, each distinct pair encoded once, and a reason for each pair that has no vector."""
        if conditions is not None and len(conditions) != len(sentences):
            raise ValueError(f"wanted as many conditions as sentences, found {len(conditions)} and {len(sentences)}")
        pairs = list(zip(sentences, conditions or [""] * len(sentences), strict=True))
        place = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
        views = [self._tokenize(list(place), template) for template in self.config.templates(conditions is not None)]
        refused = [next((t.refused for t in tokens if t.refused), None) for tokens in zip(*views, strict=True)]
        vectors = np.full((len(place), self.encoder.dim * len(views)), np.nan, dtype=np.float32)
        kept = [i for i, reason in enumerate(refused) if reason is None]
        vectors[kept] = np.concatenate([self.encoder.pool([tokens[i] for i in kept]) for tokens in views], axis=1)
        base_tokens = 0
        if conditions is not None:
            vectors, base_tokens = self._reduced(vectors, [c for _, c in place], kept)
        rows = np.fromiter((place[p] for p in pairs), dtype=np.int64, count=len(pairs))
        return Encoded(
            vectors=vectors[rows],
            refused=[refused[i] for i in rows],
            truncated=np.array([any(tokens[i].truncated for tokens in views) for i in rows], dtype=bool),
            tokens=sum(len(t.ids) for tokens in views for t in tokens) + base_tokens,
            distinct=len(place),
        )

    def _reduced(
        self, vectors_ND: np.ndarray, conditions: Sequence[str], kept: Sequence[int]
    ) -> tuple[np.ndarray, int]:
        """g(f - base) of the rows kept, NaN elsewhere, and how many tokens new bases took."""
        base_tokens = 0
        if self.config.subtract:
            base_tokens = self._learn_base({conditions[i] for i in kept})
            for i in kept:
                vectors_ND[i] -= self._base[conditions[i]]
        if self.projector is not None:
            with torch.inference_mode():
                vectors_ND = self.projector(torch.from_numpy(vectors_ND)).numpy()
        return vectors_ND, base_tokens

    def _learn_base(self, conditions: set[str]) -> int:
        """Remember f(c; I()) of every condition given, of all views; returns the tokens encoded for the new ones."""
        if (len(self._base) + len(conditions)) * self.config.views_dim * 4 > BASE_MEMORY_BYTES:
            self._base.clear()
        new = sorted(conditions - self._base.keys())
        views = [self._tokenize([("", c) for c in new], prompts.base) for prompts in self.prompts]
        bases_CD = np.concatenate([self.encoder.pool(tokens) for tokens in views], axis=1)
        self._base.update(zip(new, bases_CD, strict=True))
        return sum(len(t.ids) for tokens in views for t in tokens)

    def _tokenize(self, pairs: Sequence[tuple[str, str]], template: Template) -> list[Tokens]:
        return self.encoder.tokenize([template.render(s, c) for s, c in pairs])

    def save(self, folder: Path) -> None:
        """Write `raycase.json` and g's weights; `raycase.load(folder)` reads them back."""
        save(folder, self.config, self.projector)


def save(folder: Path, config: CaseConfig, projector: Projector | None) -> None:
    """What `Case.save` does, without the encoder's weights at hand; `raycase.json` is written last."""
    folder.mkdir(parents=True, exist_ok=True)
    values: dict[str, Any] = {
        "system": SYSTEM,
        "encoder": asdict(config.encoder),
        "subtract": config.subtract,
        "projector": save_projector(projector, folder) if projector else None,
    }
    place(str(folder / "raycase.json")).put_json(values)
