"""Search an index in this process: the rows nearest to a sentence under a condition, by cosine.

Shapes: Q queries, P conditions, N rows, D dimensions, k neighbours, H answers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from raycase.errors import (
    RequestError,
    WorkError,
    check_problems,
    checks_types,
    expecting,
    normal_words,
    note,
    note_sentences,
)
from raycase.index.answers import PARTS, QUERY, STATED, TEXT_RANK, VECTOR_RANK, answer_table, distinct_answers
from raycase.index.approximate import approximate_nearest, is_coded
from raycase.index.filters import Filter, checked_filter
from raycase.index.lance_files import (
    OFFSET,
    Version,
    lance_errors,
    open_newest,
    open_ready,
    returned_columns,
    sql_and,
)
from raycase.index.options import OF_APPROXIMATE, Limits, Options, options_of
from raycase.index.query_encoder import QueryEncoder
from raycase.index.rows import FEW, IndexRows
from raycase.index.text_index import fused, fused_ranks, matching
from raycase.index.topk import Block, Nearest, merge_top_k
from raycase.index.weighted_search import MOST_COMBINED, Question, Term, check_weights, parts_column
from raycase.io.locks import Shared, exclusive
from raycase.io.schema import CONDITION, HAS_TOKENS, ID, RANK, TEXT, UNCONDITIONAL, VECTOR
from raycase.io.storage import locate
from raycase.io.vectors import l2_normalize
from raycase.models.condition_pooling import ConditionPoolingConfig
from raycase.models.embedder import Embedder, Texts, as_texts

LEAST_STATED = 0.5  # probability
LEAST_HEAVIEST, LOOKED_AT = 0.16, 150  # mean weight of the heaviest token below which a condition seldom helps; rows
QUERIES = 1024  # under one condition that are answered at a time
COSINES = 2**25  # of queries and ids held at a time where conditions are combined
AWAY = 4  # times as many candidates where a weight is negative: what is far under a condition is sketched less well
CANDIDATES = 10  # times k: rows of each condition whose ids are combined, where a condition is searched approximately
POOLED = 20, 500  # candidates by sketches that are pooled: times k, or as many
POOLED_COARSE = 50, 5000  # the same by sketches of earlier versions

WEIGHTS_TYPE = pa.list_(pa.struct({"start": pa.int32(), "end": pa.int32(), "weight": pa.float32()}))
WEIGHED = 4096  # texts under conditions whose words are weighed at a time

T = TypeVar("T")


class Index(Shared):
    """An open index, for any number of threads. Its model is loaded with the first text.

    columns: those that a search returns of each row, id and the kept ones. compare: `IndexRows.nearest` of all rows; an
    index in shards has its processes do it.
    """

    def __init__(self, version: Version, model: str | None, limits: Limits) -> None:
        self.root, self.dataset, self.metadata = version
        self.opened, self.limits, self.columns = version, limits, returned_columns(self.dataset)
        self.query_encoder = QueryEncoder(self.metadata, model or self.metadata.name, self.root.uri)
        self.model = self.query_encoder.model
        self.all_rows = IndexRows(version, limits, self.query_encoder.ask)
        self.vectors, self.pooled = self.all_rows.vectors, self.all_rows.pooled
        self.compare: Callable[[Sequence[Term], int, Filter | None, int | None], Nearest] = self.all_rows.nearest

    @classmethod
    @checks_types
    def open(cls, uri: str, *, model: str | None = None, limits: Limits = Limits()) -> Self:  # noqa: B008
        """Open the index at a path or URI; `model` is the folder of its model, if it has moved.

        Raises RequestError where there is no finished index.
        """
        root = locate(uri)
        ready = open_ready(root)
        if ready is None:
            raise RequestError(f"expected an index at {root.uri}, got no finished one; see `raycase index`")
        names = [*ready.metadata.conditions]  # columns may have "Animal" and "animal"
        if len({normal_words(name).casefold() for name in names}) < len(names):
            note(f"{root.uri}: conditions that look alike are searched apart; spell them alike, embed and index again")
        return cls(ready, model, limits)

    @property
    def encoder(self) -> Embedder:
        """The index's model, loaded. Raises RequestError where another model is at its name or folder."""
        return self.query_encoder.encoder

    @exclusive
    @checks_types
    def search(
        self,
        sentences: Texts,
        conditions: Texts | Mapping[str, Any] | None = None,
        k: int = 10,
        where: str | None = None,
        **options: Any,
    ) -> pa.Table:
        """The k rows nearest to each sentence under its condition, by cosine, best first.

        Args:
            sentences: Q texts, or one.
            conditions: one for all sentences, or one each. One that the index lacks is pooled from stored tokens, or
                answered under the nearest that it has. None: the unconditional vectors. Weights, `{"color": 2, "place":
                -0.5}`, make one question of several (`index.weighted_search`); `("red", 2)` in place of a weight is a
                phrase that answers the condition, and its weight.
            k: rows for each sentence.
            where: filter on id and the kept columns, in SQL.
            options: of `raycase.index.options.Options`, such as `match`, `hybrid`, `per`, `stated`, `phrases`,
                `exact_condition` and `exact`.

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
        sentences, how = as_texts(sentences, "sentences"), options_of(options)
        both = "hybrid: expected no stated beside it, got both: words do not show what a text states"
        check_problems({f"k: expected at least 1, got {k}": k < 1, both: how.hybrid and how.stated})
        weighted, count, terms = isinstance(conditions, Mapping), len(sentences), list[Sequence[Term]]()
        if isinstance(conditions, Mapping):
            terms = [check_weights(conditions, self.query_encoder.spelled)] * count
        elif conditions is None or isinstance(conditions, str):
            terms = [[Term(asked=conditions)]] * count
        else:
            terms = [[Term(asked=name)] for name in as_texts(conditions, "conditions")]
        if len(terms) != count or (how.unconditional and conditions is not None):
            raise RequestError("expected one condition, one for each sentence, or unconditional, got other conditions")
        asked = {term.asked for each in terms for term in each if term.asked is not None}
        phrases = how.phrases or any(term.phrase is not None for each in terms[:1] for term in each)
        self.check_conditional(asked, phrases=phrases, stated=how.stated, weighted=weighted)
        if same := sorted({*[PARTS] * weighted, *(VECTOR_RANK, TEXT_RANK) * how.hybrid} & {*self.columns}):
            raise RequestError(f"expected an index that keeps no column {same[0]!r}, which these answers add")
        passing = self._checked(where)
        with lance_errors(self.root):
            passing = passing if how.match is None else matching(self.dataset, how.match, passing)
            question = Question(sentences=sentences, terms=terms, weighted=weighted, where=passing, options=how)
            answers, every = partial(self._answers, question), range(count)
            return answers(every, k) if how.per is None else distinct_answers(self.dataset, answers, every, k, how.per)

    def check_conditional(
        self, conditions: Collection[str], *, phrases: bool, stated: bool, weighted: bool = False
    ) -> None:
        """Raise RequestError for what needs a condition, or a model, that is not there."""
        if phrases and not (conditions and isinstance(self.encoder.config, ConditionPoolingConfig)):
            got = self.model if conditions else "no condition"
            raise RequestError(f"phrases: expected a condition and an index of condition pooling, got {got}")
        if stated and (weighted or not conditions or not all(map(self.gives_stated, conditions))):
            got = "weights" if weighted else ", ".join(sorted(conditions) or ["none"])
            raise RequestError(
                "stated: expected conditions that are pooled from stored tokens by a model trained on labelled texts "
                f"(embed with --any-condition, and index that output alone), got {got}"
            )

    def _answers(self, question: Question, queries: Sequence[int], k: int) -> pa.Table:
        """The answers to some of the sentences."""
        under = defaultdict(list)
        for query in queries:
            under[tuple(term.asked for term in question.terms[query])].append(query)
        most = fused_ranks(k) if question.options.hybrid else k
        tables = [each for own in under.values() for each in self._under(question, own, most)]
        none = answer_table(self.dataset, np.empty(0), None, None, np.empty(0, bool), *np.empty((3, 0)))
        table = pa.concat_tables([none, *tables], promote_options="default")
        table = table.sort_by([(QUERY, "ascending"), (RANK, "ascending")])
        return fused(self.vectors, table, question, k) if question.options.hybrid else table

    def _under(self, question: Question, queries: Sequence[int], k: int) -> Iterator[pa.Table]:
        """The answers to sentences that are all asked under the same terms, some at a time."""
        options, searched = question.options, []
        for term in question.terms[queries[0]]:
            condition = self.query_encoder.condition_for(term.asked, options.exact_condition)
            searched.append(replace(term, condition=condition))
        candidates, at_once, names = None, QUERIES, [term.condition for term in searched]
        if _is_combined(searched):
            candidates = self._combined_candidates(question, searched, len(queries), k)
            at_once = max(1, min(QUERIES, COSINES // max(map(self.rows, names)))) if candidates is None else 1
        shown = (None, None) if question.weighted else (searched[0].asked, names[0])
        for start in range(0, len(queries), at_once):
            batch = queries[start : start + at_once]
            terms = self._embedded(searched, [question.sentences[i] for i in batch], phrases=options.phrases)
            scores_Qk, offsets_Qk, row_PQk = self._best(question, terms, k, candidates)
            query_H, rank_H = (offsets_Qk >= 0).nonzero()
            more, offsets_H, row_PH = {}, offsets_Qk[query_H, rank_H], row_PQk[:, query_H, rank_H]
            if options.stated:
                more[STATED] = pa.array(self.stated_at(str(names[0]), offsets_H), pa.float32())
            if question.weighted:
                more[PARTS] = parts_column(terms, query_H, row_PH, self.all_rows.at)
            pooled_PH = [self.vectors.is_pooled(*each) for each in zip(names, row_PH, strict=True)]
            pooled = (pooled_PH & (row_PH >= 0)).any(axis=0)
            found = rank_H, scores_Qk[query_H, rank_H], offsets_H
            yield answer_table(self.dataset, np.array(batch)[query_H], *shown, pooled, *found, **more)

    def _embedded(self, terms: Sequence[Term], sentences: Sequence[str], *, phrases: bool) -> list[Term]:
        """Terms with the vectors of sentences, or of phrases in place of them."""
        embed, embedded = self.query_encoder.embed, []
        for term in terms:
            texts = (sentences, "query") if term.phrase is None else ([term.phrase] * len(sentences), "phrase")
            vectors_QD = embed(texts[0], term.condition, texts[1], phrases=phrases or term.phrase is not None)
            embedded.append(replace(term, vectors=vectors_QD))
        return embedded

    def _combined_candidates(self, question: Question, terms: Sequence[Term], queries: int, k: int) -> int | None:
        """`_candidates` of several conditions, beside the rows that are best under a stored one; 0: these alone."""
        options = question.options
        rows = max(self.rows(term.condition) for term in terms)
        if options.exact or not self.metadata.is_approximate(rows):
            return None
        if not self.metadata.with_tokens:
            return 0
        factor = options.factor * (AWAY if any(term.weight < 0 for term in terms) else 1)
        return self._candidates(queries, rows, k, question.where, replace(options, factor=factor))

    def _best(
        self, question: Question, terms: Sequence[Term], k: int, candidates: int | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Scores and offsets of the best rows, (Q, k), and their rows under each condition, (P, Q, k). candidates:
        `_combined_candidates`."""
        where, options = question.where, question.options
        if not _is_combined(terms):
            find = self._stated if options.stated else self._nearest
            best = find(terms[0].vectors, terms[0].condition, k, where, options)
            return *best, best[1][None]
        stored = [term for term in terms if not self.metadata.lacks(term.condition)]
        k = min(k, sum(self.rows(term.condition) for term in terms))
        if not stored:
            scores_Qk, offsets_Qk = self.compare(terms, k, where, candidates)
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
        """`_nearest` among the rows that state something of the condition: of each query, more and more are read."""
        rows, found = self.rows(condition), []
        for vector_1D in np.split(vectors_QD, len(vectors_QD)):
            looked_at = left = 0
            while left < k and looked_at < rows:
                looked_at = min(rows, max(2 * k, 4 * looked_at))
                cosines_1L, offsets_1L = self._nearest(vector_1D, condition, looked_at, where, options)
                there_L = offsets_1L[0] >= 0
                there_L[there_L] = self.stated_at(str(condition), offsets_1L[0][there_L]) >= LEAST_STATED
                left = int(there_L.sum())
            kept = np.where(there_L, cosines_1L, -np.inf), np.where(there_L, offsets_1L, -1)
            found.append(merge_top_k([kept], k))
        cosines_Qk, offsets_Qk = (np.concatenate(each) for each in zip(*found, strict=True))
        return cosines_Qk, offsets_Qk

    @exclusive
    @checks_types
    def nearest(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: str | None = None, **options: Any
    ) -> Nearest:
        """The k rows nearest to vectors of any length under a condition of the index (None: unconditional), best first:
        (Q, D) -> cosines (Q, k), row offsets (Q, k); -inf and -1 where the filter leaves fewer. Where there are fewer
        than k rows, k is their number. options: those of `search` for an approximate index. Raises RequestError."""
        condition = self.query_encoder.spelled(condition)
        if not self.rows(condition):
            names = ", ".join(map(repr, self.metadata.conditions))
            raise RequestError(f"condition: expected one of the index's ({names}), got {condition!r}")
        column, of_index = UNCONDITIONAL if condition is None else VECTOR, not self.metadata.lacks(condition)
        dim = self.dataset.schema.field(column).type.list_size if of_index else self.encoder.dim
        with expecting(f"vectors_QD: expected finite numbers, (Q, {dim})", TypeError, ValueError):
            vectors_QD = np.asarray(vectors_QD, np.float32)
        fits = vectors_QD.ndim == 2 and vectors_QD.shape[1] == dim and np.isfinite(vectors_QD).all()
        wrong = f"vectors_QD: expected finite numbers, (Q, {dim}), got {vectors_QD.shape} or others"
        how, others = options_of(options), sorted(options.keys() - {*OF_APPROXIMATE})
        unlike = f"options: expected none but {', '.join(OF_APPROXIMATE)}, got {', '.join(others)}; see `Index.search`"
        check_problems({f"k: expected at least 1, got {k}": k < 1, wrong: not fits, unlike: others})
        return self._nearest(l2_normalize(vectors_QD), condition, k, self._checked(where), how)

    def _nearest(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: Filter | None, options: Options
    ) -> Nearest:
        """`nearest`: by comparing every vector, by the index of its column, or, for a condition that is pooled, by the
        sketches of all rows, of which the best are pooled."""
        rows, candidates = self.rows(condition), None
        k, term, stored = min(k, rows), Term(condition=condition, vectors=vectors_QD), []
        if self.metadata.is_approximate(rows) and not options.exact:
            if pooled := self.vectors.pooled_rows(condition):
                candidates = self._candidates(len(vectors_QD), pooled, k, where, options)
            column = UNCONDITIONAL if condition is None else VECTOR
            if not self.metadata.lacks(condition) and is_coded(self.dataset, self.metadata, column):
                stored = [approximate_nearest(self.opened, vectors_QD, condition, k, where, options)]
                if not pooled:
                    return stored[0]
                where = Filter(f"({sql_and(HAS_TOKENS, where)})")  # those that are pooled remain
        return merge_top_k([*stored, self.compare([term], k, where, candidates)], k)

    def _candidates(self, queries: int, rows: int, k: int, where: Filter | None, options: Options) -> int | None:
        """How many rows are pooled for each query, of those that are best by their sketches; None: all are."""
        candidates = options.candidates(k, *(POOLED_COARSE if self.all_rows.sketched.is_coarse else POOLED))
        if where and (few := self.dataset.count_rows(sql_and(HAS_TOKENS, where))) * FEW <= rows:
            rows = few  # which alone are pooled
        return None if queries * candidates >= rows / 4 else candidates

    # ----------------------------------------------------------------------------------------------- rows and vectors

    @checks_types
    @exclusive
    def rows(self, condition: str | None) -> int:
        """How many rows there are under a condition (None: unconditional), stored or pooled from stored tokens."""
        condition = self.query_encoder.spelled(condition)
        with lance_errors(self.root):
            return self.metadata.rows_under(condition) + self.vectors.pooled_rows(condition)

    @checks_types
    def is_pooled(self, condition: str | None) -> bool:
        """Whether all vectors under a condition are pooled from stored tokens, for the index does not have it."""
        return self.metadata.with_tokens > 0 and self.metadata.lacks(self.query_encoder.spelled(condition))

    @exclusive
    def ids(self, conditions: Sequence[str | None] | None, where: str | None = None) -> pa.Table:
        """Id, condition and offset of the rows that pass a filter: all (None), or those under some conditions."""
        passing = self._checked(where)
        with lance_errors(self.root):
            under = self.vectors.rows_under(conditions) if conditions else None
            return self.dataset.to_table(columns=[ID, CONDITION, OFFSET], filter=sql_and(under, passing) or None)

    @exclusive
    def embed(
        self, sentences: Sequence[str], condition: str | None, named: str = "query", *, phrases: bool = False
    ) -> np.ndarray:
        """Unit vectors of sentences, or of phrases that answer it, under one condition (None: f(s)): (Q, D) float32.
        Raises RequestError, in which the sentences are `named` so."""
        return self.query_encoder.embed(sentences, condition, named, phrases=phrases)

    @exclusive
    @checks_types
    def blocks(
        self, asked: str | None, where: str | None = None, *, exact_condition: bool = False
    ) -> tuple[str | None, Callable[[], Iterator[Block]]]:
        """The condition that is searched for the one that was asked (None: unconditional), and what reads the offsets
        and unit vectors of all rows under it that pass a filter, in blocks. Raises RequestError, also where none do."""
        passing = self._checked(where)
        condition = self.query_encoder.condition_for(asked, exact_condition)

        def read() -> Iterator[Block]:
            found, rows = self.vectors.blocks(condition, passing), 0
            while True:
                with self.lock, lance_errors(self.root):
                    block = next(found, None)
                if block is None:
                    break
                rows += len(block[0])
                yield block
            if not rows:
                raise RequestError("--where: expected a filter that leaves rows, got one that leaves none")

        return condition, read

    @exclusive
    def vectors_at(self, condition: str | None, offsets_N: np.ndarray) -> np.ndarray:
        """The unit vectors of the rows at these offsets under a condition (None: unconditional): (N, D) float32."""
        with lance_errors(self.root):
            return self.all_rows.at(condition, offsets_N).numpy()

    @exclusive
    def heaviest(self, condition: str) -> float:
        """The mean weight of a row's heaviest token under a condition that is pooled, by some of the rows."""
        with lance_errors(self.root):
            return self.pooled.heaviest(condition, LOOKED_AT)

    def gives_stated(self, condition: str | None) -> bool:
        """Whether the model knows if rows, by their stored tokens, state something of a condition."""
        return self.is_pooled(condition) and self.encoder.stated_head is not None

    @exclusive
    def stated_at(self, condition: str, offsets_N: np.ndarray) -> np.ndarray:
        """The probabilities that rows state something of a condition for which `gives_stated`: (N,) float32."""
        assert self.encoder.stated_head is not None
        offsets_M, row_N = np.unique(offsets_N, return_inverse=True)
        with lance_errors(self.root):
            return self.pooled.stated_at(condition, offsets_M, self.encoder.stated_head)[row_N]

    def _checked(self, where: str | None) -> Filter | None:
        return None if where is None else checked_filter(self.dataset, self.root, where, "where")


