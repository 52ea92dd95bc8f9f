"""Search an index in this process: the rows nearest to a sentence under a condition, by cosine.

Shapes: Q queries, C conditions, D dimensions, k neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
from torch import Tensor

from raycase.data.schema import PLAIN, QUERY, RANK, VECTOR
from raycase.data.storage import Location, locate
from raycase.data.stored_words import SKETCH, WORDS
from raycase.errors import RequestError, is_utf8
from raycase.search.answers import answer_table, no_answers, returned_columns
from raycase.search.approximate import DEFAULT_OPTIONS, Options, approximate_nearest
from raycase.search.combined import blocks_of_rows, conditional_rows, mean_nearest, rows_of_same_ids
from raycase.search.exact import Block, ConditionVectors, exact_nearest
from raycase.search.filters import Filter, checked_filter
from raycase.search.lance_files import lance_errors, open_ready
from raycase.search.metadata import IndexMetadata
from raycase.search.pooled import PooledVectors, SketchedVectors
from raycase.search.query_encoder import ask, embed_queries, load_query_encoder
from raycase.search.stored_rows import StoredRows
from raycase.systems.condition_head import Questions
from raycase.systems.contracts import Encoder, check_room
from raycase.systems.registry import stores_words

if TYPE_CHECKING:
    from lance import LanceDataset

LEAST_POOLED, POOLED_REFINE = 5000, 50  # candidates by sketches that are pooled: as many, or times k
CANDIDATES = 10  # times k: rows of each condition whose ids are combined, where a condition is searched approximately


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How much a search holds in memory, and how many conditions it compares."""

    memory_bytes: int = 2 * 2**30  # vectors cached for exact searches, and as many from sketches; more are read again
    words_bytes: int = 4 * 2**30  # stored words cached, and as many sketches; more are read again by each new condition
    queries: int = 1024  # queries under one condition that are answered at a time
    cosines: int = 2**25  # cosines of queries and ids held at a time where conditions are combined
    conditions_combined: int = 64  # conditions whose cosines are averaged
    conditions_compared: int = 2000  # conditions among which the nearest to another is looked up


