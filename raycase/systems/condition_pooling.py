"""Condition pooling, our own: each sentence is encoded once, and a condition weighs its words.

Claim: S sentences under C conditions take S + C passes of the encoder, since sentence and condition meet only in a head
above it (`raycase.systems.condition_head`). Without training, a word's weight is its similarity to the condition.

Shapes: N pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from raycase.data.fetch import MODEL_FILE, local_folder
from raycase.data.json_values import from_json
from raycase.data.storage import locate, sha256_of_file
from raycase.encoder.loading import load_encoder, save_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prepared import Prepared
from raycase.encoder.prompts import Template, TokenSpan
from raycase.encoder.sources import described, load_config, weights_identity
from raycase.encoder.table import HERE, EncoderSpec, read_spec
from raycase.encoder.token_states import layer_numbers
from raycase.errors import RequestError
from raycase.systems.condition_head import WEIGHTS, ConditionHead, Head, HeadConfig, ZeroShotHead, load_head, save_head
from raycase.systems.condition_pooling_model import ConditionPooling
from raycase.systems.fine_tuned_config import starting_encoder
from raycase.systems.model_folder import write_folder
from raycase.systems.pairs import CONDITION, SENTENCE, count_tokens, prepare

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SYSTEM = "condition-pooling"
PREFIX = f"{SYSTEM}:"  # before the name of an encoder: condition pooling without training
ZERO_SHOT_DEPTHS = (1.0,)


@dataclass(frozen=True, kw_only=True)
class ConditionPoolingConfig:
    """Condition pooling without its weights.

    layers: fractions of the encoder's depth; head: None without training; cut: only the first so many dimensions, one
    of the head's nested ones; whole_condition: e is the mean over all tokens of the condition's prompt, special ones
    included, as some folders of earlier versions have it; keep: instead of vectors under conditions, keep the states of
    these tokens of each text, for training; basis: instead of them, keep stored words by the basis in this file (URI;
    `raycase.systems.word_codes`).
    """

    model: str
    encoder: EncoderSpec
    layers: tuple[float, ...] = ZERO_SHOT_DEPTHS
    head: HeadConfig | None = None
    cut: int | None = None
    whole_condition: bool = False
    folder: str | None = None  # or URI
    keep: TokenSpan | None = None
    basis: str | None = None
    SYSTEM: ClassVar[str] = SYSTEM
    known_conditions: ClassVar[None] = None  # any

    @cached_property
    def hidden_dim(self) -> int:
        """Dimension of a layer's states."""
        return int(load_config(self.encoder.source).hidden_size)

    @property
    def plain_dim(self) -> int:
        """Dimension of f(s)."""
        return self.encoder.vector_dim or self.hidden_dim

    @property
    def states_dim(self) -> int:
        """Numbers of each token's state: the chosen layers side by side."""
        return self.hidden_dim * len(self.layers)

    @property
    def whole_dim(self) -> int:
        """Dimension of conditional vectors before the cut."""
        return self.head.output_dim if self.head else self.hidden_dim

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return self.cut or self.whole_dim

    @property
    def nested(self) -> tuple[int, ...]:
        """Dimensions to which the vectors may be cut."""
        return self.head.nested if self.head else ()

    @property
    def local(self) -> Path | None:
        """The model folder on this machine; fetched if it is on object storage."""
        return local_folder(self.folder, WEIGHTS)

    @property
    def views_apart(self) -> list[ConditionPoolingConfig]:
        """Itself: it has one view."""
        return [self]

    @property
    def formula(self) -> str:
        """The vectors, as a formula."""
        if self.head is None:
            return "sum_t w_t(c) h_t"
        share = ", with a share of f(s) where s is unfamiliar" if self.head.plain_dim else ""
        return f"gate(c) * sum_t w_t(c) V h_t{share}"

    @property
    def fixed(self) -> dict[str, Any]:
        """Choices that no flag may contradict."""
        return {"prompt": None, "pooling": self.encoder.pooling[0], "subtract": False}

    @property
    def label(self) -> str:
        """For display."""
        head = f"{self.head.heads} heads of {self.head.head_dim}" if self.head else "without training"
        return f"{SYSTEM} {head}, layers {' '.join(f'{depth:g}' for depth in self.layers)}"

    def describe(self) -> dict[str, Any]:
        """Everything that determines the vectors, weights by hash or revision. Equal descriptions, equal vectors."""
        description: dict[str, Any] = {
            "system": SYSTEM,
            "encoder": described(self.encoder),
            "weights": weights_identity(self.encoder.source, self.encoder.adapter),
            "layers": layer_numbers(self.encoder, self.layers),
            "whole_condition": self.whole_condition,
            "dim": self.whole_dim,
        }
        if self.head and self.local:
            if not (self.local / WEIGHTS).is_file():
                raise RequestError(f"--model: expected {WEIGHTS} in {self.folder}, got none; train it again")
            weights = f"sha256:{sha256_of_file(self.local / WEIGHTS)}"
            description["head"] = self.head.as_described() | {"weights": weights}
        given = {"cut": self.cut, "keep": self.keep and str(self.keep)}
        return description | {name: value for name, value in given.items() if value}

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise each distinct sentence and each distinct condition. Loads only the tokenizer.

        Raises ValueError for lists of different length.
        """
        sentence, condition = self._templates
        text = replace(sentence, span=self.keep or TokenSpan.SENTENCE)
        asked = replace(condition, span=TokenSpan.ALL if self.whole_condition else TokenSpan.CONDITION)
        return prepare(self.encoder, sentences, conditions, alone=[sentence, text], bases=[asked])

    def count_tokens(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> np.ndarray:
        """Tokens of each pair's texts: (N,) int64; 0 for a refused pair."""
        sentence, condition = self._templates
        return count_tokens(self.encoder, sentences, conditions, [sentence, *([condition] if conditions else [])])

    @property
    def _templates(self) -> tuple[Template, Template]:
        """A sentence alone and a condition alone, behind the prompt that was saved with the encoder, if any."""
        prompt = self.encoder.published.prompt if self.encoder.published else ""
        sentence, condition = (replace(alone, pattern=prompt + alone.pattern) for alone in (SENTENCE, CONDITION))
        return sentence, condition

    def load(self, **options: Any) -> ConditionPooling:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""
        encoder = load_encoder(self.encoder, **options)
        head: Head = ZeroShotHead(self.hidden_dim)
        if self.head is not None:
            assert self.local is not None
            head = load_head(self.head, self.local)
        return ConditionPooling(config=self, encoder=encoder, head=head.to(encoder.model.device).eval())


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


