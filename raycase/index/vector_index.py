"""An open index by its vectors: the encoder of its queries, the rows under a condition, and those nearest to a vector.

Shapes: Q queries, N rows, C conditions, D dimensions, k neighbours.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from raycase.errors import RequestError, check_problems, checks_types, expecting, is_words, normal_words, note
from raycase.heads.condition_head import ConditionQueries
from raycase.index.approximate import DEFAULT_OPTIONS, Options, approximate_nearest, is_coded
from raycase.index.condition_vectors import FEW
from raycase.index.filters import Filter, checked_filter
from raycase.index.lance_files import CUT, OFFSET, IndexMetadata, lance_errors, open_ready, returned_columns, sql_and
from raycase.index.shard import Limits, Shard
from raycase.index.topk import Block, Nearest, merge_top_k
from raycase.index.weighted_search import Term
from raycase.io.locks import Shared, exclusive
from raycase.io.schema import CONDITION, HAS_TOKENS, ID, UNCONDITIONAL, VECTOR
from raycase.io.storage import Location, fingerprint, locate
from raycase.io.vectors import l2_normalize
from raycase.models.configs import EmbedderConfig
from raycase.models.embedder import Embedder
from raycase.models.pairs import check_known, check_room
from raycase.models.registry import resolve_embedder

if TYPE_CHECKING:
    from lance import LanceDataset

ASKED = 64  # conditions that are remembered
COMPARED = 2000  # conditions at most among which the nearest to another is looked up
LEAST_POOLED, POOLED_REFINE = 5000, 50  # candidates by sketches that are pooled: as many, or times k


def resolve_query_encoder(metadata: IndexMetadata, model: str) -> EmbedderConfig:
    """The index's model by a name or folder, without its weights. Raises RequestError where it is another model."""
    own = metadata.model
    choices = {"dim": own.get(CUT)}
    if own["system"] == "case":  # the folders of others fix these, too
        encoder = own["encoder"]
        views, prompt = encoder["prompt"], encoder.get("own")
        choices["prompt"] = views if prompt is None else prompt | {"views": views.split("+")}
        choices |= {"pooling": encoder["pooling"][0], "subtract": own.get("subtract")}
    with expecting(f"model: expected the index's model {model}", RequestError):
        config = resolve_embedder(model, **choices)
    expected, got = fingerprint(metadata.model)[:8], fingerprint(config.describe())[:8]
    if expected != got:
        raise RequestError(
            f"model: expected the index's model, {metadata.name} ({expected}), got {model} ({got}); "
            f"pass its present folder, or embed and index again"
        )
    return config


class QueryEncoder:
    """The index's model, loaded with the first text. It knows no index: a circle of both would free its memory late."""

    def __init__(self, metadata: IndexMetadata, model: str | None, uri: str) -> None:
        """model: its folder, if it has moved; uri: of the index."""
        self.metadata, self.model, self.uri = metadata, model or metadata.name, uri
        self._asked: dict[str, tuple[ConditionQueries, Tensor]] = {}

    @cached_property
    def encoder(self) -> Embedder:
        """The model. Raises RequestError where another one is at its name or folder."""
        return resolve_query_encoder(self.metadata, self.model).load()

    def embed(
        self, sentences: Sequence[str], condition: str | None, named: str = "query", *, phrases: bool = False
    ) -> np.ndarray:
        """As `Index.embed`."""
        encoder: Any = self.encoder
        with expecting(f"{named}: expected a text that {self.model} can embed", ValueError):
            vectors_QD = l2_normalize((encoder.embed_phrases if phrases else encoder.embed)(sentences, condition))
        check_known(encoder.config, sentences, named)
        return vectors_QD

    def ask(self, condition: str) -> tuple[ConditionQueries, Tensor]:
        """What a head of condition pooling keeps of a condition, and its temperatures. Raises RequestError."""
        encoder: Any = self.encoder
        if condition not in self._asked:
            with expecting(f"condition: expected one that {self.model} can embed", ValueError):
                self._asked[condition] = encoder.questions([condition]), encoder.head.temperatures.detach()
            if len(self._asked) > ASKED:
                del self._asked[next(iter(self._asked))]
        return self._asked[condition]

    def spelled(self, asked: str | None) -> str | None:
        """A condition as the index has it: as it was asked, else one of the same normal form, which is that of one that
        the index lacks."""
        names = self.metadata.conditions
        if asked is None or asked in names:
            return asked
        normal = normal_words(asked)
        return normal if normal in names else next((one for one in names if normal_words(one) == normal), normal)

    def condition_for(self, asked: str | None, exact: bool = False) -> str | None:
        """The condition of the index that is searched for the one that was asked. Raises RequestError for none."""
        if asked is None and not self.metadata.unconditional:
            raise RequestError(
                f"unconditional: expected unconditional vectors in {self.uri}, got none; embed with --any-condition, "
                "or also with --unconditional, and index that output too"
            )
        name = self.spelled(asked)
        if name is None or name in self.metadata.conditions:
            return name
        if not is_words(name):
            raise RequestError(f"condition: expected words, got {asked!r}")
        if self.metadata.with_tokens and not exact:
            check_room(self.encoder.config, [name], "condition")
            return name
        names = ", ".join(map(repr, list(self.metadata.conditions)[:8]))
        is_compared = names and len(self.metadata.conditions) <= COMPARED
        if not is_compared or exact or self.encoder.config.known_conditions is not None:
            raise RequestError(f"condition: expected one of the index's ({names or 'none'}), got {name[:80]!r}")
        return self.nearest_condition(name)[0]

    def nearest_condition(self, condition: str) -> tuple[str, float]:
        """The index's condition whose unconditional vector f(c) is nearest to that of another one, and their cosine."""
        cosines_C = (self._conditions @ self.embed([condition], None, "condition")[0]).clip(-1, 1)
        return list(self.metadata.conditions)[int(cosines_C.argmax())], float(cosines_C.max())

    @cached_property
    def _conditions(self) -> np.ndarray:
        return l2_normalize(self.encoder.embed(list(self.metadata.conditions), None))


