"""Shared by all systems: (sentence, condition) pairs to `Prepared`, and vectors back to their rows.

Shapes: N pairs, M distinct pairs, K distinct pairs that are not refused, C conditions, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa

from raycase.encoder.prompts import PromptSet, Template, TokenSpan, parse_views, prompt_set
from raycase.encoder.sources import load_tokenizer
from raycase.encoder.table import EncoderSpec
from raycase.encoder.token_batch import Prepared, TokenBatch, Work
from raycase.errors import RequestError
from raycase.io.rated_pairs import NOT_APPLICABLE
from raycase.io.schema import Reason
from raycase.names import PromptStyle
from raycase.tokens.stored import StoredStates, StoredTokens

MEMORY_BYTES = 256 * 2**20
SENTENCE = Template(pattern="{sentence}", span=TokenSpan.ALL)  # a text alone, pooled over all its tokens
CONDITION = Template(pattern="{condition}", span=TokenSpan.ALL)


def prompt_sets(spec: EncoderSpec) -> list[PromptSet]:
    """The templates of each view of an encoder's prompt."""
    return [
        spec.own.prompts
        if style is PromptStyle.TEMPLATE and spec.own
        else prompt_set(style, template=spec.template, separator=spec.separator, span=span or spec.span)
        for style, span in parse_views(spec.prompt)
    ]


