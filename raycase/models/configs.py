"""What a system is before its weights are loaded: a configuration, which loads an `Embedder` or a `Scorer` of pairs.

Shapes: N pairs, M distinct (sentence, condition) or pairs of sentences, P of these for each pair of sentences, D
dimensions, K figures.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import nn

from raycase.encoder.loading import load_encoder
from raycase.encoder.model_files import MODEL_FILE, fetch
from raycase.encoder.pooling import Pooling
from raycase.encoder.prompts import TokenSpan
from raycase.encoder.sources import described, encoder_errors, load_config, load_tokenizer, weights_identity
from raycase.encoder.table import EncoderSpec, read_spec
from raycase.encoder.token_batch import Prepared, TokenBatch
from raycase.encoder.tokenizer import separated
from raycase.errors import MOST_LABEL, RequestError, visible
from raycase.heads.projector import load_weights
from raycase.io.json_values import from_json
from raycase.io.rated_pairs import RatedPairs
from raycase.io.schema import SCORE
from raycase.io.storage import locate, sha256_of_file
from raycase.io.vectors import cosines
from raycase.models.embedder import Embedder
from raycase.models.fine_tuned import PromptEncoder, Scorer, starting_encoder, training_options, with_dropout
from raycase.models.model_folder import EXTRA, read_elsewhere
from raycase.models.pairs import CONDITION, SENTENCE, Encoded, RatedTexts, check_accepted, prepare, prompt_sets
from raycase.models.taught import Taught

NOT_SAVED = ("name", "encoder", "folder", "cut", "taught")  # fields that no system chooses by training


@dataclass(frozen=True, kw_only=True)
class SystemConfig(ABC):
    """A system without its weights: an encoder (before training, the one it starts from) and the system's choices.

    One that needs no training has `untrained(model, pooling)`, too, found by its name, a colon and the encoder's.
    """

    SYSTEM: ClassVar[str]  # its name in `raycase.json`
    LOADED: ClassVar[Any]  # the class of the loaded system, of this configuration and an encoder
    FORMULA: ClassVar[str] = "f(s, c)"
    WEIGHTS: ClassVar[str] = EXTRA  # the file of those beside the encoder's
    known_conditions: ClassVar[tuple[str, ...] | None] = None  # the only ones that it accepts, () for none; None: any
    figure_names: ClassVar[tuple[str, ...]] = (SCORE,)  # of a pair of sentences
    weighs_words: ClassVar[bool] = False  # whether the loaded system has `word_weights`

    name: str  # by which it was requested: a name, an id or a folder
    encoder: EncoderSpec
    folder: str | None = None  # where training saved it (or URI)
    cut: int | None = None  # conditional vectors have only their first so many dimensions

    @classmethod
    def read(cls, folder: str, values: dict[str, Any]) -> Self:
        """The system that training saved into a folder (or URI); `values` is its `raycase.json`."""
        choices = {n: v for n, v in values.items() if n != "system"}
        encoder = read_spec(values["encoder"]).at(folder)
        return from_json(cls, choices | {"name": folder, "encoder": encoder.as_json(), "folder": folder})

    def write(self, folder: Path) -> None:
        """Write `raycase.json`, which `read` reads: the last file of a model folder."""
        values = {"system": self.SYSTEM, "encoder": self.encoder.as_json(), **self.choices}
        locate(str(folder / MODEL_FILE)).put_json(values)

    @property
    def choices(self) -> dict[str, Any]:
        """The fields that only this system has."""
        return {name: value for name, value in asdict(self).items() if name not in NOT_SAVED}

    @abstractmethod
    def prepare_pairs(
        self, firsts: Sequence[str], seconds: Sequence[str], conditions: Sequence[str] | None
    ) -> Prepared:
        """Tokenise pairs of sentences, each distinct text or pair once. Loads no weights."""

    @property
    def label(self) -> str:
        """Short description for people."""
        return " ".join([self.SYSTEM, *(f"{name} {value}" for name, value in self.choices.items())])

    @property
    def teachings(self) -> dict[str, str]:
        """The conditions that it knows as they were taught, by their words, as JSON holds them."""
        return {}

    def knowing(self, *taught: Taught) -> Self:
        """The system that knows these conditions, too. Raises RequestError where they were taught to another one."""
        if taught:
            raise RequestError(f"expected a model of condition pooling for a taught condition, got {self.name}")
        return self

    @property
    def formula(self) -> str:
        """What it computes, in the paper's notation."""
        return self.FORMULA

    @property
    def text_of_pair(self) -> str | None:
        """The pattern of the text whose vector in sentence-transformers is that of a pair; None where there is none."""
        return None

    @property
    def fixed(self) -> dict[str, Any]:
        """Prompt, pooling and subtraction; a flag that contradicts them is refused."""
        return {"prompt": None, "pooling": self.encoder.pooling[0], "subtract": False}

    @cached_property
    def hidden_dim(self) -> int:
        """Dimension of the states of the encoder's layers."""
        return int(load_config(self.encoder.source).hidden_size)

    @property
    def unconditional_dim(self) -> int:
        """Dimension of f(s)."""
        return self.encoder.published.dim if self.encoder.published else self.hidden_dim

    @property
    def whole_dim(self) -> int:
        """Dimension of conditional vectors before the cut."""
        return self.unconditional_dim

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return self.cut or self.whole_dim

    @property
    def nested(self) -> tuple[int, ...]:
        """Dimensions to which the vectors may be cut."""
        return ()

    @property
    def local(self) -> Path | None:
        """The model folder on this machine, without the encoder's large files; fetched if it is on object storage."""
        return None if self.folder is None else fetch(self.folder, named=self.WEIGHTS)

    def describe(self) -> dict[str, Any]:
        """Everything that determines the output, `weights` by hash or revision. Equal descriptions, equal output."""
        file = self.local and self.local / self.WEIGHTS
        own_weights = f"sha256:{sha256_of_file(file)}" if file and file.is_file() else None
        description = {
            "system": self.SYSTEM,
            "encoder": described(self.encoder),
            "weights": weights_identity(self.encoder.source),
            "dim": self.whole_dim,
            **self.described_choices(own_weights),
        }
        return description | ({"cut": self.cut} if self.cut else {})

    def described_choices(self, own_weights: str | None) -> dict[str, Any]:
        """The part of the description that only this system has; own_weights: those beside the encoder's, by hash."""
        choices = {name: value for name, value in self.choices.items() if value is not None}
        return choices | ({"extra": own_weights} if own_weights else {})

    def load(self, **options: Any) -> Any:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""
        return self.LOADED(self, load_encoder(self.encoder, **options))

    def load_extra(self, module: nn.Module) -> None:
        """Load the weights beside the encoder's; does nothing before training."""
        if self.local is not None:
            # an encoder among them may have a word that is not finite: rows with it are rejected
            load_weights(module, self.local / self.WEIGHTS, "the weights beside the encoder's", finite=False)

    def trainable(self, dropout: float | None = None, compute: torch.dtype = torch.float32) -> Any:
        """The system with weights to train, in 32 bits, frozen ones in `compute`; dropout: None is the encoder's."""
        return with_dropout(self.load(**training_options()), dropout)

    @abstractmethod
    def rated(self, rated: RatedPairs) -> Any:
        """Rated pairs, tokenised for training."""


