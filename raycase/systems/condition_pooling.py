"""Condition pooling, our own: each sentence is encoded once, and a condition weighs its words.

Claim: S sentences under C conditions take S + C passes of the encoder, since sentence and condition meet only in a head
above it (`raycase.systems.condition_head`). Without training, a word's weight is its similarity to the condition.

Shapes: S sentences, C conditions, K pairs, W of the states, D vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

from raycase.data.fetch import MODEL_FILE, local_folder
from raycase.data.storage import locate, sha256_of_file
from raycase.data.stored_states import StoredStates
from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling
from raycase.encoder.prepared import Prepared
from raycase.encoder.prompts import PromptStyle, Span
from raycase.encoder.sources import described, load_config, weights_identity
from raycase.encoder.table import EncoderSpec, read_spec
from raycase.encoder.throughput import Work
from raycase.encoder.token_states import StateReader, TokenStates, layer_numbers
from raycase.errors import RequestError
from raycase.systems.condition_head import (
    WEIGHTS,
    ConditionHead,
    Head,
    HeadConfig,
    Questions,
    Words,
    ZeroShotHead,
    load_head,
    save_head,
)
from raycase.systems.fine_tuned_config import starting_encoder
from raycase.systems.model_folder import write_folder
from raycase.systems.pairs import (
    CONDITION,
    SENTENCE,
    Encoded,
    Memory,
    accepted_pairs,
    count_tokens,
    embed,
    encoded,
    prepare,
)
from raycase.systems.word_weights import WeighsWords

SYSTEM = "condition-pooling"
PREFIX = f"{SYSTEM}:"  # before the name of an encoder: condition pooling without training
TOKENS_AT_ONCE, CONDITIONS_AT_ONCE = 2**16, 64  # of a batch, and of each of its sentences; both bound the memory
ZERO_SHOT_DEPTHS = (1.0,)
Use = Callable[[np.ndarray, np.ndarray, Words, Questions], None]  # see `_meet`


@dataclass(frozen=True, kw_only=True)
class ConditionPoolingConfig:
    """Condition pooling without its weights.

    layers: fractions of the encoder's depth; head: None without training; cut: only the first so many dimensions, one
    of the head's nested ones; whole_condition: e is the mean over all tokens of the condition's prompt, special ones
    included; keep: instead of vectors under conditions, keep the states of these tokens of each text, for training.
    """

    model: str
    encoder: EncoderSpec
    layers: tuple[float, ...] = ZERO_SHOT_DEPTHS
    head: HeadConfig | None = None
    cut: int | None = None
    whole_condition: bool = False
    folder: str | None = None  # or URI
    keep: Span | None = None
    known_conditions: ClassVar[None] = None  # any

    @cached_property
    def plain_dim(self) -> int:
        """Dimension of f(s)."""
        return int(load_config(self.encoder.source).hidden_size)

    @property
    def states_dim(self) -> int:
        """Numbers of each token's state: the chosen layers side by side."""
        return self.plain_dim * len(self.layers)

    @property
    def whole_dim(self) -> int:
        """Dimension of conditional vectors before the cut."""
        return self.head.output_dim if self.head else self.plain_dim

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
        return "gate(c) * sum_t w_t(c) V h_t" if self.head else "sum_t w_t(c) h_t"

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
            description["head"] = asdict(self.head) | {"weights": weights}
        given = {"cut": self.cut, "keep": self.keep and str(self.keep)}
        return description | {name: value for name, value in given.items() if value}

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        """Tokenise each distinct sentence and each distinct condition. Loads only the tokenizer.

        Raises ValueError for lists of different length.
        """
        text = replace(SENTENCE, span=self.keep or Span.SENTENCE)
        condition = replace(CONDITION, span=Span.ALL if self.whole_condition else Span.CONDITION)
        return prepare(self.encoder, sentences, conditions, alone=[SENTENCE, text], bases=[condition])

    def count_tokens(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> np.ndarray:
        """Tokens of each pair's texts: (N,) int64; 0 for a refused pair."""
        return count_tokens(self.encoder, sentences, conditions, [SENTENCE, *([CONDITION] if conditions else [])])

    def load(self, **options: Any) -> ConditionPooling:
        """Load the weights; `options` are those of `raycase.encoder.loading.load_encoder`."""
        encoder = load_encoder(self.encoder, **options)
        head: Head = ZeroShotHead(self.plain_dim)
        if self.head is not None:
            assert self.local is not None
            trained = load_head(self.head, self.local)
            head = trained.cut(self.cut) if self.cut else trained
        return ConditionPooling(config=self, encoder=encoder, head=head.to(encoder.model.device).eval())


class ConditionPooling(WeighsWords):
    """Loaded condition pooling, an `Encoder`: (sentence, condition) -> vector."""

    def __init__(self, *, config: ConditionPoolingConfig, encoder: TextEncoder, head: Head) -> None:
        encoder.batch_tokens = min(encoder.batch_tokens, TOKENS_AT_ONCE)
        self.config = config
        self.encoder = encoder
        self.head = head
        self.reader = StateReader(encoder, layer_numbers(config.encoder, config.layers))
        self.memory = Memory(config.states_dim)

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return self.config.dim

    def embed(self, sentences: Sequence[str], conditions: Sequence[str] | str | None) -> np.ndarray:
        """Vector of each pair, or f(s) where `conditions` is None: N, N -> (N, dim) float32, not normalised.

        A single string is the condition of every sentence. Sentences above the encoder's length are truncated.
        Raises ValueError for lists of different length and for a pair that cannot be embedded.
        """
        return embed(self.config.prepare, self.encode_prepared, sentences, conditions)

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        """Vectors of tokenised pairs, counts, and the reason of each refused pair."""
        pair_index = accepted_pairs(prepared)
        if self.config.keep is not None:
            return self._keep_states(prepared, pair_index)
        if prepared.conditions is None:
            plain = prepared.alone[0].take(prepared.sentence[pair_index])
            vectors_KD, work = self.encoder.encode(replace(plain, start=plain.start[:, :1], end=plain.end[:, :1]))
        else:
            vectors_KD, work = self._pool(prepared, pair_index)
        return encoded(prepared, pair_index, vectors_KD, work)

    def _pool(self, prepared: Prepared, pair_index: np.ndarray) -> tuple[np.ndarray, Work]:
        """Vectors of these pairs, (K, D)."""
        vectors_KD = np.empty((len(pair_index), self.dim), dtype=np.float32)

        def pool(pairs_BC: np.ndarray, there_BC: np.ndarray, words: Words, questions: Questions) -> None:
            pooled_BCD = self.head.pool(words, questions).cpu().numpy()
            vectors_KD[pairs_BC[there_BC]] = pooled_BCD[there_BC]

        return vectors_KD, self._meet(prepared, pair_index, pool)

    def _meet(self, prepared: Prepared, pair_index: np.ndarray, use: Use) -> Work:
        """Call `use` with pairs of these, (B, C), which of them there are, and what the head keeps of both texts: each
        sentence and each new condition goes through the encoder once."""
        distinct, condition_K = np.unique(prepared.condition[pair_index], return_inverse=True)
        states_CW, work = self.memory.of(prepared, distinct, lambda new: self._mean_states(prepared, new))
        sentences, sentence_K = np.unique(prepared.sentence[pair_index], return_inverse=True)
        order = np.argsort(sentence_K, kind="stable")  # pairs by sentence
        first_S = np.searchsorted(sentence_K[order], np.arange(len(sentences) + 1))

        def meet(rows: np.ndarray, states: TokenStates) -> None:
            words = self.head.read(states.states, states.real)
            most = int(np.diff(first_S)[rows].max(initial=0))
            for start in range(0, most, CONDITIONS_AT_ONCE):
                place_BC = first_S[rows][:, None] + np.arange(start, min(most, start + CONDITIONS_AT_ONCE))
                there_BC = place_BC < first_S[rows + 1][:, None]
                pairs_BC = order[np.where(there_BC, place_BC, 0)]
                asked, condition_BC = np.unique(condition_K[pairs_BC], return_inverse=True)
                questions = self.head.ask(torch.from_numpy(states_CW[asked]).to(states.states.device))
                index_BC = torch.from_numpy(condition_BC.reshape(pairs_BC.shape)).to(states.states.device)
                use(pairs_BC, there_BC, words, questions.take(index_BC))

        return work + self.reader.read(prepared.alone[0].take(sentences), meet)

    def _mean_states(self, prepared: Prepared, conditions: np.ndarray) -> tuple[np.ndarray, Work]:
        """e of the conditions with these indices: (C, W)."""
        states_CW = np.empty((len(conditions), self.config.states_dim), dtype=np.float32)

        def mean(rows: np.ndarray, states: TokenStates) -> None:
            states_CW[rows] = states.mean.cpu().numpy()

        batch = prepared.bases[0].take(conditions)
        return states_CW, self.reader.read(batch, mean)

    def _keep_states(self, prepared: Prepared, pair_index: np.ndarray) -> Encoded:
        """f(s) and the states of each text."""
        vectors_KD = np.empty((len(pair_index), self.encoder.dim), dtype=np.float32)
        width = self.config.states_dim
        kept = [np.empty((0, width), np.float16)] * len(prepared.sentence)

        def keep(rows: np.ndarray, states: TokenStates) -> None:
            vectors_KD[rows] = states.plain.cpu().numpy()
            states_BSW, real_BS = states.states.cpu().numpy(), states.real.cpu().numpy()
            for row, states_SW, real_S in zip(rows.tolist(), states_BSW, real_BS, strict=True):
                kept[pair_index[row]] = StoredStates.of([states_SW[real_S]], width).flat

        batch = prepared.alone[0].take(prepared.sentence[pair_index])
        work = self.reader.read(batch, keep)
        result = encoded(prepared, pair_index, vectors_KD, work)
        return replace(result, states=StoredStates.of(kept, width).take(prepared.rows))

    def token_weights(self, prepared: Prepared) -> list[np.ndarray]:
        """The weight of each text token of each distinct pair: M of (T,); see `WeighsWords`."""
        pair_index = accepted_pairs(prepared)
        found = [np.empty(0, np.float32)] * len(prepared.condition)

        def weigh(pairs_BC: np.ndarray, there_BC: np.ndarray, words: Words, questions: Questions) -> None:
            weights_BCS = self.head.weights(words, questions).float().cpu().numpy()
            real_BS = words.real.cpu().numpy()
            for row, column in np.argwhere(there_BC).tolist():
                found[pair_index[pairs_BC[row, column]]] = weights_BCS[row, column, real_BS[row]]

        self._meet(prepared, pair_index, weigh)
        return found

    def compile(self) -> None:
        """Compile the encoder's layers."""
        self.encoder.compile()

    def matrix_product_rate(self) -> float:
        """FLOP/s of a plain matrix product on this device, in the encoder's type; measured at each call."""
        return self.encoder.matrix_product_rate()


def condition_pooling(
    model: str,
    *,
    layers: Sequence[float] = ZERO_SHOT_DEPTHS,
    pooling: Pooling | None = None,
    whole_condition: bool = False,
) -> ConditionPoolingConfig:
    """Condition pooling without training on an encoder of the table or a local folder. Raises RequestError."""
    spec = starting_encoder(model, prompt=PromptStyle.CONCAT_SC, pooling=pooling, latent=True)  # its prompt is not used
    layer_numbers(spec, layers)
    return ConditionPoolingConfig(model=model, encoder=spec, layers=tuple(layers), whole_condition=whole_condition)


def resolve_folder(folder: str, values: dict[str, Any]) -> ConditionPoolingConfig:
    """The system that `write_model_folder` wrote into `folder` (or URI); `values` is its `raycase.json`."""
    config = ConditionPoolingConfig(
        model=folder,
        encoder=read_spec(values["encoder"]).at(folder),
        layers=tuple(values["layers"]),
        whole_condition=values["whole_condition"],
        head=HeadConfig(**values["head"] | {"nested": tuple(values["head"]["nested"])}),
        folder=folder,
    )
    assert config.head is not None
    if config.head.states_dim != config.states_dim:
        raise RequestError(
            f"{folder}: expected a head for the {config.states_dim} numbers of {config.encoder.source}, got one for "
            f"{config.head.states_dim}"
        )
    return config


def write_model_folder(
    folder: Path, config: ConditionPoolingConfig, head: ConditionHead, metrics: dict[str, Any], card: str
) -> None:
    """Write the model folder of a trained head, its weights in float16."""

    def save(folder: Path) -> None:
        save_head(head, folder)
        values = {
            "system": SYSTEM,
            "encoder": asdict(config.encoder),
            "layers": list(config.layers),
            "whole_condition": config.whole_condition,
            "head": asdict(head.config),
        }
        locate(str(folder / MODEL_FILE)).put_json(values)

    folder.mkdir(parents=True, exist_ok=True)
    write_folder(folder, metrics, card, save)
