"""Search an index in this process: the rows nearest to a sentence under a condition, by cosine.

Shapes: Q queries, C conditions, D dimensions, k neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raycase.errors import RequestError, WorkError, is_words, note
from raycase.heads.condition_head import ConditionQueries
from raycase.index.answers import answer_table, check_new_columns, no_answers, returned_columns
from raycase.index.approximate import DEFAULT_OPTIONS, Options, approximate_nearest, is_coded
from raycase.index.combined import Part, Weighted, check_weights, parts_column, shares
from raycase.index.distinct import check_distinct, distinct_answers
from raycase.index.exact import FEW, Block
from raycase.index.filters import Filter, checked_filter, filter_errors
from raycase.index.lance_files import lance_errors, open_newest, open_ready
from raycase.index.metadata import IndexMetadata
from raycase.index.pooled import cached_method
from raycase.index.query_encoder import ask, embed_queries, resolve_query_encoder
from raycase.index.shard import Limits, Nearest, Shard
from raycase.index.text_index import fused, fused_ranks, matching
from raycase.io.lance_dataset import import_lance
from raycase.io.schema import PARTS, PLAIN, QUERY, RANK, TEXT_RANK, VECTOR, VECTOR_RANK
from raycase.io.shared import Shared, exclusive
from raycase.io.storage import Location, locate
from raycase.io.stored_tokens import BASIS, SKETCH
from raycase.models.contracts import check_conditions, check_room
from raycase.models.embeds import Embeds
from raycase.models.registry import stores_tokens

if TYPE_CHECKING:
    from lance import LanceDataset

LEAST_STATED = 0.5  # probability
TELLING = (
    "that are pooled from stored tokens by a model trained on labelled texts (embed with --any-condition, and index "
    "that output alone)"
)
LEAST_POOLED, POOLED_REFINE = 5000, 50  # candidates by sketches that are pooled: as many, or times k
AWAY = 4  # times as many candidates where a weight is negative: what is far under a condition is sketched less well
CANDIDATES = 10  # times k: rows of each condition whose ids are combined, where a condition is searched approximately

# Numbers of queries, the condition under which they were searched, what `Index.nearest` gives, and more for their table
T = TypeVar("T")
Found = tuple[Sequence[int], str | None, Nearest, dict[str, Any]]


class Index(Shared):
    """An open index, for any number of threads. Its model is loaded with the first sentence."""

    def __init__(
        self,
        root: Location,
        dataset: LanceDataset,
        metadata: IndexMetadata,
        *,
        model: str | None = None,
        limits: Limits = Limits(),  # noqa: B008
    ) -> None:
        self.root, self.dataset, self.metadata, self.limits = root, dataset, metadata, limits
        self.model = model or metadata.name
        self.asked = cached_method(self._ask, self.limits.conditions_combined)
        self.all_rows = Shard(root, dataset, metadata, limits, self.asked)
        self.pooled, self.sketched = self.all_rows.pooled, self.all_rows.sketched
        self.vectors, self.sketch_vectors = self.all_rows.vectors, self.all_rows.sketch_vectors

    @classmethod
    def open(cls, uri: str, *, model: str | None = None, limits: Limits = Limits()) -> Index:  # noqa: B008
        """Open the index at a path or URI; `model` is the folder of its model, if it has moved.

        Raises RequestError where there is no finished index.
        """
        root = locate(uri)
        ready = open_ready(root)
        if ready is None:
            raise RequestError(f"expected an index at {root.uri}, got no finished one; see `raycase index`")
        return cls(root, *ready, model=model, limits=limits)

    def forked(self) -> None:
        import_lance()  # says that it cannot

    @property
    def columns(self) -> list[str]:
        """The columns that a search returns of each row: id and the kept ones."""
        return returned_columns(self.dataset)

    def rows(self, condition: str | None) -> int:
        """How many rows there are under a condition, those with stored tokens for one to be pooled; None: without."""
        return self.metadata.words if self.is_pooled(condition) else self.metadata.rows_under(condition)

    def is_pooled(self, condition: str | None) -> bool:
        """Whether vectors under a condition are pooled from stored tokens, for the index does not have them."""
        return bool(condition is not None and condition not in self.metadata.conditions and self.metadata.words)

    def _ask(self, condition: str) -> tuple[ConditionQueries, Tensor]:
        return ask(self.encoder, [condition], model=self.model, named="condition")

    @cached_property
    def encoder(self) -> Embeds:
        """The index's model, loaded. Raises RequestError where another model is at its name or folder."""
        return resolve_query_encoder(self.metadata, self.model).load()

    @exclusive
    def embed(
        self, sentences: Sequence[str], condition: str | None, named: str = "query", *, phrases: bool = False
    ) -> np.ndarray:
        """Unit vectors of sentences, or of phrases that answer it, under one condition (None: f(s)): (Q, D) float32.

        Raises RequestError, in which the sentences are `named` so, for a text that cannot be embedded.
        """
        return embed_queries(self.encoder, sentences, condition, model=self.model, named=named, phrases=phrases)

    # ---------------------------------------------------------------------------------------------------- sentences

    @exclusive
    def search(
        self,
        sentences: Sequence[str],
        conditions: Sequence[str] | str | Mapping[str, Any] | None = None,
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
                -0.5}`, make one question of several (`index.combined`); `("red", 2)` in place of a weight is a phrase
                that answers the condition, and its weight.
            k: rows for each sentence.
            where: filter on id and the kept columns, in SQL.
            query_condition: of the sentences' own vectors, if it is another one than that of the rows.
            unconditional: search the unconditional vectors.
            exact_condition: raise RequestError for a condition that the index does not have.
            phrases: the sentences answer their conditions, as "heavy rain" does "weather" (condition pooling).
            stated: leave out rows that, by `states_at`, more likely than not say nothing about the condition.
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
        sentences = [sentences] if isinstance(sentences, str) else sentences
        if isinstance(conditions, str):
            conditions = [conditions] * len(sentences)
        weighted = check_weights(conditions) if isinstance(conditions, Mapping) else []
        if conditions is not None and (unconditional or (not weighted and len(conditions) != len(sentences))):
            raise RequestError("expected one condition, one for each sentence, or unconditional, got other conditions")
        if k < 1:
            raise RequestError(f"k: expected at least 1, got {k}")
        own = phrases or any(one.phrase is not None for one in weighted)
        self.check_conditional(conditions, query_condition, phrases=own, stated=stated)
        check_new_columns(self.columns, *[PARTS] * bool(weighted), *(VECTOR_RANK, TEXT_RANK) * hybrid)
        if per is not None:
            check_distinct(self.dataset, per)
            again = partial(self.search, where=where, unconditional=unconditional, exact_condition=exact_condition)
            again = partial(again, query_condition=query_condition, phrases=phrases, stated=stated, match=match)
            return distinct_answers(partial(again, hybrid=hybrid, options=options), sentences, conditions, k, per)
        passing = self._checked(where)
        plain = unconditional or (conditions is None and not self.metadata.conditions)
        asked: Sequence[str | None] = [None] * len(sentences) if weighted or conditions is None else [*conditions]
        with filter_errors(self.dataset, passing), lance_errors(self.root):
            passing = passing if match is None else matching(self.dataset, match, passing)
            find = partial(self._found, sentences, asked, weighted, fused_ranks(k) if hybrid else k, passing, options)
            found = find(query_condition, exact_condition, phrases=phrases, stated=stated, plain=plain)
            table_of = partial(answer_table, self.dataset, states=self.states_at if stated else None)
            answers = [table_of(b, [asked[i] for i in b], name, *best, **more) for b, name, best, more in found]
            table = pa.concat_tables([no_answers(self.dataset), *answers], promote_options="default")
            table = table.sort_by([(QUERY, "ascending"), (RANK, "ascending")])
            return fused(self.dataset, self.metadata, table, sentences, passing, k, plain=plain) if hybrid else table

    def _found(
        self,
        sentences: Sequence[str],
        asked: Sequence[str | None],
        weighted: Sequence[Weighted],
        k: int,
        where: Filter | None,
        options: Options,
        query_condition: str | None,
        exact_condition: bool,
        *,
        phrases: bool,
        stated: bool,
        plain: bool,
    ) -> Iterator[Found]:
        """By vectors: under the condition of each sentence, under all that have a weight, or under all of the index."""
        if weighted or (not plain and None in asked):
            of_all = [Weighted(asked=name, weight=1.0) for name in self.metadata.conditions]
            names = [self._condition_for(one.asked, exact_condition) or "" for one in weighted or of_all]
            parts_of = partial(self._parts, weighted or of_all, names, query_condition, phrases)
            yield from self._combined(sentences, weighted, names, parts_of, k, where, options)
            return
        condition_of = {name: self._condition_for(name, exact_condition) for name in dict.fromkeys(asked)}
        nearest = partial(self._stated if stated else self._nearest, k=k, where=where, options=options)
        searched = [condition_of[name] for name in asked]
        yield from self._under(sentences, searched, nearest, query_condition, phrases=phrases)

    def check_conditional(
        self, conditions: Collection[str] | None, query_condition: str | None = None, *, phrases: bool, stated: bool
    ) -> None:
        """Raise RequestError for what needs a condition, or a model, that is not there."""
        if phrases and (conditions is None or not stores_tokens(self.encoder.config)):
            got = "no condition" if conditions is None else self.model
            raise RequestError(f"phrases: expected a condition and an index of condition pooling, got {got}")
        if query_condition is not None:
            if conditions is None:
                raise RequestError("query_condition: expected a condition of the rows beside it, got none")
            check_conditions(self.encoder.config, [query_condition])
        weighted = isinstance(conditions, Mapping)
        if stated and (weighted or conditions is None or not all(map(self.tells, conditions))):
            got = "weights" if weighted else ", ".join(conditions or ["none"])
            raise RequestError(f"stated: expected conditions {TELLING}, got {got}")

    def _under(
        self,
        sentences: Sequence[str],
        conditions: Sequence[str | None],
        nearest: Callable[[np.ndarray, str | None], Nearest],
        query_condition: str | None,
        *,
        phrases: bool,
    ) -> Iterator[Found]:
        """Each sentence under a condition (None: by unconditional vectors)."""
        for condition in dict.fromkeys(conditions):
            queries = [query for query, name in enumerate(conditions) if name == condition]
            for start in range(0, len(queries), self.limits.queries):
                batch = queries[start : start + self.limits.queries]
                vectors_QD = self.embed([sentences[i] for i in batch], query_condition or condition, phrases=phrases)
                yield batch, condition, nearest(vectors_QD, condition), {"pooled": self.is_pooled(condition)}

    def _parts(
        self,
        weighted: Sequence[Weighted],
        names: Sequence[str],
        query_condition: str | None,
        phrases: bool,
        sentences: Sequence[str],
    ) -> list[Part]:
        """Sentences under conditions with weights, of which the index searches those of other names."""
        parts = []
        for one, name, share in zip(weighted, names, shares(weighted), strict=True):
            if one.phrase is None:
                vectors_QD = self.embed(sentences, query_condition or name, phrases=phrases)
            else:
                vectors_QD = self.embed([one.phrase] * len(sentences), name, "phrase", phrases=True)
            parts.append(Part(condition=name, share=share, vectors=vectors_QD))
        return parts

    def _combined(
        self,
        sentences: Sequence[str],
        weighted: Sequence[Weighted],
        names: Sequence[str],
        parts_of: Callable[[Sequence[str]], list[Part]],
        k: int,
        where: Filter | None,
        options: Options,
    ) -> Iterator[Found]:
        """By the weighted mean of the cosines under the conditions of these names that an id has; weighted: as asked,
        none for the mean over all conditions of the index."""
        if len(names) > self.limits.conditions_combined:
            raise RequestError(
                f"condition: expected one, or no more than the {self.limits.conditions_combined} that are combined, "
                f"got {len(names):,}"
            )
        rows, pooled = max(map(self.rows, names)), any(map(self.is_pooled, names))
        k = min(k, sum(map(self.rows, names)))
        if pooled or (weighted and self.metadata.words):
            factor = options.factor * (AWAY if any(one.weight < 0 for one in weighted) else 1)
            candidates = self._candidates(len(sentences), rows, k, where, replace(options, factor=factor))
        else:
            candidates = None if self._is_exact(rows, options) else 0
        at_once = min(self.limits.queries, self.limits.cosines // rows) if candidates is None else 1
        for start in range(0, len(sentences), max(1, at_once)):
            batch = range(start, min(start + max(1, at_once), len(sentences)))
            parts = parts_of([sentences[i] for i in batch])
            scores_Qk, offsets_Qk, row_PQk = self._best_ids(parts, k, where, options, candidates)
            more = {"parts": parts_column(weighted, parts, row_PQk, self.all_rows.at)} if weighted else {}
            yield batch, None, (scores_Qk, offsets_Qk), more | {"pooled": pooled}

    def _best_ids(
        self, parts: Sequence[Part], k: int, where: Filter | None, options: Options, candidates: int | None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`best_ids`: of all rows (None), or of those that so many candidates by sketches, and the rows that are best
        under one condition of the index, have."""
        stored = [part for part in parts if not self.is_pooled(part.condition)]
        if not stored:
            scores_Qk, offsets_Qk = self._compare(parts, k, where, candidates)
            return scores_Qk, offsets_Qk, np.broadcast_to(offsets_Qk, (len(parts), *offsets_Qk.shape))
        if candidates is None:
            return self.all_rows.combined(parts, k, where)
        among = [self.all_rows.candidates(parts, where, candidates)] if candidates else []
        for part in stored:
            toward_QD = np.float32(np.sign(part.share)) * part.vectors
            among.append(self._nearest(toward_QD, part.condition, CANDIDATES * k, where, options)[1].reshape(-1))
        offsets = np.unique(np.concatenate(among))
        return self.all_rows.combined(parts, k, where, offsets[offsets >= 0])

    # ------------------------------------------------------------------------------------------------------ vectors

    @exclusive
    def nearest(
        self,
        vectors_QD: np.ndarray,
        condition: str | None,
        k: int,
        where: str | None = None,
        *,
        options: Options = DEFAULT_OPTIONS,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k rows nearest to unit vectors under a condition of the index (None: unconditional), best first: (Q, D)
        -> cosines (Q, k), row offsets (Q, k); -inf and -1 where the filter leaves fewer. Where there are fewer than k
        rows, k is their number. Raises RequestError."""
        return self._nearest(vectors_QD, condition, k, self._checked(where), options)

    def _nearest(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: Filter | None, options: Options
    ) -> tuple[np.ndarray, np.ndarray]:
        """`nearest`: by comparing every vector, by the index of its column, or, for a condition that is pooled from
        stored tokens, by the sketches of all rows, of which the best are pooled, unless that is nearly all of them."""
        rows = self.rows(condition)
        k = min(k, rows)
        column = PLAIN if condition is None else VECTOR
        coded = not self.is_pooled(condition) and is_coded(self.dataset, self.metadata, column)
        if coded and not self._is_exact(rows, options):
            return self._approximate(vectors_QD, condition, k, where, options)
        part = Part(condition=condition, share=1.0, vectors=vectors_QD)
        return self._compare([part], k, where, self._candidates(len(vectors_QD), rows, k, where, options))

    def _candidates(self, queries: int, rows: int, k: int, where: Filter | None, options: Options) -> int | None:
        """How many rows are pooled for each query, of those that are best by their sketches; None: all are."""
        if self._is_exact(rows, options) or SKETCH not in self.dataset.schema.names:
            return None
        candidates = options.candidates(k, POOLED_REFINE, LEAST_POOLED)
        if where and (few := self.dataset.count_rows(f"{BASIS} IS NOT NULL AND {where}")) * FEW <= rows:
            rows = few  # which alone are pooled
        return None if queries * candidates >= rows / 4 else candidates

    def _approximate(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: Filter | None, options: Options
    ) -> Nearest:
        """`_nearest` by the index of a column."""
        return approximate_nearest(self.dataset, self.metadata, vectors_QD, condition, k, where, options)

    def _compare(self, parts: Sequence[Part], k: int, where: Filter | None, candidates: int | None) -> Nearest:
        """`_nearest` by comparing every vector, or so many candidates by sketches; `Shard.nearest`."""
        return self.all_rows.nearest(parts, k, where, candidates)

    def _stated(
        self, vectors_QD: np.ndarray, condition: str, k: int, where: Filter | None, options: Options
    ) -> Nearest:
        """`_nearest` among the rows that say something of the condition: of each query, more and more are looked at."""
        rows, found = self.rows(condition), []
        for vector_1D in np.split(vectors_QD, len(vectors_QD)):
            looked_at = left = 0
            while left < k and looked_at < rows:
                looked_at = min(rows, max(2 * k, 4 * looked_at))
                cosines_1L, offsets_1L = self._nearest(vector_1D, condition, looked_at, where, options)
                there_L = offsets_1L[0] >= 0
                there_L[there_L] = self.states_at(condition, offsets_1L[0][there_L]) >= LEAST_STATED
                left = int(there_L.sum())
            order_k = np.argsort(~there_L, kind="stable")[:k]
            kept = np.where(there_L, cosines_1L, -np.inf), np.where(there_L, offsets_1L, -1)
            found.append([part_1L[0, order_k] for part_1L in kept])
        cosines_Qk, offsets_Qk = (np.stack(parts) for parts in zip(*found, strict=True))
        return cosines_Qk, offsets_Qk

    def _is_exact(self, rows: int, options: Options) -> bool:
        """Whether a search among so many rows compares every vector."""
        return options.exact or not self.metadata.is_approximate(rows)

    @exclusive
    def blocks(
        self, asked: str | None, where: str | None = None, *, exact_condition: bool = False
    ) -> tuple[str | None, Callable[[], Iterator[Block]]]:
        """All rows under a condition (None: unconditional) that pass a filter: the condition of the index that is taken
        for the one that was asked, as in a search, and a function that reads the rows' offsets and unit vectors, in
        blocks. Raises RequestError."""
        passing = self._checked(where)
        condition = self._condition_for(asked, exact_condition)

        def read() -> Iterator[Block]:
            found = self.vectors.blocks(condition, passing)
            while True:
                with self.lock, lance_errors(self.root):
                    block = next(found, None)
                if block is None:
                    return
                yield block

        return condition, read

    @exclusive
    def vectors_at(self, condition: str | None, offsets_N: np.ndarray) -> np.ndarray:
        """The unit vectors of the rows at these offsets, under a condition of the index (None: unconditional) or pooled
        from their stored tokens: (N, D) float32. Raises RequestError and WorkError."""
        with lance_errors(self.root):
            if condition is None or not self.is_pooled(condition):
                return self.vectors.at(condition, offsets_N).float().numpy()
            order_N = np.argsort(offsets_N)
            found, vectors = zip(*self.pooled.at(condition, offsets_N[order_N]), strict=True)
            vectors_ND = torch.cat(vectors).numpy()[np.argsort(np.concatenate(found))]
            return vectors_ND[np.argsort(order_N)]

    def tells(self, condition: str | None) -> bool:
        """Whether it is known what the rows' stored tokens say of a condition: something or nothing."""
        return self.is_pooled(condition) and self.encoder.says is not None

    @exclusive
    def states_at(self, condition: str, offsets_N: np.ndarray) -> np.ndarray:
        """The probabilities that the rows at these offsets say something of a condition that the index `tells`: (N,)
        float32. Raises RequestError and WorkError."""
        assert self.encoder.says is not None
        offsets_M, row_N = np.unique(offsets_N, return_inverse=True)
        with lance_errors(self.root):
            return self.pooled.states_at(condition, offsets_M, self.encoder.says)[row_N]

    def _checked(self, where: str | None) -> Filter | None:
        return None if where is None else checked_filter(self.dataset, self.root, where, "where")

    # --------------------------------------------------------------------------------------------------- conditions

    def nearest_condition(self, condition: str) -> tuple[str, float]:
        """The index's condition whose unconditional vector f(c) is nearest to that of another one, and their cosine."""
        names, conditions_CD = self._conditions
        cosines_C = conditions_CD @ self.embed([condition], None, "condition")[0]
        return names[int(cosines_C.argmax())], float(cosines_C.max())

    def _condition_for(self, asked: str | None, exact: bool) -> str | None:
        """The condition of the index that is searched for the one that was asked."""
        if asked is None and not self.metadata.plain:
            raise RequestError(
                f"unconditional: expected unconditional vectors in {self.root.uri}, got none; embed with "
                "--any-condition, or also with --unconditional, and index that output too"
            )
        if asked is None or asked in self.metadata.conditions:
            return asked
        if self.metadata.words and is_words(asked) and not exact:
            check_room(self.encoder.config, [asked], "condition")
            return asked
        names = ", ".join(map(repr, list(self.metadata.conditions)[:8]))
        is_compared = names and len(self.metadata.conditions) <= self.limits.conditions_compared
        if not is_compared or not is_words(asked) or exact or self.encoder.config.known_conditions is not None:
            raise RequestError(f"condition: expected one of the index's ({names or 'none'}), got {asked[:80]!r}")
        return self.nearest_condition(asked)[0]

    @cached_property
    def _conditions(self) -> tuple[list[str], np.ndarray]:
        """The index's conditions and their plain unit vectors, (C, D)."""
        names = list(self.metadata.conditions)
        return names, self.embed(names, None, "condition")


# ------------------------------------------------------------------------------------------------------ beside builds


def on_index(open_index: Callable[[], Index], work: Callable[[Index], T]) -> tuple[Index, T]:
    """Open an index and work on it, once more where builds removed its version meanwhile. Raises what the work
    raises."""
    index = open_index()
    try:
        return index, work(index)
    except WorkError:  # a wrong request is wrong in any version
        if not _is_removed(index):
            raise
    note(f"{index.root.uri}: a build removed the version in use; searching the newest one")
    index = open_index()
    return index, work(index)


def _is_removed(index: Index) -> bool:
    """Whether the version that is open is gone."""
    newest = open_newest(index.root)
    return newest is None or index.dataset.version not in [each["version"] for each in newest.versions()]
