"""What loaded systems have: those that embed give vectors of pairs, of a grid, cosines, and some the weight of words.

Shapes: N pairs, M distinct pairs, C conditions, T tokens of a text, D dimensions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from io import IOBase
from typing import Any, Self
from warnings import warn

import numpy as np
import pyarrow as pa
import torch
from tqdm import tqdm

from raycase.encoder.engine import TextEncoder
from raycase.encoder.loading import compile_layers
from raycase.encoder.token_batch import Prepared
from raycase.errors import RequestError, checks_types, is_utf8, normal_words
from raycase.heads.condition_head import StatedHead
from raycase.io.locks import Shared, exclusive
from raycase.io.vectors import l2_normalize
from raycase.models.pairs import Encoded, Indexed, check_accepted
from raycase.models.taught import Taught
from raycase.tokens.words import Word, words_of

Texts = str | Iterable[str]  # one, or a list, a NumPy array, a pandas series or an Arrow array of them
SHOWN_AT_ONCE = 1024  # texts between two steps of the progress bar
# Methods that run the encoder: each of a loaded system's holds its lock, so that no system forgets one.
COMPUTE = {"encode_prepared", "figures", "token_weights", "questions", "phrase_vectors", "stated", "tokens", "lesson"}


class LoadedSystem(Shared, ABC):
    """Base of the loaded systems, which any number of threads may call: one at a time computes."""

    config: Any
    encoder: TextEncoder

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in COMPUTE & cls.__dict__.keys():
            setattr(cls, name, exclusive(cls.__dict__[name]))

    def forked(self) -> None:
        """OpenMP's threads do not survive a fork, and waiting for them would never end."""
        torch.set_num_threads(1)

    @exclusive
    def compile(self) -> None:
        """Compile the encoder's layers. Takes half a minute, which pays off in long jobs."""
        compile_layers(self.encoder)