@dataclass(frozen=True, kw_only=True)
class EmbedderConfig(SystemConfig):
    """A system that embeds, without its weights."""

    @property
    def views_apart(self) -> Sequence[EmbedderConfig]:
        """A system for each view; their vectors side by side are what this system computes before its projector."""
        return [self]

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise each distinct pair, sentence or condition; here sentence and condition apart. Loads no weights."""
        return prepare(self.encoder, sentences, conditions, of_sentences=[SENTENCE], of_conditions=[CONDITION])

    def prepare_pairs(
        self, firsts: Sequence[str], seconds: Sequence[str], conditions: Sequence[str] | None
    ) -> Prepared:
        return self.prepare([*firsts, *seconds], None if conditions is None else [*conditions, *conditions])

    def pair_figures(self, vectors: np.ndarray) -> np.ndarray:
        """The figures of N pairs by the vectors of what `prepare_pairs` gave, (P N, D): (N, K). Here the cosine."""
        return cosines(*np.split(vectors, 2))[:, None]

    def rated(self, rated: RatedPairs) -> RatedTexts:
        sentences, conditions = zip(*rated.distinct, strict=True)
        under = conditions if any(conditions) else None
        prepared = self.prepare(sentences, under)
        check_accepted(prepared.refused, sentences, conditions=under, source=rated.uri)
        return RatedTexts(prepared=prepared, pair_index=rated.pair_index)


@dataclass(frozen=True, kw_only=True)
class PromptEncoderConfig(EmbedderConfig):
    """A bi-encoder: f of sentence and condition as one text, by one prompt."""

    SYSTEM = "bi-encoder"
    LOADED = PromptEncoder

    @property
    def fixed(self) -> dict[str, Any]:
        return self.encoder.chosen | {"subtract": False}

    @property
    def text_of_pair(self) -> str | None:
        [prompts] = prompt_sets(self.encoder)
        template = SENTENCE if self.known_conditions == () else prompts.pair
        _, _, behind = template.pattern.partition("{sentence}")
        whole = template.span is TokenSpan.ALL and not behind  # it would be cut off with the end of a long sentence
        return template.pattern if whole and read_elsewhere(self.encoder) else None

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        check_conditions(self, conditions)
        [prompts] = prompt_sets(self.encoder)
        template = SENTENCE if conditions is None else prompts.pair
        return prepare(self.encoder, sentences, conditions, of_pairs=[template])


@dataclass(frozen=True, kw_only=True)
class SentenceEncoderConfig(PromptEncoderConfig):
    """f(s): the sentence alone."""

    SYSTEM = "sentence-encoder"
    FORMULA = "f(s)"
    known_conditions = ()


def sentence_encoder(model: str, *, pooling: Pooling | None = None) -> SentenceEncoderConfig:
    """The system that training starts from."""
    spec = starting_encoder(model, prompt="concat-cs:all", pooling=pooling)
    return SentenceEncoderConfig(name=model, encoder=spec)


@dataclass(frozen=True, kw_only=True)
class ScorerConfig(SystemConfig):
    """A fine-tuned system that scores pairs of sentences (`Scorer`), each read as one sequence; it does not embed."""

    def load(self, **options: Any) -> Scorer:
        scorer: Scorer = super().load(**options)
        self.load_extra(scorer.head)
        return scorer

    def tokenize_pairs(
        self, sentences1: Sequence[str], sentences2: Sequence[str], conditions: Sequence[str] | None = None
    ) -> TokenBatch:
        """Each pair as one sequence, behind it its condition; long sentences are cut."""
        rows = list(zip(sentences1, sentences2, conditions or (), strict=True))
        return separated(load_tokenizer(self.encoder), rows, shortened=2)

    def prepare_pairs(
        self, firsts: Sequence[str], seconds: Sequence[str], conditions: Sequence[str] | None
    ) -> Prepared:
        def tokens(pairs: list[Any]) -> TokenBatch:
            under = None if conditions is None else [condition for _, condition in pairs]
            return self.tokenize_pairs([first for (first, _), _ in pairs], [second for (_, second), _ in pairs], under)

        both: Any = [*zip(firsts, seconds, strict=True)]
        return prepare(self.encoder, both, conditions, tokens=tokens)

    def rated(self, rated: RatedPairs) -> TokenBatch:
        batch = self.tokenize_pairs(rated.sentences1, rated.sentences2, rated.conditions)
        sentences = rated.sentences1, rated.sentences2
        check_accepted(batch.reasons, *sentences, conditions=rated.conditions, source=rated.uri)
        return batch


def check_conditions(config: SystemConfig, conditions: Sequence[str] | None) -> None:
    """Raise RequestError for a condition that the system does not know, and for None where it requires one."""
    known = config.known_conditions
    if known is None:
        return
    unknown = [c for c in conditions or () if c not in known]
    if unknown or (conditions is None) == bool(known):
        got = "none" if conditions is None else repr(unknown[0][:80]) if unknown else "some"
        raise RequestError(f"--conditions: expected {' or '.join(known) or 'none'} for {config.name}, got {got}")


def check_room(config: EmbedderConfig, conditions: Sequence[str], flag: str) -> None:
    """Refuse a condition without words or too long for a sentence beside it, and two that the system reads alike."""
    with encoder_errors(f"a tokenizer that reads any text at {config.name}"):
        prepared = config.prepare(["a"] * len(conditions), conditions)
    for condition, reason in zip(conditions, prepared.refused, strict=True):
        if reason is not None:
            raise RequestError(
                f"{flag}: expected words that {config.name} can read, with room for a sentence beside them and the "
                f"prompt, got {condition[:80]!r}: {reason}"
            )
    tokenize = load_tokenizer(config.encoder)
    check_known(config, conditions, map(tokenize.is_unknown, tokenize.parts(conditions)), flag)
    check_alike(prepared, conditions, flag)


def check_known(config: EmbedderConfig, texts: Sequence[str], unknown: Iterable[bool], flag: str) -> None:
    """Refuse a text of which the encoder knows no token: whatever it is, its vector is the same."""
    for text in compress(texts, unknown):
        got = visible(repr(text), MOST_LABEL)
        raise RequestError(f"{flag}: expected words, of which {config.name} knows a token, got {got}")


def check_alike(prepared: Prepared, texts: Sequence[str], flag: str) -> None:
    """Refuse two texts, one of each pair, that make equal tokens, such as "Beach" and "beach" of an uncased encoder."""
    first_of: dict[tuple[bytes, ...], str] = {}
    for text, pair in zip(texts, prepared.rows.tolist(), strict=True):
        prompts = [(batch.sequences, at) for batch, at in prepared.prompts(pair)]
        tokens = tuple(of.flat[of.offsets[at] : of.offsets[at + 1]].tobytes() for of, at in prompts)
        if (first := first_of.setdefault(tokens, text)) != text:
            got = " and ".join(visible(repr(each), MOST_LABEL) for each in (first, text))
            raise RequestError(f"{flag}: expected texts that the model reads differently, got {got}")


def score_pairs(system: Embedder | Scorer, prepared: Prepared) -> Encoded:
    """The figures of N pairs that `prepare_pairs` tokenised, as `vectors`: (N, K) float64, NaN where refused."""
    figures_NK: np.ndarray
    if isinstance(system, Embedder):
        encoded = system.encode_prepared(prepared)
        with np.errstate(invalid="ignore", over="ignore"):  # what is not finite is rejected
            figures_NK = system.config.pair_figures(encoded.vectors)
        work = encoded.work
    else:
        batch = prepared.of_pairs[0]
        accepted = np.flatnonzero(batch.refused < 0)
        figures_MK = np.full((len(batch), len(system.config.figure_names)), np.nan)
        figures_MK[accepted], work = system.figures(batch.take(accepted))
        figures_NK = figures_MK[prepared.rows]
    rows_PN: np.ndarray = prepared.rows.reshape(-1, len(figures_NK)) if len(figures_NK) else np.empty((1, 0), np.int64)
    reasons, pairs = prepared.reasons, rows_PN.T.tolist()
    return Encoded(
        vectors=figures_NK,
        refused=[next((reasons[row] for row in rows if reasons[row]), None) for rows in pairs],
        truncated=prepared.truncated[rows_PN].any(axis=0),
        work=work,
        distinct=len(set(map(tuple, pairs))),
    )
