"""Search an index in this process: the rows nearest to a sentence under a condition, by cosine.

Shapes: Q queries, C conditions, D dimensions, k neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.errors import RequestError, WorkError, check_problems, checks_types, is_words, normal_words, note
from raycase.index.answers import answer_table, distinct_answers
from raycase.index.approximate import DEFAULT_OPTIONS, Options
from raycase.index.filters import Filter
from raycase.index.lance_files import lance_errors, open_newest
from raycase.index.text_index import fused, fused_ranks, matching
from raycase.index.topk import Nearest
from raycase.index.vector_index import VectorIndex
from raycase.index.weighted_search import Term, Weighted, check_weights, parts_column
from raycase.io.locks import exclusive
from raycase.io.schema import ID, PARTS, QUERY, RANK, STATED, TEXT_RANK, VECTOR_RANK
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.configs import check_conditions
from raycase.models.embedder import Texts, as_texts

LEAST_STATED = 0.5  # probability
WITH_STATED = (
    "that are pooled from stored tokens by a model trained on labelled texts (embed with --any-condition, and index "
    "that output alone)"
)
QUERIES = 1024  # under one condition that are answered at a time
COSINES = 2**25  # of queries and ids held at a time where conditions are combined
MOST_COMBINED = 64  # conditions whose cosines are averaged
AWAY = 4  # times as many candidates where a weight is negative: what is far under a condition is sketched less well
CANDIDATES = 10  # times k: rows of each condition whose ids are combined, where a condition is searched approximately

T = TypeVar("T")
_Kind = Literal["conditions", "weights", "mean", "plain"]  # one for each sentence; several; all of the index; none


@dataclass(frozen=True, kw_only=True)
class _Question:
    """What `Index.search` was asked, checked. asked: the condition of each sentence, or several with weights."""

    sentences: Sequence[str]
    kind: _Kind
    asked: Sequence[tuple[Weighted, ...]]
    exact_condition: bool
    query_condition: str | None
    phrases: bool
    stated: bool
    hybrid: bool
    where: Filter | None
    options: Options


class Index(VectorIndex):
    """An open index, for any number of threads. Its model is loaded with the first sentence."""

    @exclusive
    @checks_types
    def search(
        self,
        sentences: Texts,
        conditions: Texts | Mapping[str, Any] | None = None,
        k: int = 10,
        where: str | None = None,
        *,
        query_condition: str | None = None,
        unconditional: bool = False,
        exact_condition: bool = False,
        phrases: bool = False,
        stated: bool = False,
        match: str | None = None,
        hybrid: bool = False,
        per: str | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> pa.Table:
        """The k rows nearest to each sentence under its condition, by cosine, best first.

        Args:
            sentences: Q texts, or one.
            conditions: one for all sentences, or one each. One that the index lacks is pooled from stored tokens, or
                answered under the nearest that it has. None: an id scores the mean of its cosines under those that it
                has, in an approximate index only if it is among the best under one. Weights, `{"color": 2, "place":
                -0.5}`, make one question of several (`index.weighted_search`); `("red", 2)` in place of a weight is a
                phrase that answers the condition, and its weight.
            k: rows for each sentence.
            where: filter on id and the kept columns, in SQL.
            query_condition: of the sentences' own vectors, if it is another one than that of the rows.
            unconditional: search the unconditional vectors.
            exact_condition: raise RequestError for a condition that the index does not have.
            phrases: the sentences answer their conditions, as "heavy rain" does "weather" (condition pooling).
            stated: leave out rows that, by `stated_at`, more likely than not say nothing about the condition.
            match: words that each answer's text must have.
            hybrid: fuse the ranks by vectors with those by words (`text_index.fused`).
            per: a column, such as `document` of chunks: k of its values, each by its best row.
            options: how an approximate index is used.

        Returns:
            A table with up to Q k rows: query (index in `sentences`), asked, condition (the one searched), pooled, rank
            from 1, score, id and the kept columns; `parts` for weights, both ranks for `hybrid`, and `stated` where it
            is requested.

        Raises:
            RequestError: a ValueError, for a wrong argument.

        Examples:
            >>> index = raycase.Index.open("captions.lance")
            >>> answers = index.search(["A man in a red hat"], "color of the clothes", k=1)
            >>> answers["text"].to_pylist()
            ['Two girls in red dresses play soccer.']
        """
        sentences = as_texts(sentences, "sentences")
        if isinstance(conditions, str):
            conditions = [conditions] * len(sentences)
        elif conditions is not None and not isinstance(conditions, Mapping):
            conditions = as_texts(conditions, "conditions")
        query_condition = None if query_condition is None else normal_words(query_condition)
        problems = {
            f"k: expected at least 1, got {k}": k < 1,
            "hybrid: expected no stated beside it, got both: words do not tell what a text states": hybrid and stated,
            f"query_condition: expected words, got {query_condition!r}": query_condition is not None
            and not is_words(query_condition),
        }
        check_problems(problems)
        kind, asked = self._asked(conditions, len(sentences), unconditional)
        own = phrases or any(one.phrase is not None for each in {*asked} for one in each)
        self.check_conditional(conditions, query_condition, phrases=own, stated=stated)
        new = {*[PARTS] * (kind == "weights"), *(VECTOR_RANK, TEXT_RANK) * hybrid}
        if same := sorted(new & {*self.columns}):
            raise RequestError(f"expected an index that keeps no column {same[0]!r}, which these answers add")
        passing = self._checked(where)
        with lance_errors(self.root):
            question = _Question(
                sentences=sentences,
                kind=kind,
                asked=asked,
                exact_condition=exact_condition,
                query_condition=query_condition,
                phrases=phrases,
                stated=stated,
                hybrid=hybrid,
                where=passing if match is None else matching(self.dataset, match, passing),
                options=options,
            )
            answers, every = partial(self._answers, question), range(len(sentences))
            return answers(every, k) if per is None else distinct_answers(self.dataset, answers, every, k, per)

    def _asked(
        self, conditions: Sequence[str] | Mapping[str, Any] | None, count: int, unconditional: bool
    ) -> tuple[_Kind, list[tuple[Weighted, ...]]]:
        """What each of so many sentences is asked under. Raises RequestError."""
        kind: _Kind = "plain"
        asked: list[tuple[Weighted, ...]] = [(Weighted(None),)] * count
        if isinstance(conditions, Mapping):
            kind, asked = "weights", [check_weights(conditions, self.query_encoder.spelled)] * count
        elif conditions is not None:
            kind, asked = "conditions", [(Weighted(name),) for name in conditions]
        elif self.metadata.conditions and not unconditional:
            kind, asked = "mean", [check_weights(dict.fromkeys(self.metadata.conditions, 1), str)] * count
        if len(asked) != count or (unconditional and kind != "plain"):
            raise RequestError("expected one condition, one for each sentence, or unconditional, got other conditions")
        return kind, asked

    def check_conditional(
        self, conditions: Collection[str] | None, query_condition: str | None = None, *, phrases: bool, stated: bool
    ) -> None:
        """Raise RequestError for what needs a condition, or a model, that is not there."""
        if phrases and (conditions is None or not isinstance(self.encoder.config, ConditionPoolingConfig)):
            got = "no condition" if conditions is None else self.model
            raise RequestError(f"phrases: expected a condition and an index of condition pooling, got {got}")
        if query_condition is not None:
            if conditions is None:
                raise RequestError("query_condition: expected a condition of the rows beside it, got none")
            check_conditions(self.encoder.config, [query_condition])
        weighted = isinstance(conditions, Mapping)
        if stated and (weighted or conditions is None or not all(map(self.gives_stated, conditions))):
            got = "weights" if weighted else ", ".join(conditions or ["none"])
            raise RequestError(f"stated: expected conditions {WITH_STATED}, got {got}")

    def _answers(self, question: _Question, queries: Sequence[int], k: int) -> pa.Table:
        """The answers to some of the sentences."""
        groups = defaultdict(list)
        for query in queries:
            groups[question.asked[query]].append(query)
        most = fused_ranks(k) if question.hybrid else k
        tables = [each for asked, own in groups.items() for each in self._under(question, own, asked, most)]
        none = answer_table(self.dataset, np.empty(0), None, None, np.empty(0, bool), *np.empty((3, 0)))
        table = pa.concat_tables([none, *tables], promote_options="default")
        table = table.sort_by([(QUERY, "ascending"), (RANK, "ascending")])
        if not question.hybrid:
            return table
        return fused(self.vectors, table, question.sentences, question.where, k, kind=question.kind)

    def _under(
        self, question: _Question, queries: Sequence[int], asked: Sequence[Weighted], k: int
    ) -> Iterator[pa.Table]:
        """The answers to sentences under one condition, or several with weights, some at a time."""
        names = [self.query_encoder.condition_for(one.asked, question.exact_condition) for one in asked]
        asked = [one._replace(condition=name) for one, name in zip(asked, names, strict=True)]
        candidates, at_once = None, QUERIES
        if len(asked) > 1 or asked[0].weight < 0:
            candidates = self._combined_candidates(question, asked, len(queries), k)
            rows = max(map(self.rows, names))
            at_once = max(1, min(QUERIES, COSINES // rows)) if candidates is None else 1
        searched = (None, None) if question.kind in ("weights", "mean") else (asked[0].asked, names[0])
        for start in range(0, len(queries), at_once):
            batch = queries[start : start + at_once]
            terms = self._terms(question, asked, [question.sentences[i] for i in batch])
            scores_Qk, offsets_Qk, row_PQk = self._best(question, terms, k, candidates)
            query_H, rank_H = (offsets_Qk >= 0).nonzero()
            more, offsets_H, row_PH = {}, offsets_Qk[query_H, rank_H], row_PQk[:, query_H, rank_H]
            if question.stated:
                more[STATED] = pa.array(self.stated_at(str(names[0]), offsets_H), pa.float32())
            if question.kind == "weights":
                more[PARTS] = parts_column(asked, terms, query_H, row_PH, self.all_rows.at)
            pooled_PH = [self.vectors.is_pooled(*each) for each in zip(names, row_PH, strict=True)]
            pooled = (pooled_PH & (row_PH >= 0)).any(axis=0)
            found = rank_H, scores_Qk[query_H, rank_H], offsets_H
            yield answer_table(self.dataset, np.array(batch)[query_H], *searched, pooled, *found, **more)

    def _terms(self, question: _Question, asked: Sequence[Weighted], sentences: Sequence[str]) -> list[Term]:
        """Sentences, or phrases in place of them, under each condition."""
        terms, embed = [], self.query_encoder.embed
        for one in asked:
            if one.phrase is None:
                under = question.query_condition or one.condition
                vectors_QD = embed(sentences, under, phrases=question.phrases)
            else:
                vectors_QD = embed([one.phrase] * len(sentences), one.condition, "phrase", phrases=True)
            terms.append(Term(condition=one.condition, share=one.share, vectors=vectors_QD))
        return terms

    def _combined_candidates(self, question: _Question, asked: Sequence[Weighted], queries: int, k: int) -> int | None:
        """`_candidates` of several conditions; 0 where only rows that are best under one of them are combined."""
        if len(asked) > MOST_COMBINED:
            raise RequestError(
                f"condition: expected one, or no more than the {MOST_COMBINED} that are combined, got {len(asked):,}"
            )
        names, options = [one.condition for one in asked], question.options
        rows = max(map(self.rows, names))
        if options.exact or not self.metadata.is_approximate(rows):
            return None
        if any(map(self.vectors.pooled_rows, names)) or (question.kind == "weights" and self.metadata.with_tokens):
            factor = options.factor * (AWAY if any(one.weight < 0 for one in asked) else 1)
            return self._candidates(queries, rows, k, question.where, replace(options, factor=factor))
        return 0

    def _best(
        self, question: _Question, terms: Sequence[Term], k: int, candidates: int | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scores and offsets of the best rows, (Q, k), and their rows under each condition, (P, Q, k). candidates: of
        several conditions, by sketches, beside the rows that are best under one of the index; None: all rows."""
        where, options = question.where, question.options
        if len(terms) == 1 and terms[0].share == 1:
            find = self._stated if question.stated else self._nearest
            best = find(terms[0].vectors, terms[0].condition, k, where, options)
            return *best, best[1][None]
        stored = [term for term in terms if not self.metadata.lacks(term.condition)]
        k = min(k, sum(self.rows(term.condition) for term in terms))
        if not stored:
            scores_Qk, offsets_Qk = self._compare(terms, k, where, candidates)
            return scores_Qk, offsets_Qk, np.broadcast_to(offsets_Qk, (len(terms), *offsets_Qk.shape))
        if candidates is None:
            return self.all_rows.combined(terms, k, where)
        among = [self.all_rows.candidates(terms, where, candidates)] if candidates else []
        for term in stored:
            toward_QD = np.float32(np.sign(term.share)) * term.vectors
            among.append(self._nearest(toward_QD, term.condition, CANDIDATES * k, where, options)[1].reshape(-1))
        offsets = np.unique(np.concatenate(among))
        return self.all_rows.combined(terms, k, where, offsets[offsets >= 0])

    def _stated(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: Filter | None, options: Options
    ) -> Nearest:
        """`_nearest` among the rows that say something of the condition: of each query, more and more are looked at."""
        rows, found = self.rows(condition), []
        for vector_1D in np.split(vectors_QD, len(vectors_QD)):
            looked_at = left = 0
            while left < k and looked_at < rows:
                looked_at = min(rows, max(2 * k, 4 * looked_at))
                cosines_1L, offsets_1L = self._nearest(vector_1D, condition, looked_at, where, options)
                there_L = offsets_1L[0] >= 0
                there_L[there_L] = self.stated_at(str(condition), offsets_1L[0][there_L]) >= LEAST_STATED
                left = int(there_L.sum())
            order_k = np.argsort(~there_L, kind="stable")[:k]
            kept = np.where(there_L, cosines_1L, -np.inf), np.where(there_L, offsets_1L, -1)
            found.append([part_1L[0, order_k] for part_1L in kept])
        cosines_Qk, offsets_Qk = (np.stack(parts) for parts in zip(*found, strict=True))
        return cosines_Qk, offsets_Qk


