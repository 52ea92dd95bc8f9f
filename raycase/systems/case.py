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

from raycase.encoders import find_encoder, load_config, load_encoder, load_tokenizer, weights_identity
from raycase.engine import TextEncoder
from raycase.fetch import fetch, is_remote
from raycase.pooling import Pooling
from raycase.projector import WEIGHTS, Projector, ProjectorConfig, load_projector, save_projector
from raycase.prompts import PromptSet, Span, Template, parse_views, prompt_set
from raycase.rates import Work
from raycase.schema import RequestError
from raycase.storage import place, sha256_of_file
from raycase.systems.protocols import Encoded
from raycase.table import EncoderSpec
from raycase.tokens import Prepared, TokenBatch

SYSTEM = "case"
BASE_MEMORY_BYTES = 256 * 2**20  # how much of f(c; I()) is remembered; an encoder that meets more begins anew


@dataclass(frozen=True, kw_only=True)
class CaseConfig:
    """A CASE system without its weights: the encoder's row with all choices applied, and g if there is one."""

    model: str
    encoder: EncoderSpec
    subtract: bool
    projector: ProjectorConfig | None = None
    folder: str | None = None  # or URI

    @cached_property
    def plain_dim(self) -> int:
        """Dimension of f(s)."""
        return int(load_config(self.encoder.source).hidden_size)

    @property
    def local(self) -> Path | None:
        """The folder that training saved, fetched if it is on object storage."""
        if self.folder is None:
            return None
        return fetch(self.folder, large=False, named=WEIGHTS) if is_remote(self.folder) else Path(self.folder)

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
        if self.projector and self.local:
            weights = f"sha256:{sha256_of_file(self.local / WEIGHTS)}"
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

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise the distinct pairs and conditions, all views. Loads the tokenizer alone.

        Raises ValueError for lists of different length.
        """
        if conditions is not None and len(conditions) != len(sentences):
            raise ValueError(f"wanted as many conditions as sentences, found {len(conditions)} and {len(sentences)}")
        pairs = list(zip(sentences, conditions or [""] * len(sentences), strict=True))
        place = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
        number = {c: i for i, c in enumerate(dict.fromkeys(c for _, c in place))}
        alone = [("", c) for c in number]
        with_bases = conditions is not None and self.subtract
        return Prepared(
            rows=np.fromiter((place[p] for p in pairs), dtype=np.int64, count=len(pairs)),
            conditions=None if conditions is None else list(number),
            condition=np.fromiter((number[c] for _, c in place), dtype=np.int64, count=len(place)),
            pairs=self._tokenized(self.templates(conditions is not None), list(place)),
            bases=self._tokenized([prompts.base for prompts in self.prompts], alone) if with_bases else [],
        )

    def _tokenized(self, templates: Sequence[Template], pairs: Sequence[tuple[str, str]]) -> list[TokenBatch]:
        """Of each pattern; views of one pattern share their tokens."""
        tokenizer = load_tokenizer(self.encoder)
        return [tokenizer.pairs([templates[i] for i in views], pairs) for views in by_pattern(templates)]

    def count_tokens(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> np.ndarray:
        """Tokens of each pair's prompts, cut to the encoder's length: (N,) int64; 0 for a pair that is refused."""
        pairs = list(zip(sentences, conditions or [""] * len(sentences), strict=True))
        lengths = [batch.lengths for batch in self._tokenized(self.templates(conditions is not None), pairs)]
        return np.where(np.all(lengths, axis=0), np.sum(lengths, axis=0), 0)

    def load(self, **options: Any) -> Case:
        """Load the weights; `options` are those of `raycase.encoders.load_encoder` (device, dtype, batch_tokens)."""
        encoder = load_encoder(self.encoder, **options)
        projector = load_projector(self.projector, self.local) if self.projector and self.local else None
        return Case(config=self, encoder=encoder, projector=projector)


def by_pattern(templates: Sequence[Template]) -> list[list[int]]:
    """Views whose templates differ in what they pool alone, together."""
    groups: dict[str, list[int]] = {}
    for view, template in enumerate(templates):
        groups.setdefault(template.pattern, []).append(view)
    return list(groups.values())


def resolve(
    model: str, *, prompt: str | None = None, pooling: Pooling | None = None, subtract: bool | None = None
) -> CaseConfig:
    """Zero-shot CASE on an encoder of the table, a Hugging Face id or a local folder. Raises RequestError."""
    spec = find_encoder(model, prompt=prompt, pooling=pooling)
    return CaseConfig(model=model, encoder=spec, subtract=spec.subtract if subtract is None else subtract)


def resolve_folder(folder: str, values: dict[str, Any]) -> CaseConfig:
    """The system that `Case.save` wrote into `folder` (or URI); `values` is its `raycase.json`."""
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
        model=folder,
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
        self._bases: dict[str, np.ndarray] = {}

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
        encoded = self.encode(self.config.prepare(sentences, conditions))
        for row, reason in enumerate(encoded.refused):
            if reason is not None:
                raise ValueError(f"pair {row}: {reason}: {sentences[row]!r} under {conditions and conditions[row]!r}")
        return encoded.vectors

    def encode(self, prepared: Prepared) -> Encoded:
        """The same of tokenised pairs, with counts, and a reason for each pair that has no vector."""
        conditions = prepared.conditions
        groups = by_pattern(self.config.templates(conditions is not None))
        count = len(prepared.condition)
        reasons = zip(*(batch.reasons for batch in prepared.pairs), strict=True)
        refused = [next(filter(None, views), None) for views in reasons]
        kept = np.array([i for i, reason in enumerate(refused) if reason is None], dtype=np.int64)
        vectors_KD, work = self._views(groups, [batch.take(kept) for batch in prepared.pairs])
        if conditions is not None:
            if self.config.subtract:
                work += self._learn_bases(prepared, np.unique(prepared.condition[kept]))
                for i, condition in enumerate(prepared.condition[kept].tolist()):
                    vectors_KD[i] -= self._bases[conditions[condition]]
            if self.projector is not None:
                with torch.inference_mode():
                    vectors_KD = self.projector(torch.from_numpy(vectors_KD)).numpy()
        vectors_MD = np.full((count, vectors_KD.shape[1]), np.nan, dtype=np.float32)
        vectors_MD[kept] = vectors_KD
        truncated = np.any([batch.truncated for batch in prepared.pairs], axis=0)
        return Encoded(
            vectors=vectors_MD[prepared.rows],
            refused=[refused[i] for i in prepared.rows],
            truncated=truncated[prepared.rows],
            work=work,
            distinct=count,
        )

    def _learn_bases(self, prepared: Prepared, conditions: np.ndarray) -> Work:
        """Remember f(c; I()) of the conditions, of all views."""
        assert prepared.conditions is not None
        if (len(self._bases) + len(conditions)) * self.config.views_dim * 4 > BASE_MEMORY_BYTES:
            self._bases.clear()
        new = np.array([c for c in conditions if prepared.conditions[c] not in self._bases], dtype=np.int64)
        groups = by_pattern([prompts.base for prompts in self.prompts])
        bases_CD, work = self._views(groups, [batch.take(new) for batch in prepared.bases])
        self._bases.update(zip((prepared.conditions[c] for c in new), bases_CD, strict=True))
        return work

    def _views(self, groups: list[list[int]], batches: Sequence[TokenBatch]) -> tuple[np.ndarray, Work]:
        """The vectors of all views side by side, in their order."""
        dim = self.encoder.dim
        vectors = np.empty((len(batches[0]), dim * sum(map(len, groups))), dtype=np.float32)
        work = Work()
        for views, batch in zip(groups, batches, strict=True):
            columns = np.concatenate([np.arange(v * dim, (v + 1) * dim) for v in views])
            vectors[:, columns], some = self.encoder.encode(batch)
            work += some
        return vectors, work

    def compile(self) -> None:
        """Compile the encoder's layers."""
        self.encoder.compile()

    def matrix_product_rate(self) -> float:
        """FLOP/s of a plain matrix product on this device, in the encoder's type; measured when asked for."""
        return self.encoder.matrix_product_rate()

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