class VectorIndex(Shared):
    """An open index, for any number of threads. Its model is loaded with the first text."""

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
        self.columns = returned_columns(dataset)
        """The columns that a search returns of each row: id and the kept ones."""
        self.query_encoder = QueryEncoder(metadata, model, root.uri)
        self.model = self.query_encoder.model
        self.all_rows = Shard(root, dataset, metadata, limits, self.query_encoder.ask)
        self.vectors, self.pooled = self.all_rows.vectors, self.all_rows.pooled

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
        names = [*ready[1].conditions]
        if len({normal_words(name).casefold() for name in names}) < len(
            names
        ):  # columns may have "Animal" and "animal"
            note(f"{root.uri}: conditions that look alike are searched apart; spell them alike, embed and index again")
        return cls(root, *ready, model=model, limits=limits)

    @property
    def encoder(self) -> Embedder:
        """The index's model, loaded. Raises RequestError where another model is at its name or folder."""
        return self.query_encoder.encoder

    @checks_types
    @exclusive
    def rows(self, condition: str | None) -> int:
        """How many rows there are under a condition, stored or pooled from stored tokens; None: without. Raises
        RequestError and WorkError."""
        condition = self.query_encoder.spelled(condition)
        with lance_errors(self.root):
            return self.metadata.rows_under(condition) + self.vectors.pooled_rows(condition)

    @checks_types
    def is_pooled(self, condition: str | None) -> bool:
        """Whether all vectors under a condition are pooled from stored tokens, for the index does not have it."""
        return self.metadata.with_tokens > 0 and self.metadata.lacks(self.query_encoder.spelled(condition))

    @exclusive
    def ids(self, conditions: Sequence[str | None] | None, where: str | None = None) -> pa.Table:
        """Id, condition and offset of the rows that pass a filter: all, or those of `ConditionVectors.kinds`. Raises
        RequestError and WorkError."""
        passing = self._checked(where)
        with lance_errors(self.root):
            of_kinds = self.vectors.kinds(conditions) if conditions else None
            return self.dataset.to_table(columns=[ID, CONDITION, OFFSET], filter=sql_and(of_kinds, passing) or None)

    @exclusive
    def embed(
        self, sentences: Sequence[str], condition: str | None, named: str = "query", *, phrases: bool = False
    ) -> np.ndarray:
        """Unit vectors of sentences, or of phrases that answer it, under one condition (None: f(s)): (Q, D) float32.

        Raises RequestError, in which the sentences are `named` so, for a text that cannot be embedded.
        """
        return self.query_encoder.embed(sentences, condition, named, phrases=phrases)

    @exclusive
    @checks_types
    def nearest_condition(self, condition: str) -> tuple[str, float]:
        """The index's condition whose unconditional vector f(c) is nearest to that of another one, and their cosine."""
        return self.query_encoder.nearest_condition(condition)

    @exclusive
    @checks_types
    def nearest(
        self,
        vectors_QD: np.ndarray,
        condition: str | None,
        k: int,
        where: str | None = None,
        *,
        options: Options = DEFAULT_OPTIONS,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k rows nearest to vectors of any length under a condition of the index (None: unconditional), best first:
        (Q, D) -> cosines (Q, k), row offsets (Q, k); -inf and -1 where the filter leaves fewer. Where there are fewer
        than k rows, k is their number. Raises RequestError."""
        condition = self.query_encoder.spelled(condition)
        if not self.rows(condition):
            names = ", ".join(map(repr, self.metadata.conditions))
            raise RequestError(f"condition: expected one of the index's ({names}), got {condition!r}")
        column, of_index = UNCONDITIONAL if condition is None else VECTOR, not self.metadata.lacks(condition)
        dim = self.dataset.schema.field(column).type.list_size if of_index else self.encoder.dim
        with expecting(f"vectors_QD: expected finite numbers, (Q, {dim})", TypeError, ValueError):
            vectors_QD = np.asarray(vectors_QD, np.float32)
        fits = vectors_QD.ndim == 2 and vectors_QD.shape[1] == dim and np.isfinite(vectors_QD).all()
        problems = {
            f"k: expected at least 1, got {k}": k < 1,
            f"vectors_QD: expected finite numbers, (Q, {dim}), got {vectors_QD.shape} or others": not fits,
        }
        check_problems(problems)
        return self._nearest(l2_normalize(vectors_QD), condition, k, self._checked(where), options)

    def _nearest(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: Filter | None, options: Options
    ) -> tuple[np.ndarray, np.ndarray]:
        """`nearest`: by comparing every vector, by the index of its column, or, for a condition that is pooled from
        stored tokens, by the sketches of all rows, of which the best are pooled, unless that is nearly all of them."""
        rows, candidates = self.rows(condition), None
        k, term, stored = min(k, rows), Term(condition=condition, share=1.0, vectors=vectors_QD), []
        if self.metadata.is_approximate(rows) and not options.exact:
            if pooled := self.vectors.pooled_rows(condition):
                candidates = self._candidates(len(vectors_QD), pooled, k, where, options)
            column = UNCONDITIONAL if condition is None else VECTOR
            if not self.metadata.lacks(condition) and is_coded(self.dataset, self.metadata, column):
                stored = [approximate_nearest(self.dataset, self.metadata, vectors_QD, condition, k, where, options)]
                if not pooled:
                    return stored[0]
                where = Filter(f"({sql_and(HAS_TOKENS, where)})")  # those that are pooled remain
        found = self._compare([term], k, where, candidates)
        return merge_top_k([*stored, found]) if stored else found

    def _candidates(self, queries: int, rows: int, k: int, where: Filter | None, options: Options) -> int | None:
        """How many rows are pooled for each query, of those that are best by their sketches; None: all are."""
        candidates = options.candidates(k, POOLED_REFINE, LEAST_POOLED)
        if where and (few := self.dataset.count_rows(sql_and(HAS_TOKENS, where))) * FEW <= rows:
            rows = few  # which alone are pooled
        return None if queries * candidates >= rows / 4 else candidates

    def _compare(self, terms: Sequence[Term], k: int, where: Filter | None, candidates: int | None) -> Nearest:
        """`_nearest` by comparing every vector, or so many candidates by sketches; `Shard.nearest`."""
        return self.all_rows.nearest(terms, k, where, candidates)

    @exclusive
    @checks_types
    def blocks(
        self, asked: str | None, where: str | None = None, *, exact_condition: bool = False
    ) -> tuple[str | None, Callable[[], Iterator[Block]]]:
        """All rows under a condition (None: unconditional) that pass a filter: the condition of the index that is taken
        for the one that was asked, as in a search, and a function that reads the rows' offsets and unit vectors, in
        blocks. Raises RequestError."""
        passing = self._checked(where)
        condition = self.query_encoder.condition_for(asked, exact_condition)

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
            return self.all_rows.at(condition, offsets_N, torch.float32).numpy()

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