class Index:
    """An open index. Its model is loaded with the first sentence."""

    def __init__(
        self,
        root: Location,
        dataset: LanceDataset,
        metadata: IndexMetadata,
        *,
        model: str | None = None,
        limits: Limits = Limits(),
    ) -> None:
        self.root, self.dataset, self.metadata, self.limits = root, dataset, metadata, limits
        self.model = model or metadata.name
        words, sketches = (StoredRows(dataset, root, metadata, c, limits.words_bytes) for c in (WORDS, SKETCH))
        asked = lru_cache(self.limits.conditions_combined)(self._ask)
        self.pooled, self.sketched = PooledVectors(words, asked), SketchedVectors(sketches, asked, metadata.words)
        self.vectors = ConditionVectors(dataset, metadata, limits.memory_bytes, self.pooled.blocks)
        self.sketch_vectors = ConditionVectors(dataset, metadata, limits.memory_bytes, self.sketched.blocks)

    @classmethod
    def open(cls, uri: str, *, model: str | None = None, limits: Limits = Limits()) -> Index:
        """Open the index at a path or URI; `model` is the folder of its model, if it has moved.

        Raises RequestError where there is no finished index.
        """
        root = locate(uri)
        ready = open_ready(root)
        if ready is None:
            raise RequestError(
                f"--index: expected an index at {root.uri}, got none that is finished; see `raycase index`"
            )
        return cls(root, *ready, model=model, limits=limits)

    @property
    def columns(self) -> list[str]:
        """The columns that a search returns of each row: id and the kept ones."""
        return returned_columns(self.dataset)

    def rows(self, condition: str | None) -> int:
        """How many rows there are under a condition, those with stored words for one to be pooled; None: without."""
        return self.metadata.words if self.is_pooled(condition) else self.metadata.rows_under(condition)

    def is_pooled(self, condition: str | None) -> bool:
        """Whether vectors under a condition are pooled from stored words, for the index does not have them."""
        return bool(condition is not None and condition not in self.metadata.conditions and self.metadata.words)

    def _ask(self, condition: str) -> tuple[Questions, Tensor]:
        return ask(self.encoder, [condition], model=self.model, flag="--condition")

    @cached_property
    def encoder(self) -> Encoder:
        """The index's model, loaded. Raises RequestError where another model is at its name or folder."""
        return load_query_encoder(self.metadata, self.model)

    def embed(
        self, sentences: Sequence[str], condition: str | None, flag: str = "--query", *, phrases: bool = False
    ) -> np.ndarray:
        """Unit vectors of sentences, or of phrases that answer it, under one condition (None: f(s)): (Q, D) float32.

        Raises RequestError, which names the flag, for a text that cannot be embedded.
        """
        vectors = embed_queries(self.encoder, sentences, condition, model=self.model, flag=flag, phrases=phrases)
        column = PLAIN if condition is None else VECTOR
        if column in self.dataset.schema.names:
            expected = self.dataset.schema.field(column).type.list_size
            if vectors.shape[1] != expected:
                raise RequestError(
                    f"--index: expected vectors of the {vectors.shape[1]} dimensions of {self.model} in "
                    f"{self.root.uri}, got {expected}; build it again from an output that verifies"
                )
        return vectors

    # ---------------------------------------------------------------------------------------------------- sentences

    def search(
        self,
        sentences: Sequence[str],
        conditions: Sequence[str] | str | None = None,
        k: int = 10,
        where: str | None = None,
        *,
        query_condition: str | None = None,
        unconditional: bool = False,
        exact_condition: bool = False,
        phrases: bool = False,
        candidates: int | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> pa.Table:
        """The k rows nearest to each sentence under its condition, by cosine, best first.

        One condition serves all sentences. One that the index does not have is pooled from stored words (column
        `pooled`); an index without stored words is searched under the nearest of its conditions (column `condition`
        beside `asked`); with `exact_condition` RequestError is raised instead of either. Without
        conditions, the score of an id is the mean of its cosines under the conditions that it has; an approximate index
        averages only ids that are among the best under one condition. `unconditional` searches the plain vectors f(s).
        `query_condition` is that of the sentences' own vectors, where it is another one than that of the rows.
        `phrases`: the sentences are answers to their conditions, such as "heavy rain" to "weather" (condition pooling).
        `where` is a filter on the kept columns, in SQL. `candidates` returns more than k rows, for a model that
        re-ranks them.

        Returns query (index in `sentences`), asked, condition, pooled, rank from 1, score, id and the kept columns;
        fewer than k rows where there are fewer. Raises RequestError.
        """
        if isinstance(sentences, str):
            raise ValueError("sentences: expected a list of strings, got one string")
        if isinstance(conditions, str):
            conditions = [conditions] * len(sentences)
        if conditions is not None and len(conditions) != len(sentences):
            raise ValueError(f"expected as many conditions as sentences, got {len(conditions)} and {len(sentences)}")
        if conditions is not None and unconditional:
            raise ValueError("expected conditions or unconditional, got both")
        if query_condition is not None:
            if conditions is None or phrases:
                got = "no condition" if conditions is None else "--text"
                raise RequestError(f"--query-condition: expected --query under a --condition of the rows, got {got}")
            self._check_query_condition(query_condition)
        if phrases and (conditions is None or not stores_words(self.encoder.config)):
            raise RequestError(
                "--text: expected a --condition that the phrases answer, and an index of condition pooling, got "
                f"{'no condition' if conditions is None else self.model}; use --query"
            )
        flag = "--text" if phrases else "--query"
        for query, sentence in enumerate(sentences):
            if not sentence.strip() or not is_utf8(sentence):
                raise RequestError(f"{flag}: expected words, got {sentence!r} as query {query}")
        if k < 1:
            raise RequestError(f"-k: expected at least 1, got {k}")
        passing = self._checked(where)
        with lance_errors(self.root):
            if conditions is None and not unconditional and self.metadata.conditions:
                return self._search_combined(sentences, k, passing, candidates, options)
            if conditions is None and not self.metadata.plain:
                raise RequestError(
                    f"--unconditional: expected plain vectors in {self.root.uri}, got none; see `raycase index`"
                )
            asked = [None] * len(sentences) if conditions is None else list(conditions)
            condition_of = {name: self._condition_for(name, exact_condition) for name in dict.fromkeys(asked)}
            return self._search_conditions(
                sentences,
                asked,
                condition_of,
                k,
                passing,
                query_condition=query_condition,
                phrases=phrases,
                candidates=candidates,
                options=options,
            )

    def _search_conditions(
        self,
        sentences: Sequence[str],
        asked: Sequence[str | None],
        condition_of: dict[str | None, str | None],
        k: int,
        where: Filter | None,
        *,
        query_condition: str | None,
        phrases: bool,
        candidates: int | None,
        options: Options,
    ) -> pa.Table:
        """Each sentence under the index's condition for the one that was asked; None: by plain vectors."""
        answers = [no_answers(self.dataset)]
        for condition in dict.fromkeys(condition_of.values()):
            queries = [query for query, name in enumerate(asked) if condition_of[name] == condition]
            most = max(k, candidates or k)
            for start in range(0, len(queries), self.limits.queries):
                batch = queries[start : start + self.limits.queries]
                flag = "--text" if phrases else "--query"
                own = condition if query_condition is None else query_condition
                vectors_QD = self.embed([sentences[query] for query in batch], own, flag, phrases=phrases)
                nearest = self._nearest(vectors_QD, condition, most, where, options)
                answers.append(
                    answer_table(
                        self.dataset,
                        batch,
                        [asked[query] for query in batch],
                        condition,
                        *nearest,
                        pooled=self.is_pooled(condition),
                    )
                )
        return pa.concat_tables(answers).sort_by([(QUERY, "ascending"), (RANK, "ascending")])

    def _search_combined(
        self, sentences: Sequence[str], k: int, where: Filter | None, candidates: int | None, options: Options
    ) -> pa.Table:
        """By the mean of the cosines under the conditions that an id has."""
        names, most = list(self.metadata.conditions), max(self.metadata.conditions.values())
        if len(names) > self.limits.conditions_combined:
            raise RequestError(
                f"--condition: expected one, for the index has {len(names):,}, more than the "
                f"{self.limits.conditions_combined} that are combined; got none"
            )
        k = min(max(k, candidates or k), most)
        exact = options.exact or not self.metadata.is_approximate(most)
        step = max(1, min(self.limits.queries, self.limits.cosines // most)) if exact else 1
        answers = [no_answers(self.dataset)]
        for start in range(0, len(sentences), step):
            batch = sentences[start : start + step]
            vectors = {name: self.embed(batch, name) for name in names}
            if exact:
                rows = conditional_rows(self.dataset, where)
                nearest = mean_nearest(vectors, rows, partial(self.vectors.blocks, where=where), k)
            else:
                rows = rows_of_same_ids(self.dataset, self._candidate_offsets(vectors, k, where, options))
                nearest = mean_nearest(vectors, rows, partial(blocks_of_rows, rows), k)
            queries = range(start, start + len(batch))
            answers.append(answer_table(self.dataset, queries, [None] * len(batch), None, *nearest))
        return pa.concat_tables(answers)

    def _candidate_offsets(
        self, vectors: dict[str, np.ndarray], k: int, where: Filter | None, options: Options
    ) -> set[int]:
        """Offsets of the rows that are among the best under one of the conditions."""
        offsets: set[int] = set()
        for condition, vectors_QD in vectors.items():
            most = min(CANDIDATES * k, self.rows(condition))
            offsets.update(self._nearest(vectors_QD, condition, most, where, options)[1].reshape(-1).tolist())
        return offsets - {-1}

    # ------------------------------------------------------------------------------------------------------ vectors

    def nearest(
        self,
        vectors_QD: np.ndarray,
        condition: str | None,
        k: int,
        where: str | None = None,
        *,
        options: Options = DEFAULT_OPTIONS,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k rows nearest to unit vectors under a condition of the index (None: plain vectors), best first: (Q, D)
        -> cosines (Q, k), row offsets (Q, k); -inf and -1 where the filter leaves fewer. Where there are fewer than k
        rows, k is their number. Raises RequestError."""
        return self._nearest(vectors_QD, condition, k, self._checked(where), options)

    def _nearest(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: Filter | None, options: Options
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = self.rows(condition)
        k = min(k, rows)
        if options.exact or not self.metadata.is_approximate(rows):
            return exact_nearest(vectors_QD, self.vectors.blocks(condition, where), k)
        if condition is not None and self.is_pooled(condition):
            return self._pooled_nearest(vectors_QD, condition, k, where, options)
        return approximate_nearest(self.dataset, self.metadata, vectors_QD, condition, k, where, options)

    def _pooled_nearest(
        self, vectors_QD: np.ndarray, condition: str, k: int, where: Filter | None, options: Options
    ) -> tuple[np.ndarray, np.ndarray]:
        """Candidates by the sketches of all rows, which are then pooled; all rows are, where that is little more."""
        candidates = options.candidates(k, POOLED_REFINE, LEAST_POOLED)
        few_more = len(vectors_QD) * candidates >= self.rows(condition) / 4
        if few_more or condition in self.vectors.cached or SKETCH not in self.dataset.schema.names:
            return exact_nearest(vectors_QD, self.vectors.blocks(condition, where), k)
        projected_QA = vectors_QD @ self.sketched.axes(condition).numpy()
        _, offsets = exact_nearest(projected_QA, self.sketch_vectors.blocks(condition, where), candidates)
        return exact_nearest(vectors_QD, self.pooled.at(condition, np.unique(offsets[offsets >= 0])), k)

    def blocks(
        self, asked: str | None, where: str | None = None, *, exact_condition: bool = False
    ) -> tuple[str | None, Callable[[], Iterator[Block]]]:
        """All rows under a condition (None: plain vectors) that pass a filter: the condition of the index that is taken
        for the one that was asked, as in a search, and a function that reads the rows' offsets and unit vectors, in
        blocks. Raises RequestError."""
        passing = self._checked(where)
        condition = self._condition_for(asked, exact_condition)

        def read() -> Iterator[Block]:
            with lance_errors(self.root):
                yield from self.vectors.blocks(condition, passing)

        return condition, read

    def _checked(self, where: str | None) -> Filter | None:
        return None if where is None else checked_filter(self.dataset, self.root, where)

    # --------------------------------------------------------------------------------------------------- conditions

    def nearest_condition(self, condition: str) -> tuple[str, float]:
        """The index's condition whose plain vector f(c) is nearest to that of another one, and their cosine."""
        names, conditions_CD = self._conditions
        cosines_C = conditions_CD @ self.embed([condition], None, "--condition")[0]
        return names[int(cosines_C.argmax())], float(cosines_C.max())

    def _check_query_condition(self, condition: str) -> None:
        known = self.encoder.config.known_conditions
        if not condition.strip() or not is_utf8(condition) or (known is not None and condition not in known):
            wanted = f"one of {', '.join(known)}" if known is not None else "words"
            raise RequestError(f"--query-condition: expected {wanted}, got {condition[:80]!r}")

    def _condition_for(self, asked: str | None, exact: bool) -> str | None:
        """The condition of the index that is searched for the one that was asked."""
        if asked is None or asked in self.metadata.conditions:
            return asked
        if not is_utf8(asked):
            raise RequestError(f"--condition: expected text in UTF-8, got {asked[:80]!r}")
        if self.metadata.words and asked.strip() and not exact:
            check_room(self.encoder.config, [asked], "--condition")
            return asked
        if not self.metadata.conditions:
            raise RequestError(
                f"--condition: expected conditions in {self.root.uri}, got plain vectors alone; `raycase embed "
                "--any-condition` stores what any condition needs"
            )
        if not asked.strip() or exact or self.encoder.config.known_conditions is not None:
            names = ", ".join(map(repr, list(self.metadata.conditions)[:8]))
            raise RequestError(f"--condition: expected one of the index's ({names}), got {asked!r}")
        return self.nearest_condition(asked)[0]

    @cached_property
    def _conditions(self) -> tuple[list[str], np.ndarray]:
        """The index's conditions and their plain unit vectors, (C, D)."""
        names, most = list(self.metadata.conditions), self.limits.conditions_compared
        if len(names) > most:
            raise RequestError(
                f"--condition: expected one of the index's {len(names):,}, for more than {most:,} are not compared; "
                "got another"
            )
        return names, self.embed(names, None, "--condition")
