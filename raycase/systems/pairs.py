"""What systems that embed have in common: (sentence, condition) pairs become `Prepared`, and vectors find their rows.

Shapes: N pairs, M distinct ones, K of them that are not refused, D dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from raycase.data.schema import Reason
from raycase.encoder.prepared import Prepared
from raycase.encoder.prompts import PromptSet, Span, Template, parse_views, prompt_set
from raycase.encoder.sources import load_tokenizer
from raycase.encoder.table import EncoderSpec
from raycase.encoder.throughput import Work
from raycase.encoder.token_batch import TokenBatch

MEMORY_BYTES = 256 * 2**20
SENTENCE = Template(pattern="{sentence}", span=Span.ALL)  # a text alone, pooled over all its tokens
CONDITION = Template(pattern="{condition}", span=Span.ALL)


def prompt_sets(spec: EncoderSpec) -> list[PromptSet]:
    """The templates of each view of a row's prompt."""
    return [
        prompt_set(style, template=spec.template, separator=spec.separator, span=span or spec.span)
        for style, span in parse_views(spec.prompt)
    ]


def by_pattern(templates: Sequence[Template]) -> list[list[int]]:
    """Views whose templates differ in what they pool alone, together."""
    groups: dict[str, list[int]] = {}
    for view, template in enumerate(templates):
        groups.setdefault(template.pattern, []).append(view)
    return list(groups.values())


def prepare(
    spec: EncoderSpec,
    sentences: Sequence[str],
    conditions: Sequence[str] | None,
    *,
    pairs: Sequence[Template] = (),
    alone: Sequence[Template] = (),
    bases: Sequence[Template] = (),
    tokens: Callable[[list[tuple[str, str]]], TokenBatch] | None = None,
) -> Prepared:
    """Tokenise each distinct pair, sentence and condition once, by the templates given, pairs also by `tokens`. Loads
    the tokenizer alone.

    Without conditions there are no bases. `Indexed` strings are not compared again. Raises ValueError for lists of
    different length.
    """
    if conditions is not None and len(conditions) != len(sentences):
        raise ValueError(f"expected as many conditions as sentences, got {len(conditions)} and {len(sentences)}")
    by_sentence = Indexed.of(sentences)
    by_condition = Indexed(values=[""], codes=np.zeros(len(sentences), np.int64))
    if conditions is not None:
        by_condition = Indexed.of(conditions)
    count = max(1, len(by_condition.values))
    pair_M, row_N = _distinct(by_sentence.codes * count + by_condition.codes)
    sentence_S, sentence_M = _distinct(pair_M // count)
    condition_C, condition_M = _distinct(pair_M % count)
    one = [by_sentence.values[i] for i in sentence_S.tolist()]
    other = [by_condition.values[i] for i in condition_C.tolist()]
    texts = [(one[i], other[j]) for i, j in zip(sentence_M.tolist(), condition_M.tolist(), strict=True)]
    return Prepared(
        rows=row_N,
        conditions=None if conditions is None else other,
        sentence=sentence_M,
        condition=condition_M,
        pairs=[*_tokenized(spec, pairs, texts), *([tokens(texts)] if tokens else [])],
        alone=_tokenized(spec, alone, [(s, "") for s in one]),
        bases=_tokenized(spec, bases, [("", c) for c in other]) if conditions is not None else [],
    )


@dataclass(frozen=True, eq=False, kw_only=True)
class Indexed(Sequence[str]):
    """N strings, each given by its place among distinct `values`: codes (N,) int64."""

    values: Sequence[str]
    codes: np.ndarray

    @classmethod
    def of(cls, strings: Sequence[str]) -> Indexed:
        """The same strings; those that are indexed already are not compared again."""
        if isinstance(strings, Indexed):
            return strings
        number = {string: i for i, string in enumerate(dict.fromkeys(strings))}
        codes = np.fromiter((number[string] for string in strings), dtype=np.int64, count=len(strings))
        return cls(values=list(number), codes=codes)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, i: Any) -> Any:
        chosen = self.codes[i]
        return [self.values[j] for j in chosen.tolist()] if isinstance(i, slice) else self.values[int(chosen)]

    def take(self, rows: np.ndarray) -> Indexed:
        """The strings of these rows."""
        return Indexed(values=self.values, codes=self.codes[rows])