def prepare(
    spec: EncoderSpec,
    sentences: Sequence[str],
    conditions: Sequence[str] | None,
    *,
    of_pairs: Sequence[Template] = (),
    of_sentences: Sequence[Template] = (),
    of_conditions: Sequence[Template] = (),
    tokens: Callable[[list[tuple[str, str]]], TokenBatch] | None = None,
) -> Prepared:
    """Tokenise each distinct pair, sentence and condition once, by their templates; pairs also by `tokens`."""
    if conditions is not None and len(conditions) != len(sentences):
        raise ValueError(f"expected as many conditions as sentences, got {len(conditions)} and {len(sentences)}")
    of_conditions = () if conditions is None else of_conditions
    by_sentence = Indexed.of(sentences)
    by_condition = Indexed.of(conditions or [""] * len(sentences))
    count = max(1, len(by_condition.values))
    pair_M, row_N = distinct(by_sentence.codes * count + by_condition.codes)
    sentence_S, sentence_M = distinct(pair_M // count)
    condition_C, condition_M = distinct(pair_M % count)
    distinct_sentences = [by_sentence.values[i] for i in sentence_S.tolist()]
    distinct_conditions = [by_condition.values[i] for i in condition_C.tolist()]
    texts = [
        (distinct_sentences[i], distinct_conditions[j])
        for i, j in zip(sentence_M.tolist(), condition_M.tolist(), strict=True)
    ]
    return Prepared(
        rows=row_N,
        conditions=None if conditions is None else distinct_conditions,
        sentence=sentence_M,
        condition=condition_M,
        of_pairs=[*_tokenized(spec, of_pairs, texts), *([tokens(texts)] if tokens else [])],
        of_sentences=_tokenized(spec, of_sentences, [(s, "") for s in distinct_sentences]),
        of_conditions=_tokenized(spec, of_conditions, [("", c) for c in distinct_conditions]),
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Indexed(Sequence[str]):
    """N strings as indices into distinct `values`: codes (N,) int64."""

    values: Sequence[str]
    codes: np.ndarray

    @classmethod
    def of(cls, strings: Sequence[str]) -> Indexed:
        """Index strings, unless they are `Indexed` already."""
        if isinstance(strings, Indexed):
            return strings
        code_of = {string: i for i, string in enumerate(dict.fromkeys(strings))}
        codes = np.fromiter((code_of[string] for string in strings), dtype=np.int64, count=len(strings))
        return cls(values=list(code_of), codes=codes)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, i: Any) -> Any:
        return self.take(i) if isinstance(i, slice) else self.values[int(self.codes[i])]

    def take(self, rows: np.ndarray | slice) -> Indexed:
        return Indexed(values=self.values, codes=self.codes[rows])


def distinct(values_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values in the order of their first occurrence, and the index of each value among them: (N,)."""
    encoded = pa.array(values_N).dictionary_encode()
    return encoded.dictionary.to_numpy(), encoded.indices.to_numpy().astype(np.int64)


def _tokenized(spec: EncoderSpec, templates: Sequence[Template], pairs: Sequence[tuple[str, str]]) -> list[TokenBatch]:
    """A batch for each pattern: neighbours of one pattern share their tokens, and differ only in pooling."""
    tokenizer = load_tokenizer(spec)
    return [tokenizer.pairs(list(views), pairs) for _, views in groupby(templates, lambda view: view.pattern)]


def accepted_pairs(prepared: Prepared) -> np.ndarray:
    """The distinct pairs that are not refused: (K,)."""
    return np.array([i for i, reason in enumerate(prepared.reasons) if reason is None], dtype=np.int64)


def tokens_of_pairs(prepared: Prepared, pair_index: np.ndarray) -> np.ndarray:
    """Tokens of the prompts of each of these distinct pairs, as if it were encoded separately: (K,) int64."""
    return sum((b.lengths[at] for b, at in prepared.prompts(pair_index)), np.zeros(len(pair_index), np.int64))


def encoded(prepared: Prepared, pair_index: np.ndarray, vectors_KD: np.ndarray, work: Work) -> Encoded:
    """Copy the vectors of `accepted_pairs` to the rows of their pairs, unless they stand there already."""
    place_M = np.full(len(prepared.condition), -1)
    place_M[pair_index] = np.arange(len(pair_index))
    place_N = place_M[prepared.rows]
    vectors_ND = vectors_KD
    if not np.array_equal(place_N, np.arange(len(vectors_KD))):
        none_1D = np.full((1, vectors_KD.shape[1]), np.nan, dtype=vectors_KD.dtype)
        vectors_ND = (vectors_KD if len(vectors_KD) else none_1D).take(place_N, axis=0, mode="clip")
        vectors_ND[place_N < 0] = np.nan
    return Encoded(
        vectors=vectors_ND,
        refused=prepared.refused,
        truncated=prepared.truncated[prepared.rows],
        work=work,
        distinct=len(prepared.condition),
    )


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """The result of encoding N pairs.

    vectors: (N, dim) of the encoder's `output_dtype`, NaN where refused; refused: (N,) the reason or None; truncated:
    (N,) bool; work: of the encoder; distinct: the number of distinct pairs; kept: what is stored of each pair's text.
    """

    vectors: np.ndarray
    refused: list[Reason | None]
    truncated: np.ndarray
    work: Work
    distinct: int
    kept: StoredStates | StoredTokens | None = None

    @property
    def finite(self) -> np.ndarray:
        """Whether what stands for each pair is finite: (N,) bool."""
        finite_N = np.isfinite(self.vectors).all(axis=1)
        return finite_N if self.kept is None else finite_N & self.kept.finite


@dataclass
class ConditionCache:
    """Cache of the vectors of conditions. Emptied when one more batch would exceed `MEMORY_BYTES`.

    taught: those that are not computed.
    """

    dim: int
    vectors: dict[str, np.ndarray] = field(default_factory=dict)
    taught: Mapping[str, np.ndarray] = field(default_factory=dict)

    def of(
        self, prepared: Prepared, pair_index: np.ndarray, compute: Callable[..., tuple[np.ndarray, Work]]
    ) -> tuple[np.ndarray, np.ndarray, Work]:
        """Vectors of the pairs' conditions, (C, D), each pair's row, (K,), and the work of `compute` for new ones."""
        assert prepared.conditions is not None
        conditions, row_K = np.unique(prepared.condition[pair_index], return_inverse=True)
        names = [prepared.conditions[i] for i in conditions.tolist()]
        if (len(self.vectors) + len(names)) * self.dim * 4 > MEMORY_BYTES:
            self.vectors.clear()
        missing = [name not in self.vectors and name not in self.taught for name in names]
        new = conditions[np.array(missing, bool)]
        work = Work()
        if len(new):
            new_CD, work = compute(*(batch.take(new) for batch in prepared.of_conditions))
            self.vectors.update(zip((prepared.conditions[i] for i in new.tolist()), new_CD, strict=True))
        empty_0D = np.empty((0, self.dim), dtype=np.float32)
        found = [self.taught[name] if name in self.taught else self.vectors[name] for name in names]
        return np.stack(found) if found else empty_0D, row_K, work


def check_accepted(
    refused: Sequence[Reason | None],
    *sentences: Sequence[str],
    conditions: Sequence[str] | None = None,
    source: str = "",
    numbered: bool = True,
    before: int = 0,
) -> None:
    """Raise RequestError for the first pair that is refused; source: its file or flag; before: pairs before these."""
    for row, reason in enumerate(refused):
        if reason is not None:
            texts = ", ".join(repr(column[row][:80]) for column in sentences)
            found = f"{reason}: {texts}" + ("" if conditions is None else f" under {conditions[row][:80]!r}")
            wanted = f"{source}: expected texts that can be encoded, got: {found}; fix or remove the row"
            raise RequestError(wanted if source else f"pair {before + row}: {found}" if numbered else found)


@dataclass(frozen=True, kw_only=True)
class RatedTexts:
    """Rated pairs of sentences, tokenised: the distinct (sentence, condition), and the two of each rated pair."""

    prepared: Prepared
    pair_index: np.ndarray  # (N, 2) rows of `prepared`

    def take(self, rows: np.ndarray) -> Prepared:
        """Some rated pairs: the first sentences, then the second ones, under their conditions."""
        return self.prepared.take(self.pair_index[rows].T.reshape(-1))

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each rated pair: (N,)."""
        prepared = self.prepared
        tokens_M = tokens_of_pairs(replace(prepared, of_conditions=[]), np.arange(len(prepared.condition)))
        return tokens_M[prepared.rows][self.pair_index].sum(1)


@dataclass(frozen=True, kw_only=True)
class PairVectors:
    """Vectors of rated pairs, the argument of g in eq. 1. The arrays may be read-only (Ray's object store)."""

    vectors: np.ndarray  # (P, D) float32, the views side by side
    pair_index: np.ndarray  # (N, 2) int64 into `vectors`
    ratings: np.ndarray  # (N,) float32; -1 where the condition does not apply

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])

    def applicable(self) -> PairVectors:
        """Only the pairs to which the condition applies; the label -1 is not a rating."""
        rated = self.ratings != NOT_APPLICABLE
        return PairVectors(vectors=self.vectors, pair_index=self.pair_index[rated], ratings=self.ratings[rated])
