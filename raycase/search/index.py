"""Query an index: the vectors nearest to a sentence under a condition, by cosine, here and without a server.

Shapes: Q queries, N rows under a condition, D dimensions, k neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from raycase.data.schema import CONDITION, ID
from raycase.data.storage import Location, fingerprint, locate
from raycase.errors import RequestError
from raycase.search.lance_files import lance_errors, open_ready, sql_equals, sql_literal
from raycase.search.metadata import ASKED, PLAIN, QUERY, RANK, RESERVED_COLUMNS, SCORE, VECTOR, IndexMetadata
from raycase.search.topk import l2_normalize, top_k
from raycase.systems.contracts import Encoder
from raycase.systems.registry import known_conditions, resolve

if TYPE_CHECKING:
    from lance import LanceDataset

MEMORY_BYTES = 2 * 2**30  # vectors kept for exact searches; of larger sets each search reads them again
NPROBES, EF = 10, 100  # partitions that are looked into; candidates that an HNSW walk holds
REFINE = {"hnsw": 3, "ivf-pq": 10}  # times k: candidates that are compared by their exact cosine
QUERIES = 1024  # of one condition that are answered at a time
CONDITIONS_COMBINED, CONDITIONS_COMPARED = 64, 2000  # most conditions: whose cosines are averaged; to find the nearest
CANDIDATES = 10  # of each condition, times k, where they are combined and one is searched by an approximate index
COSINES = 2**25  # of queries and ids, that are held at a time where conditions are combined
OFFSET = "_rowoffset"  # Lance's: a row's place in the dataset


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a search goes about it; the answer of an exact index does not depend on it."""

    exact: bool = False  # look at every vector, whatever the index
    nprobes: int = NPROBES
    ef: int = EF
    refine: int | None = None  # default: `REFINE` of the index's kind