def on_index(open_index: Callable[[], Index], work: Callable[[Index], T]) -> tuple[Index, T]:
    """Open an index and work on it, once more where builds removed its version meanwhile."""
    index = open_index()
    try:
        return index, work(index)
    except WorkError:  # a wrong request is wrong in any version
        newest = open_newest(index.root)
        if newest is not None and index.dataset.version in [each["version"] for each in newest.versions()]:
            raise
    note(f"{index.root.uri}: a build removed the version in use; searching the newest one")
    index = open_index()
    return index, work(index)


def print_replaced_condition(index: Index, asked: str | None, condition: str | None) -> None:
    """Say which condition was searched in place of one that the index lacks. One of stored tokens alone has none."""
    if index.metadata.lacks(condition):
        if index.metadata.conditions:
            note(f"no {asked!r} in the index; pooled from its stored tokens")
    elif asked is not None and normal_words(asked) != normal_words(condition or ""):
        cosine = index.nearest_condition(asked)[1]
        note(f"no {asked!r} in the index; answered under {condition!r}, cosine {cosine:.2f}")


def note_searched(
    index: Index, searched: Mapping[str | None, str | None], where: str | None, *, apart: bool = True
) -> None:
    """`print_replaced_condition` of those that were asked, and say how many rows that pass a filter have no vector
    under a condition that was searched, or, where they were not searched apart, under any (None: unconditional)."""
    for asked, condition in searched.items():
        print_replaced_condition(index, asked, condition)
    names = [*dict.fromkeys(searched.values())]
    for some in [[name] for name in names] if apart and len(names) <= MOST_COMBINED else [names]:
        if index.metadata.rows not in map(index.rows, some):
            every, there = (pc.count_distinct(index.ids(each, where)[ID]).as_py() for each in (None, some))
            under = " or ".join("without a condition" if each is None else f"under {each!r}" for each in some)
            if every > there:
                note(f"{every - there:,} of {every:,} rows are left out: the index has no vector of theirs {under}")