def _is_combined(terms: Sequence[Term]) -> bool:
    """Whether a score is more than one cosine."""
    return len(terms) > 1 or terms[0].share != 1


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
    """Note what was searched in place of a condition that the index lacks, unless it has stored tokens alone."""
    if index.metadata.lacks(condition):
        if index.metadata.conditions:
            note(f"no {asked!r} in the index; pooled from its stored tokens")
    elif asked is not None and normal_words(asked) != normal_words(condition or ""):
        cosine = index.query_encoder.nearest_condition(asked)[1]
        note(f"no {asked!r} in the index; answered under {condition!r}, cosine {cosine:.2f}")


def note_searched(
    index: Index, searched: Mapping[str | None, str | None], where: str | None, *, apart: bool = True
) -> None:
    """`print_replaced_condition` of what was asked, and note which conditions hardly choose among a text's tokens, and
    how many rows that pass a filter have no vector under a condition that was searched, or, where they were not
    searched apart, under any; and which read as sentences."""
    note_sentences(searched)
    for asked, condition in searched.items():
        print_replaced_condition(index, asked, condition)
        if condition is None or condition in index.metadata.taught or not index.is_pooled(condition):
            continue
        if index.heaviest(condition) < LEAST_HEAVIEST:
            note(
                f"{condition!r} weighs the tokens of these texts nearly alike, so it may change little: try another "
                "wording, or give answers (`raycase teach`)"
            )
    names = [*dict.fromkeys(searched.values())]
    for some in [[name] for name in names] if apart and len(names) <= MOST_COMBINED else [names]:
        if index.metadata.rows not in map(index.rows, some):
            every, there = (pc.count_distinct(index.ids(each, where)[ID]).as_py() for each in (None, some))
            under = " or ".join("without a condition" if each is None else f"under {each!r}" for each in some)
            if every > there:
                note(f"{every - there:,} of {every:,} rows are left out: the index has no vector of theirs {under}")