class Index:
    """An index that is open, and the model that its vectors are of, which is loaded with the first sentence."""

    def __init__(
        self, root: Location, dataset: LanceDataset, metadata: IndexMetadata, model: str | None = None
    ) -> None:
        self.root = root
        self.dataset = dataset
        self.metadata = metadata
        self.model = model or metadata.name
        self._kept: dict[str | None, tuple[np.ndarray, Tensor]] = {}

    @classmethod
    def open(cls, uri: str, *, model: str | None = None) -> Index:
        """Open the index at a path or URI; `model` says where its model is now, if it has moved.

        Raises RequestError where there is no finished index.
        """
        root = locate(uri)
        ready = open_ready(root)
        if ready is None:
            raise RequestError(
                f"--index: expected an index at {root.uri}, got none that is finished; see jobs/index.py"
            )
        return cls(root, *ready, model)

    @cached_property
    def encoder(self) -> Encoder:
        """The model, loaded. Raises RequestError where it is not the one that the vectors are of."""
        try:
            config = resolve(self.model, **self.metadata.encoder_choices)
        except RequestError as error:
            raise RequestError(f"--model: expected the index's model {self.model}, got: {error}") from error
        wanted, found = fingerprint(self.metadata.model)[:8], fingerprint(config.describe())[:8]
        if wanted != found:
            raise RequestError(
                f"--model: expected the model that the index is of, {self.metadata.name} ({wanted}), got {self.model} "
                f"({found}); say --model with the folder where it is now"
            )
        return config.load()

    @property
    def columns(self) -> list[str]:
        """id and the kept columns."""
        return [name for name in self.dataset.schema.names if name not in (CONDITION, *RESERVED_COLUMNS)]

    def search(
        self,
        sentences: Sequence[str],
        conditions: Sequence[str] | str | None = None,
        k: int = 10,
        where: str | None = None,
        *,
        unconditional: bool = False,
        exact_condition: bool = False,
        candidates: int | None = None,
        options: Options = Options(),
    ) -> pa.Table:
        """The k rows nearest to each sentence under its condition, by cosine, best first.

        One condition serves all sentences. A condition that the index has not got is answered with the nearest that it
        has (column `condition` beside `asked`), or refused with `exact_condition`. Without conditions the score of an
        id is the mean of its cosines under the conditions that it has; by an approximate index, of ids that are among
        the best under one. `unconditional`: by the plain vectors f(s). `where`: a filter on kept columns, in SQL.
        `candidates`: so many rows, where there are, instead of k; of those another model may choose.

        Gives query (place in `sentences`), asked, condition, rank from 1, score, id and the kept columns; fewer than k
        rows where the filter leaves fewer. Raises RequestError.
        """
        if isinstance(sentences, str):
            raise ValueError("sentences: expected a list of strings, got one string")
        if isinstance(conditions, str):
            conditions = [conditions] * len(sentences)
        if conditions is not None and len(conditions) != len(sentences):
            raise ValueError(f"expected as many conditions as sentences, got {len(conditions)} and {len(sentences)}")
        if conditions is not None and unconditional:
            raise ValueError("expected conditions or unconditional, got both")
        for row, sentence in enumerate(sentences):
            if not sentence.strip():
                raise RequestError(f"--query: expected words, got {sentence!r} as query {row}")
        self._check(k, where)
        with lance_errors(self.root):
            if conditions is None and not unconditional and self.metadata.conditions:
                return self._combined(sentences, k, where, candidates, options)
            if conditions is None and not self.metadata.plain:
                raise RequestError(
                    f"--unconditional: expected plain vectors in {self.root.uri}, got none; see jobs/index.py"
                )
            asked = [None] * len(sentences) if conditions is None else list(conditions)
            return self._under(sentences, asked, k, where, exact_condition, candidates, options)

    def _under(
        self,
        sentences: Sequence[str],
        asked: Sequence[str | None],
        k: int,
        where: str | None,
        exact_condition: bool,
        candidates: int | None,
        options: Options,
    ) -> pa.Table:
        """Each sentence under its own condition; None: by plain vectors."""
        found = {condition: self._found(condition, exact_condition) for condition in dict.fromkeys(asked)}
        answers = [self._table([], [], None, *_nothing(k))]
        for condition in dict.fromkeys(found.values()):
            every = [i for i, a in enumerate(asked) if found[a] == condition]
            most = max(k, min(candidates or k, self.rows(condition)))
            for rows in (every[start : start + QUERIES] for start in range(0, len(every), QUERIES)):
                vectors_QD = self.embed([sentences[i] for i in rows], condition)
                scores_Qk, offsets_Qk = self.nearest(vectors_QD, condition, most, where, options=options)
                answers.append(self._table(rows, [asked[i] for i in rows], condition, scores_Qk, offsets_Qk))
        return pa.concat_tables(answers).sort_by([(QUERY, "ascending"), (RANK, "ascending")])

    def embed(self, sentences: Sequence[str], condition: str | None, flag: str = "--query") -> np.ndarray:
        """Unit vectors of sentences under one condition of the index: (Q, D) float32."""
        encoder = self.encoder
        try:
            return l2_normalize(encoder.embed(sentences, condition))
        except ValueError as error:
            raise RequestError(f"{flag}: expected a text that {self.model} can embed, got: {error}") from error

    def nearest(
        self,
        vectors_QD: np.ndarray,
        condition: str | None,
        k: int,
        where: str | None = None,
        *,
        options: Options = Options(),
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k rows nearest to unit vectors under a condition of the index (None: plain vectors), best first: (Q, D)
        -> cosines (Q, k), row offsets (Q, k); -inf and -1 where there are fewer."""
        rows = self.rows(condition)
        if k > rows:
            under = "without condition" if condition is None else f"under {condition!r}"
            raise RequestError(f"-k: expected at most the {rows} rows {under}, got {k}")
        if options.exact or not self.metadata.is_approximate(rows):
            return self._exact(vectors_QD, condition, k, where)
        return self._approximate(vectors_QD, condition, k, where, options)

    def rows(self, condition: str | None) -> int:
        """How many rows there are under a condition; None: without."""
        return self.metadata.plain if condition is None else self.metadata.conditions.get(condition, 0)

    # ------------------------------------------------------------------------------------------------------ conditions

    def _found(self, condition: str | None, exact: bool) -> str | None:
        """The condition of the index that answers."""
        if condition is None or condition in self.metadata.conditions:
            return condition
        if not self.metadata.conditions:
            raise RequestError(f"--condition: expected conditions in {self.root.uri}, got plain vectors alone")
        if not condition.strip() or exact or known_conditions(getattr(self.encoder, "config", None)) is not None:
            some = ", ".join(map(repr, list(self.metadata.conditions)[:8]))
            raise RequestError(f"--condition: expected one of the index's ({some}), got {condition!r}")
        return self.nearest_condition(condition)[0]

    def nearest_condition(self, condition: str) -> tuple[str, float]:
        """The index's condition whose plain vector f(c) is nearest to that of another, and their cosine."""
        names, known_CD = self._conditions
        cosines_C = known_CD @ self.embed([condition], None, "--condition")[0]
        return names[int(cosines_C.argmax())], float(cosines_C.max())

    @cached_property
    def _conditions(self) -> tuple[list[str], np.ndarray]:
        """The index's conditions and their plain unit vectors, (C, D)."""
        names = list(self.metadata.conditions)
        if len(names) > CONDITIONS_COMPARED:
            raise RequestError(
                f"--condition: expected one of the index's {len(names):,}, for more than {CONDITIONS_COMPARED:,} are "
                "not compared; got another"
            )
        return names, self.embed(names, None, "--condition")

    def _combined(
        self, sentences: Sequence[str], k: int, where: str | None, candidates: int | None, options: Options
    ) -> pa.Table:
        """By the mean of the cosines under the conditions that a row has."""
        names, most = list(self.metadata.conditions), max(self.metadata.conditions.values())
        if len(names) > CONDITIONS_COMBINED:
            raise RequestError(
                f"--condition: expected one, for the index has {len(names):,}, more than the {CONDITIONS_COMBINED} "
                "that are combined; got none"
            )
        if k > most:
            raise RequestError(f"-k: expected at most the {most} rows there are, got {k}")
        k = max(k, min(candidates or k, most))
        exact = options.exact or not self.metadata.is_approximate(most)
        several = max(1, min(QUERIES, COSINES // most)) if exact else 1
        answers = [self._table([], [], None, *_nothing(k))]
        for start in range(0, len(sentences), several):
            some = sentences[start : start + several]
            vectors = {name: self.embed(some, name) for name in names}
            rows = self._every(where) if exact else self._candidates(vectors, k, where, options)
            scores_Qk, offsets_Qk = self._mean(vectors, rows, k, where)
            queries = range(start, start + len(some))
            answers.append(self._table(queries, [None] * len(some), None, scores_Qk, offsets_Qk))
        return pa.concat_tables(answers)

    def _every(self, where: str | None) -> pa.Table:
        """id and offset of all conditional rows, without their vectors."""
        under = f"{CONDITION} IS NOT NULL" + (f" AND ({where})" if where else "")
        return self.dataset.to_table(columns=[ID, OFFSET], filter=under)

    def _candidates(self, vectors: dict[str, np.ndarray], k: int, where: str | None, options: Options) -> pa.Table:
        """All conditional rows, with their vectors, of the ids that are among the best under one condition."""
        found: set[int] = set()
        for name, vectors_QD in vectors.items():
            most = min(CANDIDATES * k, self.rows(name))
            found.update(self.nearest(vectors_QD, name, most, where, options=options)[1].reshape(-1).tolist())
        ids = self.dataset.take(sorted(found - {-1}), columns=[ID])[ID].unique().to_pylist()
        under = f"{CONDITION} IS NOT NULL AND {ID} IN ({', '.join(map(sql_literal, ids)) or 'NULL'})"
        return self.dataset.to_table(columns=[ID, CONDITION, VECTOR, OFFSET], filter=under)

    def _mean(
        self, vectors: dict[str, np.ndarray], rows: pa.Table, k: int, where: str | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """The k ids of these rows with the largest mean cosine to each query, by the offset of their first row."""
        offsets_N = _offsets(rows)
        number_N = rows[ID].combine_chunks().dictionary_encode().indices.to_numpy()
        first_I = np.unique(number_N, return_index=True)[1]
        sums_QI = np.zeros((len(next(iter(vectors.values()))), len(first_I)), dtype=np.float32)
        for name, vectors_QD in vectors.items():
            if VECTOR in rows.column_names:
                own = rows.filter(pc.equal(rows[CONDITION], name))
                blocks = iter([(_offsets(own), torch.from_numpy(_vectors(own[VECTOR])))])
            else:
                blocks = self._blocks(name, where)
            for offsets, block_BD in blocks:  # offsets are in the order of the dataset, and an id has one under a name
                sums_QI[:, number_N[np.searchsorted(offsets_N, offsets)]] += vectors_QD @ block_BD.numpy().T
        means_QI = torch.from_numpy(sums_QI / np.bincount(number_N, minlength=len(first_I)).astype(np.float32))
        scores, places = means_QI.topk(min(k, len(first_I)))
        lacking = ((0, 0), (0, k - scores.shape[1]))
        scores_Qk = np.pad(scores.numpy(), lacking, constant_values=-np.inf)
        return scores_Qk, np.pad(offsets_N[first_I][places.numpy()], lacking, constant_values=-1)

    # --------------------------------------------------------------------------------------------------------- nearest

    def _exact(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: str | None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Every vector under the condition, block by block."""
        seen: list[np.ndarray] = []

        def blocks() -> Iterator[Tensor]:
            for offsets, vectors in self._blocks(condition, where):
                seen.append(offsets)
                yield vectors

        scores_Qk, places_Qk = top_k(torch.from_numpy(vectors_QD), blocks(), k)
        offsets_N = np.concatenate([*seen, np.empty(0, dtype=np.int64)])
        offsets_Qk = np.append(offsets_N, -1)[places_Qk]  # place -1, of no row, takes the last
        return scores_Qk, offsets_Qk

    def _blocks(self, condition: str | None, where: str | None) -> Iterator[tuple[np.ndarray, Tensor]]:
        """Row offsets and unit vectors under a condition. What fits into memory is read once and kept."""
        column = PLAIN if condition is None else VECTOR
        under = sql_equals(CONDITION, condition)
        if condition not in self._kept:
            dim = self.dataset.schema.field(column).type.list_size
            held = sum(kept.numel() for _, kept in self._kept.values())
            if 4 * (held + self.rows(condition) * dim) > MEMORY_BYTES:
                under += f" AND ({where})" if where else ""
                for batch in self.dataset.to_batches(columns=[OFFSET, column], filter=under, batch_size=16384):
                    yield _offsets(batch), torch.from_numpy(_vectors(batch[column]))
                return
            rows = self.dataset.to_table(columns=[OFFSET, column], filter=under)
            self._kept[condition] = _offsets(rows), torch.from_numpy(_vectors(rows[column]))
        offsets_N, vectors_ND = self._kept[condition]
        if where:
            chosen = self.dataset.to_table(columns=[OFFSET], filter=f"{under} AND ({where})")
            kept_N = np.isin(offsets_N, _offsets(chosen))
            offsets_N, vectors_ND = offsets_N[kept_N], vectors_ND[torch.from_numpy(kept_N)]
        yield offsets_N, vectors_ND

    def _approximate(
        self, vectors_QD: np.ndarray, condition: str | None, k: int, where: str | None, options: Options
    ) -> tuple[np.ndarray, np.ndarray]:
        """By Lance's index, filtered first."""
        column = PLAIN if condition is None else VECTOR
        filters = [] if self.rows(condition) == self.metadata.rows else [sql_equals(CONDITION, condition)]
        filters += [f"({where})"] if where else []
        refine = options.refine or REFINE[self.metadata.approximate_kind]
        nearest = {
            "column": column,
            "q": vectors_QD if len(vectors_QD) > 1 else vectors_QD[0],
            "k": k,
            "metric": "dot",  # where too few vectors are there to train, Lance looks at all, and would take L2
            "refine_factor": refine,
        }
        if self.metadata.approximate_kind == "hnsw":
            nearest["ef"] = max(options.ef, k * refine)
        for probes in ({"nprobes": options.nprobes}, {"minimum_nprobes": options.nprobes}):
            found = self.dataset.to_table(
                columns=[OFFSET, "_distance"],
                nearest=nearest | probes,
                filter=" AND ".join(filters) or None,
                prefilter=bool(filters),
            )
            if len(found) == k * len(vectors_QD):  # else what the filter leaves is in partitions further off
                break
        scores_Qk = np.full((len(vectors_QD), k), -np.inf, dtype=np.float32)
        offsets_Qk = np.full((len(vectors_QD), k), -1, dtype=np.int64)
        queries = found["query_index"].to_numpy() if "query_index" in found.column_names else np.zeros(len(found), int)
        ranks = np.arange(len(found)) - np.searchsorted(queries, queries)
        scores_Qk[queries, ranks] = 1 - found["_distance"].to_numpy()  # Lance's distance is 1 - dot product
        offsets_Qk[queries, ranks] = _offsets(found)
        return scores_Qk, offsets_Qk

    # ---------------------------------------------------------------------------------------------------------- answer

    def _table(
        self,
        queries: Sequence[int],
        asked: Sequence[str | None],
        condition: str | None,
        scores_Qk: np.ndarray,
        offsets_Qk: np.ndarray,
    ) -> pa.Table:
        """The rows found, with what was kept of them."""
        row_H, rank_H = (offsets_Qk >= 0).nonzero()
        kept = self.dataset.take(offsets_Qk[row_H, rank_H], columns=self.columns)
        columns: dict[str, Any] = {
            QUERY: pa.array(np.asarray(queries, dtype=np.int64)[row_H]),
            ASKED: pa.array([asked[i] for i in row_H.tolist()], pa.string()),
            CONDITION: pa.array([condition] * len(row_H), pa.string()),
            RANK: pa.array(rank_H + 1, pa.int32()),
            SCORE: pa.array(scores_Qk[row_H, rank_H], pa.float32()),
        }
        return pa.table(columns | {name: kept[name] for name in self.columns})

    def _check(self, k: int, where: str | None) -> None:
        if k < 1:
            raise RequestError(f"-k: expected at least 1, got {k}")
        if where is not None:
            try:
                with lance_errors(self.root):
                    self.dataset.scanner(columns=[ID], filter=f"({where})", limit=1).to_table()
            except RequestError as error:
                columns = ", ".join(self.columns)
                words = str(error).partition("got: ")[2].partition(". Valid fields")[0]
                raise RequestError(f"--where: expected a filter in SQL on {columns}, got {where!r}: {words}") from error


def _vectors(column: Any) -> np.ndarray:
    """A column of vectors as (N, D) float32."""
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    values = array.flatten().to_numpy(zero_copy_only=False).copy()  # torch takes no read-only array
    return torch.from_numpy(values).float().numpy().reshape(-1, array.type.list_size)  # ten times numpy's cast


def _nothing(k: int) -> tuple[np.ndarray, np.ndarray]:
    """Scores and offsets of no query."""
    return np.empty((0, k), dtype=np.float32), np.empty((0, k), dtype=np.int64)


def _offsets(table: Any) -> np.ndarray:
    return table[OFFSET].to_numpy().astype(np.int64)
