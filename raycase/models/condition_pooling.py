"""Condition pooling, our own: each sentence is encoded once, and a condition weighs its words.

Claim: S sentences under C conditions take S + C passes of the encoder, since sentence and condition meet only in a head
above it (`raycase.heads.condition_head`). Without training, a word's weight is its similarity to the condition.

Shapes: N pairs, S sentences, C conditions of each, K pairs, W of the states, D vectors.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F

from raycase.encoder.chunks import Characters, in_context
from raycase.encoder.engine import Collector, TextEncoder, send
from raycase.encoder.loading import load_encoder
from raycase.encoder.pooling import Pooling, pool_mean
from raycase.encoder.prompts import Template, TokenSpan
from raycase.encoder.token_batch import Prepared, TokenBatch, Work
from raycase.errors import RequestError, checks_types, normal_words
from raycase.heads.condition_head import (
    WEIGHTS,
    ConditionHead,
    ConditionQueries,
    Head,
    HeadConfig,
    KeysValues,
    ZeroShotHead,
)
from raycase.heads.flat_tokens import FlatTokens
from raycase.heads.projector import load_weights
from raycase.models.configs import EmbedderConfig, check_room
from raycase.models.embedder import Embedder, Texts, as_texts, each_condition
from raycase.models.fine_tuned import starting_encoder
from raycase.models.pairs import ConditionCache, Encoded, accepted_pairs, check_accepted, encoded, prepare
from raycase.models.taught import Taught, model_hash
from raycase.models.teaching import Lesson, distinct, stated_labels
from raycase.tokens.basis import TokenBasis, typical_conditions
from raycase.tokens.states import StateReader, TokenStates, layer_numbers
from raycase.tokens.stored import StoredStates, StoredTokens

ZERO_SHOT_DEPTHS = (1.0,)
TOKENS_AT_ONCE, CONDITIONS_AT_ONCE = 2**16, 64  # of a batch, and of each of its sentences; both bound the memory


@dataclass(frozen=True, kw_only=True)
class ConditionPoolingConfig(EmbedderConfig):
    """Condition pooling without its weights. layers: fractions of the encoder's depth; head: None without training;
    taught: conditions whose states are known, each once."""

    SYSTEM: ClassVar[str] = "condition-pooling"
    WEIGHTS: ClassVar[str] = WEIGHTS
    weighs_words: ClassVar[bool] = True

    layers: tuple[float, ...] = ZERO_SHOT_DEPTHS
    head: HeadConfig | None = None
    taught: tuple[Taught, ...] = ()

    @property
    def teachings(self) -> dict[str, str]:
        return {each.condition: each.to_text() for each in self.taught}

    @cached_property
    def identity(self) -> str:
        """Hash of the model, which what was taught to it has."""
        return model_hash(self.describe())

    def knowing(self, *taught: Taught) -> Self:
        for each in taught:
            each.check(self.name, self.identity, self.states_dim)
        known = {each.condition: each for each in (*self.taught, *taught)}
        return replace(self, taught=tuple(known.values())) if taught else self

    @classmethod
    def untrained(
        cls, model: str, pooling: Pooling | None = None, layers: Sequence[float] = ZERO_SHOT_DEPTHS
    ) -> ConditionPoolingConfig:
        """Without training, on an encoder of the table or a local folder."""
        spec = starting_encoder(model, pooling=pooling, latent=True, prompted=False)
        layer_numbers(spec, layers)
        return cls(name=model, encoder=spec, layers=tuple(layers))

    @property
    def whole_dim(self) -> int:
        return self.head.output_dim if self.head else self.hidden_dim

    @property
    def nested(self) -> tuple[int, ...]:
        return self.head.nested if self.head else ()

    @property
    def states_dim(self) -> int:
        """Numbers of each token's state: the chosen layers side by side."""
        return self.hidden_dim * len(self.layers)

    @property
    def formula(self) -> str:
        if self.head is None:
            return "sum_t w_t(c) h_t"
        share = ", with a share of f(s) where s is unfamiliar" if self.head.unconditional_dim else ""
        return f"gate(c) * sum_t w_t(c) V h_t{share}"

    @property
    def label(self) -> str:
        head = f"{self.head.heads} heads of {self.head.head_dim}" if self.head else "without training"
        return f"{self.SYSTEM} {head}, layers {' '.join(f'{depth:g}' for depth in self.layers)}"

    @classmethod
    def read(cls, folder: str, values: dict[str, Any]) -> Self:
        head = values["head"]
        return super().read(folder, values | {"head": head and HeadConfig.of_json(head)})

    @property
    def choices(self) -> dict[str, Any]:
        return {"layers": self.layers, "head": self.head and self.head.as_json()}

    def described_choices(self, own_weights: str | None) -> dict[str, Any]:
        choices: dict[str, Any] = {"layers": layer_numbers(self.encoder, self.layers)}
        if self.head and own_weights:
            choices["head"] = self.head.as_json() | {"weights": own_weights}
        return choices

    def prepare(self, sentences: Sequence[str], conditions: Sequence[str] | None) -> Prepared:
        own = [self._alone("{sentence}", span) for span in (TokenSpan.ALL, TokenSpan.SENTENCE)]
        asked = self._alone("{condition}", TokenSpan.CONDITION)
        return prepare(self.encoder, sentences, conditions, of_sentences=own, of_conditions=[asked])

    def in_context(self, prepared: Prepared, documents: Iterable[tuple[str, Sequence[Characters]]]) -> Prepared:
        """`prepared`, whose sentences are the chunks of documents, each by itself, for late chunking."""
        sentence = self._alone("{sentence}", TokenSpan.ALL)
        return replace(prepared, of_sentences=[in_context(self.encoder, sentence, documents, prepared.of_sentences[0])])

    def _alone(self, text: str, span: TokenSpan) -> Template:
        """A text alone, behind the prompt that was saved with the encoder, if any."""
        return Template(pattern=f"{self.encoder.published.prompt if self.encoder.published else ''}{text}", span=span)

    def load(self, **options: Any) -> ConditionPooling:
        for each in self.taught:
            each.check(self.name, self.identity, self.states_dim)
        encoder = load_encoder(self.encoder, **options)
        head: Head = ZeroShotHead(self.hidden_dim)
        if self.head is not None:
            assert self.local is not None
            head = ConditionHead(self.head, loaded=True)
            load_weights(head, self.local / WEIGHTS, f"weights of {self.head}")
        return ConditionPooling(config=self, encoder=encoder, head=head.to(encoder.model.device).eval())