def _distinct(values_N: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The distinct values in the order of their first occurrence, and the index of each value among them: (N,)."""
    distinct, first, inverse_N = np.unique(values_N, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return distinct[order], rank[inverse_N]


def count_tokens(
    spec: EncoderSpec, sentences: Sequence[str], conditions: Sequence[str] | None, templates: Sequence[Template]
) -> np.ndarray:
    """Tokens of each pair's prompts, cut to the encoder's length: (N,) int64; 0 for a pair that is refused."""
    pairs = list(zip(sentences, conditions or [""] * len(sentences), strict=True))
    lengths = [batch.lengths for batch in _tokenized(spec, templates, pairs)]
    return np.where(np.all(lengths, axis=0), np.sum(lengths, axis=0), 0)


def _tokenized(spec: EncoderSpec, templates: Sequence[Template], pairs: Sequence[tuple[str, str]]) -> list[TokenBatch]:
    """Of each pattern; views of one pattern share their tokens."""
    tokenizer = load_tokenizer(spec)
    return [tokenizer.pairs([templates[i] for i in views], pairs) for views in by_pattern(templates)]


def accepted_pairs(prepared: Prepared) -> np.ndarray:
    """The distinct pairs that are not refused: (K,)."""
    return np.array([i for i, reason in enumerate(prepared.reasons) if reason is None], dtype=np.int64)


def tokens_apart(prepared: Prepared, kept: np.ndarray) -> int:
    """Tokens of the kept pairs' prompts, as if each pair were encoded alone."""
    return sum(
        int(batch.lengths[places].sum())
        for batches, places in (
            (prepared.pairs, kept),
            (prepared.alone, prepared.sentence[kept]),
            (prepared.bases, prepared.condition[kept]),
        )
        for batch in batches
    )


def encoded(prepared: Prepared, kept: np.ndarray, vectors_KD: np.ndarray, work: Work) -> Encoded:
    """The vectors of `accepted_pairs`, at the rows of their pairs."""
    reasons = prepared.reasons
    vectors_MD = np.full((len(reasons), vectors_KD.shape[1]), np.nan, dtype=np.float32)
    vectors_MD[kept] = vectors_KD
    return Encoded(
        vectors=vectors_MD[prepared.rows],
        refused=[reasons[i] for i in prepared.rows],
        truncated=prepared.truncated[prepared.rows],
        work=work,
        distinct=len(reasons),
    )


@dataclass(frozen=True, kw_only=True)
class Encoded:
    """What an encoder gives for N pairs.

    vectors (N, dim) float32, NaN where `refused`; refused (N,) the reason or None; truncated (N,) bool;
    work: what was computed; distinct: distinct pairs encoded.
    """

    vectors: np.ndarray
    refused: list[Reason | None]
    truncated: np.ndarray
    work: Work
    distinct: int


class Memory:
    """A vector for each condition encoded before. Emptied when one more batch would exceed `max_bytes`."""

    def __init__(self, dim: int, max_bytes: int = MEMORY_BYTES) -> None:
        self.dim = dim
        self.max_bytes = max_bytes
        self.vectors: dict[str, np.ndarray] = {}

    def of(
        self,
        prepared: Prepared,
        which: np.ndarray,
        compute: Callable[[np.ndarray], tuple[np.ndarray, Work]],
    ) -> tuple[np.ndarray, Work]:
        """Of some of the conditions: (C, D); `compute` is asked for those that are new."""
        assert prepared.conditions is not None
        names = [prepared.conditions[i] for i in which.tolist()]
        if (len(self.vectors) + len(names)) * self.dim * 4 > self.max_bytes:
            self.vectors.clear()
        new = np.array([i for i, name in zip(which, names, strict=True) if name not in self.vectors], dtype=np.int64)
        work = Work()
        if len(new):
            found_CD, work = compute(new)
            self.vectors.update(zip((prepared.conditions[i] for i in new.tolist()), found_CD, strict=True))
        none = np.empty((0, self.dim), dtype=np.float32)
        return np.stack([self.vectors[name] for name in names]) if names else none, work


def embed(
    prepare: Callable[[Sequence[str], Sequence[str] | None], Prepared],
    encode: Callable[[Prepared], Encoded],
    sentences: Sequence[str],
    conditions: Sequence[str] | str | None,
) -> np.ndarray:
    """What every system's `embed` does: (N, D) float32; one condition serves all sentences.

    Raises ValueError for lists of different length and for a pair that cannot be embedded.
    """
    if isinstance(sentences, str):
        raise ValueError("sentences: expected a list of strings, got one string")
    if isinstance(conditions, str):
        conditions = [conditions] * len(sentences)
    found = encode(prepare(sentences, conditions))
    for row, reason in enumerate(found.refused):
        if reason is not None:
            raise ValueError(f"pair {row}: {reason}: {sentences[row]!r} under {conditions and conditions[row]!r}")
    return found.vectors