class Embedder(LoadedSystem):
    """Base of the loaded systems that embed: their vectors can be written to disk and searched."""

    warned = False  # that a text was cut
    stated_head: StatedHead | None = None  # whether a text states anything of a condition

    @property
    def dim(self) -> int:
        """Dimension of conditional vectors."""
        return int(self.config.dim)

    def rounded(self, vectors: torch.Tensor) -> torch.Tensor:
        """In `output_dtype` of the encoder: (..., D). One too small has its least numbers: only zeros become zeros."""
        if vectors.dtype == self.encoder.output_dtype:
            return vectors
        written = vectors.to(self.encoder.output_dtype)
        is_lost = vectors.any(-1, keepdim=True) & ~written.any(-1, keepdim=True)
        return written.masked_fill(is_lost, torch.finfo(written.dtype).smallest_normal / 2**10)

    @abstractmethod
    def encode_prepared(self, prepared: Prepared) -> Encoded:
        """Vectors of tokenised pairs, counts, and the reason of each refused pair."""

    def embed(self, sentences: Sequence[str], conditions: Sequence[str] | str | None) -> np.ndarray:
        """`encode` of a list of sentences: N, N -> (N, D) float32. Raises ValueError, also for a single string."""
        if isinstance(sentences, str):
            raise ValueError("sentences: expected a list of strings, got one string")
        return self.encode(sentences, conditions)

    def say_cut(self, count: int, of: int) -> None:
        """Warn, once, that some of the texts were cut."""
        if not self.warned and count:
            self.warned = True
            most = self.config.encoder.max_tokens
            warn(f"{count} of {of} texts were cut at {most} tokens; shown once", stacklevel=5)

    def with_taught(self, *taught: Taught) -> Self:
        """The same loaded model, which knows these taught conditions by their words. Raises ValueError where they were
        taught to another one."""
        self.config.knowing(*taught)
        return self

    @checks_types
    def encode(
        self,
        sentences: Texts,
        condition: Texts | Taught | None = None,
        *,
        normalize: bool = False,
        batch_size: int | None = None,
        show_progress: bool = False,
    ) -> np.ndarray:
        """What each sentence states about its condition. Sentences above the encoder's length are cut, which a
        UserWarning shows once.

        Args:
            sentences: N texts, a list or a column of strings; or one string.
            condition: one for all sentences, or one each; or one that `teach` gave. None: unconditional vectors,
                perhaps of another dimension.
            normalize: give vectors of length 1.
            batch_size: texts given to the encoder at a time, which makes batches of equal length itself. None: all.
            show_progress: show a progress bar.

        Returns:
            Vectors (N, D) float32; for one string (D,).

        Raises:
            ValueError: for what is no text, for lists of different length, and for a pair that cannot be embedded.

        Examples:
            >>> model = raycase.load()
            >>> model.encode(["Two girls in red play.", "A boy sleeps."], condition="number of people").shape
            (2, 512)
            >>> model.encode("A boy sleeps.").shape
            (384,)
        """
        if isinstance(condition, Taught):
            how: dict[str, Any] = {"batch_size": batch_size, "show_progress": show_progress, "normalize": normalize}
            return self.with_taught(condition).encode(sentences, condition.condition, **how)
        texts = as_texts(sentences, "sentences")
        conditions = None if condition is None else each_condition(condition, texts)
        if batch_size is not None and batch_size < 1:
            raise RequestError(f"batch_size: expected at least 1, got {batch_size}")
        at_once = max(1, batch_size or (SHOWN_AT_ONCE if show_progress else len(texts)))
        vectors = np.empty(
            (len(texts), self.config.unconditional_dim if conditions is None else self.config.dim), np.float32
        )
        with tqdm(total=len(texts), unit=" texts", disable=not show_progress) as bar:
            for start in range(0, len(texts), at_once):
                rows = slice(start, start + at_once)
                under = None if conditions is None else conditions[rows]
                found, _ = self.text_vectors(texts[rows], under, before=start)
                if len(found) == len(texts):  # a copy of many takes long
                    vectors = found.astype(np.float32, copy=False)
                else:
                    vectors[rows] = found
                bar.update(len(found))
        vectors = l2_normalize(vectors) if normalize else vectors
        return vectors[0] if isinstance(sentences, str) else vectors

    def text_vectors(
        self, texts: Sequence[str], conditions: Sequence[str] | None, *, before: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of texts, (N, D), and of which of them the encoder knows no token, (N,) bool; before: texts before
        these. Raises RequestError for one that cannot be embedded."""
        prepared = self.config.prepare(texts, conditions)
        done = self.encode_prepared(prepared)
        check_accepted(done.refused, texts, conditions=conditions, before=before)
        self.say_cut(int(done.truncated.sum()), len(texts))
        return done.vectors, prepared.unknown

    @checks_types
    def encode_grid(self, sentences: Texts, conditions: Texts, *, normalize: bool = False) -> np.ndarray:
        """Every sentence under every condition: S, C -> (S, C, D) float32. Raises ValueError as `encode`.

        Examples:
            >>> raycase.load().encode_grid(["A boy sleeps.", "Two dogs run."], ["the animal", "the place"]).shape
            (2, 2, 512)
        """
        texts, under = (Indexed.of(as_texts(*of)) for of in ((sentences, "sentences"), (conditions, "conditions")))
        text_N, condition_N = np.indices((len(texts), len(under))).reshape(2, -1)
        vectors = self.encode(texts.take(text_N), under.take(condition_N), normalize=normalize)
        return vectors.reshape(len(texts), len(under), self.config.dim)

    def similarity(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Cosine of each of the first vectors to each of the second: (N, D), (M, D) -> (N, M) float32.

        0 for a vector of zeros. ValueError for more than two axes, and for vectors of different dimensions, as an
        unconditional and a conditional one may have.

        Examples:
            >>> model = raycase.load()
            >>> dog, others = model.encode("A dog", "the animal"), model.encode(["A puppy", "A car"], "the animal")
            >>> int(model.similarity(dog, others).argmax())
            0
        """
        a, b = (np.atleast_2d(np.asarray(vectors, np.float32)) for vectors in (first, second))
        if (axes := max(a.ndim, b.ndim)) > 2:
            raise RequestError(f"expected one vector, or a row for each, got an array of {axes} axes")
        return (l2_normalize(a) @ l2_normalize(b).T).clip(-1, 1)

    def token_weights(self, prepared: Prepared) -> list[np.ndarray]:
        """The weights of the text tokens of each distinct pair: M of (T,), whose sum is 1, (0,) for a refused pair."""
        raise RequestError(f"expected a model that weighs words (as condition-pooling), got {self.config.name}")

    @checks_types
    def word_weights(self, sentences: Texts, conditions: Texts | Taught) -> list[list[Word]]:
        """How much each pair's condition weighs each word of its sentence: N, N -> N lists of words.

        A single string, or a taught condition, is that of every sentence. The list is empty for a pair that cannot be
        embedded; words that were truncated are left out. Raises ValueError for lists of different length, without
        conditions, and for a model that weighs no words.

        Examples:
            >>> text = "A woman in a red dress"
            >>> [words] = raycase.load().word_weights([text], "color of the clothes")
            >>> heaviest = max(words, key=lambda word: word.weight)
            >>> text[heaviest.start : heaviest.end]
            'red'
        """
        if isinstance(conditions, Taught):
            return self.with_taught(conditions).word_weights(sentences, conditions.condition)
        texts = as_texts(sentences, "sentences")
        prepared = self.config.prepare(texts, each_condition(conditions, texts))
        weights, distinct = self.token_weights(prepared), list(dict.fromkeys(texts))
        words = dict(zip(distinct, words_of(self.encoder.tokenize, distinct), strict=True))
        return [words[text].weigh(weights[i]) for text, i in zip(texts, prepared.rows.tolist(), strict=True)]


def as_texts(values: Texts, name: str) -> Sequence[str]:
    """One or many texts as a list; what UTF-8 cannot hold is none, for tokenizers would read it as something else."""
    if isinstance(values, Indexed):
        return replace(values, values=as_texts(values.values, name))
    values = [values] if isinstance(values, str) else values
    several = not isinstance(values, (Mapping, set, frozenset, bytes, IOBase)) and not hasattr(values, "columns")
    if not several or not isinstance(values, Iterable) or getattr(values, "ndim", 1) != 1:
        raise RequestError(f"{name}: expected a list or a column of strings, got {type(values).__name__}")
    texts = values.to_pylist() if isinstance(values, (pa.Array, pa.ChunkedArray)) else list(values)
    for place, text in enumerate(texts):
        if not isinstance(text, str) or not is_utf8(text):
            wanted = "text that UTF-8 can hold" if isinstance(text, str) else "a string"
            raise RequestError(f"{name}[{place}]: expected {wanted}, got {text!r}")
    return texts


def each_condition(condition: Texts, texts: Sequence[str]) -> Sequence[str]:
    """The condition of each text in its normal form, of one for all or one each."""
    conditions = as_texts(condition, "condition")
    if isinstance(conditions, Indexed):
        conditions = Indexed.of([*map(normal_words, conditions.values)]).take(conditions.codes)
    else:
        conditions = [*map(normal_words, conditions)] * (len(texts) if isinstance(condition, str) else 1)
    if len(conditions) != len(texts):
        raise RequestError(
            f"condition: expected one, or one for each of {len(texts)} texts, got {len(conditions)}; encode_grid takes "
            "every text under every condition"
        )
    return conditions
