"""What fine-tuned encoders have in common: their configuration, their folder, training on rated pairs.

Shapes: N pairs, D dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from safetensors.torch import save as to_safetensors
from torch import Tensor, nn

from raycase.data.fetch import fetch, is_remote
from raycase.data.rated import RatedPairs
from raycase.data.storage import locate, sha256_of_file
from raycase.encoder.cosines import pair_cosines
from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import (
    described,
    find_encoder,
    load_config,
    load_encoder,
    load_tokenizer,
    save_encoder,
    weights_identity,
    whole_model,
)
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import Template
from raycase.encoder.table import ENCODERS, HERE, EncoderSpec, read_spec
from raycase.encoder.tokens import Prepared, TokenBatch
from raycase.errors import RequestError, first_line
from raycase.systems.pairs import Encoded, count_tokens, embed, encoded, kept_pairs, prepare, prompt_sets

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SAVED = "raycase.json"
EXTRA = "extra.safetensors"  # weights that are not the encoder's
TRAIN_TOKENS = {"cpu": 512, "cuda": 16384}  # of a padded batch within a batch; small ones hold less padding


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A fine-tuned encoder without its weights; before training, the encoder it begins with."""

    SYSTEM: ClassVar[str]
    CHOICES: ClassVar[dict[str, type[StrEnum]]] = {}  # fields that JSON leaves as strings
    EMBEDS: ClassVar[bool] = True  # else it only scores pairs
    CONDITIONS: ClassVar[tuple[str, ...] | None] = None  # the only ones that it knows; None: any, or none

    model: str
    encoder: EncoderSpec
    folder: str | None = None  # or URI

    @property
    def plain_dim(self) -> int:
        """Dimension of f(s)."""
        return int(load_config(self.encoder.source).hidden_size)

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return self.plain_dim

    @property
    def has_extra(self) -> bool:
        """Whether there are weights besides the encoder's."""
        return False

    @property
    def own(self) -> dict[str, Any]:
        """The choices of this system alone."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("model", "encoder", "folder")}

    @property
    def label(self) -> str:
        """For people."""
        own = {name: " ".join(map(str, v)) if isinstance(v, tuple) else v for name, v in self.own.items()}
        return " ".join([self.SYSTEM, *(f"{name} {value}" for name, value in own.items())])

    @property
    def formula(self) -> str:
        """What its vectors are."""
        return "f(s, c)"

    @property
    def fixed(self) -> dict[str, Any]:
        """What no flag may contradict."""
        return {"pooling": self.encoder.pooling[0], "prompt": None, "subtract": False}

    @property
    def views_apart(self) -> list[Self]:
        """Its vectors are of one piece."""
        return [self]

    @property
    def local(self) -> Path | None:
        """The folder that training saved, without the encoder's large files; fetched if it is on object storage."""
        if self.folder is None:
            return None
        return fetch(self.folder, large=False, named=EXTRA) if is_remote(self.folder) else Path(self.folder)

    def check_conditions(self, conditions: Sequence[str] | None) -> None:
        """Raise RequestError for a condition that it does not know, and for None where it needs one."""
        known = self.CONDITIONS
        if known is None:
            return
        unknown = [c for c in conditions or () if c not in known]
        if unknown or (conditions is None) == bool(known):
            found = "none" if conditions is None else repr(unknown[0][:80]) if unknown else "some"
            raise RequestError(f"--conditions: expected {' or '.join(known) or 'none'} for {self.model}, got {found}")

    def describe(self) -> dict[str, Any]:
        """Everything that decides the vectors, weights by hash or revision; equal means the same vectors."""
        found: dict[str, Any] = {
            "system": self.SYSTEM,
            "encoder": described(self.encoder),
            "weights": weights_identity(self.encoder.source, self.encoder.adapter),
            **self.own,
            "dim": self.dim,
        }
        if self.has_extra and self.local:
            if not (self.local / EXTRA).is_file():
                raise RequestError(f"--model: expected {EXTRA} in {self.folder}, got none; train it again")
            found["extra"] = f"sha256:{sha256_of_file(self.local / EXTRA)}"
        return found

    def rated(self, rated: RatedPairs) -> RatedTexts:
        """Rated pairs, tokenised for training. Raises RequestError for a text that cannot be encoded."""
        sentences, conditions = zip(*rated.distinct, strict=True)
        prepared = self.prepare(sentences, conditions if any(conditions) else None)
        for row, reason in enumerate(prepared.reasons):
            if reason is not None:
                raise RequestError(
                    f"{rated.uri}: expected texts that can be encoded, got: {reason}: {sentences[row][:80]!r} under "
                    f"{conditions[row][:80]!r}; fix or remove the row"
                )
        return RatedTexts(prepared=prepared, places=rated.pair_index)

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise pairs ahead of the encoder. Loads no weights."""
        raise NotImplementedError

    def load(self, **options: Any) -> Any:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""
        raise NotImplementedError

    def trainable(self, dropout: float | None = None, compute: torch.dtype = torch.float32) -> nn.Module:
        """What training takes: (rows of `rated`) -> scores. `dropout` None: as the encoder's authors have it.

        Weights that are trained are in 32 bits; `compute` is the number format of what is frozen.
        """
        return PairCosine(with_dropout(self.load(**training_options()), dropout))


@dataclass(frozen=True, kw_only=True)
class Prompted(Tuned):
    """One whose vectors are those of a prompt of each pair, by `PromptEncoder`."""

    @property
    def fixed(self) -> dict[str, Any]:
        """What no flag may contradict."""
        return {"prompt": self.encoder.prompt, "pooling": self.encoder.pooling[0], "subtract": False}

    def _template(self, conditions: Sequence[str] | None) -> Template:
        [prompts] = prompt_sets(self.encoder)
        return prompts.plain if conditions is None else prompts.pair

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise each distinct pair. Loads no weights."""
        self.check_conditions(conditions)
        return prepare(self.encoder, sentences, conditions, pairs=[self._template(conditions)])

    def count_tokens(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> np.ndarray:
        """Tokens of each pair: (N,) int64; 0 for a pair that is refused."""
        self.check_conditions(conditions)
        return count_tokens(self.encoder, sentences, conditions, [self._template(conditions)])

    def load(self, **options: Any) -> PromptEncoder:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""
        return PromptEncoder(self, load_encoder(self.encoder, **options))


@dataclass(frozen=True, kw_only=True)
class Scoring(Tuned):
    """One that scores pairs of sentences, by a `Scorer`, and gives no vectors."""

    EMBEDS: ClassVar[bool] = False

    @property
    def has_extra(self) -> bool:
        """What is above the encoder."""
        return True

    def tokens(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> TokenBatch:
        """Tokenise each distinct text and put the pairs together; a long one loses the ends of its sentences.

        Raises ValueError for lists of different length.
        """
        raise NotImplementedError

    def rated(self, rated: RatedPairs) -> TokenBatch:  # type: ignore[override]
        """Rated pairs, tokenised for training. Raises RequestError for a text that cannot be encoded."""
        batch = self.tokens(rated.sentences1, rated.sentences2, rated.conditions)
        for row, reason in enumerate(batch.reasons):
            if reason is not None:
                raise RequestError(f"{rated.uri}, row {row}: expected texts that can be encoded, got: {reason}")
        return batch

    def trainable(self, dropout: float | None = None, compute: torch.dtype = torch.float32) -> nn.Module:
        """What training takes: (rows of `rated`) -> what its loss is of."""
        return with_dropout(self.load(**training_options()), dropout)


def begin(
    model: str, *, prompt: str | None = None, pooling: Pooling | None = None, latent: bool = False, cls: bool = False
) -> EncoderSpec:
    """The encoder that training begins with; `cls`: [CLS] will be read. Raises RequestError for what cannot be trained,
    or not be saved: latent attention, which is no part of the library's model, unless it stays where it is (`latent`).
    """
    if (Path(model) / SAVED).is_file():
        inside = Path(model) / "encoder"
        raise RequestError(
            f"--model: expected an encoder to fine-tune, got the trained model {model}"
            + (f"; its encoder is {inside}" if inside.is_dir() else "")
        )
    if prompt is not None and model not in ENCODERS:
        pooling = pooling or Pooling.MEAN
    spec = find_encoder(model, prompt=prompt, pooling=pooling)
    if "+" in spec.prompt:
        raise RequestError(f"--prompt: expected one view to fine-tune, got {spec.prompt}")
    if Pooling.LATENT in spec.pooling and not latent:
        raise RequestError(
            f"--model: expected an encoder without latent attention to fine-tune, got {model}; see lora --no-merged"
        )
    if cls and (spec.causal or not load_tokenizer(spec).around[0]):
        raise RequestError(f"--model: expected an encoder whose first token, [CLS], sees the whole text, got {model}")
    return spec


def training_options() -> dict[str, Any]:
    """Of `load_encoder`: 32-bit weights, padded batches."""
    kind = "cuda" if torch.cuda.is_available() else "cpu"
    return {"dtype": torch.float32, "unpadded": False, "batch_tokens": TRAIN_TOKENS[kind]}


def with_dropout(module: nn.Module, dropout: float | None) -> nn.Module:
    """The same module, every dropout of it set."""
    for part in module.modules():
        if isinstance(part, nn.Dropout) and dropout is not None:
            part.p = dropout
    return module


# -------------------------------------------------------------------------------------------------------- its folder


def save_folder(
    config: Tuned,
    folder: Path,
    model: PreTrainedModel | None = None,
    *,
    adapters: Any = None,
    extra: nn.Module | None = None,
) -> None:
    """Write the encoder (None: it is where it was), adapters (peft's), other weights, and last of all `raycase.json`.

    `raycase.load(folder)` reads them back.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for former in ("encoder", "adapter"):
        locate(str(folder / former)).remove()
    source, adapter = config.encoder.source, None
    if adapters is not None:
        adapters.save_pretrained(str(folder / "adapter"))
        adapter = f"{HERE}adapter"
    if model is not None:
        save_encoder(model, source, folder / "encoder")
        source = f"{HERE}encoder"
    if extra is not None:
        weights = {name: t.detach().cpu().contiguous() for name, t in extra.state_dict().items()}
        locate(str(folder / EXTRA)).put(to_safetensors(weights))
    row = asdict(replace(config.encoder, source=source, adapter=adapter))
    locate(str(folder / SAVED)).put_json({"system": config.SYSTEM, "encoder": row, **config.own})


def load_extra(module: nn.Module, folder: Path | None) -> None:
    """The other weights of a saved model; before training they are as they were made."""
    if folder is None:
        return
    try:
        module.load_state_dict(load_file(folder / EXTRA))
    except (OSError, RuntimeError, SafetensorError) as error:
        raise RequestError(f"--model: expected the weights of {folder} in {EXTRA}, got: {first_line(error)}") from error


def read_folder(kind: type[Any], folder: str, values: dict[str, Any]) -> Any:
    """What `save` wrote into `folder` (or URI); `values` is its `raycase.json`."""
    own = {name: value for name, value in values.items() if name not in ("system", "encoder")}
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in own.items()}
    own |= {name: choice(own[name]) for name, choice in kind.CHOICES.items() if own[name] is not None}
    return kind(model=folder, encoder=read_spec(values["encoder"]).at(folder), folder=folder, **own)


# ---------------------------------------------------------------------------------------------------------- training


@dataclass(frozen=True, kw_only=True)
class RatedTexts:
    """Rated pairs, tokenised: the distinct (sentence, condition), and where each pair's two stand, (N, 2)."""

    prepared: Prepared
    places: np.ndarray

    def take(self, rows: np.ndarray) -> Prepared:
        """Of some pairs: the first sentences, then the second ones, under their conditions."""
        return self.prepared.take(self.places[rows].T.reshape(-1))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each pair: (N,)."""
        prepared = self.prepared
        tokens_M = sum(batch.lengths for batch in prepared.pairs) + np.zeros(len(prepared.condition), dtype=np.int64)
        for batch in prepared.alone:
            tokens_M = tokens_M + batch.lengths[prepared.sentence]
        return tokens_M[prepared.rows][self.places].sum(1)


class PairCosine(nn.Module):
    """The cosine of two sentences' vectors under a condition, by a system that embeds."""

    def __init__(self, system: Any) -> None:
        super().__init__()
        self.system = system

    def forward(self, prepared: Prepared) -> Tensor:
        """Of what `RatedTexts.take` gives: 2 N -> (N,)."""
        return F.cosine_similarity(*self.system(prepared).float().chunk(2))

    def scores(self, texts: RatedTexts) -> np.ndarray:
        """Of every pair, without gradient: (N,)."""
        self.system.forget()
        return pair_cosines(self.system.encode_prepared(texts.prepared).vectors, texts.places)


# ------------------------------------------------------------------------------------------------ what they embed by


class Loaded(nn.Module):
    """A system with its weights."""

    def __init__(self, config: Any, encoder: TextEncoder) -> None:
        super().__init__()
        self.config = config
        self.encoder = encoder
        self.parts = encoder.parts()


class Embedder(Loaded):
    """What the fine-tuned encoders that give vectors share; each has its own `forward` and `encode_prepared`."""

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return int(self.config.dim)

    def forward(self, prepared: Prepared) -> Tensor:
        """Vectors with a gradient, of pairs none of which is refused: (N, dim)."""
        raise NotImplementedError

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        """The same without, with counts, and a reason for each pair that has no vector."""
        raise NotImplementedError

    def embed(self, sentences: Sequence[str], conditions: Sequence[str] | str | None) -> np.ndarray:
        """Vectors of pairs, or of sentences alone where `conditions` is None: N, N -> (N, dim) float32.

        One condition as a string serves every sentence. A sentence above the encoder's length loses its end.
        Raises ValueError for lists of different length and for a pair that cannot be embedded.
        """
        return embed(self.config.prepare, self.encode_prepared, sentences, conditions)

    def whole(self) -> PreTrainedModel:
        """The library's model again; this one is not to be used any more."""
        return whole_model(self.encoder)

    def save(self, folder: Path) -> None:
        """Write everything that `raycase.load(folder)` needs; this one is not to be used any more."""
        save_folder(self.config, folder, self.whole())

    def forget(self) -> None:
        """Drop what is remembered of texts; for weights that have changed."""

    def compile(self) -> None:
        """Compile the encoder's layers."""
        self.encoder.compile()

    def matrix_product_rate(self) -> float:
        """FLOP/s of a plain matrix product on this device, in the encoder's type; measured when asked for."""
        return self.encoder.matrix_product_rate()


class PromptEncoder(Embedder):
    """An encoder over the prompt of each pair: (sentence, condition) -> pooled vector. It is an `Encoder`."""

    def forward(self, prepared: Prepared) -> Tensor:
        """Vectors with a gradient, of pairs none of which is refused: (N, dim)."""
        return self.encoder.pooled(prepared.pairs[0])[torch.from_numpy(prepared.rows)]

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        """The same without, with counts, and a reason for each pair that has no vector."""
        kept = kept_pairs(prepared)
        vectors_KD, work = self.encoder.encode(prepared.pairs[0].take(kept))
        return encoded(prepared, kept, vectors_KD, work)


# ------------------------------------------------------------------------------------------------ what they score by


class Scorer(Loaded):
    """What the systems that score pairs share; each has its own `head`, `forward` and `scores`."""

    head: nn.Module  # above the encoder

    @property
    def system(self) -> Scorer:
        """Itself: what is saved after training."""
        return self

    def save(self, folder: Path) -> None:
        """Write everything that `raycase.load(folder)` needs; this one is not to be used any more."""
        save_folder(self.config, folder, whole_model(self.encoder), extra=self.head)

    def scores(self, batch: TokenBatch) -> np.ndarray:
        """Of pairs none of which is refused: (N,) float32."""
        raise NotImplementedError

    def score(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> np.ndarray:
        """Similarity of each pair, under its condition where the system reads one: N, N, N -> (N,) float32.

        Raises ValueError for lists of different length and for a text that cannot be encoded.
        """
        batch = self.config.tokens(sentences1, sentences2, conditions)
        for row, reason in enumerate(batch.reasons):
            if reason is not None:
                columns = (sentences1, sentences2, *([] if conditions is None else [conditions]))
                raise ValueError(f"pair {row}: {reason}: {', '.join(repr(column[row]) for column in columns)}")
        return self.scores(batch)

    def scores_of(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> np.ndarray:
        """The same, NaN for a pair that cannot be encoded."""
        batch = self.config.tokens(sentences1, sentences2, conditions)
        found_N = np.full(len(batch), np.nan, dtype=np.float32)
        kept = np.flatnonzero(batch.refused < 0)
        found_N[kept] = self.scores(batch.take(kept))
        return found_N