class ConditionPooling(Embedder):
    """Loaded condition pooling: (sentence, condition) -> vector."""

    def __init__(self, *, config: ConditionPoolingConfig, encoder: TextEncoder, head: Head) -> None:
        encoder.batch_tokens = min(encoder.batch_tokens, TOKENS_AT_ONCE)
        self.config = config
        self.encoder = encoder
        self.head = head
        self.stated_head = head.stated
        self.reader = StateReader(encoder, layer_numbers(config.encoder, config.layers))
        taught = {each.condition: each.numbers for each in config.taught}
        self.memory = ConditionCache(config.states_dim, taught=taught)

    def with_taught(self, *taught: Taught, only: bool = False) -> Self:
        config = (replace(self.config, taught=()) if only else self.config).knowing(*taught)
        with self.lock:
            view: Self = object.__new__(type(self))
            view.__dict__.update(self.__dict__)  # with the lock: the encoder is the same
        view.config = config
        view.memory = replace(self.memory, taught={each.condition: each.numbers for each in config.taught})
        return view

    @checks_types
    def teach(self, texts: Texts, labels: Iterable[str | None], condition: str) -> Taught:
        """The condition after some labelled texts: of one label their vectors are near each other, of others apart.

        Args:
            texts: N texts that were answered; a few dozen help, 150 help more.
            labels: what each states of the condition; None: nothing, it is left out.
            condition: in words, such as "reason for the complaint".

        Returns:
            A condition for `encode`, `with_taught` and the files of `Taught.save`; where cross-validation shows no
            gain, with the state of its words alone, and `gained` is False.

        Raises:
            ValueError: for fewer than two labels with two texts each, and for a text that cannot be encoded.

        Examples:
            >>> texts = ["A red dress", "A dark red coat", "A blue dress", "Light blue jeans"]
            >>> taught = raycase.load().teach(texts, ["red", "red", "blue", "blue"], "color of the clothes")
            >>> raycase.load().encode(["A pink skirt"], condition=taught).shape
            (1, 512)
        """
        each, given = as_texts(texts, "texts"), [labels] if isinstance(labels, str) else [*labels]
        if len(each) != len(given):
            raise RequestError(f"labels: expected one for each of {len(each)} texts, got {len(given)}")
        rows = stated_labels(given)[0]
        tokens, unconditional_NP = self.lesson([each[row] for row in rows])
        return self.teach_tokens(tokens, unconditional_NP, [given[row] for row in rows], condition)

    def teach_tokens(
        self, tokens: FlatTokens, unconditional_NP: torch.Tensor, labels: Sequence[str | None], condition: str
    ) -> Taught:
        """`teach` by what the head keeps of the texts, and f(s) of each."""
        [condition], device = each_condition(condition, ["a"]), tokens.values.device
        rows, numbers = stated_labels(labels)
        check_room(self.config, [condition], "condition")
        if not all(part.isfinite().all() for part in (tokens.keys, tokens.values, unconditional_NP)):
            raise RequestError(f"texts: expected texts whose states by {self.config.name} are finite, got others")
        rows = rows[distinct(unconditional_NP[rows], numbers)]
        numbers = stated_labels([labels[row] for row in rows])[1]
        with self.lock:
            states_CW = torch.from_numpy(self._states([condition, *typical_conditions()], {})).to(device)
        spread_W = states_CW[1:].std(0, correction=0)
        lesson = Lesson(
            head=copy.deepcopy(self.head).to(device),  # stored tokens are in the processor's memory
            tokens=replace(tokens, values=tokens.values[:, : self.dim]).take(rows),
            unconditional=unconditional_NP[rows],
            label=torch.from_numpy(numbers).to(device),
        )
        taught_W, gained, figures = lesson.taught(states_CW[0], spread_W)
        return Taught(
            condition=condition,
            state=taught_W.cpu().numpy().astype("<f4").tobytes(),
            model=self.config.identity,
            name=self.config.name,
            answers=len(rows),
            gained=gained,
            figures=figures,
        )

    @torch.inference_mode()
    def lesson(self, texts: Sequence[str]) -> tuple[FlatTokens, torch.Tensor]:
        """What the head keeps of texts, and f(s) of each: (N, P)."""
        prepared = self.config.prepare(texts, None)
        check_accepted(prepared.refused, texts)
        rows: list[np.ndarray] = []
        found: list[tuple[FlatTokens, torch.Tensor]] = []

        def keep(batch: np.ndarray, states: TokenStates) -> None:
            tokens = self.head.read(states.states, states.real, states.unconditional)
            found.append((FlatTokens.of(tokens), states.unconditional))
            rows.append(batch)

        self.reader.read(prepared.of_sentences[0], keep)
        tokens, unconditional = zip(*found, strict=True)
        order_N = np.argsort(np.concatenate(rows), kind="stable")[prepared.sentence[prepared.rows]]
        at = torch.from_numpy(order_N).to(unconditional[0].device)
        with torch.inference_mode(False):  # which what is fitted can't read
            return FlatTokens.joined(tokens).take(order_N), torch.cat(unconditional)[at]

    def encode_prepared(self, prepared: Prepared) -> Encoded:
        pair_index = accepted_pairs(prepared)
        if prepared.conditions is None:
            texts = prepared.of_sentences[0].take(prepared.sentence[pair_index])
            texts = replace(texts, start=texts.start[:, :1], end=texts.end[:, :1])
            return encoded(prepared, pair_index, *self.encoder.encode(texts))
        empty_0D = torch.empty(0, self.dim, dtype=self.encoder.output_dtype, device=self.encoder.model.device)

        def pool(tokens: KeysValues, questions: ConditionQueries) -> torch.Tensor:
            return self.rounded(self.head.pool(tokens, questions)[..., : self.dim])

        return encoded(prepared, pair_index, *self._of_pairs(prepared, pair_index, pool, empty_0D))

    def _of_pairs(
        self,
        prepared: Prepared,
        pair_index: np.ndarray,
        compute: Callable[[KeysValues, ConditionQueries], torch.Tensor],
        like: torch.Tensor,
    ) -> tuple[np.ndarray, Work]:
        """What the head computes of these pairs, (K, X) as `like`, (0, X), and the work; each text is encoded once.

        compute: from what the head keeps of B sentences and of C conditions of each, (B, C, X).
        """
        states_CW, condition_K, work = self.memory.of(prepared, pair_index, self._mean_states)
        device = self.encoder.model.device
        with torch.inference_mode():
            questions = self.head.ask(torch.from_numpy(states_CW).to(device))
        sentences, sentence_K = np.unique(prepared.sentence[pair_index], return_inverse=True)
        order = np.argsort(sentence_K, stable=True)  # pairs by sentence
        first_S = np.searchsorted(sentence_K[order], np.arange(len(sentences) + 1))
        # with them, nothing is sent once the encoder has begun
        sent_first_S, sent_condition_K = send(device, first_S, condition_K[order])
        collector = Collector(len(pair_index), like=like)

        def meet(rows: np.ndarray, states: TokenStates) -> None:
            tokens = self.head.read(states.states, states.real, states.unconditional)
            most = int(np.diff(first_S)[rows].max(initial=0))
            for start in range(0, most, CONDITIONS_AT_ONCE):
                stop = min(most, start + CONDITIONS_AT_ONCE)
                place_BC = first_S[rows][:, None] + np.arange(start, stop)
                there_BC = place_BC < first_S[rows + 1][:, None]
                asked_BC = sent_first_S[states.index.long(), None] + torch.arange(start, stop, device=device)
                condition_BC = sent_condition_K[asked_BC.clamp(max=len(order) - 1)]  # of those not there, another's
                found_BCX = compute(tokens, questions.take(condition_BC.long()))
                pairs_BC = order[np.where(there_BC, place_BC, 0)]
                collector.add(pairs_BC.ravel(), found_BCX.flatten(0, 1), None if there_BC.all() else there_BC.ravel())

        work += self.reader.read(prepared.of_sentences[0].take(sentences), meet)
        return collector.result(), work

    def _mean_states(self, conditions: TokenBatch) -> tuple[np.ndarray, Work]:
        """e of conditions: (C, W); and the work."""
        empty_0W = torch.empty(0, self.config.states_dim, device=self.encoder.model.device)
        collector = Collector(len(conditions), like=empty_0W)
        work = self.reader.read(conditions, lambda rows, states: collector.add(rows, states.mean))
        return collector.result(), work

    def tokens(self, prepared: Prepared, codes: TokenBasis | None = None) -> Encoded:
        """f(s) of each pair, and as `kept` its sentence's tokens: coded, for `pool`, or the states, for training."""
        pair_index = accepted_pairs(prepared)
        vectors_KD = np.empty((len(pair_index), self.encoder.dim), dtype=np.float32)
        refused = np.setdiff1d(np.arange(len(prepared.sentence)), pair_index)
        width = self.config.states_dim
        none = [np.empty((0, width))] * len(refused)
        parts: list[Any] = [StoredTokens.empty(codes.form, len(none)) if codes else StoredStates.of(none, width)]
        texts = [refused]

        def keep(rows: np.ndarray, states: TokenStates) -> None:
            vectors_KD[rows] = states.unconditional.cpu().numpy()
            if codes is not None:
                parts.append(codes.code(self.head.read(states.states, states.real, states.unconditional)))
            else:
                each = zip(states.states.cpu().numpy(), states.real.cpu().numpy(), strict=True)
                parts.append(StoredStates.of([states_SW[real_S] for states_SW, real_S in each], width))
            texts.append(pair_index[rows])  # after all that may lack memory: then these texts come again

        work = self.reader.read(prepared.of_sentences[0].take(prepared.sentence[pair_index]), keep)
        order = np.argsort(np.concatenate(texts), stable=True)
        kept = type(parts[0]).concat(parts).take(order[prepared.rows])
        return replace(encoded(prepared, pair_index, vectors_KD, work), kept=kept)

    def pool(self, codes: TokenBasis, conditions: Sequence[str]) -> Callable[[StoredTokens], np.ndarray]:
        """What gives N texts' vectors under each of C conditions by their coded tokens: (N, C, D) float32."""
        from raycase.tokens.pooling import TokenPooler, unpack_tokens  # not needed to embed texts

        pooler = TokenPooler(codes, self.questions(conditions), self.head.temperatures.detach())

        def pooled(tokens: StoredTokens) -> np.ndarray:
            unpacked = unpack_tokens(tokens, codes)
            vectors_NCD = np.empty((len(unpacked.order), len(conditions), codes.form.dim), np.float32)
            vectors_NCD[unpacked.order] = pooler.pool(unpacked).numpy()
            return vectors_NCD

        return pooled

    @torch.inference_mode()
    def keys_values(self, sentences: Sequence[str]) -> list[KeysValues]:
        """What the head keeps of sentences, batch after batch, without those that have no finite numbers."""
        prepared, found = self.config.prepare(sentences, None), []
        texts = prepared.of_sentences[0].take(prepared.sentence[accepted_pairs(prepared)])

        def keep(_: np.ndarray, states: TokenStates) -> None:
            tokens = self.head.read(states.states, states.real, states.unconditional)
            finite_B = tokens.keys.isfinite().flatten(1).all(1) & tokens.values.isfinite().flatten(1).all(1)
            if finite_B.any():
                found.append(tokens.take(finite_B.nonzero()[:, 0]))

        self.reader.read(texts, keep)
        return found

    @torch.inference_mode()
    def questions(self, conditions: Sequence[str]) -> ConditionQueries:
        """What the head keeps of conditions."""
        states_CW = self._states(conditions, self.memory.taught)
        return self.head.ask(torch.from_numpy(states_CW).to(self.encoder.model.device))

    def _states(self, conditions: Sequence[str], taught: Mapping[str, np.ndarray]) -> np.ndarray:
        """e of conditions, of some as they were taught: (C, W)."""
        prepared = self.config.prepare(["a"] * len(conditions), conditions)
        check_accepted(prepared.refused, conditions, numbered=False)
        memory = replace(self.memory, taught=taught)
        states_CW, row_C, _ = memory.of(prepared, prepared.rows, self._mean_states)
        return states_CW[row_C]

    @checks_types
    def embed_phrases(self, phrases: Texts, condition: str) -> np.ndarray:
        """Vectors of phrases that are answers to a condition, such as "heavy rain" to "weather": (N, D) float32.

        All of a phrase's words weigh the same; the condition only gates its values. Raises ValueError for a text that
        cannot be encoded.
        """
        return self.phrase_vectors(as_texts(phrases, "phrases"), condition)[0]

    @torch.inference_mode()
    def phrase_vectors(self, phrases: Sequence[str], condition: str) -> tuple[np.ndarray, np.ndarray]:
        """`text_vectors` of phrases that are answers to a condition."""
        gate = self.questions([condition]).gate
        phrases = [*map(normal_words, phrases)]
        prepared = self.config.prepare(phrases, None)
        check_accepted(prepared.refused, phrases, numbered=False)
        vectors_PD = np.empty((len(prepared.sentence), self.dim), dtype=np.float32)

        def average(rows: np.ndarray, states: TokenStates) -> None:
            tokens = self.head.read(states.states, states.real, states.unconditional)
            vectors_PD[rows] = (pool_mean(tokens.values, tokens.real) * gate)[:, : self.dim].cpu().numpy()

        self.reader.read(prepared.of_sentences[0], average)
        self.say_cut(int(prepared.truncated[prepared.rows].sum()), len(phrases))
        return vectors_PD[prepared.rows], prepared.unknown

    @torch.inference_mode()
    def stated(self, texts: Texts, condition: Texts | Taught) -> np.ndarray:
        """The probability that each text states something of the condition, or of its own one: N -> (N,) float32.

        Raises ValueError for a text that cannot be encoded, and for a model that was not trained on labelled texts of
        which some state nothing.
        """
        if (head := self.stated_head) is None:
            raise ValueError(f"expected a model that knows when a text states nothing, got {self.config.name}")
        if isinstance(condition, Taught):
            return self.with_taught(condition).stated(texts, condition.condition)
        each = as_texts(texts, "texts")
        asked = each_condition(condition, each)
        prepared = self.config.prepare(each, asked)
        check_accepted(prepared.refused, each, conditions=asked)
        pair_index = accepted_pairs(prepared)
        found_M = np.empty(len(prepared.condition), np.float32)

        def odds(tokens: KeysValues, questions: ConditionQueries) -> torch.Tensor:
            return head(self.head.stated_features(tokens, questions)).sigmoid().float()[..., None]

        found_M[pair_index] = self._of_pairs(prepared, pair_index, odds, torch.empty(0, 1))[0][:, 0]
        return found_M[prepared.rows]

    def token_weights(self, prepared: Prepared) -> list[np.ndarray]:
        """w of each token."""
        pair_index, texts = accepted_pairs(prepared), prepared.of_sentences[0]
        count_M = (texts.end - texts.start)[prepared.sentence, -1]
        most = int(count_M.max(initial=0))

        def weigh(tokens: KeysValues, questions: ConditionQueries) -> torch.Tensor:
            weights_BCS = self.head.weights(tokens, questions).float()
            return F.pad(weights_BCS, (0, most - weights_BCS.shape[-1]))

        weights_KS, _ = self._of_pairs(prepared, pair_index, weigh, torch.empty(0, most))
        found = [np.empty(0, np.float32)] * len(prepared.condition)
        for pair, weights_S in zip(pair_index.tolist(), weights_KS, strict=True):
            found[pair] = weights_S[: count_M[pair]]
        return found