def resolve_folder(folder: str, values: dict[str, Any]) -> ConditionPoolingConfig:
    """The system that `write_model_folder` wrote into `folder` (or URI); `values` is its `raycase.json`."""
    encoder = read_spec(values["encoder"]).at(folder)
    saved = {name: values[name] for name in ("layers", "whole_condition", "head")}
    config = from_json(ConditionPoolingConfig, saved, model=folder, encoder=encoder, folder=folder)
    if config.head is None:
        raise ValueError("head: expected its shape, got null")
    layer_numbers(encoder, config.layers)
    if config.head.states_dim != config.states_dim:
        raise RequestError(
            f"{folder}: expected a head for the {config.states_dim} numbers of {config.encoder.source}, got one for "
            f"{config.head.states_dim}"
        )
    return config


def write_model_folder(
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
        locate(str(folder / "encoder")).remove()
        if encoder is not None:
            save_encoder(encoder, spec, folder / "encoder")
            spec = replace(spec, source=f"{HERE}encoder", adapter=None)
        values = {
            "system": SYSTEM,
            "encoder": spec.as_json(),
            "layers": list(config.layers),
            "whole_condition": config.whole_condition,
            "head": asdict(head.config),
        }
        locate(str(folder / MODEL_FILE)).put_json(values)

    folder.mkdir(parents=True, exist_ok=True)
    write_folder(folder, metrics, card, save)