def text_column(index: Index, asked: str | None) -> str | None:
    """The column with an index's texts: the one that was asked, or embedded, or in an index of an earlier version
    `text`; None where it has none."""
    embedded = index.metadata.text_column
    text = asked or (TEXT if embedded is None else embedded)
    if text in index.columns and pa.types.is_string(index.dataset.schema.field(text).type):
        return text
    if asked:
        kept = ", ".join(index.columns)
        raise RequestError(f"--text-column: expected a column of texts among those kept ({kept}), got {text!r}")
    return None


def names_at(index: Index, column: str, offsets_N: np.ndarray) -> list[Any]:
    """What answers name the rows at these offsets by, their ids or texts: N. Raises RequestError."""
    of = ID if column == ID else text_column(index, None)
    if of is None:
        raise RequestError(f"--answers: expected ids of rows of {index.root.uri}, which keeps no texts, got texts")
    with lance_errors(index.root):
        return [*index.dataset.take(offsets_N, columns=[of])[of].to_pylist()]


def why_unweighed(index: Index, asked: str | None, model: str | None) -> str | None:
    """Why the words of an index's texts in the column that was asked cannot be weighed; None where they can."""
    if text_column(index, asked) is None:
        return f"expected the texts in a column that the index keeps ({', '.join(index.columns)}), got {TEXT!r}"
    try:
        weighs_words = index.encoder.config.weighs_words
    except RequestError as error:  # the model has moved
        if model:
            raise
        return str(error)
    expected = "expected an index of a model that weighs words (as condition-pooling)"
    return None if weighs_words else f"{expected}, got one of {index.model}"


def weigh_answers(answers: pa.Table, index: Index, text: str) -> pa.ChunkedArray:
    """The words of each answer's text and their weights, of `WEIGHTS_TYPE`: null where there are none."""
    model: Any = index.encoder
    pairs = list(zip(answers[text].to_pylist(), answers[CONDITION].to_pylist(), strict=True))
    distinct = sorted({(answer, condition) for answer, condition in pairs if None not in (answer, condition)})
    chunks = [pa.array([], WEIGHTS_TYPE)]
    for start in range(0, len(distinct), WEIGHED):  # a text under several conditions is in one part, or in two
        texts, conditions = zip(*distinct[start : start + WEIGHED], strict=True)
        found = model.word_weights(texts, conditions)
        chunks.append(pa.array([[word._asdict() for word in words] or None for words in found], WEIGHTS_TYPE))
    place = {pair: i for i, pair in enumerate(distinct)}
    return pa.chunked_array(chunks).take(pa.array([place.get(pair) for pair in pairs], pa.int64()))
